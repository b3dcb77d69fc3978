"""Each bound of each form left out in turn.

A bound is left out by moving its value beyond any balance: what is left of the request stays what the table accepts.
"""

from typing import Any, Final
from unittest.mock import patch

from sluice.repository import resharding, writes
from tests.simulation.hole import Mutant

_take = writes._take
_debit = writes.debit
_halve = resharding._halve
_move_balance = writes._move_balance

BEYOND: Final = 10**25
"""Further than any balance."""


def _spends_above_the_top(update: Any, name: str, *arguments: Any, **named: Any) -> None:
    _take(update, name, *arguments, **named)
    if f":less_{name}" in update.values:
        update.values[f":top_{name}"] = BEYOND


def _spends_from_full_unasked(update: Any, name: str, *arguments: Any, **named: Any) -> None:
    _take(update, name, *arguments, **named)
    if f":less_{name}" not in update.values:
        update.values[f":top_{name}"] = -BEYOND


def _asks_nothing_for_zero(target: Any, demand: Any, *arguments: Any, **named: Any) -> Any:
    request: Any = _debit(target, demand, *arguments, **named)
    for name, amount in demand.items():
        if amount == 0:
            request["ExpressionAttributeValues"][f":need_{name}"] = -BEYOND
    return request


def _splits_into_debt(update: Any, name: str, *arguments: Any) -> int:
    given = _halve(update, name, *arguments)
    if f":least_{name}" in update.values:
        update.values[f":least_{name}"] = -BEYOND
    return given


def splits_what_overflowed(update: Any, name: str, *arguments: Any) -> int:
    given = _halve(update, name, *arguments)
    if f":most_{name}" in update.values:
        update.values[f":most_{name}"] = BEYOND
    return given


def _splits_from_full_unasked(update: Any, name: str, *arguments: Any) -> int:
    given = _halve(update, name, *arguments)
    if f":top_{name}" in update.values:
        update.values[f":top_{name}"] = -BEYOND
    return given


def _cuts_what_is_below_the_edge(update: Any, name: str, *arguments: Any) -> None:
    _move_balance(update, name, *arguments)
    if f":move_{name}" not in update.values:
        update.values[f":edge_{name}"] = -BEYOND


def _spends_under_any_limits(*arguments: Any, **named: Any) -> Any:
    request: Any = _debit(*arguments, **named)
    request["ConditionExpression"] = request["ConditionExpression"].replace("lh = :lh", "attribute_exists(lh)")
    del request["ExpressionAttributeValues"][":lh"]
    return request


BOUNDS: Final = (
    Mutant("a spend has no top", "expiry", lambda: patch.object(writes, "_take", _spends_above_the_top)),
    Mutant("from full has no bound", "one-bucket", lambda: patch.object(writes, "_take", _spends_from_full_unasked)),
    Mutant("an adjustment has no top", "leases", lambda: patch.object(writes, "_take", _spends_above_the_top), 2_000),
    Mutant("an adjustment from full", "leases", lambda: patch.object(writes, "_take", _spends_from_full_unasked)),
    Mutant("zero has no floor", "debts", lambda: patch.object(writes, "debit", _asks_nothing_for_zero)),
    Mutant("a split has no floor", "shards", lambda: patch.object(resharding, "_halve", _splits_into_debt), 2_000),
    Mutant(
        "a split from full has no bound",
        "shards",
        lambda: patch.object(resharding, "_halve", _splits_from_full_unasked),
    ),
    Mutant(
        "a cutting rebase has no bound",
        "changed-limits",
        lambda: patch.object(writes, "_move_balance", _cuts_what_is_below_the_edge),
        2_000,
    ),
    Mutant(
        "a debit under any limits",
        "changed-limits",
        lambda: patch.object(writes, "debit", _spends_under_any_limits),
    ),
)
