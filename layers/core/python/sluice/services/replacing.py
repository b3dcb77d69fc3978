"""What a PUT replaces as a whole: read, replaced and removed, each guarded by the version that was seen.

A change and its audit event are one transaction. A change that met another is built anew, with the same event: should
an earlier try have been applied after all, the event is there already, and the change is done.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from sluice.core.audit import Action, Author
from sluice.core.backoff import contended_wait_ms
from sluice.core.errors import Contended, NotFound, PreconditionFailed
from sluice.repository.audit import AuditEvent, Image, audit_put, decode_audit_event
from sluice.repository.keys import Key
from sluice.repository.requests import TransactWrite
from sluice.repository.store import Committed, ConditionFailed, Store
from sluice.repository.wire import Item
from sluice.services.effects import Effects

_WRITE_ROUNDS: Final = 4

T = TypeVar("T")

Precondition = Callable[[T | None], bool]
"""What a caller demands of the stored version, such as If-Match."""


@dataclass(frozen=True, slots=True)
class Shelf(Generic[T]):
    """Where one thing stands, how it is read and written, and how the audit calls it.

    `put` and `delete` fail on another version than the one that was seen. `missing`: what is told where nothing is.
    `guard`: what must hold for a change; where it does not, there is nothing.
    """

    namespace: str
    key: Key
    decode: Callable[[Item], T]
    put: Callable[[T, T | None], TransactWrite]
    delete: Callable[[T], TransactWrite]
    image: Callable[[T], Image]
    subject: str
    target: str
    missing: str
    guard: Sequence[TransactWrite] = ()


@dataclass(frozen=True, slots=True)
class Replaced(Generic[T]):
    """What is stored now. `created`: there was nothing before."""

    stored: T
    created: bool


class Replacing:
    """A writer that meets another one looks again, so that no version is overwritten unseen."""

    def __init__(self, store: Store, effects: Effects) -> None:
        self._store = store
        self._effects = effects

    def find(self, shelf: Shelf[T]) -> T | None:
        item = self._store.get(shelf.key, consistent=True)
        return None if item is None else shelf.decode(item)

    def get(self, shelf: Shelf[T]) -> T:
        found = self.find(shelf)
        if found is None:
            raise NotFound(shelf.missing)
        return found

    def put(
        self,
        shelf: Shelf[T],
        make: Callable[[T | None, int], T],
        precondition: Precondition[T],
        action: Action,
        author: Author,
    ) -> Replaced[T]:
        """`make`: what is stored after what was seen, at that time."""
        before = self.find(shelf)
        event_id, at_ms = self._effects.new_token(), self._effects.clock_ms()
        tried: list[Replaced[T]] = []
        for _ in range(_WRITE_ROUNDS):
            _demand(precondition, before)
            stored = make(before, at_ms)
            tried.append(Replaced(stored, created=before is None))
            event = _event(shelf, event_id, at_ms, author, action, before, stored)
            writes = [shelf.put(stored, before), audit_put(shelf.namespace, event), *shelf.guard]
            outcome = self._store.transact(writes, self._effects.new_token())
            if isinstance(outcome, Committed):
                return tried[-1]
            seen, told, *guarded = outcome.failures
            if told is not None:
                return _applied(shelf, tried, told)
            if any(guarded):
                raise NotFound(shelf.missing)
            before = self._again(shelf, seen)
        raise Contended(contended_wait_ms(self._effects.random_below))

    def delete(self, shelf: Shelf[T], precondition: Precondition[T], action: Action, author: Author) -> None:
        before: T | None = self.get(shelf)
        event_id, at_ms = self._effects.new_token(), self._effects.clock_ms()
        for _ in range(_WRITE_ROUNDS):
            _demand(precondition, before)
            if before is None:
                return
            event = _event(shelf, event_id, at_ms, author, action, before, None)
            writes = [shelf.delete(before), audit_put(shelf.namespace, event)]
            outcome = self._store.transact(writes, self._effects.new_token())
            if isinstance(outcome, Committed) or outcome.failures[1] is not None:
                return
            before = self._again(shelf, outcome.failures[0])
        raise Contended(contended_wait_ms(self._effects.random_below))

    def _again(self, shelf: Shelf[T], failed: ConditionFailed | None) -> T | None:
        return None if failed is None or failed.item is None else shelf.decode(failed.item)


def _demand(precondition: Precondition[T], stored: T | None) -> None:
    if not precondition(stored):
        raise PreconditionFailed("the stored version is another one")


def _event(
    shelf: Shelf[T],
    event_id: str,
    at_ms: int,
    author: Author,
    action: Action,
    before: T | None,
    after: T | None,
) -> AuditEvent:
    return AuditEvent(
        event_id=event_id,
        subject=shelf.subject,
        at_ms=at_ms,
        author=author,
        action=action,
        target=shelf.target,
        before=None if before is None else shelf.image(before),
        after=None if after is None else shelf.image(after),
    )


def _applied(shelf: Shelf[T], tried: Sequence[Replaced[T]], told: ConditionFailed) -> Replaced[T]:
    """Which of our tries the event that is there tells of."""
    image = None if told.item is None else decode_audit_event(told.item).after
    return next(done for done in reversed(tried) if shelf.image(done.stored) == image)
