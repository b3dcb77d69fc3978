"""Bodies and answers about prices. All are micro-dollars per million tokens of a kind."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from sluice.core.errors import InvalidRequest
from sluice.core.period import shown_day
from sluice.core.pricing import PRICE_MAX_USD_MICROS, Prices, Pricing, TokenKind, Tokens
from sluice.edge.models import REGION_PATTERN, Amount, Id, ModelId, Quantity, Strict
from sluice.edge.prices import PriceAnswer, price_field, shown_price
from sluice.edge.problems import rfc3339
from sluice.edge.times import DAY_PATTERN
from sluice.repository.prices import StoredPrice
from sluice.services.prices import PriceFields
from sluice.services.quotes import Asked, Quote

Day = Annotated[str, Field(pattern=DAY_PATTERN, max_length=10)]
Region = Annotated[str, Field(pattern=REGION_PATTERN, max_length=64)]
_Price = Annotated[int, Field(ge=0, le=PRICE_MAX_USD_MICROS)]


class ColumnBody(Strict):
    """Micro-dollars per million tokens. A kind that is left out has no price: calls with such tokens are not priced."""

    input_usd_micros_per_1m: _Price | None = None
    output_usd_micros_per_1m: _Price | None = None
    cache_read_usd_micros_per_1m: _Price | None = None
    cache_write_usd_micros_per_1m: _Price | None = Field(default=None, description="for five minutes")
    cache_write_1h_usd_micros_per_1m: _Price | None = None

    def to_prices(self) -> Prices:
        said = {kind: getattr(self, price_field(kind)) for kind in TokenKind}
        return {kind: price for kind, price in said.items() if price is not None}


class PriceBody(Strict):
    """What calls of a model cost: at once, in batches, and when they are long. `standard` has input or output at least.

    A call is long when its input, with what it reads from the cache and writes to it, is more than `long_from_tokens`;
    then all of it is priced by the long column. A kind that is left out there keeps its usual price.
    """

    region: Region | None = Field(default=None, description="where it holds; everywhere if none is named")
    from_day: Day | None = Field(
        default=None,
        description="the first local day on which it holds, today if none is named. A day that is past is allowed: "
        "calls that are reported from now on, in some processes from a minute on, are priced by it; those that are "
        "counted keep their cost",
    )
    standard: ColumnBody
    batch: ColumnBody | None = None
    long_from_tokens: Quantity | None = None
    long_standard: ColumnBody | None = None
    long_batch: ColumnBody | None = None

    def to_fields(self) -> PriceFields:
        return PriceFields(
            standard=self.standard.to_prices(),
            batch=_prices(self.batch),
            long_from_tokens=self.long_from_tokens,
            long_standard=_prices(self.long_standard),
            long_batch=_prices(self.long_batch),
        )


class OwnPriceAnswer(PriceAnswer):
    created_at: str
    updated_at: str

    @classmethod
    def of_stored(cls, stored: StoredPrice) -> "OwnPriceAnswer":
        return cls(
            **shown_price(stored.model_id, stored.price),
            created_at=rfc3339(stored.created_at_ms),
            updated_at=rfc3339(stored.updated_at_ms),
        )


class QuoteBody(Strict):
    """A call as it would be reported. Either `label` or `model_id` says of which model."""

    label: Id | None = None
    model_id: ModelId | None = None
    region: Region | None = None
    input_tokens: Amount = Field(description="without those that are read from a cache or written to one")
    output_tokens: Amount
    cache_read_tokens: Amount = 0
    cache_write_tokens: Amount = Field(default=0, description="for five minutes")
    cache_write_1h_tokens: Amount = 0
    pricing: Literal["standard", "batch"] = "standard"
    day: Day | None = Field(default=None, description="the local day of the call; today if none is named")

    def to_asked(self, namespace: str, app: str | None, day: int) -> Asked:
        if (self.label is None) == (self.model_id is None):
            raise InvalidRequest("label", "exactly one of label and model_id is needed")
        return Asked(namespace, app, self.label, self.model_id, self.region, day)

    def to_tokens(self) -> Tokens:
        return {
            TokenKind.INPUT: self.input_tokens,
            TokenKind.OUTPUT: self.output_tokens,
            TokenKind.CACHE_READ: self.cache_read_tokens,
            TokenKind.CACHE_WRITE: self.cache_write_tokens,
            TokenKind.CACHE_WRITE_1H: self.cache_write_1h_tokens,
        }


class QuoteAnswer(BaseModel):
    label: str | None = Field(description="that the call would be counted under; null: under its model id")
    model_id: str
    region: str | None
    day: str
    pricing: str
    cost_usd_micros: int = Field(description="as it would be counted: rounded half up")
    estimate_usd_micros: int = Field(description="at most so much: rounded up")
    price_id: str
    price: PriceAnswer

    @classmethod
    def of(cls, quote: Quote, day: int, pricing: Pricing) -> "QuoteAnswer":
        model = quote.model
        return cls(
            label=model.label,
            model_id=model.model_id,
            region=model.region,
            day=shown_day(day),
            pricing=pricing.value,
            cost_usd_micros=quote.cost_usd_micros,
            estimate_usd_micros=quote.estimate_usd_micros,
            price_id=quote.price.price_id,
            price=PriceAnswer.of(model.model_id, quote.price),
        )


def _prices(column: ColumnBody | None) -> Prices:
    return {} if column is None else column.to_prices()
