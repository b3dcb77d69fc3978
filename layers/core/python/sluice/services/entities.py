"""Entities: who consumes, and who stands above whom.

A chain has at most CHAIN_MAX members and no cycle. Both are checked against everyone above when an entity is written,
and the write is a transaction that fails if any of them changed meanwhile: two writers can not become each other's
parent. Every change and its audit event are one transaction, and a change that is built anew keeps its event, so that
it happens once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from sluice.core.admission import CHAIN_MAX
from sluice.core.audit import BY_SYSTEM, Action, Author, entity_target
from sluice.core.backoff import RandomBelow, contended_wait_ms
from sluice.core.changes import UNSET as UNSET  # noqa: PLC0414 - part of EntityChange
from sluice.core.changes import Unset
from sluice.core.errors import Contended, Forbidden, InvalidRequest, NotFound, PreconditionFailed
from sluice.core.orgs import EntityRole
from sluice.repository import keys
from sluice.repository.audit import AuditEvent, audit_put, decode_audit_event
from sluice.repository.entities import children_query, entity_image, entity_put, entity_unchanged
from sluice.repository.items import Entity, decode_entity
from sluice.repository.ledger_items import Ledger
from sluice.repository.legacy_settings import entity_of_any_layout
from sluice.repository.requests import QueryRequest
from sluice.repository.store import Committed, ConditionFailed, Store
from sluice.repository.wire import Item, Value
from sluice.services.configuration import Configuration
from sluice.services.confinement import Confinement, no_such_entity
from sluice.services.departures import Departures
from sluice.services.removal import Removal

_WRITE_ROUNDS: Final = 4
# How many entities below one may be looked at to see whether it can move.
_BELOW_MAX: Final = 1_000
_PAGE: Final = 100

Precondition = Callable[[Entity | None], bool]


def any_version(_entity: Entity | None) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class EntityChange:
    name: str | Unset | None = UNSET
    parent: str | Unset | None = UNSET
    cascade: bool | Unset = UNSET
    metadata: Mapping[str, Value] | Unset | None = UNSET


@dataclass(frozen=True, slots=True)
class Place:
    """Where a caller may put entities. `below`: where a new one stands if nobody says. `within`: it and those below."""

    below: str | None = None
    within: str | None = None


ANYWHERE: Final = Place()


@dataclass(frozen=True, slots=True)
class Changed:
    entity: Entity
    created: bool


class Entities:
    def __init__(
        self,
        store: Store,
        configuration: Configuration,
        clock_ms: Callable[[], int],
        random_below: RandomBelow,
        new_token: Callable[[], str],
    ) -> None:
        self._store = store
        self._configuration = configuration
        self._clock_ms = clock_ms
        self._random_below = random_below
        self._new_token = new_token
        self._confinement = Confinement(store)
        self._departures = Departures(store, clock_ms)
        self._removal = Removal(store, clock_ms, random_below, new_token)

    def get(self, namespace: str, entity_id: str) -> Entity:
        found = self._find(namespace, entity_id)
        if found is None:
            raise NotFound("there is no such entity")
        return found

    def own_since_ms(self, namespace: str, within: str | None, entity_id: str) -> int:
        """From when on the history of an id is a caller's to see: it may have been another app's before."""
        return 0 if within is None else self.get(namespace, entity_id).created_at_ms

    def put(
        self,
        namespace: str,
        entity_id: str,
        change: EntityChange,
        precondition: Precondition = any_version,
        *,
        author: Author = BY_SYSTEM,
        place: Place = ANYWHERE,
    ) -> Changed:
        """Merges what was sent into what is stored."""
        event_id, at_ms = self._new_token(), self._clock_ms()
        tried: list[Changed] = []
        for _ in range(_WRITE_ROUNDS):
            before = self._find(namespace, entity_id)
            if before is not None:
                # What is another's is not told by its version either.
                self._confinement.require(namespace, place.within, entity_id)
            elif place.within == entity_id:
                # An app that is gone does not make itself anew.
                raise no_such_entity()
            if not precondition(before):
                raise PreconditionFailed("the stored version is another one")
            entity = _merged(entity_id, before, change, place.below, at_ms)
            if entity.role is not EntityRole.OTHER and before is not None and entity.parent != before.parent:
                raise InvalidRequest("parent", "an org or an app stays where it is")
            self._check_confined(namespace, entity, before, place)
            above = self._check_place(namespace, entity, before)
            event = AuditEvent(
                event_id=event_id,
                subject=entity_id,
                at_ms=at_ms,
                author=author,
                action=Action.ENTITY_PUT,
                target=entity_target(entity_id),
                before=None if before is None else entity_image(before),
                after=entity_image(entity),
            )
            tried.append(Changed(entity, created=before is None))
            writes = [
                audit_put(namespace, event),
                entity_put(namespace, entity, before),
                *(entity_unchanged(namespace, one) for one in above),
            ]
            outcome = self._store.transact(writes, self._new_token())
            if isinstance(outcome, Committed):
                self._configuration.forget(namespace)
                return tried[-1]
            told = outcome.failures[0]
            if told is not None:
                self._configuration.forget(namespace)
                return _applied(tried, told)
        raise Contended(contended_wait_ms(self._random_below))

    def delete(
        self,
        namespace: str,
        entity_id: str,
        precondition: Precondition = any_version,
        *,
        author: Author = BY_SYSTEM,
        place: Place = ANYWHERE,
    ) -> None:
        """Removes the entity with its limits, budget and buckets. What it consumed stays in the history."""
        within = place.within

        def may_go(ledger: Ledger | None) -> None:
            # After removal has read the entity: what it stands below is as it will be asked for.
            for one in takewhile(lambda one: one != within, self._names_above(namespace, entity_id)):
                self._departures.refuse_below(namespace, one)
            self._departures.refuse_with_ledger(ledger)

        if within is not None:
            self._departures.refuse_with_limits(namespace, entity_id)
        try:
            self._removal.remove(namespace, entity_id, precondition, author, may_go=None if within is None else may_go)
        finally:
            self._configuration.forget(namespace)

    def _find(self, namespace: str, entity_id: str) -> Entity | None:
        item = self._store.get(keys.entity(namespace, entity_id), consistent=True)
        return None if item is None else entity_of_any_layout(item, entity_id)

    def _check_confined(self, namespace: str, entity: Entity, before: Entity | None, place: Place) -> None:
        """What a confined caller may not do: put something elsewhere, or out of what others bound."""
        if place.within is None or entity.entity == place.within:
            if place.within is not None and before is not None and entity.cascade != before.cascade:
                raise Forbidden("only the org itself changes cascade")
            return
        if entity.parent is None or not self._is_within(namespace, place.within, entity.parent):
            raise InvalidRequest("parent", "there is no such entity")
        if entity.cascade != (before is None or before.cascade):
            raise Forbidden("only the org itself changes cascade")
        if before is not None and before.parent != entity.parent:
            stays = {entity.parent, *self._names_above(namespace, entity.parent)}
            left = [before.parent, *self._names_above(namespace, before.parent)]
            for one in left:
                if one is not None and one not in stays:
                    self._departures.refuse_below(namespace, one)

    def _is_within(self, namespace: str, within: str, entity_id: str) -> bool:
        try:
            self._confinement.require(namespace, within, entity_id)
        except NotFound:
            return False
        return True

    def _names_above(self, namespace: str, entity_id: str | None) -> Iterator[str]:
        """The nearest first, and each is looked for only when it is asked for."""
        one = entity_id
        for _ in range(CHAIN_MAX):
            found = None if one is None else self._find(namespace, one)
            if found is None or found.parent is None:
                return
            one = found.parent
            yield one

    def _check_place(self, namespace: str, entity: Entity, before: Entity | None) -> list[Entity]:
        """Everyone above, after checking that the entity may stand there."""
        above = self._walk_up(namespace, entity)
        if before is not None and before.parent != entity.parent:
            self._check_below(namespace, entity.entity, CHAIN_MAX - 1 - len(above))
        return above

    def _walk_up(self, namespace: str, entity: Entity) -> list[Entity]:
        """The walk is no snapshot: while others move, it may meet somebody twice. Then it starts again."""
        for _ in range(_WRITE_ROUNDS):
            above: list[Entity] = []
            parent = entity.parent
            while parent is not None and all(one.entity != parent for one in above):
                if parent == entity.entity:
                    raise InvalidRequest("parent", "would make the entity stand above itself")
                if len(above) == CHAIN_MAX - 1:
                    raise InvalidRequest("parent", f"a chain has at most {CHAIN_MAX} members")
                found = self._find(namespace, parent)
                if found is None:
                    raise InvalidRequest("parent", "there is no such entity")
                above.append(found)
                parent = found.parent
            if parent is None:
                return above
        raise Contended(contended_wait_ms(self._random_below))

    def _check_below(self, namespace: str, entity_id: str, levels: int) -> None:
        """Nobody below may end up deeper than a chain can be. The index lags: a chain is cut at its most when read."""
        row = [entity_id]
        looked_at = 0
        for _ in range(levels + 1):
            row = [child for parent in row for child in self._children(namespace, parent, _BELOW_MAX)]
            looked_at += len(row)
            if not row:
                return
            if looked_at >= _BELOW_MAX:
                raise InvalidRequest("parent", "too many entities stand below this one to move it")
        raise InvalidRequest("parent", f"a chain has at most {CHAIN_MAX} members, and others stand below this one")

    def _children(self, namespace: str, parent: str, most: int) -> list[str]:
        request = children_query(namespace, parent)
        return [decode_entity(item).entity for item in self._all(request, most)]

    def _all(self, request: QueryRequest, most: int) -> list[Item]:
        items: list[Item] = []
        page = self._store.query({**request, "Limit": _PAGE})
        items += page.items
        while page.next_start is not None and len(items) < most:
            page = self._store.query({**request, "Limit": _PAGE, "ExclusiveStartKey": page.next_start})
            items += page.items
        return items


def _merged(entity_id: str, before: Entity | None, change: EntityChange, below: str | None, now_ms: int) -> Entity:
    name = before.name if before is not None else None
    parent = before.parent if before is not None else below
    cascade = before.cascade if before is not None else True
    metadata = before.metadata if before is not None else {}
    role = before.role if before is not None else EntityRole.OTHER
    return Entity(
        entity=entity_id,
        name=name if isinstance(change.name, Unset) else change.name,
        parent=parent if isinstance(change.parent, Unset) else change.parent,
        cascade=cascade if isinstance(change.cascade, Unset) else change.cascade,
        metadata=metadata if isinstance(change.metadata, Unset) else change.metadata or {},
        version=1 if before is None else before.version + 1,
        created_at_ms=now_ms if before is None else before.created_at_ms,
        updated_at_ms=now_ms,
        role=role,
    )


def _applied(tried: Sequence[Changed], told: ConditionFailed) -> Changed:
    """Which of our tries the event that is there tells of."""
    image = None if told.item is None else decode_audit_event(told.item).after
    return next(done for done in reversed(tried) if entity_image(done.entity) == image)
