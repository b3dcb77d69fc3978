"""Sixteen processes on one hard budget of a real engine: what it has is admitted, and not a micro-dollar more."""

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from local.engine import Endpoint
from sluice.core.budget import NOTHING, Amounts
from sluice.core.holds import Hold
from sluice.core.lease import Lease
from sluice.repository.retries import Retries
from sluice.repository.store import DynamoStore
from tests.fakes import CountingMeter, FakeClock, never_random
from tests.hold_workers import HoldWork, run_hold_processes
from tests.integration.holding_desks import CHAIN, NAMESPACE, USER, HoldDesk, hard

PROCESSES = 16
ATTEMPTS = 200
LIMIT = 10_000_000
TWO_PERCENT = LIMIT // 50
# The processes share this instant, so that no midnight passes.
NOW_MS = 1_800_000_000_000
TODAY = "20270115"


@pytest.fixture
def desk(dynamodb: DynamoDBClient, table: str) -> HoldDesk:
    retries = Retries(lambda _ms: None, never_random, CountingMeter())
    return HoldDesk.opened(DynamoStore(dynamodb, table, retries), FakeClock(NOW_MS)).found()


def lease_of(hold: Hold) -> Lease:
    return Lease(hold.lease_id, NAMESPACE, USER, hold.resource, {}, (), hold.expires_at_ms, holds=True)


def test_of_200_holds_of_2_percent_exactly_50_are_admitted(
    desk: HoldDesk, dynamodb_endpoint: Endpoint, table: str
) -> None:
    for entity in CHAIN:
        desk.put(entity, hard(LIMIT), day=TODAY)
    work = HoldWork(dynamodb_endpoint, table, TWO_PERCENT, NOW_MS)
    shares = [ATTEMPTS // PROCESSES + (number < ATTEMPTS % PROCESSES) for number in range(PROCESSES)]
    reports = run_hold_processes(work, shares)
    assert sum(report.admitted for report in reports) == 50
    assert sum(report.refused for report in reports) == 150
    holds = desk.holds()
    assert len(holds) == 50
    for entity in CHAIN:
        assert desk.held(entity) == Amounts(LIMIT, 0, 50)
        assert desk.used(entity) == LIMIT
        assert sum(hold.held_in(entity).cost_usd_micros for hold in holds) == LIMIT
    for hold in holds:
        desk.leases.release(lease_of(hold))
    assert [(desk.held(entity), desk.used(entity)) for entity in CHAIN] == [(NOTHING, 0)] * 3
