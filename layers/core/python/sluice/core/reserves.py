"""What a call may take at most, told before it starts: by its model and its tokens, or as amounts. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from sluice.core.budget import Dimension, Slot
from sluice.core.errors import InvalidRequest
from sluice.core.pricing import Price, TokenKind, estimate_usd_micros

_ASKED_FOR: Final = (Dimension.COST, Dimension.TOKENS)
"""An execution is always one, and nobody has to say so."""


@dataclass(frozen=True, slots=True)
class ModelReserve:
    """`label` or `model_id`: exactly one."""

    input_tokens: int
    max_output_tokens: int
    label: str | None = None
    model_id: str | None = None
    region: str | None = None

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.max_output_tokens


@dataclass(frozen=True, slots=True)
class AmountReserve:
    cost_usd_micros: int
    tokens: int | None = None


Reserve = ModelReserve | AmountReserve


def check_reserve(reserve: Reserve) -> None:
    """What can not be meant. Raises InvalidRequest."""
    if isinstance(reserve, ModelReserve) and (reserve.label is None) == (reserve.model_id is None):
        raise InvalidRequest("reserve", "names either label or model_id")


def asked_dimensions(hard_slots: Iterable[Slot]) -> tuple[Dimension, ...]:
    """The dimensions that a reserve must know, where these limits are hard."""
    limited = {slot.dimension for slot in hard_slots}
    return tuple(dimension for dimension in _ASKED_FOR if dimension in limited)


def most_usd_micros(price: Price, input_tokens: int, output_tokens: int) -> int:
    """By the dearest column that the call may come under: a long one is not always dearer. Raises PriceUnknown."""
    tokens = {TokenKind.INPUT: input_tokens, TokenKind.OUTPUT: output_tokens}
    usual = replace(price, long_from_tokens=None)
    return max(estimate_usd_micros(one, tokens) for one in (price, usual))


def largest_output(asked: int, fits: Callable[[int], bool]) -> int:
    """The most output tokens below what was asked for that fit; 0 where not even one does. Less always fits better."""
    fitting, not_fitting = 0, asked
    while not_fitting - fitting > 1:
        middle = (fitting + not_fitting) // 2
        if fits(middle):
            fitting = middle
        else:
            not_fitting = middle
    return fitting
