"""What was consumed in which hour and day, from records that may come again, overlap, come late or be lost. Pure.

A shard of a bucket counts its writes (the version) and, per limit, what it consumed so far. Both begin anew with every
incarnation of the shard (the generation), so within one of them the version tells what had been consumed.

1. A record shows a shard before and after one write. What is made anew begins at version 0 with nothing consumed, also
   where it replaces another generation. Who is gone counts nothing. One that was moved from an older layout is made at
   version 0: what it had consumed before counts nowhere.
2. A record that changed no consumption is skipped: a split, a merge, a rebase, a question for zero.
3. The window of a record comes from the time at which it was made, never from the time at which it is looked at. It is
   not earlier than that of an older record of the same generation in the same batch: times are approximate.
4. Of each window, shard and generation the interval of versions is kept that has been counted, with the consumption at
   both ends. A record extends it or changes nothing: what is added is the difference between the new end and the old
   one. So it is a join. Order, repetition and overlap do not matter, nor where a batch is cut; and a record that was
   lost between two others is counted by those, because the ends tell.
5. Of each shard the last two generations keep their intervals. Those before them are only named: whatever comes of them
   later was counted, or is left out. Twice would be worse.
6. A gap between two windows is not healed by their ends. It shows where a generation begins in a window at another
   consumption than it last had, and it closes when the lost records are read again: they extend both windows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

KEPT_GENERATIONS: Final = 2
NAMED_GENERATIONS_MAX: Final = 30

Consumed = Mapping[str, int]
"""Millitokens by limit. A limit that is not there has consumed nothing."""

_NOTHING: Final[Consumed] = {}


class Window(StrEnum):
    """In UTC."""

    HOUR = "hour"
    DAY = "day"


LENGTH_MS: Final = {Window.HOUR: 3_600_000, Window.DAY: 86_400_000}


@dataclass(frozen=True, slots=True)
class ShardName:
    """Which shard of which bucket. `call_fingerprint`: of per-call limits, which have buckets of their own."""

    namespace: str
    entity: str
    resource: str
    call_fingerprint: str | None
    shard: int


@dataclass(frozen=True, slots=True)
class Image:
    """A shard at one moment."""

    version: int
    generation: int
    shard_count: int
    consumed_milli: Consumed


@dataclass(frozen=True, slots=True)
class Observation:
    """One record of the stream. `position`: its place in the batch. `at_ms`: when the write was made."""

    position: int
    shard: ShardName
    old: Image | None
    new: Image | None
    at_ms: int


@dataclass(frozen=True, slots=True)
class SnapshotName:
    """The usage of an entity and resource in one window."""

    namespace: str
    entity: str
    resource: str
    call_fingerprint: str | None
    window: Window
    starts_ms: int

    @property
    def ends_ms(self) -> int:
        return self.starts_ms + LENGTH_MS[self.window]


@dataclass(frozen=True, slots=True)
class Interval:
    """Writes of one generation: what had been consumed before the first of them and after the last."""

    generation: int
    from_version: int
    from_milli: Consumed
    to_version: int
    to_milli: Consumed


@dataclass(frozen=True, slots=True)
class Tally:
    """What has been counted of one shard in one window. `kept`: the generation extended last comes last.

    `named`: generations whose intervals are no longer kept.
    """

    kept: tuple[Interval, ...] = ()
    named: tuple[int, ...] = ()

    def of(self, generation: int) -> Interval | None:
        return next((interval for interval in self.kept if interval.generation == generation), None)

    def is_new(self, generation: int) -> bool:
        return generation not in self.named and self.of(generation) is None


EMPTY: Final = Tally()


@dataclass(frozen=True, slots=True)
class Increase:
    """What a join adds to a window. Negative where more was given back than taken."""

    consumed_milli: Consumed
    events: int


NO_INCREASE: Final = Increase(_NOTHING, 0)


@dataclass(slots=True)
class Fold:
    """What a batch has for one snapshot: by shard, one interval per generation. `first_position`: of its records."""

    name: SnapshotName
    first_position: int
    intervals: dict[int, list[Interval]] = field(default_factory=dict)

    def add(self, shard: int, interval: Interval) -> None:
        own = self.intervals.setdefault(shard, [])
        for number, other in enumerate(own):
            if other.generation == interval.generation:
                own[number] = hull(other, interval)
                return
        own.append(interval)


@dataclass(frozen=True, slots=True)
class Joined:
    """The tallies that a fold changed, and by how much the snapshot rises."""

    tallies: Mapping[int, Tally]
    increase: Increase


def starts_ms(window: Window, at_ms: int) -> int:
    return at_ms - at_ms % LENGTH_MS[window]


def interval_of(observation: Observation) -> Interval | None:
    """What one record counts; None where nothing was consumed or given back."""
    old, new = observation.old, observation.new
    if new is None:
        return None
    if old is None or old.generation != new.generation:
        if new.version == 0:
            return None
        from_version, from_milli = 0, _NOTHING
    else:
        from_version, from_milli = old.version, old.consumed_milli
    if not difference_milli(from_milli, new.consumed_milli):
        return None
    return Interval(new.generation, from_version, from_milli, new.version, new.consumed_milli)


def fold(observations: Iterable[Observation]) -> list[Fold]:
    """A batch by snapshot: hours before days, each in the order of time."""
    folds: dict[SnapshotName, Fold] = {}
    newest: dict[ShardName, tuple[Image, int]] = {}
    for observation in observations:
        at_ms = _made_at_ms(observation, newest)
        interval = interval_of(observation)
        if interval is None:
            continue
        shard = observation.shard
        for window in Window:
            name = SnapshotName(
                shard.namespace,
                shard.entity,
                shard.resource,
                shard.call_fingerprint,
                window,
                starts_ms(window, at_ms),
            )
            found = folds.get(name)
            if found is None:
                found = folds[name] = Fold(name, observation.position)
            found.add(shard.shard, interval)
    return sorted(folds.values(), key=lambda one: (one.name.window is Window.DAY, one.name.starts_ms))


def hull(one: Interval, other: Interval) -> Interval:
    """From the lower beginning to the higher end, whatever lies between. Both are of one generation."""
    first = one if one.from_version <= other.from_version else other
    last = one if one.to_version >= other.to_version else other
    return Interval(one.generation, first.from_version, first.from_milli, last.to_version, last.to_milli)


def join(tallies: Mapping[int, Tally], intervals: Mapping[int, Iterable[Interval]]) -> Joined | None:
    """What a fold changes in what has been counted; None where it was all counted before."""
    changed: dict[int, Tally] = {}
    added: dict[str, int] = {}
    events = 0
    for shard, own in intervals.items():
        for interval in own:
            tally, increase = extended(changed.get(shard) or tallies.get(shard, EMPTY), interval)
            if increase is NO_INCREASE:
                continue
            changed[shard] = tally
            events += increase.events
            for limit, milli in increase.consumed_milli.items():
                added[limit] = added.get(limit, 0) + milli
    if not changed:
        return None
    return Joined(changed, Increase({limit: milli for limit, milli in added.items() if milli}, events))


def extended(tally: Tally, interval: Interval) -> tuple[Tally, Increase]:
    """One interval joined into what was counted of its shard; NO_INCREASE itself where that contains it."""
    if interval.generation in tally.named:
        return tally, NO_INCREASE
    known = tally.of(interval.generation)
    if known is None:
        return _with_generation(tally, interval), _increase(interval)
    whole = hull(known, interval)
    if whole == known:
        return tally, NO_INCREASE
    before, after = _increase(known), _increase(whole)
    others = tuple(one for one in tally.kept if one.generation != interval.generation)
    return replace(tally, kept=(*others, whole)), Increase(
        difference_milli(before.consumed_milli, after.consumed_milli), after.events - before.events
    )


def follows(before: Interval, interval: Interval) -> bool:
    """Whether nothing was consumed between the two: so no record between them is missing."""
    return before.generation == interval.generation and not difference_milli(before.to_milli, interval.from_milli)


def is_gap(before: Interval, interval: Interval) -> bool:
    """Whether something was consumed between the end of the one and the beginning of the other."""
    return (
        before.generation == interval.generation
        and before.to_version < interval.from_version
        and not follows(before, interval)
    )


def difference_milli(before: Consumed, after: Consumed) -> dict[str, int]:
    """By how much each limit rose. Those that did not change are left out."""
    changes = {limit: milli - before.get(limit, 0) for limit, milli in after.items()}
    changes |= {limit: -milli for limit, milli in before.items() if limit not in after}
    return {limit: milli for limit, milli in changes.items() if milli}


def _increase(interval: Interval) -> Increase:
    return Increase(
        difference_milli(interval.from_milli, interval.to_milli), interval.to_version - interval.from_version
    )


def _with_generation(tally: Tally, interval: Interval) -> Tally:
    kept = (*tally.kept, interval)
    gone = kept[:-KEPT_GENERATIONS]
    named = (*tally.named, *(one.generation for one in gone))
    return Tally(kept[-KEPT_GENERATIONS:], named[-NAMED_GENERATIONS_MAX:])


def _made_at_ms(observation: Observation, newest: dict[ShardName, tuple[Image, int]]) -> int:
    """Not before the newest record of its generation so far. One that comes again keeps its own time."""
    new = observation.new
    if new is None:
        return observation.at_ms
    before = newest.get(observation.shard)
    if before is None or before[0].generation != new.generation:
        newest[observation.shard] = (new, observation.at_ms)
        return observation.at_ms
    image, made_at_ms = before
    if new.version <= image.version:
        return observation.at_ms
    at_ms = max(made_at_ms, observation.at_ms)
    newest[observation.shard] = (new, at_ms)
    return at_ms
