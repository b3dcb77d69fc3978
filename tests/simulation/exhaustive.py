"""Every order of a few clients' store calls, not a sample of them.

The clients are fibers again, but whose call reaches the table next is a choice, and the choices are a tree that is
walked depth first: each order is run from the start, on a copy of the table that the setup left. Time stands still, or
goes on by a tick with every call.

While time stands still, two calls next to each other that touch nothing in common come to the same in either order: of
all orders that differ only by such swaps one is run (sleep sets), and the others are counted. What a call touches is
noted by the table while it runs. A client has so many turns; what it has to do after them it does at the end, when
everybody had theirs, one client after the other.
"""

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.simulation.faults import CALM, LATENCIES
from tests.simulation.scenario import Invariant, Program, SimulationFailure
from tests.simulation.scheduler import Process
from tests.simulation.trace import Trace
from tests.simulation.turns import Choose, LostAnswer, NotingTable, Turn, Turns, Wire
from tests.simulation.world import START_MS, Host, World, build_host

TURNS: Final = 3
TRACE_KEPT: Final = 200
COLLECT_EVERY: Final = 30


class Abandoned(BaseException):
    """Every order from here on was run before, but for swaps that change nothing."""


class SmallWorld(World):
    """A world whose tokens and draws are each client's own: what one does must not depend on who else did what."""

    def __init__(self, scope: "SmallScope", table: NotingTable, choose: Choose, lost: LostAnswer | None) -> None:
        super().__init__(0, CALM, LATENCIES[0], Random(0), Trace(START_MS, TRACE_KEPT), table)
        self.turns = Turns(START_MS + scope.later_ms, scope.tick_ms, table, choose)
        self.scheduler = self.turns
        self.wire = Wire(self.turns, table, self.trace, lost)
        self.network = self.wire
        self.small_table = table
        table.clock_ms = self.turns.clock_ms
        table.index_lag_ms = self.network.index_lag_ms
        table.cause = self.turns.cause
        self._draws: dict[str, int] = {}

    def random_below(self, below: int) -> int:
        number = self._own_count()
        return 7 * number % below

    def new_token(self) -> str:
        return f"{self.turns.current.process.name}-{self._own_count()}"

    def _own_count(self) -> int:
        client = self.turns.current.process.name
        self._draws[client] = self._draws.get(client, sum(client.encode()) % 97) + 1
        return self._draws[client]


Setup = Callable[[SmallWorld, Host], None]
Enter = Callable[[SmallWorld], None]


@dataclass(frozen=True)
class SmallScope:
    """`setup` fills the table, once; `enter` makes what each run needs in memory, such as warm clients.

    `programs`: one for each client, which are called a, b, c. `tick_ms`: how far each call moves the time; with zero
    it stands still. `later_ms`: how long after the setup the clients come. `lost`: whose writes may lose their answer,
    one at a time. `turns`: of each client.
    """

    name: str
    setup: Setup
    programs: tuple[Program, ...]
    holds: tuple[Invariant, ...]
    enter: Enter = lambda _world: None
    tick_ms: int = 0
    later_ms: int = 0
    lost: tuple[LostAnswer, ...] = ()
    turns: int = TURNS


@dataclass
class Tally:
    """`schedules`: the orders of calls that were decided; `runs`: those that were really run."""

    schedules: int = 0
    runs: int = 0
    blocked: int = 0
    calls: int = 0
    longest: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    answers_lost: int = 0

    def add(self, other: "Tally") -> None:
        self.schedules += other.schedules
        self.runs += other.runs
        self.blocked += other.blocked
        self.calls += other.calls
        self.longest = max(self.longest, other.longest)
        self.answers_lost += other.answers_lost
        for outcome, count in other.outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count


@dataclass
class _Node:
    """One choice of the order that is being run. `sleep`: who need not be chosen here; `done`: who was."""

    enabled: tuple[str, ...]
    sleep: dict[str, Turn]
    choice: str
    done: dict[str, Turn] = field(default_factory=dict)

    def next_choice(self) -> str | None:
        return next((who for who in self.enabled if who not in self.sleep and who not in self.done), None)


class _Walk:
    """Depth first through the choices of one scope, a whole run at a time."""

    def __init__(self, scope: SmallScope, *, reduced: bool) -> None:
        self.turns_each = scope.turns
        self.reduced = reduced and scope.tick_ms == 0
        self.path: list[_Node] = []
        self.depth = 0
        self.used: dict[str, int] = {}
        self.turns: Turns | None = None

    def start(self) -> None:
        self.depth = 0
        self.used = {}

    def choose(self, waiting: Mapping[str, str]) -> str:
        enabled = sorted(who for who, client in waiting.items() if self.used.get(client, 0) < self.turns_each)
        if not enabled:
            return min(waiting)
        if self.depth == len(self.path):
            sleep = self._sleep()
            awake = [who for who in enabled if who not in sleep]
            if not awake:
                raise Abandoned
            self.path.append(_Node(tuple(enabled), sleep, awake[0]))
        choice = self.path[self.depth].choice
        self.depth += 1
        self.used[waiting[choice]] = self.used.get(waiting[choice], 0) + 1
        return choice

    def backtrack(self, taken: list[Turn]) -> bool:
        """Whether there is another order to run."""
        while self.path:
            node = self.path[-1]
            node.done[node.choice] = taken[len(self.path) - 1]
            choice = node.next_choice()
            if choice is not None:
                node.choice = choice
                return True
            self.path.pop()
        return False

    def _sleep(self) -> dict[str, Turn]:
        if not self.reduced or not self.path:
            return {}
        node = self.path[-1]
        assert self.turns is not None
        last = self.turns.taken[self.depth - 1]
        return {who: turn for who, turn in {**node.sleep, **node.done}.items() if not turn.meets(last)}


def explore(
    scope: SmallScope,
    *,
    reduced: bool = True,
    at_end: Callable[[SmallWorld], None] = lambda _world: None,
) -> Tally:
    """Every order, and each of them with every lost answer; raises SimulationFailure at the first that fails."""
    table = filled(scope)
    tally = Tally()
    # Each world is a web of cycles: looked for now and then, and among the worlds alone, that costs a fifth less.
    gc.disable()
    gc.freeze()
    try:
        for lost in (None, *scope.lost):
            tally.add(_explore(scope, table, lost, reduced=reduced, at_end=at_end))
    finally:
        gc.unfreeze()
        gc.enable()
    return tally


def _explore(
    scope: SmallScope,
    table: NotingTable,
    lost: LostAnswer | None,
    *,
    reduced: bool,
    at_end: Callable[[SmallWorld], None],
) -> Tally:
    tally = Tally()
    walk = _Walk(scope, reduced=reduced)
    while True:
        walk.start()
        world = SmallWorld(scope, table.copy(), walk.choose, lost)
        walk.turns = world.turns
        try:
            _run(scope, world)
        except Abandoned:
            tally.blocked += 1
        except Exception as error:
            raise SimulationFailure(_report(scope, world, lost, error)) from error
        else:
            tally.runs += 1
            tally.calls += len(world.turns.taken)
            tally.longest = max(tally.longest, len(world.turns.taken))
            tally.schedules += orders(world.turns.taken[: walk.depth]) if walk.reduced else 1
            tally.answers_lost += world.wire.answers_lost
            for request in world.history:
                outcome = str(request.outcome)
                tally.outcomes[outcome] = tally.outcomes.get(outcome, 0) + 1
            at_end(world)
        if not walk.backtrack(world.turns.taken):
            return tally
        if (tally.runs + tally.blocked) % COLLECT_EVERY == 0:
            gc.collect()


def replay(scope: SmallScope, choices: list[str], lost: LostAnswer | None) -> SmallWorld:
    """One order again; raises SimulationFailure if it fails."""
    rest = iter(choices)
    world = SmallWorld(scope, filled(scope).copy(), lambda waiting: next(rest, min(waiting)), lost)
    try:
        _run(scope, world)
    except Exception as error:
        raise SimulationFailure(_report(scope, world, lost, error)) from error
    return world


def filled(scope: SmallScope) -> NotingTable:
    """The table as the setup leaves it."""
    table = NotingTable()
    world = SmallWorld(scope, table, min, None)
    world.turns.now_ms = START_MS
    host = build_host(world, Process("setup"), world.turns.clock_ms)
    world.turns.start(host.process, lambda: scope.setup(world, host))
    world.turns.run()
    return table


def _run(scope: SmallScope, world: SmallWorld) -> None:
    for name, program in zip("abcdef", scope.programs, strict=False):
        world.add_client(name, program)
    admin = Process("enter")
    world.turns.start(admin, lambda: scope.enter(world))
    world.turns.run()
    world.turns.free = False
    for client in world.clients:
        client.start()
    world.turns.run()
    world.turns.free = True
    for holds in scope.holds:
        holds(world)


def orders(turns: list[Turn]) -> int:
    """How many orders come to the same: those that keep the order of every two calls that meet."""
    before = [
        sum(1 << earlier for earlier in range(number) if turns[earlier].meets(turn))
        for number, turn in enumerate(turns)
    ]
    ways = {0: 1}
    for _ in turns:
        longer: dict[int, int] = {}
        for made, count in ways.items():
            for number, needed in enumerate(before):
                if not made >> number & 1 and needed & made == needed:
                    together = made | 1 << number
                    longer[together] = longer.get(together, 0) + count
        ways = longer
    return sum(ways.values())


def _report(scope: SmallScope, world: SmallWorld, lost: LostAnswer | None, error: Exception) -> str:
    choices = ",".join(turn.who for turn in world.turns.taken)
    losing = "" if lost is None else f" --lost {lost.client}{lost.number}"
    return "\n".join(
        [
            f"{type(error).__name__}: {error}",
            f"python -m tests.simulation.exhaustive_replay --scope {scope.name} --choices {choices}{losing}",
            *world.trace.lines(),
        ]
    )
