"""Taking from a bucket of several shards when the one that was asked can not give it.

All shards are read, consistently and as of one moment. If one covers the demand it is taken there. If only all
together do, and none alone soon would, each limit is taken from its own fullest shards in one transaction. Else the
answer is the exact moment at which one of the two comes true.

A bucket that lost shards is cleared first and made anew: by what is left of it nobody can be given a time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sluice.core.admission import split_refusal
from sluice.core.backoff import contended_wait_ms
from sluice.core.errors import Contended
from sluice.core.shards import TakeFrom, View, Wait, decide
from sluice.repository import resharding, writes
from sluice.repository.items import Bucket, decode_bucket
from sluice.repository.legacy import is_legacy
from sluice.repository.requests import TransactWrite
from sluice.repository.store import Committed, ConditionFailed, Store
from sluice.services.bucket_writes import BucketWriter, fitting_forms
from sluice.services.claims import Part, Taken, Terms, spent
from sluice.services.denials import DenyCache
from sluice.services.effects import Effects
from sluice.services.sharding import Sharding

GATHER_ROUNDS: Final = 4

TermsAgain = Callable[[Terms], Terms]
"""The same claim under the limits as they are now."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The shards of a bucket, each as of when it was read or last written."""

    images: Mapping[int, Bucket]
    judged_ms: Mapping[int, int]

    def views(self, terms: Terms) -> list[View]:
        return [terms.view(image, self.judged_ms[shard]) for shard, image in sorted(self.images.items())]

    def with_image(self, image: Bucket, judged_ms: int) -> "Seen":
        return Seen({**self.images, image.shard: image}, {**self.judged_ms, image.shard: judged_ms})


class Gatherer:
    """Safe to share between threads."""

    def __init__(
        self, store: Store, writer: BucketWriter, sharding: Sharding, denials: DenyCache, effects: Effects
    ) -> None:
        self._store = store
        self._writer = writer
        self._sharding = sharding
        self._denials = denials
        self._clock_ms = effects.clock_ms
        self._random_below = effects.random_below
        self._new_token = effects.new_token

    def take(self, terms: Terms, terms_again: TermsAgain) -> Taken:
        """Admits, or raises: a refusal is a LimitExceeded with its retry time."""
        seen: Seen | None = None
        for _ in range(GATHER_ROUNDS):
            if seen is None:
                terms, seen = self.look(terms, terms_again)
            if not terms.demand:
                return Taken(terms, (), self._clock_ms())
            if not seen.images:
                answer = self._writer.create(terms)
                if answer.admitted and answer.image is not None:
                    return Taken(terms, (Part(answer.image, terms.demand),), answer.written_ms)
                seen = None
                continue
            plan = self.plan(terms, seen)
            taken, seen = self._take_parts(terms, plan, seen)
            if taken is not None:
                self._denials.forget(terms.claim.first)
                return taken
        raise Contended(contended_wait_ms(self._random_below))

    def look(self, terms: Terms, terms_again: TermsAgain) -> tuple[Terms, Seen]:
        """All shards, or none, under the limits that hold now: those that are behind are rebased first."""
        for _ in range(GATHER_ROUNDS):
            images, read_ms = self._writer.read_all(terms.claim)
            if resharding.missing_shards(images):
                self._sharding.clear(terms.claim.first)
                continue
            behind = [image for image in images if not terms.agrees_with(image)]
            if behind:
                terms = terms_again(terms)
                behind = [image for image in images if not terms.agrees_with(image)]
            if not behind or not terms.demand:
                return terms, Seen({image.shard: image for image in images}, {image.shard: read_ms for image in images})
            for image in behind:
                self._writer.rebase(terms, image)
        raise Contended(contended_wait_ms(self._random_below))

    def plan(self, terms: Terms, seen: Seen) -> TakeFrom:
        """What to take from where; raises the refusal if it is not there."""
        now_ms = self._clock_ms()
        views = seen.views(terms)
        decided = decide(views, terms.demand, now_ms)
        if isinstance(decided, Wait):
            self._denials.remember(terms.claim.first, list(seen.images.values()))
            raise split_refusal(terms.asked, views, decided, now_ms)
        return decided

    def _take_parts(self, terms: Terms, plan: TakeFrom, seen: Seen) -> tuple[Taken | None, Seen | None]:
        """What was taken, or what was found instead; neither where the shards must be read again."""
        now_ms = self._clock_ms()
        if len(plan.parts) == 1:
            ((shard, demand),) = plan.parts
            answer = self._writer.debit(terms, demand, seen.images[shard], now_ms)
            if answer.image is None or answer.image.limits_hash != seen.images[shard].limits_hash:
                return None, None
            if answer.admitted:
                if answer.hot:
                    self._sharding.relieve(answer.image)
                return Taken(terms, (Part(answer.image, demand),), now_ms), None
            return None, seen.with_image(answer.image, now_ms)
        parts = [Part(seen.images[shard], demand) for shard, demand in plan.parts]
        outcome = self._store.transact([debit_write(terms, part, now_ms) for part in parts], self._new_token())
        if isinstance(outcome, Committed):
            taken = [Part(spent(part.image, part.demand, now_ms), part.demand) for part in parts]
            return Taken(terms, taken, now_ms), None
        return None, _found_instead(seen, parts, outcome.failures, now_ms)


def debit_write(terms: Terms, part: Part, now_ms: int) -> TransactWrite:
    """One part of a transaction. It has to know what it takes from, because no image comes back."""
    image = part.image
    target = terms.target(image.shard, image.shard_count)
    forms = fitting_forms(target, part.demand, image, now_ms)
    return {"Update": writes.debit(target, part.demand, forms, image.expires_at_s, now_ms, image.generation)}


def _found_instead(
    seen: Seen, parts: Sequence[Part], failures: Sequence[ConditionFailed | None], now_ms: int
) -> Seen | None:
    for part, failure in zip(parts, failures, strict=True):
        if failure is None:
            continue
        if failure.item is None or is_legacy(failure.item):
            return None
        image = decode_bucket(failure.item)
        if image.limits_hash != part.image.limits_hash or image.generation != part.image.generation:
            return None
        seen = seen.with_image(image, now_ms)
    return seen
