"""Stand-ins for time, randomness and metrics, shared by the tests."""

from collections import Counter
from collections.abc import Callable

from sluice.core.signals import Signal


class FakeClock:
    """A clock that moves only when it is told to."""

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, duration_ms: int) -> None:
        self.now_ms += duration_ms


class CountingMeter:
    def __init__(self) -> None:
        self.counts: Counter[Signal] = Counter()

    def count(self, signal: Signal, amount: int = 1) -> None:
        self.counts[signal] += amount


def never_random(below: int) -> int:
    """The smallest draw, always."""
    return 0


class FakeRandom:
    """Draws what a test wants drawn; the smallest until it is told."""

    def __init__(self) -> None:
        self.draw: Callable[[int], int] = never_random

    def __call__(self, below: int) -> int:
        return self.draw(below)
