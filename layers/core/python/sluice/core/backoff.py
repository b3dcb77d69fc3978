"""How long to wait before trying again. Randomness comes in as an argument."""

from collections.abc import Callable
from typing import Final

RandomBelow = Callable[[int], int]
"""A whole number from zero up to, not including, the argument."""

_FIRST_MS: Final = 10
_MOST_MS: Final = 200
_CONTENDED_LEAST_MS: Final = 25
_CONTENDED_SPREAD_MS: Final = 51


def pause_ms(attempt: int, random_below: RandomBelow) -> int:
    """Full jitter: anything from 1 ms to a bound that doubles with each attempt, so that writers spread out."""
    return 1 + random_below(min(_MOST_MS, _FIRST_MS << attempt))


def contended_wait_ms(random_below: RandomBelow) -> int:
    """What a caller is told to wait after a contended attempt: 25 to 75 ms, at random."""
    return _CONTENDED_LEAST_MS + random_below(_CONTENDED_SPREAD_MS)
