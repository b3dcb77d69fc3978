"""Where the quota stands that a call was counted against, as last rolled up."""

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.core.errors import NotFound, Unavailable
from sluice.core.metering import NOTHING_USED, Counters
from sluice.core.period import day_number, numbered_day
from sluice.core.quotas import Mode, mode_of, percent_tenths
from sluice.repository import money_keys
from sluice.repository.counters import CounterName
from sluice.repository.events import UsageEvent
from sluice.repository.keys import Key
from sluice.repository.store import Store
from sluice.repository.totals import DailyTotal, decode_total
from sluice.services.judging import counted_for
from sluice.services.settings import SettingsCache, Tenant
from sluice.services.zones import ZoneCalendar


@dataclass(frozen=True, slots=True)
class Quota:
    """`percent_tenths`: None for a quota of zero."""

    limit_usd_micros: int
    percent_tenths: int | None
    mode: Mode


@dataclass(frozen=True, slots=True)
class Spending:
    """Of one label and day. `as_of_ms`: None before the first rollup. `quota`: None for a label that has none."""

    counters: Counters
    as_of_ms: int | None
    quota: Quota | None


class Spendings:
    """Safe to share between threads."""

    def __init__(self, store: Store, settings: SettingsCache) -> None:
        self._store = store
        self._settings = settings
        self._calendar = ZoneCalendar()

    def find(self, events: Sequence[UsageEvent]) -> list[Spending | None]:
        """None where it can not be told now: what was counted stays counted."""
        try:
            names = [self._counted_against(event) for event in events]
            totals = self._totals(list(dict.fromkeys(name for _, name in names)))
        except (Unavailable, NotFound):
            return [None] * len(events)
        return [_spending(tenant, name, totals.get(_key(name))) for tenant, name in names]

    def _counted_against(self, event: UsageEvent) -> tuple[Tenant, CounterName]:
        tenant = self._settings.tenant(event.namespace, event.app)
        day = numbered_day(tenant.org.settings.zones, day_number(event.day), self._calendar)
        entity = counted_for(tenant.org, event.app, day.starts_ms)[-1]
        return tenant, CounterName(event.namespace, entity, event.label, event.day)

    def _totals(self, names: Sequence[CounterName]) -> dict[Key, DailyTotal]:
        """A total is a minute old at best, so nothing is gained by reading it consistently."""
        if len(names) == 1:
            item = self._store.get(_key(names[0]))
            items = [] if item is None else [item]
        else:
            items = self._store.batch_get([_key(name) for name in names])
        totals = [decode_total(item) for item in items]
        return {_key(total.name): total for total in totals}


def _key(name: CounterName) -> Key:
    return money_keys.total(name.namespace, name.entity, name.day, name.label)


def _spending(tenant: Tenant, name: CounterName, total: DailyTotal | None) -> Spending:
    counters = NOTHING_USED if total is None else total.counters
    settings = tenant.effective
    limit = settings.quotas_usd_micros.get(name.label)
    spent = counters.cost_usd_micros
    quota = None
    if limit is not None:
        quota = Quota(limit, percent_tenths(spent, limit), mode_of(spent, limit, settings.tight_mode_threshold_pct))
    return Spending(counters, None if total is None else total.as_of_ms, quota)
