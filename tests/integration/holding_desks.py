"""One process that acquires under budgets, with a clock, labels and prices that a test rules."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest

from sluice.core.admission import Admission
from sluice.core.budget import (
    DEFAULTS,
    Amounts,
    Dimension,
    Enforcement,
    OwnBudget,
    Periods,
    Slot,
    Span,
    effective_terms,
)
from sluice.core.errors import Ambiguous, BudgetExceeded, NeverWithinBudget
from sluice.core.holds import Hold
from sluice.core.lease import LEASE_DEFAULT_MS, Lease
from sluice.core.limits import Limit, LimitsByName, OnUnavailable, Scope
from sluice.core.orgs import OrgSettings
from sluice.core.pricing import Price, PriceSource, TokenKind
from sluice.core.reserves import AmountReserve, ModelReserve, Reserve
from sluice.core.timelines import always
from sluice.repository import budget_keys
from sluice.repository.holds import decode_hold
from sluice.repository.idempotency import IdempotencyKey
from sluice.repository.ledger_items import Ledger, decode_ledger, encode_ledger, new_ledger
from sluice.repository.ledgers import asked, change_terms, with_terms
from sluice.repository.store import Applied, Store
from sluice.services.acquire import Acquire
from sluice.services.chains import AcquireRequest, Chains
from sluice.services.configuration import Configuration
from sluice.services.corrections import Corrections
from sluice.services.effects import Effects
from sluice.services.entities import Entities, EntityChange
from sluice.services.explain import Explain
from sluice.services.freeing import Freeing
from sluice.services.hold_book import HoldBook
from sluice.services.hold_explain import HoldExplain
from sluice.services.holding import Allowances, Found, HardCaps, Holding, Wish
from sluice.services.idempotency import Answered, IdempotentAcquire
from sluice.services.leases import Leases
from sluice.services.ledger_book import LedgerBook
from sluice.services.limits import Limits
from sluice.services.lineages import Lineages
from sluice.services.registration import Registrar
from sluice.services.reserves import Reserves
from sluice.services.settings import SettingsCache
from sluice.services.taking import build_buckets
from sluice.services.together import Together
from sluice.shell import new_token
from tests.fakes import CountingMeter, FakeClock, FakeRandom
from tests.integration.conftest import one_by_one
from tests.integration.metering_desks import FakeModels, FakePrices
from tests.recording import RecordingStore
from tests.tenancy import tenant_items

NAMESPACE: Final = "ns"
ROOT: Final = "acme"
APP: Final = "app-1"
USER: Final = "user-1"
CHAIN: Final = (USER, APP, ROOT)
RESOURCE: Final = "gpt-4"
DAY_COST: Final = Slot(Span.DAY, Dimension.COST)
MONTH_COST: Final = Slot(Span.MONTH, Dimension.COST)
DAY_TOKENS: Final = Slot(Span.DAY, Dimension.TOKENS)
DAY_EXECUTIONS: Final = Slot(Span.DAY, Dimension.EXECUTIONS)
ECONOMY: Final = Price("aws:economy", PriceSource.AWS, {TokenKind.INPUT: 300_000, TokenKind.OUTPUT: 1_500_000})
LIMITS: Final = {"rpm": Limit(100, 100, 1, 31_536_000)}
# 2026-01-31, 23:30 in Berlin.
EVENING_MS: Final = 1_769_898_600_000
ORDERING: Final = ("premium", "economy")


MIDNIGHT_MS: Final = EVENING_MS + 1_800_000
NEXT_MONTH_MS: Final = MIDNIGHT_MS
NEXT_DAY: Final = Periods("20260201", "202602")
PREMIUM: Final = ModelReserve(1_500, 800, label="premium")
KEY: Final = IdempotencyKey(NAMESPACE, APP, "key-1", "hash-1")


def hard(day_cost: int | None = None, **limits: int) -> OwnBudget:
    """By slot names; the cost of a day comes first because most tests are about that."""
    found = {Slot(*map_slot(name)): limit for name, limit in limits.items()}
    if day_cost is not None:
        found[DAY_COST] = day_cost
    return OwnBudget(found, Enforcement.HARD)


def map_slot(name: str) -> tuple[Span, Dimension]:
    span, dimension = name.split("_")
    return Span(span), Dimension(dimension)


@dataclass
class HardCapsTold:
    told: list[list[tuple[str, str]]]

    def refused(self, found: Found) -> None:
        self.told.append([(ledger.entity, violation.slot.name) for ledger, violation in found])


@dataclass
class HoldDesk:
    store: RecordingStore
    holding: Holding
    hold_explain: HoldExplain
    leases: Leases
    book: LedgerBook
    limits: Limits
    entities: Entities
    models: FakeModels
    prices: FakePrices
    caps: HardCapsTold
    meter: CountingMeter
    clock: FakeClock

    @classmethod
    def opened(cls, inner: Store, clock: FakeClock, hard_caps: HardCaps | None = None) -> "HoldDesk":
        """`hard_caps`: in place of those that only note what they are told."""
        store, meter, random = RecordingStore(inner), CountingMeter(), FakeRandom()
        effects = Effects(clock, random, new_token, meter)
        configuration = Configuration(store, clock)
        buckets = build_buckets(store, configuration, effects, clock)
        chains = Chains(configuration, buckets.memory.images, Registrar(store, configuration, effects))
        # What budgets do not change is read past the record, so that a test counts the calls of budgets.
        settings = SettingsCache(inner, clock)
        book, holds = LedgerBook(store, settings, effects, clock, configuration.budget_defaults), HoldBook(store)
        models, prices = FakeModels(), FakePrices()
        prices.prices["model-of-economy"] = ECONOMY
        caps = HardCapsTold([])
        acquire = Acquire(configuration, chains, buckets.taker, one_by_one, meter)
        together = Together(store, buckets, effects)
        idempotent = IdempotentAcquire(store, acquire, chains, together, effects)
        reserves = Reserves(settings, Lineages(inner, clock), models, prices)
        allowances = Allowances(book, holds, reserves, settings, hard_caps or caps)
        return cls(
            store=store,
            holding=Holding(acquire, idempotent, chains, together, allowances, effects, clock),
            hold_explain=HoldExplain(store, Explain(chains, buckets.writer, clock), chains, allowances),
            leases=Leases(store, Corrections(store, buckets.taker), effects, Freeing(holds, book, effects)),
            book=book,
            limits=Limits(store, configuration, clock, random, new_token),
            entities=Entities(store, configuration, clock, random, new_token),
            models=models,
            prices=prices,
            caps=caps,
            meter=meter,
            clock=clock,
        )

    def elsewhere(self, clock: FakeClock | None = None) -> "HoldDesk":
        """Another process."""
        return HoldDesk.opened(self.store.inner, clock or self.clock)

    def found(self, limits: LimitsByName = LIMITS) -> "HoldDesk":
        """Puts the org, an app, and a user below it."""
        settings = OrgSettings(zones=always("Europe/Berlin"), model_ordering=ORDERING)
        for item in tenant_items(NAMESPACE, ROOT, APP, settings=settings):
            self.store.inner.put({"Item": item}, repeatable=True)
        self.entities.put(NAMESPACE, USER, EntityChange(parent=APP))
        self.limits.put(NAMESPACE, Scope(resource=RESOURCE), limits)
        self.store.taken_calls()
        return self

    def allow_unavailable(self) -> None:
        self.limits.put(NAMESPACE, Scope(), LIMITS, OnUnavailable.ALLOW)

    def wish(
        self,
        reserve: Reserve | None = None,
        entity: str = USER,
        consume: Mapping[str, int] | None = None,
        ttl_ms: int = LEASE_DEFAULT_MS,
        **more: Any,
    ) -> Wish:
        asked_for = {"rpm": 1} if consume is None else consume
        return Wish(AcquireRequest(NAMESPACE, entity, RESOURCE, asked_for, **more), reserve, ttl_ms)

    def take(self, cost_usd_micros: int, tokens: int | None = None, **more: Any) -> Admission:
        return self.holding.acquire(self.wish(AmountReserve(cost_usd_micros, tokens), **more))

    def lease(self, admission: Admission) -> Lease:
        return self.leases.open(admission, LEASE_DEFAULT_MS)

    def put(self, entity: str, own: OwnBudget | None, day: str = "20260131") -> Ledger:
        """A new budget, as an operator puts it, and the item of the defaults."""
        if entity != DEFAULTS and self.find_ledger(DEFAULTS) is None:
            self.put(DEFAULTS, None, day)
        version = 0 if entity in {DEFAULTS, ROOT} else self.ledger(DEFAULTS).limits_version
        terms = effective_terms(own, None)
        ledger = new_ledger(NAMESPACE, entity, Periods.of_name(day), terms, version, self.clock.now_ms, 0)
        ledger = ledger if own is None else asked(ledger, own)
        assert isinstance(self.store.inner.put({"Item": encode_ledger(ledger)}, repeatable=True), Applied)
        return ledger

    def revise(self, entity: str, own: OwnBudget) -> None:
        """What an operator does elsewhere to a budget that is there."""
        seen = self.ledger(entity)
        terms = effective_terms(own, None)
        after = asked(with_terms(seen, seen.standing.periods, terms, seen.defaults_version, self.clock.now_ms), own)
        assert isinstance(self.store.inner.update(change_terms(seen, after), repeatable=True), Applied)

    def ledger(self, entity: str = USER) -> Ledger:
        found = self.find_ledger(entity)
        assert found is not None
        return found

    def find_ledger(self, entity: str) -> Ledger | None:
        item = self.store.inner.get(budget_keys.ledger(NAMESPACE, entity), consistent=True)
        return None if item is None else decode_ledger(item)

    def used(self, entity: str = USER, span: Span = Span.DAY) -> int:
        return self.ledger(entity).standing.of(span).used.cost_usd_micros

    def held(self, entity: str = USER) -> Amounts:
        return self.ledger(entity).standing.held

    def find_hold(self, admission: Admission) -> Hold | None:
        assert admission.hold is not None
        item = self.store.inner.get(budget_keys.hold(NAMESPACE, admission.hold.lease_id), consistent=True)
        return None if item is None else decode_hold(item)

    def holds(self) -> list[Hold]:
        return [decode_hold(item) for item in self._all() if item["kind"] == "hold"]

    def consumed(self, entity: str = USER) -> int:
        """Requests that the bucket gave."""
        buckets = [item for item in self._all() if item["kind"] == "bucket" and item["entity_id"] == entity]
        return sum(int(str(item["b_rpm_tc"])) for item in buckets) // 1000

    def everything(self) -> list[str]:
        """The whole table, to tell that nothing changed."""
        return sorted(str(sorted(item.items())) for item in self._all())

    def _all(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        start = None
        while True:
            page = self.store.inner.scan({"ConsistentRead": True, **({"ExclusiveStartKey": start} if start else {})})
            found += [dict(item) for item in page.items]
            start = page.next_start
            if start is None:
                return found


def at(verb: str, act: Callable[[], object], times: int = 1) -> Callable[[str, Any], None]:
    """In the moment of such a call, so many times."""
    left = [times]

    def acts(called: str, _request: Any) -> None:
        if called == verb and left[0]:
            left[0] -= 1
            act()

    return acts


def ahead(clock: FakeClock, duration_ms: int) -> FakeClock:
    return FakeClock(clock.now_ms + duration_ms)


def refused(desk: HoldDesk, *arguments: Any, **more: Any) -> BudgetExceeded:
    before = desk.everything()
    with pytest.raises(BudgetExceeded) as raised:
        desk.take(*arguments, **more)
    assert desk.everything() == before, "a refusal changes nothing"
    return raised.value


def told(error: BudgetExceeded | NeverWithinBudget) -> list[tuple[str, str, str]]:
    return [(one.entity, one.period, one.dimension) for one in error.violations]


def lost(after: int = 1) -> Callable[[str, Any], None]:
    def lose() -> None:
        raise Ambiguous("the answer was lost")

    return at("transact", lose, after)


def once(desk: HoldDesk, cost_usd_micros: int, key: IdempotencyKey = KEY) -> Answered:
    def render(admission: Admission) -> str:
        return json.dumps([None if admission.hold is None else admission.hold.lease_id, admission.degraded])

    return desk.holding.acquire_once(desk.wish(AmountReserve(cost_usd_micros)), key, render)
