"""Budgets as a service on a real engine: replaced under traffic, removed, inherited, read after a midnight, listed."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.audit import Author
from sluice.core.budget import (
    DEFAULTS,
    Amounts,
    Charge,
    Dimension,
    Enforcement,
    LedgerChange,
    OwnBudget,
    Periods,
    Slot,
    Span,
    Terms,
)
from sluice.core.errors import Ambiguous, Contended, InvalidRequest, NotFound, PreconditionFailed
from sluice.core.orgs import OrgSettings
from sluice.core.timelines import always
from sluice.edge.etags import budget_etag
from sluice.repository import budget_keys, keys
from sluice.repository.audit import AuditEvent, decode_audit_event
from sluice.repository.entities import entity_put
from sluice.repository.items import Entity
from sluice.repository.ledger_items import Ledger, decode_ledger
from sluice.repository.ledgers import change_ledger, hold_in_ledger
from sluice.repository.retries import Retries
from sluice.repository.store import Applied, Cancelled, DynamoStore
from sluice.services.budget_lists import BudgetLists, Sort
from sluice.services.budget_states import BudgetState, BudgetStates
from sluice.services.budgets import Budgets
from sluice.services.configuration import Configuration
from sluice.services.cursors import Cursors
from sluice.services.effects import Effects
from sluice.services.ledger_book import CACHE_MS, LedgerBook
from sluice.services.listing import Lists, PageRequest
from sluice.services.settings import SettingsCache
from sluice.services.signing import Signer
from sluice.shell import new_token
from tests.fakes import CountingMeter, FakeClock, never_random
from tests.recording import RecordingStore
from tests.tenancy import FixedKeys, tenant_items

NAMESPACE: Final = "ns"
ROOT: Final = "acme"
APP: Final = "app-1"
USER: Final = "user-1"
CHAIN: Final = (USER, APP, ROOT)
SOMEBODY: Final = Author("client-7", "request-9")
HOUR_MS: Final = 3_600_000
DAY_COST: Final = Slot(Span.DAY, Dimension.COST)
MONTH_COST: Final = Slot(Span.MONTH, Dimension.COST)
HARD_25: Final = OwnBudget({DAY_COST: 25}, Enforcement.HARD)


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1000


NOON_MS: Final = ms("2026-01-31T12:00")


@dataclass
class Office:
    """One process that keeps budgets, and what it stores."""

    store: RecordingStore
    clock: FakeClock
    book: LedgerBook
    budgets: Budgets
    lists: BudgetLists
    configuration: Configuration

    def put(self, entity: str = USER, own: OwnBudget = HARD_25, **more: Any) -> BudgetState:
        return self.budgets.put(NAMESPACE, entity, own, author=SOMEBODY, **more).state

    def put_defaults(self, own: OwnBudget = HARD_25, **more: Any) -> Ledger:
        return self.budgets.put_defaults(NAMESPACE, own, author=SOMEBODY, **more).ledger

    def delete(self, entity: str = USER, **more: Any) -> None:
        self.budgets.delete(NAMESPACE, entity, author=SOMEBODY, **more)

    def get(self, entity: str = USER) -> BudgetState:
        return self.budgets.get(NAMESPACE, entity)

    def stored(self, entity: str = USER) -> Ledger:
        item = self.store.inner.get(budget_keys.ledger(NAMESPACE, entity), consistent=True)
        assert item is not None
        return decode_ledger(item)

    def change(self, change: LedgerChange, entity: str = USER) -> None:
        request = change_ledger(self.stored(entity), self.book.present(NAMESPACE), change, self.clock.now_ms)
        assert isinstance(self.store.inner.update(request, repeatable=False), Applied)

    def spend(self, cost_usd_micros: int, entity: str = USER) -> None:
        charge = Charge(self.book.present(NAMESPACE), Amounts(cost_usd_micros, 0, 1))
        self.change(LedgerChange(charges=(charge,)), entity)

    def hold(self, cost_usd_micros: int, entity: str = USER) -> None:
        self.change(LedgerChange(held=Amounts(cost_usd_micros, 0, 1)), entity)

    def events(self) -> list[AuditEvent]:
        items = self.store.inner.scan({"ConsistentRead": True}).items
        found = [decode_audit_event(item) for item in items if item.get("kind") == "audit"]
        return sorted(found, key=lambda event: event.at_ms)

    def before_transact(self, act: Callable[[], object]) -> None:
        """Once, at the last moment before the write."""

        def interfere(verb: str, _request: Any) -> None:
            if verb == "transact":
                self.store.before = None
                act()

        self.store.before = interfere

    def add_entity(self, entity: str, parent: str | None = ROOT) -> None:
        made = Entity(entity, None, parent, cascade=True, metadata={}, version=1, created_at_ms=1, updated_at_ms=1)
        self.store.inner.transact([entity_put(NAMESPACE, made, None)], new_token())


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON_MS)


@pytest.fixture
def zone() -> str:
    return "UTC"


@pytest.fixture
def start(dynamodb: DynamoDBClient, table: str, clock: FakeClock, zone: str) -> Callable[[], Office]:
    """Call it for one more process on the same table."""
    inner = DynamoStore(dynamodb, table, Retries(lambda _ms: None, never_random, CountingMeter()))
    for item in tenant_items(NAMESPACE, ROOT, APP, settings=OrgSettings(zones=always(zone))):
        inner.put({"Item": item}, repeatable=True)

    def start() -> Office:
        store = RecordingStore(inner)
        effects = Effects(clock, never_random, new_token, CountingMeter())
        settings = SettingsCache(inner, clock)
        book = LedgerBook(store, settings, effects, clock)
        states, configuration = BudgetStates(settings, clock), Configuration(store, clock)
        cursors = Cursors(Signer(FixedKeys()))
        return Office(
            store=store,
            clock=clock,
            book=book,
            budgets=Budgets(store, book, states, configuration, effects),
            lists=BudgetLists(store, Lists(store, cursors), cursors, states),
            configuration=configuration,
        )

    return start


@pytest.fixture
def office(start: Callable[[], Office]) -> Office:
    office = start()
    office.add_entity(USER, APP)
    return office


# Put


def test_a_first_budget_puts_the_defaults_empty(office: Office) -> None:
    with pytest.raises(NotFound):
        office.get()
    state = office.put()
    assert state == office.get()
    assert (state.own, state.terms) == (HARD_25, Terms({DAY_COST: 25}, Enforcement.HARD))
    assert state.sources == {DAY_COST: "own"}
    assert (state.ledger, office.stored().defaults_version) == (office.stored(), 1)
    defaults = office.stored(DEFAULTS)
    assert (defaults.has_own, defaults.own, defaults.limits_version) == (False, OwnBudget(), 1)
    with pytest.raises(NotFound):
        office.budgets.get_defaults(NAMESPACE)


def test_a_put_replaces_what_was_asked_and_keeps_what_was_counted(office: Office) -> None:
    office.put(own=OwnBudget({DAY_COST: 25, MONTH_COST: 90}, Enforcement.HARD, alert_percents=(50,)))
    office.spend(7)
    office.hold(4)
    replaced = office.budgets.put(NAMESPACE, USER, OwnBudget({MONTH_COST: 60}), author=SOMEBODY)
    assert not replaced.created
    assert replaced.state.own == OwnBudget({MONTH_COST: 60})
    assert replaced.state.terms == Terms({MONTH_COST: 60}, Enforcement.SOFT)
    assert (replaced.state.day.used.cost_usd_micros, replaced.state.day.held.cost_usd_micros) == (11, 4)
    assert replaced.state.month.remaining == {Dimension.COST: 49}


def test_an_app_and_the_org_have_budgets_as_everybody(office: Office) -> None:
    office.put_defaults()
    for entity in (APP, ROOT):
        assert office.put(entity, OwnBudget({MONTH_COST: 9})).entity == entity
    assert office.get(APP).terms.limits == {DAY_COST: 25, MONTH_COST: 9}
    # The defaults are allowances of those who ask; the org is all of them.
    assert office.get(ROOT).terms == Terms({MONTH_COST: 9}, Enforcement.SOFT)


@pytest.mark.parametrize("entity", ["nobody", "user-2"])
def test_an_entity_that_is_not_there_has_no_budget(office: Office, entity: str) -> None:
    office.put_defaults()
    with pytest.raises(NotFound):
        office.put(entity)
    with pytest.raises(NotFound):
        office.get(entity)
    with pytest.raises(NotFound):
        office.delete(entity)
    assert [event.target for event in office.events()] == ["budgets/_default_"]


def test_an_entity_that_is_removed_meanwhile_gets_no_budget(office: Office) -> None:
    office.before_transact(lambda: office.store.inner.delete({"Key": {**keys.entity(NAMESPACE, USER).attributes}}))
    with pytest.raises(NotFound):
        office.put()
    assert office.store.inner.get(budget_keys.ledger(NAMESPACE, USER), consistent=True) is None
    assert office.store.inner.get(budget_keys.ledger(NAMESPACE, DEFAULTS), consistent=True) is None


def test_a_version_that_was_not_seen_is_not_overwritten(office: Office, start: Callable[[], Office]) -> None:
    with pytest.raises(PreconditionFailed):
        office.put(precondition=lambda seen: seen is not None)
    office.put()
    seen = budget_etag(office.stored())
    office.spend(3)
    assert budget_etag(office.stored()) == seen
    office.put(precondition=lambda stored: stored is not None and budget_etag(stored) == seen)

    def still(stored: Ledger | None) -> bool:
        return stored is not None and stored.own_version == 2

    office.before_transact(lambda: start().put(own=OwnBudget({DAY_COST: 1})))
    with pytest.raises(PreconditionFailed):
        office.put(precondition=still)
    assert office.get().terms.limits == {DAY_COST: 1}


def test_newer_defaults_do_not_move_the_version_of_what_was_asked(office: Office, clock: FakeClock) -> None:
    office.put()
    seen = budget_etag(office.stored())
    office.put_defaults(OwnBudget({MONTH_COST: 3}))
    clock.advance(CACHE_MS)
    office.book.for_charge(NAMESPACE, CHAIN)
    assert office.stored().terms.limits == {DAY_COST: 25, MONTH_COST: 3}
    assert budget_etag(office.stored()) == seen


def test_of_two_first_budgets_both_are_stored(office: Office, start: Callable[[], Office]) -> None:
    """The defaults are put by one of them; the other is built anew."""
    other = start()
    office.before_transact(lambda: other.put(APP))
    office.put()
    assert (office.get().own, office.get(APP).own) == (HARD_25, HARD_25)
    assert office.stored(DEFAULTS).limits_version == 1
    assert len(office.events()) == 2


def test_a_ledger_that_came_to_be_meanwhile_keeps_what_it_counted(office: Office, start: Callable[[], Office]) -> None:
    office.put_defaults()

    def ask() -> None:
        start().book.for_charge(NAMESPACE, CHAIN)
        office.spend(8)

    office.before_transact(ask)
    assert office.budgets.put(NAMESPACE, USER, OwnBudget({MONTH_COST: 9}), author=SOMEBODY).created
    assert office.get().day.used.cost_usd_micros == 8
    assert office.get().terms.limits == {DAY_COST: 25, MONTH_COST: 9}


def test_a_change_whose_answer_was_lost_is_made_once(office: Office, start: Callable[[], Office]) -> None:
    """The worst that can be: applied, then judged anew under another token, and changed by another in between."""
    real = office.store.inner.transact

    def transact(writes: Any, token: str, **more: Any) -> Any:
        office.store.inner.transact = real  # type: ignore[method-assign]  # only once
        real(writes, token, **more)
        start().put(own=OwnBudget({DAY_COST: 1}))
        return real(writes, token[::-1], **more)

    office.store.inner.transact = transact  # type: ignore[method-assign]  # the lost answer is played here
    assert office.put().own == HARD_25
    assert office.get().own == OwnBudget({DAY_COST: 1})
    assert [event.action for event in office.events()] == ["budget.put"] * 2


def test_an_answer_that_stays_lost_is_told_so(office: Office) -> None:
    def lose(verb: str, _request: Any) -> None:
        if verb == "transact":
            raise Ambiguous("the answer was lost")

    office.store.after = lose
    with pytest.raises(Ambiguous):
        office.put()
    office.store.after = None
    assert office.get().own == HARD_25


def test_a_budget_that_never_stands_still_is_contended(office: Office) -> None:
    office.put()

    def refuse(writes: Any, token: str, **more: Any) -> Any:
        raise Contended(25)

    office.store.inner.transact = refuse  # type: ignore[method-assign]  # a ledger that is busy all the time
    with pytest.raises(Contended):
        office.put()


def test_nothing_named_is_nothing_known(office: Office) -> None:
    """Not every engine names all that failed: what was seen is tried again."""
    office.put()
    real = office.store.inner.transact
    answers = [Cancelled((None, None, None))]

    def transact(writes: Any, token: str, **more: Any) -> Any:
        return answers.pop() if answers else real(writes, token, **more)

    office.store.inner.transact = transact  # type: ignore[method-assign]  # once
    assert office.put(own=OwnBudget({DAY_COST: 2})).own == OwnBudget({DAY_COST: 2})


def test_a_put_does_not_bring_older_defaults_back(office: Office, start: Callable[[], Office]) -> None:
    """Newer ones are stored in the ledger between the read and the write."""
    office.put_defaults()
    office.put(own=OwnBudget())

    def meanwhile() -> None:
        other = start()
        other.put_defaults(OwnBudget({DAY_COST: 3}))
        other.book.for_charge(NAMESPACE, CHAIN)

    office.before_transact(meanwhile)
    assert office.put(own=OwnBudget({MONTH_COST: 9})).terms.limits == {DAY_COST: 3, MONTH_COST: 9}
    assert (office.stored().defaults_version, office.stored().terms.limits) == (2, {DAY_COST: 3, MONTH_COST: 9})


# Under traffic


def test_limits_change_while_everybody_spends(start: Callable[[], Office], office: Office) -> None:
    """Nothing that is counted is lost, and from the change on nothing passes the new limit."""
    office.put(own=OwnBudget({DAY_COST: 10**9}, Enforcement.HARD))
    done = threading.Event()
    admitted: list[int] = []

    def spend() -> None:
        mine, count = start(), 0
        (seen,) = mine.book.for_hold(NAMESPACE, CHAIN)
        while not done.is_set():
            request = hold_in_ledger(seen, mine.book.present(NAMESPACE), Amounts(1, 0, 1), 1)
            outcome = mine.store.update(request, repeatable=False)
            assert outcome.item is not None
            seen = mine.book.learn(outcome.item)
            count += isinstance(outcome, Applied)
        admitted.append(count)

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for limit in range(10**9, 10**9 + 10):
            office.put(own=OwnBudget({DAY_COST: limit}, Enforcement.HARD))
        used = office.put(own=OwnBudget({DAY_COST: 1}, Enforcement.HARD)).day.used.cost_usd_micros
    finally:
        done.set()
        for thread in threads:
            thread.join()
    ledger = office.stored()
    assert ledger.own_version == 12
    assert ledger.standing.held.cost_usd_micros == sum(admitted) >= used > 0
    state = office.get()
    assert state.guarantee.max_overshoot_usd_micros == sum(admitted) - 1


def test_own_limits_act_at_once_and_changed_defaults_within_the_time_of_the_cache(
    office: Office, start: Callable[[], Office], clock: FakeClock
) -> None:
    """Vector 55, under traffic."""
    office.put_defaults()
    other = start()

    def admitted(cost: int) -> bool:
        (seen,) = other.book.for_hold(NAMESPACE, CHAIN)
        for _ in range(3):
            request = hold_in_ledger(seen, other.book.present(NAMESPACE), Amounts(cost), 1)
            outcome = other.store.update(request, repeatable=False)
            if isinstance(outcome, Applied):
                return True
            assert outcome.item is not None
            seen = other.book.learn(outcome.item)
        return False

    assert admitted(20)
    assert not admitted(20)
    office.put_defaults(OwnBudget({DAY_COST: 50}, Enforcement.HARD))
    assert not admitted(20)
    clock.advance(CACHE_MS)
    assert admitted(20)
    office.put(own=OwnBudget({DAY_COST: 0}, Enforcement.HARD))
    assert not admitted(1)
    office.put(own=OwnBudget(inherit=False))
    assert office.get().terms == Terms({}, Enforcement.SOFT)
    # Unlimited from here on, as soon as a failure tells of it.
    assert admitted(10**9)
    assert other.book.for_hold(NAMESPACE, CHAIN) == []


# Delete


def test_a_removed_budget_is_counted_on_and_never_refuses(office: Office) -> None:
    office.put_defaults()
    office.put()
    office.hold(9)
    office.delete()
    state = office.get()
    assert (state.own, state.terms.limits, state.terms.enforcement) == (None, {}, Enforcement.NONE)
    assert state.day.used.cost_usd_micros == 9
    # Its hold is freed all the same.
    office.change(LedgerChange(held=Amounts(-9, 0, -1)))
    assert office.get().day.used == Amounts()
    with pytest.raises(NotFound):
        office.delete()
    again = office.budgets.put(NAMESPACE, USER, OwnBudget(), author=SOMEBODY)
    assert again.created
    assert again.state.terms.limits == {DAY_COST: 25}


def test_a_removal_asks_for_the_version(office: Office, start: Callable[[], Office]) -> None:
    with pytest.raises(NotFound):
        office.delete()
    office.put()
    with pytest.raises(PreconditionFailed):
        office.delete(precondition=lambda _stored: False)
    office.before_transact(lambda: start().delete())
    office.delete()
    assert sorted(event.action for event in office.events()) == ["budget.delete", "budget.put"]


def test_removed_defaults_let_go_of_whoever_inherited(office: Office, clock: FakeClock) -> None:
    office.put_defaults()
    office.book.for_charge(NAMESPACE, CHAIN)
    office.budgets.delete_defaults(NAMESPACE, author=SOMEBODY)
    with pytest.raises(NotFound):
        office.budgets.get_defaults(NAMESPACE)
    with pytest.raises(NotFound):
        office.budgets.delete_defaults(NAMESPACE, author=SOMEBODY)
    assert office.get().terms == Terms({}, Enforcement.SOFT)
    clock.advance(CACHE_MS)
    (ledger,) = office.book.for_charge(NAMESPACE, CHAIN)
    assert (ledger.terms.limits, ledger.terms.enforcement) == ({}, Enforcement.SOFT)


# Defaults


def test_whoever_has_nothing_sees_the_defaults_and_nothing_is_written(office: Office) -> None:
    office.put_defaults(OwnBudget({DAY_COST: 25, MONTH_COST: 0}, Enforcement.HARD, alert_percents=(60,)))
    office.store.taken_calls()
    state = office.get()
    assert office.store.taken_calls() == ["consistent batch_get"]
    assert (state.ledger, state.own) == (None, None)
    assert state.terms == Terms({DAY_COST: 25, MONTH_COST: 0}, Enforcement.HARD, (60,))
    assert state.sources == {DAY_COST: "default", MONTH_COST: "default"}
    assert (state.day.used, state.day.remaining) == (Amounts(), {Dimension.COST: 25})
    assert state.month.percent_tenths == {Dimension.COST: None}
    with pytest.raises(NotFound):
        office.get(ROOT)


def test_defaults_are_shown_as_they_are_now_whatever_a_ledger_still_has(office: Office) -> None:
    office.put_defaults()
    office.put(own=OwnBudget({MONTH_COST: 90}))
    office.put_defaults(OwnBudget({DAY_COST: 1}))
    assert office.stored().terms.limits == {DAY_COST: 25, MONTH_COST: 90}
    state = office.get()
    assert state.terms == Terms({DAY_COST: 1, MONTH_COST: 90}, Enforcement.SOFT)
    assert state.sources == {DAY_COST: "default", MONTH_COST: "own"}


def test_defaults_have_versions_of_their_own(office: Office, start: Callable[[], Office]) -> None:
    office.put()
    assert office.budgets.put_defaults(NAMESPACE, HARD_25, author=SOMEBODY).created
    assert not office.budgets.put_defaults(NAMESPACE, OwnBudget({DAY_COST: 9}), author=SOMEBODY).created
    assert office.stored(DEFAULTS).limits_version == 3
    with pytest.raises(PreconditionFailed):
        office.put_defaults(precondition=lambda stored: stored is not None and stored.own_version == 1)
    office.before_transact(lambda: start().put_defaults(OwnBudget({DAY_COST: 8})))
    office.put_defaults(OwnBudget({DAY_COST: 7}))
    assert office.budgets.get_defaults(NAMESPACE).own == OwnBudget({DAY_COST: 7})
    assert office.stored(DEFAULTS).limits_version == 5


# Audit


def test_every_change_is_told_with_what_was_and_what_is(office: Office, clock: FakeClock) -> None:
    office.put()
    clock.advance(1)
    office.put(own=OwnBudget({MONTH_COST: 9}, Enforcement.SOFT, inherit=False, alert_percents=()))
    clock.advance(1)
    office.delete()
    clock.advance(1)
    office.put_defaults()
    clock.advance(1)
    office.budgets.delete_defaults(NAMESPACE, author=SOMEBODY)
    first = {"day_cost_limit": 25, "enforcement": "hard", "inherit": True, "version": 1}
    second = {"month_cost_limit": 9, "enforcement": "soft", "inherit": False, "alert_percents": [], "version": 2}
    events = office.events()
    assert [(event.action, event.before, event.after) for event in events] == [
        ("budget.put", None, first),
        ("budget.put", first, second),
        ("budget.delete", second, None),
        ("budget.put", None, first),
        ("budget.delete", first, None),
    ]
    assert [(event.subject, event.target) for event in events] == [
        *[(USER, f"budgets/{USER}")] * 3,
        *[("$SYSTEM", "budgets/_default_")] * 2,
    ]
    assert {event.author for event in events} == {SOMEBODY}


# Midnight


@pytest.mark.parametrize(
    ("zone", "midnight"),
    [
        ("Pacific/Kiritimati", "2026-01-31T10:00"),
        ("Asia/Kathmandu", "2026-01-31T18:15"),
        ("America/New_York", "2026-02-01T05:00"),
    ],
)
def test_after_midnight_zeros_are_read_and_nothing_is_written(office: Office, clock: FakeClock, midnight: str) -> None:
    """Vector 43, at the end of a month."""
    clock.now_ms = ms(midnight) - 1
    office.put(own=OwnBudget({DAY_COST: 25, MONTH_COST: 90}, Enforcement.HARD))
    office.spend(7)
    office.hold(4)
    before = office.get()
    assert (before.day.period, before.month.period) == ("20260131", "202601")
    assert (before.day.used.cost_usd_micros, before.month.used.cost_usd_micros) == (11, 11)
    assert before.day.resets_at_ms == before.month.resets_at_ms == ms(midnight)
    assert before.day.forecast_usd_micros == 7
    written = office.stored()
    clock.advance(1)
    after = office.get()
    assert (after.day.period, after.month.period) == ("20260201", "202602")
    assert (after.day.used, after.day.executions) == (Amounts(4, 0, 1), 0)
    assert (after.month.used, after.month.remaining) == (Amounts(4, 0, 1), {Dimension.COST: 86})
    assert after.day.forecast_usd_micros == 0
    assert after.day.resets_at_ms == ms(midnight) + 24 * HOUR_MS
    assert office.stored() == written
    # A change of limits turns the periods along.
    office.put()
    assert office.stored().standing.periods == Periods("20260201", "202602")
    assert office.stored().standing.day.used == Amounts(4, 0, 1)


def test_a_ledger_that_is_ahead_is_shown_in_its_own_day(office: Office, clock: FakeClock) -> None:
    """An event of a clock that is a little ahead of ours."""
    clock.now_ms = ms("2026-01-31T23:59:59")
    office.put()
    office.change(LedgerChange(charges=(Charge(Periods.of_name("20260201"), Amounts(5, 0, 1)),)))
    state = office.get()
    assert (state.day.period, state.month.period) == ("20260201", "202602")
    assert (state.day.used.cost_usd_micros, state.day.resets_at_ms) == (5, ms("2026-02-02T00:00"))


# Lists


def test_budgets_are_listed_by_entity_with_their_counters(office: Office) -> None:
    """One query for each side of the defaults and one batch read for a page."""
    office.put_defaults(OwnBudget({MONTH_COST: 500}))
    entities = ["Zed", "a-1", "b-2", "user-9"]
    for number, entity in enumerate(entities):
        office.add_entity(entity)
        office.put(entity)
        office.spend(number, entity)
    office.store.taken_calls()
    found = office.lists.of(NAMESPACE, PageRequest(100))
    assert office.store.taken_calls() == ["query", "query", "batch_get", "get"]
    assert [state.entity for state in found.items] == entities
    assert [state.day.used.cost_usd_micros for state in found.items] == [0, 1, 2, 3]
    assert {state.terms.limits[MONTH_COST] for state in found.items} == {500}
    assert found.next_cursor is None
    assert all_pages(office, 1) == [[entity] for entity in entities]
    assert office.lists.of("other", PageRequest(1)).items == ()


def all_pages(office: Office, limit: int, **more: Any) -> list[list[str]]:
    pages = []
    cursor = None
    while True:
        listed = office.lists.of(NAMESPACE, PageRequest(limit, cursor), **more)
        pages.append([state.entity for state in listed.items])
        cursor = listed.next_cursor
        if cursor is None:
            return pages


def test_budgets_are_listed_by_what_was_spent(office: Office, clock: FakeClock) -> None:
    costs = {"a": 5, "b": 9, "c": 5, "d": 0, "e": 7}
    for entity, cost in costs.items():
        office.add_entity(entity)
        office.put(entity)
        office.spend(cost, entity)
    clock.now_ms = ms("2026-02-01T00:00")
    office.spend(1, "d")
    assert all_pages(office, 2, sort=Sort.DAY_COST) == [["d", "a"], ["b", "c"], ["e"]]
    clock.now_ms = NOON_MS
    # The one ledger that has turned shows its own day.
    assert all_pages(office, 2, sort=Sort.MONTH_COST) == [["b", "e"], ["a", "c"], ["d"]]
    assert all_pages(office, 5, sort=Sort.MONTH_COST) == [["b", "e", "a", "c", "d"]]


def test_a_cursor_belongs_to_its_order(office: Office) -> None:
    for entity in ("a", "b"):
        office.add_entity(entity)
        office.put(entity)
    cursor = office.lists.of(NAMESPACE, PageRequest(1)).next_cursor
    for other in (Sort.DAY_COST, Sort.MONTH_COST):
        with pytest.raises(InvalidRequest):
            office.lists.of(NAMESPACE, PageRequest(1, cursor), other)


def test_too_many_are_not_sorted(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.services.budget_lists.SORTED_MAX", 2)
    for entity in ("a", "b"):
        office.add_entity(entity)
        office.put(entity)
    assert all_pages(office, 5, sort=Sort.DAY_COST) == [["a", "b"]]
    office.put()
    with pytest.raises(InvalidRequest) as refused:
        all_pages(office, 5, sort=Sort.DAY_COST)
    assert refused.value.field == "sort"


def test_an_app_lists_those_right_below_it(office: Office) -> None:
    office.put_defaults()
    office.add_entity("user-2", APP)
    office.add_entity("stranger", ROOT)
    for entity in (APP, USER, "stranger"):
        office.put(entity)
    office.spend(3)
    assert all_pages(office, 1, within=APP) == [[USER]]
    assert all_pages(office, 9, within=APP, sort=Sort.DAY_COST) == [[USER]]
    office.put("user-2")
    assert all_pages(office, 1, within=APP, sort=Sort.DAY_COST) == [[USER], ["user-2"]]
