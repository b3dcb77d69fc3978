"""The one update that every change of a ledger is. Pure.

Every update asks that the periods and the epoch are as seen. Where a period turned, the same update starts its counters
again with what is held (SET), and adds elsewhere (ADD); so nothing runs at midnight and no increment is lost. Periods
never go back, whatever a writer believes of today. A hold also asks that what holds is as seen, and that no limit is
passed. Conditions have no arithmetic: the bound is worked out before.

An image that is old by its counters is good enough to build from. One that is old by its periods, its epoch or what
holds fails, and the image that comes back builds the next try.
"""

from dataclasses import replace
from typing import Final

from sluice.core.budget import (
    DEFAULTS,
    Amounts,
    Dimension,
    LedgerChange,
    OwnBudget,
    Periods,
    Slot,
    Span,
    Terms,
    Used,
    latest,
    most_used_before,
)
from sluice.repository import budget_keys, schema
from sluice.repository.keys import encode
from sluice.repository.ledger_items import (
    Ledger,
    agreed_attributes,
    encode_ledger,
    errors_attribute,
    held_attribute,
    used_attribute,
)
from sluice.repository.requests import CheckRequest, DeleteRequest, PutRequest, QueryRequest, UpdateRequest
from sluice.repository.wire import Item, Value

_UNCHANGED: Final = LedgerChange()


def change_ledger(seen: Ledger, present: Periods, change: LedgerChange, now_ms: int) -> UpdateRequest:
    """May not be repeated: it belongs into the transaction of its cause."""
    return _update(seen, present, change, now_ms).request(seen)


def hold_in_ledger(seen: Ledger, present: Periods, amounts: Amounts, now_ms: int) -> UpdateRequest:
    """Adds to what is held, if no hard limit is passed by it and what holds is as seen."""
    update = _update(seen, present, LedgerChange(held=amounts), now_ms)
    update.ask("lv", seen.limits_version)
    to = latest(seen.standing.periods, present)
    for number, (slot, limit) in enumerate(seen.terms.hard_limits.items()):
        # What is held is all that a new period begins with.
        turned = to.of_span(slot.span) != seen.standing.periods.of_span(slot.span)
        update.names[f"#g{number}"] = held_attribute(slot.dimension) if turned else used_attribute(slot)
        update.conditions.append(f"#g{number} <= :g{number}")
        update.values[f":g{number}"] = most_used_before(limit, amounts.of(slot.dimension))
    return update.request(seen)


def changed_ledger(seen: Ledger, present: Periods, change: LedgerChange, now_ms: int) -> Ledger:
    """As `change_ledger` or `hold_in_ledger` leaves it, if nobody wrote in between: a transaction returns no image."""
    return replace(
        seen,
        standing=seen.standing.after(change, present),
        last_execution_at_ms=change.last_execution_at_ms or seen.last_execution_at_ms,
        last_execution_status=change.last_execution_status or seen.last_execution_status,
        version=seen.version + 1,
        updated_at_ms=now_ms,
    )


def with_terms(seen: Ledger, present: Periods, terms: Terms, defaults_version: int, now_ms: int) -> Ledger:
    """Under other limits from now on."""
    return replace(
        changed_ledger(seen, present, _UNCHANGED, now_ms),
        terms=terms,
        defaults_version=defaults_version,
        limits_version=seen.limits_version + 1,
    )


def asked(ledger: Ledger, own: OwnBudget, *, has_own: bool = True) -> Ledger:
    """With what was asked for the entity. `has_own`: it was not that it shall have none."""
    return replace(ledger, own=own, has_own=has_own, own_version=ledger.own_version + 1)


def change_terms(seen: Ledger, after: Ledger) -> UpdateRequest:
    """From what was seen to what `with_terms` and `asked` make of it. Its `lv` makes it once: it may be sent again."""
    update = _update(seen, after.standing.periods, _UNCHANGED, after.updated_at_ms)
    update.ask("lv", seen.limits_version)
    before, content = agreed_attributes(seen), agreed_attributes(after)
    for number, (attribute, value) in enumerate(content.items()):
        if attribute not in before or before[attribute] != value:
            alias = "#lv" if attribute == "lv" else f"#t{number}"
            update.names[alias] = attribute
            update.sets.append(f"{alias} = :t{number}")
            update.values[f":t{number}"] = value
    for number, attribute in enumerate(sorted(before.keys() - content.keys())):
        update.names[f"#r{number}"] = attribute
        update.removes.append(f"#r{number}")
    return update.request(seen)


def put_ledger(ledger: Ledger) -> PutRequest:
    """A new ledger, unless there is one. May be repeated."""
    return {"Item": encode_ledger(ledger), "ConditionExpression": "attribute_not_exists(PK)"}


def delete_ledger(seen: Ledger) -> DeleteRequest:
    """If nothing is held in it, and what holds is as seen: whatever was counted meanwhile goes with it."""
    condition, names, values = _unheld()
    return {
        "Key": {**budget_keys.ledger(seen.namespace, seen.entity).attributes},
        "ConditionExpression": f"{condition} AND #lv = :lv",
        "ExpressionAttributeNames": {**names, "#lv": "lv"},
        "ExpressionAttributeValues": {**values, ":lv": seen.limits_version},
    }


def delete_unchanged_ledger(seen: Ledger) -> DeleteRequest:
    """If nobody wrote it since. The epoch tells it from one that was made anew and written as often."""
    return {
        "Key": {**budget_keys.ledger(seen.namespace, seen.entity).attributes},
        "ConditionExpression": "#v = :v AND #epoch = :epoch",
        "ExpressionAttributeNames": {"#v": "v", "#epoch": "epoch"},
        "ExpressionAttributeValues": {":v": seen.version, ":epoch": seen.epoch},
    }


def ledger_unheld(seen: Ledger) -> CheckRequest:
    """That nothing is held in it."""
    condition, names, values = _unheld()
    return {
        "Key": {**budget_keys.ledger(seen.namespace, seen.entity).attributes},
        "ConditionExpression": condition,
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def ledger_unchanged(namespace: str, entity: str, seen: Ledger | None) -> CheckRequest:
    """That nobody wrote it since. None: that there still is none."""
    key = budget_keys.ledger(namespace, entity)
    if seen is None:
        return {"Key": {**key.attributes}, "ConditionExpression": "attribute_not_exists(PK)"}
    return {
        "Key": {**key.attributes},
        "ConditionExpression": "#v = :v",
        "ExpressionAttributeNames": {"#v": "v"},
        "ExpressionAttributeValues": {":v": seen.version},
    }


def ledgers_queries(namespace: str) -> list[QueryRequest]:
    """The keys of all ledgers by entity, without the one of the defaults, which stands in between."""
    values: Item = {":budgets": budget_keys.budgets_of(namespace), ":defaults": encode(DEFAULTS)}
    return [
        {
            "IndexName": schema.GSI3,
            "KeyConditionExpression": f"GSI3PK = :budgets AND GSI3SK {side} :defaults",
            "ExpressionAttributeValues": {**values},
        }
        for side in ("<", ">")
    ]


class _Update:
    """Clauses of one update of a ledger."""

    __slots__ = ("adds", "conditions", "names", "removes", "sets", "values")

    def __init__(self, seen: Ledger, now_ms: int) -> None:
        self.names = {"#v": "v", "#at": "updated_at"}
        self.values: dict[str, Value] = {":one": 1, ":at": now_ms}
        self.sets = ["#at = :at"]
        self.adds = ["#v :one"]
        self.removes: list[str] = []
        self.conditions: list[str] = []
        self.ask("day", seen.standing.periods.day)
        self.ask("month", seen.standing.periods.month)
        self.ask("epoch", seen.epoch)

    def ask(self, attribute: str, value: Value) -> None:
        """That it is as seen."""
        self.names[f"#{attribute}"] = attribute
        self.values[f":{attribute}"] = value
        self.conditions.append(f"#{attribute} = :{attribute}")

    def add(self, attribute: str, amount: int) -> None:
        if amount:
            self.names[f"#{attribute}"] = attribute
            self.values[f":{attribute}"] = amount
            self.adds.append(f"#{attribute} :{attribute}")

    def turn(self, span: Span, to: Periods, added: Used) -> None:
        """What is held before this write goes on in the new period; SET reads it before anything is added."""
        self.sets.append(f"#{span.value} = :new_{span.value}")
        self.values[f":new_{span.value}"] = to.of_span(span)
        for dimension in Dimension:
            used, held = used_attribute(Slot(span, dimension)), held_attribute(dimension)
            self.names |= {f"#{used}": used, f"#{held}": held}
            self.sets.append(f"#{used} = #{held} + :{used}")
            self.values[f":{used}"] = added.used.of(dimension)
        errors = errors_attribute(span)
        self.names[f"#{errors}"] = errors
        self.sets.append(f"#{errors} = :{errors}")
        self.values[f":{errors}"] = added.errors

    def request(self, seen: Ledger) -> UpdateRequest:
        clauses = (("SET", self.sets), ("ADD", self.adds), ("REMOVE", self.removes))
        return {
            "Key": {**budget_keys.ledger(seen.namespace, seen.entity).attributes},
            "UpdateExpression": " ".join(f"{verb} {', '.join(parts)}" for verb, parts in clauses if parts),
            "ConditionExpression": " AND ".join(self.conditions),
            "ExpressionAttributeNames": self.names,
            "ExpressionAttributeValues": self.values,
        }


def _unheld() -> tuple[str, dict[str, str], dict[str, Value]]:
    names = {f"#held{number}": held_attribute(dimension) for number, dimension in enumerate(Dimension)}
    return " AND ".join(f"{alias} = :none" for alias in names), names, {":none": 0}


def _update(seen: Ledger, present: Periods, change: LedgerChange, now_ms: int) -> _Update:
    update = _Update(seen, now_ms)
    was = seen.standing.periods
    to = change.periods_from(was, present)
    for span in Span:
        added = change.added(span, to)
        if to.of_span(span) != was.of_span(span):
            update.turn(span, to, added)
            continue
        for dimension in Dimension:
            update.add(used_attribute(Slot(span, dimension)), added.used.of(dimension))
        update.add(errors_attribute(span), added.errors)
    for dimension in Dimension:
        update.add(held_attribute(dimension), change.held.of(dimension))
    if change.last_execution_at_ms is not None:
        update.names |= {"#la": "last_execution_at", "#ls": "last_execution_status"}
        update.sets += ["#la = :la", "#ls = :ls"]
        update.values |= {":la": change.last_execution_at_ms, ":ls": change.last_execution_status}
    return update
