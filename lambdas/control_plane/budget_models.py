"""Bodies and answers about budgets."""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field, field_validator
from pydantic_core import PydanticCustomError

from sluice.core.budget import (
    ALERTS_MAX,
    LIMIT_MAX,
    SLOTS,
    Dimension,
    Enforcement,
    Guarantee,
    Limits,
    OwnBudget,
    Slot,
    Terms,
)
from sluice.core.budget_states import SpanState
from sluice.core.period import day_number, shown_day, shown_month
from sluice.edge.conventions import Page
from sluice.edge.models import Strict
from sluice.edge.problems import rfc3339
from sluice.edge.times import optional_time
from sluice.repository.ledger_items import Ledger
from sluice.services.budget_states import BudgetState
from sluice.services.listing import Listed

_Limit = Annotated[int, Field(ge=0, le=LIMIT_MAX)]
_Percents = Annotated[list[Annotated[int, Field(ge=1, le=100)]], Field(max_length=ALERTS_MAX)]
_UNITS: Final = {Dimension.COST: "cost_usd_micros", Dimension.TOKENS: "tokens", Dimension.EXECUTIONS: "executions"}


def _field(slot: Slot) -> str:
    return f"{slot.span.value}_{_UNITS[slot.dimension]}"


class DefaultsBody(Strict):
    """What holds for whoever asks and has nothing else. A limit that is left out is none."""

    day_cost_usd_micros: _Limit | None = None
    month_cost_usd_micros: _Limit | None = None
    day_tokens: _Limit | None = None
    month_tokens: _Limit | None = None
    day_executions: _Limit | None = None
    month_executions: _Limit | None = None
    enforcement: Literal["none", "soft", "hard"] | None = None
    alert_percents: _Percents | None = None

    @field_validator("alert_percents")
    @classmethod
    def _sorted(cls, percents: list[int] | None) -> list[int] | None:
        """In whatever order they are given, it is the same budget."""
        if percents is not None and len(set(percents)) != len(percents):
            raise PydanticCustomError("repeated", "must name each only once")
        return None if percents is None else sorted(percents)

    def to_own(self) -> OwnBudget:
        limits = {slot: getattr(self, _field(slot)) for slot in SLOTS}
        return OwnBudget(
            limits={slot: limit for slot, limit in limits.items() if limit is not None},
            enforcement=None if self.enforcement is None else Enforcement(self.enforcement),
            alert_percents=None if self.alert_percents is None else tuple(self.alert_percents),
        )


class BudgetBody(DefaultsBody):
    """What is left out is inherited from the org's defaults, unless that is switched off."""

    inherit: bool = True

    def to_own(self) -> OwnBudget:
        own = super().to_own()
        return OwnBudget(own.limits, own.enforcement, self.inherit, own.alert_percents)


class LimitsShown(BaseModel):
    """null: no limit."""

    day_cost_usd_micros: int | None
    month_cost_usd_micros: int | None
    day_tokens: int | None
    month_tokens: int | None
    day_executions: int | None
    month_executions: int | None


class DefaultsAnswer(LimitsShown):
    entity: str
    enforcement: str | None = Field(description="none, soft or hard; null: soft")
    alert_percents: list[int] | None = Field(description="null: 80 and 100")
    created_at: str
    updated_at: str

    @classmethod
    def of(cls, defaults: Ledger) -> "DefaultsAnswer":
        return cls.model_validate(
            {
                **_limits(defaults.own.limits),
                **_asked(defaults.own),
                "entity": defaults.entity,
                "created_at": rfc3339(defaults.created_at_ms),
                "updated_at": rfc3339(defaults.updated_at_ms),
            }
        )


class EffectiveTerms(LimitsShown):
    enforcement: str = Field(description="none: counts; soft: counts and tells; hard: refuses at the limit")
    alert_percents: list[int]
    source: dict[str, str] = Field(description="of each limit: own, or default for the org's defaults")

    @classmethod
    def of(cls, terms: Terms, state: BudgetState) -> "EffectiveTerms":
        return cls.model_validate(
            {
                **_limits(terms.limits),
                "enforcement": terms.enforcement.value,
                "alert_percents": list(terms.alert_percents),
                "source": {_field(slot): source for slot, source in state.sources.items()},
            }
        )


class RemainingAnswer(BaseModel):
    """Of the limit, without what is used and held; below zero where that is passed; null without a limit."""

    cost_usd_micros: int | None
    tokens: int | None
    executions: int | None


class PercentAnswer(BaseModel):
    """Of the limit, what was spent, with one decimal, cut; null without a limit, and of zero."""

    cost: float | None
    tokens: float | None
    executions: float | None


class SpanAnswer(BaseModel):
    period: str = Field(description="the local day, or yyyy-mm")
    cost_used_usd_micros: int = Field(description="with what is held")
    cost_held_usd_micros: int = Field(description="for calls that are under way")
    tokens_used: int = Field(description="with what is held")
    tokens_held: int
    executions: int = Field(description="finished calls")
    executions_held: int = Field(description="calls that are under way")
    errors: int = Field(description="finished calls that failed or timed out")
    success_rate: float = Field(description="percent of the finished calls, with one decimal, cut; 100 without any")
    remaining: RemainingAnswer
    percent: PercentAnswer
    forecast_usd_micros: int = Field(description="what was spent, if the period goes on as it began")
    resets_at: str

    @classmethod
    def of(cls, state: SpanState, shown_period: str) -> "SpanAnswer":
        return cls(
            period=shown_period,
            cost_used_usd_micros=state.used.cost_usd_micros,
            cost_held_usd_micros=state.held.cost_usd_micros,
            tokens_used=state.used.tokens,
            tokens_held=state.held.tokens,
            executions=state.executions,
            executions_held=state.held.executions,
            errors=state.errors,
            success_rate=state.success_tenths / 10,
            remaining=RemainingAnswer.model_validate(
                {unit: state.remaining.get(dimension) for dimension, unit in _UNITS.items()}
            ),
            percent=PercentAnswer.model_validate(
                {dimension.value: _percent(state.percent_tenths.get(dimension)) for dimension in Dimension}
            ),
            forecast_usd_micros=state.forecast_usd_micros,
            resets_at=rfc3339(state.resets_at_ms),
        )


class GuaranteeAnswer(BaseModel):
    mode: str = Field(description="none, soft or hard")
    max_overshoot_usd_micros: int | None = Field(
        description="by how much a period's cost may pass its limit; null: by any amount, or there is no limit"
    )
    because: str

    @classmethod
    def of(cls, found: Guarantee) -> "GuaranteeAnswer":
        return cls(
            mode=found.mode.value, max_overshoot_usd_micros=found.max_overshoot_usd_micros, because=found.because
        )


class BudgetAnswer(LimitsShown):
    """The limits, `enforcement`, `inherit` and `alert_percents` are what was asked; `effective` is what holds."""

    entity: str
    has_own: bool = Field(description="whether a budget was put for this entity; else the defaults hold, or nothing")
    enforcement: str | None = Field(description="null: inherited")
    inherit: bool
    alert_percents: list[int] | None = Field(description="null: inherited")
    effective: EffectiveTerms
    day: SpanAnswer
    month: SpanAnswer
    last_execution_at: str | None
    last_execution_status: str | None = Field(description="ok, error or timeout")
    guarantee: GuaranteeAnswer
    created_at: str | None = Field(
        description="when counting began, in some processes up to a minute later: what was spent before is not in it, "
        "nor after a refresh; null: it did not"
    )
    updated_at: str | None = Field(description="of the limits or the counters")

    @classmethod
    def of(cls, state: BudgetState) -> "BudgetAnswer":
        ledger = state.ledger
        own = OwnBudget() if ledger is None else ledger.own
        return cls.model_validate(
            {
                **_limits(own.limits),
                **_asked(own),
                "inherit": own.inherit,
                "entity": state.entity,
                "has_own": ledger is not None and ledger.has_own,
                "effective": EffectiveTerms.of(state.terms, state),
                "day": SpanAnswer.of(state.day, shown_day(day_number(state.day.period))),
                "month": SpanAnswer.of(state.month, shown_month(state.month.period)),
                "last_execution_at": None if ledger is None else optional_time(ledger.last_execution_at_ms),
                "last_execution_status": None if ledger is None else ledger.last_execution_status,
                "guarantee": GuaranteeAnswer.of(state.guarantee),
                "created_at": None if ledger is None else rfc3339(ledger.created_at_ms),
                "updated_at": None if ledger is None else rfc3339(ledger.updated_at_ms),
            }
        )


class BudgetPage(Page):
    items: list[BudgetAnswer]

    @classmethod
    def of(cls, listed: Listed[BudgetState]) -> "BudgetPage":
        return cls(items=[BudgetAnswer.of(state) for state in listed.items], next_cursor=listed.next_cursor)


def _limits(limits: Limits) -> dict[str, int | None]:
    return {_field(slot): limits.get(slot) for slot in SLOTS}


def _asked(own: OwnBudget) -> dict[str, object]:
    return {
        "enforcement": None if own.enforcement is None else own.enforcement.value,
        "alert_percents": None if own.alert_percents is None else list(own.alert_percents),
    }


def _percent(tenths: int | None) -> float | None:
    return None if tenths is None else tenths / 10
