"""Totals without a mark on an engine: the daily pass, and a rollup on demand."""

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.errors import NotFound, NoTotals, Unavailable
from sluice.core.orgs import EntityRole, QuotaScope
from sluice.core.timelines import From
from sluice.repository import keys, money_keys
from sluice.repository.counters import CounterName
from sluice.repository.entities import entity_put
from sluice.repository.items import Entity
from sluice.repository.jobs import Job, JobState
from sluice.repository.totals import total_key
from sluice.repository.wire import item_to_wire
from sluice.services import rollup_jobs
from sluice.services.rollup_jobs import ROLLUP_ENTITY, SUM_TOTALS
from sluice.shell import new_token
from tests.fakes import FakeClock
from tests.integration.summing_desks import (
    BY_APP,
    BY_ORG,
    CHAT,
    DAY_MS,
    NAMESPACE,
    ORG,
    PREMIUM,
    SEARCH,
    STANDARD,
    TODAY,
    YESTERDAY,
    SummingDesk,
    engine_desk,
)
from tests.integration.test_jobs import raising

REGISTRY = keys.REGISTRY_NAMESPACE
PASS = "totals-20270115"


@pytest.fixture
def desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> SummingDesk:
    return engine_desk(dynamodb, table, clock).put_tenant()


def passed(desk: SummingDesk, job_id: str = PASS) -> Job:
    """The daily pass, to its end."""
    assert desk.jobs.start_once(job_id, SUM_TOTALS)
    desk.run_jobs()
    return desk.jobs.get(REGISTRY, job_id)


def rolled_up(desk: SummingDesk, entity: str = CHAT) -> Job:
    job = desk.entity_rollups.start(NAMESPACE, entity)
    desk.run_jobs()
    return desk.jobs.get(NAMESPACE, job.job_id)


# The daily pass.


def test_totals_whose_mark_was_lost_are_summed_up(desk: SummingDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollup_jobs, "PAGE", 5)
    for number in range(30):
        desk.use(10 + number, shard=number % 8, label=f"label-{number % 6}")
    desk.use(7, entity=ORG, day=YESTERDAY)
    job = passed(desk)
    assert (job.state, job.done) == (JobState.DONE, 7)
    assert job.result == {"totals": 7, "written": 7, "unreadable": 0}
    assert [desk.spent(label=f"label-{number}") for number in range(6)] == [
        (sum(10 + one for one in range(number, 30, 6)), 5) for number in range(6)
    ]
    assert desk.spent(entity=ORG, day=YESTERDAY) == (7, 1)


def test_the_shards_of_a_counter_are_summed_once(desk: SummingDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are on pages all over the table."""
    monkeypatch.setattr(rollup_jobs, "PAGE", 2)
    for shard in range(8):
        desk.use(1, shard)
    sums = 0

    def count(_verb: str, request: object) -> None:
        nonlocal sums
        sums += isinstance(request, list) and "/COST#" in request[0].pk

    desk.store.before = count
    assert passed(desk).result == {"totals": 1, "written": 1, "unreadable": 0}
    assert sums == 1
    # The next day looks again.
    assert passed(desk, "totals-20270116").result == {"totals": 1, "written": 0, "unreadable": 0}
    assert sums == 2


def test_what_is_up_to_date_is_left_as_it_is(desk: SummingDesk) -> None:
    desk.use_and_mark(7)
    desk.wait()
    desk.run()
    before = desk.total()
    desk.clock.advance(60_000)
    assert passed(desk).result == {"totals": 1, "written": 0, "unreadable": 0}
    assert desk.total() == before


def test_a_mark_is_left_to_the_rollup(desk: SummingDesk) -> None:
    desk.use_and_mark(7)
    passed(desk)
    assert desk.spent() == (7, 1)
    assert len(desk.marks()) == 1
    desk.wait()
    assert desk.run().done == 1
    assert desk.spent() == (7, 1)


def test_what_has_not_grown_for_a_week_is_not_looked_at(desk: SummingDesk) -> None:
    desk.use(7)
    desk.clock.advance(7 * DAY_MS + 1)
    assert passed(desk).result == {"totals": 0, "written": 0, "unreadable": 0}
    assert desk.spent() is None


def test_one_that_nobody_understands_does_not_stop_the_rest(
    desk: SummingDesk, dynamodb: DynamoDBClient, table: str
) -> None:
    """A shard without a name, one without a count, and a total without a count."""
    for label in (PREMIUM, STANDARD, "economy"):
        desk.use(7, label=label)
    desk.mark(label="economy")
    nameless = money_keys.cost_shard(NAMESPACE, CHAT, "other", TODAY, 0)
    countless = money_keys.cost_shard(NAMESPACE, CHAT, STANDARD, TODAY, 1)
    now = {"updated_at": desk.clock.now_ms}
    for key in (nameless, countless):
        dynamodb.put_item(TableName=table, Item=item_to_wire({**key.attributes, "kind": "cost_shard", **now}))
    key = total_key(CounterName(NAMESPACE, CHAT, "economy", TODAY))
    dynamodb.update_item(
        TableName=table,
        Key={"PK": {"S": key.pk}, "SK": {"S": key.sk}},
        UpdateExpression="SET rev = :x",
        ExpressionAttributeValues={":x": {"S": "x"}},
    )
    job = passed(desk)
    assert job.state is JobState.DONE
    assert job.result == {"totals": 1, "written": 1, "unreadable": 4}
    assert desk.spent() == (7, 1)


@pytest.mark.parametrize("why", ["purged", "without settings"])
def test_a_namespace_that_is_gone_is_left_out(desk: SummingDesk, why: str) -> None:
    desk.use(7)
    if why == "purged":
        desk.tenants.inactive.add(NAMESPACE)
    else:
        desk.store.inner.delete({"Key": {**keys.org_settings(NAMESPACE).attributes}})
    assert passed(desk).result == {"totals": 0, "written": 0, "unreadable": 0}
    assert desk.spent() is None


def test_a_table_out_of_reach_is_asked_again_from_the_same_page(desk: SummingDesk) -> None:
    desk.use(7)
    desk.jobs.start_once(PASS, SUM_TOTALS)
    for verb in ("scan", "consistent get", "update"):
        desk.store.before = raising(Unavailable("x"), verb)
        assert desk.run_jobs().left == 1
    desk.store.before = None
    assert desk.run_jobs().finished == 1
    assert desk.jobs.get(REGISTRY, PASS).result == {"totals": 1, "written": 1, "unreadable": 0}
    assert desk.spent() == (7, 1)


def test_a_quota_that_was_reached_without_a_mark_is_told(desk: SummingDesk) -> None:
    desk.use(10_000)
    passed(desk)
    assert desk.advances.told == [(CHAT, TODAY)]


def test_a_step_moves_so_many_on_and_leaves_the_rest(desk: SummingDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: an org with hundreds of apps makes a step longer than what is left of the minute."""
    monkeypatch.setattr("sluice.services.rollup_jobs.MOVES_MAX", 3)
    desk.put_tenant(BY_ORG, *(f"app-{number}" for number in range(9)))
    desk.use(20_000, entity=ORG)
    passed(desk)
    # The org itself as well.
    assert len(desk.advances.told) == 4


# On demand.


def test_an_entity_is_summed_up_on_demand(desk: SummingDesk) -> None:
    desk.use_and_mark(7)
    desk.use_and_mark(9, day="20261212")
    desk.use(1, label=STANDARD)
    desk.use(2, label=STANDARD, day=YESTERDAY)
    desk.use_and_mark(100, entity=SEARCH)
    job = rolled_up(desk)
    assert (job.state, job.kind, job.done) == (JobState.DONE, ROLLUP_ENTITY, 4)
    # Two that have a total; of two labels and days that quotas name, two that were used and had none.
    assert job.result == {"totals": 4, "written": 4, "unreadable": 0}
    assert desk.spent() == (7, 1)
    assert desk.spent(day="20261212") == (9, 1)
    assert desk.spent(label=STANDARD) == (1, 1)
    assert desk.spent(label=STANDARD, day=YESTERDAY) == (2, 1)
    assert desk.spent(entity=SEARCH) == (0, 0)


def test_a_day_that_nobody_may_report_for_any_more_is_left_alone(desk: SummingDesk) -> None:
    desk.use_and_mark(7, day="20261210")
    rolled_up(desk)
    assert desk.spent(day="20261210") == (0, 0)


def test_many_totals_take_several_steps(desk: SummingDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollup_jobs, "PAGE_TOTALS", 3)
    desk.change_org(quotas_usd_micros={f"label-{number}": 10**9 for number in range(5)}, model_ordering=())
    for number in range(10):
        desk.use_and_mark(7, label=f"label-{number}")
    desk.use(5, label="label-4", day=YESTERDAY)
    job = desk.entity_rollups.start(NAMESPACE, CHAT)
    assert desk.run_jobs(steps=1).left == 1
    # It goes on after midnight, with the days of when it was asked for.
    desk.clock.advance(DAY_MS)
    desk.run_jobs()
    done = desk.jobs.get(NAMESPACE, job.job_id)
    assert (done.state, done.result) == (JobState.DONE, {"totals": 11, "written": 11, "unreadable": 0})
    assert all(desk.spent(label=f"label-{number}") == (7, 1) for number in range(10))
    assert desk.spent(label="label-4", day=YESTERDAY) == (5, 1)


def test_the_days_are_the_orgs_own(desk: SummingDesk) -> None:
    desk.change_org(zones=(From(0, "Pacific/Kiritimati"),))
    desk.clock.now_ms += 3 * 3_600_000
    desk.use(7, day="20270116")
    rolled_up(desk)
    assert desk.spent(day="20270116") == (7, 1)


def test_an_org_that_was_removed_meanwhile(desk: SummingDesk) -> None:
    desk.use(7)
    job = desk.entity_rollups.start(NAMESPACE, CHAT)
    desk.store.inner.delete({"Key": {**keys.org_settings(NAMESPACE).attributes}})
    desk.run_jobs()
    assert desk.jobs.get(NAMESPACE, job.job_id).state is JobState.DONE
    assert desk.spent() is None


def test_who_has_no_totals_is_told_so(desk: SummingDesk) -> None:
    user = Entity("user-1", None, CHAT, True, {}, 1, 1, 1, EntityRole.OTHER)
    desk.store.inner.transact([entity_put(NAMESPACE, user, None)], new_token())
    with pytest.raises(NoTotals):
        desk.entity_rollups.start(NAMESPACE, "user-1")
    with pytest.raises(NotFound):
        desk.entity_rollups.start(NAMESPACE, "nobody")
    assert desk.jobs.open_jobs() == []


def test_beside_a_rollup_nothing_is_counted_twice(desk: SummingDesk) -> None:
    """Each completes in the middle of the other."""
    desk.use_and_mark(7)
    desk.wait()
    other = desk.elsewhere()
    job = desk.entity_rollups.start(NAMESPACE, CHAT)

    def overtake(verb: str, _request: object) -> None:
        if verb == "update":
            desk.store.before = None
            desk.use_and_mark(100)
            other.wait()
            other.run()

    desk.store.before = overtake
    desk.run_jobs()
    assert desk.jobs.get(NAMESPACE, job.job_id).state is JobState.DONE
    assert desk.spent() == (107, 2)
    assert desk.marks() == set()


# On demand, of an org whose quotas count for each app: what it used is what its apps did.


def apps_used(desk: SummingDesk, count: int) -> list[str]:
    """Each app has a total with more in its shards, and one that was never marked."""
    apps = [f"app-{number:02}" for number in range(count)]
    desk.put_tenant(BY_APP, *apps)
    for number, app in enumerate(apps):
        desk.use_and_mark(10 + number, entity=app)
        desk.use(100 + number, entity=app, label=STANDARD, day=YESTERDAY)
    return apps


def are_summed(desk: SummingDesk, apps: list[str]) -> bool:
    return all(
        (desk.spent(app), desk.spent(app, STANDARD, YESTERDAY)) == ((10 + number, 1), (100 + number, 1))
        for number, app in enumerate(apps)
    )


def test_an_org_of_apps_is_summed_up_by_its_apps(desk: SummingDesk) -> None:
    apps = apps_used(desk, 7)
    desk.use_and_mark(3, entity=ORG)
    desk.use_and_mark(5, entity="former")
    job = rolled_up(desk, ORG)
    assert are_summed(desk, apps)
    assert desk.spent(entity=ORG) == (3, 1)
    # It counts for the org, whoever it was.
    assert desk.spent(entity="former") == (5, 1)
    assert (job.state, job.done, job.total) == (JobState.DONE, 16, None)
    assert job.result == {"totals": 16, "written": 16, "unreadable": 0}
    assert len(desk.marks()) == 9


def test_an_org_of_apps_takes_bounded_steps(desk: SummingDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each goes on where the last one left off, also in another process, and in whatever order they die."""
    monkeypatch.setattr(rollup_jobs, "PAGE_TOTALS", 2)
    apps = apps_used(desk, 5)
    for number in range(5):
        desk.use_and_mark(1, entity=apps[2], label=f"label-{number}")
    job = desk.entity_rollups.start(NAMESPACE, ORG)
    steps, most = 0, 0
    while desk.jobs.get(NAMESPACE, job.job_id).is_open:
        assert steps < 60
        # Once in vain: it sums up, and dies before anybody learns of it.
        desk.store.before = raising(Unavailable("x"), "put")
        desk.run_jobs(steps=1)
        desk.store.before = None
        desk.store.taken_calls()
        desk.elsewhere().run_jobs(steps=1)
        desk.run_jobs(steps=1)
        most = max(most, len(desk.store.taken_calls()))
        steps += 1
    assert are_summed(desk, apps)
    assert all(desk.spent(apps[2], f"label-{number}") == (1, 1) for number in range(5))
    assert steps > len(apps)
    # An empty partition of the index each, a page, and two totals.
    assert most <= 24


def test_a_rollup_of_an_org_does_not_stop_at_an_app_that_is_removed(
    desk: SummingDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    apps = apps_used(desk, 4)
    job = desk.entity_rollups.start(NAMESPACE, ORG)

    def is_at_the_apps() -> bool:
        return "apps" in (desk.jobs.get(NAMESPACE, job.job_id).cursor or {})

    for _ in range(20):
        if is_at_the_apps():
            break
        desk.run_jobs(steps=1)
    assert is_at_the_apps()
    desk.run_jobs(steps=1)
    for app in apps[:2]:
        desk.store.inner.delete({"Key": {**keys.app_settings(NAMESPACE, app).attributes}})
    desk.run_jobs()
    assert desk.jobs.get(NAMESPACE, job.job_id).state is JobState.DONE
    assert desk.spent(apps[2], STANDARD, YESTERDAY) == (102, 1)
    assert desk.spent(apps[3], STANDARD, YESTERDAY) == (103, 1)


@pytest.mark.parametrize(("days_ago", "walks"), [(40, False), (10, True)])
def test_apps_are_summed_up_if_they_counted_on_any_of_its_days(desk: SummingDesk, days_ago: int, walks: bool) -> None:
    """Quotas count for the org as a whole since then."""
    desk.put_tenant(BY_ORG)
    since_ms = desk.day().starts_ms - days_ago * DAY_MS
    desk.change_org(quota_scopes=(From(0, QuotaScope.APP), From(since_ms, QuotaScope.ORG)))
    for entity in (CHAT, ORG):
        desk.use_and_mark(7, entity=entity)
    rolled_up(desk, ORG)
    assert desk.spent(entity=ORG) == (7, 1)
    assert desk.spent() == ((7, 1) if walks else (0, 0))


def test_an_app_is_summed_up_alone(desk: SummingDesk) -> None:
    apps = apps_used(desk, 2)
    job = rolled_up(desk, apps[0])
    assert are_summed(desk, apps[:1])
    assert desk.spent(apps[1]) == (0, 0)
    assert job.done == 2
