"""The store's verbs on an engine: what a table answers, not what a stub was told to answer."""

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.repository.keys import Key
from sluice.repository.requests import TransactWrite, UpdateRequest
from sluice.repository.retries import Retries
from sluice.repository.store import Applied, Cancelled, Committed, ConditionFailed, DynamoStore
from sluice.repository.wire import Item
from sluice.shell import new_token
from tests.fakes import CountingMeter, never_random


@pytest.fixture
def store(dynamodb: DynamoDBClient, table: str) -> DynamoStore:
    return DynamoStore(dynamodb, table, Retries(lambda _ms: None, never_random, CountingMeter()))


def put(store: DynamoStore, pk: str, sk: str, **attributes: int) -> None:
    store.put({"Item": {"PK": pk, "SK": sk, **attributes}}, repeatable=True)


def add(pk: str, amount: int, at_least: int) -> UpdateRequest:
    return {
        "Key": {"PK": pk, "SK": "s"},
        "UpdateExpression": "ADD n :amount",
        "ConditionExpression": "n >= :least",
        "ExpressionAttributeValues": {":amount": amount, ":least": at_least},
    }


def test_numbers_of_25_digits_come_back_exactly(store: DynamoStore) -> None:
    large = -(10**25) + 7
    put(store, "p", "s", n=large)
    assert store.update(add("p", -1, large), repeatable=False) == Applied({"PK": "p", "SK": "s", "n": large - 1})


def test_a_put_and_a_delete_return_what_was_there(store: DynamoStore) -> None:
    put(store, "p", "s", n=1)
    old = store.put({"Item": {"PK": "p", "SK": "s", "n": 2}}, repeatable=True)
    assert old == Applied({"PK": "p", "SK": "s", "n": 1})
    assert store.delete({"Key": {"PK": "p", "SK": "s"}}) == Applied({"PK": "p", "SK": "s", "n": 2})
    assert store.delete({"Key": {"PK": "p", "SK": "s"}}) == Applied(None)
    assert store.get(Key("p", "s"), consistent=True) is None


def test_a_failed_condition_shows_the_item_or_its_absence(store: DynamoStore) -> None:
    assert store.update(add("p", 1, 5), repeatable=False) == ConditionFailed(None)
    put(store, "p", "s", n=4)
    assert store.update(add("p", 1, 5), repeatable=False) == ConditionFailed({"PK": "p", "SK": "s", "n": 4})


def test_a_transaction_happens_whole_or_not_at_all(store: DynamoStore) -> None:
    put(store, "a", "s", n=1)
    put(store, "b", "s", n=1)
    both: list[TransactWrite] = [{"Update": add("a", 1, 1)}, {"Update": add("b", 1, 1)}]
    assert store.transact(both, new_token()) == Committed()
    second_fails: list[TransactWrite] = [{"Update": add("a", 1, 1)}, {"Update": add("b", 1, 9)}]
    outcome = store.transact(second_fails, new_token())
    assert outcome == Cancelled((None, ConditionFailed({"PK": "b", "SK": "s", "n": 2})))
    assert [item["n"] for item in store.batch_get([Key("a", "s"), Key("b", "s")], consistent=True)] == [2, 2]


def test_a_transaction_under_its_token_happens_once(store: DynamoStore) -> None:
    put(store, "a", "s", n=1)
    once: list[TransactWrite] = [{"Update": add("a", 1, 1)}]
    token = new_token()
    assert store.transact(once, token) == Committed()
    assert store.transact(once, token) == Committed()
    item = store.get(Key("a", "s"), consistent=True)
    assert item is not None
    assert item["n"] == 2


def test_a_transaction_can_check_what_it_does_not_write(store: DynamoStore) -> None:
    put(store, "guard", "s", n=1)
    guarded: list[TransactWrite] = [
        {
            "ConditionCheck": {
                "Key": {"PK": "guard", "SK": "s"},
                "ConditionExpression": "n = :two",
                "ExpressionAttributeValues": {":two": 2},
            }
        },
        {"Put": {"Item": {"PK": "new", "SK": "s"}}},
    ]
    assert isinstance(store.transact(guarded, new_token()), Cancelled)
    assert store.get(Key("new", "s"), consistent=True) is None


def test_queries_come_in_pages(store: DynamoStore) -> None:
    for number in range(5):
        put(store, "p", f"s{number}", n=number)
    put(store, "other", "s0")
    seen: list[object] = []
    page = store.query({"KeyConditionExpression": "PK = :p", "ExpressionAttributeValues": {":p": "p"}, "Limit": 2})
    seen += [item["n"] for item in page.items]
    while page.next_start is not None:
        page = store.query(
            {
                "KeyConditionExpression": "PK = :p",
                "ExpressionAttributeValues": {":p": "p"},
                "Limit": 2,
                "ExclusiveStartKey": page.next_start,
            }
        )
        seen += [item["n"] for item in page.items]
    assert seen == [0, 1, 2, 3, 4]


def test_an_index_shows_only_keys_where_it_should(store: DynamoStore) -> None:
    item: Item = {"PK": "p", "SK": "s", "n": 1, "GSI3PK": "g", "GSI3SK": "x", "GSI1PK": "g", "GSI1SK": "x"}
    store.put({"Item": item}, repeatable=True)

    def attributes_in(index: str) -> set[str]:
        (found,) = store.query(
            {
                "IndexName": index,
                "KeyConditionExpression": f"{index}PK = :g",
                "ExpressionAttributeValues": {":g": "g"},
            }
        ).items
        return set(found)

    assert attributes_in("GSI1") == set(item)
    assert attributes_in("GSI3") == {"PK", "SK", "GSI3PK", "GSI3SK"}
