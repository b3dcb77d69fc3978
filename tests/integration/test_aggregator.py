"""The aggregator's handler, on moto: an event in, the first failed sequence number out."""

import io
import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import boto3
import pytest

from sluice.core.errors import Unavailable
from sluice.core.metering import Counters
from sluice.core.snapshots import SnapshotName, Window, starts_ms
from sluice.repository import keys
from sluice.repository.counters import CounterName, add_to_shard
from sluice.repository.snapshots import decode_snapshot
from sluice.repository.totals import total_key
from sluice.repository.wire import Item
from sluice.shell import Services, build_services, logger
from tests.http import NAMESPACE, TABLE, Context, deployed
from tests.simulation.stream import StreamRecord

NOON_MS = 1_800_057_600_000 + 12 * 3_600_000
ENTITY = "user-7"


@pytest.fixture
def built() -> list[Services]:
    return []


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, built: list[Services]) -> Iterator[ModuleType]:
    with deployed("aggregator.handler", monkeypatch) as loaded:

        def build(*arguments: Any) -> Services:
            built.append(build_services(*arguments))
            return built[-1]

        monkeypatch.setattr(loaded, "build_services", build)
        monkeypatch.setattr(loaded, "handler", loaded._handler())
        yield loaded


@pytest.fixture
def written(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(logger.registered_handler, "stream", stream)
    return stream


def bucket(version: int, consumed: int, namespace: str = NAMESPACE, shard_count: int = 1) -> Item:
    key = keys.bucket(namespace, ENTITY, "gpt-4", 0)
    return {
        **key.attributes,
        "kind": "bucket",
        "ns": namespace,
        "entity_id": ENTITY,
        "resource": "gpt-4",
        "shard": 0,
        "shard_count": shard_count,
        "v": version,
        "gen": 7,
        "b_rpm_tc": consumed,
    }


def record(version: int, namespace: str = NAMESPACE, at_ms: int = NOON_MS) -> dict[str, Any]:
    """One of a bucket that consumes ten millitokens with every write."""
    old = bucket(version - 1, 10 * (version - 1), namespace) if version > 1 else None
    new = bucket(version, 10 * version, namespace)
    return StreamRecord(version, keys.key_of(new), old, new, at_ms, False, version, None).as_event()


def run(module: ModuleType, *records: dict[str, Any]) -> list[str]:
    """The sequence numbers that are reported as failed."""
    answer = module.handler({"Records": list(records)}, Context())
    assert answer.keys() == {"batchItemFailures"}
    return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]


def sequence(one: dict[str, Any]) -> str:
    found: str = one["dynamodb"]["SequenceNumber"]
    return found


def consumed_milli(services: Services, window: Window = Window.HOUR, namespace: str = NAMESPACE) -> dict[str, int]:
    name = SnapshotName(namespace, ENTITY, "gpt-4", None, window, starts_ms(window, NOON_MS))
    item = services.store.get(keys.usage(name), consistent=True)
    return {} if item is None else dict(decode_snapshot(item).consumed_milli)


def test_a_batch_is_counted(module: ModuleType, built: list[Services]) -> None:
    assert run(module, *(record(version) for version in range(1, 8))) == []
    assert [consumed_milli(built[0], window) for window in Window] == [{"rpm": 70}] * 2


def test_a_batch_without_buckets_is_done(module: ModuleType) -> None:
    other = record(1)
    other["dynamodb"]["NewImage"]["kind"] = {"S": "snapshot"}
    assert run(module, other) == []
    assert run(module) == []


def test_the_first_failed_sequence_number_is_reported(
    module: ModuleType, built: list[Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    later_ms = NOON_MS + 3_600_000
    records = [record(1), record(2), record(3, at_ms=later_ms), record(4, at_ms=later_ms)]
    store: Any = built[0].store
    update = store.update

    def refused(request: Any, **named: Any) -> Any:
        if "T13" in request["Key"]["SK"]:
            raise Unavailable(ENTITY)
        return update(request, **named)

    monkeypatch.setattr(store, "update", refused)
    assert run(module, *records) == [sequence(records[2])]
    assert consumed_milli(built[0]) == {"rpm": 20}
    monkeypatch.setattr(store, "update", update)
    assert run(module, *records[2:]) == []
    assert [consumed_milli(built[0], window) for window in Window] == [{"rpm": 20}, {"rpm": 40}]


def test_a_poison_record_is_reported_and_told_without_its_content(
    module: ModuleType, built: list[Services], written: io.StringIO
) -> None:
    records = [record(version) for version in range(1, 5)]
    records[2]["dynamodb"]["NewImage"]["v"] = {"S": ENTITY}
    assert run(module, *records) == [sequence(records[2])]
    assert consumed_milli(built[0]) == {"rpm": 40}
    told = [json.loads(text) for text in written.getvalue().splitlines()]
    assert [(line["message"], line.get("error")) for line in told] == [
        ("records not counted", "UnknownShape"),
        ("batch", None),
    ]
    assert {name: told[1][name] for name in ("records", "observed", "failed")} == {
        "records": 4,
        "observed": 3,
        "failed": 1,
    }
    assert ENTITY not in written.getvalue()
    assert NAMESPACE not in "".join(str(line.get("stack")) for line in told)


def test_what_happens_to_shards_fails_no_record(
    module: ModuleType, built: list[Services], written: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bucket that nobody can read any more: its record was split."""
    item = bucket(2, 10, shard_count=2)
    boto3.resource("dynamodb").Table(TABLE).put_item(Item={**item, "shard": "x", "lh": "hash:2"})
    split = StreamRecord(2, keys.key_of(item), bucket(1, 10), item, NOON_MS, False, 2, None).as_event()
    assert run(module, record(1), split) == []
    assert consumed_milli(built[0]) == {"rpm": 10}
    told = [json.loads(text) for text in written.getvalue().splitlines()]
    assert [line["message"] for line in told] == ["shard not split", "batch"]
    metrics = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    assert [line["InternalErrors"] for line in metrics if "InternalErrors" in line] == [[1.0]]


def test_counts_reach_the_log(module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    run(module, record(1), record(2))
    metrics = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    (counted,) = (line for line in metrics if "StreamRecords" in line)
    assert (counted["StreamRecords"], counted["SnapshotWrites"], counted["environment"]) == ([2.0], [1.0, 1.0], "test")
    assert "StreamFailures" not in counted


def test_nothing_is_counted_for_a_namespace_that_is_not_there(module: ModuleType, built: list[Services]) -> None:
    assert run(module, record(1, namespace="gone"), record(1)) == []
    assert consumed_milli(built[0], namespace="gone") == {}
    assert consumed_milli(built[0]) == {"rpm": 10}


def test_a_table_out_of_reach_fails_from_the_first_record_on(
    module: ModuleType, built: list[Services], monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_reach(*_: Any, **__: Any) -> Any:
        raise Unavailable("x")

    monkeypatch.setattr(built[0].store, "get", out_of_reach)
    records = [record(1), record(2)]
    assert run(module, *records) == [sequence(records[0])]


def shard(number: int, revision: int, label: str = "premium") -> dict[str, Any]:
    """The record of a counter shard that was added to."""
    name = CounterName(NAMESPACE, ENTITY, label, "20270116")
    key = keys.key_of(add_to_shard(name, number, NOON_MS, Counters(7, requests=1), NOON_MS)["Key"])
    fixed: Item = {"kind": "cost_shard", "ns": NAMESPACE, "entity_id": ENTITY, "label": label, "day": name.day}
    old = {**key.attributes, **fixed, "shard": number, "rev": revision - 1} if revision > 1 else None
    new = {**key.attributes, **fixed, "shard": number, "rev": revision}
    return StreamRecord(100 + revision, key, old, new, NOON_MS, False, revision, None).as_event()


def is_due(services: Services, label: str = "premium") -> bool:
    item = services.store.get(total_key(CounterName(NAMESPACE, ENTITY, label, "20270116")), consistent=True)
    return item is not None and "due" in item


def test_a_batch_of_both_kinds_is_counted_and_marked(
    module: ModuleType, built: list[Services], written: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(module, record(1), shard(0, 1), record(2), shard(5, 1), shard(0, 2)) == []
    assert consumed_milli(built[0]) == {"rpm": 20}
    assert is_due(built[0])
    (told,) = [json.loads(text) for text in written.getvalue().splitlines()]
    assert (told["records"], told["observed"], told["failed"]) == (5, 5, 0)
    metrics = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    (line,) = (line for line in metrics if "TotalsMarked" in line)
    assert (line["TotalsMarked"], sum(line["StreamRecords"])) == ([1.0], 5.0)


@pytest.mark.parametrize("first", ["counted", "marked"])
def test_the_first_record_that_either_left_undone_is_reported(
    module: ModuleType, built: list[Services], monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    records = [record(1), shard(0, 1), shard(0, 2)] if first == "counted" else [shard(0, 1), record(1), shard(0, 2)]
    store: Any = built[0].store
    update = store.update

    def refused(_request: Any, **_named: Any) -> Any:
        raise Unavailable("x")

    monkeypatch.setattr(store, "update", refused)
    assert run(module, *records) == [sequence(records[0])]
    monkeypatch.setattr(store, "update", update)
    assert run(module, *records) == []
    assert consumed_milli(built[0]) == {"rpm": 10}
    assert is_due(built[0])


def test_what_is_wrong_with_one_kind_does_not_keep_the_other_from_it(
    module: ModuleType, built: list[Services], written: io.StringIO
) -> None:
    records = [shard(0, 1), record(1), shard(0, 1, label="standard"), record(2)]
    records[0]["dynamodb"]["NewImage"]["label"] = {"N": "7"}
    assert run(module, *records) == [sequence(records[0])]
    assert consumed_milli(built[0]) == {"rpm": 20}
    assert is_due(built[0], "standard")
    told = [json.loads(text) for text in written.getvalue().splitlines()]
    assert [(line["message"], line.get("error")) for line in told] == [
        ("totals not marked", "UnknownShape"),
        ("batch", None),
    ]
    assert ENTITY not in written.getvalue()
