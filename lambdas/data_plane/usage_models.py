"""Bodies and answers about usage."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, ValidationError, ValidatorFunctionWrapHandler, WithJsonSchema, WrapValidator

from sluice.core.lease import Lease
from sluice.core.metering import BATCH_MAX, TAG_NAME_MAX, TAG_VALUE_MAX, TAGS_MAX, CallStatus, Counters
from sluice.core.period import day_number, shown_day
from sluice.core.pricing import Pricing, TokenKind
from sluice.core.reports import UsageReport
from sluice.edge.documentation import PROBLEM_SCHEMA
from sluice.edge.models import REGION_PATTERN, Amount, Id, ModelId, Strict
from sluice.edge.problems import Problem, rfc3339
from sluice.edge.times import TIME_LENGTH_MAX, TIME_PATTERN, time_ms
from sluice.services.metering import Counted
from sluice.services.spending import Quota, Spending

REQUEST_ID_PATTERN: Final = r"^[ -~]{1,128}$"

TagName = Annotated[str, Field(min_length=1, max_length=TAG_NAME_MAX)]
TagValue = Annotated[str, Field(max_length=TAG_VALUE_MAX)]


class CallBody(Strict):
    """One finished call. Either `label` or `model_id` says of which model."""

    request_id: Annotated[str, Field(pattern=REQUEST_ID_PATTERN, max_length=128)]
    entity: Id | None = Field(default=None, description="the lease's if none is named, and without a lease your own")
    label: Id | None = None
    model_id: ModelId | None = None
    region: Annotated[str, Field(pattern=REGION_PATTERN, max_length=64)] | None = None
    input_tokens: Amount = Field(description="without those that were read from a cache or written to one")
    output_tokens: Amount
    cache_read_tokens: Amount = 0
    cache_write_tokens: Amount = Field(default=0, description="for five minutes")
    cache_write_1h_tokens: Amount = 0
    pricing: Literal["standard", "batch"] = "standard"
    status: Literal["ok", "error", "timeout"]
    occurred_at: Annotated[str, Field(pattern=TIME_PATTERN, max_length=TIME_LENGTH_MAX)] | None = Field(
        default=None,
        description="when the call was, fixed at your first attempt: without it a repeat is known for an hour only",
    )
    tags: Annotated[dict[TagName, TagValue], Field(max_length=TAGS_MAX)] = Field(default_factory=dict)

    def to_report(self, lease: Lease | None) -> UsageReport:
        return UsageReport(
            request_id=self.request_id,
            status=CallStatus(self.status),
            tokens={
                TokenKind.INPUT: self.input_tokens,
                TokenKind.OUTPUT: self.output_tokens,
                TokenKind.CACHE_READ: self.cache_read_tokens,
                TokenKind.CACHE_WRITE: self.cache_write_tokens,
                TokenKind.CACHE_WRITE_1H: self.cache_write_1h_tokens,
            },
            label=self.label,
            model_id=self.model_id,
            entity=self.entity,
            region=self.region,
            pricing=Pricing(self.pricing),
            occurred_at_ms=None if self.occurred_at is None else time_ms("occurred_at", self.occurred_at),
            tags=self.tags,
            lease=lease,
        )


class UsageBody(CallBody):
    """One finished call. Either `label` or `model_id` says of which model."""

    lease: str | None = Field(
        default=None,
        description="of the acquire: it is closed with what it took. Part of the report: send it with every attempt",
    )


class MalformedEvent:
    """An object that is no event. It fails alone: the others of its batch are judged all the same."""

    def __init__(self, request_id: Any, errors: Sequence[Any]) -> None:
        self.request_id = request_id
        # As if it had been sent alone.
        self.errors = [{**error, "loc": ("body", *error["loc"])} for error in errors]


def _each_on_its_own(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    try:
        return check(value)
    except ValidationError as error:
        if not isinstance(value, dict):
            raise
        return MalformedEvent(value.get("request_id"), error.errors(include_url=False, include_input=False))


class UsageBatchBody(Strict):
    events: Annotated[
        list[Annotated[UsageBody, WrapValidator(_each_on_its_own)]], Field(min_length=1, max_length=BATCH_MAX)
    ]


class SpendingAnswer(BaseModel):
    """What the app used of the label that day, or the whole org where quotas are the org's."""

    cost_usd_micros: int
    requests: int
    errors: int
    unpriced: int = Field(description="requests whose cost nobody knows")
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cache_write_1h_tokens: int
    as_of: str | None = Field(description="when it was summed up, mostly without this call; null before the first time")

    @classmethod
    def of(cls, spending: Spending) -> "SpendingAnswer":
        counters: Counters = spending.counters
        return cls(
            cost_usd_micros=counters.cost_usd_micros,
            requests=counters.requests,
            errors=counters.errors,
            unpriced=counters.unpriced,
            input_tokens=counters.tokens.get(TokenKind.INPUT, 0),
            output_tokens=counters.tokens.get(TokenKind.OUTPUT, 0),
            cache_read_tokens=counters.tokens.get(TokenKind.CACHE_READ, 0),
            cache_write_tokens=counters.tokens.get(TokenKind.CACHE_WRITE, 0),
            cache_write_1h_tokens=counters.tokens.get(TokenKind.CACHE_WRITE_1H, 0),
            as_of=None if spending.as_of_ms is None else rfc3339(spending.as_of_ms),
        )


class QuotaAnswer(BaseModel):
    limit_usd_micros: int
    percent: float | None = Field(description="with one decimal, cut; null of a quota of zero")
    mode: str = Field(description="NORMAL, TIGHT or EXCEEDED")

    @classmethod
    def of(cls, quota: Quota) -> "QuotaAnswer":
        percent = None if quota.percent_tenths is None else quota.percent_tenths / 10
        return cls(limit_usd_micros=quota.limit_usd_micros, percent=percent, mode=quota.mode.value)


class UsageAnswer(BaseModel):
    request_id: str
    cost_usd_micros: int | None = Field(description="null where nobody knows the price")
    price_id: str | None
    duplicate: bool = Field(description="it was counted before, and nothing was changed now")
    day: str = Field(description="the local day that it is counted on")
    total: SpendingAnswer | None = Field(description="null while it can not be read: the call is counted all the same")
    quota: QuotaAnswer | None = Field(description="of the label; null if it has none")

    @classmethod
    def of(cls, counted: Counted) -> "UsageAnswer":
        return cls(**_shown(counted))


class CountedResult(UsageAnswer):
    status: Literal[202] = 202

    @classmethod
    def of(cls, counted: Counted) -> "CountedResult":
        return cls(**_shown(counted))


class FailedResult(BaseModel):
    request_id: str | None = Field(description="null where the event names none")
    status: int
    problem: Annotated[dict[str, Any], WithJsonSchema(PROBLEM_SCHEMA)] = Field(description="as of a single report")

    @classmethod
    def of(cls, request_id: str | None, problem: Problem, asked_as: str) -> "FailedResult":
        return cls(request_id=request_id, status=problem.status.value, problem=problem.document(asked_as))


class UsageBatchAnswer(BaseModel):
    accepted: int = Field(description="duplicates are among them")
    duplicates: int
    failed: int
    results: list[CountedResult | FailedResult] = Field(description="one for each event, in their order")

    @classmethod
    def of(cls, results: Sequence[CountedResult | FailedResult]) -> "UsageBatchAnswer":
        counted = [result for result in results if isinstance(result, CountedResult)]
        return cls(
            accepted=len(counted),
            duplicates=sum(result.duplicate for result in counted),
            failed=len(results) - len(counted),
            results=list(results),
        )


def _shown(counted: Counted) -> dict[str, Any]:
    event, spending = counted.event, counted.spending
    quota = None if spending is None else spending.quota
    return {
        "request_id": event.request_id,
        "cost_usd_micros": event.cost_usd_micros,
        "price_id": event.price_id,
        "duplicate": counted.duplicate,
        "day": shown_day(day_number(event.day)),
        "total": None if spending is None else SpendingAnswer.of(spending),
        "quota": None if quota is None else QuotaAnswer.of(quota),
    }
