"""What reaches the bucket of a stream that delivers twice, in pieces and in part, and what a reader makes of it."""

import gzip
import json
import random
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, IncompleteReadError, ReadTimeoutError
from moto import mock_aws

from local.table import create_table
from sluice.core.archiving import UnknownName
from sluice.core.errors import Unavailable
from sluice.core.metering import CallStatus, Counters
from sluice.core.pricing import Pricing, TokenKind
from sluice.core.signals import Signal
from sluice.repository.archive import S3Archive, archive_prefix
from sluice.repository.counters import CounterName
from sluice.repository.events import UsageEvent, decode_event, encode_event
from sluice.repository.totals import decode_total, mark_due, remove_mark, total_key, write_total
from sluice.repository.wire import Item
from sluice.services.archive_reading import ArchiveReading
from sluice.services.archiving import Archived, Archiving
from sluice.services.namespaces import CACHE_MS
from tests.archives import (
    CREATED_S,
    STREAM,
    MemoryArchive,
    Record,
    audit_item,
    audits,
    counter_item,
    record,
    sequence_of,
)
from tests.fakes import FakeClock
from tests.integration.tenants import OPERATOR, Process, register, start_process

BUCKET = "archive"
TABLE = "sluice-test"
DAY = date(2026, 11, 18)
DELIVERIES = 300


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        yield


@pytest.fixture
def s3(aws: None) -> Any:
    client: Any = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET)
    client.put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration={"Status": "Enabled"})
    return client


@pytest.fixture
def process(aws: None) -> Process:
    client = boto3.client("dynamodb")
    create_table(client, TABLE)
    made = start_process(client, TABLE, FakeClock())
    for name in ("a", "b"):
        register(made, f"org-{name}", name)
    return made


@pytest.fixture
def archive() -> MemoryArchive:
    return MemoryArchive()


@pytest.fixture
def archiving(process: Process, archive: MemoryArchive) -> Archiving:
    return Archiving(archive, process.namespaces, process.meter)


def numbers(archive: MemoryArchive | S3Archive, namespace: str, day: date = DAY) -> list[int]:
    """Of the audit events, as a reader sees them."""
    return [line["after"]["number"] for line in ArchiveReading(archive).lines(namespace, "audit", day)]


def test_a_line_holds_the_item_and_neither_indexes_nor_expiry(archiving: Archiving, archive: MemoryArchive) -> None:
    archiving.archive(STREAM, audits("a", [1]))
    (line,) = ArchiveReading(archive).lines("a", "audit", DAY)
    item = audit_item("a", 1)
    assert {"GSI4PK", "GSI4SK", "ttl"} < item.keys()
    assert line == {
        **{name: value for name, value in item.items() if name not in {"GSI4PK", "GSI4SK", "ttl"}},
        "type": "audit",
    }


def usage_event(day: str = "20261117") -> UsageEvent:
    """Of yesterday, reported today."""
    return UsageEvent(
        namespace="a",
        request_id="request-1",
        body_hash="hash",
        entity="user-1",
        app="chat",
        chain=("user-1", "chat", "acme"),
        day=day,
        occurred_at_ms=CREATED_S * 1000 - 60_000,
        received_at_ms=CREATED_S * 1000,
        label="premium",
        model_id="vendor.model-v1",
        region=None,
        status=CallStatus.ERROR,
        pricing=Pricing.BATCH,
        tokens={TokenKind.INPUT: 7, TokenKind.CACHE_WRITE_1H: 10**12},
        cost_usd_micros=10**15,
        price_id="aws:vendor.model-v1:-:2026-01-01",
        tags={"team": "x"},
        lease_id="lease-1",
    )


def test_a_usage_event_is_archived_as_it_was_written(archiving: Archiving, archive: MemoryArchive) -> None:
    """Under the day on which it came in: its own day is in the line."""
    item = encode_event("chat", usage_event())
    archiving.archive(STREAM, [record(1, new=item), record(2, old=item, expired=True)])
    (line,) = ArchiveReading(archive).lines("a", "usage_event", DAY)
    assert line == {**{name: value for name, value in item.items() if name != "ttl"}, "type": "usage_event"}
    assert line["day"] == "20261117"
    assert decode_event(line) == usage_event()


def test_a_total_is_archived_when_it_expires(process: Process, archiving: Archiving, archive: MemoryArchive) -> None:
    name = CounterName("a", "chat", "premium", "20251014")
    counters = Counters(10**15, {TokenKind.OUTPUT: 10**12}, requests=3, errors=1, unpriced=1)
    process.store.update(mark_due(name, 7, 420_000), repeatable=True)
    process.store.update(write_total(name, counters, 3, 500_000), repeatable=True)
    due = process.store.get(total_key(name))
    process.store.update(remove_mark(name, 7), repeatable=True)
    item = process.store.get(total_key(name))
    assert due is not None
    assert item is not None
    assert {"GSI2PK", "GSI2SK", "GSI4PK", "GSI4SK", "ttl"} < item.keys()
    changed = [record(1, new=due), record(2, old=due, new=item)]
    archiving.archive(STREAM, [*changed, record(3, old=item, expired=True)])
    (line,) = ArchiveReading(archive).lines("a", "daily_total", DAY)
    assert line == {
        **{name: value for name, value in item.items() if not name.startswith("GSI") and name != "ttl"},
        "type": "daily_total",
    }
    found = decode_total(line)
    assert (found.name, found.revision, found.as_of_ms, found.due_minute) == (name, 3, 500_000, None)
    assert found.counters.cost_usd_micros == 10**15
    # A counter shard expires as well: its total has what was in it.
    shard = {**item, "kind": "cost_shard"}
    assert archiving.archive(STREAM, [record(4, new=shard), record(5, old=shard, expired=True)]).lines == 0


def test_of_each_kind_the_record_that_is_archived(archiving: Archiving, archive: MemoryArchive) -> None:
    usage: Item = {"PK": "a/EVENT#x", "SK": "#EVENT#1", "kind": "usage_event", "ns": "a", "cost_usd_micros": 3}
    secret: Item = {"PK": "_/CLIENT#x", "SK": "#CREDENTIALS", "kind": "client", "ns": "a", "secrets": ["hash"]}
    token: Item = {"PK": "_/TOKEN#x", "SK": "#REVOKED", "kind": "revoked", "ns": "a", "ttl": 5}
    lease: Item = {"PK": "a/LEASE#x", "SK": "#STATE", "kind": "lease", "ns": "a", "ttl": 5}
    answer: Item = {"PK": "a/IDEMPOTENCY#x", "SK": "#ANSWER", "kind": "idempotent_answer", "ns": "a", "ttl": 5}
    kept_in = [secret, token, lease, answer]
    done = archiving.archive(
        STREAM,
        [
            record(1, new=audit_item("a", 1)),
            record(2, old=audit_item("a", 2), expired=True),
            record(3, new=usage),
            record(4, old=usage, new={**usage, "cost_usd_micros": 4}),
            record(5, new=counter_item("a", "snapshot", 5)),
            record(6, old=counter_item("a", "snapshot", 6), new=counter_item("a", "snapshot", 6) | {"c_rpm": 8}),
            record(7, old=counter_item("a", "snapshot", 7), expired=True),
            record(8, old=counter_item("a", "snapshot", 8)),
            record(9, old=counter_item("a", "daily_total", 9), expired=True),
            *(record(10 + n, new=item) for n, item in enumerate(kept_in)),
            *(record(20 + n, old=item, expired=True) for n, item in enumerate(kept_in)),
        ],
    )
    assert (done.lines, done.objects, done.failed) == (4, 4, None)
    found = {
        kind: [line["SK"] for line in ArchiveReading(archive).lines("a", kind, DAY)]
        for kind in ("audit", "usage_event", "snapshot", "daily_total")
    }
    assert found == {
        "audit": [audit_item("a", 1)["SK"]],
        "usage_event": ["#EVENT#1"],
        "snapshot": ["#USAGE#gpt-4#hour#7"],
        "daily_total": ["#USAGE#gpt-4#hour#9"],
    }
    assert b"hash" not in b"".join(line for lines in archive.objects.values() for line in lines)


def test_every_object_is_below_its_namespace_which_a_purge_empties(
    archiving: Archiving, archive: MemoryArchive
) -> None:
    archiving.archive(STREAM, [*audits("a", [1, 2]), *audits("b", [3])])
    assert [name[: len(archive_prefix("a"))] for name in archive.objects] == [archive_prefix("a"), archive_prefix("b")]
    (name,) = archive.names(archive_prefix("a"))
    assert name.startswith("archive/ns=a/type=audit/dt=2026-11-18/")


def test_a_day_ends_at_midnight_utc(archiving: Archiving, archive: MemoryArchive) -> None:
    before = record(1, new=audit_item("a", 1), created_s=CREATED_S - 10.001)
    archiving.archive(STREAM, [before, *audits("a", [2])])
    assert numbers(archive, "a", date(2026, 11, 17)) == [1]
    assert numbers(archive, "a") == [2]


def test_a_batch_that_comes_again_overwrites_itself(archiving: Archiving, archive: MemoryArchive) -> None:
    batch = [*audits("a", range(5)), *audits("b", range(5, 9))]
    first, second = archiving.archive(STREAM, batch), archiving.archive(STREAM, batch)
    assert first == second
    assert len(archive.objects) == 2
    assert all(len(contents) == 1 for contents in archive.contents.values())


def test_a_part_of_a_batch_takes_nothing_away(archiving: Archiving, archive: MemoryArchive) -> None:
    """Named by its first record alone, the first half would replace the whole, until the second half comes."""
    batch = audits("a", range(10))
    archiving.archive(STREAM, batch)
    archiving.archive(STREAM, batch[:5])
    assert numbers(archive, "a") == list(range(10))
    assert all(len(contents) == 1 for contents in archive.contents.values())


def test_nothing_is_written_for_a_namespace_that_is_purged_or_gone(
    archiving: Archiving, archive: MemoryArchive, process: Process
) -> None:
    process.namespaces.purge("org-a", OPERATOR)
    done = archiving.archive(STREAM, [*audits("a", [1, 2]), *audits("b", [3]), *audits("unknown", [4])])
    assert (done.lines, done.left_out, done.failed) == (1, 3, None)
    assert [name.split("/")[1] for name in archive.objects] == ["ns=b"]


def test_a_namespace_whose_purge_began_elsewhere_is_noticed_in_time(
    archiving: Archiving, archive: MemoryArchive, process: Process
) -> None:
    archiving.archive(STREAM, audits("a", [1]))
    start_process(boto3.client("dynamodb"), TABLE, process.clock).namespaces.purge("org-a", OPERATOR)
    process.clock.advance(CACHE_MS)
    assert archiving.archive(STREAM, audits("a", [2])).left_out == 1
    assert numbers(archive, "a") == [1]


def test_the_registry_is_never_archived(archiving: Archiving, archive: MemoryArchive, process: Process) -> None:
    """Not even where it looks like a namespace."""
    register(process, "registry", "_")
    assert archiving.archive(STREAM, audits("_", [1])) == Archived(newest_ms=CREATED_S * 1000)
    assert archive.objects == {}


@pytest.mark.parametrize(
    "broken",
    [
        {"ns": None},
        {"ns": 7},
        {"size": {"B": b"x"}},
        {"size": {"N": "1.5"}},
    ],
)
def test_a_record_that_can_not_be_read_is_the_first_to_come_again(
    archiving: Archiving, archive: MemoryArchive, process: Process, broken: dict[str, Any]
) -> None:
    batch = audits("a", range(6))
    image = batch[3]["dynamodb"]["NewImage"]
    for name, value in broken.items():
        image[name] = value if isinstance(value, dict) else {"NULL": True} if value is None else {"N": str(value)}
    done = archiving.archive(STREAM, batch)
    assert (done.lines, done.failed) == (3, sequence_of(batch[3]))
    # What stands behind it comes again anyway.
    assert numbers(archive, "a") == [0, 1, 2]
    assert process.meter.counts[Signal.STREAM_FAILURES] == 1


class Unreliable(MemoryArchive):
    """Fails when it is told to, before or after it has written."""

    def __init__(self, fails: Callable[[str], str | None]) -> None:
        super().__init__()
        self.fails = fails

    def put_lines(self, name: str, lines: Iterable[bytes]) -> int:
        how = self.fails(name)
        if how == "before":
            raise Unavailable("before")
        size = super().put_lines(name, lines)
        if how == "after":
            raise Unavailable("after")
        return size


def test_a_bucket_out_of_reach_is_told_by_the_first_record_that_is_missing(process: Process) -> None:
    archive = Unreliable(lambda name: "before" if "ns=b" in name else None)
    archiving = Archiving(archive, process.namespaces, process.meter)
    batch = [*audits("a", [1, 2]), *audits("b", [3]), *audits("a", [4]), *audits("b", [5])]
    done = archiving.archive(STREAM, batch)
    assert (done.lines, done.failed) == (3, sequence_of(batch[2]))
    assert isinstance(done.error, Unavailable)
    assert process.meter.counts[Signal.ARCHIVED_RECORDS] == 3
    assert process.meter.counts[Signal.ARCHIVED_BYTES] == done.size_bytes > 0


def test_a_table_out_of_reach_is_told_too(archive: MemoryArchive, process: Process, monkeypatch: Any) -> None:
    def out_of_reach(*_: Any, **__: Any) -> Any:
        raise Unavailable("x")

    monkeypatch.setattr(process.store, "get", out_of_reach)
    batch = audits("a", [1, 2])
    done = Archiving(archive, process.namespaces, process.meter).archive(STREAM, batch)
    assert (done.lines, done.failed) == (0, sequence_of(batch[0]))
    assert archive.objects == {}


def deliver(archiving: Archiving, records: list[Record], draw: random.Random) -> None:
    """As Lambda does: from the first failed record on, or in halves; and some batches twice, or crashed."""
    tries = 0
    while records:
        done = archiving.archive(STREAM, records)
        if draw.random() < 0.2 and tries < 5:
            tries += 1  # the answer was lost: all of it again, whole or in halves
            if len(records) > 1 and draw.random() < 0.5:
                middle = draw.randrange(1, len(records))
                deliver(archiving, records[:middle], draw)
                records = records[middle:]
            continue
        if done.failed is None:
            return
        start = next(index for index, one in enumerate(records) if sequence_of(one) == done.failed)
        records = records[start:]


@pytest.mark.parametrize("seed", range(3))
def test_however_it_is_delivered_a_reader_sees_each_record_once(process: Process, seed: int) -> None:
    draw = random.Random(seed)
    archive = Unreliable(lambda _name: draw.choice(["before", "after", None, None, None]))
    archiving = Archiving(archive, process.namespaces, process.meter)
    written: dict[str, list[int]] = {"a": [], "b": []}
    number = 0
    for _ in range(DELIVERIES):
        batch: list[Record] = []
        for _ in range(draw.randrange(1, 20)):
            namespace = draw.choice("ab")
            batch += audits(namespace, [number])
            written[namespace].append(number)
            number += draw.randrange(1, 5)
        deliver(archiving, batch, draw)
    stored = sum(len(lines) for lines in archive.objects.values())
    assert stored > number // 5  # some stand there twice
    for namespace, expected in written.items():
        assert sorted(numbers(archive, namespace)) == expected
    assert all(len(contents) == 1 for contents in archive.contents.values())


def test_a_reader_remembers_only_what_overlaps(archiving: Archiving, archive: MemoryArchive) -> None:
    """Both lines have one key, which only a record that is repeated has; these are far apart, so neither was kept."""
    twice = audit_item("a", 1)
    for sequence in (1, 5, 9):
        archiving.archive(STREAM, [record(sequence, new=twice)])
    assert numbers(archive, "a") == [1, 1, 1]
    archiving.archive(STREAM, [record(1, new=twice), record(9, new=audit_item("a", 2))])
    assert sorted(numbers(archive, "a")) == [1, 2]


def test_another_stream_of_the_day_is_read_too(archiving: Archiving, archive: MemoryArchive) -> None:
    other = STREAM.replace("2026-11-18", "2026-11-17")
    archiving.archive(STREAM, audits("a", [1, 2]))
    archiving.archive(other, audits("a", [2, 3]))
    assert sorted(numbers(archive, "a")) == [1, 2, 2, 3]


def test_a_foreign_object_is_not_read_silently(archive: MemoryArchive) -> None:
    archive.put_lines("archive/ns=a/type=audit/dt=2026-11-18/note.txt", [b"{}"])
    with pytest.raises(UnknownName):
        numbers(archive, "a")


def test_the_bucket_holds_lines_that_every_tool_can_unpack(s3: Any) -> None:
    archive = S3Archive(s3, BUCKET)
    size = archive.put_lines("archive/ns=a/x", [b'{"a":1}', b'{"a":2}'])
    body = s3.get_object(Bucket=BUCKET, Key="archive/ns=a/x")["Body"].read()
    assert len(body) == size
    assert gzip.decompress(body) == b'{"a":1}\n{"a":2}\n'
    assert list(archive.read("archive/ns=a/x")) == [b'{"a":1}', b'{"a":2}']


def test_the_same_lines_are_the_same_bytes(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = S3Archive(s3, BUCKET)
    for now in (1.0, 1_900_000_000.0):
        monkeypatch.setattr("time.time", lambda now=now: now)
        archive.put_lines("archive/ns=a/x", [b"{}"] * 100)
    monkeypatch.undo()
    versions = s3.list_object_versions(Bucket=BUCKET)["Versions"]
    assert len(versions) == 2
    assert len({version["ETag"] for version in versions}) == 1


def test_names_come_in_order_and_past_a_page(s3: Any) -> None:
    archive = S3Archive(s3, BUCKET)
    for number in range(7):
        s3.put_object(Bucket=BUCKET, Key=f"archive/ns=a/{number}", Body=b"")
    s3.put_object(Bucket=BUCKET, Key="archive/ns=ab/1", Body=b"")
    pages: list[Any] = []
    s3.meta.events.register("provide-client-params.s3.ListObjectsV2", lambda params, **_: {**params, "MaxKeys": 3})
    s3.meta.events.register("after-call.s3.ListObjectsV2", lambda parsed, **_: pages.append(parsed))
    assert list(archive.names("archive/ns=a/")) == [f"archive/ns=a/{number}" for number in range(7)]
    assert len(pages) == 3


def test_a_large_object_goes_in_several_requests(s3: Any) -> None:
    draw = random.Random(7)
    lines = [draw.randbytes(512 * 1024).hex().encode() for _ in range(18)]
    calls: list[str] = []
    s3.meta.events.register("before-call.s3.*", lambda model, **_: calls.append(model.name))
    archive = S3Archive(s3, BUCKET)
    assert archive.put_lines("archive/ns=a/x", lines) > 8 * 1024 * 1024
    assert {"CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"} <= set(calls)
    assert list(archive.read("archive/ns=a/x")) == lines


class Failing:
    """A client on which everything goes wrong in one way."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> Any:
            raise self.error

        return call


def client_error(code: str, status: int) -> ClientError:
    return ClientError({"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject")  # type: ignore[typeddict-item]  # as S3 answers it


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (EndpointConnectionError(endpoint_url="x"), Unavailable),
        (ReadTimeoutError(endpoint_url="x"), Unavailable),
        (client_error("SlowDown", 503), Unavailable),
        (client_error("InternalError", 500), Unavailable),
        (client_error("AccessDenied", 403), ClientError),
    ],
)
def test_what_passes_is_told_apart_from_what_is_wrong(error: Exception, expected: type[Exception]) -> None:
    archive = S3Archive(Failing(error), BUCKET)
    with pytest.raises(expected):
        archive.put_lines("x", [b"{}"])
    with pytest.raises(expected):
        list(archive.names("x"))
    with pytest.raises(expected):
        list(archive.read("x"))


def test_a_body_that_breaks_off_is_told(s3: Any) -> None:
    archive = S3Archive(s3, BUCKET)
    archive.put_lines("x", [b"{}"] * 10_000)

    class Broken:
        def read(self, *_: Any) -> bytes:
            raise IncompleteReadError(actual_bytes=1, expected_bytes=2)

        def __enter__(self) -> "Broken":
            return self

        def __exit__(self, *_: object) -> None: ...

    class Client:
        def get_object(self, **_: Any) -> dict[str, Any]:
            return {"Body": Broken()}

    with pytest.raises(Unavailable):
        list(S3Archive(Client(), BUCKET).read("x"))


def test_written_to_the_bucket_and_read_back(s3: Any, process: Process) -> None:
    archive = S3Archive(s3, BUCKET)
    archiving = Archiving(archive, process.namespaces, process.meter)
    batch = audits("a", range(50))
    done = archiving.archive(STREAM, batch)
    archiving.archive(STREAM, batch[10:])
    assert numbers(archive, "a") == list(range(50))
    listed = s3.list_objects_v2(Bucket=BUCKET)["Contents"]
    assert done.size_bytes == max(found["Size"] for found in listed)
    assert json.loads(next(archive.read(listed[0]["Key"])))["type"] == "audit"
