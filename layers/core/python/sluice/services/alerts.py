"""Tells when a budget is used up, or will be: once for each period, dimension, percentage and value of the limit.

What was reached is read from the image of a ledger as the stream tells it, and marked by an item that is put if there
is none; the stream tells of the marker, and only then is anybody told. So however often a record comes, and whoever
handles it, there is one marker, and a message is lost only with its record. A message may come twice; the key of
its marker tells. A refusal changes no ledger, so its marker is put by whoever refuses.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

from cachetools import LRUCache

from sluice.core.alerts import HARD, Alert, Whose, foreseen, reached
from sluice.core.budget import Span, Violation
from sluice.core.errors import Contended, NotFound, Unavailable
from sluice.core.period import LocalDay, LocalMonth, day_number, local_day, local_month, numbered_day
from sluice.core.signals import Signal
from sluice.repository import budget_keys
from sluice.repository.alert_bus import AlertBus
from sluice.repository.alert_markers import (
    ALERT_MARKER,
    decode_marker,
    is_new,
    marker_key,
    markers_query,
    new_image,
    put_marker,
)
from sluice.repository.keys import Key
from sluice.repository.ledger_items import LEDGER, Ledger, decode_ledger
from sluice.repository.store import Store
from sluice.repository.wire import Item
from sluice.services.counting import Tenants, Uncounted
from sluice.services.effects import Effects
from sluice.services.listing import Listed, Lists, PageRequest
from sluice.services.settings import SettingsCache
from sluice.services.zones import ZoneCalendar

_CACHE_SIZE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Followed:
    """How many records of a batch were about budgets, and which of them could not be followed."""

    observed: int
    unfollowed: Sequence[Uncounted]


class Alerts:
    """Safe to share between threads. `bus`: None where nobody is told: the markers are there all the same."""

    def __init__(
        self,
        store: Store,
        settings: SettingsCache,
        lists: Lists,
        tenants: Tenants,
        effects: Effects,
        bus: AlertBus | None = None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._lists = lists
        self._tenants = tenants
        self._effects = effects
        self._bus = bus
        self._calendar = ZoneCalendar()
        # Put, or found, by this process: above a percentage every change of a ledger would try again.
        self._marked: LRUCache[Key, bool] = LRUCache(_CACHE_SIZE)
        self._lock = Lock()

    def follow(self, records: Sequence[Mapping[str, Any]]) -> Followed:
        """Of a batch of the stream. Records of other items are left out; once more, a record changes nothing."""
        observed = 0
        unfollowed: list[Uncounted] = []
        for position, record in enumerate(records):
            try:
                observed += self._follow(record)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one record, the others must go on
                unfollowed.append(Uncounted(position, error))
        meter = self._effects.meter
        if observed:
            meter.count(Signal.STREAM_RECORDS, observed)
        if unfollowed:
            meter.count(Signal.STREAM_FAILURES, len(unfollowed))
        return Followed(observed, unfollowed)

    def refused(self, found: Sequence[tuple[Ledger, Violation]]) -> None:
        """A call was refused by these. Nothing is wrong with that refusal where it can not be marked."""
        for ledger, violation in found:
            span = violation.slot.span
            try:
                # A refusal is about now, which the ledger's own periods may be behind of.
                zones = self._settings.org(ledger.namespace).settings.zones
                day = local_day(zones, self._effects.clock_ms(), self._calendar)
                period = day if span is Span.DAY else local_month(zones, day.month, self._calendar)
                alert = Alert(
                    whose=_whose(ledger),
                    period=period.name,
                    slot=violation.slot,
                    percent=HARD,
                    limit=violation.limit,
                    used=violation.used - violation.held,
                )
                self._mark(alert, period.ends_ms)
            except (Contended, NotFound, Unavailable):
                # The next refusal tries again.
                continue

    def of(self, namespace: str, entity: str, page: PageRequest, since_ms: int = 0) -> Listed[Alert]:
        """What was marked for an entity, the latest period first. `since_ms`: when the entity came to be, for callers
        that must see nothing of an earlier one of its name; 0 for others."""
        decode = self._own_only(namespace, entity, since_ms) if since_ms else decode_marker
        return self._lists.whole((namespace, "alerts", entity), markers_query(namespace, entity), page, decode)

    def _own_only(self, namespace: str, entity: str, since_ms: int) -> Callable[[Item], Alert | None]:
        """The stream may have told late of a ledger that is gone, and a ledger may have stayed without its entity."""
        item = self._store.get(budget_keys.ledger(namespace, entity), consistent=True)
        whose = None if item is None else _whose(decode_ledger(item))

        def decode(marker: Item) -> Alert | None:
            alert = decode_marker(marker)
            is_own = alert.whose == whose and alert.at_ms is not None and alert.at_ms >= since_ms
            return alert if is_own else None

        return decode

    def _follow(self, record: Mapping[str, Any]) -> bool:
        image = new_image(record, LEDGER)
        if image is not None:
            self._look(decode_ledger(image))
            return True
        image = new_image(record, ALERT_MARKER)
        if image is None or not is_new(record):
            return False
        self._tell(decode_marker(image))
        return True

    def _look(self, ledger: Ledger) -> None:
        if ledger.is_defaults or not self._is_active(ledger.namespace):
            return
        try:
            zones = self._settings.org(ledger.namespace).settings.zones
        except NotFound:
            return
        now_ms = self._effects.clock_ms()
        standing = ledger.standing
        day = numbered_day(zones, day_number(standing.periods.day), self._calendar)
        month = local_month(zones, standing.periods.month, self._calendar)
        periods: dict[Span, LocalDay | LocalMonth] = {Span.DAY: day, Span.MONTH: month}
        whose = _whose(ledger)
        alerts = reached(whose, ledger.terms, standing)
        for period in periods.values():
            if now_ms < period.ends_ms:
                alerts += foreseen(whose, ledger.terms, standing, period, now_ms)
        for alert in alerts:
            self._mark(alert, periods[alert.slot.span].ends_ms)

    def _mark(self, alert: Alert, period_ends_ms: int) -> None:
        key = marker_key(alert)
        with self._lock:
            if key in self._marked:
                return
        # Whether it was put now or is there already is all one.
        self._store.put(put_marker(alert, period_ends_ms, self._effects.clock_ms()), repeatable=True)
        with self._lock:
            self._marked[key] = True

    def _tell(self, alert: Alert) -> None:
        if alert.silent or self._bus is None or not self._is_active(alert.namespace):
            return
        self._bus.tell(alert)
        self._effects.meter.count(Signal.ALERTS_SENT)

    def _is_active(self, namespace: str) -> bool:
        try:
            self._tenants.require_active(namespace)
        except NotFound:
            return False
        return True


def _whose(ledger: Ledger) -> Whose:
    return Whose(ledger.namespace, ledger.entity, ledger.first_epoch)
