"""One bounded loop for everything that is sent. The SDK's own retries are off: they would repeat an applied write.

A throttled, conflicting or unsent request was certainly not applied and may always be repeated. A lost answer says
nothing: such a request is repeated only when the caller knows that a second application changes nothing.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from sluice.core.backoff import RandomBelow, contended_wait_ms, pause_ms
from sluice.core.errors import Ambiguous, Contended, SluiceError, Unavailable
from sluice.core.signals import Meter, Signal
from sluice.repository.requests import TransactWrite

T = TypeVar("T")

ATTEMPTS_MAX: Final = 5
# Each of these has already waited for a whole timeout.
LOST_ANSWERS_MAX: Final = 2


class Transaction(NamedTuple):
    """Repeated byte for byte under its token, which makes it happen once."""

    writes: Sequence[TransactWrite]
    token: str


Rebuild = Callable[[], Transaction]
"""The same transaction on other items and under another token, its writes in the same order."""


class Throttled(Unavailable):
    """Refused by the table before anything was done. `hot_key`: this key is asked too often, not the whole table."""

    def __init__(self, why: str, *, hot_key: bool = False) -> None:
        super().__init__(why)
        self.hot_key = hot_key


class NotSent(Unavailable):
    """No connection: the request never left."""


class Conflict(SluiceError):
    """A transaction was under way on the same item. Nothing was done."""


class Retries:
    """The loop, with its clock and randomness passed in so that a simulation stays deterministic."""

    def __init__(self, sleep_ms: Callable[[int], None], random_below: RandomBelow, meter: Meter) -> None:
        self._sleep_ms = sleep_ms
        self._random_below = random_below
        self._meter = meter

    def run(self, send: Callable[[bool], T], *, repeatable: bool, writes: bool) -> T:
        """Calls `send` until it answers. Its argument says whether an earlier call may already have been applied."""
        lost_answers = 0
        for attempt in range(ATTEMPTS_MAX):
            try:
                return send(lost_answers > 0)
            except (Conflict, Unavailable) as failure:
                self._count(failure)
                lost_answers += isinstance(failure, Ambiguous)
                hopeless = lost_answers > 0 if not repeatable else lost_answers == LOST_ANSWERS_MAX
                if hopeless or attempt == ATTEMPTS_MAX - 1:
                    raise self._given_up(failure, lost_answers, writes=writes) from failure
            self.pause(attempt)
        raise AssertionError("the last attempt returns or raises")

    def run_transaction(
        self, send: Callable[[Transaction], T], transaction: Transaction, rebuild: Rebuild | None = None
    ) -> T:
        """As `run`. What met a conflict is rebuilt, if that is possible and no earlier answer was lost.

        A conflict leaves no doubt: that transaction was not applied and never will be. A lost answer leaves all doubt:
        from then on only the same bytes are sent under the same token.
        """
        current = transaction

        def attempt(repeated: bool) -> T:
            nonlocal current
            try:
                return send(current)
            except Conflict:
                if rebuild is not None and not repeated:
                    current = rebuild()
                raise

        return self.run(attempt, repeatable=True, writes=True)

    def _given_up(self, failure: SluiceError, lost_answers: int, *, writes: bool) -> SluiceError:
        if isinstance(failure, Conflict) and not lost_answers:
            return Contended(contended_wait_ms(self._random_below))
        self._meter.count(Signal.UNAVAILABLE)
        if not lost_answers:
            return failure
        if not writes:
            # A read that was lost leaves no doubt: it changed nothing.
            return Unavailable("the answer was lost")
        self._meter.count(Signal.STORE_AMBIGUOUS_WRITES)
        return Ambiguous("the answer was lost")

    def _count(self, failure: SluiceError) -> None:
        if isinstance(failure, Conflict):
            self._meter.count(Signal.STORE_CONFLICTS)
        elif isinstance(failure, Throttled):
            self._meter.count(Signal.STORE_THROTTLES)

    def exhausted(self, why: str) -> Throttled:
        """For a caller that repeats on its own and gives up."""
        self._meter.count(Signal.UNAVAILABLE)
        return Throttled(why)

    def pause(self, attempt: int) -> None:
        self._sleep_ms(pause_ms(attempt, self._random_below))
