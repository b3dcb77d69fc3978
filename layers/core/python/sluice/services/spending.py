"""Where the quota stands that a call was counted against, as last rolled up."""

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.core.errors import NotFound, Unavailable
from sluice.core.metering import Counters
from sluice.core.period import day_number, numbered_day
from sluice.core.quotas import Mode, mode_of, percent_tenths
from sluice.core.signals import Meter, Signal
from sluice.repository import money_keys
from sluice.repository.counters import CounterName
from sluice.repository.events import UsageEvent
from sluice.repository.keys import Key, key_of
from sluice.repository.shapes import UnknownShape
from sluice.repository.store import Store
from sluice.repository.totals import DailyTotal, decode_total, unwritten_total
from sluice.repository.wire import Item
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


_Totals = dict[Key, DailyTotal | None]
"""Those that are there. None: one that this release does not understand."""


class Spendings:
    """Safe to share between threads."""

    def __init__(self, store: Store, settings: SettingsCache, meter: Meter) -> None:
        self._store = store
        self._settings = settings
        self._meter = meter
        self._calendar = ZoneCalendar()

    def find(self, events: Sequence[UsageEvent]) -> list[Spending | None]:
        """None where it can not be told now: what was counted stays counted."""
        try:
            names = [self._counted_against(event) for event in events]
            totals = self._totals(list(dict.fromkeys(name for _, name in names)))
        except (Unavailable, NotFound):
            return [None] * len(events)
        return [_told(tenant, name, totals) for tenant, name in names]

    def _counted_against(self, event: UsageEvent) -> tuple[Tenant, CounterName]:
        tenant = self._settings.tenant(event.namespace, event.app)
        day = numbered_day(tenant.org.settings.zones, day_number(event.day), self._calendar)
        entity = counted_for(tenant.org, event.app, day.starts_ms)[-1]
        return tenant, CounterName(event.namespace, entity, event.label, event.day)

    def _totals(self, names: Sequence[CounterName]) -> _Totals:
        """A total is a minute old at best, so nothing is gained by reading it consistently."""
        if len(names) == 1:
            item = self._store.get(_key(names[0]))
            items = [] if item is None else [item]
        else:
            items = self._store.batch_get([_key(name) for name in names])
        return {key_of(item): self._decoded(item) for item in items}

    def _decoded(self, item: Item) -> DailyTotal | None:
        # What was counted is told as counted. Where the total is due, the rollup's log says what is wrong with it.
        try:
            return decode_total(item)
        except UnknownShape:
            self._meter.count(Signal.TOTALS_FAILED)
            return None


def _key(name: CounterName) -> Key:
    return money_keys.total(name.namespace, name.entity, name.day, name.label)


def _told(tenant: Tenant, name: CounterName, totals: _Totals) -> Spending | None:
    total = totals.get(_key(name), unwritten_total(name))
    return None if total is None else _spending(tenant, total)


def _spending(tenant: Tenant, total: DailyTotal) -> Spending:
    settings = tenant.effective
    limit = settings.quotas_usd_micros.get(total.name.label)
    spent = total.counters.cost_usd_micros
    quota = None
    if limit is not None:
        quota = Quota(limit, percent_tenths(spent, limit), mode_of(spent, limit, settings.tight_mode_threshold_pct))
    return Spending(total.counters, total.as_of_ms, quota)
