"""Acquires under hard budgets while midnights pass, limits change, others write and calls fail."""

import json
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.budget import (
    Amounts,
    Charge,
    Enforcement,
    LedgerChange,
    OwnBudget,
    Periods,
    guarantee,
)
from sluice.core.errors import (
    Ambiguous,
    Contended,
    NeverWithinBudget,
    Unavailable,
)
from sluice.core.holds import HeldIn
from sluice.core.signals import Signal
from sluice.repository import keys
from sluice.repository.ledgers import change_ledger
from sluice.repository.retries import Retries
from sluice.repository.store import Applied, DynamoStore
from sluice.services.entities import EntityChange
from sluice.services.gates import UNBUDGETED_MS
from sluice.services.ledger_book import CACHE_MS
from sluice.shell import new_token
from tests.fakes import CountingMeter, FakeClock, never_random
from tests.integration.holding_desks import (
    APP,
    CHAIN,
    DAY_COST,
    EVENING_MS,
    NAMESPACE,
    NEXT_DAY,
    RESOURCE,
    ROOT,
    USER,
    HoldDesk,
    at,
    hard,
    lost,
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
