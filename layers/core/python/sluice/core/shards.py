"""Shards of one bucket: their shares, where a request goes, and when it can pass. Pure.

A bucket that is written too often for one partition is split, again and again up to SHARDS_MAX. Shard i of n has the
share `(x + n - 1 - i) // n` of every amount and refills at the n-th part of the rate. The shares of any mix of splits
add up to the whole, and what holds for one bucket holds for each shard.

    shard 0 of 1  ->  0 and 1 of 2  ->  0 and 2, 1 and 3 of 4  -> ...

Shard i + n comes from shard i when that has n, so who begot whom is in the numbers: clearing the highest bit of a shard
gives its donor. A shard exists if and only if its donor has a higher count than the bit that was cleared; the counts of
the shards that were seen therefore tell which others exist.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sluice.core import bucket as math
from sluice.core.bucket import Parameters

SHARDS_MAX: Final = 16
# Four fifths of what one partition takes.
HOT_WRITES_PER_S: Final = 800
PRESSURE_LEAST_MS: Final = 1_000
# Below this, waiting for one shard is better than a transaction over many.
ALONE_SOON_MS: Final = 1_000

Counts = Mapping[int, int]
"""The shard count that each seen shard was last seen with."""


def share(whole: int, shard: int, count: int) -> int:
    return (whole + count - 1 - shard) // count


def shard_parameters(whole: Parameters, shard: int, count: int) -> Parameters:
    return Parameters(
        capacity_milli=share(whole.capacity_milli, shard, count),
        burst_milli=share(whole.burst_milli, shard, count),
        refill_amount_milli=whole.refill_amount_milli,
        refill_period_ms=whole.refill_period_ms * count,
    )


def halves(parameters: Parameters) -> tuple[Parameters, Parameters]:
    """What a shard keeps when it is split, and what its child gets: the shares of twice the count."""
    return shard_parameters(parameters, 0, 2), shard_parameters(parameters, 1, 2)


def donor(shard: int) -> int:
    """The shard from which this one was split. Shard 0 has none."""
    return shard - (1 << (shard.bit_length() - 1))


def located(shard: int, counts: Counts) -> int:
    """The shard that stands for this one: itself or, as far as known, the last of its donors that exists."""
    at = 0
    for bit in (1 << position for position in range(shard.bit_length())):
        if not shard & bit:
            continue
        if counts.get(at, 2 * SHARDS_MAX) <= bit:
            return at
        at += bit
    return at


def count_of(counts: Counts) -> int:
    """How many shards to choose from: as many as the most split one has."""
    return max(counts.values(), default=1)


def learned(counts: Counts, shard: int, count: int) -> dict[int, int]:
    """The counts after one more shard was seen. What its count contradicts is forgotten."""
    known = {**counts, shard: count}
    return {seen: n for seen, n in known.items() if seen == shard or located(seen, known) == seen}


def is_complete(counts: Counts) -> bool:
    """Whether these are all shards of a bucket as of one moment: each has its donor, and each split its child."""
    return implied(counts) == counts.keys()


def missing(counts: Counts) -> set[int]:
    """The shards without which those seen are no whole bucket."""
    return implied(counts) - counts.keys()


def implied(counts: Counts) -> set[int]:
    """The shards that must exist beside those seen."""
    return {shard for shard in range(count_of(counts)) if _exists(shard, counts)}


def is_hot(writes: int, elapsed_ms: int) -> bool:
    return writes * 1000 >= HOT_WRITES_PER_S * elapsed_ms


@dataclass(frozen=True, slots=True)
class View:
    """What is known of one shard. Judged as of the moment at which it was read or written."""

    shard: int
    parameters: Mapping[str, Parameters]
    balances_milli: Mapping[str, int]
    judged_ms: int

    def level_milli(self, name: str, now_ms: int) -> int:
        return math.level_milli(self.parameters[name], self.balances_milli[name], now_ms)


@dataclass(frozen=True, slots=True)
class TakeFrom:
    """What to take from which shard."""

    parts: tuple[tuple[int, Mapping[str, int]], ...]


@dataclass(frozen=True, slots=True)
class Short:
    """One limit that is not covered. `available_milli`: what would pass now."""

    limit: str
    available_milli: int
    admit_at_ms: int


@dataclass(frozen=True, slots=True)
class Wait:
    admit_at_ms: int
    short: tuple[Short, ...]


def decide(views: Sequence[View], demand: Mapping[str, int], now_ms: int) -> TakeFrom | Wait:
    """From one shard if one covers it; else from many, unless one alone soon would; else when either comes true."""
    covering = [view for view in views if covers(view, demand)]
    if covering:
        fullest = max(covering, key=lambda view: [view.level_milli(name, view.judged_ms) for name in demand])
        return TakeFrom(((fullest.shard, demand),))
    alone_ms, best = _alone_at_ms(views, demand, now_ms)
    lacking = [name for name, amount in demand.items() if not _is_gatherable(views, name, amount)]
    if not lacking and (alone_ms is None or alone_ms > now_ms + ALONE_SOON_MS):
        return _gathered(views, demand)
    together_ms = max(_together_at_ms(views, name, amount, now_ms) for name, amount in demand.items())
    if best is None or alone_ms is None or alone_ms > together_ms + ALONE_SOON_MS:
        return _wait_for_all(views, {name: demand[name] for name in lacking}, together_ms, now_ms)
    return _wait_for_one(best, demand, alone_ms, now_ms)


def covers(view: View, demand: Mapping[str, int]) -> bool:
    """Whether one shard alone had it all, as of when it was seen."""
    return all(
        amount <= view.parameters[name].burst_milli
        and math.covers(view.parameters[name], view.balances_milli[name], amount, view.judged_ms)
        for name, amount in demand.items()
    )


def available_milli(views: Iterable[View], name: str, now_ms: int | None = None) -> int:
    """What all shards together have. A debt binds its own shard only."""
    return sum(max(0, view.level_milli(name, view.judged_ms if now_ms is None else now_ms)) for view in views)


def _exists(shard: int, counts: Counts) -> bool:
    return shard == 0 or (counts.get(donor(shard), 0) > shard - donor(shard))


def _is_gatherable(views: Sequence[View], name: str, amount_milli: int, now_ms: int | None = None) -> bool:
    if amount_milli == 0:
        return any(view.level_milli(name, view.judged_ms if now_ms is None else now_ms) >= 0 for view in views)
    return available_milli(views, name, now_ms) >= amount_milli


def _alone_at_ms(views: Sequence[View], demand: Mapping[str, int], now_ms: int) -> tuple[int | None, View | None]:
    """When the first shard covers everything by itself, and which. None where no share is large enough."""
    times = [
        (max(_one_at_ms(view, name, amount, now_ms) for name, amount in demand.items()), index)
        for index, view in enumerate(views)
        if all(amount <= view.parameters[name].burst_milli for name, amount in demand.items())
    ]
    if not times:
        return None, None
    earliest_ms, index = min(times)
    return earliest_ms, views[index]


def _one_at_ms(view: View, name: str, amount_milli: int, now_ms: int) -> int:
    return math.admit_at_ms(view.parameters[name], view.balances_milli[name], amount_milli, now_ms)


def _together_at_ms(views: Sequence[View], name: str, amount_milli: int, now_ms: int) -> int:
    """The first millisecond, not before now, at which all shards together have the amount. They have it once full."""
    if _is_gatherable(views, name, amount_milli, now_ms):
        return now_ms
    before_ms = now_ms
    at_ms = max(_one_at_ms(view, name, view.parameters[name].burst_milli, now_ms) for view in views)
    while at_ms - before_ms > 1:
        middle_ms = (before_ms + at_ms) // 2
        if _is_gatherable(views, name, amount_milli, middle_ms):
            at_ms = middle_ms
        else:
            before_ms = middle_ms
    return at_ms


def _gathered(views: Sequence[View], demand: Mapping[str, int]) -> TakeFrom:
    """Each limit from its own fullest shards."""
    parts: dict[int, dict[str, int]] = {}
    for name, amount_milli in demand.items():
        missing_milli = amount_milli
        fullest_first = sorted(views, key=lambda view: -view.level_milli(name, view.judged_ms))
        for view in fullest_first:
            taken_milli = min(missing_milli, max(0, view.level_milli(name, view.judged_ms)))
            missing_milli -= taken_milli
            # A need of zero is asked of the fullest one.
            if taken_milli or view is fullest_first[0]:
                parts.setdefault(view.shard, {})[name] = taken_milli
    return TakeFrom(tuple(parts.items()))


def _wait_for_all(views: Sequence[View], lacking: Mapping[str, int], at_ms: int, now_ms: int) -> Wait:
    return Wait(
        max(at_ms, now_ms + 1),
        tuple(
            Short(name, available_milli(views, name), max(_together_at_ms(views, name, amount, now_ms), now_ms + 1))
            for name, amount in lacking.items()
        ),
    )


def _wait_for_one(view: View, demand: Mapping[str, int], at_ms: int, now_ms: int) -> Wait:
    return Wait(
        max(at_ms, now_ms + 1),
        tuple(
            Short(name, view.level_milli(name, view.judged_ms), max(_one_at_ms(view, name, amount, now_ms), now_ms + 1))
            for name, amount in demand.items()
            if not math.covers(view.parameters[name], view.balances_milli[name], amount, view.judged_ms)
        ),
    )
