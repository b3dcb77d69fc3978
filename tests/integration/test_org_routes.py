"""Orgs and apps over HTTP, event in and answer out, on moto."""

import io
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from identity import routes
from sluice.core.identity import Role
from sluice.edge.access import ACCESS
from sluice.shell import logger
from tests.http import APP, AS_OPERATOR, NAMESPACE, Answer, Call, authorized, caller_of, deployed, items_in_table

ORG = "/v1/orgs/acme"
BOT = f"{ORG}/apps/bot"
OWN = f"/v1/orgs/{NAMESPACE}"
FULL = {
    "name": "Acme",
    "timezone": "America/Sao_Paulo",
    "quota_scope": "APP",
    "model_ordering": ["big", "small"],
    "quotas": {"big": 10**15, "small": 0},
    "sticky_fallback_enabled": False,
    "counter_shards": 64,
    "auto_register_entities": False,
    "accept_unpriced": True,
    "suspended": False,
    "tight_mode_threshold_pct": 99,
    "refresh_interval_normal_secs": 3600,
    "refresh_interval_tight_secs": 10,
}
DEFAULTS: dict[str, Any] = {
    "name": None,
    "timezone": "UTC",
    "timezone_next": None,
    "quota_scope": "ORG",
    "quota_scope_next": None,
    "model_ordering": [],
    "quotas": {},
    "sticky_fallback_enabled": True,
    "counter_shards": 8,
    "auto_register_entities": True,
    "accept_unpriced": False,
    "suspended": False,
    "tight_mode_threshold_pct": 95,
    "refresh_interval_normal_secs": 300,
    "refresh_interval_tight_secs": 60,
}
BAD: list[tuple[Any, str]] = [
    ({"name": ""}, "name"),
    ({"name": "n" * 129}, "name"),
    ({"timezone": "Mars/Olympus"}, "timezone"),
    ({"timezone": "../../etc/passwd"}, "timezone"),
    ({"timezone": "/usr/share/zoneinfo/UTC"}, "timezone"),
    ({"timezone": "America"}, "timezone"),
    ({"timezone": "U" * 65}, "timezone"),
    ({"timezone": 1}, "timezone"),
    ({"quota_scope": "org"}, "quota_scope"),
    ({"model_ordering": []}, "model_ordering"),
    ({"model_ordering": ["a"] * 21}, "model_ordering"),
    ({"model_ordering": ["a", "a"], "quotas": {"a": 1}}, "model_ordering"),
    ({"model_ordering": ["a b"], "quotas": {}}, "model_ordering.0"),
    ({"model_ordering": ["big"]}, "quotas.big"),
    ({"quotas": {"big": -1}}, "quotas.big"),
    ({"quotas": {"big": 10**15 + 1}}, "quotas.big"),
    ({"quotas": {"big": 1.5}}, "quotas.big"),
    ({"quotas": {"a b": 1}}, "quotas.a b"),
    ({"quotas": {f"l{number}": 1 for number in range(101)}}, "quotas"),
    ({"counter_shards": 0}, "counter_shards"),
    ({"counter_shards": 65}, "counter_shards"),
    ({"counter_shards": True}, "counter_shards"),
    ({"suspended": "yes"}, "suspended"),
    ({"tight_mode_threshold_pct": 0}, "tight_mode_threshold_pct"),
    ({"tight_mode_threshold_pct": 100}, "tight_mode_threshold_pct"),
    ({"refresh_interval_normal_secs": 9}, "refresh_interval_normal_secs"),
    ({"refresh_interval_tight_secs": 3601}, "refresh_interval_tight_secs"),
    ({"client_secret": "sk_x"}, "client_secret"),
    ({"colour": "red"}, "colour"),
]
SHOWN_BY_ALL = {"org", "client_id", "created_at", "updated_at"}


@pytest.fixture
def handler_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with deployed("identity.handler", monkeypatch) as module:
        yield module


@pytest.fixture
def call(handler_module: ModuleType) -> Call:
    """As an operator, unless told otherwise."""
    send = caller_of(handler_module, "GET", ORG)

    def as_operator(*arguments: Any, caller: Any = AS_OPERATOR, **options: Any) -> Answer:
        return send(*arguments, caller=caller, **options)

    return as_operator


def test_an_org_is_created_changed_read_and_purged(call: Call) -> None:
    assert call("GET", ORG).problem == "not-found"
    created = call("PUT", ORG, {})
    assert created.status == 201
    secret = created.body.pop("client_secret")
    assert secret.startswith("sk_")
    assert created.headers["Cache-Control"] == "no-store"
    assert {name: created.body[name] for name in DEFAULTS} == DEFAULTS
    assert created.body.keys() == DEFAULTS.keys() | SHOWN_BY_ALL
    read = call("GET", ORG)
    assert (read.status, read.body, read.headers["ETag"]) == (200, created.body, created.headers["ETag"])
    assert secret not in repr(items_in_table())
    changed = call("PUT", ORG, {"name": "Acme", "model_ordering": ["big"], "quotas": {"big": 5}})
    assert (changed.status, changed.body["name"], changed.body["quotas"]) == (200, "Acme", {"big": 5})
    assert "client_secret" not in changed.body
    assert changed.body["client_id"] == created.body["client_id"]
    assert changed.body["created_at"] == created.body["created_at"]
    assert changed.headers["ETag"] != created.headers["ETag"]
    purged = call("DELETE", ORG)
    assert (purged.status, purged.body["kind"]) == (202, "purge")
    assert purged.headers["Location"] == f"/v1/jobs/{purged.body['id']}"
    assert call("DELETE", ORG).body["id"] == purged.body["id"]
    for method, body in (("GET", None), ("PUT", {"name": "x"})):
        assert call(method, ORG, body).problem == "in-use"


def test_every_setting_is_taken_and_shown(call: Call) -> None:
    created = call("PUT", ORG, FULL)
    assert created.status == 201
    assert {name: created.body[name] for name in FULL} == FULL
    cleared = call("PUT", ORG, dict.fromkeys(FULL.keys() - {"counter_shards"}))
    assert cleared.status == 200
    kept = {"counter_shards": 64, "timezone": "America/Sao_Paulo", "quota_scope": "APP"}
    planned = {name: cleared.body[name] for name in ("timezone_next", "quota_scope_next")}
    assert {name: cleared.body[name] for name in DEFAULTS} == {**DEFAULTS, **kept, **planned}
    assert [one["value"] for one in planned.values()] == ["UTC", "ORG"]
    assert planned["timezone_next"].keys() == {"value", "from"}
    # Sao Paulo has had no summer time for years.
    assert planned["timezone_next"]["from"].endswith("T03:00:00.000Z")
    assert call("GET", ORG).body == cleared.body


def test_a_bad_field_is_named(call: Call) -> None:
    for body, field in BAD:
        answer = call("PUT", ORG, body)
        assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", field)
    assert items_in_table() == []


def test_shards_only_grow(call: Call) -> None:
    call("PUT", ORG, {"counter_shards": 9})
    for less in (8, None):
        answer = call("PUT", ORG, {"counter_shards": less})
        assert (answer.status, answer.body["field"]) == (400, "counter_shards")


def test_an_app_is_created_changed_read_and_removed(call: Call) -> None:
    assert call("PUT", BOT, {}).problem == "not-found"
    call("PUT", ORG, {"model_ordering": ["big"], "quotas": {"big": 5, "small": 6}})
    assert call("GET", BOT).problem == "not-found"
    created = call("PUT", BOT, {"name": "Bot"})
    assert created.status == 201
    assert created.body.pop("client_secret").startswith("sk_")
    assert created.headers["Cache-Control"] == "no-store"
    everything = ["model_ordering", "quotas.big", "quotas.small"]
    numbers = ["refresh_interval_normal_secs", "refresh_interval_tight_secs", "tight_mode_threshold_pct"]
    assert created.body["inherited"] == everything + numbers
    assert (created.body["app"], created.body["org"], created.body["name"]) == ("bot", "acme", "Bot")
    assert (created.body["model_ordering"], created.body["quotas"]) == (["big"], {"big": 5, "small": 6})
    assert (created.body["tight_mode_threshold_pct"], created.body["suspended"]) == (95, False)
    read = call("GET", BOT)
    assert (read.status, read.body, read.headers["ETag"]) == (200, created.body, created.headers["ETag"])
    own = {"quotas": {"big": 1}, "suspended": True, **dict.fromkeys(numbers, 50)}
    changed = call("PUT", BOT, own)
    assert changed.status == 200
    assert "client_secret" not in changed.body
    assert (changed.body["inherited"], changed.body["quotas"]) == (
        ["model_ordering", "quotas.small"],
        {"big": 1, "small": 6},
    )
    assert call("PUT", BOT, {"quotas": None}).body["quotas"] == {"big": 5, "small": 6}
    removed = call("DELETE", BOT)
    assert (removed.status, removed.body) == (204, None)
    assert call("DELETE", BOT).problem == "not-found"
    again = call("PUT", BOT, {})
    assert again.status == 201
    assert again.body["client_id"] != created.body["client_id"]


@pytest.mark.parametrize("field", ["timezone", "quota_scope", "counter_shards", "accept_unpriced"])
def test_what_is_the_orgs_alone_is_no_field_of_an_app(call: Call, field: str) -> None:
    call("PUT", ORG, {})
    answer = call("PUT", BOT, {field: FULL[field]})
    assert (answer.status, answer.body["field"]) == (400, field)


def test_an_id_that_is_taken(call: Call) -> None:
    call("PUT", ORG, {})
    answer = call("PUT", f"{ORG}/apps/acme", {})
    assert (answer.status, answer.problem) == (409, "id-taken")


@pytest.mark.parametrize("path", [ORG, BOT])
def test_a_writer_says_which_version_it_has_seen(call: Call, path: str) -> None:
    if path == BOT:
        call("PUT", ORG, {})
    assert call("PUT", path, {}, headers={"if-match": "*"}).problem == "precondition-failed"
    tag = call("PUT", path, {}).headers["ETag"]
    assert call("PUT", path, {"name": "a"}, headers={"if-match": tag}).status == 200
    stale = call("PUT", path, {"name": "b"}, headers={"if-match": tag})
    assert (stale.status, stale.problem, stale.body["field"]) == (412, "precondition-failed", "if-match")
    assert call("DELETE", path, headers={"if-match": tag}).problem == "precondition-failed"
    assert call("GET", path).body["name"] == "a"


def test_lists_go_page_by_page(call: Call) -> None:
    for number in range(3):
        call("PUT", f"/v1/orgs/org{number}", {})
        call("PUT", f"/v1/orgs/org0/apps/app{number}", {})
    for path, name, first in (("/v1/orgs", "org", [NAMESPACE]), ("/v1/orgs/org0/apps", "app", [])):
        listed, query = [], {"limit": "2"}
        while True:
            page = call("GET", path, query=query)
            assert page.status == 200
            listed += [item[name] for item in page.body["items"]]
            assert all("client_secret" not in item for item in page.body["items"])
            if page.body["next_cursor"] is None:
                break
            query["cursor"] = page.body["next_cursor"]
        assert listed == [*first, *(f"{name}{number}" for number in range(3))]
    other = call("GET", "/v1/orgs", query={"limit": "1"}).body["next_cursor"]
    assert call("GET", "/v1/orgs/org0/apps", query={"cursor": other}).body["field"] == "cursor"


@pytest.mark.parametrize("path", [ORG, BOT])
def test_a_secret_is_rotated(call: Call, path: str) -> None:
    call("PUT", ORG, {})
    created = call("PUT", BOT, {}) if path == BOT else call("GET", ORG)
    rotated = call("POST", f"{path}/credentials/rotate", {})
    assert rotated.status == 200
    assert rotated.body.keys() == {"client_id", "client_secret", "old_secret_expires_at"}
    assert rotated.body["client_id"] == created.body["client_id"]
    assert rotated.headers["Cache-Control"] == "no-store"
    opened = call(
        "POST",
        "/v1/auth/token",
        {"client_id": rotated.body["client_id"], "client_secret": rotated.body["client_secret"]},
        caller={},
    )
    assert opened.status == 200
    for hours in (-1, 169, 1.5, "1"):
        answer = call("POST", f"{path}/credentials/rotate", {"grace_period_hours": hours})
        assert (answer.status, answer.body["field"]) == (400, "grace_period_hours")
    for _ in range(3):
        assert call("POST", f"{path}/credentials/rotate", {"grace_period_hours": 168}).status == 200
    too_many = call("POST", f"{path}/credentials/rotate", {"grace_period_hours": 168})
    assert (too_many.status, too_many.problem) == (409, "rotation-conflict")
    assert call("POST", f"{path}/credentials/rotate", {"grace_period_hours": 0}).status == 200


def test_an_org_sees_and_changes_its_own_alone(call: Call) -> None:
    call("PUT", ORG, {})
    call("PUT", BOT, {})
    caller = authorized()
    assert call("GET", OWN, caller=caller).body["org"] == NAMESPACE
    assert call("PUT", f"{OWN}/apps/bot", {}, caller=caller).status == 201
    assert [app["app"] for app in call("GET", f"{OWN}/apps", caller=caller).body["items"]] == [APP, "bot"]
    assert call("POST", f"{OWN}/apps/bot/credentials/rotate", {}, caller=caller).status == 200
    assert call("DELETE", f"{OWN}/apps/bot", caller=caller).status == 204
    nobody = "/v1/orgs/nobody"
    for method, rest, body in (
        ("GET", "", None),
        ("GET", "/apps", None),
        ("GET", "/apps/bot", None),
        ("PUT", "/apps/bot", {}),
        ("DELETE", "/apps/bot", None),
        ("POST", "/credentials/rotate", {}),
        ("POST", "/apps/bot/credentials/rotate", {}),
    ):
        foreign = call(method, ORG + rest, body, caller=caller)
        assert (foreign.status, foreign.problem) == (404, "not-found")
        assert foreign.body == call(method, nobody + rest, body, caller=caller).body
    for method, path, body in (("PUT", OWN, {}), ("DELETE", OWN, None), ("GET", "/v1/orgs", None)):
        assert call(method, path, body, caller=caller).problem == "forbidden"


def test_an_app_provisions_nothing(call: Call) -> None:
    caller = authorized(APP, Role.APP)
    for method, path in (("GET", OWN), ("GET", f"{OWN}/apps/{APP}"), ("PUT", f"{OWN}/apps/{APP}"), ("GET", "/v1/orgs")):
        assert call(method, path, {} if method == "PUT" else None, caller=caller).problem == "forbidden"


def test_no_secret_reaches_the_log(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(logger.registered_handler, "stream", written)
    secret = call("PUT", ORG, {}).body["client_secret"]
    other = call("POST", f"{ORG}/credentials/rotate", {}).body["client_secret"]
    call("PUT", ORG, {"client_secret": secret})
    assert "request" in written.getvalue()
    assert secret not in written.getvalue()
    assert other not in written.getvalue()
    assert "acme" not in written.getvalue()


def test_every_route_has_its_access() -> None:
    about_orgs = {(method, path) for (method, path) in ACCESS if path.startswith("/v1/orgs")}
    served = {(method, path) for path, methods in routes.ROUTES.items() for method in methods}
    assert about_orgs <= served
