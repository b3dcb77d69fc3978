"""A month ends while four writers spend on a real engine, each with caches and a clock of its own: nothing is lost, and
nothing is in the wrong day."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.budget import NOTHING, Amounts, Enforcement, OwnBudget, Span
from sluice.core.errors import Contended
from sluice.core.lease import Lease
from sluice.core.limits import Scope
from sluice.core.metering import CallStatus
from sluice.core.orgs import QuotaScope
from sluice.core.pricing import TokenKind
from sluice.core.timelines import always
from sluice.repository.events import UsageEvent, decode_event
from sluice.repository.retries import Retries
from sluice.repository.store import DynamoStore
from sluice.services.entities import EntityChange
from sluice.services.judging import Reporter
from tests.fakes import CountingMeter, FakeClock, never_random
from tests.integration.holding_desks import APP, CHAIN, LIMITS, NAMESPACE, RESOURCE, ROOT, USER, HoldDesk, hard
from tests.integration.metering_desks import AUTHOR, SETTINGS, MeteringDesk, report
from tests.simulation.local_days import day_at, end_ms
from tests.tenancy import tenant_items

# 2027-01-31 00:00 in UTC.
LAST_DAY_MS = 1_801_353_600_000
SKEWS_MS = (-1_500, 0, 400, 1_900)
TURNS = 21
STEP_MS = 500
AS_APP = Reporter(NAMESPACE, APP, APP, AUTHOR, registers=True)
TOKENS_PRICE_USD_MICROS = 3
Answer = TypeVar("Answer")


@dataclass
class Spender:
    """Calls with and without holds, some held before midnight and reported after it."""

    number: int
    clock: FakeClock
    holds: HoldDesk
    metering: MeteringDesk
    told: dict[str, UsageEvent] = field(default_factory=dict)
    waiting: list[Lease] = field(default_factory=list)

    def spend(self, midnight_ms: int) -> None:
        begin_ms = midnight_ms + SKEWS_MS[self.number] - TURNS // 2 * STEP_MS
        for turn in range(TURNS):
            self.clock.now_ms = begin_ms + turn * STEP_MS
            if turn % 3:
                self.waiting.append(self.holds.lease(until_done(lambda: self.holds.take(1_000, 1_000))))
            if turn % 3 != 1:
                self._report(f"{self.number}-{turn}", self.waiting.pop(0) if turn % 3 == 2 else None, turn)
        for lease in self.waiting:
            until_done(partial(self.holds.leases.release, lease))

    def _report(self, request_id: str, lease: Lease | None, tokens: int) -> None:
        wanted = report(
            request_id=request_id,
            entity=USER,
            status=CallStatus.ERROR if tokens % 2 else CallStatus.OK,
            tokens={TokenKind.INPUT: tokens + 1},
            occurred_at_ms=self.clock.now_ms,
            lease=lease,
        )
        self.told[request_id] = until_done(lambda: self.metering.metering.submit(AS_APP, wanted)).event


def until_done(work: Callable[[], Answer]) -> Answer:
    while True:
        try:
            return work()
        except Contended:
            continue


def spenders(store: DynamoStore) -> Iterator[Spender]:
    for number in range(len(SKEWS_MS)):
        clock = FakeClock(LAST_DAY_MS)
        yield Spender(number, clock, HoldDesk.opened(store, clock), MeteringDesk.opened(store, clock))


@pytest.mark.parametrize("zone", ["Asia/Kathmandu", "Europe/Berlin", "America/Los_Angeles"])
def test_a_month_ends_while_many_spend(dynamodb: DynamoDBClient, table: str, zone: str) -> None:
    zones = always(zone)
    midnight_ms = end_ms(zones, LAST_DAY_MS + 12 * 3_600_000)
    days = day_at(zones, midnight_ms - 1), day_at(zones, midnight_ms)
    assert days == ("20270131", "20270201")
    store = DynamoStore(dynamodb, table, Retries(lambda _ms: None, never_random, CountingMeter()))
    founder = HoldDesk.opened(store, FakeClock(midnight_ms - 3_600_000))
    settings = replace(SETTINGS, zones=zones, quota_scopes=always(QuotaScope.ORG), counter_shards=4)
    for item in tenant_items(NAMESPACE, ROOT, APP, settings=settings):
        store.put({"Item": item}, repeatable=True)
    founder.entities.put(NAMESPACE, USER, EntityChange(parent=APP))
    founder.limits.put(
        NAMESPACE, Scope(resource=RESOURCE), {name: replace(one, capacity=10**6) for name, one in LIMITS.items()}
    )
    for entity in CHAIN:
        own = OwnBudget({}, Enforcement.SOFT) if entity == ROOT else hard(10**9)
        founder.put(entity, own, day=days[0])
    everybody = list(spenders(store))
    with ThreadPoolExecutor(len(everybody)) as pool:
        list(pool.map(lambda one: one.spend(midnight_ms), everybody))

    told = {name: event for one in everybody for name, event in one.told.items()}
    stored = [decode_event(item) for item in founder._all() if item["kind"] == "usage_event"]
    assert {event.request_id: event for event in stored} == told
    assert len(stored) == len(told) == len(SKEWS_MS) * 14
    # Of the day of the call or, by a clock that was behind, of the hold.
    assert all(event.day >= day_at(zones, event.occurred_at_ms) for event in stored)
    without = [event for event in stored if event.lease_id is None]
    assert {event.day for event in without} == set(days)
    assert all(event.day == day_at(zones, event.occurred_at_ms) for event in without)
    by_day = {day: [event for event in stored if event.day == day] for day in days}
    for entity in CHAIN:
        standing = founder.ledger(entity).standing
        assert (standing.periods.day, standing.held) == (days[1], NOTHING)
        for span in Span:
            assert standing.of(span).used == amounts(by_day[days[1]])
            assert standing.of(span).errors == sum(event.status is CallStatus.ERROR for event in by_day[days[1]])
    for entity in (APP, ROOT):
        for day in days:
            counted = everybody[0].metering.used(entity, day=day)
            assert (counted.requests, counted.cost_usd_micros) == (
                len(by_day[day]),
                amounts(by_day[day]).cost_usd_micros,
            )


def amounts(events: list[UsageEvent]) -> Amounts:
    tokens = sum(sum(event.tokens.values()) for event in events)
    assert sum(event.cost_usd_micros or 0 for event in events) == tokens * TOKENS_PRICE_USD_MICROS
    return Amounts(tokens * TOKENS_PRICE_USD_MICROS, tokens, len(events))
