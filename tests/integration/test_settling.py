"""A settle with its usage: the buckets, the lease, the event, its counters, ledgers and hold, in one transaction."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.budget import Amounts
from sluice.core.errors import (
    Contended,
    InvalidLease,
    LeaseClosed,
    LeaseExpired,
    PriceMissing,
    RequestIdConflict,
    SluiceError,
    UnknownLimit,
)
from sluice.core.holds import HoldState
from sluice.core.lease import Lease, LeaseMember, Share
from sluice.core.levels import Level
from sluice.core.shards import SHARDS_MAX
from sluice.repository.leases import State
from sluice.repository.retries import Retries
from sluice.repository.store import DynamoStore
from tests.fakes import CountingMeter, FakeClock
from tests.integration.ledger_desks import COUNTED, held, hold_of, ledger_of, put_budget, take_hold, used
from tests.integration.metering_desks import (
    APP,
    COST,
    NAMESPACE,
    ORG,
    SETTINGS,
    MeteringDesk,
    lease_of,
)
from tests.integration.settling_desks import (
    RESOURCE,
    bucket_key,
    consumed,
    everything,
    put_bucket,
    revise_ledger,
    settle,
    taken,
)

RESERVED = Amounts(20_000, 4_000, 1)
LOST = RuntimeError("the process ended")


@pytest.fixture
def desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> MeteringDesk:
    store = DynamoStore(dynamodb, table, Retries(clock.advance, lambda _below: 0, CountingMeter()))
    return MeteringDesk.opened(store, clock).found(SETTINGS)


def held_lease(desk: MeteringDesk) -> Lease:
    """With a hold in a hard budget, and a bucket."""
    put_budget(desk, APP)
    put_bucket(desk)
    return take_hold(desk, RESERVED)


def remaining(levels: tuple[Level, ...]) -> list[tuple[str, int]]:
    return [(level.entity, limit.remaining) for level in levels for limit in level.limits]


def closed_as(desk: MeteringDesk, lease: Lease) -> tuple[State, dict[str, int]] | None:
    state = desk.lease_state(lease)
    return None if state is None else (state.state, dict(state.closed_with))


@pytest.mark.parametrize(("tpm", "settled"), [(200, 200), (700, 700), (0, 0), (500, 500), (None, 500)])
def test_all_of_it_happens_in_one_transaction(desk: MeteringDesk, tpm: int | None, settled: int) -> None:
    lease = held_lease(desk)
    sizes: list[int] = []
    desk.store.before = lambda verb, request: sizes.append(len(request)) if verb == "transact" else None
    answer = settle(desk, lease, tpm)
    # The event, the lease, its hold, the ledger, the counter; and the bucket where it differs.
    assert sizes == [5 if settled == 500 else 6]
    assert (answer.changed.lease_id, answer.changed.amounts) == ("lease-1", {"tpm": settled})
    assert (answer.counted.event.cost_usd_micros, answer.counted.duplicate) == (COST, False)
    assert answer.counted.spending is not None
    assert consumed(desk) == settled
    assert closed_as(desk, lease) == (State.SETTLED, {"tpm": settled})
    event = desk.event()
    assert event is not None
    assert (event.lease_id, event.epochs) == ("lease-1", {APP: 0})
    assert desk.used().requests == 1
    assert (used(ledger_of(desk.store.inner)), held(ledger_of(desk.store.inner))) == (COST, 0)
    assert hold_of(desk.store.inner).state is HoldState.SETTLED


def test_the_levels_are_those_after_it(desk: MeteringDesk) -> None:
    lease = taken(desk)
    # A debit reads the bucket, which this process has never seen.
    assert remaining(settle(desk, lease, 700).changed.levels) == [(APP, 300)]
    assert remaining(settle(desk, lease, 700).changed.levels) == [(APP, 300)]


def test_the_same_again_is_answered_the_same(desk: MeteringDesk) -> None:
    lease = held_lease(desk)
    first = settle(desk, lease)
    before = everything(desk)
    for process in (desk, desk.elsewhere()):
        for _ in range(2):
            again = settle(process, lease)
            assert (again.changed.amounts, again.counted.event) == (first.changed.amounts, first.counted.event)
            assert again.counted.duplicate
    assert everything(desk) == before


def test_a_repeat_is_told_so_whatever_became_of_its_price(desk: MeteringDesk) -> None:
    lease = taken(desk)
    settle(desk, lease)
    desk.prices.prices.clear()
    assert settle(desk, lease).counted.duplicate
    with pytest.raises(PriceMissing):
        settle(desk, lease, request_id="request-2")


@pytest.mark.parametrize("known", [False, True])
def test_a_lease_that_is_closed_otherwise_counts_nothing(desk: MeteringDesk, known: bool) -> None:
    lease = taken(desk)
    (desk if known else desk.elsewhere()).leases.release(lease)
    before = everything(desk)
    for tpm in (0, 200, 500, None):
        with pytest.raises(LeaseClosed):
            settle(desk, lease, tpm)
    assert everything(desk) == before


@pytest.mark.parametrize("known", [False, True])
def test_other_amounts_than_it_was_settled_with(desk: MeteringDesk, known: bool) -> None:
    lease = held_lease(desk)
    settle(desk, lease, 200)
    process = desk if known else desk.elsewhere()
    before = everything(desk)
    for request_id in ("request-1", "request-2"):
        with pytest.raises(LeaseClosed):
            settle(process, lease, 201, request_id=request_id)
    with pytest.raises(LeaseClosed):
        process.leases.release(lease)
    with pytest.raises(LeaseClosed):
        process.leases.settle(lease, {"tpm": 201})
    assert everything(desk) == before


@pytest.mark.parametrize("with_lease", [False, True])
def test_a_request_id_that_was_used_leaves_the_lease_open(desk: MeteringDesk, with_lease: bool) -> None:
    lease = held_lease(desk)
    # Also where it is the same call but for the lease.
    desk.submit(lease=replace(lease_of(desk.clock, lease_id="other")) if with_lease else None)
    before = everything(desk)
    with pytest.raises(RequestIdConflict):
        settle(desk, lease)
    assert everything(desk) == before
    assert closed_as(desk, lease) is None
    settle(desk, lease, request_id="request-2")
    assert (consumed(desk), held(ledger_of(desk.store.inner))) == (200, 0)


@pytest.mark.parametrize("known", [False, True])
def test_settled_before_without_usage_the_call_is_still_counted(desk: MeteringDesk, known: bool) -> None:
    """Whoever settles first and knows the usage later is not turned away, and its hold is not left to the sweep."""
    lease = held_lease(desk)
    (desk if known else desk.elsewhere()).leases.settle(lease, {"tpm": 200})
    assert hold_of(desk.store.inner).state is HoldState.OPEN
    state = desk.lease_state(lease)
    with pytest.raises(LeaseClosed):
        settle(desk, lease, 201)
    assert (desk.event(), held(ledger_of(desk.store.inner))) == (None, 20_000)
    answer = settle(desk, lease, 200)
    assert (answer.changed.amounts, answer.counted.duplicate) == ({"tpm": 200}, False)
    assert (desk.lease_state(lease), consumed(desk)) == (state, 200)
    assert (used(ledger_of(desk.store.inner)), held(ledger_of(desk.store.inner))) == (COST, 0)
    assert hold_of(desk.store.inner).state is HoldState.SETTLED


def test_a_report_and_a_settle_of_one_call_count_it_once(desk: MeteringDesk) -> None:
    lease = held_lease(desk)
    settle(desk, lease)
    for process in (desk, desk.elsewhere()):
        assert process.submit(lease=lease).duplicate
    assert desk.used().requests == 1


def test_a_report_keeps_the_amounts_and_a_settle_of_others_comes_too_late(desk: MeteringDesk) -> None:
    lease = held_lease(desk)
    desk.submit(lease=lease)
    before = everything(desk)
    for process in (desk, desk.elsewhere()):
        with pytest.raises(LeaseClosed):
            settle(process, lease, 200)
        answer = settle(process, lease, None)
        assert (answer.changed.amounts, answer.counted.duplicate) == ({"tpm": 500}, True)
    assert everything(desk) == before


def test_a_second_call_of_a_settled_lease_is_counted_as_a_report_would(desk: MeteringDesk) -> None:
    lease = held_lease(desk)
    settle(desk, lease)
    answer = settle(desk, lease, request_id="request-2")
    assert not answer.counted.duplicate
    assert (used(ledger_of(desk.store.inner)), held(ledger_of(desk.store.inner))) == (2 * COST, 0)
    assert consumed(desk) == 200


def test_what_is_wrong_with_it_changes_nothing(desk: MeteringDesk) -> None:
    lease = held_lease(desk)
    before = everything(desk)
    with pytest.raises(UnknownLimit):
        settle(desk, replace(lease, consumed={}))
    with pytest.raises(InvalidLease):
        settle(desk, lease, entity="user-1")
    with pytest.raises(InvalidLease):
        settle(desk, replace(lease, namespace="another"))
    desk.prices.prices.clear()
    with pytest.raises(PriceMissing):
        settle(desk, lease)
    assert everything(desk) == before


def test_an_expired_lease_is_told_and_the_report_counts_the_call(desk: MeteringDesk) -> None:
    lease = held_lease(desk)
    desk.clock.now_ms = lease.expires_at_ms
    before = everything(desk)
    with pytest.raises(LeaseExpired):
        settle(desk, lease)
    assert everything(desk) == before
    assert not desk.submit(lease=lease).duplicate
    assert (consumed(desk), used(ledger_of(desk.store.inner)), held(ledger_of(desk.store.inner))) == (500, COST, 0)


def test_a_settle_whose_answer_was_lost_is_found_by_a_report_after_its_time(desk: MeteringDesk) -> None:
    lease = held_lease(desk)
    settle(desk.elsewhere(), lease)
    desk.clock.now_ms = lease.expires_at_ms
    with pytest.raises(LeaseExpired):
        settle(desk, lease)
    assert desk.submit(lease=lease).duplicate
    assert (consumed(desk), desk.used().requests) == (200, 1)


@pytest.mark.parametrize("settled", [False, True])
def test_a_lease_that_expires_meanwhile(desk: MeteringDesk, settled: bool) -> None:
    """What was done is answered, and not that it was too late."""
    lease = taken(desk, ttl_ms=1_000)
    if settled:
        desk.leases.settle(lease, {"tpm": 200})
    desk.store.before = lambda verb, _request: desk.clock.advance(1_000) if verb == "transact" else None
    assert settle(desk, lease).changed.amounts == {"tpm": 200}
    assert (consumed(desk), desk.used().requests) == (200, 1)


def test_a_call_that_a_faster_clock_has_counted_still_settles_its_lease(desk: MeteringDesk) -> None:
    """There the lease was over, so it was not closed."""
    lease = taken(desk)
    fast = MeteringDesk.opened(desk.store.inner, FakeClock(lease.expires_at_ms), models=desk.models)
    fast.submit(lease=lease)
    assert closed_as(desk, lease) is None
    answer = settle(desk, lease)
    assert answer.counted.duplicate
    assert closed_as(desk, lease) == (State.SETTLED, {"tpm": 200})
    assert (consumed(desk), desk.used().requests) == (200, 1)


def test_what_was_adjusted_elsewhere_is_learned_together_with_a_ledger(desk: MeteringDesk) -> None:
    lease = held_lease(desk)
    # From here on this process has an image of the ledger, and thinks that nobody adjusted the lease.
    desk.submit(request_id="before")
    desk.elsewhere().leases.adjust(lease, {"tpm": 100}, "key")
    revise_ledger(desk)
    desk.store.taken_calls()
    assert settle(desk, lease, None).changed.amounts == {"tpm": 600}
    assert desk.store.taken_calls().count("transact") == 2
    assert (consumed(desk), held(ledger_of(desk.store.inner))) == (600, 0)
    event = desk.event()
    assert event is not None
    assert event.epochs == {APP: 1}


def test_a_bucket_that_is_gone_gets_nothing_back(desk: MeteringDesk) -> None:
    lease = held_lease(desk)
    desk.store.inner.delete({"Key": {**bucket_key().attributes}})
    for process in (desk, desk.elsewhere()):
        assert settle(process, lease).changed.amounts == {"tpm": 200}
    state = desk.lease_state(lease)
    assert state is not None
    assert state.left_out == {"0.0"}
    assert desk.store.inner.get(bucket_key(), consistent=True) is None
    assert (desk.used().requests, held(ledger_of(desk.store.inner))) == (1, 0)


def test_the_largest_lease_fits_into_a_transaction(desk: MeteringDesk) -> None:
    """Four members of sixteen shards each, a ledger for each of the two above, and the counters of app and org."""
    members = []
    for entity in (APP, "a", "b", "c"):
        for shard in range(SHARDS_MAX):
            put_bucket(desk, entity, shard, SHARDS_MAX, taken_milli=10_000)
        shares = tuple(Share(shard, 7, {"tpm": 10_000}) for shard in range(SHARDS_MAX))
        members.append(LeaseMember(entity, shares))
    for entity in (APP, ORG):
        put_budget(desk, entity, COUNTED)
    expires_at_ms = desk.clock.now_ms + 300_000
    lease = Lease("lease-1", NAMESPACE, APP, RESOURCE, {"tpm": 160}, tuple(members), expires_at_ms)
    sizes: list[int] = []
    desk.store.before = lambda verb, request: sizes.append(len(request)) if verb == "transact" else None
    settle(desk, lease, 0)
    assert sizes == [1 + 1 + 64 + 2 + 1]
    for entity in (APP, "a", "b", "c"):
        assert sum(consumed(desk, entity, shard) for shard in range(SHARDS_MAX)) == 0


@pytest.mark.parametrize("applied", [False, True])
def test_a_process_that_ended_has_done_all_of_it_or_nothing(desk: MeteringDesk, applied: bool) -> None:
    lease = held_lease(desk)
    # So that the ledger has the defaults of today.
    desk.submit(request_id="before")
    ended = desk.elsewhere()

    def end(verb: str, _request: Any) -> None:
        if verb == "transact":
            raise LOST

    if applied:
        ended.store.after = end
    else:
        ended.store.before = end
    before = everything(desk)
    with pytest.raises(RuntimeError):
        settle(ended, lease)
    assert (everything(desk) != before) is applied
    assert settle(desk, lease).counted.duplicate is applied
    assert (consumed(desk), desk.used().requests) == (200, 2)
    assert (used(ledger_of(desk.store.inner)), held(ledger_of(desk.store.inner))) == (2 * COST, 0)


def test_settles_reports_and_releases_at_once_close_it_once(desk: MeteringDesk) -> None:
    """Each from a process of its own. Whoever was first decides what the lease was closed with."""
    put_budget(desk, APP)
    leases = []
    for number in range(4):
        put_bucket(desk, f"bucket-{number}")
        lease = take_hold(desk, RESERVED, lease_id=f"lease-{number}")
        leases.append(replace(lease, members=(replace(lease.members[0], entity=f"bucket-{number}"),)))

    kinds: dict[str, Callable[[MeteringDesk, int], object]] = {
        "settled with usage": lambda one, number: settle(one, leases[number], 200, request_id=f"r{number}"),
        "settled": lambda one, number: one.leases.settle(leases[number], {"tpm": 300}),
        "reported": lambda one, number: one.submit(request_id=f"r{number}", lease=leases[number]),
    }

    def send(kind: str, number: int) -> str:
        process = desk.elsewhere()
        for _ in range(50):
            try:
                kinds[kind](process, number)
            except Contended:
                continue
            except LeaseClosed:
                return "closed"
            return kind
        raise AssertionError("never came through")

    chosen = [(kind, number) for number in range(4) for kind in ("settled with usage", *kinds, "settled with usage")]
    with ThreadPoolExecutor(8) as threads:
        answered = list(threads.map(lambda one: send(*one), chosen))
    for number in range(4):
        answers = [answer for answer, (_, of) in zip(answered, chosen, strict=True) if of == number]
        assert answers.count("reported") == 1
        state = desk.lease_state(leases[number])
        assert state is not None
        tpm = state.closed_with["tpm"]
        assert consumed(desk, f"bucket-{number}") == tpm
        assert answers.count("settled with usage") == (3 if tpm == 200 else 0)
        assert answers.count("settled") == (1 if tpm == 300 else 0)
    assert desk.used().requests == 4
    assert (used(ledger_of(desk.store.inner)), held(ledger_of(desk.store.inner))) == (4 * COST, 0)


def test_errors_of_the_product_are_what_they_are_of_a_report(desk: MeteringDesk) -> None:
    lease = taken(desk)
    desk.models.error = SluiceError("as the labels say")
    with pytest.raises(SluiceError, match="as the labels say"):
        settle(desk, lease)
    assert closed_as(desk, lease) is None
