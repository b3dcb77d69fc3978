"""What a record counts, how a batch is folded, and that counting is a join."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core import snapshots
from sluice.core.snapshots import (
    EMPTY,
    NAMED_GENERATIONS_MAX,
    NO_INCREASE,
    Image,
    Increase,
    Interval,
    Joined,
    Observation,
    ShardName,
    Tally,
    Window,
)

HOUR_MS = 3_600_000
DAY_MS = 86_400_000
MIDNIGHT_MS = 1_800_057_600_000
NOON_MS = MIDNIGHT_MS + 12 * HOUR_MS
SHARD = ShardName("ns", "user-1", "gpt-4", None, 0)


def image(version: int, generation: int = 7, **consumed: int) -> Image:
    return Image(version, generation, 1, consumed)


def seen(
    old: Image | None, new: Image | None, at_ms: int = NOON_MS, position: int = 0, shard: ShardName = SHARD
) -> Observation:
    return Observation(position, shard, old, new, at_ms)


def interval(first: int, last: int, generation: int = 7, rate: int = 10) -> Interval:
    """Of a shard that consumes as much with every write."""
    return Interval(generation, first, {"rpm": first * rate}, last, {"rpm": last * rate})


def tallies_after(*batches: Sequence[Interval]) -> dict[int, Tally]:
    tallies: dict[int, Tally] = {}
    for batch in batches:
        joined = snapshots.join(tallies, {0: batch})
        if joined is not None:
            tallies |= joined.tallies
    return tallies


class TestWhatARecordCounts:
    def test_an_insert_counts_from_zero(self) -> None:
        assert snapshots.interval_of(seen(None, image(1, rpm=5))) == Interval(7, 0, {}, 1, {"rpm": 5})

    def test_a_change_counts_the_difference(self) -> None:
        counted = snapshots.interval_of(seen(image(4, rpm=5), image(5, rpm=8)))
        assert counted == Interval(7, 4, {"rpm": 5}, 5, {"rpm": 8})

    def test_another_generation_counts_from_zero(self) -> None:
        counted = snapshots.interval_of(seen(image(4, rpm=5), image(1, generation=8, rpm=2)))
        assert counted == Interval(8, 0, {}, 1, {"rpm": 2})

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (image(9, rpm=5), None),
            (None, image(0, rpm=5)),
            (image(3, generation=6, rpm=1), image(0, rpm=5)),
            (None, image(1)),
            (None, image(1, rpm=0)),
            (image(4, rpm=5), image(5, rpm=5)),
            (image(4, rpm=5), image(5, rpm=5, added=0)),
        ],
        ids=["removed", "moved", "moved in place", "nothing", "a new shard", "split", "a limit added"],
    )
    def test_what_consumed_nothing_counts_nothing(self, old: Image | None, new: Image | None) -> None:
        assert snapshots.interval_of(seen(old, new)) is None

    def test_a_give_back_counts_below_zero(self) -> None:
        (fold, _) = snapshots.fold([seen(image(4, rpm=5), image(5, rpm=2))])
        joined = snapshots.join({}, fold.intervals)
        assert joined is not None
        assert joined.increase == Increase({"rpm": -3}, 1)

    def test_a_limit_that_is_gone_counts_as_nothing(self) -> None:
        assert snapshots.difference_milli({"old": 3, "same": 1}, {"new": 2, "same": 1}) == {"old": -3, "new": 2}


class TestFolding:
    def test_by_hour_and_day_of_the_record_in_utc(self) -> None:
        last_ms = MIDNIGHT_MS + DAY_MS - 1
        folds = snapshots.fold(
            [seen(None, image(1, rpm=1), last_ms), seen(image(1, rpm=1), image(2, rpm=3), last_ms + 1, 1)]
        )
        assert [(fold.name.window, fold.name.starts_ms, fold.first_position) for fold in folds] == [
            (Window.HOUR, MIDNIGHT_MS + 23 * HOUR_MS, 0),
            (Window.HOUR, MIDNIGHT_MS + DAY_MS, 1),
            (Window.DAY, MIDNIGHT_MS, 0),
            (Window.DAY, MIDNIGHT_MS + DAY_MS, 1),
        ]
        # The second window begins at its own record, not where the first one began.
        assert folds[1].intervals == {0: [Interval(7, 1, {"rpm": 1}, 2, {"rpm": 3})]}
        assert folds[0].name.ends_ms == folds[1].name.starts_ms

    def test_one_interval_per_shard_and_generation(self) -> None:
        other = ShardName("ns", "user-1", "gpt-4", None, 3)
        hour, _ = snapshots.fold(
            [
                seen(image(1, rpm=1), image(2, rpm=2)),
                seen(image(2, rpm=2), image(3, rpm=2)),
                seen(None, image(1, rpm=9), shard=other),
                seen(image(3, rpm=2), image(4, rpm=5)),
                seen(image(4, rpm=5), None),
                seen(None, image(1, generation=8, rpm=4)),
            ]
        )
        assert hour.intervals == {
            0: [Interval(7, 1, {"rpm": 1}, 4, {"rpm": 5}), Interval(8, 0, {}, 1, {"rpm": 4})],
            3: [Interval(7, 0, {}, 1, {"rpm": 9})],
        }

    def test_per_call_limits_and_other_ids_are_counted_apart(self) -> None:
        names = [SHARD, ShardName("ns", "user-1", "gpt-4", "fp", 0), ShardName("ms", "user-1", "gpt-4", None, 0)]
        folds = snapshots.fold([seen(None, image(1, rpm=1), shard=name) for name in names])
        assert len({fold.name for fold in folds}) == 2 * len(names)

    def test_a_later_version_is_not_in_an_earlier_window(self) -> None:
        """Times are approximate: without this the two windows would each count both."""
        folds = snapshots.fold(
            [seen(None, image(1, rpm=1), NOON_MS), seen(image(1, rpm=1), image(2, rpm=2), NOON_MS - 1)]
        )
        assert [fold.name.starts_ms for fold in folds] == [NOON_MS, MIDNIGHT_MS]

    def test_a_record_that_comes_again_keeps_its_window(self) -> None:
        """Behind a later one of its own generation, or of the next."""
        first = seen(None, image(1, rpm=1), NOON_MS - 1)
        later = seen(image(1, rpm=1), image(2, rpm=2), NOON_MS)
        for between in (later, seen(None, image(1, generation=8, rpm=1), NOON_MS)):
            folds = snapshots.fold([first, between, first])
            hours = {fold.name.starts_ms: fold.intervals[0] for fold in folds if fold.name.window is Window.HOUR}
            assert hours[NOON_MS - HOUR_MS] == [Interval(7, 0, {}, 1, {"rpm": 1})]
            assert [one.from_version for one in hours[NOON_MS]] == [1 if between is later else 0]


class TestJoining:
    def test_the_same_again_changes_nothing(self) -> None:
        tallies = tallies_after([interval(0, 5)])
        for again in (interval(0, 5), interval(0, 1), interval(2, 4), interval(4, 5)):
            assert snapshots.join(tallies, {0: [again]}) is None

    @pytest.mark.parametrize(
        ("more", "consumed", "events"),
        [
            (interval(5, 7), 20, 2),
            (interval(3, 7), 20, 2),
            (interval(9, 10), 50, 5),
            (interval(1, 3), 10, 1),
            (interval(1, 9), 50, 5),
        ],
        ids=["next", "overlapping", "behind a gap", "before", "around"],
    )
    def test_only_what_is_beyond_the_ends_is_added(self, more: Interval, consumed: int, events: int) -> None:
        joined = snapshots.join(tallies_after([interval(2, 5)]), {0: [more]})
        assert joined is not None
        assert joined.increase == Increase({"rpm": consumed}, events)

    def test_a_gap_inside_heals_and_the_lost_records_add_nothing_later(self) -> None:
        tallies = tallies_after([interval(0, 3)], [interval(6, 9)])
        assert tallies[0].kept == (interval(0, 9),)
        assert snapshots.join(tallies, {0: [interval(3, 6)]}) is None

    def test_a_window_that_gives_back_all_it_took_is_still_an_extension(self) -> None:
        back = Interval(7, 5, {"rpm": 50}, 6, {"rpm": 20})
        joined = snapshots.join(tallies_after([interval(2, 5)]), {0: [back]})
        assert joined == Joined({0: Tally((Interval(7, 2, {"rpm": 20}, 6, {"rpm": 20}),))}, Increase({"rpm": -30}, 1))
        more = snapshots.join(tallies_after([interval(0, 3)]), {0: [interval(3, 5)], 1: [interval(0, 2, rate=-10)]})
        assert more is not None
        assert more.increase == Increase({}, 4)

    def test_two_generations_are_kept_and_older_ones_only_named(self) -> None:
        tallies = tallies_after([interval(0, 3, 1)], [interval(0, 3, 2)], [interval(3, 4, 1)], [interval(0, 3, 3)])
        assert tallies[0] == Tally((interval(0, 4, 1), interval(0, 3, 3)), (2,))
        assert snapshots.extended(tallies[0], interval(0, 9, 2)) == (tallies[0], NO_INCREASE)
        assert not tallies[0].is_new(2)
        assert not tallies[0].is_new(3)
        assert tallies[0].is_new(4)

    def test_names_are_bounded(self) -> None:
        tallies = tallies_after(*([interval(0, 1, generation)] for generation in range(NAMED_GENERATIONS_MAX + 9)))
        assert len(tallies[0].named) == NAMED_GENERATIONS_MAX
        assert tallies[0].named[0] == 7

    @given(st.permutations([(0, 2), (2, 3), (3, 7), (1, 6), (6, 9), (8, 9)]), st.sets(st.integers(0, 5)))
    def test_order_repetition_and_cuts_do_not_matter(self, parts: list[tuple[int, int]], cuts: set[int]) -> None:
        batches: list[list[Interval]] = [[]]
        for number, (first, last) in enumerate([*parts, *parts[:3]]):
            if number in cuts:
                batches.append([])
            batches[-1].append(interval(first, last))
        assert tallies_after(*batches) == {0: Tally((interval(0, 9),))}


class TestGaps:
    def test_between_windows_it_is_what_was_consumed_that_counts(self) -> None:
        before = interval(0, 5)
        assert snapshots.is_gap(before, interval(6, 8))
        assert not snapshots.is_gap(before, interval(5, 8))
        # A split in between: a version is missing, but nothing that was consumed.
        assert not snapshots.is_gap(before, Interval(7, 6, {"rpm": 50}, 7, {"rpm": 60}))
        assert not snapshots.is_gap(before, interval(6, 8, generation=8))
        assert not snapshots.is_gap(before, interval(3, 8))

    def test_what_follows(self) -> None:
        assert snapshots.follows(interval(0, 5), interval(5, 8))
        assert not snapshots.follows(interval(0, 5), interval(6, 8))
        assert not snapshots.follows(interval(0, 5), interval(5, 8, generation=8))


def test_an_empty_tally_knows_nobody() -> None:
    assert EMPTY.of(7) is None
    assert EMPTY.is_new(7)
