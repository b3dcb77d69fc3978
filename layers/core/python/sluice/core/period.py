"""Local days and months of an org: what a day is called, when it begins and when it is over.

Days are numbered as Python numbers dates, so that the next one is one more. Stored and shown they are `yyyymmdd`, which
sorts as time does. A day that clocks jump over has no instant: it begins and ends where the next one begins.
"""

from dataclasses import dataclass
from datetime import date

from sluice.core.errors import InvalidRequest
from sluice.core.timelines import Calendar, Zones, day_of, day_starts_ms


@dataclass(frozen=True, slots=True)
class LocalDay:
    """`ends_ms`: the next local midnight, which is no longer part of it."""

    number: int
    starts_ms: int
    ends_ms: int

    @property
    def name(self) -> str:
        return day_name(self.number)

    @property
    def month(self) -> str:
        return month_name(self.number)


def local_day(zones: Zones, at_ms: int, calendar: Calendar) -> LocalDay:
    """The day of an instant."""
    number = day_of(zones, at_ms, calendar)
    return numbered_day(zones, number, calendar)


def numbered_day(zones: Zones, number: int, calendar: Calendar) -> LocalDay:
    starts_ms = day_starts_ms(zones, number, calendar)
    return LocalDay(number, starts_ms, day_starts_ms(zones, number + 1, calendar))


@dataclass(frozen=True, slots=True)
class LocalMonth:
    """`ends_ms`: when the next month begins."""

    name: str
    starts_ms: int
    ends_ms: int


def local_month(zones: Zones, name: str, calendar: Calendar) -> LocalMonth:
    """A month by its stored name, `yyyymm`."""
    year, month = int(name[:4]), int(name[4:])
    following = date(year + month // 12, month % 12 + 1, 1)
    starts_ms = day_starts_ms(zones, date(year, month, 1).toordinal(), calendar)
    return LocalMonth(name, starts_ms, day_starts_ms(zones, following.toordinal(), calendar))


def day_name(number: int) -> str:
    return f"{date.fromordinal(number):%Y%m%d}"


def month_name(number: int) -> str:
    return f"{date.fromordinal(number):%Y%m}"


def day_number(name: str) -> int:
    """Of `yyyymmdd`, as it is stored."""
    return date(int(name[:4]), int(name[4:6]), int(name[6:8])).toordinal()


def parse_day(field: str, text: str) -> int:
    """Of `yyyy-mm-dd`, as people write it."""
    try:
        found = date.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(field, "is not a day, as yyyy-mm-dd") from None
    if text != found.isoformat():
        raise InvalidRequest(field, "is not a day, as yyyy-mm-dd")
    return found.toordinal()


def shown_day(number: int) -> str:
    """As people read it: `yyyy-mm-dd`."""
    return date.fromordinal(number).isoformat()


def shown_month(name: str) -> str:
    """Of `yyyymm`, as it is stored: `yyyy-mm`."""
    return f"{name[:4]}-{name[4:]}"
