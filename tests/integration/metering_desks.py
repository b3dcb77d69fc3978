"""One process that counts usage, with a clock, a chance and prices that a test rules."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sluice.core.audit import Author
from sluice.core.errors import SluiceError, UnknownLabel
from sluice.core.labels import LabelDefinition
from sluice.core.lease import Lease, LeaseMember, Share
from sluice.core.metering import NOTHING_USED, CallStatus, Counters, summed
from sluice.core.orgs import SHARDS_MAX, OrgSettings, QuotaScope
from sluice.core.pricing import Price, PriceSource, TokenKind
from sluice.core.reports import UsageReport
from sluice.core.timelines import always
from sluice.repository import keys, money_keys
from sluice.repository.counters import CostShard, CounterName, decode_cost_shard
from sluice.repository.events import UsageEvent, decode_event
from sluice.repository.items import Entity, decode_entity
from sluice.repository.leases import LeaseState, decode_lease
from sluice.repository.orgs import decode_org, encode_org
from sluice.repository.retries import Retries
from sluice.repository.store import Store
from sluice.repository.totals import write_total
from sluice.services.catalog import Model
from sluice.services.configuration import Configuration
from sluice.services.corrections import Corrections
from sluice.services.effects import Effects
from sluice.services.entities import Entities, EntityChange
from sluice.services.hold_book import HoldBook
from sluice.services.intake import Intake
from sluice.services.judging import Judge, Reporter
from sluice.services.leases import Leases
from sluice.services.ledger_book import LedgerBook
from sluice.services.ledger_charges import LedgerCharges
from sluice.services.lineages import Lineages
from sluice.services.metering import Counted, Metering
from sluice.services.registration import Registrar
from sluice.services.settings import CACHE_MS, SettingsCache
from sluice.services.spending import Spendings
from sluice.services.taking import build_buckets
from sluice.shell import new_token
from tests.fakes import CountingMeter, FakeClock, FakeRandom
from tests.recording import RecordingStore
from tests.simulation.store import PerfectWire, SimulatedStore, Wire
from tests.simulation.table import SimulatedTable
from tests.tenancy import tenant_items

NAMESPACE = "ns"
ORG = "acme"
APP = "chat"
OTHER_APP = "search"
LABEL = "premium"
MODEL = "model-of-premium"
AUTHOR = Author("client-chat", "request-7")
# 2027-01-15 08:00 in UTC.
TODAY = "20270115"
YESTERDAY = "20270114"
NOW_MS = FakeClock().now_ms
MIDNIGHT_MS = 1_799_971_200_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

AS_APP = Reporter(NAMESPACE, APP, APP, AUTHOR, registers=True)
AS_ORG = Reporter(NAMESPACE, ORG, None, AUTHOR, registers=True)
# The first vector of money: 1500 and 800 tokens cost 16,500.
COST = 16_500
REPORT = UsageReport(
    request_id="request-1",
    status=CallStatus.OK,
    tokens={TokenKind.INPUT: 1_500, TokenKind.OUTPUT: 800},
    label=LABEL,
    occurred_at_ms=NOW_MS,
)
PRICE = Price("aws:premium", PriceSource.AWS, {TokenKind.INPUT: 3_000_000, TokenKind.OUTPUT: 15_000_000})
SETTINGS = OrgSettings(quota_scopes=always(QuotaScope.APP), quotas_usd_micros={LABEL: 100_000})


@dataclass
class FakeModels:
    """`labels`: the model of each. `asked`: for whom a label was resolved. Nothing of it is old."""

    labels: dict[str, str] = field(default_factory=lambda: {LABEL: MODEL, "economy": "model-of-economy"})
    asked: list[tuple[str, str | None, str, str | None]] = field(default_factory=list)
    error: SluiceError | None = None

    def resolve(self, namespace: str, app: str | None, label: str, region: str | None) -> Model:
        self.asked.append((namespace, app, label, region))
        if self.error is not None:
            raise self.error
        if label not in self.labels:
            raise UnknownLabel("label", "is not defined")
        return Model(label, self.labels[label], region, self.definition(namespace, label))

    def label_of(self, namespace: str, app: str | None, model_id: str) -> str | None:
        if self.error is not None:
            raise self.error
        return next((label for label, model in self.labels.items() if model == model_id), None)

    def definition(self, namespace: str, label: str) -> LabelDefinition | None:
        return LabelDefinition(label, self.labels[label], None, None, None, None, None, 1, 0, 0)

    def look_again(self, namespace: str) -> bool:
        return False


@dataclass
class FakePrices:
    """`asked`: by whom, of which model, region and day, and with which label's fallback."""

    prices: dict[str, Price] = field(default_factory=lambda: {MODEL: PRICE, "model-of-economy": PRICE})
    asked: list[tuple[str, str, str | None, int, str | None]] = field(default_factory=list)

    def find(
        self, namespace: str, model_id: str, region: str | None, day: int, definition: LabelDefinition | None
    ) -> Price | None:
        self.asked.append((namespace, model_id, region, day, None if definition is None else definition.label))
        return self.prices.get(model_id)

    def look_again(self, namespace: str, model_id: str) -> bool:
        return False


@dataclass
class MeteringDesk:
    store: RecordingStore
    metering: Metering
    leases: Leases
    entities: Entities
    models: FakeModels
    prices: FakePrices
    meter: CountingMeter
    clock: FakeClock
    random: FakeRandom

    @classmethod
    def opened(
        cls,
        store: Store,
        clock: FakeClock,
        meter: CountingMeter | None = None,
        models: FakeModels | None = None,
        prices: FakePrices | None = None,
    ) -> "MeteringDesk":
        meter = meter or CountingMeter()
        random = FakeRandom()
        recording = RecordingStore(store)
        effects = Effects(clock, random, new_token, meter)
        configuration = Configuration(recording, clock)
        settings, lineages = SettingsCache(recording, clock), Lineages(recording, clock)
        leases = Leases(
            recording, Corrections(recording, build_buckets(recording, configuration, effects, clock).taker), effects
        )
        models, prices = models or FakeModels(), prices or FakePrices()
        holds, book = HoldBook(recording), LedgerBook(recording, settings, effects, clock)
        judge = Judge(settings, lineages, models, prices, Registrar(recording, configuration, effects), holds)
        charges = LedgerCharges(book, holds, effects)
        spendings = Spendings(recording, settings, meter)
        metering = Metering(recording, Intake(recording, judge), leases, charges, spendings, effects)
        entities = Entities(recording, configuration, clock, random, new_token)
        return cls(recording, metering, leases, entities, models, prices, meter, clock, random)

    def elsewhere(self) -> "MeteringDesk":
        """Another process, with the same labels and prices."""
        return MeteringDesk.opened(self.store.inner, self.clock, models=self.models, prices=self.prices)

    def found(self, settings: OrgSettings = SETTINGS) -> "MeteringDesk":
        """Puts the org, its apps, and one entity below each app."""
        for item in tenant_items(NAMESPACE, ORG, APP, OTHER_APP, settings=settings):
            self.store.inner.put({"Item": item}, repeatable=True)
        for entity, parent in (("user-1", APP), ("stranger", OTHER_APP)):
            self.entities.put(NAMESPACE, entity, EntityChange(parent=parent))
        self.store.taken_calls()
        return self

    def change_org(self, change: Callable[[OrgSettings], OrgSettings]) -> None:
        """And waits until every process has learned of it."""
        item = self.store.inner.get(keys.org_settings(NAMESPACE), consistent=True)
        assert item is not None
        org = decode_org(item)
        self.store.inner.put({"Item": encode_org(replace(org, settings=change(org.settings)))}, repeatable=True)
        self.clock.advance(CACHE_MS)

    def submit(self, reporter: Reporter = AS_APP, **changed: object) -> Counted:
        return self.metering.submit(reporter, report(**changed))

    def used(self, entity: str = APP, label: str = LABEL, day: str = TODAY) -> Counters:
        """What all shards there could be add up to."""
        return summed(shard.counters for shard in self.shards(entity, label, day))

    def shards(self, entity: str = APP, label: str = LABEL, day: str = TODAY) -> list[CostShard]:
        wanted = [money_keys.cost_shard(NAMESPACE, entity, label, day, shard) for shard in range(SHARDS_MAX)]
        return [decode_cost_shard(item) for item in self.store.inner.batch_get(wanted, consistent=True)]

    def event(self, request_id: str = "request-1", caller: str = APP, day: str = TODAY) -> UsageEvent | None:
        item = self.store.inner.get(money_keys.event(NAMESPACE, caller, day, request_id), consistent=True)
        return None if item is None else decode_event(item)

    def entity(self, entity: str) -> Entity | None:
        item = self.store.inner.get(keys.entity(NAMESPACE, entity), consistent=True)
        return None if item is None else decode_entity(item)

    def lease_state(self, lease: Lease) -> LeaseState | None:
        item = self.store.inner.get(keys.lease(NAMESPACE, lease.lease_id), consistent=True)
        return None if item is None else decode_lease(item)

    def roll_up(self, entity: str = APP, label: str = LABEL, day: str = TODAY) -> None:
        name = CounterName(NAMESPACE, entity, label, day)
        shards = self.shards(entity, label, day)
        revision = sum(shard.revision for shard in shards)
        self.store.inner.update(
            write_total(name, summed(shard.counters for shard in shards), revision, self.clock.now_ms), repeatable=True
        )


def report(**changed: object) -> UsageReport:
    """The usual one, but for what is named."""
    return replace(REPORT, **changed)  # type: ignore[arg-type]  # the fields are the dataclass's own business


def lease_of(clock: FakeClock, entity: str = APP, lease_id: str = "lease-1", ttl_ms: int = 300_000) -> Lease:
    """Of a bucket that nobody looks at: a report of usage leaves buckets alone."""
    member = LeaseMember(entity, (Share(0, 7, {"tpm": 500_000}),))
    return Lease(lease_id, NAMESPACE, entity, "gpt-4", {"tpm": 500}, (member,), clock.now_ms + ttl_ms)


def simulated_desk(wire: Wire | None = None, settings: OrgSettings = SETTINGS) -> tuple[MeteringDesk, SimulatedTable]:
    """On a table in memory, through the product's own retry loop. The wire only begins to matter once all is set up."""
    clock = FakeClock()
    meter = CountingMeter()
    table = SimulatedTable(clock)
    MeteringDesk.opened(SimulatedStore(table, PerfectWire(), _retries(clock, meter)), clock).found(settings)
    store = SimulatedStore(table, wire or PerfectWire(), _retries(clock, meter))
    return MeteringDesk.opened(store, clock, meter), table


def make_unreadable(desk: MeteringDesk, label: str = LABEL) -> None:
    """Turns the total of today into one of another shape."""
    key = money_keys.total(NAMESPACE, APP, TODAY, label)
    item = desk.store.inner.get(key, consistent=True)
    assert item is not None
    desk.store.inner.put({"Item": {**item, "requests": "many"}}, repeatable=True)


def _retries(clock: FakeClock, meter: CountingMeter) -> Retries:
    return Retries(clock.advance, lambda _below: 0, meter)


NOTHING = NOTHING_USED
