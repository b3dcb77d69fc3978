"""Budgets: allowances of cost, tokens and executions per local day and month, and what is left of them. Pure.

A ledger counts what was used in the current day and month. `used` contains what is held for calls under way: their
priced maximum, which a settlement replaces by what they really took. So a hard limit that nobody may pass is compared
with `used`, while percentages, alerts and forecasts are about `used - held`, what was really spent.

When a period turns, what is held goes on: the new period begins with it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import product
from typing import Final, NamedTuple

from sluice.core.period import LocalDay

LIMIT_MAX: Final = 10**15
ALERTS_MAX: Final = 5
ALERT_DEFAULT_PERCENTS: Final = (80, 100)
DEFAULTS: Final = "_default_"
"""Stands for the entity in the budget of an org's defaults. No id begins with this sign."""

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS
_FORECAST_FROM_PERCENT: Final = 25


class Span(StrEnum):
    """How long an allowance is for."""

    DAY = "day"
    MONTH = "month"


class Dimension(StrEnum):
    COST = "cost"
    TOKENS = "tokens"
    EXECUTIONS = "executions"

    @property
    def unit(self) -> str:
        return "usd_micros" if self is Dimension.COST else self.value


class Enforcement(StrEnum):
    NONE = "none"
    """Counts."""
    SOFT = "soft"
    """Counts and tells."""
    HARD = "hard"
    """Refuses at the limit."""


class Slot(NamedTuple):
    """One limit of a budget."""

    span: Span
    dimension: Dimension

    @property
    def name(self) -> str:
        return f"{self.span.value}_{self.dimension.value}"


SLOTS: Final = tuple(Slot(span, dimension) for dimension, span in product(Dimension, Span))
"""In the order in which they are checked: cost of the day, cost of the month, tokens, executions."""

Limits = Mapping[Slot, int]
"""A slot that is absent has no limit."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """What a call takes of each dimension; less than nothing where it gives back."""

    cost_usd_micros: int = 0
    tokens: int = 0
    executions: int = 0

    def of(self, dimension: Dimension) -> int:
        if dimension is Dimension.COST:
            return self.cost_usd_micros
        return self.tokens if dimension is Dimension.TOKENS else self.executions

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(
            self.cost_usd_micros + other.cost_usd_micros,
            self.tokens + other.tokens,
            self.executions + other.executions,
        )

    def __sub__(self, other: "Amounts") -> "Amounts":
        return self + Amounts(-other.cost_usd_micros, -other.tokens, -other.executions)


NOTHING: Final = Amounts()


@dataclass(frozen=True, slots=True)
class OwnBudget:
    """What was asked for an entity, or as the org's defaults. None: as inherited."""

    limits: Limits = field(default_factory=dict)
    enforcement: Enforcement | None = None
    inherit: bool = True
    alert_percents: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for an entity in the end."""

    limits: Limits
    enforcement: Enforcement
    alert_percents: tuple[int, ...] = ALERT_DEFAULT_PERCENTS

    @property
    def hard_limits(self) -> Limits:
        return self.limits if self.enforcement is Enforcement.HARD else {}


class Periods(NamedTuple):
    """`yyyymmdd` and `yyyymm`: both sort as time does."""

    day: str
    month: str

    @classmethod
    def of(cls, day: LocalDay) -> "Periods":
        return cls(day.name, day.month)

    @classmethod
    def of_name(cls, day: str) -> "Periods":
        """Of a stored day."""
        return cls(day, day[:6])

    def of_span(self, span: Span) -> str:
        return self.day if span is Span.DAY else self.month


def latest(*periods: Periods) -> Periods:
    """Periods only move forward: whoever writes goes by the latest that anybody knows."""
    return max(periods)


@dataclass(frozen=True, slots=True)
class Used:
    """Counters of one span. `used` contains what is held."""

    used: Amounts = NOTHING
    errors: int = 0

    def __add__(self, other: "Used") -> "Used":
        return Used(self.used + other.used, self.errors + other.errors)


@dataclass(frozen=True, slots=True)
class Charge:
    """What calls of some periods really took. `errors`: how many of them were not ok."""

    periods: Periods
    amounts: Amounts
    errors: int = 0


@dataclass(frozen=True, slots=True)
class LedgerChange:
    """What one write does to a ledger, whatever its periods are.

    `held`: is added to what is held, and with it to what is used, in whatever period; less than nothing frees it.
    `charges`: each counts in those spans whose period is its own, so a late one may count nowhere.
    """

    held: Amounts = NOTHING
    charges: tuple[Charge, ...] = ()
    last_execution_at_ms: int | None = None
    last_execution_status: str | None = None

    def periods_from(self, *known: Periods) -> Periods:
        """In which periods a ledger is after this change: the latest that anybody knows of."""
        return latest(*known, *(charge.periods for charge in self.charges))

    def added(self, span: Span, to: Periods) -> Used:
        """To the counters of a span, in these periods."""
        amounts, errors = self.held, 0
        for charge in self.charges:
            if charge.periods.of_span(span) == to.of_span(span):
                amounts += charge.amounts
                errors += charge.errors
        return Used(amounts, errors)


@dataclass(frozen=True, slots=True)
class Standing:
    """The counters of a ledger, and the periods that they belong to."""

    periods: Periods
    day: Used
    month: Used
    held: Amounts

    def of(self, span: Span) -> Used:
        return self.day if span is Span.DAY else self.month

    def spent(self, span: Span) -> Amounts:
        """Without what is held for calls that are under way."""
        return self.of(span).used - self.held

    def at(self, periods: Periods) -> "Standing":
        """As it reads in these periods, or in its own where those are earlier."""
        to = latest(self.periods, periods)
        carried = Used(self.held)
        return replace(
            self,
            periods=to,
            day=self.day if to.day == self.periods.day else carried,
            month=self.month if to.month == self.periods.month else carried,
        )

    def after(self, change: LedgerChange, present: Periods) -> "Standing":
        """As one write leaves it."""
        turned = self.at(change.periods_from(present))
        return replace(
            turned,
            day=turned.day + change.added(Span.DAY, turned.periods),
            month=turned.month + change.added(Span.MONTH, turned.periods),
            held=turned.held + change.held,
        )


def empty_standing(periods: Periods) -> Standing:
    return Standing(periods, Used(), Used(), NOTHING)


@dataclass(frozen=True, slots=True)
class Violation:
    """A hard limit that has no room for what was asked."""

    slot: Slot
    limit: int
    used: int
    held: int
    requested: int


def effective_terms(own: OwnBudget | None, defaults: OwnBudget | None) -> Terms:
    """What is left out comes from the defaults, unless that is switched off."""
    mine = own or OwnBudget()
    inherited = defaults if defaults is not None and mine.inherit else OwnBudget()
    percents = mine.alert_percents if mine.alert_percents is not None else inherited.alert_percents
    return Terms(
        limits={**inherited.limits, **mine.limits},
        enforcement=mine.enforcement or inherited.enforcement or Enforcement.SOFT,
        alert_percents=ALERT_DEFAULT_PERCENTS if percents is None else percents,
    )


def most_used_before(limit: int, amount: int) -> int:
    """How much may be used at most before that amount is taken. At the limit nothing is admitted, not even nothing."""
    return limit - max(amount, 1)


def violations(terms: Terms, standing: Standing, amounts: Amounts) -> tuple[Violation, ...]:
    """Every hard limit that is in the way, in the order of the checks. The standing is one of the present periods."""
    found = []
    for slot in SLOTS:
        limit = terms.hard_limits.get(slot)
        if limit is None:
            continue
        used, requested = standing.of(slot.span).used.of(slot.dimension), amounts.of(slot.dimension)
        if used > most_used_before(limit, requested):
            found.append(Violation(slot, limit, used, standing.held.of(slot.dimension), requested))
    return tuple(found)


def never_fits(violation: Violation) -> bool:
    """Whether waiting for the next period does not help."""
    return violation.requested > violation.limit or violation.limit == 0


def remaining(limit: int, used: int) -> int:
    """Less than nothing where a limit was lowered, or an actual was above its estimate."""
    return limit - used


def spent_tenths(limit: int, spent: int) -> int | None:
    """Tenths of a percent, cut. None for a limit of zero."""
    return spent * 1000 // limit if limit else None


def reached_percents(percents: Iterable[int], limit: int, spent: int) -> tuple[int, ...]:
    """Those of a limit that were reached, the lowest first. There are none of a limit of zero."""
    return tuple(percent for percent in sorted(percents) if limit and spent * 100 >= limit * percent)


def success_tenths(executions: int, errors: int) -> int:
    """Tenths of a percent, cut. Who did nothing did nothing wrong."""
    return (executions - errors) * 1000 // executions if executions else 1000


def forecast(spent: int, span: Span, starts_ms: int, ends_ms: int, now_ms: int) -> int:
    """What it comes to if it goes on like this. The first hour of a day, or day of a month, says too little."""
    least_ms = _HOUR_MS if span is Span.DAY else _DAY_MS
    # A day that clocks jump over has no length at all.
    length_ms = max(ends_ms - starts_ms, 1)
    elapsed_ms = min(max(now_ms - starts_ms, least_ms), length_ms)
    return spent * length_ms // elapsed_ms


def forecast_counts(starts_ms: int, ends_ms: int, now_ms: int) -> bool:
    """Whether enough of the period is over to tell somebody."""
    return (now_ms - starts_ms) * 100 >= (ends_ms - starts_ms) * _FORECAST_FROM_PERCENT


@dataclass(frozen=True, slots=True)
class Guarantee:
    """By how much the cost of a period may pass its limit, and why. None: by any amount, or there is no limit."""

    mode: Enforcement
    max_overshoot_usd_micros: int | None
    because: str


_WITHOUT_LIMIT: Final = "no limit is set, so there is nothing to pass"
_COUNTED_ONLY: Final = "enforcement is none: calls are counted and never refused"
_TOLD_ONLY: Final = "enforcement is soft: alerts are sent, and calls are never refused"
_HELD_FIRST: Final = (
    "enforcement is hard: a call holds its priced maximum before it starts, and is refused where that does not fit. "
    "Only these pass the limit: what was used or held beyond it when it was lowered or the period began; an actual "
    "above its estimate; usage without a lease, a second event on one, and a report after its hold was released or "
    "expired; calls that were under way when the limit was set, became hard or the entity came to stand below it, "
    "or that began within the minute in which a changed default, a budget that is the first or became hard, or a move "
    "becomes known everywhere; and, if on_unavailable is allow, calls let through while the table did not answer, by "
    "who knew of no hard limit in the hour before"
)
_IN_OTHER_UNITS: Final = "; the bound is of cost, for which no limit is set"


def guarantee(terms: Terms, standing: Standing) -> Guarantee:
    """What is promised about the periods of this standing. What passes a limit already, with what is held, stays."""
    if not terms.limits:
        return Guarantee(terms.enforcement, None, _WITHOUT_LIMIT)
    if terms.enforcement is not Enforcement.HARD:
        because = _COUNTED_ONLY if terms.enforcement is Enforcement.NONE else _TOLD_ONLY
        return Guarantee(terms.enforcement, None, because)
    limits = {slot.span: limit for slot, limit in terms.limits.items() if slot.dimension is Dimension.COST}
    if not limits:
        return Guarantee(terms.enforcement, None, _HELD_FIRST + _IN_OTHER_UNITS)
    beyond = (standing.of(span).used.cost_usd_micros - limit for span, limit in limits.items())
    return Guarantee(terms.enforcement, max(0, *beyond), _HELD_FIRST)
