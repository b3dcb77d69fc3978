"""`make redrive QUEUE=url`: what a function of the stream gave up on is read from the stream again and given to it.

A message in a failure queue does not hold records. It names a stretch of the stream: its shard, its first and its last
sequence number. The stream keeps them for a day; so the alarm on the queue is to be answered within hours.

Nothing is counted or kept twice: what a function did for a record, it does once (see docs/guarantees.md). So a message
may be driven again, also by two people at once, and the stretch may hold records that the function is not for. A
message is taken from the queue only when the function has done all of it; otherwise it stays and comes back.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

# As the stream delivers to the busier function.
BATCH_RECORDS: Final = 100
# Lambda takes 6 MB; the envelope of an event needs some.
BATCH_BYTES: Final = 5_000_000
# A stretch is found within a few pages; only a stream that lost it has so many without a record.
EMPTY_PAGES_MAX: Final = 1_000
# Longer than the function may run, so that nobody else is given the message meanwhile.
HIDDEN_SECONDS: Final = 900
# Without waiting, SQS asks some of its servers only and may miss a message.
_WAIT_SECONDS: Final = 3
# More than any function of the stream may take.
_ANSWER: Final = Config(read_timeout=120, retries={"total_max_attempts": 1})
_TRIMMED: Final = "TrimmedDataAccessException"

Record = dict[str, Any]
Say = Callable[[str], None]


class RedriveError(Exception):
    """The stretch was not done, and its message stays. The text is for a person."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a function gave up on."""

    function: str
    stream: str
    shard: str
    first: str
    last: str

    @classmethod
    def read(cls, message: str) -> "Stretch":
        """From a message as Lambda writes it for a stream of DynamoDB."""
        try:
            content = json.loads(message)
            batch = content["DDBStreamBatchInfo"]
            return cls(
                function=content["requestContext"]["functionArn"],
                stream=batch["streamArn"],
                shard=batch["shardId"],
                first=batch["startSequenceNumber"],
                last=batch["endSequenceNumber"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise RedriveError(f"not a message about a stretch of a stream: {type(error).__name__} {error}") from error


@dataclass(frozen=True, slots=True)
class Clients:
    """`streams`, `functions`, `queues`: boto3's for DynamoDB Streams, Lambda and SQS."""

    streams: Any
    functions: Any
    queues: Any

    @classmethod
    def of_environment(cls) -> "Clients":
        return cls(boto3.client("dynamodbstreams"), boto3.client("lambda", config=_ANSWER), boto3.client("sqs"))


def redrive(clients: Clients, stretch: Stretch) -> int:
    """Gives the function the whole stretch and answers how many records that were. Raises RedriveError."""
    given = 0
    for batch in _batches(read_stretch(clients.streams, stretch)):
        _give(clients.functions, stretch.function, batch)
        given += len(batch)
    return given


def redrive_queue(clients: Clients, queue: str, say: Say) -> int:
    """Every message that is there, one after the other. Answers how many of them were not done."""
    failed: list[str] = []
    while message := _receive(clients.queues, queue):
        handle = message["ReceiptHandle"]
        try:
            given = redrive(clients, Stretch.read(message["Body"]))
        except RedriveError as error:
            failed.append(handle)
            say(f"message {message['MessageId']} stays in the queue: {error}")
            continue
        _ask(clients.queues.delete_message, QueueUrl=queue, ReceiptHandle=handle)
        say(f"message {message['MessageId']}: {given} records done")
    for handle in failed:
        # Only now: it would have been received again.
        _ask(clients.queues.change_message_visibility, QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=0)
    return len(failed)


def read_stretch(streams: Any, stretch: Stretch) -> Iterator[Record]:
    """Its records as a function gets them, both ends included."""
    last, empty_pages = int(stretch.last), 0
    iterator = _ask(
        streams.get_shard_iterator,
        StreamArn=stretch.stream,
        ShardId=stretch.shard,
        ShardIteratorType="AT_SEQUENCE_NUMBER",
        SequenceNumber=stretch.first,
    )["ShardIterator"]
    while iterator is not None:
        page = _ask(streams.get_records, ShardIterator=iterator)
        for record in page["Records"]:
            sequence = int(record["dynamodb"]["SequenceNumber"])
            if sequence <= last:
                yield as_event(record, stretch.stream)
            if sequence >= last:
                return
        empty_pages = 0 if page["Records"] else empty_pages + 1
        if empty_pages > EMPTY_PAGES_MAX:
            break
        iterator = page.get("NextShardIterator")
    raise RedriveError(f"the shard ended before record {stretch.last}: the stretch is not in the stream")


def as_event(record: Mapping[str, Any], stream: str) -> Record:
    """The API names and types a few fields otherwise than the event of a function does."""
    change = dict(record["dynamodb"])
    created = change["ApproximateCreationDateTime"]
    if isinstance(created, datetime):
        change["ApproximateCreationDateTime"] = created.timestamp()
    event = {**record, "dynamodb": change, "eventSourceARN": stream}
    identity = record.get("userIdentity")
    if identity:
        # By this a function knows what has expired: as the API spells it, nothing ever would.
        event["userIdentity"] = {"type": identity["Type"], "principalId": identity["PrincipalId"]}
    return event


def _batches(records: Iterator[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    size = 0
    for record in records:
        length = len(json.dumps(record))
        if batch and (len(batch) == BATCH_RECORDS or size + length > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += length
    if batch:
        yield batch


def _give(functions: Any, function: str, batch: Sequence[Record]) -> None:
    payload = json.dumps({"Records": batch})
    answer = _ask(functions.invoke, FunctionName=function, InvocationType="RequestResponse", Payload=payload)
    said = answer["Payload"].read()
    if "FunctionError" in answer:
        raise RedriveError(f"the function failed ({answer['FunctionError']}): its log says why")
    failures = (json.loads(said) or {}).get("batchItemFailures") or []
    if failures:
        raise RedriveError(f"the function can not do record {failures[0]['itemIdentifier']}: its log says why")


def _receive(queues: Any, queue: str) -> Any:
    """One message, hidden from everybody else, or None."""
    answer = _ask(
        queues.receive_message,
        QueueUrl=queue,
        MaxNumberOfMessages=1,
        WaitTimeSeconds=_WAIT_SECONDS,
        VisibilityTimeout=HIDDEN_SECONDS,
    )
    return next(iter(answer.get("Messages") or ()), None)


def _ask(call: Callable[..., Any], **arguments: Any) -> Any:
    try:
        return call(**arguments)
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code == _TRIMMED:
            raise RedriveError("it is no longer there: a stream keeps its records for a day") from error
        raise RedriveError(f"AWS refused: {error}") from error
    except BotoCoreError as error:
        raise RedriveError(f"AWS did not answer: {error}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="redrive", description="Gives a function what it gave up on.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--queue", metavar="URL", help="every message in this failure queue; those that are done go")
    source.add_argument("--file", metavar="PATH", type=Path, help="one message that was saved")
    chosen = parser.parse_args(arguments)
    clients = Clients.of_environment()
    try:
        if chosen.queue is not None:
            return 1 if redrive_queue(clients, chosen.queue, print) else 0
        print(f"{redrive(clients, Stretch.read(chosen.file.read_text()))} records done")
    except (RedriveError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
