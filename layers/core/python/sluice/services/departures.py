"""What an app may not take an entity of its own out of: limits and budgets that its org has set.

They bind the app, so it neither removes an entity that has some of its own nor takes one away from below it: a removal
is a move as well, for what is gone can be made anew elsewhere. A hard budget that is inherited goes with the entity:
removed and made anew, it would have the whole of it once more. So while something of it is spent in its period, the
entity stays. New ids begin with nothing spent all the same, wherever in the app they are put; what holds an app that
makes up users is a budget on the app itself, or above it.
"""

from collections.abc import Callable, Sequence
from typing import Final

from sluice.core.budget import DEFAULTS, Periods, Slot, effective_terms
from sluice.core.errors import Forbidden
from sluice.core.period import local_day
from sluice.repository import budget_keys
from sluice.repository.ledger_items import Ledger, decode_ledger
from sluice.repository.limits import own_limits_query
from sluice.repository.store import Store
from sluice.services.settings import SettingsCache
from sluice.services.zones import ZoneCalendar

_LIMITS: Final = "limits of its own are the org's to remove; ask with the org's token"
_BUDGET: Final = "a budget of its own is the org's to remove; ask with the org's token"
_ABOVE: Final = "it stands below limits or a budget that the org has set; ask with the org's token"
_SPENT: Final = "it has spent some of its hard budget; ask with the org's token, or when the period is over"


class Departures:
    """Everything is read as the table is now."""

    def __init__(self, store: Store, clock_ms: Callable[[], int]) -> None:
        self._store = store
        self._clock_ms = clock_ms
        self._settings = SettingsCache(store, clock_ms)
        self._calendar = ZoneCalendar()

    def refuse_below(self, namespace: str, entity: str) -> None:
        """Where the org has bound this entity, and so whoever stands below it."""
        ledger = self._ledger(namespace, entity)
        if self._has_limits(namespace, entity) or (ledger is not None and ledger.has_own):
            raise Forbidden(_ABOVE)

    def refuse_with_limits(self, namespace: str, entity: str) -> None:
        if self._has_limits(namespace, entity):
            raise Forbidden(_LIMITS)

    def refuse_with_ledger(self, ledger: Ledger | None) -> None:
        """As removal asks, which sees to it that until the entity is gone nobody puts a budget on it or spends."""
        if ledger is not None and ledger.has_own:
            raise Forbidden(_BUDGET)
        if ledger is not None and self._spent_hard(ledger):
            raise Forbidden(_SPENT)

    def _spent_hard(self, ledger: Ledger) -> bool:
        """Of what holds by the defaults as they are: the ledger learns of them when it is next written."""
        defaults = self._ledger(ledger.namespace, DEFAULTS)
        hard = effective_terms(ledger.own, None if defaults is None else defaults.own).hard_limits
        return bool(hard) and self._spent(ledger, tuple(hard))

    def _spent(self, ledger: Ledger, slots: Sequence[Slot]) -> bool:
        org = self._settings.org_now(ledger.namespace)
        if org is None:
            # A purge is under way.
            return True
        now = ledger.standing.at(Periods.of(local_day(org.settings.zones, self._clock_ms(), self._calendar)))
        return any(now.of(slot.span).used.of(slot.dimension) > 0 for slot in slots)

    def _has_limits(self, namespace: str, entity: str) -> bool:
        return bool(self._store.query({**own_limits_query(namespace, entity), "Limit": 1}).items)

    def _ledger(self, namespace: str, entity: str) -> Ledger | None:
        item = self._store.get(budget_keys.ledger(namespace, entity), consistent=True)
        return None if item is None else decode_ledger(item)
