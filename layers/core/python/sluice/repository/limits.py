"""Requests about the limits of one level, each guarded by the version that was seen."""

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.core.limits import Scope
from sluice.repository import keys
from sluice.repository.audit import Image
from sluice.repository.items import StoredLimits, decode_limits, encode_limits
from sluice.repository.requests import QueryRequest, TransactWrite
from sluice.repository.shapes import optional_text
from sluice.repository.wire import Item, Value


@dataclass(frozen=True, slots=True)
class ScopedLimits:
    """Limits, and of which level they are."""

    scope: Scope
    stored: StoredLimits


def limits_item(namespace: str, scope: Scope, stored: StoredLimits) -> Item:
    item = encode_limits(keys.limits(namespace, scope), keys.limits_indexes(namespace, scope), stored)
    if scope.entity is not None:
        item["entity_id"] = scope.entity
    if scope.resource is not None:
        item["resource"] = scope.resource
    return item


def decode_scoped_limits(item: Mapping[str, Value]) -> ScopedLimits:
    return ScopedLimits(Scope(optional_text(item, "entity_id"), optional_text(item, "resource")), decode_limits(item))


def limits_put(namespace: str, scope: Scope, stored: StoredLimits, seen: StoredLimits | None) -> TransactWrite:
    """Replaces what was seen, or nothing."""
    item = limits_item(namespace, scope, stored)
    if seen is None:
        return {"Put": {"Item": item, "ConditionExpression": "attribute_not_exists(PK)"}}
    condition, values = _as_seen(seen)
    return {"Put": {"Item": item, "ConditionExpression": condition, "ExpressionAttributeValues": values}}


def limits_delete(namespace: str, scope: Scope, seen: StoredLimits) -> TransactWrite:
    condition, values = _as_seen(seen)
    key: Item = {**keys.limits(namespace, scope).attributes}
    return {"Delete": {"Key": key, "ConditionExpression": condition, "ExpressionAttributeValues": values}}


def own_limits_query(namespace: str, entity_id: str) -> QueryRequest:
    """All limits that are set on an entity."""
    return {
        "KeyConditionExpression": "PK = :entity AND begins_with(SK, :config)",
        "ExpressionAttributeValues": {
            ":entity": keys.entity(namespace, entity_id).pk,
            ":config": f"{keys.CONFIG}#",
        },
        "ConsistentRead": True,
    }


def limits_image(stored: StoredLimits) -> Image:
    """As the audit shows it."""
    image: dict[str, Value] = {"config_version": stored.config_version}
    image["limits"] = {
        name: None
        if limit is None
        else {
            "capacity": limit.capacity,
            "burst": limit.burst,
            "refill_amount": limit.refill_amount,
            "refill_period_seconds": limit.refill_period_seconds,
        }
        for name, limit in stored.limits.items()
    }
    if stored.on_unavailable is not None:
        image["on_unavailable"] = stored.on_unavailable.value
    return image


def _as_seen(stored: StoredLimits) -> tuple[str, dict[str, Value]]:
    """Removed and made again, a level starts at version 1 once more: its creation time tells the two apart."""
    values: dict[str, Value] = {":version": stored.config_version, ":created": stored.created_at_ms}
    return "config_version = :version AND created_at = :created", values
