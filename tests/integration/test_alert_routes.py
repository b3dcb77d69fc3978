"""Alerts of budgets and their refresh over HTTP, event in and answer out, on moto."""

from collections.abc import Iterator
from types import ModuleType
from typing import Final

import boto3
import pytest

from sluice.core.alerts import HARD, Alert, Whose
from sluice.core.budget import Dimension, Slot, Span
from sluice.core.identity import Role
from sluice.repository.alert_markers import put_marker
from sluice.repository.wire import item_to_wire
from sluice.shell import clock_ms
from tests.http import APP, NAMESPACE, TABLE, Call, authorized, caller_of, deployed

ALERTS: Final = f"/v1/budgets/{APP}/alerts"
REFRESH: Final = f"/v1/budgets/{APP}/refresh"
WHOSE: Final = Whose(NAMESPACE, APP, 7)
DAY_COST: Final = Slot(Span.DAY, Dimension.COST)
MONTH_TOKENS: Final = Slot(Span.MONTH, Dimension.TOKENS)


@pytest.fixture
def handler_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with deployed("control_plane.handler", monkeypatch) as module:
        yield module


@pytest.fixture
def call(handler_module: ModuleType) -> Call:
    return caller_of(handler_module, "GET", ALERTS)


def mark(*alerts: Alert) -> None:
    for alert in alerts:
        item = put_marker(alert, clock_ms() + 86_400_000, 1_700_000_000_000)["Item"]
        boto3.client("dynamodb").put_item(TableName=TABLE, Item=item_to_wire(item))


def test_alerts_are_listed_page_by_page(call: Call) -> None:
    assert call().body == {"items": [], "next_cursor": None}
    mark(
        Alert(WHOSE, "20270115", DAY_COST, "80", 10, 8),
        Alert(WHOSE, "20270115", DAY_COST, HARD, 10, 9),
        Alert(WHOSE, "202701", MONTH_TOKENS, "forecast", 10, 11),
    )
    first = call(query={"limit": "2"})
    assert [(one["type"], one["period"], one["percent"]) for one in first.body["items"]] == [
        ("budget.hard_cap", "2027-01-15", None),
        ("budget.soft_cap", "2027-01-15", 80),
    ]
    second = call(query={"limit": "2", "cursor": first.body["next_cursor"]})
    assert second.body == {
        "items": [
            {
                "type": "budget.forecast",
                "period": "2027-01",
                "dimension": "tokens",
                "unit": "tokens",
                "percent": None,
                "limit": 10,
                "used": 11,
                "silent": False,
                "at": "2023-11-14T22:13:20.000Z",
            }
        ],
        "next_cursor": None,
    }


def test_a_refresh_is_a_job(call: Call) -> None:
    assert call("POST", REFRESH).problem == "not-found"
    assert call("PUT", f"/v1/budgets/{APP}", body={"day_tokens": 5}).status == 201
    for path in (REFRESH, "/v1/budgets/refresh"):
        # Nothing is sent, so nothing has a type.
        started = call("POST", path, content_type=None)
        assert started.status == 202
        assert (started.body["kind"], started.body["state"]) == ("refresh_budgets", "queued")
        assert call("GET", started.headers["Location"]).body["id"] == started.body["id"]


def test_an_app_reads_its_alerts_and_refreshes_nothing(call: Call) -> None:
    app = authorized(APP, Role.APP)
    assert call(headers=app).status == 200
    assert call("GET", f"/v1/budgets/{NAMESPACE}/alerts", headers=app).problem == "not-found"
    for path in (REFRESH, "/v1/budgets/refresh"):
        assert call("POST", path, headers=app).status in {403, 404}
