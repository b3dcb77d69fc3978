"""The deployed API, as a client sees it."""

import math
import re
import time
import uuid

import pytest

from local.deploy import Outputs
from local.engine import Engine, dynamodb_client
from tests.e2e.api import Answer, Api

BODY_BYTES_MAX = 64 * 1024


def acquire_body(**changes: object) -> dict[str, object]:
    """Three calls, refilled one by one, for an entity that no other test knows."""
    body: dict[str, object] = {
        "entity": f"e-{uuid.uuid4().hex[:12]}",
        "resource": "r1",
        "consume": {"rpm": 1},
        "limits": {"rpm": {"capacity": 3, "refill_period_seconds": 60}},
    }
    return body | changes


def assert_problem(answer: Answer, status: int, kind: str) -> None:
    assert answer.status == status, answer.body
    assert answer.headers["content-type"].split(";")[0] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert problem["type"].endswith(kind)
    assert problem.keys() >= {"type", "title", "status", "detail", "request_id"}


@pytest.mark.parametrize("path", ["/v1/health", "/v1/ready"])
def test_it_says_that_it_is_up(api: Api, path: str) -> None:
    assert api.call("GET", path).status == 200


def test_an_admitted_call_is_told_what_is_left_and_under_which_limits(api: Api) -> None:
    body = acquire_body()
    answer = api.call("POST", "/v1/acquire", body)
    assert answer.status == 201, answer.body
    assert answer.json()["consumed"] == {"rpm": 1}
    assert answer.json()["levels"] == [{"entity": body["entity"], "remaining": {"rpm": 2}}]
    assert "rpm" in answer.headers["ratelimit"]
    assert "rpm" in answer.headers["ratelimit-policy"]


def test_a_refusal_quotes_a_time_after_which_the_call_is_admitted(api: Api) -> None:
    # A token comes back every 1.3 s: on a slow machine a fourth call may pass, so the refusal is looked for.
    body = acquire_body(limits={"rpm": {"capacity": 3, "refill_period_seconds": 4}})
    answers = [api.call("POST", "/v1/acquire", body) for _ in range(3)]
    assert [answer.status for answer in answers] == [201, 201, 201]
    refused = None
    for _ in range(50):
        answer = api.call("POST", "/v1/acquire", body)
        if answer.status != 201:
            refused = answer
            break
    assert refused is not None, "50 calls passed a limit of 3"
    assert_problem(refused, 429, "limit-exceeded")
    retry_after_ms = refused.json()["retry_after_ms"]
    assert 0 < retry_after_ms <= 4_000
    assert refused.headers["retry-after-ms"] == str(retry_after_ms)
    assert refused.headers["retry-after"] == str(math.ceil(retry_after_ms / 1000))
    assert re.search(r'"?rpm"?;', refused.headers["ratelimit"])
    assert re.search(r'"?rpm"?;', refused.headers["ratelimit-policy"])

    time.sleep(retry_after_ms / 1000)

    assert api.call("POST", "/v1/acquire", body).status == 201


def test_a_refused_call_takes_nothing_from_another_entity(api: Api) -> None:
    first = acquire_body()
    statuses = [api.call("POST", "/v1/acquire", first).status for _ in range(5)]
    assert 429 in statuses
    assert api.call("POST", "/v1/acquire", acquire_body()).status == 201


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        pytest.param(b"{", 400, "invalid-request", id="not JSON"),
        pytest.param(b"\xff\xfe", 400, "invalid-request", id="not text"),
        pytest.param(b"[]", 400, "invalid-request", id="not an object"),
        pytest.param(b"{}", 400, "invalid-request", id="fields missing"),
        pytest.param(acquire_body(surprise=1), 400, "invalid-request", id="unknown field"),
        pytest.param(acquire_body(entity="a#b"), 400, "invalid-request", id="separator in an id"),
        pytest.param(acquire_body(entity=""), 400, "invalid-request", id="empty id"),
        pytest.param(acquire_body(consume={"rpm": -1}), 400, "invalid-request", id="negative amount"),
        pytest.param(acquire_body(consume={"rpm": 1.5}), 400, "invalid-request", id="fraction"),
        pytest.param(acquire_body(consume={"rpm": 10**13}), 400, "invalid-request", id="beyond every bound"),
        pytest.param(acquire_body(consume={"tpm": 1}), 400, "unknown-limit", id="a limit that is not defined"),
        pytest.param(acquire_body(consume={"rpm": 4}), 422, "never-admissible", id="more than the burst"),
        pytest.param(acquire_body(entity="a" * BODY_BYTES_MAX), 413, "payload-too-large", id="too large"),
    ],
)
def test_a_bad_body_is_explained(api: Api, body: object, status: int, kind: str) -> None:
    assert_problem(api.call("POST", "/v1/acquire", body), status, kind)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", None])
def test_only_json_is_read(api: Api, content_type: str | None) -> None:
    answer = api.call("POST", "/v1/acquire", acquire_body(), content_type=content_type)
    assert_problem(answer, 415, "unsupported-media-type")


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/acquire/more", "/", "/v2/acquire", "/v1/%2e%2e/acquire"])
def test_an_unknown_path_is_not_found(api: Api, path: str) -> None:
    assert_problem(api.call("GET", path), 404, "not-found")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/acquire", None),
        ("DELETE", "/v1/acquire", None),
        ("PUT", "/v1/acquire", {}),
        ("POST", "/v1/health", {}),
    ],
)
def test_a_wrong_method_is_refused(api: Api, method: str, path: str, body: object) -> None:
    assert_problem(api.call(method, path, body), 405, "method-not-allowed")


def test_the_deployed_table_lets_items_expire(deployed_engine: tuple[Engine, Outputs]) -> None:
    engine, outputs = deployed_engine
    answer = dynamodb_client(engine.endpoint).describe_time_to_live(TableName=outputs.table)
    assert answer["TimeToLiveDescription"] == {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}


def test_limits_are_set_over_the_api_and_the_data_plane_holds_them(api: Api) -> None:
    """Two functions, one table: what the control plane stores, the data plane enforces."""
    entity = f"e-{uuid.uuid4().hex[:12]}"
    level = f"/v1/limits/entities/{entity}/gpt-4"
    per_hour = {"capacity": 100, "refill_period_seconds": 3600}
    assert api.call("PUT", "/v1/limits/resources/gpt-4", {"limits": {"rpm": per_hour, "tpm": per_hour}}).status == 201
    created = api.call("PUT", level, {"limits": {"rpm": {"capacity": 2, "refill_period_seconds": 3600}}})
    assert created.status == 201, created.body
    effective = api.call("GET", f"/v1/limits/effective?entity={entity}&resource=gpt-4").json()
    assert effective["source"] == {"rpm": "entity", "tpm": "resource"}
    body = {"entity": entity, "resource": "gpt-4", "consume": {"rpm": 1}}
    assert [api.call("POST", "/v1/acquire", body).status for _ in range(3)] == [201, 201, 429]
    assert_problem(api.call("POST", level, {"limits": {}}), 405, "method-not-allowed")
    removed = api.call("DELETE", level)
    assert (removed.status, removed.body) == (204, b"")
    assert_problem(api.call("GET", level), 404, "not-found")


def test_what_a_user_takes_is_taken_from_its_team(api: Api) -> None:
    team, users = f"t-{uuid.uuid4().hex[:12]}", [f"u-{uuid.uuid4().hex[:12]}" for _ in range(2)]
    assert api.call("PUT", f"/v1/entities/{team}", {}).status == 201
    for user in users:
        assert api.call("PUT", f"/v1/entities/{user}", {"parent": team}).status == 201
    per_hour = {"limits": {"calls": {"capacity": 3, "refill_period_seconds": 3600}}}
    for entity in (team, *users):
        assert api.call("PUT", f"/v1/limits/entities/{entity}/search", per_hour).status == 201

    def ask(user: str) -> Answer:
        return api.call("POST", "/v1/acquire", {"entity": user, "resource": "search", "consume": {"calls": 1}})

    first = ask(users[0])
    assert [level["entity"] for level in first.json()["levels"]] == [users[0], team]
    assert [ask(users[0]).status, ask(users[1]).status] == [201, 201]
    refused = ask(users[1])
    assert_problem(refused, 429, "limit-exceeded")
    assert [violation["entity"] for violation in refused.json()["violations"]] == [team]
    assert_problem(api.call("DELETE", f"/v1/entities/{team}"), 409, "in-use")
    for entity in (*users, team):
        assert api.call("DELETE", f"/v1/entities/{entity}").status == 204
