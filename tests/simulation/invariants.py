"""What must hold in every simulation, whatever was drawn. Checked against the table's own stream of changes."""

from collections import defaultdict
from collections.abc import Mapping

from sluice.core.errors import Contended, LimitExceeded, Unavailable
from sluice.core.limits import Limit
from sluice.services.chains import AcquireRequest
from tests.simulation.changes import Change
from tests.simulation.scenario import Violated
from tests.simulation.world import RESOURCE, Host, Outcome, Request, World

MILLI = 1000
SLACK_MS = 100
Demand = Mapping[str, Mapping[str, int]]
"""Of each entity, in tokens, by limit."""


def charged_exactly(world: World) -> None:
    """Whoever was admitted is charged once, whoever was refused is not; in doubt it is not more than once."""
    charged: dict[object, dict[str, dict[str, int]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    for changes in world.changes.values():
        for change in changes:
            for name, limit in change.limits.items():
                charged[change.cause][change.entity][name] += limit.consumed
    for request in world.history:
        demand = world.demand_of(request)
        for entity in demand.keys() | charged[request.number].keys():
            wanted = {name: amount * MILLI for name, amount in demand.get(entity, {}).items()}
            for name in wanted.keys() | charged[request.number][entity].keys():
                _check_charge(request, entity, name, charged[request.number][entity][name], wanted.get(name, 0))


def _check_charge(request: Request, entity: str, name: str, charge: int, wanted: int) -> None:
    """Where it was taken from several shards and then given back, in doubt only some of them were."""
    least = wanted if request.outcome is Outcome.ADMITTED else 0
    most = wanted if request.outcome is Outcome.ADMITTED or request.may_be_charged else 0
    if not least <= charge <= most:
        raise Violated(f"{request}: {entity} was charged {charge} of {name}, right is {least} to {most}")


def nothing_is_minted(world: World) -> None:
    """A write takes at least as much from the balances as it counts as consumed."""
    for changes in world.changes.values():
        for change in changes:
            if change.is_created or change.is_removed or change.is_rebased or change.is_moved:
                continue
            for name, limit in change.limits.items():
                gained = sum(one.balance for one in limit.after) - sum(one.balance for one in limit.before)
                # Each shard of a merge rounds its refill down by itself.
                rounding = len(limit.before) if change.is_merged else 0
                if gained + limit.consumed > rounding:
                    raise Violated(f"{gained + limit.consumed} of {name} out of nothing: {change}")


def buckets_begin_full(world: World) -> None:
    """By the slowest clock, less what their creator took; and only whole ones are made from nothing."""
    slowest_ms = min(world.skews_ms) - world.longest_request_ms
    for changes in world.changes.values():
        for change in changes:
            if not change.is_created:
                continue
            item = change.records[0].new
            assert item is not None
            if (item["shard"], item["shard_count"]) != (0, 1):
                raise Violated(f"a shard was made from nothing: {change}")
            if change.cause is None:
                # Of a setup: how long that took is in no history.
                continue
            for name, limit in change.limits.items():
                (after,) = limit.after
                if after.level(change.time_ms + slowest_ms) + limit.consumed > after.burst:
                    raise Violated(f"{name} began above its burst: {change}")


def everything_passes_again(world: World) -> None:
    """Whatever happened to a bucket: once it is refilled, or else when its refusal said so, a whole burst passes.

    Changes the world: the last check.
    """
    asked = {request.entity for request in world.history if request.consume}

    def ask(host: Host) -> None:
        for entity in sorted(asked):
            burst, fill_time_ms = _burst_of_chain(world, host, entity)
            world.scheduler.pause(fill_time_ms)
            _must_pass(world, host, entity, burst)

    # Past what the fastest clock may have spent ahead of time.
    world.scheduler.now_ms += max(world.skews_ms)
    world.afterwards(ask)


def _burst_of_chain(world: World, host: Host, entity: str) -> tuple[dict[str, int], int]:
    """The most that can pass at once, and the time after which it can."""
    chain = [host.configuration.look_up(world.namespace, entity, RESOURCE)]
    while (parent := chain[-1].parent) is not None:
        chain.append(host.configuration.look_up(world.namespace, parent, RESOURCE))
    burst = {name: limit.burst for name, limit in chain[0].limits.limits.items()}
    for above in chain[1:]:
        for name in above.limits.own & burst.keys():
            burst[name] = min(burst[name], above.limits.limits[name].burst)
    return burst, 1 + max(resolved.limits.fill_time_ms for resolved in chain)


def _must_pass(world: World, host: Host, entity: str, consume: Mapping[str, int]) -> None:
    request = AcquireRequest(world.namespace, entity, RESOURCE, consume)
    try:
        try:
            host.acquire.acquire(request)
        except LimitExceeded as refusal:
            # A bucket moves to wider limits with the level it has.
            world.scheduler.pause(refusal.retry_after_ms)
            host.acquire.acquire(request)
    except (Contended, LimitExceeded, Unavailable) as error:
        raise Violated(f"{dict(consume)} of {entity} did not pass although it was there: {error!r}") from error


def nothing_is_lost(world: World) -> None:
    """Only what is above the burst is cut, as of the fastest clock."""
    fastest_ms = max(world.skews_ms)
    for changes in world.changes.values():
        for change in changes:
            if not change.is_plain:
                continue
            for name, limit in change.limits.items():
                (before,), (after,) = limit.before, limit.after
                if after.balance == before.balance - limit.consumed:
                    continue
                if after.level(change.time_ms + fastest_ms) + limit.consumed < before.burst:
                    raise Violated(f"{name} was cut below its burst: {change}")


def levels_stay_above_zero(world: World) -> None:
    """By the clock of whoever spent, so by the fastest one."""
    fastest_ms = max(world.skews_ms)
    for changes in world.changes.values():
        for change in changes:
            for name, limit in change.limits.items():
                if limit.consumed <= 0:
                    continue
                level = min(state.level(change.time_ms + fastest_ms) for state in limit.after)
                if level < 0:
                    raise Violated(f"{name} was spent down to {level}: {change}")


def within_the_rate(world: World) -> None:
    """Over every window: consumed <= burst + slack + rate * (window + spread of clocks + longest request)."""
    spread_ms = max(world.skews_ms) - min(world.skews_ms)
    unsure_ms = spread_ms + world.longest_request_ms
    for changes in world.changes.values():
        limits = world.limits_of(changes[0].entity)
        for name, limit in limits.items():
            _check_windows(changes, name, limit, unsure_ms)


def _check_windows(changes: list[Change], name: str, limit: Limit, unsure_ms: int) -> None:
    """All windows at once: what was consumed less what was refilled since the best moment to start."""
    period_ms = limit.refill_period_seconds * 1000
    amount = limit.refill_amount * MILLI
    slack = SLACK_MS * amount // period_ms // MILLI * MILLI
    # Times the period, so that it stays whole.
    bound = (limit.burst * MILLI + slack + 1) * period_ms + amount * unsure_ms
    total = 0
    least = None
    for change in changes:
        at = total * period_ms - amount * change.time_ms
        least = at if least is None else min(least, at)
        total += change.limits[name].consumed
        over = total * period_ms - amount * change.time_ms - least
        if over > bound:
            raise Violated(f"{name}: {(over - bound) // period_ms} millitokens too many until {change}")


def refused_for_a_reason(world: World) -> None:
    """A bucket that was never split had, at some moment that a refusal could have seen, less than was asked for.

    That is from a second before it was asked, which is how long a refusal is remembered.
    """
    seen_before_ms = 1_000 + world.longest_request_ms
    by_entity = {changes[0].entity: changes for changes in world.changes.values()}
    split = {entity for entity, changes in by_entity.items() if any(change.is_split for change in changes)}
    for request in world.history:
        if request.outcome is not Outcome.REFUSED:
            continue
        demand = world.demand_of(request)
        if split & demand.keys():
            continue
        if not any(
            _was_short(by_entity.get(entity, []), request, amounts, seen_before_ms)
            for entity, amounts in demand.items()
        ):
            raise Violated(f"{request}, though it was there all the time")


def _was_short(changes: list[Change], request: Request, amounts: Mapping[str, int], seen_before_ms: int) -> bool:
    if not changes:
        return False
    judged_ms = request.started_ms + request.client.skew_ms
    from_ms = request.started_ms - seen_before_ms
    ended_ms = request.ended_ms or 0
    until_ms = [change.time_ms for change in changes[1:]] + [ended_ms]
    for change, next_ms in zip(changes, until_ms, strict=True):
        if change.time_ms > ended_ms or next_ms < from_ms:
            continue
        for name, amount in amounts.items():
            if any(state.level(judged_ms) < amount * MILLI for state in change.limits[name].after):
                return True
    return False
