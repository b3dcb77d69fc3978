"""A lease as a context manager on the table itself."""

from collections.abc import Callable
from typing import Any

import pytest

from sluice.core.errors import (
    Ambiguous,
    Contended,
    InvalidRequest,
    LeaseClosed,
    LeaseExpired,
    SluiceError,
    Unavailable,
)
from sluice.core.lease import LEASE_MAX_MS
from sluice.core.limits import SYSTEM, OnUnavailable, Scope
from sluice.core.signals import Signal
from sluice.repository.retries import Throttled
from sluice.services.entities import EntityChange
from sluice.services.held import HeldLease
from tests.integration.conftest import ENTITY, NAMESPACE, RESOURCE, Host
from tests.integration.desks import TEN, TWO, Desk
from tests.integration.test_acquire import per_minute


class Broken(Exception):
    """What the work inside a block may raise."""


@pytest.fixture
def desk(start_host: Callable[[], Host]) -> Desk:
    return Desk.opened(start_host)


def hold(desk: Desk, **consume: int) -> HeldLease:
    return desk.leases.hold(desk.host.acquire(**consume))


def consumed(desk: Desk, entity: str = ENTITY) -> dict[str, int]:
    return {name: limit.consumed_milli for name, limit in desk.bucket(entity).limits.items()}


def broken_block(lease: HeldLease) -> None:
    with pytest.raises(Broken), lease:
        raise Broken


def test_leaving_normally_keeps_the_consumption(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    with hold(desk, rpm=1, tpm=500) as lease:
        assert lease.remaining == {"rpm": 9, "tpm": 500}
    assert consumed(desk) == {"rpm": 1_000, "tpm": 500_000}


def test_an_exception_gives_everything_back_and_goes_on(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    lease = hold(desk, rpm=1, tpm=500)
    lease.adjust(tpm=200)
    broken_block(lease)
    assert consumed(desk) == {"rpm": 0, "tpm": 0}
    assert (desk.host.level_milli("rpm"), desk.host.level_milli("tpm")) == (10_000, 1_000_000)


def test_take_1_of_10_and_adjust_by_25(desk: Desk) -> None:
    desk.host.put_limits(TEN)
    with hold(desk, rpm=1) as lease:
        lease.adjust(rpm=+25)
        assert lease.remaining == {"rpm": -16}
        assert lease.consumed == {"rpm": 26}
    assert (desk.host.level_milli("rpm"), desk.host.consumed_milli("rpm")) == (-16_000, 26_000)
    desk.host.refused(rpm=1)


def test_adjustments_both_ways_end_where_they_say(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    with hold(desk, rpm=1, tpm=500) as lease:
        lease.adjust(tpm=200)
        lease.adjust({"tpm": -650, "rpm": 2})
        assert lease.consumed == {"rpm": 3, "tpm": 50}
    assert consumed(desk) == {"rpm": 3_000, "tpm": 50_000}


def test_an_adjustment_is_one_plain_write_per_bucket_and_no_read(desk: Desk) -> None:
    host = desk.host
    host.entities.put(NAMESPACE, "team", EntityChange())
    host.entities.put(NAMESPACE, ENTITY, EntityChange(parent="team"))
    host.put_limits(TWO)
    host.put_limits({"tpm": per_minute(5_000)}, Scope("team", RESOURCE))
    lease = hold(desk, rpm=1, tpm=500)
    host.store.taken_calls()
    host.store.repeatable.clear()
    lease.adjust(tpm=200)
    assert host.store.taken_calls() == ["update", "update"]
    lease.adjust(rpm=-1)
    assert host.store.taken_calls() == ["update"]
    assert lease.remaining == {"rpm": 10, "tpm": 300}
    broken_block(lease)
    assert host.store.taken_calls() == ["update", "update"]
    assert set(host.store.repeatable) == {("update", False)}
    assert consumed(desk) == {"rpm": 0, "tpm": 0}
    assert consumed(desk, "team")["tpm"] == 0


def test_what_can_not_be_adjusted_changes_nothing(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    lease = hold(desk, rpm=1)
    desk.host.store.taken_calls()
    for delta, field in (({"tpm": 1}, "delta.tpm"), ({"rpm": -2}, "delta.rpm"), ({"rpm": 10**12}, "delta.rpm")):
        with pytest.raises(InvalidRequest) as raised:
            lease.adjust(delta)
        assert raised.value.field == field
    for odd in (1.5, True, "1", None):
        with pytest.raises(InvalidRequest):
            lease.adjust({"rpm": odd})  # type: ignore[dict-item]  # this is what callers without types do
    assert desk.host.store.taken_calls() == []


def test_after_the_block_a_lease_is_closed(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    lease = hold(desk, rpm=1)
    broken_block(lease)
    with pytest.raises(LeaseClosed):
        lease.adjust(rpm=1)
    desk.host.acquire(rpm=1)
    # A second exit gives nothing back again.
    broken_block(lease)
    assert consumed(desk)["rpm"] == 1_000


def test_after_a_day_nothing_is_adjusted_or_given_back(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    lease = hold(desk, rpm=1)
    desk.host.clock.advance(LEASE_MAX_MS)
    with pytest.raises(LeaseExpired):
        lease.adjust(rpm=1)
    broken_block(lease)
    assert consumed(desk)["rpm"] == 1_000


def test_a_gate_that_was_opened_took_nothing(desk: Desk) -> None:
    desk.host.put_limits(TWO, SYSTEM, OnUnavailable.ALLOW)
    desk.host.acquire(rpm=1)
    desk.host.store.before = failing("update", Throttled("x"))
    lease = hold(desk, rpm=1)
    desk.host.store.before = None
    assert lease.degraded
    assert lease.remaining == {}
    desk.host.store.taken_calls()
    lease.adjust(rpm=5)
    broken_block(lease)
    assert desk.host.store.taken_calls() == []


def failing(verb: str, error: SluiceError, *, skip: int = 0) -> Callable[[str, Any], None]:
    """On one call of this kind, after so many that pass."""
    seen = 0

    def act(called: str, _request: Any) -> None:
        nonlocal seen
        if called == verb:
            seen += 1
            if seen == skip + 1:
                raise error

    return act


def chained(desk: Desk) -> HeldLease:
    host = desk.host
    host.entities.put(NAMESPACE, "team", EntityChange())
    host.entities.put(NAMESPACE, ENTITY, EntityChange(parent="team"))
    host.put_limits({"tpm": per_minute(1_000)})
    host.put_limits({"tpm": per_minute(5_000)}, Scope("team", RESOURCE))
    return hold(desk, tpm=100)


@pytest.mark.parametrize("error", [Throttled("x"), Contended(30)])
def test_a_debit_that_one_member_refuses_is_given_back_by_the_others(desk: Desk, error: SluiceError) -> None:
    lease = chained(desk)
    desk.host.store.before = failing("update", error, skip=1)
    with pytest.raises(type(error)):
        lease.adjust(tpm=50)
    assert lease.consumed == {"tpm": 100}
    assert (consumed(desk), consumed(desk, "team")) == ({"tpm": 100_000}, {"tpm": 100_000})
    assert desk.host.meter.counts[Signal.GIVE_BACKS_LOST] == 0
    broken_block(lease)
    assert (consumed(desk), consumed(desk, "team")) == ({"tpm": 0}, {"tpm": 0})


@pytest.mark.parametrize("applied", [False, True])
def test_a_debit_whose_answer_is_lost_is_unavailable_and_not_given_back(desk: Desk, applied: bool) -> None:
    """As an acquire: the certain members are given back, the doubtful one is not."""
    lease = chained(desk)
    lost = failing("update", Ambiguous("lost"), skip=1)
    if applied:
        desk.host.store.after = lost
    else:
        desk.host.store.before = lost
    with pytest.raises(Unavailable):
        lease.adjust(tpm=50)
    broken_block(lease)
    assert consumed(desk) == {"tpm": 0}
    assert consumed(desk, "team") == {"tpm": 50_000 if applied else 0}


@pytest.mark.parametrize("applied", [False, True])
def test_a_credit_whose_answer_is_lost_stays_lost(desk: Desk, applied: bool) -> None:
    """Hole: sent again, or given back once more at the end, it could be applied twice."""
    desk.host.put_limits(TWO)
    lease = hold(desk, tpm=500)
    lost = failing("update", Ambiguous("lost"))
    if applied:
        desk.host.store.after = lost
    else:
        desk.host.store.before = lost
    lease.adjust(tpm=-200)
    assert lease.consumed == {"tpm": 300}
    assert desk.host.meter.counts[Signal.GIVE_BACKS_LOST] == 1
    broken_block(lease)
    assert consumed(desk)["tpm"] == (0 if applied else 200_000)


def test_a_give_back_that_fails_does_not_hide_the_exception(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    lease = hold(desk, tpm=500)
    desk.host.store.before = failing("update", Throttled("x"))
    broken_block(lease)
    assert desk.host.meter.counts[Signal.GIVE_BACKS_LOST] == 1
    assert consumed(desk)["tpm"] == 500_000


def test_an_undo_that_fails_is_counted(desk: Desk) -> None:
    lease = chained(desk)

    def fail_from_the_second_on(verb: str, _request: Any) -> None:
        if verb == "update":
            desk.host.store.before = failing_always

    def failing_always(_verb: str, _request: Any) -> None:
        raise Throttled("x")

    desk.host.store.before = fail_from_the_second_on
    with pytest.raises(Throttled):
        lease.adjust(tpm=50)
    assert desk.host.meter.counts[Signal.GIVE_BACKS_LOST] == 1


def test_a_bucket_or_limit_that_is_gone_gets_nothing(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    lease = hold(desk, rpm=1, tpm=100)
    other = desk.elsewhere()
    other.host.put_limits(TEN)
    other.take(rpm=1)
    lease.adjust(tpm=-10, rpm=3)
    lease.adjust(tpm=20)
    assert consumed(desk) == {"rpm": 5_000}
    desk.delete(desk.bucket())
    broken_block(lease)
    assert desk.host.find_bucket() is None
    assert desk.host.meter.counts[Signal.GIVE_BACKS_LOST] == 0


def test_an_overtaken_adjustment_says_contended(desk: Desk) -> None:
    """Somebody changes the limits before each of its writes."""
    desk.host.put_limits(TWO)
    lease = hold(desk, tpm=100)
    other = desk.elsewhere()
    rounds = 0

    def change_limits(verb: str, _request: Any) -> None:
        nonlocal rounds
        if verb == "update":
            rounds += 1
            other.host.put_limits({"tpm": per_minute(1_000 + rounds)})
            other.take(tpm=0)

    desk.host.store.before = change_limits
    with pytest.raises(Contended):
        lease.adjust(tpm=50)
    desk.host.store.before = None
    assert rounds == 5
    assert consumed(desk)["tpm"] == 100_000
