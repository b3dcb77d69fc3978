"""Bodies and answers of the data plane."""

from collections.abc import Iterable
from typing import Annotated

from pydantic import BaseModel, Field

from sluice.core.admission import Admission
from sluice.core.lease import LEASE_DEFAULT_MS, LEASE_LEAST_MS, LEASE_MAX_MS, Lease
from sluice.core.levels import Level
from sluice.core.limits import AMOUNT_MAX
from sluice.edge.models import Amount, AtMostTen, Id, LimitBody, LimitName, OneToTen, Strict
from sluice.edge.problems import rfc3339
from sluice.services.explain import Explanation
from sluice.services.leases import Changed

TtlSeconds = Annotated[int, Field(ge=LEASE_LEAST_MS // 1000, le=LEASE_MAX_MS // 1000)]
Difference = Annotated[int, Field(ge=-AMOUNT_MAX, le=AMOUNT_MAX)]


class AcquireBody(Strict):
    entity: Id
    resource: Id
    consume: Annotated[dict[LimitName, Amount], OneToTen]
    limits: Annotated[dict[LimitName, LimitBody], OneToTen] | None = None
    ttl_seconds: TtlSeconds = LEASE_DEFAULT_MS // 1000


class SettleBody(Strict):
    lease: str
    actual: Annotated[dict[LimitName, Amount], AtMostTen]


class AdjustBody(Strict):
    lease: str
    delta: Annotated[dict[LimitName, Difference], OneToTen]


class ReleaseBody(Strict):
    lease: str


class LevelAnswer(BaseModel):
    entity: str
    remaining: dict[str, int]


class AcquireAnswer(BaseModel):
    """`lease`: null where the request was let through unchecked, so that there is nothing to give back."""

    lease: str | None
    lease_id: str | None
    entity: str
    resource: str
    consumed: dict[str, int]
    expires_at: str | None
    levels: list[LevelAnswer]
    degraded: bool

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
        )


class SettleAnswer(BaseModel):
    """`settled`: what the lease stood for in the end. `levels`: as far as known without a read."""

    lease_id: str
    settled: dict[str, int]
    levels: list[LevelAnswer]

    @classmethod
    def of(cls, changed: Changed) -> "SettleAnswer":
        return cls(lease_id=changed.lease_id, settled=dict(changed.amounts), levels=_levels(changed.levels))


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


class RemedyAnswer(BaseModel):
    """`wait`: milliseconds. `smaller_amount`: the most of this limit that would pass now, together with the others."""

    kind: str
    value: int
    limit: str | None = None


class ExplainAnswer(BaseModel):
    """`admit_at`: when it passes if nobody else takes anything until then."""

    admissible: bool
    admit_at: str
    checks: list[CheckAnswer]
    remedies: list[RemedyAnswer]

    @classmethod
    def of(cls, explained: Explanation) -> "ExplainAnswer":
        remedies = []
        if not explained.admissible:
            remedies.append(RemedyAnswer(kind="wait", value=explained.admit_at_ms - explained.now_ms))
        remedies += [
            RemedyAnswer(kind="smaller_amount", value=amount, limit=name)
            for name, amount in explained.smaller_amounts.items()
        ]
        return cls(
            admissible=explained.admissible,
            admit_at=rfc3339(explained.admit_at_ms),
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
            remedies=remedies,
        )


class StatusAnswer(BaseModel):
    status: str


def _levels(levels: Iterable[Level]) -> list[LevelAnswer]:
    return [
        LevelAnswer(entity=level.entity, remaining={limit.limit: limit.remaining for limit in level.limits})
        for level in levels
    ]
