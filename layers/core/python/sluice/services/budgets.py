"""Budgets of entities and the defaults of an org: read, replaced and removed, each guarded by the version seen.

A change, the turn of a period that may be due, and the audit event are one transaction. It asks that what holds is as
seen, and not what was counted: so limits change under any traffic, and nothing that is counted is lost. A change that
met another is built anew, with the same event: should an earlier try have been applied after all, the event is there
already, and the change is done.

The first budget of a namespace puts the defaults as well, empty: where they are not there, nobody has a budget, and
nobody needs to look for one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sluice.core.audit import Action, Author, budget_subject, budget_target
from sluice.core.backoff import contended_wait_ms
from sluice.core.budget import DEFAULTS, Enforcement, OwnBudget, Terms, effective_terms
from sluice.core.errors import Contended, NotFound, PreconditionFailed
from sluice.repository import budget_keys, keys
from sluice.repository.audit import AuditEvent, audit_put, decode_audit_event
from sluice.repository.entities import entity_exists
from sluice.repository.ledger_items import FIRST_VERSION, NO_DEFAULTS, Ledger, budget_image, decode_ledger, new_ledger
from sluice.repository.ledgers import asked, change_terms, put_ledger, with_terms
from sluice.repository.requests import TransactWrite
from sluice.repository.store import Committed, ConditionFailed, Store
from sluice.services.budget_states import BudgetState, BudgetStates
from sluice.services.configuration import Configuration
from sluice.services.confinement import no_such_entity
from sluice.services.effects import Effects
from sluice.services.ledger_book import LedgerBook

_WRITE_ROUNDS: Final = 8
"""More than elsewhere: a ledger may be busy, and every transaction on it is in the way of this one."""
_REMOVED: Final = OwnBudget(enforcement=Enforcement.NONE, inherit=False)

Precondition = Callable[[Ledger | None], bool]
"""What a caller demands of the stored budget, such as If-Match."""


def any_budget(_budget: Ledger | None) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ReplacedBudget:
    """`created`: nobody had asked for one before."""

    state: BudgetState
    created: bool


@dataclass(frozen=True, slots=True)
class ReplacedDefaults:
    ledger: Ledger
    created: bool


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a change starts from. `ledger`: None where there is none; of the defaults it is the defaults."""

    ledger: Ledger | None
    defaults: Ledger | None

    @property
    def budget(self) -> Ledger | None:
        """What callers know of: a ledger that counts by the defaults, or goes on counting, is no budget."""
        return self.ledger if self.ledger is not None and self.ledger.has_own else None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """`own`: None where the budget is to be removed."""

    namespace: str
    entity: str
    own: OwnBudget | None
    author: Author


@dataclass(frozen=True, slots=True)
class _Try:
    before: Ledger | None
    after: Ledger
    defaults: Ledger | None


class Budgets:
    def __init__(
        self, store: Store, book: LedgerBook, states: BudgetStates, configuration: Configuration, effects: Effects
    ) -> None:
        self._store = store
        self._book = book
        self._states = states
        self._configuration = configuration
        self._effects = effects

    def get(self, namespace: str, entity: str) -> BudgetState:
        """With the counters as of now."""
        seen = self._look(namespace, entity)
        if seen.ledger is None and not self._states.inherits(namespace, entity, seen.defaults):
            raise NotFound("this entity has no budget, and there are no defaults")
        return self._states.of(namespace, entity, seen.ledger, seen.defaults)

    def put(
        self,
        namespace: str,
        entity: str,
        own: OwnBudget,
        precondition: Precondition = any_budget,
        *,
        author: Author,
    ) -> ReplacedBudget:
        """Replaces what was asked as a whole; what was counted stays."""
        done = self._change(_Wanted(namespace, entity, own, author), precondition)
        state = self._states.of(namespace, entity, done.after, done.defaults)
        return ReplacedBudget(state, created=done.before is None)

    def delete(self, namespace: str, entity: str, precondition: Precondition = any_budget, *, author: Author) -> None:
        """Limits go, counters stay. From then on it is only counted, whatever the defaults say."""
        self._change(_Wanted(namespace, entity, None, author), precondition)

    def get_defaults(self, namespace: str) -> Ledger:
        found = self._look(namespace, DEFAULTS).budget
        if found is None:
            raise NotFound("there are no defaults")
        return found

    def put_defaults(
        self, namespace: str, own: OwnBudget, precondition: Precondition = any_budget, *, author: Author
    ) -> ReplacedDefaults:
        """Acts on whoever inherits within the cache's time."""
        done = self._change(_Wanted(namespace, DEFAULTS, own, author), precondition)
        return ReplacedDefaults(done.after, created=done.before is None)

    def delete_defaults(self, namespace: str, precondition: Precondition = any_budget, *, author: Author) -> None:
        self._change(_Wanted(namespace, DEFAULTS, None, author), precondition)

    def _look(self, namespace: str, entity: str) -> _Seen:
        """Consistently."""
        of_entity, of_defaults = budget_keys.ledger(namespace, entity), budget_keys.ledger(namespace, DEFAULTS)
        meta = keys.entity(namespace, entity)
        wanted = [of_defaults] if entity == DEFAULTS else [of_entity, of_defaults, meta]
        items = {keys.key_of(item): item for item in self._store.batch_get(wanted, consistent=True)}
        if entity != DEFAULTS and meta not in items:
            raise no_such_entity()
        ledgers = {key: decode_ledger(items[key]) for key in (of_entity, of_defaults) if key in items}
        return _Seen(ledgers.get(of_entity), ledgers.get(of_defaults))

    def _change(self, wanted: _Wanted, precondition: Precondition) -> _Try:
        seen = self._look(wanted.namespace, wanted.entity)
        if wanted.own is None and seen.budget is None:
            raise NotFound("there is no such budget")
        event_id, at_ms = self._effects.new_token(), self._effects.clock_ms()
        tried: list[_Try] = []
        for _ in range(_WRITE_ROUNDS):
            if not precondition(seen.budget):
                raise PreconditionFailed("the stored version is another one")
            if wanted.own is None and seen.budget is None:
                # Another removed it meanwhile, and told so.
                return tried[-1]
            tried.append(_Try(seen.budget, self._after(wanted, seen, at_ms), seen.defaults))
            event = _event(wanted, tried[-1], event_id, at_ms)
            writes = [audit_put(wanted.namespace, event), *self._writes(wanted, seen, tried[-1].after, at_ms)]
            try:
                outcome = self._store.transact(writes, self._effects.new_token())
            except Contended:
                # Every transaction on a busy ledger is in the way; nothing was done.
                continue
            if isinstance(outcome, Committed):
                return self._done(wanted, tried[-1])
            if outcome.failures[0] is not None:
                return self._done(wanted, _applied(tried, outcome.failures[0]))
            # All of it: a ledger that is ahead has terms by newer defaults.
            seen = self._look(wanted.namespace, wanted.entity)
        raise Contended(contended_wait_ms(self._effects.random_below))

    def _after(self, wanted: _Wanted, seen: _Seen, now_ms: int) -> Ledger:
        namespace, entity = wanted.namespace, wanted.entity
        own = _own(wanted)
        terms, version = self._terms(wanted, own, seen)
        present = self._book.present(namespace)
        if seen.ledger is None:
            made = new_ledger(namespace, entity, present, terms, version, now_ms, self._book.first_epoch(now_ms))
            return asked(made, own)
        after = with_terms(seen.ledger, present, terms, version, now_ms)
        return asked(after, own, has_own=wanted.own is not None)

    def _terms(self, wanted: _Wanted, own: OwnBudget, seen: _Seen) -> tuple[Terms, int]:
        """What holds then, and the version of the defaults in it."""
        if wanted.entity == DEFAULTS:
            return effective_terms(own, None), NO_DEFAULTS
        if seen.defaults is None:
            # They are put along.
            return effective_terms(own, None), FIRST_VERSION
        inherited = None if wanted.entity == self._states.root(wanted.namespace) else seen.defaults.own
        return effective_terms(own, inherited), seen.defaults.limits_version

    def _writes(self, wanted: _Wanted, seen: _Seen, after: Ledger, now_ms: int) -> list[TransactWrite]:
        """Of the ledger, and what goes with it."""
        writes: list[TransactWrite] = [
            {"Put": put_ledger(after)} if seen.ledger is None else {"Update": change_terms(seen.ledger, after)}
        ]
        if wanted.entity == DEFAULTS:
            return writes
        # Nobody gets a budget while it is being removed.
        writes.append({"ConditionCheck": entity_exists(wanted.namespace, wanted.entity)})
        if seen.defaults is None:
            present, terms = after.standing.periods, effective_terms(None, None)
            first_epoch = self._book.first_epoch(now_ms)
            empty = new_ledger(wanted.namespace, DEFAULTS, present, terms, NO_DEFAULTS, now_ms, first_epoch)
            writes.append({"Put": put_ledger(empty)})
        return writes

    def _done(self, wanted: _Wanted, done: _Try) -> _Try:
        """At once in this process; in the others when their caches are over, or when a write of theirs fails."""
        self._configuration.forget(wanted.namespace)
        if done.defaults is None:
            self._book.refresh(wanted.namespace, [DEFAULTS])
        self._book.keep(done.after)
        return done


def _own(wanted: _Wanted) -> OwnBudget:
    if wanted.own is not None:
        return wanted.own
    return OwnBudget() if wanted.entity == DEFAULTS else _REMOVED


def _event(wanted: _Wanted, change: _Try, event_id: str, at_ms: int) -> AuditEvent:
    return AuditEvent(
        event_id=event_id,
        subject=budget_subject(wanted.entity),
        at_ms=at_ms,
        author=wanted.author,
        action=Action.BUDGET_DELETE if wanted.own is None else Action.BUDGET_PUT,
        target=budget_target(wanted.entity),
        before=None if change.before is None else budget_image(change.before),
        after=None if wanted.own is None else budget_image(change.after),
    )


def _applied(tried: Sequence[_Try], told: ConditionFailed) -> _Try:
    """Which of our tries the event that is there tells of."""
    event = None if told.item is None else decode_audit_event(told.item)
    after = None if event is None else event.after
    return next((done for done in reversed(tried) if budget_image(done.after) == after), tried[-1])
