"""Local months: where they begin and end, and how people read them."""

from datetime import UTC, datetime

import pytest

from sluice.core.period import local_month, shown_month
from sluice.core.timelines import From, always
from sluice.services.zones import ZoneCalendar


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


@pytest.mark.parametrize(
    ("zone", "name", "starts", "ends"),
    [
        ("UTC", "202601", "2026-01-01T00:00", "2026-02-01T00:00"),
        ("America/New_York", "202603", "2026-03-01T05:00", "2026-04-01T04:00"),
        ("Asia/Kathmandu", "202512", "2025-11-30T18:15", "2025-12-31T18:15"),
        ("Pacific/Kiritimati", "202602", "2026-01-31T10:00", "2026-02-28T10:00"),
        # Clocks jump over a whole day just before the month ends.
        ("Pacific/Apia", "201112", "2011-12-01T10:00", "2011-12-31T10:00"),
    ],
)
def test_a_month_begins_with_its_first_day_and_ends_with_the_next(zone: str, name: str, starts: str, ends: str) -> None:
    month = local_month(always(zone), name, ZoneCalendar())
    assert (month.name, month.starts_ms, month.ends_ms) == (name, ms(starts), ms(ends))


def test_a_month_in_which_the_zone_changed_has_the_ends_of_both() -> None:
    zones = (From(0, "UTC"), From(ms("2026-01-15T00:00"), "America/New_York"))
    month = local_month(zones, "202601", ZoneCalendar())
    assert (month.starts_ms, month.ends_ms) == (ms("2026-01-01T00:00"), ms("2026-02-01T05:00"))


def test_months_are_shown_with_a_dash() -> None:
    assert shown_month("202601") == "2026-01"
