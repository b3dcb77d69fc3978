"""When whoever is in a world acts: spread evenly, or all of them in the same few seconds of each minute.

Only then does it happen that one counts, another marks, a third sums up and a fourth removes a mark, all at once: a
mark is taken some seconds after its minute is over.
"""

from typing import Final

from tests.simulation.world import Client, World

MINUTE_MS: Final = 60_000
BEGIN_MS: Final = 7_000
"""After each whole minute, by the right time: by every clock the marks of the minute before may be taken."""
SPANS_MS: Final = (40, 400, 4_000)
"""All calls of a rollup, by the latencies that there are."""
THINK_MS: Final = (500, 8_000, 30_000)


class Pace:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._think_ms = None if world.random.random() < 0.7 else world.random.choice(THINK_MS)
        self._span_ms = world.random.choice(SPANS_MS)

    def wait(self, client: Client, often: int = 1) -> None:
        """`often`: how many times as often as whoever acts once a minute, or as others do."""
        world, span_ms = self._world, self._span_ms
        if self._think_ms is not None:
            client.wait(world.random_below(self._think_ms // often + 1))
            return
        within_ms = world.scheduler.now_ms % MINUTE_MS
        next_ms = max(within_ms, BEGIN_MS) + world.random_below(2 * span_ms // often)
        if next_ms >= BEGIN_MS + span_ms:
            next_ms = MINUTE_MS + BEGIN_MS + world.random_below(span_ms)
        client.wait(next_ms - within_ms)


def pace_of(world: World) -> Pace:
    if "pace" not in world.notes:
        world.notes["pace"] = Pace(world)
    pace: Pace = world.notes["pace"]
    return pace
