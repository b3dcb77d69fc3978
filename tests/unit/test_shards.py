"""Shares, lineage, and what several shards decide together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core import bucket as math
from sluice.core import shards
from sluice.core.bucket import Parameters
from sluice.core.shards import TakeFrom, View, Wait

NOW = 1_800_000_000_000
counts_of_two = st.sampled_from([1, 2, 4, 8, 16])


def split_at(counts: dict[int, int], shard: int) -> dict[int, int]:
    """One more split, as rule 3.2 has it."""
    count = counts[shard]
    return {**counts, shard: 2 * count, shard + count: 2 * count}


@st.composite
def layouts(draw: st.DrawFn) -> dict[int, int]:
    """A bucket after any splits of any shards."""
    counts = {0: 1}
    for _ in range(draw(st.integers(0, 12))):
        splittable = [shard for shard, count in counts.items() if count < shards.SHARDS_MAX]
        if not splittable:
            break
        counts = split_at(counts, draw(st.sampled_from(sorted(splittable))))
    return counts


@given(layouts(), st.integers(0, 10**15))
def test_shares_add_up_to_the_whole_after_any_mix_of_splits(counts: dict[int, int], whole: int) -> None:
    assert sum(shards.share(whole, shard, count) for shard, count in counts.items()) == whole


@given(st.integers(1, 10**15), counts_of_two.filter(lambda n: n < 16), st.data())
def test_halving_a_share_gives_the_shares_of_twice_the_count(whole: int, count: int, data: st.DataObject) -> None:
    shard = data.draw(st.integers(0, count - 1))
    parameters = Parameters(whole, whole + 7, 1000, 60_000)
    mine = shards.shard_parameters(parameters, shard, count)
    kept, given_away = shards.halves(mine)
    assert kept == shards.shard_parameters(parameters, shard, 2 * count)
    assert given_away == shards.shard_parameters(parameters, shard + count, 2 * count)


@given(layouts(), st.data())
def test_every_number_is_located_at_the_shard_that_has_its_tokens(counts: dict[int, int], data: st.DataObject) -> None:
    total = shards.count_of(counts)
    pick = data.draw(st.integers(0, total - 1))
    found = shards.located(pick, counts)
    assert found in counts
    # Whoever was not split further stands for all that would have come from it.
    assert pick % counts[found] == found


@given(layouts(), st.data())
def test_each_shard_is_chosen_in_proportion_to_its_share(counts: dict[int, int], data: st.DataObject) -> None:
    total = shards.count_of(counts)
    chosen = [shards.located(pick, counts) for pick in range(total)]
    assert {shard: chosen.count(shard) * counts[shard] for shard in counts} == dict.fromkeys(counts, total)


@given(layouts())
def test_what_is_not_known_is_taken_to_exist(counts: dict[int, int]) -> None:
    assert shards.located(13, {}) == 13
    assert all(shards.located(shard, counts) == shard for shard in counts)


def test_a_merged_bucket_makes_everything_else_forgotten() -> None:
    assert shards.learned({0: 4, 1: 4, 2: 4, 3: 4}, 0, 1) == {0: 1}
    assert shards.learned({0: 4, 1: 4, 2: 4, 3: 4}, 1, 2) == {0: 4, 1: 2, 2: 4}
    assert shards.learned({}, 5, 8) == {5: 8}
    assert shards.count_of({}) == 1


@given(layouts(), st.data())
def test_only_a_picture_of_one_moment_is_complete(counts: dict[int, int], data: st.DataObject) -> None:
    assert shards.is_complete(counts)
    splittable = sorted(shard for shard, count in counts.items() if count < shards.SHARDS_MAX)
    if not splittable:
        return
    shard = data.draw(st.sampled_from(splittable))
    after = split_at(counts, shard)
    child = shard + counts[shard]
    # The donor was read before the split and the child after it, or the other way round.
    assert not shards.is_complete({**counts, child: after[child]})
    assert not shards.is_complete({**counts, shard: after[shard]})
    assert shards.missing({**counts, shard: after[shard]}) == {child}
    assert shards.missing(counts) == shards.missing({**counts, child: after[child]}) == set()


def test_hot_is_measured_over_the_time_that_passed() -> None:
    assert shards.is_hot(800, 1000)
    assert not shards.is_hot(799, 1000)
    assert shards.is_hot(1600, 2000)


@pytest.mark.parametrize(("shard", "above"), [(1, 0), (2, 0), (3, 1), (4, 0), (5, 1), (6, 2), (7, 3), (12, 4)])
def test_the_donor_is_in_the_number(shard: int, above: int) -> None:
    assert shards.donor(shard) == above


def views(parameters: Parameters, levels: dict[int, int], count: int, judged_ms: int = NOW) -> list[View]:
    found = []
    for shard, level_milli in levels.items():
        mine = shards.shard_parameters(parameters, shard, count)
        balance_milli = level_milli - math.refill_milli(mine, judged_ms)
        found.append(View(shard, {"rpm": mine}, {"rpm": balance_milli}, judged_ms))
    return found


MINUTE = Parameters(100_000, 100_000, 100_000, 60_000)


def test_one_shard_that_covers_it_gives_it() -> None:
    decided = shards.decide(views(MINUTE, {0: 3_000, 1: 9_000}, 2), {"rpm": 2_000}, NOW)
    assert decided == TakeFrom(((1, {"rpm": 2_000}),))


def test_many_give_what_none_has_alone_the_fullest_first() -> None:
    """30 of 100 a minute on two shards: at 50 a minute each, one alone needs 18 s and more."""
    decided = shards.decide(views(MINUTE, {0: 14_000, 1: 16_500}, 2), {"rpm": 30_000}, NOW)
    assert decided == TakeFrom(((1, {"rpm": 16_500}), (0, {"rpm": 13_500})))


def test_above_one_share_only_many_can_give_it() -> None:
    decided = shards.decide(views(MINUTE, {0: 50_000, 1: 50_000}, 2), {"rpm": 80_000}, NOW)
    assert decided == TakeFrom(((0, {"rpm": 50_000}), (1, {"rpm": 30_000})))


def test_waiting_for_one_is_better_than_a_transaction_when_it_is_soon() -> None:
    """50 a minute: 833 millitokens a second."""
    decided = shards.decide(views(MINUTE, {0: 200, 1: 900}, 2), {"rpm": 1_000}, NOW)
    assert isinstance(decided, Wait)
    assert decided.admit_at_ms == NOW + 120
    assert [(one.limit, one.available_milli) for one in decided.short] == [("rpm", 900)]


def test_a_debt_binds_its_own_shard_only() -> None:
    in_debt = views(MINUTE, {0: -40_000, 1: 20_000}, 2)
    assert shards.decide(in_debt, {"rpm": 20_000}, NOW) == TakeFrom(((1, {"rpm": 20_000}),))
    assert shards.available_milli(in_debt, "rpm") == 20_000


def test_zero_wants_one_shard_that_is_not_in_debt() -> None:
    assert shards.decide(views(MINUTE, {0: -1, 1: 0}, 2), {"rpm": 0}, NOW) == TakeFrom(((1, {"rpm": 0}),))
    decided = shards.decide(views(MINUTE, {0: -5_000, 1: -10_000}, 2), {"rpm": 0}, NOW)
    assert isinstance(decided, Wait)
    assert decided.admit_at_ms == NOW + 6_000


def test_each_limit_is_taken_from_its_own_fullest_shards() -> None:
    two = [
        View(0, {"a": MINUTE, "b": MINUTE, "c": MINUTE}, _balances(a=9_000, b=1_000, c=500), NOW),
        View(1, {"a": MINUTE, "b": MINUTE, "c": MINUTE}, _balances(a=1_000, b=9_000, c=400), NOW),
    ]
    decided = shards.decide(two, {"a": 9_000, "b": 9_000, "c": 0}, NOW)
    assert decided == TakeFrom(((0, {"a": 9_000, "c": 0}), (1, {"b": 9_000})))


def _balances(**levels_milli: int) -> dict[str, int]:
    return {name: level - math.refill_milli(MINUTE, NOW) for name, level in levels_milli.items()}


levels = st.integers(-30_000, 50_000)


@given(
    st.lists(levels, min_size=1, max_size=4).filter(lambda found: len(found) in {1, 2, 4}),
    st.integers(0, 100_000),
    st.integers(0, 500),
)
def test_a_wait_is_exact(found: list[int], amount_milli: int, later_ms: int) -> None:
    """At the quoted time it passes, a millisecond before it does not, whether one shard or all together give it."""
    seen = views(MINUTE, dict(enumerate(found)), len(found))
    now_ms = NOW + later_ms
    decided = shards.decide(seen, {"rpm": amount_milli}, now_ms)
    if isinstance(decided, TakeFrom):
        assert sum(part["rpm"] for _, part in decided.parts) == amount_milli
        for shard, part in decided.parts:
            assert 0 <= part["rpm"] <= max(0, seen[shard].level_milli("rpm", NOW))
        return
    assert decided.admit_at_ms > now_ms
    assert _passes(seen, amount_milli, decided.admit_at_ms)
    assert decided.admit_at_ms == now_ms + 1 or not _passes(seen, amount_milli, decided.admit_at_ms - 1)
    assert max(one.admit_at_ms for one in decided.short) <= decided.admit_at_ms


def _passes(seen: list[View], amount_milli: int, at_ms: int) -> bool:
    again = [View(view.shard, view.parameters, view.balances_milli, at_ms) for view in seen]
    return isinstance(shards.decide(again, {"rpm": amount_milli}, at_ms), TakeFrom)
