"""Leases over HTTP, event in and answer out, on moto."""

import base64
import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import boto3
import pytest

from sluice.core.limits import AMOUNT_MAX, Limit, Scope
from sluice.edge.lease_tokens import read_token, write_token
from sluice.services.signing import Signer, SigningKeys
from sluice.shell import Environment, build_services, make_client
from tests.fakes import CountingMeter
from tests.http import TABLE, Answer, Call, caller_of, deployed, items_in_table

SETTLE = "/v1/leases/settle"
ADJUST = "/v1/leases/adjust"
RELEASE = "/v1/leases/release"
ACQUIRE = {"entity": "user-1", "resource": "gpt-4", "consume": {"rpm": 1, "tpm": 500}}
LIMITS = {"rpm": Limit(10, 10, 1, 31_536_000), "tpm": Limit(1_000, 1_000, 1, 31_536_000)}


@pytest.fixture
def handler_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with deployed("data_plane.handler", monkeypatch) as module:
        environment = Environment("test", TABLE, 2000)
        services = build_services(environment, make_client(environment), CountingMeter())
        services.limits.put("default", Scope(resource="gpt-4"), LIMITS)
        yield module


@pytest.fixture
def call(handler_module: ModuleType) -> Call:
    return caller_of(handler_module, "POST", "/v1/acquire")


def acquired(call: Call, **more: Any) -> Any:
    answer = call(body={**ACQUIRE, **more})
    assert answer.status == 201
    return answer.body


def adjust(call: Call, body: Any, key: str | None = "key-1") -> Answer:
    return call("POST", ADJUST, body, headers={} if key is None else {"Idempotency-Key": key})


def consumed() -> dict[str, int]:
    (bucket,) = [item for item in items_in_table() if item["kind"]["S"] == "bucket"]
    return {name: int(bucket[f"b_{name}_tc"]["N"]) // 1000 for name in ("rpm", "tpm")}


def test_a_lease_has_an_id_and_an_end(call: Call) -> None:
    for more, seconds in (({}, 300), ({"ttl_seconds": 1}, 1), ({"ttl_seconds": 86_400}, 86_400)):
        body = acquired(call, consume={"rpm": 1}, **more)
        assert re.fullmatch(r"[0-9a-f]{32}", body["lease_id"])
        left = datetime.fromisoformat(body["expires_at"]) - datetime.now(UTC)
        assert seconds - 30 < left.total_seconds() <= seconds
    assert not [item for item in items_in_table() if item["kind"]["S"] == "lease"], "a lease alone writes nothing"


def test_settle(call: Call) -> None:
    lease = acquired(call)
    answer = call("POST", SETTLE, {"lease": lease["lease"], "actual": {"tpm": 700}})
    assert answer.status == 200
    assert answer.body == {
        "lease_id": lease["lease_id"],
        "settled": {"rpm": 1, "tpm": 700},
        "levels": [{"entity": "user-1", "remaining": {"rpm": 9, "tpm": 300}}],
        "usage": None,
    }
    assert consumed() == {"rpm": 1, "tpm": 700}
    again = call("POST", SETTLE, {"lease": lease["lease"], "actual": {"tpm": 700}})
    assert (again.status, again.body) == (200, answer.body)
    for body in ({"tpm": 701}, {}):
        other = call("POST", SETTLE, {"lease": lease["lease"], "actual": body})
        assert (other.status, other.problem) == (409, "lease-closed")
    assert call("POST", RELEASE, {"lease": lease["lease"]}).problem == "lease-closed"
    assert adjust(call, {"lease": lease["lease"], "delta": {"tpm": 1}}).problem == "lease-closed"
    assert consumed() == {"rpm": 1, "tpm": 700}


def test_adjust(call: Call) -> None:
    lease = acquired(call)
    body = {"lease": lease["lease"], "delta": {"tpm": 1_500, "rpm": -1}}
    for _ in range(2):
        answer = adjust(call, body)
        assert answer.status == 200
        assert answer.body == {
            "lease_id": lease["lease_id"],
            "adjusted": {"tpm": 1_500, "rpm": -1},
            "levels": [{"entity": "user-1", "remaining": {"rpm": 10, "tpm": -1_000}}],
        }
        assert consumed() == {"rpm": 0, "tpm": 2_000}
    other = adjust(call, {**body, "delta": {"tpm": 1}})
    assert (other.status, other.problem, other.body["field"]) == (422, "idempotency-mismatch", "idempotency-key")
    assert adjust(call, {**body, "delta": {"tpm": -2_001}}, "key-2").body["field"] == "delta.tpm"
    assert consumed() == {"rpm": 0, "tpm": 2_000}


def test_release(call: Call) -> None:
    lease = acquired(call)
    for _ in range(2):
        answer = call("POST", RELEASE, {"lease": lease["lease"]})
        assert answer.status == 200
        assert answer.body == {
            "lease_id": lease["lease_id"],
            "released": {"rpm": 1, "tpm": 500},
            "levels": [{"entity": "user-1", "remaining": {"rpm": 10, "tpm": 1_000}}],
        }
        assert consumed() == {"rpm": 0, "tpm": 0}
    assert call("POST", SETTLE, {"lease": lease["lease"], "actual": {}}).problem == "lease-closed"


def test_a_lease_that_has_expired(call: Call) -> None:
    lease = acquired(call, ttl_seconds=1)
    time.sleep(1.1)
    for path, more in ((SETTLE, {"actual": {}}), (ADJUST, {"delta": {"tpm": 1}}), (RELEASE, {})):
        answer = call("POST", path, {"lease": lease["lease"], **more}, headers={"Idempotency-Key": "k"})
        assert (answer.status, answer.problem) == (410, "lease-expired")
    assert consumed() == {"rpm": 1, "tpm": 500}


def test_every_wrong_lease_is_refused_alike(call: Call) -> None:
    token = acquired(call)["lease"]
    flipped = token[:-1] + ("A" if token[-1] != "A" else "B")
    raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    unsigned = base64.urlsafe_b64encode(b"\0" * 32 + raw[32:]).rstrip(b"=").decode()
    wrong = [
        "",
        "x",
        "é",
        "\ud800",
        "\0",
        token[1:],
        token[:-4],
        token[::-1],
        flipped,
        unsigned,
        f"{token}=",
        token * 9,
    ]
    wrong += [f" {token}", f"{token}\n", "A" * 8_193, "A" * 60_000, foreign(token)]
    details = set()
    for path, more in ((SETTLE, {"actual": {}}), (ADJUST, {"delta": {"tpm": 1}}), (RELEASE, {})):
        for text in wrong:
            answer = call("POST", path, {"lease": text, **more}, headers={"Idempotency-Key": "k"})
            assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-lease", "lease")
            details.add(answer.body["detail"])
    assert len(details) == 1
    assert consumed() == {"rpm": 1, "tpm": 500}


class SameKeys:
    def known(self) -> SigningKeys:
        return SigningKeys(b"k" * 64)

    looked_up = known


def foreign(token: str) -> str:
    """The same lease, signed with the right key for another namespace."""
    signer = Signer(SameKeys())
    return write_token(signer, replace(read_token(signer, "default", token), namespace="other"))


LEASE = "lease"
WRONG: list[tuple[str, str, Any]] = [
    (SETTLE, "lease", {"actual": {}}),
    (SETTLE, "lease", {"lease": 7, "actual": {}}),
    (SETTLE, "lease", {"lease": None, "actual": {}}),
    (SETTLE, "actual", {"lease": LEASE}),
    (SETTLE, "actual", {"lease": LEASE, "actual": None}),
    (SETTLE, "actual", {"lease": LEASE, "actual": [1]}),
    (SETTLE, "actual", {"lease": LEASE, "actual": {f"l{number}": 1 for number in range(11)}}),
    (SETTLE, "actual.tpm", {"lease": LEASE, "actual": {"tpm": -1}}),
    (SETTLE, "actual.tpm", {"lease": LEASE, "actual": {"tpm": AMOUNT_MAX + 1}}),
    (SETTLE, "actual.tpm", {"lease": LEASE, "actual": {"tpm": 1.0}}),
    (SETTLE, "actual.tpm", {"lease": LEASE, "actual": {"tpm": "1"}}),
    (SETTLE, "actual.tpm", {"lease": LEASE, "actual": {"tpm": True}}),
    (SETTLE, "actual.tpm", {"lease": LEASE, "actual": {"tpm": None}}),
    (SETTLE, "usages", {"lease": LEASE, "actual": {}, "usages": 1}),
    (ADJUST, "delta", {"lease": LEASE}),
    (ADJUST, "delta", {"lease": LEASE, "delta": {}}),
    (ADJUST, "delta.tpm", {"lease": LEASE, "delta": {"tpm": AMOUNT_MAX + 1}}),
    (ADJUST, "delta.tpm", {"lease": LEASE, "delta": {"tpm": -AMOUNT_MAX - 1}}),
    (ADJUST, "delta.tpm", {"lease": LEASE, "delta": {"tpm": 1.5}}),
    (ADJUST, "delta.tpm", {"lease": LEASE, "delta": {"tpm": -501}}),
    (ADJUST, "delta.tpm", {"lease": LEASE, "delta": {"tpm": AMOUNT_MAX}}),
    (RELEASE, "lease", {}),
    (RELEASE, "actual", {"lease": LEASE, "actual": {}}),
]


@pytest.mark.parametrize(("path", "field", "body"), WRONG)
def test_a_wrong_body_names_its_field_and_changes_nothing(call: Call, path: str, field: str, body: Any) -> None:
    token = acquired(call)["lease"]
    if body.get("lease") == LEASE:
        body = {**body, "lease": token}
    answer = call("POST", path, body, headers={"Idempotency-Key": "k"})
    assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", field)
    assert token not in json.dumps(answer.body)
    assert consumed() == {"rpm": 1, "tpm": 500}


def test_a_name_that_is_not_in_the_lease(call: Call) -> None:
    token = acquired(call, consume={"rpm": 1})["lease"]
    for path, body in ((SETTLE, {"actual": {"tpm": 1}}), (ADJUST, {"delta": {"tpm": 1}})):
        answer = call("POST", path, {"lease": token, **body}, headers={"Idempotency-Key": "k"})
        (named,) = body
        assert (answer.status, answer.problem, answer.body["field"]) == (400, "unknown-limit", f"{named}.tpm")


@pytest.mark.parametrize("key", [None, "", "é", "a\nb", "a\n", "a\0", "k" * 129, "\x7f"])
def test_an_adjustment_needs_a_key(call: Call, key: str | None) -> None:
    token = acquired(call)["lease"]
    answer = adjust(call, {"lease": token, "delta": {"tpm": 1}}, key)
    assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", "idempotency-key")
    assert consumed() == {"rpm": 1, "tpm": 500}


@pytest.mark.parametrize("key", ["k", "k" * 128, "a b", "~!@#$%^&*()", "0"])
def test_a_key_is_printable_ascii(call: Call, key: str) -> None:
    token = acquired(call)["lease"]
    assert adjust(call, {"lease": token, "delta": {"tpm": 1}}, key).status == 200


@pytest.mark.parametrize("ttl", [0, -1, 86_401, 1.0, "300", None, True])
def test_a_time_to_live_has_bounds(call: Call, ttl: Any) -> None:
    answer = call(body={**ACQUIRE, "ttl_seconds": ttl})
    assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", "ttl_seconds")


def test_without_keys_an_acquire_takes_nothing(call: Call) -> None:
    """Hole: tokens that were taken for an answer that can not be signed are gone."""
    secrets = boto3.client("secretsmanager")
    (secret,) = [one for one in secrets.list_secrets()["SecretList"] if one["Name"] == "SIGNING"]
    secrets.put_secret_value(SecretId=secret["ARN"], SecretString='{"current": "", "previous": ""}')
    answer = call(body=ACQUIRE)
    assert (answer.status, answer.problem, answer.headers["Retry-After"]) == (503, "unavailable", "1")
    assert not [item for item in items_in_table() if item["kind"]["S"] == "bucket"]
    secrets.put_secret_value(SecretId=secret["ARN"], SecretString=json.dumps({"current": "n" * 64, "previous": ""}))
    assert call(body=ACQUIRE).status == 201


def test_a_debt_of_ages_is_refused_in_order(call: Call) -> None:
    """Hole: a time that no calendar can express must not become a failure of ours."""
    token = acquired(call)["lease"]
    adjust(call, {"lease": token, "delta": {"rpm": AMOUNT_MAX - 1}})
    answer = call(body=ACQUIRE)
    assert (answer.status, answer.problem) == (429, "limit-exceeded")
    assert answer.body["admit_at"] == "9999-12-31T23:59:59.999Z"
