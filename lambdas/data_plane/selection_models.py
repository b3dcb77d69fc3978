"""Bodies and answers of selection."""

from typing import Annotated, Final

from pydantic import BaseModel, Field

from sluice.core.period import shown_day
from sluice.core.quotas import percent_tenths
from sluice.edge.models import Id, Strict
from sluice.edge.prices import PriceAnswer
from sluice.edge.problems import rfc3339
from sluice.edge.sticky import StickyAnswer
from sluice.edge.times import TIME_LENGTH_MAX, TIME_PATTERN, optional_time
from sluice.services.overrides import OverrideOfDay
from sluice.services.selection import LabelToday, Selected

REASON_MAX: Final = 512


class OverrideBody(Strict):
    entity: Id
    label: Id
    reason: Annotated[str, Field(min_length=1, max_length=REASON_MAX)]
    until: Annotated[str, Field(pattern=TIME_PATTERN, max_length=TIME_LENGTH_MAX)] | None = Field(
        default=None, description="at most the next local midnight, which it is if nothing is said"
    )


class LabelTodayAnswer(BaseModel):
    label: str
    spent_usd_micros: int
    quota_usd_micros: int
    percent: float | None = Field(description="with one decimal, cut; null of a quota of zero")
    mode: str
    defined: bool = Field(description="a label that is not defined is passed over")
    as_of: str | None = Field(description="when it was summed up; null if nothing was used today")

    @classmethod
    def of(cls, found: LabelToday) -> "LabelTodayAnswer":
        spend = found.spend
        tenths = percent_tenths(spend.spent_usd_micros, spend.quota_usd_micros)
        return cls(
            label=spend.label,
            spent_usd_micros=spend.spent_usd_micros,
            quota_usd_micros=spend.quota_usd_micros,
            percent=None if tenths is None else tenths / 10,
            mode=found.mode.value,
            defined=found.is_defined,
            as_of=optional_time(found.as_of_ms),
        )


class SelectionAnswer(BaseModel):
    entity: str = Field(description="the app, or the org, whose selection it is")
    label: str
    model_id: str | None = Field(description="null where it takes a region to know")
    reason: str = Field(description="normal, quota_exceeded, sticky or override")
    previous_label: str | None = Field(description="from where selection moved to the label")
    mode: str = Field(description="of the label: NORMAL, TIGHT or EXCEEDED")
    sticky: StickyAnswer | None = Field(description="null before selection moved today, if nobody set a label")
    labels: list[LabelTodayAnswer] = Field(description="of the ordering, those that have a quota")
    prices: PriceAnswer | None = Field(description="null where nobody knows, or where it takes a region to know")
    check_again_in_seconds: int
    day: str = Field(description="the local day")
    resets_at: str = Field(description="the next local midnight")
    as_of: str | None = Field(description="when the label was summed up; null if nothing of it was used today")

    @classmethod
    def of(cls, selected: Selected) -> "SelectionAnswer":
        return cls(
            entity=selected.entity,
            label=selected.label,
            model_id=selected.model_id,
            reason=selected.reason.value,
            previous_label=selected.previous_label,
            mode=selected.mode.value,
            sticky=StickyAnswer.of(selected.sticky),
            labels=[LabelTodayAnswer.of(found) for found in selected.labels],
            prices=None if selected.price is None else PriceAnswer.of(str(selected.model_id), selected.price),
            check_again_in_seconds=selected.check_again_in_s,
            day=shown_day(selected.day.number),
            resets_at=rfc3339(selected.day.ends_ms),
            as_of=optional_time(selected.as_of_ms),
        )


class OverrideAnswer(BaseModel):
    entity: str = Field(description="the app, or the org, whose selection it is")
    label: str
    reason: str
    until: str
    day: str = Field(description="the local day")

    @classmethod
    def of(cls, done: OverrideOfDay) -> "OverrideAnswer":
        return cls(
            entity=done.entity,
            label=done.override.label,
            reason=done.override.reason,
            until=rfc3339(done.override.until_ms),
            day=shown_day(done.day.number),
        )
