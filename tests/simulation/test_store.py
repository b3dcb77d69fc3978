"""The simulated store makes of every fault what the real one makes of it."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, ReadTimeoutError
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.errors import Ambiguous
from sluice.repository.keys import Key
from sluice.repository.retries import Conflict, NotSent, Retries, Throttled
from sluice.repository.store import DynamoStore, Store
from sluice.repository.wire import item_to_wire
from tests.fakes import CountingMeter, never_random
from tests.simulation.store import Call, SimulatedStore
from tests.simulation.table import SimulatedTable

KEY = Key("p", "s")
ATTRIBUTES = {"PK": "p", "SK": "s"}
OPERATIONS = {"put_item": "put", "update_item": "update", "delete_item": "delete", "get_item": "get"}


def _add(condition: str) -> Any:
    return {
        "Key": {**ATTRIBUTES},
        "UpdateExpression": "ADD n :one",
        "ConditionExpression": condition,
        "ExpressionAttributeValues": {":one": 1},
    }


def _error(verb: str, code: str, status: int = 400, **more: Any) -> ClientError:
    response = {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}, **more}
    return ClientError(cast("Any", response), verb)


def _conflict(verb: str) -> ClientError:
    if verb != "transact_write_items":
        return _error(verb, "TransactionConflictException")
    return _error(verb, "TransactionCanceledException", CancellationReasons=[{"Code": "TransactionConflict"}])


FAULTS: dict[str, tuple[Callable[[str], Exception], Callable[[], Exception]]] = {
    "throttled": (lambda verb: _error(verb, "ThrottlingException"), lambda: Throttled("x")),
    "hot": (
        lambda verb: _error(
            verb,
            "ThrottlingException",
            ThrottlingReasons=[{"reason": "TableWriteKeyRangeThroughputExceeded"}],
        ),
        lambda: Throttled("x", hot_key=True),
    ),
    "conflict": (_conflict, lambda: Conflict("x")),
    "unsent": (lambda _verb: ConnectTimeoutError(endpoint_url="http://127.0.0.1:1"), lambda: NotSent("x")),
    "lost": (lambda _verb: ReadTimeoutError(endpoint_url="http://127.0.0.1:1"), lambda: Ambiguous("x")),
    "broken": (lambda verb: _error(verb, "InternalServerError", 500), lambda: Ambiguous("x")),
}

VERBS: dict[str, Callable[[Store], object]] = {
    "put": lambda store: store.put(
        {"Item": {**ATTRIBUTES, "n": 2}, "ConditionExpression": "attribute_not_exists(PK)"}, repeatable=True
    ),
    "update": lambda store: store.update(_add("attribute_exists(PK)"), repeatable=False),
    "repeatable update": lambda store: store.update(_add("attribute_exists(PK)"), repeatable=True),
    "failing update": lambda store: store.update(_add("n > :one"), repeatable=True),
    "delete": lambda store: store.delete({"Key": {**ATTRIBUTES}}),
    "transact": lambda store: store.transact([{"Update": _add("n > :one")}], "token"),
    "get": lambda store: store.get(KEY, consistent=True),
}

SCRIPTS = [
    (),
    ("throttled",),
    ("hot",),
    ("hot", "throttled"),
    ("conflict",),
    ("unsent", "unsent"),
    ("lost",),
    ("broken", "throttled"),
    ("lost", "hot"),
    ("throttled", "lost", "conflict"),
    ("lost", "lost"),
    ("conflict",) * 5,
    ("throttled",) * 5,
    ("hot", "conflict", "unsent", "throttled"),
]


class ScriptedWire:
    """Raises what the script says, before the table is asked; then lets everything through."""

    def __init__(self, script: tuple[str, ...]) -> None:
        self.script = list(script)
        self.sent = 0

    def carry(self, call: Call, apply: Callable[[], Any]) -> Any:
        self.sent += 1
        if self.script:
            fault = FAULTS[self.script.pop(0)][1]()
            raise fault
        return apply()

    def read_lag_ms(self) -> int:
        return 0

    def processed(self, keys: int) -> int:
        return keys

    def page_cut(self) -> int | None:
        return None


class ScriptedClient:
    """The same at the level of boto3, over a simulated table."""

    def __init__(self, table: SimulatedTable, script: tuple[str, ...]) -> None:
        self.table = table
        self.script = list(script)
        self.sent = 0

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            self.sent += 1
            if self.script:
                raise FAULTS[self.script.pop(0)][0](operation)
            return self._answer(operation)

        return call

    def _answer(self, operation: str) -> Any:
        """As DynamoDB would answer on the one item {n: 1}."""
        item = item_to_wire({**ATTRIBUTES, "n": 1})
        failing = self.table.stream == []
        if operation == "get_item":
            return {"Item": item}
        if operation == "put_item" or (operation == "update_item" and failing):
            raise _error(operation, "ConditionalCheckFailedException", Item=item)
        if operation == "transact_write_items":
            reasons = [{"Code": "ConditionalCheckFailed", "Item": item}]
            raise _error(operation, "TransactionCanceledException", CancellationReasons=reasons)
        return {"Attributes": item_to_wire({**ATTRIBUTES, "n": 2}) if operation == "update_item" else item}


def outcome(verb: str, store: Store) -> object:
    try:
        return VERBS[verb](store)
    except Exception as error:  # noqa: BLE001 - which one it is, is the question
        return type(error)


@pytest.mark.parametrize("script", SCRIPTS, ids=" ".join)
@pytest.mark.parametrize("verb", VERBS)
def test_both_stores_make_the_same_of_a_fault(verb: str, script: tuple[str, ...]) -> None:
    if verb == "get" and {"conflict", "hot"} & set(script):
        pytest.skip("reads do not meet these")
    meters = [CountingMeter(), CountingMeter()]
    table = SimulatedTable()
    table.put({"Item": {**ATTRIBUTES, "n": 1}})
    wire = ScriptedWire(script)
    simulated = SimulatedStore(table, wire, Retries(lambda _ms: None, never_random, meters[0]))
    client = ScriptedClient(table if verb != "failing update" else SimulatedTable(), script)
    real = DynamoStore(cast("DynamoDBClient", client), "t", Retries(lambda _ms: None, never_random, meters[1]))
    assert outcome(verb, real) == outcome(verb, simulated)
    assert client.sent == wire.sent
    assert meters[0].counts == meters[1].counts
