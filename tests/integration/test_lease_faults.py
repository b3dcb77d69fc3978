"""Leases when answers are lost, and when others are faster."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sluice.core.errors import Ambiguous, Contended, LeaseClosed, SluiceError, Unavailable
from sluice.core.lease import Lease
from sluice.core.limits import Limit
from sluice.core.signals import Signal
from sluice.repository import writes
from sluice.repository.leases import State
from sluice.repository.retries import Throttled
from sluice.services.leases import RETRY_ROUNDS, Changed, Leases
from tests.integration.conftest import Host
from tests.integration.desks import TEN, TWO, Desk
from tests.integration.test_acquire import per_minute

THREADS = 8
# So slow that a test sees none of it.
ENDLESS = {"rpm": Limit(1_000, 1_000, 1, 31_536_000), "tpm": Limit(1_000, 1_000, 1, 31_536_000)}

Verb = Callable[[Desk, Lease], Changed]
VERBS: dict[str, tuple[Verb, int]] = {
    "settle more": (lambda desk, lease: desk.leases.settle(lease, {"tpm": 300}), 300_000),
    "settle less": (lambda desk, lease: desk.leases.settle(lease, {"tpm": 30}), 30_000),
    "settle the same": (lambda desk, lease: desk.leases.settle(lease, {"tpm": 100}), 100_000),
    "release": (lambda desk, lease: desk.leases.release(lease), 0),
    "adjust up": (lambda desk, lease: desk.leases.adjust(lease, {"tpm": 50}, "k"), 150_000),
    "adjust down": (lambda desk, lease: desk.leases.adjust(lease, {"tpm": -50}, "k"), 50_000),
}


@pytest.fixture
def desk(start_host: Callable[[], Host]) -> Desk:
    return Desk.opened(start_host)


def fail_once(error: SluiceError) -> Callable[[str, Any], None]:
    """On the first write, and never again."""
    failed: list[str] = []

    def act(verb: str, _request: Any) -> None:
        if verb in {"put", "transact", "update"} and not failed:
            failed.append(verb)
            raise error

    return act


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("applied", [False, True])
def test_who_lost_an_answer_asks_again_and_is_charged_once(
    desk: Desk, name: str, elsewhere: bool, applied: bool
) -> None:
    verb, charged_milli = VERBS[name]
    desk.host.put_limits(TWO)
    lease = desk.take(tpm=100)
    if applied:
        desk.host.store.after = fail_once(Ambiguous("lost"))
    else:
        desk.host.store.before = fail_once(Ambiguous("lost"))
    with pytest.raises(Unavailable):
        verb(desk, lease)
    again = desk.elsewhere() if elsewhere else desk
    first = verb(again, lease)
    assert verb(again, lease).amounts == first.amounts
    assert desk.host.consumed_milli("tpm") == charged_milli
    assert desk.host.level_milli("tpm") == 1_000_000 - charged_milli


@pytest.mark.parametrize("name", VERBS)
def test_a_write_that_was_applied_and_sent_again_is_recognised(desk: Desk, name: str) -> None:
    """The store repeats what it got no answer to; the engine then shows it its own write."""
    verb, charged_milli = VERBS[name]
    desk.host.put_limits(TWO)
    lease = desk.take(tpm=100)
    inner = desk.host.store.inner
    real_put, real_transact = inner.put, inner.transact

    def put_twice(request: Any, *, repeatable: bool) -> Any:
        assert repeatable
        real_put(request, repeatable=True)
        return real_put(request, repeatable=True)

    def transact_twice(requests: Any, token: str) -> Any:
        real_transact(requests, token)
        # As if the token was forgotten meanwhile.
        return real_transact(requests, token[::-1])

    inner.put = put_twice  # type: ignore[method-assign]  # the lost answer is played here
    inner.transact = transact_twice  # type: ignore[method-assign, assignment]
    verb(desk, lease)
    assert desk.host.consumed_milli("tpm") == charged_milli


@pytest.mark.parametrize("name", VERBS)
def test_a_throttled_change_changes_nothing(desk: Desk, name: str) -> None:
    verb, charged_milli = VERBS[name]
    desk.host.put_limits(TWO)
    lease = desk.take(tpm=100)
    desk.host.store.before = fail_once(Throttled("x"))
    with pytest.raises(Unavailable):
        verb(desk, lease)
    assert desk.state(lease) is None
    assert desk.host.consumed_milli("tpm") == 100_000
    verb(desk, lease)
    assert desk.host.consumed_milli("tpm") == charged_milli


def at_once(desk: Desk, attempts: Sequence[Callable[[Leases], Changed]]) -> list[Changed | SluiceError]:
    """What each came to, all started together and each in a process of its own."""
    processes = [desk.elsewhere().leases for _ in attempts]
    barrier = threading.Barrier(len(attempts))

    def run(leases: Leases, attempt: Callable[[Leases], Changed]) -> Changed | SluiceError:
        barrier.wait(timeout=30)
        try:
            return attempt(leases)
        except SluiceError as error:
            return error

    with ThreadPoolExecutor(len(attempts)) as threads:
        return list(threads.map(run, processes, attempts))


def settling(lease: Lease, amount: int) -> Callable[[Leases], Changed]:
    return lambda leases: leases.settle(lease, {"tpm": amount})


def adjusting(lease: Lease, amount: int) -> Callable[[Leases], Changed]:
    return lambda leases: leases.adjust(lease, {"tpm": amount}, f"key {amount}")


def releasing(lease: Lease) -> Callable[[Leases], Changed]:
    return lambda leases: leases.release(lease)


def test_of_eight_different_closes_one_happens(desk: Desk) -> None:
    desk.host.put_limits(ENDLESS)
    for _ in range(5):
        lease = desk.take(tpm=10)
        before_milli = desk.host.consumed_milli("tpm") - 10_000
        results = at_once(desk, [releasing(lease), *(settling(lease, amount) for amount in range(1, THREADS))])
        assert all(isinstance(result, Changed | LeaseClosed) for result in results)
        (winner,) = [number for number, result in enumerate(results) if isinstance(result, Changed)]
        assert desk.host.consumed_milli("tpm") - before_milli == winner * 1_000
        state = desk.state(lease)
        assert state is not None
        assert state.state is (State.SETTLED if winner else State.RELEASED)


def test_eight_times_the_same_close_is_one(desk: Desk) -> None:
    desk.host.put_limits(ENDLESS)
    for _ in range(5):
        lease = desk.take(tpm=10)
        before_milli = desk.host.consumed_milli("tpm") - 10_000
        results = at_once(desk, [settling(lease, 25)] * THREADS)
        assert [result.amounts for result in results if isinstance(result, Changed)] == [{"tpm": 25}] * THREADS
        assert desk.host.consumed_milli("tpm") - before_milli == 25_000


def test_eight_adjustments_at_once_are_counted_or_told_to_wait(desk: Desk) -> None:
    desk.host.put_limits(ENDLESS)
    lease = desk.take(tpm=10)
    attempts = [adjusting(lease, amount) for amount in range(1, THREADS + 1)]
    results = at_once(desk, attempts)
    assert all(isinstance(result, Changed | Contended) for result in results)
    done = sum(number for number, result in enumerate(results, start=1) if isinstance(result, Changed))
    assert desk.host.consumed_milli("tpm") == (10 + done) * 1_000
    # Whoever was told to wait comes again, and nobody is counted twice.
    for attempt in attempts:
        attempt(desk.leases)
    assert desk.host.consumed_milli("tpm") == (10 + 36) * 1_000
    assert desk.leases.settle(lease, {}).amounts == {"tpm": 46}


def test_closes_and_adjustments_at_once_leave_what_the_item_says(desk: Desk) -> None:
    desk.host.put_limits(ENDLESS)
    for _ in range(5):
        lease = desk.take(tpm=10)
        before_milli = desk.host.consumed_milli("tpm") - 10_000
        mixed = [settling(lease, 3), releasing(lease), *(adjusting(lease, amount) for amount in (1, 2, 4, -1, -2, -3))]
        results = at_once(desk, mixed)
        assert all(isinstance(result, Changed | LeaseClosed | Contended) for result in results)
        state = desk.state(lease)
        assert state is not None
        stands_for = 10 + state.adjusted.get("tpm", 0) if state.state is State.OPEN else state.closed_with["tpm"]
        assert desk.host.consumed_milli("tpm") - before_milli == stands_for * 1_000


def test_a_close_between_two_adjustments_ends_them(desk: Desk) -> None:
    desk.host.put_limits(TWO)
    lease = desk.take(tpm=100)
    other = desk.elsewhere()

    def close_first(verb: str, _request: Any) -> None:
        if verb == "transact":
            desk.host.store.before = None
            other.leases.settle(lease, {"tpm": 60})

    desk.host.store.before = close_first
    with pytest.raises(LeaseClosed):
        desk.leases.adjust(lease, {"tpm": 5}, "k")
    assert desk.host.consumed_milli("tpm") == 60_000


def test_an_overtaken_close_gives_up_after_four_more_rounds_and_changed_nothing(desk: Desk) -> None:
    """Each time a form is picked, the bucket moves to the other side of full."""
    desk.host.put_limits(TWO)
    lease = desk.take(tpm=100)
    before_milli = desk.host.consumed_milli("tpm")
    moved_milli = 0

    def move(verb: str, request: Any) -> None:
        nonlocal moved_milli
        if verb != "transact":
            return
        image = desk.host.bucket()
        if "<= :top_tpm" in request[1]["Update"]["ConditionExpression"]:
            desk.host.store.inner.update(
                writes.give_back(image.key, image.generation, {"tpm": 5_000_000}), repeatable=False
            )
            moved_milli -= 5_000_000
        else:
            desk.host.store.inner.update(
                writes.adjust(image, {"tpm": 3_000_000}, desk.host.clock.now_ms), repeatable=False
            )
            moved_milli += 3_000_000

    desk.host.store.before = move
    desk.host.store.taken_calls()
    with pytest.raises(Contended):
        desk.leases.settle(lease, {"tpm": 300})
    assert desk.host.store.taken_calls() == ["transact"] * (1 + RETRY_ROUNDS)
    assert desk.host.meter.counts[Signal.CONTENDED] == 1
    assert desk.state(lease) is None
    assert desk.host.consumed_milli("tpm") == before_milli + moved_milli
    desk.host.store.before = None
    desk.leases.settle(lease, {"tpm": 300})
    assert desk.host.consumed_milli("tpm") == before_milli + moved_milli + 200_000


@pytest.mark.parametrize("amount", [40, 400])
def test_a_bucket_that_moved_to_other_limits_meanwhile(desk: Desk, amount: int) -> None:
    desk.host.put_limits(TWO)
    lease = desk.take(tpm=100)
    other = desk.elsewhere()
    other.host.put_limits({"rpm": per_minute(10), "tpm": per_minute(500)})
    other.take(tpm=1)
    level_milli = desk.host.level_milli("tpm")
    desk.leases.settle(lease, {"tpm": amount})
    assert desk.host.consumed_milli("tpm") == (amount + 1) * 1_000
    assert desk.host.level_milli("tpm") == min(500_000, level_milli + 100_000 - amount * 1_000)
    assert desk.left_out(lease) == frozenset()


@pytest.mark.parametrize("amount", [40, 400])
def test_a_bucket_that_was_split_meanwhile(desk: Desk, amount: int) -> None:
    desk.host.put_limits(ENDLESS)
    lease = desk.take(tpm=100)
    assert desk.elsewhere().host.sharding.split(desk.bucket())
    desk.leases.settle(lease, {"tpm": amount})
    assert desk.bucket(shard=0).limits["tpm"].consumed_milli == amount * 1_000
    assert desk.bucket(shard=1).limits["tpm"].consumed_milli == 0
    assert desk.left_out(lease) == frozenset()


def test_a_debt_lengthens_the_life_of_its_bucket(desk: Desk) -> None:
    desk.host.put_limits(TEN)
    lease = desk.take(rpm=1)
    before_s = desk.bucket().expires_at_s
    desk.leases.settle(lease, {"rpm": 26})
    assert before_s is not None
    assert desk.bucket().expires_at_s == before_s + 150
