"""Prices and what a call costs. Integers alone: prices are micro-dollars per million tokens.

A call costs the sum of its tokens, each kind times its price, rounded once: half up for what was spent, up for an
estimate. Nothing is ever free because nobody knows its price: tokens without a price make the call unpriced.

A model may be dearer for long calls. Then the whole call is priced by the long column, once its input and what it read
from and wrote to the cache pass a number of tokens together; a kind without a price there keeps its usual one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sluice.core.errors import InvalidRequest

TOKENS_PER_PRICE: Final = 1_000_000
PRICE_MAX_USD_MICROS: Final = 10**12


class TokenKind(StrEnum):
    """Input is what was neither read from a cache nor written to one."""

    INPUT = "input"
    OUTPUT = "output"
    CACHE_READ = "cache_read"
    CACHE_WRITE = "cache_write"
    """For five minutes."""
    CACHE_WRITE_1H = "cache_write_1h"


CONTEXT_KINDS: Final = (
    TokenKind.INPUT,
    TokenKind.CACHE_READ,
    TokenKind.CACHE_WRITE,
    TokenKind.CACHE_WRITE_1H,
)
"""What counts towards the length of a call."""


class Pricing(StrEnum):
    STANDARD = "standard"
    BATCH = "batch"


class PriceSource(StrEnum):
    """Who says so, the most trusted first."""

    OVERRIDE = "override"
    AWS = "aws"
    SHIPPED = "shipped"
    LABEL = "label"


Tokens = Mapping[TokenKind, int]
"""How many of each kind; a kind that is absent has none."""

Prices = Mapping[TokenKind, int]
"""Micro-dollars per million tokens of each kind; a kind that is absent has no known price."""

NO_PRICES: Final[Prices] = {}


@dataclass(frozen=True, slots=True)
class Price:
    """Of one model. `long_from_tokens`: calls with more than that are long; None where length does not matter.

    `from_day`, `region`: from when and where it holds, as far as the source says; for people.
    """

    price_id: str
    source: PriceSource
    standard: Prices
    batch: Prices = field(default_factory=dict)
    long_from_tokens: int | None = None
    long_standard: Prices = field(default_factory=dict)
    long_batch: Prices = field(default_factory=dict)
    region: str | None = None
    from_day: str | None = None


class PriceUnknown(Exception):
    """Some tokens of the call have no price. `kinds`: which."""

    def __init__(self, kinds: tuple[TokenKind, ...]) -> None:
        super().__init__(f"no price for {', '.join(kinds)} tokens")
        self.kinds = kinds


def cost_usd_micros(price: Price, tokens: Tokens, pricing: Pricing = Pricing.STANDARD) -> int:
    """What was spent, half a micro-dollar rounded up. Raises PriceUnknown."""
    return (_weighted(price, tokens, pricing) + TOKENS_PER_PRICE // 2) // TOKENS_PER_PRICE


def estimate_usd_micros(price: Price, tokens: Tokens, pricing: Pricing = Pricing.STANDARD) -> int:
    """At most so much will be spent. Raises PriceUnknown."""
    return -(-_weighted(price, tokens, pricing) // TOKENS_PER_PRICE)


def in_force(prices: Iterable[Price], region: str | None, day: str) -> Price | None:
    """Of prices that each begin with a day, the one of that day: the newest for just that region, else for no region.

    `day`: as `from_day` is written, `yyyy-mm-dd`, which sorts as time does.
    """
    newest: dict[str | None, Price] = {}
    for price in sorted((one for one in prices if one.from_day is not None), key=_begin):
        if _begin(price) <= day:
            newest[price.region] = price
    return newest.get(region, newest.get(None))


def same_prices(one: Price, other: Price) -> bool:
    """Whether every call costs the same under both, wherever and whenever they hold."""
    return _columns(one) == _columns(other)


def check_prices(price: Price) -> None:
    """What can not be meant as a price. Raises InvalidRequest."""
    if not {TokenKind.INPUT, TokenKind.OUTPUT} & set(price.standard):
        raise InvalidRequest("standard", "names neither a price of input nor of output")
    if price.long_from_tokens is None:
        for name, prices in (("long_standard", price.long_standard), ("long_batch", price.long_batch)):
            if prices:
                raise InvalidRequest(name, "long_from_tokens says from when on a call is long, and is missing")
    elif not price.long_standard and not price.long_batch:
        raise InvalidRequest("long_from_tokens", "neither long_standard nor long_batch says what a long call costs")


def column(price: Price, tokens: Tokens, pricing: Pricing) -> Prices:
    """The prices that hold for a call of these tokens."""
    is_batch = pricing is Pricing.BATCH
    usual = price.batch if is_batch else price.standard
    if price.long_from_tokens is None:
        return usual
    if sum(tokens.get(kind, 0) for kind in CONTEXT_KINDS) <= price.long_from_tokens:
        return usual
    return {**usual, **(price.long_batch if is_batch else price.long_standard)}


def _weighted(price: Price, tokens: Tokens, pricing: Pricing) -> int:
    prices = column(price, tokens, pricing)
    missing = tuple(kind for kind in TokenKind if tokens.get(kind, 0) and kind not in prices)
    if missing:
        raise PriceUnknown(missing)
    return sum(count * prices[kind] for kind, count in tokens.items() if count)


def _begin(price: Price) -> str:
    return price.from_day or ""


def _columns(price: Price) -> tuple[object, ...]:
    return price.standard, price.batch, price.long_from_tokens, price.long_standard, price.long_batch
