"""The item of a hold: put by the acquire that takes it, closed once. Pure.

While it is open GSI3 finds it by the minute in which it expires. Only a closed one has a `ttl`: an open one that
vanished would leave its amounts held for ever.
"""

from collections.abc import Mapping
from typing import Final

from sluice.core.budget import Amounts, Dimension
from sluice.core.holds import HeldIn, Hold, HoldState
from sluice.repository import budget_keys, schema
from sluice.repository.requests import PutRequest, QueryRequest, UpdateRequest
from sluice.repository.shapes import UnknownShape, check_kind, text, texts, whole
from sluice.repository.wire import Item, Value

HOLD: Final = "hold"
KEPT_CLOSED_S: Final = 37 * 86_400
"""Longer than a call may be reported late: the key of its event, which a repeat must find, goes by this day."""
_INDEX: Final = (schema.index_partition_key(schema.GSI3), schema.index_sort_key(schema.GSI3))


def put_hold(hold: Hold) -> PutRequest:
    """Of a lease that has none. That makes the transaction which it is in happen once, however often it is built."""
    item: Item = {
        **budget_keys.hold(hold.namespace, hold.lease_id).attributes,
        **budget_keys.open_hold_index(hold.namespace, hold.lease_id, hold.expires_at_ms),
        "kind": HOLD,
        "ns": hold.namespace,
        "lease_id": hold.lease_id,
        "entity_id": hold.entity,
        "resource": hold.resource,
        "chain": [*hold.chain],
        "ledgers": [_encoded(one) for one in hold.ledgers],
        "day": hold.day,
        "taken_at_ms": hold.taken_at_ms,
        "expires_at_ms": hold.expires_at_ms,
        "state": HoldState.OPEN.value,
        "created_at": hold.taken_at_ms,
        "updated_at": hold.taken_at_ms,
    }
    return {"Item": item, "ConditionExpression": "attribute_not_exists(PK)"}


def close_hold(hold: Hold, how: HoldState, now_ms: int) -> UpdateRequest:
    """If it is still open. Belongs into the transaction that subtracts it from its ledgers."""
    return {
        "Key": {**budget_keys.hold(hold.namespace, hold.lease_id).attributes},
        "UpdateExpression": f"SET #state = :how, #ttl = :ttl, #at = :at REMOVE {', '.join(_INDEX)}",
        "ConditionExpression": "#state = :open",
        "ExpressionAttributeNames": {"#state": "state", "#ttl": schema.TTL_ATTRIBUTE, "#at": "updated_at"},
        "ExpressionAttributeValues": {
            ":how": how.value,
            ":open": HoldState.OPEN.value,
            ":ttl": now_ms // 1000 + KEPT_CLOSED_S,
            ":at": now_ms,
        },
    }


def decode_hold(item: Mapping[str, Value]) -> Hold:
    check_kind(item, HOLD)
    try:
        state = HoldState(text(item, "state"))
    except ValueError:
        raise UnknownShape(item, "state is not understood") from None
    ledgers = item.get("ledgers")
    if not isinstance(ledgers, list):
        raise UnknownShape(item, "ledgers is not a list")
    return Hold(
        namespace=text(item, "ns"),
        lease_id=text(item, "lease_id"),
        entity=text(item, "entity_id"),
        resource=text(item, "resource"),
        chain=texts(item, "chain"),
        ledgers=tuple(_decoded(item, one) for one in ledgers),
        day=text(item, "day"),
        taken_at_ms=whole(item, "taken_at_ms"),
        expires_at_ms=whole(item, "expires_at_ms"),
        state=state,
    )


def expiring_query(minute: int, partition: int, start: Item | None = None) -> QueryRequest:
    """The keys of the open holds that expire in this minute, as far as the index knows: it lags behind."""
    request: QueryRequest = {
        "IndexName": schema.GSI3,
        "KeyConditionExpression": f"{_INDEX[0]} = :minute",
        "ExpressionAttributeValues": {":minute": budget_keys.expiring_holds(minute, partition)},
    }
    if start is not None:
        request["ExclusiveStartKey"] = start
    return request


def _encoded(held: HeldIn) -> dict[str, Value]:
    return {
        "entity_id": held.entity,
        **{dimension.value: held.amounts.of(dimension) for dimension in Dimension},
    }


def _decoded(item: Mapping[str, Value], held: Value) -> HeldIn:
    if not isinstance(held, dict):
        raise UnknownShape(item, "ledgers has elements that are not maps")
    return HeldIn(text(held, "entity_id"), Amounts(*(whole(held, dimension.value) for dimension in Dimension)))
