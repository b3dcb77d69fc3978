"""Seeds of every scenario; a failing one prints how to run it again.

SLUICE_SIMULATION_SEEDS says how many in all, SLUICE_SIMULATION_FIRST with which to begin.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from math import ceil
from pathlib import Path
from typing import Final

import pytest

from tests.simulation.conftest import SIMULATED
from tests.simulation.faults import CALM, Fault, FaultPlan
from tests.simulation.scenario import Scenario, SimulationFailure, Totals, Violated, run_seed, run_seeds
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.world import Outcome, World

FIRST: Final = int(os.environ.get("SLUICE_SIMULATION_FIRST", "0"))
# As many of each scenario: what a seed draws depends on its scenario and on nothing else.
END: Final = FIRST + ceil(int(os.environ.get("SLUICE_SIMULATION_SEEDS", "20000")) / len(SCENARIOS))
# Few enough that the workers end at the same time.
SEEDS_AT_ONCE: Final = 50
ROOT: Final = Path(__file__).parents[2]


# Found something once. What each found may need another seed by now.
TELLING: Final = (("families", 2537), ("moves", 27), ("chains", 1139), ("shards", 1014), ("provisioning", 3961))


@pytest.mark.parametrize(("scenario", "seed"), TELLING)
def test_telling_seeds_hold(scenario: str, seed: int) -> None:
    run_seed(SCENARIOS[scenario], seed)


@pytest.mark.parametrize("first", range(FIRST, END, SEEDS_AT_ONCE))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_seeds_hold(scenario: str, first: int, record_property: Callable[[str, object], None]) -> None:
    started_s = time.process_time()
    met = run_seeds(SCENARIOS[scenario], range(first, min(first + SEEDS_AT_ONCE, END)))
    spent_s = time.process_time() - started_s
    record_property(SIMULATED, (met.seeds, met.calls, met.faults.total(), met.outcomes.total(), spent_s))


def test_every_fault_and_every_outcome_is_met() -> None:
    """Else a scenario shows less than it seems to."""
    totals = Totals()
    for scenario in SCENARIOS.values():
        met = run_seeds(scenario, range(20))
        totals.faults += met.faults
        totals.outcomes += met.outcomes
    assert totals.faults.keys() == set(Fault)
    # Only a table under `on_unavailable: allow` lets anybody through unchecked, and contention is rare.
    assert totals.outcomes.keys() >= {None, *Outcome} - {Outcome.DEGRADED, Outcome.CONTENDED}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_in_peace_nobody_is_turned_away_but_by_limits(scenario: str) -> None:
    peaceful = with_plan(SCENARIOS[scenario], CALM)
    totals = run_seeds(peaceful, range(20))
    assert Outcome.UNAVAILABLE not in totals.outcomes
    assert None not in totals.outcomes
    assert totals.outcomes[Outcome.CONTENDED] * 100 <= totals.outcomes.total()


def with_plan(scenario: Scenario, plan: FaultPlan) -> Scenario:
    return Scenario(scenario.name, scenario.setup, scenario.holds, lambda _random: plan)


def test_a_failing_seed_says_how_to_run_it_again() -> None:
    def never(_world: World) -> None:
        raise Violated("as it must")

    failing = Scenario("one-bucket", SCENARIOS["one-bucket"].setup, (never,))
    with pytest.raises(SimulationFailure) as failed:
        run_seed(failing, 7)
    lines = str(failed.value).splitlines()
    assert lines[0] == "Violated: as it must"
    assert lines[1] == "python -m tests.simulation.replay --scenario one-bucket --seed 7"
    assert 10 < len(lines) < 70


DIGESTS: Final = """
import hashlib
from tests.simulation.scenario import TRACE_WHOLE, run_seed
from tests.simulation.scenarios import SCENARIOS
for scenario in SCENARIOS.values():
    for seed in range(5):
        lines = run_seed(scenario, seed, kept=TRACE_WHOLE).trace.lines()
        print(scenario.name, seed, len(lines), hashlib.sha256("\\n".join(lines).encode()).hexdigest())
"""


def test_a_seed_runs_the_same_way_in_every_process() -> None:
    """Whatever the order of its sets."""
    printed = {
        subprocess.run(
            [sys.executable, "-c", DIGESTS],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for salt in ("1", "2")
    }
    assert len(printed) == 1
    assert len(printed.pop().splitlines()) == 5 * len(SCENARIOS)


def test_a_replay_shows_what_happened() -> None:
    command = [sys.executable, "-m", "tests.simulation.replay", "--scenario", "chains", "--seed", "5"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "request 0 of client-" in shown
    assert shown.splitlines()[-1].startswith("1 seeds")
