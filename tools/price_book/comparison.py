"""The book beside genai-prices: what its data says of the same ids, price by price.

Only the prices of a model as such are compared: genai-prices has none by region.
"""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from fractions import Fraction
from math import ceil
from typing import Any, Final, Protocol

from sluice.core.pricing import TokenKind
from tools.price_book.book import Model
from tools.price_book.entries import Provider
from tools.price_book.rates import Column, Rates

_THEIR_PROVIDERS: Final = {
    Provider.BEDROCK: "aws",
    Provider.ANTHROPIC: "anthropic",
    Provider.OPENAI: "openai",
    Provider.GOOGLE: "google",
}
# The first that is set.
_THEIR_PRICES: Final = {
    TokenKind.INPUT: ("input_mtok",),
    TokenKind.OUTPUT: ("output_mtok",),
    TokenKind.CACHE_READ: ("cache_read_mtok",),
    TokenKind.CACHE_WRITE: ("cache_write_5m_mtok", "cache_write_mtok"),
    TokenKind.CACHE_WRITE_1H: ("cache_write_1h_mtok",),
}
_BATCH: Final = {"processing": "batch"}
_PER_MILLION: Final = 10**6


@dataclass(frozen=True, slots=True)
class Known:
    """`name`: which of their models an id means to them."""

    name: str
    rates: Rates


class Others(Protocol):
    def find(self, provider: Provider, model_id: str) -> Known | None: ...


@dataclass(frozen=True, slots=True)
class Difference:
    """None: no such price. `long_from_tokens` is compared like a price."""

    model_id: str
    name: str
    price: str
    ours: int | None
    theirs: int | None


@dataclass
class Comparison:
    """`absent`: what they price and we do not. What only we price is counted."""

    known: dict[Provider, int] = field(default_factory=dict)
    equal: int = 0
    only_ours: int = 0
    differing: list[Difference] = field(default_factory=list)
    absent: list[Difference] = field(default_factory=list)


class GenaiPrices:
    """Their data, as it holds on a day. Needs the package, which is in the virtual environment of `make price-book`."""

    def __init__(self, day: date) -> None:
        self._at = datetime.combine(day, time(), UTC)
        data = importlib.import_module("genai_prices.data")
        self._providers = {provider.id: provider for provider in data.providers}

    def find(self, provider: Provider, model_id: str) -> Known | None:
        # Not what another provider asks for a model that this one is not known to sell.
        found = self._providers[_THEIR_PROVIDERS[provider]].find_model(model_id, all_providers=None)
        if found is None:
            return None
        standard = found.get_prices(self._at)
        has_batch = any(variant.when == _BATCH for variant in found.price_variants or ())
        return Known(found.id, rates_of(standard, found.get_prices(self._at, _BATCH) if has_batch else None))


def rates_of(standard: Any, batch: Any | None) -> Rates:
    """From two of their `ModelPrice`."""
    usual, long, thresholds = _columns(standard)
    usual_batch, long_batch, batch_thresholds = _columns(batch)
    return Rates(
        standard=usual,
        batch=usual_batch,
        long_from_tokens=min(thresholds | batch_thresholds, default=None),
        long_standard=long,
        long_batch=long_batch,
    )


def compared(models: Mapping[str, Model], others: Others) -> Comparison:
    comparison = Comparison(known=dict.fromkeys(Provider, 0))
    for model_id, model in models.items():
        known = others.find(model.provider, model_id)
        if known is None:
            continue
        comparison.known[model.provider] += 1
        for price, ours, theirs in _pairs(model.rates, known.rates):
            difference = Difference(model_id, known.name, price, ours, theirs)
            if ours == theirs:
                comparison.equal += 1
            elif theirs is None:
                comparison.only_ours += 1
            elif ours is None:
                comparison.absent.append(difference)
            else:
                comparison.differing.append(difference)
    return comparison


def _pairs(ours: Rates, theirs: Rates) -> Iterator[tuple[str, int | None, int | None]]:
    """Every price that one of the two names."""
    if ours.long_from_tokens or theirs.long_from_tokens:
        yield "long_from_tokens", ours.long_from_tokens, theirs.long_from_tokens
    for (column, our_prices), (_, their_prices) in zip(ours.columns(), theirs.columns(), strict=True):
        for kind in TokenKind:
            if kind in our_prices or kind in their_prices:
                yield f"{column} {kind}", our_prices.get(kind), their_prices.get(kind)


def _columns(price: Any | None) -> tuple[Column, Column, set[int]]:
    """Usual prices, those of long calls, and from where calls are long. The highest tier, where there are several."""
    usual: Column = {}
    long: Column = {}
    thresholds: set[int] = set()
    if price is None:
        return usual, long, thresholds
    for kind, names in _THEIR_PRICES.items():
        value = next((found for name in names if (found := getattr(price, name, None)) is not None), None)
        if value is None:
            continue
        tiers = getattr(value, "tiers", ())
        usual[kind] = _micros(value.base if tiers else value)
        if tiers:
            long[kind] = _micros(tiers[-1].price)
            thresholds.add(tiers[0].start)
    return usual, long, thresholds


def _micros(usd_per_million: Any) -> int:
    return ceil(Fraction(usd_per_million) * _PER_MILLION)
