"""Counts a batch of the stream into snapshots: one write for each snapshot that the batch has something new for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from cachetools import LRUCache

from sluice.core.backoff import contended_wait_ms
from sluice.core.errors import Contended, NotFound
from sluice.core.signals import Signal
from sluice.core.snapshots import (
    EMPTY,
    Fold,
    Interval,
    Observation,
    ShardName,
    SnapshotName,
    Tally,
    Window,
    fold,
    follows,
    is_gap,
    join,
)
from sluice.repository import keys
from sluice.repository.shapes import UnknownShape
from sluice.repository.snapshots import count, decode_tallies, earlier_query, observe
from sluice.repository.store import Applied, Store
from sluice.services.effects import Effects

ROUNDS_MAX: Final = 4
# How many windows back the end of a generation is looked for. A shard that nobody used for longer is not asked about.
EARLIER_WINDOWS: Final = 6
_CACHE_SIZE: Final = 10_000

Tallies = Mapping[int, Tally]
_NONE: Final[Tallies] = {}


class Tenants(Protocol):
    def require_active(self, namespace_id: str) -> None:
        """Raises NotFound for a namespace that is not there or is being purged."""
        ...


@dataclass(frozen=True, slots=True)
class Uncounted:
    """A record from which on the batch has to come again, and why."""

    position: int
    error: Exception


@dataclass(frozen=True, slots=True)
class Counted:
    """What a batch showed of buckets, and what of it could not be counted."""

    observations: Sequence[Observation]
    uncounted: Sequence[Uncounted]

    @property
    def first_uncounted(self) -> int | None:
        """The position before which everything is counted; None where all of it is."""
        return min((failure.position for failure in self.uncounted), default=None)


class Counting:
    """For one batch at a time, as a function gets them."""

    def __init__(self, store: Store, tenants: Tenants, effects: Effects, size: int = _CACHE_SIZE) -> None:
        self._store = store
        self._tenants = tenants
        self._effects = effects
        self._seen: LRUCache[SnapshotName, Tallies] = LRUCache(maxsize=size)
        # The newest interval of each shard that went by here, whether or not it was written.
        self._last: LRUCache[ShardName, Interval] = LRUCache(maxsize=size)

    def count(self, records: Sequence[Mapping[str, Any]]) -> Counted:
        """A record that nobody understands is not counted; all others are, also those behind it: once more they change
        nothing. Records of other items than buckets are left out."""
        observations, uncounted = [], []
        for position, record in enumerate(records):
            try:
                observation = observe(record, position)
            except UnknownShape as error:
                uncounted.append(Uncounted(position, error))
                continue
            if observation is not None:
                observations.append(observation)
        self._effects.meter.count(Signal.STREAM_RECORDS, len(observations))
        for one in fold(observations):
            try:
                self._count(one)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one snapshot, the others must go on
                uncounted.append(Uncounted(one.first_position, error))
        if uncounted:
            self._effects.meter.count(Signal.STREAM_FAILURES, len(uncounted))
        return Counted(observations, uncounted)

    def _count(self, one: Fold) -> None:
        if not self._is_active(one.name.namespace):
            # A purge would never end if what it removes were counted anew.
            return
        unexpected = self._unexpected(one) if one.name.window is Window.HOUR else {}
        tallies = self._tallies(one.name)
        for _ in range(ROUNDS_MAX):
            joined = join(tallies, one.intervals)
            if joined is None:
                return
            gaps = self._gaps(one.name, unexpected, tallies)
            now_ms = self._effects.clock_ms()
            # May be repeated after a lost answer: it then finds its own intervals, which have nothing to add.
            outcome = self._store.update(count(one.name, tallies, joined, now_ms), repeatable=True)
            tallies = _NONE if outcome.item is None else decode_tallies(outcome.item)
            self._seen[one.name] = tallies
            if isinstance(outcome, Applied):
                self._effects.meter.count(Signal.SNAPSHOT_WRITES)
                if gaps:
                    self._effects.meter.count(Signal.STREAM_GAPS, gaps)
                return
        raise Contended(contended_wait_ms(self._effects.random_below))

    def _is_active(self, namespace: str) -> bool:
        try:
            self._tenants.require_active(namespace)
        except NotFound:
            return False
        return True

    def _tallies(self, name: SnapshotName) -> Tallies:
        """As last seen, else as read. An old answer costs a round, and no more: every write asks for what it saw."""
        tallies = self._seen.get(name)
        if tallies is not None:
            return tallies
        item = self._store.get(keys.usage(name))
        if item is None:
            return _NONE
        self._seen[name] = found = decode_tallies(item)
        return found

    def _unexpected(self, one: Fold) -> dict[int, list[Interval]]:
        """By shard, what does not follow on what went by here before. Only there a gap is looked for."""
        found: dict[int, list[Interval]] = {}
        for shard, intervals in one.intervals.items():
            name = one.name
            shard_name = ShardName(name.namespace, name.entity, name.resource, name.call_fingerprint, shard)
            for interval in intervals:
                before = self._last.get(shard_name)
                if interval.from_version and (before is None or not follows(before, interval)):
                    found.setdefault(shard, []).append(interval)
                self._last[shard_name] = interval
        return found

    def _gaps(self, name: SnapshotName, unexpected: Mapping[int, list[Interval]], tallies: Tallies) -> int:
        """How many generations begin in this window at another consumption than they last had."""
        beginnings = [
            (shard, interval)
            for shard, intervals in unexpected.items()
            for interval in intervals
            if tallies.get(shard, EMPTY).is_new(interval.generation)
        ]
        if not beginnings:
            return 0
        page = self._store.query(earlier_query(name, EARLIER_WINDOWS))
        earlier = [decode_tallies(item) for item in page.items]
        return sum(_begins_behind_gap(shard, interval, earlier) for shard, interval in beginnings)


def _begins_behind_gap(shard: int, interval: Interval, earlier: Sequence[Tallies]) -> bool:
    """By the latest window that knows the generation. Where none does, it may be older than the stream."""
    for tallies in earlier:
        before = tallies.get(shard, EMPTY).of(interval.generation)
        if before is not None:
            return is_gap(before, interval)
    return False
