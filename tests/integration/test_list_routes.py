"""Lists and the audit over HTTP, event in and answer out, on moto."""

import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from sluice.core.identity import Role
from sluice.core.limits import Limit, Scope
from sluice.edge.application import Caller
from sluice.services.chains import AcquireRequest
from sluice.services.entities import EntityChange
from sluice.shell import Environment, build_services, make_client
from tests.fakes import CountingMeter
from tests.http import REQUEST_ID, TABLE, Answer, Call, caller_of, deployed

RPM = {"capacity": 60, "refill_period_seconds": 60}
FULL_RPM = {"capacity": 60, "burst": 60, "refill_amount": 60, "refill_period_seconds": 60}
BODY = {"limits": {"rpm": RPM}}
ENTITIES = "/v1/entities"
CHILDREN = "/v1/entities/team/children"
BUCKETS = "/v1/entities/user-1/buckets"
WITH_LIMITS = "/v1/limits/entities"
RESOURCES = "/v1/resources"
CAPACITY = "/v1/resources/gpt-4/capacity"
AUDIT = "/v1/audit"
LISTS: list[tuple[str, dict[str, str]]] = [
    (ENTITIES, {}),
    (CHILDREN, {}),
    (BUCKETS, {}),
    (WITH_LIMITS, {"resource": "gpt-4"}),
    (RESOURCES, {}),
    (CAPACITY, {}),
    (AUDIT, {"entity": "user-1"}),
]


@pytest.fixture
def handler_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with deployed("control_plane.handler", monkeypatch) as module:
        yield module


@pytest.fixture
def call(handler_module: ModuleType) -> Call:
    return caller_of(handler_module, "GET", ENTITIES)


@pytest.fixture
def filled(call: Call) -> Call:
    """Three of everything."""
    call("PUT", "/v1/entities/team", {})
    call("PUT", "/v1/limits/resources/gpt-4", {"limits": {"rpm": RPM, "tpm": RPM}})
    environment = Environment("test", TABLE, 2000)
    services = build_services(environment, make_client(environment), CountingMeter())
    for number in (1, 2, 3):
        call("PUT", f"/v1/entities/user-{number}", {"parent": "team"})
        call("PUT", f"/v1/limits/entities/user-{number}/gpt-4", BODY)
        call("PUT", f"/v1/limits/resources/model-{number}", BODY)
        services.acquire.acquire(AcquireRequest("default", f"user-{number}", "gpt-4", {"rpm": number}))
    services.entities.put("elsewhere", "team", EntityChange())
    services.entities.put("elsewhere", "foreign", EntityChange(parent="team"))
    services.limits.put("elsewhere", Scope("foreign", "gpt-4"), {"rpm": Limit(1, 1, 1, 1)})
    services.limits.put("elsewhere", Scope(resource="foreign"), {"rpm": Limit(1, 1, 1, 1)})
    services.acquire.acquire(AcquireRequest("elsewhere", "foreign", "gpt-4", {"rpm": 1}))
    return call


def all_pages(call: Call, path: str, query: dict[str, str], limit: int) -> list[Answer]:
    answers = [call("GET", path, query={**query, "limit": str(limit)})]
    while answers[-1].body["next_cursor"] is not None:
        cursor = answers[-1].body["next_cursor"]
        answers.append(call("GET", path, query={**query, "limit": str(limit), "cursor": cursor}))
        assert len(answers) < 100
    assert {answer.status for answer in answers} == {200}
    return answers


def all_items(call: Call, path: str, query: dict[str, str], limit: int = 100) -> list[Any]:
    return [item for answer in all_pages(call, path, query, limit) for item in answer.body["items"]]


def test_pages_of_every_size_show_the_same(filled: Call) -> None:
    def identity(item: dict[str, Any]) -> str:
        # Without what refills meanwhile.
        return str({name: value for name, value in item.items() if name not in {"available", "limits"}})

    for path, query in LISTS:
        at_once = [identity(item) for item in all_items(filled, path, query)]
        assert len(at_once) >= 2
        assert len(set(at_once)) == len(at_once)
        for limit in (1, 2):
            assert [identity(item) for item in all_items(filled, path, query, limit)] == at_once
        assert "foreign" not in str(at_once)


def test_a_limit_that_can_not_be(call: Call) -> None:
    limits = ("0", "101", "-1", "x", "", "1.5", "1e2", "9" * 5000)
    for (path, query), limit in itertools.product(LISTS, limits):
        answer = call("GET", path, query={**query, "limit": limit})
        assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", "limit"), path


def test_a_cursor_that_is_not_ours(filled: Call) -> None:
    for path, query in LISTS:
        ours = filled("GET", path, query={**query, "limit": "1"}).body["next_cursor"]
        for cursor in ("", "x", "é", "\x00", "a" * 3000, "A" * 2048, ours[:-1], ours + "A", ours[1:], ours.swapcase()):
            answer = filled("GET", path, query={**query, "limit": "1", "cursor": cursor})
            assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", "cursor"), cursor


def test_a_cursor_of_another_list_or_other_arguments(filled: Call) -> None:
    cursors = {path: filled("GET", path, query={**query, "limit": "1"}).body["next_cursor"] for path, query in LISTS}
    for path, query in LISTS:
        for other, cursor in cursors.items():
            answer = filled("GET", path, query={**query, "cursor": cursor})
            assert answer.status == (200 if other == path else 400), (path, other)
    for path, query in (
        ("/v1/entities/user-1/children", {"cursor": cursors[CHILDREN]}),
        ("/v1/entities/user-2/buckets", {"cursor": cursors[BUCKETS]}),
        (WITH_LIMITS, {"resource": "_default_", "cursor": cursors[WITH_LIMITS]}),
        ("/v1/resources/model-1/capacity", {"cursor": cursors[CAPACITY]}),
        (AUDIT, {"entity": "user-2", "cursor": cursors[AUDIT]}),
    ):
        answer = filled("GET", path, query=query)
        assert (answer.status, answer.body["field"]) == (400, "cursor"), path


def test_a_cursor_of_another_tenant(filled: Call, handler_module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    cursor = filled("GET", CHILDREN, query={"limit": "1"}).body["next_cursor"]
    elsewhere = Caller("elsewhere", "client", "elsewhere", Role.ORG)
    monkeypatch.setattr(handler_module.application, "_identify", lambda _event, _access: elsewhere)
    answer = filled("GET", CHILDREN, query={"cursor": cursor})
    assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", "cursor")
    assert [item["entity"] for item in all_items(filled, CHILDREN, {})] == ["foreign"]


def test_entities(filled: Call) -> None:
    items = all_items(filled, ENTITIES, {})
    assert sorted(item["entity"] for item in items) == ["app-1", "default", "team", "user-1", "user-2", "user-3"]
    for item in items:
        assert item == filled("GET", f"/v1/entities/{item['entity']}").body
    assert len(filled("GET", ENTITIES).body["items"]) == 6


def test_children(filled: Call) -> None:
    assert [item["entity"] for item in all_items(filled, CHILDREN, {})] == ["user-1", "user-2", "user-3"]
    assert all_items(filled, "/v1/entities/user-1/children", {}) == []
    answer = filled("GET", "/v1/entities/nobody/children")
    assert (answer.status, answer.problem) == (404, "not-found")


def test_buckets(filled: Call) -> None:
    items = {item["limit"]: item for item in all_items(filled, "/v1/entities/user-3/buckets", {})}
    rpm = items["rpm"]
    assert 57 <= rpm.pop("available") <= 60
    assert rpm == {"resource": "gpt-4", "limit": "rpm", **FULL_RPM, "shards": 1, "call_limits": False}
    assert items["tpm"]["available"] == 60
    assert filled("GET", "/v1/entities/nobody/buckets").problem == "not-found"
    assert all_items(filled, "/v1/entities/team/buckets", {}) == []


def test_entities_with_limits(filled: Call) -> None:
    items = all_items(filled, WITH_LIMITS, {"resource": "gpt-4"})
    assert [item.pop("entity") for item in items] == ["user-1", "user-2", "user-3"]
    assert items[0] == filled("GET", "/v1/limits/entities/user-1/gpt-4").body
    filled("PUT", "/v1/limits/entities/user-2/_default_", BODY)
    assert [item["entity"] for item in all_items(filled, WITH_LIMITS, {"resource": "_default_"})] == ["user-2"]
    assert all_items(filled, WITH_LIMITS, {"resource": "nobody"}) == []


def test_resources(filled: Call) -> None:
    items = all_items(filled, RESOURCES, {})
    assert [item["resource"] for item in items] == ["gpt-4", "model-1", "model-2", "model-3"]
    assert items[1]["limits"] == {"rpm": FULL_RPM}


def test_capacity(filled: Call) -> None:
    answer = filled("GET", CAPACITY)
    assert [item["entity"] for item in answer.body["items"]] == ["user-1", "user-2", "user-3"]
    assert {item["limits"]["rpm"]["capacity"] for item in answer.body["items"]} == {60}
    for name in ("rpm", "tpm"):
        assert answer.body["page_sums"][name] == {
            figure: sum(item["limits"][name][figure] for item in answer.body["items"])
            for figure in ("available", "capacity")
        }
    assert filled("GET", "/v1/resources/unknown/capacity").body == {"items": [], "next_cursor": None, "page_sums": {}}


def test_the_audit_says_who_and_what(call: Call) -> None:
    call("PUT", "/v1/entities/user-1", {"name": "User", "metadata": {"seats": 3}})
    call("PUT", "/v1/limits/entities/user-1/gpt-4", BODY)
    call("DELETE", "/v1/entities/user-1")
    items = all_items(call, AUDIT, {"entity": "user-1"}, limit=1)
    assert sorted(item["action"] for item in items) == ["entity.delete", "entity.put", "limits.delete", "limits.put"]
    created = next(item for item in items if item["action"] == "entity.put")
    assert created == {
        "event_id": created["event_id"],
        "at": created["at"],
        "actor": "client-default",
        "action": "entity.put",
        "target": "entities/user-1",
        "before": None,
        "after": {"name": "User", "parent": "default", "cascade": True, "metadata": {"seats": 3}, "version": 1},
        "request_id": REQUEST_ID,
    }
    assert [item["at"] for item in items] == sorted((item["at"] for item in items), reverse=True)
    removed = next(item for item in items if item["action"] == "limits.delete")
    assert removed["before"] == {"config_version": 1, "limits": {"rpm": FULL_RPM}}


def test_the_audit_of_levels_without_an_entity(call: Call) -> None:
    call("PUT", "/v1/limits/system", {**BODY, "on_unavailable": "allow"})
    call("PUT", "/v1/limits/resources/gpt-4", BODY)
    (system,) = all_items(call, AUDIT, {"entity": "$SYSTEM"})
    assert (system["target"], system["after"]["on_unavailable"]) == ("limits/system", "allow")
    (resource,) = all_items(call, AUDIT, {"entity": "$RESOURCE:gpt-4"})
    assert resource["target"] == "limits/resources/gpt-4"
    assert all_items(call, AUDIT, {"entity": "nobody"}) == []


def test_the_audit_of_what_can_not_be(call: Call) -> None:
    for entity in ("", "$", "$SYSTEM ", "$system", "$RESOURCE", "$RESOURCE:", "$RESOURCE:a#b", "a#b", "$SYSTEM\n", "_"):
        answer = call("GET", AUDIT, query={"entity": entity})
        assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", "entity")


def test_the_audit_needs_an_entity_and_the_list_of_limits_a_resource(call: Call) -> None:
    for path, field in ((AUDIT, "entity"), (WITH_LIMITS, "resource")):
        answer = call("GET", path)
        assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", field)


def test_what_is_refused_leaves_no_event(call: Call) -> None:
    call("PUT", "/v1/limits/resources/gpt-4", {"limits": {"wcu": RPM}})
    call("PUT", "/v1/limits/resources/gpt-4", BODY, headers={"if-match": '"1-1"'})
    call("DELETE", "/v1/limits/resources/gpt-4")
    assert all_items(call, AUDIT, {"entity": "$RESOURCE:gpt-4"}) == []


def test_lists_are_only_read(call: Call) -> None:
    for path, query in LISTS:
        for method in ("PUT", "POST", "DELETE"):
            answer = call(method, path, {}, query=query)
            assert (answer.status, answer.headers["Allow"]) == (405, "GET")
