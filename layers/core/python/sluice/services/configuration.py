"""Which limits hold for an entity and resource, and who stands above it: resolved, and cached for a minute."""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final

from cachetools import LRUCache, TTLCache

from sluice.core.limits import SYSTEM, LimitSet, OnUnavailable, resolve, scopes_of
from sluice.repository import keys
from sluice.repository.items import decode_entity, decode_limits
from sluice.repository.store import Store
from sluice.repository.wire import Item

CACHE_MS: Final = 60_000
CACHE_SIZE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Resolved:
    """`parent`: the next one up, if what this entity takes is taken there as well."""

    limits: LimitSet
    parent: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """`bucket_read`: the bucket was read along; `bucket_item` is what was found."""

    resolved: Resolved
    bucket_read: bool = False
    bucket_item: Item | None = None


class Configuration:
    """A change of limits at any level, of a parent or of its cascade acts within CACHE_MS in every process.

    The timer must be monotonic: a clock that is set back would keep old limits alive.
    """

    def __init__(self, store: Store, timer_ms: Callable[[], int]) -> None:
        self._store = store
        self._cache: TTLCache[tuple[str, str, str], Resolved] = TTLCache(CACHE_SIZE, CACHE_MS, timer=timer_ms)
        self._on_unavailable: LRUCache[str, OnUnavailable] = LRUCache(CACHE_SIZE)
        self._forgotten: LRUCache[str, int] = LRUCache(CACHE_SIZE)
        self._lock = Lock()

    def resolve(self, namespace: str, entity: str, resource: str, unseen_bucket: keys.Key | None) -> Found:
        """From the cache, else by one batch read, which also fetches a bucket that this process has not seen."""
        with self._lock:
            cached = self._cache.get((namespace, entity, resource))
        if cached is not None:
            return Found(cached)
        return self._read(namespace, entity, resource, unseen_bucket, consistent=False)

    def reread(self, namespace: str, entity: str, resource: str) -> LimitSet:
        """Past the cache and consistently: for whoever met a bucket under other limits."""
        return self._read(namespace, entity, resource, None, consistent=True).resolved.limits

    def on_unavailable(self, namespace: str) -> OnUnavailable:
        """As last read, however long ago: it is asked for just when the table can not be read."""
        with self._lock:
            return self._on_unavailable.get(namespace, OnUnavailable.BLOCK)

    def forget(self, namespace: str) -> None:
        """Drops what is cached for a namespace: a change of the system level acts on every resource of it."""
        with self._lock:
            self._forgotten[namespace] = self._forgotten.get(namespace, 0) + 1
            self._on_unavailable.pop(namespace, None)
            for cached in [key for key in self._cache if key[0] == namespace]:
                del self._cache[cached]

    def _read(self, namespace: str, entity: str, resource: str, bucket: keys.Key | None, *, consistent: bool) -> Found:
        with self._lock:
            forgotten = self._forgotten.get(namespace, 0)
        scopes = scopes_of(entity, resource)
        wanted = {keys.limits(namespace, scope): scope for scope in scopes}
        entity_key = keys.entity(namespace, entity)
        along = [] if bucket is None else [bucket]
        read = self._store.batch_get([*wanted, entity_key, *along], consistent=consistent)
        items = {keys.key_of(item): item for item in read}
        bucket_item = None if bucket is None else items.pop(bucket, None)
        parent = _parent_of(items.pop(entity_key, None))
        stored = {wanted[key]: decode_limits(item) for key, item in items.items()}
        limits = resolve([(scope.source, stored[scope].limits) for scope in scopes if scope in stored])
        system = stored.get(SYSTEM)
        resolved = Resolved(limits, parent)
        with self._lock:
            # What was read before a change was made must not be cached after it.
            if self._forgotten.get(namespace, 0) == forgotten:
                self._cache[namespace, entity, resource] = resolved
                self._on_unavailable[namespace] = (system and system.on_unavailable) or OnUnavailable.BLOCK
        return Found(resolved, bucket is not None, bucket_item)


def _parent_of(item: Item | None) -> str | None:
    if item is None:
        return None
    entity = decode_entity(item)
    return entity.parent if entity.cascade else None
