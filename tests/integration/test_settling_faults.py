"""A settle with its usage when answers are lost, when others are at the same items, and when somebody was faster."""

from typing import Any

import pytest

from sluice.core.errors import Ambiguous, Contended, LeaseClosed, RequestIdConflict, SluiceError, Unavailable
from sluice.repository.leases import State
from sluice.repository.retries import ATTEMPTS_MAX, LOST_ANSWERS_MAX
from sluice.repository.store import Cancelled
from sluice.services.metering import ROUNDS_MAX
from tests.integration.metering_desks import COST, NOTHING, MeteringDesk
from tests.integration.settling_desks import consumed, everything, settle, taken
from tests.integration.test_metering_faults import Fate, fated


def settled_once(desk: MeteringDesk) -> None:
    assert (desk.used().requests, desk.used().cost_usd_micros, consumed(desk)) == (1, COST, 200)


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
def test_what_was_not_answered_is_sent_again(fates: tuple[Fate, ...]) -> None:
    desk, wire = fated(*fates)
    lease = taken(desk)
    answer = settle(desk, lease)
    assert (answer.changed.amounts, answer.counted.duplicate) == ({"tpm": 200}, False)
    settled_once(desk)
    # What certainly failed gets another token; what was lost never does.
    conflicts = next((number for number, fate in enumerate(fates) if fate is not Fate.CONFLICT), len(fates))
    assert len(set(wire.tokens)) == 1 + conflicts


@pytest.mark.parametrize("tpm", [200, 500, 700])
@pytest.mark.parametrize(
    ("fates", "error", "applied"),
    [
        ([Fate.LOST_AFTER] * LOST_ANSWERS_MAX, Ambiguous, True),
        ([Fate.LOST_BEFORE] * LOST_ANSWERS_MAX, Ambiguous, False),
        ([Fate.CONFLICT] * ATTEMPTS_MAX, Contended, False),
        ([Fate.THROTTLED] * ATTEMPTS_MAX, Unavailable, False),
        ([Fate.NOT_SENT] * ATTEMPTS_MAX, Unavailable, False),
    ],
)
def test_what_stays_unanswered_is_told_and_the_next_attempt_tells(
    fates: list[Fate], error: type[SluiceError], applied: bool, tpm: int
) -> None:
    desk, wire = fated(*fates)
    lease = taken(desk)
    before = everything(desk)
    with pytest.raises(error):
        settle(desk, lease, tpm)
    assert (everything(desk) != before) is applied
    wire.fates = []
    for process, duplicate in ((desk, applied), (desk, True), (desk.elsewhere(), True)):
        answer = settle(process, lease, tpm)
        assert (answer.changed.amounts, answer.counted.duplicate) == ({"tpm": tpm}, duplicate)
    assert (desk.used().requests, consumed(desk)) == (1, tpm)
    state = desk.lease_state(lease)
    assert state is not None
    assert (state.state, state.version) == (State.SETTLED, 1)


@pytest.mark.parametrize("arrives_first", [False, True])
def test_what_arrives_when_it_was_given_up_happens_once(arrives_first: bool) -> None:
    desk, wire = fated(*[Fate.LATE] * LOST_ANSWERS_MAX)
    lease = taken(desk)
    with pytest.raises(Ambiguous):
        settle(desk, lease)
    assert (desk.used(), consumed(desk)) == (NOTHING, 500)
    for turn in (arrives_first, not arrives_first):
        if turn:
            for arrive in wire.on_the_way:
                arrive()
        else:
            assert settle(desk.elsewhere(), lease).counted.duplicate is arrives_first
    settled_once(desk)


@pytest.mark.parametrize("release", [False, True])
def test_one_that_arrives_after_another_close_changes_nothing(release: bool) -> None:
    desk, wire = fated(*[Fate.LATE] * LOST_ANSWERS_MAX)
    lease = taken(desk)
    with pytest.raises(Ambiguous):
        settle(desk, lease)
    if release:
        desk.elsewhere().leases.release(lease)
    else:
        desk.elsewhere().leases.settle(lease, {"tpm": 700})
    before = everything(desk)
    for arrive in wire.on_the_way:
        arrive()
    assert everything(desk) == before
    for process in (desk, desk.elsewhere()):
        with pytest.raises(LeaseClosed):
            settle(process, lease)
    assert (desk.used(), consumed(desk)) == (NOTHING, 0 if release else 700)


def test_a_lease_that_is_always_changed_first_is_contended_and_nothing_is_counted() -> None:
    desk, _ = fated()
    lease = taken(desk)
    other = desk.elsewhere()
    rounds = 0

    def adjust(verb: str, _request: Any) -> None:
        nonlocal rounds
        if verb == "transact":
            rounds += 1
            other.leases.adjust(lease, {"tpm": 1}, f"key-{rounds}")

    desk.store.before = adjust
    with pytest.raises(Contended):
        settle(desk, lease)
    desk.store.before = None
    assert rounds == ROUNDS_MAX
    assert (desk.used(), consumed(desk)) == (NOTHING, 500 + ROUNDS_MAX)
    assert settle(desk, lease).changed.amounts == {"tpm": 200}
    settled_once(desk)


@pytest.mark.parametrize("closed", ["settled so", "settled otherwise", "released", "reported", "reported otherwise"])
def test_an_engine_that_names_no_reason(closed: str) -> None:
    """Some name only one of all that failed. Then the events are looked for, and the lease is asked by itself."""
    desk, _ = fated()
    lease = taken(desk)
    other = desk.elsewhere()
    if closed == "settled so":
        settle(other, lease)
    elif closed == "settled otherwise":
        settle(other, lease, 300, request_id="request-2")
    elif closed == "released":
        other.leases.release(lease)
    elif closed == "reported":
        other.submit(lease=lease)
    else:
        other.submit(lease=lease, tags={"a": "b"})
    send = desk.store.transact

    def nameless(*arguments: Any, **more: Any) -> Any:
        outcome = send(*arguments, **more)
        if not isinstance(outcome, Cancelled):
            return outcome
        first = next(number for number, failure in enumerate(outcome.failures) if failure is not None)
        return Cancelled(tuple(f if number == first else None for number, f in enumerate(outcome.failures)))

    desk.store.transact = nameless  # type: ignore[method-assign]
    before = everything(desk)
    if closed == "settled so":
        assert settle(desk, lease).counted.duplicate
    elif closed == "reported otherwise":
        with pytest.raises(RequestIdConflict):
            settle(desk, lease)
    else:
        with pytest.raises(LeaseClosed):
            settle(desk, lease)
    assert everything(desk) == before
