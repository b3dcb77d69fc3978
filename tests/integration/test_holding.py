"""Acquires under hard budgets on a real engine: held before they are spent, refused exactly, put once."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.audit import BY_SYSTEM
from sluice.core.budget import (
    DEFAULTS,
    NOTHING,
    Amounts,
    Enforcement,
    OwnBudget,
)
from sluice.core.errors import (
    BudgetExceeded,
    LimitExceeded,
    ModelsUnavailable,
    NeverWithinBudget,
    NoLimits,
    PriceMissing,
    Remedy,
    ReserveRequired,
    UnknownLabel,
    UnknownLimit,
)
from sluice.core.holds import HeldIn
from sluice.core.reserves import AmountReserve, ModelReserve
from sluice.repository.retries import Retries
from sluice.repository.store import DynamoStore
from sluice.services.registration import Registration
from tests.fakes import CountingMeter, FakeClock, never_random
from tests.integration.holding_desks import (
    APP,
    CHAIN,
    DAY_COST,
    EVENING_MS,
    MIDNIGHT_MS,
    NAMESPACE,
    NEXT_MONTH_MS,
    PREMIUM,
    ROOT,
    USER,
    HoldDesk,
    hard,
    refused,
    told,
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(EVENING_MS)


@pytest.fixture
def desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> HoldDesk:
    retries = Retries(lambda _ms: None, never_random, CountingMeter())
    return HoldDesk.opened(DynamoStore(dynamodb, table, retries), clock).found()


# Vectors of money.


def test_what_is_reserved_is_held(desk: HoldDesk) -> None:
    """Vector 59, first half."""
    desk.put(APP, hard(10_000_000))
    admission = desk.holding.acquire(desk.wish(PREMIUM))
    held = Amounts(16_500, 2_300, 1)
    assert desk.held(APP) == held
    assert desk.ledger(APP).standing.day.used == held
    assert desk.ledger(APP).standing.month.used == held
    assert admission.hold == desk.find_hold(admission)
    assert admission.hold is not None
    assert (admission.hold.chain, admission.hold.ledgers) == (CHAIN, (HeldIn(APP, held),))
    assert (admission.hold.day, admission.hold.expires_at_ms) == ("20260131", EVENING_MS + 300_000)
    lease = desk.lease(admission)
    assert (lease.lease_id, lease.expires_at_ms, lease.holds) == (
        admission.hold.lease_id,
        admission.hold.expires_at_ms,
        True,
    )
    assert desk.consumed() == 1


def test_what_does_not_fit_changes_nothing(desk: HoldDesk) -> None:
    """Vector 60."""
    desk.put(APP, hard(26_500))
    desk.take(16_500)
    error = refused(desk, 16_500)
    (violation,) = error.violations
    assert (violation.limit, violation.used, violation.held, violation.requested) == (26_500, 16_500, 16_500, 16_500)
    assert error.resets_at_ms == MIDNIGHT_MS
    desk.take(10_000)
    assert desk.used(APP) == 26_500


def test_ten_at_once_of_two_million_on_ten(desk: HoldDesk) -> None:
    """Vector 63."""
    desk.put(APP, hard(10_000_000))
    desks = [desk.elsewhere() for _ in range(10)]

    def take(one: HoldDesk) -> bool:
        try:
            one.take(2_000_000)
        except BudgetExceeded:
            return False
        return True

    with ThreadPoolExecutor(10) as threads:
        assert sum(threads.map(take, desks)) == 5
    assert (desk.used(APP), len(desk.holds())) == (10_000_000, 5)


# Chains.


def test_every_hard_ledger_of_the_chain_holds(desk: HoldDesk) -> None:
    for entity in CHAIN:
        desk.put(entity, hard(100_000))
    admission = desk.take(7, 3)
    assert [desk.held(entity) for entity in CHAIN] == [Amounts(7, 3, 1)] * 3
    assert admission.hold is not None
    assert [held.entity for held in admission.hold.ledgers] == list(CHAIN)


def test_soft_and_counting_ledgers_hold_nothing(desk: HoldDesk) -> None:
    desk.put(USER, OwnBudget({DAY_COST: 1}, Enforcement.SOFT))
    desk.put(APP, hard(100))
    desk.put(ROOT, OwnBudget({DAY_COST: 1}, Enforcement.NONE))
    admission = desk.take(50)
    assert [desk.held(entity) for entity in CHAIN] == [NOTHING, Amounts(50, 0, 1), NOTHING]
    assert admission.hold is not None
    assert [held.entity for held in admission.hold.ledgers] == [APP]


def test_without_a_hard_ledger_it_is_a_plain_acquire(desk: HoldDesk) -> None:
    desk.put(USER, OwnBudget({DAY_COST: 1}, Enforcement.SOFT))
    desk.take(50)
    desk.store.taken_calls()
    admission = desk.take(50)
    assert desk.store.taken_calls() == ["update"]
    assert (admission.hold, desk.holds(), desk.lease(admission).holds) == (None, [], False)


def test_defaults_give_whoever_asks_a_ledger(desk: HoldDesk) -> None:
    desk.put(DEFAULTS, hard(100))
    desk.take(60)
    assert (desk.used(USER), desk.find_ledger(APP), desk.find_ledger(ROOT)) == (60, None, None)
    assert told(refused(desk, 60)) == [(USER, "day", "cost")]
    desk.take(60, entity=APP)
    assert desk.used(APP) == 60


def test_somebody_unknown_is_registered_and_gets_a_ledger(desk: HoldDesk) -> None:
    desk.put(DEFAULTS, hard(100))
    desk.put(APP, hard(150))
    registration = Registration(APP, BY_SYSTEM)
    desk.take(60, entity="newcomer", registration=registration)
    assert (desk.used("newcomer"), desk.used(APP)) == (60, 60)


def test_warm_it_is_one_call_for_three_ledgers(desk: HoldDesk) -> None:
    for entity in CHAIN:
        desk.put(entity, hard(100_000))
    desk.take(1)
    desk.store.taken_calls()
    desk.take(1)
    assert desk.store.taken_calls() == ["transact"]


# Refusals.


def test_every_limit_in_the_way_is_told_in_order(desk: HoldDesk) -> None:
    desk.put(USER, hard(100, month_cost=150, day_tokens=10, day_executions=1))
    desk.put(APP, hard(month_cost=120, day_cost=500))
    desk.put(ROOT, hard(day_tokens=12))
    desk.take(90, 9)
    error = refused(desk, 80, 8)
    assert told(error) == [
        (USER, "day", "cost"),
        (USER, "month", "cost"),
        (USER, "day", "tokens"),
        (USER, "day", "executions"),
        (APP, "month", "cost"),
        (ROOT, "day", "tokens"),
    ]
    assert error.resets_at_ms == NEXT_MONTH_MS, "the latest"
    assert desk.caps.told == [[(one.entity, f"{one.period}_{one.dimension}") for one in error.violations]]


def test_a_month_resets_later_than_a_day(desk: HoldDesk, clock: FakeClock) -> None:
    clock.advance(1_800_000)
    desk.put(USER, hard(100, month_cost=150), day="20260201")
    desk.take(90)
    assert refused(desk, 20).resets_at_ms == MIDNIGHT_MS + 24 * 3_600_000
    desk.clock.advance(24 * 3_600_000)
    # 1 March, midnight in Berlin.
    assert refused(desk, 80).resets_at_ms == MIDNIGHT_MS + 28 * 24 * 3_600_000


def test_more_than_the_whole_limit_is_never_admissible(desk: HoldDesk) -> None:
    desk.put(USER, hard(100))
    desk.put(APP, hard(0))
    before = desk.everything()
    with pytest.raises(NeverWithinBudget) as raised:
        desk.take(101)
    assert told(raised.value) == [(USER, "day", "cost"), (APP, "day", "cost")]
    assert desk.everything() == before


def test_at_the_limit_not_even_nothing_is_admitted(desk: HoldDesk) -> None:
    desk.put(USER, hard(100))
    desk.take(100)
    refused(desk, 0)


def test_a_full_image_is_looked_at_again_before_anybody_is_refused(desk: HoldDesk) -> None:
    """Hole: what was freed by others would be refused for a minute."""
    desk.put(USER, hard(100))
    other = desk.elsewhere()
    admission = other.take(100)
    refused(desk, 50)
    other.leases.release(other.lease(admission))
    desk.store.taken_calls()
    desk.take(50)
    assert desk.store.taken_calls() == ["consistent batch_get", "transact"]


def test_a_refusal_writes_nothing_where_the_image_is_full(desk: HoldDesk) -> None:
    desk.put(USER, hard(100))
    desk.take(100)
    desk.store.taken_calls()
    refused(desk, 50)
    assert desk.store.taken_calls() == ["consistent batch_get"]


def test_an_image_with_room_is_refused_by_what_the_transaction_returns(desk: HoldDesk) -> None:
    for entity in CHAIN:
        desk.put(entity, hard(100))
    other = desk.elsewhere()
    desk.take(1)
    other.take(90)
    desk.store.taken_calls()
    assert told(refused(desk, 50)) == [(entity, "day", "cost") for entity in CHAIN]
    assert desk.store.taken_calls()[0] == "transact"
    assert desk.consumed() == 2


def test_the_budget_is_told_before_the_bucket(desk: HoldDesk) -> None:
    desk.put(USER, hard(100))
    desk.take(100, consume={"rpm": 100})
    assert told(refused(desk, 50)) == [(USER, "day", "cost")]


def test_a_bucket_that_is_empty_leaves_the_budget_alone(desk: HoldDesk) -> None:
    desk.put(USER, hard(100))
    desk.take(10, consume={"rpm": 100})
    before = desk.everything()
    with pytest.raises(LimitExceeded):
        desk.take(10)
    assert desk.everything() == before


# Reserves.


def test_what_is_hard_limited_must_be_reserved(desk: HoldDesk) -> None:
    desk.put(USER, hard(100, day_executions=2))
    desk.put(APP, hard(day_tokens=50))
    before = desk.everything()
    for reserve, dimensions in ((None, ("cost", "tokens")), (AmountReserve(5), ("tokens",))):
        with pytest.raises(ReserveRequired) as raised:
            desk.holding.acquire(desk.wish(reserve))
        assert raised.value.dimensions == dimensions
    assert desk.everything() == before
    desk.take(5, 5)


def test_executions_alone_need_no_reserve(desk: HoldDesk) -> None:
    desk.put(USER, hard(day_executions=2))
    for _ in range(2):
        admission = desk.holding.acquire(desk.wish())
        assert admission.hold is not None
        assert admission.hold.amounts == Amounts(executions=1)
    with pytest.raises(BudgetExceeded) as raised:
        desk.holding.acquire(desk.wish())
    assert told(raised.value) == [(USER, "day", "executions")]


def test_a_reserve_needs_no_bucket(desk: HoldDesk) -> None:
    desk.put(USER, hard(100))
    admission = desk.holding.acquire(desk.wish(AmountReserve(60), consume={}))
    assert (desk.used(), admission.members, admission.consumed) == (60, (), {})
    lease = desk.lease(admission)
    desk.leases.release(lease)
    assert (desk.used(), desk.held()) == (0, NOTHING)
    # Nor does it where nothing is limited at all.
    assert desk.holding.acquire(desk.wish(AmountReserve(60), entity=APP, consume={})).hold is None


def test_names_are_checked_with_a_reserve_too(desk: HoldDesk) -> None:
    desk.put(USER, hard(100))
    with pytest.raises(UnknownLimit):
        desk.take(5, consume={"unheard": 1})
    elsewhere = replace(desk.wish(AmountReserve(5)), request=replace(desk.wish().request, resource="another"))
    for judge in (desk.holding.acquire, desk.hold_explain.explain):
        with pytest.raises(UnknownLimit):
            judge(elsewhere)
        with pytest.raises(NoLimits):
            judge(replace(elsewhere, reserve=None))


def test_unknown_prices_and_labels(desk: HoldDesk) -> None:
    desk.put(USER, hard(100))
    before = desk.everything()
    with pytest.raises(UnknownLabel):
        desk.holding.acquire(desk.wish(ModelReserve(1, 1, label="unheard")))
    with pytest.raises(PriceMissing):
        desk.holding.acquire(desk.wish(ModelReserve(1, 1, model_id="unheard")))
    assert desk.everything() == before


def test_a_price_is_not_asked_for_where_cost_has_no_hard_limit(desk: HoldDesk) -> None:
    desk.put(USER, hard(day_tokens=100))
    admission = desk.holding.acquire(desk.wish(ModelReserve(10, 20, model_id="unheard")))
    assert admission.hold is not None
    assert admission.hold.amounts == Amounts(0, 30, 1)


def test_a_reserve_waits_for_a_label_only_where_that_may_have_the_price(desk: HoldDesk) -> None:
    """AWS does not say what the labels stand for."""
    desk.models.error = ModelsUnavailable()
    by_model = ModelReserve(1_500, 800, model_id="model-of-premium")
    unheard = replace(by_model, model_id="unheard")
    desk.put(USER, hard(20_000))
    assert desk.holding.acquire(desk.wish(by_model)).hold is not None
    # A refusal stays one.
    with pytest.raises(BudgetExceeded):
        desk.holding.acquire(desk.wish(by_model))
    with pytest.raises(ModelsUnavailable):
        desk.holding.acquire(desk.wish(unheard))
    desk.revise(USER, hard(day_tokens=10_000))
    desk.book.refresh(NAMESPACE, [USER])
    admission = desk.holding.acquire(desk.wish(unheard))
    assert admission.hold is not None
    assert admission.hold.amounts == Amounts(0, 2_300, 1)


def test_prices_are_those_of_the_entitys_app_and_day(desk: HoldDesk) -> None:
    desk.put(USER, hard(10**9))
    desk.holding.acquire(desk.wish(replace(PREMIUM, region="eu-west-1")))
    assert desk.models.asked == [(NAMESPACE, APP, "premium", "eu-west-1")]
    (asked,) = desk.prices.asked
    assert asked[:3] == (NAMESPACE, "model-of-premium", "eu-west-1")


def test_remedies_are_the_longest_answer_and_the_next_label_that_fit(desk: HoldDesk) -> None:
    desk.put(USER, hard(20_000))
    desk.take(10_000)
    with pytest.raises(BudgetExceeded) as raised:
        desk.holding.acquire(desk.wish(PREMIUM))
    # 1,500 of input cost 4,500; 5,500 are left for output at 15 each.
    assert raised.value.remedies == (Remedy("max_output_tokens", 366), Remedy("label", "economy"))
    desk.holding.acquire(desk.wish(replace(PREMIUM, max_output_tokens=366)))
    with pytest.raises(BudgetExceeded):
        desk.holding.acquire(desk.wish(replace(PREMIUM, max_output_tokens=367)))


def test_no_remedy_is_told_that_would_not_help(desk: HoldDesk) -> None:
    desk.put(USER, hard(20_000, day_executions=2))
    desk.take(20_000)
    with pytest.raises(BudgetExceeded) as raised:
        desk.holding.acquire(desk.wish(PREMIUM))
    assert raised.value.remedies == ()
    assert refused(desk, 5).remedies == ()
