"""The operator of a deployment, known by a key. Two keys are valid while they rotate."""

import hashlib
import hmac
from typing import Final

from sluice.services.signing import KeySource, SigningKeys

_NO_DIGEST: Final = bytes(hashlib.sha256().digest_size)


class Operators:
    def __init__(self, keys: KeySource) -> None:
        self._keys = keys

    def is_operator(self, presented: str) -> bool:
        """Compared by their digests: the time tells neither how long a key is nor how much of it was right."""
        digest = _digest(presented.encode("utf-8", "surrogatepass"))
        # Perhaps the keys were rotated since this process read them.
        return _is_one_of(self._keys.known(), digest) or _is_one_of(self._keys.looked_up(), digest)


def _is_one_of(keys: SigningKeys, digest: bytes) -> bool:
    previous = _NO_DIGEST if keys.previous is None else _digest(keys.previous)
    is_current = hmac.compare_digest(digest, _digest(keys.current))
    is_previous = hmac.compare_digest(digest, previous)
    return is_current or is_previous


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
