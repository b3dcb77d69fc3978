"""Tokens that a client carries and can not change: leases and cursors.

A token is the payload and its HMAC-SHA256, which also covers the purpose: a cursor is no lease. Two keys are valid
while they rotate; the current one signs.
"""

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass
from typing import Final, Protocol

_MAC_BYTES: Final = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class SigningKeys:
    current: bytes
    previous: bytes | None = None


class KeySource(Protocol):
    """`known`: the keys as this process has them. `looked_up`: read again, at most so often."""

    def known(self) -> SigningKeys: ...

    def looked_up(self) -> SigningKeys: ...


class Signer:
    def __init__(self, keys: KeySource) -> None:
        self._keys = keys

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
