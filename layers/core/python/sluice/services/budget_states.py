"""The state of a budget: what holds and what was used, as of now. Reading it writes nothing, also after a midnight."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sluice.core.budget import (
    DEFAULTS,
    Guarantee,
    OwnBudget,
    Periods,
    Slot,
    Span,
    Terms,
    effective_terms,
    empty_standing,
    guarantee,
)
from sluice.core.budget_states import SpanState, span_state
from sluice.core.period import day_number, local_day, local_month, numbered_day
from sluice.repository.ledger_items import Ledger
from sluice.services.settings import SettingsCache
from sluice.services.zones import ZoneCalendar

OWN: Final = "own"
DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class BudgetState:
    """`ledger`: None where nothing was counted yet and the defaults hold. `own`: None where nobody asked for one.

    `sources`: where each limit comes from, OWN or DEFAULT.
    """

    entity: str
    ledger: Ledger | None
    own: OwnBudget | None
    terms: Terms
    sources: Mapping[Slot, str]
    day: SpanState
    month: SpanState
    guarantee: Guarantee


class BudgetStates:
    def __init__(self, settings: SettingsCache, clock_ms: Callable[[], int]) -> None:
        self._settings = settings
        self._clock_ms = clock_ms
        self._calendar = ZoneCalendar()

    def of(self, namespace: str, entity: str, ledger: Ledger | None, defaults: Ledger | None) -> BudgetState:
        """By the defaults as they are now: a ledger that was not written since still has the old ones."""
        org = self._settings.org(namespace)
        zones, now_ms = org.settings.zones, self._clock_ms()
        present = Periods.of(local_day(zones, now_ms, self._calendar))
        own = OwnBudget() if ledger is None else ledger.own
        terms = effective_terms(own, None if defaults is None or entity == org.org else defaults.own)
        standing = (ledger.standing if ledger is not None else empty_standing(present)).at(present)
        # By a clock that is a little ahead of ours the next day may have begun.
        day = numbered_day(zones, day_number(standing.periods.day), self._calendar)
        month = local_month(zones, standing.periods.month, self._calendar)
        return BudgetState(
            entity=entity,
            ledger=ledger,
            own=own if ledger is not None and ledger.has_own else None,
            terms=terms,
            sources={slot: OWN if slot in own.limits else DEFAULT for slot in terms.limits},
            day=span_state(terms, standing, Span.DAY, day, now_ms),
            month=span_state(terms, standing, Span.MONTH, month, now_ms),
            guarantee=guarantee(terms, standing),
        )

    def inherits(self, namespace: str, entity: str, defaults: Ledger | None) -> bool:
        """Whether the defaults are a budget of an entity that has none of its own."""
        return defaults is not None and defaults.has_own and entity not in {DEFAULTS, self.root(namespace)}

    def root(self, namespace: str) -> str:
        return self._settings.org(namespace).org
