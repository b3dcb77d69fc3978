"""What a call costs: the money vectors of the design, by their numbers, and what holds of every price."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.errors import InvalidRequest
from sluice.core.labels import LabelDefinition, fallback_price
from sluice.core.pricing import (
    PRICE_MAX_USD_MICROS,
    Price,
    Prices,
    PriceSource,
    PriceUnknown,
    Pricing,
    TokenKind,
    Tokens,
    check_prices,
    column,
    cost_usd_micros,
    estimate_usd_micros,
    in_force,
    same_prices,
)

INPUT, OUTPUT = TokenKind.INPUT, TokenKind.OUTPUT
READ, WRITE, WRITE_1H = TokenKind.CACHE_READ, TokenKind.CACHE_WRITE, TokenKind.CACHE_WRITE_1H
STANDARD, BATCH = Pricing.STANDARD, Pricing.BATCH


def priced(standard: Prices, batch: Prices | None = None) -> Price:
    return Price("p", PriceSource.SHIPPED, standard, batch or {})


NOVA_PRO = priced({INPUT: 800_000, OUTPUT: 3_200_000})
NOVA_MICRO = priced({INPUT: 35_000, OUTPUT: 140_000})
SONNET_REGIONAL = priced({INPUT: 3_300_000, OUTPUT: 16_500_000, READ: 330_000, WRITE: 4_125_000})
SONNET_GLOBAL = Price(
    "p",
    PriceSource.SHIPPED,
    {INPUT: 3_000_000, OUTPUT: 15_000_000, READ: 300_000, WRITE: 3_750_000, WRITE_1H: 6_000_000},
    {INPUT: 1_500_000, OUTPUT: 7_500_000},
    200_000,
    {INPUT: 6_000_000, OUTPUT: 22_500_000, READ: 600_000, WRITE: 7_500_000},
    {INPUT: 3_000_000},
)

# Number, price, tokens, pricing, cost, estimate.
VECTORS = [
    (1, priced({INPUT: 3_000_000, OUTPUT: 15_000_000}), {INPUT: 1500, OUTPUT: 800}, STANDARD, 16_500, 16_500),
    (2, NOVA_PRO, {INPUT: 1500, OUTPUT: 800}, STANDARD, 3_760, 3_760),
    (3, priced({INPUT: 330_000, OUTPUT: 2_750_000}), {INPUT: 10_000, OUTPUT: 2000}, STANDARD, 8_800, 8_800),
    (4, NOVA_MICRO, {INPUT: 5000, OUTPUT: 1000}, STANDARD, 315, 315),
    (5, NOVA_MICRO, {INPUT: 20, OUTPUT: 5}, STANDARD, 1, 2),
    (6, NOVA_MICRO, {INPUT: 10, OUTPUT: 0}, STANDARD, 0, 1),
    (7, NOVA_MICRO, {INPUT: 15, OUTPUT: 0}, STANDARD, 1, 1),
    (8, NOVA_MICRO, {INPUT: 1, OUTPUT: 1}, STANDARD, 0, 1),
    (9, priced({INPUT: 5_000}), {INPUT: 100}, STANDARD, 1, 1),
    (10, NOVA_MICRO, {INPUT: 0, OUTPUT: 0}, STANDARD, 0, 0),
    (11, SONNET_REGIONAL, {INPUT: 1000, OUTPUT: 500, READ: 20_000, WRITE: 2000}, STANDARD, 26_400, 26_400),
    (12, SONNET_GLOBAL, {INPUT: 10_000, OUTPUT: 1000}, BATCH, 22_500, 22_500),
    (13, SONNET_GLOBAL, {INPUT: 250_000, OUTPUT: 1000}, STANDARD, 1_522_500, 1_522_500),
    (14, priced({OUTPUT: 15_000_000}), {OUTPUT: 10**12}, STANDARD, 15_000_000_000_000, 15_000_000_000_000),
]


@pytest.mark.parametrize(
    ("price", "tokens", "pricing", "cost", "estimate"),
    [case[1:] for case in VECTORS],
    ids=[f"vector {case[0]}" for case in VECTORS],
)
def test_money_vectors(price: Price, tokens: Tokens, pricing: Pricing, cost: int, estimate: int) -> None:
    assert cost_usd_micros(price, tokens, pricing) == cost
    assert estimate_usd_micros(price, tokens, pricing) == estimate


@pytest.mark.parametrize(
    ("tokens", "is_long"),
    [
        ({INPUT: 200_000, OUTPUT: 10**9}, False),
        ({INPUT: 200_001}, True),
        ({INPUT: 50_000, READ: 50_000, WRITE: 50_000, WRITE_1H: 50_000}, False),
        ({INPUT: 50_000, READ: 50_000, WRITE: 50_000, WRITE_1H: 50_001}, True),
        ({READ: 200_001}, True),
        ({}, False),
    ],
)
def test_what_makes_a_call_long(tokens: Tokens, is_long: bool) -> None:
    """All of the context counts, wherever it comes from, and the output does not."""
    assert (column(SONNET_GLOBAL, tokens, STANDARD)[INPUT] == 6_000_000) == is_long
    assert (column(SONNET_GLOBAL, tokens, BATCH)[INPUT] == 3_000_000) == is_long


def test_what_a_long_call_has_no_price_for_keeps_its_usual_one() -> None:
    assert column(SONNET_GLOBAL, {INPUT: 200_001}, STANDARD)[WRITE_1H] == 6_000_000
    assert column(SONNET_GLOBAL, {INPUT: 200_001}, BATCH) == {INPUT: 3_000_000, OUTPUT: 7_500_000}
    assert column(NOVA_PRO, {INPUT: 10**12}, STANDARD) == NOVA_PRO.standard


@pytest.mark.parametrize("reckon", [cost_usd_micros, estimate_usd_micros])
def test_tokens_without_a_price_are_named_and_never_free(reckon: object) -> None:
    assert callable(reckon)
    with pytest.raises(PriceUnknown) as raised:
        reckon(NOVA_PRO, {INPUT: 1, WRITE_1H: 2, READ: 3}, STANDARD)
    assert raised.value.kinds == (READ, WRITE_1H)
    assert str(raised.value) == "no price for cache_read, cache_write_1h tokens"
    with pytest.raises(PriceUnknown):
        reckon(NOVA_PRO, {INPUT: 1}, BATCH)


def test_a_kind_without_tokens_needs_no_price() -> None:
    assert cost_usd_micros(NOVA_PRO, {INPUT: 1500, OUTPUT: 800, READ: 0}) == 3_760
    assert cost_usd_micros(NOVA_PRO, {}, BATCH) == 0


def test_what_is_free_costs_nothing() -> None:
    assert cost_usd_micros(priced({INPUT: 0}), {INPUT: 10**12}) == 0


amounts = st.integers(0, 10**12)
all_prices = st.fixed_dictionaries({kind: st.integers(0, PRICE_MAX_USD_MICROS) for kind in TokenKind})
all_tokens = st.dictionaries(st.sampled_from(TokenKind), amounts)
prices = st.builds(
    Price,
    price_id=st.just("p"),
    source=st.sampled_from(PriceSource),
    standard=all_prices,
    batch=all_prices,
    long_from_tokens=st.none() | st.integers(1, 10**12),
    long_standard=all_prices,
    long_batch=all_prices,
)
flat_prices = prices.map(lambda price: replace(price, long_from_tokens=None))
pricings = st.sampled_from(Pricing)


@given(prices, all_tokens, pricings)
def test_an_estimate_covers_the_cost_and_is_at_most_one_more(price: Price, tokens: Tokens, pricing: Pricing) -> None:
    cost, estimate = cost_usd_micros(price, tokens, pricing), estimate_usd_micros(price, tokens, pricing)
    assert type(cost) is int
    assert type(estimate) is int
    assert 0 <= cost <= estimate <= cost + 1


@given(prices, all_tokens, pricings)
def test_a_cost_is_the_nearest_whole_number(price: Price, tokens: Tokens, pricing: Pricing) -> None:
    """Written out once more, in hundred-thousandths, so that the product's own sum is not its own judge."""
    context = sum(tokens.get(kind, 0) for kind in (INPUT, READ, WRITE, WRITE_1H))
    is_long = price.long_from_tokens is not None and context > price.long_from_tokens
    usual, long = (price.batch, price.long_batch) if pricing is BATCH else (price.standard, price.long_standard)
    exact = sum(count * (long if is_long else usual)[kind] for kind, count in tokens.items())
    cost = cost_usd_micros(price, tokens, pricing)
    assert -500_000 < cost * 1_000_000 - exact <= 500_000


@given(flat_prices, all_tokens, st.sampled_from(TokenKind), st.integers(1, 10**9), pricings)
def test_more_tokens_never_cost_less(
    price: Price, tokens: dict[TokenKind, int], kind: TokenKind, more: int, pricing: Pricing
) -> None:
    larger = {**tokens, kind: tokens.get(kind, 0) + more}
    assert cost_usd_micros(price, larger, pricing) >= cost_usd_micros(price, tokens, pricing)
    assert estimate_usd_micros(price, larger, pricing) >= estimate_usd_micros(price, tokens, pricing)


def beginning(from_day: str | None, region: str | None = None, source: PriceSource = PriceSource.AWS) -> Price:
    return Price(f"{region}:{from_day}", source, {INPUT: 1}, region=region, from_day=from_day)


@pytest.mark.parametrize(
    ("region", "day", "expected"),
    [
        ("eu-west-1", "2026-01-31", None),
        ("eu-west-1", "2026-02-01", "None:2026-02-01"),
        ("eu-west-1", "2026-02-28", "None:2026-02-01"),
        # Just that region, however old, before no region.
        ("eu-west-1", "2026-03-01", "eu-west-1:2026-03-01"),
        ("eu-west-1", "2026-12-31", "eu-west-1:2026-05-01"),
        ("us-east-1", "2026-12-31", "None:2026-06-01"),
        (None, "2026-12-31", "None:2026-06-01"),
        (None, "2026-05-31", "None:2026-02-01"),
    ],
)
def test_the_price_of_a_day(region: str | None, day: str, expected: str | None) -> None:
    known = [
        beginning("2026-05-01", "eu-west-1"),
        beginning("2026-02-01"),
        beginning("2026-03-01", "eu-west-1"),
        beginning("2026-06-01"),
        beginning(None, "eu-west-1"),
    ]
    for order in (known, known[::-1]):
        found = in_force(order, region, day)
        assert (None if found is None else found.price_id) == expected


def test_no_prices_are_no_price() -> None:
    assert in_force([], None, "2026-01-01") is None
    assert in_force([beginning("2026-01-01", "eu-west-1")], "eu-west-2", "2026-01-01") is None


def test_prices_are_the_same_whoever_says_so() -> None:
    other = replace(SONNET_GLOBAL, price_id="q", source=PriceSource.AWS, region="eu-west-1", from_day="2026-01-01")
    assert same_prices(SONNET_GLOBAL, other)
    for changed in (
        replace(SONNET_GLOBAL, standard={**SONNET_GLOBAL.standard, INPUT: 1}),
        replace(SONNET_GLOBAL, batch={}),
        replace(SONNET_GLOBAL, long_from_tokens=200_001),
        replace(SONNET_GLOBAL, long_standard={}),
        replace(SONNET_GLOBAL, long_batch={}),
    ):
        assert not same_prices(SONNET_GLOBAL, changed)


@pytest.mark.parametrize(
    ("price", "field"),
    [
        (priced({}), "standard"),
        (priced({READ: 1, WRITE: 1, WRITE_1H: 1}), "standard"),
        (replace(NOVA_PRO, long_standard={INPUT: 1}), "long_standard"),
        (replace(NOVA_PRO, long_batch={INPUT: 1}), "long_batch"),
        (replace(NOVA_PRO, long_from_tokens=1), "long_from_tokens"),
    ],
)
def test_what_can_not_be_meant_as_a_price(price: Price, field: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        check_prices(price)
    assert raised.value.field == field


@pytest.mark.parametrize(
    "price",
    [
        NOVA_PRO,
        SONNET_GLOBAL,
        priced({INPUT: 0}),
        priced({OUTPUT: 1}),
        replace(NOVA_PRO, long_from_tokens=1, long_standard={OUTPUT: 1}),
        replace(NOVA_PRO, long_from_tokens=1, long_batch={OUTPUT: 1}),
    ],
)
def test_what_can_be_meant_as_a_price(price: Price) -> None:
    check_prices(price)


def label(input_price: int | None, output_price: int | None) -> LabelDefinition:
    return LabelDefinition("big", "own.model", None, None, None, input_price, output_price, 7, 1, 2)


def test_a_label_may_have_prices_of_its_own() -> None:
    price = fallback_price(label(5, 6))
    assert price == Price("label:big:7", PriceSource.LABEL, {INPUT: 5, OUTPUT: 6})
    assert fallback_price(label(0, None)) == Price("label:big:7", PriceSource.LABEL, {INPUT: 0})
    assert fallback_price(label(None, 6)) == Price("label:big:7", PriceSource.LABEL, {OUTPUT: 6})
    assert fallback_price(label(None, None)) is None
