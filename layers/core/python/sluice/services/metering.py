"""Counts finished calls, each of them once.

An event is put if there is none under its key, in the transaction that adds it to its counters and ledgers, closes its
lease and settles what is held for it. A report that settles its lease corrects the buckets in it as well.
The key follows from who reports, the local day and the request id alone, so it is the same in every attempt:

- A transaction adds what its own events add, and nothing else. It is applied as a whole or not at all, and not at all
  if one of its events is there. So of all transactions that ever carry an event, whoever sends them, with whatever
  shards, tokens and company, and however late they arrive, one is applied at most.
- Hence what certainly failed may be built anew. What was lost is not: the answer is that nobody knows, and the
  client's next attempt finds the event or counts it.
- A report that does not say when its call was gets its day from our clock, and a repeat may get another one. So its
  transaction also asks that there is no such event of the last hour under the other days. Of two attempts at once,
  each asks for what the other puts.

Who repeats is answered from the event, whatever has changed since.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sluice.core.backoff import contended_wait_ms
from sluice.core.errors import Contended, LeaseClosed, SluiceError, Unavailable
from sluice.core.reports import UsageReport
from sluice.core.signals import Signal
from sluice.repository.events import UsageEvent, decode_event
from sluice.repository.retries import Transaction
from sluice.repository.store import Cancelled, Committed, Store
from sluice.services.corrections import Known
from sluice.services.effects import Effects
from sluice.services.event_batches import Parcel, parcels
from sluice.services.intake import Deadline, Intake, TakenIn
from sluice.services.judging import Charge, Keys, Reporter
from sluice.services.leases import Changed, Closing, Leases
from sluice.services.ledger_charges import LedgerCharges
from sluice.services.repeats import Repeated, counted_before, repeat_of
from sluice.services.spending import Spending, Spendings

ROUNDS_MAX: Final = 4
LOOK_FROM: Final = 2
"""From this round on all that is left is looked for before it is sent."""
BEGIN_WITHIN_MS: Final = 6_000
"""Later than that after its reports came in nothing is begun: the function would be ended by its time-out, and nobody
would be told what was counted."""


@dataclass(frozen=True, slots=True)
class Counted:
    """`duplicate`: that was before. `spending`: None where it can not be told now.

    `settled`: the lease, where the report has settled it or has found it settled so; None for a duplicate.
    """

    event: UsageEvent
    duplicate: bool
    spending: Spending | None
    settled: Changed | None = None


@dataclass(frozen=True, slots=True)
class _Standing:
    """The event under one of the keys of a charge. `ours`: put just now, for the first report with these keys."""

    event: UsageEvent
    ours: bool
    settled: Changed | None = None


@dataclass(frozen=True, slots=True)
class _Recorded:
    event: UsageEvent
    duplicate: bool
    settled: Changed | None = None


_Outcomes = dict[Keys, _Standing | SluiceError]


class Metering:
    """The service behind POST /v1/usage. Safe to share between threads."""

    def __init__(
        self,
        store: Store,
        intake: Intake,
        leases: Leases,
        ledgers: LedgerCharges,
        spendings: Spendings,
        effects: Effects,
    ) -> None:
        self._store = store
        self._intake = intake
        self._leases = leases
        self._ledgers = ledgers
        self._spendings = spendings
        self._effects = effects

    def submit(self, reporter: Reporter, report: UsageReport) -> Counted:
        (answer,) = self.submit_batch(reporter, [report])
        if isinstance(answer, SluiceError):
            raise answer
        return answer

    def submit_batch(self, reporter: Reporter, reports: Sequence[UsageReport]) -> list[Counted | SluiceError]:
        """Each on its own, in their order. Of two with one id, the second is the repeat."""
        now_ms = self._effects.clock_ms()
        deadline = Deadline(self._effects.clock_ms, now_ms + BEGIN_WITHIN_MS)
        taken_in = self._intake.take_in(reporter, reports, now_ms, deadline)
        charges: dict[Keys, Charge] = {}
        for one in taken_in:
            if isinstance(one, Charge):
                charges.setdefault(one.keys, one)
        outcomes: _Outcomes = {}
        for parcel in parcels(self._addressed(charges.values(), outcomes)):
            outcomes |= self._count(parcel, deadline)
        results = [_result(one, charges, outcomes) for one in taken_in]
        self._signal(results)
        spendings = iter(self._told([result.event for result in results if isinstance(result, _Recorded)], deadline))
        return [
            Counted(result.event, result.duplicate, next(spendings), result.settled)
            if isinstance(result, _Recorded)
            else result
            for result in results
        ]

    def _addressed(self, charges: Iterable[Charge], outcomes: _Outcomes) -> list[Charge]:
        """With the ledgers that they go to. Where these can not be told an event is not counted."""
        found = []
        for charge in charges:
            try:
                found.append(self._ledgers.addressed(charge))
            except SluiceError as error:
                outcomes[charge.keys] = error
        return found

    def _told(self, events: Sequence[UsageEvent], deadline: Deadline) -> list[Spending | None]:
        if not events:
            return []
        try:
            deadline.check()
        except Unavailable:
            return [None] * len(events)
        return self._spendings.find(events)

    def _count(self, charges: Sequence[Charge], deadline: Deadline) -> _Outcomes:
        """What stands under each of their keys afterwards, or why nobody can tell."""
        outcomes: _Outcomes = {}
        try:
            self._send_until_sent(charges, outcomes, deadline)
        except (Contended, LeaseClosed, Unavailable) as error:
            # A lease that is closed otherwise is told to whoever settles one, and that report is alone here.
            if isinstance(error, Contended):
                self._effects.meter.count(Signal.CONTENDED)
            outcomes |= {charge.keys: error for charge in charges if charge.keys not in outcomes}
        return outcomes

    def _send_until_sent(self, charges: Sequence[Charge], outcomes: _Outcomes, deadline: Deadline) -> None:
        """Without those that are there already, as they turn up."""
        known: Known = {}
        for number in range(ROUNDS_MAX):
            pending = [charge for charge in charges if charge.keys not in outcomes]
            if number >= LOOK_FROM:
                # Not every engine names all that failed.
                before = counted_before(self._store, [charge.opened for charge in pending])
                outcomes |= {keys: _Standing(event, ours=False) for keys, event in before.items()}
                pending = [charge for charge in pending if charge.keys not in outcomes]
            if not pending:
                return
            deadline.check()
            parcel = self._parcel(pending, known)
            cancelled = self._send(parcel)
            if cancelled is None:
                settled = self._closed(parcel)
                outcomes |= {
                    charge.keys: _Standing(charge.event, ours=True, settled=_of_lease(charge, settled))
                    for charge in parcel.charges
                }
                return
            outcomes |= self._in_the_way(parcel, cancelled)
        if any(charge.keys not in outcomes for charge in charges):
            raise Contended(contended_wait_ms(self._effects.random_below))

    def _parcel(self, charges: Sequence[Charge], known: Known) -> Parcel:
        """`known`: the buckets of settled leases, as earlier tries have shown them."""
        now_ms = self._effects.clock_ms()
        closings: dict[str, Closing] = {}
        for charge in charges:
            closing = None if charge.lease is None else self._leases.closing(charge.lease, charge.actual, known, now_ms)
            if closing is not None:
                closings[closing.lease.lease_id] = closing
        budgets = self._ledgers.part(charges)
        if budgets.ledgers:
            charges = [charge.told(budgets.epochs(charge.ledgers)) for charge in charges]
        return Parcel(charges, closings, now_ms, budgets)

    def _send(self, parcel: Parcel) -> Cancelled | None:
        """None when it happened. What meets another transaction goes to other shards."""
        shards = parcel.drawn(self._effects.random_below)

        def moved() -> Transaction:
            nonlocal shards
            shards = parcel.moved(shards, self._effects.random_below)
            return Transaction(parcel.writes(shards), self._effects.new_token())

        outcome = self._store.transact(parcel.writes(shards), self._effects.new_token(), rebuild=moved)
        return None if isinstance(outcome, Committed) else outcome

    def _in_the_way(self, parcel: Parcel, cancelled: Cancelled) -> _Outcomes:
        """The events that are there already. A lease that was not as it was thought to be is learned."""
        for closing, failures in parcel.of_leases(cancelled):
            self._leases.overtaken(closing, failures)
        self._ledgers.overtaken(parcel.budgets, parcel.of_budgets(cancelled))
        found: _Outcomes = {}
        for charge, of_event in parcel.of_events(cancelled):
            shown = [failure.item for failure in of_event if failure.item is not None]
            if shown:
                found[charge.keys] = _Standing(decode_event(shown[0]), ours=False)
        return found

    def _closed(self, parcel: Parcel) -> dict[str, Changed | None]:
        """What whoever settled them is told, by their ids."""
        settled = {lease_id: self._leases.closed(closing) for lease_id, closing in parcel.closings.items()}
        self._ledgers.happened(parcel.budgets, parcel.charges, parcel.now_ms)
        return settled

    def _signal(self, results: Sequence[_Recorded | SluiceError]) -> None:
        recorded = [result for result in results if isinstance(result, _Recorded)]
        counted = [result.event for result in recorded if not result.duplicate]
        for signal, amount in (
            (Signal.USAGE_EVENTS, len(counted)),
            (Signal.USAGE_DUPLICATES, len(recorded) - len(counted)),
            (Signal.USAGE_UNPRICED, sum(not event.is_priced for event in counted)),
        ):
            if amount:
                self._effects.meter.count(signal, amount)


def _of_lease(charge: Charge, settled: Mapping[str, Changed | None]) -> Changed | None:
    return None if charge.lease is None else settled.get(charge.lease.lease_id)


def _result(taken_in: TakenIn, charges: Mapping[Keys, Charge], outcomes: _Outcomes) -> _Recorded | SluiceError:
    if isinstance(taken_in, Charge):
        outcome = outcomes[taken_in.keys]
        if isinstance(outcome, SluiceError):
            return outcome
        if outcome.ours and charges[taken_in.keys] is taken_in:
            return _Recorded(outcome.event, duplicate=False, settled=outcome.settled)
        taken_in = repeat_of(taken_in.opened, outcome.event)
    return _Recorded(taken_in.event, duplicate=True) if isinstance(taken_in, Repeated) else taken_in
