"""One write or read of a bucket at a time, with what this process learns from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sluice.core import bucket as math
from sluice.core import shards
from sluice.core.backoff import contended_wait_ms
from sluice.core.errors import Contended
from sluice.repository import keys, writes
from sluice.repository.items import Bucket, decode_bucket, shard_and_count
from sluice.repository.legacy import is_legacy
from sluice.repository.store import Applied, Outcome, Store
from sluice.repository.wire import Item
from sluice.services.claims import Claim, Terms, new_generation
from sluice.services.effects import Effects
from sluice.services.images import Guess, ImageCache
from sluice.services.legacy import BucketName, LegacyBuckets

_READ_ROUNDS: Final = 4
_PICTURE_ROUNDS: Final = 8


@dataclass(frozen=True, slots=True)
class Answer:
    """What one write came to. `image`: the bucket after it if admitted, else as it stood; None if there is none.

    `hot`: the shard is written so often that it should be split.
    """

    admitted: bool
    shard: int
    image: Bucket | None
    written_ms: int
    hot: bool = False


class BucketWriter:
    """Safe to share between threads."""

    def __init__(self, store: Store, images: ImageCache, legacy: LegacyBuckets, effects: Effects) -> None:
        self._store = store
        self._legacy = legacy
        self._images = images
        self._clock_ms = effects.clock_ms
        self._random_below = effects.random_below

    def speculate(self, terms: Terms, shard: int, count: int) -> Answer:
        """On a guess: no read, and in the usual case the only call."""
        now_ms = self._clock_ms()
        target = terms.target(shard, count)
        guess = self._images.guess(target, terms.demand, now_ms)
        return self._send_debit(terms.claim, terms.demand, target, shard, guess, now_ms)

    def debit(self, terms: Terms, demand: Mapping[str, int], image: Bucket, now_ms: int) -> Answer:
        """With the forms that fit this image."""
        target = terms.target(image.shard, image.shard_count)
        certain = Guess(fitting_forms(target, demand, image, now_ms), (), image.expires_at_s)
        return self._send_debit(terms.claim, demand, target, image.shard, certain, now_ms)

    def create(self, terms: Terms) -> Answer:
        """Shard 0 from nothing, full less what is asked. Other shards are only ever split off."""
        now_ms = self._clock_ms()
        moved = self.moved(terms)
        if moved is not None:
            self._images.remember(moved)
            return Answer(admitted=False, shard=0, image=moved, written_ms=now_ms)
        bucket = self.new_bucket(terms, now_ms)
        outcome = self._store.put(writes.create(bucket), repeatable=True)
        if isinstance(outcome, Applied):
            self._images.remember(bucket)
            return Answer(admitted=True, shard=0, image=bucket, written_ms=now_ms)
        image = None if outcome.item is None else self._current(outcome.item, terms.claim)
        if image is not None:
            self._images.remember(image)
        # A first try may have been applied although its answer was lost: then this is our own bucket.
        ours = outcome.repeated and image is not None and image.generation == bucket.generation
        return Answer(admitted=ours, shard=0, image=image, written_ms=now_ms)

    def new_bucket(self, terms: Terms, now_ms: int) -> Bucket:
        claim, target = terms.claim, terms.target(0, 1)
        return Bucket(
            key=target.key,
            namespace=claim.namespace,
            entity=claim.entity,
            resource=claim.resource,
            call_fingerprint=claim.call_fingerprint,
            shard=0,
            shard_count=1,
            version=1,
            generation=new_generation(now_ms, self._random_below),
            limits_hash=target.limits_hash,
            cascade=claim.parent is not None,
            parent=claim.parent,
            expires_at_s=writes.expires_at_s(target.fill_time_ms, now_ms) if target.expires else None,
            created_at_ms=now_ms,
            limits=writes.full_less(target, terms.demand, now_ms),
            retired_consumed_milli={},
        )

    def rebase(self, terms: Terms, image: Bucket) -> Answer:
        now_ms = self._clock_ms()
        target = terms.target(image.shard, image.shard_count)
        rebased = self._taken_in(self._store.update(writes.rebase(image, target, now_ms), repeatable=True))
        return Answer(admitted=False, shard=image.shard, image=rebased, written_ms=now_ms)

    def give_back(self, key: keys.Key, generation: int, amounts_milli: Mapping[str, int]) -> None:
        """To this incarnation only. A limit that is gone is left out, and the rest sent again."""
        while amounts_milli:
            outcome = self._store.update(writes.give_back(key, generation, amounts_milli), repeatable=False)
            found = self._taken_in(outcome)
            if isinstance(outcome, Applied) or found is None or found.generation != generation:
                return
            amounts_milli = {name: amount for name, amount in amounts_milli.items() if name in found.limits}

    def read_all(self, claim: Claim) -> tuple[list[Bucket], int]:
        """All shards of a claimed bucket as of one moment, and when that was. None where there is no bucket.

        Of a bucket that lost shards, those that are left.
        """
        for _ in range(_READ_ROUNDS):
            items, read_ms = self._read_items(claim.first)
            if not any(is_legacy(item) for item in items):
                found = [decode_bucket(item) for item in items]
                for image in sorted(found, key=lambda image: image.shard):
                    self._images.remember(image)
                return found, read_ms
            self._legacy.take_over(claim.namespace, claim.entity, claim.resource)
        raise Contended(contended_wait_ms(self._random_below))

    def look_at(self, first: keys.Key) -> tuple[list[Bucket], int]:
        """As `read_all`, without taking anything over: an item of an old layout is not seen."""
        items, read_ms = self._read_items(first)
        return [decode_bucket(item) for item in items if not is_legacy(item)], read_ms

    def _read_items(self, first: keys.Key) -> tuple[list[Item], int]:
        count = shards.count_of(self._images.counts(first))
        before: shards.Counts | None = None
        for _ in range(_PICTURE_ROUNDS):
            now_ms = self._clock_ms()
            wanted = [keys.bucket_shard(first, shard) for shard in range(count)]
            found = self._store.batch_get(wanted, consistent=True)
            counts = dict(shard_and_count(item) for item in found if not is_legacy(item))
            # The same picture twice is hardly a moment in between: shards are missing. Who goes by that makes sure.
            if len(counts) < len(found) or not found or shards.is_complete(counts) or counts == before:
                return found, now_ms
            # A split or a merge went on between the reads: half of each would show tokens twice.
            asked, count = count, shards.count_of(counts)
            before = counts if asked >= count else None
        raise Contended(contended_wait_ms(self._random_below))

    def _taken_in(self, outcome: Outcome) -> Bucket | None:
        """The image that a write returned. What was never ours, in an old layout, counts as gone."""
        if outcome.item is None or is_legacy(outcome.item):
            return None
        image = decode_bucket(outcome.item)
        self._images.remember(image)
        return image

    def _current(self, item: Item, claim: Claim) -> Bucket | None:
        """The image. An item of an old layout is taken over first."""
        if not is_legacy(item):
            return decode_bucket(item)
        return self._legacy.take_over(claim.namespace, claim.entity, claim.resource)

    def moved(self, terms: Terms) -> Bucket | None:
        """While the namespace is in migration, a bucket that is missing may have its tokens in an old item."""
        claim = terms.claim
        if claim.legacy_prefix is None or claim.call_fingerprint is not None:
            return None
        name = BucketName(claim.namespace, claim.entity, claim.resource, claim.legacy_prefix)
        return self._legacy.move(name).bucket

    def _send_debit(
        self,
        claim: Claim,
        demand: Mapping[str, int],
        target: writes.Target,
        shard: int,
        guess: Guess,
        now_ms: int,
    ) -> Answer:
        request = writes.debit(target, demand, guess.forms, guess.expires_at_s, now_ms)
        outcome = self._store.update(request, repeatable=False)
        admitted = isinstance(outcome, Applied)
        image = None if outcome.item is None else self._current(outcome.item, claim)
        if image is None:
            return Answer(admitted=admitted, shard=shard, image=None, written_ms=now_ms)
        if image.limits_hash == target.limits_hash:
            forms = guess.forms if admitted else fitting_forms(target, demand, image, now_ms)
            hot = self._images.remember(image, {name: forms[name] for name in guess.unsure}, now_ms)
        else:
            hot = self._images.remember(image, None, now_ms)
        return Answer(admitted, shard, image, now_ms, hot or outcome.hot_key)


def fitting_forms(target: writes.Target, demand: Mapping[str, int], image: Bucket, now_ms: int) -> dict[str, math.Form]:
    return {
        name: math.fitting_form(target.parameters[name], image.limits[name].balance_milli, now_ms) for name in demand
    }
