"""On what the selection of an app, or of the org itself, is decided: its day, its labels, and whose totals count."""

from dataclasses import dataclass

from sluice.core.orgs import EffectiveSettings, QuotaScope
from sluice.core.period import LocalDay, local_day
from sluice.core.selection import usable_labels
from sluice.core.timelines import in_force
from sluice.repository.sticky import StickyName
from sluice.services.catalog import Catalog
from sluice.services.confinement import no_such_entity
from sluice.services.lineages import Lineages
from sluice.services.settings import SettingsCache, Tenant
from sluice.services.zones import ZoneCalendar


@dataclass(frozen=True, slots=True)
class Ground:
    """`name`: whose selection it is, and of which day. `app`: None for the org itself. `totals_of`: the app or the org.

    `labels`: those of the ordering that have a quota. `usable`: those of them that are defined.
    """

    name: StickyName
    app: str | None
    totals_of: str
    settings: EffectiveSettings
    sticky_enabled: bool
    labels: tuple[str, ...]
    usable: tuple[str, ...]

    @property
    def day(self) -> LocalDay:
        return self.name.day


class Grounds:
    """What is asked for here is kept for a minute by whom it is asked of, except where it says otherwise."""

    def __init__(self, settings: SettingsCache, lineages: Lineages, catalog: Catalog) -> None:
        self._settings = settings
        self._lineages = lineages
        self._catalog = catalog
        self._calendar = ZoneCalendar()

    def app_of(self, namespace: str, entity: str, within: str | None = None) -> str | None:
        """The app whose selection holds for an entity; None where the org's does. `within`: who may ask for it."""
        lineage = self._lineages.find(namespace, entity)
        if lineage is None or not lineage.stands_within(within):
            raise no_such_entity()
        return lineage.app

    def today(self, namespace: str, app: str | None, now_ms: int) -> Ground:
        tenant = self._settings.tenant(namespace, app)
        return self._ground(tenant, app, local_day(tenant.org.settings.zones, now_ms, self._calendar))

    def on(self, namespace: str, entity: str, day: LocalDay) -> Ground | None:
        """Of an app or the org, read anew. None for what is neither, or no longer is."""
        app = None if entity == self._settings.org(namespace).org else entity
        self._catalog.look_again(namespace)
        tenant = self._settings.tenant_now(namespace, app)
        return None if tenant.entity != entity else self._ground(tenant, app, day)

    def anew(self, ground: Ground, stands_on: str | None = None) -> Ground:
        """The same, read anew: before something is decided for the whole day, or refused.

        Labels are as of the last second, so that neither refusals nor many moves at once read them again and again.
        `stands_on`: where selection was found. A label that is not known here was defined elsewhere, maybe just now.
        """
        namespace, app = ground.name.namespace, ground.app
        if stands_on is None or stands_on in ground.usable:
            self._catalog.look_again(namespace)
        else:
            self._catalog.forget(namespace)
        return self._ground(self._settings.tenant_now(namespace, app), app, ground.day)

    def _ground(self, tenant: Tenant, app: str | None, day: LocalDay) -> Ground:
        org, effective = tenant.org, tenant.effective
        entity = org.org if app is None else app
        # A change of the scope acts at a local midnight, so the whole day counts as it began.
        scope = in_force(org.settings.quota_scopes, day.starts_ms)
        quotas = effective.quotas_usd_micros
        defined = {label for label in effective.model_ordering if self._catalog.is_defined(org.namespace, app, label)}
        return Ground(
            name=StickyName(org.namespace, entity, day),
            app=app,
            totals_of=org.org if scope is QuotaScope.ORG else entity,
            settings=effective,
            sticky_enabled=org.settings.sticky_fallback_enabled,
            labels=tuple(label for label in effective.model_ordering if label in quotas),
            usable=usable_labels(effective.model_ordering, quotas, defined),
        )
