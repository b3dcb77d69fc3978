"""What was held for calls that were never reported is given back: once, by whichever run comes first."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.budget import Amounts, LedgerChange, Periods
from sluice.core.errors import Ambiguous, Unavailable
from sluice.core.holds import HoldState
from sluice.core.signals import Signal
from sluice.repository import budget_keys, schema
from sluice.repository.ledgers import change_ledger, changed_ledger
from sluice.repository.retries import Retries
from sluice.repository.shapes import UnknownShape
from sluice.repository.store import Applied, DynamoStore, Page
from sluice.repository.sweeps import SweepCursor, decode_cursor
from sluice.repository.wire import Item
from sluice.services import hold_sweep
from sluice.services.effects import Effects
from sluice.services.freeing import Freeing
from sluice.services.hold_book import HoldBook
from sluice.services.hold_sweep import GRACE_MS, MINUTE_MS, SETTLED_MS, YOUNG_MINUTES, HoldSweep, SweepRun
from sluice.services.ledger_book import LedgerBook
from sluice.services.settings import SettingsCache
from sluice.shell import new_token
from tests.fakes import CountingMeter, FakeClock, never_random
from tests.integration.ledger_desks import held, hold_of, ledger_of, put_budget, take_hold, used
from tests.integration.metering_desks import APP, DAY_MS, HOUR_MS, NAMESPACE, ORG, SETTINGS, MeteringDesk
from tests.recording import RecordingStore

RESERVED = Amounts(16_500, 4_000, 1)
LEASE_MS = 300_000


@dataclass
class Sweeper:
    """A process that sweeps."""

    store: RecordingStore
    sweep: HoldSweep
    meter: CountingMeter

    def run(self, out_of_time: Callable[[], bool] = lambda: False) -> SweepRun:
        return self.sweep.run(out_of_time)

    def cursor(self) -> SweepCursor:
        item = self.store.inner.get(budget_keys.SWEEP, consistent=True)
        assert item is not None
        return decode_cursor(item)


@pytest.fixture
def desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> MeteringDesk:
    store = DynamoStore(dynamodb, table, Retries(clock.advance, lambda _below: 0, CountingMeter()))
    desk = MeteringDesk.opened(store, clock).found(SETTINGS)
    put_budget(desk, APP)
    put_budget(desk, ORG)
    return desk


@pytest.fixture
def start(desk: MeteringDesk) -> Callable[[], Sweeper]:
    def start() -> Sweeper:
        store, meter = RecordingStore(desk.store.inner), CountingMeter()
        effects = Effects(desk.clock, never_random, new_token, meter)
        book = LedgerBook(store, SettingsCache(store, desk.clock), effects, desk.clock)
        return Sweeper(store, HoldSweep(store, Freeing(HoldBook(store), book, effects), effects), meter)

    return start


@pytest.fixture
def sweeper(start: Callable[[], Sweeper]) -> Sweeper:
    return start()


def test_a_hold_is_given_back_a_minute_after_its_lease(desk: MeteringDesk, sweeper: Sweeper) -> None:
    desk.submit()
    take_hold(desk, RESERVED, APP, ORG, ttl_ms=LEASE_MS)
    before = ledger_of(desk.store.inner).standing
    desk.clock.advance(LEASE_MS + GRACE_MS - 1)
    assert sweeper.run() == SweepRun(0, 0, ())
    assert held(ledger_of(desk.store.inner)) == 16_500
    desk.clock.advance(1)
    assert sweeper.run() == SweepRun(1, 0, ())
    for entity in (APP, ORG):
        assert ledger_of(desk.store.inner, entity).standing.held == Amounts()
    assert ledger_of(desk.store.inner).standing.day.used == before.day.used - RESERVED
    assert hold_of(desk.store.inner).state is HoldState.EXPIRED
    assert sweeper.meter.counts[Signal.HOLDS_EXPIRED] == 1
    assert sweeper.meter.counts[Signal.EXPIRED_USD_MICROS] == 16_500


def test_a_closed_hold_has_a_ttl_and_an_open_one_none(desk: MeteringDesk, sweeper: Sweeper) -> None:
    take_hold(desk, RESERVED)
    key = budget_keys.hold(NAMESPACE, "lease-1")
    item = desk.store.inner.get(key, consistent=True)
    assert item is not None
    assert schema.TTL_ATTRIBUTE not in item
    desk.clock.advance(LEASE_MS + GRACE_MS)
    sweeper.run()
    item = desk.store.inner.get(key, consistent=True)
    assert item is not None
    assert schema.TTL_ATTRIBUTE in item
    assert schema.index_partition_key(schema.GSI3) not in item


def test_what_was_settled_or_swept_is_left_alone(
    desk: MeteringDesk, sweeper: Sweeper, start: Callable[[], Sweeper]
) -> None:
    desk.submit(lease=take_hold(desk, RESERVED))
    take_hold(desk, RESERVED, lease_id="lease-2")
    desk.clock.advance(LEASE_MS + GRACE_MS)
    assert sweeper.run().expired == 1
    after = ledger_of(desk.store.inner).standing
    assert (sweeper.run().expired, start().run().expired) == (0, 0)
    assert ledger_of(desk.store.inner).standing == after
    assert (used(ledger_of(desk.store.inner)), held(ledger_of(desk.store.inner))) == (16_500, 0)


def test_a_hold_goes_on_into_the_next_day_and_is_given_back_there(desk: MeteringDesk, sweeper: Sweeper) -> None:
    take_hold(desk, RESERVED, ttl_ms=DAY_MS)
    desk.clock.advance(DAY_MS)
    desk.submit(occurred_at_ms=desk.clock.now_ms, request_id="today")
    assert held(ledger_of(desk.store.inner)) == 16_500
    desk.clock.advance(GRACE_MS)
    assert sweeper.run().expired == 1
    assert (used(ledger_of(desk.store.inner)), held(ledger_of(desk.store.inner))) == (16_500, 0)


def test_a_ledger_that_turned_meanwhile_is_learned(desk: MeteringDesk, sweeper: Sweeper) -> None:
    take_hold(desk, RESERVED)
    take_hold(desk, RESERVED, lease_id="lease-2")
    desk.clock.advance(LEASE_MS + GRACE_MS)

    def turn(verb: str, _request: Any) -> None:
        if verb == "transact":
            sweeper.store.before = None
            seen = ledger_of(desk.store.inner)
            later = Periods.of_name("20270201")
            change = changed_ledger(seen, later, _nothing(), 1)
            assert change.standing.periods == later
            outcome = desk.store.inner.update(change_ledger(seen, later, _nothing(), 1), repeatable=False)
            assert isinstance(outcome, Applied)

    sweeper.store.before = turn
    assert sweeper.run() == SweepRun(2, 0, ())
    ledger = ledger_of(desk.store.inner)
    assert (ledger.standing.periods.month, used(ledger), held(ledger)) == ("202702", 0, 0)


def _nothing() -> LedgerChange:
    return LedgerChange()


def test_two_sweeps_at_once_give_back_once(desk: MeteringDesk, sweeper: Sweeper, start: Callable[[], Sweeper]) -> None:
    other = start()
    take_hold(desk, RESERVED)
    desk.clock.advance(LEASE_MS + GRACE_MS)

    def meanwhile(verb: str, _request: Any) -> None:
        if verb == "transact":
            sweeper.store.before = None
            assert other.run().expired == 1

    sweeper.store.before = meanwhile
    assert sweeper.run() == SweepRun(0, 0, ())
    assert (used(ledger_of(desk.store.inner)), held(ledger_of(desk.store.inner))) == (0, 0)


def test_a_report_that_is_faster_than_the_sweep_settles(desk: MeteringDesk, sweeper: Sweeper) -> None:
    lease = take_hold(desk, RESERVED)
    desk.clock.advance(LEASE_MS + GRACE_MS)

    def meanwhile(verb: str, _request: Any) -> None:
        if verb == "transact":
            sweeper.store.before = None
            desk.submit(lease=lease)

    sweeper.store.before = meanwhile
    assert sweeper.run() == SweepRun(0, 0, ())
    assert hold_of(desk.store.inner).state is HoldState.SETTLED
    assert (used(ledger_of(desk.store.inner)), held(ledger_of(desk.store.inner))) == (16_500, 0)


def test_a_run_that_dies_is_gone_on_with(desk: MeteringDesk, sweeper: Sweeper, start: Callable[[], Sweeper]) -> None:
    for number in range(5):
        take_hold(desk, RESERVED, lease_id=f"lease-{number}")
    desk.clock.advance(LEASE_MS + GRACE_MS)
    sent = 0

    def die(verb: str, _request: Any) -> None:
        nonlocal sent
        sent += verb == "transact"
        if sent == 3:
            raise KeyboardInterrupt

    sweeper.store.after = die
    with pytest.raises(KeyboardInterrupt):
        sweeper.run()
    assert held(ledger_of(desk.store.inner)) == 2 * 16_500
    assert start().run().expired == 2
    assert (used(ledger_of(desk.store.inner)), held(ledger_of(desk.store.inner))) == (0, 0)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_lost_answer_is_found_out_by_the_next_run(desk: MeteringDesk, sweeper: Sweeper, moment: str) -> None:
    take_hold(desk, RESERVED)
    take_hold(desk, RESERVED, lease_id="lease-2")
    desk.clock.advance(LEASE_MS + GRACE_MS + 7_000)

    def lose(verb: str, _request: Any) -> None:
        if verb == "transact":
            sweeper.store.before = sweeper.store.after = None
            raise Ambiguous("x")

    setattr(sweeper.store, moment, lose)
    run = sweeper.run()
    assert (run.expired, len(run.failures), run.lag_s) == (1, 1, 7)
    assert sweeper.meter.counts[Signal.SWEEP_LAG_SECONDS] == 7
    again = sweeper.run()
    assert (again.failures, again.lag_s) == ((), 0)
    assert (used(ledger_of(desk.store.inner)), held(ledger_of(desk.store.inner))) == (0, 0)


def test_without_time_the_rest_waits_and_shows_as_lag(desk: MeteringDesk, sweeper: Sweeper) -> None:
    sweeper.run()
    for number in range(3):
        take_hold(desk, RESERVED, lease_id=f"lease-{number}")
    desk.clock.advance(LEASE_MS)
    sweeper.run()
    desk.clock.advance(GRACE_MS + 30_000)

    def no_time() -> bool:
        return sweeper.store.calls.count("transact") >= 1

    run = sweeper.run(no_time)
    assert (run.expired, run.lag_s) == (1, 30)
    assert sweeper.run().expired == 2


def test_the_cursor_passes_only_what_is_old_and_empty(desk: MeteringDesk, sweeper: Sweeper) -> None:
    now_minute = desk.clock.now_ms // MINUTE_MS
    sweeper.run()
    old = SETTLED_MS // MINUTE_MS
    assert sweeper.cursor().minute == now_minute - old
    take_hold(desk, RESERVED, ttl_ms=LEASE_MS)
    expires = (desk.clock.now_ms + LEASE_MS) // MINUTE_MS
    desk.clock.advance(LEASE_MS + SETTLED_MS + 10 * MINUTE_MS)
    # It was not empty when it was looked at, though it is by now.
    assert sweeper.run().expired == 1
    assert sweeper.cursor().minute == expires
    sweeper.run()
    assert sweeper.cursor().minute == desk.clock.now_ms // MINUTE_MS - old


def test_what_the_index_shows_late_is_still_found(desk: MeteringDesk, sweeper: Sweeper) -> None:
    take_hold(desk, RESERVED)
    desk.clock.advance(LEASE_MS + GRACE_MS)
    inner = sweeper.store.inner

    class Behind:
        def query(self, _request: Any) -> Page:
            return Page((), None)

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

    sweeper.store.inner = Behind()
    assert sweeper.run().expired == 0
    desk.clock.advance(SETTLED_MS - 2 * MINUTE_MS)
    assert sweeper.run().expired == 0
    sweeper.store.inner = inner
    assert sweeper.run().expired == 1


def test_the_first_run_looks_back_a_little(desk: MeteringDesk, sweeper: Sweeper, start: Callable[[], Sweeper]) -> None:
    other = start()

    def first(verb: str, _request: Any) -> None:
        if verb == "put":
            sweeper.store.before = None
            other.run()

    sweeper.store.before = first
    sweeper.run()
    assert sweeper.cursor().minute == desk.clock.now_ms // MINUTE_MS - SETTLED_MS // MINUTE_MS
    assert YOUNG_MINUTES * MINUTE_MS > SETTLED_MS


def test_a_table_out_of_reach_stops_nobody_else(desk: MeteringDesk, sweeper: Sweeper) -> None:
    def fail(_verb: str, _request: Any) -> None:
        raise Unavailable("x")

    sweeper.store.before = fail
    assert len(sweeper.run().failures) == 1


def test_one_part_of_the_index_out_of_reach_is_not_passed(desk: MeteringDesk, sweeper: Sweeper) -> None:
    def fail(verb: str, _request: Any) -> None:
        if verb == "query":
            sweeper.store.before = None
            raise Unavailable("x")

    sweeper.store.before = fail
    run = sweeper.run()
    assert len(run.failures) == 1
    assert run.lag_s > 0
    assert sweeper.cursor().minute == desk.clock.now_ms // MINUTE_MS - YOUNG_MINUTES


def test_an_item_that_nobody_understands_keeps_nobody_from_the_others(desk: MeteringDesk, sweeper: Sweeper) -> None:
    take_hold(desk, RESERVED)
    take_hold(desk, RESERVED, lease_id="lease-2")
    item = desk.store.inner.get(budget_keys.hold(NAMESPACE, "lease-1"), consistent=True)
    assert item is not None
    desk.store.inner.put({"Item": {**item, "state": "strange"}}, repeatable=True)
    desk.clock.advance(LEASE_MS + GRACE_MS)
    run = sweeper.run()
    assert (run.expired, len(run.failures)) == (1, 1)


def spoil(desk: MeteringDesk, lease_id: str) -> Item:
    """Leaves a hold that this release does not understand, and returns the one that was there."""
    item = desk.store.inner.get(budget_keys.hold(NAMESPACE, lease_id), consistent=True)
    assert item is not None
    desk.store.inner.put({"Item": {**item, "state": "strange"}}, repeatable=True)
    return item


def after_queries(sweeper: Sweeper, queries: int) -> Callable[[], bool]:
    """Out of time once so many pages of the index were read."""
    most = sweeper.store.calls.count("query") + queries
    return lambda: sweeper.store.calls.count("query") >= most


def after_minutes(sweeper: Sweeper, minutes: int) -> Callable[[], bool]:
    """Out of time once so many minutes of the index were looked at."""
    return after_queries(sweeper, minutes * budget_keys.HOLD_PARTITIONS)


def test_a_hold_that_can_never_be_ended_keeps_no_newer_one(desk: MeteringDesk, sweeper: Sweeper) -> None:
    """However long it stands there, and however little time a run has."""
    sweeper.run()
    take_hold(desk, RESERVED)
    spoil(desk, "lease-1")
    cursor_ends = (desk.clock.now_ms + LEASE_MS) // MINUTE_MS
    desk.clock.advance(HOUR_MS)
    take_hold(desk, RESERVED, lease_id="lease-2")
    desk.clock.advance(LEASE_MS + GRACE_MS)
    run = sweeper.run(after_minutes(sweeper, YOUNG_MINUTES))
    assert (run.expired, run.failures) == (1, ())
    assert hold_of(desk.store.inner, "lease-2").state is HoldState.EXPIRED
    # With more time the backlog is gone through, up to what can not be ended.
    run = sweeper.run()
    assert (run.expired, [type(failure) for failure in run.failures]) == (0, [UnknownShape])
    assert sweeper.cursor().minute == cursor_ends


def test_a_hold_that_can_never_be_ended_shows_as_lag(desk: MeteringDesk, sweeper: Sweeper) -> None:
    """Of its item nothing is believed: the minute under which the index has it counts."""
    sweeper.run()
    take_hold(desk, RESERVED)
    spoil(desk, "lease-1")
    desk.clock.advance(HOUR_MS // 2)
    minute = (desk.clock.now_ms - HOUR_MS // 2 + LEASE_MS) // MINUTE_MS
    run = sweeper.run()
    assert run.lag_s == (desk.clock.now_ms - minute * MINUTE_MS - GRACE_MS) // 1000
    assert sweeper.meter.counts[Signal.SWEEP_LAG_SECONDS] == run.lag_s
    assert sweeper.meter.counts[Signal.SWEEP_FAILURES] == 1
    assert not any(NAMESPACE in str(failure) or "lease-1" in str(failure) for failure in run.failures)


def test_short_runs_come_to_all_of_a_long_backlog(desk: MeteringDesk, sweeper: Sweeper) -> None:
    """Though it begins with a hold that can never be ended, and no run sees more than a part."""
    sweeper.run()
    for number in range(3):
        take_hold(desk, RESERVED, lease_id=f"lease-{number}")
        desk.clock.advance(10 * MINUTE_MS)
    spoil(desk, "lease-0")
    desk.clock.advance(20 * MINUTE_MS)
    runs = [sweeper.run(after_minutes(sweeper, YOUNG_MINUTES + 10)) for _ in range(5)]
    assert sum(run.expired for run in runs) == 2
    assert held(ledger_of(desk.store.inner)) == 16_500


def test_a_hold_that_is_understood_again_is_ended(desk: MeteringDesk, sweeper: Sweeper) -> None:
    sweeper.run()
    take_hold(desk, RESERVED)
    item = spoil(desk, "lease-1")
    desk.clock.advance(HOUR_MS // 2)
    sweeper.run()
    desk.store.inner.put({"Item": item}, repeatable=True)
    assert sweeper.run().expired == 1
    sweeper.run()
    assert sweeper.cursor().minute == (desk.clock.now_ms - SETTLED_MS) // MINUTE_MS


def test_a_ledger_that_is_gone_gets_nothing_back(desk: MeteringDesk, sweeper: Sweeper) -> None:
    take_hold(desk, RESERVED, APP, ORG)
    desk.store.inner.delete({"Key": {**budget_keys.ledger(NAMESPACE, ORG).attributes}})
    desk.clock.advance(LEASE_MS + GRACE_MS)
    assert sweeper.run().expired == 1
    assert held(ledger_of(desk.store.inner)) == 0
    assert desk.store.inner.get(budget_keys.ledger(NAMESPACE, ORG), consistent=True) is None


def test_without_time_no_further_page_is_read(desk: MeteringDesk, sweeper: Sweeper) -> None:
    """However many pages one part of the index has. What was not seen to its end is not taken to be empty."""
    desk.clock.advance(HOUR_MS)
    sweeper.run()
    take_hold(desk, RESERVED)
    desk.clock.advance(LEASE_MS + GRACE_MS + SETTLED_MS)
    before, inner = sweeper.cursor(), sweeper.store.inner

    class Endless:
        """Shows nothing yet, and always another page."""

        def query(self, _request: Any) -> Page:
            return Page((), {"PK": "x"})

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

    sweeper.store.inner = Endless()
    for pages in (0, 7):
        sweeper.store.taken_calls()
        run = sweeper.run(after_queries(sweeper, pages))
        assert sweeper.store.calls.count("query") == pages
        assert (run.expired, run.failures) == (0, ())
        assert run.lag_s >= SETTLED_MS // 1000
        sweeper.store.inner, endless = inner, sweeper.store.inner
        assert sweeper.cursor() == before
        sweeper.store.inner = endless
    sweeper.store.inner = inner
    assert sweeper.run().expired == 1


@pytest.mark.parametrize("more_queries", [12, 3])
def test_short_runs_of_many_processes_come_to_all_of_a_long_backlog(
    desk: MeteringDesk, start: Callable[[], Sweeper], monkeypatch: pytest.MonkeyPatch, more_queries: int
) -> None:
    """Each goes on where the last one stopped, though that was another process: also in the midst of a minute."""
    monkeypatch.setattr(budget_keys, "HOLD_PARTITIONS", 4)
    monkeypatch.setattr(hold_sweep, "YOUNG_MINUTES", 2)
    start().run()
    for number in range(3):
        take_hold(desk, RESERVED, lease_id=f"lease-{number}")
        desk.clock.advance(2 * MINUTE_MS)
    spoil(desk, "lease-0")
    desk.clock.advance(10 * MINUTE_MS)
    stuck = hold_of(desk.store.inner, "lease-1").expires_at_ms // MINUTE_MS - 2
    minutes = [start().cursor().minute]
    expired = 0
    while expired < 2:
        assert len(minutes) < 30
        sweeper = start()
        expired += sweeper.run(after_queries(sweeper, 2 * 4 + more_queries)).expired
        minutes.append(sweeper.cursor().minute)
    assert held(ledger_of(desk.store.inner)) == 16_500
    # What can not be ended is not passed, by however many rounds.
    assert minutes == sorted(minutes)
    assert minutes[-1] <= stuck


def test_a_run_that_does_not_come_to_the_backlog_leaves_its_place(
    desk: MeteringDesk, start: Callable[[], Sweeper]
) -> None:
    start().run()
    take_hold(desk, RESERVED)
    spoil(desk, "lease-1")
    desk.clock.advance(HOUR_MS)
    first = start()
    first.run(after_minutes(first, YOUNG_MINUTES + 30))
    kept = first.cursor()
    assert kept.resume is not None
    other = start()
    other.run(after_minutes(other, YOUNG_MINUTES - 1))
    assert other.cursor() == kept
    assert "update" not in other.store.calls


def test_of_two_runs_at_once_the_cut_one_loses_its_place_and_nothing_else(
    desk: MeteringDesk, start: Callable[[], Sweeper]
) -> None:
    start().run()
    take_hold(desk, RESERVED)
    item = spoil(desk, "lease-1")
    desk.clock.advance(HOUR_MS)
    cut, whole = start(), start()
    whole.run()
    before = whole.cursor().minute

    def meanwhile(verb: str, _request: Any) -> None:
        if verb == "update":
            cut.store.before = None
            desk.store.inner.put({"Item": item}, repeatable=True)
            assert whole.run().expired == 1
            whole.run()

    cut.store.before = meanwhile
    cut.run(after_minutes(cut, YOUNG_MINUTES + 10))
    assert cut.store.before is None
    passed = cut.cursor()
    assert before < passed.minute == (desk.clock.now_ms - SETTLED_MS) // MINUTE_MS
    assert passed.resume is None
