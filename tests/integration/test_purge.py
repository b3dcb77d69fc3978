"""The purge on an engine: everything of the namespace goes, nothing of anybody else, wherever it is interrupted."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.errors import NotFound
from sluice.repository import keys
from sluice.repository.jobs import JobState
from sluice.repository.namespaces import NamespaceState
from sluice.repository.retries import Throttled
from sluice.services.purge import PAGE, PURGE, UNNOTICED_MS
from tests.fakes import FakeClock
from tests.integration.tenants import (
    OPERATOR,
    Counting,
    Crash,
    Process,
    Raw,
    about,
    item,
    items_of,
    put_items,
    raw_items,
    register,
    start_process,
    without_jobs,
)
from tests.integration.test_jobs import raising

REGISTRY = keys.REGISTRY_NAMESPACE


@pytest.fixture
def new_process(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Callable[[], Process]:
    return lambda: start_process(dynamodb, table, clock)


@pytest.fixture
def process(new_process: Callable[[], Process]) -> Process:
    return new_process()


@pytest.fixture
def everything(dynamodb: DynamoDBClient, table: str) -> Callable[[], Raw]:
    return lambda: raw_items(dynamodb, table)


@pytest.fixture
def fill(dynamodb: DynamoDBClient, table: str) -> Callable[[str, int], int]:
    return lambda namespace, each: put_items(dynamodb, table, namespace, each)


def run_to_the_end(process: Process, clock: FakeClock) -> None:
    for _ in range(20):
        process.run()
        if all(job.kind != PURGE for job in process.jobs.open_jobs()):
            return
        clock.advance(60_000)
    raise AssertionError("the purge does not end")


def test_everything_goes_and_the_neighbours_stay_byte_for_byte(
    process: Process, clock: FakeClock, fill: Callable[[str, int], int], everything: Callable[[], Raw]
) -> None:
    for name, namespace_id in {"mine": "ab", "longer": "abc", "shorter": "a"}.items():
        register(process, name, namespace_id)
    filled = fill("ab", 100)
    assert filled > 2_000
    fill("abc", 25)
    fill("a", 25)
    # An open job of the namespace and one of a neighbour.
    process.jobs.start("ab", "count", {})
    neighbours_job = process.jobs.start("abc", "count", {})
    before = everything()
    job = process.namespaces.purge("mine", OPERATOR)
    run_to_the_end(process, clock)
    after = everything()
    assert about("ab", after) == {}
    gone = {*about("ab", before)}
    (purge_job,) = after.keys() - before.keys()
    assert purge_job == (job.key.pk, job.key.sk)
    del after[purge_job]
    assert after == {key: found for key, found in before.items() if key not in gone}
    done = process.jobs.get(REGISTRY, job.job_id)
    # The filled items, the job and the audit event of the purge; the two records are not counted.
    assert (done.state, done.done, done.error) == (JobState.DONE, filled + 2, None)
    asked = {"name": "mine", "requested_by": "operator", "request_id": "request-7"}
    assert done.result == {**asked, "deleted": filled + 2, "passes": 2}
    assert process.jobs.open_jobs() == [neighbours_job]
    with pytest.raises(NotFound):
        process.namespaces.get("mine")
    with pytest.raises(NotFound):
        process.namespaces.by_id("ab")
    assert process.namespaces.get("longer").namespace_id == "abc"


HOSTILE = ["ab/", "ab#0", "ab%", "ab%2F", "AB", "ab\x00", "ab!", "ab_", "_b", "%5F", "ab/ENTITY#e0", "\u00e4b", "ab "]


def test_hostile_ids_touch_nobody_else(
    process: Process, clock: FakeClock, fill: Callable[[str, int], int], everything: Callable[[], Raw]
) -> None:
    """One after the other, until nobody is left."""
    namespaces = ["a", "ab", "abc", *HOSTILE]
    for namespace_id in namespaces:
        register(process, f"name of {namespace_id}", namespace_id)
        fill(namespace_id, 1)
    for target in namespaces:
        before = without_jobs(everything())
        process.namespaces.purge(f"name of {target}", OPERATOR)
        run_to_the_end(process, clock)
        gone = about(target, before)
        assert len(gone) == 23 + 2
        assert without_jobs(everything()) == {key: found for key, found in before.items() if key not in gone}
    assert without_jobs(everything()) == {}


def test_what_is_written_while_it_runs_goes_too(
    process: Process, new_process: Callable[[], Process], clock: FakeClock, everything: Callable[[], Raw]
) -> None:
    """Processes that have not noticed go on writing items of every kind, behind the purge as well as ahead of it."""
    register(process, "mine", "ab")
    register(process, "other", "abc")
    writer = new_process().store
    drawn = random.Random(7)
    written = 0

    def write(verb: str, _request: Any) -> None:
        nonlocal written
        if verb not in {"scan", "put", "query"} or written > 300 or clock.now_ms >= started_ms + UNNOTICED_MS - 1000:
            return
        for chosen in drawn.sample(list(items_of("ab", 1)), 4):
            key = keys.Key(f"{chosen['PK']}-{written}", str(chosen["SK"]))
            writer.put({"Item": item("ab", key.pk, key.sk, indexed="GSI4PK" in chosen)}, repeatable=True)
            written += 1

    job = process.namespaces.purge("mine", OPERATOR)
    neighbours = about("abc", everything())
    started_ms = clock.now_ms
    process.store.before = write
    for _ in range(40):
        if process.run(steps=30).left == 0:
            break
        clock.advance(10_000)
    done = process.jobs.get(REGISTRY, job.job_id)
    assert done.state is JobState.DONE
    assert written > 100
    assert done.done == written + 1
    assert about("ab", everything()) == {}
    assert about("abc", everything()) == neighbours


def test_it_does_not_end_before_everybody_has_noticed(
    process: Process, clock: FakeClock, fill: Callable[[str, int], int], everything: Callable[[], Raw]
) -> None:
    register(process, "mine", "ab")
    fill("ab", 2)
    job = process.namespaces.purge("mine", OPERATOR)
    assert process.run().left == 1
    steps = process.run().steps
    assert steps == 1
    clock.advance(UNNOTICED_MS - 1)
    assert process.run().left == 1
    fill("ab", 2)
    assert process.namespaces.get("mine").state is NamespaceState.PURGING
    clock.advance(1)
    run_to_the_end(process, clock)
    done = process.jobs.get(REGISTRY, job.job_id)
    assert done.result is not None
    assert (done.result["deleted"], done.result["passes"]) == (2 * 46 + 1, 3)
    assert about("ab", everything()) == {}


def test_it_goes_on_after_a_crash_at_any_call(
    process: Process, new_process: Callable[[], Process], clock: FakeClock, everything: Callable[[], Raw]
) -> None:
    """Every single call of a small purge is the last one of its process; before the next call is the same place."""
    register(process, "other", "abc")
    for one in items_of("abc", 1):
        process.store.put({"Item": one}, repeatable=True)
    neighbours = about("abc", everything())
    few = [one for one in items_of("ab", 1) if str(one["PK"]).startswith(("ab/ENTITY", "ab/LEASE", "_/CLIENT"))]
    crashes = 0
    for survived in range(1_000):
        register(process, "mine", "ab")
        for one in few:
            process.store.put({"Item": one}, repeatable=True)
        job = process.namespaces.purge("mine", OPERATOR)
        clock.advance(UNNOTICED_MS)
        doomed = new_process()

        def crash(_verb: str, _request: Any, doomed: Process = doomed, calls: int = survived + 1) -> None:
            if len(doomed.store.calls) == calls:
                raise Crash

        doomed.store.after = crash
        try:
            doomed.run()
        except Crash:
            crashes += 1
        run_to_the_end(new_process(), clock)
        done = process.jobs.get(REGISTRY, job.job_id)
        assert (done.state, about("ab", everything())) == (JobState.DONE, {})
        # What a crashed step removed may be missing in the count: it never counts too much.
        assert len(few) + 1 - PAGE <= done.done <= len(few) + 1
        if crashes == survived:
            break
    assert crashes > 30
    assert about("abc", everything()) == neighbours


def test_a_table_that_does_not_answer_only_delays_it(
    process: Process, clock: FakeClock, fill: Callable[[str, int], int], everything: Callable[[], Raw]
) -> None:
    register(process, "mine", "ab")
    fill("ab", 3)
    job = process.namespaces.purge("mine", OPERATOR)
    for verb in ("delete", "scan", "put", "transact"):
        process.store.before = raising(Throttled("x"), verb)
        assert process.run().left == 1
        clock.advance(60_000)
    run_to_the_end(process, clock)
    assert process.jobs.get(REGISTRY, job.job_id).state is JobState.DONE
    assert about("ab", everything()) == {}


def test_steps_are_bounded(process: Process, clock: FakeClock) -> None:
    """However the items lie, a step removes two pages at most, and asks little."""
    register(process, "mine", "ab")
    for number in range(PAGE + 50):
        for one in (
            item("ab", "ab/AUDIT#e", f"#AUDIT#{number}", indexed=True),
            item("ab", f"ab/BUCKET#e{number}#r#0", "#STATE", indexed=True),
            item("ab", "ab/BUDGET#e", f"#ALERT#{number}", indexed=False),
            item("ab", "ab/EVENT#e#20261118#0", f"#EVENT#{number}", indexed=False),
        ):
            process.store.put({"Item": one}, repeatable=True)
    process.store.put({"Item": item("ab", "ab/BUDGET#e", "#LEDGER#0", indexed=True)}, repeatable=True)
    process.namespaces.purge("mine", OPERATOR)
    most = 0
    for _ in range(1_000):
        process.store.taken_calls()
        if not process.run(steps=1).left:
            break
        calls = process.store.taken_calls()
        most = max(most, calls.count("delete"))
        assert calls.count("delete") < 2 * PAGE
        assert sum(call in {"query", "scan"} for call in calls) <= PAGE + 2
        clock.advance(1_000)
    else:
        raise AssertionError("the purge does not end")
    assert most >= PAGE


def test_what_an_index_names_by_mistake_stays(
    process: Process, clock: FakeClock, everything: Callable[[], Raw]
) -> None:
    """Items of others under the namespace's index, more than a page of them in one partition."""
    register(process, "mine", "ab")
    register(process, "other", "abc")
    for number in range(PAGE + 5):
        process.store.put({"Item": item("ab", "abc/ENTITY#e", f"#X#{number}", indexed=True)}, repeatable=True)
    process.store.put({"Item": item("abc", "_/CLIENT#1", "#OTHER", indexed=True)}, repeatable=True)
    process.store.put({"Item": item("ab", "_/CLIENT#1", "#CREDENTIALS", indexed=True)}, repeatable=True)
    before = everything()
    process.namespaces.purge("mine", OPERATOR)
    run_to_the_end(process, clock)
    after = everything()
    expected = before.keys() - {
        ("_/CLIENT#1", "#CREDENTIALS"),
        (REGISTRY + "/SYSTEM#", "#NAMESPACE#mine"),
        (REGISTRY + "/SYSTEM#", "#NSID#ab"),
    }
    assert without_jobs(after) == {key: before[key] for key in expected}


def test_more_than_a_page_about_a_namespace_in_one_partition_of_the_registry(
    process: Process, clock: FakeClock, everything: Callable[[], Raw]
) -> None:
    register(process, "mine", "ab")
    for number in range(2 * PAGE + 50):
        process.store.put({"Item": item("ab", "_/CLIENT#1", f"#OLD#{number}", indexed=True)}, repeatable=True)
    process.namespaces.purge("mine", OPERATOR)
    run_to_the_end(process, clock)
    assert about("ab", everything()) == {}


def test_a_first_pass_that_finds_nothing_is_not_the_last(
    process: Process, clock: FakeClock, fill: Callable[[str, int], int], everything: Callable[[], Raw]
) -> None:
    """A crash may have taken what it removed out of the count; and those who have not noticed write afterwards."""
    register(process, "mine", "ab")
    process.namespaces.purge("mine", OPERATOR)
    for pk, sk in about("ab", everything()):
        if pk.startswith("ab/"):
            process.store.delete({"Key": {"PK": pk, "SK": sk}})
    assert process.run().left == 1
    fill("ab", 1)
    assert process.namespaces.by_id("ab").state is NamespaceState.PURGING
    run_to_the_end(process, clock)
    assert about("ab", everything()) == {}


def test_the_name_is_given_away_last(
    process: Process, clock: FakeClock, fill: Callable[[str, int], int], everything: Callable[[], Raw]
) -> None:
    register(process, "mine", "ab")
    fill("ab", 3)
    process.namespaces.purge("mine", OPERATOR)
    seen = []

    def look(verb: str, request: Any) -> None:
        if verb == "transact" and len(request) == 2:
            seen.append({key[1] for key in about("ab", everything())})

    process.store.before = look
    run_to_the_end(process, clock)
    assert seen == [{"#NAMESPACE#mine", "#NSID#ab"}]


def test_a_name_with_a_new_owner_is_left_to_it(
    process: Process, new_process: Callable[[], Process], clock: FakeClock, everything: Callable[[], Raw]
) -> None:
    """The purge dies between its last transaction and its progress; before it runs again somebody takes the name."""
    register(process, "mine", "ab")
    job = process.namespaces.purge("mine", OPERATOR)
    process.run()
    clock.advance(UNNOTICED_MS)
    process.store.after = raising(Crash(), "transact")
    with pytest.raises(Crash):
        process.run()
    owner = new_process()
    made = owner.namespaces.create("mine", OPERATOR).namespace
    before = about(made.namespace_id, everything())
    run_to_the_end(owner, clock)
    assert owner.jobs.get(REGISTRY, job.job_id).state is JobState.DONE
    assert owner.namespaces.get("mine") == made
    assert about(made.namespace_id, everything()) == before


def test_records_that_disagree_end_in_a_failed_job(process: Process, clock: FakeClock) -> None:
    """Only a hand in the table can do that; the purge stops instead of trying for ever."""
    register(process, "mine", "ab")
    job = process.namespaces.purge("mine", OPERATOR)
    process.run()
    clock.advance(UNNOTICED_MS)
    process.store.delete({"Key": {**keys.namespace_by_name("mine").attributes}})
    run_to_the_end(process, clock)
    failed = process.jobs.get(REGISTRY, job.job_id)
    assert (failed.state, failed.error) == (JobState.FAILED, "RegistryDisagrees")
    assert process.namespaces.by_id("ab").job_id == job.job_id


def test_two_runners_purge_together(
    process: Process,
    new_process: Callable[[], Process],
    clock: FakeClock,
    fill: Callable[[str, int], int],
    everything: Callable[[], Raw],
) -> None:
    register(process, "mine", "ab")
    register(process, "other", "abc")
    fill("ab", 5)
    fill("abc", 5)
    neighbours = about("abc", everything())
    job = process.namespaces.purge("mine", OPERATOR)
    other = new_process()

    def beside(verb: str, _request: Any) -> None:
        if verb == "delete":
            other.run(steps=1)

    process.store.before = beside
    for _ in range(100):
        if not process.run().left and not other.run().left:
            break
        clock.advance(10_000)
    assert process.jobs.get(REGISTRY, job.job_id).state is JobState.DONE
    assert about("ab", everything()) == {}
    assert about("abc", everything()) == neighbours


def test_another_job_of_the_namespace_ends_with_it(process: Process, clock: FakeClock) -> None:
    register(process, "mine", "ab")
    own = process.jobs.start("ab", "count", {})
    process.namespaces.purge("mine", OPERATOR)
    run_to_the_end(process, clock)
    assert process.jobs.find("ab", own.job_id) is None
    assert process.run({"count": Counting(), PURGE: Counting()}).steps == 0
