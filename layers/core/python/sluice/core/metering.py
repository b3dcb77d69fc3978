"""What was used: the outcome of one model call, and counters that many calls are added up in."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sluice.core.pricing import CONTEXT_KINDS, TokenKind

TAGS_MAX: Final = 10
TAG_NAME_MAX: Final = 64
TAG_VALUE_MAX: Final = 128
BATCH_MAX: Final = 100

LATE_MAX_MS: Final = 35 * 86_400_000
"""How old a call may be when it is reported."""
AHEAD_MAX_MS: Final = 60_000
"""How far ahead the clock of whoever reports may be."""
REPEAT_MS: Final = 3_600_000
"""For how long a repeat is recognised that says nothing of when the call happened."""


class CallStatus(StrEnum):
    """How a call ended. What is not ok is an error, and costs what the provider billed."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Counters:
    """`unpriced`: requests whose cost nobody knows, and which are in no sum of costs."""

    cost_usd_micros: int = 0
    tokens: Mapping[TokenKind, int] = field(default_factory=dict)
    requests: int = 0
    errors: int = 0
    unpriced: int = 0

    def __add__(self, other: "Counters") -> "Counters":
        return Counters(
            self.cost_usd_micros + other.cost_usd_micros,
            {kind: self.tokens.get(kind, 0) + other.tokens.get(kind, 0) for kind in TokenKind},
            self.requests + other.requests,
            self.errors + other.errors,
            self.unpriced + other.unpriced,
        )


NOTHING_USED: Final = Counters()


def summed(parts: Iterable[Counters]) -> Counters:
    return sum(parts, NOTHING_USED)


def counted_call(cost_usd_micros: int | None, tokens: Mapping[TokenKind, int], status: CallStatus) -> Counters:
    """What one call adds. A cost of None: nobody knows it."""
    return Counters(
        cost_usd_micros=cost_usd_micros or 0,
        tokens={kind: tokens.get(kind, 0) for kind in TokenKind},
        requests=1,
        errors=int(status is not CallStatus.OK),
        unpriced=int(cost_usd_micros is None),
    )


def cache_hit_tenths(tokens: Mapping[TokenKind, int]) -> int | None:
    """Which share of the context was read from a cache, in tenths of a percent, cut. None where there was none."""
    context = sum(tokens.get(kind, 0) for kind in CONTEXT_KINDS)
    return tokens.get(TokenKind.CACHE_READ, 0) * 1000 // context if context else None
