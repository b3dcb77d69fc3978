"""Stored limits: resolved over their levels, cached for a minute, and written."""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final

from cachetools import LRUCache, TTLCache

from sluice.core.backoff import RandomBelow, contended_wait_ms
from sluice.core.errors import Contended
from sluice.core.limits import LimitsByName, LimitSet, OnUnavailable, Source, check_limit_names, resolve
from sluice.repository import keys
from sluice.repository.items import StoredLimits, decode_limits, encode_limits
from sluice.repository.requests import PutRequest
from sluice.repository.store import Applied, Store
from sluice.repository.wire import Item

CACHE_MS: Final = 60_000
CACHE_SIZE: Final = 10_000
_WRITE_ROUNDS: Final = 4


@dataclass(frozen=True, slots=True)
class Resolution:
    """The limits that hold for a request. `bucket_read`: its bucket was read along; `bucket_item` is what was found."""

    limits: LimitSet
    bucket_read: bool = False
    bucket_item: Item | None = None


class Configuration:
    """The limits of an entity and resource. A change acts within CACHE_MS in every process."""

    def __init__(self, store: Store, clock_ms: Callable[[], int], random_below: RandomBelow) -> None:
        self._store = store
        self._clock_ms = clock_ms
        self._random_below = random_below
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
        return self._read(namespace, entity, resource, unseen_bucket, consistent=False)

    def call_limits(self, namespace: str, limits: LimitSet, unseen_bucket: keys.Key | None) -> Resolution:
        """Per-call limits need no stored ones, but what to do when the table does not answer is stored."""
        with self._lock:
            fresh = namespace in self._system_read
        if fresh and unseen_bucket is None:
            return Resolution(limits)
        system_key = keys.system_limits(namespace)
        items = self._batch_get([system_key], unseen_bucket, consistent=False)
        system = items.get(system_key)
        self._learn_system(namespace, None if system is None else decode_limits(system))
        return Resolution(limits, unseen_bucket is not None, items.get(unseen_bucket) if unseen_bucket else None)

    def reread(self, namespace: str, entity: str, resource: str) -> LimitSet:
        """Past the cache and consistently: for whoever met a bucket under other limits."""
        return self._read(namespace, entity, resource, None, consistent=True).limits

    def on_unavailable(self, namespace: str) -> OnUnavailable:
        """As last read, however long ago: it is asked for just when the table can not be read."""
        with self._lock:
            return self._on_unavailable.get(namespace, OnUnavailable.BLOCK)

    def put_limits(
        self,
        namespace: str,
        resource: str | None,
        limits: LimitsByName,
        on_unavailable: OnUnavailable | None = None,
    ) -> StoredLimits:
        """Replaces the limits of a resource, or with None those of the system level."""
        check_limit_names("limits", list(limits))
        if resource is None:
            key = keys.system_limits(namespace)
            indexes = keys.namespace_index(namespace, key)
        else:
            key = keys.resource_limits(namespace, resource)
            indexes = keys.resource_limits_indexes(namespace, resource)
        item = self._store.get(key, consistent=True)
        for _ in range(_WRITE_ROUNDS):
            now_ms = self._clock_ms()
            before = None if item is None else decode_limits(item)
            stored = StoredLimits(
                limits=limits,
                on_unavailable=on_unavailable,
                config_version=1 if before is None else before.config_version + 1,
                created_at_ms=now_ms if before is None else before.created_at_ms,
                updated_at_ms=now_ms,
            )
            request: PutRequest = {"Item": encode_limits(key, indexes, stored)}
            if before is None:
                request["ConditionExpression"] = "attribute_not_exists(PK)"
            else:
                request["ConditionExpression"] = "config_version = :seen"
                request["ExpressionAttributeValues"] = {":seen": before.config_version}
            outcome = self._store.put(request, repeatable=False)
            if isinstance(outcome, Applied):
                self.forget(namespace)
                return stored
            item = outcome.item
        raise Contended(contended_wait_ms(self._random_below))

    def _read(
        self, namespace: str, entity: str, resource: str, bucket: keys.Key | None, *, consistent: bool
    ) -> Resolution:
        system_key = keys.system_limits(namespace)
        resource_key = keys.resource_limits(namespace, resource)
        items = self._batch_get([resource_key, system_key], bucket, consistent=consistent)
        bucket_item = None if bucket is None else items.pop(bucket, None)
        levels = {key: decode_limits(item) for key, item in items.items()}
        limits = resolve(
            [
                (source, levels[key].limits)
                for source, key in ((Source.RESOURCE, resource_key), (Source.SYSTEM, system_key))
                if key in levels
            ]
        )
        self._learn_system(namespace, levels.get(system_key))
        with self._lock:
            self._cache[namespace, entity, resource] = limits
        return Resolution(limits, bucket is not None, bucket_item)

    def _batch_get(self, wanted: list[keys.Key], bucket: keys.Key | None, *, consistent: bool) -> dict[keys.Key, Item]:
        found = self._store.batch_get(wanted if bucket is None else [*wanted, bucket], consistent=consistent)
        return {keys.key_of(item): item for item in found}

    def _learn_system(self, namespace: str, system: StoredLimits | None) -> None:
        with self._lock:
            self._system_read[namespace] = True
            self._on_unavailable[namespace] = (system and system.on_unavailable) or OnUnavailable.BLOCK

    def forget(self, namespace: str) -> None:
        """Drops what is cached for a namespace: a change of the system level acts on every resource of it."""
        with self._lock:
            self._system_read.pop(namespace, None)
            for cached in [key for key in self._cache if key[0] == namespace]:
                del self._cache[cached]
