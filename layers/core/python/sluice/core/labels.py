"""Labels: the names that applications use for models."""

from dataclasses import dataclass

from sluice.core.arns import ProfileArn
from sluice.core.pricing import Price, PriceSource, TokenKind


@dataclass(frozen=True, slots=True)
class LabelDefinition:
    """What a label stands for where no inference profile says otherwise. The prices are for a model that no source
    of prices knows."""

    label: str
    model_id: str
    tier: str | None
    family: str | None
    description: str | None
    input_price_usd_micros_per_1m: int | None
    output_price_usd_micros_per_1m: int | None
    version: int
    created_at_ms: int
    updated_at_ms: int


@dataclass(frozen=True, slots=True)
class InferenceProfile:
    """What a label stands for in one app, or, where `entity` is the org, in all apps that have none of their own."""

    entity: str
    label: str
    arn: ProfileArn
    description: str | None
    version: int
    created_at_ms: int
    updated_at_ms: int


def fallback_price(definition: LabelDefinition) -> Price | None:
    """None where the label names no price at all."""
    own = {
        TokenKind.INPUT: definition.input_price_usd_micros_per_1m,
        TokenKind.OUTPUT: definition.output_price_usd_micros_per_1m,
    }
    prices = {kind: price for kind, price in own.items() if price is not None}
    if not prices:
        return None
    return Price(f"label:{definition.label}:{definition.version}", PriceSource.LABEL, prices)
