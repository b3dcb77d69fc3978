"""Counters that calls are added up in, and how much of a quota is spent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.metering import (
    NOTHING_USED,
    CallStatus,
    Counters,
    cache_hit_tenths,
    counted_call,
    summed,
)
from sluice.core.pricing import TokenKind
from sluice.core.quotas import Mode, mode_of, percent_tenths

USD = 1_000_000
AMOUNTS = st.integers(min_value=0, max_value=10**15)
COUNTERS = st.builds(
    Counters,
    AMOUNTS,
    st.dictionaries(st.sampled_from(TokenKind), AMOUNTS),
    AMOUNTS,
    AMOUNTS,
    AMOUNTS,
)


@pytest.mark.parametrize(
    ("spent", "quota", "threshold_pct", "mode", "tenths"),
    [
        pytest.param(9_499_999, 10 * USD, 95, Mode.NORMAL, 949, id="15"),
        pytest.param(9_500_000, 10 * USD, 95, Mode.TIGHT, 950, id="16"),
        pytest.param(9_999_999, 10 * USD, 95, Mode.TIGHT, 999, id="17"),
        pytest.param(10_000_000, 10 * USD, 95, Mode.EXCEEDED, 1_000, id="18a"),
        pytest.param(10_250_000, 10 * USD, 95, Mode.EXCEEDED, 1_025, id="18b"),
        pytest.param(0, 0, 95, Mode.EXCEEDED, None, id="19a"),
        pytest.param(7, 0, 95, Mode.EXCEEDED, None, id="19b"),
        pytest.param(18_500_000, 20 * USD, 90, Mode.TIGHT, 925, id="20a"),
        pytest.param(18_500_000, 20 * USD, 95, Mode.NORMAL, 925, id="20b"),
        pytest.param(17_999_999, 20 * USD, 90, Mode.NORMAL, 899, id="20c"),
        # Nothing spent, a quota of one micro-dollar, and more than floats could tell apart.
        (0, 1, 1, Mode.NORMAL, 0),
        (1, 1, 99, Mode.EXCEEDED, 1_000),
        (10**15 - 1, 10**15, 99, Mode.TIGHT, 999),
        (99 * 10**13 - 1, 10**15, 99, Mode.NORMAL, 989),
    ],
)
def test_how_much_of_a_quota_is_spent(
    spent: int, quota: int, threshold_pct: int, mode: Mode, tenths: int | None
) -> None:
    assert (mode_of(spent, quota, threshold_pct), percent_tenths(spent, quota)) == (mode, tenths)


@given(AMOUNTS, AMOUNTS, st.integers(min_value=1, max_value=99))
def test_modes_and_percentages_never_contradict_each_other(spent: int, quota: int, threshold_pct: int) -> None:
    mode, tenths = mode_of(spent, quota, threshold_pct), percent_tenths(spent, quota)
    if tenths is None:
        assert (quota, mode) == (0, Mode.EXCEEDED)
        return
    assert (mode is Mode.EXCEEDED) == (tenths >= 1_000)
    assert (mode is Mode.NORMAL) == (tenths < threshold_pct * 10)


def test_what_one_call_adds() -> None:
    found = counted_call(7, {TokenKind.INPUT: 3, TokenKind.CACHE_READ: 2}, CallStatus.OK)
    assert found == Counters(7, {**dict.fromkeys(TokenKind, 0), TokenKind.INPUT: 3, TokenKind.CACHE_READ: 2}, 1, 0, 0)


@pytest.mark.parametrize(("status", "errors"), [(CallStatus.OK, 0), (CallStatus.ERROR, 1), (CallStatus.TIMEOUT, 1)])
@pytest.mark.parametrize(("cost", "counted", "unpriced"), [(0, 0, 0), (7, 7, 0), (None, 0, 1)])
def test_a_failed_call_costs_what_it_did_and_an_unknown_price_is_not_nothing(
    status: CallStatus, errors: int, cost: int | None, counted: int, unpriced: int
) -> None:
    found = counted_call(cost, {}, status)
    assert (found.cost_usd_micros, found.requests, found.errors, found.unpriced) == (counted, 1, errors, unpriced)


@given(st.lists(COUNTERS, max_size=5))
def test_sums_are_exact_whatever_their_order(parts: list[Counters]) -> None:
    total = summed(parts)
    assert total == summed(reversed(parts))
    assert total.cost_usd_micros == sum(part.cost_usd_micros for part in parts)
    for kind in TokenKind:
        assert total.tokens.get(kind, 0) == sum(part.tokens.get(kind, 0) for part in parts)
    for name in ("requests", "errors", "unpriced"):
        assert getattr(total, name) == sum(getattr(part, name) for part in parts)


def test_a_sum_of_nothing_is_nothing() -> None:
    assert summed([]) == NOTHING_USED


@pytest.mark.parametrize(
    ("tokens", "tenths"),
    [
        ({}, None),
        ({TokenKind.OUTPUT: 7}, None),
        ({TokenKind.INPUT: 7}, 0),
        ({TokenKind.CACHE_READ: 7}, 1_000),
        ({TokenKind.INPUT: 1, TokenKind.CACHE_READ: 2}, 666),
        # What was written to the cache was not read from it.
        ({TokenKind.INPUT: 1, TokenKind.CACHE_READ: 1, TokenKind.CACHE_WRITE: 1, TokenKind.CACHE_WRITE_1H: 1}, 250),
        ({TokenKind.INPUT: 1, TokenKind.CACHE_READ: 10**12}, 999),
    ],
)
def test_how_much_of_the_context_came_from_a_cache(tokens: dict[TokenKind, int], tenths: int | None) -> None:
    assert cache_hit_tenths(tokens) == tenths
