"""What must hold of refusals: there was not enough, and the time they quote is the time at which there is.

A refusal may go by whatever a client could have seen from a second before it asked, which is how long one is
remembered, however its clock is set, until it was answered.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluice.repository.wire import Item
from tests.simulation.changes import Change, LimitState
from tests.simulation.scenario import Violated
from tests.simulation.world import Outcome, Request, World

MILLI: Final = 1000
REMEMBERED_MS: Final = 1_000
ALONE_SOON_MS: Final = 1_000
"""Who finds a shard that will have it all within this time waits for that one, even if all together have it now."""

Shard = Mapping[str, LimitState]


@dataclass(frozen=True, slots=True)
class Picture:
    """All shards of a bucket between two writes."""

    shards: Mapping[object, Shard]
    from_ms: int
    until_ms: int
    is_rebased: bool


def refused_for_a_reason(world: World) -> None:
    """Some bucket did not have what was asked for, as of the refused one's own clock."""
    for request, seen in _refusals(world):
        from_ms, until_ms = _asked_ms(request)
        if not any(_may_refuse(pictures, amounts, from_ms, until_ms) for pictures, amounts in seen):
            raise Violated(f"{request}, though it was there all the time")


def refusals_are_exact(world: World) -> None:
    """The time is the very millisecond at which some bucket that was short has it all; or, if that was just then, the
    next one. Of buckets that were never split or rebased: there the time may be that of a shard, or of all.
    """
    for request, seen in _refusals(world):
        from_ms, until_ms = _asked_ms(request)
        pictures = [(picture, amounts) for every, amounts in seen for picture in every]
        if any(len(picture.shards) > 1 or picture.is_rebased for picture, _ in pictures):
            continue
        there_ms = [
            max(_there_at_ms(shard[name], amount) for name, amount in amounts.items())
            for picture, amounts in pictures
            for shard in picture.shards.values()
            if amounts
        ]
        quoted_ms = request.admit_at_ms
        # A time that passed while it was found out is a millisecond away.
        at_once = from_ms < quoted_ms <= until_ms + 1 and any(from_ms < ms <= quoted_ms for ms in there_ms)
        if quoted_ms not in there_ms and not at_once:
            raise Violated(f"{request} until {quoted_ms}, where {sorted(set(there_ms))} would be right")


def _refusals(world: World) -> Iterator[tuple[Request, list[tuple[list[Picture], Mapping[str, int]]]]]:
    """Each with what it could see of each bucket that it asked, and what it asked of it, in millitokens."""
    by_entity = {changes[0].entity: list(_pictures(changes)) for changes in world.changes.values()}
    for request in world.history:
        if request.outcome is not Outcome.REFUSED:
            continue
        from_ms = request.started_ms - REMEMBERED_MS - world.longest_request_ms
        seen: list[tuple[list[Picture], Mapping[str, int]]] = []
        for entity, amounts in world.demand_of(request).items():
            visible = [
                picture
                for picture in by_entity.get(entity, ())
                if picture.from_ms <= (request.ended_ms or 0) and picture.until_ms >= from_ms
            ]
            seen.append((visible, {name: amount * MILLI for name, amount in amounts.items()}))
        yield request, seen


def _asked_ms(request: Request) -> tuple[int, int]:
    """From when to when, by its own clock."""
    return request.started_ms + min(request.skews_ms), (request.ended_ms or 0) + max(request.skews_ms)


def _pictures(changes: list[Change]) -> Iterator[Picture]:
    shards: dict[object, Shard] = {}
    ends_ms = [change.time_ms for change in changes[1:]] + [2**62]
    for change, end_ms in zip(changes, ends_ms, strict=True):
        for record in change.records:
            shards.pop(record.key, None)
            if record.new is not None:
                shards[record.key] = _states(record.new)
        yield Picture(dict(shards), change.time_ms, end_ms, change.is_rebased)


def _states(item: Item) -> Shard:
    fields: Any = item
    names = [name[2:-3] for name in item if name.startswith("b_") and name.endswith("_tk")]
    return {name: LimitState(*(fields[f"b_{name}_{field}"] for field in ("tk", "bx", "ra", "rp"))) for name in names}


def _may_refuse(pictures: list[Picture], amounts: Mapping[str, int], judged_ms: int, until_ms: int) -> bool:
    """Shards are not read in one moment, so each counts with the least it had; where they were split or merged
    meanwhile, nothing is said.
    """
    there = {frozenset(picture.shards) for picture in pictures if picture.shards}
    if not there or not amounts:
        return False
    if len(there) > 1:
        return True
    (keys,) = there
    if len(keys) == 1:
        return any(
            state.level(judged_ms) < amounts[name]
            for picture in pictures
            for shard in picture.shards.values()
            for name, state in shard.items()
            if name in amounts
        )
    least, most = (
        {
            key: {
                name: chosen(
                    min(picture.shards[key][name].level(ms), picture.shards[key][name].burst) for picture in pictures
                )
                for name in amounts
            }
            for key in keys
        }
        for chosen, ms in ((min, judged_ms), (max, until_ms + ALONE_SOON_MS))
    )
    if any(_covers(levels, amounts) for levels in least.values()):
        return False
    lacks = any(_lack([levels[name] for levels in least.values()], amount) for name, amount in amounts.items())
    return lacks or any(_covers(levels, amounts) for levels in most.values())


def _lack(levels: list[int], amount: int) -> bool:
    """All together. A debt binds its own shard only; zero wants one that is not in debt."""
    return max(levels) < 0 or sum(max(0, level) for level in levels) < amount


def _covers(levels: Mapping[str, int], amounts: Mapping[str, int]) -> bool:
    return all(levels[name] >= amount for name, amount in amounts.items())


def _there_at_ms(state: LimitState, amount: int) -> int:
    return -(-(amount - state.balance) * state.period_ms // state.amount)
