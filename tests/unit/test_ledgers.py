"""Ledgers as they are stored, and their one update, on a table that refuses what DynamoDB refuses."""

from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.budget import (
    DEFAULTS,
    NOTHING,
    SLOTS,
    Amounts,
    Charge,
    Dimension,
    Enforcement,
    LedgerChange,
    OwnBudget,
    Periods,
    Slot,
    Span,
    Standing,
    Terms,
    Used,
    effective_terms,
    violations,
)
from sluice.repository import budget_keys
from sluice.repository.ledger_items import Ledger, budget_image, decode_ledger, encode_ledger, new_ledger
from sluice.repository.ledgers import (
    asked,
    change_ledger,
    change_terms,
    changed_ledger,
    delete_ledger,
    delete_unchanged_ledger,
    hold_in_ledger,
    ledger_unchanged,
    ledger_unheld,
    ledgers_queries,
    put_ledger,
    with_terms,
)
from sluice.repository.requests import TransactWrite, UpdateRequest
from sluice.repository.shapes import UnknownShape
from sluice.repository.store import Applied, Cancelled, Committed, ConditionFailed
from sluice.repository.wire import Item, Value
from tests.simulation.table import SimulatedTable
from tests.simulation.values import item_bytes

NAMESPACE: Final = "n" * 20
ENTITY: Final = "user-" + "e" * 35
FIRST: Final = Periods.of_name("20260130")
NEXT: Final = Periods.of_name("20260131")
NEXT_MONTH: Final = Periods.of_name("20260201")
NOW_MS: Final = 1_800_000_000_000
DAY_COST: Final = Slot(Span.DAY, Dimension.COST)
EVERY_LIMIT: Final = {slot: 10**15 - number for number, slot in enumerate(SLOTS)}
LARGE: Final = Amounts(10**15, 10**15, 10**12)

days = st.sampled_from([FIRST, NEXT, NEXT_MONTH])
amounts = st.builds(Amounts, st.integers(0, 30), st.integers(0, 30), st.integers(0, 3))
charges = st.lists(st.builds(Charge, days, amounts, st.integers(0, 2)), max_size=3).map(tuple)
limits = st.dictionaries(st.sampled_from(SLOTS), st.integers(0, 60))
percents = st.none() | st.lists(st.integers(1, 100), max_size=5, unique=True).map(tuple)
own_budgets = st.builds(OwnBudget, limits, st.none() | st.sampled_from(Enforcement), st.booleans(), percents)


def ledger(terms: Terms | None = None, periods: Periods = FIRST) -> Ledger:
    return new_ledger(NAMESPACE, ENTITY, periods, terms or Terms({}, Enforcement.SOFT), 0, NOW_MS, 0)


def full() -> Ledger:
    """With everything that a ledger may have."""
    own = OwnBudget(EVERY_LIMIT, Enforcement.HARD, inherit=False, alert_percents=(1, 25, 50, 80, 100))
    used = Used(LARGE, 10**9)
    return replace(
        asked(ledger(effective_terms(own, None)), own),
        standing=Standing(FIRST, used, used, LARGE),
        epoch=3,
        refresh_id="r" * 32,
        last_execution_at_ms=NOW_MS,
        last_execution_status="timeout",
    )


class Table:
    """With one ledger, as it is stored."""

    def __init__(self, stored: Ledger) -> None:
        self.table = SimulatedTable()
        assert isinstance(self.table.put(put_ledger(stored)), Applied)

    def update(self, request: UpdateRequest) -> bool:
        return isinstance(self.table.update(request), Applied)

    @property
    def ledger(self) -> Ledger:
        item = self.table.get(budget_keys.ledger(NAMESPACE, ENTITY))
        assert item is not None
        return decode_ledger(item)


def texts_of(request: UpdateRequest) -> list[str]:
    return [request["UpdateExpression"], request["ConditionExpression"]]


# As stored


@given(own_budgets, own_budgets, days, st.booleans(), st.none() | st.text(min_size=1, max_size=9))
def test_a_ledger_is_read_as_it_was_written(
    own: OwnBudget, defaults: OwnBudget, periods: Periods, has_own: bool, status: str | None
) -> None:
    stored = asked(ledger(effective_terms(own, defaults), periods), own, has_own=has_own)
    stored = replace(stored, last_execution_status=status, last_execution_at_ms=None if status is None else 5)
    assert decode_ledger(encode_ledger(stored)) == stored


def test_everything_that_a_ledger_may_have_is_read_back() -> None:
    assert decode_ledger(encode_ledger(full())) == full()
    assert decode_ledger(encode_ledger(ledger())) == ledger()
    assert not full().is_defaults
    assert new_ledger(NAMESPACE, DEFAULTS, FIRST, Terms({}, Enforcement.SOFT), 0, 1, 0).is_defaults


def test_a_usual_ledger_is_written_for_one_unit() -> None:
    own = OwnBudget({DAY_COST: 10**10, Slot(Span.MONTH, Dimension.COST): 10**11}, Enforcement.HARD)
    stored = replace(
        asked(ledger(effective_terms(own, None)), own),
        standing=full().standing,
        last_execution_at_ms=NOW_MS,
        last_execution_status="timeout",
    )
    assert item_bytes(encode_ledger(stored)) < 1024


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("kind", "bucket"),
        ("day", 20260130),
        ("lv", "1"),
        ("day_cost_used", None),
        ("cost_held", True),
        ("day_cost_limit", "5"),
        ("enforcement", "strict"),
        ("own_enforcement", "strict"),
        ("alert_percents", None),
        ("own_alert_percents", [50, True]),
        ("last_execution_at", "now"),
    ],
)
def test_a_shape_that_is_not_known_raises(attribute: str, value: Value) -> None:
    item: Item = {**encode_ledger(full()), attribute: value}
    with pytest.raises(UnknownShape):
        decode_ledger(item)


def test_the_audit_shows_what_was_asked_and_nothing_else() -> None:
    own = OwnBudget({DAY_COST: 5}, Enforcement.SOFT, alert_percents=(50,))
    shown = {"day_cost_limit": 5, "inherit": True, "enforcement": "soft", "alert_percents": [50], "version": 1}
    assert budget_image(asked(ledger(), own)) == shown
    assert budget_image(ledger()) == {"inherit": True, "version": 0}


def test_a_ledger_is_put_only_where_there_is_none() -> None:
    table = Table(full())
    refused = table.table.put(put_ledger(ledger()))
    assert isinstance(refused, ConditionFailed)
    assert refused.item is not None
    assert decode_ledger(refused.item) == full()


def test_the_list_of_ledgers_leaves_the_defaults_out() -> None:
    below, above = ledgers_queries(NAMESPACE)
    assert below["KeyConditionExpression"].replace("<", ">") == above["KeyConditionExpression"]
    assert below["ExpressionAttributeValues"] == above["ExpressionAttributeValues"]
    assert below["ExpressionAttributeValues"] == {
        ":budgets": f"{NAMESPACE}/BUDGETS",
        ":defaults": budget_keys.ledger_indexes(NAMESPACE, DEFAULTS)["GSI3SK"],
    }


# The one update


@given(st.lists(st.tuples(days, amounts, charges, st.booleans()), max_size=8))
def test_every_update_does_what_the_core_says(writes: list[tuple[Periods, Amounts, Any, bool]]) -> None:
    """Turned or not, in the present or late."""
    table = Table(ledger())
    held = NOTHING
    for number, (present, amount, of, frees) in enumerate(writes):
        freed = NOTHING - held if frees else NOTHING
        change = LedgerChange(amount + freed, of, number + 1, "ok") if of else LedgerChange(amount + freed)
        held = held + freed + amount
        seen = table.ledger
        assert table.update(change_ledger(seen, present, change, NOW_MS + number))
        assert table.ledger == changed_ledger(seen, present, change, NOW_MS + number)
        assert table.ledger.standing == seen.standing.after(change, present)
        assert table.ledger.standing.held == held
        assert table.ledger.standing.periods >= seen.standing.periods


@given(limits, days, amounts, amounts, days, amounts)
def test_a_hold_is_admitted_exactly_where_no_hard_limit_is_passed(
    by_slot: dict[Slot, int], of: Periods, used: Amounts, held: Amounts, present: Periods, wanted: Amounts
) -> None:
    table = Table(ledger(Terms(by_slot, Enforcement.HARD)))
    assert table.update(change_ledger(table.ledger, of, LedgerChange(held, (Charge(of, used),)), NOW_MS))
    seen = table.ledger
    admitted = table.update(hold_in_ledger(seen, present, wanted, NOW_MS))
    assert admitted == (not violations(seen.terms, seen.standing.at(present), wanted))
    assert table.ledger == (changed_ledger(seen, present, LedgerChange(wanted), NOW_MS) if admitted else seen)


def test_a_stale_image_is_good_enough_while_nothing_turned() -> None:
    """Others' holds and events do not break a hold, but count against it."""
    table = Table(ledger(Terms({DAY_COST: 10}, Enforcement.HARD)))
    stale = table.ledger
    for _ in range(3):
        assert table.update(hold_in_ledger(stale, FIRST, Amounts(3), NOW_MS))
    assert not table.update(hold_in_ledger(stale, FIRST, Amounts(3), NOW_MS))
    assert table.update(change_ledger(stale, FIRST, LedgerChange(charges=(Charge(FIRST, Amounts(5)),)), NOW_MS))
    assert table.ledger.standing.day.used == Amounts(14)


def test_a_turn_is_made_once() -> None:
    """Two writers see the old day; the second must not start the new one again."""
    table = Table(ledger())
    stale = table.ledger
    change = LedgerChange(charges=(Charge(NEXT, Amounts(5)),))
    assert table.update(change_ledger(stale, NEXT, change, NOW_MS))
    assert not table.update(change_ledger(stale, NEXT, change, NOW_MS))
    assert not table.update(hold_in_ledger(stale, NEXT, Amounts(1), NOW_MS))
    assert not table.update(change_terms(stale, with_terms(stale, NEXT, stale.terms, 1, NOW_MS)))
    assert table.update(change_ledger(table.ledger, NEXT, change, NOW_MS))
    assert table.ledger.standing.day.used == Amounts(10)


def test_a_writer_who_believes_in_an_older_day_does_not_move_it_back() -> None:
    table = Table(ledger(periods=NEXT_MONTH))
    assert table.update(change_ledger(table.ledger, FIRST, LedgerChange(held=Amounts(5)), NOW_MS))
    assert table.ledger.standing.periods == NEXT_MONTH


def test_a_hold_in_a_new_period_is_compared_with_what_is_held() -> None:
    """Yesterday's spending is no longer in the way; what is under way is."""
    table = Table(ledger(Terms({DAY_COST: 10}, Enforcement.HARD)))
    change = LedgerChange(held=Amounts(4), charges=(Charge(FIRST, Amounts(6)),))
    assert table.update(change_ledger(table.ledger, FIRST, change, NOW_MS))
    assert not table.update(hold_in_ledger(table.ledger, FIRST, Amounts(1), NOW_MS))
    assert not table.update(hold_in_ledger(table.ledger, NEXT, Amounts(7), NOW_MS))
    assert table.update(hold_in_ledger(table.ledger, NEXT, Amounts(6), NOW_MS))
    assert (table.ledger.standing.day.used, table.ledger.standing.held) == (Amounts(10), Amounts(10))
    assert table.ledger.standing.month.used == Amounts(16)


def test_a_hold_fails_on_changed_limits_and_a_settlement_does_not() -> None:
    table = Table(ledger(Terms({DAY_COST: 10}, Enforcement.HARD)))
    stale = table.ledger
    assert table.update(hold_in_ledger(stale, FIRST, Amounts(4), NOW_MS))
    raised = with_terms(stale, FIRST, Terms({DAY_COST: 1000}, Enforcement.HARD), 0, NOW_MS)
    assert table.update(change_terms(stale, raised))
    assert not table.update(hold_in_ledger(stale, FIRST, Amounts(4), NOW_MS))
    assert table.update(change_ledger(stale, FIRST, LedgerChange(held=Amounts(-4)), NOW_MS))


def test_nothing_is_written_after_a_refresh_began_that_it_does_not_know_of() -> None:
    table = Table(replace(ledger(), epoch=4))
    stale = replace(table.ledger, epoch=3)
    assert not table.update(change_ledger(stale, FIRST, LedgerChange(held=Amounts(1)), NOW_MS))
    assert not table.update(hold_in_ledger(stale, FIRST, Amounts(1), NOW_MS))
    assert not table.update(change_terms(stale, with_terms(stale, FIRST, stale.terms, 1, NOW_MS)))


@pytest.mark.parametrize("change", [LedgerChange(), LedgerChange(held=Amounts(1))])
def test_a_ledger_that_is_gone_is_not_made_by_half(change: LedgerChange) -> None:
    table = SimulatedTable()
    seen = ledger()
    for request in (
        change_ledger(seen, NEXT, change, NOW_MS),
        hold_in_ledger(seen, NEXT, Amounts(1), NOW_MS),
        change_terms(seen, with_terms(seen, NEXT, seen.terms, 1, NOW_MS)),
    ):
        assert table.update(request) == ConditionFailed(None)
    assert table.items() == []


# What holds


@given(own_budgets, own_budgets, own_budgets, st.booleans(), days)
def test_terms_change_to_exactly_what_was_asked(
    first: OwnBudget, second: OwnBudget, defaults: OwnBudget, has_own: bool, present: Periods
) -> None:
    table = Table(asked(ledger(effective_terms(first, defaults)), first))
    assert table.update(change_ledger(table.ledger, FIRST, LedgerChange(LARGE, (Charge(FIRST, LARGE, 1),)), NOW_MS))
    seen = table.ledger
    terms = effective_terms(second, defaults)
    after = asked(with_terms(seen, present, terms, 7, NOW_MS + 5), second, has_own=has_own)
    assert table.update(change_terms(seen, after))
    assert table.ledger == after
    assert (after.own, after.terms, after.has_own, after.defaults_version) == (second, terms, has_own, 7)
    assert (after.limits_version, after.own_version) == (seen.limits_version + 1, seen.own_version + 1)
    assert after.standing == seen.standing.at(present)
    # Sent again after a lost answer, it finds that it was made.
    assert not table.update(change_terms(seen, after))


def test_newer_defaults_leave_what_was_asked() -> None:
    own = OwnBudget({DAY_COST: 5})
    table = Table(asked(ledger(effective_terms(own, None)), own))
    seen = table.ledger
    inherited = effective_terms(own, OwnBudget({Slot(Span.DAY, Dimension.TOKENS): 9}, Enforcement.HARD))
    assert table.update(change_terms(seen, with_terms(seen, FIRST, inherited, 2, NOW_MS)))
    assert (table.ledger.own, table.ledger.has_own, table.ledger.own_version) == (own, True, 1)
    assert (table.ledger.terms, table.ledger.defaults_version) == (inherited, 2)


def test_of_two_changes_of_what_holds_one_fails() -> None:
    table = Table(ledger())
    seen = table.ledger
    first = with_terms(seen, FIRST, Terms({DAY_COST: 5}, Enforcement.HARD), 1, NOW_MS)
    second = asked(with_terms(seen, FIRST, Terms({DAY_COST: 6}, Enforcement.HARD), 0, NOW_MS), OwnBudget({DAY_COST: 6}))
    assert table.update(change_terms(seen, first))
    assert not table.update(change_terms(seen, second))


def test_limits_change_under_any_traffic() -> None:
    """No condition on `v`: spending does not get in the way."""
    table = Table(ledger())
    stale = table.ledger
    for _ in range(9):
        assert table.update(change_ledger(table.ledger, FIRST, LedgerChange(held=Amounts(1)), NOW_MS))
    assert table.update(
        change_terms(stale, with_terms(stale, FIRST, Terms({DAY_COST: 5}, Enforcement.HARD), 0, NOW_MS))
    )
    assert table.ledger.standing.held == Amounts(9)


def test_the_largest_expressions_are_small_and_have_no_arithmetic_in_conditions() -> None:
    seen = full()
    change = LedgerChange(LARGE, (Charge(NEXT_MONTH, LARGE, 9), Charge(FIRST, LARGE, 9)), NOW_MS, "timeout")
    bare = replace(seen, terms=Terms({}, Enforcement.NONE), own=OwnBudget(enforcement=Enforcement.NONE))
    for present in (FIRST, NEXT, NEXT_MONTH):
        for request in (
            change_ledger(seen, present, change, NOW_MS),
            hold_in_ledger(seen, present, LARGE, NOW_MS),
            change_terms(seen, asked(with_terms(seen, present, bare.terms, 9, NOW_MS), bare.own, has_own=False)),
            change_terms(bare, asked(with_terms(bare, present, seen.terms, 9, NOW_MS), seen.own)),
        ):
            for text in texts_of(request):
                assert len(text.encode()) < 4096
            assert not set("+-*/") & set(request["ConditionExpression"])


# Its end


@pytest.mark.parametrize("held", [Amounts(1), Amounts(0, 1), Amounts(0, 0, 1)])
def test_a_ledger_goes_only_when_nothing_is_held_in_it(held: Amounts) -> None:
    table = Table(ledger())
    assert table.update(change_ledger(table.ledger, FIRST, LedgerChange(held=held), NOW_MS))
    seen = table.ledger
    check: TransactWrite = {"ConditionCheck": ledger_unheld(seen)}
    assert isinstance(table.table.delete(delete_ledger(seen)), ConditionFailed)
    assert isinstance(table.table.transact([check], "t1"), Cancelled)
    # What is counted meanwhile does not get in the way.
    assert table.update(change_ledger(seen, FIRST, LedgerChange(NOTHING - held, (Charge(FIRST, held),)), NOW_MS))
    assert table.table.transact([check], "t2") == Committed()
    assert isinstance(table.table.delete(delete_ledger(seen)), Applied)
    assert table.table.items() == []


def test_a_ledger_is_told_from_one_that_somebody_wrote_since() -> None:
    table = Table(ledger())
    seen = table.ledger
    unchanged: TransactWrite = {"ConditionCheck": ledger_unchanged(NAMESPACE, ENTITY, seen)}
    absent: TransactWrite = {"ConditionCheck": ledger_unchanged(NAMESPACE, ENTITY, None)}
    assert table.table.transact([unchanged], "t1") == Committed()
    assert isinstance(table.table.transact([absent], "t2"), Cancelled)
    assert table.update(change_ledger(seen, FIRST, LedgerChange(charges=(Charge(FIRST, Amounts(1)),)), NOW_MS))
    assert isinstance(table.table.transact([unchanged], "t3"), Cancelled)
    assert isinstance(table.table.delete(delete_ledger(table.ledger)), Applied)
    assert isinstance(table.table.transact([unchanged], "t4"), Cancelled)
    assert table.table.transact([absent], "t5") == Committed()


def test_a_ledger_that_was_judged_goes_only_as_it_was_judged() -> None:
    table = Table(ledger())
    seen = table.ledger
    assert table.update(change_ledger(seen, FIRST, LedgerChange(charges=(Charge(FIRST, Amounts(1)),)), NOW_MS))
    assert isinstance(table.table.delete(delete_unchanged_ledger(seen)), ConditionFailed)
    # One that was made anew, and written as often, is another.
    anew = replace(table.ledger, epoch=seen.epoch + 1)
    assert isinstance(table.table.delete(delete_unchanged_ledger(anew)), ConditionFailed)
    assert isinstance(table.table.delete(delete_unchanged_ledger(table.ledger)), Applied)
    assert isinstance(table.table.delete(delete_unchanged_ledger(seen)), ConditionFailed)


def test_a_ledger_does_not_go_with_a_budget_that_nobody_has_seen() -> None:
    table = Table(ledger())
    seen = table.ledger
    assert table.update(change_terms(seen, with_terms(seen, FIRST, Terms({DAY_COST: 5}, Enforcement.HARD), 0, NOW_MS)))
    assert isinstance(table.table.delete(delete_ledger(seen)), ConditionFailed)
