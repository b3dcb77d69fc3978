"""The cursor of the sweep."""

import pytest

from sluice.repository.shapes import UnknownShape
from sluice.repository.sweeps import SweepCursor, decode_cursor, move_cursor, put_cursor


def test_the_cursor_is_read_as_it_was_written() -> None:
    request = put_cursor(7, 420_000)
    assert request["ConditionExpression"] == "attribute_not_exists(PK)"
    assert decode_cursor(request["Item"]) == SweepCursor(7, 1)
    with pytest.raises(UnknownShape):
        decode_cursor({"kind": "hold"})


def test_it_moves_on_the_version_seen_and_never_back() -> None:
    request = move_cursor(SweepCursor(7, 3), 9, 420_000)
    assert request["ConditionExpression"] == "#v = :seen AND #minute < :minute"
    assert request["ExpressionAttributeValues"] == {":minute": 9, ":at": 420_000, ":seen": 3, ":next": 4}
