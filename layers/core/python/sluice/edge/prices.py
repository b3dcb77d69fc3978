"""Prices as they are shown: micro-dollars per million tokens of a kind."""

from typing import Any

from pydantic import BaseModel, Field

from sluice.core.pricing import Price, Prices, TokenKind


class ColumnAnswer(BaseModel):
    """Null: there is no price, and calls with such tokens are not priced."""

    input_usd_micros_per_1m: int | None
    output_usd_micros_per_1m: int | None
    cache_read_usd_micros_per_1m: int | None
    cache_write_usd_micros_per_1m: int | None
    cache_write_1h_usd_micros_per_1m: int | None

    @classmethod
    def of(cls, prices: Prices) -> "ColumnAnswer":
        shown: dict[str, Any] = {price_field(kind): prices.get(kind) for kind in TokenKind}
        return cls(**shown)


class PriceAnswer(BaseModel):
    model_id: str = Field(description="as it was asked for")
    price_id: str
    source: str = Field(description="who says so: override (you), aws, shipped or label")
    region: str | None = Field(description="where it holds; null: it does not depend on the region")
    from_day: str | None = Field(description="the first day on which it holds; null where the source has no days")
    standard: ColumnAnswer
    batch: ColumnAnswer | None
    long_from_tokens: int | None = Field(description="calls with more tokens of context are long")
    long_standard: ColumnAnswer | None = Field(description="null of a kind: it keeps its usual price")
    long_batch: ColumnAnswer | None

    @classmethod
    def of(cls, model_id: str, price: Price) -> "PriceAnswer":
        return cls(**shown_price(model_id, price))


def price_field(kind: TokenKind) -> str:
    """How the price of a kind is called, in bodies and answers."""
    return f"{kind.value}_usd_micros_per_1m"


def shown_price(model_id: str, price: Price) -> dict[str, Any]:
    return {
        "model_id": model_id,
        "price_id": price.price_id,
        "source": price.source.value,
        "region": price.region,
        "from_day": price.from_day,
        "standard": ColumnAnswer.of(price.standard),
        "batch": _column(price.batch),
        "long_from_tokens": price.long_from_tokens,
        "long_standard": _column(price.long_standard),
        "long_batch": _column(price.long_batch),
    }


def _column(prices: Prices) -> ColumnAnswer | None:
    return ColumnAnswer.of(prices) if prices else None
