"""A lease inside the process that took it: a context manager on the table itself.

There is no item and no token. Leaving the context normally keeps the consumption; an exception gives it back. An
adjustment is one plain write per bucket, sent once: a credit whose answer is lost stays lost and a debit whose answer
is lost may stay charged, so that nothing is ever given back twice.
"""

from collections.abc import Iterable, Mapping
from threading import Lock
from types import TracebackType
from typing import Final

from sluice.core.admission import Admission
from sluice.core.backoff import contended_wait_ms
from sluice.core.errors import Contended, InvalidRequest, LeaseClosed, LeaseExpired, Unavailable
from sluice.core.lease import LEASE_MAX_MS, Lease
from sluice.core.lease_changes import (
    Amounts,
    MemberChange,
    adjustments_after,
    amounts_of,
    changes,
    check_names,
    nothing,
    write_by_write,
)
from sluice.core.levels import Level
from sluice.core.signals import Signal
from sluice.repository import writes
from sluice.repository.store import Applied, Store
from sluice.services.corrections import Correction, Corrections, Known
from sluice.services.effects import Effects

RETRY_ROUNDS: Final = 4


class HeldLease:
    """What was taken, for as long as the work goes on; at most 24 hours. Safe to share between threads."""

    def __init__(self, admission: Admission, store: Store, corrections: Corrections, effects: Effects) -> None:
        self._admission = admission
        self._store = store
        self._corrections = corrections
        self._effects = effects
        self._lease = Lease(
            lease_id="",
            namespace=admission.namespace,
            entity=admission.entity,
            resource=admission.resource,
            consumed=admission.consumed,
            members=admission.members,
            expires_at_ms=effects.clock_ms() + LEASE_MAX_MS,
        )
        self._adjusted: Amounts = {}
        self._left_out: frozenset[str] = frozenset()
        self._closed = False
        self._lock = Lock()

    @property
    def degraded(self) -> bool:
        """Let through unchecked because the table did not answer: nothing was taken."""
        return self._admission.degraded

    @property
    def consumed(self) -> dict[str, int]:
        """What the lease stands for now, in whole tokens."""
        return amounts_of(self._lease, self._adjusted)

    @property
    def levels(self) -> tuple[Level, ...]:
        """Where the entity and everyone above it stand, as this process last saw them."""
        seen = {level.entity: level for level in self._corrections.levels(self._lease, {}, self._effects.clock_ms())}
        return tuple(seen.get(level.entity, level) for level in self._admission.levels)

    @property
    def remaining(self) -> dict[str, int]:
        """What is left of each limit that was named: the least along the chain, negative while in debt."""
        left: dict[str, int] = {}
        for level in self.levels:
            for limit in level.limits:
                if limit.limit in self._lease.consumed:
                    left[limit.limit] = min(left.get(limit.limit, limit.remaining), limit.remaining)
        return left

    def adjust(self, delta: Mapping[str, int] | None = None, /, **amounts: int) -> None:
        """Takes more, into debt if need be, or gives some back. If it raises, nothing more was taken for certain."""
        delta = {**(delta or {}), **amounts}
        check_names(self._lease, "delta", delta)
        for name, amount in delta.items():
            if type(amount) is not int:
                raise InvalidRequest(f"delta.{name}", "is a whole number")
        with self._lock:
            if self._closed:
                raise LeaseClosed("the lease was left already")
            if self._effects.clock_ms() >= self._lease.expires_at_ms:
                raise LeaseExpired("the lease has expired; what it took stays taken")
            adjusted = adjustments_after(self._lease, self._adjusted, delta)
            parts = self._parts(amounts_of(self._lease, adjusted))
            self._take_all([part for part in parts if part.debits_milli])
            self._adjusted = adjusted
            self._give_back([part for part in parts if not part.debits_milli])

    def __enter__(self) -> "HeldLease":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if kind is not None and self._effects.clock_ms() < self._lease.expires_at_ms:
                self._give_back(self._parts(nothing(self._lease.consumed)))

    def _parts(self, after: Amounts) -> list[MemberChange]:
        found = changes(self._lease, amounts_of(self._lease, self._adjusted), after)
        return [part for change in found for part in write_by_write(change)]

    def _take_all(self, parts: Iterable[MemberChange]) -> None:
        taken: list[Correction] = []
        for part in parts:
            try:
                taken += self._send(part)
            except (Contended, Unavailable):
                for correction in taken:
                    self._undo(correction)
                raise

    def _give_back(self, parts: Iterable[MemberChange]) -> None:
        for part in parts:
            try:
                self._send(part)
            except (Contended, Unavailable):
                self._effects.meter.count(Signal.GIVE_BACKS_LOST)

    def _undo(self, taken: Correction) -> None:
        try:
            self._store.update(writes.give_back(taken.key, taken.generation, taken.amounts_milli), repeatable=False)
        except (Contended, Unavailable):
            self._effects.meter.count(Signal.GIVE_BACKS_LOST)

    def _send(self, part: MemberChange) -> list[Correction]:
        """The write that was applied, or none where nothing is left to write to."""
        known: Known = {}
        for _ in range(1 + RETRY_ROUNDS):
            now_ms = self._effects.clock_ms()
            plan = self._corrections.plan(self._lease, [part], self._left_out, known, now_ms)
            self._left_out = plan.left_out
            if not plan.corrections:
                return []
            (correction,) = plan.corrections
            outcome = self._store.update(correction.request, repeatable=False)
            self._corrections.learn(known, correction.key, outcome.item)
            if isinstance(outcome, Applied):
                return [correction]
        raise Contended(contended_wait_ms(self._effects.random_below))
