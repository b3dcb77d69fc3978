"""What this process last saw of each bucket: a guess that saves a round trip, never a decision."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from cachetools import LRUCache

from sluice.core import bucket as math
from sluice.core.bucket import Form
from sluice.core.limits import LimitSet
from sluice.repository.items import Bucket
from sluice.repository.keys import Key
from sluice.services.configuration import CACHE_SIZE

# As many as there are cached limits: where the limits are known, the bucket is no longer read along.
IMAGES_MAX: Final = CACHE_SIZE


@dataclass(frozen=True, slots=True)
class Guess:
    """The form of each limit to try first, and the ttl as last seen. `unsure`: those that the image calls full."""

    forms: Mapping[str, Form]
    unsure: Collection[str]
    expires_at_s: int | None


@dataclass(slots=True)
class _Seen:
    image: Bucket | None = None
    form_when_full: dict[str, Form] = field(default_factory=dict)


class ImageCache:
    """Bounded, and safe to share between threads.

    While the image says that a limit is not full, spending is right: time alone can not break it. Once the image says
    full, either the bucket is, or others have spent since. What turned out right when the image last said so is the
    best guess: one writer alone stays with "from full", one of many stays with "spend".
    """

    def __init__(self, size: int = IMAGES_MAX) -> None:
        self._seen: LRUCache[str, _Seen] = LRUCache(maxsize=size)
        self._lock = Lock()

    def knows(self, key: Key) -> bool:
        return key.pk in self._seen

    def guess(self, key: Key, limits: LimitSet, demand: Mapping[str, int], now_ms: int) -> Guess:
        with self._lock:
            seen = self._seen.get(key.pk) or _Seen()
            full = _said_full(seen.image, limits, demand, now_ms)
            forms = {
                name: seen.form_when_full.get(name, Form.SPEND_FROM_FULL) if name in full else Form.SPEND
                for name in demand
            }
            return Guess(forms, full, None if seen.image is None else seen.image.expires_at_s)

    def remember(self, image: Bucket, fitted: Mapping[str, Form] | None = None) -> None:
        """Takes in what a write returned, and which forms fitted where the guess was unsure."""
        with self._lock:
            seen = self._seen.setdefault(image.key.pk, _Seen())
            if fitted:
                seen.form_when_full.update(fitted)
            _keep_newer(seen, image)


def _keep_newer(seen: _Seen, image: Bucket) -> None:
    """Answers to parallel requests arrive in any order. Generations have none: clocks differ."""
    old = seen.image
    if old is None or old.generation != image.generation or old.version <= image.version:
        seen.image = image


def _said_full(image: Bucket | None, limits: LimitSet, names: Iterable[str], now_ms: int) -> set[str]:
    """The limits that are full by this image; all of them where there is none under these limits."""
    if image is None or image.fingerprint != limits.fingerprint:
        return set(names)
    return {
        name for name in names if math.is_overflowed(limits.parameters[name], image.limits[name].balance_milli, now_ms)
    }
