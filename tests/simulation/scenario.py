"""Scenarios, and how one seed of one is run."""

import gc
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.simulation.faults import INDEX_LAG_MOST_MS, Fault, FaultPlan, draw_latency, draw_plan
from tests.simulation.paths import Path
from tests.simulation.scheduler import Process
from tests.simulation.table import SimulatedTable
from tests.simulation.trace import EVENTS_KEPT, Trace
from tests.simulation.world import START_MS, Client, Outcome, World, build_host

# After that nobody reads what was there before the setup.
SETTLED_MS: Final = 2 * INDEX_LAG_MOST_MS
COLLECT_EVERY: Final = 5

Program = Callable[[Client], None]
Invariant = Callable[[World], None]


class Violated(AssertionError):
    """An invariant does not hold."""


class SimulationFailure(AssertionError):
    """A seed that failed: why, how to run it again, and what happened last."""


@dataclass(frozen=True)
class Scenario:
    """`setup` runs first, in peace, and adds the clients; then these run. `holds`: what must be true at the end.

    `aimed_at`: the write paths that the faults of its plan are aimed at. What a seed meets then depends on the seeds
    before it.
    """

    name: str
    setup: Callable[[World, "Admin"], None]
    holds: tuple[Invariant, ...]
    plan: Callable[[Random], FaultPlan] = draw_plan
    aimed_at: tuple[Path, ...] = ()


class Admin:
    """A host with the right time, for what a scenario sets up."""

    def __init__(self, world: World) -> None:
        self.host = build_host(world, Process("admin"), world.scheduler.clock_ms)


@dataclass
class Totals:
    """What the seeds of a run came to."""

    seeds: int = 0
    calls: int = 0
    faults: Counter[Fault] = field(default_factory=Counter)
    met: Counter[tuple[Path, Fault]] = field(default_factory=Counter)
    outcomes: Counter[Outcome | None] = field(default_factory=Counter)

    def add(self, world: World) -> None:
        self.seeds += 1
        self.calls += world.network.calls
        self.faults += world.network.faults
        self.met += world.network.met
        self.outcomes.update(request.outcome for request in world.history)

    def __str__(self) -> str:
        faults = ", ".join(f"{count:,} {fault.value}" for fault, count in self.faults.most_common())
        outcomes = ", ".join(f"{count:,} {outcome or 'crashed'}" for outcome, count in self.outcomes.most_common())
        return (
            f"{self.seeds:,} seeds, {self.calls:,} calls, {self.faults.total():,} faults ({faults}); "
            f"{self.outcomes.total():,} requests ({outcomes})"
        )


def run_seed(scenario: Scenario, seed: int, *, table: SimulatedTable | None = None, kept: int = EVENTS_KEPT) -> World:
    """Runs it and checks it; raises SimulationFailure."""
    random = Random(f"{scenario.name} {seed}")
    trace = Trace(START_MS, kept)
    world = World(seed, scenario.plan(random), draw_latency(random), random, trace, table or SimulatedTable())
    try:
        _run(scenario, world)
        for invariant in scenario.holds:
            invariant(world)
    except Exception as error:
        raise SimulationFailure(_report(scenario, world, error)) from error
    return world


def run_seeds(scenario: Scenario, seeds: Iterable[int]) -> Totals:
    """Up to the first that fails."""
    totals = Totals()
    # Each world is a web of cycles: looked for now and then, and among the worlds alone, that costs a fifth less.
    gc.disable()
    gc.freeze()
    try:
        for number, seed in enumerate(seeds, start=1):
            totals.add(run_seed(scenario, seed))
            if number % COLLECT_EVERY == 0:
                gc.collect()
    finally:
        gc.unfreeze()
        gc.enable()
    return totals


def _run(scenario: Scenario, world: World) -> None:
    admin = Admin(world)

    def begin() -> None:
        world.network.calm = True
        scenario.setup(world, admin)
        world.scheduler.pause(SETTLED_MS)
        world.network.calm = False
        for client in world.clients:
            client.start()

    world.scheduler.start(admin.host.process, begin)
    world.scheduler.run()


def _how_to_replay(scenario: Scenario, seed: int) -> str:
    aimed = "".join(f" --aimed-at {path.name}" for path in scenario.aimed_at)
    return f"python -m tests.simulation.replay --scenario {scenario.name} --seed {seed}{aimed}"


def _report(scenario: Scenario, world: World, error: Exception) -> str:
    return "\n".join(
        [
            f"{type(error).__name__}: {error}",
            _how_to_replay(scenario, world.seed),
            f"{world.plan}, clocks off by {world.skews_ms} ms",
            *world.trace.lines(),
        ]
    )


TRACE_WHOLE: Final = 1_000_000
