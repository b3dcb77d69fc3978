"""Who owes what after a run with faults: certain where the answer was certain, between two bounds where it was not."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock

from sluice.core.lease import Lease
from sluice.repository import keys
from sluice.repository.idempotency import IdempotencyKey, decode_answer
from sluice.repository.items import Bucket
from sluice.repository.leases import LeaseState, State, decode_lease
from sluice.repository.store import Store
from sluice.repository.wire import Item
from sluice.services.leases import _marks
from tests.histories import MILLI, Admitted, Violated

Amounts = Mapping[str, int]
Demand = Mapping[str, Amounts]
"""Tokens by entity and limit."""


@dataclass
class LeaseAccount:
    """`adjusted`: by key, and whether it was answered. `closed`: every close that was answered."""

    lease: Lease
    adjusted: dict[str, tuple[Amounts, bool]] = field(default_factory=dict)
    closed: list[tuple[State, Amounts]] = field(default_factory=list)


@dataclass
class KeyAccount:
    """An Idempotency-Key, what it asks for, and every answer that it was given."""

    key: IdempotencyKey
    entity: str
    consume: Amounts
    demand: Demand
    answers: list[str] = field(default_factory=list)


@dataclass
class Accounts:
    """`least`, `most`: in millitokens, by entity and limit. `left`: what merged shards took with them."""

    least: Counter[tuple[str, str]] = field(default_factory=Counter)
    most: Counter[tuple[str, str]] = field(default_factory=Counter)
    left: Counter[tuple[str, str]] = field(default_factory=Counter)
    admitted: dict[str, list[Admitted]] = field(default_factory=lambda: defaultdict(list))
    leases: list[LeaseAccount] = field(default_factory=list)
    keys: list[KeyAccount] = field(default_factory=list)
    longest_ms: int = 0
    lock: Lock = field(default_factory=Lock)

    def charge(self, demand: Demand, *, certain: bool) -> None:
        """Certainly, or perhaps."""
        for entity, amounts in demand.items():
            for name, amount in amounts.items():
                self.between(entity, name, amount if certain else 0, amount)

    def between(self, entity: str, name: str, least: int, most: int) -> None:
        with self.lock:
            self.least[entity, name] += least * MILLI
            self.most[entity, name] += most * MILLI

    def admit(self, demand: Demand, sent_ms: int, answered_ms: int) -> None:
        with self.lock:
            self.longest_ms = max(self.longest_ms, answered_ms - sent_ms)
            for entity, amounts in demand.items():
                if "rpm" in amounts:
                    self.admitted[entity].append(Admitted(amounts["rpm"], sent_ms, answered_ms))

    def check(self, store: Store, owners: Iterable[str], buckets: Iterable[Bucket]) -> None:
        """What the buckets of these owners have counted is what was admitted, given back and adjusted."""
        least, most = Counter(self.least), Counter(self.most)
        wanted = [_lease_key(lease) for lease in self.leases] + [key.key.item_key for key in self.keys]
        items = {keys.key_of(item): item for item in store.batch_get(wanted, consistent=True)}
        for lease in self.leases:
            _add_lease(lease, items.get(_lease_key(lease)), least, most)
        for key in self.keys:
            _add_key(key, items.get(key.key.item_key), least, most)
        counted: Counter[tuple[str, str]] = Counter(self.left)
        for bucket in buckets:
            for name, limit in bucket.limits.items():
                counted[bucket.entity, name] += limit.consumed_milli
        asked_for = set(owners)
        for owner in counted.keys() | most.keys():
            if owner[0] in asked_for and not least[owner] <= counted[owner] <= most[owner]:
                raise Violated(f"{owner} was charged {counted[owner]}, right is {least[owner]} to {most[owner]}")


def stands_for(lease: Lease, state: LeaseState | None) -> dict[str, int]:
    if state is None:
        return dict(lease.consumed)
    if state.state is not State.OPEN:
        return dict(state.closed_with)
    return {name: amount + state.adjusted.get(name, 0) for name, amount in lease.consumed.items()}


def _lease_key(account: LeaseAccount) -> keys.Key:
    return keys.lease(account.lease.namespace, account.lease.lease_id)


def _add_lease(
    account: LeaseAccount,
    item: Item | None,
    least: Counter[tuple[str, str]],
    most: Counter[tuple[str, str]],
) -> None:
    """Its item is written in the transaction that charges, so it tells what was charged; the answers must agree."""
    lease = account.lease
    state = None if item is None else decode_lease(item)
    marks = () if state is None else state.adjustment_marks
    applied = []
    for key, (delta, answered) in account.adjusted.items():
        if _marks(key, delta)[1] in marks:
            applied.append(delta)
        elif answered:
            raise Violated(f"an adjustment of {lease.lease_id} was answered and is not there")
    if len(applied) != len(marks):
        raise Violated(f"{lease.lease_id} was adjusted twice under one key")
    closed = None if state is None else (state.state, dict(state.closed_with))
    if any((how, dict(amounts)) != closed for how, amounts in account.closed):
        raise Violated(f"{lease.lease_id} is {closed}, and was closed by {account.closed}")
    after = stands_for(lease, state)
    if state is not None:
        adjusted = {name: sum(delta.get(name, 0) for delta in applied) for name in lease.consumed}
        if {name: state.adjusted.get(name, 0) for name in adjusted} != adjusted:
            raise Violated(f"{lease.lease_id} is adjusted by {state.adjusted}, right is {adjusted}")
    raised = {
        name: amount + sum(max(0, delta.get(name, 0)) for delta in applied) for name, amount in lease.consumed.items()
    }
    for member in lease.members:
        for name in member.shares[0].amounts_milli:
            # What could not be given back, because its shard was merged away, stays charged.
            left_out = state is not None and bool(state.left_out)
            least[member.entity, name] += after[name] * MILLI
            most[member.entity, name] += (max(raised[name], after[name]) if left_out else after[name]) * MILLI


def _add_key(
    account: KeyAccount,
    item: Item | None,
    least: Counter[tuple[str, str]],
    most: Counter[tuple[str, str]],
) -> None:
    """Its record is written in the transaction that charges, so there is one if and only if it was charged."""
    if item is None:
        if account.answers:
            raise Violated(f"{account.key.text} was answered and has no record")
        return
    if not set(account.answers) <= {decode_answer(item).answer}:
        raise Violated(f"{account.key.text} was answered differently: {account.answers}")
    for entity, amounts in account.demand.items():
        for name, amount in amounts.items():
            least[entity, name] += amount * MILLI
            most[entity, name] += amount * MILLI
