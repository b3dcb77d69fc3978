"""Holds: what a call under way takes at most, put aside in the hard budgets of its chain before it starts. Pure.

A hold names exactly the ledgers that it was added to and the amounts. Whoever ends it, by a settlement, a release or
after its time, subtracts just that from just those, whatever changed since.
"""

from dataclasses import dataclass
from enum import StrEnum

from sluice.core.budget import NOTHING, Amounts


class HoldState(StrEnum):
    OPEN = "open"
    SETTLED = "settled"
    """By a usage event, which tells what the call really took."""
    RELEASED = "released"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class HeldIn:
    """What one ledger holds for a call."""

    entity: str
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class Hold:
    """`chain`: whom the call is charged to, the entity first, with or without a ledger. `ledgers`: those that hold.

    `day`: on which it was taken, as it is stored; the call is never counted before.
    """

    namespace: str
    lease_id: str
    entity: str
    resource: str
    chain: tuple[str, ...]
    ledgers: tuple[HeldIn, ...]
    day: str
    taken_at_ms: int
    expires_at_ms: int
    state: HoldState = HoldState.OPEN

    @property
    def amounts(self) -> Amounts:
        """What each of its ledgers holds."""
        return self.ledgers[0].amounts if self.ledgers else NOTHING

    def held_in(self, entity: str) -> Amounts:
        """Nothing where that ledger is none of those that hold."""
        return next((one.amounts for one in self.ledgers if one.entity == entity), NOTHING)


def freed(amounts: Amounts) -> Amounts:
    """What the end of a hold adds to what is held."""
    return NOTHING - amounts
