"""Local days and months of orgs: the vectors of time, changes of zones, and that days leave no instant out."""

from dataclasses import replace
from datetime import UTC, date, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.errors import InvalidRequest
from sluice.core.orgs import NEW_ORG, OrgChange, merge_org
from sluice.core.period import (
    LocalDay,
    day_name,
    day_number,
    local_day,
    month_name,
    numbered_day,
    parse_day,
    shown_day,
)
from sluice.core.timelines import LEAD_MS, From, Zones, always
from sluice.services.zones import ZoneCalendar

CALENDAR = ZoneCalendar()
HOUR_MS = 3_600_000
NEW_YORK, APIA, LORD_HOWE = "America/New_York", "Pacific/Apia", "Australia/Lord_Howe"
CAIRO, SAO_PAULO, KIRITIMATI = "Africa/Cairo", "America/Sao_Paulo", "Pacific/Kiritimati"
ZONES = (
    "UTC",
    NEW_YORK,
    APIA,
    LORD_HOWE,
    CAIRO,
    SAO_PAULO,
    KIRITIMATI,
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "America/Havana",
    "America/St_Johns",
    "Asia/Beirut",
    "Europe/Berlin",
    "Pacific/Chatham",
)


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


def utc(at_ms: int) -> str:
    assert at_ms % 1000 == 0
    return f"{datetime.fromtimestamp(at_ms // 1000, UTC):%Y-%m-%dT%H:%M}Z"


def day_at(zone: str, text: str) -> LocalDay:
    return local_day(always(zone), ms(text), CALENDAR)


def named(zone: str, name: str) -> LocalDay:
    return numbered_day(always(zone), day_number(name), CALENDAR)


def hours(day: LocalDay) -> float:
    return (day.ends_ms - day.starts_ms) / HOUR_MS


@pytest.mark.parametrize(
    ("zone", "at", "expected"),
    [
        pytest.param(NEW_YORK, "2026-01-23T04:59:59", "20260122", id="25a"),
        pytest.param(NEW_YORK, "2026-01-23T05:00:00", "20260123", id="25b"),
        pytest.param(NEW_YORK, "2026-03-08T06:59:59", "20260308", id="26a"),
        pytest.param(NEW_YORK, "2026-03-08T07:00:00", "20260308", id="26b"),
        pytest.param(NEW_YORK, "2026-03-09T03:59:59", "20260308", id="28a"),
        pytest.param(NEW_YORK, "2026-03-09T04:00:00", "20260309", id="28b"),
        pytest.param(NEW_YORK, "2026-11-01T05:30:00", "20261101", id="29a"),
        pytest.param(NEW_YORK, "2026-11-01T06:30:00", "20261101", id="29b"),
        pytest.param(NEW_YORK, "2026-11-02T04:59:59", "20261101", id="31a"),
        pytest.param(NEW_YORK, "2026-11-02T05:00:00", "20261102", id="31b"),
        pytest.param("Asia/Kolkata", "2026-06-30T18:29:59", "20260630", id="32a"),
        pytest.param("Asia/Kolkata", "2026-06-30T18:30:00", "20260701", id="32b"),
        pytest.param("Asia/Kathmandu", "2025-12-31T18:14:59", "20251231", id="33a"),
        pytest.param("Asia/Kathmandu", "2025-12-31T18:15:00", "20260101", id="33b"),
        pytest.param(APIA, "2011-12-30T09:59:59", "20111229", id="34a"),
        pytest.param(APIA, "2011-12-30T10:00:00", "20111231", id="34b"),
        pytest.param(APIA, "2026-01-01T10:59:59", "20260101", id="36a"),
        pytest.param(APIA, "2026-01-01T11:00:00", "20260102", id="36b"),
        pytest.param(KIRITIMATI, "2026-01-31T10:30:00", "20260201", id="37"),
        pytest.param(NEW_YORK, "2026-03-01T04:59:59", "20260228", id="42a"),
        pytest.param(NEW_YORK, "2026-03-01T05:00:00", "20260301", id="42b"),
    ],
)
def test_the_day_of_an_instant(zone: str, at: str, expected: str) -> None:
    day = day_at(zone, at)
    # The month is that of the day, so both turn in the same instant: vectors 32, 37 and 42.
    assert (day.name, day.month) == (expected, expected[:6])
    assert day.starts_ms <= ms(at) < day.ends_ms


@pytest.mark.parametrize(
    ("zone", "name", "starts", "length_h"),
    [
        pytest.param(NEW_YORK, "20260308", "2026-03-08T05:00Z", 23, id="27"),
        pytest.param(NEW_YORK, "20261101", "2026-11-01T04:00Z", 25, id="30"),
        pytest.param(APIA, "20111229", "2011-12-29T10:00Z", 24, id="35a"),
        pytest.param(APIA, "20111230", "2011-12-30T10:00Z", 0, id="35b"),
        pytest.param(LORD_HOWE, "20261004", "2026-10-03T13:30Z", 23.5, id="38a"),
        pytest.param(LORD_HOWE, "20260405", "2026-04-04T13:00Z", 24.5, id="38b"),
        pytest.param(CAIRO, "20260424", "2026-04-23T22:00Z", 23, id="39"),
        pytest.param(CAIRO, "20261029", "2026-10-28T21:00Z", 25, id="40"),
        pytest.param(SAO_PAULO, "20181104", "2018-11-04T03:00Z", 23, id="41"),
    ],
)
def test_when_a_day_begins_and_how_long_it_is(zone: str, name: str, starts: str, length_h: float) -> None:
    day = named(zone, name)
    assert (utc(day.starts_ms), hours(day)) == (starts, length_h)


def test_the_reset_after_the_day_before_one_that_was_jumped_over() -> None:
    """Vector 35: a quota of the 29th is good until the 31st begins."""
    assert utc(named(APIA, "20111229").ends_ms) == "2011-12-30T10:00Z"


# Changes of the zone.


def changed(zones: Zones, zone: str, now_ms: int) -> Zones:
    settings = replace(NEW_ORG, zones=zones)
    return merge_org(settings, OrgChange(timezone=zone), now_ms, CALENDAR).zones


def test_a_change_takes_effect_at_the_next_midnight_of_the_old_zone() -> None:
    zones = changed(always(NEW_YORK), "Europe/Berlin", ms("2026-06-10T12:00:00"))
    assert zones == (From(0, NEW_YORK), From(ms("2026-06-11T04:00:00"), "Europe/Berlin"))
    # Until then it is the tenth in New York, and from then on the eleventh in Berlin, six hours shorter.
    tenth, eleventh, twelfth = (numbered_day(zones, day_number(f"202606{n}"), CALENDAR) for n in (10, 11, 12))
    assert [utc(one.starts_ms) for one in (tenth, eleventh, twelfth)] == [
        "2026-06-10T04:00Z",
        "2026-06-11T04:00Z",
        "2026-06-11T22:00Z",
    ]
    assert local_day(zones, ms("2026-06-11T03:59:59"), CALENDAR) == tenth
    assert local_day(zones, ms("2026-06-11T04:00:00"), CALENDAR) == eleventh
    assert hours(eleventh) == 18


def test_to_the_west_a_day_goes_on_and_never_comes_back() -> None:
    zones = changed(always("Europe/Berlin"), NEW_YORK, ms("2026-06-10T12:00:00"))
    begins_ms = ms("2026-06-10T22:00:00")
    assert zones[-1] == From(begins_ms, NEW_YORK)
    # In New York it is still the tenth, which was the last day in Berlin: it goes on to its own midnight there.
    assert local_day(zones, begins_ms - 1, CALENDAR).name == local_day(zones, begins_ms, CALENDAR).name == "20260610"
    assert hours(local_day(zones, begins_ms, CALENDAR)) == 30


def test_a_change_is_two_minutes_away_at_least() -> None:
    midnight_ms = ms("2026-06-11T04:00:00")
    for now_ms, expected in (
        (midnight_ms - LEAD_MS, "2026-06-11T04:00Z"),
        (midnight_ms - LEAD_MS + 1, "2026-06-12T04:00Z"),
    ):
        assert utc(changed(always(NEW_YORK), "UTC", now_ms)[-1].from_ms) == expected


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("to_zone", ZONES)
def test_whatever_the_change_days_follow_each_other(zone: str, to_zone: str) -> None:
    zones = changed(always(zone), to_zone, ms("2011-12-28T12:00:00"))
    day = local_day(zones, ms("2011-12-20T12:00:00"), CALENDAR)
    while day.starts_ms < ms("2012-01-10T00:00:00"):
        following = numbered_day(zones, day.number + 1, CALENDAR)
        assert following.starts_ms == day.ends_ms >= day.starts_ms
        day = following


_INSTANTS = st.integers(min_value=ms("1990-01-01T00:00:00"), max_value=ms("2037-12-31T00:00:00"))


@st.composite
def histories(draw: st.DrawFn) -> Zones:
    """Zones that an org had one after the other, each from a midnight of the one before on, as the product plans it."""
    zones = always(draw(st.sampled_from(ZONES)))
    times = draw(st.lists(_INSTANTS, max_size=3, unique=True).map(sorted))
    for at_ms in times:
        zones = changed(zones, draw(st.sampled_from(ZONES)), at_ms)
    return zones


@given(histories(), _INSTANTS, st.integers(min_value=0, max_value=5 * 24 * HOUR_MS))
def test_days_partition_time(zones: Zones, at_ms: int, later_ms: int) -> None:
    """Each instant is in exactly one day; later instants are never in an earlier one."""
    first, last = (local_day(zones, one, CALENDAR) for one in (at_ms, at_ms + later_ms))
    assert first.starts_ms <= at_ms < first.ends_ms
    assert last.starts_ms <= at_ms + later_ms < last.ends_ms
    days = [numbered_day(zones, number, CALENDAR) for number in range(first.number, last.number + 1)]
    assert days[0] == first
    assert days[-1] == last
    assert all(one.ends_ms == following.starts_ms for one, following in pairwise(days))
    # Whatever has a length is the day of its first and of its last instant.
    for day in days:
        if day.starts_ms < day.ends_ms:
            assert local_day(zones, day.starts_ms, CALENDAR) == local_day(zones, day.ends_ms - 1, CALENDAR) == day


# Names.


@given(st.dates())
def test_names_of_days_are_read_back(day: date) -> None:
    number = day.toordinal()
    assert parse_day("day", shown_day(number)) == number
    if day.year >= 1000:
        assert day_number(day_name(number)) == number
        assert day_name(number).startswith(month_name(number))
        assert shown_day(number).replace("-", "") == day_name(number)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "2026-1-1",
        "20260101",
        "2026-02-29",
        "2026-13-01",
        "2026-W01-1",
        "2026-01-01T00:00:00",
        "0000-01-01",
        "\uff12\uff10\uff12\uff16-01-01",
    ],
)
def test_what_is_no_day(text: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_day("from", text)
    assert (raised.value.field, raised.value.detail) == ("from", "is not a day, as yyyy-mm-dd")
