"""Splitting a bucket that is written too often, merging one that is quiet again, clearing one that lost shards."""

from typing import Final

from sluice.core import bucket as math
from sluice.core.errors import Contended, Unavailable
from sluice.core.limits import Limit, fingerprint
from sluice.core.shards import SHARDS_MAX
from sluice.core.signals import Signal
from sluice.repository import keys, resharding, writes
from sluice.repository.items import Bucket, decode_bucket
from sluice.repository.legacy import is_legacy
from sluice.repository.store import Committed, Store
from sluice.services.bucket_writes import BucketWriter
from sluice.services.claims import new_generation
from sluice.services.effects import Effects
from sluice.services.images import ImageCache

_SECOND_MS: Final = 1000


class Sharding:
    """Safe to share between threads."""

    def __init__(self, store: Store, writer: BucketWriter, images: ImageCache, effects: Effects) -> None:
        self._store = store
        self._writer = writer
        self._images = images
        self._effects = effects

    def relieve(self, image: Bucket) -> None:
        """Splits a hot shard if that goes at once. No request depends on it: the next one to see it tries again."""
        try:
            self.split(image)
        except (Contended, Unavailable):
            return

    def split(self, image: Bucket) -> bool:
        """Whether this shard was split by us. Somebody else may have been first, or limits have changed since."""
        if image.shard_count >= SHARDS_MAX:
            return False
        now_ms = self._effects.clock_ms()
        generation = new_generation(now_ms, self._effects.random_below)
        outcome = self._store.transact(resharding.split(image, generation, now_ms), self._effects.new_token())
        if not isinstance(outcome, Committed):
            return False
        doubled = 2 * image.shard_count
        first = keys.first_shard(image.key, image.shard)
        for shard in (image.shard, image.shard + image.shard_count):
            self._images.learn(first, shard, doubled)
        self._effects.meter.count(Signal.SHARDS_SPLIT)
        return True

    def merge(self, first_image: Bucket) -> bool:
        """Whether the bucket of this shard 0 was merged: only if all shards are full, and under the same limits.

        One that lost shards is cleared instead, full or not.
        """
        images, now_ms = self._writer.look_at(first_image.key)
        if resharding.missing_shards(images):
            return self.clear(first_image.key)
        first = next((image for image in images if image.shard == 0), None)
        if first is None or first.shard_count == 1 or not all(_is_full(image, now_ms) for image in images):
            return False
        if any(image.fingerprint != images[0].fingerprint for image in images):
            return False
        whole = resharding.whole_parameters(first)
        expires = _expires(first, whole)
        fill_time_ms = math.fill_time_ms(whole.values())
        expires_at_s = writes.expires_at_s(fill_time_ms, now_ms) if expires else None
        outcome = self._store.transact(resharding.merge(images, expires_at_s, now_ms), self._effects.new_token())
        if not isinstance(outcome, Committed):
            return False
        self._images.learn(first_image.key, 0, 1)
        self._effects.meter.count(Signal.SHARDS_MERGED)
        return True

    def clear(self, first: keys.Key) -> bool:
        """Whether we took away what is left of a bucket that lost shards. Whoever asks for it next makes it anew.

        Not if it only seemed so, by shards that were read while they were split or merged. Every shard that could be
        there is looked for: one that stayed would be in the way of a split for ever.
        """
        every = [keys.bucket_shard(first, shard) for shard in range(SHARDS_MAX)]
        found = self._store.batch_get(every, consistent=True)
        images = [decode_bucket(item) for item in found if not is_legacy(item)]
        if not resharding.missing_shards(images):
            return False
        outcome = self._store.transact(resharding.remove(images), self._effects.new_token())
        if not isinstance(outcome, Committed):
            return False
        self._images.learn(first, 0, 1)
        return True


def _is_full(image: Bucket, now_ms: int) -> bool:
    return all(
        math.level_milli(limit.parameters, limit.balance_milli, now_ms) == limit.parameters.burst_milli
        for limit in image.limits.values()
    )


def _expires(image: Bucket, whole: dict[str, math.Parameters]) -> bool:
    """The fingerprint was made with this very bit, and the limits are all there to make it again."""
    limits = {
        name: Limit(
            capacity=parameters.capacity_milli // math.MILLI,
            burst=parameters.burst_milli // math.MILLI,
            refill_amount=parameters.refill_amount_milli // math.MILLI,
            refill_period_seconds=parameters.refill_period_ms // _SECOND_MS,
        )
        for name, parameters in whole.items()
    }
    return fingerprint(limits, expires=True) == image.fingerprint
