"""Holds when answers are lost, late or refused: put once, freed once, and never a second one."""

from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from sluice.core.budget import NOTHING, Amounts
from sluice.core.errors import Ambiguous, Contended, SluiceError, Unavailable
from sluice.core.holds import HoldState
from sluice.core.lease import Lease
from sluice.repository.ledger_items import encode_ledger
from sluice.repository.retries import ATTEMPTS_MAX, LOST_ANSWERS_MAX, Retries
from sluice.repository.store import Committed
from sluice.shell import new_token
from tests.fakes import CountingMeter, FakeClock
from tests.integration.holding_desks import APP, CHAIN, EVENING_MS, USER, HoldDesk, hard, once
from tests.integration.test_metering_faults import Fate, FatefulWire
from tests.simulation.store import PerfectWire, SimulatedStore
from tests.simulation.table import SimulatedTable

LIMIT: Final = 100
TEN: Final = Amounts(10, 0, 1)


@dataclass
class Fated:
    """A warm process whose transactions meet these fates in turn, once it is told to begin."""

    desk: HoldDesk
    wire: FatefulWire = field(default_factory=FatefulWire)

    def begin(self, *fates: Fate) -> None:
        self.wire.fates = [*fates]
        self.wire.tokens.clear()

    def arrive(self) -> None:
        for apply in self.wire.on_the_way:
            apply()

    def books(self) -> tuple[int, list[Amounts]]:
        """How many holds are open, after checking that every ledger holds just what they say."""
        holds = [hold for hold in self.desk.holds() if hold.state is HoldState.OPEN]
        for entity in CHAIN:
            total = sum((hold.held_in(entity) for hold in holds), NOTHING)
            assert self.desk.held(entity) == total
            assert self.desk.ledger(entity).standing.day.used == total
        return len(holds), [self.desk.held(entity) for entity in CHAIN]


@pytest.fixture
def fated() -> Fated:
    clock, wire = FakeClock(EVENING_MS), FatefulWire()
    table = SimulatedTable(clock)
    retries = Retries(clock.advance, lambda _below: 0, CountingMeter())
    founder = HoldDesk.opened(SimulatedStore(table, PerfectWire(), retries), clock).found()
    for entity in CHAIN:
        founder.put(entity, hard(LIMIT))
    desk = HoldDesk.opened(SimulatedStore(table, wire, retries), clock)
    desk.allow_unavailable()
    desk.leases.release(desk.lease(desk.take(1)))
    return Fated(desk, wire)


@pytest.mark.parametrize(
    "fates",
    [
        (Fate.CONFLICT, Fate.CONFLICT),
        (Fate.THROTTLED,),
        (Fate.NOT_SENT,),
        (Fate.LOST_BEFORE,),
        (Fate.LOST_AFTER,),
        (Fate.LOST_AFTER, Fate.CONFLICT),
        (Fate.CONFLICT, Fate.LOST_AFTER, Fate.THROTTLED),
    ],
)
def test_what_was_not_answered_is_sent_again_as_it_was(fated: Fated, fates: tuple[Fate, ...]) -> None:
    fated.begin(*fates)
    admission = fated.desk.take(10)
    assert len(set(fated.wire.tokens)) == 1
    assert fated.books() == (1, [TEN] * 3)
    assert admission.hold == fated.desk.find_hold(admission)
    assert fated.desk.consumed() == 1


@pytest.mark.parametrize(
    ("fates", "error", "held"),
    [
        ([Fate.LOST_AFTER] * LOST_ANSWERS_MAX, Ambiguous, 1),
        ([Fate.LOST_BEFORE] * LOST_ANSWERS_MAX, Ambiguous, 0),
        ([Fate.CONFLICT] * ATTEMPTS_MAX, Contended, 0),
        ([Fate.THROTTLED] * ATTEMPTS_MAX, Unavailable, 0),
        ([Fate.NOT_SENT] * ATTEMPTS_MAX, Unavailable, 0),
    ],
)
def test_what_stays_unanswered_is_told_and_never_let_through(
    fated: Fated, fates: list[Fate], error: type[SluiceError], held: int
) -> None:
    """Though the system's limits say that an outage opens the gate."""
    fated.begin(*fates)
    with pytest.raises(error):
        fated.desk.take(10)
    assert len(set(fated.wire.tokens)) == 1
    assert fated.books()[0] == held
    fated.desk.take(10)
    assert fated.books()[0] == held + 1


def test_what_arrives_when_it_was_given_up_is_one_hold(fated: Fated) -> None:
    fated.begin(*[Fate.LATE] * LOST_ANSWERS_MAX)
    with pytest.raises(Ambiguous):
        fated.desk.take(10)
    assert fated.books()[0] == 0
    fated.arrive()
    assert fated.books() == (1, [TEN] * 3)
    # The image is behind, and the table decides.
    fated.desk.take(LIMIT - 10)
    assert [fated.desk.used(entity) for entity in CHAIN] == [LIMIT] * 3


def test_what_was_given_up_and_arrived_is_what_is_told(fated: Fated) -> None:
    """It was refused, another was drawn, and what was in its way is gone again when it comes a second time."""
    desk = fated.desk
    seen, at_ms, sent = desk.ledger(), desk.clock.now_ms, []

    def arrive(verb: str, request: Any) -> None:
        if verb == "transact":
            sent.append(request)
            desk.clock.advance(1_000)
        if len(sent) == 2:
            desk.store.before = None
            desk.store.inner.put({"Item": encode_ledger(seen)}, repeatable=True)
            assert isinstance(desk.store.inner.transact(sent[0], new_token()), Committed)

    desk.revise(USER, hard(LIMIT + 1))
    desk.store.before = arrive
    admission = desk.take(10)
    assert fated.books() == (1, [TEN] * 3)
    assert admission.hold == desk.find_hold(admission)
    assert admission.hold is not None
    assert (admission.hold.taken_at_ms, desk.consumed()) == (at_ms, 1)


def test_one_that_arrives_at_a_full_budget_is_refused(fated: Fated) -> None:
    fated.begin(*[Fate.LATE] * LOST_ANSWERS_MAX)
    with pytest.raises(Ambiguous):
        fated.desk.take(10)
    fated.desk.take(LIMIT)
    fated.arrive()
    assert fated.books()[1] == [Amounts(LIMIT, 0, 1)] * 3


@pytest.mark.parametrize("lost", [Fate.LOST_BEFORE, Fate.LOST_AFTER])
def test_under_a_key_the_next_attempt_tells(fated: Fated, lost: Fate) -> None:
    fated.begin(*[lost] * LOST_ANSWERS_MAX)
    if lost is Fate.LOST_AFTER:
        # The record is looked for before the error leaves.
        assert once(fated.desk, 10).repeated
    else:
        with pytest.raises(Ambiguous):
            once(fated.desk, 10)
    answers = {once(desk, 10).text for desk in (fated.desk, fated.desk.elsewhere())}
    assert len(answers) == 1
    assert fated.books() == (1, [TEN] * 3)


@pytest.mark.parametrize(
    "fates",
    [
        (Fate.CONFLICT,),
        (Fate.LOST_AFTER,),
        (Fate.LOST_BEFORE,),
        (Fate.LOST_AFTER,) * LOST_ANSWERS_MAX,
        (Fate.LATE,) * LOST_ANSWERS_MAX,
        (Fate.CONFLICT,) * ATTEMPTS_MAX,
    ],
)
def test_what_was_held_is_freed_once(fated: Fated, fates: tuple[Fate, ...]) -> None:
    desk = fated.desk
    kept = desk.take(7)
    lease = desk.lease(desk.take(10))

    def release(process: HoldDesk, of: Lease) -> None:
        try:
            process.leases.release(of)
        except (Ambiguous, Contended):
            fated.begin()

    fated.begin(*fates)
    release(desk, lease)
    fated.arrive()
    for process in (desk, desk.elsewhere()):
        process.leases.release(lease)
    fated.arrive()
    assert fated.books() == (1, [Amounts(7, 0, 1)] * 3)
    assert kept.hold == desk.find_hold(kept)
    assert desk.consumed() == 1


def test_an_adjusted_bucket_and_a_hold_are_given_back_together(fated: Fated) -> None:
    desk = fated.desk
    lease = desk.lease(desk.take(10))
    desk.leases.adjust(lease, {"rpm": 3}, "key")
    fated.begin(Fate.LOST_AFTER)
    desk.leases.release(lease)
    assert fated.books()[0] == 0
    assert (desk.consumed(), desk.used(USER), desk.used(APP)) == (0, 0, 0)
