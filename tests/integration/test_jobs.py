"""Jobs on an engine: a step at a time, from the cursor, whatever happens between two steps."""

from collections.abc import Callable
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

import sluice.services.jobs
from sluice.core.errors import Ambiguous, Contended, InvalidRequest, NotFound, Unavailable
from sluice.core.signals import Signal
from sluice.repository import keys
from sluice.repository.jobs import KEPT_S, Job, JobState
from sluice.repository.retries import Throttled
from sluice.repository.store import Cancelled, ConditionFailed
from sluice.services.jobs import Step, Work
from tests.fakes import FakeClock
from tests.integration.tenants import Counting, Crash, Process, raw_items, start_process

COUNT = "count"
NS = "ns"


@pytest.fixture
def new_process(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Callable[[], Process]:
    return lambda: start_process(dynamodb, table, clock)


@pytest.fixture
def process(new_process: Callable[[], Process]) -> Process:
    return new_process()


class Broken:
    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.steps = 0

    def step(self, _job: Job) -> Step:
        self.steps += 1
        raise self.error


def raising(error: BaseException, verb: str, times: int = 1) -> Callable[[str, Any], None]:
    """Raises at the first calls of this verb."""
    left = times

    def raise_it(called: str, _request: Any) -> None:
        nonlocal left
        if called == verb and left:
            left -= 1
            raise error

    return raise_it


def test_a_job_is_queued_run_and_kept_for_a_while(
    process: Process, clock: FakeClock, dynamodb: DynamoDBClient, table: str
) -> None:
    started = process.jobs.start(NS, COUNT, {"deep": {"list": [1, "a", None, True]}})
    job = process.jobs.get(NS, started.job_id)
    assert job == started
    assert (job.state, job.done, job.total, job.started_at_ms) == (JobState.QUEUED, 0, None, None)
    assert job.parameters == {"deep": {"list": [1, "a", None, True]}}
    assert process.jobs.open_jobs() == [job]
    clock.advance(60_000)
    work = Counting()
    run = process.run({COUNT: work})
    assert (run.steps, run.finished, run.left) == (3, 1, 0)
    assert work.seen == [None, {"at": 1}, {"at": 2}]
    done = process.jobs.get(NS, started.job_id)
    assert (done.state, done.done, done.total, done.result) == (JobState.DONE, 3, 3, {"counted": 3})
    assert (done.cursor, done.error) == (None, None)
    assert (done.started_at_ms, done.ended_at_ms) == (clock.now_ms, clock.now_ms)
    assert process.jobs.open_jobs() == []
    (item,) = raw_items(dynamodb, table).values()
    assert item["ttl"] == {"N": str(clock.now_ms // 1000 + KEPT_S)}
    assert not item.keys() & {"GSI3PK", "GSI3SK"}
    assert process.meter.counts == {Signal.JOB_STEPS: 3}
    assert process.run({COUNT: work}).steps == 0


def test_a_job_belongs_to_its_namespace(process: Process) -> None:
    own = process.jobs.start("ab", COUNT, {})
    of_registry = process.jobs.start("ab", COUNT, {}, registry=True)
    for namespace, job in [("abc", own), ("a", own), (keys.REGISTRY_NAMESPACE, own), ("ab", of_registry)]:
        with pytest.raises(NotFound):
            process.jobs.get(namespace, job.job_id)
    found = process.jobs.get(keys.REGISTRY_NAMESPACE, of_registry.job_id)
    assert (found.namespace, found.owner, own.owner) == ("ab", keys.REGISTRY_NAMESPACE, "ab")
    assert process.run({COUNT: Counting()}).finished == 2
    assert process.jobs.get(keys.REGISTRY_NAMESPACE, of_registry.job_id).owner == keys.REGISTRY_NAMESPACE


def test_a_job_starts_with_its_cause_or_not_at_all(process: Process) -> None:
    cause: Any = {"Put": {"Item": {"PK": "x", "SK": "x"}, "ConditionExpression": "attribute_not_exists(PK)"}}
    job, write = process.jobs.start_writes(NS, COUNT, {"a": 1})
    process.store.transact([cause, write], "token-1")
    assert process.jobs.get(NS, job.job_id) == job
    second, write = process.jobs.start_writes(NS, COUNT, {})
    assert isinstance(process.store.transact([cause, write], "token-2"), Cancelled)
    assert process.jobs.find(NS, second.job_id) is None
    assert second.job_id != job.job_id


def test_a_crash_between_a_step_and_its_progress_repeats_the_step(
    process: Process, new_process: Callable[[], Process]
) -> None:
    job = process.jobs.start(NS, COUNT, {})
    process.run({COUNT: Counting()}, steps=1)
    work = Counting()
    process.store.before = raising(Crash(), "put")
    with pytest.raises(Crash):
        process.run({COUNT: work})
    after = process.jobs.get(NS, job.job_id)
    assert (after.state, after.done, after.cursor) == (JobState.RUNNING, 1, {"at": 1})
    assert new_process().run({COUNT: work}).finished == 1
    assert work.seen == [{"at": 1}, {"at": 1}, {"at": 2}]
    assert process.jobs.get(NS, job.job_id).done == 3


def test_of_two_overlapping_runners_one_stops(process: Process, new_process: Callable[[], Process]) -> None:
    job = process.jobs.start(NS, COUNT, {})
    other, others = new_process(), Counting(until=5)

    def overlap(_job: Job) -> None:
        mine.during = None
        other.run({COUNT: others}, steps=2)

    mine = Counting(until=5, during=overlap)
    run = process.run({COUNT: mine})
    assert (run.steps, run.finished, run.left) == (1, 0, 1)
    now = process.jobs.get(NS, job.job_id)
    assert (now.cursor, now.done, now.version) == ({"at": 2}, 2, 3)
    assert other.run({COUNT: others}).finished == 1
    assert process.jobs.get(NS, job.job_id).done == 5


def test_two_runners_for_the_whole_way_do_every_step_and_count_each_once(
    process: Process, new_process: Callable[[], Process]
) -> None:
    """They take turns in the worst way: each looks before the other writes."""
    job = process.jobs.start(NS, COUNT, {})
    other, others = new_process(), Counting(until=20)
    mine = Counting(until=20, during=lambda _job: other.run({COUNT: others}, steps=1))
    for _ in range(40):
        process.run({COUNT: mine})
    done = process.jobs.get(NS, job.job_id)
    assert (done.state, done.done) == (JobState.DONE, 20)
    assert sorted({0 if seen is None else seen["at"] for seen in others.seen}) == list(range(20))


@pytest.mark.parametrize(
    "error", [ValueError("namespace ns, secret 123"), InvalidRequest("field", "ns"), KeyError("ns")]
)
def test_a_failing_job_stops_nobody_else(process: Process, clock: FakeClock, error: Exception) -> None:
    healthy = [process.jobs.start(NS, COUNT, {}) for _ in range(2)]
    bad = process.jobs.start(NS, "broken", {})
    healthy.append(process.jobs.start(NS, COUNT, {}))
    broken = Broken(error)
    run = process.run({COUNT: Counting(), "broken": broken})
    assert (run.finished, run.left, broken.steps) == (3, 0, 1)
    assert [(failure.kind, failure.error) for failure in run.failures] == [("broken", error)]
    failed = process.jobs.get(NS, bad.job_id)
    assert (failed.state, failed.error, failed.ended_at_ms) == (JobState.FAILED, type(error).__name__, clock.now_ms)
    assert all(process.jobs.get(NS, job.job_id).state is JobState.DONE for job in healthy)
    assert process.meter.counts[Signal.JOBS_FAILED] == 1
    assert process.jobs.open_jobs() == []
    assert process.run({COUNT: Counting(), "broken": broken}).steps == 0


@pytest.mark.parametrize("progress", [{"at": 1.5}, {"at": "x" * 500_000}], ids=["no attribute value", "too large"])
def test_progress_that_can_not_be_stored_fails_its_own_job_only(process: Process, progress: Any) -> None:
    class Unstorable:
        def step(self, _job: Job) -> Step:
            return Step(1, progress)

    bad = process.jobs.start(NS, "unstorable", {})
    good = process.jobs.start(NS, COUNT, {})
    run = process.run({COUNT: Counting(), "unstorable": Unstorable()})
    assert (run.finished, run.left, len(run.failures)) == (1, 0, 1)
    assert process.jobs.get(NS, bad.job_id).state is JobState.FAILED
    assert process.jobs.get(NS, good.job_id).state is JobState.DONE


@pytest.mark.parametrize("error", [Unavailable("x"), Throttled("x"), Ambiguous("x"), Contended(30)])
def test_a_job_that_could_not_go_on_waits_for_the_next_run(process: Process, error: Exception) -> None:
    job = process.jobs.start(NS, "broken", {})
    healthy = process.jobs.start(NS, COUNT, {})
    broken = Broken(error)
    run = process.run({COUNT: Counting(), "broken": broken})
    assert (run.finished, run.left, list(run.failures), broken.steps) == (1, 1, [], 1)
    assert process.jobs.get(NS, job.job_id) == job
    assert process.jobs.get(NS, healthy.job_id).state is JobState.DONE
    assert process.meter.counts[Signal.JOBS_FAILED] == 0
    assert process.run({"broken": Counting()}).finished == 1


def test_progress_that_can_not_be_written_is_made_again(process: Process) -> None:
    job = process.jobs.start(NS, COUNT, {})
    work = Counting()
    process.store.before = raising(Throttled("x"), "put")
    assert process.run({COUNT: work}).left == 1
    assert process.jobs.get(NS, job.job_id) == job
    assert process.run({COUNT: work}).finished == 1
    assert work.seen == [None, None, {"at": 1}, {"at": 2}]


def test_progress_whose_answer_was_lost_is_not_written_twice(process: Process) -> None:
    job = process.jobs.start(NS, COUNT, {})
    real_put = process.store.inner.put

    def put_twice(request: Any, *, repeatable: bool) -> Any:
        process.store.inner.put = real_put  # type: ignore[method-assign]  # once
        assert repeatable
        real_put(request, repeatable=True)
        again = real_put(request, repeatable=True)
        assert isinstance(again, ConditionFailed)
        return ConditionFailed(again.item, repeated=True)

    process.store.inner.put = put_twice  # type: ignore[method-assign]  # the lost answer is played here
    assert process.run({COUNT: Counting()}).left == 1
    assert process.jobs.get(NS, job.job_id).done == 1
    assert process.run({COUNT: Counting()}).finished == 1
    assert process.jobs.get(NS, job.job_id).done == 3


def test_a_start_whose_answer_was_lost_starts_one_job(process: Process) -> None:
    real_put = process.store.inner.put

    def put_twice(request: Any, *, repeatable: bool) -> Any:
        assert repeatable
        real_put(request, repeatable=True)
        again = real_put(request, repeatable=True)
        assert isinstance(again, ConditionFailed)
        return ConditionFailed(again.item, repeated=True)

    process.store.inner.put = put_twice  # type: ignore[method-assign]  # the lost answer is played here
    job = process.jobs.start(NS, COUNT, {})
    assert process.jobs.open_jobs() == [job]


def test_a_kind_that_nobody_knows_stays_open(process: Process) -> None:
    unknown = process.jobs.start(NS, "from-tomorrow", {})
    known = process.jobs.start(NS, COUNT, {})
    run = process.run({COUNT: Counting()})
    assert (run.finished, run.left) == (1, 1)
    assert process.jobs.get(NS, unknown.job_id) == unknown
    assert process.jobs.get(NS, known.job_id).state is JobState.DONE


def test_a_job_that_can_not_be_read_stops_nobody_else(process: Process, dynamodb: DynamoDBClient, table: str) -> None:
    bad = process.jobs.start(NS, COUNT, {})
    good = process.jobs.start(NS, COUNT, {})
    dynamodb.update_item(
        TableName=table,
        Key={"PK": {"S": bad.key.pk}, "SK": {"S": bad.key.sk}},
        UpdateExpression="SET #state = :x",
        ExpressionAttributeNames={"#state": "state"},
        ExpressionAttributeValues={":x": {"S": "paused"}},
    )
    run = process.run({COUNT: Counting()})
    assert (run.finished, [failure.kind for failure in run.failures]) == (1, ["unknown"])
    assert process.meter.counts[Signal.JOBS_FAILED] == 1
    assert process.jobs.get(NS, good.job_id).state is JobState.DONE
    assert process.jobs.open_jobs() == []


def test_jobs_take_turns_until_the_time_is_up(process: Process) -> None:
    jobs = [process.jobs.start(NS, COUNT, {}) for _ in range(3)]
    run = process.run({COUNT: Counting(until=100)}, steps=6)
    assert (run.steps, run.left) == (6, 3)
    assert [process.jobs.get(NS, job.job_id).done for job in jobs] == [2, 2, 2]


def test_with_little_time_everybody_comes_first_some_day(process: Process) -> None:
    jobs = [process.jobs.start(NS, COUNT, {}) for _ in range(3)]
    for _ in range(200):
        process.run({COUNT: Counting(until=10_000)}, steps=1)
        if all(process.jobs.get(NS, job.job_id).done for job in jobs):
            return
    raise AssertionError("one was never first")


def test_no_time_no_step(process: Process) -> None:
    process.jobs.start(NS, COUNT, {})
    assert process.run({COUNT: Counting()}, steps=0).steps == 0


def test_a_resting_job_is_left_until_the_next_run(process: Process) -> None:
    class Resting:
        def step(self, job: Job) -> Step:
            return Step(0, None if job.version == 3 else {"nap": job.version}, rest=True)

    job = process.jobs.start(NS, "rest", {})
    other = process.jobs.start(NS, COUNT, {})
    kinds: dict[str, Work] = {"rest": Resting(), COUNT: Counting()}
    run = process.run(kinds)
    assert (run.steps, run.finished, run.left) == (4, 1, 1)
    assert process.jobs.get(NS, job.job_id).cursor == {"nap": 1}
    assert process.jobs.get(NS, other.job_id).state is JobState.DONE
    assert process.run(kinds).left == 1
    assert process.run(kinds).finished == 1


def test_a_job_that_was_removed_meanwhile_stays_removed(process: Process) -> None:
    job = process.jobs.start(NS, COUNT, {})
    removing = Counting(during=lambda gone: process.store.inner.delete({"Key": {**gone.key.attributes}}))
    assert process.run({COUNT: removing}).finished == 0
    assert process.jobs.find(NS, job.job_id) is None
    failing = process.jobs.start(NS, COUNT, {})

    def remove_and_fail(gone: Job) -> None:
        process.store.inner.delete({"Key": {**gone.key.attributes}})
        raise ValueError

    process.run({COUNT: Counting(during=remove_and_fail)})
    assert process.jobs.find(NS, failing.job_id) is None


def test_only_so_many_are_looked_at_the_oldest_first(
    process: Process, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sluice.services.jobs, "OPEN_MAX", 2)
    jobs = []
    for _ in range(4):
        jobs.append(process.jobs.start(NS, COUNT, {}))
        clock.advance(1)
    assert process.jobs.open_jobs() == jobs[:2]
    assert process.run({COUNT: Counting()}).finished == 2
    assert process.jobs.open_jobs() == jobs[2:]


def test_a_namespaces_jobs_are_listed_page_by_page_the_newest_first(process: Process, clock: FakeClock) -> None:
    others = ["n", "nss", "ns%", "ns/JOB#", keys.REGISTRY_NAMESPACE]
    for namespace in others:
        process.jobs.start(namespace, COUNT, {})
    process.jobs.start(NS, COUNT, {}, registry=True)
    started = []
    for _ in range(23):
        started.append(process.jobs.start(NS, COUNT, {}))
        clock.advance(7)
    newest_first = [job.job_id for job in reversed(started)]
    assert [job.job_id for job in process.jobs.list(NS).jobs] == newest_first
    listed: list[str] = []
    before: str | None = None
    for size in (10, 10, 3):
        page = process.jobs.list(NS, limit=10, before=before)
        assert len(page.jobs) == size
        listed += [job.job_id for job in page.jobs]
        before = page.next_before
    assert (listed, before) == (newest_first, None)
    exact = process.jobs.list(NS, limit=23)
    assert (len(exact.jobs), exact.next_before) == (23, None)
    assert process.jobs.list("empty").jobs == []


def test_a_job_with_an_id_of_its_own_is_started_once(process: Process, new_process: Callable[[], Process]) -> None:
    assert process.jobs.start_once("merge-20261118", COUNT)
    assert not new_process().jobs.start_once("merge-20261118", COUNT)
    assert process.run({COUNT: Counting()}).finished == 1
    assert not process.jobs.start_once("merge-20261118", COUNT)
    assert process.jobs.get(keys.REGISTRY_NAMESPACE, "merge-20261118").state is JobState.DONE
