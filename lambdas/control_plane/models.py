"""Bodies and answers of the control plane."""

import json
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator, field_validator
from pydantic_core import PydanticCustomError

from sluice.core.limits import LimitsByName, LimitSet, OnUnavailable
from sluice.edge.models import AtMostTen, Id, LimitAnswer, LimitBody, LimitName, OneToTen, Strict
from sluice.edge.problems import rfc3339
from sluice.repository.items import Entity, StoredLimits
from sluice.repository.wire import Value
from sluice.services.entities import UNSET, EntityChange

METADATA_BYTES_MAX: Final = 4096


def _one_complaint(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Else there is one for each kind of value, which names that kind as if it were a field."""
    try:
        return check(value)
    except ValidationError:
        allowed = "must be a text of at most 4096 characters, an integer from -10^18 to 10^18, true, false or null"
        raise PydanticCustomError("metadata_value", allowed) from None


MetadataName = Annotated[str, Field(min_length=1, max_length=128)]
# No floats: nothing here stores one.
MetadataValue = Annotated[
    Annotated[str, Field(max_length=4096)] | Annotated[int, Field(ge=-(10**18), le=10**18)] | bool | None,
    WrapValidator(_one_complaint),
]


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


class EntityBody(Strict):
    """Only what was sent is changed."""

    name: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    parent: Id | None = None
    cascade: bool = True
    metadata: Annotated[dict[MetadataName, MetadataValue], Field(max_length=64)] | None = None

    @field_validator("metadata")
    @classmethod
    def _is_small(cls, metadata: dict[str, Value] | None) -> dict[str, Value] | None:
        if metadata is not None and len(json.dumps(metadata, ensure_ascii=False).encode()) > METADATA_BYTES_MAX:
            raise PydanticCustomError("too_large", f"must have at most {METADATA_BYTES_MAX} bytes as JSON")
        return metadata

    def to_change(self) -> EntityChange:
        sent = self.model_fields_set
        return EntityChange(
            name=self.name if "name" in sent else UNSET,
            parent=self.parent if "parent" in sent else UNSET,
            cascade=self.cascade if "cascade" in sent else UNSET,
            metadata=self.metadata if "metadata" in sent else UNSET,
        )


class EntityAnswer(BaseModel):
    entity: str
    role: str = Field(description="org, app or other")
    name: str | None
    parent: str | None
    cascade: bool
    metadata: dict[str, MetadataValue]
    created_at: str
    updated_at: str

    @classmethod
    def of(cls, entity: Entity) -> "EntityAnswer":
        return cls.model_validate(
            {
                "entity": entity.entity,
                "role": entity.role.value,
                "name": entity.name,
                "parent": entity.parent,
                "cascade": entity.cascade,
                "metadata": entity.metadata,
                "created_at": rfc3339(entity.created_at_ms),
                "updated_at": rfc3339(entity.updated_at_ms),
            }
        )


def limits_of(body: LimitsBody | SystemLimitsBody) -> LimitsByName:
    return {name: None if limit is None else limit.to_limit(f"limits.{name}") for name, limit in body.limits.items()}
