"""What usage does to ledgers: each event adds what its call really took, and the first that comes with a lease frees
what was held for it, from exactly those ledgers and in exactly those amounts that its hold lists.

All of it is part of the transaction that puts the events. One ledger is one update there, whatever of its events it
comes from. Which ledgers an event goes to is decided once, before it is packed; what they look like may be learned from
a transaction that failed, and the next one is built from that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sluice.core.budget import NOTHING, Amounts, Charge, LedgerChange, Periods
from sluice.core.holds import Hold, HoldState, freed
from sluice.core.signals import Signal
from sluice.repository.holds import close_hold
from sluice.repository.ledger_items import Ledger
from sluice.repository.ledgers import change_ledger, changed_ledger
from sluice.repository.requests import TransactWrite
from sluice.repository.store import ConditionFailed
from sluice.services.effects import Effects
from sluice.services.hold_book import HoldBook
from sluice.services.judging import Charge as EventCharge
from sluice.services.ledger_book import LedgerBook


@dataclass(frozen=True, slots=True)
class LedgerWrite:
    """`present`: the periods of now, as the writer sees it."""

    seen: Ledger
    present: Periods
    change: LedgerChange


@dataclass(frozen=True, slots=True)
class LedgerPart:
    """The part of a transaction that is about budgets."""

    holds: tuple[Hold, ...] = ()
    ledgers: tuple[LedgerWrite, ...] = ()

    def writes(self, now_ms: int) -> list[TransactWrite]:
        closed: list[TransactWrite] = [{"Update": close_hold(hold, HoldState.SETTLED, now_ms)} for hold in self.holds]
        changed: list[TransactWrite] = [
            {"Update": change_ledger(one.seen, one.present, one.change, now_ms)} for one in self.ledgers
        ]
        return [*closed, *changed]

    def __len__(self) -> int:
        return len(self.holds) + len(self.ledgers)

    def epochs(self, entities: Sequence[str]) -> dict[str, int]:
        """Of these entities' ledgers."""
        return {one.seen.entity: one.seen.epoch for one in self.ledgers if one.seen.entity in entities}


NO_LEDGERS = LedgerPart()


@dataclass(slots=True)
class _Sum:
    """What one ledger gets."""

    held: Amounts = NOTHING
    charges: dict[Periods, Charge] = field(default_factory=dict)
    last: EventCharge | None = None

    def add(self, event: EventCharge) -> None:
        charge = actual_of(event)
        before = self.charges.get(charge.periods)
        if before is not None:
            charge = Charge(charge.periods, before.amounts + charge.amounts, before.errors + charge.errors)
        self.charges[charge.periods] = charge
        if self.last is None or event.event.occurred_at_ms >= self.last.event.occurred_at_ms:
            self.last = event

    @property
    def change(self) -> LedgerChange:
        return LedgerChange(
            held=self.held,
            charges=tuple(self.charges.values()),
            last_execution_at_ms=None if self.last is None else self.last.event.occurred_at_ms,
            last_execution_status=None if self.last is None else self.last.event.status.value,
        )


class LedgerCharges:
    """Safe to share between threads."""

    def __init__(self, book: LedgerBook, holds: HoldBook, effects: Effects) -> None:
        self._book = book
        self._holds = holds
        self._effects = effects

    def addressed(self, charge: EventCharge) -> EventCharge:
        """With the ledgers that it goes to. Those that hold something for it are among them, whatever they are now."""
        event, hold = charge.event, charge.opened.hold
        found = self._book.for_charge(event.namespace, event.chain, is_known=charge.is_known)
        entities = [ledger.entity for ledger in found]
        if hold is not None:
            entities += [held.entity for held in hold.ledgers]
        return replace(charge, ledgers=tuple(dict.fromkeys(entities)))

    def part(self, charges: Sequence[EventCharge]) -> LedgerPart:
        """Of the transaction that counts them, all of one namespace."""
        sums: dict[str, _Sum] = {}
        holds: dict[str, Hold] = {}
        for charge in charges:
            for entity in charge.ledgers:
                sums.setdefault(entity, _Sum()).add(charge)
            if charge.opened.hold is not None:
                hold = self._holds.now(charge.opened.hold)
                if hold.state is HoldState.OPEN:
                    # The second event on a lease finds nothing left to free.
                    holds[hold.lease_id] = hold
        if not sums:
            return LedgerPart(tuple(holds.values()))
        for hold in holds.values():
            for held in hold.ledgers:
                sums[held.entity].held += freed(held.amounts)
        namespace = charges[0].event.namespace
        present = self._book.present(namespace)
        # Those that held for a call may never have been seen here, and others may have been forgotten since they were
        # seen, or made: what a lagging read misses would be charged to nobody, and no refresh would ever find it.
        known = self._book.named(namespace, list(sums), sure=sums)
        ledgers = (LedgerWrite(known[name], present, one.change) for name, one in sums.items() if name in known)
        return LedgerPart(tuple(holds.values()), tuple(ledgers))

    def happened(self, part: LedgerPart, charges: Sequence[EventCharge], now_ms: int) -> None:
        for hold in part.holds:
            self._holds.closed(hold, HoldState.SETTLED)
        for one in part.ledgers:
            self._book.remember(changed_ledger(one.seen, one.present, one.change, now_ms))
        late = [charge for charge in charges if self._is_late(charge)]
        if late:
            cost = sum(charge.increase.cost_usd_micros for charge in late)
            self._effects.meter.count(Signal.HOLDS_SETTLED_LATE, len(late))
            self._effects.meter.count(Signal.LATE_SETTLED_USD_MICROS, cost)

    def overtaken(self, part: LedgerPart, failures: Sequence[ConditionFailed | None]) -> None:
        """Nothing happened. One failure for each write of the part: what is there instead is learned."""
        of_holds, of_ledgers = failures[: len(part.holds)], failures[len(part.holds) :]
        for hold, failure in zip(part.holds, of_holds, strict=True):
            if failure is not None and failure.item is not None:
                self._holds.learn(failure.item)
            elif failure is not None:
                self._holds.forget(hold)
        for one, failure in zip(part.ledgers, of_ledgers, strict=True):
            if failure is not None and failure.item is not None:
                self._book.learn(failure.item)
            elif failure is not None:
                self._book.refresh(one.seen.namespace, [one.seen.entity])

    def _is_late(self, charge: EventCharge) -> bool:
        """Reported after its hold was swept: the budget may be passed by it."""
        hold = charge.opened.hold
        return hold is not None and self._holds.now(hold).state is HoldState.EXPIRED


def actual_of(charge: EventCharge) -> Charge:
    """What a call really took. Where nobody knows its cost it is in no sum of costs."""
    used = charge.increase
    amounts = Amounts(used.cost_usd_micros, sum(used.tokens.values()), used.requests)
    return Charge(Periods.of_name(charge.event.day), amounts, used.errors)
