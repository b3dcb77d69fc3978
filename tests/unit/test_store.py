"""How the store translates what botocore raises. What it does on a table is tested on an engine."""

from collections.abc import Callable
from typing import Any, cast

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ReadTimeoutError,
    SSLError,
)
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.errors import Ambiguous, Contended, Unavailable
from sluice.repository.keys import Key
from sluice.repository.requests import UpdateRequest
from sluice.repository.retries import ATTEMPTS_MAX, LOST_ANSWERS_MAX, NotSent, Retries, Throttled
from sluice.repository.store import (
    UNPROCESSED_ROUNDS_MAX,
    Applied,
    Cancelled,
    Committed,
    ConditionFailed,
    DynamoStore,
)
from sluice.repository.wire import Item
from tests.fakes import CountingMeter, never_random

KEY = Key("p", "s")
UPDATE: UpdateRequest = {
    "Key": {"PK": "p", "SK": "s"},
    "UpdateExpression": "ADD v :one",
    "ConditionExpression": "v = :one",
    "ExpressionAttributeValues": {":one": 1},
}
WIRE_ITEM = {"PK": {"S": "p"}, "SK": {"S": "s"}, "v": {"N": "7"}}
ITEM: Item = {"PK": "p", "SK": "s", "v": 7}
URL = {"endpoint_url": "http://127.0.0.1:1"}


class ScriptedClient:
    """Answers every call with the next element of the script: an exception is raised, anything else returned."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        def call(**arguments: Any) -> Any:
            self.calls.append((operation, arguments))
            answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def failure(code: str, status: int = 400, **more: Any) -> ClientError:
    response = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}, **more}
    return ClientError(cast("Any", response), "Operation")


def store_on(*script: Any) -> tuple[DynamoStore, ScriptedClient]:
    client = ScriptedClient(*script)
    retries = Retries(lambda _ms: None, never_random, CountingMeter())
    return DynamoStore(cast("DynamoDBClient", client), "the-table", retries), client


def test_an_applied_update_returns_all_new_attributes() -> None:
    store, client = store_on({"Attributes": WIRE_ITEM})
    assert store.update(UPDATE, repeatable=False) == Applied(ITEM)
    operation, arguments = client.calls[0]
    assert operation == "update_item"
    assert arguments["TableName"] == "the-table"
    assert arguments["ReturnValues"] == "ALL_NEW"
    assert arguments["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"
    assert arguments["ExpressionAttributeValues"] == {":one": {"N": "1"}}


def test_a_failed_condition_is_a_value_with_the_old_item() -> None:
    store, client = store_on(failure("ConditionalCheckFailedException", Item=WIRE_ITEM))
    assert store.update(UPDATE, repeatable=False) == ConditionFailed(ITEM)
    assert len(client.calls) == 1
    store, _ = store_on(failure("ConditionalCheckFailedException"))
    assert store.update(UPDATE, repeatable=False) == ConditionFailed(None)


def test_a_failed_condition_after_a_lost_answer_says_so() -> None:
    store, _ = store_on(ReadTimeoutError(**URL), failure("ConditionalCheckFailedException", Item=WIRE_ITEM))
    outcome = store.put({"Item": {"PK": "p", "SK": "s"}}, repeatable=True)
    assert outcome == ConditionFailed(ITEM, repeated=True)


@pytest.mark.parametrize(
    "error",
    [
        ReadTimeoutError(**URL),
        ConnectionClosedError(**URL),
        SSLError(endpoint_url="x", error=OSError("y")),
        failure("InternalServerError", 500),
        failure("ServiceUnavailable", 503),
    ],
)
def test_a_lost_answer_to_an_update_is_ambiguous_and_sent_once(error: Exception) -> None:
    store, client = store_on(error)
    with pytest.raises(Ambiguous):
        store.update(UPDATE, repeatable=False)
    assert len(client.calls) == 1


@pytest.mark.parametrize("error", [ConnectTimeoutError(**URL), EndpointConnectionError(**URL)])
def test_a_request_that_never_left_is_repeated(error: Exception) -> None:
    store, client = store_on(error)
    with pytest.raises(NotSent):
        store.update(UPDATE, repeatable=False)
    assert len(client.calls) == ATTEMPTS_MAX


@pytest.mark.parametrize(
    "code", ["ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded"]
)
def test_throttling_is_repeated_and_then_unavailable(code: str) -> None:
    store, client = store_on(failure(code))
    with pytest.raises(Throttled):
        store.update(UPDATE, repeatable=False)
    assert len(client.calls) == ATTEMPTS_MAX


def test_a_conflict_with_a_transaction_is_repeated_and_then_contended() -> None:
    store, client = store_on(failure("TransactionConflictException"))
    with pytest.raises(Contended):
        store.update(UPDATE, repeatable=False)
    assert len(client.calls) == ATTEMPTS_MAX


def test_a_bug_is_not_taken_for_unavailability() -> None:
    """Hole: a fail-open branch that swallows bugs."""
    store, client = store_on(failure("ValidationException"))
    with pytest.raises(ClientError):
        store.update(UPDATE, repeatable=True)
    assert len(client.calls) == 1


def test_reads_are_repeated_after_a_lost_answer() -> None:
    store, client = store_on(ReadTimeoutError(**URL), {"Item": WIRE_ITEM})
    assert store.get(KEY, consistent=True) == ITEM
    assert client.calls[0][1]["ConsistentRead"] is True
    store, client = store_on(ReadTimeoutError(**URL))
    with pytest.raises(Unavailable) as raised:
        store.get(KEY)
    assert not isinstance(raised.value, Ambiguous)
    assert len(client.calls) == LOST_ANSWERS_MAX


def test_a_missing_item_is_none() -> None:
    store, _ = store_on({})
    assert store.get(KEY) is None


def batch_answer(items: list[Any], unprocessed: list[Any]) -> dict[str, Any]:
    left = {"the-table": {"Keys": unprocessed}} if unprocessed else {}
    return {"Responses": {"the-table": items}, "UnprocessedKeys": left}


def test_a_batch_asks_again_for_unprocessed_keys() -> None:
    store, client = store_on(batch_answer([], [{"PK": {"S": "p"}}]), batch_answer([WIRE_ITEM], []))
    assert store.batch_get([KEY]) == [ITEM]
    assert client.calls[1][1]["RequestItems"] == {"the-table": {"Keys": [{"PK": {"S": "p"}}]}}


def test_keys_that_stay_unprocessed_are_not_taken_for_missing() -> None:
    store, client = store_on(batch_answer([], [{"PK": {"S": "p"}}]))
    with pytest.raises(Throttled):
        store.batch_get([KEY])
    assert len(client.calls) == UNPROCESSED_ROUNDS_MAX


def test_a_batch_is_cut_into_hundreds() -> None:
    store, client = store_on(batch_answer([WIRE_ITEM], []))
    assert len(store.batch_get([Key(str(n), "s") for n in range(201)])) == 3
    sizes = [len(arguments["RequestItems"]["the-table"]["Keys"]) for _, arguments in client.calls]
    assert sizes == [100, 100, 1]


def test_a_transaction_is_repeated_byte_for_byte_with_its_token() -> None:
    store, client = store_on(ReadTimeoutError(**URL), failure("TransactionInProgressException"), {})
    assert store.transact([{"Update": UPDATE}], "token-1") == Committed()
    assert client.calls[0] == client.calls[1] == client.calls[2]
    assert client.calls[0][1]["ClientRequestToken"] == "token-1"
    (element,) = client.calls[0][1]["TransactItems"]
    assert element["Update"]["TableName"] == "the-table"
    assert element["Update"]["ReturnValuesOnConditionCheckFailure"] == "ALL_OLD"


def cancelled(*codes: str) -> ClientError:
    reasons = [{"Code": code, **({"Item": WIRE_ITEM} if code == "ConditionalCheckFailed" else {})} for code in codes]
    return failure("TransactionCanceledException", CancellationReasons=reasons)


def test_a_cancelled_transaction_is_a_value_with_one_reason_per_write() -> None:
    store, client = store_on(cancelled("None", "ConditionalCheckFailed", "TransactionConflict"))
    assert store.transact([{"Update": UPDATE}] * 3, "t") == Cancelled((None, ConditionFailed(ITEM), None))
    assert len(client.calls) == 1


def test_a_transaction_in_conflict_is_repeated() -> None:
    store, client = store_on(cancelled("None", "TransactionConflict"), {})
    assert store.transact([{"Update": UPDATE}] * 2, "t") == Committed()
    assert len(client.calls) == 2
    store, _ = store_on(cancelled("TransactionConflict"))
    with pytest.raises(Contended):
        store.transact([{"Update": UPDATE}], "t")


def test_a_throttled_transaction_is_repeated() -> None:
    store, _ = store_on(cancelled("ThrottlingError"), {})
    assert store.transact([{"Update": UPDATE}], "t") == Committed()


def test_a_transaction_that_is_wrong_is_a_bug() -> None:
    store, _ = store_on(cancelled("ValidationError"))
    with pytest.raises(ClientError):
        store.transact([{"Update": UPDATE}], "t")


def test_pages() -> None:
    store, client = store_on({"Items": [WIRE_ITEM], "LastEvaluatedKey": {"PK": {"S": "p"}}}, {"Items": []})
    page = store.query({"KeyConditionExpression": "PK = :p", "ExpressionAttributeValues": {":p": "p"}})
    assert page.items == (ITEM,)
    assert page.next_start == {"PK": "p"}
    page = store.scan({"ExclusiveStartKey": {"PK": "p"}})
    assert (page.items, page.next_start) == ((), None)
    assert client.calls[1] == ("scan", {"ExclusiveStartKey": {"PK": {"S": "p"}}, "TableName": "the-table"})


def test_a_delete_returns_what_it_deleted() -> None:
    store, _ = store_on({"Attributes": WIRE_ITEM})
    assert store.delete({"Key": {"PK": "p", "SK": "s"}}) == Applied(ITEM)
