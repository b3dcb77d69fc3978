"""Lost answers, a table that does not answer, and writers that get in the way at the worst moment."""

from collections.abc import Callable
from typing import Any

import pytest

from sluice.core.errors import Ambiguous, Contended, LimitExceeded, Unavailable
from sluice.core.limits import SYSTEM, OnUnavailable
from sluice.core.signals import Signal
from sluice.repository import writes
from sluice.repository.retries import NotSent, Throttled
from sluice.repository.store import ConditionFailed
from sluice.services.configuration import CACHE_MS
from sluice.services.denials import DENIAL_MS
from sluice.services.taking import RETRY_ROUNDS
from tests.fakes import FakeClock
from tests.integration.conftest import Host
from tests.integration.test_acquire import per_minute


def fail(error: Exception) -> Callable[[str, Any], None]:
    def raise_it(_verb: str, _request: Any) -> None:
        raise error

    return raise_it


def test_a_debit_whose_answer_is_lost_is_unavailable_and_charged_at_most_once(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=1)
    host.store.after = fail(Ambiguous("timeout"))
    with pytest.raises(Unavailable):
        host.acquire(rpm=1)
    assert host.consumed_milli("rpm") == 2_000
    assert host.meter.counts[Signal.FAIL_OPEN_ADMISSIONS] == 0


def test_a_creation_whose_answer_is_lost_is_recognised_as_our_own(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10)})
    real_put = host.store.inner.put

    def put_twice(request: Any, *, repeatable: bool) -> Any:
        assert repeatable
        real_put(request, repeatable=True)
        again = real_put(request, repeatable=True)
        assert isinstance(again, ConditionFailed)
        return ConditionFailed(again.item, repeated=True)

    host.store.inner.put = put_twice  # type: ignore[method-assign]  # the lost answer is played here
    host.acquire(rpm=3)
    assert host.consumed_milli("rpm") == 3_000


def test_a_creation_that_another_won_is_not_taken_for_our_own(host: Host, start_host: Callable[[], Host]) -> None:
    other = start_host()
    host.put_limits({"rpm": per_minute(10)})

    def create_first(verb: str, _request: Any) -> None:
        if verb == "put":
            host.store.before = None
            other.acquire(rpm=1)

    host.store.before = create_first
    host.acquire(rpm=3)
    assert host.consumed_milli("rpm") == 4_000
    assert host.store.calls[-3:] == ["batch_get", "put", "update"]


@pytest.mark.parametrize("error", [Throttled("x"), NotSent("x"), Ambiguous("x")])
def test_block_is_the_default_while_the_table_does_not_answer(host: Host, error: Exception) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=1)
    host.store.before = fail(error)
    with pytest.raises(Unavailable):
        host.acquire(rpm=1)
    assert host.meter.counts[Signal.FAIL_OPEN_ADMISSIONS] == 0


@pytest.mark.parametrize("error", [Throttled("x"), NotSent("x"), Ambiguous("x")])
def test_allow_lets_requests_through_and_counts_them(host: Host, clock: FakeClock, error: Exception) -> None:
    host.put_limits({"rpm": per_minute(10)}, SYSTEM, OnUnavailable.ALLOW)
    host.acquire(rpm=1)
    host.store.before = fail(error)
    admission = host.acquire(rpm=1)
    assert admission.degraded
    assert admission.levels == ()
    # Also when the configuration itself can no longer be read.
    clock.advance(CACHE_MS)
    assert host.acquire(rpm=1).degraded
    assert host.meter.counts[Signal.FAIL_OPEN_ADMISSIONS] == 2


def test_allow_holds_for_per_call_limits_as_well(host: Host, clock: FakeClock) -> None:
    limits = {"rpm": per_minute(10)}
    host.put_limits({"tpm": per_minute(10)}, SYSTEM, OnUnavailable.ALLOW)
    host.ask({"rpm": 1}, limits)
    host.store.before = fail(NotSent("x"))
    assert host.ask({"rpm": 1}, limits).degraded
    host.store.before = None
    host.put_limits({"tpm": per_minute(10)}, SYSTEM, OnUnavailable.BLOCK)
    clock.advance(CACHE_MS)
    host.ask({"rpm": 1}, limits)
    host.store.before = fail(NotSent("x"))
    with pytest.raises(Unavailable):
        host.ask({"rpm": 1}, limits)


def test_allow_never_opens_the_gate_for_a_bug_or_a_refusal(host: Host) -> None:
    host.put_limits({"rpm": per_minute(1)}, SYSTEM, OnUnavailable.ALLOW)
    host.acquire(rpm=1)
    with pytest.raises(LimitExceeded):
        host.acquire(rpm=1)
    host.clock.advance(DENIAL_MS)
    host.store.before = fail(ValueError("bug"))
    with pytest.raises(ValueError, match="bug"):
        host.acquire(rpm=1)
    host.store.before = fail(Contended(30))
    with pytest.raises(Contended):
        host.acquire(rpm=1)
    assert host.meter.counts[Signal.FAIL_OPEN_ADMISSIONS] == 0


def test_a_process_that_never_read_the_configuration_blocks(host: Host, start_host: Callable[[], Host]) -> None:
    host.put_limits({"rpm": per_minute(10)}, SYSTEM, OnUnavailable.ALLOW)
    cold = start_host()
    cold.store.before = fail(NotSent("x"))
    with pytest.raises(Unavailable):
        cold.acquire(rpm=1)


def test_a_wrong_guess_costs_one_more_write_and_is_learned_from(
    host: Host, start_host: Callable[[], Host], clock: FakeClock
) -> None:
    other = start_host()
    host.put_limits({"rpm": per_minute(60)})
    host.acquire(rpm=10)
    for calls in (["update", "update"], ["update"], ["update"]):
        # The image of this host says full, but the other one has spent since.
        clock.advance(15_000)
        other.acquire(rpm=10)
        host.store.taken_calls()
        host.acquire(rpm=1)
        assert host.store.taken_calls() == calls


def test_an_overtaken_writer_gives_up_after_four_rounds_and_says_contended(host: Host, clock: FakeClock) -> None:
    """Each time the writer picks a form, the bucket moves to the other side of full."""
    host.put_limits({"rpm": per_minute(60)})
    host.acquire(rpm=0)

    def move(verb: str, request: Any) -> None:
        if verb != "update":
            return
        image = host.bucket()
        if "b_rpm_tk BETWEEN" in request["ConditionExpression"]:
            move_back = writes.give_back(image.key, image.generation, {"rpm": 500_000})
        else:
            move_back = writes.adjust(image, {"rpm": 30_000}, clock.now_ms)
        host.store.inner.update(move_back, repeatable=False)

    host.store.before = move
    host.store.taken_calls()
    with pytest.raises(Contended) as raised:
        host.acquire(rpm=1)
    assert raised.value.retry_after_ms == 25
    assert host.store.taken_calls() == ["update"] * (RETRY_ROUNDS + 1)
    assert host.meter.counts[Signal.CONTENDED] == 1


def test_the_last_round_still_refuses_exactly(host: Host, clock: FakeClock) -> None:
    """Contended is never said where the last image shows a plain refusal."""
    host.put_limits({"rpm": per_minute(60)})
    host.acquire(rpm=0)
    rounds = 0

    def move(verb: str, request: Any) -> None:
        nonlocal rounds
        rounds += 1
        image = host.bucket()
        if rounds == RETRY_ROUNDS + 1:
            drain = writes.adjust(image, {"rpm": 60_000}, clock.now_ms)
            host.store.inner.update(drain, repeatable=False)
        elif "b_rpm_tk BETWEEN" in request["ConditionExpression"]:
            give = writes.give_back(image.key, image.generation, {"rpm": 500_000})
            host.store.inner.update(give, repeatable=False)
        else:
            host.store.inner.update(writes.adjust(image, {"rpm": 30_000}, clock.now_ms), repeatable=False)

    host.store.before = move
    with pytest.raises(LimitExceeded):
        host.acquire(rpm=1)
    assert rounds == RETRY_ROUNDS + 1


def test_a_give_back_to_another_incarnation_changes_nothing(host: Host) -> None:
    """Hole: an unconditional ADD after deletion leaves half an item that nobody can use."""
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=5)
    old = host.bucket()
    host.store.inner.delete({"Key": {"PK": old.key.pk, "SK": old.key.sk}})
    back = writes.give_back(old.key, old.generation, {"rpm": 5_000})
    assert host.store.inner.update(back, repeatable=False) == ConditionFailed(None)
    assert host.find_bucket() is None
    host.clock.advance(1)
    host.acquire(rpm=1)
    assert isinstance(host.store.inner.update(back, repeatable=False), ConditionFailed)
    assert host.level_milli("rpm") == 9_000


def test_a_give_back_of_a_removed_limit_changes_nothing(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10), "tpm": per_minute(10)})
    host.acquire(rpm=1, tpm=1)
    bucket = host.bucket()
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=1)
    back = writes.give_back(bucket.key, bucket.generation, {"rpm": 1_000, "tpm": 1_000})
    assert isinstance(host.store.inner.update(back, repeatable=False), ConditionFailed)
    assert host.bucket().limits.keys() == {"rpm"}


def test_an_adjustment_on_a_changed_bucket_fails_and_shows_it(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=1)
    seen = host.bucket()
    host.put_limits({"rpm": per_minute(20)})
    host.acquire(rpm=1)
    outcome = host.store.inner.update(writes.adjust(seen, {"rpm": 3_000}, host.clock.now_ms), repeatable=False)
    assert isinstance(outcome, ConditionFailed)
    now = host.bucket()
    host.store.inner.update(writes.adjust(now, {"rpm": 3_000}, host.clock.now_ms), repeatable=False)
    assert host.consumed_milli("rpm") == 5_000


def test_an_adjustment_lengthens_the_life_of_its_bucket(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=1)
    before = host.bucket()
    host.store.inner.update(writes.adjust(before, {"rpm": 25_000}, host.clock.now_ms), repeatable=False)
    assert (host.bucket().expires_at_s or 0) - (before.expires_at_s or 0) == 150
