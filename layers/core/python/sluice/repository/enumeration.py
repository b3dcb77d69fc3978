"""How items are found whose keys nobody knows: by an index, by partition, or by a look at every item of the table."""

from typing import Final

from sluice.repository import keys, schema
from sluice.repository.counters import COST_SHARD
from sluice.repository.items import BUCKET
from sluice.repository.requests import QueryRequest, ScanRequest
from sluice.repository.wire import Item, Value

_KEYS: Final = f"{schema.PARTITION_KEY}, {schema.SORT_KEY}"


def index_query(namespace: str, partition: int, after: str | None, limit: int) -> QueryRequest:
    """Keys of items in one partition of GSI4, in the order of their partition keys, behind that of `after`."""
    values: dict[str, Value] = {":partition": keys.namespace_partitions(namespace)[partition]}
    condition = "GSI4PK = :partition"
    if after is not None:
        condition += " AND GSI4SK > :after"
        values[":after"] = after
    return {
        "IndexName": schema.GSI4,
        "KeyConditionExpression": condition,
        "ExpressionAttributeValues": values,
        "Limit": limit,
    }


def partition_query(pk: str, limit: int) -> QueryRequest:
    """Keys of the first items of a partition of the table, also of those that are in no index."""
    return {
        "KeyConditionExpression": "PK = :pk",
        "ExpressionAttributeValues": {":pk": pk},
        "ProjectionExpression": _KEYS,
        "ConsistentRead": True,
        "Limit": limit,
    }


def sweep_scan(namespace: str, start: Item | None, limit: int) -> ScanRequest:
    """Looks at that many items of the whole table and finds the keys of those of the namespace."""
    request: ScanRequest = {
        "FilterExpression": "begins_with(PK, :prefix)",
        "ProjectionExpression": _KEYS,
        "ExpressionAttributeValues": {":prefix": keys.namespace_prefix(namespace)},
        "ConsistentRead": True,
        "Limit": limit,
    }
    if start is not None:
        request["ExclusiveStartKey"] = start
    return request


def split_buckets_scan(start: Item | None, limit: int) -> ScanRequest:
    """Looks at that many items of the whole table and finds the first shard of each bucket that has several."""
    request: ScanRequest = {
        "FilterExpression": "kind = :bucket AND #shard = :first AND shard_count > :whole",
        "ExpressionAttributeNames": {"#shard": "shard"},
        "ExpressionAttributeValues": {":bucket": BUCKET, ":first": 0, ":whole": 1},
        "Limit": limit,
    }
    if start is not None:
        request["ExclusiveStartKey"] = start
    return request


def changed_shards_scan(since_ms: int, start: Item | None, limit: int) -> ScanRequest:
    """Looks at that many items of the whole table and finds the counter shards that grew since then."""
    request: ScanRequest = {
        "FilterExpression": "kind = :shard AND updated_at >= :since",
        "ExpressionAttributeValues": {":shard": COST_SHARD, ":since": since_ms},
        "Limit": limit,
    }
    if start is not None:
        request["ExclusiveStartKey"] = start
    return request


def is_of(namespace: str, pk: str) -> bool:
    """Whether a partition belongs to the namespace alone."""
    return pk.startswith(keys.namespace_prefix(namespace))


def is_of_registry(pk: str) -> bool:
    """Whether a partition is the registry's, which may hold items about many namespaces."""
    return is_of(keys.REGISTRY_NAMESPACE, pk)
