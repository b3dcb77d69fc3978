"""Holds, settlements, sweeps and turns of period in any order, against a model that keeps every amount by itself."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.core.budget import Amounts, Enforcement, OwnBudget, Periods, Span
from sluice.core.lease import Lease
from sluice.core.pricing import TokenKind
from sluice.repository.retries import Retries
from sluice.services.effects import Effects
from sluice.services.freeing import Freeing
from sluice.services.hold_book import HoldBook
from sluice.services.hold_sweep import GRACE_MS, HoldSweep
from sluice.services.ledger_book import LedgerBook
from sluice.services.settings import SettingsCache
from sluice.shell import new_token
from tests.fakes import CountingMeter, FakeClock, never_random
from tests.integration.ledger_desks import DAY_COST, hold_of, ledger_of, put_budget, take_hold
from tests.integration.metering_desks import APP, DAY_MS, MIDNIGHT_MS, MINUTE_MS, ORG, SETTINGS, MeteringDesk
from tests.simulation.store import PerfectWire, SimulatedStore
from tests.simulation.table import SimulatedTable

BOTH = (APP, ORG)
LEASE_MS = 20 * MINUTE_MS
# An hour and a half before the end of January.
EVENING_MS = MIDNIGHT_MS + 17 * DAY_MS - 90 * MINUTE_MS


@dataclass
class Exact:
    """What one ledger must show, by periods that nobody ever resets. `open`: what is held, by lease."""

    by_day: dict[str, int] = field(default_factory=dict)
    by_month: dict[str, int] = field(default_factory=dict)
    open: dict[str, int] = field(default_factory=dict)

    def charge(self, day: str, cost: int) -> None:
        self.by_day[day] = self.by_day.get(day, 0) + cost
        self.by_month[day[:6]] = self.by_month.get(day[:6], 0) + cost


deeds = st.lists(
    st.one_of(
        st.tuples(st.just("hold"), st.integers(1, 50), st.booleans()),
        st.tuples(st.just("settle"), st.integers(0, 50), st.integers(0, 30)),
        st.tuples(st.just("again"), st.integers(0, 50), st.integers(0, 30)),
        st.tuples(st.just("report"), st.integers(0, 50), st.integers(0, 2)),
        st.tuples(st.just("wait"), st.sampled_from([1, 20, 45]), st.just(0)),
        st.tuples(st.just("sweep"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


class History:
    def __init__(self) -> None:
        self.clock = FakeClock(EVENING_MS)
        meter = CountingMeter()
        store = SimulatedStore(
            SimulatedTable(self.clock), PerfectWire(), Retries(self.clock.advance, lambda _below: 0, meter)
        )
        self.desk = MeteringDesk.opened(store, self.clock).found(SETTINGS)
        for entity in BOTH:
            put_budget(self.desk, entity, OwnBudget({DAY_COST: 10**12}, Enforcement.HARD))
        effects = Effects(self.clock, never_random, new_token, meter)
        self.book = LedgerBook(store, SettingsCache(store, self.clock), effects, self.clock)
        self.sweep = HoldSweep(store, Freeing(HoldBook(store), self.book, effects), effects)
        self.exact = {entity: Exact() for entity in BOTH}
        self.leases: list[tuple[Lease, tuple[str, ...]]] = []
        self.numbers: Iterator[int] = iter(range(10**6))
        # As in the first minute after a deployment.
        self.sweep.run(lambda: False)

    def present(self) -> str:
        return self.book.present("ns").day

    def hold(self, cost: int, both: object) -> None:
        ledgers = BOTH if both else (ORG,)
        number = next(self.numbers)
        lease = take_hold(
            self.desk,
            Amounts(3 * cost, cost, 1),
            *ledgers,
            chain=BOTH,
            day=self.present(),
            lease_id=f"lease-{number}",
            ttl_ms=LEASE_MS,
        )
        self.leases.append((lease, ledgers))
        for entity in ledgers:
            self.exact[entity].open[lease.lease_id] = 3 * cost

    def settle(self, cost: int, which: int) -> None:
        """Whatever has become of its hold: the actual is charged, and the hold freed if it is open."""
        if self.leases:
            lease, _ = self.leases[which % len(self.leases)]
            taken = hold_of(self.desk.store.inner, lease.lease_id)
            self._count(cost, lease, max(taken.day, self.present()))
            for exact in self.exact.values():
                exact.open.pop(lease.lease_id, None)

    again = settle

    def report(self, cost: int, days_ago: int) -> None:
        at_ms = self.clock.now_ms - days_ago * DAY_MS
        day = Periods.of_name(self.present()).day
        self._count(cost, None, day if not days_ago else "", at_ms)

    def _count(self, cost: int, lease: Lease | None, day: str, at_ms: int | None = None) -> None:
        name = f"r{next(self.numbers)}"
        counted = self.desk.submit(
            request_id=name,
            lease=lease,
            tokens={TokenKind.INPUT: cost},
            occurred_at_ms=self.clock.now_ms if at_ms is None else at_ms,
        )
        assert not day or counted.event.day == day
        for exact in self.exact.values():
            exact.charge(counted.event.day, 3 * cost)

    def wait(self, minutes: int, _nothing: object) -> None:
        self.clock.advance(minutes * MINUTE_MS)

    def sweep_now(self) -> None:
        run = self.sweep.run(lambda: False)
        assert run.failures == ()
        for lease, _ in self.leases:
            if lease.expires_at_ms + GRACE_MS <= self.clock.now_ms:
                for exact in self.exact.values():
                    exact.open.pop(lease.lease_id, None)

    def check(self) -> None:
        for entity, exact in self.exact.items():
            ledger = ledger_of(self.desk.store.inner, entity)
            standing, periods = ledger.standing, ledger.standing.periods
            assert standing.held.cost_usd_micros == sum(exact.open.values())
            assert standing.spent(Span.DAY).cost_usd_micros == exact.by_day.get(periods.day, 0)
            assert standing.spent(Span.MONTH).cost_usd_micros == exact.by_month.get(periods.month, 0)


@given(deeds)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_ledgers_are_exact_whatever_happens(chosen: list[tuple[str, int, int]]) -> None:
    history = History()
    for verb, first, second in chosen:
        if verb == "sweep":
            history.sweep_now()
        else:
            getattr(history, verb)(first, second)
        history.check()
    # At the end nothing stays held.
    history.clock.advance(LEASE_MS + GRACE_MS)
    history.sweep_now()
    history.check()
    assert all(not exact.open for exact in history.exact.values())


def test_the_model_would_notice() -> None:
    """A hold that is freed twice, or never."""
    history = History()
    history.hold(5, True)
    history.check()
    history.exact[ORG].open.clear()
    with pytest.raises(AssertionError):
        history.check()
