"""Marks the totals whose counters grew, as the stream tells: one write for each total that a batch is about.

A rollup removes a mark only when its minute is over, and five seconds more. So whatever was counted in the minute of a
mark, also behind it, is in the sum that removes it, and a minute needs no second mark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cachetools import LRUCache

from sluice.core.errors import NotFound
from sluice.core.signals import Signal
from sluice.repository.counters import CounterName, changed_counter
from sluice.repository.shapes import UnknownShape
from sluice.repository.store import Applied, Store
from sluice.repository.totals import MINUTE_MS, mark_due
from sluice.services.counting import Tenants, Uncounted
from sluice.services.effects import Effects

_CACHE_SIZE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Marked:
    """How many records of a batch were about counters, and which of them could not be marked."""

    observed: int
    unmarked: Sequence[Uncounted]


class Marking:
    """For one batch at a time, as a function gets them."""

    def __init__(self, store: Store, tenants: Tenants, effects: Effects, size: int = _CACHE_SIZE) -> None:
        self._store = store
        self._tenants = tenants
        self._effects = effects
        # The last minute of each total in which a mark was made, or found, here.
        self._marked: LRUCache[CounterName, int] = LRUCache(maxsize=size)

    def mark(self, records: Sequence[Mapping[str, Any]]) -> Marked:
        """A record that nobody understands is not marked; all others are, also those behind it: once more they change
        nothing. Records of other items than counters are left out."""
        observed = 0
        first: dict[CounterName, int] = {}
        unmarked: list[Uncounted] = []
        for position, record in enumerate(records):
            try:
                name = changed_counter(record)
            except UnknownShape as error:
                unmarked.append(Uncounted(position, error))
                continue
            if name is not None:
                observed += 1
                first.setdefault(name, position)
        if observed:
            self._effects.meter.count(Signal.STREAM_RECORDS, observed)
        for name, position in first.items():
            try:
                self._mark(name)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one total, the others must go on
                unmarked.append(Uncounted(position, error))
        if unmarked:
            self._effects.meter.count(Signal.STREAM_FAILURES, len(unmarked))
        return Marked(observed, unmarked)

    def _mark(self, name: CounterName) -> None:
        if not self._is_active(name.namespace):
            # A purge would never end if the totals that it removes were marked anew.
            return
        now_ms = self._effects.clock_ms()
        minute = now_ms // MINUTE_MS
        if self._marked.get(name, -1) >= minute:
            return
        # May be repeated after a lost answer: it then finds its own mark.
        outcome = self._store.update(mark_due(name, minute, now_ms), repeatable=True)
        self._marked[name] = minute
        if isinstance(outcome, Applied):
            self._effects.meter.count(Signal.TOTALS_MARKED)

    def _is_active(self, namespace: str) -> bool:
        try:
            self._tenants.require_active(namespace)
        except NotFound:
            return False
        return True
