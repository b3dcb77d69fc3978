"""The seed's own way to count a finished call, on the same engine: what it costs, and what it counts.

A shard of a day's counters holds the set of the request ids that were added to it. The set is in the item that every
call writes, so each write is billed for all of it; and adding an id twice leaves the set as it is, while the numbers
beside it are added again. Its table has no index here, which is in its favour.

`make metering-costs` prints it beside ours.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from mypy_boto3_dynamodb import DynamoDBClient

from bench.capacity import CapacityMeter, Consumption
from bench.costs import measured
from local.engine import Engine, dynamodb_client
from local.reference import ReferenceEngine, available

TABLE: Final = "seed-usage"
SHARDS: Final = 8
_LABEL: Final = "premium"
_SCOPE: Final = "ORG#550e8400-e29b-41d4-a716-446655440000"
_DAY: Final = "DAY#20260123"
# As many ids as one request may well carry: setting up must not take minutes.
_SET_UP_AT_ONCE: Final = 500


@dataclass(frozen=True)
class SeedFigures:
    """With so many ids in each shard. `counted_after_repeat`: requests of two, one of which was sent twice."""

    ids: int
    event: Consumption
    rollup: Consumption
    counted_after_repeat: int


class SeedMetering:
    def __init__(self, client: DynamoDBClient) -> None:
        self._client = client
        self._random = Random(1)
        client.create_table(
            TableName=TABLE,
            KeySchema=[
                {"AttributeName": "shard_key", "KeyType": "HASH"},
                {"AttributeName": "date_key", "KeyType": "RANGE"},
            ],
            AttributeDefinitions=[
                {"AttributeName": "shard_key", "AttributeType": "S"},
                {"AttributeName": "date_key", "AttributeType": "S"},
            ],
            BillingMode="PAY_PER_REQUEST",
        )
        # From here on every call is asked for its units, which making a table has none of.
        self._meter = CapacityMeter(client)

    def measure(self, ids: int) -> SeedFigures:
        """On a label of its own, whose shards all hold so many ids."""
        label = f"{_LABEL}-{ids}"
        for shard in range(SHARDS):
            self._fill(label, shard, ids)
        with self._meter.measuring() as event:
            self._add(label, self._id())
        with self._meter.measuring() as rollup:
            self._roll_up(label)
        return SeedFigures(ids, event, rollup, self._counted_after_repeat(f"{label}-repeat"))

    def _counted_after_repeat(self, label: str) -> int:
        first, second = self._id(), self._id()
        for request_id in (first, second, second):
            self._add(label, request_id, shard=0)
        item: Any = self._client.get_item(TableName=TABLE, Key=_key(label, 0), ConsistentRead=True)["Item"]
        return int(item["requests"]["N"])

    def _id(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def _fill(self, label: str, shard: int, ids: int) -> None:
        for first in range(0, ids, _SET_UP_AT_ONCE):
            some = [self._id() for _ in range(min(_SET_UP_AT_ONCE, ids - first))]
            self._update(label, shard, some)

    def _add(self, label: str, request_id: str, shard: int | None = None) -> None:
        at = uuid.UUID(request_id).int % SHARDS if shard is None else shard
        self._update(label, at, [request_id])
        self._client.get_item(TableName=TABLE, Key=_total_key(label))

    def _update(self, label: str, shard: int, request_ids: list[str]) -> None:
        self._client.update_item(
            TableName=TABLE,
            Key=_key(label, shard),
            UpdateExpression=(
                "ADD cost_usd_micros :c, input_tokens :i, output_tokens :o, requests :r, request_ids :ids "
                "SET updated_at_epoch = :t"
            ),
            ExpressionAttributeValues={
                ":c": {"N": "16500"},
                ":i": {"N": "1500"},
                ":o": {"N": "800"},
                ":r": {"N": str(len(request_ids))},
                ":ids": {"SS": request_ids},
                ":t": {"N": "1737640800"},
            },
        )

    def _roll_up(self, label: str) -> None:
        keys = [_key(label, shard) for shard in range(SHARDS)]
        # The read of a stale shard would make the total fall: the seed leaves open how it reads, so we read as we do.
        answer: Any = self._client.batch_get_item(RequestItems={TABLE: {"Keys": keys, "ConsistentRead": True}})
        shards = answer["Responses"][TABLE]
        cost = sum(int(shard["cost_usd_micros"]["N"]) for shard in shards)
        self._client.put_item(TableName=TABLE, Item={**_total_key(label), "cost_usd_micros": {"N": str(cost)}})


def _key(label: str, shard: int) -> Mapping[str, Any]:
    return {"shard_key": {"S": f"{_SCOPE}#LABEL#{label}#SH#{shard}"}, "date_key": {"S": _DAY}}


def _total_key(label: str) -> Mapping[str, Any]:
    return {"shard_key": {"S": f"{_SCOPE}#LABEL#{label}"}, "date_key": {"S": _DAY}}


OURS: Final = (
    "usage event",
    "usage event repeated",
    "batch of 100 usage events",
    "mark of a total",
    "mark of a total in steady use",
    "rollup of one label",
    "rollup of one label in steady use",
    "selection, three labels",
)
IDS: Final = (1, 1_000, 3_000)


def main() -> None:
    """Ours and the seed's, one after the other on the same engines. Units written by ministack, units read by DynamoDB
    Local where it can run: each is right about these alone."""
    with Engine() as engine:
        written = measured(engine), _seed(engine)
    read = None
    if available():
        with ReferenceEngine() as reference:
            read = measured(reference), _seed(reference)
    print(f"| {'operation':58} | calls |  WCU |  RCU |\n|{'-' * 60}|------:|-----:|-----:|")
    for name in OURS:
        _row(name, written[0][name], None if read is None else read[0][name])
    for number, figures in enumerate(written[1]):
        seen = None if read is None else read[1][number]
        shard = f"{figures.ids:,} ids a shard"
        _row(f"the seed's: an event, {shard}", figures.event, None if seen is None else seen.event)
        _row(f"the seed's: rollup of one label, {shard}", figures.rollup, None if seen is None else seen.rollup)
    print(f"\ncounted by the seed's after two calls, one of them sent twice: {written[1][0].counted_after_repeat}")


def _seed(engine: Engine | ReferenceEngine) -> list[SeedFigures]:
    seed = SeedMetering(dynamodb_client(engine.endpoint))
    return [seed.measure(ids) for ids in IDS]


def _row(name: str, written: Consumption, read: Consumption | None) -> None:
    units = "?" if read is None else f"{read.read_units:g}"
    print(f"| {name:58} | {written.calls:5} | {written.write_units:4g} | {units:>4} |")


if __name__ == "__main__":
    main()
