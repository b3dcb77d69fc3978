"""Refusals that still stand: asking again within a second costs no call.

What is kept is not the refusal but the images it was judged by, of every shard. Whatever they do not cover now, under
the same limits, is refused again; so refill alone is never refused wrongly, and what others give back, a raised limit
or a split is seen after DENIAL_MS at the latest.
"""

from collections.abc import Callable, Sequence
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
    images: tuple[Bucket, ...]
    denied_ms: int


class DenyCache:
    """By the key of shard 0. Bounded, and safe to share between threads.

    The timer must be monotonic: a clock that is set back would have a refusal stand once more.
    """

    def __init__(self, timer_ms: Callable[[], int], size: int = DENIALS_MAX) -> None:
        self._timer_ms = timer_ms
        self._denials: LRUCache[str, _Denial] = LRUCache(maxsize=size)
        self._lock = Lock()

    def remember(self, first: Key, images: Sequence[Bucket]) -> None:
        with self._lock:
            self._denials[first.pk] = _Denial(tuple(images), self._timer_ms())

    def forget(self, first: Key) -> None:
        with self._lock:
            self._denials.pop(first.pk, None)

    def images(self, first: Key, fingerprint: str) -> tuple[Bucket, ...]:
        """The images of a refusal less than DENIAL_MS ago, if they are under these limits; else none."""
        with self._lock:
            denial = self._denials.get(first.pk)
        if denial is None or self._timer_ms() - denial.denied_ms >= DENIAL_MS:
            return ()
        return denial.images if all(image.fingerprint == fingerprint for image in denial.images) else ()
