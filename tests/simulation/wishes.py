"""What the model does next: limits, amounts, adjustments and waits, drawn by hypothesis."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final

from hypothesis import strategies as st

from sluice.core.limits import Limit, LimitsByName
from tests.simulation.model import USER, Model

NAMES: Final = ("rpm", "tpm", "day")
PROCESSES: Final = 2
# Everyday steps, the edges of what is remembered for a second or a minute, and long enough for a bucket to expire.
STEPS_MS: Final = (1, 7, 99, 100, 499, 999, 1000, 1500, 6000, 59_999, 60_000, 3_600_000, 3 * 86_400_000, 9 * 86_400_000)
LEASES_MS: Final = (1000, 300_000, 86_400_000)

limits_strategy = st.builds(
    lambda capacity, more, amount, period: Limit(capacity, capacity + more, amount, period),
    st.sampled_from((1, 2, 3, 10, 50, 997)),
    st.sampled_from((0, 0, 1, 33)),
    # Up to 997 a second, where a spend may find some slack; down to one a day.
    st.sampled_from((1, 3, 10, 100, 997)),
    st.sampled_from((1, 1, 7, 60, 3600, 86_400)),
)
levels_strategy: st.SearchStrategy[LimitsByName] = st.dictionaries(
    st.sampled_from(NAMES), st.one_of(*[limits_strategy] * 7, st.none()), min_size=1
)


@dataclass(frozen=True)
class Wish:
    """An amount of each limit: as many tokens, or that part of the burst. `wild`: also what can never pass."""

    amounts: Mapping[str, int | Fraction]
    wild: bool

    def consume(self, model: Model) -> dict[str, int]:
        limits = model.effective(USER).limits
        known = {name: amount for name, amount in self.amounts.items() if name in limits or self.wild}
        consume = {}
        for name, amount in (known or {min(limits, default=NAMES[0]): 1}).items():
            burst = limits[name].burst if name in limits else 1
            wanted = amount if isinstance(amount, int) else ceil(burst * amount)
            consume[name] = wanted if self.wild else min(wanted, burst)
        return consume


amounts_strategy = st.one_of(
    st.integers(0, 4), st.integers(0, 1100), st.sampled_from([Fraction(1, share) for share in (1, 2, 3, 5, 8, 17)])
)
wishes = st.builds(
    Wish,
    st.dictionaries(st.sampled_from(NAMES), amounts_strategy, min_size=1),
    st.sampled_from([*[False] * 14, True]),
)
# The larger ones take a bucket into a debt that outlives its usual time.
differences = st.one_of(st.integers(-30, 30), st.integers(-1100, 1100))
process_strategy = st.integers(0, PROCESSES - 1)
