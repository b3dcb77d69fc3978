"""Splits shards that a batch shows to be written too often, and carries a split to the other shards of the bucket.

How often is told by the versions and the times of the records. Those times are whole seconds, so two of them are up to
a second further apart than they seem; they are taken as that, and from LEAST_MS on: a shard that is written as often as
a partition takes is seen then, and one below HOT_WRITES_PER_S never is.

A record may be old. So it only says where to look: what is split is decided from the shards as they are.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from cachetools import LRUCache

from sluice.core import shards
from sluice.core.errors import Contended, NotFound, Unavailable
from sluice.core.shards import SHARDS_MAX
from sluice.core.snapshots import Image, Observation, ShardName
from sluice.repository import keys
from sluice.repository.items import Bucket, decode_bucket
from sluice.repository.legacy import is_legacy
from sluice.repository.resharding import missing_shards
from sluice.repository.store import Store
from sluice.services.bucket_writes import BucketWriter
from sluice.services.counting import Tenants
from sluice.services.effects import Effects
from sluice.services.sharding import Sharding

LEAST_MS: Final = 4_000
LONGEST_MS: Final = 20_000
_TIMES_ARE_WITHIN_MS: Final = 1_000
# Each doubles the count of every shard that lags behind.
_CARRY_ROUNDS: Final = 4
_CACHE_SIZE: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Since:
    """What the writes of a shard are counted from."""

    generation: int
    shard_count: int
    version: int
    at_ms: int

    def is_of(self, image: Image | Bucket) -> bool:
        return (self.generation, self.shard_count) == (image.generation, image.shard_count)

    def is_hot(self, version: int, at_ms: int) -> bool:
        elapsed_ms = at_ms - self.at_ms
        return elapsed_ms >= LEAST_MS and shards.is_hot(version - self.version, elapsed_ms + _TIMES_ARE_WITHIN_MS)


class Growth:
    """For one batch at a time, as a function gets them."""

    def __init__(
        self, store: Store, writer: BucketWriter, sharding: Sharding, tenants: Tenants, effects: Effects
    ) -> None:
        self._store = store
        self._writer = writer
        self._sharding = sharding
        self._tenants = tenants
        self._effects = effects
        self._since: LRUCache[ShardName, _Since] = LRUCache(maxsize=_CACHE_SIZE)
        # Buckets that are not evenly split yet, by the key of shard 0.
        self._uneven: LRUCache[keys.Key, bool] = LRUCache(maxsize=_CACHE_SIZE)

    def grow(self, observations: Sequence[Observation]) -> list[Exception]:
        """What should not have happened. No record depends on a split: the next one that shows the need tries again."""
        hot = self._hot(observations)
        uneven = self._to_carry(observations)
        unexpected: list[Exception] = []
        for name in hot:
            first = _first(name)
            if self._tried(name.namespace, partial(self._relieve, name), unexpected):
                uneven[first] = name.namespace
        for first, namespace in uneven.items():
            self._uneven[first] = True
            if self._tried(namespace, partial(self._carry, first), unexpected):
                self._uneven.pop(first, None)
        return unexpected

    def _tried(self, namespace: str, work: Callable[[], bool], unexpected: list[Exception]) -> bool:
        try:
            self._tenants.require_active(namespace)
            return work()
        except (Contended, NotFound, Unavailable):
            return False
        except Exception as error:  # noqa: BLE001 - the batch is counted; whatever a split does, it must not come again
            unexpected.append(error)
            return False

    def _hot(self, observations: Iterable[Observation]) -> list[ShardName]:
        """The shards that were written too often, by what this process saw of them."""
        ends: dict[ShardName, tuple[Image, int]] = {}
        for observation in observations:
            image = observation.new
            if image is None:
                continue
            since = self._since.get(observation.shard)
            if since is None or not since.is_of(image):
                self._begin(observation.shard, image, observation.at_ms)
            ends[observation.shard] = (image, observation.at_ms)
        return [name for name, (image, at_ms) in ends.items() if self._is_hot(name, image, at_ms)]

    def _is_hot(self, name: ShardName, image: Image, at_ms: int) -> bool:
        since = self._since[name]
        if image.shard_count >= SHARDS_MAX:
            return False
        hot = since.is_hot(image.version, at_ms)
        if not hot and at_ms - since.at_ms >= LONGEST_MS:
            self._begin(name, image, at_ms)
        return hot

    def _begin(self, name: ShardName, image: Image | Bucket, at_ms: int) -> None:
        self._since[name] = _Since(image.generation, image.shard_count, image.version, at_ms)

    def _to_carry(self, observations: Iterable[Observation]) -> dict[keys.Key, str]:
        """The buckets of which a shard was split, and those that were left uneven before; each with its namespace."""
        found: dict[keys.Key, str] = {}
        for observation in observations:
            old, new, name = observation.old, observation.new, observation.shard
            was_split = old is not None and new is not None and old.shard_count < new.shard_count
            if was_split or (self._uneven and _first(name) in self._uneven):
                found[_first(name)] = name.namespace
        return found

    def _relieve(self, name: ShardName) -> bool:
        """Whether we split the shard: only if it is still as the records showed it, and still written as often."""
        item = self._store.get(_key(name), consistent=True)
        if item is None or is_legacy(item):
            return False
        image, now_ms = decode_bucket(item), self._effects.clock_ms()
        since = self._since[name]
        if not since.is_of(image):
            self._begin(name, image, now_ms)
            return False
        if not since.is_hot(image.version, now_ms):
            return False
        return self._sharding.split(image)

    def _carry(self, first: keys.Key) -> bool:
        """Whether all shards have the same count. One that was merged since has, whatever an old record says.

        The shards are read from shard 0 on, and each split asks that its shard is as read.
        """
        for _ in range(_CARRY_ROUNDS):
            images, _read_ms = self._writer.look_at(first)
            if not images or missing_shards(images):
                return False
            most = max(image.shard_count for image in images)
            behind = [image for image in images if image.shard_count < most]
            if not behind:
                return True
            splits = sum(self._sharding.split(image) for image in behind)
            if splits < len(behind):
                return False
        return False


def _key(name: ShardName) -> keys.Key:
    return keys.bucket(name.namespace, name.entity, name.resource, name.shard, name.call_fingerprint)


def _first(name: ShardName) -> keys.Key:
    return keys.bucket(name.namespace, name.entity, name.resource, 0, name.call_fingerprint)
