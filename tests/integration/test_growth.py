"""Splitting by what the stream shows: only what is hot now, every shard, and nothing more for its own records."""

from typing import Any

import pytest

from sluice.core.errors import Unavailable
from sluice.core.limits import Limit
from sluice.core.signals import Signal
from sluice.core.snapshots import Observation
from sluice.repository import keys
from sluice.repository.items import Bucket, decode_bucket
from sluice.repository.snapshots import observe
from sluice.services.growth import LONGEST_MS, Growth
from tests.fakes import FakeClock
from tests.integration.conftest import NAMESPACE, Host
from tests.integration.streams import FIRST, Stream, Tenants, growth_of

LIMITS = {"rpm": Limit(100_000, 100_000, 100_000, 60)}


@pytest.fixture
def stream(host: Host, clock: FakeClock) -> Stream:
    clock.now_ms = 1_800_000_000_000
    host.put_limits(LIMITS)
    found = Stream(host, shards=16)
    found.acquire(1, rpm=1)
    return found


def observed(records: list[dict[str, Any]]) -> list[Observation]:
    found = [observe(record, position) for position, record in enumerate(records)]
    return [one for one in found if one is not None]


def written(host: Host, times: int, in_ms: int, shard: int = 0) -> None:
    """As if a shard had been written so often meanwhile."""
    host.clock.advance(in_ms)
    key: Any = dict(keys.bucket_shard(FIRST, shard).attributes)
    host.store.inner.update(
        {
            "Key": key,
            "UpdateExpression": "ADD v :times, b_rpm_tc :times",
            "ConditionExpression": "attribute_exists(PK)",
            "ExpressionAttributeValues": {":times": times},
        },
        repeatable=False,
    )


def shards_of(host: Host) -> dict[int, Bucket]:
    wanted = [keys.bucket_shard(FIRST, shard) for shard in range(16)]
    found = [decode_bucket(item) for item in host.store.inner.batch_get(wanted, consistent=True)]
    return {bucket.shard: bucket for bucket in found}


def counts(host: Host) -> dict[int, int]:
    return {shard: bucket.shard_count for shard, bucket in sorted(shards_of(host).items())}


def grow(growth: Growth, records: list[dict[str, Any]]) -> None:
    assert growth.grow(observed(records)) == []


@pytest.mark.parametrize(
    ("per_second", "seconds", "split"),
    [(1000, 4, True), (1000, 3, False), (990, 4, False), (850, 16, True), (799, 19, False), (100, 19, False)],
)
def test_a_shard_that_is_written_too_often_is_split(
    host: Host, stream: Stream, per_second: int, seconds: int, *, split: bool
) -> None:
    """At what a partition takes after four seconds, above four fifths of it somewhat later, below that never."""
    growth = growth_of(host)
    grow(growth, stream.records)
    for _ in range(seconds):
        written(host, per_second, 1_000)
        grow(growth, stream.look())
    assert counts(host) == ({0: 2, 1: 2} if split else {0: 1})
    assert host.meter.counts[Signal.SHARDS_SPLIT] == int(split)


def test_what_is_quiet_for_long_does_not_hide_what_comes_then(host: Host, stream: Stream) -> None:
    growth = growth_of(host)
    grow(growth, stream.records)
    written(host, 1, LONGEST_MS)
    grow(growth, stream.look())
    for _ in range(4):
        written(host, 1000, 1_000)
        grow(growth, stream.look())
    assert len(counts(host)) == 2


def test_an_old_record_only_says_where_to_look(host: Host, stream: Stream) -> None:
    """Hot as it was then: by now it is quiet."""
    written(host, 8000, 4_000)
    records = [*stream.records, *stream.look()]
    host.clock.advance(60_000)
    growth = growth_of(host)
    host.store.taken_calls()
    grow(growth, records)
    assert host.store.taken_calls() == ["consistent get"]
    assert counts(host) == {0: 1}


def test_nor_is_split_what_was_split_or_made_anew_since(host: Host, stream: Stream) -> None:
    growth = growth_of(host)
    grow(growth, stream.records)
    written(host, 8000, 4_000)
    hot = stream.look()
    host.sharding.split(host.bucket())
    grow(growth, hot)
    assert counts(host) == {0: 2, 1: 2}
    host.store.inner.delete({"Key": {**FIRST.attributes}})
    again = growth_of(host)
    grow(again, [*stream.records, *hot])
    assert counts(host) == {1: 2}


def test_a_split_is_carried_to_the_other_shards(host: Host, stream: Stream) -> None:
    for shard in (0, 0, 1):
        assert host.sharding.split(shards_of(host)[shard])
        stream.look()
    # Shard 0 is one of four, and by the third split so is shard 1; one more leaves three of them behind.
    assert host.sharding.split(shards_of(host)[2])
    records = stream.look()
    assert counts(host) == {0: 4, 1: 4, 2: 8, 3: 4, 6: 8}
    growth = growth_of(host)
    grow(growth, records)
    assert counts(host) == dict.fromkeys(range(8), 8)


def test_the_records_of_its_own_splits_cause_no_further_write(host: Host, stream: Stream) -> None:
    growth = growth_of(host)
    grow(growth, stream.records)
    written(host, 8000, 4_000)
    grow(growth, stream.look())
    assert counts(host) == {0: 2, 1: 2}
    own = stream.look()
    assert len(own) == 2
    host.store.taken_calls()
    grow(growth, own)
    assert set(host.store.taken_calls()) == {"consistent batch_get"}
    assert stream.look() == []


def test_an_old_record_of_a_split_does_not_undo_a_merge(host: Host, stream: Stream) -> None:
    for shard in (0, 0, 1):
        assert host.sharding.split(shards_of(host)[shard])
        stream.look()
    host.clock.advance(3_600_000)
    assert host.sharding.merge(host.bucket())
    assert counts(host) == {0: 1}
    grow(growth_of(host), stream.records)
    assert counts(host) == {0: 1}


def test_a_split_that_fails_never_fails_the_batch_and_is_tried_again(host: Host, stream: Stream) -> None:
    for shard in (0, 0):
        assert host.sharding.split(shards_of(host)[shard])
    records = stream.look()

    def refuse(verb: str, _request: object) -> None:
        if verb == "transact":
            raise Unavailable("throttled")

    host.store.before = refuse
    growth = growth_of(host)
    grow(growth, records)
    assert counts(host) == {0: 4, 1: 2, 2: 4}
    host.store.before = None
    # Whatever shows the bucket again.
    grow(growth, stream.acquire(1, rpm=1))
    assert counts(host) == dict.fromkeys(range(4), 4)


def test_a_bug_is_told_and_fails_nothing(host: Host, stream: Stream) -> None:
    assert host.sharding.split(host.bucket())

    def broken(_verb: str, _request: object) -> None:
        raise KeyError("bug")

    records = stream.look()
    host.store.before = broken
    (error,) = growth_of(host).grow(observed(records))
    assert isinstance(error, KeyError)


def test_a_bucket_that_lost_a_shard_is_left_alone(host: Host, stream: Stream) -> None:
    for shard in (0, 0):
        assert host.sharding.split(shards_of(host)[shard])
    records = stream.look()
    host.store.inner.delete({"Key": {**FIRST.attributes}})
    grow(growth_of(host), records)
    assert counts(host) == {1: 2, 2: 4}


def test_nothing_grows_in_a_namespace_that_is_purged(host: Host, stream: Stream) -> None:
    for shard in (0, 0):
        assert host.sharding.split(shards_of(host)[shard])
    tenants = Tenants()
    tenants.inactive.add(NAMESPACE)
    grow(growth_of(host, tenants), stream.look())
    assert counts(host) == {0: 4, 1: 2, 2: 4}


def test_sixteen_shards_are_as_many_as_there_are(host: Host, stream: Stream) -> None:
    while (images := shards_of(host)) and len(images) < 16:
        for image in images.values():
            assert host.sharding.split(image)
    growth = growth_of(host)
    grow(growth, stream.look())
    written(host, 8000, 4_000)
    host.store.taken_calls()
    grow(growth, stream.look())
    assert host.store.taken_calls() == []
