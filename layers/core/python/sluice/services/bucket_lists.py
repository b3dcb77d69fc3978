"""Buckets, page by page: those of an entity, and those of a resource. Shards are put together again.

The index names shards, all of one bucket next to each other; a page never ends among them. Where the shards that the
index named do not add up, because one was split a moment ago, they are read again by their keys.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.core.errors import NotFound
from sluice.core.shards import SHARDS_MAX, is_complete
from sluice.core.standing import ShardLimit, Standing, standing
from sluice.repository import keys
from sluice.repository.entities import buckets_query
from sluice.repository.items import Bucket, decode_bucket
from sluice.repository.listing import buckets_of_resource_query, is_listed
from sluice.repository.store import BATCH_KEYS_MAX, Store
from sluice.services.cursors import Cursors, Position
from sluice.services.listing import Listed, PageRequest, Walk, make_page


@dataclass(frozen=True, slots=True)
class BucketLimitStanding:
    """One limit of an entity's bucket. `call_limits`: the bucket is one of limits that came with a call."""

    resource: str
    limit: str
    standing: Standing
    shards: int
    call_limits: bool


@dataclass(frozen=True, slots=True)
class EntityCapacity:
    entity: str
    limits: Mapping[str, Standing]


@dataclass(frozen=True, slots=True)
class _Group:
    """All shards that belong together, the place before the first and the place behind the last."""

    shards: tuple[Bucket, ...]
    before: Position
    behind: Position


class BucketLists:
    def __init__(self, store: Store, cursors: Cursors, clock_ms: Callable[[], int]) -> None:
        self._store = store
        self._cursors = cursors
        self._clock_ms = clock_ms

    def of_entity(self, namespace: str, entity: str, page: PageRequest) -> Listed[BucketLimitStanding]:
        """One item per bucket and limit. Those of one bucket may be on two pages, each with all shards counted."""
        purpose = (namespace, "buckets", entity)
        start = self._cursors.read(purpose, page.cursor)
        walk = Walk(self._store, [buckets_query(namespace, entity)], start)
        now_ms = self._clock_ms()
        found: list[tuple[BucketLimitStanding, Position]] = []
        for group in self._groups(walk, page, start, lambda bucket: (bucket.resource, bucket.call_fingerprint)):
            found += _items_of(group, start.within, now_ms)
            if len(found) > page.limit:
                break
        listed = make_page(self._cursors, purpose, found, page, walk)
        if not listed.items and page.cursor is None and not self._exists(namespace, entity):
            raise NotFound("there is no such entity")
        return listed

    def of_resource(self, namespace: str, resource: str, page: PageRequest) -> Listed[EntityCapacity]:
        """One item per entity. Buckets of limits that came with a call are not the entity's capacity."""
        purpose = (namespace, "capacity", resource)
        start = self._cursors.read(purpose, page.cursor)
        walk = Walk(self._store, [buckets_of_resource_query(namespace, resource)], start)
        now_ms = self._clock_ms()
        found: list[tuple[EntityCapacity, Position]] = []
        for group in self._groups(walk, page, start, _entity_unless_of_call):
            item = EntityCapacity(group.shards[0].entity, _standings(group.shards, now_ms))
            found.append((item, group.behind))
            if len(found) > page.limit:
                break
        return make_page(self._cursors, purpose, found, page, walk)

    def _groups(
        self, walk: Walk, page: PageRequest, start: Position, group_of: Callable[[Bucket], Hashable | None]
    ) -> Iterator[_Group]:
        """Neighbours of one group; those of none are left out."""
        shards: list[Bucket] = []
        before = behind = start
        while entries := walk.take(min(BATCH_KEYS_MAX, max(page.limit, SHARDS_MAX) + 1)):
            wanted = [keys.key_of(entry.item) for entry in entries]
            items = {keys.key_of(item): item for item in self._store.batch_get(wanted) if is_listed(item)}
            for entry, key in zip(entries, wanted, strict=True):
                bucket = decode_bucket(items[key]) if key in items else None
                if bucket is None or group_of(bucket) is None:
                    continue
                if shards and group_of(bucket) != group_of(shards[0]):
                    yield _Group(self._whole(shards), before, behind)
                    shards, before = [], behind
                shards.append(bucket)
                behind = entry.position
        if walk.was_cut and before != start:
            # Its other shards may follow: the next page begins with it.
            walk.position = before
        elif shards:
            yield _Group(self._whole(shards), before, behind)

    def _whole(self, listed: Sequence[Bucket]) -> tuple[Bucket, ...]:
        if is_complete({bucket.shard: bucket.shard_count for bucket in listed}):
            return tuple(listed)
        first = keys.first_shard(listed[0].key, listed[0].shard)
        every = [keys.bucket_shard(first, shard) for shard in range(SHARDS_MAX)]
        read = [decode_bucket(item) for item in self._store.batch_get(every, consistent=True) if is_listed(item)]
        # Removed since: shown as it was listed.
        return tuple(read or listed)

    def _exists(self, namespace: str, entity: str) -> bool:
        return self._store.get(keys.entity(namespace, entity), consistent=True) is not None


def _entity_unless_of_call(bucket: Bucket) -> str | None:
    return bucket.entity if bucket.call_fingerprint is None else None


def _items_of(group: _Group, within: Sequence[str], now_ms: int) -> list[tuple[BucketLimitStanding, Position]]:
    """One per limit, by name, each with the place behind it. `within`: the last one of the page before."""
    first = group.shards[0]
    named = (first.resource, first.call_fingerprint or "")
    standings = sorted(_standings(group.shards, now_ms).items())
    items = [
        (
            BucketLimitStanding(
                resource=first.resource,
                limit=limit,
                standing=one,
                shards=len(group.shards),
                call_limits=first.call_fingerprint is not None,
            ),
            replace(group.before, within=(*named, limit)),
        )
        for limit, one in standings
    ]
    if items:
        items[-1] = (items[-1][0], group.behind)
    if tuple(within[:2]) == named:
        return [(item, place) for item, place in items if item.limit > within[2]]
    return items


def _standings(shards: Sequence[Bucket], now_ms: int) -> dict[str, Standing]:
    """Of every limit that a shard has: while limits change, some have it and some do not."""
    by_limit: dict[str, list[ShardLimit]] = {}
    for bucket in sorted(shards, key=lambda bucket: bucket.shard):
        for name, limit in bucket.limits.items():
            part = ShardLimit(limit.parameters, limit.balance_milli, bucket.shard_count)
            by_limit.setdefault(name, []).append(part)
    return {name: standing(parts, now_ms) for name, parts in by_limit.items()}
