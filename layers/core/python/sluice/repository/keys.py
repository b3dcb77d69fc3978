"""Every key of the table. Keys are built here and never parsed: what a reader needs is an attribute.

Each component goes through `encode`, so that two different ids can never make the same key: the separators of the key
language (`#`, `/`, `!`), the escape sign itself and all control characters become percent escapes.
"""

import re
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from sluice.core.limits import Scope
from sluice.core.snapshots import SnapshotName, Window
from sluice.repository import schema

REGISTRY_NAMESPACE: Final = "_"
OPEN_JOBS: Final = "_/JOBS"
NAMESPACE_PARTITIONS: Final = 8

# Lone surrogates can not be sent as UTF-8; escaping them keeps `encode` total.
_UNSAFE: Final = re.compile(r"[%#/!\x00-\x1f\x7f-\x9f\ud800-\udfff]")

STATE: Final = "#STATE"
CONFIG: Final = "#CONFIG"
META: Final = "#META"
ANSWER: Final = "#ANSWER"
VERSION: Final = "#VERSION"
ORG: Final = "#ORG"
APP: Final = "#APP"
CREDENTIALS: Final = "#CREDENTIALS"
REVOKED: Final = "#REVOKED"


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


def bucket_shard(first: Key, shard: int) -> Key:
    """Another shard of the bucket whose shard 0 has this key. Nothing is encoded twice."""
    return Key(f"{first.pk[:-1]}{shard}", first.sk)


def first_shard(key: Key, shard: int) -> Key:
    """Shard 0 of the bucket that has this key as that shard."""
    return key if shard == 0 else Key(f"{key.pk[: -len(str(shard))]}0", key.sk)


def bucket_indexes(
    namespace: str, entity_id: str, resource: str, shard: int, call_fingerprint: str | None = None
) -> dict[str, str]:
    name = _bucket_resource(resource, call_fingerprint)
    return {
        **index_attributes(
            schema.GSI2, buckets_of_resource(namespace, resource), f"BUCKET#{encode(entity_id)}#{shard}"
        ),
        **index_attributes(schema.GSI3, buckets_of(namespace, entity_id), f"BUCKET#{name}#{shard}"),
        **namespace_index(namespace, bucket(namespace, entity_id, resource, shard, call_fingerprint)),
    }


def usage(name: SnapshotName) -> Key:
    """In the order of time. What was taken from buckets under per-call limits is told apart, as those are."""
    prefix = usage_of(name.resource, name.window, name.call_fingerprint)
    return Key(usage_partition(name.namespace, name.entity), f"{prefix}{_window_start(name)}")


def usage_partition(namespace: str, entity_id: str) -> str:
    """The partition that holds the usage of an entity."""
    return entity(namespace, entity_id).pk


def usage_of(resource: str, window: Window, call_fingerprint: str | None = None) -> str:
    """How the sort keys of an entity's usage of a resource begin. The start of the window follows."""
    return f"#USAGE#{_bucket_resource(resource, call_fingerprint)}#{window.value}#"


def usage_per_call(resource: str) -> str:
    """How the sort keys of an entity's usage of a resource begin, where it was under limits of single calls."""
    return f"#USAGE#{encode(resource)}!"


def usage_indexes(name: SnapshotName) -> dict[str, str]:
    """GSI2 lists the usage of a resource, by window."""
    sk = f"USAGE#{name.window.value}#{_window_start(name)}#{encode(name.entity)}"
    return {
        **index_attributes(schema.GSI2, buckets_of_resource(name.namespace, name.resource), sk),
        **namespace_index(name.namespace, usage(name)),
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
    indexes = namespace_index(namespace, limits(namespace, scope))
    if scope.entity is not None:
        indexes |= index_attributes(
            schema.GSI3, entities_with_limits(namespace, str(scope.resource)), encode(scope.entity)
        )
    elif scope.resource is not None:
        indexes |= index_attributes(schema.GSI3, resources_with_limits(namespace), encode(scope.resource))
    return indexes


def entity(namespace: str, entity_id: str) -> Key:
    return Key(f"{encode(namespace)}/ENTITY#{encode(entity_id)}", META)


def entity_indexes(namespace: str, entity_id: str, parent: str | None) -> dict[str, str]:
    """GSI1 lists the children of a parent; GSI3 all entities, spread by a checksum of their id."""
    partition = zlib.crc32(encode(entity_id).encode()) % NAMESPACE_PARTITIONS
    indexes = {
        **index_attributes(schema.GSI3, entities_of(namespace, partition), encode(entity_id)),
        **namespace_index(namespace, entity(namespace, entity_id)),
    }
    if parent is not None:
        indexes |= index_attributes(schema.GSI1, children(namespace, parent), f"CHILD#{encode(entity_id)}")
    return indexes


def children(namespace: str, parent: str) -> str:
    """The partition of GSI1 that holds the children of an entity."""
    return f"{encode(namespace)}/PARENT#{encode(parent)}"


def buckets_of(namespace: str, entity_id: str) -> str:
    """The partition of GSI3 that holds the buckets of an entity."""
    return f"{encode(namespace)}/ENTITY#{encode(entity_id)}"


def schema_version(namespace: str) -> Key:
    return Key(f"{encode(namespace)}/SYSTEM#", VERSION)


def namespace_by_name(name: str) -> Key:
    return Key(f"{REGISTRY_NAMESPACE}/SYSTEM#", f"#NAMESPACE#{encode(name)}")


def namespace_by_id(namespace: str) -> Key:
    return Key(f"{REGISTRY_NAMESPACE}/SYSTEM#", f"#NSID#{encode(namespace)}")


def org_settings(namespace: str) -> Key:
    return Key(f"{encode(namespace)}/SYSTEM#", ORG)


def app_settings(namespace: str, app: str) -> Key:
    return Key(f"{encode(namespace)}/ENTITY#{encode(app)}", APP)


def app_indexes(namespace: str, app: str) -> dict[str, str]:
    """GSI3 lists the apps of a namespace."""
    return {
        **index_attributes(schema.GSI3, apps_of(namespace), encode(app)),
        **namespace_index(namespace, app_settings(namespace, app)),
    }


def apps_of(namespace: str) -> str:
    """The partition of GSI3 that holds the apps of a namespace."""
    return f"{encode(namespace)}/APPS"


def client(client_id: str) -> Key:
    return Key(f"{REGISTRY_NAMESPACE}/CLIENT#{encode(client_id)}", CREDENTIALS)


def revoked_token(token_id: str) -> Key:
    return Key(f"{REGISTRY_NAMESPACE}/TOKEN#{encode(token_id)}", REVOKED)


def revoked_family(family: str) -> Key:
    """Families and tokens are drawn from the same large set, so one prefix serves both."""
    return revoked_token(family)


def revoked_client(client_id: str) -> Key:
    return revoked_token(f"client:{client_id}")


def audit_event(namespace: str, subject: str, at_ms: int, event_id: str) -> Key:
    """In the order of time. The subject is an entity, or what stands for a level without one."""
    return Key(audit_of(namespace, subject), f"#AUDIT#{at_ms:015d}#{encode(event_id)}")


def audit_of(namespace: str, subject: str) -> str:
    """The partition that holds the audit events of an entity."""
    return f"{encode(namespace)}/AUDIT#{encode(subject)}"


def lease(namespace: str, lease_id: str) -> Key:
    return Key(f"{encode(namespace)}/LEASE#{encode(lease_id)}", STATE)


def idempotent_answer(namespace: str, caller: str, idempotency_key: str) -> Key:
    return Key(f"{encode(namespace)}/IDEMPOTENCY#{encode(caller)}#{encode(idempotency_key)}", ANSWER)


def job(namespace: str, job_id: str) -> Key:
    """A job that outlives its namespace, such as its purge, belongs to the registry."""
    return Key(f"{encode(namespace)}/JOB#{encode(job_id)}", STATE)


def open_job_index(job_id: str) -> dict[str, str]:
    """GSI3 lists the jobs that are not done."""
    return index_attributes(schema.GSI3, OPEN_JOBS, encode(job_id))


def jobs_of(namespace: str) -> str:
    """How the partition keys of a namespace's jobs begin."""
    return f"{encode(namespace)}/JOB#"


def entities_of(namespace: str, partition: int) -> str:
    """One of the NAMESPACE_PARTITIONS partitions of GSI3 that hold all entities."""
    return f"{encode(namespace)}/ENTITIES#{partition}"


def entities_with_limits(namespace: str, resource: str) -> str:
    """The partition of GSI3 that holds the entities with limits of their own for a resource."""
    return f"{encode(namespace)}/ENTITY_CONFIG#{encode(resource)}"


def resources_with_limits(namespace: str) -> str:
    """The partition of GSI3 that holds the resources with limits."""
    return f"{encode(namespace)}/RESOURCES"


def buckets_of_resource(namespace: str, resource: str) -> str:
    """The partition of GSI2 that holds the buckets of a resource."""
    return f"{encode(namespace)}/RESOURCE#{encode(resource)}"


def namespace_prefix(namespace: str) -> str:
    """How every partition key of a namespace begins, and none of another: its separator is in no encoded id."""
    return f"{encode(namespace)}/"


def namespace_partitions(namespace: str) -> list[str]:
    """The partitions of GSI4 that hold the items of a namespace."""
    return [f"{encode(namespace)}#{partition}" for partition in range(NAMESPACE_PARTITIONS)]


def namespace_index(namespace: str, key: Key) -> dict[str, str]:
    """GSI4 finds all items of a namespace. Spread over partitions, by a checksum that is the same in every process."""
    partition = zlib.crc32(key.pk.encode()) % NAMESPACE_PARTITIONS
    return index_attributes(schema.GSI4, f"{encode(namespace)}#{partition}", key.pk)


def _bucket_resource(resource: str, call_fingerprint: str | None) -> str:
    return encode(resource) if call_fingerprint is None else f"{encode(resource)}!{encode(call_fingerprint)}"


def _window_start(name: SnapshotName) -> str:
    starts = datetime.fromtimestamp(name.starts_ms // 1000, UTC)
    return f"{starts:%Y%m%dT%H}" if name.window is Window.HOUR else f"{starts:%Y%m%d}"


def index_attributes(name: str, pk: str, sk: str) -> dict[str, str]:
    return {schema.index_partition_key(name): pk, schema.index_sort_key(name): sk}


def _escape(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))
