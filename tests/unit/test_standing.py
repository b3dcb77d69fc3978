"""A bucket put together again from its shards."""

from hypothesis import given
from hypothesis import strategies as st

from sluice.core.bucket import Parameters, level_milli, top_milli
from sluice.core.limits import Limit
from sluice.core.shards import shard_parameters
from sluice.core.standing import ShardLimit, Standing, Sum, standing, sums

NOW_MS = 1_800_000_000_000
WHOLE = Limit(capacity=1001, burst=2003, refill_amount=7, refill_period_seconds=60)


def shards_of(whole: Parameters, count: int, balance_of: int | None = None) -> list[ShardLimit]:
    """All of a count, full unless a balance is given."""
    shares = [shard_parameters(whole, number, count) for number in range(count)]
    return [
        ShardLimit(share, top_milli(share, NOW_MS) if balance_of is None else balance_of, count) for share in shares
    ]


@given(st.sampled_from([1, 2, 4, 8, 16]))
def test_the_shares_of_any_count_are_the_whole(count: int) -> None:
    assert standing(shards_of(WHOLE.parameters, count), NOW_MS) == Standing(
        capacity=1001, burst=2003, available=2003, refill_amount=7, refill_period_seconds=60
    )


def test_shards_of_different_counts_are_the_whole() -> None:
    """A split is carried from shard to shard: 0 and 2 of four, 1 still of two."""
    two = shards_of(WHOLE.parameters, 2)
    four = shards_of(WHOLE.parameters, 4)
    whole = standing([four[0], two[1], four[2]], NOW_MS)
    assert (whole.capacity, whole.burst, whole.available, whole.refill_period_seconds) == (1001, 2003, 2003, 60)


def test_levels_are_summed_before_they_are_rounded() -> None:
    parameters = Parameters(10_000, 10_000, 1, 10**15)
    assert level_milli(parameters, 600, 0) == 600
    halves = [ShardLimit(parameters, 600, 2), ShardLimit(parameters, 600, 2)]
    assert standing(halves, 0).available == 1


def test_a_shard_in_debt_counts_negative() -> None:
    parameters = Parameters(10_000, 10_000, 1, 10**15)
    assert standing([ShardLimit(parameters, 2_000, 2), ShardLimit(parameters, -4_500, 2)], 0).available == -3


def test_sums_are_by_name() -> None:
    one = Standing(capacity=10, burst=20, available=-3, refill_amount=1, refill_period_seconds=1)
    other = Standing(capacity=5, burst=6, available=4, refill_amount=1, refill_period_seconds=1)
    assert sums([{"rpm": one, "tpm": one}, {"rpm": other}]) == {"rpm": Sum(1, 15), "tpm": Sum(-3, 10)}
    assert sums([]) == {}
