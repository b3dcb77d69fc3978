"""Plain values survive the way to the table and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.repository.wire import Value, from_wire, item_from_wire, item_to_wire, to_wire

values: st.SearchStrategy[Value] = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**37), 10**37) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_a_value_comes_back_as_it_was(value: Value) -> None:
    returned = from_wire(to_wire(value))
    assert returned == value
    assert type(returned) is type(value)


@given(st.dictionaries(st.text(), values, max_size=5))
def test_an_item_comes_back_as_it_was(item: dict[str, Value]) -> None:
    assert item_from_wire(item_to_wire(item)) == item


def test_numbers_are_never_floats_or_booleans() -> None:
    assert to_wire(True) == {"BOOL": True}
    assert to_wire(-(10**25)) == {"N": "-10000000000000000000000000"}
    with pytest.raises(TypeError):
        to_wire(1.5)  # type: ignore[arg-type]  # that is the point


def test_types_that_are_not_in_use_are_refused() -> None:
    with pytest.raises(TypeError):
        from_wire({"SS": ["a"]})
    with pytest.raises(ValueError, match="invalid literal"):
        from_wire({"N": "1.5"})
