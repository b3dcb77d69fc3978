"""Acquire: take from the entity's bucket and from those of everyone above it, or take nothing.

The members of a chain are written in parallel, one write each. If one refuses, what the others gave is given back
before the answer leaves. A crash in between leaves a member charged for the requests in flight; refill heals it.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from sluice.core.admission import Admission, merged_refusal
from sluice.core.errors import BudgetExceeded, Contended, LimitExceeded, Unavailable
from sluice.core.holds import Hold
from sluice.core.limits import OnUnavailable
from sluice.core.signals import Meter, Signal
from sluice.services.chains import AcquireRequest, Chains, Opened
from sluice.services.claims import Taken
from sluice.services.configuration import Configuration
from sluice.services.taking import Taker

T = TypeVar("T")
Task = Callable[[], Taken]
RunAll = Callable[[Sequence[Task]], "list[Taken | Exception]"]
"""Runs tasks at once and returns what each came to. Passed in, so that a simulation decides the order."""


class Acquire:
    """The service behind POST /v1/acquire. Safe to share between threads."""

    def __init__(
        self, configuration: Configuration, chains: Chains, taker: Taker, run_all: RunAll, meter: Meter
    ) -> None:
        self._configuration = configuration
        self._chains = chains
        self._taker = taker
        self._run_all = run_all
        self._meter = meter

    def acquire(self, request: AcquireRequest) -> Admission:
        """Admits, or raises: a refusal is a LimitExceeded with its retry time."""
        return self.counted(request, lambda: self._acquire(request), lambda degraded: degraded)

    def counted(
        self,
        request: AcquireRequest,
        take: Callable[[], T],
        open_gate: Callable[[Admission], T],
        may_open: Callable[[], bool] = lambda: True,
    ) -> T:
        """Counts what taking came to. Only an unavailable table may open the gate, where the system's limits say so.

        `may_open`: whether it may for this request, asked when the table did not answer.
        """
        try:
            taken = take()
        except (LimitExceeded, BudgetExceeded):
            self._meter.count(Signal.REFUSED)
            raise
        except Contended:
            self._meter.count(Signal.CONTENDED)
            raise
        except Unavailable:
            allowed = self._configuration.on_unavailable(request.namespace) is OnUnavailable.ALLOW
            if not allowed or not may_open():
                raise
            self._meter.count(Signal.FAIL_OPEN_ADMISSIONS)
            return open_gate(
                Admission(request.namespace, request.entity, request.resource, request.consume, degraded=True)
            )
        self._meter.count(Signal.ADMITTED)
        return taken

    def admission(self, request: AcquireRequest, taken: Sequence[Taken], hold: Hold | None = None) -> Admission:
        return Admission(
            request.namespace,
            request.entity,
            request.resource,
            request.consume,
            hold=hold,
            measure=lambda: tuple(level for one in taken for level in self._taker.levels(one)),
            list_members=lambda: tuple(member for one in taken for member in one.lease_members()),
        )

    def refuse_again(self, wanted: Sequence[Opened]) -> None:
        """A refusal by one member costs no write of another while it stands."""
        standing = [self._taker.standing_refusal(opened.terms) for opened in wanted]
        refusals = [refused for refused in standing if refused is not None]
        if refusals:
            raise merged_refusal(refusals)

    def _acquire(self, request: AcquireRequest) -> Admission:
        return self.take(request, self._chains.open(request).opened)

    def take(self, request: AcquireRequest, wanted: Sequence[Opened]) -> Admission:
        """From all of these at once, or from none."""
        self.refuse_again(wanted)
        outcomes = self._take_all(wanted)
        taken = [outcome for outcome in outcomes if isinstance(outcome, Taken)]
        failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if failures:
            for one in taken:
                self._taker.give_back(one)
            raise _verdict(failures)
        return self.admission(request, taken)

    def _take_all(self, wanted: Sequence[Opened]) -> "list[Taken | Exception]":
        if len(wanted) == 1:
            # The usual case needs no thread.
            return [self._taker.take(wanted[0].terms, known_missing=wanted[0].known_missing)]
        return self._run_all([_task(self._taker, opened) for opened in wanted])


def _task(taker: Taker, opened: Opened) -> Task:
    return lambda: taker.take(opened.terms, known_missing=opened.known_missing)


def _verdict(failures: Sequence[Exception]) -> Exception:
    """What a chain answers whose members failed differently: first what waiting does not cure."""
    refusals = [failure for failure in failures if isinstance(failure, LimitExceeded)]
    contended = [failure for failure in failures if isinstance(failure, Contended)]
    unavailable = [failure for failure in failures if isinstance(failure, Unavailable)]
    curable = {*refusals, *contended, *unavailable}
    for failure in failures:
        if failure not in curable:
            return failure
    if unavailable:
        return unavailable[0]
    return merged_refusal(refusals) if refusals else contended[0]
