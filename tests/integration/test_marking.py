"""Marks of totals on an engine: what a batch of the stream costs, and what must not be lost."""

from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.errors import Unavailable
from sluice.core.signals import Signal
from sluice.repository import money_keys
from sluice.repository.shapes import UnknownShape
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
    CounterStream,
    SummingDesk,
    engine_desk,
)
from tests.integration.tenants import Crash


@pytest.fixture
def desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> SummingDesk:
    return engine_desk(dynamodb, table, clock)


@pytest.fixture
def stream(desk: SummingDesk) -> CounterStream:
    return CounterStream(desk)


def marked(desk: SummingDesk, *records: dict[str, Any]) -> int:
    """How many records were about counters; none failed."""
    found = desk.marking.mark(records)
    assert found.unmarked == []
    return found.observed


def due(desk: SummingDesk, entity: str = CHAT, label: str = PREMIUM) -> int | None:
    found = desk.total(entity, label)
    return None if found is None else found.due_minute


def test_a_total_is_marked_once_for_all_its_records(desk: SummingDesk, stream: CounterStream) -> None:
    records = [stream.use(7, shard) for shard in (0, 1, 0, 5)]
    assert marked(desk, *records) == 4
    assert desk.store.taken_calls() == ["update"]
    assert due(desk) == desk.clock.now_ms // MINUTE_MS
    assert desk.marks() == {f"{NAMESPACE}#{CHAT}#{TODAY}#{PREMIUM}"}
    # What it was counted as is the rollup's to say.
    assert desk.spent() == (0, 0)
    assert desk.meter.counts == {Signal.STREAM_RECORDS: 4, Signal.TOTALS_MARKED: 1}


def test_each_total_has_a_mark_of_its_own(desk: SummingDesk, stream: CounterStream) -> None:
    records = [
        stream.use(7),
        stream.use(7, label=STANDARD),
        stream.use(7, entity=SEARCH),
        stream.use(7, entity=ORG),
        stream.use(7, day="20270114"),
    ]
    marked(desk, *records)
    assert desk.store.taken_calls() == ["update"] * 5
    assert len(desk.marks()) == 5


def test_once_a_minute_and_not_more(desk: SummingDesk, stream: CounterStream) -> None:
    """A rollup takes the mark only when its minute is over: whatever is counted in it is in that sum."""
    first_minute = desk.clock.now_ms // MINUTE_MS
    marked(desk, stream.use(1))
    desk.clock.advance(MINUTE_MS - 1)
    marked(desk, stream.use(1))
    assert desk.store.taken_calls() == ["update"]
    desk.clock.advance(1)
    marked(desk, stream.use(1))
    assert desk.store.taken_calls() == ["update"]
    assert due(desk) == first_minute + 1
    assert desk.meter.counts[Signal.TOTALS_MARKED] == 2


def test_a_mark_of_that_minute_that_another_made_is_as_good(desk: SummingDesk, stream: CounterStream) -> None:
    record = stream.use(1)
    marked(desk.elsewhere(), record)
    marked(desk, record, stream.use(2))
    marked(desk, stream.use(3))
    # The condition failed, which is remembered as well.
    assert desk.store.taken_calls() == ["update"]
    assert desk.meter.counts[Signal.TOTALS_MARKED] == 0


def test_a_clock_that_is_behind_takes_no_mark_back(desk: SummingDesk, stream: CounterStream) -> None:
    record = stream.use(1)
    desk.clock.advance(MINUTE_MS)
    later = desk.clock.now_ms // MINUTE_MS
    marked(desk.elsewhere(), record)
    desk.clock.advance(-MINUTE_MS)
    marked(desk, record)
    assert due(desk) == later


def test_a_mark_leaves_the_sum_alone(desk: SummingDesk, stream: CounterStream) -> None:
    desk.put_tenant()
    marked(desk, stream.use(7))
    desk.wait()
    desk.run()
    marked(desk, stream.use(5))
    found = desk.total()
    assert found is not None
    assert (found.counters.cost_usd_micros, found.revision) == (7, 1)
    assert found.due_minute == desk.clock.now_ms // MINUTE_MS


def test_what_wrote_nothing_new_marks_nothing(desk: SummingDesk, stream: CounterStream) -> None:
    stream.use(7)
    key = money_keys.cost_shard(NAMESPACE, CHAT, PREMIUM, TODAY, 0)
    same = stream.look(key)
    assert same["eventName"] == "MODIFY"
    desk.store.inner.delete({"Key": {**key.attributes}})
    removed = stream.look(key)
    assert removed["eventName"] == "REMOVE"
    other = {**same, "dynamodb": {**same["dynamodb"], "NewImage": {"kind": {"S": "bucket"}}, "OldImage": None}}
    assert marked(desk, same, removed, other) == 0
    assert desk.store.taken_calls() == []
    assert desk.marks() == set()
    assert desk.meter.counts == {}


def test_nothing_is_marked_for_a_namespace_that_is_purged(desk: SummingDesk, stream: CounterStream) -> None:
    desk.tenants.inactive.add(NAMESPACE)
    assert marked(desk, stream.use(7)) == 1
    assert desk.marks() == set()


def test_a_record_that_nobody_understands_holds_nobody_else_up(desk: SummingDesk, stream: CounterStream) -> None:
    records = [stream.use(1), stream.use(2, label=STANDARD), stream.use(3, entity=SEARCH)]
    damaged = {**records[1], "dynamodb": {**records[1]["dynamodb"], "NewImage": {"kind": {"S": "cost_shard"}}}}
    nonsense = {"eventName": "INSERT"}
    found = desk.marking.mark([records[0], damaged, nonsense, records[2]])
    assert [(failure.position, type(failure.error)) for failure in found.unmarked] == [
        (1, UnknownShape),
        (2, UnknownShape),
    ]
    assert len(desk.marks()) == 2
    assert desk.meter.counts[Signal.STREAM_FAILURES] == 2


def test_a_failed_mark_is_reported_at_its_first_record_and_made_the_next_time(
    desk: SummingDesk, stream: CounterStream
) -> None:
    records = [stream.use(1), stream.use(2, label=STANDARD), stream.use(3), stream.use(4, label=STANDARD)]

    def refuse(_verb: str, request: Any) -> None:
        if request["Key"]["SK"].endswith(STANDARD):
            raise Unavailable("throttled")

    desk.store.before = refuse
    (failure,) = desk.marking.mark(records).unmarked
    assert (failure.position, type(failure.error)) == (1, Unavailable)
    assert due(desk) is not None
    assert due(desk, label=STANDARD) is None
    desk.store.before = None
    marked(desk, *records[1:])
    assert due(desk, label=STANDARD) is not None


def test_a_mark_whose_answer_was_lost_is_not_believed(desk: SummingDesk, stream: CounterStream) -> None:
    record = stream.use(1)

    def lose(_verb: str, _request: Any) -> None:
        raise Unavailable("lost")

    desk.store.after = lose
    assert len(desk.marking.mark([record]).unmarked) == 1
    desk.store.after = None
    desk.store.taken_calls()
    marked(desk, record)
    assert desk.store.taken_calls() == ["update"]
    assert ("update", True) in desk.store.repeatable


def test_a_crash_between_two_marks(desk: SummingDesk, stream: CounterStream) -> None:
    records = [stream.use(1), stream.use(2, label=STANDARD)]

    def crash(_verb: str, request: Any) -> None:
        if request["Key"]["SK"].endswith(STANDARD):
            raise Crash

    desk.store.before = crash
    with pytest.raises(Crash):
        desk.marking.mark(records)
    marked(desk.elsewhere(), *records)
    assert len(desk.marks()) == 2
