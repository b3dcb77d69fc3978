"""Buckets of old layouts, moved by whoever meets them: traffic through the fall-back, and the job of a migration.

One transaction makes the bucket of today's layout and removes the old items, each conditioned on what was seen. So of
two movers one fails, looks again and finds the bucket; an old client that wrote in between is seen by the next try.

Old items are looked for only while the namespace is in migration, and where one was met under the key of a bucket. A
process that has not noticed the start of a migration may make a full bucket beside the old items; the next mover merges
them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

from cachetools import TTLCache

from sluice.core.backoff import contended_wait_ms
from sluice.core.errors import Contended
from sluice.core.signals import Signal
from sluice.repository import keys
from sluice.repository.items import Bucket, decode_bucket
from sluice.repository.legacy import LegacyItem, decode_legacy, is_legacy, items_query, shard_key
from sluice.repository.legacy_moves import Move, merge, move, shard_count_of
from sluice.repository.store import Applied, Committed, ConditionFailed, Store
from sluice.repository.versions import SchemaVersion, decode_version
from sluice.repository.wire import Item
from sluice.services.claims import new_generation
from sluice.services.effects import Effects

CACHE_MS: Final = 10_000
CACHE_SIZE: Final = 10_000
_MOVE_ROUNDS: Final = 4


@dataclass(frozen=True, slots=True)
class BucketName:
    """Whose bucket. `legacy_prefix`: how the keys of its old items begin, if not like those of the namespace."""

    namespace: str
    entity: str
    resource: str
    legacy_prefix: str | None = None

    @property
    def prefixes(self) -> tuple[str, ...]:
        own = keys.namespace_prefix(self.namespace)
        return (own,) if self.legacy_prefix in {None, own} else (own, str(self.legacy_prefix))


@dataclass(frozen=True, slots=True)
class LegacyBucket:
    """The old items of one bucket, and the bucket of today's layout where there is one already."""

    parts: Sequence[LegacyItem]
    image: Bucket | None


@dataclass(frozen=True, slots=True)
class Moved:
    """`parts`: the old items that this mover removed or took over."""

    bucket: Bucket | None
    parts: Sequence[LegacyItem]


class LegacyBuckets:
    """Safe to share between threads. The timer must be monotonic."""

    def __init__(self, store: Store, effects: Effects, timer_ms: Callable[[], int]) -> None:
        self._store = store
        self._effects = effects
        self._versions: TTLCache[str, SchemaVersion] = TTLCache(CACHE_SIZE, CACHE_MS, timer=timer_ms)
        self._lock = Lock()

    def take_over(self, namespace: str, entity: str, resource: str) -> Bucket | None:
        """For a bucket under whose key an item of an old layout was met, in migration or not."""
        version = self._version(namespace)
        return self.move(BucketName(namespace, entity, resource, version.legacy_prefix)).bucket

    def move(self, name: BucketName, shards: int = 1) -> Moved:
        """`shards`: how many there are at least."""
        moved: list[LegacyItem] = []
        for _ in range(_MOVE_ROUNDS):
            found = self.find(name, shards)
            if not found.parts:
                return Moved(found.image, moved)
            now_ms = self._effects.clock_ms()
            if found.image is None:
                generation = new_generation(now_ms, self._effects.random_below)
                wanted = move(name.namespace, found.parts, generation, now_ms)
            else:
                wanted = merge(found.image, found.parts, now_ms)
            if not self._write(wanted):
                continue
            moved += found.parts
            self._effects.meter.count(Signal.LEGACY_ITEMS_MOVED, len(found.parts))
            if found.image is None:
                return Moved(wanted.buckets[0], moved)
        raise Contended(contended_wait_ms(self._effects.random_below))

    def find(self, name: BucketName, shards: int = 1) -> LegacyBucket:
        """By consistent reads: what is not seen here would be made anew, and full."""
        parts = [part for prefix in name.prefixes for part in self._on_entity(prefix, name)]
        today = keys.bucket(name.namespace, name.entity, name.resource, 0)
        image: Bucket | None = None
        read: set[keys.Key] = set()
        wanted = {today, *_shard_keys(name, shards)}
        while wanted - read:
            for item in self._store.batch_get(sorted(wanted - read), consistent=True):
                if is_legacy(item):
                    parts.append(decode_legacy(item, _prefix_of(item, name.prefixes)))
                elif keys.key_of(item) == today:
                    image = decode_bucket(item)
            read |= wanted
            wanted = set(_shard_keys(name, shard_count_of(parts)))
        return LegacyBucket(parts, image)

    def _on_entity(self, prefix: str, name: BucketName) -> list[LegacyItem]:
        request = items_query(prefix, name.entity, name.resource)
        items: list[Item] = []
        page = self._store.query(request)
        items += page.items
        while page.next_start is not None:
            page = self._store.query({**request, "ExclusiveStartKey": page.next_start})
            items += page.items
        parts = [decode_legacy(item, prefix) for item in items]
        return [part for part in parts if part.resource == name.resource]

    def _write(self, wanted: Move) -> bool:
        """Whether this mover did it. If its answer is lost for good the next one finds it done."""
        if len(wanted.writes) == 1 and "Put" in wanted.writes[0]:
            outcome = self._store.put(wanted.writes[0]["Put"], repeatable=True)
            return isinstance(outcome, Applied) or _is_own(outcome, wanted.buckets[0])
        return isinstance(self._store.transact(wanted.writes, self._effects.new_token()), Committed)

    def _version(self, namespace: str) -> SchemaVersion:
        with self._lock:
            known = self._versions.get(namespace)
        if known is None:
            known = decode_version(self._store.get(keys.schema_version(namespace), consistent=True))
            with self._lock:
                self._versions[namespace] = known
        return known


def _is_own(outcome: ConditionFailed, bucket: Bucket) -> bool:
    """After a lost answer the item may be the one that the first try put."""
    item = outcome.item
    return outcome.repeated and item is not None and item.get("gen") == bucket.generation


def _shard_keys(name: BucketName, count: int) -> list[keys.Key]:
    return [shard_key(prefix, name.entity, name.resource, shard) for prefix in name.prefixes for shard in range(count)]


def _prefix_of(item: Item, prefixes: Sequence[str]) -> str:
    """The longest that fits: the empty one fits every key."""
    pk = keys.key_of(item).pk
    return max((prefix for prefix in prefixes if pk.startswith(prefix)), key=len)
