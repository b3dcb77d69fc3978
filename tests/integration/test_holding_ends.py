"""What becomes of holds by a release, of acquires that are repeated, and what explain says of them."""

import json
from dataclasses import replace

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.audit import BY_SYSTEM
from sluice.core.budget import (
    DEFAULTS,
    NOTHING,
    Amounts,
    Enforcement,
    LedgerChange,
    OwnBudget,
    Periods,
    Span,
)
from sluice.core.errors import (
    BudgetExceeded,
    IdempotencyMismatch,
    LeaseClosed,
    NeverWithinBudget,
    Remedy,
    ReserveRequired,
)
from sluice.core.holds import HoldState
from sluice.core.limits import Limit
from sluice.core.reserves import AmountReserve, ModelReserve
from sluice.repository.holds import close_hold
from sluice.repository.ledgers import change_ledger, hold_in_ledger
from sluice.repository.retries import Retries
from sluice.repository.store import Applied, DynamoStore
from sluice.services.registration import Registration
from tests.fakes import CountingMeter, FakeClock, never_random
from tests.integration.holding_desks import (
    APP,
    CHAIN,
    EVENING_MS,
    KEY,
    MIDNIGHT_MS,
    MONTH_COST,
    NAMESPACE,
    NEXT_DAY,
    PREMIUM,
    USER,
    HoldDesk,
    hard,
    once,
    refused,
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(EVENING_MS)


@pytest.fixture
def desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> HoldDesk:
    retries = Retries(lambda _ms: None, never_random, CountingMeter())
    return HoldDesk.opened(DynamoStore(dynamodb, table, retries), clock).found()


# Release.


def test_a_release_gives_back_bucket_and_budget_together(desk: HoldDesk) -> None:
    for entity in CHAIN:
        desk.put(entity, hard(100))
    admission = desk.take(60, 5)
    lease = desk.lease(admission)
    desk.store.taken_calls()
    desk.leases.release(lease)
    assert desk.store.taken_calls() == ["transact"]
    assert [(desk.held(entity), desk.used(entity)) for entity in CHAIN] == [(NOTHING, 0)] * 3
    assert desk.consumed() == 0
    hold = desk.find_hold(admission)
    assert hold is not None
    assert hold.state is HoldState.RELEASED
    desk.leases.release(lease)
    desk.elsewhere().leases.release(lease)
    assert desk.used() == 0


def test_a_release_elsewhere_frees_exactly_what_is_listed(desk: HoldDesk, clock: FakeClock) -> None:
    """After midnight, another limit, and another enforcement."""
    desk.put(USER, hard(100))
    lease = desk.lease(desk.take(60))
    desk.take(1)
    desk.revise(USER, OwnBudget({MONTH_COST: 5}, Enforcement.NONE))
    clock.advance(200_000)
    other = desk.elsewhere()
    other.leases.release(lease)
    assert (desk.used(), desk.held().cost_usd_micros) == (1, 1)


def test_a_release_meets_a_turn(desk: HoldDesk, clock: FakeClock) -> None:
    desk.put(USER, hard(100))
    clock.advance(1_799_000)
    lease = desk.lease(desk.take(60))
    clock.advance(1_000)
    desk.elsewhere().take(10)
    desk.leases.release(lease)
    assert (desk.ledger().standing.periods, desk.used(), desk.held().cost_usd_micros) == (NEXT_DAY, 10, 10)


def test_a_hold_that_was_freed_elsewhere_is_not_freed_again(desk: HoldDesk) -> None:
    """Hole: money that was held once would be given back twice."""
    desk.put(USER, hard(100))
    admission = desk.take(60)
    assert admission.hold is not None
    freed = LedgerChange(held=NOTHING - admission.hold.amounts)
    assert isinstance(
        desk.store.inner.update(change_ledger(desk.ledger(), Periods.of_name("20260131"), freed, 1), repeatable=False),
        Applied,
    )
    closed = close_hold(admission.hold, HoldState.EXPIRED, desk.clock.now_ms)
    assert isinstance(desk.store.inner.update(closed, repeatable=False), Applied)
    desk.leases.release(desk.lease(admission))
    assert (desk.used(), desk.held(), desk.consumed()) == (0, NOTHING, 0)


def test_a_settle_without_usage_leaves_the_hold_open(desk: HoldDesk) -> None:
    desk.put(USER, hard(100))
    admission = desk.take(60)
    lease = desk.lease(admission)
    desk.leases.adjust(lease, {"rpm": 2}, "key")
    desk.leases.settle(lease, {"rpm": 2})
    hold = desk.find_hold(admission)
    assert hold is not None
    assert (hold.state, desk.used()) == (HoldState.OPEN, 60)
    with pytest.raises(LeaseClosed):
        desk.leases.release(lease)
    assert desk.used() == 60


def test_a_release_whose_ledger_was_removed_closes_the_hold(desk: HoldDesk) -> None:
    desk.put(USER, hard(100))
    desk.put(APP, hard(100))
    admission = desk.take(60)
    desk.store.inner.delete({"Key": {"PK": f"{NAMESPACE}/BUDGET#{USER}", "SK": "#LEDGER#0"}})
    desk.leases.release(desk.lease(admission))
    hold = desk.find_hold(admission)
    assert hold is not None
    assert (hold.state, desk.used(APP), desk.find_ledger(USER)) == (HoldState.RELEASED, 0, None)


# Idempotency.


def test_a_repeat_is_answered_and_holds_nothing(desk: HoldDesk) -> None:
    desk.put(USER, hard(100))
    first = once(desk, 60)
    (hold,) = desk.holds()
    assert json.loads(first.text) == [hold.lease_id, False]
    for process in (desk, desk.elsewhere()):
        again = once(process, 60)
        assert (again.text, again.repeated) == (first.text, True)
    assert (desk.used(), desk.consumed()) == (60, 1)


def test_a_repeat_is_answered_when_the_budget_is_full(desk: HoldDesk) -> None:
    desk.put(USER, hard(100))
    first = once(desk, 100)
    refused(desk, 1)
    assert once(desk, 100).text == first.text
    with pytest.raises(IdempotencyMismatch):
        once(desk, 100, replace(KEY, body_hash="other"))
    with pytest.raises(BudgetExceeded):
        once(desk, 100, replace(KEY, text="key-2"))


def test_a_refusal_leaves_the_key_free(desk: HoldDesk) -> None:
    desk.put(USER, hard(100))
    desk.take(100)
    with pytest.raises(BudgetExceeded):
        once(desk, 60)
    desk.revise(USER, hard(200))
    assert not once(desk, 60).repeated


def test_a_repeat_without_a_hard_budget(desk: HoldDesk) -> None:
    first = once(desk, 60)
    assert json.loads(first.text) == [None, False]
    assert once(desk, 60).repeated


# Explain.


def test_explain_tells_every_hard_limit_and_writes_nothing(desk: HoldDesk) -> None:
    desk.put(DEFAULTS, hard(day_tokens=5_000))
    desk.put(APP, hard(20_000, month_cost=10**9))
    desk.take(10_000, 100, entity=APP)
    before = desk.everything()
    explained = desk.hold_explain.explain(desk.wish(PREMIUM))
    assert desk.everything() == before, "not even a ledger by the defaults"
    shown = [(one.entity, one.slot.name, one.used, one.held, one.requested, one.fits) for one in explained.budgets]
    assert shown == [
        (USER, "day_tokens", 0, 0, 2_300, True),
        (APP, "day_cost", 10_000, 10_000, 16_500, False),
        (APP, "month_cost", 10_000, 10_000, 16_500, True),
        (APP, "day_tokens", 100, 100, 2_300, True),
    ]
    assert (explained.admissible, explained.admit_at_ms) == (False, MIDNIGHT_MS)
    assert explained.remedies == (Remedy("max_output_tokens", 366), Remedy("label", "economy"))
    assert not desk.caps.told


def test_explain_where_everything_fits(desk: HoldDesk) -> None:
    assert desk.hold_explain.explain(desk.wish(PREMIUM)).budgets == ()
    desk.put(USER, hard(16_500))
    explained = desk.hold_explain.explain(desk.wish(PREMIUM))
    assert explained.admissible
    assert [one.fits for one in explained.budgets] == [True]
    assert explained.buckets.checks
    assert desk.hold_explain.explain(desk.wish(PREMIUM, consume={})).admissible


def test_explain_for_somebody_unknown_makes_nobody_known(desk: HoldDesk) -> None:
    desk.put(DEFAULTS, hard(10_000))
    desk.put(APP, hard(5_000))
    registration = Registration(APP, BY_SYSTEM)
    before = desk.everything()
    wish = desk.wish(ModelReserve(100, 100, label="premium"), entity="newcomer", registration=registration)
    explained = desk.hold_explain.explain(wish)
    assert desk.everything() == before
    assert [(one.entity, one.limit, one.fits) for one in explained.budgets] == [
        ("newcomer", 10_000, True),
        (APP, 5_000, True),
    ]
    assert desk.models.asked == [(NAMESPACE, APP, "premium", None)]


def test_explain_raises_for_what_can_never_pass(desk: HoldDesk) -> None:
    desk.put(USER, hard(16_499))
    with pytest.raises(NeverWithinBudget):
        desk.hold_explain.explain(desk.wish(PREMIUM))
    with pytest.raises(ReserveRequired):
        desk.hold_explain.explain(desk.wish())


def test_explain_reads_a_midnight_without_writing(desk: HoldDesk, clock: FakeClock) -> None:
    desk.put(USER, hard(100))
    desk.take(60)
    desk.leases.release(desk.lease(desk.take(30)))
    clock.advance(1_800_000)
    (check,) = desk.hold_explain.explain(desk.wish(AmountReserve(40))).budgets
    assert (check.used, check.held, check.fits) == (60, 60, True)


def test_holding_again_uses_the_same_condition_as_the_ledgers_own(desk: HoldDesk) -> None:
    """What fits by the image and by the write is the same, at the edge."""
    desk.put(USER, hard(100))
    desk.take(40)
    request = hold_in_ledger(desk.ledger(), Periods.of_name("20260131"), Amounts(60, 0, 1), 1)
    assert request["ExpressionAttributeValues"][":g0"] == 40
    desk.take(60)
    assert desk.used(USER, Span.MONTH) == 100


def test_registered_limits_do_not_matter_to_a_hold(desk: HoldDesk) -> None:
    """Per-call limits take from a bucket of their own."""
    desk.put(USER, hard(100))
    desk.take(60, limits={"rpm": Limit(5, 5, 5, 60)})
    assert desk.used() == 60
