"""Queries of usage: the snapshots of an entity, and those of all entities of a resource."""

from sluice.core.snapshots import SnapshotName, Window
from sluice.repository import keys, schema
from sluice.repository.requests import QueryRequest


def series_query(first: SnapshotName, last: SnapshotName) -> QueryRequest:
    """The snapshots of one entity and resource from one window to another, both included."""
    return {
        "KeyConditionExpression": "PK = :pk AND SK BETWEEN :first AND :last",
        "ExpressionAttributeValues": {
            ":pk": keys.usage(first).pk,
            ":first": keys.usage(first).sk,
            ":last": keys.usage(last).sk,
        },
    }


def per_call_query(first: SnapshotName, last: SnapshotName) -> QueryRequest:
    """As `series_query`, of the buckets under limits of single calls: each of these has keys of its own."""
    return {
        "KeyConditionExpression": "PK = :pk AND begins_with(SK, :prefix)",
        "FilterExpression": "#window = :window AND window_start BETWEEN :first AND :last",
        "ExpressionAttributeNames": {"#window": "window"},
        "ExpressionAttributeValues": {
            ":pk": keys.usage(first).pk,
            ":prefix": keys.usage_per_call(first.resource),
            ":window": first.window.value,
            ":first": first.starts_ms,
            ":last": last.starts_ms,
        },
    }


def resource_query(namespace: str, resource: str, window: Window, first_ms: int, last_ms: int) -> QueryRequest:
    """The keys of the snapshots of all entities, in the order of time."""
    first, last = (SnapshotName(namespace, "", resource, None, window, at_ms) for at_ms in (first_ms, last_ms))
    index_sk = schema.index_sort_key(schema.GSI2)
    return {
        "IndexName": schema.GSI2,
        "KeyConditionExpression": "GSI2PK = :resource AND GSI2SK BETWEEN :first AND :last",
        "ExpressionAttributeValues": {
            ":resource": keys.buckets_of_resource(namespace, resource),
            ":first": keys.usage_indexes(first)[index_sk],
            # Behind every id: none has a character beyond this one.
            ":last": keys.usage_indexes(last)[index_sk] + "\U0010ffff",
        },
    }
