"""The end of a hold without a settlement, as a part of a transaction: it is closed, and subtracted from its ledgers.

The ledgers and amounts are those that the hold lists, whatever changed since. A ledger that was removed is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.core.budget import LedgerChange
from sluice.core.holds import Hold, HoldState, freed
from sluice.core.lease import Lease
from sluice.repository.holds import close_hold
from sluice.repository.ledger_items import Ledger
from sluice.repository.ledgers import change_ledger, changed_ledger
from sluice.repository.requests import TransactWrite
from sluice.repository.store import ConditionFailed
from sluice.services.effects import Effects
from sluice.services.hold_book import HoldBook
from sluice.services.ledger_book import LedgerBook


@dataclass(frozen=True, slots=True)
class Ending:
    """`writes`: the close of the hold first, then one for each ledger. `after`: the ledgers as they leave them."""

    hold: Hold
    how: HoldState
    writes: tuple[TransactWrite, ...]
    after: tuple[Ledger, ...]


class Freeing:
    """Safe to share between threads."""

    def __init__(self, holds: HoldBook, book: LedgerBook, effects: Effects) -> None:
        self._holds = holds
        self._book = book
        self._clock_ms = effects.clock_ms

    def ending(self, lease: Lease) -> Ending | None:
        """None where nothing is held for the lease, or no longer."""
        hold = self._holds.find(lease) if lease.holds else None
        return None if hold is None else self.end(hold, HoldState.RELEASED)

    def end(self, seen: Hold, how: HoldState) -> Ending | None:
        """None where it is closed by now, as far as this process knows."""
        hold = self._holds.now(seen)
        if hold.state is not HoldState.OPEN:
            return None
        now_ms = self._clock_ms()
        present = self._book.present(hold.namespace)
        entities = [held.entity for held in hold.ledgers]
        known = self._book.named(hold.namespace, entities, sure=entities)
        changes = [
            (known[held.entity], LedgerChange(held=freed(held.amounts)))
            for held in hold.ledgers
            if held.entity in known
        ]
        updates: list[TransactWrite] = [
            {"Update": change_ledger(ledger, present, change, now_ms)} for ledger, change in changes
        ]
        return Ending(
            hold,
            how,
            ({"Update": close_hold(hold, how, now_ms)}, *updates),
            tuple(changed_ledger(ledger, present, change, now_ms) for ledger, change in changes),
        )

    def ended(self, ending: Ending) -> None:
        """It happened."""
        self._holds.closed(ending.hold, ending.how)
        for ledger in ending.after:
            self._book.remember(ledger)

    def overtaken(self, ending: Ending, failures: Sequence[ConditionFailed | None]) -> None:
        """It did not, by these failures of its writes: what is there instead is learned."""
        of_hold, *of_ledgers = failures
        if of_hold is not None and of_hold.item is not None:
            self._holds.learn(of_hold.item)
        elif of_hold is not None:
            self._holds.forget(ending.hold)
        for ledger, failure in zip(ending.after, of_ledgers, strict=True):
            if failure is not None and failure.item is not None:
                self._book.learn(failure.item)
            elif failure is not None:
                self._book.refresh(ledger.namespace, [ledger.entity])
