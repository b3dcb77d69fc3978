"""Rollups of what is used all the time, and of more than a run has time for: nothing waits for ever."""

from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.errors import Unavailable
from sluice.core.metering import Counters
from sluice.core.signals import Signal
from sluice.repository.counters import CounterName, add_to_shard
from sluice.repository.money_keys import DUE_PARTITIONS
from sluice.repository.totals import decode_total, due_query, mark_due, total_key
from tests.fakes import FakeClock
from tests.integration.summing_desks import (
    BY_APP,
    CHAT,
    MINUTE_MS,
    ORG,
    TODAY,
    CounterStream,
    SummingDesk,
    engine_desk,
)
from tests.tenancy import tenant_items

CALLS_EVERY_MS = 10_000


@pytest.fixture
def desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> SummingDesk:
    # At the beginning of a minute, so that tests need not care.
    assert clock.now_ms % MINUTE_MS == 0
    return engine_desk(dynamodb, table, clock).put_tenant()


@pytest.fixture
def stream(desk: SummingDesk) -> CounterStream:
    return CounterStream(desk)


def use(desk: SummingDesk, stream: CounterStream, cost_usd_micros: int = 7, shard: int = 0) -> None:
    """One call, counted and marked as the stream does it."""
    assert desk.marking.mark([stream.use(cost_usd_micros, shard)]).unmarked == []


@pytest.mark.parametrize("phase_ms", [0, 100, 4_900, 5_100, 30_000, 59_900])
def test_the_total_of_a_label_in_steady_use_follows(desk: SummingDesk, stream: CounterStream, phase_ms: int) -> None:
    """Every run has all that was marked before it, whenever in the minute runs begin, although the mark always names
    a minute that is not over."""
    desk.clock.advance(phase_ms)
    calls = 0
    for _ in range(12):
        for _ in range(MINUTE_MS // CALLS_EVERY_MS):
            use(desk, stream, shard=calls % 8)
            calls += 1
            desk.clock.advance(CALLS_EVERY_MS)
        found = desk.run()
        assert (found.done, found.left, found.failures) == (1, 0, [])
        assert found.lag_s <= MINUTE_MS // 1000
        assert desk.spent() == (7 * calls, calls)
    # Once nobody uses it any more, the mark goes.
    for _ in range(2):
        desk.clock.advance(MINUTE_MS)
        desk.run()
    assert desk.marks() == set()
    assert desk.spent() == (7 * calls, calls)


def test_what_a_minute_of_steady_use_takes(desk: SummingDesk, stream: CounterStream) -> None:
    """The mark is raised once, and stays: nothing is written about it but that."""
    use(desk, stream)
    desk.clock.advance(MINUTE_MS)
    desk.run()
    desk.store.taken_calls()
    use(desk, stream)
    use(desk, stream)
    assert desk.store.taken_calls() == ["update"]
    desk.run()
    # The mark, the org, the shards and the sum; whose quota it is, is asked once a minute.
    calls = [call for call in desk.store.taken_calls() if call not in {"query", "batch_get"}]
    assert calls == ["consistent batch_get", "consistent get", "consistent batch_get", "update"]


# Calls of a run that takes a mark and leaves it: all but the last of one that removes it.
CALLS_OF_ONE = DUE_PARTITIONS + 5


@pytest.mark.parametrize("number", range(CALLS_OF_ONE))
def test_what_is_counted_in_the_minute_of_a_mark_is_not_lost(
    desk: SummingDesk, stream: CounterStream, number: int
) -> None:
    """Between any two calls of a run, in the last moment of a minute, in a shard that was just added; then the minute
    is over while the run is still under way. Nothing marks that again."""
    use(desk, stream)
    desk.clock.advance(MINUTE_MS - 1)
    calls = 0

    def meanwhile(_verb: str, _request: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == number + 1:
            # Its own calls are none of the run's.
            desk.store.before = None
            desk.change_org(counter_shards=64)
            use(desk, stream, 100, shard=63)
            desk.clock.advance(10_000)
            desk.store.before = meanwhile

    desk.store.before = meanwhile
    desk.run()
    desk.store.before = None
    assert calls >= CALLS_OF_ONE
    assert len(desk.marks()) == 1
    desk.clock.advance(MINUTE_MS)
    desk.run()
    assert desk.spent() == (107, 2)
    assert desk.marks() == set()


@pytest.mark.parametrize("number", range(CALLS_OF_ONE))
def test_another_run_in_the_same_minute_between_any_two_calls(
    desk: SummingDesk, stream: CounterStream, number: int
) -> None:
    use(desk, stream)
    other = desk.elsewhere()
    calls = 0

    def meanwhile(_verb: str, _request: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == number + 1:
            use(desk, stream, 100, shard=5)
            other.run()

    desk.store.before = meanwhile
    desk.run()
    desk.store.before = None
    assert desk.spent() == (107, 2)
    assert len(desk.marks()) == 1


def test_the_lag_is_the_age_of_what_is_in_no_total(desk: SummingDesk, stream: CounterStream) -> None:
    """A mark that stays counts from when its total was summed up, and from nothing where that has it all."""
    use(desk, stream)
    desk.clock.advance(50_000)
    assert desk.run().lag_s == 50
    assert desk.run().lag_s == 0
    desk.clock.advance(20_000)
    use(desk, stream)
    # Since the last sum that was written.
    assert desk.run().lag_s == 20
    desk.clock.advance(5 * MINUTE_MS)
    # Nothing more was counted, so nothing was late.
    assert desk.run().lag_s == 0
    assert desk.marks() == set()
    use(desk, stream)
    desk.clock.advance(3_000)
    # Of a new mark, and not of the one before.
    assert desk.run().lag_s == 3
    assert desk.meter.counts[Signal.ROLLUP_LAG_SECONDS] == 73


def test_a_total_that_is_never_reached_shows_as_lag(desk: SummingDesk, stream: CounterStream) -> None:
    """However new its mark is."""
    for minute in range(5):
        use(desk, stream)
        assert desk.run(totals=0).lag_s == 60 * minute
        desk.clock.advance(MINUTE_MS)


def test_a_clock_of_marks_that_is_ahead_makes_no_lag_below_zero(desk: SummingDesk) -> None:
    desk.use_and_mark(7)
    desk.clock.advance(-4_000)
    assert desk.run().lag_s == 0
    assert desk.spent() == (7, 1)


# More than a run looks at, or has time for.


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """So many marks of each partition are looked at, two at a time."""
    monkeypatch.setattr("sluice.services.rollup.BATCH_KEYS_MAX", 2)
    monkeypatch.setattr("sluice.services.rollup.MARKS_MAX", 4)
    return 4


def test_no_mark_is_passed_over_for_its_place_in_the_index(desk: SummingDesk, few: int) -> None:
    """All of them are marked anew each minute, so none ever leaves the index."""
    labels = [f"label-{number:03}" for number in range(10 * DUE_PARTITIONS)]
    runs = 0
    while runs < 8 and any(desk.spent(label=label) in {None, (0, 0)} for label in labels):
        for label in labels:
            desk.use_and_mark(1, label=label)
        runs += 1
        found = desk.run()
        assert found.done <= few * DUE_PARTITIONS
        assert found.failures == []
        desk.clock.advance(MINUTE_MS)
    # The fullest partition takes a run for every four marks, and no more.
    assert runs == -(-max(_marks_of_partitions(desk)) // few)


def _marks_of_partitions(desk: SummingDesk) -> list[int]:
    return [len(desk.store.inner.query(due_query(partition)).items) for partition in range(DUE_PARTITIONS)]


def test_behind_the_last_mark_come_the_first_ones_again(desk: SummingDesk, few: int) -> None:
    """Also those that were put before where a run left off, and none twice in one run."""
    labels = [f"m-{number:03}" for number in range(10 * DUE_PARTITIONS)]
    for label in labels:
        desk.use_and_mark(1, label=label)
    sizes = _marks_of_partitions(desk)
    done = [desk.run().done for _ in range(12)]
    assert all(count <= sum(min(few, size) for size in sizes) for count in done)
    desk.use_and_mark(1, label="a-first")
    for _ in range(-(-(max(sizes) + 1) // few)):
        desk.run()
    assert desk.spent(label="a-first") == (1, 1)


def test_a_partition_that_was_full_is_read_from_the_start_again(desk: SummingDesk, few: int) -> None:
    for number in range(10 * DUE_PARTITIONS):
        desk.use_and_mark(1, label=f"label-{number}")
    desk.wait()
    while desk.marks():
        assert desk.run().done > 0
    desk.run()
    desk.store.taken_calls()
    desk.run()
    assert desk.store.taken_calls() == ["query"] * DUE_PARTITIONS


def test_a_page_that_fails_leaves_the_place_as_it_was(desk: SummingDesk, few: int) -> None:
    for number in range(10 * DUE_PARTITIONS):
        desk.use_and_mark(1, label=f"label-{number}")
    sizes = _marks_of_partitions(desk)
    desk.run()

    def fail(_verb: str, _request: Any) -> None:
        raise Unavailable("x")

    desk.store.before = fail
    assert len(desk.run().failures) == DUE_PARTITIONS
    desk.store.before = None
    for _ in range(-(-max(sizes) // few) - 1):
        desk.run()
    assert all(desk.spent(label=f"label-{number}") == (1, 1) for number in range(10 * DUE_PARTITIONS))


def test_each_namespace_has_its_turn(desk: SummingDesk) -> None:
    """One that has many totals, all of them older, leaves time for the other's."""
    for item in tenant_items("other", ORG, CHAT, settings=BY_APP):
        desk.store.inner.put({"Item": item}, repeatable=True)
    for number in range(20):
        desk.use_and_mark(1, label=f"label-{number}")
    desk.clock.advance(MINUTE_MS)
    others = [CounterName("other", CHAT, f"label-{number}", TODAY) for number in range(3)]
    for name in others:
        update = add_to_shard(name, 0, desk.day().ends_ms, Counters(5, requests=1), desk.clock.now_ms)
        desk.store.inner.update(update, repeatable=False)
        mark = mark_due(name, desk.clock.now_ms // MINUTE_MS, desk.clock.now_ms)
        desk.store.inner.update(mark, repeatable=True)
        desk.clock.advance(1_000)
    found = desk.run(totals=6)
    assert (found.done, found.left, found.lag_s) == (6, 17, 63)
    items = [desk.item(total_key(name)) for name in others]
    assert [decode_total(item).counters.requests for item in items if item is not None] == [1, 1, 1]
    assert sum(desk.spent(label=f"label-{number}") == (1, 1) for number in range(20)) == 3
