"""Budgets that are used up, or will be: told once, whatever the stream repeats."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.alerts import Alert
from sluice.core.budget import (
    DEFAULTS,
    Amounts,
    Charge,
    Enforcement,
    LedgerChange,
    OwnBudget,
    Periods,
    Violation,
)
from sluice.core.errors import BudgetExceeded, NeverWithinBudget, Unavailable
from sluice.core.limits import Scope
from sluice.core.reserves import AmountReserve
from sluice.core.signals import Signal
from sluice.repository import budget_keys
from sluice.repository.alert_markers import ALERT_MARKER, decode_marker, marker_key, markers_query
from sluice.repository.ledger_items import encode_ledger
from sluice.repository.ledgers import change_ledger
from sluice.repository.retries import Retries
from sluice.repository.store import Applied, DynamoStore
from sluice.repository.wire import Item, item_to_wire
from sluice.services.alerts import Alerts
from sluice.services.chains import AcquireRequest
from sluice.services.cursors import Cursors
from sluice.services.effects import Effects
from sluice.services.holding import Wish
from sluice.services.listing import Lists, PageRequest
from sluice.services.settings import SettingsCache
from sluice.services.signing import Signer
from sluice.shell import new_token
from tests.fakes import CountingMeter, FakeClock, never_random
from tests.integration.holding_desks import LIMITS, RESOURCE, HoldDesk
from tests.integration.ledger_desks import DAY_COST, MONTH_COST, ledger_of, put_budget
from tests.integration.metering_desks import (
    APP,
    DAY_MS,
    HOUR_MS,
    MIDNIGHT_MS,
    NAMESPACE,
    SETTINGS,
    TODAY,
    MeteringDesk,
)
from tests.integration.streams import Tenants

USD = 1_000_000
SOFT = OwnBudget({DAY_COST: 10 * USD}, Enforcement.SOFT)


@dataclass
class Bus:
    told: list[Alert] = field(default_factory=list)
    broken: bool = False

    def tell(self, alert: Alert) -> None:
        if self.broken:
            raise Unavailable("x")
        self.told.append(alert)

    def summary(self) -> list[tuple[str, str, int]]:
        return [(alert.detail_type, alert.percent, alert.limit) for alert in self.told]


@dataclass
class Watch:
    """A ledger, the stream behind it, and who follows that."""

    desk: MeteringDesk
    alerts: Alerts
    bus: Bus
    tenants: Tenants
    meter: CountingMeter
    markers: dict[str, Item] = field(default_factory=dict)

    def spend(self, usd_micros: int, held: int = 0) -> None:
        store = self.desk.store.inner
        seen = ledger_of(store)
        charge = Charge(seen.standing.periods, Amounts(usd_micros, 0, 1))
        change = LedgerChange(held=Amounts(held), charges=(charge,))
        request = change_ledger(seen, seen.standing.periods, change, self.desk.clock.now_ms)
        assert isinstance(store.update(request, repeatable=False), Applied)
        self.look()

    def look(self) -> None:
        """The stream tells of the ledger as it is, then of what was marked."""
        self.follow(_record("MODIFY", encode_ledger(ledger_of(self.desk.store.inner))))
        self.pass_on()

    def pass_on(self) -> None:
        for item in self.desk.store.inner.query(markers_query(NAMESPACE, APP)).items:
            if str(item["SK"]) not in self.markers:
                self.markers[str(item["SK"])] = item
                self.follow(_record("INSERT", item))

    def follow(self, *records: dict[str, Any]) -> None:
        assert self.alerts.follow(records).unfollowed == []

    def percents(self) -> list[str]:
        return sorted(str(item["percent"]) for item in self.markers.values())


def _record(event: str, item: Item) -> dict[str, Any]:
    return {"eventName": event, "dynamodb": {"SequenceNumber": "1", "NewImage": item_to_wire(item)}}


class NoSigner:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


@pytest.fixture
def start(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Callable[[], Watch]:
    store = DynamoStore(dynamodb, table, Retries(clock.advance, lambda _below: 0, CountingMeter()))
    # In the first tenth of the day no forecast is told.
    clock.now_ms = MIDNIGHT_MS + 2 * HOUR_MS
    desk = MeteringDesk.opened(store, clock).found(SETTINGS)
    bus = Bus()

    def start() -> Watch:
        tenants, meter = Tenants(), CountingMeter()
        effects = Effects(clock, never_random, new_token, meter)
        settings = SettingsCache(store, clock)
        lists = Lists(desk.store, Cursors(Signer(NoSigner())))
        return Watch(desk, Alerts(desk.store, settings, lists, tenants, effects, bus), bus, tenants, meter)

    return start


@pytest.fixture
def watch(start: Callable[[], Watch]) -> Watch:
    return start()


def test_each_percentage_is_told_once(watch: Watch) -> None:
    """Vector 48."""
    put_budget(watch.desk, APP, SOFT)
    told = []
    for usd_tenths in (79, 1, 19, 2, 50):
        watch.spend(usd_tenths * USD // 10)
        told.append(len(watch.bus.told))
    assert told == [0, 1, 1, 2, 2]
    assert watch.bus.summary() == [("budget.soft_cap", "80", 10 * USD), ("budget.soft_cap", "100", 10 * USD)]
    alert = watch.bus.told[0]
    assert (alert.entity, alert.period, alert.slot, alert.used) == (APP, TODAY, DAY_COST, 8 * USD)
    assert watch.meter.counts[Signal.ALERTS_SENT] == 2


def test_of_two_reached_together_the_highest_is_told(watch: Watch) -> None:
    """Vector 49."""
    put_budget(watch.desk, APP, SOFT)
    watch.spend(10 * USD + USD // 2)
    assert watch.bus.summary() == [("budget.soft_cap", "100", 10 * USD)]
    assert watch.percents() == ["100", "80"]


def test_another_limit_is_another_alert(watch: Watch) -> None:
    """Vector 50."""
    put_budget(watch.desk, APP, SOFT)
    watch.spend(15 * USD + USD // 10)
    ledger = ledger_of(watch.desk.store.inner)
    raised = replace(ledger, terms=replace(ledger.terms, limits={DAY_COST: 20 * USD}))
    watch.desk.store.inner.put({"Item": encode_ledger(raised)}, repeatable=True)
    watch.bus.told.clear()
    watch.spend(USD * 9 // 10)
    watch.spend(USD)
    assert watch.bus.summary() == [("budget.soft_cap", "80", 20 * USD)]


def test_twenty_at_once_are_one_alert(start: Callable[[], Watch]) -> None:
    """Vector 51."""
    watch = start()
    put_budget(watch.desk, APP, SOFT)
    watch.spend(7 * USD)
    seen = ledger_of(watch.desk.store.inner)
    standing = replace(seen.standing, day=replace(seen.standing.day, used=Amounts(8 * USD, 0, 2)))
    record = _record("MODIFY", encode_ledger(replace(seen, standing=standing)))
    followers = [start().alerts for _ in range(20)]
    with ThreadPoolExecutor(8) as threads:
        assert all(not done.unfollowed for done in threads.map(lambda one: one.follow([record]), followers))
    watch.pass_on()
    assert watch.bus.summary() == [("budget.soft_cap", "80", 10 * USD)]


def test_a_repeated_record_writes_nothing_more(watch: Watch) -> None:
    put_budget(watch.desk, APP, SOFT)
    watch.spend(8 * USD)
    watch.desk.store.taken_calls()
    watch.look()
    assert "put" not in watch.desk.store.taken_calls()


def test_what_is_only_held_is_not_spent(watch: Watch) -> None:
    put_budget(watch.desk, APP, replace(SOFT, enforcement=Enforcement.HARD))
    watch.spend(USD, held=9 * USD)
    assert watch.bus.told == []


@pytest.mark.parametrize(("enforcement", "told"), [(Enforcement.NONE, 0), (Enforcement.SOFT, 1), (Enforcement.HARD, 1)])
def test_percentages_count_for_soft_and_hard(watch: Watch, enforcement: Enforcement, told: int) -> None:
    """Vector 52."""
    put_budget(watch.desk, APP, replace(SOFT, enforcement=enforcement))
    watch.spend(10 * USD)
    assert len(watch.bus.told) == told


def test_refusals_of_a_period_are_one_alert(watch: Watch, start: Callable[[], Watch]) -> None:
    """Vector 52: one hard_cap."""
    put_budget(watch.desk, APP, replace(SOFT, enforcement=Enforcement.HARD))
    watch.spend(10 * USD)
    watch.bus.told.clear()
    found = [(ledger_of(watch.desk.store.inner), Violation(DAY_COST, 10 * USD, 10 * USD, 0, 5))]
    watch.desk.store.taken_calls()
    for _ in range(3):
        watch.alerts.refused(found)
    assert watch.desk.store.taken_calls() == ["put"]
    start().alerts.refused(found)
    watch.pass_on()
    assert watch.bus.summary() == [("budget.hard_cap", "hard", 10 * USD)]


def test_only_a_budget_that_is_used_up_is_told_of(watch: Watch) -> None:
    """A request that no period has room for says nothing about the budget: anybody could send one."""
    put_budget(watch.desk, APP, OwnBudget({DAY_COST: 10 * USD, MONTH_COST: 0}, Enforcement.HARD))
    desk = HoldDesk.opened(watch.desk.store.inner, watch.desk.clock, watch.alerts)
    desk.limits.put(NAMESPACE, Scope(resource=RESOURCE), LIMITS)

    def ask(cost_usd_micros: int) -> None:
        wish = Wish(AcquireRequest(NAMESPACE, APP, RESOURCE, {}), AmountReserve(cost_usd_micros), 300_000)
        with pytest.raises((BudgetExceeded, NeverWithinBudget)):
            desk.holding.acquire(wish)
        watch.pass_on()

    ask(11 * USD)
    # Where the limit is zero every request is too large, and that is the budget's doing.
    assert watch.bus.summary() == [("budget.hard_cap", "hard", 0)]
    watch.bus.told.clear()
    watch.spend(5 * USD)
    ask(6 * USD)
    assert watch.bus.summary() == [("budget.hard_cap", "hard", 10 * USD)]


def test_a_refusal_that_can_not_be_marked_is_one_all_the_same(watch: Watch) -> None:
    put_budget(watch.desk, APP)

    def fail(_verb: str, _request: Any) -> None:
        watch.desk.store.before = None
        raise Unavailable("x")

    found = [(ledger_of(watch.desk.store.inner), Violation(DAY_COST, 10, 10, 0, 5))]
    watch.desk.store.before = fail
    watch.alerts.refused(found)
    watch.alerts.refused(found)
    watch.pass_on()
    assert watch.percents() == ["hard"]


def test_a_refusal_belongs_to_the_present_period(watch: Watch) -> None:
    """The ledger itself may not have turned yet."""
    put_budget(watch.desk, APP, OwnBudget({MONTH_COST: 10, DAY_COST: 10}, Enforcement.HARD))
    watch.desk.clock.advance(DAY_MS)
    ledger = ledger_of(watch.desk.store.inner)
    watch.alerts.refused([(ledger, Violation(slot, 10, 10, 0, 5)) for slot in (DAY_COST, MONTH_COST)])
    watch.pass_on()
    assert sorted(str(item["period"]) for item in watch.markers.values()) == ["202701", "20270116"]


def test_a_forecast_is_told_once_from_a_quarter_of_the_period_on(watch: Watch) -> None:
    put_budget(watch.desk, APP, SOFT)
    watch.spend(3 * USD)
    watch.desk.clock.now_ms = MIDNIGHT_MS + 6 * HOUR_MS - 1
    watch.look()
    assert watch.bus.told == []
    watch.desk.clock.now_ms = MIDNIGHT_MS + 6 * HOUR_MS
    watch.look()
    watch.look()
    assert watch.bus.summary() == [("budget.forecast", "forecast", 10 * USD)]
    assert watch.bus.told[0].used == 12 * USD


def test_no_forecast_of_a_period_that_is_over(watch: Watch) -> None:
    put_budget(watch.desk, APP, SOFT)
    watch.desk.clock.advance(2 * DAY_MS)
    watch.spend(3 * USD)
    assert watch.bus.told == []


def test_a_message_that_was_not_taken_comes_again(watch: Watch) -> None:
    put_budget(watch.desk, APP, SOFT)
    watch.bus.broken = True
    ledger = ledger_of(watch.desk.store.inner)
    standing = replace(ledger.standing, day=replace(ledger.standing.day, used=Amounts(8 * USD)))
    watch.follow(_record("MODIFY", encode_ledger(replace(ledger, standing=standing))))
    (marker,) = watch.desk.store.inner.query(markers_query(NAMESPACE, APP)).items
    record = _record("INSERT", marker)
    other = _record("MODIFY", encode_ledger(ledger))
    followed = watch.alerts.follow([other, record, other])
    assert [failure.position for failure in followed.unfollowed] == [1]
    watch.bus.broken = False
    watch.follow(record)
    assert len(watch.bus.told) == 1
    assert marker_key(decode_marker(marker)) == budget_keys.alert_marker(
        NAMESPACE, APP, TODAY, "cost", "80", 10 * USD, ledger.first_epoch
    )


def test_what_is_not_about_budgets_is_left_out(watch: Watch) -> None:
    assert watch.alerts.follow([_record("INSERT", {"PK": "p", "SK": "s", "kind": "bucket"})]).observed == 0
    removed: dict[str, Any] = {"dynamodb": {}}
    changed = {"eventName": "MODIFY", "dynamodb": {"NewImage": {"kind": {"S": ALERT_MARKER}}}}
    assert watch.alerts.follow([removed, changed]).observed == 0
    broken = watch.alerts.follow([{}, _record("INSERT", {"PK": "p", "SK": "s", "kind": ALERT_MARKER})])
    assert [failure.position for failure in broken.unfollowed] == [0, 1]


def test_the_defaults_and_a_purged_namespace_are_left_alone(watch: Watch) -> None:
    put_budget(watch.desk, APP, SOFT)
    defaults = ledger_of(watch.desk.store.inner, DEFAULTS)
    spent = replace(defaults.standing, day=replace(defaults.standing.day, used=Amounts(10 * USD)))
    limited = replace(defaults, standing=spent, terms=replace(defaults.terms, limits=SOFT.limits))
    watch.follow(_record("MODIFY", encode_ledger(limited)))
    watch.tenants.inactive.add(NAMESPACE)
    watch.spend(10 * USD)
    assert watch.percents() == []


def made_anew(watch: Watch, first_epoch: int) -> None:
    """The entity was removed and is there again, with a budget as before."""
    watch.desk.clock.advance(1_000)
    put_budget(watch.desk, APP, replace(SOFT, enforcement=Enforcement.HARD))
    ledger = ledger_of(watch.desk.store.inner)
    item = encode_ledger(replace(ledger, first_epoch=first_epoch, epoch=first_epoch))
    watch.desk.store.inner.put({"Item": item}, repeatable=True)


def test_the_budget_of_an_entity_that_was_made_anew_is_told_of_as_well(watch: Watch) -> None:
    for first_epoch in (7, 8):
        made_anew(watch, first_epoch)
        watch.bus.told.clear()
        watch.spend(10 * USD)
        watch.alerts.refused([(ledger_of(watch.desk.store.inner), Violation(DAY_COST, 10 * USD, 10 * USD, 0, 5))])
        watch.pass_on()
        assert watch.bus.summary() == [("budget.soft_cap", "100", 10 * USD), ("budget.hard_cap", "hard", 10 * USD)]


def test_of_an_earlier_one_an_app_is_shown_nothing(watch: Watch) -> None:
    made_anew(watch, 7)
    earlier = ledger_of(watch.desk.store.inner)
    watch.spend(8 * USD)
    made_anew(watch, 8)
    since_ms = watch.desk.clock.now_ms

    def shown(since_ms: int) -> list[str]:
        return [alert.percent for alert in watch.alerts.of(NAMESPACE, APP, PageRequest(10), since_ms).items]

    assert (shown(0), shown(since_ms)) == (["80"], [])
    # What the stream tells late of the earlier one is not the new one's either.
    watch.alerts.refused([(earlier, Violation(DAY_COST, 10 * USD, 10 * USD, 0, 5))])
    assert shown(since_ms) == []
    watch.spend(8 * USD)
    assert (shown(0), shown(since_ms)) == (["hard", "80", "80"], ["80"])
    # The ledger may have stayed while the entity was gone: calls held something.
    assert shown(watch.desk.clock.now_ms + 1) == []
    watch.desk.store.inner.delete({"Key": {**budget_keys.ledger(NAMESPACE, APP).attributes}})
    assert (len(shown(0)), shown(since_ms)) == (3, [])


def test_alerts_of_an_entity_are_listed_the_latest_period_first(watch: Watch) -> None:
    put_budget(watch.desk, APP, OwnBudget({DAY_COST: 10 * USD, MONTH_COST: 100 * USD}, alert_percents=(9,)))
    watch.spend(9 * USD)
    listed = watch.alerts.of(NAMESPACE, APP, PageRequest(10))
    assert [(alert.period, alert.percent, alert.silent) for alert in listed.items] == [
        (TODAY, "9", False),
        ("202701", "9", False),
    ]
    assert Periods.of_name(TODAY).month == "202701"
