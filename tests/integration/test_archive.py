"""The archive's part of a purge, on moto: every version of the namespace's objects goes, and nobody else's."""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from moto import mock_aws

from local.table import create_table
from sluice.core.errors import Unavailable
from sluice.repository import keys
from sluice.repository.archive import NotRemoved, S3Archive, archive_prefix
from sluice.repository.jobs import JobState
from sluice.repository.wire import Item
from sluice.services.purge import PAGE, PURGE, UNNOTICED_MS, Purge
from tests.fakes import FakeClock
from tests.integration.tenants import OPERATOR, Crash, Process, put_items, raw_items, register, start_process

BUCKET = "archive"
TABLE = "sluice-test"
HASH = "hmac-sha256$0011$22$33"
NEIGHBOURS = ("a", "abc", "AB", "ab%2F", "ab/")


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        client: Any = boto3.client("s3")
        client.create_bucket(Bucket=BUCKET)
        client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
        yield client


@pytest.fixture
def archive(s3: Any) -> S3Archive:
    return S3Archive(s3, BUCKET)


def put_objects(s3: Any, namespace: str, count: int) -> None:
    """Of three objects one has an older version, one was deleted and left a marker: five versions."""
    for number in range(count):
        key = f"{archive_prefix(namespace)}year=2026/{number}.parquet"
        s3.put_object(Bucket=BUCKET, Key=key, Body=b"x")
        if number % 3 == 1:
            s3.put_object(Bucket=BUCKET, Key=key, Body=b"y")
        if number % 3 == 2:
            s3.delete_object(Bucket=BUCKET, Key=key)


def versions(s3: Any, prefix: str = "") -> list[tuple[str, str]]:
    page = s3.list_object_versions(Bucket=BUCKET, Prefix=prefix)
    listed = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
    assert not page["IsTruncated"]
    return sorted((one["Key"], one["VersionId"]) for one in listed)


def test_every_version_and_marker_goes_and_the_neighbours_stay(s3: Any, archive: S3Archive) -> None:
    for namespace in ("ab", *NEIGHBOURS):
        put_objects(s3, namespace, 3)
    s3.put_object(Bucket=BUCKET, Key="archive/ns=ab", Body=b"of nobody")
    before = versions(s3)
    mine = versions(s3, archive_prefix("ab"))
    assert archive.remove_some("ab", 100) == len(mine) == 5
    assert versions(s3) == [one for one in before if one not in mine]
    assert archive.remove_some("ab", 100) == 0


def test_a_call_removes_so_many_and_the_next_one_goes_on(s3: Any, archive: S3Archive) -> None:
    put_objects(s3, "ab", 6)
    removed = [archive.remove_some("ab", 4) for _ in range(4)]
    assert removed == [4, 4, 2, 0]


def test_a_namespace_without_an_archive(archive: S3Archive) -> None:
    assert archive.remove_some("ab", 100) == 0


class Client:
    """Lists two versions, one of them of another namespace, and answers a deletion as it is told."""

    def __init__(self, errors: list[str] | None = None, raised: Exception | None = None) -> None:
        self.errors = errors or []
        self.raised = raised
        self.deleted: list[Any] = []

    def list_object_versions(self, **_request: Any) -> Any:
        if self.raised is not None:
            raise self.raised
        return {
            "Versions": [
                {"Key": f"{archive_prefix('ab')}1", "VersionId": "v1"},
                {"Key": f"{archive_prefix('abc')}1", "VersionId": "v2"},
            ]
        }

    def delete_objects(self, **request: Any) -> Any:
        self.deleted += request["Delete"]["Objects"]
        return {"Errors": [{"Key": f"{archive_prefix('ab')}1", "Code": code} for code in self.errors]}


def refusal(code: str, status: int) -> ClientError:
    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "ListObjectVersions")


def test_what_a_listing_shows_by_mistake_is_not_deleted() -> None:
    client = Client()
    assert S3Archive(client, BUCKET).remove_some("ab", 100) == 1
    assert client.deleted == [{"Key": f"{archive_prefix('ab')}1", "VersionId": "v1"}]


@pytest.mark.parametrize(
    "raised",
    [
        refusal("SlowDown", 503),
        refusal("Whatever", 500),
        refusal("RequestTimeout", 400),
        EndpointConnectionError(endpoint_url="https://s3"),
    ],
    ids=["slow down", "internal", "time-out", "no connection"],
)
def test_a_bucket_that_does_not_answer_only_delays(raised: Exception) -> None:
    with pytest.raises(Unavailable):
        S3Archive(Client(raised=raised), BUCKET).remove_some("ab", 100)


def test_a_bucket_that_refuses_is_told_to_somebody() -> None:
    """As Unavailable it would be tried again for ever, and no alarm would say so."""
    with pytest.raises(ClientError):
        S3Archive(Client(raised=refusal("AccessDenied", 403)), BUCKET).remove_some("ab", 100)
    with pytest.raises(NotRemoved, match=r"^AccessDenied$"):
        S3Archive(Client(errors=["AccessDenied"]), BUCKET).remove_some("ab", 100)


def test_what_a_busy_bucket_kept_is_not_counted() -> None:
    assert S3Archive(Client(errors=["SlowDown"]), BUCKET).remove_some("ab", 100) == 0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def process(s3: Any, clock: FakeClock) -> Process:
    client = boto3.client("dynamodb")
    create_table(client, TABLE)
    return start_process(client, TABLE, clock)


def run_to_the_end(process: Process, archive: Any) -> None:
    for _ in range(20):
        process.run({PURGE: Purge(process.store, process.effects, archive)})
        if not process.jobs.open_jobs():
            return
        process.clock.advance(60_000)
    raise AssertionError("the purge does not end")


def test_a_purge_leaves_nothing_in_table_and_bucket(s3: Any, archive: S3Archive, process: Process) -> None:
    register(process, "mine", "ab")
    register(process, "other", "abc")
    client = boto3.client("dynamodb")
    filled = put_items(client, TABLE, "ab", 2)
    put_objects(s3, "ab", PAGE)
    put_objects(s3, "abc", 3)
    in_archive = len(versions(s3, archive_prefix("ab")))
    assert in_archive > PAGE
    theirs = versions(s3, archive_prefix("abc"))
    job = process.namespaces.purge("mine", OPERATOR)
    run_to_the_end(process, archive)
    done = process.jobs.get(keys.REGISTRY_NAMESPACE, job.job_id)
    # The audit event of the purge goes with the rest.
    assert (done.state, done.done) == (JobState.DONE, filled + 1 + in_archive)
    assert versions(s3) == theirs
    left = raw_items(client, TABLE)
    assert {key for key in left if key[0] != f"_/JOB#{job.job_id}"} == {
        ("_/SYSTEM#", "#NAMESPACE#other"),
        ("_/SYSTEM#", "#NSID#abc"),
    }


def test_what_is_archived_while_it_runs_goes_too(s3: Any, archive: S3Archive, process: Process) -> None:
    """Whoever archives may not have noticed; so the name is not free before a pass found nothing in the bucket."""
    register(process, "mine", "ab")
    process.namespaces.purge("mine", OPERATOR)
    assert process.run({PURGE: Purge(process.store, process.effects, archive)}).left == 1
    put_objects(s3, "ab", 3)
    process.clock.advance(UNNOTICED_MS)
    run_to_the_end(process, archive)
    assert versions(s3) == []


class Dying:
    """Removes, and dies before it can say so."""

    def __init__(self, archive: S3Archive, calls: int) -> None:
        self.archive = archive
        self.left = calls

    def remove_some(self, namespace: str, limit: int) -> int:
        removed = self.archive.remove_some(namespace, min(limit, 2))
        self.left -= 1
        if not self.left:
            raise Crash
        return removed


@pytest.mark.parametrize("calls", [1, 2, 3, 4])
def test_it_goes_on_after_a_crash_in_the_archive(s3: Any, archive: S3Archive, process: Process, calls: int) -> None:
    register(process, "mine", "ab")
    put_objects(s3, "ab", 3)
    job = process.namespaces.purge("mine", OPERATOR)
    process.clock.advance(UNNOTICED_MS)
    with pytest.raises(Crash):
        process.run({PURGE: Purge(process.store, process.effects, Dying(archive, calls))})
    run_to_the_end(process, archive)
    assert versions(s3) == []
    assert process.jobs.get(keys.REGISTRY_NAMESPACE, job.job_id).state is JobState.DONE


def test_a_bucket_out_of_reach_keeps_the_name_taken(process: Process) -> None:
    class Unreachable:
        def remove_some(self, namespace: str, limit: int) -> int:
            raise Unavailable("x")

    register(process, "mine", "ab")
    process.namespaces.purge("mine", OPERATOR)
    process.clock.advance(UNNOTICED_MS)
    for _ in range(3):
        assert process.run({PURGE: Purge(process.store, process.effects, Unreachable())}).left == 1
    assert process.namespaces.get("mine").namespace_id == "ab"


def test_no_hash_of_a_secret_reaches_the_purge(archive: S3Archive, s3: Any, clock: FakeClock) -> None:
    """Neither by a read nor by the answer to a deletion: what the function may do says the same."""
    client = boto3.client("dynamodb")
    create_table(client, TABLE)
    process = start_process(client, TABLE, clock)
    register(process, "mine", "ab")
    key = keys.client("c" * 20)
    item: Item = {**key.attributes, **keys.namespace_index("ab", key), "kind": "client", "secrets": [HASH]}
    process.store.put({"Item": item}, repeatable=True)
    own = keys.org_settings("ab")
    process.store.put({"Item": {**own.attributes, "kind": "org", "note": "own"}}, repeatable=True)
    process.namespaces.purge("mine", OPERATOR)
    answers: list[str] = []
    client.meta.events.register("after-call.dynamodb.*", lambda parsed, **_: answers.append(str(parsed)))
    run_to_the_end(process, archive)
    assert len(answers) > 20
    assert not any(HASH in answer for answer in answers)
    assert process.store.get(key) is None
    assert process.store.get(own) is None
