"""Local days once more, told by the calendar alone, so that the product is not its own judge.

Only for zones whose clocks are never set back over a midnight.
"""

from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final, TypeVar

from sluice.core.timelines import From, Timeline
from sluice.services.zones import zone_info

T = TypeVar("T")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# No day begins later than this after an instant of the day before it.
_LONGEST_MS: Final = 73 * 3_600_000
# In the year 2033.
_YEARS_END_MS: Final = 2_000_000_000_000


@lru_cache(maxsize=100_000)
def day_at(zones: Timeline[str], at_ms: int) -> str:
    """`yyyymmdd`: by the zone in force then, and never before the last day of an earlier zone."""
    begun = [one for one in zones[1:] if one.from_ms <= at_ms]
    shown = [_shown(zone.value, later.from_ms - 1) for zone, later in zip(zones, begun, strict=False)]
    return max([*shown, _shown(zones[len(begun)].value, at_ms)])


@lru_cache(maxsize=10_000)
def start_ms(zones: Timeline[str], at_ms: int) -> int:
    """When the day of an instant began."""
    today, first_ms = day_at(zones, at_ms), at_ms - _LONGEST_MS
    return first_ms + bisect_left(range(first_ms, at_ms), today, key=lambda one_ms: day_at(zones, one_ms))


@lru_cache(maxsize=10_000)
def end_ms(zones: Timeline[str], at_ms: int) -> int:
    """When the next day begins."""
    today, last_ms = day_at(zones, at_ms), at_ms + _LONGEST_MS
    following = f"{today}~"
    return at_ms + bisect_left(range(at_ms, last_ms), following, key=lambda one_ms: day_at(zones, one_ms))


@lru_cache(maxsize=10_000)
def first_ms(zones: Timeline[str], day: str) -> int:
    """When a day of these years begins; where no instant belongs to it, when the next one does."""
    return bisect_left(range(_YEARS_END_MS), day, key=lambda one_ms: day_at(zones, one_ms))


def value_at(timeline: Sequence[From[T]], at_ms: int) -> T:
    return [timeline[0], *(one for one in timeline[1:] if one.from_ms <= at_ms)][-1].value


@lru_cache(maxsize=100_000)
def _shown(zone: str, at_ms: int) -> str:
    shown: date = (_EPOCH + timedelta(milliseconds=at_ms)).astimezone(zone_info(zone)).date()
    return f"{shown:%Y%m%d}"
