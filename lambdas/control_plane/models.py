"""Bodies and answers of the control plane."""

from typing import Annotated, Literal

from pydantic import BaseModel

from sluice.core.limits import LimitsByName, LimitSet, OnUnavailable
from sluice.edge.models import AtMostTen, LimitAnswer, LimitBody, LimitName, OneToTen, Strict
from sluice.edge.problems import rfc3339
from sluice.repository.items import StoredLimits


class LimitsBody(Strict):
    """The limits of a level; null switches off what a less specific level defines."""

    limits: Annotated[dict[LimitName, LimitBody | None], OneToTen]


class SystemLimitsBody(Strict):
    limits: Annotated[dict[LimitName, LimitBody | None], AtMostTen]
    on_unavailable: Literal["allow", "block"] = "block"


class LimitsAnswer(BaseModel):
    limits: dict[str, LimitAnswer | None]
    config_version: int
    created_at: str
    updated_at: str

    @classmethod
    def of(cls, stored: StoredLimits) -> "LimitsAnswer":
        return cls(
            limits={name: None if limit is None else LimitAnswer.of(limit) for name, limit in stored.limits.items()},
            config_version=stored.config_version,
            created_at=rfc3339(stored.created_at_ms),
            updated_at=rfc3339(stored.updated_at_ms),
        )


class SystemLimitsAnswer(LimitsAnswer):
    on_unavailable: str

    @classmethod
    def of(cls, stored: StoredLimits) -> "SystemLimitsAnswer":
        common = LimitsAnswer.of(stored)
        on_unavailable = stored.on_unavailable or OnUnavailable.BLOCK
        return cls(**dict(common), on_unavailable=on_unavailable.value)


class EffectiveAnswer(BaseModel):
    entity: str
    resource: str
    limits: dict[str, LimitAnswer]
    source: dict[str, str]
    switched_off: list[str]

    @classmethod
    def of(cls, entity: str, resource: str, resolved: LimitSet) -> "EffectiveAnswer":
        return cls(
            entity=entity,
            resource=resource,
            limits={name: LimitAnswer.of(limit) for name, limit in resolved.limits.items()},
            source={name: source.value for name, source in resolved.sources.items()},
            switched_off=sorted(resolved.switched_off),
        )


def limits_of(body: LimitsBody | SystemLimitsBody) -> LimitsByName:
    return {name: None if limit is None else limit.to_limit(f"limits.{name}") for name, limit in body.limits.items()}
