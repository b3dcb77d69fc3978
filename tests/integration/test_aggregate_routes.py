"""Sums, events and rollups over HTTP, event in and answer out, on moto."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import boto3
import pytest

from sluice.core.identity import Role
from sluice.core.metering import CallStatus, Counters
from sluice.core.orgs import EntityRole, OrgSettings
from sluice.core.period import numbered_day
from sluice.core.pricing import Pricing, TokenKind
from sluice.repository.counters import CounterName
from sluice.repository.entities import entity_put
from sluice.repository.events import UsageEvent, put_event
from sluice.repository.items import Entity
from sluice.repository.retries import Retries
from sluice.repository.sticky import Override, StickyName, override_set
from sluice.repository.store import DynamoStore
from sluice.repository.totals import write_total
from sluice.services.rollup_jobs import ROLLUP_ENTITY
from sluice.services.zones import ZoneCalendar
from sluice.shell import clock_ms, new_token
from tests.fakes import CountingMeter, never_random
from tests.http import APP, NAMESPACE, TABLE, Call, authorized, caller_of, deployed, items_in_table

AGGREGATES, ROLLUP, EVENTS = "/v1/aggregates", "/v1/aggregates/rollup", "/v1/events"
USER = "user-1"
ZEROS = {
    "input_tokens": 0,
    "output_tokens": 0,
    "cache_read_tokens": 0,
    "cache_write_tokens": 0,
    "cache_write_1h_tokens": 0,
    "cost_usd_micros": 0,
    "cache_hit_percent": None,
    "requests": 0,
    "errors": 0,
    "unpriced": 0,
}


@pytest.fixture
def handler_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with deployed("control_plane.handler", monkeypatch) as module:
        yield module


@pytest.fixture
def call(handler_module: ModuleType) -> Call:
    return caller_of(handler_module, "GET", AGGREGATES)


@pytest.fixture
def store(handler_module: ModuleType) -> DynamoStore:
    made = DynamoStore(boto3.client("dynamodb"), TABLE, Retries(lambda _ms: None, never_random, CountingMeter()))
    user = Entity(USER, None, APP, True, {}, 1, 1, 1, EntityRole.OTHER)
    made.transact([entity_put(NAMESPACE, user, None)], new_token())
    return made


@pytest.fixture
def today() -> datetime:
    return datetime.fromtimestamp(clock_ms() // 1000, UTC)


def used(
    store: DynamoStore, day: datetime, cost_usd_micros: int, entity: str = NAMESPACE, label: str = "premium"
) -> None:
    tokens = {TokenKind.INPUT: 60, TokenKind.OUTPUT: 7, TokenKind.CACHE_READ: 40}
    name = CounterName(NAMESPACE, entity, label, f"{day:%Y%m%d}")
    counters = Counters(cost_usd_micros, tokens, requests=3, errors=1, unpriced=1)
    store.update(write_total(name, counters, 3, clock_ms()), repeatable=True)


def reported(store: DynamoStore, request_id: str, caller: str, entity: str, app: str | None, **changed: Any) -> None:
    now_ms = clock_ms()
    fields: dict[str, Any] = {
        "namespace": NAMESPACE,
        "request_id": request_id,
        "body_hash": "hash",
        "entity": entity,
        "app": app,
        "chain": (entity,),
        "day": f"{datetime.fromtimestamp(now_ms // 1000, UTC):%Y%m%d}",
        "occurred_at_ms": now_ms,
        "received_at_ms": now_ms,
        "label": "premium",
        "model_id": "vendor.model-v1",
        "region": "eu-west-1",
        "status": CallStatus.TIMEOUT,
        "pricing": Pricing.BATCH,
        "tokens": {TokenKind.INPUT: 7, TokenKind.CACHE_WRITE_1H: 3},
        "cost_usd_micros": 11,
        "price_id": "aws:vendor.model-v1:-:2027-01-01",
        "tags": {"team": "x"},
        "lease_id": "lease-1",
    }
    store.put(put_event(caller, UsageEvent(**{**fields, **changed})), repeatable=False)


def test_nothing_was_used(call: Call, today: datetime) -> None:
    before = items_in_table()
    answer = call()
    assert answer.status == 200, answer.body
    assert answer.body == {
        "entity": NAMESPACE,
        "timezone": "UTC",
        "days": [{"day": f"{today:%Y-%m-%d}", "labels": [], "total": ZEROS, "sticky": None}],
        "months": [{"month": f"{today:%Y-%m}", **ZEROS}],
        "total": ZEROS,
        "updated_at": None,
    }
    assert items_in_table() == before


def test_what_was_used(call: Call, store: DynamoStore, today: datetime) -> None:
    used(store, today, 9_499)
    used(store, today - timedelta(days=1), 1, label="economy")
    body = call(query={"from": f"{today - timedelta(days=1):%Y-%m-%d}", "to": f"{today:%Y-%m-%d}"}).body
    yesterday, now = body["days"]
    assert [one["label"] for one in yesterday["labels"]] == ["economy"]
    (premium,) = now["labels"]
    assert premium == {
        "label": "premium",
        "quota_usd_micros": None,
        "percent": None,
        "mode": None,
        **ZEROS,
        "input_tokens": 60,
        "output_tokens": 7,
        "cache_read_tokens": 40,
        "cost_usd_micros": 9_499,
        "cache_hit_percent": 40.0,
        "requests": 3,
        "errors": 1,
        "unpriced": 1,
    }
    assert body["total"]["cost_usd_micros"] == 9_500
    assert sum(month["cost_usd_micros"] for month in body["months"]) == 9_500
    assert body["updated_at"].endswith("Z")


def test_today_tells_what_somebody_set(call: Call, store: DynamoStore, today: datetime) -> None:
    day = numbered_day(OrgSettings().zones, today.toordinal(), ZoneCalendar())
    override = Override("economy", "premium is down", "client-7", day.ends_ms)
    store.transact([override_set(StickyName(NAMESPACE, NAMESPACE, day), override, None, clock_ms())], new_token())
    (shown,) = call().body["days"]
    until = f"{today + timedelta(days=1):%Y-%m-%dT00:00:00.000Z}"
    assert shown["sticky"] == {
        "label": None,
        "previous_label": None,
        "since": None,
        "override": {"label": "economy", "reason": "premium is down", "until": until},
    }


def test_an_app_sees_its_own_and_nothing_else(call: Call, store: DynamoStore, today: datetime) -> None:
    used(store, today, 7)
    used(store, today, 5, entity=APP)
    app = authorized(APP, Role.APP)
    own, named = (call(caller=app, query=query) for query in ({}, {"entity": APP}))
    assert own.body == named.body
    assert (own.body["entity"], own.body["total"]["cost_usd_micros"]) == (APP, 5)
    for entity in (NAMESPACE, "app-2", "nobody"):
        assert call(caller=app, query={"entity": entity}).problem == "not-found"
    assert call(query={"entity": APP}).body["total"]["cost_usd_micros"] == 5


def test_who_has_no_totals(call: Call, store: DynamoStore) -> None:
    for caller in (authorized(), authorized(APP, Role.APP)):
        answer = call(caller=caller, query={"entity": USER})
        assert (answer.status, answer.problem) == (422, "no-totals")
    assert call(query={"entity": "nobody"}).problem == "not-found"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"from": "2027-13-01"}, "from"),
        ({"from": "2027-02-30"}, "from"),
        ({"to": "20270101"}, "to"),
        ({"to": "0000-01-01"}, "to"),
        ({"from": "9999-12-31"}, "from"),
        ({"from": "0001-01-01", "to": "0001-01-02"}, "from"),
        ({"to": "0001-01-01"}, "from"),
        ({"from": "2027-01-01T00:00:00Z"}, "from"),
        ({"from": ""}, "from"),
        ({"entity": "a b"}, "entity"),
        ({"entity": ""}, "entity"),
    ],
)
def test_bad_input_is_refused(call: Call, query: dict[str, str], field: str) -> None:
    answer = call(query=query)
    assert (answer.status, answer.problem) == (400, "invalid-request")
    assert answer.body["field"] == field


def test_a_rollup_is_a_job(call: Call, store: DynamoStore) -> None:
    answer = call("POST", ROLLUP, {"entity": APP})
    assert answer.status == 202
    assert (answer.body["kind"], answer.body["state"], answer.body["result"]) == (ROLLUP_ENTITY, "queued", None)
    assert answer.headers["Location"] == f"/v1/jobs/{answer.body['id']}"
    assert call("GET", answer.headers["Location"]).body == answer.body
    stored = [item for item in items_in_table() if item["kind"] == {"S": "job"}]
    assert len(stored) == 1
    assert stored[0]["parameters"] == {"M": {"entity": {"S": APP}}}


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        ({"entity": USER}, 422, "no-totals"),
        ({"entity": "nobody"}, 404, "not-found"),
        ({"entity": "a b"}, 400, "invalid-request"),
        ({"entity": 7}, 400, "invalid-request"),
        ({}, 400, "invalid-request"),
        ({"entity": APP, "days": 3}, 400, "invalid-request"),
    ],
)
def test_a_rollup_that_is_refused_starts_no_job(
    call: Call, store: DynamoStore, body: dict[str, Any], status: int, problem: str
) -> None:
    answer = call("POST", ROLLUP, body)
    assert (answer.status, answer.problem) == (status, problem)
    assert not [item for item in items_in_table() if item["kind"] == {"S": "job"}]


def test_an_app_may_not_ask_for_a_rollup(call: Call, store: DynamoStore) -> None:
    assert call("POST", ROLLUP, {"entity": APP}, caller=authorized(APP, Role.APP)).problem == "forbidden"


def test_an_event_as_it_is_shown(call: Call, store: DynamoStore) -> None:
    at_ms = clock_ms()
    reported(store, "request-1", APP, USER, APP, occurred_at_ms=at_ms, received_at_ms=at_ms)
    body = call("GET", EVENTS, query={"entity": USER}).body
    (event,) = body["items"]
    assert body["next_cursor"] is None
    assert event.pop("occurred_at") == event.pop("received_at")
    assert event == {
        "request_id": "request-1",
        "entity": USER,
        "app": APP,
        "label": "premium",
        "model_id": "vendor.model-v1",
        "region": "eu-west-1",
        "status": "timeout",
        "pricing": "batch",
        "input_tokens": 7,
        "output_tokens": 0,
        "cache_read_tokens": 0,
        "cache_write_tokens": 0,
        "cache_write_1h_tokens": 3,
        "cost_usd_micros": 11,
        "price_id": "aws:vendor.model-v1:-:2027-01-01",
        "tags": {"team": "x"},
        "lease_id": "lease-1",
    }


def test_events_page_by_page(call: Call, store: DynamoStore) -> None:
    for number in range(23):
        reported(store, f"request-{number}", NAMESPACE, NAMESPACE, None)
    found: list[str] = []
    cursor: dict[str, str] = {}
    for _ in range(10):
        answer = call("GET", EVENTS, query={"limit": "5", **cursor})
        assert answer.status == 200, answer.body
        found += [event["request_id"] for event in answer.body["items"]]
        if answer.body["next_cursor"] is None:
            break
        cursor = {"cursor": answer.body["next_cursor"]}
    assert sorted(found) == sorted(f"request-{number}" for number in range(23))


def test_an_app_sees_its_events_from_the_time_on_at_which_it_was_made(call: Call, store: DynamoStore) -> None:
    app = authorized(APP, Role.APP)
    # The app of these tests is years old, its user was made in 1970.
    reported(store, "own", APP, USER, APP)
    reported(store, "from-its-org", NAMESPACE, APP, APP)
    reported(store, "of-an-earlier-app", APP, APP, APP, received_at_ms=1_600_000_000_000)
    reported(store, "of-the-org", NAMESPACE, NAMESPACE, None)
    for query in ({}, {"entity": APP}):
        items = call("GET", EVENTS, query=query, caller=app).body["items"]
        assert {event["request_id"] for event in items} == {"own", "from-its-org"}
    items = call("GET", EVENTS, query={"entity": USER}, caller=app).body["items"]
    assert [event["request_id"] for event in items] == ["own"]
    for entity in (NAMESPACE, "nobody"):
        assert call("GET", EVENTS, query={"entity": entity}, caller=app).problem == "not-found"


def test_an_app_sees_the_event_that_made_an_entity_known(call: Call, store: DynamoStore) -> None:
    """The report came in before the entity was made, so when that was bounds nothing."""
    app = authorized(APP, Role.APP)
    reported(store, "made-it-known", APP, "newcomer", APP)
    reported(store, "from-its-org", NAMESPACE, "newcomer", APP)
    # Its id was one below another app before.
    reported(store, "of-another-app", NAMESPACE, "newcomer", "app-2")
    made_ms = clock_ms() + 60_000
    newcomer = Entity("newcomer", None, APP, True, {}, 1, made_ms, made_ms, EntityRole.OTHER)
    store.transact([entity_put(NAMESPACE, newcomer, None)], new_token())
    seen = {
        caller: {
            event["request_id"]
            for event in call("GET", EVENTS, query={"entity": "newcomer"}, caller=token).body["items"]
        }
        for caller, token in (("app", app), ("org", authorized()))
    }
    assert seen["app"] == {"made-it-known", "from-its-org"}
    assert seen["org"] == {"made-it-known", "from-its-org", "of-another-app"}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"day": "2027-02-30"}, "day"),
        ({"day": "9999-12-31"}, "day"),
        ({"day": "0001-01-01"}, "day"),
        ({"day": "today"}, "day"),
        ({"limit": "0"}, "limit"),
        ({"limit": "101"}, "limit"),
        ({"cursor": "x"}, "cursor"),
        ({"entity": "/"}, "entity"),
    ],
)
def test_bad_input_of_events_is_refused(call: Call, query: dict[str, str], field: str) -> None:
    answer = call("GET", EVENTS, query=query)
    assert (answer.status, answer.problem) == (400, "invalid-request")
    assert answer.body["field"] == field


def test_nobody_reads_them_without_a_token(call: Call) -> None:
    for method, path in (("GET", AGGREGATES), ("POST", ROLLUP), ("GET", EVENTS)):
        assert call(method, path, {}, caller={}).problem == "unauthorized"
