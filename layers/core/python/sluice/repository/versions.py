"""Which layout the items of a namespace are in: decoded and written here.

A namespace without a record is in today's layout: nothing of it was ever in another. A migration sets `migrating_to`,
and while that is set the old layouts are read too; its end sets the version and removes the mark.

The product that the old layouts come from may have left a record under the same key, without a `kind`. It says nothing
about buckets, so it counts as none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sluice.repository import keys
from sluice.repository.requests import PutRequest
from sluice.repository.shapes import check_kind, optional_text, optional_whole, whole
from sluice.repository.wire import Item, Value

SCHEMA_VERSION: Final = "schema_version"

ONE_ITEM_PER_LIMIT: Final = 1
COMPOSITE_ON_ENTITY: Final = 2
COMPOSITE_WITH_REFILL_TIME: Final = 3
CURRENT_SCHEMA_VERSION: Final = 4


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """`version`: the oldest layout that may be there. `legacy_prefix`: how keys of the old layouts begin."""

    version: int
    migrating_to: int | None = None
    job_id: str | None = None
    legacy_prefix: str | None = None

    @property
    def is_migrating(self) -> bool:
        return self.migrating_to is not None


CURRENT: Final = SchemaVersion(CURRENT_SCHEMA_VERSION)


def decode_version(item: Mapping[str, Value] | None) -> SchemaVersion:
    """Of what was read under the record's key."""
    if item is None or "kind" not in item:
        return CURRENT
    check_kind(item, SCHEMA_VERSION)
    return SchemaVersion(
        version=whole(item, "version"),
        migrating_to=optional_whole(item, "migrating_to"),
        job_id=optional_text(item, "job_id"),
        legacy_prefix=optional_text(item, "legacy_prefix"),
    )


def start_migration(namespace: str, seen: SchemaVersion, job_id: str, legacy_prefix: str, now_ms: int) -> PutRequest:
    """Marks the namespace, unless somebody else marked it since. A mark of a job that ended may be replaced."""
    marked = SchemaVersion(ONE_ITEM_PER_LIMIT, CURRENT_SCHEMA_VERSION, job_id, legacy_prefix)
    item = encode_version(namespace, marked, now_ms)
    if seen.job_id is None:
        return {"Item": item, "ConditionExpression": "attribute_not_exists(job_id)"}
    return {
        "Item": item,
        "ConditionExpression": "job_id = :seen",
        "ExpressionAttributeValues": {":seen": seen.job_id},
    }


def finish_migration(namespace: str, job_id: str, now_ms: int) -> PutRequest:
    """Today's layout from now on. Repeated after a lost answer it fails on what it did itself."""
    return {
        "Item": encode_version(namespace, CURRENT, now_ms),
        "ConditionExpression": "job_id = :job",
        "ExpressionAttributeValues": {":job": job_id},
    }


def encode_version(namespace: str, version: SchemaVersion, now_ms: int) -> Item:
    key = keys.schema_version(namespace)
    item: Item = {
        **key.attributes,
        **keys.namespace_index(namespace, key),
        "kind": SCHEMA_VERSION,
        "version": version.version,
        "created_at": now_ms,
        "updated_at": now_ms,
    }
    if version.migrating_to is not None:
        item["migrating_to"] = version.migrating_to
    if version.job_id is not None:
        item["job_id"] = version.job_id
    if version.legacy_prefix is not None:
        item["legacy_prefix"] = version.legacy_prefix
    return item
