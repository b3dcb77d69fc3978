"""Acquire with an Idempotency-Key, explain, and registration over HTTP, on moto."""

from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.http import Call, caller_of, deployed, items_in_table

LIMITS = {"rpm": {"capacity": 3, "refill_period_seconds": 60}}
BODY = {"entity": "user-1", "resource": "gpt-4", "consume": {"rpm": 1}, "limits": LIMITS}


@pytest.fixture
def handler_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with deployed("data_plane.handler", monkeypatch) as module:
        yield module


@pytest.fixture
def call(handler_module: ModuleType) -> Call:
    return caller_of(handler_module, "POST", "/v1/acquire")


def of_kind(kind: str) -> list[dict[str, object]]:
    return [item for item in items_in_table() if item["kind"] == {"S": kind}]


def test_a_repeat_gets_the_same_answer_and_takes_nothing(call: Call) -> None:
    headers = {"Idempotency-Key": "key-1"}
    first = call(body=BODY, headers=headers)
    again = call(body=BODY, headers=headers)
    assert (first.status, again.status) == (201, 201)
    assert first.body == again.body
    assert first.headers["RateLimit"] == again.headers["RateLimit"] == '"rpm";r=2;t=20'
    (bucket,) = of_kind("bucket")
    assert bucket["b_rpm_tc"] == {"N": "1000"}
    assert call("POST", "/v1/leases/release", {"lease": again.body["lease"]}).status == 200
    assert call(body=BODY, headers=headers).body == first.body


def test_a_lease_from_a_keyed_acquire_is_like_any_other(call: Call) -> None:
    answer = call(body=BODY, headers={"Idempotency-Key": "key-1"})
    settled = call("POST", "/v1/leases/settle", {"lease": answer.body["lease"], "actual": {"rpm": 0}})
    assert (settled.status, settled.body["settled"]) == (200, {"rpm": 0})


def test_another_body_under_the_same_key_is_refused(call: Call) -> None:
    headers = {"Idempotency-Key": "key-1"}
    call(body=BODY, headers=headers)
    answer = call(body={**BODY, "consume": {"rpm": 2}}, headers=headers)
    assert (answer.status, answer.problem, answer.body["field"]) == (422, "idempotency-mismatch", "idempotency-key")


def test_the_order_of_members_does_not_make_another_body(call: Call) -> None:
    headers = {"Idempotency-Key": "key-1"}
    first = call(body=BODY, headers=headers)
    assert call(body=dict(reversed(BODY.items())), headers=headers).body == first.body


@pytest.mark.parametrize("key", ["", "x" * 129, "tab\there", "newline\n", "caf\u00e9"])
def test_a_bad_key_is_named(call: Call, key: str) -> None:
    answer = call(body=BODY, headers={"Idempotency-Key": key})
    assert (answer.status, answer.problem) == (400, "invalid-request")
    assert answer.body["field"] == "idempotency-key"
    assert items_in_table() == []


def test_a_refusal_is_not_recorded(call: Call) -> None:
    for _ in range(3):
        call(body=BODY)
    answer = call(body=BODY, headers={"Idempotency-Key": "key-1"})
    assert (answer.status, answer.problem) == (429, "limit-exceeded")
    assert of_kind("idempotent_answer") == []


def test_explain_says_when_and_what(call: Call) -> None:
    call(body={**BODY, "consume": {"rpm": 2}})
    before = sorted(str(item) for item in items_in_table())
    answer = call("POST", "/v1/explain", {**BODY, "consume": {"rpm": 3}})
    assert answer.status == 200
    assert answer.body["admissible"] is False
    (check,) = answer.body["checks"]
    assert {name: check[name] for name in ("entity", "limit", "source", "requested", "capacity", "shards")} == {
        "entity": "user-1",
        "limit": "rpm",
        "source": "call",
        "requested": 3,
        "capacity": 3,
        "shards": 1,
    }
    assert check["available"] in {1, 2}
    assert check["admit_at"] == answer.body["admit_at"]
    wait, smaller = answer.body["remedies"]
    assert (wait["kind"], smaller["kind"], smaller["limit"]) == ("wait", "smaller_amount", "rpm")
    assert 0 < wait["value"] <= 40_000
    assert smaller["value"] == check["available"]
    assert sorted(str(item) for item in items_in_table()) == before


def test_explain_of_what_passes_has_nothing_to_remedy(call: Call) -> None:
    answer = call("POST", "/v1/explain", BODY)
    assert (answer.status, answer.body["admissible"], answer.body["remedies"]) == (200, True, [])
    assert answer.body["checks"][0]["admit_at"] is None
    assert items_in_table() == []


@pytest.mark.parametrize(
    ("change", "status", "kind"),
    [
        ({"consume": {"rpm": 4}}, 422, "never-admissible"),
        ({"consume": {"tpm": 1}}, 400, "unknown-limit"),
        ({"limits": None}, 422, "no-limits"),
        ({"consume": {}}, 400, "invalid-request"),
        ({"entity": "#"}, 400, "invalid-request"),
        ({"ttl_seconds": 0}, 400, "invalid-request"),
        ({"limits": {f"l{n}": LIMITS["rpm"] for n in range(50)}}, 400, "invalid-request"),
    ],
)
def test_explain_refuses_what_acquire_refuses(call: Call, change: dict[str, object], status: int, kind: str) -> None:
    for path in ("/v1/explain", "/v1/acquire"):
        answer = call("POST", path, {**BODY, **change})
        assert (answer.status, answer.problem) == (status, kind), path
    assert items_in_table() == []


def test_an_entity_registers_itself_by_asking(call: Call) -> None:
    call(body=BODY)
    (entity,) = of_kind("entity")
    assert entity["entity_id"] == {"S": "user-1"}
    assert entity["parent_id"] == {"S": "default"}
    (event,) = of_kind("audit")
    assert (event["action"], event["actor"]) == ({"S": "entity.register"}, {"S": "client-default"})
    call(body=BODY)
    assert len(of_kind("entity")) == len(of_kind("audit")) == 1
