"""The control plane's handler, event in and answer out, on moto."""

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from control_plane import routes
from tests.http import Call, caller_of, deployed, items_in_table, served_routes

RPM = {"capacity": 60, "refill_period_seconds": 60}
FULL_RPM = {"capacity": 60, "burst": 60, "refill_amount": 60, "refill_period_seconds": 60}
BODY = {"limits": {"rpm": RPM}}
SYSTEM = "/v1/limits/system"
RESOURCE = "/v1/limits/resources/gpt-4"
ENTITY = "/v1/limits/entities/user-1/gpt-4"
ENTITY_DEFAULT = "/v1/limits/entities/user-1/_default_"
LEVELS = [SYSTEM, RESOURCE, ENTITY, ENTITY_DEFAULT]
EFFECTIVE = "/v1/limits/effective"


@pytest.fixture
def handler_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with deployed("control_plane.handler", monkeypatch) as module:
        yield module


@pytest.fixture
def call(handler_module: ModuleType) -> Call:
    return caller_of(handler_module, "GET", SYSTEM)


@pytest.mark.parametrize("path", LEVELS)
def test_limits_are_created_replaced_read_and_removed(call: Call, path: str) -> None:
    assert call("GET", path).problem == "not-found"
    created = call("PUT", path, BODY)
    assert created.status == 201
    assert created.body["limits"] == {"rpm": FULL_RPM}
    assert created.body["config_version"] == 1
    assert created.body["created_at"] == created.body["updated_at"]
    read = call("GET", path)
    assert (read.status, read.body, read.headers["ETag"]) == (200, created.body, created.headers["ETag"])
    replaced = call("PUT", path, {"limits": {"tpm": {**RPM, "burst": 90, "refill_amount": 30}, "rpm": None}})
    assert replaced.status == 200
    assert replaced.body["limits"] == {"tpm": {**FULL_RPM, "burst": 90, "refill_amount": 30}, "rpm": None}
    assert (replaced.body["config_version"], replaced.body["created_at"]) == (2, created.body["created_at"])
    assert replaced.headers["ETag"] != created.headers["ETag"]
    removed = call("DELETE", path)
    assert (removed.status, removed.body) == (204, None)
    assert items_in_table() == []
    assert call("DELETE", path).problem == "not-found"


def test_levels_are_separate(call: Call) -> None:
    for capacity, path in enumerate(LEVELS, start=1):
        call("PUT", path, {"limits": {"rpm": {"capacity": capacity, "refill_period_seconds": 60}}})
    for capacity, path in enumerate(LEVELS, start=1):
        assert call("GET", path).body["limits"]["rpm"]["capacity"] == capacity


def test_on_unavailable_belongs_to_the_system(call: Call) -> None:
    assert call("PUT", SYSTEM, BODY).body["on_unavailable"] == "block"
    assert call("PUT", SYSTEM, {**BODY, "on_unavailable": "allow"}).body["on_unavailable"] == "allow"
    assert call("GET", SYSTEM).body["on_unavailable"] == "allow"
    assert call("PUT", SYSTEM, {"limits": {}, "on_unavailable": "allow"}).status == 200
    for path in (RESOURCE, ENTITY):
        answer = call("PUT", path, {**BODY, "on_unavailable": "allow"})
        assert (answer.status, answer.body["field"]) == (400, "on_unavailable")


def test_if_match_guards_against_a_version_not_seen(call: Call) -> None:
    seen = call("PUT", RESOURCE, BODY).headers["ETag"]
    newer = call("PUT", RESOURCE, BODY, headers={"if-match": seen}).headers["ETag"]
    for stale in (seen, '"nonsense"', "", f"W/{newer}"):
        for method, body in (("PUT", BODY), ("DELETE", None)):
            answer = call(method, RESOURCE, body, headers={"if-match": stale})
            assert (answer.status, answer.problem) == (412, "precondition-failed")
    assert call("GET", RESOURCE).headers["ETag"] == newer
    assert call("PUT", RESOURCE, BODY, headers={"If-Match": "*"}).status == 200
    listed = call("GET", RESOURCE).headers["ETag"]
    assert call("DELETE", RESOURCE, headers={"if-match": f'"x", {listed}'}).status == 204
    assert call("PUT", RESOURCE, BODY, headers={"if-match": "*"}).status == 412
    assert items_in_table() == []


def test_effective_limits_name_the_level_of_each(call: Call) -> None:
    def limit(capacity: int) -> dict[str, int]:
        return {"capacity": capacity, "refill_period_seconds": 60}

    call("PUT", SYSTEM, {"limits": {"a": limit(1), "b": limit(1), "c": limit(1), "d": limit(1), "e": limit(1)}})
    call("PUT", RESOURCE, {"limits": {"b": limit(2), "c": limit(2), "d": limit(2), "e": None}})
    call("PUT", ENTITY_DEFAULT, {"limits": {"c": limit(3), "d": limit(3)}})
    call("PUT", ENTITY, {"limits": {"d": limit(4)}})
    answer = call("GET", EFFECTIVE, query={"entity": "user-1", "resource": "gpt-4"})
    assert answer.status == 200
    assert answer.body["source"] == {"a": "system", "b": "resource", "c": "entity_default", "d": "entity"}
    capacities = {name: limit["capacity"] for name, limit in answer.body["limits"].items()}
    assert capacities == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert answer.body["switched_off"] == ["e"]
    other = call("GET", EFFECTIVE, query={"entity": "user-2", "resource": "gpt-4"})
    assert other.body["source"] == {"a": "system", "b": "resource", "c": "resource", "d": "resource"}


def test_effective_limits_where_there_are_none(call: Call) -> None:
    answer = call("GET", EFFECTIVE, query={"entity": "user-1", "resource": "gpt-4"})
    assert (answer.status, answer.body["limits"], answer.body["source"]) == (200, {}, {})


@pytest.mark.parametrize(
    ("field", "query"),
    [
        ("entity", {"resource": "gpt-4"}),
        ("resource", {"entity": "e"}),
        ("entity", {"entity": "a#b", "resource": "gpt-4"}),
        ("resource", {"entity": "e", "resource": "_default_"}),
    ],
)
def test_effective_limits_of_what_can_not_be(call: Call, field: str, query: dict[str, str]) -> None:
    answer = call("GET", EFFECTIVE, query=query)
    assert (answer.status, answer.problem) == (400, "invalid-request")
    assert answer.body["field"].endswith(field)


WRONG_BODIES: list[tuple[str, Any]] = [
    ("body", [BODY]),
    ("limits", {}),
    ("limits", {"limits": {}}),
    ("limits", {"limits": {f"l{n}": RPM for n in range(50)}}),
    ("limits.wcu", {"limits": {"wcu": RPM}}),
    ("limits.Rpm", {"limits": {"Rpm": RPM}}),
    ("limits.rpm.capacity", {"limits": {"rpm": {**RPM, "capacity": 0}}}),
    ("limits.rpm.capacity", {"limits": {"rpm": {**RPM, "capacity": 1.5}}}),
    ("limits.rpm.capacity", {"limits": {"rpm": {**RPM, "capacity": 10**12 + 1}}}),
    ("limits.rpm.burst", {"limits": {"rpm": {**RPM, "burst": 59}}}),
    ("limits.rpm.refill_period_seconds", {"limits": {"rpm": {**RPM, "refill_period_seconds": 0}}}),
    ("limits.rpm.refill_period_seconds", {"limits": {"rpm": {"capacity": 1}}}),
    ("surprise", {**BODY, "surprise": 1}),
]


@pytest.mark.parametrize(("field", "body"), WRONG_BODIES)
def test_a_wrong_body_names_its_field_and_writes_nothing(call: Call, field: str, body: Any) -> None:
    answer = call("PUT", RESOURCE, body)
    assert (answer.status, answer.problem) == (400, "invalid-request")
    assert answer.body["field"] == field
    assert items_in_table() == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1/limits/resources/_default_",
        "/v1/limits/resources/a b",
        "/v1/limits/resources/$x",
        "/v1/limits/resources/" + "a" * 129,
        "/v1/limits/entities/_default_/gpt-4",
        "/v1/limits/entities/user-1/_other_",
        "/v1/limits/entities/user\n/gpt-4",
        "/v1/limits/entities/user\x00/gpt-4",
        "/v1/limits/entities/é/gpt-4",
    ],
)
def test_an_id_that_can_not_be_is_refused(call: Call, path: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        answer = call(method, path, BODY if method == "PUT" else None)
        assert answer.status in (400, 404)
        assert answer.problem in ("invalid-request", "not-found")
    assert items_in_table() == []


def test_paths_that_no_function_serves_end_here(call: Call) -> None:
    for method, path in (("GET", "/"), ("POST", "/v1/nope"), ("GET", "/v1/limits"), ("PUT", "/v1/limits/resources/")):
        answer = call(method, path, content_type=None)
        assert (answer.status, answer.problem) == (404, "not-found")
    answer = call("POST", RESOURCE, BODY)
    assert (answer.status, answer.headers["Allow"]) == (405, "DELETE, GET, PUT")


def test_every_route_of_the_router_is_in_the_table_of_routes(handler_module: ModuleType) -> None:
    assert served_routes(handler_module) == {
        (path, method) for path, methods in routes.ROUTES.items() for method in methods
    }


def test_nobody_is_let_in_without_an_open_namespace(
    monkeypatch: pytest.MonkeyPatch, call: Call, handler_module: ModuleType
) -> None:
    monkeypatch.delenv("SLUICE_OPEN_NAMESPACE")
    importlib.reload(handler_module)
    for method, path in (("GET", SYSTEM), ("PUT", RESOURCE), ("GET", "/nope")):
        answer = call(method, path, BODY if method == "PUT" else None)
        assert (answer.status, answer.problem) == (401, "unauthorized")
    assert items_in_table() == []
