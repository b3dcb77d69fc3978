"""Which limits hold for an entity and resource: resolved over four levels, and cached for a minute."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

from cachetools import LRUCache, TTLCache

from sluice.core.limits import SYSTEM, LimitSet, OnUnavailable, Scope, resolve, scopes_of
from sluice.repository import keys
from sluice.repository.items import StoredLimits, decode_limits
from sluice.repository.store import Store
from sluice.repository.wire import Item

CACHE_MS: Final = 60_000
CACHE_SIZE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Resolution:
    """The limits that hold for a request. `bucket_read`: its bucket was read along; `bucket_item` is what was found."""

    limits: LimitSet
    bucket_read: bool = False
    bucket_item: Item | None = None


class Configuration:
    """A change at any level acts within CACHE_MS in every process."""

    def __init__(self, store: Store, clock_ms: Callable[[], int]) -> None:
        self._store = store
        self._cache: TTLCache[tuple[str, str, str], LimitSet] = TTLCache(CACHE_SIZE, CACHE_MS, timer=clock_ms)
        self._system_read: TTLCache[str, bool] = TTLCache(CACHE_SIZE, CACHE_MS, timer=clock_ms)
        self._on_unavailable: LRUCache[str, OnUnavailable] = LRUCache(CACHE_SIZE)
        self._lock = Lock()

    def limits(self, namespace: str, entity: str, resource: str, unseen_bucket: keys.Key | None) -> Resolution:
        """From the cache, else by one batch read, which also fetches a bucket that this process has not seen."""
        with self._lock:
            cached = self._cache.get((namespace, entity, resource))
        if cached is not None:
            return Resolution(cached)
        return self._resolve(namespace, entity, resource, unseen_bucket, consistent=False)

    def call_limits(self, namespace: str, limits: LimitSet, unseen_bucket: keys.Key | None) -> Resolution:
        """Per-call limits need no stored ones, but what to do when the table does not answer is stored."""
        with self._lock:
            fresh = namespace in self._system_read
        if fresh and unseen_bucket is None:
            return Resolution(limits)
        _, bucket_item = self._read(namespace, [SYSTEM], unseen_bucket, consistent=False)
        return Resolution(limits, unseen_bucket is not None, bucket_item)

    def reread(self, namespace: str, entity: str, resource: str) -> LimitSet:
        """Past the cache and consistently: for whoever met a bucket under other limits."""
        return self._resolve(namespace, entity, resource, None, consistent=True).limits

    def on_unavailable(self, namespace: str) -> OnUnavailable:
        """As last read, however long ago: it is asked for just when the table can not be read."""
        with self._lock:
            return self._on_unavailable.get(namespace, OnUnavailable.BLOCK)

    def forget(self, namespace: str) -> None:
        """Drops what is cached for a namespace: a change of the system level acts on every resource of it."""
        with self._lock:
            self._system_read.pop(namespace, None)
            for cached in [key for key in self._cache if key[0] == namespace]:
                del self._cache[cached]

    def _resolve(
        self, namespace: str, entity: str, resource: str, bucket: keys.Key | None, *, consistent: bool
    ) -> Resolution:
        scopes = scopes_of(entity, resource)
        stored, bucket_item = self._read(namespace, scopes, bucket, consistent=consistent)
        limits = resolve([(scope.source, stored[scope].limits) for scope in scopes if scope in stored])
        with self._lock:
            self._cache[namespace, entity, resource] = limits
        return Resolution(limits, bucket is not None, bucket_item)

    def _read(
        self, namespace: str, scopes: Sequence[Scope], bucket: keys.Key | None, *, consistent: bool
    ) -> tuple[dict[Scope, StoredLimits], Item | None]:
        """The levels that exist, and the bucket. The system's level is always among them."""
        wanted = {keys.limits(namespace, scope): scope for scope in scopes}
        found = self._store.batch_get([*wanted, *([] if bucket is None else [bucket])], consistent=consistent)
        items = {keys.key_of(item): item for item in found}
        bucket_item = None if bucket is None else items.pop(bucket, None)
        stored = {wanted[key]: decode_limits(item) for key, item in items.items()}
        system = stored.get(SYSTEM)
        with self._lock:
            self._system_read[namespace] = True
            self._on_unavailable[namespace] = (system and system.on_unavailable) or OnUnavailable.BLOCK
        return stored, bucket_item
