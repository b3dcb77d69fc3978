"""Limits that change under traffic: every level stays what it is, and the change acts within the cache time."""

from collections.abc import Callable
from typing import Any

import pytest

from sluice.core.errors import (
    Contended,
    NeverAdmissible,
    NoLimits,
    UnknownLimit,
)
from sluice.core.limits import DEFAULT_RESOURCE, SYSTEM, Limit, OnUnavailable, Scope
from sluice.repository import writes
from sluice.services.configuration import CACHE_MS
from tests.fakes import FakeClock
from tests.integration.conftest import ENTITY, NAMESPACE, OF_RESOURCE, RESOURCE, Host
from tests.integration.test_acquire import DAY_MS, MINUTE_MS, per_minute


def is_rebase(request: Any) -> bool:
    """The one write that changes the limits hash."""
    return "lh = " in request["UpdateExpression"]


def test_a_lowered_limit_on_a_full_bucket_admits_exactly_the_new_burst(host: Host) -> None:
    host.put_limits({"rpm": per_minute(100)})
    host.acquire(rpm=0)
    host.put_limits({"rpm": per_minute(10)})
    assert host.admitted_until_refused(rpm=1) == 10


def test_an_added_limit_starts_full(host: Host) -> None:
    host.put_limits({"rpm": per_minute(100)})
    host.acquire(rpm=50)
    host.put_limits({"rpm": per_minute(100), "tpm": per_minute(100)})
    host.acquire(tpm=5)
    assert (host.level_milli("tpm"), host.consumed_milli("tpm")) == (95_000, 5_000)
    assert (host.level_milli("rpm"), host.consumed_milli("rpm")) == (50_000, 50_000)


def test_a_removed_limit_keeps_its_count_and_goes_on_counting(host: Host) -> None:
    host.put_limits({"rpm": per_minute(100), "tpm": per_minute(100)})
    host.acquire(rpm=1, tpm=7)
    host.put_limits({"rpm": per_minute(100)})
    host.acquire(rpm=1)
    assert host.bucket().limits.keys() == {"rpm"}
    assert host.bucket().retired_consumed_milli == {"tpm": 7_000}
    with pytest.raises(UnknownLimit):
        host.acquire(tpm=1)
    host.put_limits({"rpm": per_minute(100), "tpm": per_minute(100)})
    host.acquire(tpm=1)
    assert host.consumed_milli("tpm") == 8_000
    assert host.level_milli("tpm") == 99_000


def test_lowering_and_raising_again_grants_nothing(host: Host) -> None:
    host.put_limits({"rpm": per_minute(1000)})
    host.acquire(rpm=100)
    host.put_limits({"rpm": per_minute(500)})
    host.acquire(rpm=0)
    host.put_limits({"rpm": per_minute(1000)})
    host.acquire(rpm=0)
    assert host.level_milli("rpm") == 500_000


def test_a_change_acts_within_the_cache_time_under_steady_traffic(
    host: Host, start_host: Callable[[], Host], clock: FakeClock
) -> None:
    """Hole: under steady speculative traffic a lowered default was never applied."""
    operator = start_host()
    host.put_limits({"rpm": per_minute(6000)})
    host.acquire(rpm=1)
    operator.put_limits({"rpm": per_minute(60)})
    for _ in range(CACHE_MS // 1000):
        clock.advance(1_000)
        host.acquire(rpm=1)
    assert host.bucket().limits["rpm"].parameters.burst_milli == 60_000
    assert host.admitted_until_refused(rpm=1) <= 60


def test_a_change_acts_while_everyone_is_refused(host: Host, start_host: Callable[[], Host], clock: FakeClock) -> None:
    operator = start_host()
    host.put_limits({"rpd": Limit(1, 1, 1, 86_400)})
    host.acquire(rpd=1)
    operator.put_limits({"rpd": Limit(5000, 5000, 5000, 86_400)})
    assert host.refused(rpd=1).retry_after_ms > DAY_MS - 100_000
    clock.advance(CACHE_MS)
    refused = host.refused(rpd=1)
    assert refused.retry_after_ms <= 17_280
    clock.now_ms = refused.admit_at_ms
    host.acquire(rpd=1)


def test_hosts_with_different_caches_do_not_flip_a_bucket(
    host: Host, start_host: Callable[[], Host], clock: FakeClock
) -> None:
    stale = start_host()
    host.put_limits({"rpm": per_minute(100)})
    stale.acquire(rpm=1)
    host.put_limits({"rpm": per_minute(50)})
    host.acquire(rpm=1)
    version = host.bucket().version
    stale.store.taken_calls()
    stale.acquire(rpm=1)
    # Its own write failed, it read the limits again and went on with them: no rebase back.
    assert stale.store.taken_calls() == ["update", "consistent batch_get", "update"]
    assert host.bucket().version == version + 1
    assert host.bucket().limits["rpm"].parameters.burst_milli == 50_000


def test_a_stale_host_judges_by_the_new_limits(host: Host, start_host: Callable[[], Host]) -> None:
    stale = start_host()
    host.put_limits({"rpm": per_minute(100)})
    stale.acquire(rpm=1)
    host.put_limits({"rpm": per_minute(50)})
    host.acquire(rpm=1)
    with pytest.raises(NeverAdmissible):
        stale.acquire(rpm=51)


def test_a_spend_between_image_and_rebase_is_kept(host: Host, start_host: Callable[[], Host]) -> None:
    """Full 100, one taken by another between image and rebase: 99 remain."""
    other = start_host()
    host.put_limits({"rpm": per_minute(100)})
    host.acquire(rpm=0)
    other.acquire(rpm=0)
    host.put_limits({"rpm": per_minute(200)})

    def spend_before_the_rebase(verb: str, request: Any) -> None:
        if verb == "update" and is_rebase(request):
            host.store.before = None
            item = other.bucket()
            other.store.inner.update(writes.adjust(item, {"rpm": 1_000}, other.clock.now_ms), repeatable=False)

    host.store.before = spend_before_the_rebase
    host.acquire(rpm=0)
    assert host.level_milli("rpm") == 99_000
    assert host.consumed_milli("rpm") == 1_000


def test_a_drained_bucket_with_slower_limits_outlives_its_old_ttl(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=10)
    host.put_limits({"rpm": Limit(10, 100, 10, 86_400)})
    host.refused(rpm=1)
    clock.advance(3 * DAY_MS)
    assert (host.bucket().expires_at_s or 0) * 1000 > clock.now_ms
    assert host.level_milli("rpm") == 30_000


def test_a_bucket_that_vanishes_before_the_rebase_is_made_again(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=10)
    host.put_limits({"rpm": per_minute(20)})

    def vanish(verb: str, request: Any) -> None:
        if verb == "update" and is_rebase(request):
            host.store.before = None
            host.store.inner.delete({"Key": request["Key"]})

    host.store.before = vanish
    host.acquire(rpm=1)
    assert host.level_milli("rpm") == 19_000


def test_limits_that_change_faster_than_anyone_can_follow_are_contended(
    host: Host, start_host: Callable[[], Host]
) -> None:
    operator = start_host()
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=1)
    capacity = 10

    def change() -> None:
        """Brings the bucket under the latest limits and changes them once more."""
        nonlocal capacity
        operator.acquire(rpm=0)
        capacity += 1
        operator.put_limits({"rpm": per_minute(capacity)})

    def change_before_a_rebase(verb: str, request: Any) -> None:
        if verb == "update" and is_rebase(request):
            # Twice: else the bucket would arrive at just what this host wants.
            change()
            change()

    change()
    change()
    host.store.before = change_before_a_rebase
    with pytest.raises(Contended):
        host.acquire(rpm=1)


def test_limits_that_are_gone_everywhere_are_no_limits(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=1)
    host.store.inner.delete({"Key": {"PK": f"{NAMESPACE}/RESOURCE#{RESOURCE}", "SK": "#CONFIG"}})
    clock.advance(CACHE_MS)
    with pytest.raises(NoLimits):
        host.acquire(rpm=1)


def test_system_limits_apply_where_the_resource_says_nothing(host: Host) -> None:
    host.put_limits({"rpm": per_minute(3), "tpm": per_minute(100)}, SYSTEM)
    host.put_limits({"rpm": per_minute(5)})
    refused_after = host.admitted_until_refused(rpm=1, tpm=1)
    assert refused_after == 5
    violation = host.refused(rpm=1).violations[0]
    assert violation.source == "resource"
    host.acquire(tpm=95)
    assert host.refused(tpm=1).violations[0].source == "system"


def test_the_configuration_is_read_once_a_minute(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(1000)})
    host.acquire(rpm=1)
    host.store.taken_calls()
    for _ in range(10):
        clock.advance(CACHE_MS // 10 - 1)
        host.acquire(rpm=1)
    assert host.store.taken_calls() == ["update"] * 10
    clock.advance(10)
    host.acquire(rpm=1)
    assert host.store.taken_calls() == ["batch_get", "update"]


def test_refill_goes_on_at_the_old_rate_until_the_change(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(60)})
    host.acquire(rpm=60)
    clock.advance(MINUTE_MS // 2)
    host.put_limits({"rpm": per_minute(600)})
    host.acquire(rpm=0)
    assert host.level_milli("rpm") == 30_000
    clock.advance(1_000)
    assert host.level_milli("rpm") == 40_000


def test_many_limits_with_long_names_can_all_be_replaced(host: Host) -> None:
    """Hole: an expression may have 4 KB, and beyond that every acquire on the bucket would fail for ever."""

    def twenty(first: str, capacity: int) -> None:
        for scope, second in ((SYSTEM, "s"), (OF_RESOURCE, "r")):
            limits = {f"{first}{second}{number:030d}": per_minute(capacity) for number in range(10)}
            host.put_limits(limits, scope)

    for first, capacity in (("a", 10), ("a", 20), ("b", 10)):
        twenty(first, capacity)
        host.ask({f"{first}r{number:030d}": 1 for number in range(10)})
    assert len(host.bucket().limits) == 20
    assert len(host.bucket().retired_consumed_milli) == 20


def test_limits_that_are_switched_off_meanwhile_cost_a_stale_host_no_write(
    host: Host, start_host: Callable[[], Host]
) -> None:
    stale = start_host()
    host.put_limits({"rpm": per_minute(10), "tpm": per_minute(10)})
    stale.acquire(rpm=1)
    host.put_limits({"rpm": None, "tpm": per_minute(10)})
    host.acquire(tpm=1)
    version = host.bucket().version
    assert stale.acquire(rpm=1).levels == ()
    assert host.bucket().version == version


def test_a_rebased_bucket_is_known_afterwards(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=10)
    host.put_limits({"rpm": per_minute(60)})
    refused = host.refused(rpm=1)
    host.store.taken_calls()
    clock.now_ms = refused.admit_at_ms
    host.acquire(rpm=1)
    assert host.store.taken_calls() == ["update"]


def test_a_host_that_is_two_changes_behind_catches_up(host: Host, start_host: Callable[[], Host]) -> None:
    operator = start_host()
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=1)
    operator.put_limits({"rpm": per_minute(11)})
    operator.acquire(rpm=0)
    operator.put_limits({"rpm": per_minute(12)})
    host.acquire(rpm=1)
    assert host.bucket().limits["rpm"].parameters.burst_milli == 12_000


OWN = Scope(ENTITY, RESOURCE)
OWN_DEFAULT = Scope(ENTITY, DEFAULT_RESOURCE)


def test_each_limit_comes_from_the_most_specific_level(host: Host) -> None:
    host.put_limits({"a": per_minute(1), "b": per_minute(1), "c": per_minute(1), "d": per_minute(1)}, SYSTEM)
    host.put_limits({"b": per_minute(2), "c": per_minute(2), "d": per_minute(2)})
    host.put_limits({"c": per_minute(3), "d": per_minute(3)}, OWN_DEFAULT)
    host.put_limits({"d": per_minute(4)}, OWN)
    admitted = [host.admitted_until_refused(a=1), host.admitted_until_refused(b=1)]
    admitted += [host.admitted_until_refused(c=1), host.admitted_until_refused(d=1)]
    assert admitted == [1, 2, 3, 4]
    sources = [host.refused(**{name: 1}).violations[0].source for name in "abcd"]
    assert sources == ["system", "resource", "entity_default", "entity"]


def test_a_first_acquire_under_four_levels_is_one_read(host: Host) -> None:
    for scope in (SYSTEM, OF_RESOURCE, OWN_DEFAULT, OWN):
        host.put_limits({"rpm": per_minute(10)}, scope)
    host.store.taken_calls()
    host.acquire(rpm=1)
    assert host.store.taken_calls() == ["batch_get", "put"]


def test_a_bucket_under_limits_of_its_own_does_not_expire(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(10)}, OWN)
    host.acquire(rpm=10)
    assert host.bucket().expires_at_s is None
    # The debt of an adjustment must not be forgiven when the limits become the resource's.
    debit = writes.adjust(host.bucket(), {"rpm": 100_000}, clock.now_ms)
    host.store.inner.update(debit, repeatable=False)
    host.put_limits({"rpm": per_minute(20)})
    host.limits.delete(NAMESPACE, OWN)
    host.refused(rpm=1)
    lifetime_ms = 2 * MINUTE_MS + 2 * DAY_MS + 5 * MINUTE_MS
    assert host.bucket().expires_at_s == (clock.now_ms + lifetime_ms) // 1000
    host.put_limits({"rpm": per_minute(30)}, OWN)
    host.refused(rpm=1)
    assert host.bucket().expires_at_s is None


def test_a_removed_level_gives_way_to_the_next(host: Host) -> None:
    host.put_limits({"rpm": per_minute(5)})
    host.put_limits({"rpm": per_minute(2)}, OWN)
    assert host.admitted_until_refused(rpm=1) == 2
    host.limits.delete(NAMESPACE, OWN)
    refused = host.refused(rpm=1)
    assert refused.violations[0].source == "resource"
    assert host.bucket().limits["rpm"].parameters.burst_milli == 5_000


def test_a_bucket_gets_its_ttl_back_when_equal_limits_become_the_resources(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10)}, OWN)
    host.acquire(rpm=1)
    assert host.bucket().expires_at_s is None
    host.put_limits({"rpm": per_minute(10)})
    host.limits.delete(NAMESPACE, OWN)
    host.acquire(rpm=1)
    assert host.bucket().expires_at_s is not None
    assert host.consumed_milli("rpm") == 2_000


def test_a_change_is_not_cached_over_by_a_read_that_began_before_it(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10)}, SYSTEM, OnUnavailable.ALLOW)

    def change_meanwhile(verb: str, _request: Any) -> None:
        if verb == "batch_get":
            host.store.after = None
            host.put_limits({"rpm": per_minute(5)}, SYSTEM, OnUnavailable.BLOCK)

    host.store.after = change_meanwhile
    host.acquire(rpm=1)
    assert host.configuration.on_unavailable(NAMESPACE) is OnUnavailable.BLOCK
    assert host.configuration.resolve(NAMESPACE, ENTITY, RESOURCE, None).resolved.limits.limits["rpm"].burst == 5
