"""The exact bucket of one entity: as a whole, and shard by shard as the product has split it.

The whole is the claim that is made: nothing passes that one exact bucket would not let pass. The shards are needed for
the other direction: a full shard loses its refill while another one is empty, and a request that only all of them
together can serve waits for one that soon can alone. Which shard gave what is taken from the table; that it had it, and
that all of it adds up, is checked here.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from sluice.core.limits import Limit
from sluice.repository.items import Bucket
from tests.simulation.exact import MILLI, Demand, Exact, Judgement, Rates, judge

ZERO = Fraction(0)


@dataclass(slots=True)
class ExactShard:
    count: int
    generation: int
    limits: dict[str, Exact]

    def has(self, names: Demand) -> bool:
        return names.keys() <= self.limits.keys()


@dataclass(slots=True)
class Whole:
    """One limit of the one bucket."""

    burst: int = 0
    per_ms: Fraction = ZERO
    level: Fraction = ZERO

    def give(self, amount: Fraction) -> None:
        self.level = min(self.level + amount, Fraction(self.burst))


@dataclass
class Reference:
    now_ms: int = 0
    shards: dict[int, ExactShard] = field(default_factory=dict)
    whole: dict[str, Whole] = field(default_factory=dict)
    consumed: Counter[str] = field(default_factory=Counter)
    """Since the beginning, in millitokens, also by what has expired or was merged since."""
    gone: Counter[str] = field(default_factory=Counter)
    """What of that no item tells any more."""

    def advance(self, now_ms: int) -> None:
        for whole in self.whole.values():
            whole.give(whole.per_ms * (now_ms - self.now_ms))
        for shard in self.shards.values():
            for limit in shard.limits.values():
                limit.advance(now_ms)
        self.now_ms = now_ms

    def create(self, image: Bucket) -> None:
        assert (image.shard, image.shard_count) == (0, 1), "only whole buckets are made from nothing"
        assert not self.shards
        self.whole.clear()
        self.shards[0] = ExactShard(1, image.generation, {})
        self.rebase(0, rates_of(image))

    def change(self, shard: int, name: str, taken: int) -> None:
        """What one shard gave; a negative amount came back."""
        self.consumed[name] += taken
        self.shards[shard].limits[name].give(-taken)
        self.whole[name].give(Fraction(-taken))

    def rebase(self, shard: int, rates: Mapping[str, Rates]) -> None:
        """Levels stay, cut to the new burst; added limits begin full."""
        one = self.shards[shard]
        had = {name: limit.level for name, limit in one.limits.items()}
        for name in had.keys() - rates.keys():
            del one.limits[name]
        for name, wanted in rates.items():
            if name not in one.limits:
                one.limits[name] = Exact.created(wanted, self.now_ms)
            elif one.limits[name].rates != wanted:
                one.limits[name].rebase(wanted)
        has = {name: limit.level for name, limit in one.limits.items()}
        self._remeasure({name: has.get(name, ZERO) - had.get(name, ZERO) for name in had.keys() | has.keys()})

    def split(self, shard: int, child_generation: int) -> None:
        donor = self.shards[shard]
        kept, given = {}, {}
        for name, limit in donor.limits.items():
            kept[name], given[name] = limit.halves()
        self.shards[shard + donor.count] = ExactShard(2 * donor.count, child_generation, given)
        self.shards[shard] = ExactShard(2 * donor.count, donor.generation, kept)

    def merge(self, image: Bucket) -> None:
        """Of full shards only, so that the whole is full."""
        self.shards = {0: ExactShard(1, image.generation, {})}
        self.rebase(0, rates_of(image))

    def expire(self) -> None:
        self.shards.clear()
        self.whole.clear()

    def forget_consumption(self, image: Bucket) -> None:
        """The item goes, and what it has counted with it."""
        self.gone.update(consumed_by(image))

    def judged(self, demand: Demand) -> tuple[Judgement, Judgement]:
        """By the least and by the most that the product may see."""
        knowing = [shard for shard in self.shards.values() if shard.has(demand)]
        return (
            judge([{name: shard.limits[name].least() for name in demand} for shard in knowing], demand),
            judge([{name: shard.limits[name].most() for name in demand} for shard in knowing], demand),
        )

    def above(self, name: str) -> Fraction:
        """By how much the sum over the shards may exceed the one bucket."""
        return sum((shard.limits[name].above for shard in self.shards.values() if name in shard.limits), start=ZERO)

    def debt(self, name: str) -> Fraction:
        """What shards are below zero, together."""
        limits = [shard.limits[name] for shard in self.shards.values() if name in shard.limits]
        return sum((max(ZERO, -limit.level) for limit in limits), start=ZERO)

    def _remeasure(self, gained: Mapping[str, Fraction]) -> None:
        """The one bucket after some of its shards have other parameters."""
        names = {name for shard in self.shards.values() for name in shard.limits}
        for name in self.whole.keys() - names:
            del self.whole[name]
        for name in names:
            having = [shard.limits[name] for shard in self.shards.values() if name in shard.limits]
            whole = self.whole.setdefault(name, Whole())
            whole.burst = sum(limit.rates.burst for limit in having)
            whole.per_ms = sum((limit.rates.per_ms for limit in having), start=ZERO)
            whole.give(gained.get(name, ZERO))


def rates_of(image: Bucket) -> dict[str, Rates]:
    return {
        name: Rates(
            limit.parameters.burst_milli, limit.parameters.refill_amount_milli, limit.parameters.refill_period_ms
        )
        for name, limit in image.limits.items()
    }


def shares_of(limits: Mapping[str, Limit], shard: int, count: int) -> dict[str, Rates]:
    """What rule 3.1 gives one shard of these limits."""
    return {
        name: Rates(limit.burst * MILLI, limit.refill_amount * MILLI, limit.refill_period_seconds * 1000).share(
            shard, count
        )
        for name, limit in limits.items()
    }


def consumed_by(image: Bucket) -> Counter[str]:
    """By limits that are gone as well: their counters outlive them."""
    return Counter(
        {name: limit.consumed_milli for name, limit in image.limits.items()} | dict(image.retired_consumed_milli)
    )
