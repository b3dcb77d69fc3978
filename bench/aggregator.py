"""What counting costs: units written by the aggregator per 1,000 acquires, and its CPU per 1,000 records.

`make aggregator-costs` prints both. `tests/integration/test_costs.py` holds the units to their bound.
"""

import secrets
import time
from dataclasses import dataclass
from typing import Any, Final

from mypy_boto3_dynamodb import DynamoDBClient

from bench.capacity import CapacityMeter, Consumption
from bench.costs import CONSUME, LIMITS, NAMESPACE, RESOURCE, Uncounted
from local.engine import Engine, dynamodb_client
from local.table import create_table
from sluice.core.limits import Limit, Scope
from sluice.repository import keys
from sluice.repository.namespaces import Namespace, NamespaceState, create_writes
from sluice.repository.wire import Item, item_to_wire
from sluice.services.chains import AcquireRequest
from sluice.shell import Environment, Services, build_services, clock_ms

ACQUIRES: Final = 1_000
BATCH: Final = 100
UNITS_BOUND: Final = 30
"""Of 1,000 acquires in batches of 100: two writes for each batch, and the two snapshots with their index entries."""
# As in the table of costs, but large enough for all of them.
WIDE: Final = {name: Limit(10**9, 10**9, limit.refill_amount, 60) for name, limit in LIMITS.items()}

Record = dict[str, Any]


@dataclass(frozen=True)
class Figures:
    consumption: Consumption
    cpu_s: float
    records: int


class AggregatorCosts:
    """One busy entity on an empty table, its records counted in batches."""

    def __init__(self, client: DynamoDBClient, table: str) -> None:
        self._meter = CapacityMeter(client)
        self._environment = Environment("bench", table, 10_000)
        self._client = client
        self._services = build_services(self._environment, client, Uncounted())

    def measure(self) -> Figures:
        records = self._records()
        aggregator = build_services(self._environment, self._client, Uncounted())
        with self._meter.measuring() as consumption:
            started_s = time.process_time()
            for first in range(0, len(records), BATCH):
                self._aggregate(aggregator, records[first : first + BATCH])
            cpu_s = time.process_time() - started_s
        return Figures(consumption, cpu_s, len(records))

    def _aggregate(self, aggregator: Services, batch: list[Record]) -> None:
        """As the handler does."""
        counted = aggregator.counting.count(batch)
        aggregator.growth.grow(counted.observations)
        if counted.uncounted:
            raise AssertionError("all of it should have been counted")

    def _records(self) -> list[Record]:
        """What the stream has of so many acquires of one entity within an hour."""
        services, entity = self._services, "user-" + secrets.token_hex(17)
        now_ms = clock_ms()
        tenant = Namespace("bench", NAMESPACE, NamespaceState.ACTIVE, None, now_ms, now_ms)
        services.store.transact(create_writes(tenant), secrets.token_hex(16))
        services.limits.put(NAMESPACE, Scope(resource=RESOURCE), WIDE)
        key = keys.bucket(NAMESPACE, entity, RESOURCE, 0)
        records: list[Record] = []
        old: Item | None = None
        for number in range(ACQUIRES):
            services.acquire.acquire(AcquireRequest(NAMESPACE, entity, RESOURCE, CONSUME))
            new = services.store.get(key, consistent=True)
            records.append(_record(number, now_ms // 1000, old, new))
            old = new
        return records


def _record(number: int, at_s: int, old: Item | None, new: Item | None) -> Record:
    change: Record = {"ApproximateCreationDateTime": float(at_s), "SequenceNumber": str(number)}
    if old is not None:
        change["OldImage"] = item_to_wire(old)
    if new is not None:
        change["NewImage"] = item_to_wire(new)
    return {"dynamodb": change}


def main() -> None:
    with Engine() as engine:
        client = dynamodb_client(engine.endpoint)
        create_table(client, "aggregator")
        figures = AggregatorCosts(client, "aggregator").measure()
    consumption = figures.consumption
    print(f"{figures.records} acquires of one entity, in batches of {BATCH}")
    print(f"written {consumption.write_units:g} units in {consumption.calls} calls (bound {UNITS_BOUND})")
    print(f"CPU {1000 * figures.cpu_s / figures.records * 1000:.0f} ms per 1,000 records, requests included")


if __name__ == "__main__":
    main()
