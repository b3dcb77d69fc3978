"""How records of the stream are read, and how snapshots are stored."""

from typing import Any

import pytest

from sluice.core import snapshots
from sluice.core.snapshots import Image, Interval, Observation, SnapshotName, Tally, Window
from sluice.repository import keys
from sluice.repository import snapshots as stored
from sluice.repository.shapes import UnknownShape
from sluice.repository.wire import Item, item_to_wire
from tests.fakes import FakeClock
from tests.simulation.table import SimulatedTable
from tests.simulation.values import item_bytes
from tests.unit.test_snapshots import DAY_MS, HOUR_MS, MIDNIGHT_MS, NOON_MS, SHARD, interval

HOUR = SnapshotName("ns", "user-1", "gpt-4", None, Window.HOUR, NOON_MS)
DAY = SnapshotName("ns", "user-1", "gpt-4", None, Window.DAY, MIDNIGHT_MS)


def bucket(**more: Any) -> Item:
    item: Item = {
        "PK": "ns/BUCKET#user-1#gpt-4#0",
        "SK": "#STATE",
        "kind": "bucket",
        "ns": "ns",
        "entity_id": "user-1",
        "resource": "gpt-4",
        "shard": 0,
        "shard_count": 1,
        "v": 3,
        "gen": 7,
        "b_rpm_tk": -5,
        "b_rpm_tc": 10,
        "b_x_tc_tc": 4,
    }
    return {**item, **more}


def record(old: Item | None, new: Item | None, at_s: float = 1_800_000_000.0) -> dict[str, Any]:
    change: dict[str, Any] = {"ApproximateCreationDateTime": at_s, "SequenceNumber": "1"}
    if old is not None:
        change["OldImage"] = item_to_wire(old)
    if new is not None:
        change["NewImage"] = item_to_wire(new)
    return {"dynamodb": change}


class TestReadingRecords:
    def test_a_change(self) -> None:
        read = stored.observe(record(bucket(), bucket(v=4, b_rpm_tc=12, shard_count=2)), 3)
        assert read == Observation(
            3,
            SHARD,
            Image(3, 7, 1, {"rpm": 10, "x_tc": 4}),
            Image(4, 7, 2, {"rpm": 12, "x_tc": 4}),
            1_800_000_000_000,
        )

    def test_made_removed_and_under_per_call_limits(self) -> None:
        made, removed = stored.observe(record(None, bucket(call_lh="fp")), 0), stored.observe(record(bucket(), None), 0)
        assert made is not None
        assert removed is not None
        assert (made.old, made.shard.call_fingerprint) == (None, "fp")
        assert (removed.new, removed.shard) == (None, SHARD)

    def test_an_older_layout_is_not_seen(self) -> None:
        read = stored.observe(record({"PK": "a", "SK": "b", "tk": 5}, bucket(v=0)), 0)
        assert read is not None
        assert read.old is None

    @pytest.mark.parametrize("kind", ["snapshot", "limits", "entity"])
    def test_other_items_are_left_out(self, kind: str) -> None:
        assert stored.observe(record(bucket(kind=kind), bucket(kind=kind)), 0) is None

    @pytest.mark.parametrize(
        "damaged",
        [
            {},
            {"dynamodb": None},
            record(None, bucket()) | {"dynamodb": {"NewImage": item_to_wire(bucket())}},
            record(None, bucket(v="3")),
            record(None, bucket(b_rpm_tc="many")),
            {"dynamodb": {"NewImage": {"kind": {"S": "bucket"}, "v": {"N": "1.5"}}}},
            {"dynamodb": {"NewImage": {"kind": {"S": "bucket"}, "v": {"SS": ["1"]}}}},
        ],
    )
    def test_what_nobody_understands_is_told(self, damaged: dict[str, Any]) -> None:
        with pytest.raises(UnknownShape):
            stored.observe(damaged, 0)


def counted(table: SimulatedTable, name: SnapshotName, intervals: dict[int, list[Interval]]) -> bool:
    """Whether it was written, from the snapshot as it is."""
    item = table.get(keys.usage(name))
    tallies = {} if item is None else stored.decode_tallies(item)
    joined = snapshots.join(tallies, intervals)
    if joined is None:
        return False
    table.update(stored.count(name, tallies, joined, table.clock_ms()))
    return True


class TestStoring:
    def test_keys(self) -> None:
        assert keys.usage(HOUR) == ("ns/ENTITY#user-1", "#USAGE#gpt-4#hour#20270116T12")
        assert keys.usage(DAY) == ("ns/ENTITY#user-1", "#USAGE#gpt-4#day#20270116")
        assert keys.usage_indexes(HOUR) == {
            "GSI2PK": "ns/RESOURCE#gpt-4",
            "GSI2SK": "USAGE#hour#20270116T12#user-1",
            **keys.namespace_index("ns", keys.usage(HOUR)),
        }
        own = SnapshotName("n#s", "u/1", "g!4", "fp", Window.DAY, MIDNIGHT_MS)
        assert keys.usage(own) == ("n%23s/ENTITY#u%2F1", "#USAGE#g%214!fp#day#20270116")

    def test_a_snapshot_is_made_and_counted_up(self) -> None:
        clock = FakeClock(NOON_MS + 5)
        table = SimulatedTable(clock)
        assert counted(table, HOUR, {0: [interval(0, 3)]})
        clock.advance(10)
        assert counted(table, HOUR, {0: [interval(3, 4)], 2: [interval(0, 2, generation=9)]})
        assert not counted(table, HOUR, {0: [interval(1, 4)]})
        (item,) = table.items()
        assert stored.decode_snapshot(item) == stored.Snapshot(
            name=HOUR,
            total_events=6,
            consumed_milli={"rpm": 60},
            tallies={0: Tally((interval(0, 4),)), 2: Tally((interval(0, 2, generation=9),))},
            version=2,
            created_at_ms=NOON_MS + 5,
            updated_at_ms=NOON_MS + 15,
            expires_at_s=(NOON_MS + HOUR_MS) // 1000 + 35 * 86_400,
        )

    def test_a_day_is_kept_longer_and_per_call_limits_are_told(self) -> None:
        table = SimulatedTable(FakeClock())
        own = SnapshotName("ns", "user-1", "gpt-4", "fp", Window.DAY, MIDNIGHT_MS)
        counted(table, own, {0: [interval(0, 3)]})
        (item,) = table.items()
        read = stored.decode_snapshot(item)
        assert (read.name, read.expires_at_s) == (own, (MIDNIGHT_MS + DAY_MS) // 1000 + 400 * 86_400)

    @pytest.mark.parametrize("stale", [{}, {0: Tally((interval(0, 2),))}], ids=["none seen", "an older one seen"])
    def test_whoever_saw_another_interval_writes_nothing(self, stale: dict[int, Tally]) -> None:
        table = SimulatedTable(FakeClock())
        counted(table, HOUR, {0: [interval(0, 3)]})
        joined = snapshots.join(stale, {0: [interval(3, 4)]})
        assert joined is not None
        outcome = table.update(stored.count(HOUR, stale, joined, 0))
        assert outcome.item is not None
        assert stored.decode_tallies(outcome.item) == {0: Tally((interval(0, 3),))}

    def test_shards_do_not_stand_in_each_others_way(self) -> None:
        """Two that have both seen nothing, each with a shard of its own."""
        table = SimulatedTable(FakeClock())
        for shard in (0, 3):
            joined = snapshots.join({}, {shard: [interval(0, 3)]})
            assert joined is not None
            table.update(stored.count(HOUR, {}, joined, shard))
        (item,) = table.items()
        assert stored.decode_snapshot(item).consumed_milli == {"rpm": 60}
        assert item["created_at"] == 0

    @pytest.mark.parametrize("limit", ["c_", "v0", "ttl", "gen", "v", "total_events", "i_0", "kind", "updated_at"])
    def test_no_name_of_a_limit_is_one_of_an_attribute(self, limit: str) -> None:
        table = SimulatedTable(FakeClock())
        counted(table, HOUR, {0: [Interval(7, 0, {}, 1, {limit: 5})]})
        counted(table, HOUR, {0: [Interval(7, 1, {limit: 5}, 2, {limit: 7})]})
        (item,) = table.items()
        read = stored.decode_snapshot(item)
        assert (read.consumed_milli, read.total_events, read.version) == ({limit: 7}, 2, 2)

    def test_the_largest_one(self) -> None:
        """Ten limits with the longest names in sixteen shards, each made twice, all in one write."""
        names = [f"limit_{number:026d}" for number in range(10)]
        amounts = dict.fromkeys(names, 10**15)
        twice = dict.fromkeys(names, 2 * 10**15)
        name = SnapshotName("n" * 128, "e" * 128, "r" * 128, "f" * 16, Window.HOUR, NOON_MS)
        table = SimulatedTable(FakeClock())
        everything = {
            shard: [Interval(10**18 + generation, 5, amounts, 10**9, twice) for generation in range(3)]
            for shard in range(16)
        }
        further = {
            shard: [Interval(10**18 + 2, 10**9, twice, 10**9 + 1, dict.fromkeys(names, 3 * 10**15))]
            for shard in range(16)
        }
        for intervals in (everything, further):
            item = table.get(keys.usage(name))
            tallies = {} if item is None else stored.decode_tallies(item)
            joined = snapshots.join(tallies, intervals)
            assert joined is not None
            request = stored.count(name, tallies, joined, 0)
            assert len(request["UpdateExpression"]) < 1024
            assert len(request["ConditionExpression"]) < 1024
            table.update(request)
        (item,) = table.items()
        assert item_bytes(item) < 40 * 1024
        assert sum(stored.decode_snapshot(item).consumed_milli.values()) == 16 * 10 * 4 * 10**15

    @pytest.mark.parametrize(
        "damage",
        [
            {"window": "week"},
            {"i_0": "text"},
            {"i_0": ["text"]},
            {"i_0": [{"gen": "x"}]},
            {"kind": "bucket"},
            {"c_rpm": "many"},
        ],
    )
    def test_an_unknown_shape_is_told(self, damage: Item) -> None:
        table = SimulatedTable(FakeClock())
        counted(table, HOUR, {0: [interval(0, 3)]})
        (item,) = table.items()
        with pytest.raises(UnknownShape):
            stored.decode_snapshot({**item, **damage})

    def test_the_windows_before_are_asked_for_the_latest_first(self) -> None:
        request = stored.earlier_query(HOUR, 3)
        assert request["ExpressionAttributeValues"] == {
            ":pk": "ns/ENTITY#user-1",
            ":first": "#USAGE#gpt-4#hour#",
            ":last": "#USAGE#gpt-4#hour#20270116T11",
        }
        assert (request["Limit"], request["ScanIndexForward"], request["ConsistentRead"]) == (3, False, True)
