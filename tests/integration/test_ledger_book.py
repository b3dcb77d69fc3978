"""What a process knows of ledgers: read once, made when needed, brought up to newer defaults, and never believed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

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
    effective_terms,
)
from sluice.core.errors import Contended
from sluice.core.orgs import OrgSettings
from sluice.core.timelines import From, always
from sluice.repository import budget_keys
from sluice.repository.ledger_items import Ledger, decode_ledger, encode_ledger, new_ledger
from sluice.repository.ledgers import (
    asked,
    change_ledger,
    change_terms,
    changed_ledger,
    hold_in_ledger,
    with_terms,
)
from sluice.repository.retries import Retries
from sluice.repository.store import Applied, ConditionFailed, DynamoStore, Store
from sluice.services.configuration import Configuration
from sluice.services.effects import Effects
from sluice.services.ledger_book import CACHE_MS, LedgerBook
from sluice.services.settings import SettingsCache
from sluice.shell import new_token
from tests.fakes import CountingMeter, FakeClock, never_random
from tests.recording import RecordingStore
from tests.tenancy import tenant_items

NAMESPACE: Final = "ns"
ROOT: Final = "acme"
APP: Final = "app-1"
USER: Final = "user-1"
CHAIN: Final = (USER, APP, ROOT)
DAY_COST: Final = Slot(Span.DAY, Dimension.COST)
MONTH_COST: Final = Slot(Span.MONTH, Dimension.COST)
HOUR_MS: Final = 3_600_000
# 2026-01-31, 23:30 in Berlin.
EVENING_MS: Final = 1_769_898_600_000
HARD_25: Final = OwnBudget({DAY_COST: 25}, Enforcement.HARD)
SOFT_9: Final = OwnBudget({DAY_COST: 9})


@dataclass
class Process:
    """Its own caches, on a table and a clock that others share."""

    store: RecordingStore
    clock: FakeClock
    book: LedgerBook

    def calls(self) -> list[str]:
        return self.store.taken_calls()

    def stored(self, entity: str) -> Ledger | None:
        item = self.store.inner.get(budget_keys.ledger(NAMESPACE, entity), consistent=True)
        return None if item is None else decode_ledger(item)

    def the(self, entity: str) -> Ledger:
        found = self.stored(entity)
        assert found is not None
        return found

    def put(self, entity: str, own: OwnBudget | None = None, *, version: int = 1, dv: int = 0) -> Ledger:
        """A ledger, with a budget of its own if one is given."""
        terms = effective_terms(own, None)
        ledger = replace(
            new_ledger(NAMESPACE, entity, Periods.of_name("20260131"), terms, dv, self.clock.now_ms, 0),
            limits_version=version,
        )
        ledger = ledger if own is None else asked(ledger, own)
        assert isinstance(self.store.inner.put({"Item": encode_ledger(ledger)}, repeatable=True), Applied)
        return ledger

    def revise(self, entity: str, own: OwnBudget, *, has_own: bool = True) -> None:
        """What an operator does elsewhere."""
        seen = self.the(entity)
        after = asked(
            with_terms(seen, seen.standing.periods, effective_terms(own, None), seen.defaults_version, 1),
            own,
            has_own=has_own,
        )
        assert isinstance(self.store.inner.update(change_terms(seen, after), repeatable=True), Applied)

    def charged(self) -> list[str]:
        return [ledger.entity for ledger in self.book.for_charge(NAMESPACE, CHAIN)]

    def held(self) -> list[str]:
        return [ledger.entity for ledger in self.book.for_hold(NAMESPACE, CHAIN)]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(EVENING_MS)


@pytest.fixture
def start(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Callable[[], Process]:
    inner = DynamoStore(dynamodb, table, Retries(lambda _ms: None, never_random, CountingMeter()))
    for item in tenant_items(NAMESPACE, ROOT, APP, settings=OrgSettings(zones=always("Europe/Berlin"))):
        inner.put({"Item": item}, repeatable=True)

    def start() -> Process:
        store = RecordingStore(inner)
        effects = Effects(clock, never_random, new_token, CountingMeter())
        return Process(store, clock, LedgerBook(store, SettingsCache(inner, clock), effects, clock))

    return start


@pytest.fixture
def process(start: Callable[[], Process]) -> Process:
    return start()


def _at(verb: str, act: Callable[[], object]) -> Callable[[str, Any], None]:
    """In the moment before each such call is sent."""

    def before(called: str, _request: Any) -> None:
        if called == verb:
            act()

    return before


def test_a_namespace_without_budgets_is_asked_once_a_minute(process: Process, clock: FakeClock) -> None:
    assert process.charged() == []
    assert process.calls() == ["batch_get"]
    assert (process.charged(), process.held(), process.calls()) == ([], [], [])
    clock.advance(CACHE_MS - 1)
    process.put(DEFAULTS, HARD_25)
    assert (process.charged(), process.calls()) == ([], [])
    clock.advance(1)
    assert process.charged() == [USER]


def test_one_read_finds_all_and_nothing_is_asked_again(process: Process) -> None:
    process.put(DEFAULTS)
    for entity in CHAIN:
        process.put(entity, HARD_25, dv=1)
    assert process.charged() == list(CHAIN)
    assert process.calls() == ["batch_get"]
    assert (process.charged(), process.held(), process.calls()) == (list(CHAIN), list(CHAIN), [])


def test_only_the_entity_that_asks_has_a_ledger_by_the_defaults(process: Process) -> None:
    process.put(DEFAULTS, HARD_25, version=3)
    assert process.held() == [USER]
    assert process.calls() == ["batch_get", "put"]
    made = process.the(USER)
    assert (made.terms.limits, made.terms.enforcement) == ({DAY_COST: 25}, Enforcement.HARD)
    assert (made.has_own, made.own_version, made.defaults_version) == (False, 0, 3)
    assert made.standing.periods == Periods("20260131", "202601")
    assert (process.stored(APP), process.stored(ROOT)) == (None, None)
    # The app asks for itself; what stands below it goes on without it.
    assert [one.entity for one in process.book.for_charge(NAMESPACE, (APP, ROOT))] == [APP]
    assert process.charged() == [USER]


def test_the_org_itself_inherits_nothing(process: Process) -> None:
    process.put(DEFAULTS, HARD_25)
    assert process.book.for_charge(NAMESPACE, (ROOT,)) == []
    process.put(ROOT, SOFT_9)
    process.book.refresh(NAMESPACE, [ROOT])
    process.calls()
    (root,) = process.book.for_charge(NAMESPACE, (ROOT,))
    assert (root.terms, root.defaults_version, process.calls()) == (effective_terms(SOFT_9, None), 0, [])


def test_soft_defaults_make_a_ledger_for_events_and_not_for_holds(process: Process) -> None:
    process.put(DEFAULTS, SOFT_9)
    assert (process.held(), process.stored(USER)) == ([], None)
    assert process.charged() == [USER]
    assert process.held() == []


def test_defaults_that_nobody_asked_for_make_no_ledger(process: Process) -> None:
    """The first budget of a namespace puts them, empty."""
    process.put(DEFAULTS)
    process.put(APP, HARD_25, dv=1)
    assert process.charged() == [APP]
    assert process.stored(USER) is None


def test_a_ledger_goes_on_counting_after_its_budget_was_removed_but_not_for_others(process: Process) -> None:
    process.put(DEFAULTS)
    for entity in (USER, APP):
        process.put(entity, HARD_25, dv=1)
        process.revise(entity, OwnBudget(enforcement=Enforcement.NONE, inherit=False), has_own=False)
    assert process.charged() == [USER]
    assert process.held() == []


def test_of_two_who_make_a_ledger_one_is_first(process: Process, start: Callable[[], Process]) -> None:
    process.put(DEFAULTS, HARD_25)
    other = start()
    process.store.before = _at("put", other.charged)
    (mine,) = process.book.for_charge(NAMESPACE, CHAIN)
    assert mine == other.the(USER)
    assert process.calls() == ["batch_get", "put"]
    assert (process.charged(), process.calls()) == ([USER], [])


def test_newer_defaults_are_stored_by_a_write_of_its_own(process: Process, clock: FakeClock) -> None:
    process.put(DEFAULTS, HARD_25)
    assert process.held() == [USER]
    counted = change_ledger(process.the(USER), process.book.present(NAMESPACE), LedgerChange(Amounts(7)), 1)
    process.store.inner.update(counted, repeatable=False)
    process.revise(DEFAULTS, OwnBudget({MONTH_COST: 500}, Enforcement.HARD))
    process.calls()
    # Within the cache's time the old ones may hold.
    assert (process.held(), process.calls()) == ([USER], [])
    clock.advance(CACHE_MS)
    (now,) = process.book.for_hold(NAMESPACE, CHAIN)
    assert process.calls() == ["batch_get", "update"]
    assert now == process.the(USER)
    assert (now.terms.limits, now.defaults_version) == ({MONTH_COST: 500}, 2)
    assert now.standing.held == Amounts(7)
    assert (process.held(), process.calls()) == ([USER], [])


def test_limits_of_its_own_stay_when_the_defaults_change(process: Process, clock: FakeClock) -> None:
    process.put(DEFAULTS, HARD_25)
    process.put(USER, SOFT_9, dv=1)
    process.put(APP, OwnBudget({DAY_COST: 3}, Enforcement.HARD, inherit=False))
    process.revise(DEFAULTS, OwnBudget({DAY_COST: 1, MONTH_COST: 2}, Enforcement.HARD))
    user, app = process.book.for_charge(NAMESPACE, CHAIN)
    assert user.terms == Terms({DAY_COST: 9, MONTH_COST: 2}, Enforcement.HARD)
    assert user.has_own
    # Who inherits nothing is not written either.
    assert (app.terms.limits, app.limits_version) == ({DAY_COST: 3}, 1)


def test_a_turn_is_part_of_the_write_that_brings_newer_defaults(process: Process, clock: FakeClock) -> None:
    process.put(DEFAULTS, HARD_25)
    assert process.held() == [USER]
    spent = change_ledger(
        process.the(USER),
        Periods.of_name("20260131"),
        LedgerChange(Amounts(7), (Charge(Periods.of_name("20260131"), Amounts(11)),)),
        1,
    )
    process.store.inner.update(spent, repeatable=False)
    process.revise(DEFAULTS, SOFT_9)
    clock.advance(HOUR_MS)
    (now,) = process.book.for_charge(NAMESPACE, CHAIN)
    assert now.standing.periods == Periods("20260201", "202602")
    assert (now.standing.day.used, now.standing.month.used, now.standing.held) == (Amounts(7),) * 3


def test_a_ledger_that_is_ahead_has_the_defaults_read_again(process: Process, start: Callable[[], Process]) -> None:
    process.put(DEFAULTS, HARD_25)
    assert process.held() == [USER]
    process.revise(DEFAULTS, OwnBudget({DAY_COST: 1}, Enforcement.HARD))
    assert start().held() == [USER]
    process.book.learn(encode_ledger(process.the(USER)))
    process.calls()
    (user,) = process.book.for_hold(NAMESPACE, CHAIN)
    assert process.calls() == ["consistent batch_get"]
    assert (user.terms.limits, user.defaults_version) == ({DAY_COST: 1}, 2)
    # And it was not brought back to the old ones.
    assert process.the(USER).limits_version == 2
    assert [one.defaults_version for one in process.book.for_charge(NAMESPACE, ("user-2",))] == [2]


def test_two_who_bring_newer_defaults_do_it_once(process: Process, start: Callable[[], Process]) -> None:
    process.put(DEFAULTS, HARD_25)
    process.put(USER, dv=0)
    other = start()
    process.store.before = _at("update", other.charged)
    assert process.charged() == [USER]
    assert process.the(USER).limits_version == 2
    assert process.calls() == ["batch_get", "update"]


def test_a_ledger_that_is_gone_is_made_anew(process: Process) -> None:
    process.put(DEFAULTS, HARD_25)
    process.put(USER, dv=0)
    key = budget_keys.ledger(NAMESPACE, USER).attributes

    def remove(verb: str, _request: Any) -> None:
        if verb == "update":
            process.store.inner.delete({"Key": {**key}})

    process.store.before = remove
    assert process.charged() == [USER]
    assert process.the(USER).defaults_version == 1
    assert process.calls() == ["batch_get", "update", "consistent batch_get", "put"]


def test_a_ledger_whose_limits_never_stand_still_is_contended(process: Process) -> None:
    process.put(DEFAULTS, HARD_25)
    process.put(USER, dv=0)
    process.store.before = _at("update", lambda: process.revise(USER, SOFT_9))
    with pytest.raises(Contended):
        process.charged()


def test_a_budget_that_is_removed_meanwhile_takes_no_part(process: Process) -> None:
    process.put(DEFAULTS)
    process.put(APP, SOFT_9, dv=0)

    def remove(verb: str, _request: Any) -> None:
        if verb == "update":
            process.store.before = None
            process.revise(APP, OwnBudget(enforcement=Enforcement.NONE, inherit=False), has_own=False)

    process.store.before = remove
    assert process.charged() == []


# Images


def test_a_failed_write_teaches_what_the_next_one_needs(process: Process, start: Callable[[], Process]) -> None:
    """The ledger's own limits act at once, in every process."""
    process.put(DEFAULTS)
    process.put(USER, HARD_25, dv=1)
    (old,) = process.book.for_hold(NAMESPACE, CHAIN)
    process.revise(USER, OwnBudget({DAY_COST: 3}, Enforcement.HARD))
    failed = process.store.update(hold_in_ledger(old, process.book.present(NAMESPACE), Amounts(5), 1), repeatable=False)
    assert isinstance(failed, ConditionFailed)
    assert failed.item is not None
    learned = process.book.learn(failed.item)
    process.calls()
    assert process.book.for_hold(NAMESPACE, CHAIN) == [learned]
    assert (learned.terms.limits, process.calls()) == ({DAY_COST: 3}, [])


def test_what_a_transaction_made_is_remembered_and_does_not_live_longer(process: Process, clock: FakeClock) -> None:
    """Hole: an entity that spends all the time never hears that its budget became hard."""
    process.put(DEFAULTS)
    process.put(USER, SOFT_9, dv=1)
    (ledger,) = process.book.for_charge(NAMESPACE, CHAIN)
    process.revise(USER, HARD_25)
    for _ in range(3):
        clock.advance(CACHE_MS // 4)
        change = LedgerChange(held=Amounts(1))
        present = process.book.present(NAMESPACE)
        assert isinstance(process.store.update(change_ledger(ledger, present, change, 1), repeatable=False), Applied)
        ledger = changed_ledger(ledger, present, change, 1)
        process.book.remember(ledger)
        (ledger,) = process.book.for_charge(NAMESPACE, CHAIN)
    assert ledger.standing.held == Amounts(3)
    clock.advance(CACHE_MS // 4)
    assert process.held() == [USER]


def test_an_image_whose_minute_ends_during_a_write_is_not_kept(process: Process, clock: FakeClock) -> None:
    """Hole: one that is written to at the end of each minute is never read again."""
    process.put(DEFAULTS)
    process.put(USER, SOFT_9, dv=1)
    (ledger,) = process.book.for_charge(NAMESPACE, CHAIN)
    process.revise(USER, HARD_25)
    clock.advance(CACHE_MS)
    process.book.remember(changed_ledger(ledger, process.book.present(NAMESPACE), LedgerChange(held=Amounts(1)), 1))
    assert process.held() == [USER]


def test_an_older_image_does_not_replace_a_newer_one(process: Process) -> None:
    process.put(DEFAULTS)
    old = process.put(USER, HARD_25, dv=1)
    present = process.book.present(NAMESPACE)
    new = changed_ledger(old, present, LedgerChange(held=Amounts(1)), 1)
    process.book.keep(new)
    process.book.remember(old)
    assert process.book.for_charge(NAMESPACE, CHAIN) == [new]
    stricter = with_terms(old, present, Terms({DAY_COST: 1}, Enforcement.HARD), 1, 1)
    process.book.remember(stricter)
    process.book.remember(changed_ledger(new, present, LedgerChange(held=Amounts(1)), 1))
    assert process.book.for_charge(NAMESPACE, CHAIN) == [stricter]
    again = replace(old, created_at_ms=old.created_at_ms + 1)
    process.book.remember(again)
    assert process.book.for_charge(NAMESPACE, CHAIN) == [again]


def test_what_was_learned_during_a_read_is_not_lost(process: Process) -> None:
    """The read was answered before, and lags behind."""
    process.put(DEFAULTS)
    old = process.put(USER, HARD_25, dv=1)
    stricter = with_terms(old, process.book.present(NAMESPACE), Terms({DAY_COST: 1}, Enforcement.HARD), 1, 1)
    process.store.after = lambda _verb, _request: process.book.keep(stricter)
    assert process.book.for_charge(NAMESPACE, CHAIN) == [stricter]
    process.store.after = None
    assert process.book.for_charge(NAMESPACE, CHAIN) == [stricter]


def test_a_refresh_reads_consistently_and_sees_what_is_gone(process: Process, start: Callable[[], Process]) -> None:
    process.put(DEFAULTS)
    for entity in CHAIN:
        process.put(entity, HARD_25, dv=1)
    assert process.charged() == list(CHAIN)
    process.store.inner.delete({"Key": {**budget_keys.ledger(NAMESPACE, USER).attributes}})
    process.revise(APP, SOFT_9)
    process.calls()
    process.book.refresh(NAMESPACE, CHAIN)
    assert process.calls() == ["consistent batch_get"]
    assert (process.charged(), process.held(), process.calls()) == ([APP, ROOT], [ROOT], [])


def test_namespaces_have_ledgers_of_their_own(process: Process) -> None:
    for item in tenant_items("other", "globex"):
        process.store.inner.put({"Item": item}, repeatable=True)
    process.put(DEFAULTS, HARD_25)
    assert process.charged() == [USER]
    assert process.book.for_charge("other", CHAIN) == []
    process.book.refresh("other", [USER])
    assert process.charged() == [USER]


# Days


@pytest.mark.parametrize(
    ("zone", "day"),
    [("Europe/Berlin", "20260131"), ("Pacific/Kiritimati", "20260201"), ("America/New_York", "20260131")],
)
def test_the_present_is_by_the_zone_of_the_org(
    dynamodb: DynamoDBClient, table: str, clock: FakeClock, zone: str, day: str
) -> None:
    book = _book_in(DynamoStore(dynamodb, table, Retries(lambda _ms: None, never_random, CountingMeter())), zone, clock)
    assert book.present(NAMESPACE) == Periods.of_name(day)
    clock.advance(24 * HOUR_MS)
    assert book.present(NAMESPACE) > Periods.of_name(day)


def test_a_day_is_found_once_and_again_when_the_zone_changes(
    dynamodb: DynamoDBClient, table: str, clock: FakeClock
) -> None:
    store = DynamoStore(dynamodb, table, Retries(lambda _ms: None, never_random, CountingMeter()))
    book = _book_in(store, "UTC", clock)
    today = book.today(NAMESPACE)
    assert book.today(NAMESPACE) is today
    zones = (From(0, "UTC"), From(EVENING_MS + HOUR_MS, "Asia/Tokyo"))
    for item in tenant_items(NAMESPACE, ROOT, settings=OrgSettings(zones=zones)):
        store.put({"Item": item}, repeatable=True)
    clock.advance(CACHE_MS)
    assert book.today(NAMESPACE).ends_ms < today.ends_ms


def _book_in(store: Store, zone: str, clock: FakeClock) -> LedgerBook:
    for item in tenant_items(NAMESPACE, ROOT, settings=OrgSettings(zones=always(zone))):
        store.put({"Item": item}, repeatable=True)
    effects = Effects(clock, never_random, new_token, CountingMeter())
    return LedgerBook(store, SettingsCache(store, clock), effects, clock)


# Whether there are budgets at all


def _book_beside(configuration: Configuration, store: RecordingStore, clock: FakeClock) -> LedgerBook:
    effects = Effects(clock, never_random, new_token, CountingMeter())
    return LedgerBook(store, SettingsCache(store.inner, clock), effects, clock, configuration.budget_defaults)


def test_the_limits_of_an_entity_bring_the_defaults_along(process: Process, clock: FakeClock) -> None:
    configuration = Configuration(process.store, clock)
    process.book = _book_beside(configuration, process.store, clock)
    assert configuration.budget_defaults(NAMESPACE) is None
    configuration.resolve(NAMESPACE, USER, "r", None)
    assert (process.held(), process.calls()) == ([], ["batch_get"])
    process.put(DEFAULTS, HARD_25)
    process.put(USER, HARD_25, dv=1)
    clock.advance(CACHE_MS - 1)
    # The limits of another entity come without them, since they were read a minute ago.
    configuration.resolve(NAMESPACE, "user-2", "r", None)
    assert (process.held(), process.calls()) == ([], ["batch_get"])
    clock.advance(1)
    configuration.resolve(NAMESPACE, USER, "r", None)
    asked_for: list[Any] = []
    process.store.before = lambda _verb, request: asked_for.append(request)
    assert (process.held(), process.calls()) == ([USER], ["batch_get", "batch_get"])
    assert budget_keys.ledger(NAMESPACE, DEFAULTS) not in asked_for[0]
    configuration.look_up(NAMESPACE, USER, "r")
    assert budget_keys.ledger(NAMESPACE, DEFAULTS) not in asked_for[1]


def test_what_was_read_along_does_not_live_longer(process: Process, clock: FakeClock) -> None:
    """Hole: by two caches one after the other a first budget acts after two minutes."""
    configuration = Configuration(process.store, clock)
    process.book = _book_beside(configuration, process.store, clock)
    configuration.resolve(NAMESPACE, USER, "r", None)
    process.put(DEFAULTS, HARD_25)
    process.put(USER, HARD_25, dv=1)
    clock.advance(CACHE_MS - 1)
    assert process.held() == []
    clock.advance(1)
    assert process.held() == [USER]


def test_a_first_budget_acts_at_once_where_it_was_put(process: Process, clock: FakeClock) -> None:
    configuration = Configuration(process.store, clock)
    configuration.resolve(NAMESPACE, USER, "r", None)
    process.put(DEFAULTS)
    configuration.forget(NAMESPACE)
    assert configuration.budget_defaults(NAMESPACE) is None
