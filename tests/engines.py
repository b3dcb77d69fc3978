"""Which engine the tests of this run speak to."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from mypy_boto3_dynamodb import DynamoDBClient

from local.engine import Engine
from local.reference import ReferenceEngine
from local.table import create_table

MINISTACK = "ministack"
REFERENCE = "reference"


def chosen_engine() -> Engine | ReferenceEngine:
    """Not yet started. Every test process starts its own: no process has to outlive or find another."""
    choice = os.environ.get("SLUICE_TEST_ENGINE", MINISTACK)
    if choice == MINISTACK:
        return Engine()
    if choice == REFERENCE:
        return ReferenceEngine()
    raise ValueError(f"SLUICE_TEST_ENGINE is {choice!r}; it may be {MINISTACK} or {REFERENCE}")


@contextmanager
def table_factory(client: DynamoDBClient) -> Iterator[Callable[[], str]]:
    """A function that makes an empty table and answers its name; all of them are deleted at the end."""
    with ExitStack() as made:

        def make() -> str:
            name = f"sluice-{uuid.uuid4().hex[:12]}"
            create_table(client, name)
            made.callback(client.delete_table, TableName=name)
            return name

        yield make
