"""What changes at a local midnight."""

import pytest

from sluice.core.timelines import (
    HISTORY_MS,
    LEAD_MS,
    From,
    Zones,
    always,
    in_force,
    next_midnight_ms,
    planned,
    settled,
    upcoming,
)

HOUR = 3_600_000
DAY = 24 * HOUR
NOON = 20_000 * DAY + 12 * HOUR


class Offsets:
    """Zones that are hours ahead of UTC, by name."""

    def day(self, zone: str, at_ms: int) -> int:
        return (at_ms + hours_ahead(zone) * HOUR) // DAY

    def starts_ms(self, zone: str, day: int) -> int:
        return day * DAY - hours_ahead(zone) * HOUR


def hours_ahead(zone: str) -> int:
    return 0 if zone == "UTC" else int(zone)


def midnight(zones: Zones, at_ms: int) -> int:
    return next_midnight_ms(zones, at_ms, Offsets())


def test_what_is_in_force() -> None:
    timeline = (From(0, "a"), From(100, "b"), From(200, "c"))
    assert [in_force(timeline, at) for at in (-5, 0, 99, 100, 199, 200, 10**15)] == ["a", "a", "a", "b", "b", "c", "c"]
    # What was there first also holds for what was before it.
    assert in_force(timeline[1:], 0) == "b"


def test_what_it_will_be_in_the_end() -> None:
    timeline = (From(0, "a"), From(100, "b"), From(200, "c"))
    assert upcoming(timeline, 99) == upcoming(timeline, 199) == From(200, "c")
    assert upcoming(timeline, 200) is None
    assert upcoming(always("a"), 0) is None


@pytest.mark.parametrize(("zone", "hours"), [("0", 12), ("2", 10), ("-5", 17), ("14", 22)])
def test_the_next_midnight_of_one_zone(zone: str, hours: int) -> None:
    expected = NOON + hours * HOUR
    assert midnight(always(zone), NOON) == expected
    # A midnight is the next one to itself, and not to the instant after it.
    assert midnight(always(zone), expected) == expected
    assert midnight(always(zone), expected + 1) == expected + DAY


def test_to_the_west_the_day_goes_on_after_the_change() -> None:
    change = NOON + 12 * HOUR
    zones = (From(0, "0"), From(change, "-5"))
    assert midnight(zones, NOON) == change + 5 * HOUR
    assert midnight(zones, change + 5 * HOUR + 1) == change + 29 * HOUR


def test_a_day_that_is_over_does_not_begin_again() -> None:
    """At the end of a day at +14 it is two days earlier at -12."""
    change = NOON + 22 * HOUR
    zones = (From(0, "14"), From(change, "-12"))
    # Day 20001 is over at +14. At -12 the 20002nd begins 26 hours later.
    assert midnight(zones, NOON) == change + 26 * HOUR


def test_to_the_east_the_next_day_begins_with_the_change() -> None:
    change = NOON + 12 * HOUR
    zones = (From(0, "0"), From(change, "14"))
    assert midnight(zones, NOON) == change
    assert midnight(zones, change + 1) == change + 10 * HOUR


def test_a_change_in_mid_day_that_skips_into_the_next() -> None:
    zones = (From(0, "0"), From(NOON + HOUR, "14"))
    assert midnight(zones, NOON) == NOON + HOUR


def test_a_zone_that_is_over_gives_no_midnight() -> None:
    zones = (From(0, "0"), From(NOON - DAY, "2"), From(NOON + DAY, "-5"))
    assert midnight(zones, NOON) == NOON + 10 * HOUR


def test_a_plan() -> None:
    assert planned(always("a"), "b", NOON, NOON + DAY) == (From(0, "a"), From(NOON + DAY, "b"))


def test_a_plan_is_replaced_or_dropped() -> None:
    timeline = (From(0, "a"), From(NOON + LEAD_MS, "b"))
    assert planned(timeline, "c", NOON, NOON + DAY) == (From(0, "a"), From(NOON + DAY, "c"))
    assert planned(timeline, "a", NOON, NOON + DAY) == always("a")


def test_a_plan_that_is_about_to_begin_stays() -> None:
    """Other processes may have read it, and will not read again before it begins."""
    timeline = (From(0, "a"), From(NOON + LEAD_MS - 1, "b"))
    assert planned(timeline, "a", NOON, NOON + DAY) == (*timeline, From(NOON + DAY, "a"))
    assert planned(timeline, "b", NOON, NOON + DAY) == timeline


def test_history_is_kept_as_long_as_anybody_asks() -> None:
    timeline = (From(0, "a"), From(NOON - HISTORY_MS - 1, "b"), From(NOON - HISTORY_MS, "c"), From(NOON - 5, "d"))
    assert settled(timeline, NOON) == timeline[2:]
    assert settled(timeline, NOON - 1) == timeline[1:]
    assert settled(timeline, 0) == timeline[:1]
    assert in_force(settled(timeline, NOON), NOON - HISTORY_MS) == in_force(timeline, NOON - HISTORY_MS)
