"""Bodies and answers of the data plane. Strict: no coercion, no unknown fields, a bound on everything."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from sluice.core.admission import Admission
from sluice.core.limits import AMOUNT_MAX, LIMIT_NAME_PATTERN, LIMITS_MAX, PERIOD_MAX_S, Limit, define_limit

Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}$", max_length=128)]
LimitName = Annotated[str, Field(pattern=f"^{LIMIT_NAME_PATTERN}$")]
Amount = Annotated[int, Field(ge=0, le=AMOUNT_MAX)]
Quantity = Annotated[int, Field(ge=1, le=AMOUNT_MAX)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class LimitBody(_Strict):
    """A limit as people write it; burst and refill amount default to the capacity."""

    capacity: Quantity
    burst: Quantity | None = None
    refill_amount: Quantity | None = None
    refill_period_seconds: Annotated[int, Field(ge=1, le=PERIOD_MAX_S)]

    def to_limit(self, field: str) -> Limit:
        return define_limit(field, self.capacity, self.refill_period_seconds, self.burst, self.refill_amount)


class AcquireBody(_Strict):
    entity: Id
    resource: Id
    consume: Annotated[dict[LimitName, Amount], Field(min_length=1, max_length=LIMITS_MAX)]
    limits: Annotated[dict[LimitName, LimitBody], Field(min_length=1, max_length=LIMITS_MAX)] | None = None


class LevelAnswer(BaseModel):
    entity: str
    remaining: dict[str, int]


class AcquireAnswer(BaseModel):
    entity: str
    resource: str
    consumed: dict[str, int]
    levels: list[LevelAnswer]
    degraded: bool

    @classmethod
    def of(cls, admission: Admission) -> "AcquireAnswer":
        return cls(
            entity=admission.entity,
            resource=admission.resource,
            consumed=dict(admission.consumed),
            levels=[
                LevelAnswer(entity=level.entity, remaining={limit.limit: limit.remaining for limit in level.limits})
                for level in admission.levels
            ],
            degraded=admission.degraded,
        )


class StatusAnswer(BaseModel):
    status: str
