"""Sums the shards of counters into their daily totals, and lets selection move on where a quota is reached by that.

Whoever sums reads what was marked first, then how many shards the org has, then every shard, then writes. Shards are
only ever added, and each write of one raises its revision: a sum that was begun before another and ends behind it has
the lower revision, and is not written.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from cachetools import LRUCache

from sluice.core.metering import summed
from sluice.core.orgs import QuotaScope
from sluice.core.period import LocalDay, local_day
from sluice.core.quotas import Mode, mode_of
from sluice.core.signals import Signal
from sluice.core.timelines import in_force
from sluice.repository.counters import CounterName, decode_cost_shard, shard_keys
from sluice.repository.keys import key_of
from sluice.repository.orgs import Org, apps_query, decode_app
from sluice.repository.requests import QueryRequest
from sluice.repository.shapes import UnknownShape
from sluice.repository.store import Applied, Store
from sluice.repository.totals import DailyTotal, decode_total, total_key, unwritten_total, write_total
from sluice.services.effects import Effects
from sluice.services.settings import SettingsCache, Tenant
from sluice.services.zones import ZoneCalendar

APPS_MAX: Final = 300
"""So many apps are moved on when a quota of their org is reached. Others move when they ask."""
_APPS_PAGE: Final = 100
_TOLD_SIZE: Final = 10_000

OutOfTime = Callable[[], bool]


class Advance(Protocol):
    """Moves the selection of an app or the org on, if what it stands on is spent. May be repeated.

    False where it did not and later might."""

    def __call__(self, namespace: str, entity: str, day: LocalDay, now_ms: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class OrgToday:
    """An org as it was read after the marks, its present day, and what its quotas are compared with on it."""

    org: Org
    day: LocalDay
    scope: QuotaScope


@dataclass(frozen=True, slots=True)
class Summed:
    """A total behind a sum. `by_us`: this sum wrote it."""

    total: DailyTotal
    by_us: bool


class Summing:
    def __init__(self, store: Store, settings: SettingsCache, advance: Advance, effects: Effects) -> None:
        self._store = store
        self._settings = settings
        self._advance = advance
        self._effects = effects
        self._calendar = ZoneCalendar()
        # Totals that reached a quota, and what it was, once everybody whom that moves on was told. Only here: whoever
        # wrote a total and ended before it could tell knows nothing of it, so another process tells them all again.
        self._told: LRUCache[tuple[CounterName, int], bool] = LRUCache(maxsize=_TOLD_SIZE)

    def org_today(self, namespace: str) -> OrgToday | None:
        """To be asked after what is due was read: the org may have got more shards since. None without an org."""
        org = self._settings.org_now(namespace)
        if org is None:
            return None
        day = local_day(org.settings.zones, self._effects.clock_ms(), self._calendar)
        # A change of the scope acts at a local midnight, so the whole day counts as it began.
        return OrgToday(org, day, in_force(org.settings.quota_scopes, day.starts_ms))

    def read(self, names: Sequence[CounterName]) -> list[DailyTotal]:
        """The totals as they are now, consistently: zeros where there is none, and none that nobody understands."""
        items = {
            key_of(item): item for item in self._store.batch_get([total_key(name) for name in names], consistent=True)
        }
        found = []
        for name in names:
            item = items.get(total_key(name))
            try:
                found.append(unwritten_total(name) if item is None else decode_total(item))
            except UnknownShape:
                continue
        return found

    def sum_up(self, seen: DailyTotal, today: OrgToday) -> Summed:
        """Writes the sum of a total's shards, unless nothing is newer. `seen`: read before `today` was."""
        as_of_ms = self._effects.clock_ms()
        # All that exist: the store asks again for what was left unread, and fails before it leaves one out.
        items = self._store.batch_get(shard_keys(seen.name, today.org.settings.counter_shards), consistent=True)
        shards = [decode_cost_shard(item) for item in items]
        revision = sum(shard.revision for shard in shards)
        if revision <= seen.revision:
            return Summed(seen, by_us=False)
        counters = summed(shard.counters for shard in shards)
        # May be repeated after a lost answer: it then finds its own revision.
        outcome = self._store.update(write_total(seen.name, counters, revision, as_of_ms), repeatable=True)
        by_us = isinstance(outcome, Applied)
        if by_us:
            self._effects.meter.count(Signal.TOTALS_ROLLED_UP)
        # A total that expired in this moment has no image.
        total = seen if outcome.item is None else decode_total(outcome.item)
        return Summed(total, by_us)

    def tell(self, total: DailyTotal, today: OrgToday, out_of_time: OutOfTime) -> bool:
        """Lets those move on whose quota is reached by this total. Quotas are of the present day alone.

        False where the time did not suffice for all of them, so that the total has to be looked at again.
        """
        name, spent_usd_micros = total.name, total.counters.cost_usd_micros
        tenant = self._judged_by(name.entity, today) if name.day == today.day.name else None
        quota_usd_micros = None if tenant is None else tenant.effective.quotas_usd_micros.get(name.label)
        if tenant is None or quota_usd_micros is None:
            return True
        mode = mode_of(spent_usd_micros, quota_usd_micros, tenant.effective.tight_mode_threshold_pct)
        if mode is Mode.TIGHT:
            self._effects.meter.count(Signal.QUOTAS_TIGHT)
        if mode is not Mode.EXCEEDED:
            return True
        self._effects.meter.count(Signal.QUOTAS_EXCEEDED)
        if (name, quota_usd_micros) in self._told:
            return True
        if today.scope is QuotaScope.APP:
            # Who could not move yet is told by the next run that finds the label used, and moves by itself on asking.
            is_done = self._move_on(name.entity, today)
        elif self._move_all_on(today, out_of_time):
            # Hundreds, maybe, which would keep every run from the totals of others: told once, and else as above.
            is_done = True
        else:
            return False
        if is_done:
            self._told[name, quota_usd_micros] = True
        return True

    def _judged_by(self, entity: str, today: OrgToday) -> Tenant | None:
        """Whose quotas a total is compared with; None where no quota is about it."""
        org = today.org
        if entity == org.org:
            return Tenant(org, None)
        if today.scope is QuotaScope.ORG:
            return None
        tenant = self._settings.tenant(org.namespace, entity)
        return None if tenant.app is None else Tenant(org, tenant.app)

    def _move_all_on(self, today: OrgToday, out_of_time: OutOfTime) -> bool:
        """The org's own selection and that of each app: all of them go by the totals of the org.

        False where the time did not suffice.
        """
        self._move_on(today.org.org, today)
        request: QueryRequest = {**apps_query(today.org.namespace), "Limit": _APPS_PAGE}
        for _ in range(APPS_MAX // _APPS_PAGE):
            page = self._store.query(request)
            for item in self._store.batch_get([key_of(item) for item in page.items]):
                if out_of_time():
                    return False
                self._move_on(decode_app(item).app, today)
            if page.next_start is None:
                break
            request["ExclusiveStartKey"] = page.next_start
        return True

    def _move_on(self, entity: str, today: OrgToday) -> bool:
        return self._advance(today.org.namespace, entity, today.day, self._effects.clock_ms())
