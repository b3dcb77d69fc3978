"""Leases: an admitted acquire is corrected while it runs, and closed once.

The item of a lease is in the transaction that changes its buckets. Whoever comes second, be it another request or the
same one whose answer was lost, finds in the item what was done: the same again is answered the same, anything else is
refused. A change that no bucket notices is one Put.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

from cachetools import LRUCache

from sluice.core.admission import Admission
from sluice.core.backoff import contended_wait_ms
from sluice.core.errors import Contended, IdempotencyMismatch, InvalidRequest, LeaseClosed, LeaseExpired
from sluice.core.lease import Lease
from sluice.core.lease_changes import (
    adjustments_after,
    amounts_of,
    changes,
    check_names,
    nothing,
    settled_amounts,
)
from sluice.core.levels import Level
from sluice.core.signals import Signal
from sluice.repository import keys
from sluice.repository.leases import NO_VERSION, LeaseState, State, decode_lease, put_lease
from sluice.repository.requests import PutRequest, TransactWrite
from sluice.repository.store import Applied, Cancelled, Committed, ConditionFailed, Store
from sluice.repository.wire import Item
from sluice.services.corrections import Corrections, Known, Plan
from sluice.services.effects import Effects
from sluice.services.freeing import Freeing
from sluice.services.held import HeldLease

ADJUSTMENTS_MAX: Final = 50
RETRY_ROUNDS: Final = 4
# What this process did to a lease saves the next change a failed write.
_STATES_MAX: Final = 2_000
# Whole groups of base64, so that every mark has the same length.
_KEY_HASH_BYTES: Final = 12
_DELTA_HASH_BYTES: Final = 9

Decide = Callable[[LeaseState], LeaseState | None]
"""The lease after the change, or None where it was made before. Raises what the caller is told otherwise."""


@dataclass(frozen=True, slots=True)
class Changed:
    """`amounts`: what was asked for and done, in whole tokens. `levels`: as far as known without a read."""

    lease_id: str
    amounts: Mapping[str, int]
    levels: tuple[Level, ...]


@dataclass(frozen=True, slots=True)
class Closing:
    """The close of a lease as a part of somebody else's transaction. `state`: the lease as it then is.

    `writes`: its item first, then one for each correction of a bucket; none where it was closed so before. `known`:
    takes in what failures show of the buckets. `settles`: to certain amounts, and whoever asked for that is answered.
    """

    lease: Lease
    state: LeaseState
    writes: tuple[TransactWrite, ...]
    plan: Plan
    known: Known
    now_ms: int
    settles: bool


class Leases:
    """The service behind /v1/leases. Safe to share between threads."""

    def __init__(
        self, store: Store, corrections: Corrections, effects: Effects, freeing: Freeing | None = None
    ) -> None:
        """`freeing`: None where no lease holds anything in a budget."""
        self._store = store
        self._corrections = corrections
        self._effects = effects
        self._freeing = freeing
        self._states: LRUCache[str, LeaseState] = LRUCache(maxsize=_STATES_MAX)
        self._lock = Lock()

    def open(self, admission: Admission, ttl_ms: int) -> Lease:
        """Writes nothing: a lease that is never corrected costs nothing. A hold for it has the same id and time."""
        hold = admission.hold
        return Lease(
            lease_id=self._effects.new_token() if hold is None else hold.lease_id,
            namespace=admission.namespace,
            entity=admission.entity,
            resource=admission.resource,
            consumed=admission.consumed,
            members=admission.members,
            expires_at_ms=self._effects.clock_ms() + ttl_ms if hold is None else hold.expires_at_ms,
            holds=hold is not None,
        )

    def hold(self, admission: Admission) -> HeldLease:
        """For a caller in this process, who needs no token."""
        return HeldLease(admission, self._store, self._corrections, self._effects)

    def adjust(self, lease: Lease, delta: Mapping[str, int], idempotency_key: str) -> Changed:
        """Takes more, into debt if need be, or gives some back. Once for each Idempotency-Key."""
        check_names(lease, "delta", delta)
        key_hash, marked = _marks(idempotency_key, delta)

        def decide(state: LeaseState) -> LeaseState | None:
            before = [mark for mark in state.adjustment_marks if mark.startswith(key_hash)]
            if before:
                if marked not in before:
                    raise IdempotencyMismatch("this key was used for another adjustment of the lease")
                return None
            if state.state is not State.OPEN:
                raise LeaseClosed(f"the lease is {state.state.value} and can not be adjusted")
            if len(state.adjustment_marks) >= ADJUSTMENTS_MAX:
                raise InvalidRequest("idempotency-key", f"a lease takes {ADJUSTMENTS_MAX} adjustments at most")
            return replace(
                state,
                adjusted=adjustments_after(lease, state.adjusted, delta),
                adjustment_marks=(*state.adjustment_marks, marked),
            )

        _, levels = self._change(lease, decide)
        return Changed(lease.lease_id, dict(delta), levels)

    def check_settle(self, lease: Lease, actual: Mapping[str, int]) -> None:
        """What is wrong with a settle whatever became of the lease. Nothing is ever given back after its time."""
        check_names(lease, "actual", actual)
        self._check_time(lease)

    def settle(self, lease: Lease, actual: Mapping[str, int]) -> Changed:
        """Closes with what was really used. Limits that are left out keep their amount."""
        self.check_settle(lease, actual)

        state, levels = self._change(lease, lambda state: _settled(lease, state, actual))
        return Changed(lease.lease_id, state.closed_with, levels)

    def release(self, lease: Lease) -> Changed:
        """Closes and gives everything back, also what hard budgets hold; answers what was taken from the buckets."""

        def decide(state: LeaseState) -> LeaseState | None:
            return _closed(state, State.RELEASED, nothing(lease.consumed))

        state, levels = self._change(lease, decide, self._freeing)
        return Changed(lease.lease_id, amounts_of(lease, state.adjusted), levels)

    def closing(self, lease: Lease, actual: Mapping[str, int] | None, known: Known, now_ms: int) -> Closing | None:
        """The close of a lease, as far as this process knows what became of it. What it does not know, the put finds
        out.

        Without `actual` the lease keeps what it took. None where it is over: past its time, or closed. With it, it is
        settled as `settle` does, once `check_settle` had nothing against it; LeaseClosed where it is closed otherwise.
        """
        key = keys.lease(lease.namespace, lease.lease_id)
        with self._lock:
            before = self._states.get(key.pk) or _untouched(lease, now_ms)
        if actual is None and (now_ms >= lease.expires_at_ms or before.state is not State.OPEN):
            return None
        wanted = _settled(lease, before, actual or {})
        if wanted is None:
            nothing_to_do = Plan((), before.left_out)
            return Closing(lease, before, (), nothing_to_do, known, now_ms, settles=True)
        written, plan = self._planned(lease, before, wanted, known, now_ms)
        writes = _writes(put_lease(written, before.version), plan)
        return Closing(lease, written, writes, plan, known, now_ms, settles=actual is not None)

    def closed(self, closing: Closing) -> Changed | None:
        """It happened. None where nobody is told of it."""
        self._remember(closing.state)
        if not closing.settles:
            return None
        lease = closing.lease
        levels = self._corrections.applied(lease, closing.plan, closing.known, closing.now_ms)
        return Changed(lease.lease_id, closing.state.closed_with, levels)

    def overtaken(self, closing: Closing, failures: Sequence[ConditionFailed | None]) -> None:
        """It did not, by these failures of its writes: what is there instead is learned."""
        if not closing.writes:
            return
        of_lease, *of_buckets = failures
        if of_lease is not None and self._found(of_lease.item) is None:
            with self._lock:
                self._states.pop(closing.state.key.pk, None)
        self._corrections.overtaken(closing.plan, of_buckets, closing.known)

    def _change(
        self, lease: Lease, decide: Decide, freeing: Freeing | None = None
    ) -> tuple[LeaseState, tuple[Level, ...]]:
        """The lease as it then is. `freeing`: ends what is held for it."""
        self._check_time(lease)
        with self._lock:
            seen = self._states.get(keys.lease(lease.namespace, lease.lease_id).pk)
        certain = False
        known: Known = {}
        for _ in range(1 + RETRY_ROUNDS):
            now_ms = self._effects.clock_ms()
            before, wanted = self._decided(decide, seen or _untouched(lease, now_ms), certain=certain)
            if wanted is None:
                return before, self._corrections.levels(lease, known, now_ms)
            written, plan = self._planned(lease, before, wanted, known, now_ms)
            ending = None if freeing is None else freeing.ending(lease)
            cancelled = self._send(written, before.version, plan, () if ending is None else ending.writes)
            if cancelled is None:
                if freeing is not None and ending is not None:
                    freeing.ended(ending)
                return self._remember(written), self._corrections.applied(lease, plan, known, now_ms)
            certain = True
            of_lease, *of_others = cancelled.failures
            seen = before if of_lease is None else self._found(of_lease.item)
            count = len(plan.corrections)
            if freeing is not None and ending is not None:
                freeing.overtaken(ending, of_others[count:])
            self._corrections.overtaken(plan, of_others[:count], known)
        self._effects.meter.count(Signal.CONTENDED)
        raise Contended(contended_wait_ms(self._effects.random_below))

    def _decided(self, decide: Decide, before: LeaseState, *, certain: bool) -> tuple[LeaseState, LeaseState | None]:
        """What was decided, and on which state. A closed lease and a used key stay what they are; amounts do not."""
        try:
            return before, decide(before)
        except InvalidRequest:
            if certain:
                raise
        # Perhaps another process has adjusted it since.
        read = self._found(self._store.get(before.key, consistent=True)) or before
        return read, decide(read)

    def _check_time(self, lease: Lease) -> None:
        if self._effects.clock_ms() >= lease.expires_at_ms:
            raise LeaseExpired("the lease has expired; what it took stays taken")

    def _planned(
        self, lease: Lease, before: LeaseState, wanted: LeaseState, known: Known, now_ms: int
    ) -> tuple[LeaseState, Plan]:
        """The item as it is to be written, and what goes with it to the buckets."""
        had = amounts_of(lease, before.adjusted)
        after = amounts_of(lease, wanted.adjusted) if wanted.state is State.OPEN else wanted.closed_with
        plan = self._corrections.plan(lease, changes(lease, had, after), before.left_out, known, now_ms)
        return replace(wanted, left_out=plan.left_out, version=before.version + 1, updated_at_ms=now_ms), plan

    def _send(
        self, written: LeaseState, seen_version: int, plan: Plan, more: Sequence[TransactWrite]
    ) -> Cancelled | None:
        """None when it happened."""
        put = put_lease(written, seen_version)
        if not plan.corrections and not more:
            alone = self._store.put(put, repeatable=True)
            return None if isinstance(alone, Applied) else Cancelled((alone,))
        # A new token each time: what is sent again after a failure is another transaction.
        outcome = self._store.transact([*_writes(put, plan), *more], self._effects.new_token())
        return None if isinstance(outcome, Committed) else outcome

    def _found(self, item: Item | None) -> LeaseState | None:
        return None if item is None else self._remember(decode_lease(item))

    def _remember(self, state: LeaseState) -> LeaseState:
        with self._lock:
            self._states[state.key.pk] = state
        return state


def _untouched(lease: Lease, now_ms: int) -> LeaseState:
    """A lease that has no item yet."""
    return LeaseState(
        key=keys.lease(lease.namespace, lease.lease_id),
        state=State.OPEN,
        adjusted={},
        adjustment_marks=(),
        closed_with={},
        left_out=frozenset(),
        version=NO_VERSION,
        lease_expires_at_ms=lease.expires_at_ms,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
    )


def _writes(put: PutRequest, plan: Plan) -> tuple[TransactWrite, ...]:
    of_buckets: list[TransactWrite] = [{"Update": correction.request} for correction in plan.corrections]
    return ({"Put": put}, *of_buckets)


def _settled(lease: Lease, state: LeaseState, actual: Mapping[str, int]) -> LeaseState | None:
    return _closed(state, State.SETTLED, settled_amounts(amounts_of(lease, state.adjusted), actual))


def _closed(state: LeaseState, how: State, closed_with: Mapping[str, int]) -> LeaseState | None:
    if state.state is State.OPEN:
        return replace(state, state=how, closed_with=closed_with)
    if state.state is not how:
        raise LeaseClosed(f"the lease is {state.state.value} already")
    if state.closed_with != closed_with:
        raise LeaseClosed(f"the lease is {state.state.value} already, with other amounts")
    return None


def _marks(idempotency_key: str, delta: Mapping[str, int]) -> tuple[str, str]:
    """What stands for a key, and for a key with what was asked under it. Hashed: keys may be long, items may not."""
    key_hash = _hash(idempotency_key, _KEY_HASH_BYTES)
    return key_hash, key_hash + _hash(json.dumps(sorted(delta.items())), _DELTA_HASH_BYTES)


def _hash(text: str, length: int) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:length]).decode()
