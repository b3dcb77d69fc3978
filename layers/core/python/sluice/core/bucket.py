"""Bucket mathematics. Pure integers: millitokens and milliseconds since the epoch.

Refill is counted from the epoch and never stored:

    refill(now) = now * refill_amount // refill_period

An item keeps only the balance `tk`: what the level would be had nothing been refilled since the epoch, so usually far
below zero. The level that people see is `min(tk + refill(now), burst)`. As no time is kept, no writer moves one:
nothing is refilled twice, nothing is lost, and the one rounding does not depend on how often the bucket is written.

Two bounds on the balance say everything a condition has to ask:

    need(now, c) = c - refill(now)       the balance at which c tokens are there
    top(now)     = burst - refill(now)   the balance at which the limit is just full

A balance above `top` has overflowed, which means full. A debit therefore takes one of two forms: `SPEND` subtracts from
a balance between need and top; `SPEND_FROM_FULL` replaces an overflowed balance by `top - c`, forgetting the overflow.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

MILLI: Final = 1000

# Clocks and round trips blur the edge between full and nearly full by about this much.
SLACK_MS: Final = 100


@dataclass(frozen=True, slots=True)
class Parameters:
    """One limit as a bucket stores it."""

    capacity_milli: int
    burst_milli: int
    refill_amount_milli: int
    refill_period_ms: int


class Form(Enum):
    """How a debit of one limit is written."""

    SPEND = "spend"
    SPEND_FROM_FULL = "spend_from_full"


def refill_milli(limit: Parameters, now_ms: int) -> int:
    return now_ms * limit.refill_amount_milli // limit.refill_period_ms


def level_milli(limit: Parameters, balance_milli: int, now_ms: int) -> int:
    return min(balance_milli + refill_milli(limit, now_ms), limit.burst_milli)


def need_milli(limit: Parameters, amount_milli: int, now_ms: int) -> int:
    return amount_milli - refill_milli(limit, now_ms)


def top_milli(limit: Parameters, now_ms: int) -> int:
    return limit.burst_milli - refill_milli(limit, now_ms)


def slack_milli(limit: Parameters) -> int:
    """The refill of SLACK_MS in whole tokens, down: zero for slow limits, whose bursts are exact to the token."""
    return SLACK_MS * limit.refill_amount_milli // limit.refill_period_ms // MILLI * MILLI


def covers(limit: Parameters, balance_milli: int, amount_milli: int, now_ms: int) -> bool:
    """Whether the amount is there. Zero asks only that the limit is not in debt."""
    return balance_milli >= need_milli(limit, amount_milli, now_ms)


def is_overflowed(limit: Parameters, balance_milli: int, now_ms: int) -> bool:
    """Whether only SPEND_FROM_FULL fits. Where both forms fit, spending is better: passing time can not break it."""
    return balance_milli > top_milli(limit, now_ms) + slack_milli(limit)


def fitting_form(limit: Parameters, balance_milli: int, now_ms: int) -> Form:
    return Form.SPEND_FROM_FULL if is_overflowed(limit, balance_milli, now_ms) else Form.SPEND


def admit_at_ms(limit: Parameters, balance_milli: int, amount_milli: int, now_ms: int) -> int:
    """The first millisecond, not before now, at which the amount is there if nobody else spends."""
    missing_milli = amount_milli - balance_milli
    return max(now_ms, ceil_div(missing_milli * limit.refill_period_ms, limit.refill_amount_milli))


def refill_time_ms(limit: Parameters, amount_milli: int) -> int:
    """How long the limit takes to refill an amount, up."""
    return ceil_div(amount_milli * limit.refill_period_ms, limit.refill_amount_milli)


def fill_time_ms(limits: Iterable[Parameters]) -> int:
    """How long the slowest limit takes to fill from zero."""
    return max((refill_time_ms(limit, limit.burst_milli) for limit in limits), default=0)


def ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
