"""Selection over HTTP, event in and answer out, on moto."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from types import ModuleType
from typing import Any

import boto3
import pytest
from botocore.client import BaseClient

from sluice.core.identity import Role
from sluice.core.labels import LabelDefinition
from sluice.core.metering import Counters
from sluice.core.orgs import OrgSettings
from sluice.core.period import local_day, shown_day
from sluice.core.timelines import always
from sluice.edge.problems import rfc3339
from sluice.repository.counters import CounterName
from sluice.repository.entities import entity_put
from sluice.repository.items import Entity
from sluice.repository.labels import encode_label
from sluice.repository.totals import write_total
from sluice.repository.wire import Item, item_to_wire
from sluice.services.zones import ZoneCalendar
from sluice.shell import clock_ms
from tests.http import APP, AS_NOBODY, NAMESPACE, TABLE, Answer, Call, authorized, caller_of, deployed, items_in_table
from tests.tenancy import tenant_items

SELECTION = "/v1/selection"
OVERRIDE = "/v1/selection/override"
OTHER_APP, USER = "app-2", "user-1"
ORDERING = ("premium", "standard")
# Where it is about noon now, so that no day ends while a test runs.
_EAST = 12 - datetime.now(UTC).hour
ZONES = always(f"Etc/GMT{-_EAST:+}" if _EAST else "Etc/GMT")
SETTINGS = OrgSettings(zones=ZONES, model_ordering=ORDERING, quotas_usd_micros={"premium": 1_000, "standard": 0})
NOTHING_USED: dict[str, Any] = {"spent_usd_micros": 0, "defined": True, "as_of": None}


@pytest.fixture
def handler_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with deployed("data_plane.handler", monkeypatch) as module:
        put_tenant()
        yield module


@pytest.fixture
def call(handler_module: ModuleType) -> Call:
    return caller_of(handler_module, "GET", SELECTION)


def put(item: Item) -> None:
    boto3.client("dynamodb").put_item(TableName=TABLE, Item=item_to_wire(item))


def put_tenant(settings: OrgSettings = SETTINGS) -> None:
    for item in tenant_items(NAMESPACE, NAMESPACE, APP, OTHER_APP, settings=settings):
        put(item)
    user = Entity(USER, None, APP, True, {}, 1, 1, 1)
    put(entity_put(NAMESPACE, user, None)["Put"]["Item"])
    for label in ORDERING:
        put(encode_label(NAMESPACE, LabelDefinition(label, f"m-{label}", None, None, None, 3_000_000, None, 1, 1, 1)))


def today() -> Any:
    return local_day(ZONES, clock_ms(), ZoneCalendar())


def spend(label: str, usd_micros: int) -> int:
    now_ms = clock_ms()
    name = CounterName(NAMESPACE, NAMESPACE, label, today().name)
    request: Any = write_total(name, Counters(usd_micros), 1, now_ms)
    for part in ("Key", "ExpressionAttributeValues"):
        request[part] = item_to_wire(request[part])
    boto3.client("dynamodb").update_item(TableName=TABLE, **request)
    return now_ms


def stored() -> list[Any]:
    return [item for item in items_in_table() if item["kind"]["S"] in ("sticky_state", "audit")]


def set_override(call: Call, caller: dict[str, str] | None = None, **more: Any) -> Answer:
    body = {"entity": APP, "label": "standard", "reason": "premium is down", **more}
    return call("PUT", OVERRIDE, {name: value for name, value in body.items() if value is not None}, caller=caller)


def test_the_label_to_use_now(call: Call) -> None:
    answer = call()
    day = today()
    assert answer.status == 200
    assert answer.body == {
        "entity": NAMESPACE,
        "label": "premium",
        "model_id": "m-premium",
        "reason": "normal",
        "previous_label": None,
        "mode": "NORMAL",
        "sticky": None,
        "labels": [
            {"label": "premium", "quota_usd_micros": 1_000, "percent": 0.0, "mode": "NORMAL", **NOTHING_USED},
            {"label": "standard", "quota_usd_micros": 0, "percent": None, "mode": "EXCEEDED", **NOTHING_USED},
        ],
        "prices": {
            "model_id": "m-premium",
            "price_id": "label:premium:1",
            "source": "label",
            "region": None,
            "from_day": None,
            "standard": {
                "input_usd_micros_per_1m": 3_000_000,
                "output_usd_micros_per_1m": None,
                "cache_read_usd_micros_per_1m": None,
                "cache_write_usd_micros_per_1m": None,
                "cache_write_1h_usd_micros_per_1m": None,
            },
            "batch": None,
            "long_from_tokens": None,
            "long_standard": None,
            "long_batch": None,
        },
        "check_again_in_seconds": 300,
        "day": shown_day(day.number),
        "resets_at": rfc3339(day.ends_ms),
        "as_of": None,
    }


def test_how_much_is_spent(call: Call) -> None:
    as_of_ms = spend("premium", 949)
    body = call().body
    assert (body["label"], body["mode"], body["as_of"]) == ("premium", "NORMAL", rfc3339(as_of_ms))
    (premium, _) = body["labels"]
    assert (premium["percent"], premium["spent_usd_micros"], premium["as_of"]) == (94.9, 949, rfc3339(as_of_ms))
    assert 10 <= body["check_again_in_seconds"] <= 300


def test_all_quotas_are_exceeded(call: Call) -> None:
    spend("premium", 1_001)
    answer = call()
    day = today()
    assert (answer.status, answer.problem) == (429, "all-quotas-exceeded")
    assert answer.body["resets_at"] == rfc3339(day.ends_ms)
    assert 0 < answer.body["retry_after_ms"] <= day.ends_ms - day.starts_ms
    assert answer.headers["Retry-After"] == str(-(-answer.body["retry_after_ms"] // 1000))
    assert answer.body["labels"] == [
        {"label": "premium", "spent_usd_micros": 1_001, "quota_usd_micros": 1_000},
        {"label": "standard", "spent_usd_micros": 0, "quota_usd_micros": 0},
    ]
    assert not stored()


def test_an_ordering_without_a_usable_label(call: Call) -> None:
    put_tenant(OrgSettings())
    answer = call()
    assert (answer.status, answer.problem, answer.body["field"]) == (422, "unknown-label", "model_ordering")


def test_for_whom(call: Call) -> None:
    """The caller itself, unless an entity is named."""
    app = authorized(APP, Role.APP)
    assert call(caller=app).body["entity"] == APP
    for caller, entity, owner in (
        (app, USER, APP),
        (app, APP, APP),
        (authorized(), USER, APP),
        (authorized(), OTHER_APP, OTHER_APP),
        (authorized(), NAMESPACE, NAMESPACE),
    ):
        assert call(query={"entity": entity}, caller=caller).body["entity"] == owner
    for caller, entity in ((app, OTHER_APP), (app, NAMESPACE), (app, "nobody"), (authorized(), "nobody")):
        answer = call(query={"entity": entity}, caller=caller)
        assert (answer.status, answer.problem) == (404, "not-found")
    assert call(caller=AS_NOBODY).status == 401


def test_an_app_asks_for_its_users_in_one_call(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hole: a walk up the table before each answer, which cost more than the answer."""
    app, query = authorized(APP, Role.APP), {"entity": USER}
    assert call(query=query, caller=app).status == 200
    client_class: Any = BaseClient
    operations, make_api_call = [], client_class._make_api_call

    def counted(self: Any, operation: str, parameters: Any) -> Any:
        operations.append(operation)
        return make_api_call(self, operation, parameters)

    monkeypatch.setattr(client_class, "_make_api_call", counted)
    assert call(query=query, caller=app).status == 200
    assert operations == ["BatchGetItem"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"entity": ""}, "entity"),
        ({"entity": "a b"}, "entity"),
        ({"region": ""}, "region"),
        ({"region": "eu west 1"}, "region"),
        ({"region": "eu-west-1\n"}, "region"),
        ({"region": "e" * 99}, "region"),
    ],
)
def test_a_bad_query(call: Call, query: dict[str, str], field: str) -> None:
    answer = call(query=query)
    assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", field)


def test_a_region_of_which_nothing_depends(call: Call) -> None:
    assert call(query={"region": "us-gov-west-1"}).body["model_id"] == "m-premium"


def test_an_override(call: Call) -> None:
    first = set_override(call, entity=USER)
    day = today()
    shown = {
        "entity": APP,
        "label": "standard",
        "reason": "premium is down",
        "until": rfc3339(day.ends_ms),
        "day": shown_day(day.number),
    }
    assert (first.status, first.body) == (201, shown)
    again = set_override(call, reason="r" * 512)
    assert (again.status, again.body) == (200, {**shown, "reason": "r" * 512})
    selected = call(query={"entity": APP}).body
    assert (selected["label"], selected["reason"], selected["mode"]) == ("standard", "override", "EXCEEDED")
    assert selected["sticky"] == {
        "label": None,
        "previous_label": None,
        "since": None,
        "override": {"label": "standard", "reason": "r" * 512, "until": rfc3339(day.ends_ms)},
    }
    assert selected["check_again_in_seconds"] == 60
    assert call("GET", SELECTION, query={"entity": OTHER_APP}).body["reason"] == "normal"
    removed = call("DELETE", OVERRIDE, query={"entity": USER})
    assert (removed.status, removed.body) == (204, None)
    assert call(query={"entity": APP}).body["reason"] == "normal"
    gone = call("DELETE", OVERRIDE, query={"entity": USER})
    assert (gone.status, gone.problem) == (404, "not-found")


def test_an_override_until_a_time(call: Call) -> None:
    day = today()
    until_ms = day.ends_ms - 3_600_001
    until = datetime.fromtimestamp(until_ms // 1000, UTC) + timedelta(milliseconds=until_ms % 1000)
    answer = set_override(
        call, until=until.astimezone(timezone(timedelta(hours=5, minutes=45))).isoformat(timespec="milliseconds")
    )
    assert (answer.status, answer.body["until"]) == (201, rfc3339(until_ms))
    to_the_nanosecond = set_override(call, until=rfc3339(until_ms).replace("Z", "999999z"))
    assert (to_the_nanosecond.status, to_the_nanosecond.body["until"]) == (200, rfc3339(until_ms))


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"entity": None}, "entity"),
        ({"entity": "a b"}, "entity"),
        ({"label": None}, "label"),
        ({"label": ""}, "label"),
        ({"label": 1}, "label"),
        ({"reason": None}, "reason"),
        ({"reason": ""}, "reason"),
        ({"reason": "r" * 513}, "reason"),
        ({"reason": "\ud800"}, "reason"),
        ({"until": ""}, "until"),
        ({"until": "tomorrow"}, "until"),
        ({"until": 1_800_000_000_000}, "until"),
        ({"until": "2020-01-01T00:00:00Z"}, "until"),
        ({"until": "1960-01-01T00:00:00Z"}, "until"),
        ({"until": "2020-02-30T00:00:00Z"}, "until"),
        ({"until": "9999-12-31T23:59:59-01:00"}, "until"),
        ({"until": "2999-01-01T00:00:00Z"}, "until"),
        ({"other": 1}, "other"),
    ],
)
def test_a_bad_override(call: Call, more: dict[str, Any], field: str) -> None:
    answer = set_override(call, **more)
    assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", field)
    assert not stored()


def test_an_override_to_a_label_that_is_not_in_the_ordering(call: Call) -> None:
    answer = set_override(call, label="gold")
    assert (answer.status, answer.problem, answer.body["field"]) == (422, "unknown-label", "label")
    assert not stored()


def test_who_sets_an_override(call: Call) -> None:
    app = authorized(APP, Role.APP)
    assert set_override(call, app).status == 201
    assert set_override(call, app, entity=USER).status == 200
    for entity in (OTHER_APP, NAMESPACE, "nobody"):
        for answer in (
            set_override(call, app, entity=entity),
            call("DELETE", OVERRIDE, query={"entity": entity}, caller=app),
        ):
            assert (answer.status, answer.problem) == (404, "not-found")
    assert call("DELETE", OVERRIDE, caller=app).status == 204
    assert set_override(call, entity=NAMESPACE).status == 201
    assert call("DELETE", OVERRIDE).status == 204
    assert set_override(call, entity="nobody").status == 404
    actors = {item["actor"]["S"] for item in stored() if item["kind"]["S"] == "audit"}
    assert actors == {f"client-{APP}", f"client-{NAMESPACE}"}
