"""Counting on an engine: each trap that would lose or double something, one by one."""

from collections.abc import Callable
from typing import Any

import pytest

from sluice.core.errors import Contended, Unavailable
from sluice.core.limits import Limit, fingerprint
from sluice.core.signals import Signal
from sluice.core.snapshots import Window
from sluice.repository import keys
from sluice.repository.shapes import UnknownShape
from sluice.repository.store import ConditionFailed
from tests.fakes import FakeClock
from tests.integration.conftest import ENTITY, NAMESPACE, RESOURCE, Host
from tests.integration.streams import FIRST, Stream, Tenants, counted, counting_of, snapshot, sums
from tests.integration.tenants import Crash

HOUR_MS = 3_600_000
NOON_MS = 1_800_057_600_000 + 12 * HOUR_MS
LIMITS = {"rpm": Limit(1000, 1000, 1000, 60), "tpm": Limit(100_000, 100_000, 100_000, 60)}


@pytest.fixture
def stream(host: Host, clock: FakeClock) -> Stream:
    clock.now_ms = NOON_MS
    host.put_limits(LIMITS)
    return Stream(host)


def test_what_was_consumed_is_counted_from_the_first_write_on(host: Host, stream: Stream) -> None:
    stream.acquire(3, rpm=1, tpm=500)
    counted(counting_of(host), stream.records)
    assert sums(host) == [({"rpm": 3000, "tpm": 1_500_000}, 3)] * 2
    assert host.meter.counts[Signal.STREAM_RECORDS] == 3
    assert host.meter.counts[Signal.SNAPSHOT_WRITES] == 2
    assert host.meter.counts[Signal.STREAM_GAPS] == 0


@pytest.mark.parametrize("restarted", [False, True], ids=["same process", "another process"])
def test_any_part_that_comes_again_changes_nothing(host: Host, stream: Stream, *, restarted: bool) -> None:
    stream.acquire(6, rpm=2)
    counting = counting_of(host)
    counted(counting, stream.records)
    if restarted:
        counting = counting_of(host)
    host.store.taken_calls()
    for first in range(6):
        for last in range(first + 1, 7):
            counted(counting, stream.records[first:last])
    assert sums(host) == [({"rpm": 12_000}, 6)] * 2
    assert host.store.taken_calls() == (["get", "get"] if restarted else [])


@pytest.mark.parametrize("cut", range(1, 6))
def test_overlaps_and_cuts_do_not_matter(host: Host, stream: Stream, cut: int) -> None:
    stream.acquire(6, rpm=1)
    for part in (stream.records[:cut], stream.records[cut - 1 :], stream.records[cut:]):
        counted(counting_of(host), part)
    assert sums(host) == [({"rpm": 6000}, 6)] * 2


def test_nor_does_the_order_after_a_redrive(host: Host, stream: Stream) -> None:
    stream.acquire(9, rpm=1)
    counting = counting_of(host)
    for part in (stream.records[6:], stream.records[:3]):
        counted(counting, part)
    # What lies between was lost: the ends tell.
    assert sums(host) == [({"rpm": 9000}, 9)] * 2
    counted(counting, stream.records[3:6])
    assert sums(host) == [({"rpm": 9000}, 9)] * 2
    assert host.meter.counts[Signal.STREAM_GAPS] == 0


def test_a_steady_batch_costs_two_writes_and_no_read(host: Host, stream: Stream) -> None:
    counting = counting_of(host)
    counted(counting, stream.acquire(2, rpm=1))
    host.store.taken_calls()
    records = stream.acquire(5, rpm=1)
    host.store.taken_calls()
    counted(counting, records)
    assert host.store.taken_calls() == ["update", "update"]


def test_a_crash_between_the_hour_and_the_day(host: Host, stream: Stream) -> None:
    stream.acquire(4, rpm=1)
    updates: list[object] = []

    def crash(verb: str, request: object) -> None:
        if verb == "update":
            updates.append(request)
            if len(updates) == 2:
                raise Crash

    host.store.before = crash
    with pytest.raises(Crash):
        counting_of(host).count(stream.records)
    host.store.before = None
    assert sums(host) == [({"rpm": 4000}, 4), None]
    counted(counting_of(host), stream.records)
    assert sums(host) == [({"rpm": 4000}, 4)] * 2


def test_a_write_whose_answer_was_lost_is_not_made_twice(host: Host, stream: Stream) -> None:
    stream.acquire(4, rpm=1)
    lost: list[str] = []

    def lose(verb: str, _request: object) -> None:
        if verb == "update" and not lost:
            lost.append(verb)
            raise Unavailable("lost")

    host.store.after = lose
    counting = counting_of(host)
    assert counting.count(stream.records).first_uncounted == 0
    counted(counting, stream.records)
    assert sums(host) == [({"rpm": 4000}, 4)] * 2
    # What is sent may be repeated by the store itself.
    assert ("update", True) in host.store.repeatable


def test_two_at_once_on_the_same_interval(host: Host, stream: Stream, start_host: Callable[[], Host]) -> None:
    counted(counting_of(host), stream.acquire(2, rpm=1))
    stream.acquire(6, rpm=1)
    other = counting_of(start_host())
    slow = counting_of(host)

    def meanwhile(verb: str, _request: object) -> None:
        if verb == "update":
            host.store.before = None
            counted(other, stream.records[:6])

    host.store.before = meanwhile
    host.store.taken_calls()
    counted(slow, stream.records[1:])
    assert sums(host) == [({"rpm": 8000}, 8)] * 2
    # The image of the failed condition is the next try: nothing is read again.
    assert host.store.taken_calls() == ["get", "update", "update", "get", "update"]


def test_two_at_once_on_a_snapshot_that_is_not_there(
    host: Host, stream: Stream, start_host: Callable[[], Host]
) -> None:
    stream.acquire(3, rpm=1)

    def meanwhile(verb: str, _request: object) -> None:
        if verb == "update":
            host.store.before = None
            counted(counting_of(start_host()), stream.records)

    host.store.before = meanwhile
    counted(counting_of(host), stream.records)
    assert sums(host) == [({"rpm": 3000}, 3)] * 2
    assert host.meter.counts[Signal.SNAPSHOT_WRITES] == 0


def test_after_four_lost_races_the_record_is_reported(host: Host, stream: Stream) -> None:
    stream.acquire(3, rpm=1)

    class Contested:
        """Somebody else is always faster, and nobody sees with what."""

        def __getattr__(self, name: str) -> Any:
            return getattr(host.store, name)

        def update(self, request: object, *, repeatable: bool) -> ConditionFailed:
            host.store.calls.append("update")
            return ConditionFailed(None)

    host.store.taken_calls()
    failures = counting_of(host, store=Contested()).count(stream.records).uncounted
    assert [(failure.position, type(failure.error)) for failure in failures] == [(0, Contended)] * 2
    assert host.store.taken_calls().count("update") == 8
    assert host.meter.counts[Signal.STREAM_FAILURES] == 2


def test_the_first_failed_record_is_named_and_those_before_it_are_done(
    host: Host, stream: Stream, clock: FakeClock
) -> None:
    stream.acquire(2, rpm=1)
    clock.advance(HOUR_MS)
    stream.acquire(3, rpm=1)

    def refuse(verb: str, request: Any) -> None:
        if verb == "update" and request["Key"]["SK"].endswith("#hour#20270116T13"):
            raise Unavailable("throttled")

    host.store.before = refuse
    counting = counting_of(host)
    assert counting.count(stream.records).first_uncounted == 2
    assert sums(host, NOON_MS) == [({"rpm": 2000}, 2), ({"rpm": 5000}, 5)]
    assert sums(host)[0] is None
    host.store.before = None
    counted(counting, stream.records[2:])
    assert sums(host) == [({"rpm": 3000}, 3), ({"rpm": 5000}, 5)]
    assert host.meter.counts[Signal.STREAM_GAPS] == 0


def test_a_record_that_nobody_understands_holds_nobody_else_up(host: Host, stream: Stream) -> None:
    stream.acquire(4, rpm=1)
    damaged = {
        **stream.records[1],
        "dynamodb": {**stream.records[1]["dynamodb"], "NewImage": {"kind": {"S": "bucket"}}},
    }
    answer = counting_of(host).count([stream.records[0], damaged, *stream.records[2:]])
    (failure,) = answer.uncounted
    assert (failure.position, answer.first_uncounted, type(failure.error)) == (1, 1, UnknownShape)
    # The ends tell what the damaged one would have.
    assert sums(host) == [({"rpm": 4000}, 4)] * 2


def test_windows_come_from_the_records_and_not_from_the_clock(host: Host, stream: Stream, clock: FakeClock) -> None:
    clock.now_ms = NOON_MS + HOUR_MS - 1
    stream.acquire(2, rpm=1)
    clock.advance(1)
    stream.acquire(3, rpm=1)
    clock.advance(30 * HOUR_MS)
    counted(counting_of(host), stream.records)
    assert sums(host) == [None, None]
    assert sums(host, NOON_MS) == [({"rpm": 2000}, 2), ({"rpm": 5000}, 5)]
    assert sums(host, NOON_MS + HOUR_MS)[0] == ({"rpm": 3000}, 3)


def test_a_gap_between_windows_is_counted_and_heals(host: Host, stream: Stream, clock: FakeClock) -> None:
    first = stream.acquire(2, rpm=1)
    lost = stream.acquire(2, rpm=1)
    clock.advance(HOUR_MS)
    lost += stream.acquire(1, rpm=1)
    after = stream.acquire(3, rpm=1)
    counted(counting_of(host), first)
    counted(counting_of(host), after)
    assert host.meter.counts[Signal.STREAM_GAPS] == 1
    # The day has both ends; of the two hours nobody knows which had what is missing.
    assert [sums(host, NOON_MS)[0], *sums(host)] == [({"rpm": 2000}, 2), ({"rpm": 3000}, 3), ({"rpm": 8000}, 8)]
    counted(counting_of(host), lost)
    assert [sums(host, NOON_MS)[0], *sums(host)] == [({"rpm": 4000}, 4), ({"rpm": 4000}, 4), ({"rpm": 8000}, 8)]
    assert host.meter.counts[Signal.STREAM_GAPS] == 1


@pytest.mark.parametrize("restarted", [False, True], ids=["same process", "another process"])
def test_a_new_hour_is_no_gap(host: Host, stream: Stream, clock: FakeClock, *, restarted: bool) -> None:
    """Not behind a split either, which is a version that nobody counts, nor after some hours without any use."""
    counting = counting_of(host)
    counted(counting, stream.acquire(2, rpm=1))
    host.sharding.split(host.bucket())
    split = stream.look()
    assert len(split) == 2
    clock.advance(3 * HOUR_MS)
    counted(counting_of(host) if restarted else counting, [*split, *stream.acquire(2, rpm=1)])
    assert host.meter.counts[Signal.STREAM_GAPS] == 0
    assert sums(host)[1] == ({"rpm": 4000}, 5)


def test_a_bucket_that_is_older_than_the_stream_is_no_gap(host: Host, stream: Stream) -> None:
    stream.acquire(5, rpm=1)
    counted(counting_of(host), stream.records[3:])
    assert host.meter.counts[Signal.STREAM_GAPS] == 0
    assert sums(host) == [({"rpm": 2000}, 2)] * 2


def test_what_was_given_back_is_taken_off(host: Host, stream: Stream) -> None:
    stream.acquire(1, rpm=5, tpm=7)
    image = host.bucket()
    host.buckets.writer.give_back(FIRST, image.generation, {"rpm": 3000, "tpm": 7000})
    stream.look()
    counted(counting_of(host), stream.records)
    assert sums(host) == [({"rpm": 2000}, 2)] * 2
    assert snapshot(host, Window.HOUR) is not None


def test_shards_are_summed_and_one_that_is_made_anew_begins_from_zero(host: Host, stream: Stream) -> None:
    counting = counting_of(host)
    host.random.draw = lambda below: below - 1
    counted(counting, stream.acquire(2, rpm=1))
    for _ in range(3):
        assert host.sharding.split(host.bucket())
        counted(counting, stream.look())
        counted(counting, stream.acquire(3, rpm=1))
        host.clock.advance(120_000)
        assert host.sharding.merge(host.bucket())
        counted(counting, stream.look())
    counted(counting, stream.records)
    assert sums(host) == [({"rpm": 11_000}, snapshot_events(host))] * 2
    found = snapshot(host, Window.HOUR)
    assert found is not None
    # Three incarnations of shard 1: the first is only named.
    assert (len(found.tallies[1].kept), len(found.tallies[1].named)) == (2, 1)


def snapshot_events(host: Host) -> int:
    found = snapshot(host, Window.HOUR)
    assert found is not None
    return found.total_events


def test_buckets_under_per_call_limits_are_counted_apart(host: Host, stream: Stream) -> None:
    own = {"rpm": Limit(7, 7, 7, 60)}
    print_of_limits = fingerprint(own, expires=True)
    of_call = Stream(host, keys.bucket(NAMESPACE, ENTITY, RESOURCE, 0, print_of_limits))
    stream.acquire(1, rpm=1)
    host.ask({"rpm": 5}, own)
    (record,) = of_call.look()
    counted(counting_of(host), [*stream.records, record])
    assert sums(host) == [({"rpm": 1000}, 1)] * 2
    apart = snapshot(host, Window.DAY, call_fingerprint=print_of_limits)
    assert apart is not None
    assert apart.consumed_milli == {"rpm": 5000}


def test_nothing_is_written_for_a_namespace_that_is_purged(host: Host, stream: Stream) -> None:
    stream.acquire(2, rpm=1)
    tenants = Tenants()
    tenants.inactive.add(NAMESPACE)
    host.store.taken_calls()
    answer = counting_of(host, tenants).count(stream.records)
    assert (len(answer.observations), answer.uncounted) == (2, [])
    assert host.store.taken_calls() == []


def test_its_own_writes_do_not_feed_it(host: Host, stream: Stream) -> None:
    """A snapshot is no bucket, and the record of a split consumed nothing."""
    stream.acquire(2, rpm=1)
    counting = counting_of(host)
    counted(counting, stream.records)
    found = host.store.inner.get(keys.usage(snapshot_name(host)), consistent=True)
    assert found is not None
    host.sharding.split(host.bucket())
    own = [*stream.look(), {"dynamodb": {**stream.records[0]["dynamodb"], "NewImage": {"kind": {"S": "snapshot"}}}}]
    host.store.taken_calls()
    answer = counting.count(own)
    assert (len(answer.observations), answer.uncounted) == (2, [])
    assert host.store.taken_calls() == []


def snapshot_name(host: Host) -> Any:
    found = snapshot(host, Window.HOUR)
    assert found is not None
    return found.name
