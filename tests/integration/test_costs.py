"""Every operation stays at or below its figure: a dearer one must be a decision, not an accident."""

import os

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from bench.aggregator import UNITS_BOUND, AggregatorCosts
from bench.costs import BOUNDS, Costs
from local.engine import Endpoint, dynamodb_client
from tests.engines import REFERENCE


@pytest.fixture
def metered(dynamodb_endpoint: Endpoint) -> DynamoDBClient:
    """A client of its own: the meter stays on the client that it is put on."""
    return dynamodb_client(dynamodb_endpoint)


def test_no_operation_costs_more_than_its_bound(metered: DynamoDBClient, table: str) -> None:
    figures = Costs(metered, table).measure()
    assert figures.keys() == BOUNDS.keys()
    # Only the reference engine is right about reads, and only the other one about transactions.
    reference = os.environ.get("SLUICE_TEST_ENGINE") == REFERENCE
    for name, bound in BOUNDS.items():
        figure = figures[name]
        assert figure.calls <= bound.calls, name
        assert figure.write_units > 0 or bound.write_units == 0, f"{name} was not measured"
        assert figure.write_units <= bound.write_units or (reference and bound.transaction), name
        assert figure.read_units <= bound.read_units or not reference, name


def test_counting_a_thousand_acquires_stays_within_its_bound(metered: DynamoDBClient, table: str) -> None:
    """Two writes for a batch of a hundred, whatever it holds, and nothing read once the snapshots are known."""
    figures = AggregatorCosts(metered, table).measure()
    assert figures.records == 1_000
    assert 20 <= figures.consumption.write_units <= UNITS_BOUND
    assert figures.consumption.calls <= 23
