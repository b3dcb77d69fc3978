"""The invariants themselves, on made-up changes: what they must notice, and nothing else."""

from random import Random

import pytest

from sluice.core.limits import Limit
from tests.simulation.changes import Change, LimitChange, LimitState
from tests.simulation.invariants import SLACK_MS, _check_windows
from tests.simulation.scenario import Violated

RPM = Limit(10, 10, 10, 1)
PERIOD_MS = 1000
AMOUNT = 10_000
UNSURE_MS = 40


def _spent(time_ms: int, consumed: int) -> Change:
    state = LimitState(0, 10_000, AMOUNT, PERIOD_MS)
    return Change("user-1", time_ms, None, (), {"rpm": LimitChange((state,), (state,), consumed)})


def _passes_every_window(changes: list[Change]) -> bool:
    """The definition: from every write to every later one."""
    slack = SLACK_MS * AMOUNT // PERIOD_MS // 1000 * 1000
    for first in range(len(changes)):
        for last in range(first, len(changes)):
            total = sum(change.limits["rpm"].consumed for change in changes[first : last + 1])
            window_ms = changes[last].time_ms - changes[first].time_ms
            if total * PERIOD_MS > (10_000 + slack + 1) * PERIOD_MS + AMOUNT * (window_ms + UNSURE_MS):
                return False
    return True


def test_every_window_is_looked_at() -> None:
    """One pass says what all pairs of writes say, also where something is given back."""
    random = Random(7)
    verdicts = set()
    for _ in range(2_000):
        times_ms = sorted(random.randrange(2_000) for _ in range(8))
        changes = [_spent(ms, random.choice((-2_000, 1_000, 3_000, 5_000))) for ms in times_ms]
        try:
            _check_windows(changes, "rpm", RPM, UNSURE_MS)
            found = True
        except Violated:
            found = False
        assert found is _passes_every_window(changes)
        verdicts.add(found)
    assert verdicts == {True, False}


def test_a_window_in_the_middle_is_enough() -> None:
    calm, busy = [_spent(0, 1_000)], [_spent(90_000 + number, 6_000) for number in range(2)]
    later = [_spent(200_000, 1_000)]
    with pytest.raises(Violated, match="too many"):
        _check_windows([*calm, *busy, *later], "rpm", RPM, UNSURE_MS)
