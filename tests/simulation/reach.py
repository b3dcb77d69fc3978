"""Whether every fault met every write path, often enough. Chance alone would take hours for the rare ones.

So faults are aimed: a write on a path that lacks some fault meets, with AIMED_SHARE, the one that it met least. That
holds for every path alike, and stops for a path that has all of them; what must hold is checked as ever.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Final

from tests.simulation.faults import SKEW_MOST_MS, WRITE_FAULTS, Fault, FaultPlan
from tests.simulation.paths import Path
from tests.simulation.scenario import Scenario, run_seed, run_seeds
from tests.simulation.store import Call
from tests.simulation.trace import EVENTS_KEPT
from tests.simulation.world import World

WANTED: Final = 100
AIMED_SHARE: Final = 0.8
SEEDS_AT_ONCE: Final = 20
SEEDS_MAX: Final = 2_000

WHERE: Final[tuple[tuple[str, tuple[Path, ...]], ...]] = (
    ("one-bucket", (Path.CREATE, Path.DEBIT)),
    ("chains", (Path.FROM_FULL, Path.GIVE_BACK)),
    ("changed-limits", (Path.REBASE, Path.LIMITS)),
    ("shards", (Path.GATHER,)),
    ("merges", (Path.SPLIT, Path.MERGE)),
    ("idempotency", (Path.KEYED_ACQUIRE,)),
    ("leases", (Path.LEASE, Path.LEASE_PUT)),
    ("held", (Path.ADJUST,)),
    ("families", (Path.ENTITY, Path.REMOVE_ENTITY)),
    ("removals", (Path.REMOVE_BUCKET, Path.REMOVE_SHARDS)),
    ("migration", (Path.MOVE, Path.MOVE_IN_PLACE)),
    ("migration", (Path.MIGRATION_START, Path.MIGRATION_END)),
    ("namespaces", (Path.REGISTRATION, Path.PURGE_START, Path.JOB)),
    ("namespaces", (Path.PURGE_ITEM, Path.PURGE_END)),
    ("identity", (Path.ROTATE, Path.RENEW_HASH, Path.REFRESH, Path.REVOKE)),
    ("provisioning", (Path.ORG, Path.ORG_CHANGE, Path.APP, Path.APP_CHANGE, Path.REMOVE_APP, Path.PURGE_REGISTERED)),
    ("streams", (Path.SNAPSHOT,)),
    ("archive", (Path.ARCHIVE, Path.EMPTY_ARCHIVE)),
    ("budgets", (Path.HOLD, Path.SETTLE)),
    ("budgets", (Path.BUDGET, Path.LEDGER, Path.LEDGER_TERMS)),
    ("late-sweeps", (Path.SWEEP_CURSOR,)),
    ("overruns", (Path.EXPIRE, Path.FREE)),
    ("metering", (Path.USAGE, Path.USAGE_WITH_LEASE, Path.MARK, Path.TOTAL, Path.UNMARK)),
    ("selection", (Path.STICKY, Path.OVERRIDE)),
)
"""Each path in the scenario that has most of it."""

TRANSACTIONS: Final = frozenset(
    {
        Path.GATHER,
        Path.SPLIT,
        Path.MERGE,
        Path.KEYED_ACQUIRE,
        Path.LEASE,
        Path.REGISTRATION,
        Path.ENTITY,
        Path.LIMITS,
        Path.REMOVE_ENTITY,
        Path.REMOVE_SHARDS,
        Path.MOVE,
        Path.MIGRATION_START,
        Path.PURGE_START,
        Path.PURGE_END,
        Path.PURGE_REGISTERED,
        Path.ORG,
        Path.ORG_CHANGE,
        Path.APP,
        Path.APP_CHANGE,
        Path.REMOVE_APP,
        Path.ROTATE,
        Path.RENEW_HASH,
        Path.REFRESH,
        Path.USAGE,
        Path.USAGE_WITH_LEASE,
        Path.OVERRIDE,
        Path.HOLD,
        Path.SETTLE,
        Path.FREE,
        Path.EXPIRE,
        Path.BUDGET,
    }
)

IMPOSSIBLE: Final = frozenset((path, Fault.HOT_KEY) for path in TRANSACTIONS)
"""The reasons of a cancelled transaction name no key: to the product a hot one is a throttle like any other."""


class Aim:
    """Chooses the fault of a write."""

    def __init__(self, paths: Iterable[Path], wanted: int = WANTED) -> None:
        self.met: Counter[tuple[Path, Fault]] = Counter()
        self.paths = tuple(paths)
        self.cells = frozenset((path, fault) for path in self.paths for fault in WRITE_FAULTS) - IMPOSSIBLE
        self._wanted = wanted

    def __call__(self, call: Call, drawn: float) -> Fault | None:
        if drawn >= AIMED_SHARE or call.path is None:
            return None
        path = call.path
        lacking = [
            fault for fault in WRITE_FAULTS if (path, fault) in self.cells and self.met[path, fault] < self._wanted
        ]
        if not lacking:
            return None
        fault = min(lacking, key=lambda one: self.met[path, one])
        self.met[path, fault] += 1
        return fault

    def lacking(self) -> bool:
        return any(self.met[cell] < self._wanted for cell in self.cells)


def reach(
    scenario: Scenario, paths: Iterable[Path], seeds: int = SEEDS_MAX
) -> tuple[int, dict[tuple[Path, Fault], int]]:
    """Runs seeds until every fault met these paths: how many it took, and what is lacking even so."""
    aim = Aim(paths)
    counted: Counter[tuple[Path, Fault]] = Counter()
    aimed = aimed_at(scenario, aim)
    seed = 0
    while aim.lacking() and seed < seeds:
        step = range(seed, min(seed + SEEDS_AT_ONCE, seeds))
        counted += run_seeds(aimed, step).met
        seed = step.stop
    return seed, {cell: counted[cell] for cell in aim.cells if counted[cell] < WANTED}


def aimed_at(scenario: Scenario, aim: Aim) -> Scenario:
    return replace(scenario, plan=lambda random: _plan(random, aim), aimed_at=aim.paths)


def replayed(scenario: Scenario, paths: Iterable[Path], seed: int, *, kept: int = EVENTS_KEPT) -> World:
    """Once more, after all seeds before it: those decided what is lacking."""
    aimed = aimed_at(scenario, Aim(paths))
    run_seeds(aimed, range(seed))
    return run_seed(aimed, seed, kept=kept)


def _plan(random: Random, aim: Aim) -> FaultPlan:
    return FaultPlan(reads=0.1, lag=0.2, skew_most_ms=random.choice((0, SKEW_MOST_MS)), aim=aim)
