"""Explain says what an acquire would do, exactly, and writes nothing."""

from collections.abc import Callable

import pytest

from sluice.core.audit import BY_SYSTEM
from sluice.core.errors import LimitExceeded, NeverAdmissible, NoLimits, UnknownLimit
from sluice.core.limits import Limit, Scope
from sluice.services.chains import AcquireRequest
from sluice.services.entities import EntityChange
from sluice.services.explain import Explanation
from sluice.services.registration import Registration
from tests.fakes import FakeClock
from tests.integration.conftest import ENTITY, NAMESPACE, RESOURCE, Host

TEAM = "team"


def per_minute(capacity: int) -> Limit:
    return Limit(capacity, capacity, capacity, 60)


def explain(host: Host, **consume: int) -> Explanation:
    host.store.taken_calls()
    explained = host.explain.explain(AcquireRequest(NAMESPACE, ENTITY, RESOURCE, consume))
    assert all("get" in call for call in host.store.taken_calls()), "reads only"
    return explained


def test_what_would_pass(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(10)})
    explained = explain(host, rpm=10)
    assert (explained.admissible, explained.admit_at_ms, explained.smaller_amounts) == (True, clock.now_ms, {})
    (check,) = explained.checks
    assert (check.entity, check.limit, check.source, check.requested) == (ENTITY, "rpm", "resource", 10)
    assert (check.available, check.capacity, check.shards, check.admit_at_ms) == (10, 10, 1, clock.now_ms)
    assert host.find_bucket() is None


def test_a_refusal_is_explained_with_its_time_and_what_would_pass_now(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(10), "tpm": per_minute(1000)})
    host.acquire(rpm=8, tpm=10)
    explained = explain(host, rpm=5, tpm=100)
    assert not explained.admissible
    assert explained.smaller_amounts == {"rpm": 2}
    short = {check.limit: check.admit_at_ms for check in explained.checks if check.admit_at_ms > clock.now_ms}
    assert short == {"rpm": explained.admit_at_ms}
    assert host.refused(rpm=5, tpm=100).admit_at_ms == explained.admit_at_ms
    host.acquire(rpm=2, tpm=100)
    clock.now_ms = explained.admit_at_ms - 1
    assert not explain(host, rpm=3).admissible


def test_which_limit_at_which_level_binds(host: Host, clock: FakeClock) -> None:
    host.entities.put(NAMESPACE, TEAM, EntityChange())
    host.entities.put(NAMESPACE, ENTITY, EntityChange(parent=TEAM))
    host.put_limits({"rpm": per_minute(3)}, Scope(TEAM, RESOURCE))
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=2)
    explained = explain(host, rpm=2)
    binding = [check for check in explained.checks if check.admit_at_ms > clock.now_ms]
    assert [(check.entity, check.source, check.available) for check in binding] == [(TEAM, "entity", 1)]
    assert explained.smaller_amounts == {"rpm": 1}


def test_where_nothing_smaller_passes_only_waiting_helps(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=10)
    assert explain(host, rpm=5).smaller_amounts == {}


def test_changed_limits_are_explained_as_they_will_be_judged(host: Host, start_host: Callable[[], Host]) -> None:
    host.put_limits({"rpm": per_minute(100), "gone": per_minute(5)})
    host.acquire(rpm=20)
    host.put_limits({"rpm": per_minute(50), "new": per_minute(7)})
    explained = explain(start_host(), rpm=51 - 1, new=7)
    assert {check.limit: check.available for check in explained.checks} == {"rpm": 50, "new": 7}
    assert explained.admissible
    host.acquire(rpm=50, new=7)


@pytest.mark.parametrize("amount", [30, 60, 99])
def test_a_split_bucket_is_explained_as_one(
    host: Host, start_host: Callable[[], Host], clock: FakeClock, amount: int
) -> None:
    host.put_limits({"rpm": per_minute(100)})
    host.acquire(rpm=80)
    assert host.sharding.split(host.bucket())
    explained = explain(host, rpm=amount)
    assert not explained.admissible
    assert {check.shards for check in explained.checks} == {2}
    smaller = explained.smaller_amounts["rpm"]
    start_host().acquire(rpm=smaller)
    with pytest.raises(LimitExceeded):
        start_host().acquire(rpm=1)


def test_a_split_bucket_passes_at_the_time_that_was_explained(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(100)})
    host.acquire(rpm=80)
    assert host.sharding.split(host.bucket())
    explained = explain(host, rpm=90)
    clock.now_ms = explained.admit_at_ms - 1
    host.refused(rpm=90)
    clock.now_ms = explained.admit_at_ms
    host.acquire(rpm=90)


def test_an_entity_that_nobody_knows_is_explained_where_it_would_be_registered(host: Host) -> None:
    host.entities.put(NAMESPACE, TEAM, EntityChange())
    host.put_limits({"rpm": per_minute(3)}, Scope(TEAM, RESOURCE))
    registration = Registration(TEAM, BY_SYSTEM)
    explained = host.explain.explain(AcquireRequest(NAMESPACE, ENTITY, RESOURCE, {"rpm": 1}, None, registration))
    assert [check.entity for check in explained.checks] == [TEAM]


def test_what_can_never_pass_is_told_as_acquire_tells_it(host: Host) -> None:
    with pytest.raises(NoLimits):
        explain(host, rpm=1)
    host.put_limits({"rpm": per_minute(10)})
    with pytest.raises(NeverAdmissible):
        explain(host, rpm=11)
    with pytest.raises(UnknownLimit):
        explain(host, tpm=1)
