"""Items of the table as frozen dataclasses, decoded once, here. A shape that is not known raises: nobody guesses."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from sluice.core.bucket import Parameters
from sluice.core.limits import Limit, LimitsByName, OnUnavailable
from sluice.core.orgs import EntityRole
from sluice.repository import keys, schema
from sluice.repository.shapes import UnknownShape, check_kind, optional_text, optional_whole, text, whole
from sluice.repository.wire import Item, Value

BUCKET: Final = "bucket"
LIMITS: Final = "limits"
ENTITY: Final = "entity"

BUCKET_FIELDS: Final = ("tk", "cp", "bx", "ra", "rp", "tc")


@dataclass(frozen=True, slots=True)
class BucketLimit:
    """One limit of a bucket: its parameters, balance and total consumption."""

    parameters: Parameters
    balance_milli: int
    consumed_milli: int


@dataclass(frozen=True, slots=True)
class Bucket:
    """All limits of one (entity, resource, shard)."""

    key: keys.Key
    namespace: str
    entity: str
    resource: str
    call_fingerprint: str | None
    """Of per-call limits, which have a bucket of their own."""
    shard: int
    shard_count: int
    version: int
    generation: int
    limits_hash: str
    cascade: bool
    parent: str | None
    expires_at_s: int | None
    created_at_ms: int
    limits: Mapping[str, BucketLimit]
    retired_consumed_milli: Mapping[str, int]
    """What limits that were removed had consumed: their counters outlive them."""

    @property
    def fingerprint(self) -> str:
        return self.limits_hash.partition(":")[0]

    @property
    def balances_milli(self) -> dict[str, int]:
        return {name: limit.balance_milli for name, limit in self.limits.items()}


@dataclass(frozen=True, slots=True)
class StoredLimits:
    """The limits of one level. `on_unavailable` is set at the system level only."""

    limits: LimitsByName
    on_unavailable: OnUnavailable | None
    config_version: int
    created_at_ms: int
    updated_at_ms: int


@dataclass(frozen=True, slots=True)
class Entity:
    """Whoever consumes. `cascade`: what it takes is taken from its parent as well."""

    entity: str
    name: str | None
    parent: str | None
    cascade: bool
    metadata: Mapping[str, Value]
    version: int
    created_at_ms: int
    updated_at_ms: int
    role: EntityRole = EntityRole.OTHER


def limits_hash(fingerprint: str, shard_count: int) -> str:
    """Whoever computed with other limits or another shard count must fail on it."""
    return f"{fingerprint}:{shard_count}"


def decode_bucket(item: Mapping[str, Value]) -> Bucket:
    check_kind(item, BUCKET)
    fields = _prefixed_fields(item, "b_", BUCKET_FIELDS)
    limits = {}
    retired = {}
    for name, values in fields.items():
        if values.keys() == {"tc"}:
            retired[name] = values["tc"]
            continue
        try:
            limits[name] = BucketLimit(
                Parameters(values["cp"], values["bx"], values["ra"], values["rp"]), values["tk"], values["tc"]
            )
        except KeyError as missing:
            raise UnknownShape(item, f"limit {name} has no {missing}") from None
    return Bucket(
        key=keys.Key(text(item, schema.PARTITION_KEY), text(item, schema.SORT_KEY)),
        namespace=text(item, "ns"),
        entity=text(item, "entity_id"),
        resource=text(item, "resource"),
        call_fingerprint=optional_text(item, "call_lh"),
        shard=whole(item, "shard"),
        shard_count=whole(item, "shard_count"),
        version=whole(item, "v"),
        generation=whole(item, "gen"),
        limits_hash=text(item, "lh"),
        cascade=item.get("cascade") is True,
        parent=optional_text(item, "parent_id"),
        expires_at_s=optional_whole(item, schema.TTL_ATTRIBUTE),
        created_at_ms=whole(item, "created_at"),
        limits=limits,
        retired_consumed_milli=retired,
    )


def shard_and_count(item: Mapping[str, Value]) -> tuple[int, int]:
    """Of a bucket: which shard it is, and of how many."""
    return whole(item, "shard"), whole(item, "shard_count")


def encode_bucket(bucket: Bucket) -> Item:
    item: Item = {
        **bucket.key.attributes,
        **keys.bucket_indexes(bucket.namespace, bucket.entity, bucket.resource, bucket.shard, bucket.call_fingerprint),
        "kind": BUCKET,
        "ns": bucket.namespace,
        "entity_id": bucket.entity,
        "resource": bucket.resource,
        "shard": bucket.shard,
        "shard_count": bucket.shard_count,
        "v": bucket.version,
        "gen": bucket.generation,
        "lh": bucket.limits_hash,
        "cascade": bucket.cascade,
        "created_at": bucket.created_at_ms,
    }
    if bucket.parent is not None:
        item["parent_id"] = bucket.parent
    if bucket.call_fingerprint is not None:
        item["call_lh"] = bucket.call_fingerprint
    if bucket.expires_at_s is not None:
        item[schema.TTL_ATTRIBUTE] = bucket.expires_at_s
    for name, limit in bucket.limits.items():
        item[f"b_{name}_tk"] = limit.balance_milli
        item[f"b_{name}_cp"] = limit.parameters.capacity_milli
        item[f"b_{name}_bx"] = limit.parameters.burst_milli
        item[f"b_{name}_ra"] = limit.parameters.refill_amount_milli
        item[f"b_{name}_rp"] = limit.parameters.refill_period_ms
        item[f"b_{name}_tc"] = limit.consumed_milli
    for name, consumed_milli in bucket.retired_consumed_milli.items():
        item[f"b_{name}_tc"] = consumed_milli
    return item


def decode_limits(item: Mapping[str, Value]) -> StoredLimits:
    check_kind(item, LIMITS)
    limits: dict[str, Limit | None] = {}
    for name, values in _prefixed_fields(item, "l_", ("cp", "bx", "ra", "rp", "off")).items():
        if values.keys() == {"off"}:
            limits[name] = None
            continue
        try:
            limits[name] = Limit(values["cp"], values["bx"], values["ra"], values["rp"])
        except KeyError as missing:
            raise UnknownShape(item, f"limit {name} has no {missing}") from None
    return StoredLimits(
        limits=limits,
        on_unavailable=OnUnavailable(text(item, "on_unavailable")) if "on_unavailable" in item else None,
        config_version=whole(item, "config_version"),
        created_at_ms=whole(item, "created_at"),
        updated_at_ms=whole(item, "updated_at"),
    )


def encode_limits(key: keys.Key, indexes: Mapping[str, str], stored: StoredLimits) -> Item:
    item: Item = {
        **key.attributes,
        **indexes,
        "kind": LIMITS,
        "config_version": stored.config_version,
        "created_at": stored.created_at_ms,
        "updated_at": stored.updated_at_ms,
    }
    if stored.on_unavailable is not None:
        item["on_unavailable"] = stored.on_unavailable.value
    for name, limit in stored.limits.items():
        if limit is None:
            item[f"l_{name}_off"] = 1
            continue
        item[f"l_{name}_cp"] = limit.capacity
        item[f"l_{name}_bx"] = limit.burst
        item[f"l_{name}_ra"] = limit.refill_amount
        item[f"l_{name}_rp"] = limit.refill_period_seconds
    return item


def decode_entity(item: Mapping[str, Value]) -> Entity:
    check_kind(item, ENTITY)
    metadata = item.get("metadata")
    if not isinstance(metadata, dict):
        raise UnknownShape(item, "metadata is not a map")
    return Entity(
        entity=text(item, "entity_id"),
        name=optional_text(item, "name"),
        parent=optional_text(item, "parent_id"),
        cascade=item.get("cascade") is True,
        metadata=metadata,
        version=whole(item, "v"),
        created_at_ms=whole(item, "created_at"),
        updated_at_ms=whole(item, "updated_at"),
        role=_role(item),
    )


def encode_entity(key: keys.Key, indexes: Mapping[str, str], entity: Entity) -> Item:
    item: Item = {
        **key.attributes,
        **indexes,
        "kind": ENTITY,
        "entity_id": entity.entity,
        "cascade": entity.cascade,
        "metadata": dict(entity.metadata),
        "v": entity.version,
        "created_at": entity.created_at_ms,
        "updated_at": entity.updated_at_ms,
    }
    if entity.name is not None:
        item["name"] = entity.name
    if entity.parent is not None:
        item["parent_id"] = entity.parent
    if entity.role is not EntityRole.OTHER:
        item["role"] = entity.role.value
    return item


def _role(item: Mapping[str, Value]) -> EntityRole:
    """Nearly all entities are others, so theirs is not stored."""
    try:
        return EntityRole(text(item, "role")) if "role" in item else EntityRole.OTHER
    except ValueError:
        raise UnknownShape(item, "role is not known") from None


@lru_cache(maxsize=4096)
def _parsed(attribute: str, prefix: str) -> tuple[str, str] | None:
    """The names of limits repeat in every image, so each is taken apart once."""
    if not attribute.startswith(prefix):
        return None
    name, _, field = attribute[len(prefix) :].rpartition("_")
    return name, field


def _prefixed_fields(item: Mapping[str, Value], prefix: str, known: tuple[str, ...]) -> dict[str, dict[str, int]]:
    """Groups `{prefix}{name}_{field}` by name. The last underscore separates: names may contain some themselves."""
    fields: dict[str, dict[str, int]] = {}
    for attribute, value in item.items():
        parsed = _parsed(attribute, prefix)
        if parsed is None:
            continue
        name, field = parsed
        if type(value) is not int or field not in known or not name:
            raise UnknownShape(item, f"attribute {attribute} is not understood")
        found = fields.get(name)
        if found is None:
            fields[name] = {field: value}
        else:
            found[field] = value
    return fields
