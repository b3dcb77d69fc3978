"""Would this be held, and what would make it fit? Reads only: a ledger that is not there yet is not made."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sluice.core.budget import DEFAULTS, SLOTS, Amounts, Periods, Slot, effective_terms, violations
from sluice.core.budget_states import refusal
from sluice.core.errors import BudgetExceeded, Remedy
from sluice.repository import budget_keys
from sluice.repository.ledger_items import Ledger, decode_ledger, new_ledger
from sluice.repository.store import Store
from sluice.services.chains import Chain, Chains
from sluice.services.explain import Explain, Explanation
from sluice.services.holding import Allowances, Wish, in_the_way, opened, resets_at_ms
from sluice.services.reserves import Call


@dataclass(frozen=True, slots=True)
class BudgetCheck:
    """One hard limit of one entity's budget, in the unit of its dimension."""

    entity: str
    slot: Slot
    limit: int
    used: int
    held: int
    requested: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Explained:
    """`buckets`: as without budgets. `resets_at_ms`: when the budgets that are in the way begin again; None where
    none is."""

    buckets: Explanation
    budgets: tuple[BudgetCheck, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    resets_at_ms: int | None = None

    @property
    def admissible(self) -> bool:
        return self.buckets.admissible and self.resets_at_ms is None

    @property
    def admit_at_ms(self) -> int:
        return max(self.buckets.admit_at_ms, self.resets_at_ms or 0)


class HoldExplain:
    """The service behind POST /v1/explain. Safe to share between threads."""

    def __init__(self, store: Store, explain: Explain, chains: Chains, allowances: Allowances) -> None:
        self._store = store
        self._explain = explain
        self._chains = chains
        self._book = allowances.book
        self._reserves = allowances.reserves
        self._settings = allowances.settings

    def explain(self, wish: Wish) -> Explained:
        """As an acquire would be judged now. Raises as an acquire does for what can never pass."""
        request = wish.request
        chain = opened(self._chains.look, wish)
        ledgers = self._hard_ledgers(request.namespace, chain)
        if not ledgers:
            return Explained(self._explain.judge(request, chain.opened))
        day = self._book.today(request.namespace)
        slots = frozenset(slot for ledger in ledgers for slot in ledger.terms.hard_limits)
        call = Call(request.namespace, chain.entities, wish.reserve, day.number, slots)
        amounts, present = self._reserves.amounts(call), Periods.of(day)
        checks = tuple(check for ledger in ledgers for check in _checks(ledger, present, amounts))
        found = in_the_way(ledgers, present, amounts)
        if not found:
            return Explained(self._explain.judge(request, chain.opened), checks)
        remedies = self._reserves.remedies(call, lambda less: not in_the_way(ledgers, present, less))
        zones = self._settings.org(request.namespace).settings.zones
        refused = refusal([(ledger.entity, one) for ledger, one in found], resets_at_ms(zones, day), remedies)
        if isinstance(refused, BudgetExceeded):
            buckets = self._explain.judge(request, chain.opened)
            return Explained(buckets, checks, refused.remedies, refused.resets_at_ms)
        raise refused

    def _hard_ledgers(self, namespace: str, chain: Chain) -> list[Ledger]:
        """Consistently, and under the defaults as they are now."""
        wanted = [budget_keys.ledger(namespace, entity) for entity in (DEFAULTS, *chain.entities)]
        found = {ledger.entity: ledger for ledger in map(decode_ledger, self._store.batch_get(wanted, consistent=True))}
        defaults = found.get(DEFAULTS)
        if defaults is None:
            return []
        root = self._settings.org(namespace).org
        asks, *others = chain.entities
        taking_part = [found[entity] for entity in others if entity in found and found[entity].has_own]
        if asks in found:
            taking_part.insert(0, found[asks])
        elif asks != root and defaults.has_own:
            terms = effective_terms(None, defaults.own)
            taking_part.insert(0, new_ledger(namespace, asks, self._book.present(namespace), terms, 0, 0, 0))
        ledgers = [
            ledger if ledger.entity == root else replace(ledger, terms=effective_terms(ledger.own, defaults.own))
            for ledger in taking_part
        ]
        return [ledger for ledger in ledgers if ledger.terms.hard_limits]


def _checks(ledger: Ledger, present: Periods, amounts: Amounts) -> Sequence[BudgetCheck]:
    standing = ledger.standing.at(present)
    short = {violation.slot for violation in violations(ledger.terms, standing, amounts)}
    return [
        BudgetCheck(
            entity=ledger.entity,
            slot=slot,
            limit=limit,
            used=standing.of(slot.span).used.of(slot.dimension),
            held=standing.held.of(slot.dimension),
            requested=amounts.of(slot.dimension),
            fits=slot not in short,
        )
        for slot, limit in sorted(ledger.terms.hard_limits.items(), key=lambda one: SLOTS.index(one[0]))
    ]
