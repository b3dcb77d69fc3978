"""The library as its users see it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from botocore.config import Config
from mypy_boto3_dynamodb import DynamoDBClient

from local.engine import Endpoint, dynamodb_client
from sluice.core.errors import InvalidRequest, LimitExceeded, UnknownLimit
from sluice.core.limits import Limit, Scope
from sluice.core.signals import Signal
from sluice.limiter import Limiter
from sluice.shell import Environment, build_services
from tests.fakes import CountingMeter

ONCE = Config(retries={"total_max_attempts": 1, "mode": "standard"})


class Broken(Exception):
    """What the work inside a block may raise."""


@pytest.fixture
def library(dynamodb_endpoint: Endpoint, table: str) -> Callable[[], Limiter]:
    def make() -> Limiter:
        return Limiter(table=table, namespace="acme", client=dynamodb_client(dynamodb_endpoint, ONCE))

    return make


@pytest.fixture
def limits(dynamodb: DynamoDBClient, table: str) -> None:
    services = build_services(Environment("test", table, 10_000), dynamodb, CountingMeter())
    slow = {name: Limit(100, 100, 1, 31_536_000) for name in ("rpm", "tpm")}
    services.limits.put("acme", Scope(resource="gpt-4"), slow)


@pytest.mark.usefixtures("limits")
def test_the_library_from_end_to_end(library: Callable[[], Limiter]) -> None:
    limiter = library()
    with limiter.acquire("user-1", "gpt-4", rpm=1, tpm=40) as lease:
        lease.adjust(tpm=10)
        assert lease.remaining == {"rpm": 99, "tpm": 50}
    with pytest.raises(Broken), limiter.acquire("user-1", "gpt-4", {"tpm": 50}):
        raise Broken
    with pytest.raises(LimitExceeded) as refused:
        limiter.acquire("user-1", "gpt-4", tpm=51)
    assert refused.value.violations[0].available == 50
    assert limiter.signals.taken() == {Signal.ADMITTED: 2, Signal.REFUSED: 1, Signal.CONFIGURATION_READS: 1}
    assert limiter.signals.taken() == {}


@pytest.mark.usefixtures("limits")
def test_threads_share_a_limiter_and_every_token_is_accounted_for(library: Callable[[], Limiter]) -> None:
    limiter = library()

    def work(turn: int) -> None:
        with suppress(Broken), limiter.acquire("user-1", "gpt-4", tpm=1) as lease:
            lease.adjust(tpm=1)
            lease.adjust(tpm=-1)
            if turn % 2:
                raise Broken

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(80)))
    assert library().acquire("user-1", "gpt-4", tpm=0).remaining == {"tpm": 60}


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize(
    ("entity", "resource", "consume", "field"),
    [
        ("", "gpt-4", {"rpm": 1}, "entity"),
        ("a#b", "gpt-4", {"rpm": 1}, "entity"),
        ("user-1\n", "gpt-4", {"rpm": 1}, "entity"),
        ("user-1", "gpt/4", {"rpm": 1}, "resource"),
        ("user-1", "gpt-4", {}, "consume"),
        ("user-1", "gpt-4", {f"l{number}": 1 for number in range(11)}, "consume"),
        ("user-1", "gpt-4", {"rpm": -1}, "consume.rpm"),
        ("user-1", "gpt-4", {"rpm": 10**12 + 1}, "consume.rpm"),
        ("user-1", "gpt-4", {"rpm": True}, "consume.rpm"),
        ("user-1", "gpt-4", {"rpm": 1.0}, "consume.rpm"),
    ],
)
def test_what_the_library_does_not_take(
    library: Callable[[], Limiter], entity: str, resource: str, consume: dict[str, int], field: str
) -> None:
    """Hole: a negative amount would mint."""
    with pytest.raises(InvalidRequest) as raised:
        library().acquire(entity, resource, consume)
    assert raised.value.field == field


@pytest.mark.usefixtures("limits")
def test_an_unknown_limit(library: Callable[[], Limiter]) -> None:
    with pytest.raises(UnknownLimit):
        library().acquire("user-1", "gpt-4", tpd=1)


def test_a_client_that_repeats_writes_by_itself_is_not_taken(dynamodb: DynamoDBClient, table: str) -> None:
    """Hole: a timed-out ADD was sent ten times by the defaults of the SDK."""
    with pytest.raises(ValueError, match="total_max_attempts"):
        Limiter(table=table, namespace="acme", client=dynamodb)


def test_a_namespace_is_an_id() -> None:
    with pytest.raises(InvalidRequest):
        Limiter(table="t", namespace="_")


def test_without_a_client_the_library_makes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    made: list[dict[str, Any]] = []
    monkeypatch.setattr("sluice.limiter.make_client", lambda environment: made.append({"table": environment.table}))
    Limiter(table="t", namespace="acme")
    assert made == [{"table": "t"}]
