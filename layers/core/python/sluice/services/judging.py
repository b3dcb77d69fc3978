"""What a reported call means: whose it is, on which day, under which label, and what it cost.

First the report is opened, which finds the key of its event; then it is judged. Between the two a repeat can be told
from what is wrong now: whoever has counted a call before is answered so, whatever has become of its entity, its label
or its price since.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sluice.core.audit import Author
from sluice.core.errors import InvalidLease, PriceMissing
from sluice.core.holds import Hold
from sluice.core.labels import LabelDefinition
from sluice.core.lease import Lease
from sluice.core.metering import AHEAD_MAX_MS, REPEAT_MS, Counters, counted_call
from sluice.core.orgs import QuotaScope
from sluice.core.period import LocalDay, day_name, day_number, local_day, numbered_day
from sluice.core.pricing import Price, PriceUnknown, cost_usd_micros
from sluice.core.reports import UsageReport, body_hash, check_report
from sluice.core.timelines import day_of, in_force
from sluice.repository import money_keys
from sluice.repository.counters import CounterName
from sluice.repository.events import UsageEvent, event_absent, put_event, with_epochs
from sluice.repository.keys import Key
from sluice.repository.orgs import Org
from sluice.repository.requests import TransactWrite
from sluice.services.catalog import Model
from sluice.services.confinement import no_such_entity
from sluice.services.hold_book import HoldBook
from sluice.services.lineages import Lineage, Lineages
from sluice.services.registration import Registrar, Registration
from sluice.services.settings import SettingsCache
from sluice.services.zones import ZoneCalendar

Keys = tuple[Key, ...]


class Models(Protocol):
    def resolve(self, namespace: str, app: str | None, label: str, region: str | None) -> Model: ...

    def label_of(self, namespace: str, app: str | None, model_id: str) -> str | None: ...

    def definition(self, namespace: str, label: str) -> LabelDefinition | None: ...

    def look_again(self, namespace: str) -> bool: ...


class Prices(Protocol):
    def find(
        self, namespace: str, model_id: str, region: str | None, day: int, definition: LabelDefinition | None
    ) -> Price | None: ...

    def look_again(self, namespace: str, model_id: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Reporter:
    """Who reports. `within`: only this entity and those below it may be reported for; None: everybody may be.

    `registers`: whoever it reports for becomes known by that.
    """

    namespace: str
    entity: str
    within: str | None
    author: Author
    registers: bool


@dataclass(frozen=True, slots=True)
class Opened:
    """A report, whose call it was, and the key of its event.

    `elsewhere`: where an earlier attempt stands that came in on another day, for a report that does not say when the
    call was. What is there counts as one if it came in since `since_ms`. `hold`: of its lease, perhaps closed by now.
    """

    report: UsageReport
    entity: str
    body_hash: str
    org: Org
    day: LocalDay
    received_at_ms: int
    key: Key
    elsewhere: tuple[Key, ...]
    since_ms: int
    hold: Hold | None = None

    @property
    def keys(self) -> Keys:
        """All that an earlier attempt may stand under. Two reports with the same ones come to the same."""
        return (self.key, *self.elsewhere)

    @property
    def occurred_at_ms(self) -> int:
        return self.received_at_ms if self.report.occurred_at_ms is None else self.report.occurred_at_ms


@dataclass(frozen=True, slots=True)
class Charge:
    """An event that is to be counted. `writes`: its put, and the checks that go with it.

    `counters`: whom it is added to, on a random shard of so many each. `ledgers`: of which entities it is charged to.
    `is_known`: whether its entity is still there.
    """

    opened: Opened
    event: UsageEvent
    writes: tuple[TransactWrite, ...]
    counters: tuple[CounterName, ...]
    increase: Counters
    shards: int
    ledgers: tuple[str, ...] = ()
    is_known: bool = True

    @property
    def keys(self) -> Keys:
        return self.opened.keys

    def told(self, epochs: Mapping[str, int]) -> "Charge":
        """With the epochs of its ledgers in the event."""
        put: TransactWrite = {"Put": with_epochs(self.writes[0]["Put"], epochs)}
        return replace(self, event=replace(self.event, epochs=epochs), writes=(put, *self.writes[1:]))

    @property
    def lease(self) -> Lease | None:
        return self.opened.report.lease

    @property
    def actual(self) -> Mapping[str, int] | None:
        return self.opened.report.actual


@dataclass(frozen=True, slots=True)
class _Priced:
    label: str
    model_id: str
    cost_usd_micros: int | None
    price_id: str | None


@dataclass(frozen=True, slots=True)
class _Unpriced:
    """`missing`: what nobody knows the price of."""

    label: str
    model_id: str
    missing: str


class Judge:
    """Writes nothing, but for the registration. Safe to share between threads."""

    def __init__(
        self,
        settings: SettingsCache,
        lineages: Lineages,
        models: Models,
        prices: Prices,
        registrar: Registrar,
        holds: HoldBook,
    ) -> None:
        self._settings = settings
        self._lineages = lineages
        self._models = models
        self._prices = prices
        self._registrar = registrar
        self._holds = holds
        self._calendar = ZoneCalendar()

    def load(self, reporter: Reporter, reports: Sequence[UsageReport]) -> None:
        """Reads at once what opening them would read one by one."""
        leases = (report.lease for report in reports if report.lease is not None)
        self._holds.load(lease for lease in leases if lease.namespace == reporter.namespace)

    def open(self, reporter: Reporter, report: UsageReport, now_ms: int) -> Opened:
        """Refuses what is wrong by itself."""
        check_report(report, now_ms)
        lease = report.lease
        entity = report.entity or (reporter.entity if lease is None else lease.entity)
        if lease is not None and (lease.namespace, lease.entity) != (reporter.namespace, entity):
            raise InvalidLease
        org = self._settings.org(reporter.namespace)
        at_ms = now_ms if report.occurred_at_ms is None else report.occurred_at_ms
        day = local_day(org.settings.zones, at_ms, self._calendar)
        hold = self._holds.find(lease) if lease is not None and lease.holds else None
        if hold is not None and day_number(hold.day) > day.number:
            # No call is counted before it was admitted.
            day = numbered_day(org.settings.zones, day_number(hold.day), self._calendar)
        return Opened(
            report=report,
            entity=entity,
            body_hash=body_hash(report),
            org=org,
            day=day,
            received_at_ms=now_ms,
            key=money_keys.event(reporter.namespace, reporter.entity, day.name, report.request_id),
            elsewhere=() if report.occurred_at_ms is not None else self._elsewhere(reporter, report, org, day, now_ms),
            since_ms=now_ms - REPEAT_MS,
            hold=hold,
        )

    def judge(self, reporter: Reporter, opened: Opened) -> Charge | None:
        """None where nobody knows the entity yet and it is to be registered. Raises what the reporter is told."""
        lineage = self._lineage(opened)
        if lineage is None and reporter.registers:
            # Nobody becomes known by what is refused: so it is judged as of whoever it will stand below.
            above = self._lineages.find(reporter.namespace, reporter.entity)
            if above is not None:
                self._priced(opened, above)
            return None
        # What belongs to others looks as if it were not there, and their lease like none.
        if lineage is None or not lineage.stands_within(reporter.within):
            raise no_such_entity() if opened.report.lease is None or reporter.within is None else InvalidLease()
        priced = self._priced(opened, lineage)
        report = opened.report
        event = UsageEvent(
            namespace=reporter.namespace,
            request_id=report.request_id,
            body_hash=opened.body_hash,
            entity=opened.entity,
            app=lineage.app,
            chain=lineage.chain if opened.hold is None else opened.hold.chain,
            day=opened.day.name,
            occurred_at_ms=opened.occurred_at_ms,
            received_at_ms=opened.received_at_ms,
            label=priced.label,
            model_id=priced.model_id,
            region=report.region,
            status=report.status,
            pricing=report.pricing,
            tokens=report.tokens,
            cost_usd_micros=priced.cost_usd_micros,
            price_id=priced.price_id,
            tags=report.tags,
            lease_id=None if report.lease is None else report.lease.lease_id,
        )
        put: TransactWrite = {"Put": put_event(reporter.entity, event)}
        checks: list[TransactWrite] = [
            {"ConditionCheck": event_absent(key, opened.since_ms)} for key in opened.elsewhere
        ]
        return Charge(
            opened=opened,
            event=event,
            writes=(put, *checks),
            counters=_counters(opened, lineage, priced.label),
            increase=counted_call(priced.cost_usd_micros, report.tokens, report.status),
            shards=opened.org.settings.counter_shards,
            is_known=lineage.is_known,
        )

    def _lineage(self, opened: Opened) -> Lineage | None:
        """A call for which something is held is counted also if its entity was removed while it was under way: for
        whoever it stood below."""
        namespace = opened.org.namespace
        lineage = self._lineages.find(namespace, opened.entity)
        if lineage is not None or opened.hold is None:
            return lineage
        above = (self._lineages.find(namespace, entity) for entity in opened.hold.chain[1:])
        nearest = next((one for one in above if one is not None), None)
        if nearest is None:
            return None
        above_it = (nearest.entity, *nearest.above)
        return Lineage(opened.entity, opened.hold.chain, above_it, nearest.app, is_known=False)

    def register(self, reporter: Reporter, opened: Opened) -> None:
        """Below the reporter's own entity, as an acquire would. If somebody else was first, what they stored stands."""
        if opened.entity == reporter.entity or self._lineages.find(reporter.namespace, reporter.entity) is None:
            raise no_such_entity()
        registration = Registration(reporter.entity, reporter.author)
        self._registrar.register(reporter.namespace, opened.entity, None, registration)

    def _elsewhere(
        self, reporter: Reporter, report: UsageReport, org: Org, day: LocalDay, now_ms: int
    ) -> tuple[Key, ...]:
        """All other days of the last hour, and of the next minute: the clock of whoever had it before may be ahead."""
        first, last = (
            day_of(org.settings.zones, at_ms, self._calendar) for at_ms in (now_ms - REPEAT_MS, now_ms + AHEAD_MAX_MS)
        )
        return tuple(
            money_keys.event(reporter.namespace, reporter.entity, day_name(number), report.request_id)
            for number in range(first, last + 1)
            if number != day.number
        )

    def _priced(self, opened: Opened, lineage: Lineage) -> _Priced:
        """What is accepted without a price stays without one, so what was put elsewhere is not to be missed for being
        kept here: it is looked for once more, also if somebody else has just read all of it anew."""
        found = self._as_known(opened, lineage)
        if isinstance(found, _Priced):
            return found
        self._models.look_again(opened.org.namespace)
        self._prices.look_again(opened.org.namespace, found.model_id)
        found = self._as_known(opened, lineage)
        if isinstance(found, _Priced):
            return found
        if not opened.org.settings.accept_unpriced:
            raise PriceMissing(found.missing)
        return _Priced(found.label, found.model_id, None, None)

    def _as_known(self, opened: Opened, lineage: Lineage) -> _Priced | _Unpriced:
        """A price is looked for whatever was used: a call without tokens costs nothing only if its price is known."""
        report, namespace, app = opened.report, opened.org.namespace, lineage.app
        if report.model_id is None:
            if report.label is None:
                raise AssertionError("an opened report names one of the two")
            model = self._models.resolve(namespace, app, report.label, report.region)
            label, model_id, definition = report.label, model.model_id, model.definition
        else:
            known_as = self._models.label_of(namespace, app, report.model_id)
            definition = None if known_as is None else self._models.definition(namespace, known_as)
            label, model_id = known_as or report.model_id, report.model_id
        price = self._prices.find(namespace, model_id, report.region, opened.day.number, definition)
        if price is None:
            return _Unpriced(label, model_id, f"the model {model_id}")
        try:
            cost = cost_usd_micros(price, report.tokens, report.pricing)
        except PriceUnknown as unknown:
            return _Unpriced(label, model_id, f"the {', '.join(unknown.kinds)} tokens of the model {model_id}")
        return _Priced(label, model_id, cost, price.price_id)


def counted_for(org: Org, app: str | None, day_starts_ms: int) -> tuple[str, ...]:
    """The app or else the org; and the org as well where quotas of that day are the org's. The last has the quota."""
    nearest = org.org if app is None else app
    scope = in_force(org.settings.quota_scopes, day_starts_ms)
    return (nearest,) if scope is QuotaScope.APP or nearest == org.org else (nearest, org.org)


def _counters(opened: Opened, lineage: Lineage, label: str) -> tuple[CounterName, ...]:
    namespace, day = opened.org.namespace, opened.day
    return tuple(
        CounterName(namespace, entity, label, day.name)
        for entity in counted_for(opened.org, lineage.app, day.starts_ms)
    )
