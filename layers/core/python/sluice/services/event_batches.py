"""How many events go into few transactions. Pure: of the shards somebody else draws the first ones.

What a transaction adds to one counter is one update, whoever of its events it comes from; and a lease that several of
them name is closed once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sluice.core.backoff import RandomBelow
from sluice.core.metering import Counters
from sluice.repository.counters import CounterName, add_to_shard
from sluice.repository.requests import TransactWrite
from sluice.repository.store import Cancelled, ConditionFailed
from sluice.services.judging import Charge
from sluice.services.leases import Closing
from sluice.services.ledger_charges import NO_LEDGERS, LedgerPart

TRANSACTION_ITEMS_MAX: Final = 100
"""What DynamoDB takes. Its 4 MB are not reached: a batch has 1 MB, and an event is little more than its report."""

Shards = Mapping[CounterName, int]


def parcels(charges: Sequence[Charge]) -> list[list[Charge]]:
    """Each for one transaction, in an order in which they may be sent.

    A transaction may touch an item once, and a report that does not say when its call was touches the keys of several
    days: so what has one request id never meets in a parcel, and stays in its order.
    """
    packed: list[list[Charge]] = []
    for wave in _waves(charges):
        size = 0
        touched: set[object] = set()
        for charge in sorted(wave, key=lambda one: one.counters):
            shared = _shared(charge)
            more = len(charge.writes) + len(shared - touched)
            if not touched or size + more > TRANSACTION_ITEMS_MAX:
                packed.append([])
                size, touched = 0, set()
                more = len(charge.writes) + len(shared)
            packed[-1].append(charge)
            size += more
            touched |= shared
    return packed


@dataclass(frozen=True, slots=True)
class Parcel:
    """One transaction. `closings`: of the leases that it closes, by their ids. `budgets`: what it does to ledgers."""

    charges: Sequence[Charge]
    closings: Mapping[str, Closing]
    now_ms: int
    budgets: LedgerPart = NO_LEDGERS

    def drawn(self, random_below: RandomBelow) -> Shards:
        """A shard of each counter, at random."""
        return {name: random_below(charge.shards) for name, (charge, _) in self._increases().items()}

    def moved(self, shards: Shards, random_below: RandomBelow) -> Shards:
        """Other shards than these, where there are others: somebody writes to one of them just now. At random, for
        whoever met there must not meet again."""
        return {
            name: (shards[name] + 1 + random_below(max(charge.shards - 1, 1))) % charge.shards
            for name, (charge, _) in self._increases().items()
        }

    def writes(self, shards: Shards) -> list[TransactWrite]:
        """In the same order whatever the shards are: the events, the leases, holds and ledgers, the counters.

        A settle comes alone, so its corrections need no room beside others: 64 shards at most, and less than twenty
        other items.
        """
        events = [write for charge in self.charges for write in charge.writes]
        leases = [write for closing in self.closings.values() for write in closing.writes]
        counters: list[TransactWrite] = []
        for name, (charge, increase) in self._increases().items():
            day_ends_ms = charge.opened.day.ends_ms
            counters.append({"Update": add_to_shard(name, shards[name], day_ends_ms, increase, self.now_ms)})
        return [*events, *leases, *self.budgets.writes(self.now_ms), *counters]

    def of_events(self, cancelled: Cancelled) -> list[tuple[Charge, list[ConditionFailed]]]:
        """What failed of each event."""
        failures = iter(cancelled.failures)
        found = []
        for charge in self.charges:
            own = [next(failures) for _ in charge.writes]
            found.append((charge, [failure for failure in own if failure is not None]))
        return found

    def of_leases(self, cancelled: Cancelled) -> list[tuple[Closing, Sequence[ConditionFailed | None]]]:
        """Of the leases that were not as they were thought to be, or whose buckets were not, one for each write."""
        start = sum(len(charge.writes) for charge in self.charges)
        found = []
        for closing in self.closings.values():
            end = start + len(closing.writes)
            found.append((closing, cancelled.failures[start:end]))
            start = end
        return [(closing, failures) for closing, failures in found if any(failure is not None for failure in failures)]

    def of_budgets(self, cancelled: Cancelled) -> Sequence[ConditionFailed | None]:
        """One for each write about budgets."""
        before = [one.writes for one in self.charges] + [one.writes for one in self.closings.values()]
        start = sum(len(writes) for writes in before)
        return cancelled.failures[start : start + len(self.budgets)]

    def _increases(self) -> dict[CounterName, tuple[Charge, Counters]]:
        """With one of the charges that they come from: all of a counter have the same day and org."""
        found: dict[CounterName, tuple[Charge, Counters]] = {}
        for charge in self.charges:
            for name in charge.counters:
                increase = found[name][1] + charge.increase if name in found else charge.increase
                found[name] = (charge, increase)
        return found


def _waves(charges: Sequence[Charge]) -> list[list[Charge]]:
    """The first of each request id, then the second of each, and so on."""
    waves: list[list[Charge]] = []
    seen: dict[str, int] = {}
    for charge in charges:
        request_id = charge.event.request_id
        number = seen.get(request_id, 0)
        seen[request_id] = number + 1
        if number == len(waves):
            waves.append([])
        waves[number].append(charge)
    return waves


def _shared(charge: Charge) -> set[object]:
    """The items that other events of the same transaction may touch as well."""
    lease = () if charge.lease is None else (("lease", charge.lease.lease_id),)
    hold = () if charge.opened.hold is None else (("hold", charge.opened.hold.lease_id),)
    return {*charge.counters, *lease, *hold, *(("ledger", entity) for entity in charge.ledgers)}
