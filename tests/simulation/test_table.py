"""The simulated table by itself: what a comparison with an engine can not show, because it takes time or luck."""

import pytest

from sluice.repository.keys import Key
from sluice.repository.requests import PutRequest, TransactWrite, UpdateRequest
from sluice.repository.retries import Retries
from sluice.repository.store import Applied, Committed
from sluice.repository.wire import Item, Value
from tests.fakes import CountingMeter, FakeClock, never_random
from tests.simulation.queries import query, scan
from tests.simulation.refusals import IdempotentParameterMismatch, NotModelled, Refusal, ValidationException
from tests.simulation.reserved_words import RESERVED_WORDS
from tests.simulation.store import PerfectWire, SimulatedStore
from tests.simulation.stream import INSERT, MODIFY, REMOVE
from tests.simulation.table import TOKEN_LIFE_MS, TTL_IGNORED_AFTER_S, SimulatedTable
from tests.simulation.values import ITEM_BYTES_MAX, item_bytes, item_bytes_most

KEY = Key("p", "s")


def put(table: SimulatedTable, pk: str = "p", sk: str = "s", **attributes: int | str) -> None:
    request: PutRequest = {"Item": {"PK": pk, "SK": sk, **attributes}}
    assert isinstance(table.put(request), Applied)


def add(amount: int) -> UpdateRequest:
    return {
        "Key": {"PK": "p", "SK": "s"},
        "UpdateExpression": "ADD n :n",
        "ConditionExpression": "attribute_exists(PK)",
        "ExpressionAttributeValues": {":n": amount},
    }


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def table(clock: FakeClock) -> SimulatedTable:
    return SimulatedTable(clock)


def test_an_index_follows_after_its_lag_and_keeps_the_order_of_an_item(clock: FakeClock) -> None:
    lags = iter([5_000, 10])
    table = SimulatedTable(clock, lambda index: next(lags) if index == "GSI3" else 0)
    put(table, GSI3PK="g", GSI3SK="first")
    put(table, GSI3PK="g", GSI3SK="second")

    def shown() -> list[object]:
        found = query(
            table,
            {
                "IndexName": "GSI3",
                "KeyConditionExpression": "GSI3PK = :g",
                "ExpressionAttributeValues": {":g": "g"},
            },
        )
        return [item["GSI3SK"] for item in found.items]

    clock.advance(4_999)
    assert shown() == [], "the second change must not overtake the first"
    clock.advance(1)
    assert shown() == ["second"]


def test_a_read_without_consistency_may_see_what_was_there(table: SimulatedTable, clock: FakeClock) -> None:
    put(table, n=1)
    clock.advance(100)
    table.update(add(1))
    clock.advance(100)
    seen = [table.get(KEY, as_of_ms=clock.now_ms - lag) for lag in (0, 100, 101, 200, 201)]
    assert [None if item is None else item["n"] for item in seen] == [2, 2, 1, 1, None]


def test_a_token_is_remembered_for_ten_minutes(table: SimulatedTable, clock: FakeClock) -> None:
    put(table, n=0)
    writes: list[TransactWrite] = [{"Update": add(1)}]
    assert table.transact(writes, "token") == Committed()
    clock.advance(TOKEN_LIFE_MS - 1)
    assert table.transact(writes, "token") == Committed()
    with pytest.raises(IdempotentParameterMismatch):
        table.transact([{"Update": add(2)}], "token")
    clock.advance(1)
    assert table.transact(writes, "token") == Committed()
    item = table.get(KEY)
    assert item is not None
    assert item["n"] == 2


def test_ttl_deletes_when_told_and_never_what_was_moved_meanwhile(table: SimulatedTable, clock: FakeClock) -> None:
    now_s = clock.now_ms // 1000
    put(table, sk="due", ttl=now_s - 1)
    put(table, sk="now", ttl=now_s)
    put(table, sk="long ago", ttl=now_s - TTL_IGNORED_AFTER_S)
    put(table, sk="none")
    assert table.expired_keys() == [Key("p", "due")]
    put(table, sk="due", ttl=now_s + 1)
    table.expire(Key("p", "due"))
    assert table.get(Key("p", "due")) is not None
    clock.advance(2_000)
    table.expire(Key("p", "due"))
    record = table.stream[-1]
    assert (record.event_name, record.by_ttl) == (REMOVE, True)
    assert record.as_event()["userIdentity"]["principalId"] == "dynamodb.amazonaws.com"


def test_the_stream_has_one_record_per_change(table: SimulatedTable) -> None:
    put(table, n=1)
    put(table, n=1)
    table.update(add(2))
    table.update(add(0))
    table.delete({"Key": {"PK": "p", "SK": "s"}})
    assert [record.event_name for record in table.stream] == [INSERT, MODIFY, REMOVE]
    assert [record.sequence for record in table.stream] == [1, 2, 3]
    event = table.stream[1].as_event()
    assert (event["dynamodb"]["OldImage"]["n"], event["dynamodb"]["NewImage"]["n"]) == ({"N": "1"}, {"N": "3"})


def test_what_is_handed_out_is_a_copy(table: SimulatedTable) -> None:
    item: Item = {"PK": "p", "SK": "s", "doc": {"x": [1]}}
    table.put({"Item": item})
    item["doc"] = None
    handed_out = table.get(KEY)
    assert handed_out is not None
    assert isinstance(handed_out["doc"], dict)
    handed_out["doc"]["x"] = None
    assert table.get(KEY) == {"PK": "p", "SK": "s", "doc": {"x": [1]}}


def test_pages_end_at_a_megabyte(table: SimulatedTable) -> None:
    for number in range(4):
        put(table, sk=f"s{number}", text="x" * 390 * 1024)
    page = scan(table, {})
    assert [item["SK"] for item in page.items] == ["s0", "s1", "s2"]
    assert page.next_start == {"PK": "p", "SK": "s2"}


def test_an_item_that_grows_by_many_updates_is_measured(table: SimulatedTable) -> None:
    put(table)
    grow: UpdateRequest = {
        "Key": {"PK": "p", "SK": "s"},
        "UpdateExpression": "SET #a = :text",
        "ConditionExpression": "attribute_exists(PK)",
        "ExpressionAttributeValues": {":text": "x" * 50_000},
    }
    for number in range(8):
        table.update({**grow, "ExpressionAttributeNames": {"#a": f"a{number}"}})
    with pytest.raises(ValidationException) as refused:
        table.update({**grow, "ExpressionAttributeNames": {"#a": "one-more"}})
    assert refused.value.kind is Refusal.ITEM_SIZE


@pytest.mark.parametrize(
    "value",
    [
        *("", "x" * 100, "é" * 100, "\U0001f600" * 100, 0, 10**37 + 1, -(10**37) - 1, True, None),
        *([], {}, ["é" * 50, {"ü" * 20: [1, "\U0001f600"]}], {"ü" * 20: {"a": {"b": ["x" * 30]}}, "n": -1}),
    ],
    ids=repr,
)
def test_nothing_is_larger_than_its_quick_bound(value: Value) -> None:
    item = {"\U0001f600": value}
    assert item_bytes(item) <= item_bytes_most(item)


def test_an_item_is_measured_where_the_quick_bound_is_too_large(table: SimulatedTable) -> None:
    """A bound of four bytes for a sign would refuse what AWS takes."""
    rest = len("PKpSKstext")
    put(table, text="x" * (ITEM_BYTES_MAX - rest))
    with pytest.raises(ValidationException) as refused:
        put(table, text="x" * (ITEM_BYTES_MAX - rest + 1))
    assert refused.value.kind is Refusal.ITEM_SIZE


def test_what_is_not_modelled_fails_loudly(table: SimulatedTable) -> None:
    put(table)
    with pytest.raises(NotModelled):
        table.update({**add(1), "UpdateExpression": "SET n = list_append(n, :n)"})


def test_every_reserved_word_is_refused(table: SimulatedTable) -> None:
    assert len(RESERVED_WORDS) == 573
    for word in RESERVED_WORDS:
        with pytest.raises(ValidationException):
            table.update({**add(1), "UpdateExpression": f"ADD {word} :n"})


def test_large_batches_are_read_in_parts(table: SimulatedTable) -> None:
    for number in range(250):
        put(table, sk=f"s{number}")
    store = SimulatedStore(table, PerfectWire(), Retries(lambda _ms: None, never_random, CountingMeter()))
    assert len(store.batch_get([Key("p", f"s{number}") for number in range(300)])) == 250
