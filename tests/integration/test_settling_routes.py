"""A settle with its usage over HTTP, event in and answer out, on moto."""

import time
from typing import Any, Final

import pytest

from sluice.shell import Services
from tests.http import APP, NAMESPACE, Answer, Call, items_in_table
from tests.integration.test_usage_report_routes import AS_APP, COST, EVENT, another_process, kinds, now, services, used

__all__ = ["services"]

SETTLE: Final = "/v1/leases/settle"
RESOURCE: Final = "gpt-4"
HINT: Final = "this settle counted nothing; POST /v1/usage with this lease counts the call"


@pytest.fixture
def call(services: Services) -> Call:
    return another_process()


def acquired(call: Call, entity: str = NAMESPACE, **more: Any) -> dict[str, Any]:
    body = {"entity": entity, "resource": RESOURCE, "consume": {"tpm": 500}, **more}
    answer = call(path="/v1/acquire", body=body)
    assert answer.status == 201, answer.body
    lease: dict[str, Any] = answer.body
    return lease


def settle(call: Call, lease: str, usage: Any = None, tpm: int = 200, **more: Any) -> Answer:
    event = {**EVENT, "occurred_at": now(seconds=-1)} if usage is None else usage
    return call(path=SETTLE, body={"lease": lease, "actual": {"tpm": tpm}, "usage": event}, **more)


def consumed(entity: str = NAMESPACE) -> int:
    (bucket,) = [
        item for item in items_in_table() if item["kind"]["S"] == "bucket" and item["entity_id"]["S"] == entity
    ]
    return int(bucket["b_tpm_tc"]["N"]) // 1000


def test_it_is_answered_with_what_a_report_is(call: Call) -> None:
    lease = acquired(call)
    usage = {**EVENT, "occurred_at": now(seconds=-1)}
    answer = settle(call, lease["lease"], usage)
    assert answer.status == 200
    assert {name: value for name, value in answer.body.items() if name != "usage"} == {
        "lease_id": lease["lease_id"],
        "settled": {"tpm": 200},
        "levels": [{"entity": NAMESPACE, "remaining": {"tpm": 800}}],
    }
    assert (answer.body["usage"]["cost_usd_micros"], answer.body["usage"]["duplicate"]) == (COST, False)
    assert (used().requests, consumed()) == (1, 200)
    again = settle(call, lease["lease"], usage)
    assert (again.status, again.body) == (200, {**answer.body, "usage": {**answer.body["usage"], "duplicate": True}})
    reported = call(body={**usage, "lease": lease["lease"]})
    assert (reported.status, reported.body) == (202, again.body["usage"])
    assert (used().requests, consumed()) == (1, 200)


def test_conflicts_change_nothing(call: Call) -> None:
    lease = acquired(call)["lease"]
    usage = {**EVENT, "occurred_at": now(seconds=-1)}
    assert call(body=usage).status == 202
    before = items_in_table()
    # The call without its lease is another body.
    for body in (usage, {**usage, "output_tokens": 1}):
        answer = settle(call, lease, body)
        assert (answer.status, answer.problem) == (409, "request-id-conflict")
    assert items_in_table() == before
    assert settle(call, lease, {**usage, "request_id": "request-2"}).status == 200
    before = items_in_table()
    for request_id in ("request-2", "request-3"):
        answer = settle(call, lease, {**usage, "request_id": request_id}, tpm=201)
        assert (answer.status, answer.problem) == (409, "lease-closed")
        assert answer.body["detail"].endswith(HINT)
    assert items_in_table() == before


def test_an_expired_lease_says_where_the_call_is_counted(call: Call) -> None:
    lease = acquired(call, ttl_seconds=1)["lease"]
    time.sleep(1.1)
    before = items_in_table()
    usage = {**EVENT, "occurred_at": now(seconds=-1)}
    answer = settle(call, lease, usage)
    assert (answer.status, answer.problem) == (410, "lease-expired")
    assert answer.body["detail"].endswith(HINT)
    assert items_in_table() == before
    assert call(body={**usage, "lease": lease}).status == 202


@pytest.mark.parametrize(
    ("changed", "status", "kind", "field"),
    [
        ({"request_id": ""}, 400, "invalid-request", "usage.request_id"),
        ({"tags": {"t": 1}}, 400, "invalid-request", "usage.tags.t"),
        ({"lease": "x"}, 400, "invalid-request", "usage.lease"),
        ({"lease": None}, 400, "invalid-request", "usage.lease"),
        ({"actual": {}}, 400, "invalid-request", "usage.actual"),
        ({"occurred_at": "2026-13-01T00:00:00Z"}, 400, "invalid-request", "usage.occurred_at"),
        ({"occurred_at": "2020-01-01T00:00:00Z"}, 400, "invalid-request", "usage.occurred_at"),
        ({"label": None}, 400, "invalid-request", "usage.label"),
        ({"label": "unheard"}, 422, "unknown-label", "usage.label"),
        ({"label": "economy"}, 422, "price-missing", None),
        ({"entity": APP}, 400, "invalid-lease", "lease"),
    ],
)
def test_what_is_wrong_with_the_usage_names_the_way_to_it(
    call: Call, changed: dict[str, Any], status: int, kind: str, field: str | None
) -> None:
    lease = acquired(call)["lease"]
    before = items_in_table()
    answer = settle(call, lease, {**EVENT, **changed})
    assert (answer.status, answer.problem, answer.body.get("field")) == (status, kind, field)
    assert items_in_table() == before


def test_what_is_wrong_with_the_settle_is_told_as_without_usage(call: Call) -> None:
    lease = acquired(call)["lease"]
    before = items_in_table()
    body = {"lease": lease, "actual": {"rpm": 1}, "usage": EVENT}
    answer = call(path=SETTLE, body=body)
    assert (answer.status, answer.problem, answer.body["field"]) == (400, "unknown-limit", "actual.rpm")
    for other in ("", lease[:-2]):
        answer = settle(call, other)
        assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-lease", "lease")
    assert items_in_table() == before


def test_an_app_settles_its_own_and_reports_as_itself(call: Call) -> None:
    foreign = acquired(call)["lease"]
    lease = acquired(call, APP)["lease"]
    before = items_in_table()
    answer = settle(call, foreign, caller=AS_APP)
    assert (answer.status, answer.problem) == (400, "invalid-lease")
    assert items_in_table() == before
    answer = settle(call, lease, caller=AS_APP)
    assert (answer.status, answer.body["settled"], consumed(APP)) == (200, {"tpm": 200}, 200)
    assert used(APP).requests == 1
    (event,) = [item for item in items_in_table() if item["kind"]["S"] == "usage_event"]
    assert f"EVENT#{APP}#" in event["PK"]["S"]
    # The org may as well, and reports it as its own; the call is of whoever has the lease, named or not.
    for usage in ({**EVENT, "entity": APP}, {**EVENT, "request_id": "request-2"}):
        assert settle(call, acquired(call, APP)["lease"], usage).status == 200
    assert used(APP).requests == 3
    assert kinds().count("usage_event") == 3
