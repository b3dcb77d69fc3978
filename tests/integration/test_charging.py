"""Usage is added to the ledgers of its chain and settles what is held for it, in the transaction that counts it."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.budget import DEFAULTS, Amounts, Enforcement, LedgerChange, OwnBudget, Periods, Span
from sluice.core.errors import InvalidLease, SluiceError
from sluice.core.holds import HoldState
from sluice.core.metering import CallStatus
from sluice.core.pricing import TokenKind
from sluice.core.signals import Signal
from sluice.repository import budget_keys
from sluice.repository.holds import close_hold
from sluice.repository.keys import Key, key_of
from sluice.repository.ledger_items import encode_ledger
from sluice.repository.ledgers import asked, change_ledger, change_terms, with_terms
from sluice.repository.retries import Retries
from sluice.repository.store import Applied, DynamoStore
from sluice.repository.wire import Item
from sluice.services import ledger_book
from sluice.services.judging import Reporter
from sluice.services.metering import Counted
from tests.fakes import CountingMeter, FakeClock
from tests.integration.ledger_desks import (
    COUNTED,
    DAY_COST,
    HARD,
    held,
    hold_of,
    ledger_of,
    put_budget,
    spent,
    take_hold,
    used,
)
from tests.integration.metering_desks import (
    APP,
    AS_APP,
    AS_ORG,
    COST,
    DAY_MS,
    HOUR_MS,
    MIDNIGHT_MS,
    NAMESPACE,
    NOW_MS,
    ORG,
    OTHER_APP,
    SETTINGS,
    TODAY,
    YESTERDAY,
    MeteringDesk,
    report,
)

NEXT_MIDNIGHT_MS = MIDNIGHT_MS + DAY_MS
CALL = Amounts(COST, 2_300, 1)
RESERVED = Amounts(16_500, 4_000, 1)


@pytest.fixture
def desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> MeteringDesk:
    store = DynamoStore(dynamodb, table, Retries(clock.advance, lambda _below: 0, CountingMeter()))
    return MeteringDesk.opened(store, clock).found(SETTINGS)


def _counted(answer: Counted | SluiceError) -> Counted:
    assert isinstance(answer, Counted)
    return answer


def _cost(amount: int) -> dict[str, Any]:
    """A call that costs so much: 3 USD per million tokens."""
    return {"tokens": {TokenKind.INPUT: amount // 3}}


def test_an_org_without_budgets_pays_nothing_for_them(desk: MeteringDesk) -> None:
    desk.submit()
    desk.store.taken_calls()
    sizes: list[int] = []
    desk.store.before = lambda verb, request: sizes.append(len(request)) if verb == "transact" else None
    desk.submit(request_id="request-2")
    assert (desk.store.taken_calls(), sizes) == (["transact", "get"], [2])
    event = desk.event("request-2")
    assert event is not None
    assert event.epochs == {}


def test_every_ledger_of_the_chain_gets_what_the_call_took(desk: MeteringDesk) -> None:
    for entity in (APP, ORG):
        put_budget(desk, entity, COUNTED)
    desk.submit()
    desk.submit(request_id="request-2", status=CallStatus.TIMEOUT)
    for entity in (APP, ORG):
        ledger = ledger_of(desk.store.inner, entity)
        for span in Span:
            assert ledger.standing.of(span).used == CALL + CALL
            assert ledger.standing.of(span).errors == 1
        assert (ledger.last_execution_at_ms, ledger.last_execution_status) == (NOW_MS, "timeout")
    event = desk.event()
    assert event is not None
    assert event.epochs == {APP: 0, ORG: 0}


def test_a_parent_without_a_budget_of_its_own_gets_nothing(desk: MeteringDesk) -> None:
    put_budget(desk, ORG, COUNTED)
    desk.submit()
    assert desk.store.inner.get(budget_keys.ledger(NAMESPACE, APP), consistent=True) is None
    assert used(ledger_of(desk.store.inner, ORG)) == COST


def test_with_defaults_whoever_uses_gets_a_ledger(desk: MeteringDesk) -> None:
    defaults = put_budget(desk, DEFAULTS, HARD)
    assert defaults.has_own
    desk.submit()
    ledger = ledger_of(desk.store.inner, APP)
    assert (used(ledger), ledger.has_own, ledger.terms.limits) == (COST, False, HARD.limits)


def test_a_ledger_that_a_lagging_read_does_not_show_is_charged(
    desk: MeteringDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hole: the event made it, and its transaction, built when what was known had become too old, left it out. No
    refresh would find that either: the event said that it was charged to nobody."""
    put_budget(desk, DEFAULTS, OwnBudget({DAY_COST: 10_000_000}, Enforcement.SOFT))
    book = desk.metering._ledgers._book
    assert book.for_hold(NAMESPACE, (APP, ORG)) == []
    desk.clock.advance(ledger_book.CACHE_MS - 10)
    book.refresh(NAMESPACE, [DEFAULTS])
    inner = desk.store.inner

    def lagging(wanted: Sequence[Key], *, consistent: bool = False) -> list[Item]:
        found = real(wanted, consistent=consistent)
        return [item for item in found if consistent or key_of(item) != budget_keys.ledger(NAMESPACE, APP)]

    def made(verb: str, _request: Any) -> None:
        # The second one's ledger, when the first one's is there.
        if verb == "put" and desk.store.calls.count("put") == 2:
            desk.clock.advance(10)

    real = inner.batch_get
    monkeypatch.setattr(inner, "batch_get", lagging)
    desk.store.after = made
    desk.store.taken_calls()
    reports = [report(entity=entity, request_id=entity, occurred_at_ms=desk.clock.now_ms) for entity in (APP, "user-1")]
    for counted in map(_counted, desk.metering.submit_batch(AS_APP, reports)):
        ledger = ledger_of(inner, counted.event.entity)
        assert (used(ledger), counted.event.epochs) == (COST, {ledger.entity: ledger.epoch})


def test_a_call_without_a_known_cost_adds_none(desk: MeteringDesk) -> None:
    put_budget(desk, APP, COUNTED)
    desk.change_org(lambda settings: replace(settings, accept_unpriced=True))
    desk.prices.prices.clear()
    desk.submit(occurred_at_ms=desk.clock.now_ms)
    assert ledger_of(desk.store.inner).standing.day.used == Amounts(0, 2_300, 1)


def test_a_late_call_is_added_where_its_period_is_still_current(desk: MeteringDesk) -> None:
    """Vector 44."""
    put_budget(desk, APP, COUNTED)
    desk.clock.now_ms = NEXT_MIDNIGHT_MS + HOUR_MS
    desk.submit(occurred_at_ms=NEXT_MIDNIGHT_MS - 1)
    ledger = ledger_of(desk.store.inner)
    assert ledger.standing.periods == Periods("20270116", "202701")
    assert (used(ledger), used(ledger, Span.MONTH)) == (0, COST)
    assert desk.used(day=TODAY).cost_usd_micros == COST


def test_a_repeat_adds_nothing(desk: MeteringDesk) -> None:
    put_budget(desk, APP, COUNTED)
    desk.submit()
    assert desk.submit().duplicate
    assert used(ledger_of(desk.store.inner)) == COST


def test_a_batch_adds_once_to_each_ledger(desk: MeteringDesk) -> None:
    for entity in (APP, ORG):
        put_budget(desk, entity, COUNTED)
    sizes: list[int] = []
    desk.store.before = lambda verb, request: sizes.append(len(request)) if verb == "transact" else None
    reports = [report(request_id=f"r{number}", status=CallStatus.ERROR) for number in range(3)]
    reports.append(report(request_id="late", occurred_at_ms=NOW_MS - DAY_MS))
    answers = desk.metering.submit_batch(AS_APP, reports)
    assert [_counted(answer).duplicate for answer in answers] == [False] * 4
    # Four events, two counters, two ledgers.
    assert sizes == [8]
    for entity in (APP, ORG):
        standing = ledger_of(desk.store.inner, entity).standing
        assert (standing.day.used, standing.day.errors) == (Amounts(3 * COST, 6_900, 3), 3)
        assert (standing.month.used, standing.month.errors) == (Amounts(4 * COST, 9_200, 4), 3)


def test_a_hundred_events_with_ledgers_fit(desk: MeteringDesk) -> None:
    for entity in (APP, ORG):
        put_budget(desk, entity, COUNTED)
    sizes: list[int] = []
    desk.store.before = lambda verb, request: sizes.append(len(request)) if verb == "transact" else None
    desk.metering.submit_batch(AS_APP, [report(request_id=f"r{number}") for number in range(100)])
    assert sizes == [100, 6]
    assert used(ledger_of(desk.store.inner, ORG)) == 100 * COST


def _revised(desk: MeteringDesk, epoch: int | None = None, day: str | None = None) -> None:
    """Somebody else refreshes the ledger, or turns its periods."""
    ledger = ledger_of(desk.store.inner)
    standing = ledger.standing if day is None else ledger.standing.at(Periods.of_name(day))
    changed = replace(ledger, epoch=ledger.epoch if epoch is None else epoch, standing=standing)
    desk.store.inner.put({"Item": encode_ledger(changed)}, repeatable=True)


@pytest.mark.parametrize("change", [{"epoch": 7}, {"day": "20270116"}])
def test_a_ledger_that_changed_is_learned_and_the_event_built_anew(desk: MeteringDesk, change: dict[str, Any]) -> None:
    put_budget(desk, APP, COUNTED)
    desk.submit()
    before = spent(ledger_of(desk.store.inner), Span.MONTH)
    _revised(desk, **change)
    desk.store.taken_calls()
    desk.submit(request_id="request-2")
    assert desk.store.taken_calls() == ["transact", "transact", "get"]
    ledger = ledger_of(desk.store.inner)
    assert spent(ledger, Span.MONTH) == before + COST
    assert spent(ledger) == (0 if "day" in change else 2 * COST)
    event = desk.event("request-2")
    assert event is not None
    assert event.epochs == {APP: ledger.epoch}
    assert desk.used().requests == 2


def test_a_removed_ledger_is_left_out(desk: MeteringDesk) -> None:
    put_budget(desk, APP, COUNTED)
    desk.submit()
    desk.store.inner.delete({"Key": {**budget_keys.ledger(NAMESPACE, APP).attributes}})
    desk.submit(request_id="request-2")
    assert desk.store.inner.get(budget_keys.ledger(NAMESPACE, APP), consistent=True) is None
    assert desk.used().requests == 2


def test_limits_that_change_meanwhile_disturb_nobody(desk: MeteringDesk) -> None:
    put_budget(desk, APP, HARD)
    desk.submit()
    seen = ledger_of(desk.store.inner)
    wanted = OwnBudget({DAY_COST: 1}, Enforcement.HARD)
    terms = replace(seen.terms, limits=wanted.limits)
    after = asked(with_terms(seen, seen.standing.periods, terms, 0, NOW_MS), wanted)
    assert isinstance(desk.store.inner.update(change_terms(seen, after), repeatable=True), Applied)
    desk.store.taken_calls()
    desk.submit(request_id="request-2")
    assert desk.store.taken_calls() == ["transact", "get"]
    assert used(ledger_of(desk.store.inner)) == 2 * COST


def test_two_processes_at_once_lose_nothing(desk: MeteringDesk) -> None:
    put_budget(desk, APP, COUNTED)
    desks = [desk.elsewhere() for _ in range(4)]

    def send(number: int) -> None:
        for one in range(5):
            submitted = False
            while not submitted:
                (answer,) = desks[number].metering.submit_batch(AS_APP, [report(request_id=f"r{number}-{one}")])
                submitted = isinstance(answer, Counted)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(send, range(4)))
    assert ledger_of(desk.store.inner).standing.day.used == Amounts(20 * COST, 46_000, 20)


def test_a_settlement_replaces_what_was_held(desk: MeteringDesk) -> None:
    """Vector 59."""
    put_budget(desk, APP)
    lease = take_hold(desk, RESERVED)
    assert (used(ledger_of(desk.store.inner)), held(ledger_of(desk.store.inner))) == (16_500, 16_500)
    desk.submit(lease=lease, **_cost(12_000))
    ledger = ledger_of(desk.store.inner)
    assert (used(ledger), held(ledger)) == (12_000, 0)
    assert ledger.standing.held == Amounts()
    assert ledger.standing.day.used == ledger.standing.month.used == Amounts(12_000, 4_000, 1)
    assert hold_of(desk.store.inner).state is HoldState.SETTLED


def test_an_actual_above_its_estimate_is_charged_in_full(desk: MeteringDesk) -> None:
    """Vector 61."""
    put_budget(desk, APP, OwnBudget({DAY_COST: 16_500}, Enforcement.HARD))
    lease = take_hold(desk, RESERVED)
    desk.submit(lease=lease, **_cost(21_000))
    ledger = ledger_of(desk.store.inner)
    assert (used(ledger), held(ledger)) == (21_000, 0)


def test_settling_twice_settles_once_and_another_event_is_charged_in_full(desk: MeteringDesk) -> None:
    """Vector 62, first half."""
    put_budget(desk, APP)
    lease = take_hold(desk, RESERVED)
    desk.submit(lease=lease, **_cost(12_000))
    assert desk.submit(lease=lease, **_cost(12_000)).duplicate
    assert used(ledger_of(desk.store.inner)) == 12_000
    desk.submit(lease=lease, request_id="request-2", **_cost(3_000))
    assert (used(ledger_of(desk.store.inner)), held(ledger_of(desk.store.inner))) == (15_000, 0)


def test_two_events_of_one_lease_in_a_batch_free_it_once(desk: MeteringDesk) -> None:
    put_budget(desk, APP)
    lease = take_hold(desk, RESERVED)
    desk.metering.submit_batch(AS_APP, [report(request_id=name, lease=lease, **_cost(3_000)) for name in "ab"])
    assert (used(ledger_of(desk.store.inner)), held(ledger_of(desk.store.inner))) == (6_000, 0)


@pytest.mark.parametrize("known", [False, True])
def test_a_hold_that_somebody_else_closed_is_not_freed_again(desk: MeteringDesk, known: bool) -> None:
    """Vector 62, second half: after the sweep the actual is charged once."""
    put_budget(desk, APP)
    lease = take_hold(desk, RESERVED)
    if known:
        # This process has an image of the open hold.
        desk.metering.submit_batch(AS_APP, [report(request_id="x", lease=lease, label="unknown")])
    store, hold, ledger = desk.store.inner, hold_of(desk.store.inner), ledger_of(desk.store.inner)
    assert isinstance(store.update(close_hold(hold, HoldState.EXPIRED, NOW_MS), repeatable=False), Applied)
    minus = Amounts() - RESERVED
    free = change_ledger(ledger, ledger.standing.periods, LedgerChange(held=minus), NOW_MS)
    assert isinstance(store.update(free, repeatable=False), Applied)
    desk.submit(lease=lease, **_cost(12_000))
    assert (used(ledger_of(store)), held(ledger_of(store))) == (12_000, 0)
    assert hold_of(store).state is HoldState.EXPIRED
    assert desk.meter.counts[Signal.HOLDS_SETTLED_LATE] == 1
    assert desk.meter.counts[Signal.LATE_SETTLED_USD_MICROS] == 12_000


def test_a_settlement_goes_by_the_chain_of_its_hold(desk: MeteringDesk) -> None:
    for entity in (APP, ORG, OTHER_APP):
        put_budget(desk, entity)
    lease = take_hold(desk, RESERVED, OTHER_APP, ORG, chain=(APP, OTHER_APP, ORG))
    desk.submit(lease=lease, **_cost(12_000))
    found = {entity: ledger_of(desk.store.inner, entity) for entity in (APP, ORG, OTHER_APP)}
    assert {entity: (used(one), held(one)) for entity, one in found.items()} == {
        APP: (12_000, 0),
        OTHER_APP: (12_000, 0),
        ORG: (12_000, 0),
    }
    event = desk.event()
    assert event is not None
    assert event.chain == (APP, OTHER_APP, ORG)


def test_a_budget_that_was_removed_still_gets_its_hold_back(desk: MeteringDesk) -> None:
    put_budget(desk, APP)
    put_budget(desk, ORG)
    lease = take_hold(desk, RESERVED, APP, ORG)
    seen = ledger_of(desk.store.inner, ORG)
    none = OwnBudget({}, Enforcement.NONE, inherit=False)
    terms = replace(seen.terms, limits={}, enforcement=Enforcement.NONE)
    gone = asked(with_terms(seen, seen.standing.periods, terms, 0, NOW_MS), none, has_own=False)
    assert isinstance(desk.store.inner.update(change_terms(seen, gone), repeatable=True), Applied)
    desk.submit(lease=lease, **_cost(12_000))
    assert (used(ledger_of(desk.store.inner, ORG)), held(ledger_of(desk.store.inner, ORG))) == (12_000, 0)


@pytest.mark.parametrize("reporter", [AS_APP, AS_ORG])
def test_an_entity_that_was_removed_meanwhile_is_charged_to_those_above_it(
    desk: MeteringDesk, reporter: Reporter
) -> None:
    """Nobody gets rid of what a call took by removing who made it."""
    put_budget(desk, APP)
    lease = replace(take_hold(desk, RESERVED, APP, chain=("user-1", APP)), entity="user-1")
    desk.entities.delete(NAMESPACE, "user-1")
    later = desk.elsewhere()
    counted = later.submit(reporter, entity="user-1", lease=lease, **_cost(12_000))
    assert (counted.event.chain, counted.event.app, counted.event.cost_usd_micros) == (("user-1", APP), APP, 12_000)
    assert (used(ledger_of(desk.store.inner)), held(ledger_of(desk.store.inner))) == (12_000, 0)
    assert (desk.used().requests, desk.entity("user-1")) == (1, None)
    # Another app's lease says nothing to whoever it does not concern; and without a hold nobody knows whom to charge.
    with pytest.raises(InvalidLease):
        later.submit(replace(AS_APP, entity=OTHER_APP, within=OTHER_APP), entity="user-1", lease=lease, request_id="x")


def test_an_entity_that_is_gone_gets_no_ledger(desk: MeteringDesk) -> None:
    """One made anew under its id would begin with what was spent, and nobody could see or remove it until then."""
    put_budget(desk, APP)
    put_budget(desk, DEFAULTS, OwnBudget({DAY_COST: 10_000_000}, Enforcement.SOFT))
    lease = replace(take_hold(desk, RESERVED, APP, chain=("user-1", APP)), entity="user-1")
    desk.entities.delete(NAMESPACE, "user-1")
    event = desk.elsewhere().submit(AS_APP, entity="user-1", lease=lease, **_cost(12_000)).event
    assert (set(event.epochs), used(ledger_of(desk.store.inner))) == ({APP}, 12_000)
    assert desk.store.inner.get(budget_keys.ledger(NAMESPACE, "user-1"), consistent=True) is None


def test_no_call_is_counted_before_it_was_admitted(desk: MeteringDesk) -> None:
    """Else a report of yesterday would empty a hard budget of today."""
    put_budget(desk, APP)
    lease = take_hold(desk, RESERVED)
    desk.submit(lease=lease, occurred_at_ms=NOW_MS - DAY_MS, **_cost(12_000))
    assert desk.event(day=YESTERDAY) is None
    event = desk.event(day=TODAY)
    assert event is not None
    assert (event.day, desk.used(day=TODAY).requests, desk.used(day=YESTERDAY).requests) == (TODAY, 1, 0)
    assert (used(ledger_of(desk.store.inner)), held(ledger_of(desk.store.inner))) == (12_000, 0)
    again = desk.elsewhere().submit(lease=lease, occurred_at_ms=NOW_MS - DAY_MS, **_cost(12_000))
    assert again.duplicate


def test_held_before_midnight_and_settled_after(desk: MeteringDesk) -> None:
    """Vector 64."""
    put_budget(desk, APP)
    desk.clock.now_ms = NEXT_MIDNIGHT_MS - 1_000
    lease = take_hold(desk, RESERVED)
    desk.clock.now_ms = NEXT_MIDNIGHT_MS + 5_000
    desk.submit(lease=lease, occurred_at_ms=NEXT_MIDNIGHT_MS - 1_000, **_cost(12_000))
    ledger = ledger_of(desk.store.inner)
    assert ledger.standing.periods.day == "20270116"
    assert (used(ledger), held(ledger), used(ledger, Span.MONTH)) == (0, 0, 12_000)
    assert desk.used(day=TODAY).cost_usd_micros == 12_000


def test_a_lease_without_a_hold_is_only_charged(desk: MeteringDesk) -> None:
    put_budget(desk, APP)
    lease = replace(take_hold(desk, RESERVED), holds=False)
    desk.submit(lease=lease, **_cost(12_000))
    assert (used(ledger_of(desk.store.inner)), held(ledger_of(desk.store.inner))) == (28_500, 16_500)


def test_a_hold_that_is_long_gone_is_not_missed(desk: MeteringDesk) -> None:
    put_budget(desk, APP)
    lease = take_hold(desk, Amounts())
    desk.store.inner.delete({"Key": {**budget_keys.hold(NAMESPACE, "lease-1").attributes}})
    desk.submit(lease=lease, **_cost(12_000))
    assert used(ledger_of(desk.store.inner)) == 12_000


def test_holds_of_a_batch_are_read_at_once(desk: MeteringDesk) -> None:
    put_budget(desk, APP)
    desk.submit()
    leases = [take_hold(desk, RESERVED, lease_id=f"lease-{number}") for number in range(3)]
    desk.store.taken_calls()
    desk.metering.submit_batch(AS_APP, [report(request_id=lease.lease_id, lease=lease) for lease in leases])
    assert desk.store.taken_calls() == ["consistent batch_get", "transact", "get"]
    assert (used(ledger_of(desk.store.inner)), held(ledger_of(desk.store.inner))) == (4 * COST, 0)


def test_a_settlement_whose_answer_was_lost_happened_once(desk: MeteringDesk) -> None:
    put_budget(desk, APP)
    lease = take_hold(desk, RESERVED)
    lost = desk.elsewhere()

    def fail(verb: str, _request: Any) -> None:
        if verb == "transact":
            raise RuntimeError

    lost.store.after = fail
    with pytest.raises(RuntimeError):
        lost.submit(lease=lease, **_cost(12_000))
    assert desk.submit(lease=lease, **_cost(12_000)).duplicate
    assert (used(ledger_of(desk.store.inner)), held(ledger_of(desk.store.inner))) == (12_000, 0)
