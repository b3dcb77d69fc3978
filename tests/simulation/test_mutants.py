"""The invariants notice what they are there for."""

import pytest

from tests.simulation.mutants import MUTANTS, Mutant, caught

MUTANTS_LEAST = 18


def test_there_are_enough() -> None:
    assert len({mutant.name for mutant in MUTANTS}) >= MUTANTS_LEAST


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_hole_that_is_opened_again_is_caught(mutant: Mutant) -> None:
    assert caught(mutant) is not None
