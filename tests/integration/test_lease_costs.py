"""What leases cost, as the engine itself counts it. The table of the design is the bound."""

import os
from collections.abc import Callable
from dataclasses import replace

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from bench.capacity import CapacityMeter, Consumption
from bench.costs import CONSUME, LIMITS, Uncounted
from local.engine import Endpoint, dynamodb_client
from sluice.core.lease import Lease
from sluice.core.limits import Scope
from sluice.services.chains import AcquireRequest
from sluice.services.entities import EntityChange
from sluice.shell import Environment, Services, build_services
from tests.engines import REFERENCE

NAMESPACE = "ns"
RESOURCE = "gpt-4"
# Forty characters: what a bucket of three limits may have and still be written for one unit.
USER = "user-" + "u" * 35
# DynamoDB Local says 4 units for every transaction, whatever is in it, so there only calls and reads can be compared.
COUNTS_TRANSACTIONS = os.environ.get("SLUICE_TEST_ENGINE") != REFERENCE


@pytest.fixture
def metered(dynamodb_endpoint: Endpoint) -> DynamoDBClient:
    """A client of its own: the meter stays on the client that it is put on."""
    return dynamodb_client(dynamodb_endpoint)


@pytest.fixture
def services(metered: DynamoDBClient, table: str) -> Services:
    services = build_services(Environment("bench", table, 10_000), metered, Uncounted())
    services.limits.put(NAMESPACE, Scope(resource=RESOURCE), LIMITS)
    services.limits.put(NAMESPACE, Scope("team", RESOURCE), LIMITS)
    services.entities.put(NAMESPACE, "team", EntityChange())
    services.entities.put(NAMESPACE, "member", EntityChange(parent="team"))
    return services


@pytest.fixture
def measure(metered: DynamoDBClient) -> Callable[[Callable[[], object]], Consumption]:
    meter = CapacityMeter(metered)

    def one(operation: Callable[[], object]) -> Consumption:
        with meter.measuring() as consumption:
            operation()
        return consumption

    return one


def transaction(items: int) -> Consumption:
    return Consumption(calls=1, write_units=2 * items, read_units=0)


def comparable(measured: Consumption) -> Consumption:
    """As the engine counted it, with the units of a transaction left out where it can not count them."""
    return measured if COUNTS_TRANSACTIONS else replace(measured, write_units=0)


def take(services: Services, entity: str) -> Lease:
    request = AcquireRequest(NAMESPACE, entity, RESOURCE, CONSUME)
    return services.leases.open(services.acquire.acquire(request), 300_000)


@pytest.mark.parametrize(("entity", "buckets"), [(USER, 1), ("member", 2)])
def test_leases_cost_what_the_table_says(
    services: Services, measure: Callable[[Callable[[], object]], Consumption], entity: str, buckets: int
) -> None:
    same, more, less, released, adjusted = (take(services, entity) for _ in range(5))
    assert len(same.members) == buckets
    leases = services.leases
    assert measure(lambda: leases.settle(same, CONSUME)) == Consumption(calls=1, write_units=1, read_units=0)
    one_transaction = comparable(transaction(1 + buckets))
    assert comparable(measure(lambda: leases.settle(more, {"tpm": 600}))) == one_transaction
    assert comparable(measure(lambda: leases.settle(less, {"tpm": 400, "rpm": 3}))) == one_transaction
    assert comparable(measure(lambda: leases.release(released))) == one_transaction
    # Also when the lease has an item already.
    assert comparable(measure(lambda: leases.adjust(adjusted, {"tpm": 10}, "a" * 128))) == one_transaction
    assert comparable(measure(lambda: leases.adjust(adjusted, {"tpm": -5, "rpm": 1}, "b" * 128))) == one_transaction
    assert comparable(measure(lambda: leases.settle(adjusted, {"tpm": 1}))) == one_transaction
    # A close that was made already is known here.
    assert measure(lambda: leases.settle(adjusted, {"tpm": 1})) == Consumption()


@pytest.mark.parametrize(("entity", "buckets"), [(USER, 1), ("member", 2)])
def test_in_process_an_adjustment_costs_one_unit_per_bucket(
    services: Services, measure: Callable[[Callable[[], object]], Consumption], entity: str, buckets: int
) -> None:
    request = AcquireRequest(NAMESPACE, entity, RESOURCE, CONSUME)
    lease = services.leases.hold(services.acquire.acquire(request))
    one_each = Consumption(calls=buckets, write_units=buckets, read_units=0)
    assert measure(lambda: lease.adjust(tpm=100)) == one_each
    assert measure(lambda: lease.adjust(tpm=-100)) == one_each
    assert measure(lambda: lease.__exit__(None, None, None)) == Consumption()
