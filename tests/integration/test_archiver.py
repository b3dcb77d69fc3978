"""The archiver's handler, on moto: a batch of the stream in, the place to go on from out."""

import io
import json
from collections.abc import Iterator
from datetime import date
from types import ModuleType
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from sluice.repository.archive import S3Archive, archive_prefix
from sluice.services.archive_reading import ArchiveReading
from sluice.shell import logger
from tests.archives import Record, audits, sequence_of
from tests.http import NAMESPACE, Context, deployed

BUCKET = "archive-test"
DAY = date(2026, 11, 18)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setenv("SLUICE_ARCHIVE_BUCKET", BUCKET)
    with deployed("archiver.handler", monkeypatch) as loaded:
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield loaded


@pytest.fixture
def written(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(logger.registered_handler, "stream", stream)
    return stream


def run(module: ModuleType, records: list[Record]) -> list[str]:
    answer = module.handler({"Records": records}, Context())
    assert answer.keys() == {"batchItemFailures"}
    return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]


def numbers() -> list[int]:
    archive = S3Archive(boto3.client("s3"), BUCKET)
    return [line["after"]["number"] for line in ArchiveReading(archive).lines(NAMESPACE, "audit", DAY)]


def break_requests(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(S3Archive, "put_lines", fail)


def test_a_batch_is_in_the_bucket_when_it_answers(module: ModuleType) -> None:
    assert run(module, audits(NAMESPACE, range(5))) == []
    assert numbers() == list(range(5))


def test_a_batch_of_which_nothing_is_archived(module: ModuleType) -> None:
    assert run(module, []) == []
    assert run(module, audits("gone", [1])) == []
    assert "Contents" not in boto3.client("s3").list_objects_v2(Bucket=BUCKET)


def test_it_names_one_record_to_go_on_from(module: ModuleType, written: io.StringIO) -> None:
    batch = audits(NAMESPACE, range(6))
    for broken in (2, 4):
        batch[broken]["dynamodb"]["NewImage"]["ns"] = {"N": "1"}
    assert run(module, batch) == [sequence_of(batch[2])]
    assert numbers() == [0, 1]
    told = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [(line["message"], line["level"]) for line in told] == [("not archived", "ERROR"), ("archived", "INFO")]
    assert told[0]["error"] == "UnknownShape"


def test_one_line_per_batch_and_no_tenant_in_it(module: ModuleType, written: io.StringIO) -> None:
    run(module, audits(NAMESPACE, range(5)))
    (line,) = [json.loads(text) for text in written.getvalue().splitlines()]
    assert {name: line[name] for name in ("message", "records", "lines", "objects", "left_out")} == {
        "message": "archived",
        "records": 5,
        "lines": 5,
        "objects": 1,
        "left_out": 0,
    }
    assert line["bytes"] > 0
    assert archive_prefix(NAMESPACE) not in written.getvalue()
    assert "user-1" not in written.getvalue()


def test_counts_reach_the_log(module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    run(module, audits(NAMESPACE, range(5)))
    (counted,) = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    assert (counted["ArchivedRecords"], counted["environment"]) == ([5.0], "test")
    (listed,) = boto3.client("s3").list_objects_v2(Bucket=BUCKET)["Contents"]
    assert counted["ArchivedBytes"] == [float(listed["Size"])]


def test_a_bucket_out_of_reach_fails_the_batch_from_its_first_record(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable(*_: Any, **__: Any) -> Any:
        raise EndpointConnectionError(endpoint_url="x")

    monkeypatch.setattr("boto3.s3.inject.upload_fileobj", unreachable)
    batch = audits(NAMESPACE, range(3))
    monkeypatch.setattr(module, "handler", module.build_handler(module._archiving()))
    assert run(module, batch) == [sequence_of(batch[0])]
    (counted,) = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    assert counted["StreamFailures"] == [1.0]


def test_a_missing_right_fails_the_function(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a matter of one batch: the function's error count has to show it."""
    denied: Any = {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    break_requests(monkeypatch, ClientError(denied, "PutObject"))
    with pytest.raises(ClientError):
        run(module, audits(NAMESPACE, [1]))


def test_without_a_bucket_it_does_not_start(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_ARCHIVE_BUCKET")
    with pytest.raises(LookupError, match="SLUICE_ARCHIVE_BUCKET"):
        module._archiving()
