"""What this process last saw of each bucket: a guess that saves a round trip, never a decision."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from cachetools import LRUCache

from sluice.core import bucket as math
from sluice.core import shards
from sluice.core.bucket import Form
from sluice.core.shards import Counts
from sluice.repository.items import Bucket
from sluice.repository.keys import Key, first_shard
from sluice.repository.writes import Target
from sluice.services.configuration import CACHE_SIZE

# As many as there are cached limits: where the limits are known, the bucket is no longer read along.
IMAGES_MAX: Final = CACHE_SIZE
_UNSPLIT: Final[Counts] = {}


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
    # What the version is counted from, to see how often the shard is written.
    pressure_from: Bucket | None = None
    pressure_from_ms: int = 0


class ImageCache:
    """Bounded, and safe to share between threads.

    While the image says that a limit is not full, spending is right: time alone can not break it. Once the image says
    full, either the bucket is, or others have spent since. What turned out right when the image last said so is the
    best guess: one writer alone stays with "from full", one of many stays with "spend".
    """

    def __init__(self, size: int = IMAGES_MAX) -> None:
        self._seen: LRUCache[str, _Seen] = LRUCache(maxsize=size)
        # Only of buckets that were split; by the key of shard 0.
        self._counts: LRUCache[str, Counts] = LRUCache(maxsize=size)
        self._lock = Lock()

    def knows(self, first: Key) -> bool:
        return first.pk in self._seen or first.pk in self._counts

    def counts(self, first: Key) -> Counts:
        """The shards of a bucket, as far as known. Empty for one that was never seen split."""
        if not self._counts:
            return _UNSPLIT
        with self._lock:
            return self._counts.get(first.pk, _UNSPLIT)

    def learn(self, first: Key, shard: int, count: int) -> None:
        with self._lock:
            self._learn(first, shard, count)

    def image(self, key: Key) -> Bucket | None:
        with self._lock:
            seen = self._seen.get(key.pk)
        return None if seen is None else seen.image

    def guess(self, target: Target, demand: Mapping[str, int], now_ms: int) -> Guess:
        with self._lock:
            seen = self._seen.get(target.key.pk) or _Seen()
            full = _said_full(seen.image, target, demand, now_ms)
            forms = {
                name: seen.form_when_full.get(name, Form.SPEND_FROM_FULL) if name in full else Form.SPEND
                for name in demand
            }
            return Guess(forms, full, None if seen.image is None else seen.image.expires_at_s)

    def remember(self, image: Bucket, fitted: Mapping[str, Form] | None = None, now_ms: int | None = None) -> bool:
        """Takes in what a write returned, and which forms fitted where the guess was unsure.

        Given the time of the write, says whether the shard is written so often that it should be split.
        """
        with self._lock:
            seen = self._seen.get(image.key.pk)
            if seen is None:
                seen = self._seen[image.key.pk] = _Seen()
            if fitted:
                seen.form_when_full.update(fitted)
            _keep_newer(seen, image)
            if image.shard_count > 1 or self._counts:
                self._learn(first_shard(image.key, image.shard), image.shard, image.shard_count)
            return now_ms is not None and _is_hot(seen, image, now_ms)

    def _learn(self, first: Key, shard: int, count: int) -> None:
        counts = shards.learned(self._counts.get(first.pk, _UNSPLIT), shard, count)
        if shards.count_of(counts) > 1:
            self._counts[first.pk] = counts
        else:
            self._counts.pop(first.pk, None)


def _keep_newer(seen: _Seen, image: Bucket) -> None:
    """Answers to parallel requests arrive in any order. Generations have none: clocks differ."""
    old = seen.image
    if old is None or old.generation != image.generation or old.version <= image.version:
        seen.image = image


def _is_hot(seen: _Seen, image: Bucket, now_ms: int) -> bool:
    since = seen.pressure_from
    if since is not None and since.generation == image.generation:
        elapsed_ms = now_ms - seen.pressure_from_ms
        if 0 <= elapsed_ms < shards.PRESSURE_LEAST_MS:
            return False
        hot = elapsed_ms > 0 and shards.is_hot(image.version - since.version, elapsed_ms)
    else:
        hot = False
    seen.pressure_from, seen.pressure_from_ms = image, now_ms
    return hot


def _said_full(image: Bucket | None, target: Target, names: Collection[str], now_ms: int) -> Collection[str]:
    """The limits that are full by this image; all of them where there is none under these limits."""
    if image is None or image.limits_hash != target.limits_hash:
        return set(names)
    return {
        name for name in names if math.is_overflowed(target.parameters[name], image.limits[name].balance_milli, now_ms)
    }
