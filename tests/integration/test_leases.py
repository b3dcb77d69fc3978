"""Leases over HTTP, below the edge: what each verb does to the buckets, once, whatever happens on the way."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from sluice.core.errors import IdempotencyMismatch, InvalidRequest, LeaseClosed, LeaseExpired, UnknownLimit
from sluice.core.levels import Level
from sluice.core.limits import AMOUNT_MAX, Limit, Scope
from sluice.repository.leases import State
from sluice.services.entities import EntityChange
from sluice.services.leases import ADJUSTMENTS_MAX
from tests.integration.conftest import ENTITY, NAMESPACE, RESOURCE, Host
from tests.integration.desks import TEN, TWO, Desk
from tests.integration.test_acquire import per_minute

# So slow that a test sees none of it.
TEN_YEARS_S = 10 * 365 * 86_400


@pytest.fixture
def desk(start_host: Callable[[], Host]) -> Desk:
    return Desk.opened(start_host)


def remaining(levels: Sequence[Level]) -> dict[str, int]:
    return {limit.limit: limit.remaining for level in levels for limit in level.limits}


def test_take_1_of_10_and_adjust_by_25(desk: Desk) -> None:
    desk.host.put_limits(TEN)
    lease = desk.take(rpm=1)
    changed = desk.leases.adjust(lease, {"rpm": 25}, "k")
    assert (desk.host.level_milli("rpm"), desk.host.consumed_milli("rpm")) == (-16_000, 26_000)
    assert changed.amounts == {"rpm": 25}
    assert remaining(changed.levels) == {"rpm": -16}
    refused = desk.host.refused(rpm=1)
    assert refused.retry_after_ms == 102_000


def test_take_2_of_10_and_give_back(desk: Desk) -> None:
    desk.host.put_limits(TEN)
    lease = desk.take(rpm=2)
    changed = desk.leases.release(lease)
    assert (desk.host.level_milli("rpm"), desk.host.consumed_milli("rpm")) == (10_000, 0)
    assert changed.amounts == {"rpm": 2}
    assert remaining(changed.levels) == {"rpm": 10}


def test_give_back_50_on_a_bucket_of_10(desk: Desk) -> None:
    """What overflows is cut by the next spend."""
    desk.host.put_limits(TEN)
    lease = desk.take(rpm=1)
    desk.leases.adjust(lease, {"rpm": 49}, "k")
    desk.host.clock.advance(10 * 60_000)
    desk.leases.release(replace(lease, expires_at_ms=desk.host.clock.now_ms + 1_000))
    assert desk.host.admitted_until_refused(rpm=1) == 10


def test_settle_charges_the_difference_both_ways(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    lease = desk.take(rpm=2, tpm=500)
    changed = desk.leases.settle(lease, {"rpm": 0, "tpm": 700})
    assert changed.amounts == {"rpm": 0, "tpm": 700}
    assert (desk.host.consumed_milli("rpm"), desk.host.consumed_milli("tpm")) == (0, 700_000)
    assert (desk.host.level_milli("rpm"), desk.host.level_milli("tpm")) == (10_000, 300_000)
    assert remaining(changed.levels) == {"rpm": 10, "tpm": 300}


def test_a_credit_beside_a_debit_on_a_limit_that_is_full_again(desk: Desk) -> None:
    """One write of one item takes from one limit and gives to the other, which has overflowed meanwhile."""
    desk.host.put_limits({"rpm": per_minute(10), "tpm": Limit(1_000, 1_000, 1, 31_536_000)})
    lease = desk.take(ttl_ms=3_600_000, rpm=2, tpm=500)
    desk.host.clock.advance(10 * 60_000)
    desk.leases.settle(lease, {"rpm": 0, "tpm": 700})
    assert (desk.host.consumed_milli("rpm"), desk.host.consumed_milli("tpm")) == (0, 700_000)
    assert desk.host.level_milli("rpm") == 10_000
    assert desk.host.admitted_until_refused(rpm=1) == 10


def test_limits_that_are_left_out_keep_their_amount(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    lease = desk.take(rpm=2, tpm=500)
    assert desk.leases.settle(lease, {"tpm": 400}).amounts == {"rpm": 2, "tpm": 400}
    assert (desk.host.consumed_milli("rpm"), desk.host.consumed_milli("tpm")) == (2_000, 400_000)
    other = desk.take(rpm=1, tpm=10)
    assert desk.leases.settle(other, {}).amounts == {"rpm": 1, "tpm": 10}


def test_adjust_then_settle_charges_the_difference_once(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    lease = desk.take(rpm=1, tpm=100)
    desk.leases.adjust(lease, {"tpm": 200}, "a")
    desk.leases.adjust(lease, {"tpm": -50}, "b")
    assert desk.host.consumed_milli("tpm") == 250_000
    assert desk.leases.settle(lease, {"tpm": 180}).amounts == {"rpm": 1, "tpm": 180}
    assert desk.host.consumed_milli("tpm") == 180_000
    assert desk.host.level_milli("tpm") == 820_000


def test_adjust_then_release_gives_everything_back(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    lease = desk.take(rpm=1, tpm=100)
    desk.leases.adjust(lease, {"tpm": 200}, "a")
    desk.leases.adjust(lease, {"rpm": -1}, "b")
    assert desk.leases.release(lease).amounts == {"rpm": 0, "tpm": 300}
    assert (desk.host.consumed_milli("rpm"), desk.host.consumed_milli("tpm")) == (0, 0)
    assert (desk.host.level_milli("rpm"), desk.host.level_milli("tpm")) == (10_000, 1_000_000)


def test_per_call_limits_have_a_bucket_of_their_own(desk: Desk) -> None:
    admission = desk.host.ask({"rpm": 4}, TEN)
    lease = desk.leases.open(admission, 1_000)
    fingerprint = lease.members[0].call_fingerprint
    assert fingerprint is not None
    desk.leases.release(lease)
    assert desk.host.bucket(fingerprint).limits["rpm"].consumed_milli == 0


def test_every_member_of_a_chain_is_corrected(desk: Desk) -> None:
    host = desk.host
    host.entities.put(NAMESPACE, "team", EntityChange())
    host.entities.put(NAMESPACE, ENTITY, EntityChange(parent="team"))
    host.put_limits(TWO)
    host.put_limits({"tpm": per_minute(5_000)}, Scope("team", RESOURCE))
    lease = desk.take(rpm=1, tpm=100)
    host.store.taken_calls()
    changed = desk.leases.settle(lease, {"rpm": 3, "tpm": 40})
    assert host.store.taken_calls() == ["transact"]
    assert [level.entity for level in changed.levels] == [ENTITY, "team"]
    team = desk.bucket("team")
    # The rate of requests is no limit of the team's own.
    assert (team.limits["tpm"].consumed_milli, team.limits["rpm"].consumed_milli) == (40_000, 0)
    assert (host.consumed_milli("rpm"), host.consumed_milli("tpm")) == (3_000, 40_000)


def test_no_difference_is_one_put(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    lease = desk.take(rpm=1, tpm=100)
    version = desk.host.bucket().version
    desk.host.store.taken_calls()
    desk.leases.settle(lease, {"rpm": 1, "tpm": 100})
    assert desk.host.store.taken_calls() == ["put"]
    assert desk.host.bucket().version == version
    state = desk.state(lease)
    assert state is not None
    assert (state.state, state.closed_with, state.version) == (State.SETTLED, {"rpm": 1, "tpm": 100}, 1)


def test_a_difference_is_one_transaction_and_no_read(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    one, two, three = (desk.take(rpm=1, tpm=100) for _ in range(3))
    desk.host.store.taken_calls()
    desk.leases.adjust(one, {"tpm": 50, "rpm": -1}, "a")
    assert desk.host.store.taken_calls() == ["transact"]
    # What this process did to a lease it knows the next time.
    desk.leases.adjust(one, {"tpm": 50}, "b")
    desk.leases.settle(one, {"tpm": 10})
    desk.leases.settle(two, {"tpm": 300})
    desk.leases.release(three)
    assert desk.host.store.taken_calls() == ["transact"] * 4


def test_another_process_reads_for_a_debit_and_not_for_a_credit(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    first, second = desk.take(tpm=100), desk.take(tpm=100)
    other = desk.elsewhere()
    other.leases.settle(first, {"tpm": 10})
    assert other.host.store.taken_calls() == ["transact"]
    other.leases.settle(second, {"tpm": 300})
    assert other.host.store.taken_calls() == ["consistent get", "transact"]
    assert desk.host.consumed_milli("tpm") == 310_000


def test_a_change_that_others_made_costs_one_transaction_more(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    lease = desk.take(tpm=100)
    desk.elsewhere().leases.adjust(lease, {"tpm": 7}, "elsewhere")
    desk.host.store.taken_calls()
    desk.leases.settle(lease, {"tpm": 50})
    assert desk.host.store.taken_calls() == ["transact", "transact"]
    assert desk.host.consumed_milli("tpm") == 50_000


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_same_close_again_is_answered_the_same(desk: Desk, elsewhere: bool) -> None:
    desk.host.put_limits(TWO)
    settled, released = desk.take(rpm=1, tpm=100), desk.take(rpm=1, tpm=100)
    desk.leases.adjust(settled, {"tpm": 5}, "k")
    first = desk.leases.settle(settled, {"tpm": 300})
    gone = desk.leases.release(released)
    before = desk.host.bucket()
    again = desk.elsewhere().leases if elsewhere else desk.leases
    assert again.settle(settled, {"tpm": 300}).amounts == first.amounts == {"rpm": 1, "tpm": 300}
    # Spelled out it is the same.
    assert again.settle(settled, {"tpm": 300, "rpm": 1}).amounts == first.amounts
    assert again.release(released).amounts == gone.amounts
    assert desk.host.bucket() == before


@pytest.mark.parametrize("elsewhere", [False, True])
def test_another_close_is_409(desk: Desk, elsewhere: bool) -> None:
    desk.host.put_limits(TWO)
    settled, released, zero = (desk.take(rpm=1, tpm=100) for _ in range(3))
    desk.leases.settle(settled, {"tpm": 300})
    desk.leases.release(released)
    desk.leases.settle(zero, {"rpm": 0, "tpm": 0})
    before = desk.host.bucket()
    again = desk.elsewhere().leases if elsewhere else desk.leases
    attempts: list[Callable[[], object]] = [
        lambda: again.settle(settled, {"tpm": 301}),
        lambda: again.settle(settled, {}),
        lambda: again.release(settled),
        lambda: again.settle(released, {"rpm": 0, "tpm": 0}),
        lambda: again.release(zero),
        lambda: again.adjust(settled, {"tpm": 1}, "k"),
        lambda: again.adjust(released, {"tpm": 1}, "k"),
    ]
    for attempt in attempts:
        with pytest.raises(LeaseClosed):
            attempt()
    assert desk.host.bucket() == before


@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_idempotency_key_adjusts_once(desk: Desk, elsewhere: bool) -> None:
    desk.host.put_limits(TWO)
    lease = desk.take(rpm=1, tpm=100)
    first = desk.leases.adjust(lease, {"tpm": 50, "rpm": 1}, "key")
    again = desk.elsewhere().leases if elsewhere else desk.leases
    assert again.adjust(lease, {"rpm": 1, "tpm": 50}, "key").amounts == first.amounts
    for delta in ({"tpm": 51, "rpm": 1}, {"tpm": 50}, {"rpm": 50, "tpm": 1}):
        with pytest.raises(IdempotencyMismatch):
            again.adjust(lease, delta, "key")
    assert desk.host.consumed_milli("tpm") == 150_000
    again.adjust(lease, {"tpm": 50, "rpm": 1}, "Key")
    assert desk.host.consumed_milli("tpm") == 200_000
    # Also after the close: whoever lost the answer may still ask for it.
    again.release(lease)
    assert again.adjust(lease, {"rpm": 1, "tpm": 50}, "key").amounts == first.amounts
    assert desk.host.consumed_milli("tpm") == 0


def test_fifty_adjustments_and_no_more(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    lease = desk.take(tpm=0)
    for number in range(ADJUSTMENTS_MAX):
        desk.leases.adjust(lease, {"tpm": 1}, f"{'k' * 120}{number}")
    with pytest.raises(InvalidRequest) as raised:
        desk.leases.adjust(lease, {"tpm": 1}, "another")
    assert raised.value.field == "idempotency-key"
    desk.leases.adjust(lease, {"tpm": 1}, "k" * 120 + "0")
    assert desk.host.consumed_milli("tpm") == 50_000
    assert desk.leases.settle(lease, {}).amounts == {"tpm": 50}


def test_never_below_zero_and_never_by_an_old_view(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    lease = desk.take(tpm=100)
    other = desk.elsewhere()
    for name, delta in (("tpm", -101), ("tpm", AMOUNT_MAX)):
        with pytest.raises(InvalidRequest) as raised:
            desk.leases.adjust(lease, {name: delta}, "k")
        assert raised.value.field == f"delta.{name}"
    assert desk.state(lease) is None
    desk.leases.adjust(lease, {"tpm": 50}, "a")
    other.leases.adjust(lease, {"tpm": 100}, "b")
    # This process still thinks of 150.
    desk.leases.adjust(lease, {"tpm": -250}, "c")
    assert desk.host.consumed_milli("tpm") == 0
    with pytest.raises(InvalidRequest):
        other.leases.adjust(lease, {"tpm": -1}, "d")


def test_unknown_names_are_400_and_change_nothing(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    lease = desk.take(rpm=1)
    desk.host.store.taken_calls()
    with pytest.raises(UnknownLimit) as raised:
        desk.leases.settle(lease, {"rpm": 1, "tpm": 1})
    assert raised.value.field == "actual.tpm"
    with pytest.raises(UnknownLimit) as raised:
        desk.leases.adjust(lease, {"nope": 1}, "k")
    assert raised.value.field == "delta.nope"
    assert desk.host.store.taken_calls() == []


def test_after_its_time_a_lease_is_410_and_nothing_is_given_back(desk: Desk) -> None:
    desk.host.put_limits(TEN)
    lease = desk.take(ttl_ms=5_000, rpm=3)
    closed = desk.take(ttl_ms=5_000, rpm=1)
    desk.leases.settle(closed, {"rpm": 1})
    desk.host.clock.advance(4_999)
    desk.leases.adjust(lease, {"rpm": 1}, "in time")
    desk.host.clock.advance(1)
    desk.host.store.taken_calls()
    attempts: list[Callable[[], object]] = [
        lambda: desk.leases.settle(lease, {"rpm": 0}),
        lambda: desk.leases.release(lease),
        lambda: desk.leases.adjust(lease, {"rpm": -1}, "k"),
        lambda: desk.leases.adjust(lease, {"rpm": 1}, "in time"),
        lambda: desk.leases.settle(closed, {"rpm": 1}),
    ]
    for attempt in attempts:
        with pytest.raises(LeaseExpired):
            attempt()
    assert desk.host.store.taken_calls() == []
    assert desk.host.consumed_milli("rpm") == 5_000


def test_the_largest_debt_can_still_be_quoted(desk: Desk) -> None:
    desk.host.put_limits({"rpm": Limit(1, 1, 1, TEN_YEARS_S // 10)})
    lease = desk.take(rpm=1)
    desk.leases.adjust(lease, {"rpm": AMOUNT_MAX - 1}, "k")
    assert desk.host.consumed_milli("rpm") == AMOUNT_MAX * 1_000
    desk.host.refused(rpm=1)
    desk.leases.release(lease)
    assert desk.host.consumed_milli("rpm") == 0
