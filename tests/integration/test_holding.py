"""Acquires under hard budgets on a real engine: held before they are spent, refused exactly, put once."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.admission import Admission
from sluice.core.audit import BY_SYSTEM
from sluice.core.budget import (
    DEFAULTS,
    NOTHING,
    Amounts,
    Charge,
    Enforcement,
    LedgerChange,
    OwnBudget,
    Periods,
    Span,
    guarantee,
)
from sluice.core.errors import (
    Ambiguous,
    BudgetExceeded,
    Contended,
    IdempotencyMismatch,
    LeaseClosed,
    LimitExceeded,
    ModelsUnavailable,
    NeverWithinBudget,
    NoLimits,
    PriceMissing,
    Remedy,
    ReserveRequired,
    Unavailable,
    UnknownLabel,
    UnknownLimit,
)
from sluice.core.holds import HeldIn, HoldState
from sluice.core.limits import Limit
from sluice.core.reserves import AmountReserve, ModelReserve
from sluice.core.signals import Signal
from sluice.repository import keys
from sluice.repository.holds import close_hold
from sluice.repository.idempotency import IdempotencyKey
from sluice.repository.ledgers import change_ledger, hold_in_ledger
from sluice.repository.retries import Retries
from sluice.repository.store import Applied, DynamoStore
from sluice.services.entities import EntityChange
from sluice.services.gates import UNBUDGETED_MS
from sluice.services.idempotency import Answered
from sluice.services.ledger_book import CACHE_MS
from sluice.services.registration import Registration
from sluice.shell import new_token
from tests.fakes import CountingMeter, FakeClock, never_random
from tests.integration.holding_desks import (
    APP,
    CHAIN,
    DAY_COST,
    EVENING_MS,
    MONTH_COST,
    NAMESPACE,
    RESOURCE,
    ROOT,
    USER,
    HoldDesk,
    at,
    hard,
)

MIDNIGHT_MS: Final = EVENING_MS + 1_800_000
NEXT_MONTH_MS: Final = MIDNIGHT_MS
NEXT_DAY: Final = Periods("20260201", "202602")
PREMIUM: Final = ModelReserve(1_500, 800, label="premium")
KEY: Final = IdempotencyKey(NAMESPACE, APP, "key-1", "hash-1")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(EVENING_MS)


@pytest.fixture
def desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> HoldDesk:
    retries = Retries(lambda _ms: None, never_random, CountingMeter())
    return HoldDesk.opened(DynamoStore(dynamodb, table, retries), clock).found()


def refused(desk: HoldDesk, *arguments: Any, **more: Any) -> BudgetExceeded:
    before = desk.everything()
    with pytest.raises(BudgetExceeded) as raised:
        desk.take(*arguments, **more)
    assert desk.everything() == before, "a refusal changes nothing"
    return raised.value


def told(error: BudgetExceeded | NeverWithinBudget) -> list[tuple[str, str, str]]:
    return [(one.entity, one.period, one.dimension) for one in error.violations]


def lost(after: int = 1) -> Callable[[str, Any], None]:
    def lose() -> None:
        raise Ambiguous("the answer was lost")

    return at("transact", lose, after)


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


# Midnights, limits that change, processes that do not know.


def test_a_hold_after_midnight_turns_the_ledger(desk: HoldDesk, clock: FakeClock) -> None:
    desk.put(USER, hard(100))
    desk.take(60)
    clock.advance(1_800_000)
    admission = desk.take(40)
    assert admission.hold is not None
    assert admission.hold.day == "20260201"
    standing = desk.ledger().standing
    assert (standing.periods, standing.day.used.cost_usd_micros, standing.held.cost_usd_micros) == (NEXT_DAY, 100, 100)
    refused(desk, 1)


def test_what_is_held_over_midnight_counts_in_the_new_day(desk: HoldDesk, clock: FakeClock) -> None:
    desk.put(USER, hard(100))
    desk.take(60)
    clock.advance(1_800_000)
    assert refused(desk, 41).violations[0].used == 60
    assert desk.ledger().standing.periods.day == "20260131", "reading turns nothing"


def test_an_image_of_before_a_turn_builds_the_next_try(desk: HoldDesk, clock: FakeClock) -> None:
    for entity in CHAIN:
        desk.put(entity, hard(100))
    other = desk.elsewhere()
    clock.advance(1_795_000)
    desk.take(10)
    other.take(10)
    clock.advance(5_000)
    other.take(10, entity=APP)
    desk.store.taken_calls()
    desk.take(10)
    assert desk.store.taken_calls() == ["transact", "transact"]
    # The others of the chain turned in the second transaction.
    assert [desk.ledger(entity).standing.periods for entity in CHAIN] == [NEXT_DAY] * 3
    assert [desk.used(entity) for entity in CHAIN] == [30, 40, 40]


def test_a_ledger_that_is_ahead_of_this_clock_stays_there(desk: HoldDesk, clock: FakeClock) -> None:
    desk.put(USER, hard(100))
    desk.elsewhere(FakeClock(clock.now_ms + 1_800_000)).take(10)
    admission = desk.take(10)
    assert admission.hold is not None
    assert admission.hold.day == "20260201", "so that a settlement is counted where this was admitted"
    assert (desk.ledger().standing.periods, desk.used()) == (NEXT_DAY, 20)


def test_a_lowered_limit_acts_at_once(desk: HoldDesk) -> None:
    """Vector 65, under a process that knows the old limit."""
    desk.put(USER, hard(10_000_000))
    desk.take(6_000_000)
    desk.revise(USER, hard(12_000_000))
    desk.take(6_000_000)
    desk.revise(USER, hard(5_000_000))
    assert refused(desk, 1).violations[0].limit == 5_000_000


def test_a_raised_limit_acts_at_once(desk: HoldDesk) -> None:
    desk.put(USER, hard(100))
    desk.take(100)
    refused(desk, 50)
    desk.revise(USER, hard(150))
    desk.take(50)


def test_a_budget_that_is_no_longer_hard_refuses_nobody(desk: HoldDesk) -> None:
    desk.put(USER, hard(100))
    desk.take(100)
    desk.revise(USER, OwnBudget({DAY_COST: 100}, Enforcement.SOFT))
    admission = desk.holding.acquire(desk.wish())
    assert (admission.consumed, admission.hold) == ({"rpm": 1}, None), "not even a reserve is needed"
    desk.revise(USER, hard(150))
    desk.book.refresh(NAMESPACE, [USER])
    desk.revise(USER, OwnBudget(enforcement=Enforcement.NONE))
    assert json.loads(once(desk, 500).text) == [None, False]


def test_a_budget_that_became_hard_acts_within_a_minute(desk: HoldDesk, clock: FakeClock) -> None:
    desk.put(USER, OwnBudget({DAY_COST: 100}, Enforcement.SOFT))
    assert desk.take(500).hold is None
    desk.revise(USER, hard(100))
    clock.advance(CACHE_MS - 1)
    assert desk.take(500).hold is None
    told = guarantee(desk.ledger().terms, desk.ledger().standing).because
    assert "began within the minute in which" in told
    assert "became hard" in told[told.index("began within the minute") :]
    clock.advance(1)
    with pytest.raises(NeverWithinBudget):
        desk.take(500)


def test_a_refresh_between_is_learned(desk: HoldDesk) -> None:
    """The epoch is part of every condition."""
    desk.put(USER, hard(100))
    desk.take(10)
    seen = desk.ledger()
    bump: Any = {
        "Key": {"PK": f"{NAMESPACE}/BUDGET#{USER}", "SK": "#LEDGER#0"},
        "UpdateExpression": "ADD epoch :one",
        "ExpressionAttributeValues": {":one": 1},
    }
    assert isinstance(desk.store.inner.update(bump, repeatable=False), Applied)
    desk.take(10)
    assert (desk.ledger().epoch, desk.used()) == (seen.epoch + 1, 20)


def test_what_others_used_in_between_is_added_up(desk: HoldDesk, clock: FakeClock) -> None:
    desk.put(USER, hard(100))
    desk.take(10)
    change = LedgerChange(charges=(Charge(Periods.of_name("20260131"), Amounts(30, 5, 1)),))
    request = change_ledger(desk.ledger(), Periods.of_name("20260131"), change, clock.now_ms)
    assert isinstance(desk.store.inner.update(request, repeatable=False), Applied)
    desk.take(60)
    assert desk.used() == 100
    refused(desk, 1)


# Faults.


def test_a_lost_answer_is_not_a_second_hold(desk: HoldDesk) -> None:
    desk.put(USER, hard(100))
    desk.allow_unavailable()
    desk.store.after = lost()
    with pytest.raises(Ambiguous):
        desk.take(10)
    assert (desk.used(), len(desk.holds())) == (10, 1), "the sweep frees it"


def test_whatever_happens_while_it_is_taken_it_is_put_once(desk: HoldDesk, clock: FakeClock) -> None:
    """Every try is built from what another writer has just changed."""
    for entity in CHAIN:
        desk.put(entity, hard(1_000))
    desk.take(1)
    turns = iter((lambda: desk.revise(USER, hard(900)), lambda: clock.advance(1_800_000), lambda: None))
    other = desk.elsewhere()

    def act() -> None:
        next(turns)()
        other.take(1)

    desk.store.before = at("transact", act, 3)
    desk.take(10)
    assert len(desk.holds()) == 5
    assert [desk.held(entity).cost_usd_micros for entity in CHAIN] == [14, 14, 14]


def test_a_bucket_that_others_took_from_is_looked_at_and_the_hold_drawn_again(desk: HoldDesk, clock: FakeClock) -> None:
    desk.put(USER, hard(1_000))
    desk.take(1, consume={"rpm": 40})
    other = desk.elsewhere()
    moments = []

    def act() -> None:
        # As after its TTL: what comes to be then is another incarnation.
        desk.store.inner.delete({"Key": {**keys.bucket(NAMESPACE, USER, RESOURCE, 0).attributes}})
        clock.advance(7)
        other.take(1, consume={"rpm": 40})
        moments.append(clock.now_ms)

    desk.store.before = at("transact", act)
    desk.store.taken_calls()
    admission = desk.take(10, consume={"rpm": 20})
    assert desk.store.taken_calls().count("transact") == 2
    assert admission.hold == desk.find_hold(admission)
    assert admission.hold is not None
    assert [admission.hold.taken_at_ms] == moments
    assert (len(desk.holds()), desk.used(), desk.consumed()) == (3, 12, 60)


def test_a_ledger_that_never_stands_still_is_contended(desk: HoldDesk) -> None:
    desk.put(USER, hard(1_000))
    desk.take(1)
    limits = iter(range(2_000, 3_000))
    desk.store.before = at("transact", lambda: desk.revise(USER, hard(next(limits))), 99)
    with pytest.raises(Contended):
        desk.take(1)
    assert desk.used() == 1
    assert desk.meter.counts[Signal.CONTENDED] == 1


def test_a_ledger_that_was_removed_meanwhile_holds_nothing(desk: HoldDesk) -> None:
    desk.put(USER, hard(1_000))
    desk.put(APP, hard(1_000))
    desk.take(1)
    gone: Any = {"Key": {"PK": f"{NAMESPACE}/BUDGET#{USER}", "SK": "#LEDGER#0"}}
    desk.store.before = at("transact", lambda: desk.store.inner.delete(gone))
    admission = desk.take(10)
    assert admission.hold is not None
    assert admission.hold.ledgers == (HeldIn(APP, Amounts(10, 0, 1)),)


def test_a_hold_that_is_there_already_was_put_by_this_acquire(desk: HoldDesk) -> None:
    """As a store would tell it that forgets tokens: the lost answer of the first is known by the id."""
    desk.put(USER, hard(1_000))
    desk.take(1)
    inner = desk.store.inner

    class Forgetful:
        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

        def transact(self, writes: Any, token: str, **more: Any) -> Any:
            inner.transact(writes, token, **more)
            return inner.transact(writes, new_token(), **more)

    desk.store.inner = Forgetful()
    admission = desk.take(10)
    desk.store.inner = inner
    assert admission.hold == desk.find_hold(admission)
    assert (desk.used(), len(desk.holds())) == (11, 2)


@pytest.mark.parametrize("verb", ["transact", "batch_get", "consistent batch_get"])
def test_a_table_that_does_not_answer_never_opens_the_gate(desk: HoldDesk, clock: FakeClock, verb: str) -> None:
    desk.allow_unavailable()
    desk.put(USER, hard(100))
    desk.take(100 if verb == "consistent batch_get" else 10)
    clock.advance(CACHE_MS if verb == "batch_get" else 0)

    def fail() -> None:
        raise Unavailable("down")

    desk.store.before = at(verb, fail, 99)
    with pytest.raises(Unavailable):
        desk.take(10)
    assert desk.meter.counts[Signal.FAIL_OPEN_ADMISSIONS] == 0


def test_nor_does_the_record_of_an_answer_that_can_not_be_read(desk: HoldDesk) -> None:
    """Hole: the refusal is replaced by the unavailability of the record, which would open the gate."""
    desk.allow_unavailable()
    desk.put(USER, hard(100))
    desk.take(100)

    def fail() -> None:
        raise Unavailable("down")

    desk.store.before = at("consistent get", fail)
    with pytest.raises(Unavailable):
        once(desk, 10)


def test_the_gate_opens_where_nobody_had_a_hard_budget(desk: HoldDesk, clock: FakeClock) -> None:
    desk.allow_unavailable()
    desk.take(10)
    clock.advance(UNBUDGETED_MS - 1)

    def fail() -> None:
        raise Unavailable("down")

    for verb in ("batch_get", "update"):
        desk.store.before = at(verb, fail)
        assert desk.take(10).degraded
    assert desk.take(10).hold is None
    clock.advance(UNBUDGETED_MS)
    desk.store.before = at("batch_get", fail)
    with pytest.raises(Unavailable):
        desk.take(10)


def test_nor_for_whoever_stands_below_a_hard_budget_that_came_to_be_known(desk: HoldDesk, clock: FakeClock) -> None:
    """Hole: only the entity that met it is known to have one."""
    desk.allow_unavailable()
    desk.entities.put(NAMESPACE, "user-2", EntityChange(parent=APP))
    desk.entities.put(NAMESPACE, "user-3", EntityChange(parent=ROOT))
    for entity in ("user-2", "user-3"):
        desk.take(10, entity=entity)
    desk.put(APP, hard(100))
    clock.advance(CACHE_MS)
    assert desk.take(10).hold is not None
    assert desk.take(10, entity="user-3").hold is None
    assert desk.take(10).hold is not None

    def fail() -> None:
        raise Unavailable("down")

    clock.advance(CACHE_MS)
    desk.store.before = at("batch_get", fail, 2)
    with pytest.raises(Unavailable):
        desk.take(10, entity="user-2")
    assert desk.take(10, entity="user-3").degraded
    assert desk.take(10, entity="user-2").hold is not None


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


def once(desk: HoldDesk, cost_usd_micros: int, key: IdempotencyKey = KEY) -> Answered:
    def render(admission: Admission) -> str:
        return json.dumps([None if admission.hold is None else admission.hold.lease_id, admission.degraded])

    return desk.holding.acquire_once(desk.wish(AmountReserve(cost_usd_micros)), key, render)


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
