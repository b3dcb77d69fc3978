"""Entities: who consumes, and who stands above whom.

A chain has at most CHAIN_MAX members and no cycle. Both are checked against everyone above when an entity is written,
and the write is a transaction that fails if any of them changed meanwhile: two writers can not become each other's
parent.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sluice.core.backoff import RandomBelow, contended_wait_ms
from sluice.core.errors import Contended, InUse, InvalidRequest, NotFound, PreconditionFailed
from sluice.repository import keys, schema
from sluice.repository.items import Entity, decode_entity, encode_entity
from sluice.repository.requests import QueryRequest, TransactWrite
from sluice.repository.store import Committed, Store
from sluice.repository.wire import Item, Value
from sluice.services.acquire import CHAIN_MAX
from sluice.services.configuration import Configuration

_WRITE_ROUNDS: Final = 4
# How many entities below one may be looked at to see whether it can move.
_BELOW_MAX: Final = 1_000
_PAGE: Final = 100

Precondition = Callable[[Entity | None], bool]


def any_version(_entity: Entity | None) -> bool:
    return True


class Unset:
    """A field that was not sent: it keeps its value. None clears it."""


UNSET: Final = Unset()


@dataclass(frozen=True, slots=True)
class EntityChange:
    name: str | Unset | None = UNSET
    parent: str | Unset | None = UNSET
    cascade: bool | Unset = UNSET
    metadata: Mapping[str, Value] | Unset | None = UNSET


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

    def get(self, namespace: str, entity_id: str) -> Entity:
        found = self._find(namespace, entity_id)
        if found is None:
            raise NotFound("there is no such entity")
        return found

    def put(
        self, namespace: str, entity_id: str, change: EntityChange, precondition: Precondition = any_version
    ) -> Changed:
        """Merges what was sent into what is stored."""
        for _ in range(_WRITE_ROUNDS):
            before = self._find(namespace, entity_id)
            if not precondition(before):
                raise PreconditionFailed("the stored version is another one")
            entity = _merged(entity_id, before, change, self._clock_ms())
            above = self._check_place(namespace, entity, before)
            writes = [_put(namespace, entity, before), *(_unchanged(namespace, one) for one in above)]
            if isinstance(self._store.transact(writes, self._new_token()), Committed):
                self._configuration.forget(namespace)
                return Changed(entity, created=before is None)
        raise Contended(contended_wait_ms(self._random_below))

    def delete(self, namespace: str, entity_id: str, precondition: Precondition = any_version) -> None:
        """Removes the entity with its limits and buckets. What it consumed stays in the history."""
        before = self.get(namespace, entity_id)
        if not precondition(before):
            raise PreconditionFailed("the stored version is another one")
        if self._children(namespace, entity_id, 1):
            raise InUse("other entities stand below this one; move or remove them first")
        for key in (*self._own_limits(namespace, entity_id), *self._buckets(namespace, entity_id)):
            self._store.delete({"Key": {**key.attributes}})
        self._store.delete({"Key": {**keys.entity(namespace, entity_id).attributes}})
        self._configuration.forget(namespace)

    def _find(self, namespace: str, entity_id: str) -> Entity | None:
        item = self._store.get(keys.entity(namespace, entity_id), consistent=True)
        return None if item is None else decode_entity(item)

    def _check_place(self, namespace: str, entity: Entity, before: Entity | None) -> list[Entity]:
        """Everyone above, after checking that the entity may stand there."""
        above: list[Entity] = []
        parent = entity.parent
        while parent is not None:
            if parent == entity.entity:
                raise InvalidRequest("parent", "would make the entity stand above itself")
            if len(above) == CHAIN_MAX - 1:
                raise InvalidRequest("parent", f"a chain has at most {CHAIN_MAX} members")
            found = self._find(namespace, parent)
            if found is None:
                raise InvalidRequest("parent", "there is no such entity")
            above.append(found)
            parent = found.parent
        if before is not None and before.parent != entity.parent:
            self._check_below(namespace, entity.entity, CHAIN_MAX - 1 - len(above))
        return above

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
        request: QueryRequest = {
            "IndexName": schema.GSI1,
            "KeyConditionExpression": "GSI1PK = :parent",
            "ExpressionAttributeValues": {":parent": keys.children(namespace, parent)},
        }
        return [decode_entity(item).entity for item in self._all(request, most)]

    def _own_limits(self, namespace: str, entity_id: str) -> list[keys.Key]:
        request: QueryRequest = {
            "KeyConditionExpression": "PK = :entity AND begins_with(SK, :config)",
            "ExpressionAttributeValues": {
                ":entity": keys.entity(namespace, entity_id).pk,
                ":config": f"{keys.CONFIG}#",
            },
        }
        return [keys.key_of(item) for item in self._all(request, None)]

    def _buckets(self, namespace: str, entity_id: str) -> list[keys.Key]:
        """From the highest shard down: shard 0 says how many there are."""
        request: QueryRequest = {
            "IndexName": schema.GSI3,
            "KeyConditionExpression": "GSI3PK = :entity AND begins_with(GSI3SK, :bucket)",
            "ExpressionAttributeValues": {":entity": keys.buckets_of(namespace, entity_id), ":bucket": "BUCKET#"},
            "ScanIndexForward": False,
        }
        return [keys.key_of(item) for item in self._all(request, None)]

    def _all(self, request: QueryRequest, most: int | None) -> list[Item]:
        items: list[Item] = []
        page = self._store.query({**request, "Limit": _PAGE})
        items += page.items
        while page.next_start is not None and (most is None or len(items) < most):
            page = self._store.query({**request, "Limit": _PAGE, "ExclusiveStartKey": page.next_start})
            items += page.items
        return items


def _merged(entity_id: str, before: Entity | None, change: EntityChange, now_ms: int) -> Entity:
    name = before.name if before is not None else None
    parent = before.parent if before is not None else None
    cascade = before.cascade if before is not None else True
    metadata = before.metadata if before is not None else {}
    return Entity(
        entity=entity_id,
        name=name if isinstance(change.name, Unset) else change.name,
        parent=parent if isinstance(change.parent, Unset) else change.parent,
        cascade=cascade if isinstance(change.cascade, Unset) else change.cascade,
        metadata=metadata if isinstance(change.metadata, Unset) else change.metadata or {},
        version=1 if before is None else before.version + 1,
        created_at_ms=now_ms if before is None else before.created_at_ms,
        updated_at_ms=now_ms,
    )


def _put(namespace: str, entity: Entity, before: Entity | None) -> TransactWrite:
    item = encode_entity(
        keys.entity(namespace, entity.entity),
        keys.entity_indexes(namespace, entity.entity, entity.parent),
        entity,
    )
    if before is None:
        return {"Put": {"Item": item, "ConditionExpression": "attribute_not_exists(PK)"}}
    condition, values = _as_seen(before)
    return {"Put": {"Item": item, "ConditionExpression": condition, "ExpressionAttributeValues": values}}


def _unchanged(namespace: str, entity: Entity) -> TransactWrite:
    condition, values = _as_seen(entity)
    key: Item = {**keys.entity(namespace, entity.entity).attributes}
    return {"ConditionCheck": {"Key": key, "ConditionExpression": condition, "ExpressionAttributeValues": values}}


def _as_seen(entity: Entity) -> tuple[str, dict[str, Value]]:
    values: dict[str, Value] = {":version": entity.version, ":created": entity.created_at_ms}
    return "v = :version AND created_at = :created", values
