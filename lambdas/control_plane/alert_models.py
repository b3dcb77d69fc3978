"""Answers about alerts of budgets."""

from pydantic import BaseModel, Field

from sluice.core.alerts import Alert
from sluice.core.budget import Span
from sluice.core.period import day_number, shown_day, shown_month
from sluice.edge.conventions import Page
from sluice.edge.times import optional_time
from sluice.services.listing import Listed


class AlertAnswer(BaseModel):
    type: str = Field(description="budget.soft_cap, budget.hard_cap or budget.forecast")
    period: str = Field(description="a day or a month of the org")
    dimension: str = Field(description="cost, tokens or executions")
    unit: str
    percent: int | None = Field(description="which was reached; null for a refusal and for a forecast")
    limit: int
    used: int = Field(description="without what is held for calls under way; of a forecast: what it comes to")
    silent: bool = Field(description="reached together with a higher percentage, of which alone somebody was told")
    at: str | None

    @classmethod
    def of(cls, alert: Alert) -> "AlertAnswer":
        is_day = alert.slot.span is Span.DAY
        return cls(
            type=alert.detail_type,
            period=shown_day(day_number(alert.period)) if is_day else shown_month(alert.period),
            dimension=alert.slot.dimension.value,
            unit=alert.slot.dimension.unit,
            percent=int(alert.percent) if alert.percent.isdecimal() else None,
            limit=alert.limit,
            used=alert.used,
            silent=alert.silent,
            at=optional_time(alert.at_ms),
        )


class AlertPage(Page):
    items: list[AlertAnswer]

    @classmethod
    def of(cls, listed: Listed[Alert]) -> "AlertPage":
        return cls(items=[AlertAnswer.of(alert) for alert in listed.items], next_cursor=listed.next_cursor)
