"""The scheduled function's handler, on moto."""

import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import boto3
import pytest

from sluice.core.errors import Unavailable
from sluice.core.metering import Counters
from sluice.repository import money_keys
from sluice.repository.archive import archive_prefix
from sluice.repository.counters import CounterName, add_to_shard
from sluice.repository.jobs import Job, JobState
from sluice.repository.totals import MINUTE_MS, decode_total, mark_due, total_key
from sluice.services.daily import MERGE_SHARDS
from sluice.services.jobs import Step
from sluice.services.purge import PURGE
from sluice.services.rollup_jobs import ROLLUP_ENTITY, SUM_TOTALS
from sluice.shell import Environment, Services, build_services, clock_ms, logger, make_client
from tests.fakes import CountingMeter, FakeClock
from tests.http import APP, NAMESPACE, TABLE, Context, deployed

TENANT = "tenant-7"


@dataclass
class ScheduledContext(Context):
    remaining_ms: int = 60_000

    def get_remaining_time_in_millis(self) -> int:
        return self.remaining_ms


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with deployed("rollup.handler", monkeypatch) as loaded:
        yield loaded


@pytest.fixture
def services(module: ModuleType) -> Services:
    environment = Environment("test", TABLE, 2000)
    return build_services(environment, make_client(environment), CountingMeter())


@pytest.fixture
def written(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(logger.registered_handler, "stream", stream)
    return stream


def run(module: ModuleType, context: ScheduledContext | None = None) -> dict[str, int]:
    event = {"source": "aws.events", "detail-type": "Scheduled Event", "detail": {}}
    counts: dict[str, int] = module.handler(event, context or ScheduledContext())
    return counts


def only(module: ModuleType, monkeypatch: pytest.MonkeyPatch, **work: Any) -> list[Services]:
    """The handler with other kinds of work."""
    built: list[Services] = []

    def build(*arguments: Any) -> Services:
        services = build_services(*arguments)
        built.append(services)
        return Services(**{**{name: getattr(services, name) for name in Services.__slots__}, "work": work})

    monkeypatch.setattr(module, "build_services", build)
    monkeypatch.setattr(module, "handler", module.build_handler(module._services()))
    return built


class Endless:
    """Each step takes so long."""

    def __init__(self, timer: FakeClock, step_ms: int) -> None:
        self.timer = timer
        self.step_ms = step_ms

    def step(self, job: Job) -> Step:
        self.timer.advance(self.step_ms)
        return Step(1, {"n": job.done})


class Broken:
    def step(self, job: Job) -> Step:
        raise ValueError(f"the secret of {job.namespace}")


def test_it_knows_the_kinds_of_jobs(services: Services) -> None:
    assert {MERGE_SHARDS, PURGE, ROLLUP_ENTITY, SUM_TOTALS} <= services.work.keys()


def test_a_quiet_minute_starts_the_days_work_and_the_next_does_it(module: ModuleType, services: Services) -> None:
    quiet = {
        "totals": 0,
        "totals_left": 0,
        "totals_failed": 0,
        "marks_dropped": 0,
        "lag_s": 0,
        "holds_expired": 0,
        "holds_failed": 0,
        "sweep_lag_s": 0,
        "steps": 0,
        "finished": 0,
        "failed": 0,
        "left": 0,
        "started": 2,
        "old_secrets": 0,
    }
    assert run(module) == quiet
    assert run(module) == quiet | {"steps": 2, "finished": 2, "started": 0}
    assert run(module)["steps"] == 0
    assert services.jobs.open_jobs() == []


def test_it_stops_after_its_part_of_the_minute(
    module: ModuleType, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = FakeClock()
    monkeypatch.setattr(module, "timer_ms", timer)
    only(module, monkeypatch, endless=Endless(timer, 1_000))
    services.jobs.start(TENANT, "endless", {})
    assert run(module)["steps"] == 40
    assert run(module)["steps"] == 40


def test_it_stops_when_the_function_has_little_time_left(
    module: ModuleType, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = FakeClock()
    monkeypatch.setattr(module, "timer_ms", timer)
    context = ScheduledContext()
    endless = Endless(timer, 1)
    only(module, monkeypatch, endless=endless)
    services.jobs.start(TENANT, "endless", {})
    context.remaining_ms = 15_000
    counts = run(module, context)
    assert (counts["steps"], counts["left"], counts["started"]) == (0, 1, 2)


class Counted(Endless):
    """And says how often it was asked."""

    steps = 0

    def step(self, job: Job) -> Step:
        self.steps += 1
        return super().step(job)


def test_one_line_per_run_and_no_tenant_in_it(
    module: ModuleType, services: Services, monkeypatch: pytest.MonkeyPatch, written: io.StringIO
) -> None:
    endless = Counted(FakeClock(), 0)
    only(module, monkeypatch, endless=endless)
    services.jobs.start(TENANT, "endless", {})
    context = ScheduledContext()

    def remaining() -> int:
        return 60_000 if endless.steps < 4 else 0

    monkeypatch.setattr(context, "get_remaining_time_in_millis", remaining)
    run(module, context)
    (line,) = [json.loads(text) for text in written.getvalue().splitlines()]
    assert (line["message"], line["level"]) == ("run", "INFO")
    assert {name: line[name] for name in ("steps", "finished", "failed", "left", "started")} == {
        "steps": 4,
        "finished": 0,
        "failed": 0,
        "left": 1,
        "started": 2,
    }
    assert line["duration_ms"] >= 0
    assert TENANT not in written.getvalue()


def test_a_failed_job_is_told_without_its_words_and_others_go_on(
    module: ModuleType, services: Services, monkeypatch: pytest.MonkeyPatch, written: io.StringIO
) -> None:
    built = only(module, monkeypatch, broken=Broken())
    jobs = [services.jobs.start(TENANT, "broken", {}) for _ in range(2)]
    assert run(module)["failed"] == 2
    assert len(built) == 1
    told = [json.loads(text) for text in written.getvalue().splitlines()]
    assert [line["message"] for line in told] == ["job failed", "job failed", "run"]
    assert (told[0]["job_kind"], told[0]["error"]) == ("broken", "ValueError")
    assert "in step" in "".join(told[0]["stack"])
    # The line of the code is shown, what it was called with is not.
    assert TENANT not in written.getvalue()
    assert {services.jobs.get(TENANT, job.job_id).state for job in jobs} == {JobState.FAILED}


def test_counts_reach_the_log(
    module: ModuleType, services: Services, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only(module, monkeypatch, broken=Broken())
    services.jobs.start(TENANT, "broken", {})
    run(module)
    metrics = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    (counted,) = (line for line in metrics if "JobSteps" in line)
    assert (counted["JobSteps"], counted["JobsFailed"], counted["environment"]) == ([1.0], [1.0], "test")


def test_it_looks_at_the_age_of_the_secrets_that_it_is_told(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One was made just now; the other is not there, so its age can not be learned."""
    monkeypatch.setenv("SLUICE_AGED_SECRETS", f"{os.environ['SLUICE_TOKEN_SECRET']},arn:of:nothing")
    only(module, monkeypatch)
    assert [run(module)["old_secrets"] for _ in range(2)] == [1, 1]
    metrics = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    assert [line["SecretsTooOld"] for line in metrics if "SecretsTooOld" in line] == [[1.0], [1.0]]


def counted(services: Services, *labels: str, minutes_ago: int = 2) -> list[CounterName]:
    """One call under each label that was counted, and marked so long ago."""
    now_ms = clock_ms()
    today = f"{datetime.fromtimestamp(now_ms // 1000, UTC):%Y%m%d}"
    names = [CounterName(NAMESPACE, APP, label, today) for label in labels]
    for name in names:
        services.store.update(add_to_shard(name, 0, now_ms, Counters(7, requests=1), now_ms), repeatable=False)
        marked = mark_due(name, now_ms // MINUTE_MS - minutes_ago, now_ms - minutes_ago * MINUTE_MS)
        services.store.update(marked, repeatable=True)
    return names


def summed(services: Services, name: CounterName) -> int:
    item = services.store.get(total_key(name), consistent=True)
    assert item is not None
    return decode_total(item).counters.cost_usd_micros


def test_totals_come_before_jobs(
    module: ModuleType, services: Services, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (name,) = counted(services, "premium", minutes_ago=4)
    seen: list[int] = []

    class Looks:
        def step(self, job: Job) -> Step:
            seen.append(summed(services, name))
            return Step(1, None)

    only(module, monkeypatch, looks=Looks())
    services.jobs.start(TENANT, "looks", {})
    counts = run(module)
    assert (counts["totals"], counts["totals_left"], counts["steps"], seen) == (1, 0, 1, [7])
    assert 240 <= counts["lag_s"] < 360
    metrics = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    (line,) = (line for line in metrics if "RollupLagSeconds" in line)
    assert (line["TotalsRolledUp"], line["RollupLagSeconds"]) == ([1.0], [float(counts["lag_s"])])


def test_totals_leave_time_for_jobs(module: ModuleType, services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes ten seconds here: three fit into their part of the minute, and two steps into the rest."""
    counted(services, *(f"label-{number}" for number in range(6)))
    timer = FakeClock()
    monkeypatch.setattr(module, "timer_ms", timer)
    built = only(module, monkeypatch, endless=Endless(timer, 5_000))
    services.jobs.start(TENANT, "endless", {})
    update = built[0].store.update

    def slow(request: Any, **named: Any) -> Any:
        if request["UpdateExpression"].startswith("REMOVE"):
            timer.advance(10_000)
        return update(request, **named)

    monkeypatch.setattr(built[0].store, "update", slow)
    counts = run(module)
    assert (counts["totals"], counts["totals_left"], counts["steps"]) == (3, 3, 2)
    assert run(module)["totals_left"] == 0


def test_a_total_that_fails_is_told_without_its_content(
    module: ModuleType, services: Services, written: io.StringIO
) -> None:
    names = counted(services, "premium", "standard")
    broken = money_keys.cost_shard(*names[0], 1)
    boto3.resource("dynamodb").Table(TABLE).put_item(Item={**broken.attributes, "kind": "cost_shard", "rev": APP})
    counts = run(module)
    assert (counts["totals"], counts["totals_left"], counts["totals_failed"]) == (1, 1, 1)
    assert summed(services, names[1]) == 7
    told = [json.loads(text) for text in written.getvalue().splitlines()]
    assert [line["message"] for line in told] == ["total not rolled up", "run"]
    assert told[0]["error"] == "UnknownShape"
    assert APP not in written.getvalue()


def test_its_purge_empties_the_archive(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket: Any = boto3.resource("s3").create_bucket(Bucket="archive-test")
    bucket.Versioning().enable()
    for namespace in (TENANT, f"{TENANT}x"):
        bucket.put_object(Key=f"{archive_prefix(namespace)}1", Body=b"x")
    monkeypatch.setenv("SLUICE_ARCHIVE_BUCKET", bucket.name)
    services = module._services()
    services.jobs.start(TENANT, PURGE, {}, registry=True)
    monkeypatch.setattr(module, "handler", module.build_handler(services))
    run(module)
    assert [version.object_key for version in bucket.object_versions.all()] == [f"{archive_prefix(TENANT + 'x')}1"]


def test_a_run_that_can_not_read_the_table_fails_as_a_whole(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the function's error count shows it; the next minute tries again."""
    built = only(module, monkeypatch)

    def out_of_reach(*_: Any) -> Any:
        raise Unavailable("x")

    monkeypatch.setattr(built[0].store, "query", out_of_reach)
    with pytest.raises(Unavailable):
        run(module)
