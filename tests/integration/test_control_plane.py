"""The control plane's handler, event in and answer out, on moto."""

import io
import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from control_plane import routes
from sluice.core.limits import Limit, Scope
from sluice.shell import Environment, build_services, logger, make_client
from tests.fakes import CountingMeter
from tests.http import AS_NOBODY, TABLE, Call, caller_of, deployed, items_in_table, served_routes

RPM = {"capacity": 60, "refill_period_seconds": 60}
FULL_RPM = {"capacity": 60, "burst": 60, "refill_amount": 60, "refill_period_seconds": 60}
BODY = {"limits": {"rpm": RPM}}
SYSTEM = "/v1/limits/system"
RESOURCE = "/v1/limits/resources/gpt-4"
ENTITY = "/v1/limits/entities/user-1/gpt-4"
ENTITY_DEFAULT = "/v1/limits/entities/user-1/_default_"
LEVELS = [SYSTEM, RESOURCE, ENTITY, ENTITY_DEFAULT]
EFFECTIVE = "/v1/limits/effective"


def besides_audit() -> list[Any]:
    return [item for item in items_in_table() if item["kind"]["S"] != "audit"]


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
    assert besides_audit() == []
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


@pytest.mark.parametrize("path", LEVELS)
def test_if_match_guards_against_a_version_not_seen(call: Call, path: str) -> None:
    seen = call("PUT", path, BODY).headers["ETag"]
    newer = call("PUT", path, BODY, headers={"if-match": seen}).headers["ETag"]
    for stale in (seen, '"nonsense"', "", f"W/{newer}", '"a,*,b"', '*, "x"', newer.strip('"')):
        for method, body in (("PUT", BODY), ("DELETE", None)):
            answer = call(method, path, body, headers={"if-match": stale})
            assert (answer.status, answer.problem) == (412, "precondition-failed"), stale
    assert call("GET", path).headers["ETag"] == newer
    assert call("PUT", path, BODY, headers={"If-Match": " * "}).status == 200
    listed = call("GET", path).headers["ETag"]
    assert call("DELETE", path, headers={"if-match": f'"x,y", W/"z",{listed}'}).status == 204
    assert call("PUT", path, BODY, headers={"if-match": "*"}).status == 412
    assert besides_audit() == []


def test_the_log_has_the_route_and_never_an_id(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(logger.registered_handler, "stream", written)
    call("PUT", "/v1/limits/entities/canary/canary", BODY)
    call("GET", "/v1/entities/canary")
    call("POST", "/v1/entities/canary", BODY)
    routes_seen = [json.loads(line)["route"] for line in written.getvalue().splitlines()]
    assert routes_seen == ["PUT /v1/limits/entities/<entity>/<resource>", "GET /v1/entities/<entity>", "other"]
    assert "canary" not in written.getvalue()


def test_effective_limits_are_read_past_the_cache(call: Call, handler_module: ModuleType) -> None:
    query = {"entity": "user-1", "resource": "gpt-4"}
    call("GET", EFFECTIVE, query=query)
    environment = Environment("test", TABLE, 2000)
    elsewhere = build_services(environment, make_client(environment), CountingMeter())
    elsewhere.limits.put("default", Scope(resource="gpt-4"), {"rpm": Limit(7, 7, 7, 60)})
    assert call("GET", EFFECTIVE, query=query).body["limits"]["rpm"]["capacity"] == 7


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
    assert answer.body["field"] == field


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
        "/v1/limits/resources/a\n",
        "/v1/limits/entities/a/_default_\n",
        "/v1/entities/a\n",
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


def test_nobody_is_let_in_without_a_token(call: Call) -> None:
    for method, path in (("GET", SYSTEM), ("PUT", RESOURCE), ("GET", "/v1/jobs")):
        answer = call(method, path, BODY if method == "PUT" else None, caller=AS_NOBODY)
        assert (answer.status, answer.problem) == (401, "unauthorized")
    assert items_in_table() == []


USER = "/v1/entities/user-1"


def test_an_entity_is_created_changed_and_removed(call: Call) -> None:
    assert call("GET", USER).problem == "not-found"
    created = call("PUT", USER, {})
    assert created.status == 201
    assert created.body == {
        "entity": "user-1",
        "name": None,
        "parent": "default",
        "cascade": True,
        "metadata": {},
        "role": "other",
        "created_at": created.body["created_at"],
        "updated_at": created.body["created_at"],
    }
    metadata = {"tier": "gold", "seats": 3, "vip": True, "note": None}
    changed = call("PUT", USER, {"name": "User", "cascade": False, "metadata": metadata})
    assert (changed.status, changed.body["name"], changed.body["cascade"]) == (200, "User", False)
    kept = call("PUT", USER, {"name": None}).body
    assert (kept["name"], kept["cascade"], kept["metadata"]) == (None, False, metadata)
    assert call("GET", USER).body == kept
    assert call("DELETE", USER).status == 204
    assert besides_audit() == []
    assert call("DELETE", USER).problem == "not-found"


def test_an_entity_below_another(call: Call) -> None:
    call("PUT", "/v1/entities/team", {})
    assert call("PUT", USER, {"parent": "team"}).body["parent"] == "team"
    answer = call("DELETE", "/v1/entities/team")
    assert (answer.status, answer.problem) == (409, "in-use")
    for parent in ("nobody", "user-1"):
        answer = call("PUT", USER, {"parent": parent})
        assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", "parent")


def test_if_match_guards_an_entity(call: Call) -> None:
    seen = call("PUT", USER, {}).headers["ETag"]
    assert call("GET", USER).headers["ETag"] == seen
    assert call("PUT", USER, {"name": "x"}, headers={"if-match": seen}).status == 200
    for method, body in (("PUT", {"name": "y"}), ("DELETE", None)):
        answer = call(method, USER, body, headers={"if-match": seen})
        assert (answer.status, answer.problem) == (412, "precondition-failed")
    assert call("GET", USER).body["name"] == "x"


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("name", {"name": ""}),
        ("name", {"name": "n" * 129}),
        ("name", {"name": 7}),
        ("parent", {"parent": "a#b"}),
        ("parent", {"parent": 7}),
        ("cascade", {"cascade": "yes"}),
        ("cascade", {"cascade": None}),
        ("metadata", {"metadata": []}),
        ("metadata", {"metadata": {"a": "x" * 4090, "b": "y" * 10}}),
        ("metadata", {"metadata": {f"k{n}": 1 for n in range(65)}}),
        ("metadata", {"metadata": {"rate": 1.5}}),
        ("metadata", {"metadata": {"deep": {"er": 1}}}),
        ("metadata", {"metadata": {"huge": 10**30}}),
        ("metadata", {"metadata": {"": 1}}),
        ("role", {"role": "org"}),
        ("body", [{}]),
    ],
)
def test_a_wrong_entity_names_its_field_and_writes_nothing(call: Call, field: str, body: Any) -> None:
    answer = call("PUT", USER, body)
    assert (answer.status, answer.problem) == (400, "invalid-request")
    assert answer.body["field"].split(".")[0] == field
    assert items_in_table() == []
