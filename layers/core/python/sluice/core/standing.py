"""Where a whole bucket stands: its shards put together again, in the units that people see. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluice.core.bucket import MILLI, Parameters, level_milli


@dataclass(frozen=True, slots=True)
class ShardLimit:
    """One limit of one shard, of so many."""

    parameters: Parameters
    balance_milli: int
    shard_count: int


@dataclass(frozen=True, slots=True)
class Standing:
    """One limit of a bucket. Whole tokens; `available` is rounded down, once, and negative while in debt."""

    capacity: int
    burst: int
    available: int
    refill_amount: int
    refill_period_seconds: int


@dataclass(frozen=True, slots=True)
class Sum:
    available: int
    capacity: int


def standing(shards: Sequence[ShardLimit], now_ms: int) -> Standing:
    """Of at least one shard. Shares add up to the whole; the rate of a shard is the n-th part of it."""
    first = shards[0]
    return Standing(
        capacity=sum(shard.parameters.capacity_milli for shard in shards) // MILLI,
        burst=sum(shard.parameters.burst_milli for shard in shards) // MILLI,
        available=sum(level_milli(shard.parameters, shard.balance_milli, now_ms) for shard in shards) // MILLI,
        refill_amount=first.parameters.refill_amount_milli // MILLI,
        refill_period_seconds=first.parameters.refill_period_ms // first.shard_count // MILLI,
    )


def sums(standings: Iterable[Mapping[str, Standing]]) -> dict[str, Sum]:
    """By name of the limit, over many buckets."""
    added: dict[str, Sum] = {}
    for limits in standings:
        for name, one in limits.items():
            before = added.get(name, Sum(0, 0))
            added[name] = Sum(before.available + one.available, before.capacity + one.capacity)
    return added
