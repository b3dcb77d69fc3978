"""Acquires under an Idempotency-Key: a repeat gets the answer of the first, and takes nothing.

The record of the answer is put in the transaction that takes. No refusal of any kind leaves before the record was
looked for: a repeat may come when the bucket is empty or the limits are gone, and must not be told so.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sluice.core.admission import Admission
from sluice.core.errors import IdempotencyMismatch, SluiceError
from sluice.repository.idempotency import IdempotencyKey, RecordedAnswer, decode_answer, put_answer
from sluice.repository.requests import TransactWrite
from sluice.repository.store import Store
from sluice.services.acquire import Acquire
from sluice.services.chains import AcquireRequest, Chains, Opened
from sluice.services.claims import Taken
from sluice.services.effects import Effects
from sluice.services.together import Refused, Together

Render = Callable[[Admission], str]
"""The answer as the caller gets it. Made before the transaction, because it is part of it."""

Along = Callable[[Admission], Sequence[TransactWrite]]
"""What goes first into the transaction that takes, made from what is about to be admitted."""

Take = Callable[[Along], Admission | Refused]
"""Takes together with what goes along. Refused: that was refused, and nothing was taken."""


@dataclass(frozen=True, slots=True)
class Answered:
    """`text`: as it was given the first time. `repeated`: that was before."""

    text: str
    repeated: bool


class IdempotentAcquire:
    """Safe to share between threads."""

    def __init__(self, store: Store, acquire: Acquire, chains: Chains, together: Together, effects: Effects) -> None:
        self._store = store
        self._acquire = acquire
        self._chains = chains
        self._together = together
        self._clock_ms = effects.clock_ms

    def acquire(self, request: AcquireRequest, key: IdempotencyKey, render: Render) -> Answered:
        """Admits, or raises. Only admissions are recorded: after a refusal the key is free."""

        def take(along: Along) -> Admission | Refused:
            return self.take_plainly(request, self._chains.open(request).opened, along)

        return self._acquire.counted(
            request,
            lambda: self.take(request, key, render, take),
            lambda degraded: Answered(render(degraded), repeated=False),
        )

    def take_plainly(self, request: AcquireRequest, wanted: Sequence[Opened], along: Along) -> Admission | Refused:
        """From the buckets alone."""
        self._acquire.refuse_again(wanted)
        admissions: list[Admission] = []

        def written(taken: Sequence[Taken]) -> Sequence[TransactWrite]:
            admissions.append(self._acquire.admission(request, taken))
            return along(admissions[-1])

        outcome = self._together.take(wanted, written)
        return outcome if isinstance(outcome, Refused) else admissions[-1]

    def take(self, request: AcquireRequest, key: IdempotencyKey, render: Render, take: Take) -> Answered:
        """As `acquire`, uncounted, by whatever takes."""
        try:
            return self._take_once(request, key, render, take)
        except SluiceError:
            recorded = self._recorded(key)
            if recorded is None:
                raise
        return _repeat(recorded, key)

    def _recorded(self, key: IdempotencyKey) -> RecordedAnswer | None:
        item = self._store.get(key.item_key, consistent=True)
        recorded = None if item is None else decode_answer(item)
        return None if recorded is None or recorded.expires_at_s <= self._clock_ms() // 1000 else recorded

    def _take_once(self, request: AcquireRequest, key: IdempotencyKey, render: Render, take: Take) -> Answered:
        # A used key must not make anybody known, so here the record is looked for first.
        if self._chains.would_register(request) and (recorded := self._recorded(key)) is not None:
            return _repeat(recorded, key)
        rendered: list[str] = []

        def record(admission: Admission) -> list[TransactWrite]:
            rendered.append(render(admission))
            return [put_answer(key, rendered[-1], self._clock_ms())]

        outcome = take(record)
        if not isinstance(outcome, Refused):
            return Answered(rendered[-1], repeated=False)
        (failure,) = outcome.failures
        if failure is None or failure.item is None:
            raise AssertionError("a record is refused only where there is one")
        return _repeat(decode_answer(failure.item), key)


def _repeat(recorded: RecordedAnswer, key: IdempotencyKey) -> Answered:
    if recorded.body_hash != key.body_hash:
        raise IdempotencyMismatch("this Idempotency-Key was used with another body")
    return Answered(recorded.answer, repeated=True)
