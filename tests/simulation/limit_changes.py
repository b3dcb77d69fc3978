"""What must hold when limits change while they are in use."""

from typing import Final

from sluice.core.limits import LimitSet, Scope, resolve
from sluice.repository import keys
from sluice.repository.items import StoredLimits, decode_limits
from tests.simulation.changes import Change, LimitState
from tests.simulation.faults import STALE_MOST_MS
from tests.simulation.scenario import Violated
from tests.simulation.world import RESOURCE, World

CACHED_MS: Final = 60_000


def levels_survive_a_rebase(world: World) -> None:
    """A level stays what it is, cut to the smaller burst, at the moment that the writer took for now."""
    first_ms = min(world.skews_ms) - world.longest_request_ms
    last_ms = max(world.skews_ms)
    for changes in world.changes.values():
        for change in changes:
            if not change.is_rebased or len(change.records) > 1:
                continue
            for name, limit in change.limits.items():
                if limit.before and limit.after:
                    (before,), (after,) = limit.before, limit.after
                    _check_level(change, name, before, after, change.time_ms + first_ms, change.time_ms + last_ms)


def _check_level(change: Change, name: str, before: LimitState, after: LimitState, from_ms: int, until_ms: int) -> None:
    """The difference is convex in time, so its least value is at an end or where the old level meets the cap."""
    cap = min(before.burst, after.burst)
    capped_ms = -(-(cap - before.balance) * before.period_ms // before.amount)
    moments = [from_ms, until_ms, *(ms for ms in (capped_ms - 1, capped_ms) if from_ms < ms < until_ms)]
    differences = [after.level(ms) - min(before.level(ms), cap) for ms in moments]
    # Two refills are rounded down.
    if min(differences) > 1:
        raise Violated(f"the level of {name} rose by at least {min(differences)}: {change}")
    if max(differences) < -1:
        raise Violated(f"the level of {name} fell by at least {-max(differences)}: {change}")


def changes_act_within_a_minute(world: World) -> None:
    """Nobody spends under limits that were gone for longer than they may be cached."""
    late_ms = CACHED_MS + STALE_MOST_MS + world.longest_request_ms
    for changes in world.changes.values():
        entity = changes[0].entity
        held = _fingerprints(world, entity)
        for change in changes:
            if not any(limit.consumed > 0 for limit in change.limits.values()):
                continue
            used = {str(record.new["lh"]).partition(":")[0] for record in change.records if record.new is not None}
            allowed = _in_force(held, change.time_ms - late_ms, change.time_ms)
            if not used <= allowed:
                raise Violated(f"spent under limits that were changed more than {late_ms} ms before: {change}")


def _fingerprints(world: World, entity: str) -> list[tuple[int, str]]:
    """From when on which limits held, in order."""
    scopes = (Scope(entity, RESOURCE), Scope(resource=RESOURCE))
    keyed = {keys.limits(world.namespace, scope): scope for scope in scopes}
    stored: dict[Scope, StoredLimits] = {}
    held: list[tuple[int, str]] = []
    for record in world.table.stream:
        scope = keyed.get(record.key)
        if scope is None:
            continue
        if record.new is None:
            del stored[scope]
        else:
            stored[scope] = decode_limits(record.new)
        merged: LimitSet = resolve([(one.source, stored[one].limits) for one in scopes if one in stored])
        held.append((record.created_ms, merged.fingerprint))
    return held


def _in_force(held: list[tuple[int, str]], from_ms: int, until_ms: int) -> set[str]:
    ends_ms = [start_ms for start_ms, _ in held[1:]] + [until_ms + 1]
    return {
        fingerprint
        for (start_ms, fingerprint), end_ms in zip(held, ends_ms, strict=True)
        if start_ms <= until_ms and end_ms >= from_ms
    }
