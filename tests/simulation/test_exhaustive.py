"""Every order of every small scope. A failing one prints its choices and how to run it again."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.simulation.conftest import EXPLORED
from tests.simulation.exhaustive import SmallScope, SmallWorld, explore, replay
from tests.simulation.hole import Mutant
from tests.simulation.scenario import SimulationFailure, Violated
from tests.simulation.small_mutants import SMALL_MUTANTS
from tests.simulation.small_scopes import SCOPES
from tests.simulation.turns import LostAnswer
from tests.simulation.world import Outcome, World

ROOT: Final = Path(__file__).parents[2]
# Nine calls, three of each client: 9! / (3! 3! 3!).
COUNTED: Final = {"take-full": 1680, "take-overflowed": 1680, "take-at-the-edge": 1680, "create-cold": 1680}
# Few enough orders to run each of them: with several fibers, lost answers and refusals among them.
COMPARED: Final = ("take-split-empty", "chain", "gather-split", "merge-merge", "if-match", "adjust-lost")


@pytest.mark.parametrize("name", SCOPES)
def test_every_order_holds(name: str, record_property: Callable[[str, object], None]) -> None:
    scope = SCOPES[name]
    tally = explore(scope)
    assert tally.runs >= 2
    assert tally.schedules == COUNTED.get(name, tally.schedules)
    assert tally.schedules >= tally.runs
    # An answer that could be lost and never was would be a gap.
    assert bool(tally.answers_lost) == bool(scope.lost)
    record_property(EXPLORED, (tally.schedules, tally.runs))


def test_there_are_enough_scopes_and_most_have_three_clients() -> None:
    assert len(SCOPES) >= 40
    assert sum(len(scope.programs) >= 3 for scope in SCOPES.values()) >= 40


@pytest.mark.parametrize("name", COMPARED)
def test_orders_that_are_not_run_come_to_the_same(name: str) -> None:
    """As many are counted as there are, and all ends that there are are met."""
    every, met = Ends(), Ends()
    full = explore(SCOPES[name], reduced=False, at_end=every.add)
    reduced = explore(SCOPES[name], at_end=met.add)
    assert reduced.schedules == full.schedules == full.runs
    assert reduced.runs < full.runs
    assert met.seen == every.seen


class Ends:
    """How runs ended: the table and what everybody was told."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def add(self, world: SmallWorld) -> None:
        items = sorted(str(sorted(item.items(), key=_name)) for item in world.table.items())
        # Requests are numbered in the order in which they began.
        told = sorted(
            f"{request.client.name} {request.entity} {request.consume} {request.outcome}" for request in world.history
        )
        self.seen.add(f"{items} {told}")


def _name(attribute: tuple[str, object]) -> str:
    return attribute[0]


@pytest.mark.parametrize("mutant", SMALL_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_hole_that_is_opened_again_is_found(mutant: Mutant) -> None:
    with mutant.opened(), pytest.raises(SimulationFailure) as caught:
        explore(SCOPES[mutant.scenario])
    assert isinstance(caught.value.__cause__, Violated), caught.value


def test_a_failing_order_can_be_run_again() -> None:
    failing = _failing_at(SCOPES["create-lost"])
    with pytest.raises(SimulationFailure) as failed:
        explore(failing)
    lines = str(failed.value).splitlines()
    assert lines[0] == "Violated: as it must"
    command = lines[1].split()
    assert command[:5] == ["python", "-m", "tests.simulation.exhaustive_replay", "--scope", "create-lost"]
    choices = command[command.index("--choices") + 1].split(",")
    assert command[-2] == "--lost"
    lost = LostAnswer(command[-1][0], int(command[-1][1:]))
    with pytest.raises(SimulationFailure) as again:
        replay(failing, choices, lost)
    assert str(again.value).splitlines() == lines
    shown = subprocess.run([sys.executable, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[: len(lines) - 2] == lines[2:]


def _failing_at(scope: SmallScope) -> SmallScope:
    def always_told(world: World) -> None:
        if any(request.outcome is Outcome.UNAVAILABLE for request in world.history):
            raise Violated("as it must")

    return replace(scope, holds=(*scope.holds, always_told))
