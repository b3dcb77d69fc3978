"""Migrations over HTTP, event in and answer out, on moto."""

from collections.abc import Iterator, Mapping
from types import ModuleType

import pytest

from tests.http import AS_OPERATOR, NAMESPACE, REQUEST_ID, Answer, Call, caller_of, deployed, items_in_table

MIGRATIONS = "/v1/migrations"


@pytest.fixture
def handler_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with deployed("control_plane.handler", monkeypatch) as module:
        yield module


@pytest.fixture
def call(handler_module: ModuleType) -> Call:
    send = caller_of(handler_module, "POST", MIGRATIONS)

    def call(method: str = "POST", body: Mapping[str, object] | None = None) -> Answer:
        return send(method, body={"org": NAMESPACE, **(body or {})}, caller=AS_OPERATOR)

    return call


def kinds() -> list[str]:
    return sorted(item["kind"]["S"] for item in items_in_table())


@pytest.mark.parametrize("body", [{}, {"dry_run": False}, {"legacy_namespace": None}, {"legacy_namespace": "default"}])
def test_a_migration_is_started_as_a_job(call: Call, body: Mapping[str, object]) -> None:
    answer = call(body=body)
    assert answer.status == 202
    assert answer.headers["Location"] == f"/v1/jobs/{answer.body['id']}?org=default"
    assert answer.body == {
        "id": answer.body["id"],
        "kind": "migration",
        "state": "queued",
        "done": 0,
        "total": None,
        "error": None,
        "result": None,
        "started_at": None,
        "ended_at": None,
    }
    assert kinds() == ["audit", "job", "schema_version"]
    (job,) = [item for item in items_in_table() if item["kind"] == {"S": "job"}]
    assert job["parameters"]["M"] == {"dry_run": {"BOOL": False}, "legacy_prefix": {"S": "default/"}}
    (event,) = [item for item in items_in_table() if item["kind"] == {"S": "audit"}]
    assert (event["action"], event["request_id"]) == ({"S": "migration.start"}, {"S": REQUEST_ID})


def test_while_one_runs_another_is_refused_and_a_dry_run_is_not(call: Call) -> None:
    call(body={})
    assert call(body={}).problem == "in-use"
    assert call(body={"dry_run": True}).status == 202
    assert kinds() == ["audit", "audit", "job", "job", "schema_version"]


def test_a_dry_run_does_not_touch_the_version(call: Call) -> None:
    assert call(body={"dry_run": True, "legacy_namespace": ""}).status == 202
    assert kinds() == ["audit", "job"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"dry_run": "yes"}, "dry_run"),
        ({"dry_run": 1}, "dry_run"),
        ({"legacy_namespace": "a/b"}, "legacy_namespace"),
        ({"legacy_namespace": "a#b"}, "legacy_namespace"),
        ({"legacy_namespace": "x" * 65}, "legacy_namespace"),
        ({"legacy_namespace": "_"}, "legacy_namespace"),
        ({"legacy_namespace": "x\n"}, "legacy_namespace"),
        ({"legacy_namespace": 7}, "legacy_namespace"),
        ({"from": 1}, "from"),
    ],
)
def test_a_body_that_can_not_be_understood_changes_nothing(call: Call, body: Mapping[str, object], field: str) -> None:
    answer = call(body=body)
    assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", field)
    assert items_in_table() == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_other_methods_are_refused(call: Call, method: str) -> None:
    answer = call(method)
    assert (answer.problem, answer.headers["Allow"]) == ("method-not-allowed", "POST")
