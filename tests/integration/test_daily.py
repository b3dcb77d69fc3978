"""The daily pass on an engine: started once a day, and every bucket that is quiet again becomes whole."""

from collections.abc import Callable
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

import sluice.services.daily
from sluice.core.errors import Contended, Unavailable
from sluice.repository import keys
from sluice.repository.items import Bucket, decode_bucket
from sluice.repository.jobs import Job, JobState
from sluice.services.chains import AcquireRequest
from sluice.services.daily import MERGE_SHARDS, Daily, MergeShards
from sluice.services.rollup_jobs import SUM_TOTALS
from tests.fakes import FakeClock
from tests.integration.conftest import NAMESPACE, RESOURCE, Host
from tests.integration.tenants import Counting, Process, start_process
from tests.integration.test_acquire import per_minute
from tests.integration.test_jobs import raising

REGISTRY = keys.REGISTRY_NAMESPACE
DAY_MS = 86_400_000
NOON_MS = 1_795_003_200_000
TODAY = "merge-20261118"
TOMORROW = "merge-20261119"


@pytest.fixture
def process(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Process:
    clock.now_ms = NOON_MS
    return start_process(dynamodb, table, clock)


KINDS = {"merge": MERGE_SHARDS, "totals": SUM_TOTALS}


@pytest.fixture
def daily(process: Process) -> Daily:
    return Daily(process.jobs, process.effects, KINDS)


def split_bucket(host: Host, entity: str, shard_count: int) -> None:
    host.service.acquire(AcquireRequest(NAMESPACE, entity, RESOURCE, {"rpm": 1}))
    count = 1
    while count < shard_count:
        for shard in range(count):
            assert host.sharding.split(bucket(host, entity, shard))
        count *= 2


def bucket(host: Host, entity: str, shard: int = 0) -> Bucket:
    item = host.store.inner.get(keys.bucket(NAMESPACE, entity, RESOURCE, shard), consistent=True)
    assert item is not None
    return decode_bucket(item)


def merged_job(process: Process, merger: Any) -> Job:
    process.jobs.start_once(TODAY, MERGE_SHARDS)
    process.run({MERGE_SHARDS: MergeShards(process.store, merger)})
    return process.jobs.get(REGISTRY, TODAY)


def ran(process: Process) -> int:
    """How many of today's jobs a run finishes."""
    return process.run({MERGE_SHARDS: Counting(), SUM_TOTALS: Counting()}).finished


def test_each_kind_is_started_once_a_day(process: Process, daily: Daily, clock: FakeClock) -> None:
    assert daily.start_due() == 2
    assert daily.start_due() == 0
    assert ran(process) == 2
    assert daily.start_due() == 0
    clock.advance(DAY_MS // 2 - 1)
    assert daily.start_due() == 0
    clock.advance(1)
    assert daily.start_due() == 2
    started = [TODAY, TOMORROW, "totals-20261118", "totals-20261119"]
    assert [process.jobs.get(REGISTRY, job_id).state for job_id in started] == [JobState.DONE, JobState.QUEUED] * 2


def test_not_while_an_earlier_one_of_its_kind_runs(process: Process, daily: Daily, clock: FakeClock) -> None:
    assert daily.start_due() == 2
    process.run({SUM_TOTALS: Counting()})
    clock.advance(3 * DAY_MS)
    assert daily.start_due() == 1
    assert daily.start_due() == 0
    assert ran(process) == 2
    assert daily.start_due() == 1


def test_a_minute_like_any_other_costs_nothing(process: Process, daily: Daily) -> None:
    daily.start_due()
    process.store.taken_calls()
    daily.start_due()
    assert process.store.taken_calls() == []
    # Another process looks once.
    other = Daily(process.jobs, process.effects, KINDS)
    assert [other.start_due() for _ in range(2)] == [0, 0]
    assert process.store.taken_calls() == ["consistent get"] * 2


def test_of_two_at_once_one_starts_it(process: Process, daily: Daily, dynamodb: DynamoDBClient, table: str) -> None:
    other = start_process(dynamodb, table, process.clock)
    theirs = []

    def interfere(verb: str, _request: Any) -> None:
        if verb == "put":
            process.store.before = None
            theirs.append(Daily(other.jobs, other.effects, KINDS).start_due())

    process.store.before = interfere
    assert (daily.start_due(), theirs) == (0, [2])
    assert len(process.jobs.open_jobs()) == 2


def test_quiet_buckets_become_whole_again(
    process: Process, host: Host, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over several pages, with whole buckets, other items and a bucket that is not full between them."""
    monkeypatch.setattr(sluice.services.daily, "PAGE", 5)
    host.put_limits({"rpm": per_minute(100)})
    for number in range(6):
        split_bucket(host, f"split-{number}", 4)
        split_bucket(host, f"whole-{number}", 1)
    clock.advance(600_000)
    busy = bucket(host, "split-3")
    host.service.acquire(AcquireRequest(NAMESPACE, "split-3", RESOURCE, {"rpm": 50}))
    job = merged_job(process, host.sharding)
    assert (job.state, job.done) == (JobState.DONE, 5)
    assert job.result == {"split": 6, "merged": 5, "busy": 0, "unreadable": 0}
    assert job.version > 5
    for number in range(6):
        assert bucket(host, f"split-{number}").shard_count == (4 if number == 3 else 1)
        assert bucket(host, f"whole-{number}").shard_count == 1
    assert bucket(host, "split-3").generation == busy.generation
    with pytest.raises(AssertionError):
        bucket(host, "split-0", 3)


class Scripted:
    """Merges all but those that raise."""

    def __init__(self, **errors: Exception) -> None:
        self.errors = errors
        self.asked: list[str] = []

    def merge(self, first_image: Bucket) -> bool:
        self.asked.append(first_image.entity)
        if first_image.entity in self.errors:
            raise self.errors[first_image.entity]
        return True


def test_one_bucket_does_not_keep_the_others_from_it(
    process: Process, host: Host, dynamodb: DynamoDBClient, table: str
) -> None:
    host.put_limits({"rpm": per_minute(100)})
    for entity in ("a", "b", "c", "d"):
        split_bucket(host, entity, 2)
    broken = bucket(host, "b").key
    dynamodb.update_item(
        TableName=table,
        Key={"PK": {"S": broken.pk}, "SK": {"S": broken.sk}},
        UpdateExpression="REMOVE b_rpm_cp",
    )
    merger = Scripted(c=Contended(30))
    job = merged_job(process, merger)
    assert sorted(merger.asked) == ["a", "c", "d"]
    assert job.result == {"split": 4, "merged": 2, "busy": 1, "unreadable": 1}
    assert (job.state, job.done) == (JobState.DONE, 2)


def test_a_table_out_of_reach_is_asked_again_from_the_same_page(process: Process, host: Host) -> None:
    host.put_limits({"rpm": per_minute(100)})
    split_bucket(host, "a", 2)
    process.jobs.start_once(TODAY, MERGE_SHARDS)
    merger = Scripted(a=Unavailable("x"))
    assert process.run({MERGE_SHARDS: MergeShards(process.store, merger)}).left == 1
    merger.errors.clear()
    process.store.before = raising(Unavailable("x"), "scan")
    assert process.run({MERGE_SHARDS: MergeShards(process.store, merger)}).left == 1
    assert process.run({MERGE_SHARDS: MergeShards(process.store, merger)}).finished == 1
    assert process.jobs.get(REGISTRY, TODAY).result == {"split": 1, "merged": 1, "busy": 0, "unreadable": 0}


def test_an_empty_table_is_done_at_once(process: Process, start_host: Callable[[], Host]) -> None:
    job = merged_job(process, start_host().sharding)
    assert (job.state, job.done) == (JobState.DONE, 0)
