"""Holds and their items."""

import zlib
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.budget import NOTHING, Amounts
from sluice.core.holds import HeldIn, Hold, HoldState, freed
from sluice.repository import budget_keys
from sluice.repository.holds import close_hold, decode_hold, expiring_query, put_hold
from sluice.repository.shapes import UnknownShape
from sluice.repository.store import Applied, ConditionFailed
from sluice.repository.wire import Item, Value
from tests.simulation.table import SimulatedTable
from tests.simulation.values import item_bytes

NOW_MS: Final = 1_800_000_000_000
AMOUNTS: Final = Amounts(16_500, 2_300, 1)
HOLD: Final = Hold(
    namespace="ns",
    lease_id="lease-1",
    entity="user",
    resource="chat",
    chain=("user", "app", "org"),
    ledgers=(HeldIn("user", AMOUNTS), HeldIn("org", AMOUNTS)),
    day="20270115",
    taken_at_ms=NOW_MS,
    expires_at_ms=NOW_MS + 300_000,
)

names = st.text(min_size=1, max_size=8)
wholes = st.integers(0, 10**15)
held = st.builds(HeldIn, names, st.builds(Amounts, wholes, wholes, wholes))
holds = st.builds(
    Hold,
    namespace=names,
    lease_id=names,
    entity=names,
    resource=names,
    chain=st.lists(names, max_size=4).map(tuple),
    ledgers=st.lists(held, max_size=4).map(tuple),
    day=names,
    taken_at_ms=wholes,
    expires_at_ms=wholes,
)


def stored(table: SimulatedTable) -> Item:
    item = table.get(budget_keys.hold(HOLD.namespace, HOLD.lease_id))
    assert item is not None
    return item


@given(holds)
def test_a_hold_comes_back_as_it_was(hold: Hold) -> None:
    assert decode_hold(put_hold(hold)["Item"]) == hold


def test_attributes_are_those_of_the_table() -> None:
    partition = zlib.crc32(b"ns#lease-1") % 16
    assert put_hold(HOLD)["Item"] == {
        "PK": "ns/LEASE#lease-1",
        "SK": "#HOLD",
        "GSI3PK": f"_/HOLDS#{(NOW_MS + 300_000) // 60_000}#{partition}",
        "GSI3SK": "ns#lease-1",
        "kind": "hold",
        "ns": "ns",
        "lease_id": "lease-1",
        "entity_id": "user",
        "resource": "chat",
        "chain": ["user", "app", "org"],
        "ledgers": [
            {"entity_id": "user", "cost": 16_500, "tokens": 2_300, "executions": 1},
            {"entity_id": "org", "cost": 16_500, "tokens": 2_300, "executions": 1},
        ],
        "day": "20270115",
        "taken_at_ms": NOW_MS,
        "expires_at_ms": NOW_MS + 300_000,
        "state": "open",
        "created_at": NOW_MS,
        "updated_at": NOW_MS,
    }


def test_the_largest_hold_fits_into_one_unit() -> None:
    entity = "e" * 40
    most = Amounts(10**15, 10**15, 1)
    large = replace(
        HOLD,
        namespace="n" * 20,
        lease_id="l" * 32,
        entity=entity,
        resource="r" * 40,
        chain=(entity,) * 4,
        ledgers=(HeldIn(entity, most),) * 3,
    )
    assert item_bytes(put_hold(large)["Item"]) <= 1024


@pytest.mark.parametrize("how", [HoldState.SETTLED, HoldState.RELEASED, HoldState.EXPIRED])
def test_a_hold_is_closed_once(how: HoldState) -> None:
    table = SimulatedTable()
    assert isinstance(table.put(put_hold(HOLD)), Applied)
    assert isinstance(table.update(close_hold(HOLD, how, NOW_MS + 7_000)), Applied)
    closed = stored(table)
    assert decode_hold(closed) == replace(HOLD, state=how)
    assert (closed["ttl"], closed["updated_at"]) == (NOW_MS // 1000 + 7 + 37 * 86_400, NOW_MS + 7_000)
    assert not {"GSI3PK", "GSI3SK"} & closed.keys()
    for again in HoldState:
        refused = table.update(close_hold(HOLD, again, NOW_MS + 8_000))
        assert isinstance(refused, ConditionFailed)
        assert refused.item == closed


def test_a_lease_has_one_hold() -> None:
    table = SimulatedTable()
    assert isinstance(table.put(put_hold(HOLD)), Applied)
    before = stored(table)
    assert isinstance(table.put(put_hold(replace(HOLD, day="20270116"))), ConditionFailed)
    assert stored(table) == before


def test_a_hold_that_is_not_there_is_not_closed() -> None:
    table = SimulatedTable()
    assert table.update(close_hold(HOLD, HoldState.RELEASED, NOW_MS)) == ConditionFailed(None)


def test_an_open_hold_never_vanishes() -> None:
    assert "ttl" not in put_hold(HOLD)["Item"]


def test_expiring_ones_are_found_by_minute_and_partition() -> None:
    query = expiring_query(30_000_000, 7)
    assert query["IndexName"] == "GSI3"
    assert query["ExpressionAttributeValues"] == {":minute": "_/HOLDS#30000000#7"}
    start: Item = {"PK": "x"}
    assert expiring_query(30_000_000, 7, start)["ExclusiveStartKey"] == start


def test_what_is_held_in_one_ledger() -> None:
    assert HOLD.held_in("org") == HOLD.amounts == AMOUNTS
    assert replace(HOLD, ledgers=()).amounts == NOTHING
    assert HOLD.held_in("app") == NOTHING
    assert AMOUNTS + freed(AMOUNTS) == NOTHING


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("kind", "lease"),
        ("state", "lost"),
        ("ledgers", "none"),
        ("ledgers", ["none"]),
        ("ledgers", [{"entity_id": "user", "cost": 1, "tokens": 1}]),
        ("chain", [1]),
        ("day", 20270115),
    ],
)
def test_another_shape_is_not_guessed_at(attribute: str, value: Value) -> None:
    item = put_hold(HOLD)["Item"]
    with pytest.raises(UnknownShape):
        decode_hold({**item, attribute: value})
