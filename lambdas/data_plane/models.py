"""Bodies and answers of the data plane."""

from typing import Annotated

from pydantic import BaseModel

from sluice.core.admission import Admission
from sluice.edge.models import Amount, Id, LimitBody, LimitName, OneToTen, Strict


class AcquireBody(Strict):
    entity: Id
    resource: Id
    consume: Annotated[dict[LimitName, Amount], OneToTen]
    limits: Annotated[dict[LimitName, LimitBody], OneToTen] | None = None


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
