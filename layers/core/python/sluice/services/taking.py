"""Taking from one bucket, and giving back.

The warm path is one conditional write that needs no read: the guard is a range of the balance that contains the refill,
so only the limits have to be known, and those are cached. When it fails, the image that the failure returned decides:

- no item: create it, full less the demand;
- other limits: read them again past the cache and, if they did change, rebase the bucket to them;
- short of the demand at the time of the write: refuse, with the exact time; asking again within a second costs no call;
- else the guess of the form was wrong, or another writer crossed an edge: write again with the form that fits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sluice.core import bucket as math
from sluice.core.admission import Member, check_names, demand_milli, level_of, refusal
from sluice.core.backoff import RandomBelow, contended_wait_ms
from sluice.core.errors import Contended, LimitExceeded, Unavailable
from sluice.core.levels import Level
from sluice.core.limits import LimitSet
from sluice.core.signals import Meter, Signal
from sluice.repository import keys, writes
from sluice.repository.items import Bucket, decode_bucket, limits_hash
from sluice.repository.store import Applied, Outcome, Store
from sluice.services.configuration import Configuration
from sluice.services.denials import DenyCache
from sluice.services.images import Guess, ImageCache

RETRY_ROUNDS: Final = 4
SHARD: Final = 0
_SHARD_COUNT: Final = 1
_GENERATION_SPREAD: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Claim:
    """What is asked of one bucket, before its limits are looked at. `alone`: no other member could know a name."""

    namespace: str
    entity: str
    resource: str
    consume: Mapping[str, int]
    asks: bool
    parent: str | None
    alone: bool
    key: keys.Key
    call_fingerprint: str | None = None

    def member(self, limits: LimitSet) -> Member:
        return Member(self.entity, limits, self.asks)


@dataclass(frozen=True, slots=True)
class Terms:
    """A claim under the limits that hold for it now."""

    claim: Claim
    limits: LimitSet
    demand: Mapping[str, int]
    target: writes.Target


@dataclass(frozen=True, slots=True)
class Taken:
    """A claim that was admitted. Without an image nothing was taken."""

    terms: Terms
    image: Bucket | None
    written_ms: int

    @property
    def levels(self) -> tuple[Level, ...]:
        # A create that was recognised late may find its bucket under newer limits already.
        if self.image is None or self.image.fingerprint != self.terms.limits.fingerprint:
            return ()
        limits = self.terms.limits
        return (level_of(self.terms.claim.entity, limits, self.image.balances_milli, self.written_ms),)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one write came to. `image`: the bucket after it if admitted, else as it stood; None if there is none."""

    admitted: bool
    image: Bucket | None
    written_ms: int


def terms_of(claim: Claim, limits: LimitSet) -> Terms:
    return Terms(
        claim=claim,
        limits=limits,
        demand=demand_milli(claim.resource, claim.consume, claim.member(limits)),
        target=writes.Target(
            key=claim.key,
            limits_hash=limits_hash(limits.fingerprint, _SHARD_COUNT),
            parameters=limits.parameters,
            fill_time_ms=limits.fill_time_ms,
            expires=limits.expires,
        ),
    )


class Taker:
    """Safe to share between threads."""

    def __init__(
        self,
        store: Store,
        configuration: Configuration,
        images: ImageCache,
        denials: DenyCache,
        clock_ms: Callable[[], int],
        random_below: RandomBelow,
        meter: Meter,
    ) -> None:
        self._store = store
        self._configuration = configuration
        self._images = images
        self._denials = denials
        self._clock_ms = clock_ms
        self._random_below = random_below
        self._meter = meter

    def knows(self, key: keys.Key) -> bool:
        return self._images.knows(key)

    def remember(self, image: Bucket | None) -> None:
        if image is not None:
            self._images.remember(image)

    def standing_refusal(self, terms: Terms) -> LimitExceeded | None:
        """Without a call, while the last refusal stands. Its time is then a lower bound."""
        now_ms = self._clock_ms()
        image = self._denials.image(terms.target.key, terms.limits.fingerprint, now_ms)
        return None if image is None else _refusal(terms, image, now_ms, now_ms)

    def take(self, terms: Terms, *, known_missing: bool) -> Taken:
        """Admits, or raises: a refusal is a LimitExceeded with its retry time."""
        answer = self._create(terms) if known_missing else self._speculate(terms)
        for _ in range(RETRY_ROUNDS):
            if answer.admitted:
                break
            if not _agree(terms, answer):
                terms = self._terms_again(terms)
                if not terms.demand:
                    return Taken(terms, None, answer.written_ms)
            answer = self._write_again(terms, answer)
        if answer.admitted:
            # An older refusal would quote levels that this process knows to be past.
            self._denials.forget(terms.target.key)
            return Taken(terms, answer.image, answer.written_ms)
        self._refuse_if_short(terms, answer, self._clock_ms())
        raise Contended(contended_wait_ms(self._random_below))

    def give_back(self, taken: Taken) -> None:
        """Before a refused caller is answered. A credit that is lost stays lost: the safe side."""
        image = taken.image
        if image is None:
            return
        amounts_milli = {name: amount for name, amount in taken.terms.demand.items() if amount}
        try:
            while amounts_milli:
                request = writes.give_back(image.key, image.generation, amounts_milli)
                outcome = self._store.update(request, repeatable=False)
                found = _image(outcome)
                self.remember(found)
                self._denials.forget(image.key)
                if isinstance(outcome, Applied) or found is None or found.generation != image.generation:
                    return
                # A limit that is gone is left out, and the rest sent again.
                amounts_milli = {name: amount for name, amount in amounts_milli.items() if name in found.limits}
        except (Contended, Unavailable):
            self._meter.count(Signal.GIVE_BACKS_LOST)

    def _terms_again(self, terms: Terms) -> Terms:
        """Under the limits as they are now: the bucket, or this process, is behind.

        Never needed for per-call limits, whose fingerprint is in the key of their bucket.
        """
        claim = terms.claim
        limits = self._configuration.reread(claim.namespace, claim.entity, claim.resource)
        if claim.alone:
            check_names(claim.entity, claim.resource, claim.consume, [claim.member(limits)])
        return terms_of(claim, limits)

    def _write_again(self, terms: Terms, answer: _Answer) -> _Answer:
        """One more write, the one that the image of the last one calls for. Refuses if the image is short."""
        if answer.image is None:
            return self._create(terms)
        if not _agree(terms, answer):
            return self._rebase(terms, answer.image)
        now_ms = self._clock_ms()
        self._refuse_if_short(terms, answer, now_ms)
        certain = Guess(_fitting_forms(terms, answer.image, now_ms), (), answer.image.expires_at_s)
        return self._send_debit(terms, certain, now_ms)

    def _speculate(self, terms: Terms) -> _Answer:
        """One write on a guess: no read, and in the usual case the only call."""
        now_ms = self._clock_ms()
        guess = self._images.guess(terms.target.key, terms.limits, terms.demand, now_ms)
        return self._send_debit(terms, guess, now_ms)

    def _send_debit(self, terms: Terms, guess: Guess, now_ms: int) -> _Answer:
        request = writes.debit(terms.target, terms.demand, guess.forms, guess.expires_at_s, now_ms)
        outcome = self._store.update(request, repeatable=False)
        answer = _Answer(isinstance(outcome, Applied), _image(outcome), now_ms)
        if answer.image is not None and _agree(terms, answer):
            forms = guess.forms if answer.admitted else _fitting_forms(terms, answer.image, now_ms)
            self._images.remember(answer.image, {name: forms[name] for name in guess.unsure})
        return answer

    def _create(self, terms: Terms) -> _Answer:
        now_ms = self._clock_ms()
        claim, target = terms.claim, terms.target
        bucket = Bucket(
            key=target.key,
            entity=claim.entity,
            resource=claim.resource,
            shard=SHARD,
            shard_count=_SHARD_COUNT,
            version=1,
            generation=now_ms * _GENERATION_SPREAD + self._random_below(_GENERATION_SPREAD),
            limits_hash=target.limits_hash,
            cascade=claim.parent is not None,
            parent=claim.parent,
            expires_at_s=writes.expires_at_s(target.fill_time_ms, now_ms) if target.expires else None,
            created_at_ms=now_ms,
            limits=writes.full_less(target, terms.demand, now_ms),
            retired_consumed_milli={},
        )
        indexes = keys.bucket_indexes(claim.namespace, claim.entity, claim.resource, SHARD, claim.call_fingerprint)
        outcome = self._store.put(writes.create(bucket, indexes), repeatable=True)
        if isinstance(outcome, Applied):
            self._images.remember(bucket)
            return _Answer(admitted=True, image=bucket, written_ms=now_ms)
        image = _image(outcome)
        self.remember(image)
        # A first try may have been applied although its answer was lost: then this is our own bucket.
        ours = outcome.repeated and image is not None and image.generation == bucket.generation
        return _Answer(admitted=ours, image=image, written_ms=now_ms)

    def _rebase(self, terms: Terms, image: Bucket) -> _Answer:
        now_ms = self._clock_ms()
        rebased = _image(self._store.update(writes.rebase(image, terms.target, now_ms), repeatable=True))
        self.remember(rebased)
        return _Answer(admitted=False, image=rebased, written_ms=now_ms)

    def _refuse_if_short(self, terms: Terms, answer: _Answer, now_ms: int) -> None:
        if answer.image is None or not _agree(terms, answer):
            return
        refused = _refusal(terms, answer.image, answer.written_ms, now_ms)
        if refused is not None:
            self._denials.remember(answer.image, now_ms)
            raise refused


def _image(outcome: Outcome) -> Bucket | None:
    return None if outcome.item is None else decode_bucket(outcome.item)


def _fitting_forms(terms: Terms, image: Bucket, now_ms: int) -> dict[str, math.Form]:
    return {
        name: math.fitting_form(terms.limits.parameters[name], image.limits[name].balance_milli, now_ms)
        for name in terms.demand
    }


def _refusal(terms: Terms, image: Bucket, judged_ms: int, now_ms: int) -> LimitExceeded | None:
    claim = terms.claim
    return refusal(claim.entity, claim.resource, terms.limits, image.balances_milli, terms.demand, judged_ms, now_ms)


def _agree(terms: Terms, answer: _Answer) -> bool:
    """Whether the bucket is under the limits that the claim is judged by. A missing one has none to disagree with."""
    return answer.image is None or answer.image.fingerprint == terms.limits.fingerprint
