"""What a call would cost, and the price that says so. Nothing is counted."""

from dataclasses import dataclass

from sluice.core.errors import NotFound, PriceMissing
from sluice.core.pricing import Price, PriceUnknown, Pricing, Tokens, cost_usd_micros, estimate_usd_micros
from sluice.services.catalog import Catalog, Model
from sluice.services.price_book import PriceBook


@dataclass(frozen=True, slots=True)
class Asked:
    """`label` or `model_id`: exactly one. `app`: whose labels are meant, None for the org's."""

    namespace: str
    app: str | None
    label: str | None
    model_id: str | None
    region: str | None
    day: int


@dataclass(frozen=True, slots=True)
class Quote:
    """`cost_usd_micros`: as it would be counted. `estimate_usd_micros`: at most so much."""

    model: Model
    price: Price
    cost_usd_micros: int
    estimate_usd_micros: int


class Quotes:
    def __init__(self, catalog: Catalog, book: PriceBook) -> None:
        self._catalog = catalog
        self._book = book

    def price(self, asked: Asked) -> Price:
        """What holds now, past the cache of this process: another may have put a price a moment ago."""
        model = self._model(asked)
        self._book.forget(asked.namespace, model.model_id)
        price = self._book.find(asked.namespace, model.model_id, model.region, asked.day, model.definition)
        if price is None:
            raise NotFound("nobody knows a price of this model")
        return price

    def quote(self, asked: Asked, tokens: Tokens, pricing: Pricing) -> Quote:
        """Raises UnknownLabel, PriceMissing."""
        model = self._model(asked)
        price = self._book.find(asked.namespace, model.model_id, model.region, asked.day, model.definition)
        if price is None:
            raise PriceMissing(f"the model {model.model_id}")
        try:
            cost = cost_usd_micros(price, tokens, pricing)
        except PriceUnknown as unknown:
            raise PriceMissing(f"the {', '.join(unknown.kinds)} tokens of the model {model.model_id}") from None
        return Quote(model, price, cost, estimate_usd_micros(price, tokens, pricing))

    def _model(self, asked: Asked) -> Model:
        """As a call that is reported."""
        if asked.label is not None:
            return self._catalog.resolve(asked.namespace, asked.app, asked.label, asked.region)
        model_id = asked.model_id or ""
        label = self._catalog.label_of(asked.namespace, asked.app, model_id)
        definition = None if label is None else self._catalog.definition(asked.namespace, label)
        return Model(label, model_id, asked.region, definition)
