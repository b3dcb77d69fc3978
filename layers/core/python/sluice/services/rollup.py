"""Every minute: the totals whose counters grew are written anew.

What is due stands in an index, so a run costs what changed and not what exists. Per total, in this order: the mark, the
shard count of the org, the shards, the sum, selection, and the mark is removed if it is as it was read. So a run may
end between any two steps, and two runs may overlap: the mark stays until somebody did all of it after reading it, and
whatever is counted meanwhile marks again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from sluice.core.errors import Contended, NotFound, Unavailable
from sluice.core.signals import Signal
from sluice.repository.keys import Key, key_of
from sluice.repository.money_keys import DUE_PARTITIONS
from sluice.repository.requests import QueryRequest
from sluice.repository.shapes import UnknownShape
from sluice.repository.store import BATCH_KEYS_MAX, Store
from sluice.repository.totals import MINUTE_MS, DailyTotal, decode_total, due_query, remove_mark
from sluice.services.counting import Tenants
from sluice.services.effects import Effects
from sluice.services.summing import OrgToday, OutOfTime, Summing

SETTLE_MS: Final = 5_000
"""So long after the end of its minute a mark is taken: longer than clocks differ. Until then whoever marks may take it
for one that covers what was counted just now."""
MARKS_MAX: Final = 2_500
"""Of each partition; more wait for the next run. Many times what a run has time for."""


@dataclass(frozen=True, slots=True)
class RollupRun:
    """What one run did. `done`: totals that nothing was left to do about. `dropped`: marks of namespaces that are gone.
    `left`: for the next run. `failures`: one for each total, or part of the index, that could not be worked on.
    `lag_s`: for how long the oldest mark had been due when the run began."""

    done: int
    dropped: int
    left: int
    lag_s: int
    failures: Sequence[Exception]


@dataclass(slots=True)
class _Tally:
    done: int = 0
    dropped: int = 0
    failures: list[Exception] = field(default_factory=list)


class Rollup:
    def __init__(self, store: Store, summing: Summing, tenants: Tenants, effects: Effects) -> None:
        self._store = store
        self._summing = summing
        self._tenants = tenants
        self._effects = effects

    def run(self, out_of_time: OutOfTime) -> RollupRun:
        """The oldest marks first, until all that are due are done or the time is up."""
        now_ms = self._effects.clock_ms()
        tally = _Tally()
        # All marks are read before the first org is: whatever shards there were when one was made, the org tells of.
        due = sorted(self._due(now_ms, tally), key=lambda one: one.ended_ms)
        orgs: dict[str, OrgToday | None] = {}
        for one in due:
            if out_of_time():
                break
            try:
                self._roll_up(one, orgs, tally, out_of_time)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one total, the others must go on
                tally.failures.append(error)
        lag_s = (now_ms - due[0].ended_ms) // 1000 if due else 0
        self._effects.meter.count(Signal.ROLLUP_LAG_SECONDS, lag_s)
        if tally.failures:
            self._effects.meter.count(Signal.TOTALS_FAILED, len(tally.failures))
        left = len(due) - tally.done - tally.dropped
        return RollupRun(tally.done, tally.dropped, left, lag_s, tally.failures)

    def _roll_up(self, one: "_Due", orgs: dict[str, OrgToday | None], tally: _Tally, out_of_time: OutOfTime) -> None:
        namespace = one.total.name.namespace
        if namespace not in orgs:
            orgs[namespace] = self._org(namespace)
        today = orgs[namespace]
        if today is not None:
            found = self._summing.sum_up(one.total, today)
            if not self._summing.tell(found.total, today, out_of_time):
                return
        # May be repeated after a lost answer: it then finds no mark, or one that is newer.
        self._store.update(remove_mark(one.total.name, one.minute), repeatable=True)
        if today is None:
            # A purge is under way, which removes the total; or there is nothing left that it could be summed by.
            tally.dropped += 1
        else:
            tally.done += 1

    def _org(self, namespace: str) -> OrgToday | None:
        try:
            self._tenants.require_active(namespace)
        except NotFound:
            return None
        return self._summing.org_today(namespace)

    def _due(self, now_ms: int, tally: _Tally) -> list["_Due"]:
        """What cannot be read is left for the next run, and the rest goes on."""
        found: list[_Due] = []
        for partition in range(DUE_PARTITIONS):
            try:
                for keys in self._marked(partition):
                    for item in self._store.batch_get(keys, consistent=True):
                        try:
                            total = decode_total(item)
                        except UnknownShape as error:
                            tally.failures.append(error)
                            continue
                        # The index lags: what it still names may be done.
                        if total.due_minute is not None:
                            found.append(_Due(total, total.due_minute))
            except (Unavailable, Contended) as error:
                tally.failures.append(error)
        return [one for one in found if one.ended_ms + SETTLE_MS <= now_ms]

    def _marked(self, partition: int) -> Iterator[list[Key]]:
        request: QueryRequest = {**due_query(partition), "Limit": BATCH_KEYS_MAX}
        for _ in range(MARKS_MAX // BATCH_KEYS_MAX):
            page = self._store.query(request)
            if page.items:
                yield [key_of(item) for item in page.items]
            if page.next_start is None:
                return
            request["ExclusiveStartKey"] = page.next_start


@dataclass(frozen=True, slots=True)
class _Due:
    total: DailyTotal
    minute: int

    @property
    def ended_ms(self) -> int:
        """When the minute of its mark was over."""
        return (self.minute + 1) * MINUTE_MS
