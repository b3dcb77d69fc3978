"""Key encoding is injective: two different ids can never make the same key."""

import string
import zlib

from hypothesis import example, given
from hypothesis import strategies as st

from sluice.core.limits import DEFAULT_RESOURCE, SYSTEM, Scope
from sluice.repository import keys, schema

# Mostly what keys are made of, so that collisions would be found.
hostile = st.text(alphabet="%#/!_2F3520ABCab\x00\n\x7f\x85é\ud800\U0001f600", max_size=12) | st.text(max_size=12)


@given(hostile, hostile)
@example("%23", "#")
@example("a/b", "a%2Fb")
def test_encoding_is_injective(one: str, other: str) -> None:
    assert (keys.encode(one) == keys.encode(other)) == (one == other)


@given(hostile)
def test_an_encoded_component_has_no_separator_and_can_be_sent(component: str) -> None:
    encoded = keys.encode(component)
    assert not set(encoded) & set("#/!\x00\n")
    encoded.encode("utf-8")


parts = st.tuples(hostile, hostile, hostile, st.integers(0, 15), st.none() | hostile)


@given(parts, parts)
@example(("n", "a#b", "c", 0, None), ("n", "a", "b#c", 0, None))
@example(("n", "a", "r!f", 0, None), ("n", "a", "r", 0, "f"))
@example(("n/BUCKET#x", "a", "r", 0, None), ("n", "x/BUCKET#a", "r", 0, None))
def test_bucket_keys_are_injective(
    one: tuple[str, str, str, int, str | None], other: tuple[str, str, str, int, str | None]
) -> None:
    assert (keys.bucket(*one) == keys.bucket(*other)) == (one == other)


@given(hostile, hostile, hostile)
def test_no_item_of_one_kind_can_pose_as_another(namespace: str, entity: str, resource: str) -> None:
    made = [
        keys.bucket(namespace, entity, resource, 0),
        keys.limits(namespace, SYSTEM),
        keys.limits(namespace, Scope(resource=resource)),
        keys.limits(namespace, Scope(entity, resource)),
        keys.limits(namespace, Scope(entity, DEFAULT_RESOURCE)),
        keys.schema_version(namespace),
        keys.entity(namespace, entity),
    ]
    assert len(set(made)) == len(made)


@given(hostile, hostile, hostile, hostile)
def test_a_namespace_can_not_reach_into_another(one: str, other: str, entity: str, resource: str) -> None:
    if one != other:
        assert (
            keys.bucket(one, entity, resource, 0).pk.split("/")[0]
            != keys.bucket(other, entity, "r", 0).pk.split("/")[0]
        )


def test_ids_of_the_api_stay_readable() -> None:
    plain = string.ascii_letters + string.digits + "._:@+-"
    assert keys.encode(plain) == plain


def test_keys_of_the_table_document() -> None:
    assert keys.bucket("ns", "user-1", "gpt-4", 0) == ("ns/BUCKET#user-1#gpt-4#0", "#STATE")
    assert keys.bucket("ns", "user-1", "gpt-4", 0, "abc").pk == "ns/BUCKET#user-1#gpt-4!abc#0"
    assert keys.limits("ns", SYSTEM) == ("ns/SYSTEM#", "#CONFIG")
    assert keys.limits("ns", Scope(resource="gpt-4")) == ("ns/RESOURCE#gpt-4", "#CONFIG")
    assert keys.limits("ns", Scope("user-1", "gpt-4")) == ("ns/ENTITY#user-1", "#CONFIG#gpt-4")
    assert keys.limits("ns", Scope("user-1", DEFAULT_RESOURCE)) == ("ns/ENTITY#user-1", "#CONFIG#_default_")
    assert keys.schema_version("ns") == ("ns/SYSTEM#", "#VERSION")


def test_index_keys_of_a_bucket() -> None:
    pk = "ns/BUCKET#user-1#gpt-4!f#3"
    assert keys.bucket_indexes("ns", "user-1", "gpt-4", 3, "f") == {
        "GSI2PK": "ns/RESOURCE#gpt-4",
        "GSI2SK": "BUCKET#user-1#3",
        "GSI3PK": "ns/ENTITY#user-1",
        "GSI3SK": "BUCKET#gpt-4!f#3",
        "GSI4PK": f"ns#{zlib.crc32(pk.encode()) % 8}",
        "GSI4SK": pk,
    }


def test_index_keys_of_resource_limits() -> None:
    made = keys.limits_indexes("ns", Scope(resource="gpt-4"))
    assert (made["GSI3PK"], made["GSI3SK"]) == ("ns/RESOURCES", "gpt-4")
    assert made["GSI4SK"] == "ns/RESOURCE#gpt-4"


def test_index_keys_of_entity_limits() -> None:
    made = keys.limits_indexes("ns", Scope("user-1", DEFAULT_RESOURCE))
    assert (made["GSI3PK"], made["GSI3SK"]) == ("ns/ENTITY_CONFIG#_default_", "user-1")
    assert made["GSI4SK"] == "ns/ENTITY#user-1"
    assert keys.limits_indexes("ns", SYSTEM).keys() == {"GSI4PK", "GSI4SK"}


def test_keys_of_an_entity() -> None:
    assert keys.entity("ns", "user-1") == ("ns/ENTITY#user-1", "#META")
    partition = zlib.crc32(b"user-1") % 8
    made = keys.entity_indexes("ns", "user-1", "team")
    assert (made["GSI1PK"], made["GSI1SK"]) == ("ns/PARENT#team", "CHILD#user-1")
    assert (made["GSI3PK"], made["GSI3SK"]) == (f"ns/ENTITIES#{partition}", "user-1")
    assert "GSI1PK" not in keys.entity_indexes("ns", "user-1", None)
    assert keys.children("ns", "team") == "ns/PARENT#team"
    assert keys.buckets_of("ns", "user-1") == keys.bucket_indexes("ns", "user-1", "r", 0)["GSI3PK"]


def test_key_of_an_item() -> None:
    assert keys.key_of({schema.PARTITION_KEY: "p", schema.SORT_KEY: "s", "v": 1}) == keys.Key("p", "s")
