"""Answers about what was used: sums by day, label and month, and single events."""

from collections.abc import Mapping

from pydantic import BaseModel, Field

from sluice.core.metering import Counters, cache_hit_tenths
from sluice.core.period import shown_day
from sluice.core.pricing import TokenKind
from sluice.edge.conventions import Page
from sluice.edge.models import Id, Strict
from sluice.edge.problems import rfc3339
from sluice.edge.sticky import StickyAnswer
from sluice.edge.times import optional_time
from sluice.repository.events import UsageEvent
from sluice.services.aggregates import Aggregate, DayUsed, LabelUsed
from sluice.services.listing import Listed


class TokensAnswer(BaseModel):
    input_tokens: int = Field(description="without what was read from a cache or written to one")
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cache_write_1h_tokens: int


class SumsAnswer(TokensAnswer):
    cost_usd_micros: int = Field(description="of the calls whose price was known")
    cache_hit_percent: float | None = Field(description="of the context, with one decimal, cut; null without any")
    requests: int
    errors: int = Field(description="calls that failed or timed out")
    unpriced: int = Field(description="calls whose price nobody knew")

    @classmethod
    def of_counters(cls, counters: Counters) -> "SumsAnswer":
        return cls.model_validate(_sums(counters))


class LabelUsedAnswer(SumsAnswer):
    label: str = Field(description="or the model id, where no label stands for it")
    quota_usd_micros: int | None = Field(
        description="as it is now; null without one, and while quotas are compared with other totals than these"
    )
    percent: float | None = Field(description="of the quota, with one decimal, cut; null without one, and of zero")
    mode: str | None = Field(description="NORMAL, TIGHT or EXCEEDED; null without a quota")

    @classmethod
    def of(cls, used: LabelUsed) -> "LabelUsedAnswer":
        return cls.model_validate(
            {
                **_sums(used.counters),
                "label": used.label,
                "quota_usd_micros": used.quota_usd_micros,
                "percent": _shown_percent(used.percent_tenths),
                "mode": None if used.mode is None else used.mode.value,
            }
        )


class DayUsedAnswer(BaseModel):
    day: str = Field(description="the local day")
    labels: list[LabelUsedAnswer] = Field(description="by name; today also those that have a quota and no use yet")
    total: SumsAnswer
    sticky: StickyAnswer | None = Field(description="of today, if selection moved or somebody set a label")

    @classmethod
    def of(cls, used: DayUsed) -> "DayUsedAnswer":
        return cls(
            day=shown_day(used.day),
            labels=[LabelUsedAnswer.of(label) for label in used.labels],
            total=SumsAnswer.of_counters(used.total),
            sticky=None if used.sticky is None else StickyAnswer.of(used.sticky),
        )


class MonthUsedAnswer(SumsAnswer):
    month: str = Field(description="yyyy-mm; only its days that were asked for are in the sums")

    @classmethod
    def of(cls, month: str, counters: Counters) -> "MonthUsedAnswer":
        return cls.model_validate({**_sums(counters), "month": f"{month[:-2]}-{month[-2:]}"})


class AggregateAnswer(BaseModel):
    entity: str
    timezone: str = Field(description="whose days these are")
    days: list[DayUsedAnswer]
    months: list[MonthUsedAnswer]
    total: SumsAnswer
    updated_at: str | None = Field(description="when the latest of these sums was made; null if there is none")

    @classmethod
    def of(cls, found: Aggregate) -> "AggregateAnswer":
        return cls(
            entity=found.entity,
            timezone=found.zone,
            days=[DayUsedAnswer.of(day) for day in found.days],
            months=[MonthUsedAnswer.of(month, counters) for month, counters in found.months.items()],
            total=SumsAnswer.of_counters(found.total),
            updated_at=optional_time(found.updated_at_ms),
        )


class RollupBody(Strict):
    entity: Id = Field(description="an app or the org")


class EventAnswer(TokensAnswer):
    request_id: str
    entity: str
    app: str | None = Field(description="for which it was counted; null: for the org alone")
    label: str = Field(description="what it was counted under")
    model_id: str
    region: str | None
    status: str = Field(description="ok, error or timeout")
    pricing: str = Field(description="standard or batch")
    cost_usd_micros: int | None = Field(description="null where nobody knew the price")
    price_id: str | None
    occurred_at: str
    received_at: str
    tags: dict[str, str]
    lease_id: str | None

    @classmethod
    def of(cls, event: UsageEvent) -> "EventAnswer":
        return cls.model_validate(
            {
                **_tokens(event.tokens),
                "request_id": event.request_id,
                "entity": event.entity,
                "app": event.app,
                "label": event.label,
                "model_id": event.model_id,
                "region": event.region,
                "status": event.status.value,
                "pricing": event.pricing.value,
                "cost_usd_micros": event.cost_usd_micros,
                "price_id": event.price_id,
                "occurred_at": rfc3339(event.occurred_at_ms),
                "received_at": rfc3339(event.received_at_ms),
                "tags": dict(event.tags),
                "lease_id": event.lease_id,
            }
        )


class EventPage(Page):
    items: list[EventAnswer]

    @classmethod
    def of(cls, listed: Listed[UsageEvent]) -> "EventPage":
        return cls(items=[EventAnswer.of(event) for event in listed.items], next_cursor=listed.next_cursor)


def _sums(counters: Counters) -> dict[str, object]:
    return {
        **_tokens(counters.tokens),
        "cost_usd_micros": counters.cost_usd_micros,
        "cache_hit_percent": _shown_percent(cache_hit_tenths(counters.tokens)),
        "requests": counters.requests,
        "errors": counters.errors,
        "unpriced": counters.unpriced,
    }


def _tokens(tokens: Mapping[TokenKind, int]) -> dict[str, int]:
    return {f"{kind.value}_tokens": tokens.get(kind, 0) for kind in TokenKind}


def _shown_percent(tenths: int | None) -> float | None:
    return None if tenths is None else tenths / 10
