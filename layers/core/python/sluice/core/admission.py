"""May this request pass? Decided from balances alone; nothing here reads or writes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from sluice.core import bucket as math
from sluice.core.errors import LimitExceeded, NeverAdmissible, NoLimits, UnknownLimit, Violation
from sluice.core.holds import Hold
from sluice.core.lease import LeaseMember
from sluice.core.levels import Level, LimitLevel
from sluice.core.limits import Limit, LimitSet
from sluice.core.shards import Short, View, Wait

CHAIN_MAX: Final = 4
"""How many entities one acquire may take from."""


@dataclass(frozen=True)
class Admission:
    """An admitted request. `degraded`: let through unchecked because the table did not answer.

    `hold`: what hard budgets hold for it; None where there are none.
    """

    namespace: str
    entity: str
    resource: str
    consumed: Mapping[str, int]
    degraded: bool = False
    hold: Hold | None = None
    measure: Callable[[], tuple[Level, ...]] = field(default=tuple, repr=False, compare=False)
    list_members: Callable[[], tuple[LeaseMember, ...]] = field(default=tuple, repr=False, compare=False)

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The entity first, then upwards. Worked out when somebody asks: who only wants to pass does not."""
        return self.measure()

    @cached_property
    def members(self) -> tuple[LeaseMember, ...]:
        """What each member of the chain gave, and from which shards. Worked out when somebody asks."""
        return self.list_members()


@dataclass(frozen=True, slots=True)
class Member:
    """One entity of a chain and the limits of its bucket.

    `asks`: it is the one that asks, so all its limits apply. A member above takes part only with limits set on itself:
    else a default for every user would cap the whole org. Its bucket has all of them all the same, because one day it
    may ask by itself.
    """

    entity: str
    limits: LimitSet
    asks: bool

    @property
    def names(self) -> Collection[str]:
        return self.limits.limits.keys() if self.asks else self.limits.own


def check_names(entity: str, resource: str, consume: Mapping[str, int], chain: Sequence[Member]) -> None:
    """Every name must be known at some member of the chain. All names are checked before any amount is."""
    if chain[0].asks and consume.keys() <= chain[0].limits.limits.keys():
        return
    known = {name for member in chain for name in (*member.names, *member.limits.switched_off)}
    if not known:
        raise NoLimits(entity, resource)
    for name in consume:
        if name not in known:
            raise UnknownLimit(f"consume.{name}", "no such limit is defined for this entity and resource")


def demand_milli(resource: str, consume: Mapping[str, int], member: Member) -> dict[str, int]:
    """What to take from one member: only names that apply there. A limit that is switched off takes nothing."""
    demand = {name: amount for name, amount in consume.items() if name in member.names}
    for name, amount in demand.items():
        burst = member.limits.limits[name].burst
        if amount > burst:
            raise NeverAdmissible(member.entity, resource, name, amount, burst)
    return {name: amount * math.MILLI for name, amount in demand.items()}


def merged_refusal(refusals: Sequence[LimitExceeded]) -> LimitExceeded:
    """One answer for a chain: it passes when the last of its members does."""
    retry_after_ms = max(refused.retry_after_ms for refused in refusals)
    return LimitExceeded(
        [violation for refused in refusals for violation in refused.violations],
        max(refused.admit_at_ms for refused in refusals),
        retry_after_ms,
        [level for refused in refusals for level in refused.levels],
    )


def short_limits(
    limits: LimitSet, balances_milli: Mapping[str, int], demand: Mapping[str, int], now_ms: int
) -> list[str]:
    """The named limits whose balance did not cover the demand at that time."""
    return [
        name
        for name, amount_milli in demand.items()
        if not math.covers(limits.parameters[name], balances_milli[name], amount_milli, now_ms)
    ]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of one bucket, for a refusal to tell. `own_only`: of one above, whose own limits alone apply."""

    entity: str
    resource: str
    limits: LimitSet
    demand: Mapping[str, int]
    own_only: bool = False


def refusal(asked: Asked, balances_milli: Mapping[str, int], judged_ms: int, now_ms: int) -> LimitExceeded | None:
    """The refusal with its exact retry time, or None when the demand was covered.

    Judged as of the write that returned the balances. At a later now the refill of the round trip looks like room, and
    under pressure everyone would try again.
    """
    limits = asked.limits
    short = short_limits(limits, balances_milli, asked.demand, judged_ms)
    if not short:
        return None
    levels_milli = {
        name: math.level_milli(limit, balances_milli[name], now_ms) for name, limit in limits.parameters.items()
    }
    return _refusal(
        asked,
        [
            Short(
                name,
                math.level_milli(limits.parameters[name], balances_milli[name], judged_ms),
                math.admit_at_ms(limits.parameters[name], balances_milli[name], asked.demand[name], now_ms),
            )
            for name in short
        ],
        levels_milli,
        now_ms,
    )


def split_refusal(asked: Asked, views: Sequence[View], wait: Wait, now_ms: int) -> LimitExceeded:
    """As `refusal`, for a bucket of several shards."""
    levels_milli = {name: sum(view.level_milli(name, now_ms) for view in views) for name in asked.limits.limits}
    refused = _refusal(asked, wait.short, levels_milli, now_ms)
    return LimitExceeded(refused.violations, wait.admit_at_ms, wait.admit_at_ms - now_ms, refused.levels)


def _refusal(asked: Asked, short: Sequence[Short], levels_milli: Mapping[str, int], now_ms: int) -> LimitExceeded:
    violations = [
        Violation(
            entity=asked.entity,
            resource=asked.resource,
            limit=one.limit,
            requested=asked.demand[one.limit] // math.MILLI,
            available=one.available_milli // math.MILLI,
            retry_after_ms=max(1, one.admit_at_ms - now_ms),
            source=asked.limits.sources[one.limit],
        )
        for one in short
    ]
    retry_after_ms = max(violation.retry_after_ms for violation in violations)
    levels = (level_of(asked.entity, asked.limits, levels_milli, own_only=asked.own_only),)
    return LimitExceeded(violations, now_ms + retry_after_ms, retry_after_ms, levels)


def level_of(entity: str, limits: LimitSet, levels_milli: Mapping[str, int], *, own_only: bool = False) -> Level:
    """Where the limits stand that apply here."""
    return Level(
        entity,
        tuple(
            _limit_level(name, limit, limits.parameters[name], levels_milli[name])
            for name, limit in limits.limits.items()
            if not own_only or name in limits.own
        ),
    )


def _limit_level(name: str, limit: Limit, parameters: math.Parameters, level_milli: int) -> LimitLevel:
    return LimitLevel(
        limit=name,
        capacity=limit.capacity,
        window_seconds=math.ceil_div(limit.capacity * limit.refill_period_seconds, limit.refill_amount),
        remaining=level_milli // math.MILLI,
        full_in_ms=math.refill_time_ms(parameters, parameters.burst_milli - level_milli),
    )
