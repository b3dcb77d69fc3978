"""Fixtures for tests against a real DynamoDB engine; nothing is started for tests that ask for none of them."""

import os
from collections.abc import Callable, Iterator

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from local.engine import Endpoint, Engine, dynamodb_client
from local.reference import ReferenceEngine
from tests.engines import REFERENCE, chosen_engine, table_factory


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On the reference engine only what uses an engine: the rest has been run already."""
    if os.environ.get("SLUICE_TEST_ENGINE") != REFERENCE:
        return
    without = [
        item
        for item in items
        if item.nodeid.startswith("tests/integration") and "engine" not in getattr(item, "fixturenames", ())
    ]
    config.hook.pytest_deselected(items=without)
    items[:] = [item for item in items if item not in without]


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine | ReferenceEngine]:
    """SLUICE_TEST_ENGINE chooses: ministack (the default) or reference."""
    with chosen_engine() as started:
        yield started


@pytest.fixture(scope="session")
def dynamodb_endpoint(engine: Engine | ReferenceEngine) -> Endpoint:
    """(endpoint_url, region, access_key): plain values, so that another process can build its own client."""
    return engine.endpoint


@pytest.fixture(scope="session")
def dynamodb(dynamodb_endpoint: Endpoint) -> DynamoDBClient:
    return dynamodb_client(dynamodb_endpoint)


@pytest.fixture(scope="session")
def tables(dynamodb: DynamoDBClient) -> Iterator[Callable[[], str]]:
    """Call it for the name of a new, empty table."""
    with table_factory(dynamodb) as make:
        yield make


@pytest.fixture
def table(dynamodb: DynamoDBClient) -> Iterator[str]:
    """The name of an empty table for this test alone."""
    with table_factory(dynamodb) as make:
        yield make()
