"""What happened to buckets, from the stream. Computed here once more, so that the product is not its own judge."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

from sluice.repository.wire import Item
from tests.simulation.stream import StreamRecord


class LimitState(NamedTuple):
    """One limit of one shard."""

    balance: int
    burst: int
    amount: int
    period_ms: int

    def refill(self, time_ms: int) -> int:
        return time_ms * self.amount // self.period_ms

    def level(self, time_ms: int) -> int:
        """Not cut at the burst: what is above it is cut when it is spent from."""
        return self.balance + self.refill(time_ms)


@dataclass(frozen=True, slots=True)
class LimitChange:
    """One limit in one write, shard by shard. `consumed`: by how much the total consumption rose.

    What leaves with a shard that is merged was consumed all the same.
    """

    before: tuple[LimitState, ...]
    after: tuple[LimitState, ...]
    consumed: int


@dataclass(frozen=True, slots=True)
class Change:
    """One atomic write on one bucket: a record per shard.

    `is_moved`: made of items of old layouts, or merged with them; what these had consumed was not consumed by it.
    """

    entity: str
    time_ms: int
    cause: object
    records: tuple[StreamRecord, ...]
    limits: Mapping[str, LimitChange]
    is_moved: bool = False

    @property
    def by_ttl(self) -> bool:
        return self.records[0].by_ttl

    @property
    def is_created(self) -> bool:
        return len(self.records) == 1 and self.records[0].old is None and not self.is_moved

    @property
    def is_removed(self) -> bool:
        return all(record.new is None for record in self.records)

    @property
    def is_split(self) -> bool:
        return any(record.old is None for record in self.records) and not (self.is_created or self.is_moved)

    @property
    def is_merged(self) -> bool:
        return any(record.new is None for record in self.records) and not self.is_removed

    @property
    def is_rebased(self) -> bool:
        """To other limits; a split changes only the count behind the hash."""
        return not self.is_moved and any(
            record.old is not None and record.new is not None and _limits(record.old) != _limits(record.new)
            for record in self.records
        )

    @property
    def is_plain(self) -> bool:
        """One shard, spent from or given back to."""
        return len(self.records) == 1 and not (self.is_created or self.is_removed or self.is_rebased or self.is_moved)


def is_old(item: Item | None) -> bool:
    """Of an old layout: what the product writes today has a kind."""
    return item is not None and "kind" not in item


def bucket_changes(stream: Sequence[StreamRecord]) -> dict[str, list[Change]]:
    """Of every bucket, in order."""
    changes: dict[str, list[Change]] = {}
    moves = {record.write for record in stream if is_old(record.old)}
    for _, records in groupby(_of_buckets(stream), key=lambda record: record.write):
        by_bucket: dict[str, list[StreamRecord]] = {}
        for record in records:
            by_bucket.setdefault(bucket_of(record), []).append(record)
        for bucket, own in by_bucket.items():
            changes.setdefault(bucket, []).append(_change(tuple(own), is_moved=own[0].write in moves))
    return changes


def _change(records: tuple[StreamRecord, ...], *, is_moved: bool) -> Change:
    first = records[0]
    item = first.new or first.old
    assert item is not None
    names = {
        name: None
        for record in records
        for item in (record.old, record.new)
        if not is_old(item)
        for name in _names(item)
    }
    return Change(
        entity=str(item["entity_id"]),
        time_ms=first.created_ms,
        cause=first.cause,
        records=records,
        limits={name: _limit_change(records, name, is_moved=is_moved) for name in names},
        is_moved=is_moved,
    )


def _limit_change(records: tuple[StreamRecord, ...], name: str, *, is_moved: bool) -> LimitChange:
    before = tuple(
        state for record in records if not is_old(record.old) and (state := _state(record.old, name)) is not None
    )
    after = tuple(state for record in records if (state := _state(record.new, name)) is not None)
    consumed = sum(_consumed(record.new, name) - _consumed(record.old, name) for record in records if record.new)
    return LimitChange(before, after, 0 if is_moved else consumed)


def bucket_of(record: StreamRecord) -> str:
    """The key without the shard, which is its last part."""
    return record.key.pk.rpartition("#")[0]


def _of_buckets(stream: Iterable[StreamRecord]) -> Iterator[StreamRecord]:
    for record in stream:
        item = record.new or record.old
        if item is not None and item.get("kind") == "bucket":
            yield record


def _names(item: Item | None) -> tuple[str, ...]:
    return () if item is None else _names_in(tuple(item))


@lru_cache(maxsize=1000)
def _names_in(attributes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name[2:-3] for name in attributes if name.startswith("b_") and name.endswith("_tk"))


def _state(item: Item | None, name: str) -> LimitState | None:
    if item is None or f"b_{name}_tk" not in item:
        return None
    fields: Any = item
    return LimitState(fields[f"b_{name}_tk"], fields[f"b_{name}_bx"], fields[f"b_{name}_ra"], fields[f"b_{name}_rp"])


def _consumed(item: Item | None, name: str) -> int:
    found: Any = 0 if item is None else item.get(f"b_{name}_tc", 0)
    return int(found)


def _limits(item: Item) -> str:
    return str(item["lh"]).partition(":")[0]
