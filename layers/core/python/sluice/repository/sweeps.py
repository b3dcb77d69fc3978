"""How far the sweep of expired holds came: the minute before which no hold is open any more. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from sluice.repository import budget_keys
from sluice.repository.requests import PutRequest, UpdateRequest
from sluice.repository.shapes import check_kind, optional_whole, whole
from sluice.repository.wire import Item, Value

SWEEP: Final = "sweep"


class Part(NamedTuple):
    """What one query of the index shows."""

    minute: int
    partition: int


@dataclass(frozen=True, slots=True)
class SweepCursor:
    """`minute`: the first that may have open holds. `resume`: where in the backlog a run had no more time."""

    minute: int
    version: int
    resume: Part | None = None


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


def move_cursor(seen: SweepCursor, minute: int, resume: Part | None, now_ms: int) -> UpdateRequest:
    """The minute never goes back: fails where another run has moved it since. May be repeated, and then finds its own
    move.
    """
    values: dict[str, Value] = {":minute": minute, ":at": now_ms, ":seen": seen.version, ":next": seen.version + 1}
    change = "SET #minute = :minute, #at = :at, #v = :next"
    if resume is None:
        change += " REMOVE #resume_minute, #resume_partition"
    else:
        change += ", #resume_minute = :resume_minute, #resume_partition = :resume_partition"
        values |= {":resume_minute": resume.minute, ":resume_partition": resume.partition}
    return {
        "Key": {**budget_keys.SWEEP.attributes},
        "UpdateExpression": change,
        "ConditionExpression": "#v = :seen AND #minute <= :minute",
        "ExpressionAttributeNames": {
            "#minute": "minute",
            "#at": "updated_at",
            "#v": "v",
            "#resume_minute": "resume_minute",
            "#resume_partition": "resume_partition",
        },
        "ExpressionAttributeValues": values,
    }


def decode_cursor(item: Mapping[str, Value]) -> SweepCursor:
    check_kind(item, SWEEP)
    minute = optional_whole(item, "resume_minute")
    resume = None if minute is None else Part(minute, whole(item, "resume_partition"))
    return SweepCursor(whole(item, "minute"), whole(item, "v"), resume)
