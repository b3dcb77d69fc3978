"""Days of real zones: where midnight comes once, twice, or not at all."""

import shutil
import zoneinfo
from datetime import UTC, date, datetime, timedelta
from importlib.resources import files
from pathlib import Path

import pytest

from sluice.services.zones import ZoneCalendar, zone_info, zone_names

CALENDAR = ZoneCalendar()


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


def starts(zone: str, day: str) -> str:
    at_ms = CALENDAR.starts_ms(zone, date.fromisoformat(day).toordinal())
    assert at_ms % 1000 == 0
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def test_names_are_of_zones_only() -> None:
    names = zone_names()
    assert {"UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires", "Etc/GMT+5", "EST5EDT"} <= names
    for other in (
        "",
        "America",
        "Factory",
        "localtime",
        "posixrules",
        "posix/UTC",
        "right/UTC",
        "europe/berlin",
        "../UTC",
        "/UTC",
        "UTC ",
        "zone.tab",
        "tzdata.zi",
    ):
        assert other not in names


def test_what_the_machine_says_of_a_zone_does_not_count(tmp_path: Path) -> None:
    """Hole: of two machines with zone files of different years, each had days of its own."""
    before = starts("America/New_York", "2026-11-18")
    (tmp_path / "America").mkdir()
    shutil.copy(str(files("tzdata").joinpath("zoneinfo", "Asia", "Tokyo")), tmp_path / "America" / "New_York")
    path = zoneinfo.TZPATH
    try:
        zoneinfo.reset_tzpath([str(tmp_path)])
        zoneinfo.ZoneInfo.clear_cache()
        zone_info.cache_clear()
        new_year = datetime(2026, 1, 1, tzinfo=zoneinfo.ZoneInfo("America/New_York"))
        assert new_year.utcoffset() == timedelta(hours=9), "the machine has other files now"
        assert starts("America/New_York", "2026-11-18") == before == "2026-11-18T05:00:00"
    finally:
        zoneinfo.reset_tzpath(path)
        zoneinfo.ZoneInfo.clear_cache()


@pytest.mark.parametrize("zone", sorted(zone_names()))
def test_every_zone_that_has_a_name_has_its_clocks(zone: str) -> None:
    at_ms = ms("2026-11-18T12:00:00")
    day = CALENDAR.day(zone, at_ms)
    assert CALENDAR.starts_ms(zone, day) <= at_ms < CALENDAR.starts_ms(zone, day + 1)


@pytest.mark.parametrize(
    ("zone", "day", "expected"),
    [
        ("UTC", "2026-11-18", "2026-11-18T00:00:00"),
        ("Asia/Kathmandu", "2026-11-18", "2026-11-17T18:15:00"),
        ("Europe/Berlin", "2026-03-29", "2026-03-28T23:00:00"),
        ("Europe/Berlin", "2026-03-30", "2026-03-29T22:00:00"),
        # Clocks jump from 0:00 to 1:00.
        ("Africa/Cairo", "2026-04-24", "2026-04-23T22:00:00"),
        ("Africa/Cairo", "2026-04-25", "2026-04-24T21:00:00"),
        ("America/Sao_Paulo", "2018-11-04", "2018-11-04T03:00:00"),
        ("Asia/Beirut", "2022-03-27", "2022-03-26T22:00:00"),
        # Clocks go back at 24:00 to 23:00: midnight comes once, later.
        ("America/Sao_Paulo", "2019-02-17", "2019-02-17T03:00:00"),
        ("Africa/Cairo", "2026-10-30", "2026-10-29T22:00:00"),
        # Clocks go back from 1:00 to 0:00: midnight comes twice, and the first counts.
        ("America/Havana", "2026-11-01", "2026-11-01T04:00:00"),
        ("Atlantic/Azores", "2026-10-25", "2026-10-25T00:00:00"),
        # Clocks went back from 0:01 to 23:01: for a minute it was the next day already.
        ("America/St_Johns", "2006-10-29", "2006-10-29T02:30:00"),
        # Clocks jumped from 23:30 to 0:30.
        ("America/Toronto", "1919-03-31", "1919-03-31T04:30:00"),
        # There was no 30th December: it starts with the 31st.
        ("Pacific/Apia", "2011-12-30", "2011-12-30T10:00:00"),
        ("Pacific/Apia", "2011-12-31", "2011-12-30T10:00:00"),
    ],
)
def test_a_day_starts_when_the_calendar_first_shows_it_or_a_later_one(zone: str, day: str, expected: str) -> None:
    assert starts(zone, day) == expected


def test_a_day_does_not_come_back_when_clocks_go_back() -> None:
    at_ms = ms("2006-10-29T02:30:00")
    day = date(2006, 10, 29).toordinal()
    shown = [CALENDAR.day("America/St_Johns", at_ms + minutes * 60_000) for minutes in (-1, 0, 1, 30, 60, 61, 90)]
    assert shown == [day - 1, day, day, day, day, day, day]


@pytest.mark.parametrize(
    "zone",
    [
        "Africa/Cairo",
        "America/Havana",
        "America/Santiago",
        "America/Sao_Paulo",
        "America/St_Johns",
        "Asia/Beirut",
        "Asia/Gaza",
        "Asia/Tehran",
        "Atlantic/Azores",
        "Australia/Lord_Howe",
        "Europe/Berlin",
        "Pacific/Apia",
    ],
)
def test_days_follow_one_another(zone: str) -> None:
    """Each of 24 years: at its start a day is shown, or a later one, and an instant before it an earlier one."""
    first = date(2005, 1, 1).toordinal()
    for day in range(first, first + 24 * 365):
        at_ms = CALENDAR.starts_ms(zone, day)
        assert CALENDAR.day(zone, at_ms) >= day > CALENDAR.day(zone, at_ms - 1)
        length = timedelta(milliseconds=CALENDAR.starts_ms(zone, day + 1) - at_ms)
        assert length == timedelta() or timedelta(hours=22) < length < timedelta(hours=26)
