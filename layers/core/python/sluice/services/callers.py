"""Who may have reported the calls of a namespace: the org, its apps, and former apps, which their totals tell of.

They are walked by their ids as keys spell them. So each is met once, however long the walk takes, whatever comes and
goes meanwhile, and with nothing to remember but how far it came.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from heapq import merge
from itertools import groupby, islice
from typing import Final

from sluice.repository import keys
from sluice.repository.counters import decode_counter_name
from sluice.repository.orgs import apps_behind_query, decode_app
from sluice.repository.requests import QueryRequest
from sluice.repository.store import Store
from sluice.repository.totals import counted_id, partition_of_counted, totals_in_partition_query
from sluice.services.counted import CountedEntities
from sluice.services.settings import SettingsCache

CALLERS_MAX: Final = 25
"""At once."""
START: Final = ""

_Way = Iterator[tuple[str, Callable[[], str | None]]]
"""Encoded ids in their order, and how the id itself is found: not everybody's needs to be."""


@dataclass(frozen=True, slots=True)
class Callers:
    """`reached`: behind which the others are; None where there are none."""

    found: tuple[str, ...]
    reached: str | None


class CallerWalk:
    def __init__(self, store: Store, settings: SettingsCache, counted: CountedEntities) -> None:
        self._store = store
        self._settings = settings
        self._counted = counted

    def behind(self, namespace: str, reached: str) -> Callers:
        """The next ones. `reached`: START, or as it was told before. Raises NotFound where the org is gone."""
        ways = [
            self._org(namespace, reached),
            self._apps(namespace, reached),
            *(self._with_totals(namespace, number, reached) for number in range(keys.NAMESPACE_PARTITIONS)),
        ]
        found: list[str] = []
        count = 0
        for encoded, same in islice(groupby(merge(*ways, key=_encoded), key=_encoded), CALLERS_MAX):
            name = next(filter(None, (name() for _, name in same)), None)
            if name is not None:
                found.append(name)
            reached, count = encoded, count + 1
        return Callers(tuple(found), reached if count == CALLERS_MAX else None)

    def _org(self, namespace: str, reached: str) -> _Way:
        org = self._settings.org(namespace).org
        if keys.encode(org) > reached:
            yield keys.encode(org), lambda: org

    def _apps(self, namespace: str, reached: str) -> _Way:
        request: QueryRequest = {**apps_behind_query(namespace, reached), "Limit": CALLERS_MAX}
        while True:
            page = self._store.query(request)
            stored = self._store.batch_get([keys.key_of(item) for item in page.items], consistent=True)
            for app in sorted((decode_app(item).app for item in stored), key=keys.encode):
                yield keys.encode(app), partial(str, app)
            if page.next_start is None:
                return
            request = {**request, "ExclusiveStartKey": page.next_start}

    def _with_totals(self, namespace: str, number: int, reached: str) -> _Way:
        """Of one of the partitions of the index."""
        after: str | None = partition_of_counted(namespace, reached)
        while (after := self._counted.next_partition(namespace, number, after)) is not None:
            yield counted_id(namespace, after), partial(self._name, after)

    def _name(self, partition: str) -> str | None:
        page = self._store.query({**totals_in_partition_query(partition, "0", "9"), "Limit": 1})
        return next((decode_counter_name(item).entity for item in page.items), None)


def _encoded(way: tuple[str, object]) -> str:
    return way[0]
