"""A bucket of several shards on a real engine: nothing is minted, nothing is out of reach, every time is exact."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sluice.core import shards
from sluice.core.errors import Contended, LimitExceeded, NeverAdmissible, Unavailable
from sluice.core.limits import Limit, Scope
from sluice.core.signals import Signal
from sluice.repository import keys
from sluice.repository.items import Bucket, decode_bucket
from sluice.repository.retries import Throttled
from sluice.repository.store import Applied
from sluice.services.entities import EntityChange
from tests.fakes import FakeClock
from tests.integration.conftest import ENTITY, NAMESPACE, RESOURCE, Host

YEAR_S = 31_536_000
FIRST = keys.bucket(NAMESPACE, ENTITY, RESOURCE, 0)
OWN = Scope(ENTITY, RESOURCE)


def slow(capacity: int) -> Limit:
    """So slow that no test sees it refill."""
    return Limit(capacity, capacity, capacity, YEAR_S)


def per_minute(capacity: int) -> Limit:
    return Limit(capacity, capacity, capacity, 60)


def shards_of(host: Host) -> dict[int, Bucket]:
    wanted = [keys.bucket_shard(FIRST, shard) for shard in range(shards.SHARDS_MAX)]
    found = [decode_bucket(item) for item in host.store.inner.batch_get(wanted, consistent=True)]
    return {bucket.shard: bucket for bucket in sorted(found, key=lambda bucket: bucket.shard)}


def total_milli(host: Host, limit: str = "rpm") -> int:
    now_ms = host.clock.now_ms
    total = 0
    for bucket in shards_of(host).values():
        one = bucket.limits[limit]
        refill = now_ms * one.parameters.refill_amount_milli // one.parameters.refill_period_ms
        total += min(one.balance_milli + refill, one.parameters.burst_milli)
    return total


def consumed_milli(host: Host) -> int:
    return sum(bucket.limits["rpm"].consumed_milli for bucket in shards_of(host).values())


def split_all(host: Host) -> None:
    for bucket in shards_of(host).values():
        assert host.sharding.split(bucket)


@pytest.fixture(autouse=True)
def round_time(clock: FakeClock) -> None:
    """A moment at which the refill of every shard is whole: at others up to a millitoken per shard is still to come."""
    clock.now_ms = 4 * shards.SHARDS_MAX * YEAR_S * 1000


@pytest.fixture
def spread(host: Host) -> Host:
    """Chooses its shards at random, repeatably."""
    host.random.draw = random.Random(7).randrange
    return host


def test_a_thousand_stay_a_thousand_whenever_and_however_often_it_is_split(spread: Host) -> None:
    """Hole: each doubling of the seed mints half the capacity."""
    spread.put_limits({"rpm": slow(1000)})
    admitted = 0
    for before_split in (130, 90, 1, 200):
        for _ in range(before_split):
            spread.acquire(rpm=1)
        admitted += before_split
        split_all(spread)
        assert total_milli(spread) == 1_000_000 - admitted * 1000
    assert len(shards_of(spread)) == shards.SHARDS_MAX
    admitted += spread.admitted_until_refused(rpm=1)
    assert admitted == 1000
    assert consumed_milli(spread) == 1_000_000
    assert total_milli(spread) == 0


@pytest.mark.parametrize("full", [True, False])
def test_what_is_spent_between_image_and_split_stays_spent(
    host: Host, start_host: Callable[[], Host], clock: FakeClock, full: bool
) -> None:
    """99 of 100 remain in all, whatever the order; a full bucket that is spent from is not split on that image."""
    host.put_limits({"rpm": slow(100)})
    host.acquire(rpm=0 if full else 1)
    if full:
        clock.advance(shards.SHARDS_MAX * YEAR_S * 1000)
    image = host.bucket()
    start_host().acquire(rpm=1)
    assert host.sharding.split(image) is not full
    assert total_milli(host) == (99_000 if full else 98_000)
    assert host.admitted_until_refused(rpm=1) == (99 if full else 98)


def test_a_donor_is_left_with_a_debt_of_a_tenth_of_a_second_at_most(host: Host, start_host: Callable[[], Host]) -> None:
    host.put_limits({"rpm": per_minute(6_000)})
    host.acquire(rpm=5_900)
    image = host.bucket()
    start_host().acquire(rpm=100)
    # Half of 100 would go to the child, but the donor has nothing: its debt would be 50, its refill is 5 in 100 ms.
    assert not host.sharding.split(image)
    assert host.sharding.split(host.bucket())


def test_a_split_is_made_once(spread: Host, start_host: Callable[[], Host]) -> None:
    spread.put_limits({"rpm": slow(100)})
    spread.acquire(rpm=1)
    image = spread.bucket()
    assert spread.sharding.split(image)
    assert not start_host().sharding.split(image)
    donor, child = shards_of(spread).values()
    assert (donor.shard_count, child.shard_count) == (2, 2)
    assert (donor.limits["rpm"].consumed_milli, child.limits["rpm"].consumed_milli) == (1_000, 0)
    assert donor.generation == image.generation != child.generation
    assert (donor.expires_at_s, child.expires_at_s) == (None, None)
    assert child.version == 1


def test_no_more_than_sixteen(spread: Host) -> None:
    spread.put_limits({"rpm": slow(100)})
    spread.acquire(rpm=1)
    for _ in range(4):
        split_all(spread)
    spread.store.taken_calls()
    assert not spread.sharding.split(shards_of(spread)[3])
    assert spread.store.taken_calls() == []


def test_ten_limits_with_long_names_can_be_split_and_merged(spread: Host, clock: FakeClock) -> None:
    """An expression may have 4 KB, and both touch every limit."""
    names = [f"{'limit_' * 5}{number}" for number in range(10)]
    spread.put_limits({name: per_minute(100) for name in names})
    spread.ask({names[0]: 1})
    split_all(spread)
    clock.advance(120_000)
    assert spread.sharding.merge(spread.bucket())
    assert spread.bucket().shard_count == 1


def test_a_request_above_one_share_passes_while_the_sum_allows_it(spread: Host) -> None:
    """Hole: in the seed a request above capacity / n never passes. 300 of 1000 on four shards, three times."""
    spread.put_limits({"rpm": slow(1000)})
    spread.acquire(rpm=0)
    split_all(spread)
    split_all(spread)
    for left in (700, 400, 100):
        spread.acquire(rpm=300)
        assert total_milli(spread) == left * 1000
    refused = spread.refused(rpm=300)
    assert refused.violations[0].available == 100
    spread.acquire(rpm=100)
    assert total_milli(spread) == 0
    assert consumed_milli(spread) == 1_000_000


def test_up_to_the_burst_passes_at_every_count_and_above_it_never(spread: Host, clock: FakeClock) -> None:
    spread.put_limits({"rpm": per_minute(1000)})
    spread.acquire(rpm=1000)
    for _ in range(4):
        split_all(spread)
        clock.advance(60_000)
        spread.acquire(rpm=1000)
        with pytest.raises(NeverAdmissible):
            spread.acquire(rpm=1001)


def test_the_last_token_is_found_wherever_it_is(host: Host) -> None:
    """The shard that is asked is always 0; what the other one has must be found."""
    host.put_limits({"rpm": slow(10)})
    host.acquire(rpm=0)
    split_all(host)
    assert host.admitted_until_refused(rpm=1) == 10
    assert {bucket.shard: bucket.limits["rpm"].consumed_milli for bucket in shards_of(host).values()} == {
        0: 5_000,
        1: 5_000,
    }


@pytest.mark.parametrize("amount", [1, 7, 30, 55, 100])
def test_a_quoted_wait_comes_true_and_not_a_millisecond_earlier(
    spread: Host, start_host: Callable[[], Host], clock: FakeClock, amount: int
) -> None:
    """Hole: in the seed the quoted wait never comes true."""
    spread.put_limits({"rpm": per_minute(100)})
    spread.acquire(rpm=100)
    split_all(spread)
    split_all(spread)
    refused = spread.refused(rpm=amount)
    assert refused.admit_at_ms == clock.now_ms + refused.retry_after_ms
    clock.now_ms = refused.admit_at_ms - 1
    with pytest.raises(LimitExceeded):
        start_host().acquire(rpm=amount)
    clock.advance(1)
    start_host().acquire(rpm=amount)


def test_a_standing_refusal_of_a_split_bucket_costs_no_call(spread: Host, clock: FakeClock) -> None:
    spread.put_limits({"rpm": per_minute(60)})
    spread.acquire(rpm=60)
    split_all(spread)
    first = spread.refused(rpm=2)
    spread.store.taken_calls()
    clock.advance(400)
    assert spread.refused(rpm=2).admit_at_ms == first.admit_at_ms
    assert spread.store.taken_calls() == []
    clock.now_ms = first.admit_at_ms
    spread.acquire(rpm=2)


def test_a_refusal_reads_all_shards_once(host: Host) -> None:
    host.put_limits({"rpm": slow(10)})
    host.acquire(rpm=10)
    split_all(host)
    host.store.taken_calls()
    host.refused(rpm=1)
    assert host.store.taken_calls() == ["update", "consistent batch_get"]


def test_a_warm_acquire_of_a_split_bucket_is_one_write(spread: Host) -> None:
    spread.put_limits({"rpm": slow(1000)})
    spread.acquire(rpm=1)
    split_all(spread)
    for _ in range(8):
        spread.acquire(rpm=1)
    spread.store.taken_calls()
    for _ in range(20):
        spread.acquire(rpm=1)
    assert spread.store.taken_calls() == ["update"] * 20
    assert all(bucket.limits["rpm"].consumed_milli > 1_000 for bucket in shards_of(spread).values())


def test_a_process_that_does_not_know_of_the_split_learns_it_from_the_failure(
    spread: Host, start_host: Callable[[], Host]
) -> None:
    other = start_host()
    spread.put_limits({"rpm": slow(100)})
    spread.acquire(rpm=1)
    other.acquire(rpm=1)
    split_all(spread)
    other.store.taken_calls()
    other.acquire(rpm=1)
    assert other.store.taken_calls() == ["update", "update"]
    other.random.draw = lambda below: below - 1
    other.acquire(rpm=1)
    assert shards_of(spread)[1].limits["rpm"].consumed_milli == 1_000


def test_shards_of_different_counts_work_together(spread: Host) -> None:
    """Only one of the two shards was split again; the one that was not stands for two numbers."""
    spread.put_limits({"rpm": slow(800)})
    spread.acquire(rpm=0)
    split_all(spread)
    assert spread.sharding.split(shards_of(spread)[0])
    assert {shard: bucket.shard_count for shard, bucket in shards_of(spread).items()} == {0: 4, 1: 2, 2: 4}
    assert total_milli(spread) == 800_000
    assert spread.admitted_until_refused(rpm=1) == 800
    assert consumed_milli(spread) == 800_000


def test_whoever_finds_a_shard_missing_uses_its_donor(spread: Host, start_host: Callable[[], Host]) -> None:
    other = start_host()
    spread.put_limits({"rpm": per_minute(100)})
    spread.acquire(rpm=1)
    split_all(spread)
    other.random.draw = lambda below: below - 1
    other.acquire(rpm=1)
    other.acquire(rpm=1)
    spread.clock.advance(10_000)
    assert spread.sharding.merge(spread.bucket())
    other.store.taken_calls()
    other.acquire(rpm=1)
    assert other.store.taken_calls() == ["update", "update", "update"], "shard 1 is gone, shard 0 has another count"
    other.acquire(rpm=1)
    assert other.store.taken_calls() == ["update"]


def test_no_shard_above_zero_is_ever_created_from_nothing(spread: Host, start_host: Callable[[], Host]) -> None:
    other = start_host()
    spread.put_limits({"rpm": slow(10)})
    spread.acquire(rpm=10)
    split_all(spread)
    other.random.draw = lambda below: below - 1
    with pytest.raises(LimitExceeded):
        other.acquire(rpm=1)
    for shard in (1, 0):
        spread.store.inner.delete({"Key": {**keys.bucket_shard(FIRST, shard).attributes}})
    spread.clock.advance(2_000)
    other.acquire(rpm=1)
    assert list(shards_of(spread)) == [0]
    assert total_milli(spread) == 9_000


def test_changed_limits_reach_every_shard_and_no_level_moves(spread: Host, clock: FakeClock) -> None:
    spread.put_limits({"rpm": slow(1000)})
    spread.acquire(rpm=100)
    split_all(spread)
    split_all(spread)
    spread.put_limits({"rpm": slow(500)})
    # 900 were left, 225 in each of four shards; now each may have 125.
    assert spread.admitted_until_refused(rpm=1) == 500
    for bucket in shards_of(spread).values():
        assert bucket.limits["rpm"].parameters.burst_milli == 125_000
        assert bucket.expires_at_s is None


def test_a_merge_gives_one_full_bucket_again(spread: Host, clock: FakeClock) -> None:
    spread.put_limits({"rpm": per_minute(101)})
    spread.acquire(rpm=50)
    split_all(spread)
    split_all(spread)
    assert not spread.sharding.merge(spread.bucket()), "not full yet"
    clock.advance(60_000)
    assert spread.sharding.merge(spread.bucket())
    assert list(shards_of(spread)) == [0]
    merged = spread.bucket()
    assert (merged.shard_count, merged.limits["rpm"].parameters) == (1, per_minute(101).parameters)
    assert merged.expires_at_s is not None
    assert merged.expires_at_s >= clock.now_ms // 1000 + 2 * 86_400
    assert spread.admitted_until_refused(rpm=1) == 101
    assert not spread.sharding.merge(spread.bucket()), "one shard is nothing to merge"


def test_a_merged_bucket_under_limits_of_its_own_does_not_expire(spread: Host, clock: FakeClock) -> None:
    spread.put_limits({"rpm": per_minute(100)}, OWN)
    spread.acquire(rpm=50)
    split_all(spread)
    clock.advance(60_000)
    assert spread.sharding.merge(spread.bucket())
    assert spread.bucket().expires_at_s is None


def test_a_merge_fails_on_any_write_in_between(spread: Host, start_host: Callable[[], Host]) -> None:
    spread.put_limits({"rpm": per_minute(100)})
    spread.acquire(rpm=1)
    split_all(spread)
    spread.clock.advance(60_000)
    other = start_host()

    def spend(verb: str, _request: Any) -> None:
        if verb == "transact":
            spread.store.before = None
            other.acquire(rpm=3)

    spread.store.before = spend
    assert not spread.sharding.merge(spread.bucket())
    assert total_milli(spread) == 97_000
    assert len(shards_of(spread)) == 2


def test_a_read_that_shows_half_a_split_is_repeated(spread: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shard 0 before a split and shard 1 after it together show 60 and 30 tokens where there are 60."""
    spread.put_limits({"rpm": slow(100)})
    spread.acquire(rpm=40)
    before = spread.store.inner.get(FIRST, consistent=True)
    assert before is not None
    split_all(spread)
    batch_get = spread.store.inner.batch_get
    reads = []

    def torn(wanted: Any, *, consistent: bool = False) -> Any:
        reads.append(consistent)
        items = batch_get(wanted, consistent=consistent)
        return [before if item["shard"] == 0 else item for item in items] if len(reads) == 1 else items

    monkeypatch.setattr(spread.store.inner, "batch_get", torn)
    refused = spread.refused(rpm=70)
    assert reads == [True, True]
    assert refused.violations[0].available == 60


def test_a_transaction_that_meets_a_spender_looks_again(spread: Host, start_host: Callable[[], Host]) -> None:
    spread.put_limits({"rpm": slow(100)})
    spread.acquire(rpm=0)
    split_all(spread)
    other = start_host()

    def spend(verb: str, _request: Any) -> None:
        if verb == "transact":
            spread.store.before = None
            other.acquire(rpm=10)

    spread.store.before = spend
    spread.acquire(rpm=90)
    assert total_milli(spread) == 0
    other.store.before = None
    with pytest.raises(LimitExceeded):
        other.acquire(rpm=1)


def test_giving_back_returns_every_part_to_its_shard(spread: Host) -> None:
    """A chain whose parent refuses: what was gathered from several shards of the child goes back to each."""
    spread.entities.put(NAMESPACE, "team", EntityChange())
    spread.entities.put(NAMESPACE, ENTITY, EntityChange(parent="team"))
    spread.put_limits({"rpm": slow(100)}, Scope("team", RESOURCE))
    spread.put_limits({"rpm": slow(1000)})
    spread.acquire(rpm=100)
    split_all(spread)
    split_all(spread)
    before = {shard: bucket.balances_milli for shard, bucket in shards_of(spread).items()}
    with pytest.raises(LimitExceeded):
        spread.acquire(rpm=90)
    assert {shard: bucket.balances_milli for shard, bucket in shards_of(spread).items()} == before
    assert consumed_milli(spread) == 100_000


def test_a_busy_shard_is_split_by_whoever_sees_it(host: Host, clock: FakeClock) -> None:
    """800 writes in a second, measured from two images: nothing about it is stored."""
    host.put_limits({"rpm": slow(100_000)})
    host.acquire(rpm=1)
    host.acquire(rpm=1)
    _pretend_written(host, 900)
    clock.advance(1_000)
    host.acquire(rpm=1)
    assert list(shards_of(host)) == [0, 1]
    assert host.meter.counts[Signal.SHARDS_SPLIT] == 1
    assert 0 <= total_milli(host) - (100_000_000 - 3_000) <= 4, "what a second refills"


def test_a_bucket_written_799_times_a_second_is_left_alone(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": slow(100_000)})
    host.acquire(rpm=1)
    host.acquire(rpm=1)
    _pretend_written(host, 798)
    clock.advance(1_000)
    host.acquire(rpm=1)
    assert list(shards_of(host)) == [0]


def _pretend_written(host: Host, times: int) -> None:
    host.store.inner.update(
        {
            "Key": {**FIRST.attributes},
            "UpdateExpression": "ADD v :times",
            "ConditionExpression": "attribute_exists(PK)",
            "ExpressionAttributeValues": {":times": times},
        },
        repeatable=False,
    )


def test_a_throttled_key_is_split(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.put_limits({"rpm": slow(100)})
    host.acquire(rpm=1)
    update = host.store.inner.update

    def throttled_once(request: Any, *, repeatable: bool) -> Any:
        outcome = update(request, repeatable=repeatable)
        assert isinstance(outcome, Applied)
        return replace(outcome, hot_key=True)

    monkeypatch.setattr(host.store.inner, "update", throttled_once)
    host.acquire(rpm=1)
    assert list(shards_of(host)) == [0, 1]


def test_a_key_that_stays_throttled_is_split_for_the_next_one(host: Host) -> None:
    host.put_limits({"rpm": slow(100)})
    host.acquire(rpm=1)

    def throttle(verb: str, _request: Any) -> None:
        if verb == "update":
            raise Throttled("ThrottlingException", hot_key=True)

    host.store.before = throttle
    with pytest.raises(Unavailable):
        host.acquire(rpm=1)
    assert list(shards_of(host)) == [0, 1]


def test_a_split_that_does_not_go_through_harms_nobody(host: Host, clock: FakeClock) -> None:
    host.put_limits({"rpm": slow(100_000)})
    host.acquire(rpm=1)
    host.acquire(rpm=1)
    _pretend_written(host, 900)
    clock.advance(1_000)

    def conflict(verb: str, _request: Any) -> None:
        if verb == "transact":
            raise Contended(25)

    host.store.before = conflict
    host.acquire(rpm=1)
    assert list(shards_of(host)) == [0]


def test_levels_of_a_split_bucket_are_its_whole(spread: Host) -> None:
    spread.put_limits({"rpm": slow(1000)})
    spread.acquire(rpm=0)
    split_all(spread)
    for _ in range(10):
        spread.acquire(rpm=1)
    (level,) = spread.acquire(rpm=1).levels
    assert [(limit.limit, limit.capacity, limit.remaining) for limit in level.limits] == [("rpm", 1000, 989)]
