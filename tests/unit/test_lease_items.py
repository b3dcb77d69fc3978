"""The item of a lease."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.repository import keys
from sluice.repository.leases import LeaseState, State, decode_lease, encode_lease, put_lease
from sluice.repository.shapes import UnknownShape
from sluice.repository.wire import Value

KEY = keys.lease("ns", "lease-1")
amounts = st.dictionaries(st.from_regex(r"\A[a-z][a-z0-9_]{0,31}\Z"), st.integers(-(10**12), 10**12), max_size=4)
states = st.builds(
    LeaseState,
    key=st.just(KEY),
    state=st.sampled_from(State),
    adjusted=amounts,
    adjustment_marks=st.lists(st.text(max_size=28), max_size=4).map(tuple),
    closed_with=amounts,
    left_out=st.frozensets(st.text(max_size=8), max_size=4),
    version=st.integers(1, 1_000),
    lease_expires_at_ms=st.integers(0, 10**14),
    created_at_ms=st.integers(0, 10**14),
    updated_at_ms=st.integers(0, 10**14),
)


@given(states)
def test_a_lease_comes_back_as_it_was(state: LeaseState) -> None:
    assert decode_lease(encode_lease(state)) == state


def state_at(version: int) -> LeaseState:
    return LeaseState(KEY, State.OPEN, {"tpm": -5}, ("m",), {}, frozenset(), version, 1_800_000_000_001, 1, 2)


def test_it_outlives_the_lease_by_a_day() -> None:
    assert encode_lease(state_at(1))["ttl"] == 1_800_000_001 + 86_400


def test_attributes_are_those_of_the_table() -> None:
    closed = LeaseState(
        KEY, State.SETTLED, {"tpm": 3, "a_b": 1}, ("m",), {"tpm": 7}, frozenset({"1.0", "0.2"}), 4, 1_000, 1, 2
    )
    assert encode_lease(closed) == {
        "PK": "ns/LEASE#lease-1",
        "SK": "#STATE",
        "kind": "lease",
        "state": "settled",
        "a_tpm": 3,
        "a_a_b": 1,
        "keys": ["m"],
        "closed_with": {"tpm": 7},
        "left_out": ["0.2", "1.0"],
        "v": 4,
        "expires_at": 1_000,
        "ttl": 86_401,
        "created_at": 1,
        "updated_at": 2,
    }


def test_a_write_is_on_the_version_seen() -> None:
    assert put_lease(state_at(1), 0)["ConditionExpression"] == "attribute_not_exists(PK)"
    request = put_lease(state_at(5), 4)
    assert request["ConditionExpression"] == "v = :seen"
    assert request["ExpressionAttributeValues"] == {":seen": 4}


@pytest.mark.parametrize(
    "wrong", [{"state": "odd"}, {"state": 1}, {"a_tpm": "1"}, {"keys": "m"}, {"left_out": [1]}, {"kind": "bucket"}]
)
def test_an_unknown_shape_raises(wrong: dict[str, Value]) -> None:
    with pytest.raises(UnknownShape):
        decode_lease({**encode_lease(state_at(1)), **wrong})
