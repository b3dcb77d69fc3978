"""Every minute: the totals whose counters grew are written anew.

What is due stands in an index, so a run costs what changed and not what exists. Per total, in this order: the mark, the
shard count of the org, the shards, the sum, selection, and the mark is removed if it is as it was read. So a run may
end between any two steps, and two runs may overlap: the mark stays until somebody did all of it after reading it, and
whatever is counted meanwhile marks again.

A mark whose minute is not over is taken too, and stays: what is in steady use always has such a mark. Whatever else is
counted in that minute marks nothing, so only a run that begins behind it may remove the mark.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from sluice.core.errors import Contended, NotFound, Unavailable
from sluice.core.signals import Signal
from sluice.repository import schema
from sluice.repository.counters import CounterName
from sluice.repository.keys import Key, key_of
from sluice.repository.money_keys import DUE_PARTITIONS
from sluice.repository.requests import QueryRequest
from sluice.repository.shapes import UnknownShape, text
from sluice.repository.store import BATCH_KEYS_MAX, Store
from sluice.repository.totals import MINUTE_MS, DailyTotal, decode_total, due_query, remove_mark
from sluice.services.counting import Tenants
from sluice.services.effects import Effects
from sluice.services.summing import OrgToday, OutOfTime, Summing

SETTLE_MS: Final = 5_000
"""So long after the end of its minute a mark may be removed: longer than clocks differ. Until then whoever marks may
take it for one that covers what was counted just now."""
MARKS_MAX: Final = 2_500
"""Of each partition; the next run begins behind them. Many times what a run has time for."""


@dataclass(frozen=True, slots=True)
class RollupRun:
    """What one run did. `done`: totals that have all that was counted when it began. `dropped`: marks of namespaces
    that are gone. `left`: for the next run. `failures`: one for each total, or part of the index, that could not be
    worked on. `lag_s`: of all marks it has seen, for how long something had been in no total when it began."""

    done: int
    dropped: int
    left: int
    lag_s: int
    failures: Sequence[Exception]


@dataclass(slots=True)
class _Tally:
    """`unchanged`: those among `done` that had it all before."""

    done: int = 0
    dropped: int = 0
    unchanged: set[CounterName] = field(default_factory=set)
    failures: list[Exception] = field(default_factory=list)


class Rollup:
    """For one run at a time, as a function has them."""

    def __init__(self, store: Store, summing: Summing, tenants: Tenants, effects: Effects) -> None:
        self._store = store
        self._summing = summing
        self._tenants = tenants
        self._effects = effects
        # By partition, behind which key the next run begins. Only where there were more marks than a run looks at.
        self._reached: dict[int, str] = {}

    def run(self, out_of_time: OutOfTime) -> RollupRun:
        """In turn the oldest of each namespace, until all that are due are done or the time is up."""
        now_ms = self._effects.clock_ms()
        tally = _Tally()
        # All marks are read before the first org is: whatever shards there were when one was made, the org tells of.
        due = _in_turn(self._due(now_ms, tally))
        orgs: dict[str, OrgToday | None] = {}
        for one in due:
            if out_of_time():
                break
            try:
                self._roll_up(one, orgs, tally, out_of_time)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one total, the others must go on
                tally.failures.append(error)
        waited_ms = (now_ms - one.since_ms for one in due if one.total.name not in tally.unchanged)
        lag_s = max((0, *waited_ms)) // 1000
        self._effects.meter.count(Signal.ROLLUP_LAG_SECONDS, lag_s)
        if tally.failures:
            self._effects.meter.count(Signal.TOTALS_FAILED, len(tally.failures))
        left = len(due) - tally.done - tally.dropped
        return RollupRun(tally.done, tally.dropped, left, lag_s, tally.failures)

    def _roll_up(self, one: "_Due", orgs: dict[str, OrgToday | None], tally: _Tally, out_of_time: OutOfTime) -> None:
        name = one.total.name
        if name.namespace not in orgs:
            orgs[name.namespace] = self._org(name.namespace)
        today = orgs[name.namespace]
        if today is None:
            # A purge is under way, which removes the total; or there is nothing left that it could be summed by.
            if one.is_over:
                self._remove_mark(one)
                tally.dropped += 1
            return
        found = self._summing.sum_up(one.total, today)
        if not self._summing.tell(found.total, today, out_of_time):
            return
        if one.is_over:
            self._remove_mark(one)
        tally.done += 1
        if not found.by_us:
            tally.unchanged.add(name)

    def _remove_mark(self, one: "_Due") -> None:
        # May be repeated after a lost answer: it then finds no mark, or one that is newer.
        self._store.update(remove_mark(one.total.name, one.minute), repeatable=True)

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
                            found.append(_due(total, total.due_minute, now_ms))
            except (Unavailable, Contended) as error:
                tally.failures.append(error)
        return found

    def _marked(self, partition: int) -> Iterator[list[Key]]:
        """All of them or, where they are too many, so many behind those of the last run, and from the first on again:
        nobody is passed over for where its key stands."""
        begin = self._reached.get(partition)
        parts = [due_query(partition)]
        if begin is not None:
            parts = [due_query(partition, after=begin), due_query(partition, up_to=begin)]
        reached: str | None = None
        for _ in range(MARKS_MAX // BATCH_KEYS_MAX):
            request: QueryRequest = {**parts[0], "Limit": BATCH_KEYS_MAX}
            page = self._store.query(request)
            if page.items:
                yield [key_of(item) for item in page.items]
            if page.next_start is not None:
                parts[0]["ExclusiveStartKey"] = page.next_start
                reached = text(page.next_start, schema.index_sort_key(schema.GSI3))
                continue
            reached = None
            del parts[0]
            if not parts:
                break
        if reached is None:
            self._reached.pop(partition, None)
        else:
            self._reached[partition] = reached


@dataclass(frozen=True, slots=True)
class _Due:
    """`since_ms`: something may have been counted then that is in no total. `is_over`: its minute, by when the run
    began. Later in the run more may have been counted in that minute, in shards that the org had not when asked."""

    total: DailyTotal
    minute: int
    since_ms: int
    is_over: bool


def _due(total: DailyTotal, minute: int, now_ms: int) -> _Due:
    # What was summed up later than it was marked has all that was counted until then, whatever raised the mark.
    marked_ms = minute * MINUTE_MS if total.due_since_ms is None else total.due_since_ms
    is_over = (minute + 1) * MINUTE_MS + SETTLE_MS <= now_ms
    return _Due(total, minute, max(marked_ms, total.as_of_ms or 0), is_over)


def _in_turn(due: Sequence[_Due]) -> list[_Due]:
    """The oldest of each namespace, then the second of each, and so on; among those the oldest first."""
    seen: Counter[str] = Counter()
    rounds: list[tuple[int, _Due]] = []
    for one in sorted(due, key=lambda one: one.since_ms):
        namespace = one.total.name.namespace
        rounds.append((seen[namespace], one))
        seen[namespace] += 1
    return [one for _, one in sorted(rounds, key=lambda pair: pair[0])]
