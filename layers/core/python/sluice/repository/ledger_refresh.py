"""The two updates of a refresh: one counts the epoch up and keeps a copy of what was spent until then, the other adds
what the events say beyond that copy. Pure.

The copy is made by the very update that begins the new epoch. So it has what the events of earlier epochs added, and
whatever is counted from then on carries the new epoch, in the counters as in the events: traffic goes on. What is held
is never touched. The periods of the copy are kept with it: a refresh that broke off may go on after they turned.
The id and the epoch make the second update happen once; a later refresh takes the id over.
"""

from collections.abc import Mapping
from typing import Final

from sluice.core.budget import SLOTS, Amounts, Dimension, Periods, Slot, Span, Used
from sluice.repository import budget_keys
from sluice.repository.ledger_items import Ledger, errors_attribute, held_attribute, used_attribute
from sluice.repository.requests import UpdateRequest
from sluice.repository.shapes import text, whole
from sluice.repository.wire import Item, Value

Counters = Mapping[Span, Used]

_ID: Final = "refresh_id"


def begin_refresh(seen: Ledger, refresh_id: str, now_ms: int) -> UpdateRequest:
    """May not be repeated blindly: whoever finds its id there has done it."""
    names = {"#v": "v", "#at": "updated_at", "#id": _ID, "#epoch": "epoch", "#day": "day", "#month": "month"}
    names |= {"#c_day": _copy("day"), "#c_month": _copy("month")}
    sets = ["#at = :at", "#id = :id", "#epoch = :next", "#c_day = :day", "#c_month = :month"]
    for slot in SLOTS:
        used, held = used_attribute(slot), held_attribute(slot.dimension)
        names |= {f"#{used}": used, f"#{held}": held, f"#c_{used}": _copy(used)}
        sets.append(f"#c_{used} = #{used} - #{held}")
    for span in Span:
        errors = errors_attribute(span)
        names |= {f"#{errors}": errors, f"#c_{errors}": _copy(errors)}
        sets.append(f"#c_{errors} = #{errors}")
    return {
        "Key": {**budget_keys.ledger(seen.namespace, seen.entity).attributes},
        "UpdateExpression": f"SET {', '.join(sets)} ADD #v :one",
        "ConditionExpression": "#epoch = :epoch AND #day = :day AND #month = :month",
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": {
            ":one": 1,
            ":at": now_ms,
            ":id": refresh_id,
            ":epoch": seen.epoch,
            ":next": seen.epoch + 1,
            ":day": seen.standing.periods.day,
            ":month": seen.standing.periods.month,
        },
    }


def copied(item: Mapping[str, Value]) -> tuple[Periods, dict[Span, Used]]:
    """What was spent when the refresh began, and in which periods."""
    return Periods(text(item, _copy("day")), text(item, _copy("month"))), {
        span: Used(
            Amounts(*(whole(item, _copy(used_attribute(Slot(span, dimension)))) for dimension in Dimension)),
            whole(item, _copy(errors_attribute(span))),
        )
        for span in Span
    }


def end_refresh(
    seen: Ledger, refresh_id: str, difference: Counters, last: tuple[int, str] | None, now_ms: int
) -> UpdateRequest:
    """Once: if the id is still there, in the epoch it began. `difference`: of those spans that have not turned.
    `last`: the latest call."""
    names = {"#v": "v", "#at": "updated_at", "#id": _ID, "#epoch": "epoch", "#day": "day", "#month": "month"}
    values: Item = {
        ":one": 1,
        ":at": now_ms,
        ":id": refresh_id,
        ":epoch": seen.epoch,
        ":day": seen.standing.periods.day,
        ":month": seen.standing.periods.month,
    }
    sets, adds, removes = ["#at = :at"], ["#v :one"], ["#id"]
    conditions = ["#id = :id", "#epoch = :epoch", "#day = :day", "#month = :month"]
    for attribute, amount in _by_attribute(difference).items():
        if amount:
            names[f"#{attribute}"], values[f":{attribute}"] = attribute, amount
            adds.append(f"#{attribute} :{attribute}")
    for attribute in (*map(used_attribute, SLOTS), *map(errors_attribute, Span), "day", "month"):
        names[f"#c_{attribute}"] = _copy(attribute)
        removes.append(f"#c_{attribute}")
    if last is not None and (seen.last_execution_at_ms is None or seen.last_execution_at_ms < last[0]):
        names |= {"#la": "last_execution_at", "#ls": "last_execution_status"}
        sets += ["#la = :la", "#ls = :ls"]
        values |= {":la": last[0], ":ls": last[1]}
        if seen.last_execution_at_ms is None:
            conditions.append("attribute_not_exists(#la)")
        else:
            conditions.append("#la = :was")
            values[":was"] = seen.last_execution_at_ms
    return {
        "Key": {**budget_keys.ledger(seen.namespace, seen.entity).attributes},
        "UpdateExpression": f"SET {', '.join(sets)} ADD {', '.join(adds)} REMOVE {', '.join(removes)}",
        "ConditionExpression": " AND ".join(conditions),
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def _copy(attribute: str) -> str:
    return f"refresh_{attribute}"


def _by_attribute(counters: Counters) -> dict[str, int]:
    found = {}
    for span, counted in counters.items():
        for dimension in Dimension:
            found[used_attribute(Slot(span, dimension))] = counted.used.of(dimension)
        found[errors_attribute(span)] = counted.errors
    return found
