"""Budgets over HTTP, event in and answer out, on moto."""

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, Final

import boto3
import pytest

from sluice.core.budget import Amounts, Charge, LedgerChange
from sluice.core.identity import Role
from sluice.repository import budget_keys
from sluice.repository.entities import entity_put
from sluice.repository.items import Entity
from sluice.repository.ledger_items import decode_ledger
from sluice.repository.ledgers import change_ledger
from sluice.repository.store import Applied
from sluice.repository.wire import item_to_wire
from sluice.shell import Environment, build_services, clock_ms, make_client
from tests.fakes import CountingMeter
from tests.http import (
    APP,
    AS_NOBODY,
    AS_OPERATOR,
    NAMESPACE,
    TABLE,
    Call,
    authorized,
    caller_of,
    deployed,
    items_in_table,
)
from tests.tenancy import access_token, tenant_items

USER: Final = "user-1"
STRANGER: Final = "user-2"
BUDGETS: Final = "/v1/budgets"
BUDGET: Final = f"/v1/budgets/{USER}"
OF_ORG: Final = f"/v1/budgets/{NAMESPACE}"
DEFAULTS: Final = "/v1/budgets/_default_"
HARD: Final = {"day_cost_usd_micros": 10_000_000, "enforcement": "hard"}
FULL: Final = {
    "day_cost_usd_micros": 0,
    "month_cost_usd_micros": 10**15,
    "day_tokens": 1,
    "month_tokens": 2,
    "day_executions": 3,
    "month_executions": 4,
    "enforcement": "soft",
    "alert_percents": [1, 25, 50, 99, 100],
}
LIMITS: Final = [name for name in FULL if name not in {"enforcement", "alert_percents"}]
NO_LIMITS: Final[list[Any]] = [-1, 10**15 + 1, 1.5, "5", True, []]
EMPTY: Final = {**dict.fromkeys(FULL), "inherit": True}


@pytest.fixture
def handler_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with deployed("control_plane.handler", monkeypatch) as module:
        for entity, parent in ((USER, APP), (STRANGER, NAMESPACE)):
            made = Entity(entity, None, parent, cascade=True, metadata={}, version=1, created_at_ms=1, updated_at_ms=1)
            item = entity_put(NAMESPACE, made, None)["Put"]["Item"]
            boto3.client("dynamodb").put_item(TableName=TABLE, Item=item_to_wire(item))
        yield module


@pytest.fixture
def call(handler_module: ModuleType) -> Call:
    return caller_of(handler_module, "GET", BUDGET)


def the_app() -> dict[str, str]:
    return authorized(APP, Role.APP)


def ledgers() -> list[Any]:
    return [item for item in items_in_table() if item["kind"]["S"] == "ledger"]


def count(change: LedgerChange, entity: str = USER) -> None:
    """What acquires and events do."""
    environment = Environment("test", TABLE, 2000)
    services = build_services(environment, make_client(environment), CountingMeter())
    item = services.store.get(budget_keys.ledger(NAMESPACE, entity), consistent=True)
    assert item is not None
    request = change_ledger(decode_ledger(item), services.money.ledger_book.present(NAMESPACE), change, clock_ms())
    assert isinstance(services.store.update(request, repeatable=False), Applied)


def spent(cost_usd_micros: int, tokens: int, executions: int, errors: int) -> LedgerChange:
    environment = Environment("test", TABLE, 2000)
    services = build_services(environment, make_client(environment), CountingMeter())
    present = services.money.ledger_book.present(NAMESPACE)
    charge = Charge(present, Amounts(cost_usd_micros, tokens, executions), errors)
    return LedgerChange(Amounts(16_500, 300, 1), (charge,), 1_700_000_000_007, "timeout")


def test_a_budget_is_created_replaced_read_and_removed(call: Call) -> None:
    assert call().problem == "not-found"
    created = call("PUT", body=FULL)
    assert created.status == 201
    assert {name: created.body[name] for name in FULL} == FULL
    assert (created.body["entity"], created.body["has_own"], created.body["inherit"]) == (USER, True, True)
    assert created.body["effective"] == {**FULL, "source": dict.fromkeys(LIMITS, "own")}
    assert created.body["created_at"] == created.body["updated_at"]
    read = call()
    # The forecast moves with the time.
    assert (read.status, read.headers["ETag"]) == (200, created.headers["ETag"])
    assert read.body == created.body
    replaced = call("PUT", body=HARD)
    assert replaced.status == 200
    assert {name: replaced.body[name] for name in EMPTY} == {**EMPTY, **HARD}
    assert replaced.body["effective"] == {
        **dict.fromkeys(LIMITS),
        **HARD,
        "alert_percents": [80, 100],
        "source": {"day_cost_usd_micros": "own"},
    }
    assert replaced.headers["ETag"] != created.headers["ETag"]
    removed = call("DELETE")
    assert (removed.status, removed.body) == (204, None)
    after = call()
    assert (after.status, after.body["has_own"], after.body["inherit"]) == (200, False, False)
    assert after.body["effective"]["enforcement"] == "none"
    assert "ETag" not in after.headers
    assert call("DELETE").problem == "not-found"


def test_alerts_are_named_in_any_order(call: Call) -> None:
    shown = call("PUT", body={**HARD, "alert_percents": [100, 50, 80]})
    assert (shown.status, shown.body["alert_percents"]) == (201, [50, 80, 100])


def test_the_counters_are_shown_with_what_is_left_of_each_limit(call: Call) -> None:
    call("PUT", body={**HARD, "day_tokens": 500, "month_executions": 0, "month_cost_usd_micros": 50_000_000})
    count(spent(9_499_999, 200, 3, 2))
    body = call().body
    day, month = body["day"], body["month"]
    assert {name: day[name] for name in day if name not in {"period", "forecast_usd_micros", "resets_at"}} == {
        "cost_used_usd_micros": 9_516_499,
        "cost_held_usd_micros": 16_500,
        "tokens_used": 500,
        "tokens_held": 300,
        "executions": 3,
        "executions_held": 1,
        "errors": 2,
        "success_rate": 33.3,
        "remaining": {"cost_usd_micros": 483_501, "tokens": 0, "executions": None},
        "percent": {"cost": 94.9, "tokens": 40.0, "executions": None},
    }
    assert month["remaining"] == {"cost_usd_micros": 40_483_501, "tokens": None, "executions": -4}
    assert month["percent"] == {"cost": 18.9, "tokens": None, "executions": None}
    assert day["forecast_usd_micros"] >= 9_499_999
    assert day["period"].startswith(month["period"])
    assert day["resets_at"].endswith("T00:00:00.000Z")
    assert month["resets_at"][7:] == "-01T00:00:00.000Z"
    assert (body["last_execution_at"], body["last_execution_status"]) == ("2023-11-14T22:13:20.007Z", "timeout")
    assert body["guarantee"]["mode"] == "hard"
    assert body["guarantee"]["max_overshoot_usd_micros"] == 0
    assert "priced maximum" in body["guarantee"]["because"]


def test_a_lowered_limit_shows_what_is_beyond_it(call: Call) -> None:
    """Vector 65."""
    call("PUT", body=HARD)
    count(spent(5_983_500, 0, 1, 0))
    lowered = call("PUT", body={"day_cost_usd_micros": 5_000_000, "enforcement": "hard"}).body
    assert lowered["day"]["remaining"]["cost_usd_micros"] == -1_000_000
    assert lowered["guarantee"]["max_overshoot_usd_micros"] == 1_000_000
    soft = call("PUT", body={"day_cost_usd_micros": 5_000_000}).body
    assert (soft["guarantee"]["mode"], soft["guarantee"]["max_overshoot_usd_micros"]) == ("soft", None)


def test_the_defaults_hold_for_whoever_has_nothing_else(call: Call) -> None:
    assert call("GET", DEFAULTS).problem == "not-found"
    created = call("PUT", DEFAULTS, FULL)
    assert created.status == 201
    times = {name: created.body[name] for name in ("created_at", "updated_at")}
    assert created.body == {"entity": "_default_", **FULL, **times}
    read = call("GET", DEFAULTS)
    assert (read.status, read.body, read.headers["ETag"]) == (200, created.body, created.headers["ETag"])
    inherited = call()
    assert (inherited.status, inherited.body["has_own"], inherited.body["created_at"]) == (200, False, None)
    assert {name: inherited.body[name] for name in EMPTY} == EMPTY
    assert inherited.body["effective"] == {**FULL, "source": dict.fromkeys(LIMITS, "default")}
    assert inherited.body["day"]["success_rate"] == 100.0
    assert inherited.body["last_execution_at"] is None
    assert "ETag" not in inherited.headers
    # The org itself inherits nothing, and reading wrote nothing.
    assert call("GET", OF_ORG).problem == "not-found"
    assert len(ledgers()) == 1
    own = call("PUT", body={"day_tokens": 7, "inherit": False}).body["effective"]
    assert own == {
        **dict.fromkeys(LIMITS),
        "day_tokens": 7,
        "enforcement": "soft",
        "alert_percents": [80, 100],
        "source": {"day_tokens": "own"},
    }
    assert call("PUT", OF_ORG, HARD).body["effective"]["source"] == {"day_cost_usd_micros": "own"}
    assert call("PUT", DEFAULTS, {}).status == 200
    assert call("DELETE", DEFAULTS).status == 204
    assert call("GET", DEFAULTS).problem == "not-found"
    assert call("DELETE", DEFAULTS).problem == "not-found"
    # Of whom somebody asked it stays.
    assert call().body["day_tokens"] == 7


@pytest.mark.parametrize("path", [BUDGET, DEFAULTS])
def test_if_match_guards_against_a_version_not_seen(call: Call, path: str) -> None:
    assert call("PUT", path, HARD, headers={"if-match": "*"}).problem == "precondition-failed"
    seen = call("PUT", path, HARD).headers["ETag"]
    if path == BUDGET:
        count(spent(1, 1, 1, 0))
    assert call("GET", path).headers["ETag"] == seen
    newer = call("PUT", path, HARD, headers={"if-match": seen}).headers["ETag"]
    for stale in (seen, '"nonsense"', "", f"W/{newer}"):
        for method, body in (("PUT", HARD), ("DELETE", None)):
            answer = call(method, path, body, headers={"if-match": stale})
            assert (answer.status, answer.problem) == (412, "precondition-failed"), stale
    assert call("PUT", path, HARD, headers={"if-match": "*"}).status == 200
    listed = call("GET", path).headers["ETag"]
    assert call("DELETE", path, headers={"if-match": f'"x", {listed}'}).status == 204
    assert call("PUT", path, HARD, headers={"if-match": "*"}).status == 412


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        *((BUDGET, {name: value}, name) for name in LIMITS for value in NO_LIMITS),
        (BUDGET, {"enforcement": "strict"}, "enforcement"),
        (BUDGET, {"enforcement": "HARD"}, "enforcement"),
        (BUDGET, {"enforcement": 1}, "enforcement"),
        (BUDGET, {"inherit": None}, "inherit"),
        (BUDGET, {"inherit": "false"}, "inherit"),
        (BUDGET, {"alert_percents": [0]}, "alert_percents.0"),
        (BUDGET, {"alert_percents": [101]}, "alert_percents.0"),
        (BUDGET, {"alert_percents": [50.5]}, "alert_percents.0"),
        (BUDGET, {"alert_percents": ["50"]}, "alert_percents.0"),
        (BUDGET, {"alert_percents": [50, 50]}, "alert_percents"),
        (BUDGET, {"alert_percents": [1, 2, 3, 4, 5, 6]}, "alert_percents"),
        (BUDGET, {"alert_percents": 80}, "alert_percents"),
        (BUDGET, {"day_cost": 5}, "day_cost"),
        (BUDGET, {"day": {"cost_used_usd_micros": 0}}, "day"),
        (BUDGET, {"entity": USER}, "entity"),
        (DEFAULTS, {"inherit": False}, "inherit"),
        (DEFAULTS, {"day_tokens": -1}, "day_tokens"),
        (DEFAULTS, {"alert_percents": [9, 9]}, "alert_percents"),
        ("/v1/budgets/-user", HARD, "entity"),
        ("/v1/budgets/_defaults_", HARD, "entity"),
        ("/v1/budgets/$SYSTEM", HARD, "entity"),
        ("/v1/budgets/" + "u" * 129, HARD, "entity"),
        ("/v1/budgets/us%20er", HARD, "entity"),
    ],
)
def test_bad_input_is_refused_by_its_field_and_changes_nothing(
    call: Call, path: str, body: Mapping[str, Any], field: str
) -> None:
    before = items_in_table()
    answer = call("PUT", path, body)
    assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", field)
    assert items_in_table() == before


@pytest.mark.parametrize("raw", ["", "[]", "null", '{"day_tokens": 1, "day_tokens": 2}', '{"day_tokens": 1e3}', "{"])
@pytest.mark.parametrize("path", [BUDGET, DEFAULTS])
def test_a_body_that_is_none_is_refused(call: Call, path: str, raw: str) -> None:
    assert call("PUT", path, raw=raw).problem == "invalid-request"
    assert ledgers() == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_an_entity_that_is_not_there_has_no_budget(call: Call, method: str) -> None:
    call("PUT", DEFAULTS, HARD)
    assert call(method, "/v1/budgets/nobody", HARD if method == "PUT" else None).problem == "not-found"
    assert len(ledgers()) == 1


# Who may


def test_an_app_reads_its_own_and_those_below_it(call: Call) -> None:
    for entity in (USER, APP, STRANGER, NAMESPACE):
        call("PUT", f"{BUDGETS}/{entity}", HARD)
    for entity, status in ((USER, 200), (APP, 200), (STRANGER, 404), (NAMESPACE, 404), ("nobody", 404)):
        assert call("GET", f"{BUDGETS}/{entity}", caller=the_app()).status == status, entity
    listed = call("GET", BUDGETS, caller=the_app()).body
    assert [item["entity"] for item in listed["items"]] == [USER]


@pytest.mark.parametrize("path", [BUDGET, f"/v1/budgets/{APP}", DEFAULTS])
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_an_app_changes_nothing_not_even_its_own(call: Call, method: str, path: str) -> None:
    call("PUT", path, HARD)
    before = items_in_table()
    answer = call(method, path, FULL if method == "PUT" else None, caller=the_app())
    assert (answer.status, answer.problem) == (403, "forbidden")
    assert items_in_table() == before


def test_the_defaults_are_for_the_org_alone(call: Call) -> None:
    call("PUT", DEFAULTS, HARD)
    assert call("GET", DEFAULTS, caller=the_app()).problem == "forbidden"


@pytest.mark.parametrize("path", [BUDGETS, BUDGET, DEFAULTS])
def test_nobody_else_is_let_in(call: Call, path: str) -> None:
    for method in ("GET",) if path == BUDGETS else ("GET", "PUT", "DELETE"):
        body = HARD if method == "PUT" else None
        assert call(method, path, body, caller=AS_NOBODY).problem == "unauthorized"
        assert call(method, path, body, caller=AS_OPERATOR).problem == "unauthorized"


def test_another_namespace_has_budgets_of_its_own(call: Call) -> None:
    for item in tenant_items("ns-b", "globex", USER):
        boto3.client("dynamodb").put_item(TableName=TABLE, Item=item_to_wire(item))
    token = access_token("test", "ns-b", "globex", now_ms=clock_ms())
    theirs = {"authorization": f"Bearer {token}"}
    call("PUT", body=HARD)
    call("PUT", DEFAULTS, HARD)
    assert call("GET", DEFAULTS, caller=theirs).problem == "not-found"
    assert call(caller=theirs).problem == "not-found"
    assert call("DELETE", caller=theirs).problem == "not-found"
    assert call("GET", BUDGETS, caller=theirs).body["items"] == []
    other = call("PUT", body={"day_tokens": 5}, caller=theirs)
    assert (other.status, other.body["effective"]["enforcement"]) == (201, "soft")
    assert call("DELETE", caller=theirs).status == 204
    assert call().body["day_cost_usd_micros"] == HARD["day_cost_usd_micros"]


# Lists


def test_budgets_are_listed_in_pages(call: Call) -> None:
    call("PUT", DEFAULTS, FULL)
    for number, entity in enumerate((USER, APP, STRANGER)):
        call("PUT", f"{BUDGETS}/{entity}", HARD)
        count(spent(number, 0, 1, 0), entity)
    first = call("GET", BUDGETS, query={"limit": "2"}).body
    assert [item["entity"] for item in first["items"]] == [APP, USER]
    assert first["items"][1] == call().body
    second = call("GET", BUDGETS, query={"limit": "2", "cursor": first["next_cursor"]}).body
    assert ([item["entity"] for item in second["items"]], second["next_cursor"]) == ([STRANGER], None)
    for sort in ("day_cost", "month_cost"):
        page = call("GET", BUDGETS, query={"sort": sort, "limit": "2"}).body
        assert [item["entity"] for item in page["items"]] == [STRANGER, APP]
        rest = call("GET", BUDGETS, query={"sort": sort, "limit": "2", "cursor": page["next_cursor"]}).body
        assert ([item["entity"] for item in rest["items"]], rest["next_cursor"]) == ([USER], None)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"sort": "percent"}, "sort"),
        ({"sort": ""}, "sort"),
        ({"limit": "0"}, "limit"),
        ({"limit": "101"}, "limit"),
        ({"cursor": "nonsense"}, "cursor"),
    ],
)
def test_a_list_is_asked_for_properly(call: Call, query: Mapping[str, str], field: str) -> None:
    answer = call("GET", BUDGETS, query=query)
    assert (answer.problem, answer.body["field"]) == ("invalid-request", field)
