"""Values that change at a local midnight: the zone of an org, and what its quotas count.

Every process keeps such settings for a while. So a change is planned for a midnight that all of them learn of before it
comes, and what is about to begin is no longer taken back. The history stays: the day of an instant comes from the zone
that was in force then.
"""

from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

LEAD_MS: Final = 2 * 60_000
"""How far away a change is at least."""
HISTORY_MS: Final = 400 * 86_400_000
"""How long it is remembered what was in force: no day is asked for that is older."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class From(Generic[T]):
    """In force from then on."""

    from_ms: int
    value: T


Timeline = tuple[From[T], ...]
"""In the order of time, never empty. The first also holds for whatever was before it."""

Zones = Timeline[str]


class Calendar(Protocol):
    """Days of a zone, counted. A day starts at the first instant at which the calendar shows it or a later one."""

    def day(self, zone: str, at_ms: int) -> int: ...

    def starts_ms(self, zone: str, day: int) -> int: ...


def always(value: T) -> Timeline[T]:
    return (From(0, value),)


def in_force(timeline: Timeline[T], at_ms: int) -> T:
    return _begun(timeline, at_ms)[-1].value


def upcoming(timeline: Timeline[T], now_ms: int) -> From[T] | None:
    """What it will be in the end, if that has not begun."""
    last = timeline[-1]
    return last if len(timeline) > len(_begun(timeline, now_ms)) else None


def day_of(zones: Zones, at_ms: int, calendar: Calendar) -> int:
    """By the zone in force then, and never before the last day of an earlier zone."""
    begun = _begun(zones, at_ms)
    ends_ms = [*(one.from_ms - 1 for one in begun[1:]), at_ms]
    return max(calendar.day(zone.value, end_ms) for zone, end_ms in zip(begun, ends_ms, strict=True))


def day_starts_ms(zones: Zones, day: int, calendar: Calendar) -> int:
    """The first instant of that day or, where no instant belongs to it, of the next that there is."""
    first, *later_zones = zones
    starts_ms = [calendar.starts_ms(first.value, day)]
    starts_ms += [max(calendar.starts_ms(zone.value, day), zone.from_ms) for zone in later_zones]
    return next(
        (start_ms for start_ms, later in zip(starts_ms, zones[1:], strict=False) if start_ms < later.from_ms),
        starts_ms[-1],
    )


def next_midnight_ms(zones: Zones, at_ms: int, calendar: Calendar) -> int:
    """The first start of a day then or later. A day is never before the last day of an earlier zone."""
    today = day_of(zones, at_ms - 1, calendar)
    starts_ms = [max(calendar.starts_ms(zone.value, today + 1), zone.from_ms, at_ms) for zone in zones]
    # In the first zone that is still in force when it starts there.
    return next(
        (start_ms for start_ms, later in zip(starts_ms, zones[1:], strict=False) if start_ms < later.from_ms),
        starts_ms[-1],
    )


def planned(timeline: Timeline[T], value: T, now_ms: int, starts_ms: int) -> Timeline[T]:
    """With another value in the end, from then on. It replaces an earlier plan, unless that is about to begin."""
    fixed = settled(timeline, now_ms)
    return fixed if fixed[-1].value == value else (*fixed, From(starts_ms, value))


def settled(timeline: Timeline[T], now_ms: int) -> Timeline[T]:
    """What can no longer be changed, as far back as anybody asks."""
    forgotten = len(_begun(timeline, now_ms - HISTORY_MS)) - 1
    return _begun(timeline, now_ms + LEAD_MS - 1)[forgotten:]


def _begun(timeline: Timeline[T], at_ms: int) -> Timeline[T]:
    return timeline[:1] + tuple(one for one in timeline[1:] if one.from_ms <= at_ms)
