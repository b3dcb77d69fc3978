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
from sluice.services.chains import AcquireRequest, Chains
from sluice.services.claims import Taken
from sluice.services.effects import Effects
from sluice.services.together import Refused, Together

Render = Callable[[Admission], str]
"""The answer as the caller gets it. Made before the transaction, because it is part of it."""


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
        return self._acquire.counted(
            request,
            lambda: self._take(request, key, render),
            lambda degraded: Answered(render(degraded), repeated=False),
        )

    def _take(self, request: AcquireRequest, key: IdempotencyKey, render: Render) -> Answered:
        try:
            return self._take_once(request, key, render)
        except SluiceError:
            recorded = self._recorded(key)
            if recorded is None:
                raise
        return _repeat(recorded, key)

    def _recorded(self, key: IdempotencyKey) -> RecordedAnswer | None:
        item = self._store.get(key.item_key, consistent=True)
        recorded = None if item is None else decode_answer(item)
        return None if recorded is None or recorded.expires_at_s <= self._clock_ms() // 1000 else recorded

    def _take_once(self, request: AcquireRequest, key: IdempotencyKey, render: Render) -> Answered:
        # A used key must not make anybody known, so here the record is looked for first.
        if self._chains.would_register(request) and (recorded := self._recorded(key)) is not None:
            return _repeat(recorded, key)
        wanted = self._chains.open(request)
        self._acquire.refuse_again([opened.terms for opened in wanted])
        rendered: list[str] = []

        def record(taken: Sequence[Taken]) -> list[TransactWrite]:
            rendered.append(render(self._acquire.admission(request, taken)))
            return [put_answer(key, rendered[-1], self._clock_ms())]

        outcome = self._together.take(wanted, record)
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
