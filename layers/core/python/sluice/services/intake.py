"""Takes reports in: each is judged on its own, and comes out as a charge, as a repeat or as what is wrong with it.

No refusal leaves, and nobody becomes known, before it was looked whether the report is a repeat: its entity may be
gone since, its label or its price, and it was counted all the same.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sluice.core.errors import ModelsUnavailable, SluiceError, Unavailable
from sluice.core.reports import UsageReport
from sluice.repository.store import Store
from sluice.services.confinement import no_such_entity
from sluice.services.judging import Charge, Judge, Opened, Reporter
from sluice.services.repeats import Repeated, counted_before, repeat_of

TakenIn = Charge | Repeated | SluiceError


@dataclass(frozen=True, slots=True)
class Deadline:
    """Until when something may be begun."""

    clock_ms: Callable[[], int]
    until_ms: int

    def check(self) -> None:
        if self.clock_ms() > self.until_ms:
            raise Unavailable("there was no time left for it")


class Intake:
    """Safe to share between threads."""

    def __init__(self, store: Store, judge: Judge) -> None:
        self._store = store
        self._judge = judge

    def take_in(
        self, reporter: Reporter, reports: Sequence[UsageReport], now_ms: int, deadline: Deadline
    ) -> list[TakenIn]:
        """One for each report, in their order."""
        taken: dict[int, TakenIn] = {}
        # With what was refused, or None where the entity is to be registered first.
        doubtful: dict[int, tuple[Opened, SluiceError | None]] = {}
        with suppress(Unavailable):
            # Each that needs it then asks again.
            self._judge.load(reporter, reports)
        for number, report in enumerate(reports):
            try:
                deadline.check()
                opened = self._judge.open(reporter, report, now_ms)
            except SluiceError as refusal:
                taken[number] = refusal
                continue
            try:
                charge = self._judge.judge(reporter, opened)
            except ModelsUnavailable as error:
                doubtful[number] = (opened, error)
            except Unavailable as error:
                taken[number] = error
            except SluiceError as refusal:
                doubtful[number] = (opened, refusal)
            else:
                if charge is None:
                    doubtful[number] = (opened, None)
                else:
                    taken[number] = charge
        if doubtful:
            taken |= self._look(reporter, doubtful, deadline)
        return [taken[number] for number in range(len(reports))]

    def _look(
        self, reporter: Reporter, doubtful: Mapping[int, tuple[Opened, SluiceError | None]], deadline: Deadline
    ) -> dict[int, TakenIn]:
        try:
            deadline.check()
            before = counted_before(self._store, [opened for opened, _ in doubtful.values()])
        except Unavailable as error:
            return dict.fromkeys(doubtful, error)
        taken: dict[int, TakenIn] = {}
        registered: set[str] = set()
        for number, (opened, refusal) in doubtful.items():
            if opened.keys in before:
                taken[number] = repeat_of(opened, before[opened.keys])
            else:
                taken[number] = refusal or self._registered(reporter, opened, registered, deadline)
        return taken

    def _registered(self, reporter: Reporter, opened: Opened, registered: set[str], deadline: Deadline) -> TakenIn:
        """`registered`: those that other reports of the batch have made known."""
        try:
            if opened.entity not in registered:
                deadline.check()
                self._judge.register(reporter, opened)
                registered.add(opened.entity)
            return self._judge.judge(reporter, opened) or no_such_entity()
        except SluiceError as error:
            return error
