"""Chains: what an entity takes is taken from everyone above it, or from nobody."""

from collections.abc import Callable
from typing import Any

import pytest

from sluice.core.errors import Ambiguous, Contended, LimitExceeded, NeverAdmissible, NoLimits, Unavailable, UnknownLimit
from sluice.core.limits import DEFAULT_RESOURCE, SYSTEM, Limit, OnUnavailable, Scope
from sluice.core.signals import Signal
from sluice.repository import keys
from sluice.repository.items import Bucket, decode_bucket
from sluice.repository.retries import Throttled
from sluice.services.configuration import CACHE_MS
from sluice.services.denials import DENIAL_MS
from sluice.services.entities import EntityChange
from tests.fakes import FakeClock
from tests.integration.conftest import NAMESPACE, RESOURCE, Host
from tests.integration.test_acquire import per_minute
from tests.integration.test_entities import chain_of

ORG, APP, USER = "org", "app", "user"


def own(entity: str) -> Scope:
    return Scope(entity, RESOURCE)


def take(host: Host, entity: str = USER, **consume: int) -> Any:
    return host.ask(consume, entity=entity)


def refused(host: Host, entity: str = USER, **consume: int) -> LimitExceeded:
    with pytest.raises(LimitExceeded) as raised:
        take(host, entity, **consume)
    return raised.value


def bucket_of(host: Host, entity: str) -> Bucket:
    item = host.store.inner.get(keys.bucket(NAMESPACE, entity, RESOURCE, 0), consistent=True)
    assert item is not None
    return decode_bucket(item)


def consumed(host: Host, entity: str, limit: str = "rpm") -> int:
    return bucket_of(host, entity).limits[limit].consumed_milli


@pytest.fixture
def chain(host: Host) -> Host:
    """A user below an app below an org: 10, 20 and 30 a minute."""
    chain_of(host, ORG, APP, USER)
    host.put_limits({"rpm": per_minute(10)})
    host.put_limits({"rpm": per_minute(20)}, own(APP))
    host.put_limits({"rpm": per_minute(30)}, Scope(ORG, DEFAULT_RESOURCE))
    return host


def test_every_member_is_charged(chain: Host) -> None:
    admission = take(chain, rpm=3)
    assert [level.entity for level in admission.levels] == [USER, APP, ORG]
    assert [level.limits[0].remaining for level in admission.levels] == [7, 17, 27]
    assert [consumed(chain, entity) for entity in (USER, APP, ORG)] == [3_000] * 3
    assert (bucket_of(chain, USER).cascade, bucket_of(chain, USER).parent) == (True, APP)
    assert (bucket_of(chain, ORG).cascade, bucket_of(chain, ORG).parent) == (False, None)


def test_a_warm_chain_is_one_write_per_member(chain: Host) -> None:
    take(chain, rpm=1)
    chain.store.taken_calls()
    take(chain, rpm=1)
    assert chain.store.taken_calls() == ["update"] * 3


def test_a_member_above_may_be_asked_by_itself(chain: Host) -> None:
    take(chain, APP, rpm=1)
    assert [consumed(chain, entity) for entity in (APP, ORG)] == [1_000] * 2


def test_who_does_not_cascade_stands_alone(chain: Host) -> None:
    chain.entities.put(NAMESPACE, APP, EntityChange(cascade=False))
    admission = take(chain, rpm=1)
    assert [level.entity for level in admission.levels] == [USER, APP]


def test_defaults_are_of_the_entity_that_asks_only(host: Host) -> None:
    """Hole: a default for every user would cap the whole org."""
    chain_of(host, ORG, USER)
    host.put_limits({"rpm": per_minute(2)})
    assert [level.entity for level in take(host, rpm=1).levels] == [USER]
    chain_of(host, ORG, "user-2")
    assert [level.entity for level in take(host, "user-2", rpm=1).levels] == ["user-2"]


def test_a_refusal_by_one_takes_nothing_from_the_others(chain: Host) -> None:
    chain_of(chain, ORG, APP, "busy")
    take(chain, "busy", rpm=10)
    take(chain, USER, rpm=10)
    chain_of(chain, ORG, APP, "third")
    answer = refused(chain, "third", rpm=1)
    assert [(violation.entity, violation.source) for violation in answer.violations] == [(APP, "entity")]
    assert [consumed(chain, entity) for entity in ("third", APP, ORG)] == [0, 20_000, 20_000]
    assert answer.retry_after_ms == 3_000


def test_the_time_of_a_refusal_is_exact_over_all_members(chain: Host, clock: FakeClock) -> None:
    take(chain, rpm=10)
    chain_of(chain, ORG, APP, "other")
    take(chain, "other", rpm=10)
    answer = refused(chain, rpm=2)
    assert {violation.entity for violation in answer.violations} == {USER, APP}
    assert answer.admit_at_ms == clock.now_ms + 12_000
    clock.now_ms = answer.admit_at_ms - 1
    assert refused(chain, rpm=2).retry_after_ms == 1
    clock.now_ms = answer.admit_at_ms
    take(chain, rpm=2)


def test_a_standing_refusal_by_a_parent_costs_no_write_of_the_child(chain: Host, clock: FakeClock) -> None:
    chain_of(chain, ORG, APP, "other")
    take(chain, rpm=10)
    take(chain, "other", rpm=10)
    chain_of(chain, ORG, APP, "third")
    refused(chain, "third", rpm=1)
    chain.store.taken_calls()
    clock.advance(100)
    refused(chain, "third", rpm=1)
    assert chain.store.taken_calls() == []
    clock.advance(DENIAL_MS)
    refused(chain, "third", rpm=1)
    # Three writes, and what two of them took is given back.
    assert chain.store.taken_calls() == ["update"] * 5


def test_names_apply_where_they_are_defined(host: Host) -> None:
    chain_of(host, ORG, USER)
    host.put_limits({"rpm": per_minute(10)})
    host.put_limits({"tpm": per_minute(100)}, own(ORG))
    levels = take(host, rpm=1, tpm=50).levels
    assert {level.entity: level.limits[0].limit for level in levels} == {USER: "rpm", ORG: "tpm"}
    assert [level.entity for level in take(host, rpm=1).levels] == [USER]
    with pytest.raises(UnknownLimit):
        take(host, rpm=1, other=1)
    with pytest.raises(NeverAdmissible) as raised:
        take(host, tpm=101)
    assert raised.value.entity == ORG


def test_a_chain_without_any_limits(host: Host) -> None:
    chain_of(host, ORG, USER)
    with pytest.raises(NoLimits):
        take(host, rpm=1)


def test_limits_of_a_call_are_the_first_members_only(chain: Host) -> None:
    levels = chain.ask({"rpm": 1}, {"rpm": per_minute(2)}, entity=USER).levels
    assert [(level.entity, level.limits[0].capacity) for level in levels] == [(USER, 2), (APP, 20), (ORG, 30)]


def test_a_changed_parent_acts_within_the_cache_time(
    chain: Host, start_host: Callable[[], Host], clock: FakeClock
) -> None:
    take(chain, rpm=1)
    operator = start_host()
    operator.entities.put(NAMESPACE, USER, EntityChange(parent=ORG))
    take(chain, rpm=1)
    assert consumed(chain, APP) == 2_000
    clock.advance(CACHE_MS)
    take(chain, rpm=1)
    assert [consumed(chain, entity) for entity in (USER, APP, ORG)] == [3_000, 2_000, 3_000]


def test_a_member_whose_guess_missed_is_tried_again_alone(
    chain: Host, start_host: Callable[[], Host], clock: FakeClock
) -> None:
    take(chain, rpm=1)
    other = start_host()
    chain_of(other, ORG, APP, "other")
    clock.advance(30_000)
    take(other, "other", rpm=5)
    chain.store.taken_calls()
    # By this host's images app and org are full; the other one has spent since.
    take(chain, rpm=1)
    assert chain.store.taken_calls() == ["update", "update", "update", "update", "update"]
    assert [consumed(chain, entity) for entity in (USER, APP, ORG)] == [2_000, 7_000, 7_000]


def fail_on(host: Host, entity: str, error: Exception, *, applied: bool) -> None:
    def act(verb: str, request: Any) -> None:
        if verb == "update" and f"BUCKET#{entity}#" in request["Key"]["PK"]:
            raise error

    if applied:
        host.store.after = act
    else:
        host.store.before = act


@pytest.mark.parametrize("applied", [True, False])
def test_an_ambiguous_member_is_not_given_back_and_the_certain_ones_are(chain: Host, applied: bool) -> None:
    take(chain, rpm=1)
    fail_on(chain, APP, Ambiguous("timeout"), applied=applied)
    with pytest.raises(Unavailable):
        take(chain, rpm=1)
    chain.store.before = chain.store.after = None
    charged = 2_000 if applied else 1_000
    assert [consumed(chain, entity) for entity in (USER, APP, ORG)] == [1_000, charged, 1_000]


def test_a_bug_in_one_member_gives_the_others_back_and_is_not_hidden(chain: Host) -> None:
    chain.put_limits({"x": per_minute(1)}, SYSTEM, OnUnavailable.ALLOW)
    take(chain, rpm=1)
    fail_on(chain, APP, ValueError("bug"), applied=False)
    with pytest.raises(ValueError, match="bug"):
        take(chain, rpm=1)
    chain.store.before = None
    assert [consumed(chain, entity) for entity in (USER, APP, ORG)] == [1_000] * 3


def test_unavailable_is_said_before_refused_and_refused_before_contended(chain: Host) -> None:
    take(chain, rpm=10)
    fail_on(chain, APP, Contended(30), applied=False)
    assert {violation.entity for violation in refused(chain, rpm=1).violations} == {USER}
    chain.clock.advance(DENIAL_MS)
    fail_on(chain, APP, Throttled("x"), applied=False)
    with pytest.raises(Unavailable):
        take(chain, rpm=1)
    chain.store.before = None
    assert consumed(chain, ORG) == 10_000


def test_a_give_back_that_is_lost_is_counted_and_the_answer_stays(chain: Host) -> None:
    take(chain, rpm=10)

    def lose(verb: str, request: Any) -> None:
        if verb == "update" and "attribute_exists" in request["ConditionExpression"]:
            raise Throttled("x")

    chain.store.before = lose
    refused(chain, rpm=1)
    assert chain.meter.counts[Signal.GIVE_BACKS_LOST] == 2
    assert [consumed(chain, entity) for entity in (USER, APP, ORG)] == [10_000, 11_000, 11_000]


def test_a_give_back_leaves_out_a_limit_that_is_gone(host: Host, start_host: Callable[[], Host]) -> None:
    chain_of(host, ORG, USER)
    host.put_limits({"rpm": per_minute(1)})
    host.put_limits({"rpm": per_minute(10), "tpm": per_minute(10)}, own(ORG))
    take(host, rpm=1, tpm=1)
    operator = start_host()

    def remove_a_limit(verb: str, request: Any) -> None:
        if verb == "update" and "attribute_exists" in request["ConditionExpression"]:
            host.store.before = None
            operator.put_limits({"rpm": per_minute(10)}, own(ORG))
            take(operator, ORG, rpm=0)

    host.store.before = remove_a_limit
    refused(host, rpm=1, tpm=1)
    org = bucket_of(host, ORG)
    assert org.limits["rpm"].consumed_milli == 1_000
    assert org.retired_consumed_milli == {"tpm": 2_000}


def test_a_give_back_to_a_bucket_that_was_made_again_changes_nothing(host: Host) -> None:
    chain_of(host, ORG, USER)
    host.put_limits({"rpm": per_minute(1)})
    host.put_limits({"rpm": per_minute(10)}, own(ORG))
    take(host, rpm=1)

    def make_again(verb: str, request: Any) -> None:
        if verb == "update" and "attribute_exists" in request["ConditionExpression"]:
            host.store.before = None
            host.store.inner.delete({"Key": request["Key"]})

    host.store.before = make_again
    refused(host, rpm=1)
    found = host.store.inner.get(keys.bucket(NAMESPACE, ORG, RESOURCE, 0), consistent=True)
    assert found is None


def test_a_chain_is_cut_at_four_even_if_the_table_says_otherwise(host: Host) -> None:
    chain_of(host, "a", "b", "c", "d")
    # A fifth level can only come from a race that the index did not show.
    item = host.store.inner.get(keys.entity(NAMESPACE, "a"), consistent=True)
    assert item is not None
    host.store.inner.put({"Item": {**item, "parent_id": "d"}}, repeatable=True)
    for entity in "abcd":
        host.put_limits({"rpm": Limit(100, 100, 100, 60)}, own(entity))
    assert [level.entity for level in take(host, "d", rpm=1).levels] == ["d", "c", "b", "a"]


def test_a_bucket_that_is_asked_for_and_stands_above_does_not_flip(host: Host) -> None:
    """Hole: other limits apply in the two parts. A bucket under only those would be rebased to and fro, and each time
    the limits that come back would start full."""
    chain_of(host, ORG, USER)
    host.put_limits({"tpm": per_minute(10), "rpm": per_minute(100)})
    host.put_limits({"rpm": per_minute(50)}, own(ORG))
    for _ in range(5):
        take(host, ORG, tpm=2, rpm=1)
        take(host, USER, rpm=1)
    org = bucket_of(host, ORG)
    assert org.version == 10
    assert org.limits["tpm"].consumed_milli == 10_000
    refused(host, ORG, tpm=1)
    take(host, USER, tpm=10)


def test_members_that_ask_and_stand_above_are_read_once(host: Host) -> None:
    chain_of(host, ORG, USER)
    host.put_limits({"rpm": per_minute(10)}, own(ORG))
    take(host, USER, rpm=1)
    host.store.taken_calls()
    take(host, ORG, rpm=1)
    assert host.store.taken_calls() == ["update"]


def test_levels_show_the_limits_that_apply(host: Host) -> None:
    """Hole: a bucket above has the defaults as well, which nobody is held to there."""
    chain_of(host, ORG, USER)
    host.put_limits({"rpm": per_minute(10), "tpm": per_minute(100)})
    host.put_limits({"rpm": per_minute(3)}, own(ORG))
    shown = {level.entity: sorted(limit.limit for limit in level.limits) for level in take(host, rpm=3).levels}
    assert shown == {USER: ["rpm", "tpm"], ORG: ["rpm"]}
    (level,) = refused(host, rpm=1).levels
    assert (level.entity, [limit.limit for limit in level.limits]) == (ORG, ["rpm"])
