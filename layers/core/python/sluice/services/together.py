"""Taking from all buckets of a chain in one transaction, together with what must happen with it or not at all.

The forms come from the images that this process has. No image comes back from a transaction, so each part says which
incarnation it takes from. A member whose write failed is looked at again, consistently, before the next try.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sluice.core import shards
from sluice.core.admission import merged_refusal
from sluice.core.backoff import contended_wait_ms
from sluice.core.errors import Contended, LimitExceeded
from sluice.repository import keys, writes
from sluice.repository.requests import TransactWrite
from sluice.repository.store import Committed, ConditionFailed, Store
from sluice.services.bucket_writes import BucketWriter
from sluice.services.chains import Opened
from sluice.services.claims import Part, Taken, Terms, spent
from sluice.services.effects import Effects
from sluice.services.gathering import debit_write
from sluice.services.taking import Buckets

TOGETHER_ROUNDS: Final = 4

Along = Callable[[Sequence[Taken]], Sequence[TransactWrite]]
"""What goes into the transaction besides the buckets, made from what is about to be taken."""


@dataclass(frozen=True, slots=True)
class Refused:
    """What went along was refused, one element per write of it."""

    failures: tuple[ConditionFailed | None, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    """Where one member is to be taken from. `parts`: images as they were seen; None where there is no bucket."""

    terms: Terms
    parts: Sequence[Part] | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one member is about to give."""

    terms: Terms
    writes: Sequence[TransactWrite]
    parts: Sequence[Part]


class Together:
    """Safe to share between threads."""

    def __init__(self, store: Store, buckets: Buckets, effects: Effects) -> None:
        self._store = store
        self._images = buckets.memory.images
        self._writer: BucketWriter = buckets.writer
        self._gatherer = buckets.gatherer
        self._sharding = buckets.sharding
        self._taker = buckets.taker
        self._effects = effects

    def take(self, wanted: Sequence[Opened], along: Along) -> list[Taken] | Refused:
        """Takes everything, or nothing; raises a refusal as every acquire does."""
        suspect = [False] * len(wanted)
        for _ in range(TOGETHER_ROUNDS):
            choices = self._choices([opened.terms for opened in wanted], suspect)
            # After every look: an earlier time would not have the refill that the looks have counted on.
            now_ms = self._effects.clock_ms()
            plans = [self._plan(choice, now_ms) for choice in choices]
            taken = [Taken(plan.terms, plan.parts, now_ms) for plan in plans]
            extra = along(taken)
            elements = [*extra, *(write for plan in plans for write in plan.writes)]
            outcome = self._store.transact(elements, self._effects.new_token())
            if isinstance(outcome, Committed):
                self._remember(taken)
                return taken
            if any(failure is not None for failure in outcome.failures[: len(extra)]):
                return Refused(outcome.failures[: len(extra)])
            suspect = _failed(plans, outcome.failures[len(extra) :])
        raise Contended(contended_wait_ms(self._effects.random_below))

    def _choices(self, wanted: Sequence[Terms], suspect: Sequence[bool]) -> list[_Choice]:
        """Whoever failed before is looked at; the others are written on a guess."""
        choices: list[_Choice] = []
        refusals: list[LimitExceeded] = []
        for terms, must_look in zip(wanted, suspect, strict=True):
            try:
                guessed = None if must_look else self._guess(terms)
                choices.append(self._look(terms) if guessed is None else guessed)
            except LimitExceeded as refused:
                refusals.append(refused)
        if refusals:
            raise merged_refusal(refusals)
        return choices

    def _remember(self, taken: Sequence[Taken]) -> None:
        for one in taken:
            for part in one.parts:
                if self._images.remember(part.image, None, one.written_ms):
                    self._sharding.relieve(part.image)

    def _guess(self, terms: Terms) -> _Choice | None:
        """From the image that this process has, if that covers it. It may be stale, so it never refuses."""
        first = terms.claim.first
        counts = self._images.counts(first)
        count = shards.count_of(counts)
        shard = shards.located(self._effects.random_below(count), counts) if counts else 0
        image = self._images.image(keys.bucket_shard(first, shard))
        if image is None or not terms.agrees_with(image):
            return None
        if not shards.covers(terms.view(image, self._effects.clock_ms()), terms.demand):
            return None
        return _Choice(terms, [Part(image, terms.demand)])

    def _look(self, terms: Terms) -> _Choice:
        terms, seen = self._gatherer.look(terms, self._taker.terms_again)
        if not terms.demand:
            return _Choice(terms, ())
        if seen.images:
            decided = self._gatherer.plan(terms, seen)
            return _Choice(terms, [Part(seen.images[shard], demand) for shard, demand in decided.parts])
        return self._look(terms) if self._writer.moved(terms) is not None else _Choice(terms, None)

    def _plan(self, choice: _Choice, now_ms: int) -> _Plan:
        terms, parts = choice.terms, choice.parts
        if parts is None:
            bucket = self._writer.new_bucket(terms, now_ms)
            return _Plan(terms, [{"Put": writes.create(bucket)}], [Part(bucket, terms.demand)])
        return _Plan(
            terms,
            [debit_write(terms, part, now_ms) for part in parts],
            [Part(spent(part.image, part.demand, now_ms), part.demand) for part in parts],
        )


def _failed(plans: Sequence[_Plan], failures: Sequence[ConditionFailed | None]) -> list[bool]:
    failed = []
    start = 0
    for plan in plans:
        end = start + len(plan.writes)
        failed.append(any(failure is not None for failure in failures[start:end]))
        start = end
    return failed
