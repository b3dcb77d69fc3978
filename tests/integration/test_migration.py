"""Migrations on an engine: thousands of old items, crashes between any two calls, and others who write meanwhile."""

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from threading import Lock
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

import sluice.services.migration
from sluice.core.errors import Ambiguous, Contended, InUse, InvalidRequest, LimitExceeded
from sluice.core.limits import Limit, Scope
from sluice.core.signals import Signal
from sluice.repository import keys
from sluice.repository.items import Bucket, decode_entity, decode_limits
from sluice.repository.jobs import Job, JobState
from sluice.repository.versions import CURRENT, CURRENT_SCHEMA_VERSION, decode_version
from sluice.repository.wire import Item, item_from_wire
from sluice.services.chains import AcquireRequest
from sluice.services.legacy import BucketName, LegacyBuckets
from sluice.services.migration import MIGRATION, Migrate, Migrations
from sluice.shell import new_token
from tests.fakes import FakeClock
from tests.integration import old_tables
from tests.integration.conftest import Host
from tests.integration.old_tables import LIMITS, RESOURCES, OldTable, Worth, worth_of_buckets, write_items
from tests.integration.tenants import OPERATOR, Crash, Process, raw_items, start_process

NS = "ns"
PREFIX = "ns/"
THREADS = 8


@dataclass
class Mover:
    """A process with what a migration needs."""

    process: Process
    migrations: Migrations
    buckets: LegacyBuckets

    def start(self, *, dry_run: bool = False, legacy_namespace: str | None = None) -> Job:
        return self.migrations.start(NS, OPERATOR, dry_run=dry_run, legacy_namespace=legacy_namespace)

    def run(self, steps: int = 100_000) -> None:
        work = Migrate(self.process.store, self.buckets, self.process.effects)
        self.process.run({MIGRATION: work}, steps=steps)

    def move(self, entity: str, resource: str) -> Bucket | None:
        """As an acquire does that misses its bucket."""
        return self.buckets.move(BucketName(NS, entity, resource, self.version.legacy_prefix)).bucket

    def job(self, started: Job) -> Job:
        return self.process.jobs.get(NS, started.job_id)

    def migrated(self) -> Job:
        started = self.start()
        self.run()
        done = self.job(started)
        assert done.state is JobState.DONE, done.error
        return done

    @property
    def version(self) -> Any:
        return decode_version(self.process.store.inner.get(keys.schema_version(NS), consistent=True))


@pytest.fixture
def new_mover(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Callable[[], Mover]:
    def start() -> Mover:
        process = start_process(dynamodb, table, clock)
        migrations = Migrations(process.store, process.jobs, process.effects)
        return Mover(process, migrations, LegacyBuckets(process.store, process.effects, clock))

    return start


@pytest.fixture
def mover(new_mover: Callable[[], Mover]) -> Mover:
    return new_mover()


@pytest.fixture
def old(clock: FakeClock) -> OldTable:
    return OldTable(PREFIX, clock.now_ms, Random(7))


@pytest.fixture
def write(dynamodb: DynamoDBClient, table: str) -> Callable[[OldTable], None]:
    return lambda old: write_items(dynamodb, table, old.items)


@pytest.fixture
def everything(dynamodb: DynamoDBClient, table: str) -> Callable[[], dict[tuple[str, str], Any]]:
    return lambda: raw_items(dynamodb, table)


@pytest.fixture
def worth(everything: Callable[[], dict[tuple[str, str], Any]], clock: FakeClock) -> Callable[[], Worth]:
    return lambda: worth_of_buckets(everything().values(), NS, clock.now_ms)


def fill(old: OldTable, buckets: int, limits: Mapping[str, old_tables.Limit] | None = None) -> None:
    """As many buckets of each layout, a few with several shards, some of which are not there."""
    for number in range(buckets):
        resource = RESOURCES[number % len(RESOURCES)]
        old.add_layout_1(f"one-{number}", resource, nested=number % 2 == 0, limits=limits)
        old.add_layout_2(f"two-{number}", resource, limits=limits)
        if number % 10:
            old.add_layout_3(f"three-{number}", resource, limits=limits)
        else:
            missing = [3] if number % 20 else []
            old.add_layout_3(f"three-{number}", resource, 4, missing, limits=limits)


def defined(limits: Mapping[str, old_tables.Limit]) -> dict[str, Limit]:
    """As people would define the same limits today."""
    return {
        name: Limit(limit.capacity // 1000, limit.burst // 1000, limit.amount // 1000, limit.period_ms // 1000)
        for name, limit in limits.items()
    }


def is_old(item: Mapping[str, Any]) -> bool:
    return item["SK"]["S"].startswith("#BUCKET#") or "rf" in item


def test_thousands_of_old_items_are_moved_once_whatever_crashes(
    new_mover: Callable[[], Mover],
    old: OldTable,
    write: Callable[[OldTable], None],
    everything: Callable[[], dict[tuple[str, str], Any]],
    worth: Callable[[], Worth],
    clock: FakeClock,
) -> None:
    fill(old, 800)
    others = OldTable("other/", clock.now_ms, Random(8))
    fill(others, 10)
    assert len(old.items) > 3_000
    write(old)
    write(others)
    untouched = {key: item for key, item in everything().items() if key[0].startswith("other/")}
    started = new_mover().start()
    random = Random(9)
    crashes = 0
    while True:
        mover = new_mover()
        left = random.randint(1, 2_000)

        def crash(_verb: str, _request: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Crash

        # Before a call, nothing of it has happened; after it, all has, and nobody knows.
        if random.random() < 0.5:
            mover.process.store.before = crash
        else:
            mover.process.store.after = crash
        try:
            mover.run()
            break
        except Crash:
            crashes += 1
    assert crashes >= 3
    job = new_mover().job(started)
    assert job.state is JobState.DONE, job.error
    assert mover.version == CURRENT
    after = everything()
    assert not [key for key, item in after.items() if is_old(item) and key[0].startswith(PREFIX)]
    assert {key: item for key, item in after.items() if key[0].startswith("other/")} == untouched
    assert worth() == old.worth
    # What a crash forgot to write down is not in its counts; all the rest is.
    assert job.result is not None
    assert job.done <= len(old.items)
    assert job.total == job.done
    assert job.result["unreadable"] == 0


def test_every_count_is_reported_when_nothing_crashes(
    mover: Mover, old: OldTable, write: Callable[[OldTable], None], worth: Callable[[], Worth]
) -> None:
    fill(old, 40)
    write(old)
    job = mover.migrated()
    assert worth() == old.worth
    by_layout = {
        "layout_1": sum("limit_name" in str(item) for item in old.items),
        "layout_2": sum(str(item["SK"]).startswith("#BUCKET#") and "rf" in item for item in old.items),
        "layout_3": sum(item["SK"] == "#STATE" for item in old.items),
    }
    assert job.result == {
        **by_layout,
        "entities": 0,
        "limits": 0,
        "limits_left_out": 0,
        "limit_items_left": 0,
        "superseded": 0,
        "unreadable": 0,
        "passes": 3,
    }
    assert job.done == job.total == len(old.items)
    assert mover.process.meter.counts[Signal.LEGACY_ITEMS_MOVED] == len(old.items)


def test_a_dry_run_counts_and_changes_nothing(
    mover: Mover,
    old: OldTable,
    write: Callable[[OldTable], None],
    everything: Callable[[], dict[tuple[str, str], Any]],
) -> None:
    fill(old, 40)
    write(old)
    before = everything()
    started = mover.start(dry_run=True)
    assert mover.version == CURRENT
    mover.run()
    job = mover.job(started)
    assert (job.state, job.done, job.total) == (JobState.DONE, len(old.items), len(old.items))
    assert job.result is not None
    counted = [job.result[f"layout_{layout}"] for layout in (1, 2, 3)]
    assert sum(map(int, map(str, counted))) == len(old.items)
    assert all(counted)
    after = everything()
    added = {key: after.pop(key) for key in after.keys() - before.keys()}
    assert after == before
    assert sorted(str(item["kind"]["S"]) for item in added.values()) == ["audit", "job"]


def test_a_start_is_audited_and_sets_the_version(
    mover: Mover, everything: Callable[[], dict[tuple[str, str], Any]]
) -> None:
    started = mover.start()
    version = mover.version
    assert (version.version, version.migrating_to) == (1, CURRENT_SCHEMA_VERSION)
    assert (version.job_id, version.legacy_prefix) == (started.job_id, PREFIX)
    (event,) = [item for item in everything().values() if item["kind"] == {"S": "audit"}]
    assert event["action"] == {"S": "migration.start"}
    assert event["actor"] == {"S": "operator"}


def test_while_one_runs_there_is_no_other(mover: Mover, new_mover: Callable[[], Mover]) -> None:
    first = mover.start()
    with pytest.raises(InUse):
        new_mover().start()
    # Counting does no harm.
    counting = new_mover().start(dry_run=True)
    mover.run()
    assert mover.job(first).state is JobState.DONE
    assert mover.job(counting).state is JobState.DONE
    assert mover.start().job_id != first.job_id


def test_a_start_whose_answer_was_lost_is_recognised(mover: Mover) -> None:
    cancelled_once: list[Any] = []

    def lose(verb: str, writes: Any) -> None:
        """Applied, and then the same again as a new transaction would be: what a caller that rebuilds it sees."""
        if verb == "transact" and not cancelled_once:
            cancelled_once.append(writes)
            mover.process.store.inner.transact(writes, new_token())

    mover.process.store.before = lose
    started = mover.start()
    assert cancelled_once
    assert mover.version.job_id == started.job_id
    assert len(mover.process.jobs.open_jobs()) == 1


def test_a_dry_run_whose_answer_was_lost_is_recognised(mover: Mover) -> None:
    lost: list[Any] = []

    def lose(verb: str, writes: Any) -> None:
        if verb == "transact" and not lost:
            lost.append(writes)
            mover.process.store.inner.transact(writes, new_token())

    mover.process.store.before = lose
    started = mover.start(dry_run=True)
    assert [job.job_id for job in mover.process.jobs.open_jobs()] == [started.job_id]


def test_while_old_clients_write_the_fall_back_stays_and_it_can_be_started_again(
    mover: Mover,
    old: OldTable,
    write: Callable[[OldTable], None],
    worth: Callable[[], Worth],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sluice.services.migration, "PASSES_MAX", 4)
    started = mover.start()
    number = 0

    def make_another(verb: str, _request: Any) -> None:
        nonlocal number
        if verb == "scan":
            number += 1
            one = OldTable(PREFIX, old.now_ms, Random(number))
            one.add_layout_2(f"late-{number}", "gpt-4")
            old.worth.update(one.worth)
            old.items = one.items
            write(old)

    mover.process.store.before = make_another
    mover.run()
    failed = mover.job(started)
    assert (failed.state, failed.error) == (JobState.FAILED, "StillWritten")
    assert mover.version.is_migrating
    mover.process.store.before = None
    mover.migrated()
    assert worth() == old.worth


# Traffic.


@pytest.mark.parametrize("layout", [1, 2, 3])
def test_an_acquire_that_misses_its_bucket_takes_from_the_old_one(
    mover: Mover,
    start_host: Callable[[], Host],
    old: OldTable,
    write: Callable[[OldTable], None],
    worth: Callable[[], Worth],
    layout: int,
) -> None:
    add = [old.add_layout_1, old.add_layout_2, old.add_layout_3][layout - 1]
    old.tokens = (5_000, 60_000)
    add("user", "gpt-4", limits=LIMITS)
    level, consumed = old.worth["user", "gpt-4", "tpm"]
    wanted = {**old.worth, ("user", "gpt-4", "tpm"): (level - 3_000, consumed + 3_000)}
    # Another resource whose name begins like this one, and another entity, are left alone.
    add("user", "gpt-4o")
    add("user-2", "gpt-4")
    write(old)
    start_host().put_limits(defined(LIMITS))
    mover.start()
    host = start_host()
    admitted = host.ask({"tpm": 3}, entity="user")
    remaining = {limit.limit: limit.remaining for limit in admitted.levels[0].limits}
    assert remaining["tpm"] == (level - 3_000) // 1000
    assert worth() == wanted
    host.ask({"tpm": 3}, entity="nobody")
    assert worth()["nobody", "gpt-4", "tpm"] == (LIMITS["tpm"].burst - 3_000, 3_000)


def test_an_acquire_does_not_look_for_old_items_unless_the_namespace_is_in_migration(
    start_host: Callable[[], Host], old: OldTable, write: Callable[[OldTable], None], mover: Mover
) -> None:
    start_host().put_limits(defined(LIMITS))
    write(old)
    host = start_host()
    host.acquire(rpm=1)
    assert host.store.taken_calls() == ["batch_get", "put"]
    mover.start()
    host = start_host()
    host.ask({"rpm": 1}, entity="user-2")
    assert host.store.taken_calls() == ["batch_get", "query", "consistent batch_get", "put"]


def test_a_bucket_whose_old_items_fill_pages_is_moved_whole(
    mover: Mover, old: OldTable, write: Callable[[OldTable], None], worth: Callable[[], Worth]
) -> None:
    old.add_layout_1("user", "gpt-4", limits=LIMITS)
    write(old)

    def shorten(verb: str, request: Any) -> None:
        if verb == "query":
            request["Limit"] = 1

    mover.process.store.before = shorten
    moved = mover.buckets.move(BucketName(NS, "user", "gpt-4"))
    assert len(moved.parts) == 3
    assert worth() == old.worth


@pytest.mark.parametrize("count", [1, 4, 32])
def test_traffic_takes_over_what_it_meets_in_migration_or_not(
    mover: Mover, old: OldTable, write: Callable[[OldTable], None], worth: Callable[[], Worth], count: int
) -> None:
    old.add_layout_3("user", "gpt-4", count)
    write(old)
    taken = mover.buckets.take_over(NS, "user", "gpt-4")
    assert taken is not None
    assert taken.shard_count == min(count, 16)
    assert worth() == old.worth
    # One write where there is one item: everything else is a transaction.
    writes = [call for call in mover.process.store.taken_calls() if "get" not in call and call != "query"]
    assert writes == ["put" if count == 1 else "transact"]


def test_of_two_movers_one_moves_and_both_have_the_bucket(
    new_mover: Callable[[], Mover], old: OldTable, write: Callable[[OldTable], None], worth: Callable[[], Worth]
) -> None:
    for layout, add in enumerate((old.add_layout_1, old.add_layout_2, old.add_layout_3), start=1):
        add(f"user-{layout}", "gpt-4")
    write(old)
    slow, fast = new_mover(), new_mover()
    slow.start()
    for layout in (1, 2, 3):
        name = BucketName(NS, f"user-{layout}", "gpt-4")
        first: list[Any] = []

        def overtake(verb: str, _request: Any, name: BucketName = name, first: list[Any] = first) -> None:
            if verb in {"transact", "put"} and not first:
                first.append(fast.buckets.move(name))

        slow.process.store.before = overtake
        second = slow.buckets.move(name)
        assert first[0].parts
        assert not second.parts
        assert second.bucket == first[0].bucket
    assert worth() == old.worth


def old_debit(dynamodb: DynamoDBClient, table: str, key: Item, amount: int, now_ms: int) -> None:
    """As a client of the old product takes from a composite item."""
    dynamodb.update_item(
        TableName=table,
        Key={name: {"S": str(value)} for name, value in key.items()},
        UpdateExpression="ADD b_rpm_tk :less, b_rpm_tc :more SET rf = :now",
        ExpressionAttributeValues={
            ":less": {"N": str(-amount)},
            ":more": {"N": str(amount)},
            ":now": {"N": str(now_ms)},
        },
    )


@pytest.mark.parametrize("layout", [2, 3])
def test_what_an_old_client_takes_while_its_item_is_moved_is_not_lost(
    mover: Mover,
    old: OldTable,
    write: Callable[[OldTable], None],
    worth: Callable[[], Worth],
    dynamodb: DynamoDBClient,
    table: str,
    layout: int,
) -> None:
    (old.add_layout_2 if layout == 2 else old.add_layout_3)("user", "gpt-4")
    (item,) = old.items
    item |= {"rf": old.now_ms, "b_rpm_tk": 50_000, "b_rpm_tc": 7_000, **LIMITS["rpm"].attributes("rpm")}
    write(old)
    mover.start()
    taken: list[int] = []

    def take(verb: str, _request: Any) -> None:
        if verb in {"transact", "put"} and len(taken) < 2:
            taken.append(3_000)
            old_debit(dynamodb, table, {"PK": item["PK"], "SK": item["SK"]}, 3_000, old.now_ms)

    mover.process.store.before = take
    mover.buckets.take_over(NS, "user", "gpt-4")
    assert len(taken) == 2
    assert worth()["user", "gpt-4", "rpm"] == (44_000, 13_000)


def test_a_mover_that_is_overtaken_again_and_again_gives_up_for_now(
    mover: Mover, old: OldTable, write: Callable[[OldTable], None], dynamodb: DynamoDBClient, table: str
) -> None:
    old.add_layout_2("user", "gpt-4")
    (item,) = old.items
    item |= {"b_rpm_tk": 50_000, "b_rpm_tc": 7_000, **LIMITS["rpm"].attributes("rpm")}
    write(old)
    started = mover.start()

    def take(verb: str, _request: Any) -> None:
        if verb == "transact":
            old_debit(dynamodb, table, {"PK": item["PK"], "SK": item["SK"]}, 1, old.now_ms)

    mover.process.store.before = take
    with pytest.raises(Contended):
        mover.move("user", "gpt-4")
    # The job leaves it to its next pass.
    mover.run(steps=3)
    assert mover.job(started).is_open
    mover.process.store.before = None
    mover.run()
    assert mover.job(started).state is JobState.DONE


def test_a_move_whose_answer_is_lost_for_good_is_found_done(
    mover: Mover, old: OldTable, write: Callable[[OldTable], None], worth: Callable[[], Worth]
) -> None:
    old.add_layout_2("user", "gpt-4")
    old.add_layout_3("user-3", "gpt-4")
    write(old)
    mover.start()

    def lose(verb: str, _request: Any) -> None:
        if verb in {"transact", "put"}:
            raise Ambiguous

    mover.process.store.after = lose
    for entity in ("user", "user-3"):
        with pytest.raises(Ambiguous):
            mover.buckets.take_over(NS, entity, "gpt-4")
    mover.process.store.after = None
    for entity in ("user", "user-3"):
        assert mover.buckets.take_over(NS, entity, "gpt-4") is not None
    assert worth() == old.worth


def test_an_adjustment_of_an_old_client_after_the_move_reaches_the_bucket(
    mover: Mover,
    old: OldTable,
    write: Callable[[OldTable], None],
    worth: Callable[[], Worth],
    everything: Callable[[], dict[tuple[str, str], Any]],
    dynamodb: DynamoDBClient,
    table: str,
) -> None:
    """It finds no item, and leaves half of one: balances without limits."""
    old.add_layout_2("user", "gpt-4")
    (item,) = old.items
    item |= {"rf": old.now_ms, "b_rpm_tk": 50_000, "b_rpm_tc": 7_000, **LIMITS["rpm"].attributes("rpm")}
    write(old)
    started = mover.start()
    assert mover.move("user", "gpt-4") is not None
    dynamodb.update_item(
        TableName=table,
        Key={"PK": {"S": str(item["PK"])}, "SK": {"S": str(item["SK"])}},
        UpdateExpression="ADD b_rpm_tk :less, b_rpm_tc :more",
        ExpressionAttributeValues={":less": {"N": "-60000"}, ":more": {"N": "60000"}},
    )
    mover.run()
    assert mover.job(started).state is JobState.DONE
    assert worth()["user", "gpt-4", "rpm"] == (-10_000, 67_000)
    assert not [item for item in everything().values() if is_old(item)]


def test_what_a_process_took_that_did_not_know_is_taken_from_the_old_bucket(
    mover: Mover,
    start_host: Callable[[], Host],
    old: OldTable,
    write: Callable[[OldTable], None],
    worth: Callable[[], Worth],
) -> None:
    """It made a full bucket. What the old item lacked then is owed by it."""
    old.add_layout_2("user", "gpt-4", limits={"rpm": LIMITS["rpm"]})
    (item,) = old.items
    item |= {"rf": old.now_ms, "b_rpm_tk": 20_000, "b_rpm_tc": 5_000}
    write(old)
    host = start_host()
    host.put_limits(defined({"rpm": LIMITS["rpm"]}))
    host.ask({"rpm": 7}, entity="user")
    started = mover.start()
    # Its bucket is there, so it does not look for another.
    host.ask({"rpm": 7}, entity="user")
    assert worth()["user", "gpt-4", "rpm"] == (150_000 - 14_000, 14_000)
    mover.run()
    assert mover.job(started).state is JobState.DONE
    assert worth()["user", "gpt-4", "rpm"] == (20_000 - 14_000, 5_000 + 14_000)


def test_acquires_go_on_while_the_job_crashes_and_goes_on(
    new_mover: Callable[[], Mover],
    start_host: Callable[[], Host],
    old: OldTable,
    write: Callable[[OldTable], None],
    worth: Callable[[], Worth],
    everything: Callable[[], dict[tuple[str, str], Any]],
) -> None:
    """Every token that was admitted was there before, and every one that was there is there still."""
    fill(old, 100, LIMITS)
    write(old)
    for resource in RESOURCES:
        start_host().put_limits(defined(LIMITS), Scope(resource=resource))
    buckets = sorted({(entity, resource) for entity, resource, _ in old.worth})
    started = new_mover().start()
    admitted: Counter[tuple[str, str, str]] = Counter()
    lock = Lock()

    def traffic(seed: int) -> None:
        random = Random(seed)
        host = start_host()
        host.random.draw = random.randrange
        for entity, resource in random.sample(buckets, len(buckets)):
            consume = {name: random.randint(0, 3) for name in random.sample(sorted(LIMITS), 2)}
            try:
                host.service.acquire(AcquireRequest(NS, entity, resource, consume))
            except (LimitExceeded, Contended):
                continue
            with lock:
                admitted.update({(entity, resource, name): 1000 * amount for name, amount in consume.items()})

    def migrate() -> None:
        random = Random(5)
        while new_mover().job(started).is_open:
            mover = new_mover()
            left = random.randint(100, 500)

            def crash(_verb: str, _request: Any) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    raise Crash

            mover.process.store.after = crash
            with suppress(Crash):
                mover.run()

    with ThreadPoolExecutor(THREADS + 1) as pool:
        job = pool.submit(migrate)
        for done in [pool.submit(traffic, seed) for seed in range(THREADS)]:
            done.result()
        job.result()
    assert new_mover().job(started).state is JobState.DONE
    assert not [item for item in everything().values() if is_old(item)]
    assert sum(amount > 0 for amount in admitted.values()) > len(buckets)
    assert worth() == {
        key: (level - admitted[key], consumed + admitted[key]) for key, (level, consumed) in old.worth.items()
    }


def test_the_job_and_many_threads_move_each_bucket_once(
    new_mover: Callable[[], Mover],
    old: OldTable,
    write: Callable[[OldTable], None],
    worth: Callable[[], Worth],
) -> None:
    fill(old, 60)
    write(old)
    buckets = sorted({(entity, resource) for entity, resource, _ in old.worth})
    job_mover = new_mover()
    started = job_mover.start()

    def traffic(seed: int) -> int:
        mover = new_mover()
        order = list(buckets)
        Random(seed).shuffle(order)
        done = 0
        for entity, resource in order:
            try:
                done += mover.buckets.take_over(NS, entity, resource) is not None
            except Contended:
                # Everyone at once on one bucket: the others have moved it, or the job will.
                continue
        return done

    with ThreadPoolExecutor(THREADS + 1) as pool:
        job = pool.submit(job_mover.run)
        assert all(pool.map(traffic, range(THREADS)))
        job.result()
    job_mover.run()
    assert job_mover.job(started).state is JobState.DONE
    assert worth() == old.worth


# Where the old items stand.


@pytest.mark.parametrize("legacy_namespace", ["", "an-old-id"])
def test_old_items_under_another_prefix_move_to_the_namespace(
    mover: Mover,
    clock: FakeClock,
    write: Callable[[OldTable], None],
    worth: Callable[[], Worth],
    everything: Callable[[], dict[tuple[str, str], Any]],
    legacy_namespace: str,
) -> None:
    old = OldTable(f"{legacy_namespace}/" if legacy_namespace else "", clock.now_ms, Random(3))
    fill(old, 21)
    write(old)
    started = mover.start(legacy_namespace=legacy_namespace)
    moved = mover.move("two-1", RESOURCES[1])
    assert moved is not None
    assert moved.key.pk == f"ns/BUCKET#two-1#{RESOURCES[1]}#0"
    assert mover.move("three-20", RESOURCES[20 % 3]) is not None
    mover.run()
    assert mover.job(started).state is JobState.DONE
    assert worth() == old.worth
    assert not [item for item in everything().values() if is_old(item)]


def test_items_of_a_namespace_that_is_in_use_are_not_taken(mover: Mover) -> None:
    other = mover.process.namespaces.create("other", OPERATOR).namespace
    for taken in (other.namespace_id, keys.REGISTRY_NAMESPACE):
        with pytest.raises(InvalidRequest) as raised:
            mover.start(legacy_namespace=taken)
        assert raised.value.field == "legacy_namespace"
    assert mover.version == CURRENT
    assert mover.start(legacy_namespace=NS).parameters["legacy_prefix"] == PREFIX


def test_what_nobody_understands_stays_and_is_reported(
    mover: Mover,
    old: OldTable,
    write: Callable[[OldTable], None],
    everything: Callable[[], dict[tuple[str, str], Any]],
) -> None:
    old.add_layout_2("user", "gpt-4")
    strange: list[Item] = [
        {"PK": "ns/ENTITY#odd", "SK": "#BUCKET#gpt-4", "rf": "yesterday"},
        {"PK": "ns/BUCKET#odd#0", "SK": "#STATE", "rf": 1},
    ]
    old.items += strange
    write(old)
    job = mover.migrated()
    assert job.result is not None
    assert (job.result["unreadable"], job.result["layout_2"]) == (2, 1)
    assert mover.version == CURRENT
    after = [item_from_wire(item) for item in everything().values()]
    assert all(item in after for item in strange)


# Entities and limits.


def settings(prefix: str) -> list[Item]:
    limits: Item = {"l_rpm_cp": 100, "l_rpm_ra": 50, "l_rpm_rp": 60, "config_version": 2}
    return [
        {
            "PK": f"{prefix}ENTITY#user",
            "SK": "#META",
            "entity_id": "user",
            "name": "User",
            "parent_id": "team",
            "cascade": True,
            "metadata": {"tier": "gold"},
            "created_at": "2026-01-02T03:04:05Z",
        },
        {"PK": f"{prefix}ENTITY#user", "SK": "#CONFIG#gpt-4", "entity_id": "user", **limits},
        {"PK": f"{prefix}RESOURCE#gpt-4", "SK": "#CONFIG", "resource": "gpt-4", **limits},
        {"PK": f"{prefix}SYSTEM#", "SK": "#CONFIG", "on_unavailable": "allow", **limits, "l_Bad-Name_cp": 1},
        {"PK": f"{prefix}SYSTEM#", "SK": "#VERSION", "schema_version": "0.9.0"},
        {"PK": f"{prefix}ENTITY#user", "SK": "#LIMIT#gpt-4#rpm", "limit_name": "rpm", "capacity": 5},
    ]


@pytest.mark.parametrize("prefix", [PREFIX, ""])
def test_entities_and_limits_have_todays_shape_before_any_bucket_is_moved(
    mover: Mover,
    old: OldTable,
    dynamodb: DynamoDBClient,
    table: str,
    everything: Callable[[], dict[tuple[str, str], Any]],
    prefix: str,
) -> None:
    write_items(dynamodb, table, settings(prefix))
    old.prefix = prefix
    old.add_layout_2("user", "gpt-4")
    write_items(dynamodb, table, old.items)
    started = mover.start(legacy_namespace=prefix.removesuffix("/"))
    mover.run(steps=1)
    found = {key: item_from_wire(item) for key, item in everything().items()}
    assert (f"{prefix}ENTITY#user", "#BUCKET#gpt-4") in found
    entity = decode_entity(found[keys.entity(NS, "user")])
    assert (entity.parent, entity.cascade, entity.metadata) == ("team", True, {"tier": "gold"})
    for key in ("ns/ENTITY#user", "#CONFIG#gpt-4"), ("ns/RESOURCE#gpt-4", "#CONFIG"), ("ns/SYSTEM#", "#CONFIG"):
        assert decode_limits(found[key]).limits["rpm"] is not None
    mover.run()
    job = mover.job(started)
    assert job.state is JobState.DONE
    assert job.result is not None
    counts = ("entities", "limits", "limits_left_out", "limit_items_left", "layout_2")
    assert [job.result[name] for name in counts] == [1, 3, 1, 1, 1]
    left = [key for key, item in everything().items() if "kind" not in item]
    assert sorted(left) == [
        (f"{prefix}ENTITY#user", "#LIMIT#gpt-4#rpm"),
        *([("SYSTEM#", "#VERSION")] if not prefix else []),
    ]


def test_a_dry_run_counts_entities_and_limits(mover: Mover, dynamodb: DynamoDBClient, table: str) -> None:
    write_items(dynamodb, table, settings(PREFIX))
    started = mover.start(dry_run=True)
    mover.run()
    job = mover.job(started)
    assert job.result is not None
    assert [job.result[name] for name in ("entities", "limits", "limits_left_out", "limit_items_left")] == [1, 3, 1, 1]


def test_what_was_defined_anew_wins_over_what_is_old(
    mover: Mover, dynamodb: DynamoDBClient, table: str, everything: Callable[[], dict[tuple[str, str], Any]]
) -> None:
    write_items(dynamodb, table, settings(PREFIX))
    mover.migrated()
    anew = [keys.limits(NS, Scope(resource="gpt-4")), keys.entity(NS, "user")]
    before = [everything()[key] for key in anew]
    write_items(dynamodb, table, [{**settings("")[2], "l_rpm_cp": 7}, {**settings("")[0], "name": "Other"}])
    started = mover.start(legacy_namespace="")
    mover.run()
    job = mover.job(started)
    assert job.result is not None
    assert (job.result["superseded"], job.result["limits"], job.result["entities"]) == (2, 0, 0)
    assert [everything()[key] for key in anew] == before
    assert not [key for key in everything() if key[0].startswith(("RESOURCE#", "ENTITY#"))]


def test_limits_that_an_old_client_changes_meanwhile_are_carried_as_changed(
    mover: Mover, dynamodb: DynamoDBClient, table: str, everything: Callable[[], dict[tuple[str, str], Any]]
) -> None:
    old_limits = settings(PREFIX)[2]
    write_items(dynamodb, table, [old_limits])
    changes = [{**old_limits, "l_rpm_cp": 200, "config_version": 3}]

    def change(verb: str, _request: Any) -> None:
        if verb == "transact" and changes:
            write_items(dynamodb, table, [changes.pop()])

    started = mover.start()
    mover.process.store.before = change
    mover.run()
    job = mover.job(started)
    assert (job.state, changes) == (JobState.DONE, [])
    limits = decode_limits(item_from_wire(everything()[keys.limits(NS, Scope(resource="gpt-4"))]))
    assert limits.limits["rpm"] == Limit(200, 200, 50, 60)
    assert limits.config_version == 3


def test_an_old_setting_that_changes_while_it_is_dropped_is_looked_at_again(
    mover: Mover, dynamodb: DynamoDBClient, table: str, everything: Callable[[], dict[tuple[str, str], Any]]
) -> None:
    write_items(dynamodb, table, [settings(PREFIX)[2]])
    mover.migrated()
    again = settings("")[2]
    write_items(dynamodb, table, [again])
    calls = 0

    def change(verb: str, _request: Any) -> None:
        nonlocal calls
        calls += verb == "transact"
        # The first would carry it, the second drops it.
        if verb == "transact" and calls == 2:
            write_items(dynamodb, table, [{**again, "config_version": 3}])

    started = mover.start(legacy_namespace="")
    mover.process.store.before = change
    mover.run()
    assert mover.job(started).state is JobState.DONE
    assert calls == 4
    assert ("RESOURCE#gpt-4", "#CONFIG") not in everything()
