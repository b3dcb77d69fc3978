"""Which limits hold for an entity and resource, and who stands above it: resolved, and cached for a minute."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

from cachetools import LRUCache, TLRUCache

from sluice.core.budget import DEFAULTS
from sluice.core.limits import SYSTEM, LimitSet, OnUnavailable, resolve, scopes_of
from sluice.core.signals import Meter, Signal
from sluice.repository import budget_keys, keys
from sluice.repository.legacy_settings import entity_of_any_layout, limits_of_any_layout
from sluice.repository.store import Store
from sluice.repository.versions import SchemaVersion, decode_version
from sluice.repository.wire import Item

CACHE_MS: Final = 60_000
CACHE_SIZE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Resolved:
    """`parent`: the next one up, if what this entity takes is taken there as well. `stands_below`: whether or not.

    `registered`: the entity itself is stored. `version`: which layouts the namespace may have.
    """

    limits: LimitSet
    parent: str | None
    registered: bool
    version: SchemaVersion
    stands_below: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """`bucket_read`: the bucket was read along; `bucket_item` is what was found."""

    resolved: Resolved
    bucket_read: bool = False
    bucket_item: Item | None = None


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of one process, since it began. `entries`: how many entities and resources are cached now."""

    hits: int = 0
    misses: int = 0
    invalidations: int = 0
    entries: int = 0


@dataclass(frozen=True, slots=True)
class _Cached:
    resolved: Resolved
    # When the oldest part of it was read: what is put together from cached parts must not live longer than they do.
    read_ms: int


@dataclass(frozen=True, slots=True)
class _Shared:
    """A part of the configuration that many entities share. `item`: as stored, or None where there is none."""

    item: Item | None
    read_ms: int


class Configuration:
    """A change of limits at any level, of a parent or of its cascade acts within CACHE_MS in every process.

    The timer must be monotonic: a clock that is set back would keep old limits alive.
    """

    def __init__(self, store: Store, timer_ms: Callable[[], int], meter: Meter | None = None) -> None:
        self._store = store
        self._meter = meter
        self._timer_ms = timer_ms
        self._cache: TLRUCache[tuple[str, str, str], _Cached] = TLRUCache(CACHE_SIZE, _until, timer=timer_ms)
        # By namespace and key: the levels of resources and of the system, the version of the schema, and the defaults
        # of budgets.
        self._shared: TLRUCache[tuple[str, keys.Key], _Shared] = TLRUCache(CACHE_SIZE, _until, timer=timer_ms)
        self._on_unavailable: LRUCache[str, OnUnavailable] = LRUCache(CACHE_SIZE)
        self._forgotten: LRUCache[str, int] = LRUCache(CACHE_SIZE)
        self._hits = self._misses = self._invalidations = 0
        self._lock = Lock()

    def resolve(self, namespace: str, entity: str, resource: str, unseen_bucket: keys.Key | None) -> Found:
        """From the cache, else by one batch read, which also fetches a bucket that this process has not seen."""
        with self._lock:
            cached = self._cache.get((namespace, entity, resource))
            if cached is not None:
                self._hits += 1
                return Found(cached.resolved)
            self._misses += 1
        return self._read(namespace, entity, resource, unseen_bucket, consistent=False)

    def reread(self, namespace: str, entity: str, resource: str) -> LimitSet:
        """Past the cache and consistently: for whoever met a bucket under other limits."""
        return self.look_up(namespace, entity, resource).limits

    def look_up(self, namespace: str, entity: str, resource: str) -> Resolved:
        """Past the cache and consistently."""
        return self._read(namespace, entity, resource, None, consistent=True).resolved

    def budget_defaults(self, namespace: str) -> tuple[Item | None, int] | None:
        """The item of the org's defaults of budgets, or None where nobody has one, as it was read along; and when that
        was. None: not within CACHE_MS."""
        with self._lock:
            part = self._shared.get((namespace, budget_keys.ledger(namespace, DEFAULTS)))
        return None if part is None else (part.item, part.read_ms)

    def on_unavailable(self, namespace: str) -> OnUnavailable:
        """As last read, however long ago: it is asked for just when the table can not be read."""
        with self._lock:
            return self._on_unavailable.get(namespace, OnUnavailable.BLOCK)

    def forget(self, namespace: str) -> None:
        """Drops what is cached for a namespace: a change of the system level acts on every resource of it."""
        with self._lock:
            self._invalidations += 1
            self._forgotten[namespace] = self._forgotten.get(namespace, 0) + 1
            self._on_unavailable.pop(namespace, None)
            for cached in [key for key in self._cache if key[0] == namespace]:
                with suppress(KeyError):
                    del self._cache[cached]
            for shared in [key for key in self._shared if key[0] == namespace]:
                with suppress(KeyError):
                    del self._shared[shared]

    def note_registered(self, namespace: str, entity: str, resource: str, parent: str | None) -> None:
        """What was read just before the entity was registered need not be read again."""
        with self._lock:
            cached = self._cache.get((namespace, entity, resource))
            if cached is not None:
                resolved = replace(cached.resolved, parent=parent, registered=True, stands_below=parent)
                self._cache[namespace, entity, resource] = replace(cached, resolved=resolved)

    @property
    def statistics(self) -> Statistics:
        with self._lock:
            return Statistics(self._hits, self._misses, self._invalidations, len(self._cache))

    def _read(self, namespace: str, entity: str, resource: str, bucket: keys.Key | None, *, consistent: bool) -> Found:
        scopes = scopes_of(entity, resource)
        wanted = {keys.limits(namespace, scope): scope for scope in scopes}
        entity_key, version_key = keys.entity(namespace, entity), keys.schema_version(namespace)
        defaults_key = budget_keys.ledger(namespace, DEFAULTS)
        shareable = [key for key, scope in wanted.items() if scope.entity is None] + [version_key, defaults_key]
        with self._lock:
            forgotten = self._forgotten.get(namespace, 0)
            # Whoever reads past the cache is after limits: what is known of budgets need not be read again.
            known = self._known(namespace, [defaults_key] if consistent else shareable)
        if self._meter is not None:
            self._meter.count(Signal.CONFIGURATION_READS)
        read_ms = self._timer_ms()
        along = [] if bucket is None else [bucket]
        needed = (*wanted, version_key, defaults_key)
        asked = [key for key in needed if key not in known]
        found = self._store.batch_get([*asked, entity_key, *along], consistent=consistent)
        items = {keys.key_of(item): item for item in found}
        bucket_item = None if bucket is None else items.pop(bucket, None)
        parts = {key: known[key].item if key in known else items.get(key) for key in needed}
        stored = {
            scope: limits_of_any_layout(item) for key, scope in wanted.items() if (item := parts[key]) is not None
        }
        entity_item = items.get(entity_key)
        found_entity = None if entity_item is None else entity_of_any_layout(entity_item, entity)
        resolved = Resolved(
            limits=resolve([(scope.source, stored[scope].limits) for scope in scopes if scope in stored]),
            parent=found_entity.parent if found_entity is not None and found_entity.cascade else None,
            registered=found_entity is not None,
            version=decode_version(parts[version_key]),
            stands_below=None if found_entity is None else found_entity.parent,
        )
        with self._lock:
            # What was read before a change was made must not be cached after it.
            if self._forgotten.get(namespace, 0) == forgotten:
                oldest_ms = min([read_ms, *(part.read_ms for part in known.values())])
                self._cache[namespace, entity, resource] = _Cached(resolved, oldest_ms)
                for key in shareable:
                    if key not in known:
                        self._shared[namespace, key] = _Shared(parts[key], read_ms)
                system = stored.get(SYSTEM)
                self._on_unavailable[namespace] = (system and system.on_unavailable) or OnUnavailable.BLOCK
        return Found(resolved, bucket is not None, bucket_item)

    def _known(self, namespace: str, shareable: list[keys.Key]) -> dict[keys.Key, _Shared]:
        cached = {key: self._shared.get((namespace, key)) for key in shareable}
        return {key: part for key, part in cached.items() if part is not None}


def _until(_key: object, value: _Cached | _Shared, _now_ms: float) -> float:
    return value.read_ms + CACHE_MS
