"""Rollups on an engine: exact sums, whatever runs beside them and wherever they end."""

from collections.abc import Callable
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.errors import Unavailable
from sluice.core.pricing import TokenKind
from sluice.core.signals import Signal
from sluice.repository import keys, money_keys, schema
from sluice.repository.counters import CounterName
from sluice.repository.money_keys import DUE_PARTITIONS
from sluice.repository.totals import due_query, total_key
from sluice.repository.wire import item_to_wire
from sluice.services.rollup import SETTLE_MS
from tests.fakes import FakeClock
from tests.integration.summing_desks import (
    CHAT,
    MINUTE_MS,
    NAMESPACE,
    ORG,
    PREMIUM,
    SEARCH,
    STANDARD,
    TODAY,
    YESTERDAY,
    SummingDesk,
    engine_desk,
)
from tests.integration.tenants import Crash

# What a run calls: eight partitions of the index, the marks, the org, the shards, the sum, the app's settings once a
# minute, the mark removed.
CALLS_OF_ONE = DUE_PARTITIONS + 6


@pytest.fixture
def desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> SummingDesk:
    # At the beginning of a minute, so that tests need not care.
    assert clock.now_ms % MINUTE_MS == 0
    return engine_desk(dynamodb, table, clock).put_tenant()


def at_call(desk: SummingDesk, number: int, act: Callable[[], object]) -> None:
    """Ahead of that call, once."""
    calls = 0

    def before(_verb: str, _request: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == number + 1:
            act()

    desk.store.before = before


def test_a_sum_is_exact(desk: SummingDesk) -> None:
    for number in range(20):
        desk.use(1_000_003 * number, shard=number % 8)
    desk.use_and_mark(1, shard=3)
    desk.wait()
    found = desk.run()
    assert (found.done, found.left, found.dropped, found.failures) == (1, 0, 0, [])
    total = desk.total()
    assert total is not None
    assert total.counters.cost_usd_micros == 1_000_003 * 190 + 1
    assert total.counters.tokens[TokenKind.INPUT] == 210
    assert (total.counters.requests, total.revision) == (21, 21)
    assert (total.as_of_ms, total.due_minute) == (desk.clock.now_ms, None)
    assert desk.marks() == set()
    assert desk.meter.counts[Signal.TOTALS_ROLLED_UP] == 1


def test_what_a_total_has_besides_its_sums(desk: SummingDesk) -> None:
    """Made by its mark or by its sum, it is the same item."""
    desk.use_and_mark(7)
    desk.wait()
    desk.run()
    marked_first = desk.item(total_key(CounterName(NAMESPACE, CHAT, PREMIUM, TODAY)))
    desk.use(7, entity=SEARCH)
    desk.jobs.start_once("totals-1", "sum_totals")
    desk.run_jobs()
    summed_first = desk.item(total_key(CounterName(NAMESPACE, SEARCH, PREMIUM, TODAY)))
    assert marked_first is not None
    assert summed_first is not None
    assert marked_first.keys() == summed_first.keys()
    assert marked_first["GSI2SK"] == f"TOTAL#{TODAY}#{CHAT}"
    assert marked_first[schema.TTL_ATTRIBUTE] == summed_first[schema.TTL_ATTRIBUTE]
    assert (marked_first["kind"], marked_first["ns"], marked_first["created_at"]) == (
        "daily_total",
        NAMESPACE,
        1_800_000_000_000,
    )


def test_a_quiet_minute_costs_one_look_at_each_partition(desk: SummingDesk) -> None:
    found = desk.run()
    assert (found.done, found.lag_s) == (0, 0)
    assert desk.store.taken_calls() == ["query"] * DUE_PARTITIONS
    assert desk.meter.counts == {Signal.ROLLUP_LAG_SECONDS: 0}


def test_the_cost_grows_with_what_changed(desk: SummingDesk) -> None:
    desk.use_and_mark(7)
    desk.use(7, entity=SEARCH)
    desk.wait()
    desk.store.taken_calls()
    desk.run()
    calls = desk.store.taken_calls()
    assert len(calls) == CALLS_OF_ONE
    # The mark, then the org, then the shards, then the sum; whose quota it is; then the mark is removed.
    assert [call for call in calls if call != "query"] == [
        "consistent batch_get",
        "consistent get",
        "consistent batch_get",
        "update",
        "batch_get",
        "update",
    ]


@pytest.mark.parametrize(
    ("into_minute_ms", "waited_ms", "removed"),
    [(0, 0, 0), (0, MINUTE_MS + SETTLE_MS - 1, 0), (0, MINUTE_MS + SETTLE_MS, 1), (MINUTE_MS - 1, SETTLE_MS, 0)],
)
def test_a_mark_is_taken_at_once_and_removed_five_seconds_after_its_minute(
    desk: SummingDesk, into_minute_ms: int, waited_ms: int, removed: int
) -> None:
    desk.clock.advance(into_minute_ms)
    desk.use_and_mark(7)
    desk.clock.advance(waited_ms)
    assert desk.run().done == 1
    assert desk.spent() == (7, 1)
    assert len(desk.marks()) == 1 - removed


def test_the_lag_is_the_age_of_the_oldest_mark(desk: SummingDesk) -> None:
    desk.use_and_mark(1)
    desk.clock.advance(3 * MINUTE_MS)
    desk.use_and_mark(1, label=STANDARD)
    desk.wait()
    # The first one was marked four minutes and five seconds ago.
    assert desk.run(totals=0).lag_s == 245
    found = desk.run()
    assert (found.lag_s, found.done) == (245, 2)
    assert desk.meter.counts[Signal.ROLLUP_LAG_SECONDS] == 490
    assert desk.run().lag_s == 0


def test_the_oldest_come_first_and_the_rest_waits(desk: SummingDesk) -> None:
    """Whatever partition of the index they are in: nobody waits for ever."""
    for number in range(12):
        desk.use_and_mark(number + 1, label=f"label-{number}")
        desk.clock.advance(MINUTE_MS)
    desk.wait()
    for done in range(1, 4):
        found = desk.run(totals=4)
        assert (found.done, found.left) == (4, 12 - 4 * done)
        written = {number for number in range(12) if desk.spent(label=f"label-{number}") == (number + 1, 1)}
        assert written == set(range(4 * done))


def test_marks_of_one_minute_on_many_totals(desk: SummingDesk) -> None:
    names = [(entity, f"label-{number}") for entity in (CHAT, SEARCH, ORG) for number in range(10)]
    for number, (entity, label) in enumerate(names):
        desk.use_and_mark(number, entity=entity, label=label)
    desk.wait()
    desk.store.taken_calls()
    assert desk.run().done == 30
    # Those of one partition are read at once, and the org once for all.
    calls = desk.store.taken_calls()
    assert calls.count("consistent get") == 1
    assert calls.count("consistent batch_get") <= DUE_PARTITIONS + 30
    assert [desk.spent(entity, label) for entity, label in names] == [(number, 1) for number in range(30)]
    assert desk.marks() == set()


def test_a_partition_with_more_marks_than_a_page(desk: SummingDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.services.rollup.BATCH_KEYS_MAX", 2)
    for number in range(40):
        desk.use_and_mark(1, label=f"label-{number}")
    desk.wait()
    assert desk.run().done == 40


def test_the_cost_of_one_run_is_bounded(desk: SummingDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.services.rollup.BATCH_KEYS_MAX", 2)
    monkeypatch.setattr("sluice.services.rollup.MARKS_MAX", 2)
    for number in range(40):
        desk.use_and_mark(1, label=f"label-{number}")
    desk.wait()
    assert desk.run().done <= 2 * DUE_PARTITIONS
    while desk.marks():
        assert desk.run().done > 0
    assert all(desk.spent(label=f"label-{number}") == (1, 1) for number in range(40))


# Overlap, death, and what happens in between.


@pytest.mark.parametrize("number", range(CALLS_OF_ONE))
def test_another_run_completes_between_any_two_calls(desk: SummingDesk, number: int) -> None:
    desk.use_and_mark(7)
    desk.wait()
    other = desk.elsewhere()
    at_call(desk, number, other.run)
    desk.run()
    assert desk.spent() == (7, 1)
    assert desk.marks() == set()


@pytest.mark.parametrize("number", range(CALLS_OF_ONE))
def test_usage_and_another_run_between_any_two_calls(desk: SummingDesk, number: int) -> None:
    """The slow run never overwrites the newer sum, and never takes the newer mark away."""
    desk.use_and_mark(7)
    desk.wait()
    other = desk.elsewhere()

    def meanwhile() -> None:
        desk.use_and_mark(100, shard=5)
        desk.wait()
        other.run()

    at_call(desk, number, meanwhile)
    desk.run()
    assert desk.spent() == (107, 2)
    assert desk.marks() == set()


@pytest.mark.parametrize("number", range(CALLS_OF_ONE))
def test_usage_between_any_two_calls_is_in_the_next_sum(desk: SummingDesk, number: int) -> None:
    desk.use_and_mark(7)
    desk.wait()
    at_call(desk, number, lambda: desk.use_and_mark(100, shard=5))
    desk.run()
    desk.store.before = None
    assert desk.spent() in {(7, 1), (107, 2)}
    assert len(desk.marks()) == 1
    desk.wait()
    desk.run()
    assert desk.spent() == (107, 2)
    assert desk.marks() == set()


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(CALLS_OF_ONE))
def test_a_run_that_dies_is_made_good_by_the_next(desk: SummingDesk, number: int, moment: str) -> None:
    desk.use_and_mark(20_000)
    desk.wait()
    calls = 0

    def die(_verb: str, _request: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == number + 1:
            raise Crash

    setattr(desk.store, moment, die)
    with pytest.raises(Crash):
        desk.run()
    other = desk.elsewhere()
    other.run()
    assert desk.spent() == (20_000, 1)
    assert desk.marks() == set()
    # Nobody knows whether the first one came to tell it.
    assert (CHAT, TODAY) in desk.advances.told


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", range(CALLS_OF_ONE))
def test_a_call_that_fails_is_made_good_by_the_next_run(desk: SummingDesk, number: int, moment: str) -> None:
    """Also one that was applied, and its answer lost."""
    desk.use_and_mark(7)
    desk.wait()
    calls = 0

    def fail(_verb: str, _request: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == number + 1:
            raise Unavailable("x")

    setattr(desk.store, moment, fail)
    found = desk.run()
    # A partition of the index that has none of the marks may fail without any harm.
    assert [type(error) for error in found.failures] == [Unavailable]
    assert desk.meter.counts[Signal.TOTALS_FAILED] == 1
    setattr(desk.store, moment, None)
    desk.run()
    assert desk.spent() == (7, 1)
    assert desk.marks() == set()


def test_a_slow_sum_does_not_overwrite_a_newer_one(desk: SummingDesk) -> None:
    desk.use_and_mark(7)
    desk.wait()
    other = desk.elsewhere()

    def overtake(verb: str, _request: Any) -> None:
        # It has read the shards, and has not written yet.
        if verb == "update":
            desk.store.before = None
            for _ in range(3):
                desk.use(100)
            other.jobs.start(NAMESPACE, "rollup_entity", {"entity": CHAT})
            other.run_jobs()

    desk.store.before = overtake
    desk.run()
    assert desk.spent() == (307, 4)
    # It removed its mark all the same: nobody had marked again.
    assert desk.marks() == set()


def test_an_index_that_lags_is_harmless(desk: SummingDesk) -> None:
    """It names a total that is done, one that expired, and one whose mark is newer."""
    for label in (PREMIUM, STANDARD, "economy"):
        desk.use_and_mark(7, label=label)
    desk.wait()
    query = desk.store.inner.query
    seen = [query(due_query(partition)) for partition in range(DUE_PARTITIONS)]
    desk.run()
    desk.use_and_mark(1, label=STANDARD)
    desk.store.inner.delete({"Key": {**total_key(CounterName(NAMESPACE, CHAT, "economy", TODAY)).attributes}})
    answers = iter(seen)

    class Lagging:
        def __getattr__(self, name: str) -> Any:
            return getattr(desk.store.inner, name)

        def query(self, _request: Any) -> Any:
            return next(answers)

    found = SummingDesk.opened(Lagging(), desk.clock).run()
    assert (found.done, found.failures) == (1, [])
    assert desk.spent() == (7, 1)
    assert desk.spent(label=STANDARD) == (8, 2)
    assert desk.spent(label="economy") is None
    assert len(desk.marks()) == 1


# Shards.


def test_shards_that_are_left_unread_are_not_taken_for_zero(desk: SummingDesk) -> None:
    """The store asks for them again, and gives up before it leaves them out."""
    for shard in range(8):
        desk.use(10, shard)
    desk.mark()
    desk.wait()
    reads = 0

    def unread(_verb: str, request: Any) -> None:
        nonlocal reads
        if isinstance(request, list) and "/COST#" in request[0].pk:
            reads += 1
            raise Unavailable("keys stayed unprocessed")

    desk.store.before = unread
    found = desk.run()
    assert (reads, found.done, found.left, len(found.failures)) == (1, 0, 1, 1)
    assert desk.spent() == (0, 0)
    assert len(desk.marks()) == 1
    desk.store.before = None
    desk.run()
    assert desk.spent() == (80, 8)


def test_unprocessed_keys_are_asked_for_again(
    desk: SummingDesk, dynamodb: DynamoDBClient, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shard in range(8):
        desk.use(10, shard)
    desk.mark()
    desk.wait()
    whole: Any = dynamodb.batch_get_item
    asked = 0

    def partly(**arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        wanted = arguments["RequestItems"][table]
        answer = whole(RequestItems={table: {**wanted, "Keys": wanted["Keys"][:1]}})
        left = wanted["Keys"][1:]
        answer["UnprocessedKeys"] = {table: {**wanted, "Keys": left}} if left else {}
        return answer

    monkeypatch.setattr(dynamodb, "batch_get_item", partly)
    assert desk.run().failures == []
    assert asked > 8
    assert desk.spent() == (80, 8)


def test_shards_that_were_added_during_the_day_are_in_the_sum(desk: SummingDesk) -> None:
    """Vector 67: 8 shards become 16, a hundred events before and a hundred after."""
    for number in range(100):
        desk.use(1, shard=number % 8)
    desk.mark()
    desk.wait()
    desk.run()
    assert desk.spent() == (100, 100)
    desk.change_org(counter_shards=16)
    for number in range(100):
        desk.use(1, shard=number % 16)
    desk.mark()
    desk.wait()
    desk.run()
    assert desk.spent() == (200, 200)


def test_shards_that_are_added_while_it_runs_are_in_the_sum(desk: SummingDesk) -> None:
    """Their number is asked for when the marks are read, and not before."""
    desk.use_and_mark(7)
    desk.wait()

    def grow(verb: str, _request: Any) -> None:
        if verb == "consistent get":
            desk.store.before = None
            desk.change_org(counter_shards=64)
            desk.use(100, shard=63)

    desk.store.before = grow
    desk.run()
    assert desk.spent() == (107, 2)


def test_a_shard_that_nobody_understands_stops_its_own_total_only(
    desk: SummingDesk, dynamodb: DynamoDBClient, table: str
) -> None:
    for label in (PREMIUM, STANDARD):
        desk.use_and_mark(7, label=label)
    broken = money_keys.cost_shard(NAMESPACE, CHAT, PREMIUM, TODAY, 1)
    dynamodb.put_item(TableName=table, Item=item_to_wire({**broken.attributes, "kind": "cost_shard"}))
    desk.wait()
    found = desk.run()
    assert (found.done, found.left) == (1, 1)
    assert [type(error).__name__ for error in found.failures] == ["UnknownShape"]
    assert desk.spent(label=STANDARD) == (7, 1)
    assert desk.marks() == {f"{NAMESPACE}#{CHAT}#{TODAY}#{PREMIUM}"}
    # It shows as lag until somebody repairs it.
    desk.wait()
    assert desk.run().lag_s > MINUTE_MS // 1000
    desk.store.inner.delete({"Key": {**broken.attributes}})
    assert desk.run().failures == []
    assert desk.spent() == (7, 1)


def test_a_total_that_nobody_understands_stops_nobody_else(
    desk: SummingDesk, dynamodb: DynamoDBClient, table: str
) -> None:
    for label in (PREMIUM, STANDARD):
        desk.use_and_mark(7, label=label)
    broken = total_key(CounterName(NAMESPACE, CHAT, PREMIUM, TODAY))
    dynamodb.update_item(
        TableName=table,
        Key={"PK": {"S": broken.pk}, "SK": {"S": broken.sk}},
        UpdateExpression="SET rev = :x",
        ExpressionAttributeValues={":x": {"S": "x"}},
    )
    desk.wait()
    found = desk.run()
    assert (found.done, len(found.failures)) == (1, 1)
    assert desk.spent(label=STANDARD) == (7, 1)


# Days and namespaces.


def test_a_late_event_changes_the_total_of_its_own_day(desk: SummingDesk) -> None:
    desk.use_and_mark(7)
    desk.use_and_mark(3, day=YESTERDAY)
    desk.wait()
    desk.run()
    assert (desk.spent(), desk.spent(day=YESTERDAY)) == ((7, 1), (3, 1))
    # The quota of a day that is over moves nobody on.
    desk.use_and_mark(1_000_000, day=YESTERDAY)
    desk.wait()
    desk.run()
    assert desk.spent(day=YESTERDAY) == (1_000_003, 2)
    assert desk.advances.told == []


def test_a_sum_of_fewer_shards_than_before_is_not_written(desk: SummingDesk) -> None:
    """Shards expire long before their total does."""
    for shard in range(4):
        desk.use(10, shard, day="20261201")
    desk.mark(day="20261201")
    desk.wait()
    desk.run()
    for shard in range(3):
        key = money_keys.cost_shard(NAMESPACE, CHAT, PREMIUM, "20261201", shard)
        desk.store.inner.delete({"Key": {**key.attributes}})
    desk.mark(day="20261201")
    desk.wait()
    assert desk.run().done == 1
    assert desk.spent(day="20261201") == (40, 4)
    assert desk.marks() == set()


@pytest.mark.parametrize("why", ["purged", "without settings"])
def test_marks_of_a_namespace_that_is_gone_do_not_stay(desk: SummingDesk, why: str) -> None:
    desk.use_and_mark(7)
    desk.wait()
    if why == "purged":
        desk.tenants.inactive.add(NAMESPACE)
    else:
        desk.store.inner.delete({"Key": {**keys.org_settings(NAMESPACE).attributes}})
    found = desk.run()
    assert (found.done, found.dropped, found.left, found.failures) == (0, 1, 0, [])
    assert desk.spent() == (0, 0)
    assert desk.marks() == set()


def test_nothing_comes_back_of_a_total_that_a_purge_has_removed(desk: SummingDesk) -> None:
    desk.use_and_mark(7)
    desk.wait()
    key = total_key(CounterName(NAMESPACE, CHAT, PREMIUM, TODAY))

    def purge(verb: str, _request: Any) -> None:
        if verb == "update":
            desk.store.before = None
            desk.store.inner.delete({"Key": {**key.attributes}})

    desk.tenants.inactive.add(NAMESPACE)
    desk.store.before = purge
    desk.run()
    assert desk.item(key) is None
