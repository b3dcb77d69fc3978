"""One bucket, from its creation to its refusal, with the clock in hand."""

from collections.abc import Callable
from typing import Any

import pytest

from sluice.core.errors import NeverAdmissible, NoLimits, UnknownLimit
from sluice.core.limits import SYSTEM, Limit, Source, resolve
from sluice.core.signals import Signal
from sluice.repository import writes
from tests.fakes import FakeClock
from tests.integration.conftest import ENTITY, NAMESPACE, RESOURCE, Host

MINUTE_MS = 60_000
DAY_MS = 86_400_000


def per_minute(capacity: int, burst: int | None = None) -> Limit:
    return Limit(capacity, burst or capacity, capacity, 60)


def test_the_creating_write_counts(host: Host) -> None:
    host.put_limits({"tpm": per_minute(1_000_000)})
    host.acquire(tpm=7)
    host.acquire(tpm=5)
    assert host.level_milli("tpm") == 999_988_000
    assert host.consumed_milli("tpm") == 12_000


def test_calls_of_a_first_a_warm_and_a_refused_acquire(host: Host) -> None:
    host.put_limits({"rpm": per_minute(2)})
    host.store.taken_calls()
    host.acquire(rpm=1)
    assert host.store.taken_calls() == ["batch_get", "put"]
    host.acquire(rpm=1)
    assert host.store.taken_calls() == ["update"]
    host.refused(rpm=1)
    assert host.store.taken_calls() == ["update"]
    assert host.meter.counts == {Signal.ADMITTED: 2, Signal.REFUSED: 1}


def test_a_lone_writer_needs_one_write_also_when_the_bucket_is_full_again(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(600)})
    host.acquire(rpm=1)
    host.store.taken_calls()
    for idle_ms in (0, 50, 5_000, 20, 1, 30_000, 10):
        clock.advance(idle_ms)
        host.acquire(rpm=1)
    assert host.store.taken_calls() == ["update"] * 7


def test_a_refusal_is_exact_to_the_millisecond(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(7), "tpm": per_minute(1000)})
    host.acquire(rpm=7, tpm=995)
    refused = host.refused(rpm=2, tpm=1)
    assert refused.admit_at_ms == clock.now_ms + refused.retry_after_ms
    assert [violation.limit for violation in refused.violations] == ["rpm"]
    clock.now_ms = refused.admit_at_ms - 1
    assert host.refused(rpm=2, tpm=1).retry_after_ms == 1
    clock.now_ms = refused.admit_at_ms
    host.acquire(rpm=2, tpm=1)


def test_the_slowest_short_limit_sets_the_time(host: Host) -> None:
    host.put_limits({"rpm": per_minute(60), "rpd": Limit(10, 10, 10, 86_400)})
    host.acquire(rpm=60, rpd=10)
    refused = host.refused(rpm=1, rpd=1)
    rpm, rpd = refused.violations
    assert (rpm.limit, rpm.retry_after_ms) == ("rpm", 1_000)
    # A millitoken takes 8640 ms, and the one under way counts.
    assert rpd.limit == "rpd"
    assert 8_640_000 - 8_640 < rpd.retry_after_ms <= 8_640_000
    assert refused.retry_after_ms == rpd.retry_after_ms


def test_an_idle_bucket_admits_its_burst_once(host: Host, clock: FakeClock) -> None:
    """Hole: overflowed refill spent again admits twice the burst."""
    host.put_limits({"rpm": per_minute(100)})
    host.acquire(rpm=0)
    clock.advance(MINUTE_MS)
    assert host.admitted_until_refused(rpm=1) == 100
    clock.advance(10 * MINUTE_MS)
    assert host.admitted_until_refused(rpm=1) == 100


def test_burst_above_capacity(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(10, burst=25)})
    assert host.admitted_until_refused(rpm=1) == 25
    clock.advance(MINUTE_MS)
    assert host.admitted_until_refused(rpm=1) == 10


def test_twenty_hosts_burst_exactly(start_host: Callable[[], Host], host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": Limit(100, 100, 599, 60)})
    hosts = [start_host() for _ in range(20)]
    hosts[0].acquire(rpm=0)
    clock.advance(MINUTE_MS)
    assert sum(one.admitted_until_refused(rpm=1) for one in hosts) == 100


def test_a_slow_limit_beside_a_busy_one_gains_what_it_should(host: Host, clock: FakeClock) -> None:
    """Hole: a shared refill time that every write moves starves slow limits."""
    host.put_limits({"rpm": per_minute(60), "rph": Limit(10, 10, 10, 3600)})
    host.acquire(rpm=1, rph=10)
    for _ in range(200):
        clock.advance(2_000)
        host.acquire(rpm=1)
    assert host.level_milli("rph") in (1111, 1112)


def test_two_writers_at_once_lose_nothing(start_host: Callable[[], Host], host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(100)})
    host.acquire(rpm=10)
    other = start_host()
    clock.advance(1_000)

    # The other host writes between the decision and the write of this one.
    def spend_first(_verb: str, _request: Any) -> None:
        host.store.before = None
        other.acquire(rpm=3)

    host.store.before = spend_first
    host.acquire(rpm=7)
    assert host.level_milli("rpm") == 81_666
    assert host.consumed_milli("rpm") == 20_000


def test_zero_asks_that_the_limit_is_not_in_debt(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10), "tpm": per_minute(10)})
    host.acquire(rpm=1, tpm=1)
    debit = writes.adjust(host.bucket(), {"tpm": 25_000}, host.clock.now_ms)
    host.store.inner.update(debit, repeatable=False)
    assert host.level_milli("tpm") == -16_000
    assert host.consumed_milli("tpm") == 26_000
    host.acquire(rpm=1)
    refused = host.refused(rpm=1, tpm=0)
    assert refused.retry_after_ms == 96_000
    (violation,) = refused.violations
    assert (violation.limit, violation.requested, violation.available) == ("tpm", 0, -16)
    assert host.refused(tpm=1).retry_after_ms == 102_000


def test_zero_takes_nothing(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=4)
    host.acquire(rpm=0)
    assert host.level_milli("rpm") == 6_000
    assert host.consumed_milli("rpm") == 4_000


def test_what_is_given_back_beyond_the_burst_is_cut(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=2)
    back = writes.give_back(host.bucket().key, host.bucket().generation, {"rpm": 50_000})
    host.store.inner.update(back, repeatable=False)
    assert host.admitted_until_refused(rpm=1) == 10


def test_never_admissible_unknown_and_no_limits_change_nothing(host: Host) -> None:
    with pytest.raises(NoLimits):
        host.acquire(rpm=1)
    host.put_limits({"rpm": per_minute(10)})
    with pytest.raises(NeverAdmissible):
        host.acquire(rpm=11)
    with pytest.raises(UnknownLimit):
        host.acquire(rpm=1, other=1)
    assert host.find_bucket() is None
    host.acquire(rpm=1)
    before = host.bucket()
    for wrong in ({"rpm": 11}, {"rpm": 1, "other": 1}):
        with pytest.raises((NeverAdmissible, UnknownLimit)):
            host.ask(wrong)
    assert host.bucket() == before


def test_a_switched_off_limit_needs_no_bucket(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10)}, SYSTEM)
    host.put_limits({"rpm": None})
    assert host.acquire(rpm=1000).levels == ()
    assert host.find_bucket() is None


def test_call_limits_have_a_bucket_of_their_own(host: Host) -> None:
    host.put_limits({"rpm": per_minute(5)})
    for capacity in (2, 3):
        limits = {"rpm": per_minute(capacity)}
        assert host.admitted_until_refused(limits, rpm=1) == capacity
        fingerprint = resolve([(Source.CALL, limits)]).fingerprint
        assert host.bucket(fingerprint).limits["rpm"].consumed_milli == capacity * 1000
    assert host.admitted_until_refused(rpm=1) == 5


def test_calls_with_call_limits(host: Host) -> None:
    limits = {"rpm": per_minute(5)}
    host.ask({"rpm": 1}, limits)
    assert host.store.taken_calls() == ["batch_get", "put"]
    host.ask({"rpm": 1}, limits)
    assert host.store.taken_calls() == ["update"]
    # Once a minute: what to do when the table does not answer is stored.
    host.clock.advance(MINUTE_MS)
    host.ask({"rpm": 1}, limits)
    assert host.store.taken_calls() == ["batch_get", "update"]


def test_a_cold_process_on_an_existing_bucket_reads_it_along(host: Host, start_host: Callable[[], Host]) -> None:
    host.put_limits({"rpm": per_minute(5)})
    host.acquire(rpm=1)
    cold = start_host()
    cold.acquire(rpm=1)
    assert cold.store.taken_calls() == ["batch_get", "update"]
    assert cold.consumed_milli("rpm") == 2_000


def test_levels_of_an_admission_show_every_limit(host: Host) -> None:
    host.put_limits({"rpm": per_minute(5), "tpm": per_minute(100)})
    (level,) = host.acquire(rpm=1).levels
    assert {limit.limit: limit.remaining for limit in level.limits} == {"rpm": 4, "tpm": 100}


def test_entities_do_not_share_a_bucket(host: Host) -> None:
    host.put_limits({"rpm": per_minute(1)})
    host.ask({"rpm": 1}, entity="a")
    host.ask({"rpm": 1}, entity="b")


def test_the_first_limits_of_a_bucket_live_as_long_as_it_needs_to_be_full(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(10), "rpd": Limit(10, 10, 10, 86_400)})
    host.acquire(rpm=1)
    least_s = (clock.now_ms + 2 * DAY_MS + 2 * DAY_MS) // 1000
    assert host.bucket().expires_at_s == least_s


def test_a_near_ttl_is_moved_in_the_same_write(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=1)
    clock.advance(2 * DAY_MS)
    host.store.taken_calls()
    host.acquire(rpm=1)
    assert host.store.taken_calls() == ["batch_get", "update"]
    assert host.bucket().expires_at_s == (clock.now_ms + 2 * MINUTE_MS + 2 * DAY_MS) // 1000


def test_a_host_that_has_not_seen_the_near_ttl_learns_it_from_the_failure(
    host: Host, start_host: Callable[[], Host], clock: FakeClock
) -> None:
    host.put_limits({"rpm": per_minute(10)})
    other = start_host()
    host.acquire(rpm=1)
    other.acquire(rpm=1)
    clock.advance(DAY_MS + MINUTE_MS + 1000)
    host.acquire(rpm=1)
    assert host.bucket().expires_at_s == (clock.now_ms + 2 * MINUTE_MS + 2 * DAY_MS) // 1000
    # The other one still believes in the old ttl.
    other.acquire(rpm=1)
    assert other.consumed_milli("rpm") == 4_000


def test_an_expired_bucket_is_used_and_a_deleted_one_is_made_again_full(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=10)
    first = host.bucket()
    clock.advance(10 * DAY_MS)
    assert host.admitted_until_refused(rpm=1) == 10
    assert host.bucket().generation == first.generation
    clock.advance(10 * DAY_MS)
    host.store.inner.delete({"Key": {"PK": first.key.pk, "SK": first.key.sk}})
    assert host.admitted_until_refused(rpm=1) == 10
    assert host.bucket().generation > first.generation


def test_a_host_without_an_image_renews_a_near_ttl_at_its_second_try(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=1)
    clock.advance(DAY_MS + MINUTE_MS + 1000)
    host.configuration.resolve(NAMESPACE, ENTITY, RESOURCE, None)
    host.taker._images._seen.clear()
    host.store.taken_calls()
    host.acquire(rpm=1)
    assert host.store.taken_calls() == ["update", "update"]
    assert host.bucket().expires_at_s == (clock.now_ms + 2 * MINUTE_MS + 2 * DAY_MS) // 1000


def test_a_slow_answer_is_judged_at_the_time_of_its_write(host: Host, clock: FakeClock) -> None:
    """Hole: by then the refill of the round trip looks like room, and everyone tries again."""
    host.put_limits({"rpm": per_minute(60)})
    host.acquire(rpm=60)
    clock.advance(990)
    host.store.after = lambda _verb, _request: clock.advance(20)
    host.store.taken_calls()
    refused = host.refused(rpm=1)
    assert host.store.taken_calls() == ["update"]
    assert refused.retry_after_ms == 1
    assert refused.violations[0].available == 0


def test_a_generation_is_a_time_and_a_random_number(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(60)})
    host.random.draw = lambda below: below - 1
    host.acquire(rpm=1)
    assert host.bucket().generation == clock.now_ms * 1_000_000 + 999_999


def test_what_may_be_sent_twice(host: Host) -> None:
    """A create and a rebase happen once however often they are sent; a debit does not."""
    host.put_limits({"rpm": per_minute(60)})
    host.acquire(rpm=1)
    host.acquire(rpm=1)
    host.put_limits({"rpm": per_minute(30)})
    host.acquire(rpm=1)
    assert host.store.repeatable == [
        ("put", True),
        ("update", False),
        ("update", False),
        ("update", True),
        ("update", False),
    ]
