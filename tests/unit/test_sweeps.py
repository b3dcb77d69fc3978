"""The cursor of the sweep."""

import pytest

from sluice.repository import budget_keys
from sluice.repository.requests import UpdateRequest
from sluice.repository.shapes import UnknownShape
from sluice.repository.store import Applied
from sluice.repository.sweeps import Part, SweepCursor, decode_cursor, move_cursor, put_cursor
from tests.simulation.table import SimulatedTable

NOW_MS = 420_000


class Table:
    """With the cursor, as it is stored."""

    def __init__(self, minute: int) -> None:
        self.table = SimulatedTable()
        assert isinstance(self.table.put(put_cursor(minute, NOW_MS)), Applied)

    def update(self, request: UpdateRequest) -> bool:
        return isinstance(self.table.update(request), Applied)

    @property
    def cursor(self) -> SweepCursor:
        item = self.table.get(budget_keys.SWEEP)
        assert item is not None
        return decode_cursor(item)


def test_the_cursor_is_read_as_it_was_written() -> None:
    table = Table(7)
    assert table.cursor == SweepCursor(7, 1)
    assert not isinstance(table.table.put(put_cursor(8, NOW_MS)), Applied)
    for resume in (Part(9, 15), Part(11, 0), None):
        seen = table.cursor
        assert table.update(move_cursor(seen, 7, resume, NOW_MS))
        assert table.cursor == SweepCursor(7, seen.version + 1, resume)
    with pytest.raises(UnknownShape):
        decode_cursor({"kind": "hold"})


def test_it_moves_on_the_version_seen_and_never_back() -> None:
    table = Table(7)
    seen = table.cursor
    assert not table.update(move_cursor(seen, 6, None, NOW_MS))
    assert table.update(move_cursor(seen, 9, None, NOW_MS))
    assert not table.update(move_cursor(seen, 10, Part(12, 3), NOW_MS))
    assert table.cursor == SweepCursor(9, seen.version + 1)
