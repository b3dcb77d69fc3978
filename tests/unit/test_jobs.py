"""Jobs and namespaces as items, and the requests that are built for them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.repository import enumeration, keys
from sluice.repository.jobs import (
    KEPT_S,
    Job,
    JobState,
    decode_job,
    encode_job,
    jobs_queries,
    put_job,
    queued_job,
    replace_job,
)
from sluice.repository.namespaces import (
    Namespace,
    NamespaceState,
    create_writes,
    decode_namespace,
    encode_namespace,
    purge_writes,
    remove_writes,
)
from sluice.repository.shapes import UnknownShape
from sluice.services.purge import _Place

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
maps = st.dictionaries(st.text(max_size=5), values, max_size=3)
whole = st.integers(0, 10**13)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    job_id = draw(st.text(max_size=5))
    namespace = draw(st.text(max_size=5))
    return Job(
        key=keys.job(draw(st.sampled_from([namespace, keys.REGISTRY_NAMESPACE])), job_id),
        job_id=job_id,
        namespace=namespace,
        kind=draw(st.text(max_size=5)),
        state=draw(st.sampled_from(JobState)),
        parameters=draw(maps),
        done=draw(whole),
        total=draw(st.none() | whole),
        cursor=draw(st.none() | maps),
        result=draw(st.none() | maps),
        error=draw(st.none() | st.text(max_size=5)),
        version=draw(whole),
        created_at_ms=draw(whole),
        started_at_ms=draw(st.none() | whole),
        ended_at_ms=draw(st.none() | whole),
    )


@given(jobs())
def test_a_job_comes_back_as_it_was(job: Job) -> None:
    item = encode_job(job, 7)
    assert decode_job(item) == job
    assert item["updated_at"] == 7


@given(jobs())
def test_only_an_open_job_is_in_the_index_of_open_jobs_and_only_an_ended_one_expires(job: Job) -> None:
    item = encode_job(job, 7)
    assert (item.get("GSI3PK") == "_/JOBS") == (job.state in {JobState.QUEUED, JobState.RUNNING})
    assert ("GSI3PK" in item) == ("GSI3SK" in item) == job.is_open
    assert item.get("ttl") == (None if job.ended_at_ms is None else job.ended_at_ms // 1000 + KEPT_S)


@given(jobs())
def test_a_job_is_indexed_under_its_owner(job: Job) -> None:
    item = encode_job(job, 7)
    owner = keys.namespace_partitions(job.owner)
    assert item["GSI4PK"] in owner
    assert item["GSI4SK"] == job.key.pk
    assert job.key == keys.job(job.owner, job.job_id)


def test_a_job_of_the_registry_is_not_found_by_the_purge_of_its_namespace() -> None:
    job = queued_job(keys.REGISTRY_NAMESPACE, "ab", "1", "purge", {}, 7)
    assert encode_job(job, 7)["GSI4PK"] not in keys.namespace_partitions("ab")
    assert not enumeration.is_of("ab", job.key.pk)


JOB = queued_job("ns", "ns", "1", "kind", {}, 7)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "bucket"},
        {"state": "paused"},
        {"state": 1},
        {"cursor": "x"},
        {"result": []},
        {"parameters": 1},
        {"done": None},
        {"v": "1"},
        {"ns": None},
    ],
)
def test_a_job_that_is_not_understood_raises(change: dict[str, object]) -> None:
    with pytest.raises(UnknownShape):
        decode_job({**encode_job(JOB, 7), **change})  # type: ignore[dict-item]  # what may not be there


def test_a_job_is_put_once_and_replaced_as_seen() -> None:
    assert put_job(JOB)["ConditionExpression"] == "attribute_not_exists(PK)"
    request = replace_job(replace(JOB, version=4), replace(JOB, done=3, version=4), 9)
    assert (request["ConditionExpression"], request["ExpressionAttributeValues"]) == ("v = :seen", {":seen": 4})
    assert (request["Item"]["v"], request["Item"]["done"], request["Item"]["updated_at"]) == (5, 3, 9)


def test_jobs_are_asked_for_in_every_partition() -> None:
    requests = jobs_queries("ab", None, 10)
    assert [request["ExpressionAttributeValues"][":partition"] for request in requests] == [
        f"ab#{number}" for number in range(8)
    ]
    (before, *_) = jobs_queries("ab", "5", 10)
    assert before["ExpressionAttributeValues"] == {":partition": "ab#0", ":first": "ab/JOB#", ":last": "ab/JOB#5"}


namespaces = st.builds(
    Namespace,
    name=st.text(max_size=5),
    namespace_id=st.text(max_size=5),
    state=st.sampled_from(NamespaceState),
    job_id=st.none() | st.text(max_size=5),
    created_at_ms=whole,
    updated_at_ms=whole,
)


@given(namespaces)
def test_a_namespace_comes_back_as_it_was(namespace: Namespace) -> None:
    assert decode_namespace(encode_namespace(keys.namespace_by_id(namespace.namespace_id), namespace)) == namespace


@pytest.mark.parametrize("change", [{"kind": "job"}, {"state": "gone"}, {"name": None}, {"ns": 1}, {"created_at": "x"}])
def test_a_namespace_that_is_not_understood_raises(change: dict[str, object]) -> None:
    item = encode_namespace(keys.namespace_by_name("n"), Namespace("n", "i", NamespaceState.ACTIVE, None, 1, 2))
    with pytest.raises(UnknownShape):
        decode_namespace({**item, **change})  # type: ignore[dict-item]  # what may not be there


def test_both_records_are_in_every_write() -> None:
    active = Namespace("name", "id", NamespaceState.ACTIVE, None, 1, 2)
    marked = replace(active, state=NamespaceState.PURGING, job_id="old")
    both = [keys.namespace_by_name("name").attributes, keys.namespace_by_id("id").attributes]
    created = [write["Put"] for write in create_writes(active)]
    assert [{name: put["Item"][name] for name in ("PK", "SK")} for put in created] == both
    assert {put["ConditionExpression"] for put in created} == {"attribute_not_exists(PK)"}
    for seen, condition in ((active, "attribute_not_exists(job_id)"), (marked, "job_id = :seen_job")):
        updates = [write["Update"] for write in purge_writes(seen, "job", 9)]
        assert [update["Key"] for update in updates] == both
        assert {update["ConditionExpression"] for update in updates} == {f"ns = :ns AND {condition}"}
    removed = [write["Delete"] for write in remove_writes(marked, "old")]
    assert [delete["Key"] for delete in removed] == both
    assert {delete["ConditionExpression"] for delete in removed} == {"ns = :ns AND job_id = :job"}


@given(st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))
def test_no_namespace_owns_a_partition_of_another(one: str, other: str, entity: str) -> None:
    """Whatever the ids are: prefixes of each other, separators, escapes."""
    for pk in (
        keys.entity(one, entity).pk,
        keys.bucket(one, entity, entity, 3).pk,
        keys.lease(one, entity).pk,
        keys.job(one, entity).pk,
        keys.audit_of(one, entity),
        keys.schema_version(one).pk,
    ):
        assert enumeration.is_of(one, pk)
        assert enumeration.is_of(other, pk) == (one == other)
        assert enumeration.is_of_registry(pk) == (one == keys.REGISTRY_NAMESPACE)
    own, theirs = set(keys.namespace_partitions(one)), set(keys.namespace_partitions(other))
    assert bool(own & theirs) == (one == other)


@given(
    st.builds(
        _Place,
        passes=whole,
        found=whole,
        partition=st.integers(0, 8),
        after=st.none() | st.text(),
        start=st.none() | maps,
    )
)
def test_the_place_of_a_purge_comes_back_as_it_was(place: _Place) -> None:
    assert _Place.read(place.cursor()) == place


def test_a_purge_begins_in_its_first_pass() -> None:
    assert _Place.read(None) == _Place(passes=1)
    with pytest.raises(UnknownShape):
        _Place.read({**_Place().cursor(), "start": "x"})
