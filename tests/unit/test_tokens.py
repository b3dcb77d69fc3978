"""Tokens of callers: what is in them, how long they hold, and which keys open them."""

import base64
import json
from typing import Any

import jwt
import pytest

from sluice.core.errors import Unauthorized
from sluice.core.identity import ACCESS_MS, LEEWAY_MS, REFRESH_MS, Bearer, Role, TokenType
from sluice.core.signals import Signal
from sluice.services import tokens as module
from sluice.services.signing import key_id
from sluice.services.tokens import TOKEN_MAX, Tokens
from tests.fakes import CountingMeter
from tests.identities import ISSUER, TurningKeys

OLD, NEW, NEXT = b"o" * 64, b"n" * 64, b"x" * 64
NOW_MS = 1_800_000_000_123
WHOLE_MS = NOW_MS // 1000 * 1000
BEARER = Bearer("client", "ns", "chat", Role.APP, 3)


class Drawn:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        return f"drawn-{self.count}"


def make(keys: TurningKeys, issuer: str = ISSUER, meter: CountingMeter | None = None) -> Tokens:
    return Tokens(keys, issuer, Drawn(), meter)


def segments(token: str) -> list[Any]:
    return [json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))) for part in token.split(".")[:2]]


def test_header_and_claims_are_exactly_these() -> None:
    issued = make(TurningKeys(NEW)).issue(BEARER, None, NOW_MS)
    header, claims = segments(issued.access_token)
    assert header == {"alg": "HS256", "kid": key_id(NEW), "typ": "JWT"}
    assert claims == {
        "iss": ISSUER,
        "aud": "sluice",
        "sub": "client",
        "use": "access",
        "ns": "ns",
        "ent": "chat",
        "role": "app",
        "gen": 3,
        "jti": "drawn-2",
        "fam": "drawn-1",
        "iat": NOW_MS // 1000,
        "exp": NOW_MS // 1000 + 3600,
    }
    refresh = segments(issued.refresh_token)[1]
    assert (refresh["use"], refresh["jti"], refresh["fam"]) == ("refresh", "drawn-3", "drawn-1")
    assert refresh["exp"] - refresh["iat"] == 30 * 24 * 3600
    assert (issued.expires_in_s, issued.refresh_expires_in_s) == (3600, 30 * 24 * 3600)


def test_a_token_is_read_as_it_was_issued_and_keeps_its_family() -> None:
    tokens = make(TurningKeys(NEW))
    issued = tokens.issue(BEARER, "family", NOW_MS)
    access = tokens.read(issued.access_token, TokenType.ACCESS, NOW_MS)
    refresh = tokens.read(issued.refresh_token, TokenType.REFRESH, NOW_MS)
    assert access.bearer == refresh.bearer == BEARER
    assert access.family == refresh.family == "family"
    assert access.token_id != refresh.token_id
    assert (access.issued_at_ms, access.expires_at_ms) == (WHOLE_MS, WHOLE_MS + ACCESS_MS)
    assert (refresh.issued_at_ms, refresh.expires_at_ms) == (WHOLE_MS, WHOLE_MS + REFRESH_MS)


def test_the_longest_ids_fit() -> None:
    tokens = make(TurningKeys(NEW))
    issued = tokens.issue(Bearer("c" * 20, "n" * 11, "e" * 128, Role.APP, 10**9), None, NOW_MS)
    assert len(issued.access_token) < TOKEN_MAX
    assert tokens.read(issued.access_token, TokenType.ACCESS, NOW_MS).bearer.entity == "e" * 128


@pytest.mark.parametrize(
    ("now_ms", "is_valid"),
    [
        (WHOLE_MS - LEEWAY_MS - 1, False),
        (WHOLE_MS - LEEWAY_MS, True),
        (WHOLE_MS, True),
        (WHOLE_MS + ACCESS_MS, True),
        (WHOLE_MS + ACCESS_MS + LEEWAY_MS - 1, True),
        (WHOLE_MS + ACCESS_MS + LEEWAY_MS, False),
    ],
)
def test_the_edges_of_its_time(now_ms: int, is_valid: bool) -> None:
    tokens = make(TurningKeys(NEW))
    token = tokens.issue(BEARER, None, NOW_MS).access_token
    assert (tokens.find(token, now_ms) is not None) is is_valid


def test_a_type_is_not_the_other_and_refusals_are_counted() -> None:
    meter = CountingMeter()
    tokens = make(TurningKeys(NEW), meter=meter)
    issued = tokens.issue(BEARER, None, NOW_MS)
    for token, expected in ((issued.access_token, TokenType.REFRESH), (issued.refresh_token, TokenType.ACCESS)):
        with pytest.raises(Unauthorized):
            tokens.read(token, expected, NOW_MS)
    assert meter.counts[Signal.TOKENS_REFUSED] == 2


def test_another_environment_has_other_tokens_even_with_the_same_key() -> None:
    token = make(TurningKeys(NEW), "sluice-staging").issue(BEARER, None, NOW_MS).access_token
    assert make(TurningKeys(NEW)).find(token, NOW_MS) is None


def test_keys_rotate_without_a_moment_in_which_a_token_fails() -> None:
    """Two processes: one has read the new keys already, the other has not."""
    ahead, behind = TurningKeys(NEW, OLD), TurningKeys(OLD)
    behind.rotate(NEW)
    by_behind = make(behind).issue(BEARER, None, NOW_MS).access_token
    by_ahead = make(ahead).issue(BEARER, None, NOW_MS).access_token
    assert make(ahead).find(by_behind, NOW_MS) is not None
    assert ahead.look_ups == 0
    assert make(behind).find(by_behind, NOW_MS) is not None
    assert behind.look_ups == 0
    assert make(behind).find(by_ahead, NOW_MS) is not None
    assert behind.look_ups == 1
    assert segments(make(behind).issue(BEARER, None, NOW_MS).access_token)[0]["kid"] == key_id(NEW)


def test_a_key_that_was_rotated_out_opens_nothing() -> None:
    token = make(TurningKeys(OLD)).issue(BEARER, None, NOW_MS).access_token
    keys = TurningKeys(NEXT, NEW)
    assert make(keys).find(token, NOW_MS) is None
    assert keys.look_ups == 1


def test_a_key_is_taken_by_its_name_alone() -> None:
    """Signed by one of our keys under the name of the other."""
    claims = segments(make(TurningKeys(NEW)).issue(BEARER, None, NOW_MS).access_token)[1]
    swapped = jwt.encode(claims, NEW, "HS256", {"kid": key_id(OLD)})
    keys = TurningKeys(NEW, OLD)
    assert make(keys).find(swapped, NOW_MS) is None
    assert keys.look_ups == 0


@pytest.mark.parametrize("long", ["A" * (TOKEN_MAX + 1), "." * (1 << 20), f"a.{'A' * TOKEN_MAX}.a"])
def test_what_is_too_long_is_not_even_decoded(long: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def decoded(_segment: str) -> bytes:
        raise AssertionError("somebody looked into it")

    monkeypatch.setattr(module, "_decoded", decoded)
    tokens = make(TurningKeys(NEW))
    with pytest.raises(AssertionError):
        tokens.find("a.a.a", NOW_MS)
    assert tokens.find(long, NOW_MS) is None


def test_what_was_issued_is_not_shown() -> None:
    issued = make(TurningKeys(NEW)).issue(BEARER, None, NOW_MS)
    assert issued.access_token not in repr(issued)
    assert issued.refresh_token not in repr(issued)
