"""Acquire: take from every named limit of a bucket, or say exactly when it would pass.

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
from sluice.core.admission import Admission, demand_milli, level_of, refusal
from sluice.core.backoff import RandomBelow, contended_wait_ms
from sluice.core.errors import Contended, LimitExceeded, Unavailable
from sluice.core.levels import Level
from sluice.core.limits import LimitsByName, LimitSet, OnUnavailable, Source, resolve
from sluice.core.signals import Meter, Signal
from sluice.repository import keys, writes
from sluice.repository.items import Bucket, decode_bucket, limits_hash
from sluice.repository.store import Applied, Outcome, Store
from sluice.services.configuration import Configuration
from sluice.services.denials import DenyCache
from sluice.services.images import ImageCache

RETRY_ROUNDS: Final = 4
_GENERATION_SPREAD: Final = 1_000_000
_SHARD: Final = 0
_SHARD_COUNT: Final = 1


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """What a caller asks for, in whole tokens. `limits`: per-call limits, which use a bucket of their own."""

    namespace: str
    entity: str
    resource: str
    consume: Mapping[str, int]
    limits: LimitsByName | None = None


@dataclass(frozen=True, slots=True)
class _Terms:
    """A request under the limits that hold for it now."""

    request: AcquireRequest
    limits: LimitSet
    demand: Mapping[str, int]
    target: writes.Target


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one write came to. `image`: the bucket after it if admitted, else as it stood; None if there is none."""

    admitted: bool
    image: Bucket | None
    written_ms: int


class Acquire:
    """The service behind POST /v1/acquire. Safe to share between threads."""

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

    def acquire(self, request: AcquireRequest) -> Admission:
        """Admits, or raises: a refusal is a LimitExceeded with its retry time."""
        try:
            admission = self._take(request)
        except LimitExceeded:
            self._meter.count(Signal.REFUSED)
            raise
        except Contended:
            self._meter.count(Signal.CONTENDED)
            raise
        except Unavailable:
            if self._configuration.on_unavailable(request.namespace) is not OnUnavailable.ALLOW:
                raise
            self._meter.count(Signal.FAIL_OPEN_ADMISSIONS)
            return Admission(request.entity, request.resource, request.consume, degraded=True)
        self._meter.count(Signal.ADMITTED)
        return admission

    def _take(self, request: AcquireRequest) -> Admission:
        terms, known_missing = self._open(request)
        if not terms.demand:
            return _nothing_to_take(request)
        self._refuse_again(terms)
        answer = self._create(terms) if known_missing else self._speculate(terms)
        for _ in range(RETRY_ROUNDS):
            if answer.admitted:
                break
            if not _agree(terms, answer):
                terms = self._terms_again(terms)
                if not terms.demand:
                    return _nothing_to_take(request)
            answer = self._write_again(terms, answer)
        if answer.admitted:
            return _admission(terms, answer)
        self._refuse_if_short(terms, answer, self._clock_ms())
        raise Contended(contended_wait_ms(self._random_below))

    def _open(self, request: AcquireRequest) -> tuple[_Terms, bool]:
        """The terms of a request, and whether its bucket was looked for just now and is not there."""
        call_limits = None if request.limits is None else resolve([(Source.CALL, request.limits)])
        call_fingerprint = None if call_limits is None else call_limits.fingerprint
        key = keys.bucket(request.namespace, request.entity, request.resource, _SHARD, call_fingerprint)
        unseen = None if self._images.knows(key) else key
        if call_limits is not None:
            found = self._configuration.call_limits(request.namespace, call_limits, unseen)
        else:
            found = self._configuration.limits(request.namespace, request.entity, request.resource, unseen)
        if found.bucket_item is not None:
            # Perhaps stale: good enough to guess a form from, never to refuse by.
            self._images.remember(decode_bucket(found.bucket_item))
        return _terms(request, found.limits, key), found.bucket_read and found.bucket_item is None

    def _terms_again(self, terms: _Terms) -> _Terms:
        """Under the limits as they are now: the bucket, or this process, is behind.

        Never needed for per-call limits, whose fingerprint is in the key of their bucket.
        """
        request = terms.request
        limits = self._configuration.reread(request.namespace, request.entity, request.resource)
        return _terms(request, limits, terms.target.key)

    def _write_again(self, terms: _Terms, answer: _Answer) -> _Answer:
        """One more write, the one that the image of the last one calls for. Refuses if the image is short."""
        if answer.image is None:
            return self._create(terms)
        if not _agree(terms, answer):
            return self._rebase(terms, answer.image)
        now_ms = self._clock_ms()
        self._refuse_if_short(terms, answer, now_ms)
        forms = _fitting_forms(terms, answer.image, now_ms)
        return self._send_debit(terms, forms, answer.image.expires_at_s, now_ms)

    def _speculate(self, terms: _Terms) -> _Answer:
        """One write on a guess: no read, and in the usual case the only call."""
        now_ms = self._clock_ms()
        guess = self._images.guess(terms.target.key, terms.limits, terms.demand, now_ms)
        return self._send_debit(terms, guess.forms, guess.expires_at_s, now_ms)

    def _send_debit(
        self, terms: _Terms, forms: Mapping[str, math.Form], seen_expires_at_s: int | None, now_ms: int
    ) -> _Answer:
        request = writes.debit(terms.target, terms.demand, forms, seen_expires_at_s, now_ms)
        outcome = self._store.update(request, repeatable=False)
        answer = _Answer(isinstance(outcome, Applied), _image(outcome), now_ms)
        if answer.image is not None and _agree(terms, answer):
            fitted = forms if answer.admitted else _fitting_forms(terms, answer.image, now_ms)
            self._images.learn(terms.limits, fitted, answer.image, now_ms)
        return answer

    def _create(self, terms: _Terms) -> _Answer:
        now_ms = self._clock_ms()
        request, target = terms.request, terms.target
        bucket = Bucket(
            key=target.key,
            entity=request.entity,
            resource=request.resource,
            shard=_SHARD,
            shard_count=_SHARD_COUNT,
            version=1,
            generation=now_ms * _GENERATION_SPREAD + self._random_below(_GENERATION_SPREAD),
            limits_hash=target.limits_hash,
            cascade=False,
            parent=None,
            expires_at_s=writes.expires_at_s(target.fill_time_ms, now_ms) if target.expires else None,
            created_at_ms=now_ms,
            limits=writes.full_less(target, terms.demand, now_ms),
            retired_consumed_milli={},
        )
        call_fingerprint = None if request.limits is None else terms.limits.fingerprint
        indexes = keys.bucket_indexes(request.namespace, request.entity, request.resource, _SHARD, call_fingerprint)
        outcome = self._store.put(writes.create(bucket, indexes), repeatable=True)
        if isinstance(outcome, Applied):
            self._images.remember(bucket)
            return _Answer(admitted=True, image=bucket, written_ms=now_ms)
        image = _image(outcome)
        self._remember(image)
        # A first try may have been applied although its answer was lost: then this is our own bucket.
        ours = outcome.repeated and image is not None and image.generation == bucket.generation
        return _Answer(admitted=ours, image=image, written_ms=now_ms)

    def _rebase(self, terms: _Terms, image: Bucket) -> _Answer:
        now_ms = self._clock_ms()
        rebased = _image(self._store.update(writes.rebase(image, terms.target, now_ms), repeatable=True))
        self._remember(rebased)
        return _Answer(admitted=False, image=rebased, written_ms=now_ms)

    def _refuse_if_short(self, terms: _Terms, answer: _Answer, now_ms: int) -> None:
        if answer.image is None or not _agree(terms, answer):
            return
        refused = _refusal(terms, answer.image, answer.written_ms, now_ms)
        if refused is not None:
            self._denials.remember(answer.image, now_ms)
            raise refused

    def _refuse_again(self, terms: _Terms) -> None:
        """Without a call, while the last refusal stands. Its time is then a lower bound."""
        now_ms = self._clock_ms()
        image = self._denials.image(terms.target.key, terms.limits.fingerprint, now_ms)
        refused = None if image is None else _refusal(terms, image, now_ms, now_ms)
        if refused is not None:
            raise refused

    def _remember(self, image: Bucket | None) -> None:
        if image is not None:
            self._images.remember(image)


def _terms(request: AcquireRequest, limits: LimitSet, key: keys.Key) -> _Terms:
    return _Terms(
        request=request,
        limits=limits,
        demand=demand_milli(request.entity, request.resource, request.consume, limits),
        target=writes.Target(
            key=key,
            limits_hash=limits_hash(limits.fingerprint, _SHARD_COUNT),
            parameters=limits.parameters,
            fill_time_ms=limits.fill_time_ms,
            expires=limits.expires,
        ),
    )


def _image(outcome: Outcome) -> Bucket | None:
    return None if outcome.item is None else decode_bucket(outcome.item)


def _fitting_forms(terms: _Terms, image: Bucket, now_ms: int) -> dict[str, math.Form]:
    return {
        name: math.fitting_form(terms.limits.parameters[name], image.limits[name].balance_milli, now_ms)
        for name in terms.demand
    }


def _refusal(terms: _Terms, image: Bucket, judged_ms: int, now_ms: int) -> LimitExceeded | None:
    request = terms.request
    return refusal(
        request.entity, request.resource, terms.limits, image.balances_milli, terms.demand, judged_ms, now_ms
    )


def _agree(terms: _Terms, answer: _Answer) -> bool:
    """Whether the bucket is under the limits that the request is judged by. A missing one has none to disagree with."""
    return answer.image is None or answer.image.fingerprint == terms.limits.fingerprint


def _admission(terms: _Terms, answer: _Answer) -> Admission:
    request = terms.request
    levels: tuple[Level, ...] = ()
    # A create that was recognised late may find its bucket under newer limits already.
    if answer.image is not None and _agree(terms, answer):
        levels = (level_of(request.entity, terms.limits, answer.image.balances_milli, answer.written_ms),)
    return Admission(request.entity, request.resource, request.consume, levels)


def _nothing_to_take(request: AcquireRequest) -> Admission:
    """Every named limit is switched off."""
    return Admission(request.entity, request.resource, request.consume)
