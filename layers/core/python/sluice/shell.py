"""The outermost shell: environment, clients, logger and metrics, each made once per process.

Everything below gets what it needs as an argument; nothing else reads the environment, the clock or randomness.
"""

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import boto3
from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.metrics import MetricUnit
from botocore.config import Config

from sluice.core.signals import METRICS_NAMESPACE, Meter, Signal
from sluice.repository.retries import Retries
from sluice.repository.store import DynamoStore, Store
from sluice.services.acquire import CHAIN_MAX, Acquire, Task
from sluice.services.configuration import Configuration
from sluice.services.denials import DenyCache
from sluice.services.entities import Entities
from sluice.services.images import ImageCache
from sluice.services.limits import Limits
from sluice.services.taking import Taken, Taker

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

CONNECT_TIMEOUT_S: Final = 1

# From the operating system: a restored snapshot would repeat any other.
_random_below: Final = secrets.randbelow

# Started by the first chain, so that no thread is part of a snapshot.
_threads: Final = ThreadPoolExecutor(max_workers=CHAIN_MAX, thread_name_prefix="chain")

logger = Logger()
metrics = Metrics(namespace=METRICS_NAMESPACE)


@dataclass(frozen=True, slots=True)
class Environment:
    """Every setting that a function reads. `open_namespace`: who callers without a login are, if allowed."""

    name: str
    table: str
    store_timeout_ms: int
    open_namespace: str | None

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> "Environment":
        return cls(
            name=variables["SLUICE_ENVIRONMENT"],
            table=variables["SLUICE_TABLE"],
            store_timeout_ms=int(variables.get("SLUICE_STORE_TIMEOUT_MS", "2000")),
            open_namespace=variables.get("SLUICE_OPEN_NAMESPACE") or None,
        )


def process_environment() -> Environment:
    return Environment.read(os.environ)


@dataclass(frozen=True, slots=True)
class Services:
    """What a handler may call."""

    acquire: Acquire
    configuration: Configuration
    entities: Entities
    limits: Limits
    store: Store


class PowertoolsMeter:
    """Signals as CloudWatch metrics, in the log line format that costs no call.

    By environment and service: environments that share an account must not share an alarm.
    """

    def __init__(self, environment: Environment) -> None:
        metrics.set_default_dimensions(environment=environment.name)

    def count(self, signal: Signal, amount: int = 1) -> None:
        metrics.add_metric(name=signal.value, unit=MetricUnit.Count, value=amount)


def make_client(environment: Environment) -> "DynamoDBClient":
    """One attempt per call: `repository/retries.py` decides what may be sent again."""
    return boto3.client(
        "dynamodb",
        config=Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=environment.store_timeout_ms / 1000,
            retries={"total_max_attempts": 1, "mode": "standard"},
            tcp_keepalive=True,
        ),
    )


def build_services(environment: Environment, client: "DynamoDBClient", meter: Meter) -> Services:
    store = DynamoStore(client, environment.table, Retries(_sleep_ms, _random_below, meter))
    configuration = Configuration(store, timer_ms)
    taker = Taker(store, configuration, ImageCache(), DenyCache(), clock_ms, _random_below, meter)
    return Services(
        acquire=Acquire(configuration, taker, run_all, meter),
        configuration=configuration,
        entities=Entities(store, configuration, clock_ms, _random_below, new_token),
        limits=Limits(store, configuration, clock_ms, _random_below),
        store=store,
    )


def run_all(tasks: Sequence[Task]) -> list[Taken | Exception]:
    """At once, in threads: the members of a chain wait for the network, not for each other."""
    futures = [_threads.submit(task) for task in tasks]
    outcomes: list[Taken | Exception] = []
    for future in futures:
        error = future.exception()
        if error is None:
            outcomes.append(future.result())
        elif isinstance(error, Exception):
            outcomes.append(error)
        else:
            raise error
    return outcomes


def new_token() -> str:
    """Names one transaction. DynamoDB takes 36 characters at most."""
    return secrets.token_hex(16)


def clock_ms() -> int:
    return time.time_ns() // 1_000_000


def timer_ms() -> int:
    """For what lives so and so long: it never runs backwards."""
    return time.monotonic_ns() // 1_000_000


def _sleep_ms(duration_ms: int) -> None:
    time.sleep(duration_ms / 1000)
