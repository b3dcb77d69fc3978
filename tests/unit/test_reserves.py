"""What a call may take at most."""

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.budget import SLOTS, Dimension, Slot, Span
from sluice.core.errors import InvalidRequest
from sluice.core.pricing import Price, PriceSource, PriceUnknown, TokenKind
from sluice.core.reserves import (
    AmountReserve,
    ModelReserve,
    asked_dimensions,
    check_reserve,
    largest_output,
    most_usd_micros,
)

USUAL: Final = {TokenKind.INPUT: 3_000_000, TokenKind.OUTPUT: 15_000_000}


def price(long_from_tokens: int | None = None, **long: int) -> Price:
    return Price(
        "p",
        PriceSource.AWS,
        USUAL,
        long_from_tokens=long_from_tokens,
        long_standard={TokenKind(name): amount for name, amount in long.items()},
    )


def test_a_reserve_is_rounded_up() -> None:
    cheap = Price("p", PriceSource.AWS, {TokenKind.INPUT: 35_000, TokenKind.OUTPUT: 140_000})
    assert [most_usd_micros(cheap, *tokens) for tokens in ((20, 5), (10, 0), (1, 1), (0, 0))] == [2, 1, 1, 0]
    assert most_usd_micros(price(), 1_500, 800) == 16_500


def test_a_long_call_is_priced_as_one() -> None:
    dearer = price(200_000, input=6_000_000, output=22_500_000)
    assert most_usd_micros(dearer, 250_000, 1_000) == 1_522_500
    assert most_usd_micros(dearer, 200_000, 1_000) == 615_000


def test_the_dearer_column_counts() -> None:
    assert most_usd_micros(price(200_000, output=1), 250_000, 1_000) == 765_000


def test_nothing_is_free_because_nobody_knows_its_price() -> None:
    with pytest.raises(PriceUnknown):
        most_usd_micros(Price("p", PriceSource.AWS, {TokenKind.INPUT: 1}), 1, 1)


def test_either_a_label_or_a_model() -> None:
    check_reserve(AmountReserve(1))
    check_reserve(ModelReserve(1, 1, label="premium"))
    check_reserve(ModelReserve(1, 1, model_id="model"))
    for wrong in (ModelReserve(1, 1), ModelReserve(1, 1, label="premium", model_id="model")):
        with pytest.raises(InvalidRequest):
            check_reserve(wrong)


def test_tokens_are_input_and_output() -> None:
    assert ModelReserve(1_500, 800, label="premium").tokens == 2_300


def test_executions_are_not_asked_for() -> None:
    assert asked_dimensions(SLOTS) == (Dimension.COST, Dimension.TOKENS)
    assert asked_dimensions([Slot(Span.MONTH, Dimension.TOKENS)]) == (Dimension.TOKENS,)
    assert asked_dimensions([Slot(Span.DAY, Dimension.EXECUTIONS)]) == ()


@given(st.integers(0, 1_000), st.integers(-1, 1_001))
def test_the_longest_answer_that_fits(asked: int, most: int) -> None:
    """As trying every one of them would find it."""
    expected = max((output for output in range(1, asked) if output <= most), default=0)
    assert largest_output(asked, lambda output: output <= most) == expected
