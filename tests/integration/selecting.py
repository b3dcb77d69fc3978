"""A process that selects, on a table with an org and its totals, in a time that a test moves."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from unittest.mock import patch

from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.arns import ModelInRegion, ProfileArn, parse_profile_arn
from sluice.core.audit import Author
from sluice.core.labels import InferenceProfile, LabelDefinition
from sluice.core.metering import Counters
from sluice.core.orgs import AppSettings, EntityRole, OrgSettings
from sluice.core.period import LocalDay, local_day
from sluice.core.pricing import Price, PriceSource, TokenKind
from sluice.core.selection import Reason
from sluice.repository import keys, money_keys
from sluice.repository.audit import AuditEvent, audit_query, decode_audit_event
from sluice.repository.counters import CounterName
from sluice.repository.entities import entity_put
from sluice.repository.items import Entity
from sluice.repository.labels import label_put
from sluice.repository.orgs import app_put, decode_app, decode_org, org_put
from sluice.repository.profiles import profile_put
from sluice.repository.requests import TransactWrite
from sluice.repository.retries import Retries
from sluice.repository.sticky import UNMOVED, StickyName, StickyState, decode_sticky
from sluice.repository.store import Applied, Committed, DynamoStore
from sluice.repository.totals import write_total
from sluice.repository.wire import Item
from sluice.services.catalog import Catalog
from sluice.services.definitions import Definitions
from sluice.services.effects import Effects
from sluice.services.grounds import Grounds
from sluice.services.lineages import Lineages
from sluice.services.overrides import OverrideOfDay, Overrides, Wanted
from sluice.services.price_book import PriceBook
from sluice.services.profile_models import ProfileModels
from sluice.services.selection import Selection
from sluice.services.settings import SettingsCache
from sluice.services.zones import ZoneCalendar
from sluice.shell import new_token
from tests.fakes import CountingMeter, FakeClock, never_random
from tests.recording import RecordingStore
from tests.tenancy import MADE_AT_MS, tenant_items

NAMESPACE = "ns"
ORG = "acme"
CHAT, SEARCH, USER = "chat", "search", "user-1"
ORDERING = ("premium", "standard", "economy")
SETTINGS = OrgSettings(
    model_ordering=ORDERING, quotas_usd_micros={"premium": 10_000, "standard": 5_000, "economy": 2_000}
)
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
AUTHOR = Author("client-chat", "request-7")
PROFILE = "arn:aws:bedrock:eu-west-1:123456789012:application-inference-profile/abc"
REGION = "eu-west-1"
PROFILED_MODEL = "vendor.large-v1"

_revisions = count(1)


Start = Callable[..., "Selector"]


class Source:
    """What AWS says about every inference profile. It raises instead, if a test says so."""

    def __init__(self) -> None:
        self.raises: Exception | None = None

    def models(self, arn: ProfileArn) -> tuple[ModelInRegion, ...]:
        if self.raises is not None:
            raise self.raises
        return (ModelInRegion(PROFILED_MODEL, REGION),)


class Shipped:
    """Knows the model behind the profile."""

    def find(self, model_id: str, region: str | None) -> Price | None:
        if model_id != PROFILED_MODEL:
            return None
        return Price(f"shipped:{model_id}", PriceSource.SHIPPED, {TokenKind.INPUT: 7}, region=region)

    def lists(self, model_id: str) -> bool:
        return model_id == PROFILED_MODEL


@dataclass
class Selector:
    """One process: its own caches; the table and the clock may be shared with others."""

    store: RecordingStore
    clock: FakeClock
    meter: CountingMeter
    source: Source
    selection: Selection
    overrides: Overrides

    def put_tenant(self, settings: OrgSettings = SETTINGS) -> None:
        """An org with two apps and a user of one of them."""
        for item in tenant_items(NAMESPACE, ORG, CHAT, SEARCH, settings=settings):
            self.store.inner.put({"Item": item}, repeatable=True)
        self.put_entity(USER, CHAT)
        for label in ORDERING:
            self.define(label)

    def put_entity(self, entity: str, parent: str) -> None:
        made = Entity(entity, None, parent, True, {}, 1, MADE_AT_MS, MADE_AT_MS, EntityRole.OTHER)
        self._send(entity_put(NAMESPACE, made, None))

    def change_org(self, settings: OrgSettings) -> None:
        item = self._find(keys.org_settings(NAMESPACE))
        assert item is not None
        seen = decode_org(item)
        self._send(org_put(replace(seen, settings=settings, version=seen.version + 1), seen))

    def change_app(self, settings: AppSettings, app: str = CHAT) -> None:
        item = self._find(keys.app_settings(NAMESPACE, app))
        assert item is not None
        seen = decode_app(item)
        self._send(app_put(replace(seen, settings=settings, version=seen.version + 1), seen))

    def define(self, label: str, price_usd_micros: int | None = 3) -> None:
        definition = LabelDefinition(
            label, f"model-of-{label}", None, None, None, price_usd_micros, None, 1, MADE_AT_MS, MADE_AT_MS
        )
        self._send(label_put(NAMESPACE, definition, None))

    def remove_label(self, label: str) -> None:
        self.store.inner.delete({"Key": {**money_keys.label(NAMESPACE, label).attributes}})

    def put_profile(self, label: str, entity: str = CHAT) -> None:
        arn = parse_profile_arn("arn", PROFILE)
        self._send(profile_put(NAMESPACE, InferenceProfile(entity, label, arn, None, 1, 1, 1), None))

    def day(self, zones: OrgSettings = SETTINGS) -> LocalDay:
        return local_day(zones.zones, self.clock.now_ms, ZoneCalendar())

    def spend(self, *usd_micros: int, of: str = ORG, day: LocalDay | None = None) -> None:
        """The totals of the labels of the ordering, as a rollup writes them."""
        on = self.day() if day is None else day
        for label, spent in zip(ORDERING, usd_micros, strict=False):
            name = CounterName(NAMESPACE, of, label, on.name)
            written = write_total(name, Counters(spent, requests=1), next(_revisions), self.clock.now_ms)
            assert isinstance(self.store.inner.update(written, repeatable=True), Applied)

    def set_override(
        self, label: str, until_ms: int | None = None, entity: str = CHAT, within: str | None = None
    ) -> OverrideOfDay:
        wanted = Wanted(label, "premium is down", until_ms)
        return self.overrides.put(NAMESPACE, entity, wanted, within=within, author=AUTHOR)

    def item(self, entity: str = CHAT, day: LocalDay | None = None) -> Item | None:
        return self._find(money_keys.sticky(NAMESPACE, entity, (self.day() if day is None else day).name))

    def state(self, entity: str = CHAT, day: LocalDay | None = None) -> StickyState:
        found = self.item(entity, day)
        return UNMOVED if found is None else decode_sticky(found)

    def audit(self, entity: str = CHAT) -> list[AuditEvent]:
        """The newest first."""
        page = self.store.inner.query(audit_query(NAMESPACE, entity))
        return [decode_audit_event(item) for item in page.items]

    def _find(self, key: keys.Key) -> Item | None:
        return self.store.inner.get(key, consistent=True)

    def _send(self, write: TransactWrite) -> None:
        assert isinstance(self.store.inner.transact([write], new_token()), Committed)


def start_selector(client: DynamoDBClient, table: str, clock: FakeClock) -> Selector:
    meter, source = CountingMeter(), Source()
    store = RecordingStore(DynamoStore(client, table, Retries(lambda _ms: None, never_random, meter)))
    effects = Effects(clock, never_random, new_token, meter)
    settings, lineages = SettingsCache(store, clock), Lineages(store, clock)
    catalog = Catalog(Definitions(store, clock), ProfileModels(source, clock), settings)
    grounds = Grounds(settings, lineages, catalog)
    return Selector(
        store=store,
        clock=clock,
        meter=meter,
        source=source,
        selection=Selection(store, grounds, catalog, PriceBook(store, Shipped(), clock), effects),
        overrides=Overrides(store, grounds, effects),
    )


def selected(process: Selector, app: str | None = CHAT) -> tuple[str, Reason, str | None, str | None]:
    found = process.selection.select(NAMESPACE, app)
    return found.label, found.reason, found.previous_label, found.sticky.active_label


def at_update(process: Selector, act: Callable[[], object]) -> None:
    """Once, in the moment before the next move is sent."""
    _at("update", process, act)


def at_transaction(process: Selector, act: Callable[[], object]) -> None:
    _at("transact", process, act)


def _at(verb: str, process: Selector, act: Callable[[], object]) -> None:
    def before(called: str, _request: Any) -> None:
        if called == verb:
            process.store.before = None
            act()

    process.store.before = before


@contextmanager
def reading(process: Selector, old: list[Item]) -> Iterator[None]:
    """Its selections read this, and what is read consistently is as it is."""
    store = process.store.inner
    batch_get = store.batch_get

    def read(asked: Sequence[keys.Key], *, consistent: bool = False) -> list[Item]:
        return batch_get(asked, consistent=True) if consistent else old

    with patch.object(store, "batch_get", read):
        yield


def read_by(process: Selector) -> list[Item]:
    """What a selection reads now."""
    name = StickyName(NAMESPACE, CHAT, process.day())
    totals = [money_keys.total(NAMESPACE, ORG, name.day.name, label) for label in ORDERING]
    return process.store.inner.batch_get([money_keys.sticky(NAMESPACE, CHAT, name.day.name), *totals], consistent=True)
