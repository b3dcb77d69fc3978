"""Budgets: what holds, what is left, and what a turn of periods makes of the counters."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.budget import (
    ALERT_DEFAULT_PERCENTS,
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
    Violation,
    effective_terms,
    forecast,
    forecast_counts,
    guarantee,
    latest,
    most_used_before,
    never_fits,
    reached_percents,
    remaining,
    spent_tenths,
    success_tenths,
    violations,
)
from sluice.core.period import LocalDay

USD: Final = 1_000_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
DAY_COST: Final = Slot(Span.DAY, Dimension.COST)
MONTH_COST: Final = Slot(Span.MONTH, Dimension.COST)
DAY_TOKENS: Final = Slot(Span.DAY, Dimension.TOKENS)
DAY_EXECUTIONS: Final = Slot(Span.DAY, Dimension.EXECUTIONS)
FIRST: Final = Periods.of_name("20260130")
NEXT: Final = Periods.of_name("20260131")
NEXT_MONTH: Final = Periods.of_name("20260201")

amounts = st.builds(Amounts, st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10))
days = st.sampled_from(["20260129", "20260130", "20260131", "20260201", "20260202", "20260301"]).map(Periods.of_name)
limits = st.dictionaries(st.sampled_from(SLOTS), st.integers(0, 10**6))


def at_start(periods: Periods = FIRST) -> Standing:
    return Standing(periods, Used(), Used(), NOTHING)


def costs(cost_usd_micros: int) -> Amounts:
    return Amounts(cost_usd_micros, 0, 0)


def spent(standing: Standing, cost_usd_micros: int, periods: Periods = FIRST) -> Standing:
    return standing.after(LedgerChange(charges=(Charge(periods, Amounts(cost_usd_micros, 0, 1)),)), periods)


def hard(**by_name: int) -> Terms:
    names = {slot.name: slot for slot in SLOTS}
    return Terms({names[name]: limit for name, limit in by_name.items()}, Enforcement.HARD)


# Periods


def test_periods_are_of_a_local_day() -> None:
    day = LocalDay(739_283, 0, 1)
    assert Periods.of(day) == Periods("20250201", "202502")
    assert (FIRST.of_span(Span.DAY), FIRST.of_span(Span.MONTH)) == ("20260130", "202601")
    assert latest(NEXT, FIRST, NEXT_MONTH) == NEXT_MONTH


def test_a_new_period_reads_as_zeros_and_what_is_held() -> None:
    """Vector 43, with a call under way."""
    held = Amounts(500, 20, 1)
    standing = spent(at_start(), 100).after(LedgerChange(held=held), FIRST)
    day = standing.at(NEXT)
    assert day == Standing(NEXT, Used(held), standing.month, held)
    assert (day.spent(Span.DAY), day.spent(Span.MONTH)) == (NOTHING, Amounts(100, 0, 1))
    month = standing.at(NEXT_MONTH)
    assert month == Standing(NEXT_MONTH, Used(held), Used(held), held)
    assert standing.at(FIRST) == standing


def test_periods_never_move_back() -> None:
    standing = spent(at_start(NEXT_MONTH), 7, NEXT_MONTH)
    assert standing.at(FIRST) == standing
    late = standing.after(LedgerChange(charges=(Charge(FIRST, costs(5), 1),)), FIRST)
    assert late == standing


def test_a_late_event_counts_only_where_its_period_is_current() -> None:
    """Vector 44: the day before, in the month that still is."""
    standing = spent(at_start(NEXT), 7, NEXT)
    late = standing.after(LedgerChange(charges=(Charge(FIRST, Amounts(5, 2, 1), 1),)), NEXT)
    assert late.day == standing.day
    assert late.month == Used(Amounts(12, 2, 2), 1)


def test_an_early_event_turns_the_ledger() -> None:
    early = spent(at_start(), 7).after(LedgerChange(charges=(Charge(NEXT, costs(5)),)), FIRST)
    assert early.periods == NEXT
    assert early.day == Used(costs(5))
    assert early.month == Used(Amounts(12, 0, 1))


def test_settling_after_midnight_leaves_the_new_day_alone() -> None:
    """Vector 64: the actual belongs to the day of the call, and the hold leaves the day that it was carried into."""
    held = Amounts(16_500, 100, 1)
    standing = spent(at_start(FIRST), 1_000).after(LedgerChange(held=held), FIRST)
    actual = Amounts(12_000, 80, 1)
    settled = standing.after(LedgerChange(held=NOTHING - held, charges=(Charge(FIRST, actual),)), NEXT)
    assert settled.day == Used()
    assert settled.month.used == Amounts(13_000, 80, 2)
    assert settled.held == NOTHING
    turned = standing.after(LedgerChange(held=NOTHING - held, charges=(Charge(FIRST, actual),)), NEXT_MONTH)
    assert (turned.day, turned.month, turned.held) == (Used(), Used(), NOTHING)


def test_a_hold_is_replaced_by_what_was_used() -> None:
    """Vector 59."""
    standing = at_start().after(LedgerChange(held=costs(16_500)), FIRST)
    assert (standing.day.used, standing.held) == (costs(16_500), costs(16_500))
    settled = standing.after(LedgerChange(held=costs(-16_500), charges=(Charge(FIRST, costs(12_000)),)), FIRST)
    assert (settled.day.used, settled.held) == (costs(12_000), NOTHING)


@given(st.lists(st.tuples(st.sampled_from(["hold", "free", "settle", "charge"]), days, days, amounts), max_size=30))
def test_held_is_the_sum_of_the_open_holds_and_used_what_was_spent_besides(
    writes: list[tuple[str, Periods, Periods, Amounts]],
) -> None:
    """Whatever turns when, in whatever order writers and events believe in their days."""
    standing = at_start()
    open_holds: list[Amounts] = []
    counted: list[Charge] = []
    for verb, present, of, amount in writes:
        before = standing.periods
        charges: tuple[Charge, ...] = ()
        held = NOTHING
        if verb == "hold":
            open_holds.append(amount)
            held = amount
        elif verb != "charge" and open_holds:
            held = NOTHING - open_holds.pop(0)
        if verb in ("settle", "charge"):
            charges = (Charge(of, amount, 1),)
        standing = standing.after(LedgerChange(held=held, charges=charges), present)
        assert standing.periods == latest(before, present, *(charge.periods for charge in charges))
        counted += charges
        assert standing.held == sum(open_holds, NOTHING)
        for span in Span:
            now = [one for one in counted if one.periods.of_span(span) == standing.periods.of_span(span)]
            assert standing.spent(span) == sum((one.amounts for one in now), NOTHING)
            assert standing.of(span).errors == len(now)


# What holds


DEFAULTS_25: Final = OwnBudget({DAY_COST: 25 * USD}, Enforcement.HARD, alert_percents=(50,))


def test_what_is_left_out_is_inherited_unless_switched_off() -> None:
    """Vector 55."""
    assert effective_terms(None, DEFAULTS_25) == Terms({DAY_COST: 25 * USD}, Enforcement.HARD, (50,))
    assert effective_terms(OwnBudget(), DEFAULTS_25) == effective_terms(None, DEFAULTS_25)
    assert effective_terms(OwnBudget(inherit=False), DEFAULTS_25) == Terms({}, Enforcement.SOFT, ALERT_DEFAULT_PERCENTS)
    assert effective_terms(None, None) == Terms({}, Enforcement.SOFT, (80, 100))
    own = OwnBudget({DAY_COST: 0, MONTH_COST: 7}, Enforcement.SOFT, alert_percents=())
    assert effective_terms(own, DEFAULTS_25) == Terms({DAY_COST: 0, MONTH_COST: 7}, Enforcement.SOFT, ())
    mixed = effective_terms(OwnBudget({MONTH_COST: 7}), DEFAULTS_25)
    assert mixed.limits == {DAY_COST: 25 * USD, MONTH_COST: 7}


def test_a_limit_of_zero_blocks_at_once() -> None:
    """Vector 55, the last case."""
    blocked = effective_terms(OwnBudget({DAY_COST: 0}), DEFAULTS_25)
    (found,) = violations(blocked, at_start(), NOTHING)
    assert (found.slot, found.limit, found.used, found.requested) == (DAY_COST, 0, 0, 0)
    assert never_fits(found)


@pytest.mark.parametrize("enforcement", list(Enforcement))
def test_only_hard_limits_refuse(enforcement: Enforcement) -> None:
    """Vector 52: spent is at the limit."""
    terms = Terms({DAY_COST: 10}, enforcement)
    found = violations(terms, spent(at_start(), 10), costs(1))
    assert bool(found) == (enforcement is Enforcement.HARD)


def test_limits_are_checked_in_order_and_all_are_told() -> None:
    every = hard(**{slot.name: 1 for slot in SLOTS})
    standing = at_start().after(LedgerChange(held=Amounts(1, 1, 1)), FIRST)
    found = violations(every, standing, Amounts(1, 2, 3))
    assert [violation.slot.name for violation in found] == [
        "day_cost",
        "month_cost",
        "day_tokens",
        "month_tokens",
        "day_executions",
        "month_executions",
    ]
    assert [violation.requested for violation in found] == [1, 1, 2, 2, 3, 3]
    assert {violation.held for violation in found} == {1}
    assert violations(every, at_start(), Amounts(1, 1, 1)) == ()


def test_at_the_limit_nothing_is_admitted_not_even_nothing() -> None:
    assert most_used_before(10, 4) == 6
    assert most_used_before(10, 0) == 9
    terms = hard(day_cost=10)
    assert violations(terms, spent(at_start(), 10), NOTHING) != ()
    assert violations(terms, spent(at_start(), 9), NOTHING) == ()


def test_what_is_left_after_a_hold() -> None:
    """Vectors 59, 60 and 61."""
    terms = hard(day_cost=10 * USD)
    nearly = spent(at_start(), 10 * USD - 10_000)
    (found,) = violations(terms, nearly, costs(16_500))
    assert found == Violation(DAY_COST, 10 * USD, 10 * USD - 10_000, 0, 16_500)
    assert not never_fits(found)
    held = spent(at_start(), 10 * USD - 16_500).after(LedgerChange(held=costs(16_500)), FIRST)
    settled = held.after(LedgerChange(held=costs(-16_500), charges=(Charge(FIRST, costs(20_000)),)), FIRST)
    assert settled.day.used.cost_usd_micros == 10 * USD + 3_500
    assert violations(terms, settled, costs(1)) != ()


def test_what_is_above_the_whole_limit_never_fits() -> None:
    (found,) = violations(hard(day_tokens=10), at_start(), Amounts(0, 11, 0))
    assert never_fits(found)
    (found,) = violations(
        hard(day_tokens=10), at_start().after(LedgerChange(held=Amounts(0, 1, 0)), FIRST), Amounts(0, 10, 0)
    )
    assert not never_fits(found)


def test_ten_holds_of_a_fifth_admit_five() -> None:
    """Vector 63, one after the other."""
    terms, standing, admitted = hard(day_cost=10 * USD), at_start(), 0
    for _ in range(10):
        if not violations(terms, standing, costs(2 * USD)):
            standing = standing.after(LedgerChange(held=costs(2 * USD)), FIRST)
            admitted += 1
    assert (admitted, standing.held) == (5, costs(10 * USD))


def test_a_changed_limit_moves_what_remains() -> None:
    """Vector 65."""
    standing = spent(at_start(), 6)
    used = standing.day.used.cost_usd_micros
    assert (remaining(10, used), remaining(12, used), remaining(5, used)) == (4, 6, -1)
    assert violations(hard(day_cost=12), standing, costs(6)) == ()
    assert violations(hard(day_cost=5), standing, costs(0)) != ()


@given(limits, amounts, amounts, amounts)
def test_what_is_admitted_passes_no_limit(
    by_slot: dict[Slot, int], before: Amounts, held: Amounts, wanted: Amounts
) -> None:
    terms = Terms(by_slot, Enforcement.HARD)
    standing = at_start().after(LedgerChange(held=held, charges=(Charge(FIRST, before),)), FIRST)
    found = violations(terms, standing, wanted)
    order = [SLOTS.index(violation.slot) for violation in found]
    assert order == sorted(order)
    after = standing.after(LedgerChange(held=wanted), FIRST)
    for slot, limit in by_slot.items():
        used = standing.of(slot.span).used.of(slot.dimension)
        passes = after.of(slot.span).used.of(slot.dimension) > limit or used >= limit
        assert passes == (slot in {violation.slot for violation in found})


# What people are told


@pytest.mark.parametrize(
    ("executions", "errors", "tenths"), [(0, 0, 1000), (3, 2, 333), (3, 1, 666), (1, 1, 0), (5, 0, 1000)]
)
def test_the_success_rate_is_cut(executions: int, errors: int, tenths: int) -> None:
    """Vector 54."""
    assert success_tenths(executions, errors) == tenths


def test_percents_are_cut_and_absent_at_zero() -> None:
    assert spent_tenths(10_000_000, 9_499_999) == 949
    assert spent_tenths(3, 4) == 1333
    assert spent_tenths(0, 4) is None


@pytest.mark.parametrize(
    ("spent_usd_micros", "length_h", "after_ms", "expected"),
    [
        (6 * USD, 24, 6 * HOUR_MS, 24 * USD),
        (6 * USD, 23, 6 * HOUR_MS, 23 * USD),
        (USD // 10, 24, HOUR_MS // 6, 24 * USD // 10),
        (7, 24, 24 * HOUR_MS, 7),
        (7, 24, 30 * HOUR_MS, 7),
        (7, 24, -HOUR_MS, 168),
        (10, 24, 7 * HOUR_MS, 34),
        (7, 0, 0, 7),
    ],
)
def test_a_forecast_goes_on_as_the_period_began(
    spent_usd_micros: int, length_h: int, after_ms: int, expected: int
) -> None:
    """Vector 66, and days that are over, not begun or skipped."""
    assert forecast(spent_usd_micros, Span.DAY, 1_000, 1_000 + length_h * HOUR_MS, 1_000 + after_ms) == expected


def test_a_forecast_of_a_month_counts_a_day_at_least() -> None:
    assert forecast(USD, Span.MONTH, 0, 30 * DAY_MS, HOUR_MS) == 30 * USD
    assert forecast(USD, Span.MONTH, 0, 30 * DAY_MS, 10 * DAY_MS) == 3 * USD


def test_a_forecast_is_told_from_a_quarter_on() -> None:
    assert not forecast_counts(0, DAY_MS, 6 * HOUR_MS - 1)
    assert forecast_counts(0, DAY_MS, 6 * HOUR_MS)


def test_percents_that_were_reached() -> None:
    """Vectors 48, 49 and 50: what is new is told, and of several the highest."""
    told: set[tuple[int, int]] = set()

    def alerts(limit: int, *sums: int) -> list[int | None]:
        emitted: list[int | None] = []
        for total in sums:
            new = [one for one in reached_percents((100, 80), limit, total) if (one, limit) not in told]
            told.update((one, limit) for one in new)
            emitted.append(new[-1] if new else None)
        return emitted

    tenth = USD // 10
    assert alerts(10 * USD, 79 * tenth, 80 * tenth, 99 * tenth, 101 * tenth, 151 * tenth) == [None, 80, None, 100, None]
    assert alerts(20 * USD, 151 * tenth, 160 * tenth) == [None, 80]
    told.clear()
    assert alerts(10 * USD, 105 * tenth) == [100]
    assert told == {(80, 10 * USD), (100, 10 * USD)}
    assert reached_percents((80,), 0, 5) == ()


def test_the_guarantee_of_a_hard_budget_is_what_is_beyond_its_limit_already() -> None:
    standing = spent(at_start(), 6).after(LedgerChange(held=costs(3)), FIRST)
    assert guarantee(hard(day_cost=9, month_cost=20), standing).max_overshoot_usd_micros == 0
    lowered = guarantee(hard(day_cost=5), standing)
    assert (lowered.mode, lowered.max_overshoot_usd_micros) == (Enforcement.HARD, 4)
    assert "holds its priced maximum" in lowered.because


@pytest.mark.parametrize(
    ("terms", "because"),
    [
        (Terms({DAY_COST: 5}, Enforcement.SOFT), "soft"),
        (Terms({DAY_COST: 5}, Enforcement.NONE), "none"),
        (Terms({DAY_TOKENS: 5}, Enforcement.SOFT), "soft"),
        (Terms({DAY_TOKENS: 5}, Enforcement.HARD), "holds its priced maximum"),
        (Terms({DAY_TOKENS: 5}, Enforcement.HARD), "of cost, for which no limit is set"),
        (Terms({}, Enforcement.HARD), "no limit is set"),
        (Terms({}, Enforcement.SOFT), "no limit is set"),
    ],
)
def test_else_there_is_no_bound(terms: Terms, because: str) -> None:
    found = guarantee(terms, at_start())
    assert (found.mode, found.max_overshoot_usd_micros) == (terms.enforcement, None)
    assert because in found.because


def test_dimensions_have_units() -> None:
    assert [dimension.unit for dimension in Dimension] == ["usd_micros", "tokens", "executions"]
    assert [Amounts(1, 2, 3).of(dimension) for dimension in Dimension] == [1, 2, 3]
    assert DAY_EXECUTIONS.name == "day_executions"
