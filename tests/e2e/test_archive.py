"""The archiver of the deployed stacks: what is done over HTTP is in the bucket soon, and can be driven again."""

import json
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from local.deploy import Outputs
from local.engine import Engine, dynamodb_client, engine_client
from local.redrive import Clients, Stretch, redrive
from sluice.repository import keys
from sluice.repository.archive import S3Archive, archive_prefix
from sluice.services.archive_reading import ArchiveReading
from tests.e2e.api import Api
from tests.e2e.conftest import ORG
from tests.e2e.test_purge import namespace_of

# Generous: it takes seconds, and only an archiver that never runs can reach this.
ARCHIVED_SECONDS = 120


class Archive:
    def __init__(self, engine: Engine, outputs: Outputs) -> None:
        self.client = engine_client("s3", engine.endpoint)
        self.bucket = outputs.archive_bucket
        self.objects = S3Archive(self.client, self.bucket)
        self.namespace = namespace_of(engine, outputs, ORG)

    def audits(self) -> Iterator[dict[str, Any]]:
        """Of yesterday and today: the test may run at midnight."""
        reading = ArchiveReading(self.objects)
        today = datetime.now(UTC).date()
        for day in (today - timedelta(days=1), today):
            yield from reading.lines(self.namespace, "audit", day)

    def wait_for(self, target: str, count: int) -> list[dict[str, Any]]:
        deadline = time.monotonic() + ARCHIVED_SECONDS
        while len(found := [line for line in self.audits() if line["target"] == target]) < count:
            assert time.monotonic() < deadline, found
            time.sleep(0.5)
        return found


@pytest.fixture
def archive(deployed_engine: tuple[Engine, Outputs], api: Api) -> Archive:
    return Archive(*deployed_engine)


def change_limits(api: Api, resource: str, capacities: range) -> None:
    for capacity in capacities:
        body = {"limits": {"rpm": {"capacity": capacity, "refill_period_seconds": 60}}}
        assert api.call("PUT", f"/v1/limits/resources/{resource}", body).status in {200, 201}


def test_a_change_is_in_the_archive(archive: Archive, api: Api) -> None:
    resource = f"r-{uuid.uuid4().hex[:8]}"
    change_limits(api, resource, range(1, 4))
    found = archive.wait_for(f"limits/resources/{resource}", 3)
    assert [line["after"]["limits"]["rpm"]["capacity"] for line in sorted(found, key=lambda line: line["SK"])] == [
        1,
        2,
        3,
    ]
    for line in found:
        assert (line["type"], line["ns"], line["action"]) == ("audit", archive.namespace, "limits.put")
        assert not [name for name in line if name.startswith("GSI") or name == "ttl"]


def test_a_lost_stretch_is_driven_again(deployed_engine: tuple[Engine, Outputs], archive: Archive, api: Api) -> None:
    """The objects of it are taken away; the message is what Lambda would have written."""
    engine, outputs = deployed_engine
    resource = f"r-{uuid.uuid4().hex[:8]}"
    target = f"limits/resources/{resource}"
    change_limits(api, resource, range(1, 4))
    wanted = archive.wait_for(target, 3)
    for name in list(archive.objects.names(archive_prefix(archive.namespace))):
        archive.client.delete_object(Bucket=archive.bucket, Key=name)
    assert [line for line in archive.audits() if line["target"] == target] == []
    clients = Clients(
        engine_client("dynamodbstreams", engine.endpoint),
        engine_client("lambda", engine.endpoint),
        engine_client("sqs", engine.endpoint),
    )
    assert redrive(clients, Stretch.read(message(engine, outputs, clients, target))) >= 3
    again = [line for line in archive.audits() if line["target"] == target]
    assert sorted(again, key=lambda line: line["SK"]) == sorted(wanted, key=lambda line: line["SK"])


def message(engine: Engine, outputs: Outputs, clients: Clients, target: str) -> str:
    stream = dynamodb_client(engine.endpoint).describe_table(TableName=outputs.table)["Table"]["LatestStreamArn"]
    (shard,) = clients.streams.describe_stream(StreamArn=stream)["StreamDescription"]["Shards"]
    iterator = clients.streams.get_shard_iterator(
        StreamArn=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    sequences: list[str] = []
    while (page := clients.streams.get_records(ShardIterator=iterator))["Records"]:
        iterator = page["NextShardIterator"]
        sequences += [
            record["dynamodb"]["SequenceNumber"]
            for record in page["Records"]
            if record["dynamodb"].get("NewImage", {}).get("target") == {"S": target}
        ]
    sources = clients.functions.list_event_source_mappings(EventSourceArn=stream)["EventSourceMappings"]
    (function,) = {source["FunctionArn"] for source in sources if "Archiver" in source["FunctionArn"]}
    batch = {
        "streamArn": stream,
        "shardId": shard["ShardId"],
        "startSequenceNumber": sequences[0],
        "endSequenceNumber": sequences[-1],
    }
    return json.dumps({"requestContext": {"functionArn": function}, "DDBStreamBatchInfo": batch})


def test_nothing_of_the_registry_leaves_the_table(archive: Archive, api: Api) -> None:
    """Clients and their secrets have been made by now, in the same stream."""
    change_limits(api, resource := f"r-{uuid.uuid4().hex[:8]}", range(1, 2))
    archive.wait_for(f"limits/resources/{resource}", 1)
    assert list(archive.objects.names(archive_prefix(keys.REGISTRY_NAMESPACE))) == []
    names = list(archive.objects.names(archive_prefix(archive.namespace)))
    lines = [json.loads(line) for name in names for line in archive.objects.read(name)]
    assert {line["type"] for line in lines} == {"audit"}
    assert not [line for line in lines if not line["PK"].startswith(keys.namespace_prefix(archive.namespace))]
