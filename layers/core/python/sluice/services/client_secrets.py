"""Client secrets: drawn, hashed with a key of ours, and compared without telling how close a guess was.

A secret has 256 random bits, so nobody finds it by trying: a hash that is slow on purpose would only let strangers
keep us busy. The key keeps a stolen table from being of any use.
"""

import base64
import hmac
from collections.abc import Sequence
from typing import Final

from sluice.core.backoff import RandomBelow
from sluice.core.identity import SECRETS_MAX
from sluice.services.signing import KeySource, SigningKeys, key_id

SCHEME: Final = "hmac-sha256"
SECRET_PREFIX: Final = "sk_"  # noqa: S105 - how secrets begin, not one
_SECRET_BYTES: Final = 32
_SALT_BYTES: Final = 16
# What a guess is compared with where there is no secret: no digest is all zeros.
_NO_HASH: Final = f"{SCHEME}${'0' * 16}${'00' * _SALT_BYTES}${'00' * 32}"


class ClientSecrets:
    def __init__(self, keys: KeySource, random_below: RandomBelow) -> None:
        self._keys = keys
        self._random_below = random_below

    def draw(self) -> str:
        raw = self._random_below(1 << (8 * _SECRET_BYTES)).to_bytes(_SECRET_BYTES, "big")
        return SECRET_PREFIX + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()

    def hash(self, secret: str) -> str:
        key = self._keys.known().current
        salt = self._random_below(1 << (8 * _SALT_BYTES)).to_bytes(_SALT_BYTES, "big")
        return f"{SCHEME}${key_id(key)}${salt.hex()}${_mac(key, salt, secret).hex()}"

    def is_current(self, stored: str) -> bool:
        """Whether a hash was made with the key that is in use now."""
        return stored.split("$")[1] == key_id(self._keys.known().current)

    def find(self, presented: str, stored: Sequence[str]) -> int | None:
        """Which of the hashes is of this secret. The same work whatever is stored, and whether or not one fits."""
        keys = self._keys_for(stored)
        padded = [*stored, *([_NO_HASH] * (SECRETS_MAX - len(stored)))]
        fits = [_fits(keys, presented, one) for one in padded]
        return fits.index(True) if True in fits else None

    def _keys_for(self, stored: Sequence[str]) -> SigningKeys:
        keys = self._keys.known()
        known = _by_id(keys)
        # Hashed by a process that already had a newer key.
        return keys if all(one.split("$")[1] in known for one in stored) else self._keys.looked_up()


def _fits(keys: SigningKeys, presented: str, stored: str) -> bool:
    _, kid, salt, mac = stored.split("$")
    by_id = _by_id(keys)
    computed = _mac(by_id.get(kid, keys.current), bytes.fromhex(salt), presented)
    return hmac.compare_digest(computed, bytes.fromhex(mac)) and kid in by_id


def _by_id(keys: SigningKeys) -> dict[str, bytes]:
    return {key_id(key): key for key in (keys.current, keys.previous) if key is not None}


def _mac(key: bytes, salt: bytes, secret: str) -> bytes:
    return hmac.digest(key, salt + secret.encode("utf-8", "surrogatepass"), "sha256")
