"""Tokens that a client carries and can not change: leases and cursors.

A token is the payload and its HMAC-SHA256, which also covers the purpose: a cursor is no lease. Two keys are valid
while they rotate; the current one signs.
"""

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass, field
from typing import Final, Protocol

# As long as the digest: a shorter key would be the easier thing to guess.
KEY_CHARACTERS_MIN: Final = 32

_MAC_BYTES: Final = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class SigningKeys:
    """Never shown, not even by a traceback."""

    current: bytes = field(repr=False)
    previous: bytes | None = field(default=None, repr=False)


def parse_keys(text: str) -> SigningKeys:
    """From `{"current": ..., "previous": ...}`; an empty previous one means none. ValueError for anything else."""
    value = json.loads(text)
    if not isinstance(value, dict) or value.keys() != {"current", "previous"}:
        raise ValueError("signing keys are an object with current and previous")
    current, previous = value["current"], value["previous"]
    for key in (current, previous):
        if not isinstance(key, str) or not key.isascii():
            raise ValueError("a signing key is a text in ASCII")
    if len(current) < KEY_CHARACTERS_MIN or (previous and len(previous) < KEY_CHARACTERS_MIN):
        raise ValueError(f"a signing key has {KEY_CHARACTERS_MIN} characters at least")
    return SigningKeys(current.encode(), previous.encode() or None)


def key_id(key: bytes) -> str:
    """Names a key in what was made with it. Says nothing about the key, and needs no field of the secret."""
    return hashlib.sha256(b"kid" + key).hexdigest()[:16]


class KeySource(Protocol):
    """`known`: the keys as this process has them. `looked_up`: read again, at most so often."""

    def known(self) -> SigningKeys: ...

    def looked_up(self) -> SigningKeys: ...


class Signer:
    def __init__(self, keys: KeySource) -> None:
        self._keys = keys

    def prepare(self) -> None:
        """Raises SigningUnavailable while there is no key. Asked before anything is taken that `sign` hands out."""
        self._keys.known()

    def sign(self, purpose: str, payload: bytes) -> str:
        mac = _mac(self._keys.known().current, purpose, payload)
        return base64.urlsafe_b64encode(mac + payload).rstrip(b"=").decode()

    def verify(self, purpose: str, token: str) -> bytes | None:
        """The payload, or None for whatever we did not sign for this purpose."""
        raw = _decoded(token)
        if raw is None or len(raw) < _MAC_BYTES:
            return None
        mac, payload = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if _signed(self._keys.known(), purpose, mac, payload):
            return payload
        # Perhaps the keys were rotated since this process read them.
        return payload if _signed(self._keys.looked_up(), purpose, mac, payload) else None


def _signed(keys: SigningKeys, purpose: str, mac: bytes, payload: bytes) -> bool:
    candidates = [keys.current] if keys.previous is None else [keys.current, keys.previous]
    return any(hmac.compare_digest(mac, _mac(key, purpose, payload)) for key in candidates)


def _mac(key: bytes, purpose: str, payload: bytes) -> bytes:
    return hmac.digest(key, purpose.encode() + b"\0" + payload, "sha256")


def _decoded(token: str) -> bytes | None:
    """Only the one spelling that `sign` gives: base64 would accept others for the same bytes."""
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except (binascii.Error, ValueError):
        return None
    return raw if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() == token else None
