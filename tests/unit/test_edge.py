"""Small parts of the edge that no request shows well."""

import pytest

from sluice import shell
from sluice.core import errors
from sluice.core.levels import Level, LimitLevel
from sluice.edge.headers import rate_limit_headers, retry_headers
from sluice.edge.problems import problem_of, rfc3339
from sluice.repository.retries import Throttled
from sluice.repository.store import DynamoStore
from sluice.shell import Environment, build_services, make_client
from sluice.timer import Timer
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
    environment = Environment("test", "t", 2000)
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


def test_what_ages_goes_by_the_clock_that_went_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: the monotonic clock of a machine that was paused stands still, and a revoked token lives on."""
    monotonic, wall = [10_000_000_000], [50_000_000_000]
    monkeypatch.setattr("time.monotonic_ns", lambda: monotonic[0])
    monkeypatch.setattr("time.time_ns", lambda: wall[0])
    timer = Timer()
    assert timer() == 0
    wall[0] += 60_000_000_000
    assert timer() == 60_000
    monotonic[0] += 1_000_000_000
    wall[0] -= 3600_000_000_000
    assert timer() == 61_000
    monotonic[0] += 2_000_000_000
    wall[0] += 2_000_000_000
    assert timer() == 63_000


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.Unauthorized(), 401, "unauthorized"),
        (errors.WrongCredentials(), 401, "unauthorized"),
        (errors.Forbidden("no"), 403, "forbidden"),
        (errors.Suspended(), 403, "suspended"),
        (errors.IdTaken("taken"), 409, "id-taken"),
        (errors.RotationConflict("again"), 409, "rotation-conflict"),
        (errors.TooManyRequests(1500), 429, "too-many-requests"),
        (errors.Contended(42), 429, "contended"),
        (errors.Ambiguous("x"), 503, "unavailable"),
        (errors.SluiceError("nobody knows it"), 500, "internal"),
    ],
)
def test_every_error_has_its_problem(error: errors.SluiceError, status: int, kind: str) -> None:
    problem = problem_of(error)
    assert (problem.status, problem.kind) == (status, kind)
    if status == 401:
        assert problem.headers == {"WWW-Authenticate": "Bearer"}
    if status == 429:
        assert problem.headers["Retry-After"] in ("1", "2")
