"""Parts of bodies and answers that functions share. Strict: no coercion, no unknown fields, a bound on everything."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from sluice.core.limits import AMOUNT_MAX, LIMIT_NAME_PATTERN, LIMITS_MAX, PERIOD_MAX_S, Limit, define_limit

ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}$"
REGION_PATTERN: Final = r"^[a-z]{2,8}(-[a-z]{2,16}){1,3}-[0-9]{1,2}$"
MODEL_ID_PATTERN: Final = r"^[!-~]{1,256}$"

Id = Annotated[str, Field(pattern=ID_PATTERN, max_length=128)]
ModelId = Annotated[str, Field(pattern=MODEL_ID_PATTERN, max_length=256)]
LimitName = Annotated[str, Field(pattern=f"^{LIMIT_NAME_PATTERN}$")]
Amount = Annotated[int, Field(ge=0, le=AMOUNT_MAX)]
Quantity = Annotated[int, Field(ge=1, le=AMOUNT_MAX)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class LimitBody(Strict):
    """A limit as people write it; burst and refill amount default to the capacity."""

    capacity: Quantity
    burst: Quantity | None = None
    refill_amount: Quantity | None = None
    refill_period_seconds: Annotated[int, Field(ge=1, le=PERIOD_MAX_S)]

    def to_limit(self, field: str) -> Limit:
        return define_limit(field, self.capacity, self.refill_period_seconds, self.burst, self.refill_amount)


class LimitAnswer(BaseModel):
    capacity: int
    burst: int
    refill_amount: int
    refill_period_seconds: int

    @classmethod
    def of(cls, limit: Limit) -> "LimitAnswer":
        return cls(
            capacity=limit.capacity,
            burst=limit.burst,
            refill_amount=limit.refill_amount,
            refill_period_seconds=limit.refill_period_seconds,
        )


# The document would else allow every other name as well: a pattern of names says nothing about the rest.
_NAMED_ONLY: Final[dict[str, JsonValue]] = {"additionalProperties": False}
AtMostTen = Field(max_length=LIMITS_MAX, json_schema_extra=_NAMED_ONLY)
OneToTen = Field(min_length=1, max_length=LIMITS_MAX, json_schema_extra=_NAMED_ONLY)
