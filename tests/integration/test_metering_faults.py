"""Usage when answers are lost, when others are at the same counters, and when the table does not answer."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeVar

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.errors import Ambiguous, Contended, LeaseClosed, RequestIdConflict, SluiceError, Unavailable
from sluice.core.metering import CallStatus
from sluice.core.orgs import QuotaScope
from sluice.core.signals import Signal
from sluice.core.timelines import always
from sluice.repository.leases import State
from sluice.repository.retries import ATTEMPTS_MAX, LOST_ANSWERS_MAX, Conflict, NotSent, Retries, Throttled
from sluice.repository.store import Cancelled, DynamoStore
from sluice.services.metering import ROUNDS_MAX, Counted
from tests.fakes import CountingMeter, FakeClock
from tests.integration.metering_desks import (
    APP,
    AS_APP,
    COST,
    MIDNIGHT_MS,
    NOTHING,
    ORG,
    OTHER_APP,
    YESTERDAY,
    MeteringDesk,
    lease_of,
    report,
    simulated_desk,
)
from tests.integration.test_metering_batches import events_of, reports, shown
from tests.simulation.store import Call, PerfectWire

T = TypeVar("T")
THREADS = 8


class Fate(Enum):
    CONFLICT = "conflict"
    THROTTLED = "throttled"
    NOT_SENT = "not sent"
    LOST_BEFORE = "lost, not applied"
    LOST_AFTER = "lost, applied"
    LATE = "lost, applied later"
    FINE = "fine"


@dataclass
class FatefulWire(PerfectWire):
    """What becomes of each transaction in turn; then all goes well. `tokens`: under which each came.

    `on_the_way`: those that were given up and have not arrived.
    """

    fates: list[Fate] = field(default_factory=list)
    tokens: list[object] = field(default_factory=list)
    on_the_way: list[Callable[[], object]] = field(default_factory=list)

    def carry(self, call: Call, apply: Callable[[], T]) -> T:
        if not call.is_transaction:
            return apply()
        self.tokens.append(call.about)
        match self.fates.pop(0) if self.fates else Fate.FINE:
            case Fate.CONFLICT:
                raise Conflict("x")
            case Fate.THROTTLED:
                raise Throttled("x")
            case Fate.NOT_SENT:
                raise NotSent("x")
            case Fate.LOST_BEFORE:
                raise Ambiguous("x")
            case Fate.LATE:
                self.on_the_way.append(apply)
                raise Ambiguous("x")
            case Fate.LOST_AFTER:
                apply()
                raise Ambiguous("x")
            case Fate.FINE:
                return apply()


def fated(*fates: Fate) -> tuple[MeteringDesk, FatefulWire]:
    wire = FatefulWire(fates=list(fates))
    desk, _ = simulated_desk(wire)
    desk.random.draw = lambda _below: 0
    return desk, wire


# One report.


def test_a_conflict_is_tried_again_on_another_shard_under_another_token() -> None:
    desk, wire = fated(Fate.CONFLICT, Fate.CONFLICT)
    assert not desk.submit().duplicate
    assert len(set(wire.tokens)) == 3
    (shard,) = desk.shards()
    assert (shard.shard, shard.revision, shard.counters.cost_usd_micros) == (2, 1, COST)
    assert desk.meter.counts[Signal.STORE_CONFLICTS] == 2
    # With a pause before each.
    assert desk.clock.now_ms > FakeClock().now_ms


def test_conflicts_end_as_contended_and_nothing_is_counted() -> None:
    desk, wire = fated(*[Fate.CONFLICT] * ATTEMPTS_MAX)
    with pytest.raises(Contended) as refused:
        desk.submit()
    assert 25 <= refused.value.retry_after_ms <= 75
    assert len(set(wire.tokens)) == ATTEMPTS_MAX
    assert desk.used() == NOTHING
    assert desk.event() is None
    assert desk.meter.counts[Signal.CONTENDED] == 1
    assert not desk.submit().duplicate


@pytest.mark.parametrize("lost", [Fate.LOST_BEFORE, Fate.LOST_AFTER])
@pytest.mark.parametrize("then", [Fate.FINE, Fate.CONFLICT, Fate.THROTTLED])
def test_what_was_lost_is_sent_again_as_it_was(lost: Fate, then: Fate) -> None:
    """Also after a conflict: the token alone says whether it happened before."""
    desk, wire = fated(lost, then)
    assert not desk.submit().duplicate
    assert len(set(wire.tokens)) == 1
    assert (desk.used().requests, desk.used().cost_usd_micros) == (1, COST)
    assert [shard.revision for shard in desk.shards()] == [1]


def test_a_conflict_and_then_a_lost_answer() -> None:
    desk, wire = fated(Fate.CONFLICT, Fate.LOST_AFTER, Fate.CONFLICT, Fate.FINE)
    assert not desk.submit().duplicate
    assert len(set(wire.tokens)) == 2
    assert desk.used().requests == 1


@pytest.mark.parametrize("lost", [Fate.LOST_BEFORE, Fate.LOST_AFTER])
def test_what_stays_lost_is_unavailable_and_the_next_attempt_tells(lost: Fate) -> None:
    desk, wire = fated(*[lost] * LOST_ANSWERS_MAX)
    lease = lease_of(desk.clock)
    with pytest.raises(Ambiguous):
        desk.submit(lease=lease)
    assert len(set(wire.tokens)) == 1
    applied = lost is Fate.LOST_AFTER
    for process, duplicate in ((desk, applied), (desk, True), (desk.elsewhere(), True)):
        assert process.submit(lease=lease).duplicate == duplicate
    assert (desk.used().requests, desk.used().cost_usd_micros) == (1, COST)
    state = desk.lease_state(lease)
    assert state is not None
    assert (state.state, state.version) == (State.SETTLED, 1)


@pytest.mark.parametrize("lost", [Fate.LOST_BEFORE, Fate.LOST_AFTER])
def test_without_a_time_what_stayed_lost_before_midnight_is_found_after_it(lost: Fate) -> None:
    desk, _ = fated(*[lost] * LOST_ANSWERS_MAX)
    desk.clock.now_ms = MIDNIGHT_MS - 60_000
    with pytest.raises(Ambiguous):
        desk.submit(occurred_at_ms=None)
    desk.clock.now_ms = MIDNIGHT_MS + 1
    assert desk.submit(occurred_at_ms=None).duplicate == (lost is Fate.LOST_AFTER)
    assert desk.used().requests + desk.used(day=YESTERDAY).requests == 1


@pytest.mark.parametrize("arrives_first", [False, True])
def test_what_arrives_when_it_was_long_given_up_is_counted_once(arrives_first: bool) -> None:
    desk, wire = fated(*[Fate.LATE] * LOST_ANSWERS_MAX)
    lease = lease_of(desk.clock)
    answers = desk.metering.submit_batch(AS_APP, reports(3, lease=lease))
    assert shown(answers) == ["Ambiguous"] * 3
    # The next attempt has other company, another shard and another token.
    again = [*reports(2, first=2, lease=lease), *reports(2, lease=lease)]
    for turn in (arrives_first, not arrives_first):
        if turn:
            for arrive in wire.on_the_way:
                arrive()
        else:
            told = shown(desk.metering.submit_batch(AS_APP, again))
    assert told == (["duplicate", "counted", "duplicate", "duplicate"] if arrives_first else ["counted"] * 4)
    assert (desk.used().requests, desk.used().cost_usd_micros) == (4, 4 * COST)


@pytest.mark.parametrize("fate", [Fate.THROTTLED, Fate.NOT_SENT])
def test_a_table_that_does_not_answer_is_unavailable(fate: Fate) -> None:
    desk, wire = fated(*[fate] * ATTEMPTS_MAX)
    with pytest.raises(Unavailable) as refused:
        desk.submit()
    assert not isinstance(refused.value, Ambiguous)
    assert len(set(wire.tokens)) == 1, "a throttled transaction is sent as it is"
    assert desk.event() is None
    assert not desk.submit().duplicate


def test_a_registration_whose_answer_is_lost_is_found_by_the_next_attempt() -> None:
    desk, _ = fated(*[Fate.LOST_AFTER] * LOST_ANSWERS_MAX)
    with pytest.raises(Ambiguous):
        desk.submit(entity="new")
    assert desk.event() is None
    assert not desk.submit(entity="new").duplicate
    assert desk.used().requests == 1


def test_a_repeat_that_was_faster(desk: MeteringDesk) -> None:
    """The first attempt is still on its way when its repeat, elsewhere, is done."""
    other = desk.elsewhere()
    at_the_transaction(desk, other.submit)
    counted = desk.submit()
    assert (counted.duplicate, counted.event) == (True, desk.event())
    assert desk.used().requests == 1


def test_another_body_that_was_faster(desk: MeteringDesk) -> None:
    other = desk.elsewhere()
    at_the_transaction(desk, lambda: other.submit(status=CallStatus.ERROR))
    with pytest.raises(RequestIdConflict):
        desk.submit()
    assert desk.used().requests == 1


def test_a_lease_that_is_adjusted_meanwhile_is_closed_as_it_is_then(desk: MeteringDesk) -> None:
    lease, other = lease_of(desk.clock), desk.elsewhere()
    desk.submit(request_id="warm")
    at_the_transaction(desk, lambda: other.leases.adjust(replace(lease, members=()), {"tpm": -100}, "k"))
    desk.store.taken_calls()
    assert not desk.submit(lease=lease).duplicate
    assert desk.store.taken_calls() == ["transact", "transact", "get"]
    state = desk.lease_state(lease)
    assert state is not None
    assert state.closed_with == {"tpm": 400}


def test_a_lease_that_is_closed_meanwhile_stays_as_it_is(desk: MeteringDesk) -> None:
    lease, other = lease_of(desk.clock), desk.elsewhere()
    at_the_transaction(desk, lambda: other.leases.settle(lease, {}))
    assert not desk.submit(lease=lease).duplicate
    state = desk.lease_state(lease)
    assert state is not None
    assert state.version == 1
    assert desk.used().requests == 1


def test_a_lease_whose_item_is_gone_is_closed_anew(desk: MeteringDesk) -> None:
    """Nobody deletes one before its time but a purge; then what this process remembers of it is of no use."""
    lease = lease_of(desk.clock)
    desk.leases.adjust(replace(lease, members=()), {"tpm": 1}, "k")
    state = desk.lease_state(lease)
    assert state is not None
    desk.store.inner.delete({"Key": {**state.key.attributes}})
    assert not desk.submit(lease=lease).duplicate
    state = desk.lease_state(lease)
    assert state is not None
    assert (state.closed_with, state.version) == ({"tpm": 500}, 1)


def test_a_lease_that_never_stands_still_ends_as_contended(desk: MeteringDesk) -> None:
    lease, other = lease_of(desk.clock), desk.elsewhere()
    keys = iter(range(100))

    def adjust(verb: str, _request: Any) -> None:
        if verb == "transact":
            other.leases.adjust(replace(lease, members=()), {"tpm": 1}, f"{next(keys)}")

    desk.store.before = adjust
    desk.store.taken_calls()
    with pytest.raises(Contended):
        desk.submit(lease=lease)
    assert desk.store.taken_calls().count("transact") == ROUNDS_MAX
    desk.store.before = None
    assert not desk.submit(lease=lease).duplicate
    assert desk.used().requests == 1


# Batches.


def test_the_events_of_a_transaction_that_is_lost_fail_and_the_others_do_not() -> None:
    desk, _ = fated(*[Fate.LOST_BEFORE] * LOST_ANSWERS_MAX)
    answers = desk.metering.submit_batch(AS_APP, [*reports(100), report(request_id="r-0")])
    assert shown(answers) == ["Ambiguous"] * 99 + ["counted", "Ambiguous"]
    again = desk.metering.submit_batch(AS_APP, reports(100))
    assert shown(again) == ["counted"] * 99 + ["duplicate"]
    assert desk.used().requests == 100


@pytest.mark.parametrize("fates", [[Fate.LOST_AFTER] * 2, [Fate.CONFLICT] * 4, [Fate.LOST_BEFORE, Fate.CONFLICT]])
def test_whatever_becomes_of_a_batch_it_is_counted_once_in_the_end(fates: list[Fate]) -> None:
    desk, _ = fated(*fates)
    for _ in range(3):
        answers = desk.metering.submit_batch(AS_APP, reports(100))
    assert shown(answers) == ["duplicate"] * 100
    assert (desk.used().requests, desk.used().cost_usd_micros) == (100, 100 * COST)


def test_a_contended_transaction_of_a_batch_fails_alone() -> None:
    desk, _ = fated(*[Fate.CONFLICT] * ATTEMPTS_MAX)
    answers = desk.metering.submit_batch(AS_APP, reports(100))
    assert shown(answers) == ["Contended"] * 99 + ["counted"]
    assert desk.meter.counts[Signal.CONTENDED] == 1


def test_a_batch_that_is_overtaken_goes_on_with_what_is_left(desk: MeteringDesk) -> None:
    other = desk.elsewhere()
    at_the_transaction(desk, lambda: other.metering.submit_batch(AS_APP, reports(30, first=10)))
    answers = desk.metering.submit_batch(AS_APP, reports(50))
    assert shown(answers) == ["counted"] * 10 + ["duplicate"] * 30 + ["counted"] * 10
    assert desk.used().requests == 50


@pytest.mark.parametrize("told", [0, 1])
def test_an_engine_that_does_not_name_all_that_failed(desk: MeteringDesk, told: int) -> None:
    """It names one, or none: the rest is found by looking."""
    desk.metering.submit_batch(AS_APP, reports(20))
    real = desk.store.inner.transact

    def reticent(writes: Any, token: str, **more: Any) -> Any:
        outcome = real(writes, token, **more)
        if not isinstance(outcome, Cancelled):
            return outcome
        failed = [number for number, failure in enumerate(outcome.failures) if failure is not None]
        kept = set(failed[:told])
        return Cancelled(tuple(one if number in kept else None for number, one in enumerate(outcome.failures)))

    desk.store.inner.transact = reticent  # type: ignore[method-assign]  # another engine
    desk.store.taken_calls()
    answers = desk.metering.submit_batch(AS_APP, reports(30, first=10))
    assert shown(answers) == ["duplicate"] * 10 + ["counted"] * 20
    assert desk.store.taken_calls()[:-1] == ["transact", "transact", "consistent batch_get", "transact"]
    assert desk.used().requests == 40


def test_while_the_rest_is_looked_for_the_table_goes_away(desk: MeteringDesk) -> None:
    desk.metering.submit_batch(AS_APP, reports(1))
    desk.store.inner.transact = lambda writes, token, **_more: Cancelled(  # type: ignore[method-assign]  # says nothing
        (None,) * len(writes)
    )

    def fail(verb: str, _request: Any) -> None:
        if verb == "consistent batch_get":
            raise Unavailable("x")

    desk.store.before = fail
    assert shown(desk.metering.submit_batch(AS_APP, reports(2))) == ["Unavailable"] * 2


# All at once, on a real engine.


@pytest.fixture
def desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> MeteringDesk:
    retries = Retries(lambda _ms: None, lambda _below: 0, CountingMeter())
    return MeteringDesk.opened(DynamoStore(dynamodb, table, retries), clock).found()


def at_the_transaction(desk: MeteringDesk, act: Callable[[], object]) -> None:
    """Once, in the moment before the next one is sent."""

    def before(verb: str, _request: object) -> None:
        if verb == "transact":
            desk.store.before = None
            act()

    desk.store.before = before


def at_once(desk: MeteringDesk, tasks: Sequence[Callable[[MeteringDesk], T]]) -> list[T]:
    """Each in a process of its own, all started together. Shards are drawn from a sequence of its own each."""
    barrier = threading.Barrier(len(tasks))

    def run(number: int, task: Callable[[MeteringDesk], T]) -> T:
        process = desk.elsewhere()
        turn = iter(range(number, 10**6, 3))
        process.random.draw = lambda below: next(turn) % below
        barrier.wait(timeout=30)
        return task(process)

    with ThreadPoolExecutor(len(tasks)) as threads:
        return list(threads.map(run, range(len(tasks)), tasks))


def insistent(process: MeteringDesk, send: Callable[[MeteringDesk], Counted]) -> Counted:
    """As a client does that is told to come again."""
    for _ in range(50):
        try:
            return send(process)
        except Contended:
            continue
    raise AssertionError("nobody is kept waiting so long")


def test_eight_attempts_at_once_are_one_call(desk: MeteringDesk) -> None:
    for number in range(5):
        one = f"r-{number}"
        lease = lease_of(desk.clock, lease_id=one)

        def send(process: MeteringDesk, request_id: str = one, lease: Any = lease) -> Counted:
            return insistent(process, lambda each: each.submit(request_id=request_id, lease=lease))

        results = at_once(desk, [send] * THREADS)
        assert sorted(result.duplicate for result in results) == [False] + [True] * (THREADS - 1)
        assert {result.event.cost_usd_micros for result in results} == {COST}
        state = desk.lease_state(lease)
        assert state is not None
        assert state.version == 1
        with pytest.raises(LeaseClosed):
            desk.leases.release(lease)
    assert (desk.used().requests, desk.used().cost_usd_micros) == (5, 5 * COST)


def test_of_eight_bodies_under_one_id_one_is_counted(desk: MeteringDesk) -> None:
    def task(number: int) -> Callable[[MeteringDesk], Counted | SluiceError]:
        def send(process: MeteringDesk) -> Counted | SluiceError:
            try:
                return insistent(process, lambda each: each.submit(tags={"number": str(number)}))
            except RequestIdConflict as conflict:
                return conflict

        return send

    results = at_once(desk, [task(number) for number in range(THREADS)])
    assert sorted(map(str, shown(results))) == ["RequestIdConflict"] * (THREADS - 1) + ["counted"]
    assert desk.used().requests == 1


def test_without_a_time_attempts_on_both_sides_of_midnight_are_one_call(desk: MeteringDesk) -> None:
    """Their clocks do not agree on the day."""

    def task(number: int) -> Callable[[MeteringDesk], Counted]:
        def send(process: MeteringDesk) -> Counted:
            ahead = FakeClock(MIDNIGHT_MS + 1_000 * (number % 2) - 1)
            there = MeteringDesk.opened(process.store.inner, ahead, models=process.models, prices=process.prices)
            return insistent(there, lambda each: each.submit(occurred_at_ms=None))

        return send

    results = at_once(desk, [task(number) for number in range(THREADS)])
    assert sum(not result.duplicate for result in results) == 1
    assert len({result.event.day for result in results}) == 1
    assert desk.used().requests + desk.used(day=YESTERDAY).requests == 1


def test_many_calls_at_once_add_up(desk: MeteringDesk) -> None:
    """Of two apps, with quotas of the org: all of them meet at its counters."""
    desk.change_org(lambda settings: replace(settings, quota_scopes=always(QuotaScope.ORG)))
    each = 10

    def task(number: int) -> Callable[[MeteringDesk], list[Counted]]:
        entity = (APP, OTHER_APP)[number % 2]
        reporter = replace(AS_APP, entity=entity, within=entity)

        def send(process: MeteringDesk) -> list[Counted]:
            return [
                insistent(process, lambda one, at=at: one.submit(reporter, request_id=f"{number // 4}-{at}"))  # type: ignore[misc]
                for at in range(each)
            ]

        return send

    results = at_once(desk, [task(number) for number in range(THREADS)])
    # Of each app, two processes send the same.
    assert sum(not one.duplicate for result in results for one in result) == THREADS // 2 * each
    for entity, calls in ((APP, 20), (OTHER_APP, 20), (ORG, 40)):
        assert (desk.used(entity).requests, desk.used(entity).cost_usd_micros) == (calls, calls * COST)


def test_the_same_batch_at_once_is_counted_once(desk: MeteringDesk) -> None:
    def send(process: MeteringDesk) -> list[Counted | SluiceError]:
        answers = process.metering.submit_batch(AS_APP, reports(60))
        return answers if not any(isinstance(one, Contended) for one in answers) else send(process)

    results = at_once(desk, [send] * 4)
    assert desk.used().requests == 60
    for answers in results:
        assert events_of(answers) == events_of(results[0])
