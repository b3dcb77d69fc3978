"""Requests about entities and their buckets, each guarded by what was seen."""

from sluice.repository import keys, schema
from sluice.repository.audit import Image
from sluice.repository.items import Bucket, Entity, encode_entity
from sluice.repository.requests import CheckRequest, DeleteRequest, QueryRequest, TransactWrite
from sluice.repository.wire import Item, Value


def entity_put(namespace: str, entity: Entity, seen: Entity | None) -> TransactWrite:
    """Replaces what was seen, or nothing."""
    item = encode_entity(
        keys.entity(namespace, entity.entity),
        keys.entity_indexes(namespace, entity.entity, entity.parent),
        entity,
    )
    if seen is None:
        return {"Put": {"Item": item, "ConditionExpression": "attribute_not_exists(PK)"}}
    condition, values = _as_seen(seen)
    return {"Put": {"Item": item, "ConditionExpression": condition, "ExpressionAttributeValues": values}}


def entity_delete(namespace: str, seen: Entity) -> TransactWrite:
    condition, values = _as_seen(seen)
    key: Item = {**keys.entity(namespace, seen.entity).attributes}
    return {"Delete": {"Key": key, "ConditionExpression": condition, "ExpressionAttributeValues": values}}


def entity_unchanged(namespace: str, seen: Entity) -> TransactWrite:
    condition, values = _as_seen(seen)
    key: Item = {**keys.entity(namespace, seen.entity).attributes}
    return {"ConditionCheck": {"Key": key, "ConditionExpression": condition, "ExpressionAttributeValues": values}}


def entity_exists(namespace: str, entity_id: str) -> CheckRequest:
    key: Item = {**keys.entity(namespace, entity_id).attributes}
    return {"Key": key, "ConditionExpression": "attribute_exists(PK)"}


def entity_image(entity: Entity) -> Image:
    """As the audit shows it."""
    return {
        "name": entity.name,
        "parent": entity.parent,
        "cascade": entity.cascade,
        "metadata": dict(entity.metadata),
        "version": entity.version,
    }


def children_query(namespace: str, parent: str) -> QueryRequest:
    """With everything that the children have: this index projects it. It lags, like all of them."""
    return {
        "IndexName": schema.GSI1,
        "KeyConditionExpression": "GSI1PK = :parent",
        "ExpressionAttributeValues": {":parent": keys.children(namespace, parent)},
    }


def buckets_query(namespace: str, entity_id: str) -> QueryRequest:
    """The keys of an entity's buckets. All shards of a bucket stand together, in the order of text: 10 before 2."""
    return {
        "IndexName": schema.GSI3,
        "KeyConditionExpression": "GSI3PK = :entity AND begins_with(GSI3SK, :bucket)",
        "ExpressionAttributeValues": {":entity": keys.buckets_of(namespace, entity_id), ":bucket": "BUCKET#"},
    }


def bucket_delete(seen: Bucket) -> DeleteRequest:
    """Spending does not get in its way; a split does, because it makes another shard."""
    return {
        "Key": {**seen.key.attributes},
        "ConditionExpression": "gen = :gen AND lh = :lh",
        "ExpressionAttributeValues": {":gen": seen.generation, ":lh": seen.limits_hash},
    }


def legacy_bucket_delete(key: keys.Key) -> DeleteRequest:
    """Whatever an old client spends; not once it is a bucket of today's layout."""
    return {"Key": {**key.attributes}, "ConditionExpression": "attribute_not_exists(lh)"}


def _as_seen(entity: Entity) -> tuple[str, dict[str, Value]]:
    """Removed and made again, an entity starts at version 1 once more: its creation time tells the two apart."""
    values: dict[str, Value] = {":version": entity.version, ":created": entity.created_at_ms}
    return "v = :version AND created_at = :created", values
