"""Holes in budgets, opened again."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from sluice.core.budget import Dimension, LedgerChange, Periods, Slot, Span, Used
from sluice.repository import budget_keys, schema
from sluice.repository.holds import close_hold, put_hold
from sluice.repository.ledger_items import errors_attribute, held_attribute, used_attribute
from sluice.repository.ledgers import _Update
from sluice.services import freeing, hold_sweep, holding, judging, ledger_charges
from sluice.services.freeing import Freeing
from sluice.services.holding import Holding
from sluice.services.judging import Judge
from sluice.services.ledger_book import LedgerBook
from tests.simulation.hole import Mutant

_close_hold = close_hold
_drawn = Holding._drawn
_end = Freeing.end
_for_hold = LedgerBook.for_hold
_judge = Judge.judge
_put_hold = put_hold
_remember = LedgerBook.remember
_request = _Update.request
_turn = _Update.turn


def _loosened(request: Any, *left_out: str) -> Any:
    """Without the conditions that begin so, and what only they used."""
    parts = request["ConditionExpression"].split(" AND ")
    loose = {**request, "ConditionExpression": " AND ".join(one for one in parts if not one.startswith(left_out))}
    text = f"{loose['UpdateExpression']} {loose['ConditionExpression']}"
    for clause, sign in (("ExpressionAttributeNames", "#"), ("ExpressionAttributeValues", ":")):
        used = set(re.findall(rf"{sign}\w+", text))
        loose[clause] = {name: value for name, value in request[clause].items() if name in used}
    return loose


def _without(*left_out: str) -> Callable[[], AbstractContextManager[object]]:
    """Every update of a ledger asks for less."""

    def request(self: _Update, seen: Any) -> Any:
        return _loosened(_request(self, seen), *left_out)

    return lambda: patch.object(_Update, "request", request)


def _turns_without_reset(self: _Update, span: Span, to: Periods, added: Used) -> None:
    self.sets.append(f"#{span.value} = :new_{span.value}")
    self.values[f":new_{span.value}"] = to.of_span(span)
    for dimension in Dimension:
        self.add(used_attribute(Slot(span, dimension)), added.used.of(dimension))
    self.add(errors_attribute(span), added.errors)


def _resets_after_that(self: LedgerBook, ledger: Any) -> None:
    """By a write of its own, to what it believes is held."""
    known = self._cache.get((ledger.namespace, ledger.entity))
    if known is not None and known.ledger is not None:
        for span in Span:
            before, after = (one.standing.periods.of_span(span) for one in (known.ledger, ledger))
            if before != after:
                self._store.update(_reset(ledger, span), repeatable=True)
    _remember(self, ledger)


def _reset(ledger: Any, span: Span) -> Any:
    names = {"#p": span.value}
    values: dict[str, Any] = {":p": ledger.standing.periods.of_span(span)}
    sets = []
    for number, dimension in enumerate(Dimension):
        names[f"#u{number}"] = used_attribute(Slot(span, dimension))
        values[f":u{number}"] = ledger.standing.of(span).used.of(dimension)
        sets.append(f"#u{number} = :u{number}")
    return {
        "Key": {**budget_keys.ledger(ledger.namespace, ledger.entity).attributes},
        "UpdateExpression": f"SET {', '.join(sets)}",
        "ConditionExpression": "#p = :p",
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def _resets_later() -> AbstractContextManager[object]:
    stack = ExitStack()
    stack.enter_context(patch.object(_Update, "turn", _turns_without_reset))
    stack.enter_context(patch.object(LedgerBook, "remember", _resets_after_that))
    return stack


def _turn_drops_holds(self: _Update, span: Span, to: Periods, added: Used) -> None:
    _turn(self, span, to, added)
    for dimension in Dimension:
        used, held = used_attribute(Slot(span, dimension)), held_attribute(dimension)
        self.sets.remove(f"#{used} = #{held} + :{used}")
        self.sets.append(f"#{used} = :{used}")
        self.names.pop(f"#{held}", None)


def _of_the_writer(_change: LedgerChange, *known: Periods) -> Periods:
    return known[-1]


def _closes_again(*arguments: Any) -> Any:
    request: Any = _close_hold(*arguments)
    request["ConditionExpression"] = "attribute_exists(PK)"
    del request["ExpressionAttributeValues"][":open"]
    return request


def _forgotten_by_ttl(hold: Any) -> Any:
    request: Any = _put_hold(hold)
    request["Item"] = {**request["Item"], schema.TTL_ATTRIBUTE: hold.expires_at_ms // 1000}
    return request


def _charges_todays_chain(self: Judge, reporter: Any, opened: Any) -> Any:
    charge = _judge(self, reporter, replace(opened, hold=None))
    return None if charge is None else replace(charge, opened=opened)


def _frees_the_first(self: Freeing, seen: Any, how: Any) -> Any:
    ending = _end(self, seen, how)
    return None if ending is None else replace(ending, writes=ending.writes[:2], after=ending.after[:1])


def _of_our_clock(self: Holding, attempt: Any, ledgers: Any, amounts: Any, taken: Any) -> Any:
    drawn = _drawn(self, attempt, ledgers, amounts, taken)
    hold = replace(drawn.hold, day=drawn.present.day)
    return replace(drawn, hold=hold, admission=replace(drawn.admission, hold=hold))


def _only_its_own(self: LedgerBook, namespace: str, chain: Any) -> Any:
    found = self._taking_part(namespace, chain[:1], lambda terms: bool(terms.hard_limits))
    return [ledger for ledger in found if ledger.terms.hard_limits]


def _its_own_first(self: LedgerBook, namespace: str, chain: Any) -> Any:
    found = _for_hold(self, namespace, chain)
    return found if any(ledger.entity == chain[0] for ledger in found) else []


def _late_ones_count(self: LedgerChange, span: Span, to: Periods) -> Used:
    amounts, errors = self.held, 0
    for charge in self.charges:
        amounts += charge.amounts
        errors += charge.errors
    return Used(amounts, errors)


BUDGET_HOLES: Final = (
    Mutant("check then add", "budgets", _without("#g")),
    Mutant("a reset is a second write", "budgets", _resets_later),
    Mutant("periods move back", "budgets", lambda: patch.object(LedgerChange, "periods_from", _of_the_writer)),
    Mutant("a turn drops holds", "budgets", lambda: patch.object(_Update, "turn", _turn_drops_holds)),
    Mutant("a late event counts today", "budgets", lambda: patch.object(LedgerChange, "added", _late_ones_count)),
    Mutant(
        "a settled hold is freed again",
        "overruns",
        lambda: patch.object(ledger_charges, "close_hold", _closes_again),
        2_000,
    ),
    Mutant(
        "a swept hold is freed again",
        "budgets",
        lambda: patch.object(freeing, "close_hold", _closes_again),
        2_000,
        first=80,
    ),
    Mutant("holds end by their TTL", "budgets", lambda: patch.object(holding, "put_hold", _forgotten_by_ttl)),
    Mutant("a backdated report frees its hold", "budgets", lambda: patch.object(judging, "day_number", lambda _day: 0)),
    Mutant(
        "a report charges today's chain", "budgets", lambda: patch.object(Judge, "judge", _charges_todays_chain), 500
    ),
    Mutant("a sweep frees one ledger", "budgets", lambda: patch.object(Freeing, "end", _frees_the_first), 500),
    Mutant("an epoch goes unnoticed", "budgets", _without("#epoch "), 500),
    Mutant("limits change unnoticed", "budgets", _without("#lv "), 500),
    Mutant("periods change unnoticed", "budgets", _without("#day ", "#month "), 500),
    Mutant("a hold is of our own day", "budgets", lambda: patch.object(Holding, "_drawn", _of_our_clock), 2_000),
    Mutant("only its own budget holds", "budgets", lambda: patch.object(LedgerBook, "for_hold", _only_its_own)),
    Mutant(
        "those above hold with its own only", "budgets", lambda: patch.object(LedgerBook, "for_hold", _its_own_first)
    ),
    Mutant("a sweep does not wait", "budgets", lambda: patch.object(hold_sweep, "GRACE_MS", 0), 500),
)
