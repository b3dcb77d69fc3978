"""What an entry of litellm's table costs, as whole micro-dollars per million tokens.

The table says dollars per token as decimal fractions, and they are never floats here. What is not whole is rounded up.
A price of zero is believed of one thing: what an embedding puts out. Anywhere else it means that nobody has filled it
in, and the kind has no price.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Any, Final

from sluice.core.pricing import PRICE_MAX_USD_MICROS, TokenKind
from tools.price_book.entries import LeftOut, Mode

_KINDS: Final = {
    "input_cost_per_token": TokenKind.INPUT,
    "output_cost_per_token": TokenKind.OUTPUT,
    "cache_read_input_token_cost": TokenKind.CACHE_READ,
    "cache_creation_input_token_cost": TokenKind.CACHE_WRITE,
    "cache_creation_input_token_cost_above_1hr": TokenKind.CACHE_WRITE_1H,
}
_FIELD: Final = re.compile(
    rf"(?P<kind>{'|'.join(sorted(_KINDS, key=len, reverse=True))})"
    r"(?:_above_(?P<thousands>[0-9]+)k_tokens)?(?P<batch>_batches)?"
)
# Micro-dollars per million tokens in a dollar per token.
_PER_TOKEN: Final = 10**12

Column = dict[TokenKind, int]


@dataclass(frozen=True, slots=True)
class Rates:
    """The columns of a price, as core/pricing.py has them."""

    standard: Column
    batch: Column = field(default_factory=dict)
    long_from_tokens: int | None = None
    long_standard: Column = field(default_factory=dict)
    long_batch: Column = field(default_factory=dict)

    def columns(self) -> Iterator[tuple[str, Column]]:
        yield "standard", self.standard
        yield "batch", self.batch
        yield "long_standard", self.long_standard
        yield "long_batch", self.long_batch


@dataclass(frozen=True, slots=True)
class Read:
    """`rounded`, `zeros`: the fields that were rounded up, and those whose zero was not believed."""

    rates: Rates
    rounded: tuple[str, ...] = ()
    zeros: tuple[str, ...] = ()


def is_carried(name: str) -> bool:
    return _FIELD.fullmatch(name) is not None


def read(entry: Mapping[str, Any], mode: Mode) -> Read:
    """Raises LeftOut."""
    columns: dict[tuple[bool, bool], Column] = {}
    thresholds: set[int] = set()
    rounded: list[str] = []
    zeros: list[str] = []
    for name, value in entry.items():
        found = _FIELD.fullmatch(name)
        if found is None or value is None:
            continue
        kind = _KINDS[found["kind"]]
        exact = _exact(name, value)
        if exact == 0 and not (mode is Mode.EMBEDDING and kind is TokenKind.OUTPUT):
            zeros.append(name)
            continue
        if exact.denominator != 1:
            rounded.append(name)
        if found["thousands"] is not None:
            thresholds.add(int(found["thousands"]) * 1000)
        column = columns.setdefault((found["thousands"] is not None, found["batch"] is not None), {})
        column[kind] = ceil(exact)
    if len(thresholds) > 1:
        raise LeftOut("more than one long-context tier")
    rates = Rates(
        standard=_in_order(columns.get((False, False), {})),
        batch=_in_order(columns.get((False, True), {})),
        long_from_tokens=next(iter(thresholds), None),
        long_standard=_in_order(columns.get((True, False), {})),
        long_batch=_in_order(columns.get((True, True), {})),
    )
    _require_usable(rates.standard, mode)
    return Read(rates, tuple(sorted(rounded)), tuple(sorted(zeros)))


def dearest(several: Iterable[Rates]) -> Rates:
    """Of each column and kind the highest price; calls are long from the lowest threshold on."""
    all_rates = list(several)
    thresholds = [rates.long_from_tokens for rates in all_rates if rates.long_from_tokens is not None]
    return Rates(
        standard=_highest(rates.standard for rates in all_rates),
        batch=_highest(rates.batch for rates in all_rates),
        long_from_tokens=min(thresholds, default=None),
        long_standard=_highest(rates.long_standard for rates in all_rates),
        long_batch=_highest(rates.long_batch for rates in all_rates),
    )


def _highest(columns: Iterable[Column]) -> Column:
    highest: Column = {}
    for column in columns:
        for kind, price in column.items():
            highest[kind] = max(price, highest.get(kind, 0))
    return _in_order(highest)


def _in_order(column: Column) -> Column:
    return {kind: column[kind] for kind in TokenKind if kind in column}


def _exact(name: str, value: object) -> Fraction:
    # A bool is an int, and no price; a float would not be exact any more.
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise TypeError(f"{name} is no number: {value!r}")
    exact = Fraction(value) * _PER_TOKEN
    if not 0 <= exact <= PRICE_MAX_USD_MICROS:
        raise ValueError(f"{name} is no price: {value}")
    return exact


def _require_usable(standard: Column, mode: Mode) -> None:
    has_input, has_output = TokenKind.INPUT in standard, bool(standard.get(TokenKind.OUTPUT))
    if not has_input and not has_output:
        raise LeftOut("no price per token, or zero")
    if not has_input:
        raise LeftOut("no price per token of input")
    if not has_output and mode is not Mode.EMBEDDING:
        raise LeftOut("no price per token of output")
