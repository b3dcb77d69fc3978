"""One exact bucket per limit, in fractions: refilled continuously since it was created, cut at its burst.

The product counts in whole millitokens, `floor(now * amount / period)` since the epoch. Over any stretch of time that
differs from the exact refill by less than one millitoken, to either side, however long the stretch is and however often
the bucket is written. The difference is counted anew, on top of what there was, only where the parameters change: a
rebase keeps the level as a whole number, a split halves it as one. So the tolerance of a limit is one millitoken, plus
one for each change of its parameters, and for a split one and a half on what the halves inherit. It shrinks back to one
millitoken as soon as the limit is certainly full.

Above that, a spend may find up to `slack` more than the burst: the refill of 100 ms in whole tokens, nothing below ten
tokens a second (rules, section 2).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor
from typing import Final, NamedTuple

MILLI: Final = 1000
SOON_MS: Final = 1000
_ROUNDING: Final = Fraction(1)
_HALVING: Final = Fraction(3, 2)


class Rates(NamedTuple):
    """What a limit, or one shard's share of it, is: millitokens, and the refill amount per so many milliseconds."""

    burst: int
    amount: int
    period_ms: int

    @property
    def per_ms(self) -> Fraction:
        return Fraction(self.amount, self.period_ms)

    @property
    def slack(self) -> int:
        return 100 * self.amount // self.period_ms // MILLI * MILLI

    def share(self, shard: int, count: int) -> "Rates":
        return Rates((self.burst + count - 1 - shard) // count, self.amount, self.period_ms * count)


@dataclass(slots=True)
class Exact:
    """`below`, `above`: how far the product's whole number may be off. `full`: it certainly says full as well."""

    rates: Rates
    level: Fraction
    at_ms: int
    below: Fraction
    above: Fraction
    full: bool

    @classmethod
    def created(cls, rates: Rates, now_ms: int) -> "Exact":
        return cls(rates, Fraction(rates.burst), now_ms, _ROUNDING, _ROUNDING + rates.slack, full=True)

    def advance(self, now_ms: int) -> None:
        self._set(self.level + self.rates.per_ms * (now_ms - self.at_ms), now_ms)

    def give(self, amount: int) -> None:
        """A negative amount is taken."""
        self.full = self.full and amount >= 0
        self._set(self.level + amount, self.at_ms)

    def rebase(self, rates: Rates) -> None:
        self.full = self.full and rates.burst <= self.rates.burst
        self.rates = rates
        self.level = min(self.level, Fraction(rates.burst))
        self.below += _ROUNDING
        self.above = max(self.above, Fraction(rates.slack)) + _ROUNDING

    def halves(self) -> tuple["Exact", "Exact"]:
        """What a split keeps, and what it gives."""
        return self._half(self.rates.share(0, 2)), self._half(self.rates.share(1, 2))

    def _half(self, rates: Rates) -> "Exact":
        level = Fraction(rates.burst) if self.full else min(self.level / 2, Fraction(rates.burst))
        above = max(self.above / 2, Fraction(rates.slack)) + _HALVING
        return Exact(rates, level, self.at_ms, self.below / 2 + _HALVING, above, full=False)

    def _set(self, level: Fraction, now_ms: int) -> None:
        self.at_ms = now_ms
        if level >= self.rates.burst + self.below:
            self.full = True
            self.below, self.above = _ROUNDING, _ROUNDING + self.rates.slack
        self.level = min(level, Fraction(self.rates.burst))

    def agrees_with(self, level: int) -> bool:
        return self.level - self.below < level <= min(self.level + self.above, Fraction(self.rates.burst))

    def least(self) -> "View":
        return View(self.rates, self.level - self.below, self.at_ms)

    def most(self) -> "View":
        return View(self.rates, min(self.level + self.above, Fraction(self.rates.burst)), self.at_ms)


class View(NamedTuple):
    """A level that the product may see, of one limit of one shard."""

    rates: Rates
    level: Fraction
    at_ms: int

    def later(self, now_ms: Fraction) -> Fraction:
        return min(self.level + self.rates.per_ms * (now_ms - self.at_ms), Fraction(self.rates.burst))

    def has(self, amount: int) -> bool:
        return self.level >= amount

    def has_at(self, amount: int) -> Fraction:
        return self.at_ms + max(Fraction(0), (amount - self.level) / self.rates.per_ms)


Shard = Mapping[str, View]
Demand = Mapping[str, int]


class Judgement(NamedTuple):
    """`alone_ms`: when one shard has it all, if any ever does. `together_ms`: when all shards together have it."""

    alone: bool
    together: bool
    alone_ms: Fraction | None
    together_ms: Fraction


def judge(shards: Iterable[Shard], demand: Demand) -> Judgement:
    """Rule 3.5, without rounding. Of a single shard, alone and together are the same."""
    shards = list(shards)
    fitting = [shard for shard in shards if all(amount <= shard[name].rates.burst for name, amount in demand.items())]
    alone_ms = min(
        (max(shard[name].has_at(amount) for name, amount in demand.items()) for shard in fitting), default=None
    )
    return Judgement(
        alone=any(all(shard[name].has(amount) for name, amount in demand.items()) for shard in fitting),
        together=all(_gathered(shards, name, amount) for name, amount in demand.items()),
        alone_ms=alone_ms,
        together_ms=max(_together_at(shards, name, amount) for name, amount in demand.items()),
    )


def must_admit(least: Judgement, most: Judgement, now_ms: int) -> bool:
    """Whatever the product sees within the tolerance, it passes."""
    if least.alone:
        return True
    return least.together and (most.alone_ms is None or most.alone_ms > now_ms + SOON_MS + 1)


def must_refuse(least: Judgement, most: Judgement, now_ms: int) -> bool:
    """Whatever the product sees within the tolerance, it does not pass."""
    if most.alone:
        return False
    return not most.together or (least.alone_ms is not None and least.alone_ms < now_ms + SOON_MS - 1)


def quoted(least: Judgement, most: Judgement, now_ms: int) -> list[tuple[int, int]]:
    """The stretches within which the quoted time must be. Two where the choice between the times may fall either way.

    One millisecond wider than the levels say: the product counts whole ones.
    """
    stretches = []
    alone = None
    if least.alone_ms is not None and most.alone_ms is not None:
        alone = (floor(most.alone_ms), ceil(least.alone_ms) + 1)
    together = (floor(most.together_ms), ceil(least.together_ms) + 1)
    if alone is not None and alone[0] <= together[1] + SOON_MS:
        stretches.append(alone)
    if alone is None or alone[1] > together[0] + SOON_MS:
        stretches.append(together)
    return [(max(first, now_ms + 1), max(last, now_ms + 1)) for first, last in stretches]


def _gathered(shards: list[Shard], name: str, amount: int, at_ms: Fraction | None = None) -> bool:
    levels = [shard[name].level if at_ms is None else shard[name].later(at_ms) for shard in shards]
    if amount == 0:
        return any(level >= 0 for level in levels)
    return sum(max(Fraction(0), level) for level in levels) >= amount


def _together_at(shards: list[Shard], name: str, amount: int) -> Fraction:
    """The sum rises in straight lines between the moments at which a shard leaves its debt or is full."""
    views = [shard[name] for shard in shards]
    now_ms = Fraction(views[0].at_ms)
    if _gathered(shards, name, amount):
        return now_ms
    if amount == 0:
        return min(view.has_at(0) for view in views)
    bends = sorted({view.has_at(bound) for view in views for bound in (0, view.rates.burst)} | {now_ms})
    for start, end in pairwise(bends):
        if _gathered(shards, name, amount, end):
            had = sum(max(Fraction(0), view.later(start)) for view in views)
            rises = sum(
                (view.rates.per_ms for view in views if view.has_at(0) <= start < view.has_at(view.rates.burst)),
                start=Fraction(0),
            )
            return start + (amount - had) / rises
    raise AssertionError(f"{amount} of {name} is never there")
