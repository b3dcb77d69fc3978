"""What is sent again, how often, and what is said when it does not help."""

from collections.abc import Callable

import pytest

from sluice.core.errors import Ambiguous, Contended, Unavailable
from sluice.core.signals import Signal
from sluice.repository.retries import ATTEMPTS_MAX, LOST_ANSWERS_MAX, Conflict, NotSent, Retries, Throttled, Transaction
from tests.fakes import CountingMeter, never_random


class Scripted:
    """Raises what it is told to, in turn, then answers."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.repeated: list[bool] = []

    def __call__(self, repeated: bool) -> str:
        self.repeated.append(repeated)
        if self.failures:
            raise self.failures.pop(0)
        return "answer"


@pytest.fixture
def meter() -> CountingMeter:
    return CountingMeter()


@pytest.fixture
def slept() -> list[int]:
    return []


@pytest.fixture
def retries(meter: CountingMeter, slept: list[int]) -> Retries:
    return Retries(slept.append, never_random, meter)


def test_an_answer_needs_no_pause(retries: Retries, slept: list[int]) -> None:
    assert retries.run(Scripted(), repeatable=False, writes=True) == "answer"
    assert slept == []


@pytest.mark.parametrize("failure", [Throttled, NotSent, Conflict])
def test_what_was_certainly_not_applied_is_sent_again(
    retries: Retries, slept: list[int], failure: Callable[[str], Exception]
) -> None:
    send = Scripted(*(failure("x") for _ in range(ATTEMPTS_MAX - 1)))
    assert retries.run(send, repeatable=False, writes=True) == "answer"
    assert send.repeated == [False] * ATTEMPTS_MAX
    assert len(slept) == ATTEMPTS_MAX - 1


@pytest.mark.parametrize(("failure", "ends_as"), [(Throttled, Throttled), (NotSent, NotSent), (Conflict, Contended)])
def test_the_loop_is_bounded(retries: Retries, failure: Callable[[str], Exception], ends_as: type[Exception]) -> None:
    send = Scripted(*(failure("x") for _ in range(100)))
    with pytest.raises(ends_as):
        retries.run(send, repeatable=True, writes=True)
    assert len(send.repeated) == ATTEMPTS_MAX


def test_throttling_and_lost_connections_count_as_unavailable() -> None:
    assert issubclass(Throttled, Unavailable)
    assert issubclass(NotSent, Unavailable)
    assert not issubclass(Conflict, Unavailable)


def test_a_lost_answer_to_a_plain_write_is_not_repeated(retries: Retries, meter: CountingMeter) -> None:
    """Hole: the defaults of the SDK sent a timed-out ADD ten times."""
    send = Scripted(Ambiguous("timeout"))
    with pytest.raises(Ambiguous):
        retries.run(send, repeatable=False, writes=True)
    assert send.repeated == [False]
    assert meter.counts == {Signal.STORE_AMBIGUOUS_WRITES: 1, Signal.UNAVAILABLE: 1}


def test_a_lost_answer_to_an_idempotent_request_is_repeated_and_says_so(retries: Retries) -> None:
    send = Scripted(Ambiguous("timeout"), Throttled("x"))
    assert retries.run(send, repeatable=True, writes=True) == "answer"
    assert send.repeated == [False, True, True]


@pytest.mark.parametrize(("writes", "counted"), [(True, 1), (False, 0)])
def test_a_write_that_stays_ambiguous_is_counted_also_if_it_was_repeated(
    retries: Retries, meter: CountingMeter, writes: bool, counted: int
) -> None:
    with pytest.raises(Unavailable) as raised:
        retries.run(Scripted(*(Ambiguous("timeout") for _ in range(100))), repeatable=True, writes=writes)
    # A read that was lost leaves no doubt: it changed nothing.
    assert isinstance(raised.value, Ambiguous) == writes
    assert meter.counts[Signal.STORE_AMBIGUOUS_WRITES] == counted


def test_a_lost_answer_that_a_repetition_made_good_is_not_counted(retries: Retries, meter: CountingMeter) -> None:
    retries.run(Scripted(Ambiguous("timeout")), repeatable=True, writes=True)
    assert meter.counts[Signal.STORE_AMBIGUOUS_WRITES] == 0


def test_lost_answers_are_bounded_more_tightly(retries: Retries) -> None:
    send = Scripted(*(Ambiguous("timeout") for _ in range(100)))
    with pytest.raises(Ambiguous):
        retries.run(send, repeatable=True, writes=True)
    assert len(send.repeated) == LOST_ANSWERS_MAX


@pytest.mark.parametrize("failure", [Throttled, Conflict])
def test_giving_up_after_a_lost_answer_stays_ambiguous(retries: Retries, failure: Callable[[str], Exception]) -> None:
    """Else the caller would take it for certain that nothing was written."""
    send = Scripted(Ambiguous("timeout"), *(failure("x") for _ in range(100)))
    with pytest.raises(Ambiguous):
        retries.run(send, repeatable=True, writes=True)


def test_signals(retries: Retries, meter: CountingMeter) -> None:
    retries.run(Scripted(Throttled("x"), Conflict("x"), NotSent("x")), repeatable=False, writes=True)
    assert meter.counts == {Signal.STORE_THROTTLES: 1, Signal.STORE_CONFLICTS: 1}


def test_every_request_that_is_given_up_counts_as_unavailable_and_a_contended_one_does_not(
    retries: Retries, meter: CountingMeter
) -> None:
    for failure, counted in ((Throttled("x"), 1), (NotSent("x"), 2), (Ambiguous("x"), 3), (Conflict("x"), 3)):
        with pytest.raises((Unavailable, Contended)):
            retries.run(Scripted(*[failure] * 100), repeatable=True, writes=False)
        assert meter.counts[Signal.UNAVAILABLE] == counted


class Sending:
    """Raises what it is told to, in turn, then answers. `sent`: the tokens."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.sent: list[str] = []
        self.built = 0

    def __call__(self, transaction: Transaction) -> str:
        self.sent.append(transaction.token)
        if self.failures:
            raise self.failures.pop(0)
        return "answer"

    def rebuild(self) -> Transaction:
        self.built += 1
        return Transaction([], f"token-{self.built}")


def test_a_transaction_that_met_a_conflict_is_rebuilt(retries: Retries, slept: list[int]) -> None:
    send = Sending(Conflict("x"), Conflict("x"))
    assert retries.run_transaction(send, Transaction([], "token-0"), send.rebuild) == "answer"
    assert send.sent == ["token-0", "token-1", "token-2"]
    assert len(slept) == 2


def test_a_throttled_transaction_is_sent_as_it_is(retries: Retries) -> None:
    send = Sending(Throttled("x"), NotSent("x"), Conflict("x"), Throttled("x"))
    assert retries.run_transaction(send, Transaction([], "token-0"), send.rebuild) == "answer"
    assert send.sent == ["token-0", "token-0", "token-0", "token-1", "token-1"]


def test_after_a_lost_answer_nothing_is_rebuilt(retries: Retries) -> None:
    """Hole: a rebuilt transaction has another token, and the lost one may have been applied."""
    send = Sending(Conflict("x"), Ambiguous("x"), Conflict("x"), Conflict("x"))
    assert retries.run_transaction(send, Transaction([], "token-0"), send.rebuild) == "answer"
    assert send.sent == ["token-0", "token-1", "token-1", "token-1", "token-1"]
    send = Sending(Ambiguous("x"), *[Conflict("x")] * 10)
    with pytest.raises(Ambiguous):
        retries.run_transaction(send, Transaction([], "token-0"), send.rebuild)
    assert set(send.sent) == {"token-0"}


def test_a_transaction_that_can_not_be_rebuilt_is_sent_as_it_is(retries: Retries) -> None:
    send = Sending(*[Conflict("x")] * 10)
    with pytest.raises(Contended):
        retries.run_transaction(send, Transaction([], "token-0"))
    assert send.sent == ["token-0"] * ATTEMPTS_MAX


def test_a_bug_passes_through_at_once(retries: Retries) -> None:
    send = Scripted(KeyError("bug"))
    with pytest.raises(KeyError):
        retries.run(send, repeatable=True, writes=True)
    assert len(send.repeated) == 1


def test_pauses_grow(retries: Retries, meter: CountingMeter) -> None:
    slept: list[int] = []
    longest = Retries(slept.append, lambda below: below - 1, meter)
    longest.run(Scripted(*(Throttled("x") for _ in range(4))), repeatable=False, writes=True)
    assert slept == [10, 20, 40, 80]
