"""Definitions, their bounds, four-level resolution and the fingerprint."""

import subprocess
import sys
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.errors import InvalidRequest
from sluice.core.limits import (
    AMOUNT_MAX,
    LIMITS_MAX,
    PERIOD_MAX_S,
    SYSTEM,
    Limit,
    Scope,
    Source,
    check_limit_names,
    define_limit,
    fingerprint,
    resolve,
    scopes_of,
)

A = Limit(1, 1, 1, 60)
B = Limit(2, 2, 2, 60)
C = Limit(3, 3, 3, 60)
D = Limit(4, 4, 4, 60)


def test_burst_and_refill_default_to_the_capacity() -> None:
    assert define_limit("rpm", 100, 60) == Limit(100, 100, 100, 60)
    assert define_limit("rpm", 100, 60, burst=200, refill_amount=50) == Limit(100, 200, 50, 60)


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("rpm.capacity", {"capacity": 0}),
        ("rpm.capacity", {"capacity": -1}),
        ("rpm.capacity", {"capacity": AMOUNT_MAX + 1}),
        ("rpm.burst", {"burst": 99}),
        ("rpm.burst", {"burst": AMOUNT_MAX + 1}),
        ("rpm.refill_amount", {"refill_amount": 0}),
        ("rpm.refill_period_seconds", {"refill_period_seconds": 0}),
        ("rpm.refill_period_seconds", {"refill_period_seconds": PERIOD_MAX_S + 1}),
        ("rpm.burst", {"burst": 101, "refill_amount": 10, "refill_period_seconds": PERIOD_MAX_S}),
    ],
)
def test_a_definition_out_of_bounds_names_its_field(field: str, arguments: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest) as raised:
        define_limit("rpm", **{"capacity": 100, "refill_period_seconds": 60, **arguments})
    assert raised.value.field == field


def test_ten_years_of_refill_are_the_most() -> None:
    define_limit("rpm", capacity=10, refill_amount=1, refill_period_seconds=PERIOD_MAX_S)
    with pytest.raises(InvalidRequest, match="10 years"):
        define_limit("rpm", capacity=11, refill_amount=1, refill_period_seconds=PERIOD_MAX_S)


@pytest.mark.parametrize("name", ["", "Rpm", "1rpm", "r-pm", "r#pm", "rpm\n", "a" * 33, "é"])
def test_names_that_no_limit_may_have(name: str) -> None:
    with pytest.raises(InvalidRequest):
        check_limit_names("limits", [name])


def test_wcu_is_reserved() -> None:
    with pytest.raises(InvalidRequest) as raised:
        check_limit_names("limits", ["rpm", "wcu"])
    assert raised.value.field == "limits.wcu"


def test_the_number_of_limits_is_bounded_both_ways() -> None:
    check_limit_names("limits", [f"l{n}" for n in range(LIMITS_MAX)])
    with pytest.raises(InvalidRequest):
        check_limit_names("limits", [f"l{n}" for n in range(LIMITS_MAX + 1)])
    with pytest.raises(InvalidRequest):
        check_limit_names("limits", [])


def test_each_name_comes_from_the_most_specific_level() -> None:
    resolved = resolve(
        [
            (Source.ENTITY, {"a": A}),
            (Source.ENTITY_DEFAULT, {"a": B, "b": B}),
            (Source.RESOURCE, {"b": C, "c": C}),
            (Source.SYSTEM, {"c": D, "d": D}),
        ]
    )
    assert dict(resolved.limits) == {"a": A, "b": B, "c": C, "d": D}
    assert dict(resolved.sources) == {
        "a": Source.ENTITY,
        "b": Source.ENTITY_DEFAULT,
        "c": Source.RESOURCE,
        "d": Source.SYSTEM,
    }


def test_levels_in_their_order() -> None:
    scopes = scopes_of("user", "gpt-4")
    assert [scope.source for scope in scopes] == [
        Source.ENTITY,
        Source.ENTITY_DEFAULT,
        Source.RESOURCE,
        Source.SYSTEM,
    ]
    assert scopes == (Scope("user", "gpt-4"), Scope("user", "_default_"), Scope(resource="gpt-4"), SYSTEM)


def test_null_switches_an_inherited_limit_off_and_keeps_its_name_known() -> None:
    resolved = resolve([(Source.RESOURCE, {"a": None, "b": B}), (Source.SYSTEM, {"a": A, "c": None})])
    assert dict(resolved.limits) == {"b": B}
    assert resolved.switched_off == {"a", "c"}


def test_a_more_specific_level_can_switch_on_what_a_lower_one_switched_off() -> None:
    resolved = resolve([(Source.RESOURCE, {"a": A}), (Source.SYSTEM, {"a": None})])
    assert dict(resolved.limits) == {"a": A}
    assert resolved.switched_off == frozenset()


def test_only_buckets_without_own_limits_expire() -> None:
    assert resolve([(Source.RESOURCE, {"a": A}), (Source.SYSTEM, {"b": B})]).expires
    assert resolve([(Source.CALL, {"a": A})]).expires
    assert not resolve([(Source.ENTITY, {"a": A}), (Source.SYSTEM, {"b": B})]).expires
    assert not resolve([(Source.ENTITY_DEFAULT, {"a": A})]).expires


def test_fill_time_of_a_set() -> None:
    assert resolve([(Source.SYSTEM, {"a": Limit(10, 20, 10, 60), "b": Limit(1, 1, 1, 1)})]).fill_time_ms == 120_000


def test_the_fingerprint_of_a_set_tells_only_whether_its_bucket_expires() -> None:
    here = resolve([(Source.RESOURCE, {"a": A, "b": B})])
    there = resolve([(Source.RESOURCE, {"a": A}), (Source.SYSTEM, {"b": B, "c": None})])
    own = resolve([(Source.ENTITY, {"a": A}), (Source.SYSTEM, {"b": B})])
    assert here.fingerprint == there.fingerprint == fingerprint({"a": A, "b": B}, expires=True)
    assert own.fingerprint == fingerprint({"a": A, "b": B}, expires=False) != here.fingerprint
    assert own.own == {"a"}


def test_parameters_are_millitokens_and_milliseconds() -> None:
    parameters = Limit(100, 200, 50, 60).parameters
    assert (parameters.capacity_milli, parameters.burst_milli) == (100_000, 200_000)
    assert (parameters.refill_amount_milli, parameters.refill_period_ms) == (50_000, 60_000)


names = st.from_regex(r"\A[a-z][a-z0-9_]{0,31}\Z")
definitions = st.builds(
    Limit,
    capacity=st.integers(1, AMOUNT_MAX),
    burst=st.integers(1, AMOUNT_MAX),
    refill_amount=st.integers(1, AMOUNT_MAX),
    refill_period_seconds=st.integers(1, PERIOD_MAX_S),
)
sets = st.dictionaries(names, definitions, max_size=5)


@given(sets, sets)
def test_fingerprints_are_equal_just_for_equal_limits(one: dict[str, Limit], other: dict[str, Limit]) -> None:
    assert (fingerprint(one, expires=True) == fingerprint(other, expires=True)) == (one == other)


@given(sets, st.randoms())
def test_the_order_of_definition_does_not_matter(limits: dict[str, Limit], random: Random) -> None:
    shuffled = list(limits.items())
    random.shuffle(shuffled)
    assert fingerprint(dict(shuffled), expires=True) == fingerprint(limits, expires=True)


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    """Hole: Python's salted hash."""
    limits = "{'a': Limit(1, 1, 1, 60), 'b': Limit(2, 2, 2, 60)}"
    program = f"from sluice.core.limits import *; print(fingerprint({limits}, expires=True))"
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": "layers/core/python", "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert seen == {fingerprint({"b": B, "a": A}, expires=True)}


def test_the_parameters_of_a_shard_are_worked_out_once() -> None:
    limits = resolve([(Source.SYSTEM, {"rpm": Limit(101, 101, 101, 60)})])
    assert limits.shard_parameters(0, 1) is limits.parameters
    first, second = limits.shard_parameters(0, 2), limits.shard_parameters(1, 2)
    assert (first["rpm"].burst_milli, second["rpm"].burst_milli) == (50_500, 50_500)
    assert limits.shard_parameters(0, 2) is first
