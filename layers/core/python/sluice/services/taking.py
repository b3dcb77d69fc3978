"""Taking from one bucket, and giving back.

The warm path is one conditional write that needs no read: the guard is a range of the balance that contains the refill,
so only the limits have to be known, and those are cached. When it fails, the image that the failure returned decides:

- no item: create it, full less the demand; a shard above 0 is never created, its donor stands for it;
- other limits: read them again past the cache and, if they did change, rebase the bucket to them;
- short of the demand at the time of the write: refuse, with the exact time; asking again within a second costs no call;
- short, or asked for more than its share, and one of several shards: look at all of them (`services/gathering.py`);
- else the guess of the form was wrong, or another writer crossed an edge: write again with the form that fits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sluice.core import shards
from sluice.core.admission import check_names, level_of, refusal, split_refusal
from sluice.core.backoff import contended_wait_ms
from sluice.core.errors import Contended, LimitExceeded, Unavailable
from sluice.core.levels import Level
from sluice.core.signals import Signal
from sluice.repository import keys
from sluice.repository.items import Bucket
from sluice.repository.retries import Throttled
from sluice.repository.store import Store
from sluice.services.bucket_writes import Answer, BucketWriter
from sluice.services.claims import Part, Taken, Terms, terms_of
from sluice.services.configuration import Configuration
from sluice.services.denials import DenyCache
from sluice.services.effects import Effects
from sluice.services.gathering import Gatherer
from sluice.services.images import ImageCache
from sluice.services.legacy import LegacyBuckets
from sluice.services.sharding import Sharding

RETRY_ROUNDS: Final = 4


@dataclass(frozen=True)
class Memory:
    """What a process keeps of the buckets it saw."""

    images: ImageCache
    denials: DenyCache


class Taker:
    """Safe to share between threads."""

    def __init__(
        self,
        writer: BucketWriter,
        gatherer: Gatherer,
        sharding: Sharding,
        configuration: Configuration,
        memory: Memory,
        effects: Effects,
    ) -> None:
        self._writer = writer
        self._gatherer = gatherer
        self._sharding = sharding
        self._configuration = configuration
        self._images = memory.images
        self._denials = memory.denials
        self._clock_ms = effects.clock_ms
        self._random_below = effects.random_below
        self._meter = effects.meter

    def knows(self, first: keys.Key) -> bool:
        return self._images.knows(first)

    def remember(self, image: Bucket) -> None:
        self._images.remember(image)

    def image_of(self, key: keys.Key) -> Bucket | None:
        """As this process last saw it, which may be long ago."""
        return self._images.image(key)

    def standing_refusal(self, terms: Terms) -> LimitExceeded | None:
        """Without a call, while the last refusal stands. Its time is then a lower bound."""
        now_ms = self._clock_ms()
        images = self._denials.images(terms.claim.first, terms.limits.fingerprint)
        if not images:
            return None
        if images[0].shard_count == 1:
            return refusal(terms.asked, images[0].balances_milli, now_ms, now_ms)
        views = [terms.view(image, now_ms) for image in images]
        decided = shards.decide(views, terms.demand, now_ms)
        return split_refusal(terms.asked, views, decided, now_ms) if isinstance(decided, shards.Wait) else None

    def forget_refusal(self, first: keys.Key) -> None:
        """After something was given back: a refusal from before need not stand."""
        self._denials.forget(first)

    def take(self, terms: Terms, *, known_missing: bool) -> Taken:
        """Admits, or raises: a refusal is a LimitExceeded with its retry time."""
        first = terms.claim.first
        counts = self._images.counts(first)
        shard, count = (0, 1) if not counts else self._choose(counts)
        try:
            return self._take_at(terms, shard, count, known_missing=known_missing and not counts)
        except Throttled as throttled:
            image = self._images.image(keys.bucket_shard(first, shard))
            if throttled.hot_key and image is not None:
                self._sharding.relieve(image)
            raise

    def give_back(self, taken: Taken) -> None:
        """Before a refused caller is answered. A credit that is lost stays lost: the safe side."""
        for part in taken.parts:
            amounts_milli = {name: amount for name, amount in part.demand.items() if amount}
            try:
                self._writer.give_back(part.image.key, part.image.generation, amounts_milli)
            except (Contended, Unavailable):
                self._meter.count(Signal.GIVE_BACKS_LOST)
        self._denials.forget(taken.terms.claim.first)

    def levels(self, taken: Taken) -> tuple[Level, ...]:
        """Where the bucket stands after the write. Of a split one only some shards are seen: the rest is estimated."""
        terms = taken.terms
        # A create that was recognised late may find its bucket under newer limits already.
        if not taken.parts or not terms.agrees_with(taken.parts[0].image):
            return ()
        now_ms = taken.written_ms
        views = [terms.view(image, now_ms) for image in self._seen_shards(taken)]
        levels_milli = {}
        for name, limit in terms.limits.parameters.items():
            seen_milli = sum(view.level_milli(name, now_ms) for view in views)
            of_milli = sum(view.parameters[name].burst_milli for view in views)
            levels_milli[name] = seen_milli * limit.burst_milli // of_milli
        return (level_of(terms.claim.entity, terms.limits, levels_milli, own_only=not terms.claim.asks),)

    def terms_again(self, terms: Terms) -> Terms:
        """Under the limits as they are now: the bucket, or this process, is behind.

        Never needed for per-call limits, whose fingerprint is in the key of their bucket.
        """
        claim = terms.claim
        limits = self._configuration.reread(claim.namespace, claim.entity, claim.resource)
        if claim.alone:
            check_names(claim.entity, claim.resource, claim.consume, [claim.member(limits)])
        return terms_of(claim, limits)

    def _choose(self, counts: shards.Counts) -> tuple[int, int]:
        count = shards.count_of(counts)
        shard = shards.located(self._random_below(count), counts)
        return shard, counts.get(shard, count)

    def _take_at(self, terms: Terms, shard: int, count: int, *, known_missing: bool) -> Taken:
        if count > 1 and not terms.fits(shard, count):
            return self._gatherer.take(terms, self.terms_again)
        answer = self._writer.create(terms) if known_missing else self._writer.speculate(terms, shard, count)
        hot = answer.hot
        missed = 0
        rounds = 0
        while not answer.admitted and rounds < RETRY_ROUNDS:
            rounds += answer.image is not None or answer.shard == 0
            if answer.image is not None and not terms.agrees_with(answer.image):
                terms = self.terms_again(terms)
                if not terms.demand:
                    return Taken(terms, (), answer.written_ms)
            missed = answer.shard if answer.image is None else missed
            if self._must_gather(terms, answer, missed):
                return self._gatherer.take(terms, self.terms_again)
            answer = self._write_again(terms, answer)
            hot = hot or answer.hot
        if not answer.admitted or answer.image is None:
            self._refuse_if_short(terms, answer, self._clock_ms())
            raise Contended(contended_wait_ms(self._random_below))
        # An older refusal would quote levels that this process knows to be past.
        self._denials.forget(terms.claim.first)
        if hot:
            self._sharding.relieve(answer.image)
        return Taken(terms, (Part(answer.image, terms.demand),), answer.written_ms)

    def _write_again(self, terms: Terms, answer: Answer) -> Answer:
        """One more write, the one that the image of the last one calls for. Refuses if the image is short."""
        image = answer.image
        if image is None:
            if answer.shard == 0:
                return self._writer.create(terms)
            above = shards.donor(answer.shard)
            return self._writer.speculate(terms, above, answer.shard - above)
        if not terms.agrees_with(image):
            return self._writer.rebase(terms, image)
        now_ms = self._clock_ms()
        self._refuse_if_short(terms, answer, now_ms)
        return self._writer.debit(terms, terms.demand, image, now_ms)

    def _must_gather(self, terms: Terms, answer: Answer, missed: int) -> bool:
        """Whether one shard of several can not decide it alone. `missed`: the last one that was not there."""
        image = answer.image
        if image is None:
            above = shards.donor(answer.shard) if answer.shard else 0
            return answer.shard > 0 and not terms.fits(above, answer.shard - above)
        if image.shard_count == 1 or not terms.agrees_with(image):
            return False
        if missed and image.shard == shards.donor(missed) and image.shard_count > missed - image.shard:
            # It should be there.
            return True
        return not shards.covers(terms.view(image, answer.written_ms), terms.demand)

    def _refuse_if_short(self, terms: Terms, answer: Answer, now_ms: int) -> None:
        image = answer.image
        if image is None or image.shard_count > 1 or not terms.agrees_with(image):
            return
        refused = refusal(terms.asked, image.balances_milli, answer.written_ms, now_ms)
        if refused is not None:
            self._denials.remember(terms.claim.first, [image])
            raise refused

    def _seen_shards(self, taken: Taken) -> list[Bucket]:
        seen = {part.image.shard: part.image for part in taken.parts}
        first = taken.terms.claim.first
        for shard in self._images.counts(first):
            image = self._images.image(keys.bucket_shard(first, shard))
            if shard not in seen and image is not None and taken.terms.agrees_with(image):
                seen[shard] = image
        return list(seen.values())


@dataclass(frozen=True, slots=True)
class Buckets:
    """All that reads and writes buckets in one process."""

    memory: Memory
    writer: BucketWriter
    gatherer: Gatherer
    sharding: Sharding
    legacy: LegacyBuckets
    taker: Taker


def build_buckets(store: Store, configuration: Configuration, effects: Effects, timer_ms: Callable[[], int]) -> Buckets:
    memory = Memory(ImageCache(), DenyCache(timer_ms))
    legacy = LegacyBuckets(store, effects, timer_ms)
    writer = BucketWriter(store, memory.images, legacy, effects)
    sharding = Sharding(store, writer, memory.images, effects)
    gatherer = Gatherer(store, writer, sharding, memory.denials, effects)
    taker = Taker(writer, gatherer, sharding, configuration, memory, effects)
    return Buckets(memory, writer, gatherer, sharding, legacy, taker)
