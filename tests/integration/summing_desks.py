"""A process that marks and sums up totals, on a table with an org and its counters, in a time that a test moves."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.metering import Counters
from sluice.core.orgs import OrgSettings, QuotaScope
from sluice.core.period import LocalDay, day_number, local_day, numbered_day
from sluice.core.pricing import TokenKind
from sluice.core.timelines import always
from sluice.repository import keys, money_keys
from sluice.repository.counters import CounterName, add_to_shard
from sluice.repository.orgs import App, app_put, decode_app, decode_org, org_put
from sluice.repository.requests import TransactWrite
from sluice.repository.retries import Retries
from sluice.repository.store import Applied, Committed, DynamoStore, Store
from sluice.repository.totals import DailyTotal, decode_total, due_query, mark_due, total_key
from sluice.repository.wire import Item
from sluice.services.counted import CountedEntities
from sluice.services.effects import Effects
from sluice.services.jobs import Jobs, Run, Work
from sluice.services.marking import Marking
from sluice.services.rollup import Rollup, RollupRun
from sluice.services.rollup_jobs import ROLLUP_ENTITY, SUM_TOTALS, EntityRollups, RollUpEntity, SumTotals
from sluice.services.settings import SettingsCache
from sluice.services.summing import Advance, Summing
from sluice.services.zones import ZoneCalendar
from sluice.shell import new_token
from tests.fakes import CountingMeter, FakeClock, never_random
from tests.integration.streams import Tenants
from tests.recording import RecordingStore
from tests.simulation.stream import StreamRecord
from tests.tenancy import tenant_items

NAMESPACE = "ns"
ORG = "acme"
CHAT, SEARCH = "chat", "search"
PREMIUM, STANDARD = "premium", "standard"
# 2027-01-15 08:00 in UTC.
TODAY, YESTERDAY = "20270115", "20270114"
MINUTE_MS = 60_000
DAY_MS = 86_400_000
BY_APP = OrgSettings(
    quota_scopes=always(QuotaScope.APP),
    model_ordering=(PREMIUM, STANDARD),
    quotas_usd_micros={PREMIUM: 10_000, STANDARD: 5_000},
)
BY_ORG = replace(BY_APP, quota_scopes=always(QuotaScope.ORG))


@dataclass
class Advances:
    """Who was told to move on, and for which day. `act` may raise, or do something meanwhile.

    `left`: whose selection is not behind the label yet.
    """

    told: list[tuple[str, str]] = field(default_factory=list)
    act: Callable[[str], None] | None = None
    left: set[str] = field(default_factory=set)

    def __call__(self, namespace: str, entity: str, day: LocalDay, now_ms: int) -> bool:
        assert namespace == NAMESPACE
        assert day.starts_ms <= now_ms
        self.told.append((entity, day.name))
        if self.act is not None:
            self.act(entity)
        return entity not in self.left


@dataclass
class SummingDesk:
    store: RecordingStore
    clock: FakeClock
    meter: CountingMeter
    tenants: Tenants
    advances: Advances
    marking: Marking
    rollup: Rollup
    jobs: Jobs
    entity_rollups: EntityRollups
    work: Mapping[str, Work]

    @classmethod
    def opened(
        cls, store: Store, clock: FakeClock, meter: CountingMeter | None = None, advance: Advance | None = None
    ) -> "SummingDesk":
        meter = meter or CountingMeter()
        recording = RecordingStore(store)
        effects = Effects(clock, never_random, new_token, meter)
        tenants, advances = Tenants(), Advances()
        settings = SettingsCache(recording, clock)
        summing = Summing(recording, settings, advance or advances, effects)
        jobs = Jobs(recording, effects)
        work: Mapping[str, Work] = {
            ROLLUP_ENTITY: RollUpEntity(recording, summing, settings, tenants),
            SUM_TOTALS: SumTotals(recording, summing, tenants),
        }
        return cls(
            store=recording,
            clock=clock,
            meter=meter,
            tenants=tenants,
            advances=advances,
            marking=Marking(recording, tenants, effects),
            rollup=Rollup(recording, summing, tenants, effects),
            jobs=jobs,
            entity_rollups=EntityRollups(CountedEntities(recording), jobs),
            work=work,
        )

    def elsewhere(self) -> "SummingDesk":
        """Another process, with the same ears."""
        other = SummingDesk.opened(self.store.inner, self.clock)
        other.advances.told = self.advances.told
        return other

    def put_tenant(self, settings: OrgSettings = BY_APP, *apps: str) -> "SummingDesk":
        for item in tenant_items(NAMESPACE, ORG, *(apps or (CHAT, SEARCH)), settings=settings):
            self.store.inner.put({"Item": item}, repeatable=True)
        return self

    def change_org(self, **changed: Any) -> None:
        item = self.store.inner.get(keys.org_settings(NAMESPACE), consistent=True)
        assert item is not None
        seen = decode_org(item)
        settings = replace(seen.settings, **changed)
        self._send(org_put(replace(seen, settings=settings, version=seen.version + 1), seen))

    def change_app(self, app: str, **changed: Any) -> None:
        item = self.store.inner.get(keys.app_settings(NAMESPACE, app), consistent=True)
        assert item is not None
        seen: App = decode_app(item)
        settings = replace(seen.settings, **changed)
        self._send(app_put(replace(seen, settings=settings, version=seen.version + 1), seen))

    def use(
        self, cost_usd_micros: int, shard: int = 0, entity: str = CHAT, label: str = PREMIUM, day: str = TODAY
    ) -> None:
        """One call, counted in a shard and in no total."""
        name = CounterName(NAMESPACE, entity, label, day)
        increase = Counters(cost_usd_micros, {TokenKind.INPUT: 10, TokenKind.OUTPUT: 1}, requests=1)
        update = add_to_shard(name, shard, self.day(day).ends_ms, increase, self.clock.now_ms)
        assert isinstance(self.store.inner.update(update, repeatable=False), Applied)

    def mark(self, entity: str = CHAT, label: str = PREMIUM, day: str = TODAY) -> None:
        """In the present minute, as the stream does it."""
        name = CounterName(NAMESPACE, entity, label, day)
        self.store.inner.update(mark_due(name, self.clock.now_ms // MINUTE_MS, self.clock.now_ms), repeatable=True)

    def use_and_mark(self, cost_usd_micros: int, shard: int = 0, **of: str) -> None:
        self.use(cost_usd_micros, shard, **of)
        self.mark(**of)

    def wait(self, minutes: int = 1) -> None:
        """Until what was marked before is due."""
        self.clock.advance(minutes * MINUTE_MS + 5_000)

    def run(self, *, totals: int = 1_000_000) -> RollupRun:
        """A rollup that has time for so many totals."""
        left = totals

        def out_of_time() -> bool:
            nonlocal left
            left -= 1
            return left < 0

        return self.rollup.run(out_of_time)

    def run_jobs(self, *, steps: int = 1_000) -> Run:
        left = steps

        def out_of_time() -> bool:
            nonlocal left
            left -= 1
            return left < 0

        return self.jobs.run_open(self.work, out_of_time)

    def total(self, entity: str = CHAT, label: str = PREMIUM, day: str = TODAY) -> DailyTotal | None:
        item = self.item(total_key(CounterName(NAMESPACE, entity, label, day)))
        return None if item is None else decode_total(item)

    def spent(self, entity: str = CHAT, label: str = PREMIUM, day: str = TODAY) -> tuple[int, int] | None:
        """The cost and the requests in a total; None where there is none."""
        found = self.total(entity, label, day)
        return None if found is None else (found.counters.cost_usd_micros, found.counters.requests)

    def item(self, key: keys.Key) -> Item | None:
        return self.store.inner.get(key, consistent=True)

    def marks(self) -> set[str]:
        """What the index of due totals names."""
        found: set[str] = set()
        for partition in range(money_keys.DUE_PARTITIONS):
            found |= {str(item["GSI3SK"]) for item in self.store.inner.query(due_query(partition)).items}
        return found

    def day(self, name: str | None = None) -> LocalDay:
        zones = OrgSettings().zones
        if name is None:
            return local_day(zones, self.clock.now_ms, ZoneCalendar())
        return numbered_day(zones, day_number(name), ZoneCalendar())

    def _send(self, write: TransactWrite) -> None:
        assert isinstance(self.store.inner.transact([write], new_token()), Committed)


def engine_desk(client: DynamoDBClient, table: str, clock: FakeClock) -> SummingDesk:
    meter = CountingMeter()
    return SummingDesk.opened(DynamoStore(client, table, Retries(lambda _ms: None, never_random, meter)), clock, meter)


class CounterStream:
    """The records of counter shards, made from looks at them: what the table's stream would deliver."""

    def __init__(self, desk: SummingDesk) -> None:
        self._desk = desk
        self._images: dict[keys.Key, Item] = {}
        self._number = 0

    def use(
        self, cost_usd_micros: int, shard: int = 0, entity: str = CHAT, label: str = PREMIUM, day: str = TODAY
    ) -> dict[str, Any]:
        self._desk.use(cost_usd_micros, shard, entity, label, day)
        return self.look(money_keys.cost_shard(NAMESPACE, entity, label, day, shard))

    def look(self, key: keys.Key) -> dict[str, Any]:
        """The record of what happened to a shard since the last look."""
        old, new = self._images.get(key), self._desk.item(key)
        if new is None:
            self._images.pop(key, None)
        else:
            self._images[key] = new
        self._number += 1
        return StreamRecord(self._number, key, old, new, self._desk.clock.now_ms, False, self._number, None).as_event()
