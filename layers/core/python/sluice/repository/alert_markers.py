"""Alert markers: one item for each alert, put if there is none, which makes it happen once. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from sluice.core.alerts import Alert, Whose
from sluice.core.budget import Dimension, Slot, Span
from sluice.repository import budget_keys, schema
from sluice.repository.keys import Key
from sluice.repository.requests import PutRequest, QueryRequest
from sluice.repository.shapes import UnknownShape, check_kind, text, whole
from sluice.repository.wire import Item, Value, item_from_wire

ALERT_MARKER: Final = "alert_marker"
KEPT_S: Final = 40 * 86_400
"""After the end of the period."""


def marker_key(alert: Alert) -> Key:
    namespace, entity, first_epoch = alert.whose
    return budget_keys.alert_marker(
        namespace, entity, alert.period, alert.slot.dimension.value, alert.percent, alert.limit, first_epoch
    )


def alert_id(alert: Alert) -> str:
    """The key as one text: whoever gets an alert twice knows by it."""
    key = marker_key(alert)
    return f"{key.pk}{key.sk}"


def put_marker(alert: Alert, period_ends_ms: int, now_ms: int) -> PutRequest:
    """May be repeated: the second time it finds itself."""
    item: Item = {
        **marker_key(alert).attributes,
        "kind": ALERT_MARKER,
        "ns": alert.namespace,
        "entity_id": alert.entity,
        "first_epoch": alert.whose.first_epoch,
        "span": alert.slot.span.value,
        "period": alert.period,
        "dimension": alert.slot.dimension.value,
        "percent": alert.percent,
        "limit": alert.limit,
        "used": alert.used,
        "silent": alert.silent,
        "created_at": now_ms,
        schema.TTL_ATTRIBUTE: period_ends_ms // 1000 + KEPT_S,
    }
    return {"Item": item, "ConditionExpression": "attribute_not_exists(PK)"}


def markers_query(namespace: str, entity: str) -> QueryRequest:
    """The latest periods first."""
    return {
        "KeyConditionExpression": "PK = :budget AND begins_with(SK, :alert)",
        "ExpressionAttributeValues": {
            ":budget": budget_keys.budget_partition(namespace, entity),
            ":alert": budget_keys.ALERT_PREFIX,
        },
        "ScanIndexForward": False,
    }


def decode_marker(item: Mapping[str, Value]) -> Alert:
    check_kind(item, ALERT_MARKER)
    try:
        slot = Slot(Span(text(item, "span")), Dimension(text(item, "dimension")))
    except ValueError:
        raise UnknownShape(item, "span or dimension is not known") from None
    return Alert(
        whose=Whose(text(item, "ns"), text(item, "entity_id"), whole(item, "first_epoch")),
        period=text(item, "period"),
        slot=slot,
        percent=text(item, "percent"),
        limit=whole(item, "limit"),
        used=whole(item, "used"),
        silent=item.get("silent") is True,
        at_ms=whole(item, "created_at"),
    )


def new_image(record: Mapping[str, Any], kind: str) -> Item | None:
    """What a record of the stream says that an item of this kind is now; None for any other record."""
    try:
        wire = record["dynamodb"].get("NewImage")
        return None if wire is None or wire.get("kind") != {"S": kind} else item_from_wire(wire)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        # Its own words may hold what a tenant wrote.
        raise UnknownShape({"kind": "record"}, type(error).__name__) from None


def is_new(record: Mapping[str, Any]) -> bool:
    return record.get("eventName") == "INSERT"
