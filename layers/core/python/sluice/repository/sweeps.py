"""How far the sweep of expired holds came: the minute before which no hold is open any more. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sluice.repository import budget_keys
from sluice.repository.requests import PutRequest, UpdateRequest
from sluice.repository.shapes import check_kind, whole
from sluice.repository.wire import Item, Value

SWEEP: Final = "sweep"


@dataclass(frozen=True, slots=True)
class SweepCursor:
    """`minute`: the first that may have open holds."""

    minute: int
    version: int


def put_cursor(minute: int, now_ms: int) -> PutRequest:
    """The first one. Fails where there is one, and shows it. May be repeated."""
    item: Item = {
        **budget_keys.SWEEP.attributes,
        "kind": SWEEP,
        "minute": minute,
        "v": 1,
        "created_at": now_ms,
        "updated_at": now_ms,
    }
    return {"Item": item, "ConditionExpression": "attribute_not_exists(PK)"}


def move_cursor(seen: SweepCursor, minute: int, now_ms: int) -> UpdateRequest:
    """Never back: fails where another run has moved it since. May be repeated, and then finds its own move."""
    return {
        "Key": {**budget_keys.SWEEP.attributes},
        "UpdateExpression": "SET #minute = :minute, #at = :at, #v = :next",
        "ConditionExpression": "#v = :seen AND #minute < :minute",
        "ExpressionAttributeNames": {"#minute": "minute", "#at": "updated_at", "#v": "v"},
        "ExpressionAttributeValues": {
            ":minute": minute,
            ":at": now_ms,
            ":seen": seen.version,
            ":next": seen.version + 1,
        },
    }


def decode_cursor(item: Mapping[str, Value]) -> SweepCursor:
    check_kind(item, SWEEP)
    return SweepCursor(whole(item, "minute"), whole(item, "v"))
