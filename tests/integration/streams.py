"""The records of buckets, made from looks at them: what the table's stream would deliver."""

from collections.abc import Sequence
from typing import Any

from sluice.core.errors import NotFound
from sluice.core.snapshots import SnapshotName, Window, starts_ms
from sluice.repository import keys
from sluice.repository.snapshots import Snapshot, decode_snapshot
from sluice.repository.store import Store
from sluice.repository.wire import Item
from sluice.services.counting import Counting
from sluice.services.effects import Effects
from sluice.services.growth import Growth
from sluice.shell import new_token
from tests.fakes import FakeRandom
from tests.integration.conftest import ENTITY, NAMESPACE, RESOURCE, Host
from tests.simulation.stream import StreamRecord

FIRST = keys.bucket(NAMESPACE, ENTITY, RESOURCE, 0)
Record = dict[str, Any]


class Stream:
    """Of one bucket. Look at it after every write: what changed meanwhile is one record per shard."""

    def __init__(self, host: Host, first: keys.Key = FIRST, shards: int = 4) -> None:
        self._host = host
        self._images: dict[keys.Key, Item | None] = {keys.bucket_shard(first, shard): None for shard in range(shards)}
        self.records: list[Record] = []

    def look(self) -> list[Record]:
        """What happened since the last look."""
        found: list[Record] = []
        for key, old in self._images.items():
            new = self._host.store.inner.get(key, consistent=True)
            if new != old:
                number = len(self.records) + len(found)
                now_ms = self._host.clock.now_ms
                found.append(StreamRecord(number, key, old, new, now_ms, False, number, None).as_event())
                self._images[key] = new
        self.records += found
        return found

    def acquire(self, times: int = 1, **consume: int) -> list[Record]:
        records = []
        for _ in range(times):
            self._host.acquire(**consume)
            records += self.look()
        return records


class Tenants:
    """Every namespace is active, but for those that a test names."""

    def __init__(self) -> None:
        self.inactive: set[str] = set()

    def require_active(self, namespace_id: str) -> None:
        if namespace_id in self.inactive:
            raise NotFound("there is no such namespace")


def counting_of(host: Host, tenants: Tenants | None = None, store: Store | None = None) -> Counting:
    effects = Effects(host.clock, FakeRandom(), new_token, host.meter)
    return Counting(store or host.store, tenants or Tenants(), effects)


def growth_of(host: Host, tenants: Tenants | None = None) -> Growth:
    effects = Effects(host.clock, FakeRandom(), new_token, host.meter)
    return Growth(host.store, host.buckets.writer, host.sharding, tenants or Tenants(), effects)


def snapshot(
    host: Host, window: Window, at_ms: int | None = None, call_fingerprint: str | None = None
) -> Snapshot | None:
    begins_ms = starts_ms(window, host.clock.now_ms if at_ms is None else at_ms)
    name = SnapshotName(NAMESPACE, ENTITY, RESOURCE, call_fingerprint, window, begins_ms)
    item = host.store.inner.get(keys.usage(name), consistent=True)
    return None if item is None else decode_snapshot(item)


def sums(host: Host, at_ms: int | None = None) -> list[tuple[dict[str, int], int] | None]:
    """Of the hour and of the day: what was consumed, and how many writes that took."""
    found = [snapshot(host, window, at_ms) for window in Window]
    return [None if one is None else (dict(one.consumed_milli), one.total_events) for one in found]


def counted(counting: Counting, records: Sequence[Record]) -> None:
    assert not counting.count(records).uncounted
