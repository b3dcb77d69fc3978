"""Logins over HTTP, and that nothing which opens a door is ever written down."""

import io
import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import boto3
import pytest

from sluice import shell
from sluice.core.identity import Role
from sluice.services.logins import LOGINS_PER_MINUTE
from tests.http import APP, AS_NOBODY, AS_OPERATOR, NAMESPACE, TABLE, Answer, Call, authorized, caller_of, deployed
from tests.tenancy import KEY, OPERATOR_KEY

TOKEN = "/v1/auth/token"
REFRESH = "/v1/auth/refresh"
REVOKE = "/v1/auth/revoke"
WHOAMI = "/v1/whoami"
CANARY = "sk_canary-that-nobody-may-see"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with deployed("identity.handler", monkeypatch) as handler:
        yield handler


@pytest.fixture
def call(module: ModuleType) -> Call:
    return caller_of(module, "POST", TOKEN)


@pytest.fixture
def client(call: Call) -> dict[str, str]:
    """Of an org that an operator just made."""
    made = call("PUT", "/v1/orgs/acme", {"name": "Acme"}, caller=AS_OPERATOR)
    assert made.status == 201
    return {name: made.body[name] for name in ("client_id", "client_secret")}


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Everything that the product can be made to log."""
    written = io.StringIO()
    monkeypatch.setattr(shell.logger.registered_handler, "stream", written)
    level = shell.logger.log_level
    shell.logger.setLevel("DEBUG")
    yield written
    shell.logger.setLevel(level)


def bearing(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def log_in(call: Call, client: dict[str, str]) -> Answer:
    return call(body=client, caller=AS_NOBODY)


def test_a_secret_for_tokens(call: Call, client: dict[str, str]) -> None:
    answer = log_in(call, client)
    assert answer.status == 200
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.body.keys() == {"access_token", "refresh_token", "token_type", "expires_in", "refresh_expires_in"}
    assert (answer.body["token_type"], answer.body["expires_in"]) == ("Bearer", 3600)
    assert answer.body["refresh_expires_in"] == 30 * 24 * 3600
    who = call("GET", WHOAMI, caller=bearing(answer.body["access_token"]))
    assert who.status == 200
    assert (who.body["org"], who.body["entity"], who.body["role"]) == ("acme", "acme", "org")
    assert who.body["expires_at"].endswith("Z")


def test_an_app_is_told_its_org(call: Call) -> None:
    who = call("GET", WHOAMI, caller=authorized(APP, Role.APP))
    assert (who.body["org"], who.body["entity"], who.body["role"]) == (NAMESPACE, APP, "app")


def test_a_wrong_secret_and_an_unknown_client_get_the_same_answer(call: Call, client: dict[str, str]) -> None:
    wrong = log_in(call, {**client, "client_secret": CANARY})
    unknown = log_in(call, {"client_id": "nobody", "client_secret": CANARY})
    assert wrong.problem == unknown.problem == "unauthorized"
    assert (wrong.status, wrong.body) == (401, unknown.body)
    assert wrong.headers["WWW-Authenticate"] == "Bearer"


def test_too_many_logins_are_told_when_to_come_again(call: Call, client: dict[str, str]) -> None:
    """As many as a minute has, and as many more as it refilled meanwhile."""
    for _ in range(2 * LOGINS_PER_MINUTE):
        answer = log_in(call, {**client, "client_secret": CANARY})
        if answer.status == 429:
            break
    assert answer.problem == "too-many-requests"
    assert 0 < answer.body["retry_after_ms"] <= 60_000 // LOGINS_PER_MINUTE
    assert int(answer.headers["Retry-After"]) >= 1


def test_refresh_and_revoke(call: Call, client: dict[str, str]) -> None:
    first = log_in(call, client).body
    second = call("POST", REFRESH, {"refresh_token": first["refresh_token"]}, caller=AS_NOBODY)
    assert second.status == 200
    assert second.headers["Cache-Control"] == "no-store"
    ended = call("POST", REVOKE, {"token": second.body["refresh_token"]}, caller=bearing(first["access_token"]))
    assert (ended.status, ended.body) == (204, None)
    again = call("POST", REFRESH, {"refresh_token": second.body["refresh_token"]}, caller=AS_NOBODY)
    assert (again.status, again.problem) == (401, "unauthorized")


def test_revoking_something_else_is_answered_the_same(call: Call, client: dict[str, str]) -> None:
    access = log_in(call, client).body["access_token"]
    stranger = authorized()["authorization"].removeprefix("Bearer ")
    for token in ("x", stranger, CANARY):
        answer = call("POST", REVOKE, {"token": token}, caller=bearing(access))
        assert (answer.status, answer.body) == (204, None)
    assert call("GET", WHOAMI, caller=bearing(stranger)).status == 200


@pytest.mark.parametrize(("method", "path"), [("POST", REVOKE), ("GET", WHOAMI)])
def test_what_needs_a_token_takes_no_operator_and_nobody(call: Call, method: str, path: str) -> None:
    for who in (AS_NOBODY, AS_OPERATOR):
        answer = call(method, path, {"token": "x"} if method == "POST" else None, caller=who)
        assert (answer.status, answer.problem) == (401, "unauthorized")


BAD_BODIES: list[tuple[str, Any, str]] = [
    (TOKEN, {}, "client_id"),
    (TOKEN, {"client_id": "a"}, "client_secret"),
    (TOKEN, {"client_id": "", "client_secret": CANARY}, "client_id"),
    (TOKEN, {"client_id": CANARY * 20, "client_secret": CANARY}, "client_id"),
    (TOKEN, {"client_id": "a", "client_secret": CANARY * 20}, "client_secret"),
    (TOKEN, {"client_id": 1, "client_secret": CANARY}, "client_id"),
    (TOKEN, {"client_id": "a", "client_secret": [CANARY]}, "client_secret"),
    (TOKEN, {"client_id": "a", "client_secret": CANARY, "scope": CANARY}, "scope"),
    (REFRESH, {}, "refresh_token"),
    (REFRESH, {"refresh_token": CANARY * 200}, "refresh_token"),
    (REFRESH, {"refresh_token": None}, "refresh_token"),
    (REVOKE, {"token": ""}, "token"),
    (REVOKE, {"token": {"x": CANARY}}, "token"),
    (REVOKE, {"refresh_token": CANARY}, "token"),
]


def test_a_bad_body_is_blamed_on_its_field_and_never_shown(call: Call) -> None:
    for path, body, field in BAD_BODIES:
        answer = call("POST", path, body, caller=authorized() if path == REVOKE else AS_NOBODY)
        assert (body, answer.status, answer.problem, answer.body["field"]) == (body, 400, "invalid-request", field)
        assert CANARY not in json.dumps(answer.body)


def test_nothing_that_opens_a_door_is_written_down(
    call: Call, client: dict[str, str], log: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    """Everything a client may do with its secrets and tokens, rightly and wrongly; then the log and the table."""
    problems: list[Answer] = []
    secrets = {client["client_secret"], CANARY, OPERATOR_KEY, KEY}

    def issued(answer: Answer) -> dict[str, str]:
        assert answer.status == 200
        tokens: dict[str, str] = answer.body
        secrets.update((tokens["access_token"], tokens["refresh_token"]))
        return tokens

    def refused(answer: Answer) -> None:
        assert 400 <= answer.status < 500
        problems.append(answer)

    def refresh(token: str) -> Answer:
        return call("POST", REFRESH, {"refresh_token": token}, caller=AS_NOBODY)

    first = issued(log_in(call, client))
    own = bearing(first["access_token"])
    refused(log_in(call, {**client, "client_secret": CANARY}))
    refused(log_in(call, {"client_id": CANARY, "client_secret": client["client_secret"]}))
    refused(log_in(call, {"client_id": "a", "client_secret": client["client_secret"] * 9}))
    refused(refresh(first["access_token"]))
    refused(refresh(CANARY))
    second = issued(refresh(first["refresh_token"]))
    refused(refresh(first["refresh_token"]))
    refused(refresh(second["refresh_token"]))
    refused(call("GET", WHOAMI, caller=bearing(second["refresh_token"])))
    refused(call("GET", WHOAMI, caller=bearing(CANARY)))
    refused(call("GET", f"/v1/orgs/{CANARY}", caller={"x-api-key": CANARY}))
    for grace_hours in (24, 0):
        rotated = call(
            "POST", "/v1/orgs/acme/credentials/rotate", {"grace_period_hours": grace_hours}, caller=AS_OPERATOR
        )
        assert rotated.status == 200
        secrets.add(rotated.body["client_secret"])
    third = issued(log_in(call, {**client, "client_secret": rotated.body["client_secret"]}))
    for token in (third["access_token"], third["refresh_token"], CANARY):
        assert call("POST", REVOKE, {"token": token}, caller=bearing(third["access_token"])).status == 204
    refused(refresh(third["refresh_token"]))
    refused(log_in(call, client))
    assert call("GET", WHOAMI, caller=own).status in {200, 401}

    out, err = capfd.readouterr()
    items = boto3.client("dynamodb").scan(TableName=TABLE)["Items"]
    written = {
        "log": log.getvalue() + out + err,
        "table": json.dumps(items),
        "problems": json.dumps([[answer.body, answer.headers] for answer in problems]),
    }
    assert '"status":401' in written["log"].replace(" ", "")
    assert "credentials.rotate" in written["table"]
    assert "hmac-sha256$" in written["table"]
    assert len(secrets) >= 12
    # The parts as well: a signature in a log is as good as its token to whoever has the rest.
    parts = {part for secret in secrets for part in (secret, secret.rpartition(".")[2])}
    found = [(place, part[:12]) for place, text in written.items() for part in parts if part in text]
    assert found == []
