"""Items are decoded once, and a shape that is not known raises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.bucket import Parameters
from sluice.core.limits import SYSTEM, Limit, OnUnavailable
from sluice.repository import items, keys
from sluice.repository.items import Bucket, BucketLimit, Entity, StoredLimits
from sluice.repository.shapes import UnknownShape
from sluice.repository.wire import Item, Value

names = st.from_regex(r"\A[a-z][a-z0-9_]{0,31}\Z")
whole = st.integers(-(10**25), 10**25)
bucket_limits = st.builds(
    BucketLimit, parameters=st.builds(Parameters, whole, whole, whole, whole), balance_milli=whole, consumed_milli=whole
)


@st.composite
def buckets(draw: st.DrawFn) -> Bucket:
    limits = draw(st.dictionaries(names, bucket_limits, max_size=4))
    retired = draw(st.dictionaries(names.filter(lambda name: name not in limits), whole, max_size=2))
    return Bucket(
        key=keys.bucket("ns", "e", "r", 0),
        namespace="ns",
        entity="e",
        resource="r",
        call_fingerprint=draw(st.none() | st.just("f")),
        shard=0,
        shard_count=draw(st.sampled_from([1, 2, 16])),
        version=draw(st.integers(1, 10**12)),
        generation=draw(st.integers(1, 10**19)),
        limits_hash="0123456789abcdef:1",
        cascade=draw(st.booleans()),
        parent=draw(st.none() | st.just("p")),
        expires_at_s=draw(st.none() | st.integers(1, 10**11)),
        created_at_ms=1,
        limits=limits,
        retired_consumed_milli=retired,
    )


@given(buckets())
def test_a_bucket_comes_back_as_it_was(bucket: Bucket) -> None:
    assert items.decode_bucket(items.encode_bucket(bucket)) == bucket


@given(st.dictionaries(names, st.none() | st.builds(Limit, whole, whole, whole, whole), max_size=5))
def test_limits_come_back_as_they_were(limits: dict[str, Limit | None]) -> None:
    stored = StoredLimits(limits, OnUnavailable.ALLOW, 3, 1, 2)
    assert items.decode_limits(items.encode_limits(keys.limits("ns", SYSTEM), {}, stored)) == stored


@given(
    st.builds(
        Entity,
        entity=st.text(max_size=5),
        name=st.none() | st.text(max_size=5),
        parent=st.none() | st.text(max_size=5),
        cascade=st.booleans(),
        metadata=st.dictionaries(
            st.text(max_size=3), st.none() | st.booleans() | whole | st.text(max_size=3), max_size=3
        ),
        version=st.integers(1, 9),
        created_at_ms=whole,
        updated_at_ms=whole,
    )
)
def test_an_entity_comes_back_as_it_was(entity: Entity) -> None:
    assert items.decode_entity(items.encode_entity(keys.entity("ns", "e"), {}, entity)) == entity


def test_an_entity_of_an_unknown_shape_raises() -> None:
    item = items.encode_entity(keys.entity("ns", "e"), {}, Entity("e", None, None, True, {}, 1, 1, 1))
    for broken in ({**item, "kind": "limits"}, {**item, "metadata": "x"}, {**item, "v": "1"}, {**item, "name": 7}):
        with pytest.raises(UnknownShape):
            items.decode_entity(broken)


def test_limit_names_with_underscores_do_not_mix_up() -> None:
    parameters = Parameters(1, 2, 3, 4)
    limits = {"a": BucketLimit(parameters, 5, 6), "a_tk": BucketLimit(parameters, 7, 8)}
    bucket = example_bucket(limits)
    assert items.decode_bucket(items.encode_bucket(bucket)) == bucket


def test_the_fingerprint_is_the_head_of_the_limits_hash() -> None:
    assert items.limits_hash("abc", 4) == "abc:4"
    assert example_bucket({}).fingerprint == "0123456789abcdef"


def example_bucket(limits: dict[str, BucketLimit]) -> Bucket:
    return Bucket(
        key=keys.Key("p", "s"),
        namespace="ns",
        entity="e",
        resource="r",
        call_fingerprint=None,
        shard=0,
        shard_count=1,
        version=1,
        generation=1,
        limits_hash="0123456789abcdef:1",
        cascade=False,
        parent=None,
        expires_at_s=None,
        created_at_ms=1,
        limits=limits,
        retired_consumed_milli={},
    )


def encoded() -> Item:
    return items.encode_bucket(example_bucket({"rpm": BucketLimit(Parameters(1, 2, 3, 4), 5, 6)}))


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("kind", "limits"),
        ("b_rpm_tk", "5"),
        ("b_rpm_tk", True),
        ("b_rpm_xx", 1),
        ("b_tk", 1),
        ("lh", 7),
        ("v", "1"),
        ("gen", None),
        ("ttl", "soon"),
        ("parent_id", 5),
        ("PK", None),
    ],
)
def test_a_wrong_attribute_raises(attribute: str, value: Value) -> None:
    with pytest.raises(UnknownShape):
        items.decode_bucket({**encoded(), attribute: value})


@pytest.mark.parametrize(
    "attribute", ["kind", "entity_id", "resource", "shard", "shard_count", "v", "gen", "lh", "created_at", "b_rpm_rp"]
)
def test_a_missing_attribute_raises(attribute: str) -> None:
    item = encoded()
    del item[attribute]
    with pytest.raises(UnknownShape):
        items.decode_bucket(item)


def test_half_an_item_left_by_a_blind_add_is_not_a_bucket() -> None:
    with pytest.raises(UnknownShape):
        items.decode_bucket({"PK": "p", "SK": "s", "b_rpm_tk": 1000, "b_rpm_tc": -1000, "v": 1})


def test_limits_of_an_unknown_shape_raise() -> None:
    stored = items.encode_limits(keys.limits("ns", SYSTEM), {}, StoredLimits({"a": Limit(1, 1, 1, 1)}, None, 1, 1, 1))
    assert items.decode_limits(stored).on_unavailable is None
    for broken in (
        {**stored, "kind": "bucket"},
        {**stored, "l_a_zz": 1},
        {**stored, "config_version": "1"},
        {name: value for name, value in stored.items() if name != "l_a_cp"},
    ):
        with pytest.raises(UnknownShape):
            items.decode_limits(broken)
    with pytest.raises(ValueError, match="perhaps"):
        items.decode_limits({**stored, "on_unavailable": "perhaps"})


def test_an_unknown_shape_does_not_print_the_item() -> None:
    with pytest.raises(UnknownShape) as raised:
        items.decode_bucket({**encoded(), "kind": "x", "entity_id": "secret-tenant"})
    assert "secret-tenant" not in str(raised.value)
