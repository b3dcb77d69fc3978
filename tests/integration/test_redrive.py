"""The redrive of a failure queue, on moto's streams and queues; Lambda is the archiver's handler, called directly."""

import io
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

import local.redrive
from local.redrive import Clients, RedriveError, Stretch, as_event, main, read_stretch, redrive, redrive_queue
from sluice.core.archiving import archived_type
from sluice.repository.archive import S3Archive, archive_prefix
from sluice.repository.stream_records import parse_record
from sluice.repository.wire import item_to_wire
from sluice.services.archive_reading import ArchiveReading
from tests.archives import STREAM, audit_item
from tests.http import NAMESPACE, TABLE, Context, deployed

BUCKET = "archive-test"
FUNCTION = "arn:aws:lambda:us-east-1:123456789012:function:archiver:live"


class Functions:
    """Lambda, as far as a redrive needs it. `broken`: answers, instead of the function's own."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module
        self.batches: list[int] = []
        self.broken: dict[str, Any] | None = None

    def invoke(self, *, FunctionName: str, InvocationType: str, Payload: str) -> dict[str, Any]:  # noqa: N803 - as boto3 names them
        assert (FunctionName, InvocationType) == (FUNCTION, "RequestResponse")
        if self.broken is not None:
            return {"StatusCode": 200, **self.broken}
        event = json.loads(Payload)
        self.batches.append(len(event["Records"]))
        answer = self.module.handler(event, Context())
        return {"StatusCode": 200, "Payload": io.BytesIO(json.dumps(answer).encode())}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setenv("SLUICE_ARCHIVE_BUCKET", BUCKET)
    monkeypatch.setattr(local.redrive, "_WAIT_SECONDS", 0)
    with deployed("archiver.handler", monkeypatch) as loaded:
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield loaded


@pytest.fixture
def functions(module: ModuleType) -> Functions:
    return Functions(module)


@pytest.fixture
def clients(functions: Functions) -> Clients:
    return Clients(boto3.client("dynamodbstreams"), functions, boto3.client("sqs"))


@pytest.fixture
def queue(module: ModuleType) -> str:
    url: str = boto3.client("sqs").create_queue(QueueName="failures")["QueueUrl"]
    return url


def write(count: int) -> list[str]:
    """So many audit events; answers the sequence numbers of all records of the stream."""
    client: Any = boto3.client("dynamodb")
    for number in range(count):
        client.put_item(TableName=TABLE, Item=item_to_wire(audit_item(NAMESPACE, number)))
    stream, shard = where()
    streams = boto3.client("dynamodbstreams")
    start = streams.get_shard_iterator(StreamArn=stream, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    records = streams.get_records(ShardIterator=start["ShardIterator"])["Records"]
    return [record["dynamodb"]["SequenceNumber"] for record in records]


def where() -> tuple[str, str]:
    stream = boto3.client("dynamodb").describe_table(TableName=TABLE)["Table"]["LatestStreamArn"]
    (shard,) = boto3.client("dynamodbstreams").describe_stream(StreamArn=stream)["StreamDescription"]["Shards"]
    return stream, shard["ShardId"]


def message(first: str, last: str) -> str:
    """As Lambda writes it."""
    stream, shard = where()
    return json.dumps(
        {
            "requestContext": {
                "requestId": "c9b8fa9f-5a7f-xmpl-af9c-0c604cde93a5",
                "functionArn": FUNCTION,
                "condition": "RetryAttemptsExhausted",
                "approximateInvokeCount": 11,
            },
            "responseContext": {"statusCode": 200, "executedVersion": "1", "functionError": "Unhandled"},
            "version": "1.0",
            "timestamp": "2026-11-18T00:00:41.041Z",
            "DDBStreamBatchInfo": {
                "shardId": shard,
                "startSequenceNumber": first,
                "endSequenceNumber": last,
                "approximateArrivalOfFirstRecord": "2026-11-18T00:00:00Z",
                "approximateArrivalOfLastRecord": "2026-11-18T00:00:01Z",
                "batchSize": 3,
                "streamArn": stream,
            },
        }
    )


def numbers() -> list[int]:
    """Of what is archived, whatever day it is."""
    archive = S3Archive(boto3.client("s3"), BUCKET)
    days = sorted({name.split("/dt=")[1][:10] for name in archive.names(archive_prefix(NAMESPACE))})
    found = (ArchiveReading(archive).lines(NAMESPACE, "audit", date.fromisoformat(day)) for day in days)
    return [line["after"]["number"] for lines in found for line in lines]


def test_a_stretch_is_read_from_its_first_to_its_last_record(clients: Clients) -> None:
    sequences = write(6)
    stretch = Stretch.read(message(sequences[-5], sequences[-2]))
    found = [record["dynamodb"]["SequenceNumber"] for record in read_stretch(clients.streams, stretch)]
    assert found == sequences[-5:-1]


def test_the_function_is_given_the_stretch(clients: Clients, functions: Functions) -> None:
    """Also the records that it is not for: the tenant's own items stand before its audit events."""
    sequences = write(6)
    assert len(sequences) > 6
    assert redrive(clients, Stretch.read(message(sequences[0], sequences[-2]))) == len(sequences) - 1
    assert numbers() == [0, 1, 2, 3, 4]


def test_in_batches_that_a_function_takes(
    clients: Clients, functions: Functions, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences = write(7)
    stretch = Stretch.read(message(sequences[-7], sequences[-1]))
    monkeypatch.setattr(local.redrive, "BATCH_RECORDS", 3)
    redrive(clients, stretch)
    assert functions.batches == [3, 3, 1]
    size = max(len(json.dumps(record)) for record in read_stretch(clients.streams, stretch))
    monkeypatch.setattr(local.redrive, "BATCH_BYTES", 2 * size)
    redrive(clients, stretch)
    assert functions.batches[3:] == [2, 2, 2, 1]
    assert numbers() == list(range(7))


def test_a_queue_is_emptied_of_what_is_done(clients: Clients, queue: str) -> None:
    sequences = write(6)
    for first, last in ((-6, -4), (-3, -1)):
        clients.queues.send_message(QueueUrl=queue, MessageBody=message(sequences[first], sequences[last]))
    said: list[str] = []
    assert redrive_queue(clients, queue, said.append) == 0
    assert [line.split(": ")[1] for line in said] == ["3 records done", "3 records done"]
    assert numbers() == list(range(6))
    assert waiting(queue) == 0


def waiting(queue: str) -> int:
    asked = "ApproximateNumberOfMessages"
    return int(boto3.client("sqs").get_queue_attributes(QueueUrl=queue, AttributeNames=[asked])["Attributes"][asked])


def test_a_message_that_is_not_done_stays_and_the_others_go_on(clients: Clients, queue: str) -> None:
    sequences = write(2)
    clients.queues.send_message(QueueUrl=queue, MessageBody="{}")
    clients.queues.send_message(QueueUrl=queue, MessageBody=message(sequences[-2], sequences[-1]))
    said: list[str] = []
    assert redrive_queue(clients, queue, said.append) == 1
    assert ["stays in the queue: not a message" in line for line in said].count(True) == 1
    assert numbers() == [0, 1]
    # And can be seen at once, by the alarm and by the next run.
    assert waiting(queue) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"FunctionError": "Unhandled", "Payload": io.BytesIO(b"{}")}, r"the function failed \(Unhandled\)"),
        ({"Payload": io.BytesIO(b'{"batchItemFailures": [{"itemIdentifier": "77"}]}')}, "can not do record 77"),
    ],
)
def test_a_function_that_fails_again_is_told(
    clients: Clients, functions: Functions, answer: dict[str, Any], said: str
) -> None:
    functions.broken = answer
    sequences = write(1)
    with pytest.raises(RedriveError, match=said):
        redrive(clients, Stretch.read(message(sequences[-1], sequences[-1])))


class Pages:
    """A shard that answers these pages, and then has no more; or is gone."""

    def __init__(self, pages: list[list[int]], *, trimmed: bool = False, open_end: bool = False) -> None:
        self.pages = pages
        self.trimmed = trimmed
        self.open_end = open_end

    def get_shard_iterator(self, **_: Any) -> dict[str, Any]:
        return {"ShardIterator": "0"}

    def get_records(self, *, ShardIterator: str) -> dict[str, Any]:  # noqa: N803 - as boto3 names it
        if self.trimmed:
            error: Any = {"Error": {"Code": "TrimmedDataAccessException"}}
            raise ClientError(error, "GetRecords")
        at = int(ShardIterator)
        page = self.pages[at] if at < len(self.pages) else []
        created = datetime(2026, 11, 18, tzinfo=UTC)
        records = [{"dynamodb": {"SequenceNumber": str(n), "ApproximateCreationDateTime": created}} for n in page]
        more = at + 1 < len(self.pages) or self.open_end
        return {"Records": records, **({"NextShardIterator": str(at + 1)} if more else {})}


STRETCH = Stretch(FUNCTION, STREAM, "shard", "2", "10")


def test_empty_pages_are_passed_and_numbers_are_compared_as_numbers() -> None:
    found = read_stretch(Pages([[], [2, 3], [], [9, 10, 11]]), STRETCH)
    assert [int(record["dynamodb"]["SequenceNumber"]) for record in found] == [2, 3, 9, 10]


@pytest.mark.parametrize("pages", [Pages([[2, 3]]), Pages([[2, 3]], open_end=True)])
def test_a_stretch_that_does_not_end_is_not_taken_for_done(pages: Pages) -> None:
    with pytest.raises(RedriveError, match="before record 10"):
        list(read_stretch(pages, STRETCH))


def test_the_end_may_itself_be_missing() -> None:
    """Lambda filters: the record with the last number is there, but to be safe one behind it ends the stretch too."""
    found = read_stretch(Pages([[2, 11]]), STRETCH)
    assert [record["dynamodb"]["SequenceNumber"] for record in found] == ["2"]


def test_what_the_stream_no_longer_keeps_is_told() -> None:
    with pytest.raises(RedriveError, match="keeps its records for a day"):
        list(read_stretch(Pages([], trimmed=True), STRETCH))


def test_an_expired_item_is_known_as_one_again() -> None:
    """The API spells who removed it otherwise than the event of a function does."""
    record = {
        "eventName": "REMOVE",
        "userIdentity": {"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"},
        "dynamodb": {
            "SequenceNumber": "1",
            "ApproximateCreationDateTime": datetime(2026, 11, 18, tzinfo=UTC),
            "OldImage": {"kind": {"S": "snapshot"}},
        },
    }
    event = json.loads(json.dumps(as_event(record, STREAM)))
    parsed = parse_record(event)
    assert archived_type(parsed.event_name, parsed.kind, expired=parsed.expired) == "snapshot"
    assert (parsed.created_ms, event["eventSourceARN"]) == (1_794_960_000_000, STREAM)


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"DDBStreamBatchInfo": {}}'])
def test_a_message_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(RedriveError, match="not a message"):
        Stretch.read(text)


def test_the_command(
    clients: Clients, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Clients, "of_environment", lambda: clients)
    sequences = write(2)
    saved = tmp_path / "message.json"
    saved.write_text(message(sequences[-2], sequences[-1]))
    assert main(["--file", str(saved)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 records done"
    assert numbers() == [0, 1]
    assert main(["--file", str(tmp_path / "missing")]) == 1
    assert "error: " in capsys.readouterr().err
    assert main(["--queue", queue]) == 0
    clients.queues.send_message(QueueUrl=queue, MessageBody="x")
    assert main(["--queue", queue]) == 1
