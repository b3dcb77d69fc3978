"""Bodies and answers of the data plane."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, Field

from data_plane.usage_models import CallBody, UsageAnswer
from sluice.core.admission import Admission
from sluice.core.budget import LIMIT_MAX
from sluice.core.errors import InvalidRequest
from sluice.core.holds import Hold
from sluice.core.lease import LEASE_DEFAULT_MS, LEASE_LEAST_MS, LEASE_MAX_MS, Lease
from sluice.core.levels import Level
from sluice.core.limits import AMOUNT_MAX
from sluice.core.reserves import AmountReserve, ModelReserve, Reserve, check_reserve
from sluice.edge.models import (
    REGION_PATTERN,
    Amount,
    AtMostTen,
    Id,
    LimitBody,
    LimitName,
    ModelId,
    OneToTen,
    Strict,
)
from sluice.edge.problems import rfc3339
from sluice.services.hold_explain import BudgetCheck, Explained
from sluice.services.leases import Changed
from sluice.services.metering import Counted

TtlSeconds = Annotated[int, Field(ge=LEASE_LEAST_MS // 1000, le=LEASE_MAX_MS // 1000)]
Difference = Annotated[int, Field(ge=-AMOUNT_MAX, le=AMOUNT_MAX)]


class ReserveBody(Strict):
    """Either the model and the tokens, and it is priced by them, or the amounts."""

    label: Id | None = Field(default=None, description="this or `model_id`, with both numbers of tokens")
    model_id: ModelId | None = None
    input_tokens: Amount | None = None
    max_output_tokens: Amount | None = None
    region: Annotated[str, Field(pattern=REGION_PATTERN, max_length=64)] | None = None
    cost_usd_micros: Annotated[int, Field(ge=0, le=LIMIT_MAX)] | None = Field(
        default=None, description="instead of a model"
    )
    tokens: Amount | None = Field(default=None, description="beside the cost, needed where a hard budget limits tokens")

    def to_reserve(self) -> Reserve:
        """Raises InvalidRequest for what does not belong together."""
        if self.cost_usd_micros is not None:
            for name in ("label", "model_id", "input_tokens", "max_output_tokens", "region"):
                if getattr(self, name) is not None:
                    raise InvalidRequest(f"reserve.{name}", "does not belong to a reserve of amounts")
            return AmountReserve(self.cost_usd_micros, self.tokens)
        if self.tokens is not None:
            raise InvalidRequest("reserve.tokens", "belongs to a reserve with cost_usd_micros")
        if self.input_tokens is None or self.max_output_tokens is None:
            raise InvalidRequest("reserve", "needs input_tokens and max_output_tokens, or cost_usd_micros")
        reserve = ModelReserve(self.input_tokens, self.max_output_tokens, self.label, self.model_id, self.region)
        check_reserve(reserve)
        return reserve


class AcquireBody(Strict):
    entity: Id
    resource: Id
    consume: Annotated[dict[LimitName, Amount], AtMostTen] = Field(description="may be empty with `reserve` only")
    reserve: ReserveBody | None = Field(
        default=None, description="what the call takes at most: needed where a hard budget limits cost or tokens"
    )
    limits: Annotated[dict[LimitName, LimitBody], OneToTen] | None = None
    ttl_seconds: TtlSeconds = LEASE_DEFAULT_MS // 1000

    def to_reserve(self) -> Reserve | None:
        """Raises InvalidRequest for what the fields alone do not say."""
        if not self.consume and self.reserve is None:
            raise InvalidRequest("consume", "names at least one limit, unless reserve is given")
        return None if self.reserve is None else self.reserve.to_reserve()


class SettleBody(Strict):
    lease: str
    actual: Annotated[dict[LimitName, Amount], AtMostTen]
    usage: CallBody | None = Field(
        default=None, description="the call, counted and settled with the lease: all of it happens, or nothing"
    )


class AdjustBody(Strict):
    lease: str
    delta: Annotated[dict[LimitName, Difference], OneToTen]


class ReleaseBody(Strict):
    lease: str


class LevelAnswer(BaseModel):
    entity: str
    remaining: dict[str, int]


class HeldAnswer(BaseModel):
    """What hard budgets hold for the call, each of these entities' the same."""

    held_usd_micros: int
    held_tokens: int
    held_executions: int
    entities: list[str]

    @classmethod
    def of(cls, hold: Hold) -> "HeldAnswer":
        amounts = hold.amounts
        return cls(
            held_usd_micros=amounts.cost_usd_micros,
            held_tokens=amounts.tokens,
            held_executions=amounts.executions,
            entities=[held.entity for held in hold.ledgers],
        )


class AcquireAnswer(BaseModel):
    """`lease`: null where the request was let through unchecked, so that there is nothing to give back.

    `budget`: null where no hard budget holds anything for it.
    """

    lease: str | None
    lease_id: str | None
    entity: str
    resource: str
    consumed: dict[str, int]
    expires_at: str | None
    levels: list[LevelAnswer]
    degraded: bool
    budget: HeldAnswer | None = None

    @classmethod
    def of(cls, admission: Admission, lease: Lease | None, token: str | None) -> "AcquireAnswer":
        return cls(
            lease=token,
            lease_id=None if lease is None else lease.lease_id,
            entity=admission.entity,
            resource=admission.resource,
            consumed=dict(admission.consumed),
            expires_at=None if lease is None else rfc3339(lease.expires_at_ms),
            levels=_levels(admission.levels),
            degraded=admission.degraded,
            budget=None if admission.hold is None else HeldAnswer.of(admission.hold),
        )


class SettleAnswer(BaseModel):
    """`settled`: what the lease stood for in the end. `levels`: as far as known without a read.

    `usage`: as a report of the call is answered; null where none came along.
    """

    lease_id: str
    settled: dict[str, int]
    levels: list[LevelAnswer]
    usage: UsageAnswer | None = None

    @classmethod
    def of(cls, changed: Changed, counted: Counted | None = None) -> "SettleAnswer":
        return cls(
            lease_id=changed.lease_id,
            settled=dict(changed.amounts),
            levels=_levels(changed.levels),
            usage=None if counted is None else UsageAnswer.of(counted),
        )


class AdjustAnswer(BaseModel):
    """`adjusted`: the difference that was asked for. `levels`: as far as known without a read."""

    lease_id: str
    adjusted: dict[str, int]
    levels: list[LevelAnswer]

    @classmethod
    def of(cls, changed: Changed) -> "AdjustAnswer":
        return cls(lease_id=changed.lease_id, adjusted=dict(changed.amounts), levels=_levels(changed.levels))


class ReleaseAnswer(BaseModel):
    """`released`: what was given back. `levels`: as far as known without a read."""

    lease_id: str
    released: dict[str, int]
    levels: list[LevelAnswer]

    @classmethod
    def of(cls, changed: Changed) -> "ReleaseAnswer":
        return cls(lease_id=changed.lease_id, released=dict(changed.amounts), levels=_levels(changed.levels))


class CheckAnswer(BaseModel):
    """One limit of one entity. `admit_at`: when this one would pass; null if it does now."""

    entity: str
    limit: str
    source: str
    requested: int
    available: int
    capacity: int
    shards: int
    admit_at: str | None


class BudgetCheckAnswer(BaseModel):
    """One hard limit of one entity's budget. `used` contains `held`. `unit`: of all the amounts."""

    entity: str
    period: str
    dimension: str
    limit: int
    used: int
    held: int
    requested: int
    unit: str
    fits: bool

    @classmethod
    def of(cls, check: BudgetCheck) -> "BudgetCheckAnswer":
        return cls(
            entity=check.entity,
            period=check.slot.span.value,
            dimension=check.slot.dimension.value,
            limit=check.limit,
            used=check.used,
            held=check.held,
            requested=check.requested,
            unit=check.slot.dimension.unit,
            fits=check.fits,
        )


class RemedyAnswer(BaseModel):
    """`wait`: milliseconds. `smaller_amount`: the most of this limit that would pass now, together with the others.

    `max_output_tokens`: the most with which every budget has room now. `label`: the next of the ordering for which
    every budget has room now.
    """

    kind: str
    value: int | str
    limit: str | None = None


class ExplainAnswer(BaseModel):
    """`admit_at`: when it passes if nobody else takes anything until then."""

    admissible: bool
    admit_at: str
    checks: list[CheckAnswer]
    budgets: list[BudgetCheckAnswer]
    remedies: list[RemedyAnswer]

    @classmethod
    def of(cls, judged: Explained) -> "ExplainAnswer":
        explained, remedies = judged.buckets, []
        if not judged.admissible:
            remedies.append(RemedyAnswer(kind="wait", value=judged.admit_at_ms - explained.now_ms))
        remedies += [
            RemedyAnswer(kind="smaller_amount", value=amount, limit=name)
            for name, amount in explained.smaller_amounts.items()
        ]
        remedies += [RemedyAnswer(kind=remedy.kind, value=remedy.value) for remedy in judged.remedies]
        return cls(
            admissible=judged.admissible,
            admit_at=rfc3339(judged.admit_at_ms),
            checks=[
                CheckAnswer(
                    entity=check.entity,
                    limit=check.limit,
                    source=check.source,
                    requested=check.requested,
                    available=check.available,
                    capacity=check.capacity,
                    shards=check.shards,
                    admit_at=rfc3339(check.admit_at_ms) if check.admit_at_ms > explained.now_ms else None,
                )
                for check in explained.checks
            ],
            budgets=[BudgetCheckAnswer.of(check) for check in judged.budgets],
            remedies=remedies,
        )


class StatusAnswer(BaseModel):
    status: str


def _levels(levels: Iterable[Level]) -> list[LevelAnswer]:
    return [
        LevelAnswer(entity=level.entity, remaining={limit.limit: limit.remaining for limit in level.limits})
        for level in levels
    ]
