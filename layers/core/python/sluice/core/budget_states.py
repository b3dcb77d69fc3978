"""Budgets as people see them: what is left of each limit, how it goes on, and when it begins again. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.core.budget import (
    Amounts,
    Dimension,
    Slot,
    Span,
    Standing,
    Terms,
    Violation,
    forecast,
    never_fits,
    remaining,
    spent_tenths,
    success_tenths,
)
from sluice.core.errors import BudgetExceeded, BudgetViolation, NeverWithinBudget, Remedy
from sluice.core.period import LocalDay, LocalMonth


@dataclass(frozen=True, slots=True)
class SpanState:
    """`used` contains what is held; percentages, the forecast and executions are of what was really spent.

    `period`: as it is stored.
    `remaining`, `percent_tenths`: of the dimensions with a limit; None where that is zero.
    """

    period: str
    used: Amounts
    held: Amounts
    executions: int
    errors: int
    success_tenths: int
    remaining: Mapping[Dimension, int]
    percent_tenths: Mapping[Dimension, int | None]
    forecast_usd_micros: int
    resets_at_ms: int


def span_state(terms: Terms, standing: Standing, span: Span, period: LocalDay | LocalMonth, now_ms: int) -> SpanState:
    """`period`: the one of the standing."""
    used, spent = standing.of(span), standing.spent(span)
    limits = {
        dimension: limit for dimension in Dimension if (limit := terms.limits.get(Slot(span, dimension))) is not None
    }
    return SpanState(
        period=period.name,
        used=used.used,
        held=standing.held,
        executions=spent.executions,
        errors=used.errors,
        success_tenths=success_tenths(spent.executions, used.errors),
        remaining={dimension: remaining(limit, used.used.of(dimension)) for dimension, limit in limits.items()},
        percent_tenths={dimension: spent_tenths(limit, spent.of(dimension)) for dimension, limit in limits.items()},
        forecast_usd_micros=forecast(spent.cost_usd_micros, span, period.starts_ms, period.ends_ms, now_ms),
        resets_at_ms=period.ends_ms,
    )


def refusal(
    found: Sequence[tuple[str, Violation]], resets_at_ms: Mapping[Span, int], remedies: Sequence[Remedy] = ()
) -> BudgetExceeded | NeverWithinBudget:
    """Of all violations, each with its entity, in the order of the chain. What waiting does not cure comes first."""
    hopeless = [_told(entity, violation) for entity, violation in found if never_fits(violation)]
    if hopeless:
        return NeverWithinBudget(hopeless, remedies)
    latest_ms = max(resets_at_ms[violation.slot.span] for _, violation in found)
    return BudgetExceeded([_told(entity, violation) for entity, violation in found], latest_ms, remedies)


def _told(entity: str, violation: Violation) -> BudgetViolation:
    slot = violation.slot
    return BudgetViolation(
        entity=entity,
        period=slot.span.value,
        dimension=slot.dimension.value,
        limit=violation.limit,
        used=violation.used,
        held=violation.held,
        requested=violation.requested,
        unit=slot.dimension.unit,
    )
