"""Every key of the table. Keys are built here and never parsed: what a reader needs is an attribute.

Each component goes through `encode`, so that two different ids can never make the same key: the separators of the key
language (`#`, `/`, `!`), the escape sign itself and all control characters become percent escapes.
"""

import re
import zlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from sluice.core.limits import Scope
from sluice.repository import schema

REGISTRY_NAMESPACE: Final = "_"
NAMESPACE_PARTITIONS: Final = 8

# Lone surrogates can not be sent as UTF-8; escaping them keeps `encode` total.
_UNSAFE: Final = re.compile(r"[%#/!\x00-\x1f\x7f-\x9f\ud800-\udfff]")

STATE: Final = "#STATE"
CONFIG: Final = "#CONFIG"
META: Final = "#META"
VERSION: Final = "#VERSION"


class Key(NamedTuple):
    """The primary key of one item."""

    pk: str
    sk: str

    @property
    def attributes(self) -> dict[str, str]:
        return {schema.PARTITION_KEY: self.pk, schema.SORT_KEY: self.sk}


def key_of(item: Mapping[str, object]) -> Key:
    """The primary key of an item that was read."""
    return Key(str(item[schema.PARTITION_KEY]), str(item[schema.SORT_KEY]))


def encode(component: str) -> str:
    return _UNSAFE.sub(_escape, component)


def bucket(namespace: str, entity_id: str, resource: str, shard: int, call_fingerprint: str | None = None) -> Key:
    """A bucket under per-call limits is another bucket than the one under stored limits: its limits are in its key."""
    name = _bucket_resource(resource, call_fingerprint)
    return Key(f"{encode(namespace)}/BUCKET#{encode(entity_id)}#{name}#{shard}", STATE)


def bucket_indexes(
    namespace: str, entity_id: str, resource: str, shard: int, call_fingerprint: str | None = None
) -> dict[str, str]:
    name = _bucket_resource(resource, call_fingerprint)
    by_resource = f"{encode(namespace)}/RESOURCE#{encode(resource)}"
    return {
        **_index(schema.GSI2, by_resource, f"BUCKET#{encode(entity_id)}#{shard}"),
        **_index(schema.GSI3, buckets_of(namespace, entity_id), f"BUCKET#{name}#{shard}"),
        **namespace_index(namespace, bucket(namespace, entity_id, resource, shard, call_fingerprint)),
    }


def limits(namespace: str, scope: Scope) -> Key:
    prefix = encode(namespace)
    if scope.entity is not None:
        return Key(f"{prefix}/ENTITY#{encode(scope.entity)}", f"{CONFIG}#{encode(str(scope.resource))}")
    if scope.resource is not None:
        return Key(f"{prefix}/RESOURCE#{encode(scope.resource)}", CONFIG)
    return Key(f"{prefix}/SYSTEM#", CONFIG)


def limits_indexes(namespace: str, scope: Scope) -> dict[str, str]:
    """GSI3 lists the resources that have limits, and the entities that have limits of their own for a resource."""
    prefix = encode(namespace)
    indexes = namespace_index(namespace, limits(namespace, scope))
    if scope.entity is not None:
        indexes |= _index(schema.GSI3, f"{prefix}/ENTITY_CONFIG#{encode(str(scope.resource))}", encode(scope.entity))
    elif scope.resource is not None:
        indexes |= _index(schema.GSI3, f"{prefix}/RESOURCES", encode(scope.resource))
    return indexes


def entity(namespace: str, entity_id: str) -> Key:
    return Key(f"{encode(namespace)}/ENTITY#{encode(entity_id)}", META)


def entity_indexes(namespace: str, entity_id: str, parent: str | None) -> dict[str, str]:
    """GSI1 lists the children of a parent; GSI3 all entities, spread by a checksum of their id."""
    partition = zlib.crc32(entity_id.encode()) % NAMESPACE_PARTITIONS
    indexes = {
        **_index(schema.GSI3, f"{encode(namespace)}/ENTITIES#{partition}", encode(entity_id)),
        **namespace_index(namespace, entity(namespace, entity_id)),
    }
    if parent is not None:
        indexes |= _index(schema.GSI1, children(namespace, parent), f"CHILD#{encode(entity_id)}")
    return indexes


def children(namespace: str, parent: str) -> str:
    """The partition of GSI1 that holds the children of an entity."""
    return f"{encode(namespace)}/PARENT#{encode(parent)}"


def buckets_of(namespace: str, entity_id: str) -> str:
    """The partition of GSI3 that holds the buckets of an entity."""
    return f"{encode(namespace)}/ENTITY#{encode(entity_id)}"


def schema_version(namespace: str) -> Key:
    return Key(f"{encode(namespace)}/SYSTEM#", VERSION)


def namespace_index(namespace: str, key: Key) -> dict[str, str]:
    """GSI4 finds all items of a namespace. Spread over partitions, by a checksum that is the same in every process."""
    partition = zlib.crc32(key.pk.encode()) % NAMESPACE_PARTITIONS
    return _index(schema.GSI4, f"{encode(namespace)}#{partition}", key.pk)


def _bucket_resource(resource: str, call_fingerprint: str | None) -> str:
    return encode(resource) if call_fingerprint is None else f"{encode(resource)}!{encode(call_fingerprint)}"


def _index(name: str, pk: str, sk: str) -> dict[str, str]:
    return {schema.index_partition_key(name): pk, schema.index_sort_key(name): sk}


def _escape(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))
