"""Totals without a mark: a daily pass finds those whose mark was lost, and somebody may ask for one entity's.

Both write what a rollup would have written, under the same conditions, and leave marks alone: so they may run beside
it, beside each other, and twice.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from cachetools import LRUCache

from sluice.core.errors import NotFound
from sluice.core.period import day_name, local_day
from sluice.repository.counters import CounterName, decode_counter_name
from sluice.repository.enumeration import changed_shards_scan
from sluice.repository.jobs import Job
from sluice.repository.requests import QueryRequest
from sluice.repository.shapes import UnknownShape, text, whole, wholes
from sluice.repository.store import Store
from sluice.repository.totals import totals_query
from sluice.repository.wire import Item, Value
from sluice.services.counted import CountedEntities
from sluice.services.counting import Tenants
from sluice.services.jobs import Jobs, Step, page_start
from sluice.services.settings import SettingsCache, Tenant
from sluice.services.summing import Summing
from sluice.services.zones import ZoneCalendar

SUM_TOTALS: Final = "sum_totals"
ROLLUP_ENTITY: Final = "rollup_entity"
PAGE: Final = 100
"""Items of the table that a step of the daily pass looks at."""
PAGE_TOTALS: Final = 25
"""Totals that a step for one entity sums up: each takes a read of its shards, a write, and who is told of it."""
SINCE_MS: Final = 7 * 86_400_000
"""How far back the daily pass looks for what grew: a week, in which it may fail a few times."""
DAYS: Final = 36
"""So many days are summed for an entity: a call may be reported 35 days late."""
_REMEMBERED: Final = 50_000
_COUNTS: Final = ("totals", "written", "unreadable")


class _Sums:
    """Sums up totals by their names, and counts what became of them."""

    def __init__(self, summing: Summing, tenants: Tenants, job: Job) -> None:
        self._summing = summing
        self._tenants = tenants
        so_far = wholes({"so_far": dict(job.result or {})}, "so_far")
        self.counts = {name: so_far.get(name, 0) for name in _COUNTS}
        self.added = 0

    def names(self, items: Iterable[Item]) -> list[CounterName]:
        """Of shards or totals."""
        found = []
        for item in items:
            try:
                found.append(decode_counter_name(item))
            except UnknownShape:
                self.counts["unreadable"] += 1
        return found

    def add(self, namespace: str, names: Sequence[CounterName], *, unwritten_only: bool = False) -> None:
        """Of one namespace; nothing for one that is gone. One total that nobody understands does not stop the rest."""
        try:
            self._tenants.require_active(namespace)
        except NotFound:
            return
        seen = self._summing.read(names)
        today = self._summing.org_today(namespace)
        if today is None:
            return
        self.counts["unreadable"] += len(names) - len(seen)
        for total in seen:
            if unwritten_only and total.revision:
                continue
            try:
                found = self._summing.sum_up(total, today)
            except UnknownShape:
                self.counts["unreadable"] += 1
                continue
            self._summing.tell(found.total, today, _never)
            self.counts["totals"] += 1
            self.added += 1
            self.counts["written"] += found.by_us


class SumTotals:
    """Looks at every item of the table, a page at a time, for counter shards, and sums up their totals.

    The shards of a counter are all over the table. What a pass has summed is remembered, as much as fits: the rest is
    summed again, which costs reads and changes nothing.
    """

    def __init__(self, store: Store, summing: Summing, tenants: Tenants) -> None:
        self._store = store
        self._summing = summing
        self._tenants = tenants
        self._done: LRUCache[tuple[str, CounterName], bool] = LRUCache(maxsize=_REMEMBERED)

    def step(self, job: Job) -> Step:
        page = self._store.scan(changed_shards_scan(job.created_at_ms - SINCE_MS, page_start(job.cursor), PAGE))
        sums = _Sums(self._summing, self._tenants, job)
        found: dict[str, set[CounterName]] = {}
        for name in sums.names(page.items):
            if (job.job_id, name) not in self._done:
                found.setdefault(name.namespace, set()).add(name)
        for namespace, names in found.items():
            sums.add(namespace, sorted(names))
            self._done.update(dict.fromkeys(((job.job_id, name) for name in names), True))
        cursor: dict[str, Value] | None = None if page.next_start is None else {"start": page.next_start}
        return Step(sums.added, cursor, result={**sums.counts})


class EntityRollups:
    """The service behind POST /v1/aggregates/rollup."""

    def __init__(self, counted: CountedEntities, jobs: Jobs) -> None:
        self._counted = counted
        self._jobs = jobs

    def start(self, namespace: str, entity_id: str) -> Job:
        """Of an app or of the org."""
        self._counted.require(namespace, entity_id)
        return self._jobs.start(namespace, ROLLUP_ENTITY, {"entity": entity_id})


class RollUpEntity:
    """Every total that an entity has of the last days, then those of today and yesterday that its quotas and orderings
    name: these may have been counted and never been marked."""

    def __init__(self, store: Store, summing: Summing, settings: SettingsCache, tenants: Tenants) -> None:
        self._store = store
        self._summing = summing
        self._settings = settings
        self._tenants = tenants
        self._calendar = ZoneCalendar()

    def step(self, job: Job) -> Step:
        """Its days are those of the time at which it was asked for, whenever it runs."""
        sums = _Sums(self._summing, self._tenants, job)
        entity = text(job.parameters, "entity")
        try:
            tenant = self._settings.tenant(job.namespace, entity)
        except NotFound:
            # The org was removed meanwhile.
            return Step(0, None, result={**sums.counts})
        today = local_day(tenant.org.settings.zones, job.created_at_ms, self._calendar).number
        cursor = job.cursor or {}
        following: dict[str, Value] | None
        if "label" in cursor:
            first = whole(cursor, "label")
            named = _named(job.namespace, entity, tenant, today)
            sums.add(job.namespace, named[first : first + PAGE_TOTALS], unwritten_only=True)
            following = {"label": first + PAGE_TOTALS} if first + PAGE_TOTALS < len(named) else None
        else:
            page = self._store.query(_stored(job.namespace, entity, today, page_start(cursor)))
            sums.add(job.namespace, sums.names(page.items))
            following = {"label": 0} if page.next_start is None else {"start": page.next_start}
        return Step(sums.added, following, result={**sums.counts})


def _stored(namespace: str, entity: str, today: int, start: Item | None) -> QueryRequest:
    """A page of the totals that there are. By a clock that is ahead of ours it may be tomorrow already."""
    query = totals_query(namespace, entity, day_name(today - DAYS + 1), day_name(today + 1))
    request: QueryRequest = {**query, "ConsistentRead": True, "Limit": PAGE_TOTALS}
    if start is not None:
        request["ExclusiveStartKey"] = start
    return request


def _named(namespace: str, entity: str, tenant: Tenant, today: int) -> list[CounterName]:
    """Those of yesterday and today that settings name."""
    effective = tenant.effective
    labels = sorted({*effective.model_ordering, *effective.quotas_usd_micros})
    return [CounterName(namespace, entity, label, day_name(day)) for label in labels for day in (today - 1, today)]


def _never() -> bool:
    """A step has a bound of its own."""
    return False
