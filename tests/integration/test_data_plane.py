"""The data plane's handler, event in and answer out, on moto."""

import base64
import io
import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import boto3
import pytest

from data_plane import routes
from sluice.core.errors import Ambiguous, Contended, SluiceError, Unavailable
from sluice.core.identity import Role
from sluice.core.limits import Limit, Scope
from sluice.repository.keys import Key
from sluice.repository.store import DynamoStore
from sluice.services.holding import Holding
from sluice.shell import Environment, build_services, logger, make_client
from tests.fakes import CountingMeter
from tests.http import (
    APP,
    AS_NOBODY,
    AS_OPERATOR,
    TABLE,
    Call,
    authorized,
    caller_of,
    deployed,
    items_in_table,
    served_routes,
)

LIMITS = {"rpm": {"capacity": 3, "refill_period_seconds": 60}}
BODY = {"entity": "user-1", "resource": "gpt-4", "consume": {"rpm": 1}, "limits": LIMITS}


@pytest.fixture
def handler_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with deployed("data_plane.handler", monkeypatch) as module:
        yield module


@pytest.fixture
def call(handler_module: ModuleType) -> Call:
    return caller_of(handler_module, "POST", "/v1/acquire")


def test_an_admitted_acquire(call: Call) -> None:
    answer = call(body=BODY)
    assert answer.status == 201
    assert answer.headers["Content-Type"] == "application/json"
    lease, lease_id, expires_at = (answer.body.pop(name) for name in ("lease", "lease_id", "expires_at"))
    assert 100 < len(lease) < 300
    assert len(lease_id) == 32
    assert expires_at.endswith("Z")
    assert answer.body == {
        "entity": "user-1",
        "resource": "gpt-4",
        "consumed": {"rpm": 1},
        "levels": [{"entity": "user-1", "remaining": {"rpm": 2}}],
        "degraded": False,
        "budget": None,
    }
    assert answer.headers["RateLimit-Policy"] == '"rpm";q=3;w=60'
    assert answer.headers["RateLimit"] == '"rpm";r=2;t=20'


def test_a_refused_acquire(call: Call) -> None:
    for _ in range(3):
        assert call(body=BODY).status == 201
    answer = call(body=BODY)
    assert (answer.status, answer.problem) == (429, "limit-exceeded")
    (violation,) = answer.body["violations"]
    retry_after_ms = answer.body["retry_after_ms"]
    assert 0 < retry_after_ms <= 20_000
    assert violation == {
        "entity": "user-1",
        "resource": "gpt-4",
        "limit": "rpm",
        "requested": 1,
        "available": 0,
        "retry_after_ms": retry_after_ms,
        "source": "call",
    }
    assert answer.headers["retry-after-ms"] == str(retry_after_ms)
    assert answer.headers["Retry-After"] == str(-(-retry_after_ms // 1000))
    assert answer.headers["RateLimit-Policy"] == '"rpm";q=3;w=60'
    assert answer.headers["RateLimit"].startswith('"rpm";r=0;t=')
    assert answer.body["admit_at"].endswith("Z")
    assert answer.body["remedies"] == [{"kind": "wait", "value": retry_after_ms}]


def test_a_refusal_offers_the_amount_that_would_pass(call: Call) -> None:
    call(body=BODY)
    answer = call(body={**BODY, "consume": {"rpm": 3}})
    assert answer.body["remedies"][1:] == [{"kind": "smaller_amount", "limit": "rpm", "value": 2}]


def test_stored_limits_are_used_where_a_call_brings_none(call: Call, handler_module: ModuleType) -> None:
    environment = Environment("test", TABLE, 2000)
    services = build_services(environment, make_client(environment), CountingMeter())
    services.limits.put("default", Scope(resource="gpt-4"), {"rpm": Limit(1, 1, 1, 60)})
    without = {name: value for name, value in BODY.items() if name != "limits"}
    assert call(body=without).status == 201
    assert call(body=without).body["violations"][0]["source"] == "resource"


def test_health_and_ready(call: Call) -> None:
    assert call("GET", "/v1/health").body == {"status": "ok"}
    assert call("GET", "/v1/ready").body == {"status": "ready"}


def test_health_needs_no_table_and_ready_does(call: Call, handler_module: ModuleType) -> None:
    boto3.client("dynamodb").delete_table(TableName=TABLE)
    assert call("GET", "/v1/health").status == 200
    assert call("GET", "/v1/ready").status == 500


WRONG_BODIES: list[tuple[str, Any]] = [
    ("body", []),
    ("body", [BODY]),
    ("body", [BODY, 1]),
    ("body", "text"),
    ("body", 7),
    ("entity", {}),
    ("entity", {**BODY, "entity": None}),
    ("entity", {**BODY, "entity": ""}),
    ("entity", {**BODY, "entity": "a#b"}),
    ("entity", {**BODY, "entity": "a/b"}),
    ("entity", {**BODY, "entity": "a\n"}),
    ("entity", {**BODY, "entity": "a\x00b"}),
    ("entity", {**BODY, "entity": "a" * 129}),
    ("entity", {**BODY, "entity": "a" * 2048}),
    ("entity", {**BODY, "entity": "é"}),
    ("entity", {**BODY, "entity": "\ud800"}),
    ("entity", {**BODY, "entity": 7}),
    ("entity", {**BODY, "entity": "$SYSTEM"}),
    ("resource", {**BODY, "resource": "gpt 4"}),
    ("resource", {**BODY, "resource": "gpt-4!abc"}),
    ("consume", {**BODY, "consume": {}}),
    ("consume", {**BODY, "consume": None}),
    ("consume", {**BODY, "consume": [1]}),
    ("consume", {**BODY, "consume": {f"l{n}": 1 for n in range(11)}}),
    ("consume.rpm", {**BODY, "consume": {"rpm": -1}}),
    ("consume.rpm", {**BODY, "consume": {"rpm": 1.5}}),
    ("consume.rpm", {**BODY, "consume": {"rpm": 1.0}}),
    ("consume.rpm", {**BODY, "consume": {"rpm": "1"}}),
    ("consume.rpm", {**BODY, "consume": {"rpm": True}}),
    ("consume.rpm", {**BODY, "consume": {"rpm": None}}),
    ("consume.rpm", {**BODY, "consume": {"rpm": 10**12 + 1}}),
    ("consume.rpm", {**BODY, "consume": {"rpm": 10**400}}),
    ("consume.Rpm", {**BODY, "consume": {"Rpm": 1}}),
    ("surprise", {**BODY, "surprise": 1}),
    ("limits", {**BODY, "limits": {}}),
    ("limits", {**BODY, "limits": {f"l{n}": LIMITS["rpm"] for n in range(50)}}),
    ("limits.wcu", {**BODY, "limits": {"wcu": LIMITS["rpm"]}}),
    ("limits.rpm.capacity", {**BODY, "limits": {"rpm": {"capacity": 0, "refill_period_seconds": 1}}}),
    ("limits.rpm.capacity", {**BODY, "limits": {"rpm": {"refill_period_seconds": 1}}}),
    ("limits.rpm.refill_period_seconds", {**BODY, "limits": {"rpm": {"capacity": 1, "refill_period_seconds": 0}}}),
    ("limits.rpm.burst", {**BODY, "limits": {"rpm": {"capacity": 2, "burst": 1, "refill_period_seconds": 1}}}),
    (
        "limits.rpm.burst",
        {**BODY, "limits": {"rpm": {"capacity": 10**12, "refill_amount": 1, "refill_period_seconds": 60}}},
    ),
    ("limits.rpm.extra", {**BODY, "limits": {"rpm": {**LIMITS["rpm"], "extra": 1}}}),
]


@pytest.mark.parametrize(("field", "body"), WRONG_BODIES)
def test_a_wrong_body_is_400_names_its_field_and_writes_nothing(call: Call, field: str, body: Any) -> None:
    answer = call(body=body)
    assert (answer.status, answer.problem) == (400, "invalid-request")
    assert answer.body["field"] == field
    assert items_in_table() == []


@pytest.mark.parametrize(
    "raw",
    [
        None,
        "",
        "{",
        "nul",
        "[" * 30_000,
        '{"entity": NaN}',
        '{"consume": {"rpm": Infinity}}',
        "1" * 5_000,
        '{"entity": "a", "entity": "b"}',
        '{"entity": "a"} trailing',
    ],
)
def test_what_is_not_json_is_400(call: Call, raw: str | None) -> None:
    answer = call(raw=raw)
    assert (answer.status, answer.problem) == (400, "invalid-request")
    assert answer.body["field"] == "body"


def test_bytes_that_are_not_text_are_400(call: Call) -> None:
    for raw in (base64.b64encode(b"\xff\xfe").decode(), "not base64!", "é"):
        answer = call(raw=raw, base64_body=True)
        assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", "body")


def test_a_body_in_base64_is_read(call: Call) -> None:
    assert call(raw=base64.b64encode(json.dumps(BODY).encode()).decode(), base64_body=True).status == 201


def test_several_errors_are_all_named_and_bounded(call: Call) -> None:
    answer = call(body={**BODY, "entity": "#", "consume": {"rpm": -1}})
    assert [error["field"] for error in answer.body["errors"]] == ["entity", "consume.rpm"]
    answer = call(body={**BODY, **{f"x{n}": 1 for n in range(100)}})
    assert len(answer.body["errors"]) == 10
    answer = call(body={**BODY, "x" * 50_000: 1})
    assert len(answer.body["field"]) == 200


def test_values_are_never_repeated(call: Call) -> None:
    answer = call(body={**BODY, "entity": "#secret-canary", "resource": "#secret-canary"})
    assert "canary" not in json.dumps(answer.body)


def test_an_unknown_limit(call: Call) -> None:
    answer = call(body={**BODY, "consume": {"rpm": 1, "other": 1}})
    assert (answer.status, answer.problem, answer.body["field"]) == (400, "unknown-limit", "consume.other")
    assert items_in_table() == []


def test_above_the_burst(call: Call) -> None:
    answer = call(body={**BODY, "consume": {"rpm": 4}})
    assert (answer.status, answer.problem) == (422, "never-admissible")
    assert (answer.body["limit"], answer.body["requested"], answer.body["burst"]) == ("rpm", 4, 3)
    assert "Retry-After" not in answer.headers
    assert items_in_table() == []


def test_no_limits(call: Call) -> None:
    answer = call(body={"entity": "e", "resource": "r", "consume": {"rpm": 1}})
    assert (answer.status, answer.problem) == (422, "no-limits")


def test_64_kilobytes_are_the_most(call: Call) -> None:
    padded = json.dumps(BODY)
    assert call(raw=padded + " " * (65_536 - len(padded))).status == 201
    answer = call(raw=padded + " " * (65_537 - len(padded)))
    assert (answer.status, answer.problem) == (413, "payload-too-large")
    multibyte = call(raw='"' + "é" * 33_000 + '"')
    assert multibyte.status == 413


@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "application/xml", "application/x-www-form-urlencoded"]
)
def test_only_json_is_read(call: Call, content_type: str | None) -> None:
    answer = call(body=BODY, content_type=content_type)
    assert (answer.status, answer.problem, answer.body["field"]) == (415, "unsupported-media-type", "content-type")
    assert items_in_table() == []


def test_nothing_needs_no_type_but_is_no_body_either(call: Call) -> None:
    for raw in (None, ""):
        for content_type in (None, "application/json"):
            answer = call(raw=raw, content_type=content_type)
            assert (answer.status, answer.problem) == (400, "invalid-request")
    assert call(raw="", content_type="text/plain").status == 415
    assert call(raw=" ", content_type=None).status == 415


def test_a_content_type_may_have_parameters(call: Call) -> None:
    assert call(body=BODY, content_type="Application/JSON; charset=utf-8").status == 201


def test_unknown_paths_and_methods(call: Call) -> None:
    for path in ("/", "/v1", "/v1/nope", "/v1/acquire/", "/v1/acquire/x", "/V1/acquire"):
        answer = call("POST", path, content_type=None)
        assert (answer.status, answer.problem) == (404, "not-found")
    for method, path, allowed in (
        ("GET", "/v1/acquire", "POST"),
        ("DELETE", "/v1/health", "GET"),
        ("ODD", "/v1/ready", "GET"),
    ):
        answer = call(method, path, content_type=None)
        assert (answer.status, answer.problem, answer.headers["Allow"]) == (405, "method-not-allowed", allowed)


def test_every_route_of_the_router_is_in_the_table_of_routes(handler_module: ModuleType) -> None:
    assert served_routes(handler_module) == {
        (path, method) for path, methods in routes.ROUTES.items() for method in methods
    }


def test_nobody_is_let_in_without_a_token(call: Call) -> None:
    for body in (BODY, {"wrong": 1}):
        answer = call(body=body, caller=AS_NOBODY)
        assert (answer.status, answer.problem) == (401, "unauthorized")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert items_in_table() == []
    assert call("GET", "/v1/health", caller=AS_NOBODY).status == 200


def test_the_operator_key_opens_no_tenant(call: Call) -> None:
    answer = call(body=BODY, caller=AS_OPERATOR)
    assert (answer.status, answer.problem) == (401, "unauthorized")


def test_limits_of_a_call_need_the_org_itself(call: Call) -> None:
    answer = call(body=BODY, caller=authorized(APP, Role.APP))
    assert (answer.status, answer.problem) == (403, "forbidden")
    assert items_in_table() == []


def raising(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(self: Holding, wish: Any) -> Any:
        raise error

    monkeypatch.setattr(Holding, "acquire", fail)


def test_unavailable_and_contended(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, Unavailable("table"))
    answer = call(body=BODY)
    assert (answer.status, answer.problem, answer.headers["Retry-After"]) == (503, "unavailable", "1")
    assert answer.body["detail"] == "the table does not answer"
    raising(monkeypatch, Ambiguous("table"))
    answer = call(body=BODY)
    assert (answer.status, answer.problem) == (503, "unavailable")
    assert "may have been applied" in answer.body["detail"]
    raising(monkeypatch, Contended(42))
    answer = call(body=BODY)
    assert (answer.status, answer.problem, answer.body["retry_after_ms"]) == (429, "contended", 42)
    assert answer.headers["Retry-After"] == "1"


def test_a_bug_is_a_problem_document_that_tells_nothing(
    call: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Unmapped(SluiceError):
        pass

    for error in (KeyError("secret-canary"), Unmapped("secret-canary")):
        raising(monkeypatch, error)
        written = io.StringIO()
        monkeypatch.setattr(logger.registered_handler, "stream", written)
        answer = call(body=BODY)
        assert (answer.status, answer.problem) == (500, "internal")
        assert "canary" not in json.dumps(answer.body)
        logs = [json.loads(line) for line in written.getvalue().splitlines()]
        assert [(line["message"], line["correlation_id"]) for line in logs] == [
            ("unexpected error", "request-7"),
            ("request", "request-7"),
        ]
    metrics = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    assert [metric.get("InternalErrors") for metric in metrics] == [[1.0], [1.0]]


def test_one_log_line_per_request_and_its_metrics_without_ids(
    call: Call, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.StringIO()
    monkeypatch.setattr(logger.registered_handler, "stream", written)
    call(body={**BODY, "entity": "tenant-canary"})
    call("GET", "/tenant-canary")
    logs = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [(line["message"], line["route"], line["status"]) for line in logs] == [
        ("request", "POST /v1/acquire", 201),
        ("request", "other", 404),
    ]
    metrics = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    assert [metric["Admitted"] for metric in metrics] == [[1.0]]
    assert (metrics[0]["service"], metrics[0]["environment"]) == ("data_plane", "test")
    definition = metrics[0]["_aws"]["CloudWatchMetrics"][0]
    assert definition["Namespace"] == "Sluice"
    assert [sorted(names) for names in definition["Dimensions"]] == [["environment", "service"]]
    assert "canary" not in json.dumps([logs, metrics])


def test_the_environment_is_read_in_one_place() -> None:
    environment = Environment.read({"SLUICE_ENVIRONMENT": "e", "SLUICE_TABLE": "t"})
    assert environment == Environment("e", "t", 2000)
    with pytest.raises(KeyError):
        Environment.read({})


def test_writes_are_sent_once(handler_module: ModuleType) -> None:
    """Hole: the SDK's defaults repeat a timed-out write."""
    config: Any = make_client(Environment("e", "t", 1500)).meta.config
    assert config.retries == {"total_max_attempts": 1, "mode": "standard"}
    assert (config.read_timeout, config.connect_timeout) == (1.5, 1)


def test_a_real_read_proves_readiness(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Key] = []
    real = DynamoStore.get

    def recording(self: DynamoStore, key: Key, *, consistent: bool = False) -> Any:
        read.append(key)
        return real(self, key, consistent=consistent)

    monkeypatch.setattr(DynamoStore, "get", recording)
    call("GET", "/v1/health")
    assert read == []
    call("GET", "/v1/ready")
    assert read == [Key("_/SYSTEM#", "#VERSION")]
