"""Who stands above an entity: whom a call is charged to, and for which app it is counted. Kept for a minute."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from typing import Final

from cachetools import TLRUCache

from sluice.core.admission import CHAIN_MAX
from sluice.core.orgs import EntityRole
from sluice.repository import keys
from sluice.repository.items import Entity
from sluice.repository.legacy_settings import entity_of_any_layout
from sluice.repository.store import Store

CACHE_MS: Final = 60_000
CACHE_SIZE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Lineage:
    """`chain`: the entity and, while it cascades, those above. `above`: all above it by parents, whatever cascades.

    `app`: the nearest of them all that is an app; None where there is none. `is_known`: False for one that is gone.
    """

    entity: str
    chain: tuple[str, ...]
    above: tuple[str, ...]
    app: str | None
    is_known: bool = True

    def stands_within(self, entity: str | None) -> bool:
        """Whether it is that entity or one below it. Everybody stands within None."""
        return entity is None or entity == self.entity or entity in self.above


@dataclass(frozen=True, slots=True)
class _Cached:
    entity: Entity
    read_ms: int


class Lineages:
    """Safe to share between threads. A changed parent or cascade acts within CACHE_MS."""

    def __init__(self, store: Store, timer_ms: Callable[[], int]) -> None:
        self._store = store
        self._timer_ms = timer_ms
        self._cache: TLRUCache[tuple[str, str], _Cached] = TLRUCache(CACHE_SIZE, _until, timer=timer_ms)
        self._lock = Lock()

    def find(self, namespace: str, entity_id: str) -> Lineage | None:
        """None for an entity that nobody knows."""
        first = self._entity(namespace, entity_id)
        if first is None:
            return None
        members = [first]
        while len(members) < CHAIN_MAX and (parent := members[-1].parent) is not None:
            # Read at different times: after two changed places, one may be met again.
            if any(member.entity == parent for member in members):
                break
            above = self._entity(namespace, parent)
            if above is None:
                break
            members.append(above)
        return _lineage(members)

    def _entity(self, namespace: str, entity_id: str) -> Entity | None:
        with self._lock:
            cached = self._cache.get((namespace, entity_id))
        if cached is not None:
            return cached.entity
        read_ms = self._timer_ms()
        # Consistently: an entity is asked for right after it was registered, and only what is there is remembered.
        item = self._store.get(keys.entity(namespace, entity_id), consistent=True)
        if item is None:
            return None
        entity = entity_of_any_layout(item, entity_id)
        with self._lock:
            self._cache[namespace, entity_id] = _Cached(entity, read_ms)
        return entity


def _lineage(members: list[Entity]) -> Lineage:
    chain = [members[0].entity]
    for below, above in pairwise(members):
        if not below.cascade:
            break
        chain.append(above.entity)
    return Lineage(
        entity=members[0].entity,
        chain=tuple(chain),
        above=tuple(member.entity for member in members[1:]),
        app=next((member.entity for member in members if member.role is EntityRole.APP), None),
    )


def _until(_key: object, cached: _Cached, _now_ms: float) -> float:
    return cached.read_ms + CACHE_MS
