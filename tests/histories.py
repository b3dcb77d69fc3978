"""What a history of requests and answers says, checked afterwards. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sluice.core.limits import Limit

MILLI: Final = 1000
SLACK_MS: Final = 100


class Violated(AssertionError):
    """A history that can not be."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """So many tokens, by a request that was sent and answered at these times."""

    amount: int
    sent_ms: int
    answered_ms: int


def check_every_window(admitted: Iterable[Admitted], limit: Limit, longest_ms: int) -> None:
    """Over every window: admitted <= burst + slack + rate * (window + longest request).

    By the time of the answer: whatever is answered within a window was taken within it, or up to the longest request
    before. All windows at once: from each moment on, what came above the rate since the best moment to begin.
    """
    period_ms = limit.refill_period_seconds * 1000
    rate = limit.refill_amount * MILLI
    slack = SLACK_MS * rate // period_ms // MILLI * MILLI
    # Times the period, so that it stays whole.
    bound = (limit.burst * MILLI + slack + 1) * period_ms + rate * longest_ms
    total, least = 0, None
    for one in sorted(admitted, key=lambda one: one.answered_ms):
        before = total * period_ms - rate * one.answered_ms
        least = before if least is None else min(least, before)
        total += one.amount * MILLI
        above = total * period_ms - rate * one.answered_ms - least
        if above > bound:
            raise Violated(f"{-(-(above - bound) // period_ms)} millitokens too many until {one.answered_ms} ms")
