"""Usage over HTTP, event in and answer out, on moto."""

import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import boto3
import pytest

from sluice.core.identity import Role
from sluice.core.snapshots import Interval, SnapshotName, Window, join, starts_ms
from sluice.repository.retries import Retries
from sluice.repository.snapshots import count
from sluice.repository.store import DynamoStore
from sluice.shell import clock_ms
from tests.fakes import CountingMeter, never_random
from tests.http import APP, NAMESPACE, TABLE, Call, authorized, caller_of, deployed

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
USER = "/v1/entities/user-1/usage"
RESOURCE = "/v1/resources/gpt-4/usage"


@pytest.fixture
def handler_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with deployed("control_plane.handler", monkeypatch) as module:
        yield module


@pytest.fixture
def call(handler_module: ModuleType) -> Call:
    return caller_of(handler_module, "GET", USER)


def used(at_ms: int, window: Window = Window.HOUR, *, entity: str = "user-1", per_call: str | None = None) -> None:
    """Seven requests of 700 tokens in the window of that time."""
    name = SnapshotName(NAMESPACE, entity, "gpt-4", per_call, window, starts_ms(window, at_ms))
    joined = join({}, {0: [Interval(1, 0, {}, 7, {"rpm": 7_000, "tpm": 4_900_000})]})
    assert joined is not None
    store = DynamoStore(boto3.client("dynamodb"), TABLE, Retries(lambda _ms: None, never_random, CountingMeter()))
    store.update(count(name, {}, joined, at_ms), repeatable=True)


def all_items(call: Call, path: str, query: dict[str, str]) -> list[Any]:
    items: list[Any] = []
    cursor: dict[str, str] = {}
    for _ in range(100):
        answer = call("GET", path, query={**query, **cursor})
        assert answer.status == 200, answer.body
        items += answer.body["items"]
        if answer.body["next_cursor"] is None:
            return items
        cursor = {"cursor": answer.body["next_cursor"]}
    raise AssertionError("the pages do not end")


def test_the_last_day_by_the_hour_with_zeros_between(call: Call) -> None:
    now_ms = clock_ms()
    used(now_ms)
    used(now_ms - 3 * HOUR_MS)
    used(now_ms - 24 * HOUR_MS)
    for limit in ("100", "5"):
        items = all_items(call, USER, {"resource": "gpt-4", "limit": limit})
        # The hour may end while this runs.
        assert len(items) == 24
        assert [item["start"] for item in items] == sorted(item["start"] for item in items)
        assert all(one["end"] == following["start"] for one, following in itertools.pairwise(items))
        full = [item for item in items if item["events"]]
        assert len(full) == 2
        assert full[0]["consumed"] == {"rpm": 7, "tpm": 4900}
        assert [item["consumed"] for item in items if not item["events"]] == [{}] * 22


def test_thirty_days_and_a_range_of_days(call: Call) -> None:
    now_ms = clock_ms()
    used(now_ms, Window.DAY)
    used(now_ms - 29 * DAY_MS, Window.DAY)
    used(now_ms - 399 * DAY_MS, Window.DAY)
    days = all_items(call, USER, {"resource": "gpt-4", "window": "day"})
    assert (len(days), sum(day["events"] for day in days)) == (30, 14)
    from_ = "2025-01-31T23:59:59Z"
    some = all_items(call, USER, {"resource": "gpt-4", "window": "day", "from": from_, "to": "2025-02-02T00:00:00Z"})
    assert [day["start"][:10] for day in some] == ["2025-01-31", "2025-02-01", "2025-02-02"]


def test_a_range_to_the_nanosecond(call: Call) -> None:
    asked = {"resource": "gpt-4", "from": "2020-01-01t10:59:59.999999999z", "to": "2020-01-01T12:00:00.000000001Z"}
    assert [hour["start"][11:13] for hour in all_items(call, USER, asked)] == ["10", "11", "12"]


def test_limits_of_single_calls_are_added(call: Call) -> None:
    now_ms = clock_ms()
    used(now_ms)
    used(now_ms, per_call="0123456789abcdef")
    used(now_ms, Window.DAY, per_call="0123456789abcdef")
    (hour,) = [item for item in all_items(call, USER, {"resource": "gpt-4"}) if item["events"]]
    assert (hour["events"], hour["consumed"]) == (14, {"rpm": 14, "tpm": 9800})


def test_another_resource_or_entity_is_not_counted(call: Call) -> None:
    used(clock_ms())
    for path, resource in ((USER, "gpt-4o"), (USER, "gpt"), ("/v1/entities/user/usage", "gpt-4")):
        assert not [item for item in all_items(call, path, {"resource": resource}) if item["events"]]


def test_all_entities_of_a_resource(call: Call) -> None:
    now_ms = clock_ms()
    for number in range(7):
        used(now_ms, entity=f"user-{number}")
    used(now_ms, entity="user-1", per_call="0123456789abcdef")
    used(now_ms - 5 * HOUR_MS, entity="user-9")
    used(now_ms, Window.DAY, entity="user-8")
    items = all_items(call, RESOURCE, {"limit": "3"})
    assert [item["entity"] for item in items if not item["call_limits"]] == ["user-9", *(f"user-{n}" for n in range(7))]
    assert [item["entity"] for item in items if item["call_limits"]] == ["user-1"]
    assert all(item["consumed"] == {"rpm": 7, "tpm": 4900} for item in items)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({}, "resource"),
        ({"resource": "a b"}, "resource"),
        ({"resource": "gpt-4", "window": "week"}, "window"),
        ({"resource": "gpt-4", "from": "yesterday"}, "from"),
        ({"resource": "gpt-4", "from": "2026-02-30T00:00:00Z"}, "from"),
        ({"resource": "gpt-4", "from": "2026-02-01"}, "from"),
        ({"resource": "gpt-4", "from": f"2020-01-01T00:00:00.{'0' * 20}Z", "to": "2020-01-01T01:00:00Z"}, "from"),
        ({"resource": "gpt-4", "to": f"2020-01-01T00:00:00.{'0' * 20}Z"}, "to"),
        ({"resource": "gpt-4", "to": "9999-12-31T23:59:59-12:00", "from": "2999-01-01T00:00:00Z"}, "to"),
        ({"resource": "gpt-4", "from": "2999-01-01T00:00:00Z"}, "from"),
        ({"resource": "gpt-4", "from": "2020-01-02T00:00:00Z", "to": "2020-01-01T00:00:00Z"}, "from"),
        ({"resource": "gpt-4", "from": "2020-01-01T00:00:00Z", "to": "2020-02-05T00:00:01Z"}, "from"),
        ({"resource": "gpt-4", "window": "day", "from": "2020-01-01T00:00:00Z"}, "from"),
        ({"resource": "gpt-4", "to": "0001-01-01T00:00:00Z"}, "to"),
        ({"resource": "gpt-4", "limit": "101"}, "limit"),
        ({"resource": "gpt-4", "cursor": "x"}, "cursor"),
    ],
)
def test_what_can_not_be_asked(call: Call, query: dict[str, str], field: str) -> None:
    answer = call(query=query)
    assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", field)


def test_an_app_sees_its_own(call: Call) -> None:
    app = authorized(APP, Role.APP)
    assert call("GET", f"/v1/entities/{APP}/usage", query={"resource": "gpt-4"}, caller=app).status == 200
    assert call(query={"resource": "gpt-4"}, caller=app).problem == "not-found"
    assert call("GET", RESOURCE, caller=app).problem == "forbidden"
