"""Acquires under an Idempotency-Key: a repeat is answered as the first was, whatever has happened since."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from sluice.core.admission import Admission
from sluice.core.audit import BY_SYSTEM
from sluice.core.errors import Ambiguous, Contended, IdempotencyMismatch, LimitExceeded, NoLimits, Unavailable
from sluice.core.limits import SYSTEM, Limit, OnUnavailable, Scope
from sluice.core.signals import Signal
from sluice.repository import keys
from sluice.repository.idempotency import IdempotencyKey
from sluice.services.chains import AcquireRequest
from sluice.services.entities import EntityChange
from sluice.services.idempotency import Answered
from sluice.services.registration import Registration
from tests.fakes import FakeClock
from tests.integration.conftest import ENTITY, NAMESPACE, RESOURCE, Host

KEY = IdempotencyKey(NAMESPACE, "app", "key-1", "hash-1")
DAY_MS = 86_400_000


def slow(capacity: int) -> Limit:
    return Limit(capacity, capacity, capacity, 31_536_000)


def render(admission: Admission) -> str:
    members = [
        [member.entity, [[share.shard, share.generation, dict(share.amounts_milli)] for share in member.shares]]
        for member in admission.members
    ]
    remaining = {limit.limit: limit.remaining for level in admission.levels for limit in level.limits}
    return json.dumps({"members": members, "remaining": remaining, "degraded": admission.degraded})


def ask(host: Host, key: IdempotencyKey = KEY, entity: str = ENTITY, **consume: int) -> Answered:
    request = AcquireRequest(NAMESPACE, entity, RESOURCE, consume or {"rpm": 1})
    return host.idempotent.acquire(request, key, render)


def test_a_repeat_is_answered_and_takes_nothing(host: Host) -> None:
    host.put_limits({"rpm": slow(10)})
    first = ask(host)
    again = ask(host)
    assert (first.repeated, again.repeated) == (False, True)
    assert first.text == again.text
    assert host.consumed_milli("rpm") == 1_000
    assert json.loads(first.text)["remaining"] == {"rpm": 9}


def test_the_answer_names_the_incarnation_that_was_taken_from(host: Host) -> None:
    host.put_limits({"rpm": slow(10)})
    host.acquire(rpm=1)
    ((entity, ((shard, generation, amounts),)),) = json.loads(ask(host).text)["members"]
    assert (entity, shard, generation, amounts) == (ENTITY, 0, host.bucket().generation, {"rpm": 1_000})


def test_calls_of_a_warm_acquire_with_a_key(host: Host) -> None:
    host.put_limits({"rpm": slow(10)})
    host.acquire(rpm=1)
    host.store.taken_calls()
    ask(host)
    assert host.store.taken_calls() == ["transact"]
    ask(host)
    assert host.store.taken_calls() == ["transact"], "the record's own condition tells"


def test_another_body_under_the_same_key_is_a_mistake(host: Host) -> None:
    host.put_limits({"rpm": slow(10)})
    ask(host)
    with pytest.raises(IdempotencyMismatch):
        ask(host, replace(KEY, body_hash="other"), rpm=2)
    assert host.consumed_milli("rpm") == 1_000


def test_a_key_belongs_to_its_caller(host: Host) -> None:
    host.put_limits({"rpm": slow(10)})
    for caller in ("app", "app2", None):
        assert not ask(host, replace(KEY, caller=caller)).repeated
    assert host.consumed_milli("rpm") == 3_000


def test_no_refusal_leaves_before_the_record_was_read(host: Host, start_host: Callable[[], Host]) -> None:
    """The bucket is empty, the deny cache is hot, and even the limits are gone: a repeat is still answered."""
    host.put_limits({"rpm": slow(2)})
    first = ask(host)
    host.acquire(rpm=1)
    host.refused(rpm=1)
    assert ask(host).text == first.text, "the deny cache is hot"
    assert ask(start_host()).text == first.text, "a process that knows nothing"
    host.limits.delete(NAMESPACE, Scope(resource=RESOURCE))
    assert ask(host).text == first.text, "no limits"
    with pytest.raises(NoLimits):
        ask(host, replace(KEY, text="another"))


def test_a_refusal_leaves_the_key_free(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": Limit(1, 1, 1, 60)})
    host.acquire(rpm=1)
    with pytest.raises(LimitExceeded) as raised:
        ask(host)
    assert raised.value.retry_after_ms == 60_000
    clock.advance(60_000)
    assert not ask(host).repeated


def test_a_record_is_kept_for_a_day_whenever_it_is_removed(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": slow(10)})
    ask(host)
    clock.advance(DAY_MS - 1_000)
    assert ask(host).repeated
    clock.advance(1_000)
    assert not ask(host).repeated, "past its time, though nothing has removed it"
    assert host.consumed_milli("rpm") == 2_000


def test_a_lost_answer_does_not_take_twice(host: Host) -> None:
    host.put_limits({"rpm": slow(10)})
    host.acquire(rpm=1)

    def lose(verb: str, _request: Any) -> None:
        if verb == "transact":
            raise Ambiguous("the answer was lost")

    host.store.after = lose
    with_record = ask(host)
    assert with_record.repeated, "the record says that it was applied"
    host.store.after = None
    assert ask(host).text == with_record.text
    assert host.consumed_milli("rpm") == 2_000


def test_a_transaction_that_was_lost_before_it_was_applied_is_unavailable(host: Host) -> None:
    host.put_limits({"rpm": slow(10)})
    host.acquire(rpm=1)

    def lose(verb: str, _request: Any) -> None:
        if verb == "transact":
            raise Ambiguous("the answer was lost")

    host.store.before = lose
    with pytest.raises(Unavailable):
        ask(host)
    assert host.consumed_milli("rpm") == 1_000


def test_an_open_gate_is_not_recorded(host: Host) -> None:
    host.put_limits({}, SYSTEM, OnUnavailable.ALLOW)
    host.put_limits({"rpm": slow(10)})
    host.acquire(rpm=1)

    def down(verb: str, _request: Any) -> None:
        raise Unavailable("the table does not answer")

    host.store.before = down
    assert json.loads(ask(host).text)["degraded"] is True
    assert host.meter.counts[Signal.FAIL_OPEN_ADMISSIONS] == 1
    host.store.before = None
    assert not ask(host).repeated


def test_a_first_acquire_creates_its_bucket_in_the_same_transaction(host: Host) -> None:
    host.put_limits({"rpm": slow(10)})
    ask(host)
    assert (host.level_milli("rpm"), host.consumed_milli("rpm")) == (9_000, 1_000)


def test_a_chain_is_taken_whole_or_not_at_all(host: Host, clock: FakeClock) -> None:
    host.entities.put(NAMESPACE, "team", EntityChange())
    host.entities.put(NAMESPACE, ENTITY, EntityChange(parent="team"))
    host.put_limits({"rpm": slow(3)}, Scope("team", RESOURCE))
    host.put_limits({"rpm": slow(10)})
    ask(host)
    ask(host, replace(KEY, text="2"), rpm=2)
    with pytest.raises(LimitExceeded) as raised:
        ask(host, replace(KEY, text="3"))
    assert [violation.entity for violation in raised.value.violations] == ["team"]
    assert host.consumed_milli("rpm") == 3_000


def test_changed_limits_and_spenders_in_between_are_met(host: Host, start_host: Callable[[], Host]) -> None:
    other = start_host()
    host.put_limits({"rpm": slow(10)})
    host.acquire(rpm=1)
    other.put_limits({"rpm": slow(6)})
    other.acquire(rpm=0)
    ask(host)
    assert (host.level_milli("rpm"), host.bucket().limits["rpm"].parameters.burst_milli) == (5_000, 6_000)

    def spend(verb: str, _request: Any) -> None:
        if verb == "transact":
            host.store.before = None
            other.acquire(rpm=4)

    host.store.before = spend
    ask(host, replace(KEY, text="2"))
    assert host.level_milli("rpm") == 0


def test_more_than_one_share_is_gathered_in_the_same_transaction(host: Host) -> None:
    host.put_limits({"rpm": slow(100)})
    host.acquire(rpm=20)
    assert host.sharding.split(host.bucket())
    answered = ask(host, rpm=70)
    ((_, shares),) = json.loads(answered.text)["members"]
    assert sorted(shard for shard, _, _ in shares) == [0, 1]
    assert sum(amounts["rpm"] for _, _, amounts in shares) == 70_000
    assert ask(host, rpm=70).repeated


def test_sixteen_repeats_at_once_take_once(start_host: Callable[[], Host]) -> None:
    hosts = [start_host() for _ in range(16)]
    hosts[0].put_limits({"rpm": slow(100)})
    hosts[0].acquire(rpm=0)
    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(_asked, hosts))
    texts = {answer.text for answer in answers if answer is not None}
    assert len(texts) == 1
    assert hosts[0].consumed_milli("rpm") == 1_000


def _asked(host: Host) -> Answered | None:
    try:
        return ask(host)
    except Contended:
        # So many transactions on one item may well be told to come back.
        return None


def test_the_record_is_found_by_nobody_elses_namespace(host: Host) -> None:
    host.put_limits({"rpm": slow(10)})
    ask(host)
    assert host.store.inner.get(keys.idempotent_answer("ns2", "app", "key-1"), consistent=True) is None


def test_a_used_key_makes_nobody_known(host: Host) -> None:
    """Another body under the same key names an entity that nobody knows: it is refused before it is registered."""
    host.put_limits({"rpm": slow(10)})
    ask(host)
    registration = Registration(None, BY_SYSTEM)
    request = AcquireRequest(NAMESPACE, "newcomer", RESOURCE, {"rpm": 1}, None, registration)
    with pytest.raises(IdempotencyMismatch):
        host.idempotent.acquire(request, replace(KEY, body_hash="other"), render)
    assert host.store.inner.get(keys.entity(NAMESPACE, "newcomer"), consistent=True) is None
    assert not host.idempotent.acquire(request, replace(KEY, text="another"), render).repeated
    assert host.store.inner.get(keys.entity(NAMESPACE, "newcomer"), consistent=True) is not None
