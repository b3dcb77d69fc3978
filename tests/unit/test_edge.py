"""Small parts of the edge that no request shows well."""

import pytest

from sluice import shell
from sluice.core.levels import Level, LimitLevel
from sluice.edge.headers import rate_limit_headers, retry_headers
from sluice.edge.problems import rfc3339
from sluice.repository.retries import Throttled
from sluice.repository.store import DynamoStore
from sluice.shell import Environment, build_services, make_client
from tests.fakes import CountingMeter


def test_times_are_rfc_3339_to_the_millisecond() -> None:
    assert rfc3339(0) == "1970-01-01T00:00:00.000Z"
    assert rfc3339(1_800_000_000_007) == "2027-01-15T08:00:00.007Z"


def test_retry_seconds_are_rounded_up() -> None:
    assert retry_headers(1) == {"Retry-After": "1", "retry-after-ms": "1"}
    assert retry_headers(1000) == {"Retry-After": "1", "retry-after-ms": "1000"}
    assert retry_headers(1001) == {"Retry-After": "2", "retry-after-ms": "1001"}


def test_rate_limit_headers_are_structured_fields() -> None:
    level = Level("e", (LimitLevel("rpm", 60, 60, -3, 61_001), LimitLevel("tpd", 10**12, 86_400, 5, 10**19)))
    assert rate_limit_headers([level]) == {
        "RateLimit-Policy": '"rpm";q=60;w=60, "tpd";q=1000000000000;w=86400',
        # Never negative, and no integer beyond what a structured field can hold.
        "RateLimit": '"rpm";r=0;t=62, "tpd";r=5;t=999999999999999',
    }
    assert rate_limit_headers([]) == {}


def test_pauses_of_the_product_are_jittered_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    drawn: list[int] = []
    monkeypatch.setattr("time.sleep", slept.append)

    def draw(below: int) -> int:
        drawn.append(below)
        return below - 1

    monkeypatch.setattr(shell, "_random_below", draw)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    environment = Environment("test", "t", 2000, None)
    store = build_services(environment, make_client(environment), CountingMeter()).store
    assert isinstance(store, DynamoStore)

    def throttled(_repeated: bool) -> None:
        raise Throttled("x")

    with pytest.raises(Throttled):
        store._retries.run(throttled, repeatable=False, writes=True)
    assert slept == [0.010, 0.020, 0.040, 0.080]
    assert drawn == [10, 20, 40, 80]


def test_a_transaction_token_is_short_enough_and_never_the_same() -> None:
    """An engine that does not check the length hides that AWS refuses a longer one."""
    tokens = {shell.new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert {len(token) for token in tokens} == {32}
