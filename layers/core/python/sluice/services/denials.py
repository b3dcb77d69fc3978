"""Refusals that still stand: asking again within a second costs no call.

What is kept is not the refusal but the image it was judged by. Whatever that image does not cover now, under the same
limits, is refused again; so refill alone is never refused wrongly, and what others give back, or a raised limit, is
seen after DENIAL_MS at the latest.
"""

from dataclasses import dataclass
from threading import Lock
from typing import Final

from cachetools import LRUCache

from sluice.repository.items import Bucket
from sluice.repository.keys import Key

DENIAL_MS: Final = 1_000
DENIALS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Denial:
    image: Bucket
    denied_ms: int


class DenyCache:
    """Bounded, and safe to share between threads."""

    def __init__(self, size: int = DENIALS_MAX) -> None:
        self._denials: LRUCache[str, _Denial] = LRUCache(maxsize=size)
        self._lock = Lock()

    def remember(self, image: Bucket, denied_ms: int) -> None:
        with self._lock:
            self._denials[image.key.pk] = _Denial(image, denied_ms)

    def forget(self, key: Key) -> None:
        with self._lock:
            self._denials.pop(key.pk, None)

    def image(self, key: Key, fingerprint: str, now_ms: int) -> Bucket | None:
        """The image of a refusal less than DENIAL_MS ago, if it is under these limits."""
        with self._lock:
            denial = self._denials.get(key.pk)
        # A clock that was set back must not keep a denial alive.
        if denial is None or not 0 <= now_ms - denial.denied_ms < DENIAL_MS:
            return None
        return denial.image if denial.image.fingerprint == fingerprint else None
