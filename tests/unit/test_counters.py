"""Counter shards as requests and items, and what the stream tells of them."""

from typing import Any

import pytest

from sluice.core.metering import Counters
from sluice.core.pricing import TokenKind
from sluice.repository import money_keys
from sluice.repository.counters import (
    COST_SHARD,
    KEPT_S,
    CostShard,
    CounterName,
    add_to_shard,
    changed_counter,
    counter_attributes,
    decode_cost_shard,
    decode_counters,
    shard_keys,
)
from sluice.repository.shapes import UnknownShape
from sluice.repository.wire import Item, item_to_wire
from tests.fakes import FakeClock
from tests.simulation.table import SimulatedTable

NAME = CounterName("ns", "chat", "premium", "20270115")
ENDS_MS = 1_800_057_600_000
NOW_MS = 1_800_000_000_000
KEY = money_keys.cost_shard(*NAME, 3)


def added(table: SimulatedTable, increase: Counters) -> Item:
    outcome = table.update(add_to_shard(NAME, 3, ENDS_MS, increase, NOW_MS))
    assert outcome.item is not None
    return outcome.item


def test_the_first_addition_makes_the_shard() -> None:
    item = added(SimulatedTable(FakeClock()), Counters(7, {TokenKind.INPUT: 5}, requests=1))
    assert item == {
        **KEY.attributes,
        "kind": COST_SHARD,
        "ns": "ns",
        "entity_id": "chat",
        "label": "premium",
        "day": "20270115",
        "shard": 3,
        "created_at": NOW_MS,
        "updated_at": NOW_MS,
        "ttl": ENDS_MS // 1000 + KEPT_S,
        "cost_usd_micros": 7,
        "input_tokens": 5,
        "requests": 1,
        "rev": 1,
    }


def test_it_outlives_the_last_call_that_may_be_reported_for_its_day() -> None:
    assert KEPT_S > 36 * 86_400


def test_every_addition_is_counted_in_its_revision() -> None:
    """Also one of a call that cost nothing and had no tokens."""
    table = SimulatedTable(FakeClock())
    added(table, Counters(7, {TokenKind.INPUT: 5, TokenKind.CACHE_WRITE_1H: 1}, requests=1, errors=1))
    added(table, Counters(unpriced=1, requests=1))
    found = decode_cost_shard(added(table, Counters(3, {TokenKind.INPUT: 2}, requests=1)))
    tokens = {**dict.fromkeys(TokenKind, 0), TokenKind.INPUT: 7, TokenKind.CACHE_WRITE_1H: 1}
    assert found == CostShard(NAME, 3, Counters(10, tokens, 3, 1, 1), 3)


def test_an_addition_touches_no_index() -> None:
    request = add_to_shard(NAME, 3, ENDS_MS, Counters(1, requests=1), NOW_MS)
    assert not [name for name in request["ExpressionAttributeNames"].values() if name.startswith("GSI")]


def test_what_is_counted_as_attributes_and_back() -> None:
    counters = Counters(1, {kind: number for number, kind in enumerate(TokenKind)}, 2, 3, 4)
    assert decode_counters({**counter_attributes(counters)}) == counters
    assert decode_counters({}) == Counters(tokens=dict.fromkeys(TokenKind, 0))


def test_all_shards_that_there_may_be() -> None:
    found = shard_keys(NAME, 64)
    assert len(set(found)) == 64
    assert found[3] == KEY


@pytest.mark.parametrize(
    "changed", [{"kind": "bucket"}, {"label": 7}, {"shard": "x"}, {"rev": None}, {"cost_usd_micros": "x"}]
)
def test_a_shard_of_another_shape_is_refused(changed: dict[str, Any]) -> None:
    item = added(SimulatedTable(FakeClock()), Counters(7, requests=1))
    with pytest.raises(UnknownShape):
        decode_cost_shard({**item, **changed})


# The stream.

ITEM: Item = {
    **KEY.attributes,
    "kind": COST_SHARD,
    "ns": "ns",
    "entity_id": "chat",
    "label": "premium",
    "day": "20270115",
    "shard": 3,
    "rev": 2,
}


def record(old: Item | None, new: Item | None) -> dict[str, Any]:
    images = {"OldImage": old, "NewImage": new}
    return {"dynamodb": {name: item_to_wire(item) for name, item in images.items() if item is not None}}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, ITEM, NAME),
        ({**ITEM, "rev": 1}, ITEM, NAME),
        (ITEM, {**ITEM, "rev": 9}, NAME),
        # Nothing was added.
        (ITEM, {**ITEM, "ttl": 7}, None),
        # It expired.
        (ITEM, None, None),
        (None, None, None),
        # Something else, of which this code knows nothing.
        (None, {"kind": "bucket", "rev": 1}, None),
        (None, {"rev": 1}, None),
        # What stood there before was none.
        ({**ITEM, "kind": "bucket"}, ITEM, NAME),
    ],
)
def test_whose_counters_a_record_is_about(old: Item | None, new: Item | None, expected: CounterName | None) -> None:
    assert changed_counter(record(old, new)) == expected


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"dynamodb": None},
        {"dynamodb": {"NewImage": "x"}},
        {"dynamodb": {"NewImage": {"kind": {"S": COST_SHARD}, "rev": {"N": "x"}}}},
        {"dynamodb": {"NewImage": {"kind": {"S": COST_SHARD}, "rev": {"B": "x"}}}},
        record(None, {"kind": COST_SHARD, "ns": "ns"}),
        record({**ITEM, "rev": "x"}, ITEM),
    ],
)
def test_a_record_of_another_shape_is_refused_without_its_words(broken: dict[str, Any]) -> None:
    with pytest.raises(UnknownShape) as raised:
        changed_counter(broken)
    assert raised.value.__cause__ is None
