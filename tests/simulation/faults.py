"""What can go wrong with a call, how often, and how long a call takes. Drawn per call, from the seed."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from random import Random
from typing import Final

from tests.simulation.store import Call

TIMEOUT_MS: Final = 2_000
LATE_MOST_MS: Final = 3_000
STALE_MOST_MS: Final = 1_500
INDEX_LAG_MOST_MS: Final = 4_000
RESTART_MOST_MS: Final = 1_000
SKEW_MOST_MS: Final = 2_000


class Fault(StrEnum):
    """`LATE`: the client gave up, and the write is applied after that."""

    THROTTLED = "throttled"
    HOT_KEY = "throttled on its key"
    CONFLICT = "conflict"
    NOT_SENT = "not sent"
    ERROR_BEFORE = "error before the write"
    ERROR_AFTER = "error after the write"
    TIMEOUT_BEFORE = "timeout, not applied"
    TIMEOUT_AFTER = "timeout, applied"
    TIMEOUT_LATE = "timeout, applied later"
    CRASH_BEFORE = "crash before the write"
    CRASH_AFTER = "crash after the write"
    STALE_READ = "stale read"
    INDEX_LAG = "index lag"
    UNPROCESSED = "unprocessed keys"
    SHORT_PAGE = "short page"


_READ_WEIGHTS: Final = {
    Fault.THROTTLED: 4,
    Fault.NOT_SENT: 2,
    Fault.ERROR_BEFORE: 3,
    Fault.TIMEOUT_BEFORE: 2,
    Fault.CRASH_BEFORE: 1,
}
_WRITE_WEIGHTS: Final = {
    Fault.THROTTLED: 4,
    Fault.HOT_KEY: 2,
    Fault.CONFLICT: 4,
    Fault.NOT_SENT: 2,
    Fault.ERROR_BEFORE: 3,
    Fault.ERROR_AFTER: 3,
    Fault.TIMEOUT_BEFORE: 2,
    Fault.TIMEOUT_AFTER: 2,
    Fault.TIMEOUT_LATE: 2,
    Fault.CRASH_BEFORE: 1,
    Fault.CRASH_AFTER: 1,
}


WRITE_FAULTS: Final = tuple(_WRITE_WEIGHTS)


class _Draw:
    """One of several faults by weight, or none."""

    def __init__(self, weights: dict[Fault, int], share: float) -> None:
        total = sum(weights.values())
        self._faults = list(weights)
        self._bounds = list(accumulate(share * weight / total for weight in weights.values()))
        self._share = share

    def __call__(self, drawn: float) -> Fault | None:
        if drawn >= self._share:
            return None
        return self._faults[min(bisect_right(self._bounds, drawn), len(self._faults) - 1)]


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """`calls`: the share of calls that fail somehow. `reads`: of reads that are stale, keys that stay unprocessed,
    pages that end early. `lag`: of changes that an index shows late. `skew_most_ms`: each clock is off by up to this.
    `jumps`: of the looks at a clock that find it set anew, as far off as that.
    `aim`: chooses what happens to a write in place of a draw by weight.
    """

    calls: float = 0.0
    reads: float = 0.0
    lag: float = 0.0
    skew_most_ms: int = 0
    jumps: float = 0.0
    crashes: bool = True
    aim: Callable[[Call, float], Fault | None] | None = None

    def draws(self) -> tuple[_Draw, _Draw]:
        """For reads and for writes."""
        return _Draw(_without_crashes(_READ_WEIGHTS, self), self.calls), _Draw(
            _without_crashes(_WRITE_WEIGHTS, self), self.calls
        )


CALM: Final = FaultPlan()
PLANS: Final = (
    CALM,
    FaultPlan(skew_most_ms=SKEW_MOST_MS),
    FaultPlan(calls=0.05, reads=0.1, lag=0.2, skew_most_ms=SKEW_MOST_MS),
    FaultPlan(calls=0.2, reads=0.3, lag=0.5, skew_most_ms=SKEW_MOST_MS),
    FaultPlan(calls=0.4, reads=0.5, lag=0.8, skew_most_ms=SKEW_MOST_MS),
    FaultPlan(skew_most_ms=SKEW_MOST_MS, jumps=0.1),
    FaultPlan(calls=0.2, reads=0.3, lag=0.5, skew_most_ms=SKEW_MOST_MS, jumps=0.05),
)
_PLAN_WEIGHTS: Final = (1, 2, 4, 8, 8, 2, 4)


def draw_plan(random: Random) -> FaultPlan:
    """Also none at all: faults hide what goes wrong without them."""
    return random.choices(PLANS, _PLAN_WEIGHTS)[0]


@dataclass(frozen=True, slots=True)
class Latency:
    """One way. In lockstep nothing takes time, and only the order of the calls is drawn."""

    usual_ms: int
    slow_share: float
    slow_ms: int

    def draw(self, random: Random) -> int:
        drawn = random.random()
        if drawn < self.slow_share:
            return int(self.slow_ms * drawn / self.slow_share)
        return int(self.usual_ms * random.random())


LATENCIES: Final = (Latency(0, 0.0, 0), Latency(3, 0.0, 0), Latency(20, 0.0, 0), Latency(8, 0.1, 1_500))


def draw_latency(random: Random) -> Latency:
    return random.choice(LATENCIES)


def _without_crashes(weights: dict[Fault, int], plan: FaultPlan) -> dict[Fault, int]:
    if plan.crashes:
        return weights
    return {fault: weight for fault, weight in weights.items() if not fault.name.startswith("CRASH")}


def fits(fault: Fault, call: Call) -> bool:
    """A transaction names no hot key in its reasons."""
    return not (fault is Fault.HOT_KEY and call.is_transaction)
