"""Queries of the indexes, one per partition of a list, in the order in which they are read."""

from collections.abc import Mapping

from sluice.repository import keys, schema
from sluice.repository.requests import QueryRequest
from sluice.repository.wire import Item, Value


def entities_queries(namespace: str) -> list[QueryRequest]:
    partitions = range(keys.NAMESPACE_PARTITIONS)
    return [_keys_only(schema.GSI3, keys.entities_of(namespace, partition)) for partition in partitions]


def entities_with_limits_query(namespace: str, resource: str) -> QueryRequest:
    return _keys_only(schema.GSI3, keys.entities_with_limits(namespace, resource))


def resources_query(namespace: str) -> QueryRequest:
    return _keys_only(schema.GSI3, keys.resources_with_limits(namespace))


def buckets_of_resource_query(namespace: str, resource: str) -> QueryRequest:
    """All shards of an entity's bucket stand together, and among them those under limits of single calls."""
    request = _keys_only(schema.GSI2, keys.buckets_of_resource(namespace, resource))
    request["KeyConditionExpression"] += " AND begins_with(GSI2SK, :bucket)"
    request["ExpressionAttributeValues"][":bucket"] = "BUCKET#"
    return request


def place_of(request: QueryRequest, item: Mapping[str, Value]) -> Item:
    """Where a query goes on behind an item that it gave."""
    names = [schema.PARTITION_KEY, schema.SORT_KEY]
    if "IndexName" in request:
        names += [schema.index_partition_key(request["IndexName"]), schema.index_sort_key(request["IndexName"])]
    return {name: item[name] for name in names}


def resumed(request: QueryRequest, start: Item) -> QueryRequest:
    """The query from there on. The table refuses a place outside of its bounds, and those of a list may have moved
    since a cursor was given out: with the clock, or by what the caller asks. So they are widened to hold that place."""
    at = str(start[schema.index_sort_key(request["IndexName"]) if "IndexName" in request else schema.SORT_KEY])
    bounds = {**request["ExpressionAttributeValues"]}
    for name, widest in ((":first", min), (":last", max)):
        if name in request["KeyConditionExpression"]:
            bounds[name] = widest(str(bounds[name]), at)
    return {**request, "ExpressionAttributeValues": bounds, "ExclusiveStartKey": start}


def is_listed(item: Mapping[str, Value]) -> bool:
    """Whether an item has today's shape. One of an old layout is listed as soon as it was moved."""
    return "kind" in item


def _keys_only(index: str, partition: str) -> QueryRequest:
    return {
        "IndexName": index,
        "KeyConditionExpression": f"{schema.index_partition_key(index)} = :partition",
        "ExpressionAttributeValues": {":partition": partition},
    }
