"""Tokens of callers: JSON Web Tokens, signed with HS256 by one of two keys and read strictly.

Whatever is wrong with a token gives the same error. The form is checked before the library sees a token: one
spelling, no member twice, exactly our header. So the library never meets another algorithm, a key from the token, or
a form that two readers might understand differently.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import jwt

from sluice.core.errors import Unauthorized
from sluice.core.identity import ACCESS_MS, LEEWAY_MS, REFRESH_MS, Bearer, Claims, Role, TokenType
from sluice.core.signals import Meter, Signal
from sluice.services.signing import KeySource, SigningKeys, key_id

ALGORITHM: Final = "HS256"
AUDIENCE: Final = "sluice"
TOKEN_MAX: Final = 4096
# Ids are shorter. Each of these becomes part of a key, where a byte takes three at most.
CLAIM_BYTES_MAX: Final = 256

_SEGMENT: Final = re.compile(r"[A-Za-z0-9_-]+")
_HEADER_NAMES: Final = frozenset({"alg", "kid", "typ"})
_TEXTS: Final = ("iss", "aud", "sub", "use", "ns", "ent", "role", "jti", "fam")
_WHOLES: Final = ("gen", "iat", "exp")
_LIFETIMES_MS: Final = {TokenType.ACCESS: ACCESS_MS, TokenType.REFRESH: REFRESH_MS}
# Signatures only, and no other algorithm. Claims are checked here: the library asks the system's clock, and takes
# lists and fractions.
_SIGNATURES: Final = jwt.PyJWS(algorithms=[ALGORITHM])


@dataclass(frozen=True, slots=True)
class IssuedTokens:
    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)
    expires_in_s: int
    refresh_expires_in_s: int


class Tokens:
    def __init__(self, keys: KeySource, issuer: str, new_token: Callable[[], str], meter: Meter | None = None) -> None:
        self._keys = keys
        self._issuer = issuer
        self._new_token = new_token
        self._meter = meter

    def issue(self, bearer: Bearer, family: str | None, now_ms: int) -> IssuedTokens:
        """`family`: of the refresh token that these come from, None for a login."""
        one_family = self._new_token() if family is None else family
        return IssuedTokens(
            access_token=self._signed(bearer, TokenType.ACCESS, one_family, now_ms),
            refresh_token=self._signed(bearer, TokenType.REFRESH, one_family, now_ms),
            expires_in_s=ACCESS_MS // 1000,
            refresh_expires_in_s=REFRESH_MS // 1000,
        )

    def read(self, token: str, expected: TokenType, now_ms: int) -> Claims:
        """Raises Unauthorized for whatever is not a token of ours, of this type, at this time."""
        claims = self.find(token, now_ms)
        if claims is None or claims.token_type is not expected:
            if self._meter is not None:
                self._meter.count(Signal.TOKENS_REFUSED)
            raise Unauthorized
        return claims

    def find(self, token: str, now_ms: int) -> Claims | None:
        """Of either type; None for whatever is not a token of ours at this time."""
        try:
            header, members = _parsed(token)
            _SIGNATURES.decode(token, self._key(header), algorithms=[ALGORITHM])
            claims = _claims(members, self._issuer)
        except (jwt.PyJWTError, _Malformed):
            return None
        if claims.issued_at_ms > now_ms + LEEWAY_MS or claims.expires_at_ms + LEEWAY_MS <= now_ms:
            return None
        return claims

    def _signed(self, bearer: Bearer, token_type: TokenType, family: str, now_ms: int) -> str:
        key = self._keys.known().current
        issued_at_s = now_ms // 1000
        members = {
            "iss": self._issuer,
            "aud": AUDIENCE,
            "sub": bearer.client_id,
            "use": token_type.value,
            "ns": bearer.namespace,
            "ent": bearer.entity,
            "role": bearer.role.value,
            "gen": bearer.secret_generation,
            "jti": self._new_token(),
            "fam": family,
            "iat": issued_at_s,
            "exp": issued_at_s + _LIFETIMES_MS[token_type] // 1000,
        }
        return jwt.encode(members, key, algorithm=ALGORITHM, headers={"kid": key_id(key)})

    def _key(self, header: Mapping[str, Any]) -> bytes:
        """Only ever one of ours. A name that is not known may be of a key that this process has not read yet."""
        kid = header["kid"]
        key = _named(self._keys.known(), kid) or _named(self._keys.looked_up(), kid)
        if key is None:
            raise _Malformed
        return key


class _Malformed(Exception):
    """Never leaves this module: what exactly is wrong is nobody's business."""


def _named(keys: SigningKeys, kid: str) -> bytes | None:
    return next((key for key in (keys.current, keys.previous) if key is not None and key_id(key) == kid), None)


def _parsed(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims of a token in the one spelling that we use; nothing in them is verified yet."""
    if len(token) > TOKEN_MAX:
        raise _Malformed
    segments = token.split(".")
    if len(segments) != 3:
        raise _Malformed
    header, members, _ = (_decoded(segment) for segment in segments)
    names = _object(header)
    if names.keys() != _HEADER_NAMES or names["alg"] != ALGORITHM or names["typ"] != "JWT":
        raise _Malformed
    if not isinstance(names["kid"], str):
        raise _Malformed
    return names, _object(members)


def _decoded(segment: str) -> bytes:
    """Base64 would take several spellings for the same bytes."""
    if _SEGMENT.fullmatch(segment) is None:
        raise _Malformed
    try:
        raw = base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))
    except (binascii.Error, ValueError):
        raise _Malformed from None
    if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != segment:
        raise _Malformed
    return raw


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_refuse)
    # Not UTF-8 or not JSON; arrays nested by the thousand.
    except (ValueError, RecursionError):
        raise _Malformed from None
    if not isinstance(value, dict):
        raise _Malformed
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _Malformed
    return members


def _refuse(_constant: str) -> NoReturn:
    raise _Malformed


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value.encode("utf-8", "surrogatepass")) <= CLAIM_BYTES_MAX


def _claims(members: Mapping[str, Any], issuer: str) -> Claims:
    """All our claims, each of its exact type, and no other."""
    if members.keys() != {*_TEXTS, *_WHOLES}:
        raise _Malformed
    if not all(_is_text(members[name]) for name in _TEXTS):
        raise _Malformed
    # A bool is a number to Python.
    if not all(type(members[name]) is int and members[name] > 0 for name in _WHOLES):
        raise _Malformed
    if members["iss"] != issuer or members["aud"] != AUDIENCE or members["role"] not in (Role.ORG, Role.APP):
        raise _Malformed
    try:
        token_type = TokenType(members["use"])
    except ValueError:
        raise _Malformed from None
    issued_at_ms, expires_at_ms = members["iat"] * 1000, members["exp"] * 1000
    if not 0 < expires_at_ms - issued_at_ms <= _LIFETIMES_MS[token_type]:
        raise _Malformed
    return Claims(
        bearer=Bearer(members["sub"], members["ns"], members["ent"], Role(members["role"]), members["gen"]),
        token_type=token_type,
        token_id=members["jti"],
        family=members["fam"],
        issued_at_ms=issued_at_ms,
        expires_at_ms=expires_at_ms,
    )
