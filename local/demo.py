"""What `make run` puts into a fresh table, so that the first call a person tries is answered."""

from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.limits import SYSTEM, OnUnavailable, Scope, define_limit
from sluice.core.signals import Signal
from sluice.shell import Environment, build_services

NAMESPACE = "default"
RESOURCE = "gpt-4"


class _Uncounted:
    """Loading a demo is not traffic."""

    def count(self, signal: Signal, amount: int = 1) -> None:
        pass


def load_demo(dynamodb_client: DynamoDBClient, table_name: str) -> None:
    """A default for every resource, and one resource with limits of its own."""
    environment = Environment(name="local", table=table_name, store_timeout_ms=10_000, open_namespace=NAMESPACE)
    limits = build_services(environment, dynamodb_client, _Uncounted()).limits
    limits.put(
        NAMESPACE,
        SYSTEM,
        {"rpm": define_limit("rpm", capacity=60, refill_period_seconds=60)},
        on_unavailable=OnUnavailable.BLOCK,
    )
    limits.put(
        NAMESPACE,
        Scope(resource=RESOURCE),
        {
            "rpm": define_limit("rpm", capacity=20, refill_period_seconds=60),
            "tpm": define_limit("tpm", capacity=10_000, burst=15_000, refill_period_seconds=60),
        },
    )
