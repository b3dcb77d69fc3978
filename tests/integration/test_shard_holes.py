"""Holes that a review found in shards, keyed acquires and chains: each closed, each with the schedule that shows it."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sluice.core import shards
from sluice.core.audit import BY_SYSTEM
from sluice.core.errors import NotFound
from sluice.core.limits import Limit, Scope
from sluice.repository import keys
from sluice.repository.items import Bucket, decode_bucket
from sluice.services.chains import AcquireRequest
from sluice.services.configuration import CACHE_MS, Configuration
from sluice.services.entities import EntityChange
from sluice.services.registration import Registration
from tests.fakes import FakeClock
from tests.integration.conftest import ENTITY, NAMESPACE, RESOURCE, Host
from tests.integration.test_idempotency import KEY, ask
from tests.integration.test_shards import FIRST, YEAR_S, consumed_milli, per_minute, shards_of, slow, split_all

TEN_MINUTES_MS = 600_000
FAST = Limit(10**6, 10**6, 10**6, 1)


@pytest.fixture(autouse=True)
def round_time(clock: FakeClock) -> None:
    clock.now_ms = 4 * shards.SHARDS_MAX * YEAR_S * 1000


@pytest.fixture
def spread(host: Host) -> Host:
    host.random.draw = random.Random(7).randrange
    return host


def bucket_of(host: Host, entity: str) -> Bucket:
    item = host.store.inner.get(keys.bucket(NAMESPACE, entity, RESOURCE, 0), consistent=True)
    assert item is not None
    return decode_bucket(item)


def lose_shard(host: Host, shard: int) -> None:
    host.store.inner.delete({"Key": {**keys.bucket_shard(FIRST, shard).attributes}})


HOLES = [(1, (1,)), (2, (3,)), (2, (3, 2, 1)), (2, (1,)), (4, (15, 14, 13)), (4, (1, 4))]
"""How often a bucket is split, and which shards it then loses."""


def with_a_hole(host: Host, splits: int, lost: Sequence[int], **limits: Limit) -> None:
    host.put_limits(limits)
    host.acquire(**dict.fromkeys(limits, 0))
    for _ in range(splits):
        split_all(host)
    for shard in lost:
        lose_shard(host, shard)


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize(("splits", "lost"), HOLES)
def test_a_bucket_that_lost_shards_is_made_anew_by_who_asks_for_more_than_is_left(
    spread: Host, start_host: Callable[[], Host], splits: int, lost: Sequence[int], keyed: bool
) -> None:
    """Hole: refused with a wait of a millisecond, again and again, until the daily merge."""
    with_a_hole(spread, splits, lost, rpm=slow(100))
    cold = start_host()
    for asking, amount in ((spread, 60), (cold, 40)):
        if keyed:
            ask(asking, replace(KEY, text=f"{amount}"), rpm=amount)
        else:
            asking.acquire(rpm=amount)
    assert {shard: image.shard_count for shard, image in shards_of(spread).items()} == {0: 1}
    assert consumed_milli(spread) == 100_000
    refused = cold.refused(rpm=1)
    assert refused.retry_after_ms > 1
    cold.clock.advance(refused.retry_after_ms)
    cold.acquire(rpm=1)


@pytest.mark.parametrize(("splits", "lost"), HOLES)
def test_the_rate_of_lost_shards_comes_back(spread: Host, splits: int, lost: Sequence[int]) -> None:
    """Requests that fit every share: whoever is refused, or chooses a shard that should be there, notices.

    What was taken from the rest before that goes with it: one burst at most.
    """
    with_a_hole(spread, splits, lost, rpm=slow(160))
    left = 160 - 160 * len(lost) // 2**splits
    assert 160 <= spread.admitted_until_refused(rpm=1) <= 160 + left
    assert consumed_milli(spread) == 160_000
    assert spread.refused(rpm=1).retry_after_ms > 1


def test_a_hole_costs_its_calls_once(spread: Host) -> None:
    with_a_hole(spread, 1, (1,), rpm=slow(100))
    spread.store.taken_calls()
    spread.acquire(rpm=60)
    looks = ["consistent batch_get"] * 3
    assert spread.store.taken_calls() == [*looks, "transact", "consistent batch_get", "put"]
    spread.acquire(rpm=1)
    assert spread.store.taken_calls() == ["update"]


def test_a_shard_that_should_be_there_is_missed_once(spread: Host) -> None:
    with_a_hole(spread, 1, (1,), rpm=slow(100))
    spread.random.draw = lambda below: below - 1
    spread.acquire(rpm=1)
    spread.store.taken_calls()
    spread.acquire(rpm=1)
    assert spread.store.taken_calls() == ["update"]


def test_what_only_seemed_lost_is_kept(spread: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal pictures, each torn by a merge and a split: the transaction finds the shard, and all is as it was."""
    spread.put_limits({"rpm": slow(100)})
    spread.acquire(rpm=40)
    split_all(spread)
    before = shards_of(spread)
    batch_get = spread.store.inner.batch_get
    pictures: list[int] = []

    def torn(wanted: Sequence[keys.Key], *, consistent: bool = False) -> Any:
        pictures.append(len(wanted))
        return batch_get(wanted[:1] if len(pictures) <= 3 else wanted, consistent=consistent)

    monkeypatch.setattr(spread.store.inner, "batch_get", torn)
    spread.acquire(rpm=50)
    assert {shard: image.generation for shard, image in shards_of(spread).items()} == {
        shard: image.generation for shard, image in before.items()
    }
    assert consumed_milli(spread) == 90_000
    assert pictures[:4] == [2, 2, 16, 2]


def test_a_hole_is_closed_once(spread: Host, start_host: Callable[[], Host]) -> None:
    """Somebody else is first, and spends: what they made is not removed with what was left."""
    with_a_hole(spread, 1, (1,), rpm=slow(100))
    other = start_host()

    def first(verb: str, _request: Any) -> None:
        if verb == "transact":
            spread.store.before = None
            other.acquire(rpm=70)

    spread.store.before = first
    assert spread.refused(rpm=60).retry_after_ms > 1
    spread.acquire(rpm=30)
    assert consumed_milli(spread) == 100_000


def test_a_hole_is_not_closed_over_a_split(spread: Host, start_host: Callable[[], Host]) -> None:
    """What is left is split just then: the new shard goes with the rest, and stands in nobody's way."""
    with_a_hole(spread, 1, (1,), rpm=slow(100))
    other = start_host()

    def split(verb: str, _request: Any) -> None:
        if verb == "transact":
            spread.store.before = None
            assert other.sharding.split(spread.bucket())

    spread.store.before = split
    spread.acquire(rpm=60)
    assert list(shards_of(spread)) == [0]


def test_an_explanation_of_a_hole_is_what_an_acquire_would_find(spread: Host) -> None:
    with_a_hole(spread, 1, (1,), rpm=slow(100))
    request = AcquireRequest(NAMESPACE, ENTITY, RESOURCE, {"rpm": 60})
    assert spread.explain.explain(request).admissible
    spread.acquire(rpm=60)


@pytest.mark.parametrize("busy", [True, False])
@pytest.mark.parametrize(("splits", "lost"), [(1, 1), (2, 3)])
def test_what_is_left_of_a_bucket_goes_with_the_daily_merge(
    spread: Host, clock: FakeClock, splits: int, lost: int, busy: bool
) -> None:
    """Also where it is never full; the merge must not take the rest for the whole."""
    with_a_hole(spread, splits, (lost,), rpm=per_minute(100))
    clock.advance(TEN_MINUTES_MS)
    if busy:
        spread.random.draw = lambda _below: 0
        spread.acquire(rpm=1)
    assert spread.sharding.merge(spread.bucket())
    assert shards_of(spread) == {}
    spread.acquire(rpm=60)
    made = spread.bucket()
    assert (made.shard_count, made.limits["rpm"].parameters) == (1, per_minute(100).parameters)
    assert made.expires_at_s is not None


def test_half_a_merge_is_never_quoted(
    spread: Host, clock: FakeClock, start_host: Callable[[], Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that knew of fewer shards: its two pictures are equal, but the first had not asked for all."""
    spread.put_limits({"rpm": per_minute(100)})
    spread.acquire(rpm=0)
    split_all(spread)
    split_all(spread)
    clock.advance(TEN_MINUTES_MS)
    other = start_host()
    other.buckets.memory.images.learn(FIRST, 0, 2)
    batch_get = other.store.inner.batch_get
    pictures: list[int] = []

    def torn(wanted: Sequence[keys.Key], *, consistent: bool = False) -> Any:
        if not consistent:
            return batch_get(wanted, consistent=consistent)
        pictures.append(len(wanted))
        if len(pictures) != 2:
            return batch_get(wanted, consistent=consistent)
        before = batch_get(wanted[:2], consistent=True)
        assert spread.sharding.merge(spread.bucket())
        return before + batch_get(wanted[2:], consistent=True)

    monkeypatch.setattr(other.store.inner, "batch_get", torn)
    other.acquire(rpm=60)
    assert pictures[:2] == [2, 4]


def test_the_deepest_uneven_splits_are_merged_by_a_process_that_knows_nothing(
    spread: Host, clock: FakeClock, start_host: Callable[[], Host]
) -> None:
    spread.put_limits({"rpm": per_minute(1000)})
    spread.acquire(rpm=0)
    for shard in (0, 1, 3, 7):
        assert spread.sharding.split(shards_of(spread)[shard])
    clock.advance(TEN_MINUTES_MS)
    assert start_host().sharding.merge(spread.bucket())


@pytest.mark.parametrize("keyed", [True, False])
def test_a_chain_of_split_buckets_is_gathered_also_when_calls_take_time(
    host: Host, clock: FakeClock, keyed: bool
) -> None:
    """Each part must be written with a time at which what was seen of it is there."""
    host.entities.put(NAMESPACE, "team", EntityChange())
    host.entities.put(NAMESPACE, ENTITY, EntityChange(parent="team"))
    limit = Limit(1000, 1000, 60, 60)
    for entity in ("team", ENTITY):
        host.put_limits({"rpm": limit}, Scope(entity, RESOURCE))
    host.acquire(rpm=500)
    for entity in ("team", ENTITY):
        assert host.sharding.split(bucket_of(host, entity))
    host.store.after = lambda _verb, _request: clock.advance(20)
    if keyed:
        ask(host, rpm=500)
    else:
        host.acquire(rpm=500)


@pytest.mark.parametrize("keyed", [True, False])
def test_two_that_changed_places_are_each_charged_once(host: Host, start_host: Callable[[], Host], keyed: bool) -> None:
    """One parent from the cache, the other read just now: together they seem to stand above each other."""
    for entity in ("a", "b"):
        host.entities.put(NAMESPACE, entity, EntityChange())
        host.put_limits({"rpm": slow(100)}, Scope(entity, RESOURCE))
    host.entities.put(NAMESPACE, "a", EntityChange(parent="b"))
    other = start_host()
    other.configuration.resolve(NAMESPACE, "a", RESOURCE, None)
    host.entities.put(NAMESPACE, "a", EntityChange(parent=None))
    host.entities.put(NAMESPACE, "b", EntityChange(parent="a"))
    if keyed:
        ask(other, entity="a", rpm=1)
    else:
        other.ask({"rpm": 1}, entity="a")
    assert [bucket_of(host, entity).limits["rpm"].consumed_milli for entity in ("a", "b")] == [1_000, 1_000]


def test_nobody_is_registered_below_itself(host: Host) -> None:
    """A caller whose own entity is gone: at the top it would escape the limits of its org."""
    host.put_limits({"rpm": slow(100)}, Scope("app", RESOURCE))
    request = AcquireRequest(NAMESPACE, "app", RESOURCE, {"rpm": 1}, None, Registration("app", BY_SYSTEM))
    with pytest.raises(NotFound):
        host.service.acquire(request)
    assert host.store.inner.get(keys.entity(NAMESPACE, "app"), consistent=True) is None


def test_forgetting_survives_entries_that_expire_meanwhile(host: Host) -> None:
    class Ticking:
        now_ms = 0

        def __call__(self) -> int:
            self.now_ms += 1
            return self.now_ms

    timer = Ticking()
    configuration = Configuration(host.store, timer)
    for number in range(100):
        configuration.resolve(NAMESPACE, f"e{number}", RESOURCE, None)
    timer.now_ms = CACHE_MS - 120
    configuration.forget(NAMESPACE)
    assert configuration.statistics.entries == 0


def test_hot_seen_on_a_write_that_missed_is_acted_on(
    host: Host, clock: FakeClock, start_host: Callable[[], Host]
) -> None:
    host.put_limits({"rpm": FAST})
    host.acquire(rpm=1)
    clock.advance(1)
    host.acquire(rpm=1)
    _write_often(start_host(), host.bucket())
    clock.advance(1_000)
    start_host().acquire(rpm=500_000)
    host.acquire(rpm=1)
    assert list(shards_of(host)) == [0, 1]


def test_keyed_traffic_splits_a_hot_shard_too(host: Host, clock: FakeClock, start_host: Callable[[], Host]) -> None:
    host.put_limits({"rpm": FAST})
    other = start_host()
    for second in range(3):
        ask(host, replace(KEY, text=f"{second}"), rpm=1)
        other.acquire(rpm=1)
        _write_often(other, host.bucket())
        clock.advance(1_000)
        # What a process knows of others' writes it has from images of its own.
        host.acquire(rpm=0)
        ask(host, replace(KEY, text=f"{second} again"), rpm=1)
    assert len(shards_of(host)) > 1


def _write_often(host: Host, bucket: Bucket) -> None:
    for _ in range(900):
        host.buckets.writer.give_back(bucket.key, bucket.generation, {"rpm": 1})


def test_a_process_that_missed_a_merge_from_sixteen_gets_through(
    spread: Host, clock: FakeClock, start_host: Callable[[], Host]
) -> None:
    """15, 7, 3, 1 are gone; the form at shard 0 is guessed wrong on top."""
    spread.put_limits({"rpm": per_minute(1600)})
    spread.acquire(rpm=0)
    for _ in range(4):
        split_all(spread)
    stale = start_host()
    stale.random.draw = random.Random(1).randrange
    for _ in range(60):
        stale.acquire(rpm=1)
    clock.advance(10_000)
    assert spread.sharding.merge(spread.bucket())
    spread.acquire(rpm=10)
    stale.random.draw = lambda below: below - 1
    stale.acquire(rpm=1)


def test_the_largest_transaction_there_is(spread: Host) -> None:
    """Four members of sixteen shards and ten limits with long names, and the record: 65 elements."""
    names = [letter * 32 for letter in "abcdefghij"]
    chain = [letter * 100 for letter in "abcd"]
    parent = None
    for entity in chain:
        spread.entities.put(NAMESPACE, entity, EntityChange(parent=parent))
        spread.put_limits({name: slow(1000) for name in names}, Scope(entity, RESOURCE))
        parent = entity
    spread.ask(dict.fromkeys(names, 1), entity=chain[-1])
    for entity in chain:
        first = keys.bucket(NAMESPACE, entity, RESOURCE, 0)
        for _ in range(4):
            for image in spread.buckets.writer.look_at(first)[0]:
                assert spread.sharding.split(image)
    ask(spread, KEY, chain[-1], **dict.fromkeys(names, 990))
    found = spread.buckets.writer.look_at(keys.bucket(NAMESPACE, chain[0], RESOURCE, 0))[0]
    assert sum(image.limits[names[0]].consumed_milli for image in found) == 991_000
