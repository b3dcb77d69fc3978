"""The flows of the design's vectors, one test each, in its order, on a real engine. Balances are levels."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sluice.core.errors import Contended, LimitExceeded, NeverAdmissible, UnknownLimit
from sluice.core.lease import Lease
from sluice.core.limits import Limit
from sluice.repository.items import Bucket
from sluice.services.corrections import Corrections
from sluice.services.effects import Effects
from sluice.services.leases import Leases
from sluice.shell import new_token
from tests.fakes import FakeClock
from tests.integration.conftest import Host

YEAR_S = 31_536_000
DAY_MS = 86_400_000
StartHost = Callable[[], Host]


def per_minute(capacity: int, burst: int | None = None) -> Limit:
    return Limit(capacity, burst or capacity, capacity, 60)


def slow(capacity: int) -> Limit:
    return Limit(capacity, capacity, capacity, YEAR_S)


def leases_of(host: Host) -> Leases:
    effects = Effects(host.clock, host.random, new_token, host.meter)
    return Leases(host.store, Corrections(host.store, host.taker), effects)


def lease(host: Host, **consume: int) -> Lease:
    return leases_of(host).open(host.acquire(**consume), 300_000)


def between(host: Host, verb: str, act: Callable[[], object]) -> None:
    """Acts once, just before the next such call of this host."""

    def once(called: str, _request: Any) -> None:
        if called == verb:
            host.store.before = None
            act()

    host.store.before = once


def test_create_with_7_of_a_million_then_5(host: Host) -> None:
    host.put_limits({"tpm": per_minute(1_000_000)})
    host.acquire(tpm=7)
    host.acquire(tpm=5)
    assert (host.level_milli("tpm"), host.consumed_milli("tpm")) == (999_988_000, 12_000)


def test_take_1_of_10_and_adjust_by_25(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10)})
    taken = lease(host, rpm=1)
    leases_of(host).adjust(taken, {"rpm": 25}, "key-1")
    assert (host.level_milli("rpm"), host.consumed_milli("rpm")) == (-16_000, 26_000)
    host.refused(rpm=1)


def test_take_2_of_10_and_give_back(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10)})
    leases_of(host).release(lease(host, rpm=2))
    assert (host.level_milli("rpm"), host.consumed_milli("rpm")) == (10_000, 0)


def test_lower_100_to_10_on_a_full_bucket(host: Host) -> None:
    host.put_limits({"rpm": per_minute(100)})
    host.acquire(rpm=0)
    host.put_limits({"rpm": per_minute(10)})
    assert host.admitted_until_refused(rpm=1) == 10


def test_a_new_limit_of_100_on_an_old_bucket(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=3)
    host.put_limits({"rpm": per_minute(10), "tpm": per_minute(100)})
    host.acquire(tpm=5)
    assert (host.level_milli("tpm"), host.consumed_milli("tpm")) == (95_000, 5_000)


def test_full_100_a_minute_idle_for_a_minute(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(100)})
    host.acquire(rpm=0)
    clock.advance(60_000)
    assert host.admitted_until_refused(rpm=1) == 100


def test_20_hosts_a_full_bucket_of_100_at_599_a_minute(start_host: StartHost) -> None:
    hosts = [start_host() for _ in range(20)]
    hosts[0].put_limits({"rpm": Limit(100, 100, 599, 60)})
    hosts[0].acquire(rpm=0)
    hosts[0].clock.advance(60_000)
    assert _burst(hosts, 10) == 100


def _burst(hosts: Sequence[Host], each: int) -> int:
    admitted = 0
    for _ in range(each):
        for host in hosts:
            try:
                host.acquire(rpm=1)
            except LimitExceeded:
                continue
            admitted += 1
    return admitted


@pytest.mark.parametrize("change", ["rebase", "split"])
@pytest.mark.parametrize("taken_first", [True, False])
def test_full_100_one_taken_between_image_and_change(
    host: Host, start_host: StartHost, change: str, taken_first: bool
) -> None:
    other = start_host()
    host.put_limits({"rpm": slow(100)})
    other.acquire(rpm=0)
    host.acquire(rpm=0)
    image = host.bucket()
    if taken_first:
        other.acquire(rpm=1)
    if change == "rebase":
        host.put_limits({"rpm": slow(100), "tpm": slow(1)})
        host.acquire(rpm=0)
    else:
        host.sharding.split(image)
    if not taken_first:
        other.acquire(rpm=1)
    assert host.admitted_until_refused(rpm=1) == 99


def test_full_100_one_taken_while_the_rebase_is_on_its_way(host: Host, start_host: StartHost) -> None:
    other = start_host()
    host.put_limits({"rpm": slow(100)})
    other.acquire(rpm=0)
    host.acquire(rpm=0)
    host.put_limits({"rpm": slow(100), "tpm": slow(1)})
    # The first update is the one that meets the old limits; the second is the rebase.
    between(host, "consistent batch_get", lambda: other.acquire(rpm=1))
    host.acquire(rpm=0)
    assert host.admitted_until_refused(rpm=1) == 99


def test_two_and_a_half_times_the_rate_from_50_hosts(start_host: StartHost, clock: FakeClock) -> None:
    """800 a second, 2000 asked for: served at the rate, nobody told `contended`."""
    hosts = [start_host() for _ in range(50)]
    hosts[0].put_limits({"rpm": Limit(800, 800, 800, 1)})
    hosts[0].acquire(rpm=800)
    started_ms, admitted = clock.now_ms, 0
    for round_number in range(40):
        for number, host in enumerate(hosts):
            # 2000 in a second: one every half millisecond.
            clock.now_ms = started_ms + (round_number * len(hosts) + number) // 2
            try:
                host.acquire(rpm=1)
            except LimitExceeded:
                continue
            except Contended:
                pytest.fail("told to come back because of others")
            admitted += 1
    elapsed_ms = clock.now_ms - started_ms
    assert 0.97 * 800 * elapsed_ms / 1000 <= admitted <= 800 * elapsed_ms / 1000


def test_drained_and_left_alone_under_10_a_day(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(100)})
    host.acquire(rpm=100)
    host.put_limits({"rpm": Limit(100, 100, 10, 86_400)})
    host.acquire(rpm=0)
    clock.advance(3 * DAY_MS)
    found: Bucket = host.bucket()
    assert found.expires_at_s is None or found.expires_at_s > clock.now_ms // 1000
    assert host.level_milli("rpm") // 1000 == 30


def test_100_of_1000_taken_lowered_to_500_and_raised_again(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": slow(1000)})
    host.acquire(rpm=100)
    host.put_limits({"rpm": slow(500)})
    host.acquire(rpm=0)
    host.put_limits({"rpm": slow(1000)})
    host.acquire(rpm=0)
    assert host.level_milli("rpm") == 500_000
    clock.advance(YEAR_S * 1000 // 10)
    assert host.level_milli("rpm") == 600_000


def test_a_debt_in_another_limit(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10), "tpm": per_minute(10)})
    taken = lease(host, tpm=1)
    leases_of(host).adjust(taken, {"tpm": 25}, "key-1")
    host.acquire(rpm=1)
    host.refused(tpm=1)
    host.refused(tpm=0)


def test_give_back_50_on_a_bucket_of_10(host: Host) -> None:
    host.put_limits({"rpm": slow(50)})
    taken = lease(host, rpm=50)
    host.put_limits({"rpm": slow(10)})
    host.acquire(rpm=0)
    leases_of(host).release(taken)
    assert host.admitted_until_refused(rpm=1) == 10


def test_two_writers_taking_3_and_7_at_once(host: Host, start_host: StartHost, clock: FakeClock) -> None:
    """90 of 100, 1.67 refilled: 81.67 left."""
    other = start_host()
    host.put_limits({"rpm": per_minute(100)})
    host.acquire(rpm=10)
    other.acquire(rpm=0)
    clock.advance(1_000)
    between(host, "update", lambda: other.acquire(rpm=7))
    host.acquire(rpm=3)
    assert host.level_milli("rpm") in {81_666, 81_667}


@pytest.mark.parametrize(("an_hour", "gained"), [(10, (1111, 1112)), (1, (111, 112))])
def test_a_slow_limit_beside_a_busy_one(host: Host, clock: FakeClock, an_hour: int, gained: tuple[int, int]) -> None:
    """60 a minute beside it, written every 100 ms for 400 s: one in ten of those writes, and the first and last."""
    host.put_limits({"slow": Limit(an_hour, an_hour, an_hour, 3600), "rpm": per_minute(60)})
    host.acquire(slow=an_hour, rpm=1)
    for _ in range(400):
        clock.advance(1_000)
        host.acquire(rpm=1)
    assert host.level_milli("slow") in gained


@pytest.mark.parametrize("splits", [1, 2, 4])
def test_1000_of_1000_split_at_any_moment(host: Host, splits: int) -> None:
    host.put_limits({"rpm": slow(1000)})
    admitted = 0
    for _ in range(splits):
        host.acquire(rpm=37)
        admitted += 37
        for image in host.buckets.writer.look_at(host.bucket().key)[0]:
            assert host.sharding.split(image)
    # By sevens first, which do not divide the shares, then one by one.
    admitted += 7 * host.admitted_until_refused(rpm=7)
    host.clock.advance(1_000)
    admitted += host.admitted_until_refused(rpm=1)
    # Up to a millitoken per shard of the refill is still to come.
    assert admitted in {999, 1000}


def test_300_of_1000_a_minute_on_4_shards(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(1000)})
    host.acquire(rpm=0)
    for _ in range(2):
        for image in host.buckets.writer.look_at(host.bucket().key)[0]:
            assert host.sharding.split(image)
    for _ in range(3):
        host.acquire(rpm=300)
    host.refused(rpm=300)
    clock.advance(12_100)
    host.acquire(rpm=300)


def test_11_of_10_never(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10)})
    with pytest.raises(NeverAdmissible):
        host.acquire(rpm=11)
    assert host.find_bucket() is None


def test_an_unknown_limit_name_takes_nothing(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=1)
    with pytest.raises(UnknownLimit):
        host.acquire(rpm=1, tpm=1)
    assert host.consumed_milli("rpm") == 1_000


def test_consumption_in_the_creating_write_is_counted(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=4)
    assert host.consumed_milli("rpm") == 4_000
