"""Ways to count a stream that look right until a record comes again, late, or not at all: each must be caught.

As in `mutants.py` a mutant patches the product for one run.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from sluice.core import snapshots
from sluice.core.errors import Contended
from sluice.core.snapshots import Increase, Tally, Window
from sluice.repository import snapshots as stored
from sluice.services import counting
from sluice.services.counting import Counted, Counting
from tests.simulation.deliveries import READ_AT_MS, Deliveries, difference
from tests.simulation.hole import Mutant

SEEDS: Final = 40

_interval_of = snapshots.interval_of
_extended = snapshots.extended
_hull = snapshots.hull
_fold = snapshots.fold
_request = stored.count
_of_fold = Counting._count
_of_batch = Counting.count
_increase = snapshots._increase
_with_generation = snapshots._with_generation


class StreamMutant(NamedTuple):
    name: str
    opened: Callable[[], AbstractContextManager[object]]


def _adds(tally: Tally, interval: Any) -> tuple[Tally, Increase]:
    """As a counter that knows nothing of what it counted. The tally still differs, so that it is written."""
    after, _ = _extended(tally, interval)
    return after, _increase(interval)


def _overlooks_inserts(observation: Any) -> Any:
    return None if observation.old is None else _interval_of(observation)


def _goes_by_the_clock(observations: Any) -> Any:
    return _fold([replace(observation, at_ms=READ_AT_MS) for observation in observations])


def _goes_on_from_the_window_before(self: Counting, one: Any) -> None:
    """The first interval of an hour begins where the last one that went by here ended."""
    tallies = self._tallies(one.name)
    for shard, intervals in one.intervals.items() if one.name.window is Window.HOUR else ():
        name = one.name
        before = self._last.get(
            snapshots.ShardName(name.namespace, name.entity, name.resource, name.call_fingerprint, shard)
        )
        for number, interval in enumerate(intervals):
            begins = tallies.get(shard, snapshots.EMPTY).is_new(interval.generation)
            if begins and before is not None and before.generation == interval.generation:
                intervals[number] = replace(interval, from_version=before.to_version, from_milli=before.to_milli)
    _of_fold(self, one)


def _swallows(self: Counting, records: Any) -> Counted:
    return replace(_of_batch(self, records), uncounted=())


def _writes_whatever_is_there(*arguments: Any) -> Any:
    request: Any = _request(*arguments)
    values = request["ExpressionAttributeValues"]
    request["ConditionExpression"] = "attribute_not_exists(nothing)"
    request["ExpressionAttributeValues"] = {name: values[name] for name in values if not name.endswith("s")}
    return request


def _only_goes_up(one: Any, other: Any) -> Any:
    """A stored interval, which comes first, never begins earlier."""
    return replace(_hull(one, other), from_version=one.from_version, from_milli=one.from_milli)


def _forgets_generations(tally: Tally, interval: Any) -> Tally:
    return replace(_with_generation(tally, interval), named=())


def _takes_the_hour_for_the_day(self: Counting, one: Any) -> None:
    """What the hour has already is taken as counted for the day as well."""
    if one.name.window is Window.HOUR:
        self.__dict__["stale"] = snapshots.join(self._tallies(one.name), one.intervals) is None
    elif self.__dict__.get("stale"):
        return
    _of_fold(self, one)


def _takes_a_lost_race_for_done(self: Counting, one: Any) -> None:
    try:
        with patch.object(counting, "ROUNDS_MAX", 1):
            _of_fold(self, one)
    except Contended:
        return


def _counts_moves(observation: Any) -> Any:
    new = observation.new
    if observation.old is None and new is not None and new.version == 0:
        return snapshots.Interval(new.generation, 0, {}, 1, new.consumed_milli)
    return _interval_of(observation)


STREAM_MUTANTS: Final = (
    StreamMutant("plain ADD", lambda: patch.object(snapshots, "extended", _adds)),
    StreamMutant("INSERT not counted", lambda: patch.object(snapshots, "interval_of", _overlooks_inserts)),
    StreamMutant("window from the consumer's clock", lambda: patch.object(counting, "fold", _goes_by_the_clock)),
    StreamMutant(
        "base taken from the earlier window",
        lambda: patch.object(Counting, "_count", _goes_on_from_the_window_before),
    ),
    StreamMutant("swallowed error", lambda: patch.object(Counting, "count", _swallows)),
    StreamMutant("unconditional write", lambda: patch.object(counting, "count", _writes_whatever_is_there)),
    StreamMutant("intervals only go up", lambda: patch.object(snapshots, "hull", _only_goes_up)),
    StreamMutant(
        "generations are forgotten", lambda: patch.object(snapshots, "_with_generation", _forgets_generations)
    ),
    StreamMutant("the hour stands for the day", lambda: patch.object(Counting, "_count", _takes_the_hour_for_the_day)),
    StreamMutant(
        "a lost race is taken for done", lambda: patch.object(Counting, "_count", _takes_a_lost_race_for_done)
    ),
    StreamMutant("a moved bucket is counted", lambda: patch.object(snapshots, "interval_of", _counts_moves)),
)

_SHOWN_BY_THE_SCENARIO: Final = (
    "plain ADD",
    "INSERT not counted",
    "window from the consumer's clock",
    "swallowed error",
    "unconditional write",
)
STREAMS: Final = tuple(
    Mutant(mutant.name, "streams", mutant.opened, 500)
    for mutant in STREAM_MUTANTS
    if mutant.name in _SHOWN_BY_THE_SCENARIO
)
"""Those that the simulation shows as well. The others need a lost stretch, or more generations than it has."""


def caught(mutant: StreamMutant) -> str | None:
    """What the first history shows of it."""
    with mutant.opened():
        for seed in range(SEEDS):
            deliveries = Deliveries(seed)
            deliveries.run()
            found = difference(deliveries)
            if found is not None:
                return f"seed {seed}: {found}"
    return None
