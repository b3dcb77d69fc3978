"""Keys that are too old, with a clock that a test moves."""

from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from sluice.core.signals import Signal
from sluice.repository.secret_ages import SecretDates
from sluice.services.effects import Effects
from sluice.services.secret_ages import AGE_MAX_MS, LOOK_MS, SecretAges
from tests.fakes import CountingMeter, FakeClock, never_random

SECRETS = ("signing", "token", "operator")


class Dates:
    def __init__(self, **changed_at_ms: int | None) -> None:
        self.changed: dict[str, int | None] = dict(changed_at_ms)
        self.asked: list[str] = []

    def changed_at_ms(self, secret: str) -> int | None:
        self.asked.append(secret)
        return self.changed[secret]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def meter() -> CountingMeter:
    return CountingMeter()


def ages(dates: Dates, clock: FakeClock, meter: CountingMeter, timer: FakeClock | None = None) -> SecretAges:
    return SecretAges(SECRETS, dates, Effects(clock, never_random, lambda: "t", meter), timer or FakeClock(0))


def test_ninety_days_are_not_yet_too_old(clock: FakeClock, meter: CountingMeter) -> None:
    dates = Dates(signing=clock() - AGE_MAX_MS, token=clock() - AGE_MAX_MS - 1, operator=clock())
    assert ages(dates, clock, meter).count_old() == 1
    assert meter.counts == {Signal.SECRETS_TOO_OLD: 1}


def test_nothing_is_counted_while_all_are_young(clock: FakeClock, meter: CountingMeter) -> None:
    assert ages(Dates(signing=clock(), token=clock(), operator=clock()), clock, meter).count_old() == 0
    assert meter.counts == {}


def test_it_looks_once_an_hour_and_counts_in_every_run(clock: FakeClock, meter: CountingMeter) -> None:
    timer = FakeClock(5)
    dates = Dates(signing=0, token=0, operator=clock())
    looking = ages(dates, clock, meter, timer)
    for _ in range(3):
        assert looking.count_old() == 2
        timer.advance(LOOK_MS // 3)
    assert dates.asked == list(SECRETS)
    assert meter.counts[Signal.SECRETS_TOO_OLD] == 6
    dates.changed["signing"] = clock()
    assert looking.count_old() == 1
    assert dates.asked == [*SECRETS, *SECRETS]


def test_a_young_secret_becomes_old_between_two_looks(clock: FakeClock, meter: CountingMeter) -> None:
    dates = Dates(signing=clock() - AGE_MAX_MS, token=clock(), operator=clock())
    looking = ages(dates, clock, meter)
    assert looking.count_old() == 0
    clock.advance(1)
    assert looking.count_old() == 1


def test_an_age_that_was_never_learned_counts_and_one_that_was_is_kept(clock: FakeClock, meter: CountingMeter) -> None:
    timer = FakeClock(0)
    dates = Dates(signing=None, token=clock(), operator=clock())
    looking = ages(dates, clock, meter, timer)
    assert looking.count_old() == 1
    dates.changed = dict.fromkeys(SECRETS)
    timer.advance(LOOK_MS)
    assert looking.count_old() == 1


class Client:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def describe_secret(self, SecretId: str) -> Any:  # noqa: N803 - boto3's name
        assert SecretId == "arn"
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


MADE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
CHANGED = datetime(2026, 2, 3, 4, 5, 6, 700_000, tzinfo=UTC)
REFUSED: Any = {"Error": {"Code": "AccessDeniedException"}}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"CreatedDate": MADE, "LastChangedDate": CHANGED}, 1_770_091_506_700),
        ({"CreatedDate": MADE}, 1_767_323_045_000),
        ({}, None),
        (ClientError(REFUSED, "DescribeSecret"), None),
        (EndpointConnectionError(endpoint_url="https://s"), None),
    ],
)
def test_what_secrets_manager_says(answer: Any, expected: int | None) -> None:
    assert SecretDates(Client(answer)).changed_at_ms("arn") == expected
