"""Cursors open their own list and nothing else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.errors import InvalidRequest
from sluice.edge.conventions import CURSOR_MAX
from sluice.repository import keys
from sluice.repository.listing import buckets_of_resource_query, entities_queries, place_of, resources_query
from sluice.services.cursors import START, Cursors, Position
from sluice.services.signing import Signer, SigningKeys

LIST = ("ns", "entities")
POSITION = Position(3, {"PK": "a", "SK": "b", "GSI3PK": "c", "GSI3SK": "d"}, ("r", "", "rpm"))


class FixedKeys:
    def __init__(self, current: bytes, previous: bytes | None = None) -> None:
        self._keys = SigningKeys(current, previous)

    def known(self) -> SigningKeys:
        return self._keys

    looked_up = known


CURSORS = Cursors(Signer(FixedKeys(b"k" * 32)))


def test_a_cursor_comes_back_as_the_position_it_was() -> None:
    for position in (START, POSITION, Position(7), Position(0, {"PK": "\x7fé%", "SK": ""})):
        assert CURSORS.read(LIST, CURSORS.write(LIST, position)) == position
    assert CURSORS.read(LIST, None) == START


@pytest.mark.parametrize(
    "other",
    [
        ("ns2", "entities"),
        ("ns", "resources"),
        ("ns", "entities", ""),
        ("ns", "entities", "x"),
        ("n", "sentities"),
        ("ns\x00entities",),
        ('ns", "entities',),
    ],
)
def test_a_cursor_of_another_list_is_none_of_this(other: tuple[str, ...]) -> None:
    with pytest.raises(InvalidRequest) as raised:
        CURSORS.read(LIST, CURSORS.write(other, POSITION))
    assert raised.value.field == "cursor"


@given(st.data())
def test_a_cursor_that_was_touched_is_none(data: st.DataObject) -> None:
    cursor = CURSORS.write(LIST, POSITION)
    place = data.draw(st.integers(0, len(cursor) - 1))
    letter = data.draw(st.sampled_from("ABCxyz019-_=.+/ é\x00").filter(lambda drawn: drawn != cursor[place]))
    for touched in (cursor[:place], cursor[:place] + letter + cursor[place + 1 :], cursor + letter, cursor[place:][1:]):
        with pytest.raises(InvalidRequest):
            CURSORS.read(LIST, touched)


@given(st.text(max_size=200))
def test_what_we_did_not_sign_is_none(text: str) -> None:
    with pytest.raises(InvalidRequest):
        CURSORS.read(LIST, text)


def test_a_cursor_outlives_one_rotation_of_the_keys() -> None:
    cursor = Cursors(Signer(FixedKeys(b"a" * 32))).write(LIST, POSITION)
    assert Cursors(Signer(FixedKeys(b"b" * 32, b"a" * 32))).read(LIST, cursor) == POSITION
    with pytest.raises(InvalidRequest):
        Cursors(Signer(FixedKeys(b"c" * 32, b"b" * 32))).read(LIST, cursor)


def test_the_longest_cursor_is_accepted_by_the_edge() -> None:
    longest = "a" * 128
    key = keys.bucket("n" * 32, longest, longest, 15, "f" * 16)
    index = keys.bucket_indexes("n" * 32, longest, longest, 15, "f" * 16)
    for query in (buckets_of_resource_query("n" * 32, longest), resources_query("n" * 32)):
        place = place_of(query, {**key.attributes, **index})
        cursor = CURSORS.write(("n" * 32, "buckets", longest), Position(0, place, (longest, "f" * 16, "l" * 32)))
        assert len(cursor) <= CURSOR_MAX


def test_a_place_has_just_what_a_query_needs() -> None:
    item = {name: name for name in ("PK", "SK", "GSI1PK", "GSI2PK", "GSI2SK", "GSI3PK", "GSI3SK", "kind")}
    assert place_of(entities_queries("ns")[0], item).keys() == {"PK", "SK", "GSI3PK", "GSI3SK"}
    assert place_of(buckets_of_resource_query("ns", "r"), item).keys() == {"PK", "SK", "GSI2PK", "GSI2SK"}
    assert place_of({"KeyConditionExpression": "-"}, item).keys() == {"PK", "SK"}
    assert json.dumps(place_of(entities_queries("ns")[0], item))
