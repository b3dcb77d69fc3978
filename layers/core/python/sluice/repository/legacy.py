"""Buckets in the three layouts that came before. Decoded here; `legacy_moves.py` brings them into today's.

| layout | key | attributes |
|---|---|---|
| 1, one item per limit | `ENTITY#{id}` / `#BUCKET#{resource}#{limit}` | `tokens_milli`, `last_refill_ms`, ... |
| 2, composite on the entity | `ENTITY#{id}` / `#BUCKET#{resource}` | `b_{limit}_tk`, ..., one `rf` for all limits |
| 3, composite of its own | `BUCKET#{id}#{resource}#{shard}` / `#STATE` | as 2, with `shard_count` and a limit `wcu` |

All three keep the tokens as of the last refill and its time; the level is `min(tokens + refill since, burst)`. The
first items of layout 1 have their attributes in a map `data`. Keys begin with a prefix, `{namespace}/` or nothing in
tables from before namespaces, and are not encoded.

An adjustment of an old client that finds no item leaves half of one: balances without limits. It is a correction of the
bucket that took over.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sluice.core.bucket import Parameters
from sluice.core.limits import LIMIT_NAME_PATTERN, RESERVED_NAMES
from sluice.repository import keys, schema
from sluice.repository.keys import Key
from sluice.repository.requests import QueryRequest
from sluice.repository.shapes import UnknownShape, optional_whole, text, whole
from sluice.repository.versions import COMPOSITE_ON_ENTITY, COMPOSITE_WITH_REFILL_TIME, ONE_ITEM_PER_LIMIT
from sluice.repository.wire import Value

# Counts were doubled from one; nobody ever allowed more.
SHARDS_SEEN_MAX: Final = 64

_ENTITY: Final = "ENTITY#"
_OWN: Final = "BUCKET#"
_BUCKET: Final = "#BUCKET#"
_LIMIT_NAME: Final = re.compile(LIMIT_NAME_PATTERN)

Guards = tuple[tuple[tuple[str, ...], int | None], ...]
"""Attribute paths and what they were seen with; None for one that was not there."""


@dataclass(frozen=True, slots=True)
class LegacyLimit:
    """The parameters are those of the whole bucket, whatever the shard."""

    parameters: Parameters
    tokens_milli: int
    refilled_at_ms: int

    def level_milli(self, parameters: Parameters, now_ms: int) -> int:
        """By the rules of the old layouts, with the parameters of the shard."""
        elapsed_ms = max(0, now_ms - self.refilled_at_ms)
        refill_milli = elapsed_ms * parameters.refill_amount_milli // parameters.refill_period_ms
        return min(self.tokens_milli + refill_milli, parameters.burst_milli)


@dataclass(frozen=True, slots=True)
class LegacyItem:
    """One item of an old layout. `late_milli`: the corrections that half an item is made of.

    `consumed_milli` also has limits that can not be carried: see `_is_usable`.
    """

    key: Key
    layout: int
    entity: str
    resource: str
    shard: int
    shard_count: int
    limits: Mapping[str, LegacyLimit]
    consumed_milli: Mapping[str, int]
    late_milli: Mapping[str, int]
    cascade: bool
    parent: str | None
    expires_at_s: int | None
    guards: Guards


def is_legacy(item: Mapping[str, Value]) -> bool:
    """Whether what stands under a bucket's key is of layout 3."""
    return "lh" not in item


def items_query(prefix: str, entity: str, resource: str) -> QueryRequest:
    """The items of layouts 1 and 2, among those of resources whose names go on."""
    return {
        "KeyConditionExpression": "PK = :entity AND begins_with(SK, :bucket)",
        "ExpressionAttributeValues": {":entity": f"{prefix}{_ENTITY}{entity}", ":bucket": f"{_BUCKET}{resource}"},
        "ConsistentRead": True,
    }


def shard_key(prefix: str, entity: str, resource: str, shard: int) -> Key:
    return Key(f"{prefix}{_OWN}{entity}#{resource}#{shard}", keys.STATE)


def bucket_filter(prefix: str) -> tuple[str, dict[str, Value]]:
    """What a scan must look for: a filter with its values."""
    condition = (
        "(begins_with(PK, :entity) AND begins_with(SK, :bucket))"
        " OR (begins_with(PK, :own) AND SK = :state AND attribute_not_exists(lh))"
    )
    return condition, {
        ":entity": f"{prefix}{_ENTITY}",
        ":bucket": _BUCKET,
        ":own": f"{prefix}{_OWN}",
        ":state": keys.STATE,
    }


def decode_legacy(item: Mapping[str, Value], prefix: str) -> LegacyItem:
    key = keys.key_of(item)
    if not key.pk.startswith(prefix):
        raise UnknownShape(item, "its key does not begin as those of the old layouts do")
    if key.sk == keys.STATE:
        return _decode_composite(item, key, COMPOSITE_WITH_REFILL_TIME, *_own_names(item, key.pk.removeprefix(prefix)))
    entity = key.pk.removeprefix(prefix).removeprefix(_ENTITY)
    if "tokens_milli" in _nested(item):
        return _decode_one_limit(item, key, entity)
    return _decode_composite(item, key, COMPOSITE_ON_ENTITY, entity, key.sk.removeprefix(_BUCKET), 0)


def _own_names(item: Mapping[str, Value], name: str) -> tuple[str, str, int]:
    """Entity, resource and shard. The ids of layout 3 contain no separator."""
    parts = name.removeprefix(_OWN).split("#")
    if len(parts) != 3 or not parts[2].isdecimal() or int(parts[2]) >= SHARDS_SEEN_MAX:
        raise UnknownShape(item, "its key names no entity, resource and shard")
    return parts[0], parts[1], int(parts[2])


def _nested(item: Mapping[str, Value]) -> Mapping[str, Value]:
    data = item.get("data")
    return data if isinstance(data, dict) else item


def _decode_one_limit(item: Mapping[str, Value], key: Key, entity: str) -> LegacyItem:
    fields = _nested(item)
    path = () if fields is item else ("data",)
    name = text(fields, "limit_name")
    parameters = Parameters(
        capacity_milli=whole(fields, "capacity_milli"),
        burst_milli=whole(fields, "burst_milli" if "burst_milli" in fields else "capacity_milli"),
        refill_amount_milli=whole(fields, "refill_amount_milli"),
        refill_period_ms=whole(fields, "refill_period_ms"),
    )
    limit = LegacyLimit(parameters, whole(fields, "tokens_milli"), whole(fields, "last_refill_ms"))
    consumed_milli = optional_whole(item, "total_consumed_milli")
    return LegacyItem(
        key=key,
        layout=ONE_ITEM_PER_LIMIT,
        entity=entity,
        resource=text(fields, "resource"),
        shard=0,
        shard_count=1,
        limits={name: limit} if _is_usable(name, parameters) else {},
        consumed_milli={name: consumed_milli or 0},
        late_milli={},
        cascade=False,
        parent=None,
        expires_at_s=optional_whole(item, schema.TTL_ATTRIBUTE),
        guards=(
            ((*path, "tokens_milli"), limit.tokens_milli),
            ((*path, "last_refill_ms"), limit.refilled_at_ms),
            (("total_consumed_milli",), consumed_milli),
        ),
    )


def _decode_composite(
    item: Mapping[str, Value], key: Key, layout: int, entity: str, resource: str, shard: int
) -> LegacyItem:
    refilled_at_ms = optional_whole(item, "rf")
    tokens_milli = _by_limit(item, "tk")
    count = optional_whole(item, "shard_count")
    if (count or 1) > SHARDS_SEEN_MAX:
        raise UnknownShape(item, "has more shards than there ever were")
    limits = {}
    if refilled_at_ms is not None:
        for name, parameters in _composite_parameters(item).items():
            if name in tokens_milli and _is_usable(name, parameters):
                limits[name] = LegacyLimit(parameters, tokens_milli[name], refilled_at_ms)
    return LegacyItem(
        key=key,
        layout=layout,
        entity=entity,
        resource=resource,
        shard=shard,
        shard_count=max(1, count or 1, shard + 1),
        limits=limits,
        consumed_milli=_by_limit(item, "tc"),
        late_milli={} if refilled_at_ms is not None else tokens_milli,
        cascade=item.get("cascade") is True,
        parent=None if item.get("parent_id") is None else text(item, "parent_id"),
        expires_at_s=optional_whole(item, schema.TTL_ATTRIBUTE),
        guards=(
            (("lh",), None),
            (("rf",), refilled_at_ms),
            (("shard_count",), count),
            *(((f"b_{name}_tk",), tokens) for name, tokens in tokens_milli.items()),
        ),
    )


def _composite_parameters(item: Mapping[str, Value]) -> dict[str, Parameters]:
    """Of the limits that have them. An adjustment of a limit that was gone has left only a balance and a count."""
    bursts_milli, amounts_milli, periods_ms = (_by_limit(item, field) for field in ("bx", "ra", "rp"))
    return {
        # Later items of layouts 2 and 3 have no burst of their own.
        name: Parameters(capacity_milli, bursts_milli.get(name, capacity_milli), amounts_milli[name], periods_ms[name])
        for name, capacity_milli in _by_limit(item, "cp").items()
        if name in amounts_milli and name in periods_ms
    }


def _by_limit(item: Mapping[str, Value], field: str) -> dict[str, int]:
    """Without the reserved limit, which nobody asked for."""
    found = {
        attribute[len("b_") : -len(f"_{field}")]: whole(item, attribute)
        for attribute in item
        if attribute.startswith("b_") and attribute.endswith(f"_{field}")
    }
    return {name: value for name, value in found.items() if name not in RESERVED_NAMES}


def _is_usable(name: str, parameters: Parameters) -> bool:
    """Whether such a limit can be defined here. One that can not takes nothing any more; its count is kept."""
    return (
        _LIMIT_NAME.fullmatch(name) is not None
        and min(parameters.capacity_milli, parameters.burst_milli) > 0
        and min(parameters.refill_amount_milli, parameters.refill_period_ms) > 0
    )
