"""Clients of AWS, each with a bound on how long it waits. What is asked rarely gets its client when it first asks."""

from typing import TYPE_CHECKING, Any, Final, Literal

import boto3
from botocore.config import Config

from sluice.repository.alert_bus import EventsAndTopic
from sluice.repository.aws_pricing import AwsPriceList
from sluice.repository.inference_profiles import InferenceProfiles

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

CONNECT_TIMEOUT_S: Final = 1
# A page of the price list is long, and nobody waits for it.
PRICE_LIST_TIMEOUT_MS: Final = 5_000
_BEDROCK: Final = "bedrock"


def table_client(timeout_ms: int) -> "DynamoDBClient":
    """One attempt per call: `repository/retries.py` decides what may be sent again."""
    return boto3.client("dynamodb", config=_config(timeout_ms, attempts=1, tcp_keepalive=True))


def bounded_client(
    service: Literal["bedrock", "events", "pricing", "s3", "secretsmanager", "sns"],
    timeout_ms: int,
    region: str | None = None,
    attempts: int = 2,
) -> Any:
    """`region`: that of this process if none is named."""
    return boto3.client(service, region_name=region, config=_config(timeout_ms, attempts=attempts))


def inference_profiles(timeout_ms: int) -> InferenceProfiles:
    return InferenceProfiles(lambda region: bounded_client(_BEDROCK, timeout_ms, region), _has_bedrock)


def price_list(region: str) -> AwsPriceList:
    """`region`: of the list's own endpoint. Asked once: the next run of the job asks again."""
    return AwsPriceList(
        lambda: bounded_client("pricing", PRICE_LIST_TIMEOUT_MS, region, attempts=1),
        lambda: boto3.Session().get_available_regions(_BEDROCK),
    )


def alert_bus(topic: str, timeout_ms: int) -> EventsAndTopic:
    return EventsAndTopic(
        lambda: bounded_client("events", timeout_ms), lambda: bounded_client("sns", timeout_ms), topic
    )


def _has_bedrock(region: str) -> bool:
    """As far as the SDK knows: a newer region may be missing."""
    session = boto3.Session()
    return any(
        region in session.get_available_regions(_BEDROCK, partition) for partition in session.get_available_partitions()
    )


def _config(timeout_ms: int, *, attempts: int, tcp_keepalive: bool = False) -> Config:
    return Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=timeout_ms / 1000,
        retries={"total_max_attempts": attempts, "mode": "standard"},
        tcp_keepalive=tcp_keepalive,
    )
