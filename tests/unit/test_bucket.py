"""Rules 1.1 to 1.6: every vector, and the properties that make them true in general."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core import bucket
from sluice.core.bucket import Form, Parameters

LARGEST = 10**15
NOW_MAX = 4_102_444_800_000


def limit(bx: int, ra: int, rp: int) -> Parameters:
    return Parameters(capacity_milli=bx, burst_milli=bx, refill_amount_milli=ra, refill_period_ms=rp)


LEVELS = [
    ("B1", 0, 120000, 100000000, 100000000, 60000, 100000000, -100000000),
    ("B2", 0, 30000, 100000000, 100000000, 60000, 50000000, 50000000),
    ("B3", 48333334, 1000, 100000000, 100000000, 60000, 50000000, 98333334),
    ("B4", 4667, 1000, 10000, 10000, 60000, 4833, 9834),
    ("B5", 0, 5, 10000, 10000, 60000, 0, 10000),
    ("B6", 0, 6, 10000, 10000, 60000, 1, 9999),
    ("B7", 0, 7, 10000, 10000, 60000, 1, 9999),
    ("B8", 0, 10, 1000000, 1000, 3000, 3, 999997),
    ("B9", -1500000, 60000, 1000000, 1000000, 60000, -500000, 0),
    ("B10", -30000000, 30000, 100000000, 100000000, 60000, 20000000, 50000000),
    ("B11", 60000, 0, 10000, 10000, 60000, 10000, 10000),
    ("B12", 60000, 6000, 10000, 10000, 60000, 10000, 9000),
    ("B13", 90000, 1000, 100000, 100000, 60000, 91666, 98334),
    ("B14", 100000, 60000, 200000, 100000, 60000, 200000, 100000),
    ("B15", 0, 86399, 1000000, 1000, 86400000, 0, 1000000),
    ("B16", 0, 86400, 1000000, 1000, 86400000, 1, 999999),
    ("B17", -284011200020500, 1704067201456, 10000000, 10000000, 60000, 222166, -284011190242666),
]

RETRIES = [
    ("R1", 0, 0, 1000, 10000, 60000, 6000),
    ("R2", 0, 0, 1000, 60000, 60000, 1000),
    ("R3", 0, 0, 500000, 100000, 60000, 300000),
    ("R4", 0, 0, 1, 100000, 60000, 1),
    ("R5", -16000, 0, 1000, 10000, 60000, 102000),
    ("R6", 0, 1000, 1000, 1000, 86400000, 86399000),
    ("R7", -31000, 1000, 1000, 60000, 60000, 31000),
    ("R8", 500, 456, 1000, 7, 1000, 70973),
    ("R9", 999, 16, 1000, 60000, 60000, 0),
]


@pytest.mark.parametrize(("name", "tk", "now", "bx", "ra", "rp", "level", "top"), LEVELS)
def test_level_vectors(name: str, *, tk: int, now: int, bx: int, ra: int, rp: int, level: int, top: int) -> None:
    assert bucket.level_milli(limit(bx, ra, rp), tk, now) == level
    assert bucket.top_milli(limit(bx, ra, rp), now) == top


@pytest.mark.parametrize(("name", "tk", "now", "need", "ra", "rp", "wait"), RETRIES)
def test_retry_vectors(name: str, tk: int, now: int, need: int, ra: int, rp: int, wait: int) -> None:
    assert bucket.admit_at_ms(limit(LARGEST, ra, rp), tk, need, now) - now == wait


parameters = st.builds(
    limit,
    bx=st.integers(1, LARGEST),
    ra=st.integers(1, LARGEST),
    rp=st.integers(1, 31_536_000_000),
)
times = st.integers(0, NOW_MAX)
balances = st.integers(-(10**26), 10**26)


@given(parameters, times, st.lists(st.integers(0, 10**9), max_size=20))
def test_refill_does_not_depend_on_how_often_it_is_looked_at(p: Parameters, start: int, steps: list[int]) -> None:
    """Hole: rounding at every write. The sum over any steps equals one step, because nothing is stored in between."""
    now, gained = start, 0
    for step in steps:
        gained += bucket.refill_milli(p, now + step) - bucket.refill_milli(p, now)
        now += step
    assert gained == bucket.refill_milli(p, now) - bucket.refill_milli(p, start)
    exact = Fraction((now - start) * p.refill_amount_milli, p.refill_period_ms)
    assert abs(gained - exact) < 1


@given(parameters, balances, times, st.integers(0, 10**12))
def test_level_never_falls_with_time_and_never_passes_the_burst(p: Parameters, tk: int, now: int, later: int) -> None:
    assert bucket.level_milli(p, tk, now) <= bucket.level_milli(p, tk, now + later) <= p.burst_milli


@given(parameters, times, st.data())
def test_admit_at_is_the_first_moment(p: Parameters, now: int, data: st.DataObject) -> None:
    amount = data.draw(st.integers(0, p.burst_milli))
    level = data.draw(st.integers(-LARGEST, p.burst_milli))
    tk = level - bucket.refill_milli(p, now)
    at = bucket.admit_at_ms(p, tk, amount, now)
    assert at >= now
    assert bucket.covers(p, tk, amount, at)
    assert at == now or not bucket.covers(p, tk, amount, at - 1)


@given(parameters, balances, times)
def test_need_and_top_are_the_bounds_of_the_level(p: Parameters, tk: int, now: int) -> None:
    full = tk >= bucket.top_milli(p, now)
    assert (bucket.level_milli(p, tk, now) == p.burst_milli) == full
    assert bucket.covers(p, tk, 0, now) == (bucket.level_milli(p, tk, now) >= 0)


@given(parameters, balances, times, st.data())
def test_the_fitting_form_leaves_the_exact_level(p: Parameters, tk: int, now: int, data: st.DataObject) -> None:
    """Either form leaves level - amount; spending just above the top keeps at most the slack beyond it."""
    amount = data.draw(st.integers(0, p.burst_milli))
    before = bucket.level_milli(p, tk, now)
    if bucket.fitting_form(p, tk, now) is Form.SPEND_FROM_FULL:
        after = bucket.top_milli(p, now) - amount
        assert after + bucket.refill_milli(p, now) == p.burst_milli - amount
        return
    after = tk - amount + bucket.refill_milli(p, now)
    assert 0 <= after - (before - amount) <= bucket.slack_milli(p)


@pytest.mark.parametrize(
    ("tokens_per_second", "slack"),
    [(1, 0), (9, 0), (10, 1000), (19, 1000), (20, 2000), (1000, 100_000)],
)
def test_slack_is_whole_tokens_and_zero_for_slow_limits(tokens_per_second: int, slack: int) -> None:
    assert bucket.slack_milli(limit(10**9, tokens_per_second * 1000, 1000)) == slack


def test_slack_lets_both_forms_fit_and_prefers_spend() -> None:
    fast = limit(1_000_000, 100_000, 1000)
    top = bucket.top_milli(fast, 5000)
    slack = bucket.slack_milli(fast)
    assert slack == 10_000
    assert bucket.fitting_form(fast, top + slack, 5000) is Form.SPEND
    assert bucket.fitting_form(fast, top + slack + 1, 5000) is Form.SPEND_FROM_FULL


def test_fill_time_is_that_of_the_slowest_limit() -> None:
    assert bucket.fill_time_ms([limit(10_000, 10_000, 60_000), limit(10_000, 1000, 3_600_000)]) == 36_000_000
    assert bucket.fill_time_ms([]) == 0


def test_the_largest_limit_stays_within_the_digits_of_a_stored_number() -> None:
    largest = limit(LARGEST, LARGEST, 1000)
    assert len(str(abs(bucket.top_milli(largest, NOW_MAX)))) <= 25 + 1
    assert len(str(abs(bucket.top_milli(largest, 1_800_000_000_000)))) == 25
