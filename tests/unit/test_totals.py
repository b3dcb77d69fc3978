"""Daily totals as requests and items: marks, sums and their removal, in whatever order they come."""

import itertools
from typing import Any

import pytest

from sluice.core.metering import Counters
from sluice.core.pricing import TokenKind
from sluice.repository import keys, money_keys, schema
from sluice.repository.counters import CounterName
from sluice.repository.money_keys import DUE_PARTITIONS
from sluice.repository.requests import UpdateRequest
from sluice.repository.retries import Retries
from sluice.repository.shapes import UnknownShape
from sluice.repository.store import Applied, ConditionFailed
from sluice.repository.totals import (
    KEPT_DAYS,
    DailyTotal,
    counted_id,
    decode_total,
    due_query,
    is_of_totals,
    mark_due,
    next_partition_query,
    partition_of_counted,
    remove_mark,
    total_key,
    totals_query,
    unwritten_total,
    write_total,
)
from sluice.repository.wire import Item
from tests.fakes import CountingMeter, FakeClock, never_random
from tests.simulation.store import PerfectWire, SimulatedStore
from tests.simulation.table import SimulatedTable

NAME = CounterName("ns", "chat", "premium", "20270115")
NOW_MS = 1_800_000_000_000
MINUTE = NOW_MS // 60_000
TOKENS = dict.fromkeys(TokenKind, 0)
COUNTERS = Counters(7, {**TOKENS, TokenKind.OUTPUT: 3}, 2, 1, 1)


def empty_table() -> SimulatedStore:
    clock = FakeClock()
    retries = Retries(clock.advance, never_random, CountingMeter())
    return SimulatedStore(SimulatedTable(clock), PerfectWire(), retries)


@pytest.fixture
def table() -> SimulatedStore:
    return empty_table()


def applied(table: SimulatedStore, request: UpdateRequest) -> DailyTotal | None:
    """What it made of the total; None where its condition failed."""
    outcome = table.update(request, repeatable=True)
    if isinstance(outcome, ConditionFailed):
        return None
    assert isinstance(outcome, Applied)
    assert outcome.item is not None
    return decode_total(outcome.item)


def stored(table: SimulatedStore) -> Item:
    found = table.get(total_key(NAME))
    assert found is not None
    return found


def test_a_mark_makes_the_total_and_puts_it_into_the_index_of_what_is_due(table: SimulatedStore) -> None:
    found = applied(table, mark_due(NAME, MINUTE, NOW_MS))
    assert found == DailyTotal(NAME, Counters(tokens=TOKENS), 0, None, MINUTE, NOW_MS)
    item = stored(table)
    assert item["GSI3PK"] in {money_keys.due_totals(partition) for partition in range(DUE_PARTITIONS)}
    assert item["GSI3SK"] == "ns#chat#20270115#premium"
    assert (item["GSI2PK"], item["GSI2SK"]) == ("ns/RESOURCE#premium", "TOTAL#20270115#chat")
    assert (item["GSI4PK"], item["GSI4SK"]) == (keys.namespace_index("ns", total_key(NAME))["GSI4PK"], "ns/TOTAL#chat")
    assert item["created_at"] == NOW_MS


def test_a_total_is_kept_for_400_days(table: SimulatedStore) -> None:
    applied(table, mark_due(NAME, MINUTE, NOW_MS))
    # 2027-01-15 is day 20,833 of the epoch.
    assert stored(table)[schema.TTL_ATTRIBUTE] == (20_833 + KEPT_DAYS) * 86_400


@pytest.mark.parametrize(("minute", "expected"), [(MINUTE - 1, None), (MINUTE, None), (MINUTE + 1, MINUTE + 1)])
def test_a_mark_is_replaced_by_a_later_one_only(table: SimulatedStore, minute: int, expected: int | None) -> None:
    applied(table, mark_due(NAME, MINUTE, NOW_MS))
    found = applied(table, mark_due(NAME, minute, NOW_MS + 5))
    assert (None if found is None else found.due_minute) == expected
    # It has been due since the first of them.
    assert (stored(table)["created_at"], stored(table)["due_since"]) == (NOW_MS, NOW_MS)


def test_a_sum_is_written_if_it_is_newer(table: SimulatedStore) -> None:
    first = applied(table, write_total(NAME, COUNTERS, 2, NOW_MS))
    assert first == DailyTotal(NAME, COUNTERS, 2, NOW_MS, None, None)
    for revision in (1, 2):
        assert applied(table, write_total(NAME, Counters(99), revision, NOW_MS + 9)) is None
    newer = applied(table, write_total(NAME, Counters(8), 3, NOW_MS + 1))
    assert newer == DailyTotal(NAME, Counters(8, TOKENS), 3, NOW_MS + 1, None, None)
    assert (stored(table)["created_at"], stored(table)["updated_at"]) == (NOW_MS, NOW_MS + 1)


def test_a_sum_and_a_mark_leave_each_other_alone(table: SimulatedStore) -> None:
    for requests in itertools.permutations([mark_due(NAME, MINUTE, NOW_MS), write_total(NAME, COUNTERS, 2, NOW_MS)], 2):
        table = empty_table()
        for request in requests:
            assert applied(table, request) is not None
        assert decode_total(stored(table)) == DailyTotal(NAME, COUNTERS, 2, NOW_MS, MINUTE, NOW_MS)


def test_a_mark_is_removed_if_it_is_as_it_was_read(table: SimulatedStore) -> None:
    applied(table, write_total(NAME, COUNTERS, 2, NOW_MS))
    applied(table, mark_due(NAME, MINUTE, NOW_MS))
    for minute in (MINUTE - 1, MINUTE + 1):
        assert applied(table, remove_mark(NAME, minute)) is None
    found = applied(table, remove_mark(NAME, MINUTE))
    assert found == DailyTotal(NAME, COUNTERS, 2, NOW_MS, None, None)
    # Out of the index as well, and of that index alone.
    assert not {"GSI3PK", "GSI3SK"} & stored(table).keys()
    assert {"GSI2PK", "GSI4PK"} < stored(table).keys()
    # The next one is due since its own time.
    found = applied(table, mark_due(NAME, MINUTE + 1, NOW_MS + 9))
    assert found is not None
    assert found.due_since_ms == NOW_MS + 9


def test_no_total_comes_to_be_by_removing_its_mark(table: SimulatedStore) -> None:
    assert applied(table, remove_mark(NAME, MINUTE)) is None
    assert table.get(total_key(NAME)) is None


def test_before_anybody_wrote_it() -> None:
    assert unwritten_total(NAME) == DailyTotal(NAME, Counters(), 0, None, None, None)


@pytest.mark.parametrize(
    "changed", [{"kind": "cost_shard"}, {"day": 7}, {"rev": "x"}, {"due": "x"}, {"as_of": "x"}, {"due_since": "x"}]
)
def test_a_total_of_another_shape_is_refused(table: SimulatedStore, changed: dict[str, Any]) -> None:
    applied(table, write_total(NAME, COUNTERS, 2, NOW_MS))
    with pytest.raises(UnknownShape):
        decode_total({**stored(table), **changed})


# Queries, run on a table in memory.


def put(table: SimulatedStore, *names: CounterName) -> None:
    for name in names:
        table.update(mark_due(name, MINUTE, NOW_MS), repeatable=True)


def test_every_mark_is_in_one_of_the_partitions(table: SimulatedStore) -> None:
    names = [NAME._replace(label=f"label-{number}") for number in range(50)]
    put(table, *names)
    pages = [table.query(due_query(partition)).items for partition in range(DUE_PARTITIONS)]
    assert all(pages)
    assert sorted(keys.key_of(item) for page in pages for item in page) == sorted(map(total_key, names))
    for name in names:
        table.update(remove_mark(name, MINUTE), repeatable=True)
    assert not [item for partition in range(DUE_PARTITIONS) for item in table.query(due_query(partition)).items]


def test_marks_on_both_sides_of_a_key(table: SimulatedStore) -> None:
    """Each is on one of them."""
    put(table, *(NAME._replace(label=f"label-{number}") for number in range(50)))
    marked = [str(item["GSI3SK"]) for item in table.query(due_query(0)).items]
    assert len(marked) > 2
    for place, key in enumerate(marked):
        behind = [item["GSI3SK"] for item in table.query(due_query(0, after=key)).items]
        until = [item["GSI3SK"] for item in table.query(due_query(0, up_to=key)).items]
        assert (until, behind) == (marked[: place + 1], marked[place + 1 :])


def test_the_totals_of_some_days(table: SimulatedStore) -> None:
    days = ("20270113", "20270114", "20270115", "20270116")
    labels = ("a", "premium", "~", "vendor.model-v1:0", "%#/")
    put(table, *(NAME._replace(day=day, label=label) for day in days for label in labels))
    put(table, NAME._replace(entity="chat2"), NAME._replace(namespace="ns2"))
    found = [decode_total(item).name for item in table.query(totals_query("ns", "chat", "20270114", "20270115")).items]
    assert [name.day for name in found] == ["20270114"] * 5 + ["20270115"] * 5
    assert {name.label for name in found} == set(labels)


def test_from_one_entity_with_totals_to_the_next(table: SimulatedStore) -> None:
    entities = {f"app-{number}" for number in range(40)} | {"chat", "chat+", "chat~", "a"}
    for entity in entities:
        put(table, *(NAME._replace(entity=entity, label=f"label-{number}") for number in range(3)))
    put(table, NAME._replace(namespace="ns2"), NAME._replace(namespace="n"))
    # Items of other kinds stand before and behind them.
    for number in range(30):
        for pk in (f"ns/AUDIT#{number}", f"ns/TOTALLY#{number}"):
            key = keys.Key(pk, "#X")
            item: Item = {**key.attributes, **keys.namespace_index("ns", key), "kind": "other"}
            table.put({"Item": item}, repeatable=True)
    found: list[str] = []
    for partition in range(keys.NAMESPACE_PARTITIONS):
        after: str | None = None
        while True:
            page = table.query(next_partition_query("ns", partition, after))
            assert len(page.items) <= 1
            pks = [keys.key_of(item).pk for item in page.items]
            if not pks or not is_of_totals("ns", pks[0]):
                break
            (after,) = pks
            found.append(after)
    assert sorted(found) == sorted(money_keys.totals_of("ns", entity) for entity in entities)
    assert not is_of_totals("ns", money_keys.totals_of("ns2", "chat"))


def test_the_partition_of_totals_and_the_id_in_it_are_told_from_each_other() -> None:
    for entity in ("chat", "a+b", "x/TOTAL#y"):
        partition = money_keys.totals_of("ns", entity)
        assert partition_of_counted("ns", counted_id("ns", partition)) == partition
        assert counted_id("ns", partition) == keys.encode(entity)
