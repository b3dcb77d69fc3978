"""The checks of a history: what fits passes, and one token too many does not."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.limits import Limit
from tests.histories import Admitted, Violated, check_every_window
from tests.killing import read_history

NINE_A_SECOND = Limit(5, 20, 9, 1)


def answered(*times_ms: int, amount: int = 1) -> list[Admitted]:
    return [Admitted(amount, time_ms - 10, time_ms) for time_ms in times_ms]


def test_a_burst_at_once_passes_and_one_more_does_not() -> None:
    check_every_window(answered(*[1_000] * 20), NINE_A_SECOND, longest_ms=0)
    with pytest.raises(Violated, match="999 millitokens too many"):
        check_every_window(answered(*[1_000] * 21), NINE_A_SECOND, longest_ms=0)


def test_the_longest_request_is_allowed_for() -> None:
    check_every_window(answered(*[1_000] * 21), NINE_A_SECOND, longest_ms=112)
    with pytest.raises(Violated):
        check_every_window(answered(*[1_000] * 21), NINE_A_SECOND, longest_ms=110)


def test_a_window_in_the_middle_is_looked_at() -> None:
    """Over the whole time it is far below the rate."""
    quiet = answered(0, 10_000, 20_000, 30_000)
    check_every_window([*quiet, *answered(*[20_001] * 19)], NINE_A_SECOND, longest_ms=0)
    with pytest.raises(Violated):
        check_every_window([*quiet, *answered(*[20_001] * 20)], NINE_A_SECOND, longest_ms=0)


def test_what_is_refilled_in_between_passes() -> None:
    check_every_window(answered(*[0] * 20, *range(112, 10_000, 112)), NINE_A_SECOND, longest_ms=0)
    with pytest.raises(Violated):
        check_every_window(answered(*[0] * 20, *range(100, 10_000, 100)), NINE_A_SECOND, longest_ms=0)


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 8)), max_size=12))
def test_all_windows_one_by_one_say_the_same(given: list[tuple[int, int]]) -> None:
    admitted = [Admitted(amount, time_ms, time_ms) for time_ms, amount in given]
    over = any(
        sum(one.amount for one in admitted if start.sent_ms <= one.answered_ms <= end.answered_ms) * 1000
        > 20_001 + (end.answered_ms - start.sent_ms) * 9
        for start in admitted
        for end in admitted
        if start.sent_ms <= end.answered_ms
    )
    try:
        check_every_window(admitted, NINE_A_SECOND, longest_ms=0)
    except Violated:
        assert over
    else:
        assert not over


def test_a_history_may_be_cut_in_its_last_line(tmp_path: Path) -> None:
    asked = {"id": "1", "verb": "acquire", "entity": "e", "amount": 1, "sent_ms": 5, "more": {}}
    told = {"id": "1", "answer": "done", "at_ms": 7, "result": {"x": 1}}
    path = tmp_path / "history"
    path.write_text(
        f"{json.dumps(asked)}\n{json.dumps(told)}\n{json.dumps({**asked, 'id': '2'})}\n" + '{"id": "2", "an'
    )
    first, second = read_history(path)
    assert (first.answer, first.answered_ms, first.result, first.is_admitted) == ("done", 7, {"x": 1}, True)
    assert (second.answer, second.is_open) == (None, True)
    assert read_history(tmp_path / "none") == []
