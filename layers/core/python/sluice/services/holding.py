"""Acquires under hard budgets: what a call may take at most is held before it starts.

One transaction takes the buckets, adds to every hard ledger of the chain and puts the hold; all of it happens, or
nothing. The images of ledgers that this process has may be old. The transaction fails where that matters, and what
comes back builds the next one: with turned periods, under other limits, or as a refusal. The put of the hold, under an
id that is drawn once, makes it once over all of them.

Nobody is refused by an old image: before that, all ledgers of the chain are read consistently, unless the transaction
has just returned them. A refusal tells every limit that is in the way and changes no ledger. Between a budget and a
bucket, the budget is told first, as far as this process knows: waiting for seconds does not help.

A table that does not answer never opens the gate of a hard budget, whatever the system's limits say. While nobody can
tell whether there is one, what this process saw last decides, and not knowing keeps the gate shut.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from sluice.core.admission import Admission
from sluice.core.backoff import contended_wait_ms
from sluice.core.budget import (
    DEFAULTS,
    Amounts,
    LedgerChange,
    Periods,
    Span,
    Violation,
    latest,
    never_fits,
    violations,
)
from sluice.core.budget_states import refusal
from sluice.core.errors import (
    BudgetExceeded,
    Contended,
    NeverWithinBudget,
    NoLimits,
    PriceMissing,
    ReserveRequired,
    UnknownLimit,
)
from sluice.core.holds import HeldIn, Hold
from sluice.core.period import LocalDay, local_month
from sluice.core.reserves import Reserve
from sluice.core.signals import Signal
from sluice.core.timelines import Zones
from sluice.repository.holds import decode_hold, put_hold
from sluice.repository.idempotency import IdempotencyKey
from sluice.repository.ledger_items import Ledger
from sluice.repository.ledgers import changed_ledger, hold_in_ledger
from sluice.repository.requests import TransactWrite
from sluice.repository.store import ConditionFailed
from sluice.services.acquire import Acquire
from sluice.services.chains import AcquireRequest, Chain, Chains
from sluice.services.claims import Taken
from sluice.services.effects import Effects
from sluice.services.gates import Gate, Gates
from sluice.services.hold_book import HoldBook
from sluice.services.idempotency import Along, Answered, IdempotentAcquire, Render
from sluice.services.ledger_book import LedgerBook
from sluice.services.reserves import Call, Reserves
from sluice.services.settings import SettingsCache
from sluice.services.together import Refused, Together
from sluice.services.zones import ZoneCalendar

HOLD_ROUNDS: Final = 8

Found = Sequence[tuple[Ledger, Violation]]


class HardCaps(Protocol):
    """Is told of every refusal by a hard budget that is used up."""

    def refused(self, found: Found) -> None: ...


@dataclass(frozen=True, slots=True)
class Wish:
    """An acquire as it is asked for. `ttl_ms`: how long its lease, and what is held for it, lives."""

    request: AcquireRequest
    reserve: Reserve | None
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One acquire over all of its transactions. `fresh`: the entities whose ledgers were seen as they are now. `drawn`:
    what each of the transactions was to hold."""

    wish: Wish
    chain: Chain
    lease_id: str
    fresh: set[str] = field(default_factory=set)
    drawn: list["_Drawn"] = field(default_factory=list)

    @property
    def namespace(self) -> str:
        return self.wish.request.namespace


@dataclass(frozen=True, slots=True)
class _Drawn:
    """What one transaction is about to hold."""

    admission: Admission
    hold: Hold
    present: Periods

    def writes(self, ledgers: Sequence[Ledger], amounts: Amounts) -> list[TransactWrite]:
        at_ms = self.hold.taken_at_ms
        updates: list[TransactWrite] = [
            {"Update": hold_in_ledger(ledger, self.present, amounts, at_ms)} for ledger in ledgers
        ]
        return [*updates, {"Put": put_hold(self.hold)}]


@dataclass(frozen=True, slots=True)
class Allowances:
    """What holding must know of budgets."""

    book: LedgerBook
    holds: HoldBook
    reserves: Reserves
    settings: SettingsCache
    hard_caps: HardCaps | None = None


class Holding:
    """The service behind POST /v1/acquire. Safe to share between threads."""

    def __init__(
        self,
        acquire: Acquire,
        idempotent: IdempotentAcquire,
        chains: Chains,
        together: Together,
        allowances: Allowances,
        effects: Effects,
        timer_ms: Callable[[], int],
    ) -> None:
        self._acquire = acquire
        self._idempotent = idempotent
        self._chains = chains
        self._together = together
        self._book = allowances.book
        self._holds = allowances.holds
        self._reserves = allowances.reserves
        self._settings = allowances.settings
        self._hard_caps = allowances.hard_caps
        self._effects = effects
        self._gates = Gates(timer_ms)

    def acquire(self, wish: Wish) -> Admission:
        """Admits, or raises."""
        request = wish.request

        gate = self._gates.of(request.namespace, request.entity)

        def take() -> Admission:
            chain = opened(self._chains.open, wish)
            if not self._must_hold(request, chain, gate):
                return self._acquire.take(request, chain.opened)
            outcome = self._hold(wish, chain, _nothing_along, lambda: self._acquire.take(request, chain.opened))
            if not isinstance(outcome, Refused):
                return outcome
            raise AssertionError("nothing went along that could be refused")

        return self._acquire.counted(request, take, lambda degraded: degraded, gate.may_open)

    def acquire_once(self, wish: Wish, key: IdempotencyKey, render: Render) -> Answered:
        """As `acquire`. A repeat under the same key gets the answer of the first."""
        request = wish.request

        gate = self._gates.of(request.namespace, request.entity)

        def take(along: Along) -> Admission | Refused:
            chain = opened(self._chains.open, wish)

            def take_plainly() -> Admission | Refused:
                return self._idempotent.take_plainly(request, chain.opened, along)

            if not self._must_hold(request, chain, gate):
                return take_plainly()
            return self._hold(wish, chain, along, take_plainly)

        return self._acquire.counted(
            request,
            lambda: self._idempotent.take(request, key, render, take),
            lambda degraded: Answered(render(degraded), repeated=False),
            gate.may_open,
        )

    def _must_hold(self, request: AcquireRequest, chain: Chain, gate: Gate) -> bool:
        namespace = request.namespace
        hard = [ledger.entity for ledger in self._book.for_hold(namespace, chain.entities)]
        gate.shut = bool(hard)
        # As it was just looked at: without the item of the defaults, the namespace has no budget of any kind.
        has_any = gate.shut or bool(self._book.named(namespace, [DEFAULTS]))
        self._gates.looked(namespace, request.entity, hard, has_any=has_any)
        return gate.shut

    def _hold(
        self, wish: Wish, chain: Chain, along: Along, take_plainly: Callable[[], Admission | Refused]
    ) -> Admission | Refused:
        """`take_plainly`: what is done instead where it turns out that no budget is hard any more."""
        attempt = _Attempt(wish, chain, self._effects.new_token())
        for _ in range(HOLD_ROUNDS):
            ledgers = self._book.for_hold(attempt.namespace, chain.entities)
            if not ledgers:
                return take_plainly()
            try:
                amounts = self._agreed(attempt, ledgers)
            except (BudgetExceeded, NeverWithinBudget, PriceMissing, ReserveRequired):
                if not self._look_again(attempt):
                    raise
                continue
            outcome = self._send(attempt, ledgers, amounts, along)
            if outcome is not None:
                return outcome
        raise Contended(contended_wait_ms(self._effects.random_below))

    def _agreed(self, attempt: _Attempt, ledgers: Sequence[Ledger]) -> Amounts:
        """What each of these ledgers is to hold, if by their images there is room in all of them."""
        namespace = attempt.namespace
        day = self._book.today(namespace)
        slots = frozenset(slot for ledger in ledgers for slot in ledger.terms.hard_limits)
        call = Call(namespace, attempt.chain.entities, attempt.wish.reserve, day.number, slots)
        amounts = self._reserves.amounts(call)
        present = Periods.of(day)
        found = in_the_way(ledgers, present, amounts)
        if not found:
            return amounts
        told = [(ledger.entity, violation) for ledger, violation in found]
        if attempt.fresh.issuperset(attempt.chain.entities):
            self._tell(found)
            remedies = self._reserves.remedies(call, lambda less: not in_the_way(ledgers, present, less))
        else:
            remedies = []
        raise refusal(told, resets_at_ms(self._settings.org(namespace).settings.zones, day), remedies)

    def _tell(self, found: Found) -> None:
        """Of budgets that are used up. What an empty one would refuse as well is the request's own fault."""
        used_up = [(ledger, one) for ledger, one in found if one.limit == 0 or not never_fits(one)]
        if used_up and self._hard_caps is not None:
            self._hard_caps.refused(used_up)

    def _look_again(self, attempt: _Attempt) -> bool:
        """At those ledgers that were not seen as they are now. False where there is none."""
        stale = [entity for entity in attempt.chain.entities if entity not in attempt.fresh]
        if stale:
            self._book.refresh(attempt.namespace, stale)
            attempt.fresh.update(stale)
        return bool(stale)

    def _send(
        self, attempt: _Attempt, ledgers: Sequence[Ledger], amounts: Amounts, along: Along
    ) -> Admission | Refused | None:
        """None where ledgers were not as their images said."""
        drawn = attempt.drawn
        count = 0

        def written(taken: Sequence[Taken]) -> Sequence[TransactWrite]:
            nonlocal count
            drawn.append(self._drawn(attempt, ledgers, amounts, taken))
            extra = along(drawn[-1].admission)
            count = len(extra)
            return [*extra, *drawn[-1].writes(ledgers, amounts)]

        outcome = self._together.take(attempt.chain.opened, written)
        held = drawn[-1]
        if isinstance(outcome, Refused):
            of_along, (*of_ledgers, of_put) = outcome.failures[:count], outcome.failures[count:]
            if any(failure is not None for failure in of_along):
                return Refused(of_along)
            # Nobody else draws this id: a hold that is there already is this one, and an earlier answer was lost.
            if of_put is None:
                self._learn(attempt, ledgers, of_ledgers)
                return None
            held = _stored(drawn, of_put)
            self._book.refresh(attempt.namespace, (one.entity for one in held.hold.ledgers))
        else:
            for ledger in ledgers:
                change = LedgerChange(held=amounts)
                self._book.remember(changed_ledger(ledger, held.present, change, held.hold.taken_at_ms))
        self._holds.taken(held.hold)
        if amounts.cost_usd_micros:
            self._effects.meter.count(Signal.HELD_USD_MICROS, amounts.cost_usd_micros)
        return held.admission

    def _drawn(self, attempt: _Attempt, ledgers: Sequence[Ledger], amounts: Amounts, taken: Sequence[Taken]) -> _Drawn:
        """As of now: another transaction is another moment."""
        request = attempt.wish.request
        now_ms = self._effects.clock_ms()
        present = self._book.present(attempt.namespace)
        hold = Hold(
            namespace=attempt.namespace,
            lease_id=attempt.lease_id,
            entity=request.entity,
            resource=request.resource,
            chain=attempt.chain.entities,
            ledgers=tuple(HeldIn(ledger.entity, amounts) for ledger in ledgers),
            # A ledger that is ahead of this clock counts it there, and so must what settles it.
            day=latest(present, *(ledger.standing.periods for ledger in ledgers)).day,
            taken_at_ms=now_ms,
            expires_at_ms=now_ms + attempt.wish.ttl_ms,
        )
        return _Drawn(self._acquire.admission(request, taken, hold), hold, present)

    def _learn(self, attempt: _Attempt, ledgers: Sequence[Ledger], failures: Sequence[ConditionFailed | None]) -> None:
        gone = []
        for ledger, failure in zip(ledgers, failures, strict=True):
            if failure is None:
                continue
            if failure.item is None:
                gone.append(ledger.entity)
            else:
                self._book.learn(failure.item)
            attempt.fresh.add(ledger.entity)
        if gone:
            self._book.refresh(attempt.namespace, gone)


def opened(open_chain: Callable[[AcquireRequest], Chain], wish: Wish) -> Chain:
    """With a reserve nothing has to be limited by buckets; a name that nobody knows is a mistake all the same."""
    try:
        return open_chain(wish.request)
    except NoLimits:
        if wish.reserve is None:
            raise
    raise UnknownLimit(f"consume.{next(iter(wish.request.consume))}", "no limits are defined for this at all")


def in_the_way(ledgers: Sequence[Ledger], present: Periods, amounts: Amounts) -> list[tuple[Ledger, Violation]]:
    """Every hard limit without room, in the order of the chain and of the checks."""
    return [
        (ledger, violation)
        for ledger in ledgers
        for violation in violations(ledger.terms, ledger.standing.at(present), amounts)
    ]


def resets_at_ms(zones: Zones, day: LocalDay) -> dict[Span, int]:
    """When the periods that hold this day are over."""
    month = local_month(zones, day.month, ZoneCalendar())
    return {Span.DAY: day.ends_ms, Span.MONTH: month.ends_ms}


def _nothing_along(_admission: Admission) -> Sequence[TransactWrite]:
    return ()


def _stored(drawn: Sequence[_Drawn], failure: ConditionFailed) -> _Drawn:
    """The one of them that was applied: one that was refused at first may have arrived once more."""
    if failure.item is None:
        return drawn[-1]
    taken_at_ms = decode_hold(failure.item).taken_at_ms
    return next((one for one in reversed(drawn) if one.hold.taken_at_ms == taken_at_ms), drawn[-1])
