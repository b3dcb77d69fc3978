"""What must hold in every simulation, whatever was drawn. Checked against the table's own stream of changes."""

from collections import defaultdict
from collections.abc import Mapping

from sluice.core.errors import Contended, LimitExceeded, Unavailable
from sluice.core.limits import Limit
from sluice.repository.items import BUCKET, decode_bucket
from sluice.services.chains import AcquireRequest
from tests.simulation.changes import Change, LimitChange
from tests.simulation.scenario import Violated
from tests.simulation.world import RESOURCE, START_MS, Host, Outcome, Request, World

MILLI = 1000
SLACK_MS = 100
SHARDS_MAX = 16
GENERATION_SPREAD = 1_000_000
"""A generation is the creator's time in milliseconds times this, and something drawn."""
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
    """A write takes at least as much from the balances as it counts as consumed.

    A split or a merge may not turn into balance what was above a burst and so never there: it is measured by what each
    shard has up to its burst.
    """
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
                if (change.is_split or change.is_merged) and _filled(change, limit) > len(limit.before):
                    raise Violated(f"{_filled(change, limit)} of {name} out of an overflow: {change}")


def _filled(change: Change, limit: LimitChange) -> int:
    """By how much the shards together have more than before, as of the write."""
    before, after = (
        sum(min(state.level(change.time_ms), state.burst) for state in states) for states in (limit.before, limit.after)
    )
    return after - before


def bursts_are_kept(world: World) -> None:
    """Who spends begins from the burst at most, or from within the slack above it, as of the slowest clock."""
    slowest_ms = min(world.skews_ms) - world.longest_request_ms
    for changes in world.changes.values():
        for change in changes:
            if change.is_removed or change.is_moved or change.is_rebased:
                continue
            for name, limit in change.limits.items():
                if limit.consumed <= 0:
                    continue
                # Which shard gave how much is not told where several did: an overflow may be cut in the same write.
                taken = limit.consumed if len(limit.after) == 1 else 0
                for state in limit.after:
                    if state in limit.before:
                        continue
                    slack = SLACK_MS * state.amount // state.period_ms // MILLI * MILLI
                    if state.level(change.time_ms + slowest_ms) + taken > state.burst + slack:
                        raise Violated(f"{name} was spent from above its burst: {change}")


def shards_are_whole(world: World) -> None:
    """After every write the shares of a bucket are one whole: no shard is alone, none is there twice."""
    for changes in world.changes.values():
        counts: dict[object, int] = {}
        for change in changes:
            for record in change.records:
                counts.pop(record.key, None)
                if record.new is not None:
                    counts[record.key] = int(str(record.new["shard_count"]))
            if counts and sum(SHARDS_MAX // count for count in counts.values()) != SHARDS_MAX:
                raise Violated(f"the shards are {counts} after {change}")


def every_item_decodes(world: World) -> None:
    """At no moment there is half an item: a bucket that nobody can use, find or remove."""
    for record in world.table.stream:
        if record.new is None:
            continue
        if "kind" not in record.new:
            raise Violated(f"half an item: {record}")
        if record.new["kind"] == BUCKET:
            decode_bucket(record.new)


def gate_opens_for_cause(world: World) -> None:
    """Unchecked passes only who found no table, where the operator allows it; and it is counted apart."""
    for request in world.history:
        degraded = request.outcome is Outcome.DEGRADED
        if request.outcome is not None and request.opened != int(degraded):
            raise Violated(f"{request} was counted {request.opened} times as let through")
        if degraded and (request.number not in world.unavailable or not world.notes.get("gate_may_open")):
            raise Violated(f"{request}, though the table was there or nobody allowed it")


def buckets_begin_full(world: World) -> None:
    """To the token, less what their creator took, as of a moment that was now for it; and only whole ones.

    A creator outside of a request, as in a setup, may have looked at its clock any time since the start; but what it
    says to have made, and when, must agree all the same.
    """
    slowest_ms, fastest_ms = min(world.skews_ms), max(world.skews_ms)
    for changes in world.changes.values():
        for change in changes:
            if not change.is_created:
                continue
            item = change.records[0].new
            assert item is not None
            if (item["shard"], item["shard_count"]) != (0, 1):
                raise Violated(f"a shard was made from nothing: {change}")
            made_ms = int(str(item["gen"])) // GENERATION_SPREAD
            began_ms = START_MS if change.cause is None else change.time_ms - world.longest_request_ms
            if not began_ms + slowest_ms <= made_ms <= change.time_ms + fastest_ms:
                raise Violated(f"made as of {made_ms}, which was now for nobody: {change}")
            for name, limit in change.limits.items():
                (after,) = limit.after
                if after.level(made_ms) + limit.consumed != after.burst:
                    raise Violated(f"{name} did not begin with its burst: {change}")


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
    """Over every window: consumed <= burst + slack + rate * (window + spread of clocks + longest request).

    The spread, because a window may begin with a spend by the slowest clock and end with one by the fastest; the
    longest request, because what is "full" by a look at the clock arrives at the table that much later. What was given
    back was not consumed: a window has the sum of both.
    """
    spread_ms = max(world.skews_ms) - min(world.skews_ms)
    unsure_ms = spread_ms + world.longest_request_ms
    for changes in world.changes.values():
        limits = world.limits_of(changes[0].entity)
        for name, limit in limits.items():
            _check_windows(changes, name, limit, unsure_ms)


def _check_windows(changes: list[Change], name: str, limit: Limit, unsure_ms: int) -> None:
    """All windows at once: what was consumed less what was refilled since the best moment to start.

    A window that begins or ends between two writes has no more in it than the one from write to write inside it.
    """
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
