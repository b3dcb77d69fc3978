"""What must hold when a bucket is split, merged or moved to other limits while it is in use."""

from typing import Final

from tests.simulation.changes import Change, LimitChange, LimitState
from tests.simulation.limit_changes import _fingerprints, _in_force
from tests.simulation.scenario import Violated
from tests.simulation.world import World

SPLIT_DEBT_MS: Final = 100


def splits_leave_no_debt(world: World) -> None:
    """Beyond what a shard refills in 100 ms, by the fastest clock; unless there was a debt before."""
    fastest_ms = max(world.skews_ms)
    for changes in world.changes.values():
        for change in changes:
            if not change.is_split:
                continue
            now_ms = change.time_ms + fastest_ms
            for name, limit in change.limits.items():
                had = min(0, *(state.level(now_ms) for state in limit.before), 0)
                for state in limit.after:
                    if state.level(now_ms + SPLIT_DEBT_MS) < had - 1:
                        raise Violated(f"a split left {state.level(now_ms)} of {name}: {change}")


def resharding_loses_nothing(world: World) -> None:
    """What the shards have up to their bursts is no less after a split or a merge, at a moment that was now for whoever
    wrote it. Each shard rounds down.
    """
    from_ms, until_ms = min(world.skews_ms) - world.longest_request_ms, max(world.skews_ms)
    for changes in world.changes.values():
        for change in changes:
            if not (change.is_split or change.is_merged):
                continue
            for name, limit in change.limits.items():
                moments = _turning_points(limit, change.time_ms + from_ms, change.time_ms + until_ms)
                gained = max(_has(limit.after, ms) - _has(limit.before, ms) for ms in moments)
                if gained < -len(limit.before) - len(limit.after):
                    raise Violated(f"{-gained} of {name} got lost: {change}")


def rebases_go_by_what_holds(world: World) -> None:
    """A bucket is moved only to limits that were in force while the mover asked, never to what somebody has cached: so
    hosts with different caches do not move it to and fro.
    """
    for changes in world.changes.values():
        held = _fingerprints(world, changes[0].entity)
        for change in changes:
            if not change.is_rebased:
                continue
            moved_to = {_limits(change)}
            if not moved_to <= _in_force(held, change.time_ms - world.longest_request_ms, change.time_ms):
                raise Violated(f"moved to limits that had not been in force: {change}")


def _limits(change: Change) -> str:
    item = change.records[0].new
    assert item is not None
    return str(item["lh"]).partition(":")[0]


def _turning_points(limit: LimitChange, from_ms: int, until_ms: int) -> list[int]:
    """What the shards have is linear in between: each bends once, where it is full."""
    full_ms = [
        -(-(state.burst - state.balance) * state.period_ms // state.amount) for state in (*limit.before, *limit.after)
    ]
    return [from_ms, until_ms, *(ms for at_ms in full_ms for ms in (at_ms - 1, at_ms) if from_ms < ms < until_ms)]


def _has(states: tuple[LimitState, ...], time_ms: int) -> int:
    return sum(min(state.level(time_ms), state.burst) for state in states)
