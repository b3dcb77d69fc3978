"""What a selection costs, on totals of three labels."""

from collections.abc import Callable
from typing import Final

from bench.capacity import Consumption
from sluice.core.labels import LabelDefinition
from sluice.core.metering import Counters
from sluice.core.orgs import AppSettings, EntityRole, OrgSettings
from sluice.core.period import local_day
from sluice.core.selection import Reason
from sluice.core.timelines import always
from sluice.repository.counters import CounterName
from sluice.repository.entities import entity_put
from sluice.repository.items import Entity
from sluice.repository.labels import encode_label
from sluice.repository.orgs import App, Org, encode_app, encode_org
from sluice.repository.totals import write_total
from sluice.services.zones import ZoneCalendar
from sluice.shell import Services, clock_ms, new_token

NAMESPACE: Final = "selecting"
ORDERING: Final = ("premium", "standard", "economy")
QUOTA_USD_MICROS: Final = 1_000_000
_MADE_AT_MS: Final = 1_700_000_000_000
_HOUR_MS: Final = 3_600_000


class SelectionCosts:
    """`one`: measures an operation."""

    def __init__(self, services: Services, one: Callable[[Callable[[], object]], Consumption]) -> None:
        self._services = services
        self._one = one
        # Where it is about noon now, so that no day ends meanwhile.
        east = 12 - clock_ms() // _HOUR_MS % 24
        self._zones = always(f"Etc/GMT{-east:+}" if east else "Etc/GMT")
        self._written = 0

    def measure(self) -> dict[str, Consumption]:
        self._put_org()
        self._write_totals(0, 0, 0)
        self._select(Reason.NORMAL)
        self._write_totals(QUOTA_USD_MICROS, 0, 0)
        self._select(Reason.QUOTA_EXCEEDED)
        stays = self._one(lambda: self._select(Reason.STICKY))
        self._write_totals(QUOTA_USD_MICROS, QUOTA_USD_MICROS, 0)
        # As mostly: the labels were read more than a second ago.
        self._services.money.catalog.forget(NAMESPACE)
        moves = self._one(lambda: self._select(Reason.QUOTA_EXCEEDED))
        self._put_user()
        self._select_for_user()
        for_user = self._one(self._select_for_user)
        return {
            "selection, three labels": stays,
            "selection by an app for its user, three labels": for_user,
            "selection that moves on, three labels": moves,
        }

    def _select_for_user(self) -> None:
        found = self._services.money.selection.select_for(NAMESPACE, "user", within="app")
        if found.entity != "app":
            raise AssertionError(f"it should be the app's, and is of {found.entity}")

    def _select(self, reason: Reason) -> None:
        found = self._services.money.selection.select(NAMESPACE, None)
        if found.reason is not reason:
            raise AssertionError(f"the reason should be {reason}, and is {found.reason}")

    def _put_org(self) -> None:
        quotas = dict.fromkeys(ORDERING, QUOTA_USD_MICROS)
        settings = OrgSettings(zones=self._zones, model_ordering=ORDERING, quotas_usd_micros=quotas)
        org = Org("org", NAMESPACE, "client", settings, 1, _MADE_AT_MS, _MADE_AT_MS)
        # One model for all of them, so that its prices are known before anything is measured.
        labels = [
            LabelDefinition(label, "model", None, None, None, 1, 1, 1, _MADE_AT_MS, _MADE_AT_MS) for label in ORDERING
        ]
        for item in (encode_org(org), *(encode_label(NAMESPACE, label) for label in labels)):
            self._services.store.put({"Item": item}, repeatable=True)

    def _put_user(self) -> None:
        """Of an app that has the labels and quotas of its org."""
        app = App("app", NAMESPACE, "client-of-app", AppSettings(), 1, _MADE_AT_MS, _MADE_AT_MS)
        self._services.store.put({"Item": encode_app(app)}, repeatable=True)
        below = (("org", None, EntityRole.ORG), ("app", "org", EntityRole.APP), ("user", "app", EntityRole.OTHER))
        for entity, parent, role in below:
            made = Entity(
                entity, None, parent, cascade=True, metadata={}, version=1, created_at_ms=1, updated_at_ms=1, role=role
            )
            self._services.store.transact([entity_put(NAMESPACE, made, None)], new_token())

    def _write_totals(self, *spent_usd_micros: int) -> None:
        """Of the org, as a rollup does."""
        now_ms = clock_ms()
        day = local_day(self._zones, now_ms, ZoneCalendar())
        self._written += 1
        for label, spent in zip(ORDERING, spent_usd_micros, strict=True):
            name = CounterName(NAMESPACE, "org", label, day.name)
            self._services.store.update(write_total(name, Counters(spent), self._written, now_ms), repeatable=True)
