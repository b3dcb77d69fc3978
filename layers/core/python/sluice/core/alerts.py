"""What is worth telling about a budget: a percentage that was reached, a refusal, a forecast above the limit. Pure.

An alert is known by the ledger of an entity, the period, dimension, percentage and the value of the limit, so it is
told once; another limit in the same period is another alert, and so is that of an entity that was made anew.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from sluice.core.budget import (
    Enforcement,
    Slot,
    Standing,
    Terms,
    forecast,
    forecast_counts,
    reached_percents,
)
from sluice.core.period import LocalDay, LocalMonth

HARD: Final = "hard"
FORECAST: Final = "forecast"


class Whose(NamedTuple):
    """`first_epoch`: tells the ledger from any that the entity had before."""

    namespace: str
    entity: str
    first_epoch: int


@dataclass(frozen=True, slots=True)
class Alert:
    """`period`: as it is stored. `percent`: a number, HARD or FORECAST. `used`: what was really spent, or forecast.

    `at_ms`: when it was marked. `silent`: a higher one of the same limit was reached at the same time and tells enough.
    """

    whose: Whose
    period: str
    slot: Slot
    percent: str
    limit: int
    used: int
    silent: bool = False
    at_ms: int | None = None

    @property
    def namespace(self) -> str:
        return self.whose.namespace

    @property
    def entity(self) -> str:
        return self.whose.entity

    @property
    def detail_type(self) -> str:
        if self.percent == HARD:
            return "budget.hard_cap"
        return "budget.forecast" if self.percent == FORECAST else "budget.soft_cap"


def reached(whose: Whose, terms: Terms, standing: Standing) -> list[Alert]:
    """The percentages of each limit that were reached in the periods of the standing."""
    if terms.enforcement is Enforcement.NONE:
        return []
    found = []
    for slot, limit in terms.limits.items():
        spent = standing.spent(slot.span).of(slot.dimension)
        percents = reached_percents(terms.alert_percents, limit, spent)
        period = standing.periods.of_span(slot.span)
        found += [
            Alert(whose, period, slot, str(percent), limit, spent, silent=percent != percents[-1])
            for percent in percents
        ]
    return found


def foreseen(whose: Whose, terms: Terms, standing: Standing, period: LocalDay | LocalMonth, now_ms: int) -> list[Alert]:
    """The limits that would be passed by the end of this period, which must be one of the standing, and are not yet."""
    if terms.enforcement is Enforcement.NONE or not forecast_counts(period.starts_ms, period.ends_ms, now_ms):
        return []
    found = []
    for slot, limit in terms.limits.items():
        if standing.periods.of_span(slot.span) != period.name:
            continue
        spent = standing.spent(slot.span).of(slot.dimension)
        expected = forecast(spent, slot.span, period.starts_ms, period.ends_ms, now_ms)
        if spent < limit < expected:
            found.append(Alert(whose, period.name, slot, FORECAST, limit, expected))
    return found
