"""The budgets of an org with their counters: one query for the keys, batch reads for the rest.

By entity a page costs what it shows. By cost all are read for each page, so there is a bound on how many that may be;
and while calls go on, what was counted between two pages may be on both of them or on none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice.core.budget import DEFAULTS, Span
from sluice.core.errors import InvalidRequest
from sluice.repository import budget_keys, keys
from sluice.repository.entities import children_query
from sluice.repository.items import decode_entity
from sluice.repository.keys import Key
from sluice.repository.ledger_items import Ledger, decode_ledger
from sluice.repository.ledgers import ledgers_queries
from sluice.repository.listing import is_listed
from sluice.repository.requests import QueryRequest
from sluice.repository.shapes import text, whole
from sluice.repository.store import Store
from sluice.repository.wire import Item
from sluice.services.budget_states import BudgetState, BudgetStates
from sluice.services.cursors import START, Cursors, Position
from sluice.services.listing import Listed, Lists, PageRequest, Walk

SORTED_MAX: Final = 1_000


class Sort(StrEnum):
    """By cost: the highest of the present period first, with what is held."""

    ENTITY = "entity"
    DAY_COST = "day_cost"
    MONTH_COST = "month_cost"


_Rank = tuple[int, str]


@dataclass(frozen=True, slots=True)
class _Source:
    """`key_of`: of the ledger, from what a query gives."""

    queries: Sequence[QueryRequest]
    key_of: Callable[[Item], Key | None]


class BudgetLists:
    def __init__(self, store: Store, lists: Lists, cursors: Cursors, states: BudgetStates) -> None:
        self._store = store
        self._lists = lists
        self._cursors = cursors
        self._states = states

    def of(
        self, namespace: str, page: PageRequest, sort: Sort = Sort.ENTITY, within: str | None = None
    ) -> Listed[BudgetState]:
        """All that count. `within`: only those right below this entity."""
        purpose = (namespace, "budgets", sort.value, within or "")
        if within is None:
            source = _Source(ledgers_queries(namespace), keys.key_of)
        else:
            source = _Source([children_query(namespace, within)], lambda item: _of_child(namespace, item))
        if sort is not Sort.ENTITY:
            return self._sorted(namespace, purpose, source, page, Span.DAY if sort is Sort.DAY_COST else Span.MONTH)
        listed = self._lists.by_other_key(purpose, source.queries, page, source.key_of, decode_ledger)
        return Listed(tuple(self._states_of(namespace, listed.items)), listed.next_cursor)

    def _sorted(
        self, namespace: str, purpose: Sequence[str], source: _Source, page: PageRequest, span: Span
    ) -> Listed[BudgetState]:
        after = self._cursors.read(purpose, page.cursor).after
        found = Walk(self._store, source.queries, START).take(SORTED_MAX + 1)
        if len(found) > SORTED_MAX:
            raise InvalidRequest("sort", f"there are more than {SORTED_MAX} entities; list them by entity")
        wanted = [key for entry in found if (key := source.key_of(entry.item)) is not None]
        ledgers = [decode_ledger(item) for item in self._store.batch_get(wanted)]
        ranked = {_rank(state, span): state for state in self._states_of(namespace, ledgers)}
        behind = sorted(rank for rank in ranked if after is None or rank > _rank_in(after))
        following = None
        if len(behind) > page.limit:
            cost, entity = behind[page.limit - 1]
            following = self._cursors.write(purpose, Position(after={"cost": cost, "entity": entity}))
        return Listed(tuple(ranked[rank] for rank in behind[: page.limit]), following)

    def _states_of(self, namespace: str, ledgers: Sequence[Ledger]) -> list[BudgetState]:
        if not ledgers:
            return []
        item = self._store.get(budget_keys.ledger(namespace, DEFAULTS))
        defaults = None if item is None else decode_ledger(item)
        return [self._states.of(namespace, ledger.entity, ledger, defaults) for ledger in ledgers]


def _of_child(namespace: str, item: Item) -> Key | None:
    """The ledger of an entity that was read; None for one of an old layout."""
    return budget_keys.ledger(namespace, decode_entity(item).entity) if is_listed(item) else None


def _rank(state: BudgetState, span: Span) -> _Rank:
    used = state.day.used if span is Span.DAY else state.month.used
    return -used.cost_usd_micros, state.entity


def _rank_in(after: Item) -> _Rank:
    return whole(after, "cost"), text(after, "entity")
