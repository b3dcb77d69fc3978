"""Times as clients of all kinds write them."""

import re

import pytest

from sluice.core.errors import InvalidRequest
from sluice.edge.times import TIME_LENGTH_MAX, TIME_PATTERN, time_ms

AT_MS = 1_800_000_000_123


def is_allowed(text: str) -> bool:
    return len(text) <= TIME_LENGTH_MAX and re.search(TIME_PATTERN, text) is not None


@pytest.mark.parametrize(
    "text",
    [
        "2027-01-15T08:00:00.123Z",
        "2027-01-15T08:00:00.123+00:00",
        "2027-01-15T08:00:00.123-00:00",
        "2027-01-15T08:00:00.123456Z",
        # As RFC3339Nano of Go prints it, without the zeros at its end, and Instant of Java.
        "2027-01-15T08:00:00.1234567Z",
        "2027-01-15T08:00:00.12345678Z",
        "2027-01-15T08:00:00.123456789Z",
        "2027-01-15T13:45:00.123456789+05:45",
        "2027-01-15T08:00:00.1239999999999999999Z",
        "2027-01-15t08:00:00.123z",
        "2027-01-15t04:30:00.123999999-03:30",
    ],
)
def test_a_time_means_its_millisecond_however_it_is_written(text: str) -> None:
    """Nothing is rounded up: the same call would come to stand on the next day."""
    assert is_allowed(text)
    assert time_ms("at", text) == AT_MS


@pytest.mark.parametrize(
    ("text", "at_ms"),
    [
        ("2027-01-15T08:00:00Z", 1_800_000_000_000),
        ("2027-01-15T08:00:00.1z", 1_800_000_000_100),
        ("2027-01-15T23:59:59.999999999Z", 1_800_057_599_999),
        ("1970-01-01T00:00:00.000000001Z", 0),
    ],
)
def test_the_last_moment_of_a_day_stays_on_it(text: str, at_ms: int) -> None:
    assert is_allowed(text)
    assert time_ms("at", text) == at_ms


@pytest.mark.parametrize(
    "text",
    [
        "2027-01-15T08:00:00.Z",
        "2027-01-15T08:00:00,123Z",
        "2027-01-15 08:00:00Z",
        "2027-01-15T08:00:00.123",
        "2027-01-15T08:00:00.123Zz",
        "2027-01-15T08:00:00.123+0000",
        "2027-01-15T08:00:00.12\u0663Z",
        "2027-01-15T24:00:00Z",
        "2027-01-15T08:00:60Z",
        # One character too long.
        "2027-01-15T08:00:00.12345678901234567890Z",
    ],
)
def test_what_is_written_otherwise_is_none(text: str) -> None:
    assert not is_allowed(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2027-02-30t00:00:00.123456789z", "is not a time"),
        ("0001-01-01T00:00:00.123456789+14:00", "is not a time"),
        ("1969-12-31T23:59:59.999999999Z", "must not be before 1970"),
    ],
)
def test_a_day_that_never_was_is_refused(text: str, why: str) -> None:
    assert is_allowed(text)
    with pytest.raises(InvalidRequest, match=why):
        time_ms("at", text)
