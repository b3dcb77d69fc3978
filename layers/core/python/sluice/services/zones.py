"""Time zones by their IANA names, and the days of a zone.

Names and clocks come from the package that is shipped, not from the machine: what a machine calls `localtime` or
`posix/...` is no zone of an org, and two machines whose files are of different years would count one call on two days.
Days are numbered as Python numbers dates.
"""

from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from importlib.resources import files
from typing import Final
from zoneinfo import ZoneInfo

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
# Nowhere did clocks ever jump further ahead.
_GAP_MAX_S: Final = 48 * 3600
_NO_ZONE: Final = "Factory"


@cache
def zone_names() -> frozenset[str]:
    listed = files("tzdata").joinpath("zones").read_text("utf-8")
    return frozenset(listed.split()) - {_NO_ZONE}


@cache
def zone_info(name: str) -> ZoneInfo:
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as data:
        return ZoneInfo.from_file(data, name)


class ZoneCalendar:
    """The days of zones, with every change of their clocks."""

    def day(self, zone: str, at_ms: int) -> int:
        """Clocks that are set back over a midnight do not bring the day before back."""
        shown = _date(zone, at_ms).toordinal()
        return shown + 1 if self.starts_ms(zone, shown + 1) <= at_ms else shown

    def starts_ms(self, zone: str, day: int) -> int:
        """At midnight, the first if it comes twice; where clocks jump over it, when they jump."""
        midnight = datetime.combine(date.fromordinal(day), time(), zone_info(zone))
        at_ms = (midnight.astimezone(UTC) - _EPOCH) // _MS
        if _local(zone, at_ms).replace(tzinfo=None) == midnight.replace(tzinfo=None):
            return at_ms
        # The jump is before that instant, and there the date is not reached yet.
        before_s, after_s = at_ms // 1000 - _GAP_MAX_S, at_ms // 1000
        while after_s - before_s > 1:
            middle_s = (before_s + after_s) // 2
            if _date(zone, middle_s * 1000).toordinal() >= day:
                after_s = middle_s
            else:
                before_s = middle_s
        return after_s * 1000


def _local(zone: str, at_ms: int) -> datetime:
    return (_EPOCH + at_ms * _MS).astimezone(zone_info(zone))


def _date(zone: str, at_ms: int) -> date:
    return _local(zone, at_ms).date()
