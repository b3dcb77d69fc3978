"""Leases whose buckets, shards or limits are gone: no credit for them, and a debit to whoever took over."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from sluice.core.lease import Lease, LeaseMember, Share
from sluice.core.limits import Limit
from sluice.repository import keys, writes
from sluice.repository.wire import Item
from sluice.services.configuration import CACHE_MS
from tests.integration.conftest import ENTITY, NAMESPACE, RESOURCE, Host
from tests.integration.desks import TEN, TWO, Desk

# So slow that a test sees none of it.
ENDLESS = {"rpm": Limit(1_000, 1_000, 1, 31_536_000), "tpm": Limit(1_000, 1_000, 1, 31_536_000)}


@pytest.fixture
def desk(start_host: Callable[[], Host]) -> Desk:
    return Desk.opened(start_host)


@pytest.mark.parametrize("made_again", [False, True])
def test_a_bucket_that_is_gone_gets_no_credit(desk: Desk, made_again: bool) -> None:
    """Hole: an unconditional ADD would leave half an item behind, or give a new bucket what it never gave."""
    desk.host.put_limits(TWO)
    lease = desk.take(rpm=1, tpm=100)
    desk.leases.adjust(lease, {"tpm": 5}, "k")
    desk.delete(desk.bucket())
    if made_again:
        desk.host.clock.advance(1)
        desk.elsewhere().take(tpm=10)
    assert desk.leases.release(lease).amounts == {"rpm": 1, "tpm": 105}
    assert desk.left_out(lease) == {"0.0"}
    if made_again:
        assert desk.host.consumed_milli("tpm") == 10_000
    else:
        assert desk.host.find_bucket() is None


@pytest.mark.parametrize("seen", [False, True])
def test_a_bucket_that_was_made_again_takes_the_debit(desk: Desk, seen: bool) -> None:
    """Hole: a process that has seen only the new bucket would give it what the old one gave."""
    desk.host.put_limits(TWO)
    lease = desk.take(rpm=2, tpm=100)
    desk.delete(desk.bucket())
    desk.host.clock.advance(1)
    (desk if seen else desk.elsewhere()).take(tpm=10)
    desk.leases.adjust(lease, {"tpm": 50, "rpm": -1}, "k")
    assert desk.host.consumed_milli("tpm") == 60_000
    assert desk.host.consumed_milli("rpm") == 0
    # What the new bucket was charged is not given back either: the safe side.
    desk.leases.release(lease)
    assert desk.host.consumed_milli("tpm") == 60_000
    assert desk.left_out(lease) == {"0.0"}


@pytest.mark.parametrize("actual", [{"tpm": 500}, {"tpm": 20}, {"rpm": 3, "tpm": 20}])
def test_a_bucket_that_an_old_client_made_again_is_left_alone(desk: Desk, actual: dict[str, int]) -> None:
    """While a namespace is in migration, the old layout may come back under the same key."""
    desk.host.put_limits(TWO)
    lease = desk.take(rpm=1, tpm=100)
    bucket = desk.bucket()
    desk.delete(bucket)
    old: Item = {**bucket.key.attributes, "shard_count": 1, "rf": 1_700_000_000_000}
    old |= {"b_tpm_tk": 5, "b_tpm_cp": 9, "b_tpm_bx": 9, "b_tpm_ra": 9, "b_tpm_rp": 9, "b_tpm_tc": 0}
    desk.host.store.inner.put({"Item": old}, repeatable=True)
    desk.leases.settle(lease, actual)
    assert desk.host.store.inner.get(bucket.key, consistent=True) == old
    assert desk.left_out(lease) == {"0.0"}


def test_a_debit_without_any_bucket_is_left_out(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    lease = desk.take(rpm=1, tpm=100)
    desk.delete(desk.bucket())
    assert desk.leases.settle(lease, {"tpm": 500}).amounts == {"rpm": 1, "tpm": 500}
    assert desk.host.find_bucket() is None
    assert desk.left_out(lease) == {"0.0"}


def test_a_limit_that_is_gone_is_left_out_and_stays_left_out(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    lease = desk.take(rpm=2, tpm=100)
    other = desk.elsewhere()
    other.host.put_limits(TEN)
    other.take(rpm=1)
    assert desk.bucket().limits.keys() == {"rpm"}
    desk.leases.adjust(lease, {"rpm": -1, "tpm": -10}, "k")
    assert desk.left_out(lease) == {"0.0.tpm"}
    assert desk.host.consumed_milli("rpm") == 2_000
    # The limit comes back, full: what the lease took before was forgotten with it.
    other.host.put_limits(TWO)
    other.host.clock.advance(CACHE_MS)
    other.take(rpm=1, tpm=300)
    desk.leases.release(replace(lease, expires_at_ms=lease.expires_at_ms + CACHE_MS))
    assert desk.host.level_milli("tpm") == 700_000
    assert desk.host.consumed_milli("rpm") == 2_000
    assert desk.left_out(lease) == {"0.0.tpm"}


def test_a_debit_of_a_limit_that_is_gone_is_left_out_and_never_given_back(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    lease = desk.take(rpm=2, tpm=100)
    other = desk.elsewhere()
    other.host.put_limits(TEN)
    other.take(rpm=1)
    desk.leases.adjust(lease, {"rpm": 3, "tpm": 50}, "k")
    assert desk.left_out(lease) == {"0.0.tpm"}
    assert desk.host.consumed_milli("rpm") == 6_000
    desk.leases.release(lease)
    assert desk.host.consumed_milli("rpm") == 1_000


def gathered(desk: Desk, *shards: int) -> Lease:
    """A lease of 60 tokens that these shards gave together, as a gathering transaction takes them."""
    shares = []
    for shard, amount_milli in zip(shards, (30_000, 20_000, 10_000), strict=True):
        bucket = desk.bucket(shard=shard)
        desk.host.store.inner.update(
            writes.adjust(bucket, {"tpm": amount_milli}, desk.host.clock.now_ms), repeatable=False
        )
        shares.append(Share(shard, bucket.generation, {"tpm": amount_milli}))
    member = LeaseMember(ENTITY, tuple(shares))
    return Lease("gathered", NAMESPACE, ENTITY, RESOURCE, {"tpm": 60}, (member,), desk.host.clock.now_ms + 1_000)


def split_to(desk: Desk, count: int) -> None:
    while (have := desk.bucket().shard_count) < count:
        for shard in range(have):
            assert desk.host.sharding.split(desk.bucket(shard=shard))


def consumed_by_shard(desk: Desk, count: int) -> list[int]:
    keys_of = [keys.bucket(NAMESPACE, ENTITY, RESOURCE, shard) for shard in range(count)]
    found = {item["shard"]: item["b_tpm_tc"] for item in desk.host.store.inner.batch_get(keys_of, consistent=True)}
    return [int(str(found.get(shard, -1))) for shard in range(count)]


def test_credits_go_back_to_the_shards_that_gave_and_debits_to_the_first(desk: Desk) -> None:
    desk.host.put_limits(ENDLESS)
    desk.take(tpm=0)
    split_to(desk, 4)
    lease = gathered(desk, 2, 0, 3)
    desk.leases.adjust(lease, {"tpm": 5}, "a")
    assert consumed_by_shard(desk, 4) == [20_000, 0, 35_000, 10_000]
    desk.leases.adjust(lease, {"tpm": -45}, "b")
    assert consumed_by_shard(desk, 4) == [10_000, 0, 0, 10_000]
    desk.leases.release(lease)
    assert consumed_by_shard(desk, 4) == [0, 0, 0, 0]


def test_a_shard_that_is_gone_gets_no_credit_and_the_one_that_took_over_the_debit(desk: Desk) -> None:
    desk.host.put_limits(ENDLESS)
    desk.take(tpm=0)
    split_to(desk, 8)
    lease = gathered(desk, 7, 1, 0)
    # 7 was split from 3, and 3 from 1.
    for shard in (7, 3):
        desk.delete(desk.bucket(shard=shard))
    desk.leases.adjust(lease, {"tpm": 4}, "a")
    assert consumed_by_shard(desk, 8)[:2] == [10_000, 24_000]
    assert desk.left_out(lease) == {"0.0"}
    desk.leases.release(lease)
    # What shard 7 gave, and what shard 1 took for it, stays taken.
    assert consumed_by_shard(desk, 8)[:2] == [0, 4_000]


def test_a_debit_and_a_credit_may_meet_in_the_shard_that_took_over(desk: Desk) -> None:
    """A transaction may touch an item only once."""
    desk.host.put_limits(ENDLESS)
    desk.take(rpm=0, tpm=0)
    split_to(desk, 4)
    lease = gathered(desk, 3, 1, 0)
    desk.delete(desk.bucket(shard=3))
    first, *others = lease.members[0].shares
    named = replace(first, amounts_milli={**first.amounts_milli, "rpm": 0})
    lease = replace(
        lease, consumed={"tpm": 60, "rpm": 0}, members=(replace(lease.members[0], shares=(named, *others)),)
    )
    desk.leases.settle(lease, {"tpm": 25, "rpm": 7})
    bucket = desk.bucket(shard=1)
    assert (bucket.limits["tpm"].consumed_milli, bucket.limits["rpm"].consumed_milli) == (15_000, 7_000)
