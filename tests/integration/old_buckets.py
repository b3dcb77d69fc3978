"""A few items of old layouts, as far as lists and removals meet them."""

from sluice.repository import keys
from sluice.repository.wire import Item
from tests.integration.conftest import ENTITY, NAMESPACE, RESOURCE, Host

_OLD_LIMIT: Item = {"rf": 1, "b_rpm_tk": 1, "b_rpm_cp": 1000, "b_rpm_ra": 1000, "b_rpm_rp": 1000, "b_rpm_tc": 0}


def put_old_bucket(host: Host, resource: str = RESOURCE, shard: int = 0) -> None:
    """Under the key that today's bucket has, and in the same indexes."""
    key = keys.bucket(NAMESPACE, ENTITY, resource, shard)
    indexes = keys.bucket_indexes(NAMESPACE, ENTITY, resource, shard)
    item: Item = {
        **key.attributes,
        **indexes,
        "entity_id": ENTITY,
        "resource": resource,
        "shard_count": 1,
        **_OLD_LIMIT,
    }
    host.store.inner.put({"Item": item}, repeatable=True)


def put_older_buckets(host: Host, entity: str = ENTITY) -> None:
    """Beside the entity: one item per limit, and one for all."""
    for sk in (f"#BUCKET#{RESOURCE}#rpm", f"#BUCKET#{RESOURCE}"):
        item: Item = {"PK": f"{NAMESPACE}/ENTITY#{entity}", "SK": sk, **_OLD_LIMIT}
        host.store.inner.put({"Item": item}, repeatable=True)


def put_old_settings(host: Host) -> None:
    """An entity and its limits, in the indexes of today."""
    indexes = keys.entity_indexes(NAMESPACE, "old", "team")
    entity: Item = {**keys.entity(NAMESPACE, "old").attributes, **indexes, "entity_id": "old"}
    limits: Item = {
        "PK": f"{NAMESPACE}/ENTITY#old",
        "SK": f"#CONFIG#{RESOURCE}",
        "GSI3PK": keys.entities_with_limits(NAMESPACE, RESOURCE),
        "GSI3SK": "old",
        "l_rpm_cp": 1,
    }
    for item in (entity, limits):
        host.store.inner.put({"Item": item}, repeatable=True)
