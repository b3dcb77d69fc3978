"""Counters are rebuilt from the events while calls go on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.budget import DEFAULTS, Amounts, LedgerChange, Periods, Span, Used
from sluice.core.errors import Ambiguous, NotFound, Unavailable
from sluice.core.metering import CallStatus
from sluice.core.pricing import TokenKind
from sluice.repository import budget_keys, money_keys
from sluice.repository.jobs import Job, JobState
from sluice.repository.ledger_items import encode_ledger
from sluice.repository.ledgers import change_ledger
from sluice.repository.retries import Retries
from sluice.repository.store import Applied, DynamoStore, Page
from sluice.services import budget_refresh, callers
from sluice.services.budget_refresh import REFRESH_BUDGETS, BudgetRefreshes, RefreshBudgets
from sluice.services.callers import CallerWalk
from sluice.services.counted import CountedEntities
from sluice.services.effects import Effects
from sluice.services.jobs import Jobs
from sluice.services.ledger_book import CACHE_MS, LedgerBook
from sluice.services.settings import SettingsCache
from sluice.shell import new_token
from tests.fakes import CountingMeter, FakeClock, never_random
from tests.integration.ledger_desks import COUNTED, ledger_of, put_budget, spent, take_hold
from tests.integration.metering_desks import (
    APP,
    AS_ORG,
    COST,
    DAY_MS,
    NAMESPACE,
    NOW_MS,
    ORG,
    OTHER_APP,
    SETTINGS,
    MeteringDesk,
)
from tests.recording import RecordingStore

AS_DEPLOYED = money_keys.EVENT_PARTITIONS
NONE = {"cost_usd_micros": 0, "tokens": 0, "executions": 0, "errors": 0}


@dataclass
class Refresher:
    desk: MeteringDesk
    store: RecordingStore
    jobs: Jobs
    refreshes: BudgetRefreshes
    work: Mapping[str, RefreshBudgets]

    def run(self, steps: int = 10_000) -> None:
        left = steps

        def out_of_time() -> bool:
            nonlocal left
            left -= 1
            return left < 0

        for _ in range(2):
            run = self.jobs.run_open(self.work, out_of_time)
            assert run.failures == []
            # It may rest until the next run.
            self.desk.clock.advance(budget_refresh.INDEXES_MS)

    def refreshed(self, entity: str | None = APP) -> Job:
        job = self.refreshes.start(NAMESPACE, entity)
        self.run()
        done = self.jobs.get(NAMESPACE, job.job_id)
        assert done.state is JobState.DONE
        return done

    def spoil(self, entity: str = APP, times: int = 1) -> None:
        """Counters that no event accounts for, as an operator's hand or a restored backup leaves them."""
        ledger = ledger_of(self.desk.store.inner, entity)
        wrong = Used(Amounts(times * 1_000, times * 7, times * 2), times)
        standing = replace(ledger.standing, day=ledger.standing.day + wrong, month=ledger.standing.month + wrong)
        spoilt = replace(ledger, standing=standing, last_execution_at_ms=None, last_execution_status=None)
        self.desk.store.inner.put({"Item": encode_ledger(spoilt)}, repeatable=True)


def set_partitions(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    for module in (money_keys, budget_refresh):
        monkeypatch.setattr(module, "EVENT_PARTITIONS", count)


@pytest.fixture(autouse=True)
def few_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refresh asks each partition of each caller and day."""
    set_partitions(monkeypatch, 2)


@pytest.fixture
def desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> MeteringDesk:
    store = DynamoStore(dynamodb, table, Retries(clock.advance, lambda _below: 0, CountingMeter()))
    desk = MeteringDesk.opened(store, clock).found(SETTINGS)
    put_budget(desk, APP, COUNTED)
    put_budget(desk, ORG, COUNTED)
    return desk


@pytest.fixture
def start(desk: MeteringDesk) -> Callable[[], Refresher]:
    def start() -> Refresher:
        store = RecordingStore(desk.store.inner)
        effects = Effects(desk.clock, never_random, new_token, CountingMeter())
        settings, jobs = SettingsCache(store, desk.clock), Jobs(store, effects)
        book = LedgerBook(store, settings, effects, desk.clock)
        work = {
            REFRESH_BUDGETS: RefreshBudgets(store, book, CallerWalk(store, settings, CountedEntities(store)), effects)
        }
        return Refresher(desk, store, jobs, BudgetRefreshes(store, jobs), work)

    return start


@pytest.fixture
def refresher(start: Callable[[], Refresher]) -> Refresher:
    return start()


def test_right_counters_stay_as_they_are(desk: MeteringDesk, refresher: Refresher) -> None:
    desk.submit()
    desk.submit(request_id="yesterday", occurred_at_ms=NOW_MS - DAY_MS)
    before = ledger_of(desk.store.inner)
    job = refresher.refreshed()
    assert job.result == {"ledgers": 1, "difference": {"day": NONE, "month": NONE}}
    after = ledger_of(desk.store.inner)
    assert (after.standing, after.epoch, after.refresh_id) == (before.standing, before.epoch + 1, None)


def test_every_partition_is_asked(desk: MeteringDesk, refresher: Refresher, monkeypatch: pytest.MonkeyPatch) -> None:
    set_partitions(monkeypatch, AS_DEPLOYED)
    for number in range(40):
        desk.submit(request_id=f"request-{number}")
    refresher.spoil()
    refresher.refreshed()
    assert spent(ledger_of(desk.store.inner)) == 40 * COST


def test_executions_errors_and_cost_have_one_definition(desk: MeteringDesk, refresher: Refresher) -> None:
    """Vector 53, with 3 and 15 USD a million."""
    for name, status, tokens in (
        ("a", CallStatus.OK, {TokenKind.INPUT: 10}),
        ("b", CallStatus.ERROR, {TokenKind.INPUT: 5}),
        ("c", CallStatus.TIMEOUT, {}),
    ):
        desk.submit(request_id=name, status=status, tokens=tokens, occurred_at_ms=NOW_MS + len(name + status.value))
    right = ledger_of(desk.store.inner)
    assert right.standing.day == Used(Amounts(45, 15, 3), 2)
    refresher.spoil()
    job = refresher.refreshed()
    wrong = {"cost_usd_micros": -1_000, "tokens": -7, "executions": -2, "errors": -1}
    difference = {"day": wrong, "month": wrong}
    assert job.result == {"ledgers": 1, "differing": 1, "difference": difference, "entities": {APP: difference}}
    after = ledger_of(desk.store.inner)
    assert after.standing == right.standing
    assert after.last_execution_at_ms == right.last_execution_at_ms
    assert after.last_execution_status == right.last_execution_status


def test_what_is_held_is_never_touched(desk: MeteringDesk, refresher: Refresher) -> None:
    desk.submit()
    take_hold(desk, Amounts(16_500, 100, 1))
    refresher.spoil()
    refresher.refreshed()
    ledger = ledger_of(desk.store.inner)
    assert ledger.standing.held == Amounts(16_500, 100, 1)
    assert (spent(ledger), spent(ledger, Span.MONTH)) == (COST, COST)


def test_events_of_every_caller_count(desk: MeteringDesk, refresher: Refresher) -> None:
    desk.submit()
    desk.submit(AS_ORG, request_id="by-org", entity=APP)
    desk.submit(AS_ORG, request_id="of-other", entity=OTHER_APP)
    for entity in (APP, ORG):
        refresher.spoil(entity)
    job = refresher.refreshed(None)
    assert job.result is not None
    assert (job.result["ledgers"], job.result["differing"]) == (2, 2)
    assert spent(ledger_of(desk.store.inner, APP)) == 2 * COST
    assert spent(ledger_of(desk.store.inner, ORG)) == 3 * COST


@pytest.mark.parametrize("named", [50, 1])
def test_differences_that_cancel_out_are_told_by_entity(
    desk: MeteringDesk, refresher: Refresher, monkeypatch: pytest.MonkeyPatch, named: int
) -> None:
    monkeypatch.setattr(budget_refresh, "NAMED_MAX", named)
    desk.submit()
    refresher.spoil(APP)
    refresher.spoil(ORG, -1)
    found = refresher.refreshed(None).result
    assert isinstance(found, dict)
    assert (found["differing"], found["difference"]) == (2, {"day": NONE, "month": NONE})
    of_entities = found["entities"]
    assert isinstance(of_entities, dict)
    assert {entity: one["day"]["cost_usd_micros"] for entity, one in of_entities.items()} == dict(
        [(ORG, 1_000), (APP, -1_000)][:named]
    )


def test_callers_are_walked_in_bounded_steps(
    desk: MeteringDesk, refresher: Refresher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "CALLERS_MAX", 1)
    desk.submit()
    desk.submit(AS_ORG, request_id="by-org", entity=APP)
    refresher.spoil()
    refresher.refreshed()
    assert spent(ledger_of(desk.store.inner)) == 2 * COST


def test_events_of_a_ledger_that_was_removed_stay_its_own(desk: MeteringDesk, refresher: Refresher) -> None:
    """The next ledger of the same entity has never counted them."""
    desk.submit()
    refresher.refreshed()
    desk.submit(request_id="after-a-refresh")
    inner = desk.store.inner
    inner.delete({"Key": {**budget_keys.ledger(NAMESPACE, APP).attributes}})
    desk.clock.advance(1_000)
    # Whoever reports makes it anew, by the defaults.
    put_budget(desk, DEFAULTS, COUNTED)
    desk.clock.advance(CACHE_MS)
    desk.submit(request_id="of-the-next")
    refresher.spoil()
    refresher.refreshed()
    ledger = ledger_of(inner)
    assert (spent(ledger), spent(ledger, Span.MONTH)) == (COST, COST)
    assert ledger.first_epoch > 10**18


@pytest.mark.parametrize("known_by", ["nothing", "totals"])
def test_an_app_that_no_index_shows_yet_is_waited_for(
    desk: MeteringDesk, refresher: Refresher, monkeypatch: pytest.MonkeyPatch, known_by: str
) -> None:
    """It was made, and has reported, a moment ago."""
    desk.submit(AS_ORG, request_id="by-org", entity=APP)
    desk.submit()
    shown_ms = desk.clock.now_ms + 4_000
    real = refresher.store.inner.query

    def lagging(request: Any) -> Page:
        page = real(request)
        late = ":apps" in request["ExpressionAttributeValues"] and desk.clock.now_ms < shown_ms
        return Page((), None) if late else page

    monkeypatch.setattr(refresher.store.inner, "query", lagging)
    if known_by == "totals":
        desk.roll_up()
    refresher.refreshed()
    assert spent(ledger_of(desk.store.inner)) == 2 * COST


def test_a_step_reads_a_bounded_number_of_events(
    desk: MeteringDesk, refresher: Refresher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_refresh, "EVENTS_MAX", 3)
    for number in range(12):
        desk.submit(request_id=f"request-{number}", occurred_at_ms=NOW_MS - number % 4 * DAY_MS)
    refresher.spoil()
    pages: list[int] = []
    real = refresher.store.inner.query

    def counting(request: Any) -> Page:
        page = real(request)
        pages.append(sum("epochs" in item for item in page.items))
        return page

    monkeypatch.setattr(refresher.store.inner, "query", counting)
    job = refresher.refreshes.start(NAMESPACE, APP)
    while refresher.jobs.get(NAMESPACE, job.job_id).is_open:
        pages.clear()
        refresher.work[REFRESH_BUDGETS].step(refresher.jobs.get(NAMESPACE, job.job_id))
        assert sum(pages[:-1]) < 3
        refresher.run(steps=1)
    assert spent(ledger_of(desk.store.inner), Span.MONTH) == 12 * COST


def test_progress_is_told_in_ledgers(desk: MeteringDesk, refresher: Refresher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_refresh, "GROUP", 1)
    desk.submit()
    job = refresher.refreshes.start(NAMESPACE, None)
    seen: list[tuple[int, int | None]] = []
    while (now := refresher.jobs.get(NAMESPACE, job.job_id)).is_open:
        seen.append((now.done, now.total))
        refresher.run(steps=1)
    done = refresher.jobs.get(NAMESPACE, job.job_id)
    # The app and the org; the defaults count nothing.
    assert (done.done, done.total) == (2, 2)
    assert {(0, 0), (0, 2), (1, 2)} <= {(count, total or 0) for count, total in seen}
    assert seen == sorted(seen, key=lambda pair: (pair[1] or 0, pair[0]))


@pytest.mark.parametrize("gone", [APP, ORG])
def test_what_is_removed_or_made_meanwhile_leaves_the_progress_right(
    desk: MeteringDesk, refresher: Refresher, gone: str
) -> None:
    desk.submit()
    job = refresher.refreshes.start(NAMESPACE, None)
    while (now := refresher.jobs.get(NAMESPACE, job.job_id)).total != 2:
        refresher.run(steps=1)
    desk.store.inner.delete({"Key": {**budget_keys.ledger(NAMESPACE, gone).attributes}})
    # One that was made since, and that somebody has refreshed.
    other = replace(put_budget(desk, OTHER_APP, COUNTED), epoch=1)
    desk.store.inner.put({"Item": encode_ledger(other)}, repeatable=True)
    assert now.done == 0
    refresher.run()
    done = refresher.jobs.get(NAMESPACE, job.job_id)
    assert (done.is_open, done.done, done.total) == (False, 2, 2)


def test_a_refresh_of_what_is_gone_by_then_is_at_its_end(desk: MeteringDesk, refresher: Refresher) -> None:
    desk.submit()
    job = refresher.refreshes.start(NAMESPACE, APP)
    refresher.run(steps=1)
    assert refresher.jobs.get(NAMESPACE, job.job_id).total == 1
    desk.store.inner.delete({"Key": {**budget_keys.ledger(NAMESPACE, APP).attributes}})
    refresher.run()
    done = refresher.jobs.get(NAMESPACE, job.job_id)
    assert (done.is_open, done.done, done.total) == (False, 1, 1)


def test_all_go_in_groups(desk: MeteringDesk, refresher: Refresher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_refresh, "GROUP", 1)
    desk.submit()
    for entity in (APP, ORG):
        refresher.spoil(entity)
    job = refresher.refreshed(None)
    assert job.result is not None
    assert job.result["ledgers"] == 2
    assert [spent(ledger_of(desk.store.inner, entity)) for entity in (APP, ORG)] == [COST, COST]


@pytest.mark.parametrize("step", range(1, 8))
def test_calls_go_on_meanwhile(
    desk: MeteringDesk, refresher: Refresher, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is counted between two steps is in the counters once."""
    monkeypatch.setattr(budget_refresh, "QUERIES_MAX", 200)
    desk.submit()
    refresher.spoil()
    refresher.refreshes.start(NAMESPACE, APP)
    refresher.run(steps=step)
    desk.submit(request_id="meanwhile")
    refresher.run()
    assert spent(ledger_of(desk.store.inner)) == spent(ledger_of(desk.store.inner), Span.MONTH) == 2 * COST
    assert ledger_of(desk.store.inner).refresh_id is None


@pytest.mark.parametrize("step", range(1, 6))
def test_a_period_that_turned_meanwhile_is_left_alone(
    desk: MeteringDesk, refresher: Refresher, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_refresh, "QUERIES_MAX", 200)
    desk.submit()
    refresher.spoil()
    refresher.refreshes.start(NAMESPACE, APP)
    refresher.run(steps=step)
    desk.clock.advance(DAY_MS)
    desk.submit(request_id="tomorrow", occurred_at_ms=desk.clock.now_ms)
    refresher.run()
    ledger = ledger_of(desk.store.inner)
    assert (ledger.standing.periods.day, spent(ledger)) == ("20270116", COST)
    assert spent(ledger, Span.MONTH) == 2 * COST


def test_a_beginning_that_broke_off_goes_on_in_the_periods_of_its_copy(
    desk: MeteringDesk, refresher: Refresher
) -> None:
    """The copy was made, what was found is not in the cursor yet, and midnight passes."""
    desk.submit()
    refresher.spoil()

    def break_off(verb: str, _request: Any) -> None:
        if verb in {"put", "update"} and ledger_of(desk.store.inner).refresh_id is not None:
            raise Unavailable("x")

    job = refresher.refreshes.start(NAMESPACE, APP)
    refresher.store.before = break_off
    refresher.run()
    assert ledger_of(desk.store.inner).refresh_id == job.job_id
    refresher.store.before = lambda _verb, _request: None
    desk.clock.advance(DAY_MS)
    desk.submit(request_id="tomorrow", occurred_at_ms=desk.clock.now_ms)
    for _ in range(10):
        refresher.run()
    done = refresher.jobs.get(NAMESPACE, job.job_id)
    assert done.result is not None
    assert done.result["difference"]["day"]["cost_usd_micros"] == -1_000  # type: ignore[index, call-overload]
    ledger = ledger_of(desk.store.inner)
    assert (ledger.standing.periods.day, spent(ledger)) == ("20270116", COST)
    assert spent(ledger, Span.MONTH) == 2 * COST


def test_a_runner_that_is_late_by_a_whole_refresh_changes_nothing(
    desk: MeteringDesk, refresher: Refresher, start: Callable[[], Refresher]
) -> None:
    """It begins again under the same id; whoever ended it may be asked to do so again."""
    other = start()
    desk.submit()
    refresher.spoil()
    late = refresher.refreshes.start(NAMESPACE, APP)
    cursors: list[Job] = []
    while (job := refresher.jobs.get(NAMESPACE, late.job_id)).is_open:
        cursors.append(job)
        refresher.run(steps=1)
    other.work[REFRESH_BUDGETS].step(cursors[0])
    other.work[REFRESH_BUDGETS].step(cursors[-1])
    assert spent(ledger_of(desk.store.inner)) == spent(ledger_of(desk.store.inner), Span.MONTH) == COST


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 8))
def test_a_lost_answer_changes_nothing(
    desk: MeteringDesk, refresher: Refresher, moment: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_refresh, "QUERIES_MAX", 1_000)
    desk.submit()
    refresher.spoil()
    writes = 0

    def lose(verb: str, _request: Any) -> None:
        nonlocal writes
        writes += verb in {"update", "put"}
        if verb in {"update", "put"} and writes == number:
            raise Ambiguous("x")

    job = refresher.refreshes.start(NAMESPACE, APP)
    setattr(refresher.store, moment, lose)
    for _ in range(3):
        refresher.run()
    done = refresher.jobs.get(NAMESPACE, job.job_id)
    assert done.result is not None
    assert done.result["difference"]["day"]["cost_usd_micros"] == -1_000  # type: ignore[index, call-overload]
    assert spent(ledger_of(desk.store.inner)) == spent(ledger_of(desk.store.inner), Span.MONTH) == COST


def test_two_runners_add_once(desk: MeteringDesk, refresher: Refresher, start: Callable[[], Refresher]) -> None:
    other = start()
    desk.submit()
    refresher.spoil()

    def meanwhile(verb: str, _request: Any) -> None:
        if verb == "update":
            other.run(steps=1)

    refresher.store.before = meanwhile
    refresher.refreshes.start(NAMESPACE, APP)
    for _ in range(10):
        refresher.run()
    other.run()
    assert spent(ledger_of(desk.store.inner)) == COST


def test_a_later_refresh_overtakes(desk: MeteringDesk, refresher: Refresher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_refresh, "QUERIES_MAX", 1_000)
    desk.submit()
    refresher.spoil()
    first = refresher.refreshes.start(NAMESPACE, APP)
    refresher.run(steps=1)
    desk.submit(request_id="between")
    refresher.refreshed()
    refresher.run()
    done = refresher.jobs.get(NAMESPACE, first.job_id)
    assert (done.result, done.done, done.total) == ({"overtaken": 1}, 1, 1)
    assert spent(ledger_of(desk.store.inner)) == 2 * COST


def test_a_ledger_that_is_behind_turns_first(desk: MeteringDesk, refresher: Refresher) -> None:
    desk.submit()
    desk.clock.advance(DAY_MS)
    job = refresher.refreshed()
    assert job.result == {"ledgers": 1, "difference": {"day": NONE, "month": NONE}}
    ledger = ledger_of(desk.store.inner)
    assert (ledger.standing.periods.day, spent(ledger), spent(ledger, Span.MONTH)) == ("20270116", 0, COST)


def test_who_has_no_counters_has_nothing_to_refresh(refresher: Refresher) -> None:
    with pytest.raises(NotFound):
        refresher.refreshes.start(NAMESPACE, OTHER_APP)


def test_a_late_change_of_the_epoch_is_met(desk: MeteringDesk, refresher: Refresher) -> None:
    """Somebody turns the ledger between the look and the first update."""
    desk.submit()

    def turn(verb: str, _request: Any) -> None:
        if verb == "update":
            refresher.store.before = None
            seen = ledger_of(desk.store.inner)
            later = Periods.of_name("20270116")
            request = change_ledger(seen, later, LedgerChange(), 1)
            assert isinstance(desk.store.inner.update(request, repeatable=False), Applied)

    refresher.store.before = turn
    refresher.refreshed()
    assert spent(ledger_of(desk.store.inner), Span.MONTH) == COST
