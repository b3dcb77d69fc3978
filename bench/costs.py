"""Calls and capacity units of each operation, as a table: `make costs`.

`tests/integration/test_costs.py` holds the same figures to their bounds.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mypy_boto3_dynamodb import DynamoDBClient

from bench.capacity import CapacityMeter, Consumption
from local.engine import Engine, dynamodb_client
from local.reference import ReferenceEngine, available
from local.table import create_table
from sluice.core.errors import LimitExceeded
from sluice.core.limits import Limit, Scope
from sluice.core.signals import Signal
from sluice.services.acquire import AcquireRequest
from sluice.services.entities import EntityChange
from sluice.shell import Environment, Services, build_services

NAMESPACE: Final = "ns"
RESOURCE: Final = "gpt-4"
# Three limits and ids of forty characters: what a bucket may have and still be written for one unit. They refill
# slowly, so that the figures do not depend on how fast this machine is.
LIMITS: Final = {
    "rpm": Limit(1000, 1000, 1, 60),
    "tpm": Limit(1_000_000, 2_000_000, 100, 60),
    "rpd": Limit(100_000, 100_000, 100, 86_400),
}
CONSUME: Final = {"rpm": 1, "tpm": 500, "rpd": 1}


@dataclass(frozen=True)
class Bound:
    """The most that an operation may cost."""

    calls: int
    write_units: float
    read_units: float


BOUNDS: Final = {
    "first acquire": Bound(2, 4, 3),
    "warm acquire": Bound(1, 1, 0),
    "refused acquire": Bound(1, 1, 0),
    "refused again within a second": Bound(0, 0, 0),
    "acquire in a cold process": Bound(2, 1, 3),
    "acquire after a minute (limits read again)": Bound(2, 1, 2),
    "acquire that meets changed limits": Bound(5, 3, 8),
    "warm acquire, chain of two": Bound(2, 2, 0),
    "warm acquire, chain of three": Bound(3, 3, 0),
    "refused by a parent, chain of two": Bound(3, 3, 0),
    "refused by a parent again within a second": Bound(0, 0, 0),
}


class Uncounted:
    """A benchmark reads consumed capacity, not signals."""

    def count(self, signal: Signal, amount: int = 1) -> None:
        pass


class Costs:
    """Runs each operation once on an empty table."""

    def __init__(self, client: DynamoDBClient, table: str) -> None:
        self._meter = CapacityMeter(client)
        self._client = client
        self._environment = Environment("bench", table, 10_000, NAMESPACE)
        self._services = self._process()

    def measure(self) -> dict[str, Consumption]:
        entity = "user-" + secrets.token_hex(17)
        self._services.limits.put(NAMESPACE, Scope(resource=RESOURCE), LIMITS)
        figures = {"first acquire": self._one(lambda: self._acquire(self._services, entity))}
        figures["warm acquire"] = self._one(lambda: self._acquire(self._services, entity))
        cold = self._process()
        figures["acquire in a cold process"] = self._one(lambda: self._acquire(cold, entity))
        self._services.configuration.forget(NAMESPACE)
        figures["acquire after a minute (limits read again)"] = self._one(lambda: self._acquire(self._services, entity))
        self._services.limits.put(NAMESPACE, Scope(resource=RESOURCE), {**LIMITS, "rpm": Limit(500, 500, 1, 60)})
        figures["acquire that meets changed limits"] = self._one(lambda: self._acquire(self._services, entity))
        self._services.acquire.acquire(AcquireRequest(NAMESPACE, entity, RESOURCE, {"rpm": 400}))
        too_much = AcquireRequest(NAMESPACE, entity, RESOURCE, {"rpm": 400})
        figures["refused acquire"] = self._one(lambda: self._refused(too_much))
        figures["refused again within a second"] = self._one(lambda: self._refused(too_much))
        figures |= self._measure_chains()
        return {name: figures[name] for name in BOUNDS}

    def _measure_chains(self) -> dict[str, Consumption]:
        services = self._services
        for entity, parent in (("org", None), ("app", "org"), ("user", "app")):
            services.entities.put(NAMESPACE, entity, EntityChange(parent=parent))
        for entity in ("org", "app"):
            services.limits.put(NAMESPACE, Scope(entity, RESOURCE), LIMITS)
        self._acquire(services, "user")
        figures = {
            "warm acquire, chain of three": self._one(lambda: self._acquire(services, "user")),
            "warm acquire, chain of two": self._one(lambda: self._acquire(services, "app")),
        }
        small = {"rpm": Limit(2, 2, 1, 3600)}
        services.entities.put(NAMESPACE, "team", EntityChange())
        services.entities.put(NAMESPACE, "member", EntityChange(parent="team"))
        services.limits.put(NAMESPACE, Scope("team", RESOURCE), small)
        once = AcquireRequest(NAMESPACE, "member", RESOURCE, {"rpm": 1})
        services.acquire.acquire(once)
        services.acquire.acquire(once)
        figures["refused by a parent, chain of two"] = self._one(lambda: self._refused(once))
        figures["refused by a parent again within a second"] = self._one(lambda: self._refused(once))
        return figures

    def _process(self) -> Services:
        """One more process, as far as its caches go."""
        return build_services(self._environment, self._client, Uncounted())

    def _one(self, operation: Callable[[], None]) -> Consumption:
        with self._meter.measuring() as consumption:
            operation()
        return consumption

    @staticmethod
    def _acquire(services: Services, entity: str) -> None:
        services.acquire.acquire(AcquireRequest(NAMESPACE, entity, RESOURCE, CONSUME))

    def _refused(self, request: AcquireRequest) -> None:
        try:
            self._services.acquire.acquire(request)
        except LimitExceeded:
            return
        raise AssertionError("the bucket should have been drained")


def main() -> None:
    reference = available()
    with ReferenceEngine() if reference else Engine() as engine:
        client = dynamodb_client(engine.endpoint)
        create_table(client, "costs")
        figures = Costs(client, "costs").measure()
    print(f"engine: {'DynamoDB Local' if reference else 'ministack (its read units are not right)'}\n")
    print(f"| {'operation':44} | calls |  WCU |  RCU |\n|{'-' * 46}|------:|-----:|-----:|")
    for name, cost in figures.items():
        print(f"| {name:44} | {cost.calls:5} | {cost.write_units:4g} | {cost.read_units:4g} |")


if __name__ == "__main__":
    main()
