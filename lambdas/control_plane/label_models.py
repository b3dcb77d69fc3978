"""Bodies and answers about labels and inference profiles."""

from typing import Annotated

from pydantic import BaseModel, Field

from sluice.core.arns import PROFILE_ARN_MAX
from sluice.core.labels import InferenceProfile, LabelDefinition
from sluice.core.pricing import PRICE_MAX_USD_MICROS
from sluice.edge.conventions import Page
from sluice.edge.models import ModelId, Strict
from sluice.edge.problems import rfc3339
from sluice.services.labels import LabelFields
from sluice.services.listing import Listed

_Name = Annotated[str, Field(min_length=1, max_length=128)]
_Description = Annotated[str, Field(min_length=1, max_length=512)]
_Price = Annotated[int, Field(ge=0, le=PRICE_MAX_USD_MICROS)]


class LabelBody(Strict):
    """The prices are for a model that no source of prices knows."""

    model_id: ModelId
    tier: _Name | None = None
    family: _Name | None = None
    description: _Description | None = None
    input_price_usd_micros_per_1m: _Price | None = None
    output_price_usd_micros_per_1m: _Price | None = None

    def to_fields(self) -> LabelFields:
        return LabelFields(
            model_id=self.model_id,
            tier=self.tier,
            family=self.family,
            description=self.description,
            input_price_usd_micros_per_1m=self.input_price_usd_micros_per_1m,
            output_price_usd_micros_per_1m=self.output_price_usd_micros_per_1m,
        )


class LabelAnswer(BaseModel):
    label: str
    model_id: str
    tier: str | None
    family: str | None
    description: str | None
    input_price_usd_micros_per_1m: int | None
    output_price_usd_micros_per_1m: int | None
    created_at: str
    updated_at: str

    @classmethod
    def of(cls, label: LabelDefinition) -> "LabelAnswer":
        return cls(
            label=label.label,
            model_id=label.model_id,
            tier=label.tier,
            family=label.family,
            description=label.description,
            input_price_usd_micros_per_1m=label.input_price_usd_micros_per_1m,
            output_price_usd_micros_per_1m=label.output_price_usd_micros_per_1m,
            created_at=rfc3339(label.created_at_ms),
            updated_at=rfc3339(label.updated_at_ms),
        )


class LabelPage(Page):
    items: list[LabelAnswer]

    @classmethod
    def of(cls, listed: Listed[LabelDefinition]) -> "LabelPage":
        return cls(items=[LabelAnswer.of(label) for label in listed.items], next_cursor=listed.next_cursor)


class ProfileBody(Strict):
    inference_profile_arn: Annotated[
        str,
        Field(
            min_length=1,
            max_length=PROFILE_ARN_MAX,
            description="of an application-inference-profile or an inference-profile, in any partition",
        ),
    ]
    description: _Description | None = None


class ProfileAnswer(BaseModel):
    label: str
    app: str | None = Field(description="null for the whole org")
    inference_profile_arn: str
    description: str | None
    created_at: str
    updated_at: str

    @classmethod
    def of(cls, profile: InferenceProfile, app: str | None) -> "ProfileAnswer":
        return cls(
            label=profile.label,
            app=app,
            inference_profile_arn=str(profile.arn),
            description=profile.description,
            created_at=rfc3339(profile.created_at_ms),
            updated_at=rfc3339(profile.updated_at_ms),
        )


class ProfilePage(Page):
    items: list[ProfileAnswer]

    @classmethod
    def of(cls, listed: Listed[InferenceProfile], app: str | None) -> "ProfilePage":
        items = [ProfileAnswer.of(profile, app) for profile in listed.items]
        return cls(items=items, next_cursor=listed.next_cursor)
