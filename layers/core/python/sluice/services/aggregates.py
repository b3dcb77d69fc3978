"""What was used, day by day and label by label, from the daily totals: seconds to minutes behind the present.

Nothing is written by looking: a day without a total is shown with zeros.

While quotas count for each app, an org's own totals are of what no app stands for. So its days are then the sum of all
totals of its namespace, those of removed apps among them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from sluice.core.errors import InvalidRequest
from sluice.core.metering import NOTHING_USED, Counters, summed
from sluice.core.orgs import QuotaScope
from sluice.core.period import LocalDay, day_name, day_number, local_day, month_name
from sluice.core.quotas import Mode, mode_of, percent_tenths
from sluice.core.timelines import day_starts_ms, in_force
from sluice.repository import money_keys
from sluice.repository.requests import QueryRequest
from sluice.repository.sticky import UNMOVED, StickyState, decode_sticky
from sluice.repository.store import Store
from sluice.repository.totals import (
    KEPT_DAYS,
    DailyTotal,
    decode_total,
    totals_in_partition_query,
)
from sluice.services.counted import CountedEntities
from sluice.services.settings import SettingsCache, Tenant
from sluice.services.zones import ZoneCalendar

ROWS_BYTES_MAX: Final = 5_500_000
"""Of the labels of all days. A function may answer 6 MB, and an answer has more: sums of days and months, and the
labels that today lists because they have a quota."""
_ROW_BYTES: Final = 500
"""The longest row, counts of twenty digits in it, but for its label. An answer is a text within a text: each of its
quotation marks is two bytes."""
_CHARACTER_BYTES: Final = 4
"""Of a model id, which may have quotation marks and backslashes; within two texts."""
TOTALS_MAX: Final = 20_000
"""Read for one answer: where apps are summed, several make one row."""


@dataclass(frozen=True, slots=True)
class DayRange:
    """What a caller asks for; both ends are part of it. None: today."""

    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True)
class LabelUsed:
    """`quota_usd_micros`: as it is now; None where none counts for this entity. `percent_tenths`: None of nothing."""

    label: str
    counters: Counters
    quota_usd_micros: int | None
    percent_tenths: int | None
    mode: Mode | None


@dataclass(frozen=True, slots=True)
class DayUsed:
    """`sticky`: where selection stands; None on days other than today."""

    day: int
    labels: tuple[LabelUsed, ...]
    total: Counters
    sticky: StickyState | None


@dataclass(frozen=True, slots=True)
class Aggregate:
    """`months`: by `yyyymm`, of those days alone that were asked for. `updated_at_ms`: when the youngest total among
    them was summed up; None where there is none."""

    entity: str
    zone: str
    days: tuple[DayUsed, ...]
    months: Mapping[str, Counters]
    total: Counters
    updated_at_ms: int | None


class Aggregates:
    def __init__(
        self, store: Store, settings: SettingsCache, counted: CountedEntities, clock_ms: Callable[[], int]
    ) -> None:
        self._store = store
        self._settings = settings
        self._counted = counted
        self._clock_ms = clock_ms
        self._calendar = ZoneCalendar()

    def of(self, namespace: str, entity_id: str, asked: DayRange, *, confined: bool = False) -> Aggregate:
        """Of an app or the org. `confined`: an app asks, which sees nothing from before it was made: an earlier app may
        have had its id."""
        entity = self._counted.require(namespace, entity_id)
        tenant = self._settings.tenant(namespace, entity_id)
        zones, now_ms = tenant.org.settings.zones, self._clock_ms()
        today = local_day(zones, now_ms, self._calendar)
        first, last = _range(asked, today.number)
        begins = local_day(zones, entity.created_at_ms, self._calendar).number if confined else first
        totals = self._totals(tenant, entity_id, range(max(first, begins), last + 1))
        rows = _by_day(totals)
        if sum(map(rows_bytes, rows.values())) > ROWS_BYTES_MAX:
            raise _too_much("labels than one answer can hold")
        days = tuple(self._day(tenant, entity_id, day, rows.get(day, {}), today) for day in range(first, last + 1))
        months = {name: summed(day.total for day in members) for name, members in groupby(days, _month)}
        return Aggregate(
            entity=entity_id,
            zone=in_force(zones, now_ms),
            days=days,
            months=months,
            total=summed(months.values()),
            updated_at_ms=max((one.as_of_ms for one in totals if one.as_of_ms is not None), default=None),
        )

    def _day(self, tenant: Tenant, entity: str, day: int, used: Mapping[str, Counters], today: LocalDay) -> DayUsed:
        """Of today also what has a quota and was not used yet."""
        effective, is_today = tenant.effective, day == today.number
        quotas = effective.quotas_usd_micros if self._is_counted(tenant, entity, day) else {}
        labels = {**dict.fromkeys(effective.quotas_usd_micros, NOTHING_USED), **used} if is_today else used
        return DayUsed(
            day=day,
            labels=tuple(
                _label(label, counters, quotas.get(label), effective.tight_mode_threshold_pct)
                for label, counters in sorted(labels.items())
            ),
            total=summed(used.values()),
            sticky=self._sticky(tenant, entity, today) if is_today else None,
        )

    def _is_counted(self, tenant: Tenant, entity: str, day: int) -> bool:
        """Whether quotas are compared with the totals of this entity on that day."""
        return (self._scope(tenant, day) is QuotaScope.ORG) == (entity == tenant.org.org)

    def _scope(self, tenant: Tenant, day: int) -> QuotaScope:
        settings = tenant.org.settings
        if len(settings.quota_scopes) == 1:
            return settings.quota_scopes[0].value
        return in_force(settings.quota_scopes, day_starts_ms(settings.zones, day, self._calendar))

    def _sticky(self, tenant: Tenant, entity: str, today: LocalDay) -> StickyState | None:
        """What of it holds: a label that somebody set, until its time; where selection moved, if it goes by it."""
        item = self._store.get(money_keys.sticky(tenant.org.namespace, entity, today.name))
        state = UNMOVED if item is None else decode_sticky(item)
        goes_by_it = state.active_label in tenant.effective.model_ordering
        if not (goes_by_it and tenant.org.settings.sticky_fallback_enabled):
            state = StickyState(override=state.override)
        if state.override is not None:
            holds = state.override.holds(self._clock_ms())
            state = replace(state, override=state.override.on(today) if holds else None)
        return None if state == UNMOVED else state

    def _totals(self, tenant: Tenant, entity: str, days: range) -> list[DailyTotal]:
        org = tenant.org
        own = money_keys.totals_of(org.namespace, entity)
        if entity != org.org:
            return self._read([own], days)
        found: list[DailyTotal] = []
        every: Sequence[str] | None = None
        for scope, members in groupby(days, lambda day: self._scope(tenant, day)):
            run = list(members)
            if scope is QuotaScope.APP and every is None:
                every = self._counted.partitions(org.namespace)
            partitions = every if scope is QuotaScope.APP and every is not None else [own]
            found += self._read(partitions, range(run[0], run[-1] + 1), TOTALS_MAX - len(found))
        return found

    def _read(self, partitions: Sequence[str], days: range, most: int = TOTALS_MAX) -> list[DailyTotal]:
        found: list[DailyTotal] = []
        for partition in partitions if days else ():
            query = totals_in_partition_query(partition, day_name(days[0]), day_name(days[-1]))
            for total in self._pages(query):
                found.append(total)
                if len(found) > most:
                    raise _too_much(f"than {TOTALS_MAX} totals")
        return found

    def _pages(self, query: QueryRequest) -> Iterator[DailyTotal]:
        request: QueryRequest | None = query
        while request is not None:
            page = self._store.query(request)
            yield from map(decode_total, page.items)
            request = None if page.next_start is None else {**query, "ExclusiveStartKey": page.next_start}


def _range(asked: DayRange, today: int) -> tuple[int, int]:
    """Days that have not begun are left out."""
    last = today if asked.last is None else min(asked.last, today)
    first = last if asked.first is None else asked.first
    if first > last:
        raise InvalidRequest("from", "must not be after to, nor in the future")
    if first <= today - KEPT_DAYS:
        raise InvalidRequest("from", f"totals are kept for {KEPT_DAYS} days")
    return first, last


def _too_much(what: str) -> InvalidRequest:
    return InvalidRequest("from", f"these days have more {what}: ask for fewer, by from and to")


def rows_bytes(labels: Iterable[str]) -> int:
    """What the rows of so many labels are at most in an answer."""
    return sum(_ROW_BYTES + _CHARACTER_BYTES * len(label) for label in labels)


def _by_day(totals: Sequence[DailyTotal]) -> dict[int, dict[str, Counters]]:
    """By day and label: several entities may have used one label."""
    parts: dict[int, dict[str, list[Counters]]] = {}
    for total in totals:
        labels = parts.setdefault(day_number(total.name.day), {})
        labels.setdefault(total.name.label, []).append(total.counters)
    return {day: {label: summed(found) for label, found in labels.items()} for day, labels in parts.items()}


def _label(label: str, counters: Counters, quota_usd_micros: int | None, threshold_pct: int) -> LabelUsed:
    if quota_usd_micros is None:
        return LabelUsed(label, counters, None, None, None)
    spent_usd_micros = counters.cost_usd_micros
    return LabelUsed(
        label=label,
        counters=counters,
        quota_usd_micros=quota_usd_micros,
        percent_tenths=percent_tenths(spent_usd_micros, quota_usd_micros),
        mode=mode_of(spent_usd_micros, quota_usd_micros, threshold_pct),
    )


def _month(day: DayUsed) -> str:
    return month_name(day.day)
