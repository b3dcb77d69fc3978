"""Calls under budgets, as those know them who make them: what they asked for, what they were told, what they report.

A report is written once and sent until its end is known, also by others and after a crash: rule 7.1. Some go with the
settle of their lease, and alone once that came too late for it. `orderly` callers
keep to what the guarantee of hard budgets asks for: what a call takes is within its estimate, it is reported while it
is still held, once, and nobody who may stand below a hard budget reports without a lease.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from sluice.core.admission import Admission
from sluice.core.errors import (
    BudgetExceeded,
    Contended,
    InvalidRequest,
    LeaseClosed,
    LeaseExpired,
    NeverWithinBudget,
    NotFound,
    ReserveRequired,
    SluiceError,
    Unavailable,
)
from sluice.core.holds import Hold
from sluice.core.lease import Lease
from sluice.core.metering import CallStatus
from sluice.core.pricing import TokenKind
from sluice.core.reports import UsageReport
from sluice.core.reserves import AmountReserve, ModelReserve, Reserve
from sluice.repository import keys
from sluice.repository.idempotency import IdempotencyKey
from sluice.repository.leases import State, decode_lease
from sluice.services.chains import AcquireRequest
from sluice.services.holding import Wish
from sluice.services.metering import Counted
from tests.simulation.budget_hosts import ORG, PRICES, USERS, WORKER, desks_in, reporter_of
from tests.simulation.scenario import Violated
from tests.simulation.world import RESOURCE, Client, Outcome, Request, World

DAY_MS: Final = 86_400_000
TTLS_MS: Final = (2_000, 20_000, 90_000)
TRIES_MAX: Final = 6
# A sweep begins a minute after the end of a lease; clocks differ, and a report takes its time.
IN_TIME_MS: Final = 30_000
AHEAD_MOST_MS: Final = 50_000
INPUTS: Final = (0, 300, 1_000)
OUTPUTS: Final = (100, 700, 2_000)
TIMES_MORE: Final = 3
SETTLED_SHARE: Final = 0.3
"""Of the calls with a lease: how many are reported by its settle."""
ACTUALS: Final = (0, 1, 1, 3)


@dataclass(eq=False)
class Call:
    """`lease`: None for one that was not asked for before. `report`: as soon as it was written, it never changes.

    `taker`: the client that has the lease. `actual`: what the lease is settled with by the report; None: it is sent
    alone, and the lease keeps what it took.
    """

    entity: str
    label: str
    input_tokens: int
    output_tokens: int
    lease: Lease | None
    taker: str = ""
    report: UsageReport | None = None
    actual: Mapping[str, int] | None = None
    is_over: bool = False
    tries: int = 0


@dataclass(frozen=True)
class Told:
    """An acquire that was admitted, and what its caller knows of the hold."""

    request: Request
    entity: str
    lease_id: str
    hold: Hold | None


@dataclass
class Calls:
    """Of one world. `leaseless`: who may report without a lease. `refreshes`: whether ledgers are refreshed.

    `counted`: the request ids of whom it was told.
    """

    orderly: bool
    leaseless: Sequence[str]
    refreshes: bool = False
    made: list[Call] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    counted: dict[str, bool] = field(default_factory=dict)


def calls_of(world: World) -> Calls:
    calls: Calls = world.notes["calls"]
    return calls


class Caller:
    """One client's way to the product."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._world = client.world
        self._calls = calls_of(client.world)
        self._random = client.random

    def acquire(self) -> None:
        random = self._random
        entity = random.choice((*USERS, *USERS, WORKER, *(() if self._calls.leaseless else (ORG,))))
        call = Call(entity, random.choice(list(PRICES)), random.choice(INPUTS), random.choice(OUTPUTS), None)
        key = None
        if random.random() < 0.15:
            key = IdempotencyKey(self._world.namespace, ORG, f"key-{len(self._world.history)}", "body")
        asked = AcquireRequest(self._world.namespace, entity, RESOURCE, {"rpm": 1})
        wish = Wish(asked, self._reserve(call), random.choice(TTLS_MS))
        for _ in range(2):
            request = self._client.attempt(f"acquire {entity}", lambda: self._ask(wish, key, call))
            # Without a key it would be another call.
            if key is None or request.outcome not in {Outcome.UNAVAILABLE, Outcome.CONTENDED}:
                break

    def report(self) -> None:
        """Calls that were made, by whomever; each with its own report."""
        random, count = self._random, 1 if self._random.random() < 0.6 else self._random.randint(2, 4)
        known = [call for call in self._calls.made[-12:] if self._may_report(call)]
        if random.random() < 0.5:
            # Whoever took a lease knows its hold as it was then.
            known = [call for call in known if call.taker == self._client.name] or known
        chosen = random.sample(known, min(count, len(known)))
        if chosen and not self._calls.orderly and random.random() < 0.15:
            # A second event on the same lease.
            chosen.append(replace(chosen[0], report=None, actual=None, tries=0))
            self._calls.made.append(chosen[-1])
        if (self._calls.leaseless and random.random() < 0.3) or (not self._calls.orderly and random.random() < 0.2):
            chosen.append(self._leaseless_call())
        self.send(chosen)

    def send(self, calls: Sequence[Call]) -> None:
        for call in calls:
            if call.report is None:
                call.report = self._written(call)
                if call.lease is not None and self._random.random() < SETTLED_SHARE:
                    call.actual = {"rpm": self._random.choice(ACTUALS)}
            call.tries += 1
        for call in calls:
            if call.actual is not None:
                self._client.attempt(f"settle with usage {call.actual}", partial(self._settle, call))
        alone = [call for call in calls if call.actual is None and not call.is_over]
        reports = [call.report for call in alone if call.report is not None]
        if reports:
            text = ", ".join(report.request_id for report in reports)
            self._client.attempt(f"usage {text}", lambda: self._submit(alone, reports))

    def release(self) -> None:
        leases = desks_in(self._world).of(self._client).leases
        known = [call for call in self._calls.made[-8:] if call.lease and not call.report]
        if not known:
            return
        call = self._random.choice(known)
        call.is_over = call.is_over or self._calls.orderly or self._random.random() < 0.3

        def ask() -> Outcome:
            assert call.lease is not None
            leases.release(call.lease)
            return Outcome.DONE

        self._client.attempt("release", ask)

    def waiting(self) -> list[Call]:
        """Reported, without an answer so far."""
        return [
            call
            for call in self._calls.made
            if call.report and not call.is_over and call.tries < TRIES_MAX and self._may_report(call)
        ]

    def _reserve(self, call: Call) -> Reserve | None:
        random = self._random
        if random.random() < 0.6:
            return ModelReserve(call.input_tokens, call.output_tokens, label=call.label)
        if random.random() < 0.1:
            return None
        price = PRICES[call.label]
        cost = -(-price * (call.input_tokens + 5 * call.output_tokens) // 10**6)
        return AmountReserve(cost, call.input_tokens + call.output_tokens)

    def _ask(self, wish: Wish, key: IdempotencyKey | None, call: Call) -> Outcome:
        desk, world = desks_in(self._world).of(self._client), self._world
        number = world.scheduler.cause()
        assert isinstance(number, int)
        try:
            if key is None:
                admission: Admission | None = desk.holding.acquire(wish)
                assert admission is not None
                lease = desk.leases.open(admission, wish.ttl_ms)
                told = Told(world.history[number], call.entity, lease.lease_id, admission.hold)
            else:
                made: list[tuple[Lease, Hold | None]] = []

                def render(admission: Admission) -> str:
                    made.append((desk.leases.open(admission, wish.ttl_ms), admission.hold))
                    return made[-1][0].lease_id

                answer = desk.holding.acquire_once(wish, key, render).text
                found = [one for one in made if one[0].lease_id == answer]
                if not found:
                    # An earlier attempt's, whose lease this client never saw.
                    return Outcome.ADMITTED
                lease, hold = found[-1]
                told = Told(world.history[number], call.entity, lease.lease_id, hold)
        except (BudgetExceeded, NeverWithinBudget, ReserveRequired):
            self._calls.refused.append(number)
            return Outcome.REFUSED
        call.lease, call.taker = lease, self._client.name
        self._calls.told.append(told)
        self._calls.made.append(call)
        return Outcome.ADMITTED

    def _submit(self, calls: Sequence[Call], reports: Sequence[UsageReport]) -> Outcome:
        metering = desks_in(self._world).of(self._client).money.metering
        answers: Sequence[Counted | SluiceError] = metering.submit_batch(reporter_of(self._world), reports)
        for call, answer in zip(calls, answers, strict=True):
            assert call.report is not None
            if isinstance(answer, Counted):
                call.is_over = True
                self._calls.counted[call.report.request_id] = True
            elif isinstance(answer, InvalidRequest | NotFound):
                call.is_over = True
            elif not isinstance(answer, Contended | Unavailable):
                raise answer
        errors = [answer for answer in answers if isinstance(answer, Contended | Unavailable)]
        if errors:
            raise errors[0]
        return Outcome.DONE

    def _settle(self, call: Call) -> Outcome:
        settling = desks_in(self._world).of(self._client).money.settling
        assert call.lease is not None
        assert call.report is not None
        assert call.actual is not None
        try:
            settled = settling.settle(call.lease, call.actual, reporter_of(self._world), call.report)
        except (LeaseClosed, LeaseExpired):
            # As the refusal says: the call itself is counted by a report.
            call.actual = None
        except (InvalidRequest, NotFound):
            call.is_over = True
        else:
            call.is_over = True
            self._calls.counted[call.report.request_id] = True
            item = self._world.table.get(keys.lease(call.lease.namespace, call.lease.lease_id))
            state = None if item is None else decode_lease(item)
            if state is None or state.state is not State.SETTLED or state.closed_with != settled.changed.amounts:
                raise Violated(f"told to be settled with {settled.changed.amounts}: {state}")
        return Outcome.DONE

    def _may_report(self, call: Call) -> bool:
        if call.is_over:
            return False
        if call.lease is None or not self._calls.orderly:
            return True
        return self._world.scheduler.now_ms < call.lease.expires_at_ms + IN_TIME_MS

    def _leaseless_call(self) -> Call:
        random = self._random
        entities = self._calls.leaseless if self._calls.orderly else (*USERS, WORKER, ORG)
        call = Call(
            random.choice(entities), random.choice(list(PRICES)), random.choice(INPUTS), random.choice(OUTPUTS), None
        )
        self._calls.made.append(call)
        return call

    def _written(self, call: Call) -> UsageReport:
        random, now_ms = self._random, self._client.clock_ms()
        most = TIMES_MORE if not self._calls.orderly and random.random() < 0.3 else 1
        drawn = random.random()
        occurred_at_ms: int | None = now_ms
        if drawn < 0.2:
            occurred_at_ms = None
        elif drawn < 0.5:
            occurred_at_ms = now_ms - random.randint(0, 2 * DAY_MS)
        elif drawn < 0.6:
            occurred_at_ms = now_ms + random.randint(0, AHEAD_MOST_MS)
        elif drawn < 0.65:
            occurred_at_ms = now_ms - 33 * DAY_MS
        return UsageReport(
            request_id=f"call-{self._calls.made.index(call)}",
            status=random.choice((CallStatus.OK, CallStatus.OK, CallStatus.ERROR, CallStatus.TIMEOUT)),
            tokens={
                TokenKind.INPUT: random.randint(0, most * call.input_tokens),
                TokenKind.OUTPUT: random.randint(0, most * call.output_tokens),
            },
            label=call.label,
            entity=call.entity,
            occurred_at_ms=occurred_at_ms,
            lease=call.lease,
        )
