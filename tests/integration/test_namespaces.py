"""The registry of namespaces on an engine: by name and by id, always both."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.audit import SYSTEM_SUBJECT, Author
from sluice.core.errors import Contended, NotFound, Unavailable
from sluice.edge.models import ID_PATTERN
from sluice.repository import keys
from sluice.repository.audit import audit_query, decode_audit_event
from sluice.repository.jobs import JobState
from sluice.repository.namespaces import NamespaceState, decode_namespace
from sluice.repository.retries import Throttled
from sluice.repository.store import Cancelled, ConditionFailed
from sluice.repository.versions import CURRENT, decode_version
from sluice.services.effects import Effects
from sluice.services.namespaces import CACHE_MS, ID_LENGTH, Namespaces
from sluice.services.purge import PURGE
from tests.fakes import FakeClock
from tests.integration.tenants import OPERATOR, Crash, Process, raw_items, start_process
from tests.integration.test_jobs import Broken, raising

REGISTRY = keys.REGISTRY_NAMESPACE


@pytest.fixture
def new_process(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Callable[[], Process]:
    return lambda: start_process(dynamodb, table, clock)


@pytest.fixture
def process(new_process: Callable[[], Process]) -> Process:
    return new_process()


def drawing(process: Process, *ids: str) -> Namespaces:
    """A registry whose next ids are these."""
    alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    draws = [alphabet.index(character) for namespace_id in ids for character in namespace_id]

    def next_draw(below: int) -> int:
        return draws.pop(0) if below == len(alphabet) else 0

    effects: Effects = replace(process.effects, random_below=next_draw)
    return Namespaces(process.store, process.jobs, effects, process.clock)


def actions(process: Process, namespace_id: str) -> list[tuple[str, str, str]]:
    events = [decode_audit_event(item) for item in process.store.query(audit_query(namespace_id, SYSTEM_SUBJECT)).items]
    return [(event.action, event.target, event.author.actor) for event in events]


def test_a_namespace_is_found_by_name_and_by_id(process: Process, clock: FakeClock) -> None:
    done = process.namespaces.create("acme", OPERATOR)
    assert done.created
    made = done.namespace
    assert (made.name, made.state, made.job_id) == ("acme", NamespaceState.ACTIVE, None)
    assert (made.created_at_ms, made.updated_at_ms) == (clock.now_ms, clock.now_ms)
    assert process.namespaces.get("acme") == process.namespaces.by_id(made.namespace_id) == made
    assert decode_version(process.store.get(keys.schema_version(made.namespace_id))) == CURRENT
    assert actions(process, made.namespace_id) == [("namespace.create", "orgs/acme", "operator")]
    for missing in (made.namespace_id, "Acme", "acm", "acme2", ""):
        with pytest.raises(NotFound):
            process.namespaces.get(missing)
    with pytest.raises(NotFound):
        process.namespaces.by_id("acme")


def test_ids_are_opaque_ids_like_all_others(process: Process) -> None:
    found = {process.namespaces.create(f"org-{number}", OPERATOR).namespace.namespace_id for number in range(20)}
    assert len(found) == 20
    for namespace_id in found:
        assert len(namespace_id) == ID_LENGTH == 11
        assert re.fullmatch(ID_PATTERN, namespace_id)
        assert namespace_id.isalnum()
        assert namespace_id.isascii()


def test_a_name_that_is_taken_is_answered_as_it_is(process: Process, dynamodb: DynamoDBClient, table: str) -> None:
    first = process.namespaces.create("acme", OPERATOR).namespace
    before = raw_items(dynamodb, table)
    again = process.namespaces.create("acme", Author("somebody", "else"))
    assert (again.namespace, again.created) == (first, False)
    assert raw_items(dynamodb, table) == before


def test_an_id_that_is_taken_is_drawn_again(process: Process) -> None:
    drawing(process, "aaaaaaaaaaa").create("first", OPERATOR)
    second = drawing(process, "aaaaaaaaaaa", "aaaaaaaaaaa", "bbbbbbbbbbb").create("second", OPERATOR)
    assert (second.namespace.namespace_id, second.created) == ("bbbbbbbbbbb", True)
    assert process.namespaces.by_id("aaaaaaaaaaa").name == "first"
    with pytest.raises(Contended):
        drawing(process, *["aaaaaaaaaaa"] * 4).create("third", OPERATOR)
    with pytest.raises(NotFound):
        process.namespaces.get("third")


def test_of_two_who_create_one_name_one_creates_it(
    process: Process, new_process: Callable[[], Process], dynamodb: DynamoDBClient, table: str
) -> None:
    other = new_process()
    theirs = []

    def interfere(verb: str, _request: Any) -> None:
        if verb == "transact":
            process.store.before = None
            theirs.append(other.namespaces.create("acme", OPERATOR))

    process.store.before = interfere
    mine = process.namespaces.create("acme", OPERATOR)
    assert (mine.created, theirs[0].created) == (False, True)
    assert mine.namespace == theirs[0].namespace
    assert len(raw_items(dynamodb, table)) == 4


def test_a_creation_whose_answer_was_lost_is_recognised(process: Process) -> None:
    real = process.store.inner.transact

    def twice(writes: Any, token: str) -> Any:
        process.store.inner.transact = real  # type: ignore[method-assign]  # once
        real(writes, token)
        return Cancelled((ConditionFailed(None), None, None, None))

    process.store.inner.transact = twice  # type: ignore[method-assign, assignment]  # the lost answer is played here
    done = process.namespaces.create("acme", OPERATOR)
    assert done.created
    assert process.namespaces.by_id(done.namespace.namespace_id) == done.namespace


def test_a_creation_that_fails_leaves_nothing(process: Process, dynamodb: DynamoDBClient, table: str) -> None:
    process.store.before = raising(Throttled("x"), "transact")
    with pytest.raises(Unavailable):
        process.namespaces.create("acme", OPERATOR)
    assert raw_items(dynamodb, table) == {}


def test_namespaces_are_listed_page_by_page(process: Process) -> None:
    names = [*(f"org{number:02d}" for number in range(7)), "org06.eu", "zeta"]
    for name in reversed(names):
        process.namespaces.create(name, OPERATOR)
    listed = []
    after: str | None = None
    for size in (4, 4, 1):
        page = process.namespaces.list(limit=4, after=after)
        assert len(page.namespaces) == size
        listed += [namespace.name for namespace in page.namespaces]
        after = page.next_after
    assert (listed, after) == (names, None)
    assert process.namespaces.list(after="zeta").namespaces == []


def test_only_an_active_namespace_may_act(
    process: Process, new_process: Callable[[], Process], clock: FakeClock
) -> None:
    with pytest.raises(NotFound):
        process.namespaces.require_active("unknown")
    namespace_id = process.namespaces.create("acme", OPERATOR).namespace.namespace_id
    other = new_process()
    process.namespaces.require_active(namespace_id)
    other.namespaces.require_active(namespace_id)
    process.store.taken_calls()
    process.namespaces.require_active(namespace_id)
    assert process.store.taken_calls() == []
    process.namespaces.purge("acme", OPERATOR)
    with pytest.raises(NotFound):
        process.namespaces.require_active(namespace_id)
    clock.advance(CACHE_MS - 1)
    other.namespaces.require_active(namespace_id)
    clock.advance(1)
    with pytest.raises(NotFound):
        other.namespaces.require_active(namespace_id)


def test_one_that_was_just_made_is_let_in_at_once(process: Process, new_process: Callable[[], Process]) -> None:
    with pytest.raises(NotFound):
        process.namespaces.require_active("bbbbbbbbbbb")
    drawing(new_process(), "bbbbbbbbbbb").create("acme", OPERATOR)
    process.namespaces.require_active("bbbbbbbbbbb")


def test_a_table_out_of_reach_opens_nothing(process: Process) -> None:
    namespace_id = process.namespaces.create("acme", OPERATOR).namespace.namespace_id
    process.store.before = raising(Throttled("x"), "consistent get")
    with pytest.raises(Unavailable):
        process.namespaces.require_active(namespace_id)


def test_a_purge_marks_both_records_and_tells(process: Process, clock: FakeClock) -> None:
    made = process.namespaces.create("acme", OPERATOR).namespace
    clock.advance(5)
    job = process.namespaces.purge("acme", Author("operator", "request-9"))
    assert (job.kind, job.state, job.namespace, job.owner) == (PURGE, JobState.QUEUED, made.namespace_id, REGISTRY)
    marked = process.namespaces.get("acme")
    assert marked == process.namespaces.by_id(made.namespace_id)
    assert marked == replace(made, state=NamespaceState.PURGING, job_id=job.job_id, updated_at_ms=clock.now_ms)
    assert process.jobs.get(REGISTRY, job.job_id) == job
    assert job.parameters == {"name": "acme", "requested_by": "operator", "request_id": "request-9"}
    assert [action for action, _, _ in actions(process, made.namespace_id)] == ["namespace.purge", "namespace.create"]
    assert process.namespaces.create("acme", OPERATOR).namespace == marked


def test_a_second_purge_is_the_same_job(process: Process, new_process: Callable[[], Process], clock: FakeClock) -> None:
    process.namespaces.create("acme", OPERATOR)
    job = process.namespaces.purge("acme", OPERATOR)
    clock.advance(1000)
    assert new_process().namespaces.purge("acme", OPERATOR) == job
    assert process.jobs.open_jobs() == [job]
    with pytest.raises(NotFound):
        process.namespaces.purge("nobody", OPERATOR)


def test_of_two_who_purge_at_once_both_get_one_job(process: Process, new_process: Callable[[], Process]) -> None:
    process.namespaces.create("acme", OPERATOR)
    other = new_process()
    theirs = []

    def interfere(verb: str, _request: Any) -> None:
        if verb == "transact":
            process.store.before = None
            theirs.append(other.namespaces.purge("acme", OPERATOR))

    process.store.before = interfere
    assert [process.namespaces.purge("acme", OPERATOR)] == theirs
    assert process.jobs.open_jobs() == theirs


def test_a_purge_whose_answer_was_lost_is_recognised(process: Process) -> None:
    process.namespaces.create("acme", OPERATOR)
    process.store.after = raising(Crash(), "transact")
    with pytest.raises(Crash):
        process.namespaces.purge("acme", OPERATOR)
    job = process.namespaces.purge("acme", OPERATOR)
    assert process.jobs.open_jobs() == [job]


def test_a_purge_that_failed_can_be_started_again(process: Process) -> None:
    made = process.namespaces.create("acme", OPERATOR).namespace
    failed = process.namespaces.purge("acme", OPERATOR)
    process.run({PURGE: Broken(ValueError("x"))})
    assert process.jobs.get(REGISTRY, failed.job_id).state is JobState.FAILED
    again = process.namespaces.purge("acme", OPERATOR)
    assert again.job_id != failed.job_id
    assert process.namespaces.by_id(made.namespace_id).job_id == again.job_id
    assert process.jobs.open_jobs() == [again]
    # Its record may have expired since.
    process.run({PURGE: Broken(ValueError("x"))})
    process.store.delete({"Key": {**again.key.attributes}})
    assert process.namespaces.purge("acme", OPERATOR).job_id != again.job_id


def test_both_records_say_the_same(process: Process) -> None:
    made = process.namespaces.create("acme", OPERATOR).namespace
    process.namespaces.purge("acme", OPERATOR)
    by_name = process.store.get(keys.namespace_by_name("acme"))
    by_id = process.store.get(keys.namespace_by_id(made.namespace_id))
    assert by_name is not None
    assert by_id is not None
    assert decode_namespace(by_name) == decode_namespace(by_id)
    assert {name: value for name, value in by_name.items() if name != "SK"} == {
        name: value for name, value in by_id.items() if name != "SK"
    }
