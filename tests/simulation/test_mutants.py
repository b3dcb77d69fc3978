"""The invariants notice what they are there for."""

import pytest

from tests.simulation.hole import Mutant
from tests.simulation.mutants import MUTANTS, caught

MUTANTS_LEAST = 50


def test_there_are_enough() -> None:
    assert len({mutant.name for mutant in MUTANTS}) >= MUTANTS_LEAST


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_hole_that_is_opened_again_is_caught(mutant: Mutant) -> None:
    assert caught(mutant) is not None
