"""Totals without a mark: a daily pass finds those whose mark was lost, and somebody may ask for one entity's.

Both write what a rollup would have written, under the same conditions, and leave marks alone: so they may run beside
it, beside each other, and twice.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cachetools import LRUCache

from sluice.core.errors import NotFound
from sluice.core.orgs import QuotaScope
from sluice.core.period import day_name, local_day
from sluice.core.timelines import day_starts_ms, in_force
from sluice.repository import money_keys
from sluice.repository.counters import CounterName, decode_counter_name
from sluice.repository.enumeration import changed_shards_scan
from sluice.repository.jobs import Job
from sluice.repository.keys import NAMESPACE_PARTITIONS, key_of
from sluice.repository.orgs import apps_query, decode_app
from sluice.repository.requests import QueryRequest
from sluice.repository.shapes import UnknownShape, optional_text, text, whole, wholes
from sluice.repository.store import Store
from sluice.repository.totals import totals_in_partition_query
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
MOVES_MAX: Final = 50
"""So many selections are moved on in a step. The others are left to the rollup, and to whoever asks for them."""
SINCE_MS: Final = 7 * 86_400_000
"""How far back the daily pass looks for what grew: a week, in which it may fail a few times."""
DAYS: Final = 36
"""So many days are summed for an entity: a call may be reported 35 days late."""
_REMEMBERED: Final = 50_000
_COUNTS: Final = ("totals", "written", "unreadable")

_Cursor = Mapping[str, Value]


class _Sums:
    """Sums up totals by their names, and counts what became of them."""

    def __init__(self, summing: Summing, tenants: Tenants, job: Job) -> None:
        self._summing = summing
        self._tenants = tenants
        so_far = wholes({"so_far": dict(job.result or {})}, "so_far")
        self.counts = {name: so_far.get(name, 0) for name in _COUNTS}
        self.added = 0
        self._moves_left = MOVES_MAX

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
            if not found.total.revision:
                # Nothing was ever counted under that name.
                continue
            self._summing.tell(found.total, today, self._out_of_moves)
            self.counts["totals"] += 1
            self.added += 1
            self.counts["written"] += found.by_us

    def _out_of_moves(self) -> bool:
        self._moves_left -= 1
        return self._moves_left < 0


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
    name: these may have been counted and never been marked.

    Where quotas count for each app, an org's use is that of its apps: then the same for everybody in its namespace who
    has totals, former apps too, and for every app. `done` counts the totals that there are; how many, nobody knows
    before the end.
    """

    def __init__(self, store: Store, summing: Summing, settings: SettingsCache, tenants: Tenants) -> None:
        self._store = store
        self._summing = summing
        self._settings = settings
        self._tenants = tenants
        self._counted = CountedEntities(store)
        self._calendar = ZoneCalendar()

    def step(self, job: Job) -> Step:
        sums = _Sums(self._summing, self._tenants, job)
        try:
            following = self._following(job, sums)
        except NotFound:
            # The org was removed meanwhile.
            following = None
        return Step(sums.added, following, result={**sums.counts})

    def _following(self, job: Job, sums: _Sums) -> _Cursor | None:
        """Its days are those of the time at which it was asked for, whenever it runs."""
        entity = text(job.parameters, "entity")
        tenant = self._settings.tenant(job.namespace, entity)
        today = local_day(tenant.org.settings.zones, job.created_at_ms, self._calendar).number
        asked = _Asked(job.namespace, entity, today, sums)
        cursor = job.cursor or self._beginning(asked, tenant)
        if "index" in cursor:
            return self._sum_everybody(asked, cursor)
        if "apps" in cursor:
            return self._sum_named_of_apps(asked, cursor)
        if "label" in cursor:
            return self._sum_named(asked, tenant, cursor)
        return self._sum_own(asked, cursor)

    def _beginning(self, asked: "_Asked", tenant: Tenant) -> _Cursor:
        settings = tenant.org.settings
        days = range(asked.today - DAYS + 1, asked.today + 1)
        starts_ms = (day_starts_ms(settings.zones, day, self._calendar) for day in days)
        by_app = any(in_force(settings.quota_scopes, start_ms) is QuotaScope.APP for start_ms in starts_ms)
        return {"index": 0} if by_app and asked.entity == tenant.org.org else {}

    def _sum_own(self, asked: "_Asked", cursor: _Cursor) -> _Cursor:
        partition = money_keys.totals_of(asked.namespace, asked.entity)
        start = self._sum_page(asked, partition, page_start(cursor))
        return {"label": 0} if start is None else {"start": start}

    def _sum_everybody(self, asked: "_Asked", cursor: _Cursor) -> _Cursor:
        """A page of the totals of one entity. `partition`: it; without a `start` it is the last one that is done."""
        partition, start = optional_text(cursor, "partition"), page_start(cursor)
        for index in range(whole(cursor, "index"), NAMESPACE_PARTITIONS):
            if start is None:
                partition = self._counted.next_partition(asked.namespace, index, partition)
            if partition is not None:
                start = self._sum_page(asked, partition, start)
                following: dict[str, Value] = {"index": index, "partition": partition}
                return following if start is None else {**following, "start": start}
        return {"label": 0, "by_app": True}

    def _sum_page(self, asked: "_Asked", partition: str, start: Item | None) -> Item | None:
        """Of the totals that there are. By a clock that is ahead of ours it may be tomorrow already."""
        first, last = day_name(asked.today - DAYS + 1), day_name(asked.today + 1)
        query = totals_in_partition_query(partition, first, last)
        request: QueryRequest = {**query, "ConsistentRead": True, "Limit": PAGE_TOTALS}
        if start is not None:
            request["ExclusiveStartKey"] = start
        page = self._store.query(request)
        asked.sums.add(asked.namespace, asked.sums.names(page.items))
        return page.next_start

    def _sum_named(self, asked: "_Asked", tenant: Tenant, cursor: _Cursor) -> _Cursor | None:
        label = _sum_some_named(asked, asked.entity, tenant, whole(cursor, "label"))
        if label is not None:
            return {**cursor, "label": label}
        return {"apps": 0} if "by_app" in cursor else None

    def _sum_named_of_apps(self, asked: "_Asked", cursor: _Cursor) -> _Cursor | None:
        """Of the first app behind `start`, from that label on. One that was removed meanwhile has none."""
        request: QueryRequest = {**apps_query(asked.namespace), "Limit": 1}
        start = page_start(cursor)
        if start is not None:
            request["ExclusiveStartKey"] = start
        page = self._store.query(request)
        for item in self._store.batch_get([key_of(item) for item in page.items]):
            app = decode_app(item).app
            label = _sum_some_named(asked, app, self._settings.tenant(asked.namespace, app), whole(cursor, "apps"))
            if label is not None:
                return {**cursor, "apps": label}
        return None if page.next_start is None else {"apps": 0, "start": page.next_start}


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a job is about. `today`: by its org's zone, when it was asked for."""

    namespace: str
    entity: str
    today: int
    sums: _Sums


def _sum_some_named(asked: _Asked, entity: str, tenant: Tenant, first: int) -> int | None:
    """Those of yesterday and today that settings name, from the first on. Gives the next one; None behind the last."""
    effective = tenant.effective
    labels = sorted({*effective.model_ordering, *effective.quotas_usd_micros})
    days = [day_name(day) for day in (asked.today - 1, asked.today)]
    named = [CounterName(asked.namespace, entity, label, day) for label in labels for day in days]
    after = first + PAGE_TOTALS
    asked.sums.add(asked.namespace, named[first:after], unwritten_only=True)
    return after if after < len(named) else None
