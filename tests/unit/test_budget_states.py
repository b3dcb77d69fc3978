"""What people see of a budget, and what a refused caller is told."""

from sluice.core.audit import budget_subject, budget_target
from sluice.core.budget import (
    DEFAULTS,
    Amounts,
    Charge,
    Dimension,
    Enforcement,
    LedgerChange,
    Periods,
    Slot,
    Span,
    Standing,
    Terms,
    Used,
    violations,
)
from sluice.core.budget_states import refusal, span_state
from sluice.core.errors import BudgetExceeded, BudgetViolation, NeverWithinBudget, Remedy, ReserveRequired
from sluice.core.period import LocalDay, LocalMonth, day_number

HOUR_MS = 3_600_000
DAY = LocalDay(day_number("20260131"), 0, 24 * HOUR_MS)
MONTH = LocalMonth("202601", -30 * 24 * HOUR_MS, 24 * HOUR_MS)
TODAY = Periods.of(DAY)
LIMITS = {
    Slot(Span.DAY, Dimension.COST): 100,
    Slot(Span.MONTH, Dimension.COST): 1_000,
    Slot(Span.DAY, Dimension.TOKENS): 0,
    Slot(Span.DAY, Dimension.EXECUTIONS): 4,
}
HARD = Terms(LIMITS, Enforcement.HARD)


def standing() -> Standing:
    empty = Standing(TODAY, Used(), Used(), Amounts())
    charges = (Charge(TODAY, Amounts(60, 7, 3), 1), Charge(Periods.of_name("20260101"), Amounts(500, 5, 1)))
    return empty.after(LedgerChange(Amounts(30, 9, 1), charges), TODAY)


def test_a_day_shows_what_is_used_held_and_left() -> None:
    day = span_state(HARD, standing(), Span.DAY, DAY, 12 * HOUR_MS)
    assert (day.period, day.resets_at_ms) == ("20260131", 24 * HOUR_MS)
    assert day.used == Amounts(90, 16, 4)
    assert (day.executions, day.errors, day.success_tenths) == (3, 1, 666)
    assert day.remaining == {Dimension.COST: 10, Dimension.TOKENS: -16, Dimension.EXECUTIONS: 0}
    assert day.percent_tenths == {Dimension.COST: 600, Dimension.TOKENS: None, Dimension.EXECUTIONS: 750}
    assert day.forecast_usd_micros == 120


def test_a_month_shows_its_own() -> None:
    month = span_state(HARD, standing(), Span.MONTH, MONTH, -15 * 24 * HOUR_MS)
    assert month.period == "202601"
    assert (month.used.cost_usd_micros, month.remaining) == (590, {Dimension.COST: 410})
    assert month.percent_tenths == {Dimension.COST: 560}
    assert month.forecast_usd_micros == 560 * 31 // 15


def test_a_refusal_tells_of_every_violation_and_the_latest_reset() -> None:
    open_tokens = Terms({slot: limit for slot, limit in LIMITS.items() if limit}, Enforcement.HARD)
    found = [("user-1", one) for one in violations(open_tokens, standing(), Amounts(11, 5, 1))]
    month = Terms({Slot(Span.MONTH, Dimension.COST): 600}, Enforcement.HARD)
    above = [("app-1", one) for one in violations(month, standing(), Amounts(11, 5, 1))]
    remedy = Remedy("max_output_tokens", 17)
    refused = refusal([*found, *above], {Span.DAY: 5, Span.MONTH: 9}, [remedy])
    assert isinstance(refused, BudgetExceeded)
    assert refused.violations == (
        BudgetViolation("user-1", "day", "cost", 100, 90, 30, 11, "usd_micros"),
        BudgetViolation("user-1", "day", "executions", 4, 4, 1, 1, "executions"),
        BudgetViolation("app-1", "month", "cost", 600, 590, 30, 11, "usd_micros"),
    )
    assert (refused.resets_at_ms, refused.remedies) == (9, (remedy,))
    only_day = refusal(found, {Span.DAY: 5, Span.MONTH: 9})
    assert isinstance(only_day, BudgetExceeded)
    assert only_day.resets_at_ms == 5


def test_what_waiting_does_not_cure_is_told_first() -> None:
    found = [("user-1", one) for one in violations(HARD, standing(), Amounts(11, 5, 1))]
    refused = refusal(found, {Span.DAY: 5, Span.MONTH: 9})
    assert isinstance(refused, NeverWithinBudget)
    assert refused.violations == (BudgetViolation("user-1", "day", "tokens", 0, 16, 9, 5, "tokens"),)
    assert str(refused) == "5 tokens can never be admitted: the day's limit of user-1 is 0"


def test_a_missing_reserve_names_what_is_missing() -> None:
    missing = ReserveRequired(["cost", "tokens"])
    assert missing.dimensions == ("cost", "tokens")
    assert "cost, tokens" in str(missing)


def test_defaults_are_audited_with_the_system() -> None:
    assert (budget_subject("user-1"), budget_target("user-1")) == ("user-1", "budgets/user-1")
    assert (budget_subject(DEFAULTS), budget_target(DEFAULTS)) == ("$SYSTEM", "budgets/_default_")
