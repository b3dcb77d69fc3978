"""Every fault meets every write path: a path that is not reached shows nothing."""

from dataclasses import replace

import pytest

from tests.simulation.faults import WRITE_FAULTS, Fault
from tests.simulation.paths import Path
from tests.simulation.reach import IMPOSSIBLE, WANTED, WHERE, Aim, reach, replayed
from tests.simulation.scenario import SimulationFailure, Violated
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.store import Call
from tests.simulation.world import World


@pytest.mark.parametrize(("scenario", "paths"), WHERE, ids=lambda value: value if isinstance(value, str) else value[0])
def test_every_fault_meets_every_write_path(scenario: str, paths: tuple[Path, ...]) -> None:
    _, lacking = reach(SCENARIOS[scenario], paths)
    assert not lacking, f"met less than {WANTED} times: {lacking}"


def test_an_aimed_seed_says_how_to_run_it_again() -> None:
    """The same calls meet the same faults again."""
    told: list[str] = []

    def fails_late(world: World) -> None:
        told[:] = world.trace.lines()
        if world.seed == 3:
            raise Violated("as it must")

    paths = (Path.CREATE, Path.DEBIT)
    failing = replace(SCENARIOS["one-bucket"], holds=(fails_late,))
    with pytest.raises(SimulationFailure) as failed:
        reach(failing, paths)
    command = str(failed.value).splitlines()[1]
    assert command.endswith("replay --scenario one-bucket --seed 3 --aimed-at CREATE --aimed-at DEBIT")
    assert replayed(replace(failing, holds=()), paths, 3).trace.lines() == told


def test_no_path_is_left_out() -> None:
    assert {path for _, paths in WHERE for path in paths} == set(Path) - {Path.SETUP}
    assert {fault for _, fault in IMPOSSIBLE} == {Fault.HOT_KEY}


def test_what_is_not_reached_is_told() -> None:
    _, lacking = reach(SCENARIOS["one-bucket"], (Path.DEBIT, Path.PURGE_END), seeds=1)
    assert lacking.keys() >= {(Path.PURGE_END, fault) for fault in WRITE_FAULTS if fault is not Fault.HOT_KEY}


def test_faults_are_aimed_at_what_is_lacking() -> None:
    aim = Aim((Path.CREATE,), wanted=1)
    create = Call("put", None, writes=True, path=Path.CREATE)
    assert {aim(create, 0.0) for _ in WRITE_FAULTS} == set(WRITE_FAULTS)
    assert aim(create, 0.0) is None
    assert aim(Call("update", None, writes=True, path=Path.DEBIT), 0.0) is None
