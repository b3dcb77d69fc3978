"""Signatures, their keys, and where the keys come from."""

import io
import json
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from sluice import shell
from sluice.core.errors import SigningUnavailable
from sluice.services.signing import Signer, SigningKeys, parse_keys
from sluice.shell import KEYS_LOOKED_UP_MS, KEYS_MS, NoKeys, SecretKeys

OLD = "o" * 32
NEW = "n" * 32
OTHER = "x" * 32


def secret_text(current: str, previous: str = "") -> str:
    return json.dumps({"current": current, "previous": previous})


class FixedKeys:
    def __init__(self, known: str, looked_up: str | None = None) -> None:
        self._known = parse_keys(known)
        self._looked_up = parse_keys(looked_up or known)
        self.look_ups = 0

    def known(self) -> SigningKeys:
        return self._known

    def looked_up(self) -> SigningKeys:
        self.look_ups += 1
        return self._looked_up


def test_what_was_signed_is_read_again_and_costs_no_look() -> None:
    keys = FixedKeys(secret_text(NEW))
    signer = Signer(keys)
    assert signer.verify("lease:a", signer.sign("lease:a", b"payload")) == b"payload"
    assert signer.verify("lease:a", signer.sign("lease:a", b"")) == b""
    assert keys.look_ups == 0


@pytest.mark.parametrize("purpose", ["lease:b", "lease:", "lease:a\0", "cursor:a", ""])
def test_a_token_is_good_for_its_purpose_only(purpose: str) -> None:
    signer = Signer(FixedKeys(secret_text(NEW)))
    assert signer.verify(purpose, signer.sign("lease:a", b"payload")) is None


def test_every_changed_character_is_noticed() -> None:
    signer = Signer(FixedKeys(secret_text(NEW)))
    token = signer.sign("p", b"payload")
    for position, character in enumerate(token):
        other = "A" if character != "A" else "B"
        assert signer.verify("p", token[:position] + other + token[position + 1 :]) is None
        assert signer.verify("p", token[:position]) is None
    for spelled in ("", "=", token + "=", token + "A", f" {token}", token + "\n", "é" * 50, "\ud800", token + "\0"):
        assert signer.verify("p", spelled) is None


def test_both_keys_are_accepted_and_the_current_one_signs() -> None:
    before, after = Signer(FixedKeys(secret_text(OLD))), Signer(FixedKeys(secret_text(NEW, OLD)))
    assert after.verify("p", before.sign("p", b"x")) == b"x"
    assert after.verify("p", after.sign("p", b"x")) == b"x"
    assert before.verify("p", after.sign("p", b"x")) is None
    assert Signer(FixedKeys(secret_text(OTHER, NEW))).verify("p", before.sign("p", b"x")) is None


def test_a_process_that_has_not_seen_the_rotation_looks_again() -> None:
    keys = FixedKeys(secret_text(OLD), secret_text(NEW, OLD))
    token = Signer(FixedKeys(secret_text(NEW, OLD))).sign("p", b"x")
    assert Signer(keys).verify("p", token) == b"x"
    assert keys.look_ups == 1


def test_keys_are_read_from_a_secret() -> None:
    assert parse_keys(secret_text(NEW)) == SigningKeys(NEW.encode())
    assert parse_keys(secret_text(NEW, OLD)) == SigningKeys(NEW.encode(), OLD.encode())
    assert NEW not in repr(parse_keys(secret_text(NEW, OLD)))
    assert OLD not in repr(parse_keys(secret_text(NEW, OLD)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        json.dumps({"current": NEW}),
        json.dumps({"current": NEW, "previous": "", "next": NEW}),
        json.dumps({"current": NEW, "previous": None}),
        json.dumps({"current": 7, "previous": ""}),
        # An empty or short key would let everybody sign.
        secret_text(""),
        secret_text(NEW[1:]),
        secret_text(NEW, OLD[1:]),
        secret_text("é" * 32),
    ],
)
def test_keys_that_are_not_good_ones(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any kind of it will do
        parse_keys(text)


class FakeSecrets:
    """Secrets Manager: `answer` is what the secret holds, or what happens instead."""

    def __init__(self) -> None:
        self.answer: str | Exception = secret_text(OLD)
        self.reads = 0

    def get_secret_value(self, **request: Any) -> dict[str, Any]:
        assert request == {"SecretId": "arn"}
        self.reads += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return {"SecretString": self.answer}


@pytest.fixture
def secret() -> FakeSecrets:
    return FakeSecrets()


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Its one element is the time."""
    now = [5_000_000]
    monkeypatch.setattr(shell, "timer_ms", lambda: now[0])
    return now


def test_the_secret_is_read_when_it_is_needed_and_every_five_minutes(secret: FakeSecrets, timer: list[int]) -> None:
    keys = SecretKeys("arn", secret)
    assert secret.reads == 0, "a snapshot of the process must not carry the keys"
    for _ in range(3):
        assert keys.known().current == OLD.encode()
    assert secret.reads == 1
    secret.answer = secret_text(NEW, OLD)
    timer[0] += KEYS_MS - 1
    assert keys.known().current == OLD.encode()
    timer[0] += 1
    assert keys.known().current == NEW.encode()
    assert secret.reads == 2


def test_forged_tokens_do_not_become_calls(secret: FakeSecrets, timer: list[int]) -> None:
    signer = Signer(SecretKeys("arn", secret))
    forged = Signer(FixedKeys(secret_text(OTHER))).sign("p", b"x")
    for _ in range(100):
        assert signer.verify("p", forged) is None
        timer[0] += KEYS_LOOKED_UP_MS // 50
    assert secret.reads == 2


def test_a_new_key_is_found_within_ten_seconds(secret: FakeSecrets, timer: list[int]) -> None:
    signer = Signer(SecretKeys("arn", secret))
    signer.prepare()
    secret.answer = secret_text(NEW, OLD)
    token = Signer(FixedKeys(secret_text(NEW))).sign("p", b"x")
    timer[0] += KEYS_LOOKED_UP_MS
    assert signer.verify("p", token) == b"x"


@pytest.mark.parametrize(
    "failure",
    [
        ClientError({"Error": {"Code": "AccessDeniedException"}}, "GetSecretValue"),
        EndpointConnectionError(endpoint_url="x"),
        secret_text(""),
        "not json canary",
    ],
)
def test_a_secret_that_can_not_be_read(
    secret: FakeSecrets, timer: list[int], monkeypatch: pytest.MonkeyPatch, failure: str | Exception
) -> None:
    """A process without keys is unavailable; one with keys goes on with them, and does not ask all the time."""
    written = io.StringIO()
    monkeypatch.setattr(shell.logger.registered_handler, "stream", written)
    keys = SecretKeys("arn", secret)
    secret.answer = failure
    with pytest.raises(SigningUnavailable):
        Signer(keys).prepare()
    secret.answer = secret_text(OLD)
    assert keys.known().current == OLD.encode()
    secret.answer = failure
    reads = secret.reads
    for _ in range(5):
        timer[0] += KEYS_MS // 5
        assert keys.known().current == OLD.encode()
    assert secret.reads == reads + 1
    assert written.getvalue().count("the keys of a secret can not be read") == 2
    assert "canary" not in written.getvalue()


def test_a_process_without_a_secret_says_so() -> None:
    with pytest.raises(LookupError, match="no secret"):
        Signer(NoKeys()).prepare()
    with pytest.raises(LookupError):
        NoKeys().looked_up()
