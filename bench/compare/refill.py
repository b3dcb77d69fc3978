"""The function of zae-limiter that refills buckets, fed from the engine's stream as Lambda would feed it.

Its fast path sees only the balance that is stored. So its aggregator adds what has come due to a bucket that the
records of a batch show to be busy. It runs by its own handler, with the settings of its template.
"""

import importlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final

import boto3

# Of the event source in its infra/cfn_template.yaml.
_BATCH: Final = 100
_WINDOW_S: Final = 5.0
_BUCKET_SK: Final = "#STATE"
# Lambda asks each shard of a stream four times a second.
_POLL_S: Final = 0.25


@dataclass
class _Written:
    """Writes that were sent, by what they were for."""

    refills: int = 0
    others: int = 0

    def count(self, params: dict[str, Any], model: Any, **_more: Any) -> None:
        if model.name == "TransactWriteItems":
            self.others += len(params["TransactItems"])
        elif model.name in ("PutItem", "UpdateItem", "DeleteItem"):
            # Its resource client is called with plain values, not with those of the wire.
            to_bucket = params.get("Key", {}).get("SK") == _BUCKET_SK
            self.refills += to_bucket
            self.others += not to_bucket


@dataclass
class _Batch:
    """What its event source lets through and has not delivered yet."""

    records: list[dict[str, Any]] = field(default_factory=list)
    since_s: float = 0.0

    def add(self, records: list[dict[str, Any]]) -> None:
        passed = [record for record in records if _passes(record)]
        if passed and not self.records:
            self.since_s = time.monotonic()
        self.records += passed

    def due(self, *, all_of_it: bool) -> Iterator[list[dict[str, Any]]]:
        while self.records and (all_of_it or len(self.records) >= _BATCH or self._waited_long()):
            batch, self.records = self.records[:_BATCH], self.records[_BATCH:]
            self.since_s = time.monotonic()
            yield batch

    def _waited_long(self) -> bool:
        return time.monotonic() - self.since_s >= _WINDOW_S


class RefillJob:
    def __init__(self, table: str) -> None:
        self._table = table

    def run(self, owner: Connection) -> None:
        """Says that it reads; then, told to stop, delivers what is left and answers what it wrote."""
        os.environ["TABLE_NAME"] = self._table
        handle = importlib.import_module("zae_limiter_aggregator.handler").handler
        written = _Written()
        # Its handler makes a client for each batch; all of them inherit from here.
        session = boto3.DEFAULT_SESSION = boto3.Session()
        session.events.register("provide-client-params.dynamodb", written.count)
        shards = _Shards(self._table)
        batch = _Batch()
        taken = {"batches": 0, "records": 0, "refills_applied": 0, "errors": 0}
        owner.send("reading")
        stopping = False
        while not stopping:
            stopping = owner.poll(_POLL_S)
            batch.add(shards.read())
            for records in batch.due(all_of_it=stopping):
                body = handle({"Records": records}, None)["body"]
                taken["batches"] += 1
                taken["records"] += len(records)
                taken["refills_applied"] += body["refills_written"]
                taken["errors"] += len(body["errors"])
        owner.send({**taken, "refills": written.refills, "others": written.others})


class _Shards:
    """The open shards of the table's stream, from now on."""

    def __init__(self, table: str) -> None:
        self._streams = boto3.client("dynamodbstreams")
        arn = boto3.client("dynamodb").describe_table(TableName=table)["Table"]["LatestStreamArn"]
        shards = self._streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
        self._iterators = [
            self._streams.get_shard_iterator(StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType="LATEST")[
                "ShardIterator"
            ]
            for shard in shards
            if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
        ]
        if not self._iterators:
            raise AssertionError("the stream has no open shard")

    def read(self) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = []
        following: list[str] = []
        for iterator in self._iterators:
            page = self._streams.get_records(ShardIterator=iterator)
            records += page["Records"]
            if "NextShardIterator" in page:
                following.append(page["NextShardIterator"])
        self._iterators = following
        return records


def _passes(record: dict[str, Any]) -> bool:
    """Its filter, without that for expired audit events: nothing expires here."""
    image = record["dynamodb"].get("NewImage", {})
    return bool(record["eventName"] == "MODIFY" and image.get("SK", {}).get("S") == _BUCKET_SK)
