"""The prices that ship with the product: the last place to look for one, made by `make price-book`.

An id is found as it is, or else without the geography that a Bedrock inference profile has in front of it. It is never
guessed from parts: a price of a model that merely looks alike would be a wrong one.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from threading import Lock
from typing import Any, Final

from sluice.core.model_ids import without_geography
from sluice.core.pricing import PRICE_MAX_USD_MICROS, Price, Prices, PriceSource, TokenKind

FORMAT: Final = 1

_ANY_REGION: Final = "-"
_BEDROCK: Final = "bedrock"
_LONG_COLUMNS: Final = frozenset({"long_standard", "long_batch"})
_COLUMNS: Final = _LONG_COLUMNS | {"standard", "batch"}
_LONG_FROM: Final = "long_from_tokens"
_KINDS: Final = frozenset(TokenKind)
_reading: Final = Lock()


class BookInvalid(Exception):
    """The file is not a price book, or one of another version of the product. Nothing is priced from it."""


@dataclass(frozen=True, slots=True)
class Book:
    """`models`: as in the file, and checked."""

    version: str
    models: Mapping[str, Any]


def decode(text: str) -> Book:
    """Raises BookInvalid, for whatever is not as it should be."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise BookInvalid("the price book is no JSON") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BookInvalid(f"the price book is not of format {FORMAT}")
    version, models = document.get("version"), document.get("models")
    if not isinstance(version, str) or not version or not isinstance(models, dict):
        raise BookInvalid("the price book has no version or no models")
    for model_id, model in models.items():
        _check(model_id, model)
    return Book(version, models)


def shipped() -> Book:
    """Read once per process, when it is first asked for."""
    with _reading:
        return _read()


class ShippedPrices:
    def __init__(self, book: Callable[[], Book] = shipped) -> None:
        self._book = book

    def find(self, model_id: str, region: str | None) -> Price | None:
        """The price in that region, where it is another one there, else that of the model. None: unknown."""
        book = self._book()
        for known_id in (model_id, without_geography(model_id)):
            model = book.models.get(known_id)
            if model is not None:
                return _price(book, known_id, model, region)
        return None

    def lists(self, model_id: str) -> bool:
        """Under just this id."""
        return model_id in self._book().models

    def bedrock_ids(self) -> tuple[str, ...]:
        """Of all models and profiles that AWS sells."""
        return tuple(model_id for model_id, model in self._book().models.items() if model["provider"] == _BEDROCK)


@cache
def _read() -> Book:
    return decode(files("sluice").joinpath("prices", "book.json").read_text("utf-8"))


def _price(book: Book, model_id: str, model: Mapping[str, Any], region: str | None) -> Price:
    there = model.get("regions", {}).get(region)
    rates = model if there is None else there
    used = None if there is None else region
    return Price(
        price_id=f"shipped:{model_id}:{used or _ANY_REGION}:{book.version}",
        source=PriceSource.SHIPPED,
        standard=_prices(rates, "standard"),
        batch=_prices(rates, "batch"),
        long_from_tokens=rates.get(_LONG_FROM),
        long_standard=_prices(rates, "long_standard"),
        long_batch=_prices(rates, "long_batch"),
        region=used,
    )


def _prices(rates: Mapping[str, Any], column: str) -> Prices:
    return {TokenKind(kind): price for kind, price in rates.get(column, {}).items()}


def _check(model_id: str, model: Any) -> None:
    if not isinstance(model, dict) or not isinstance(model.get("provider"), str):
        raise BookInvalid(f"{model_id} has no provider")
    regions = model.get("regions", {})
    if not isinstance(regions, dict):
        raise BookInvalid(f"{model_id} has regions that are none")
    _check_rates(model_id, model, model.keys() - {"provider", "regions"})
    for region, rates in regions.items():
        if not isinstance(rates, dict):
            raise BookInvalid(f"{model_id} has no prices in {region}")
        _check_rates(f"{model_id} in {region}", rates, rates.keys())


def _check_rates(whose: str, rates: Mapping[str, Any], names: Any) -> None:
    long_from = rates.get(_LONG_FROM)
    columns = names - {_LONG_FROM}
    if not columns <= _COLUMNS:
        raise BookInvalid(f"{whose} has fields that nobody knows")
    if (long_from is None) != columns.isdisjoint(_LONG_COLUMNS):
        raise BookInvalid(f"{whose} has prices of long calls, or says when calls are long, but not both")
    if long_from is not None and (type(long_from) is not int or long_from < 1):
        raise BookInvalid(f"{whose} has no number of tokens from which calls are long")
    for column in columns:
        prices = rates[column]
        if not isinstance(prices, dict) or not prices.keys() <= _KINDS:
            raise BookInvalid(f"{whose} has prices of kinds that nobody knows")
        for price in prices.values():
            # A bool is an int, and no price.
            if type(price) is not int or not 0 <= price <= PRICE_MAX_USD_MICROS:
                raise BookInvalid(f"{whose} has a price that is none")
    if TokenKind.INPUT not in rates.get("standard", {}):
        raise BookInvalid(f"{whose} has no price of input")
