"""Why would this be refused, when will it pass, and what would make it pass? Reads only."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sluice.core import bucket as math
from sluice.core import shards
from sluice.core.shards import TakeFrom, View, Wait
from sluice.repository.items import Bucket
from sluice.repository.resharding import missing_shards
from sluice.services.bucket_writes import BucketWriter
from sluice.services.chains import AcquireRequest, Chains, Opened
from sluice.services.claims import Terms


@dataclass(frozen=True, slots=True)
class Check:
    """One named limit of one member of the chain, in whole tokens. `admit_at_ms`: when this one would pass."""

    entity: str
    limit: str
    source: str
    requested: int
    available: int
    capacity: int
    shards: int
    admit_at_ms: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """`smaller_amounts`: the most of each short limit with which the request would pass now."""

    admissible: bool
    now_ms: int
    admit_at_ms: int
    checks: tuple[Check, ...]
    smaller_amounts: Mapping[str, int]


class Explain:
    """Safe to share between threads."""

    def __init__(self, chains: Chains, writer: BucketWriter, clock_ms: Callable[[], int]) -> None:
        self._chains = chains
        self._writer = writer
        self._clock_ms = clock_ms

    def explain(self, request: AcquireRequest) -> Explanation:
        """As an acquire would be judged now. Raises as an acquire does for what can never pass."""
        return self.judge(request, self._chains.look(request).opened)

    def judge(self, request: AcquireRequest, opened: Sequence[Opened]) -> Explanation:
        seen = [(one.terms, self._views(one.terms)) for one in opened]
        now_ms = self._clock_ms()
        decided = [(terms, views, shards.decide(views, terms.demand, now_ms)) for terms, views in seen]
        checks = tuple(check for terms, views, verdict in decided for check in _checks(terms, views, verdict, now_ms))
        waits = [verdict.admit_at_ms for _, _, verdict in decided if isinstance(verdict, Wait)]
        return Explanation(
            admissible=not waits,
            now_ms=now_ms,
            admit_at_ms=max(waits, default=now_ms),
            checks=checks,
            smaller_amounts=_smaller_amounts(request.consume, seen, now_ms) if waits else {},
        )

    def _views(self, terms: Terms) -> list[View]:
        images, read_ms = self._writer.look_at(terms.claim.first)
        if not images or missing_shards(images):
            # It would be created, full.
            parameters = terms.limits.parameters
            tops = {name: math.top_milli(limit, read_ms) for name, limit in parameters.items()}
            return [View(0, parameters, tops, read_ms)]
        return [_view(terms, image, read_ms) for image in images]


def _view(terms: Terms, image: Bucket, read_ms: int) -> View:
    """A bucket under other limits is shown as the rebase would leave it."""
    if terms.agrees_with(image):
        return terms.view(image, read_ms)
    parameters = terms.limits.shard_parameters(image.shard, image.shard_count)
    balances_milli = {}
    for name, limit in parameters.items():
        old = image.limits.get(name)
        level_milli = limit.burst_milli if old is None else math.level_milli(old.parameters, old.balance_milli, read_ms)
        balances_milli[name] = min(level_milli, limit.burst_milli) - math.refill_milli(limit, read_ms)
    return View(image.shard, parameters, balances_milli, read_ms)


def _checks(terms: Terms, views: Sequence[View], verdict: TakeFrom | Wait, now_ms: int) -> list[Check]:
    short = {one.limit: one for one in verdict.short} if isinstance(verdict, Wait) else {}
    checks = []
    for name, amount_milli in terms.demand.items():
        lacking = short.get(name)
        available_milli = shards.available_milli(views, name) if lacking is None else lacking.available_milli
        if len(views) == 1:
            available_milli = views[0].level_milli(name, views[0].judged_ms)
        checks.append(
            Check(
                entity=terms.claim.entity,
                limit=name,
                source=terms.limits.sources[name],
                requested=amount_milli // math.MILLI,
                available=available_milli // math.MILLI,
                capacity=terms.limits.limits[name].capacity,
                shards=len(views),
                admit_at_ms=now_ms if lacking is None else lacking.admit_at_ms,
            )
        )
    return checks


def _smaller_amounts(
    consume: Mapping[str, int], seen: Sequence[tuple[Terms, Sequence[View]]], now_ms: int
) -> dict[str, int]:
    """First what all shards together have; where waiting for one of them is better, what the fullest one has.

    Empty where no amounts above zero would pass: then only waiting helps.
    """
    for most in (_most_together, _most_alone):
        amounts = {
            name: min([amount, *(most(views, name) // math.MILLI for terms, views in seen if name in terms.demand)])
            for name, amount in consume.items()
        }
        smaller = {name: amount for name, amount in amounts.items() if amount < consume[name]}
        if smaller and all(amount > 0 for amount in smaller.values()) and _passes(amounts, seen, now_ms):
            return smaller
    return {}


def _most_together(views: Sequence[View], name: str) -> int:
    return shards.available_milli(views, name)


def _most_alone(views: Sequence[View], name: str) -> int:
    return max(view.level_milli(name, view.judged_ms) for view in views)


def _passes(amounts: Mapping[str, int], seen: Sequence[tuple[Terms, Sequence[View]]], now_ms: int) -> bool:
    return all(
        isinstance(shards.decide(views, {name: amounts[name] * math.MILLI for name in terms.demand}, now_ms), TakeFrom)
        for terms, views in seen
    )
