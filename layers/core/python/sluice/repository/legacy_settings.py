"""Entities and limits as the old layouts have them, and the writes that bring them into today's shape. Pure.

Their keys are those of today behind another prefix, so most are changed in place: they lack a `kind`, times in
milliseconds, a burst and the index entries. An item of today's shape under the same key is newer and wins.

A limit that can not be defined here, by its name or its amounts, is left out. So are limits from before layout 2, which
had an item each: they are only found, so that somebody can define them anew.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sluice.core.errors import InvalidRequest
from sluice.core.limits import LIMIT_NAME_PATTERN, RESERVED_NAMES, Limit, OnUnavailable, Scope, define_limit
from sluice.repository import keys
from sluice.repository.entities import entity_put
from sluice.repository.items import Entity, StoredLimits, decode_entity, decode_limits
from sluice.repository.keys import Key
from sluice.repository.limits import limits_put
from sluice.repository.requests import TransactWrite
from sluice.repository.shapes import UnknownShape, optional_whole
from sluice.repository.wire import Item, Value

_ENTITY: Final = "ENTITY#"
_RESOURCE: Final = "RESOURCE#"
_SYSTEM: Final = "SYSTEM#"
_LIMIT: Final = "#LIMIT#"
_LIMIT_NAME: Final = re.compile(LIMIT_NAME_PATTERN)
_FIELDS: Final = ("cp", "bx", "ra", "rp")


@dataclass(frozen=True, slots=True)
class LegacyEntity:
    key: Key
    entity: Entity


@dataclass(frozen=True, slots=True)
class LegacyLimits:
    """`left_out`: how many limits can not be defined here."""

    key: Key
    scope: Scope
    stored: StoredLimits
    seen_version: int | None
    left_out: int


LegacySetting = LegacyEntity | LegacyLimits


def setting_filter(prefix: str) -> tuple[str, dict[str, Value]]:
    """What a scan must look for: a filter with its values."""
    condition = (
        "attribute_not_exists(kind) AND (begins_with(PK, :entity) OR begins_with(PK, :resource) OR PK = :system)"
        " AND (SK = :meta OR SK = :config OR begins_with(SK, :configs) OR begins_with(SK, :limit))"
    )
    return condition, {
        ":entity": f"{prefix}{_ENTITY}",
        ":resource": f"{prefix}{_RESOURCE}",
        ":system": f"{prefix}{_SYSTEM}",
        ":meta": keys.META,
        ":config": keys.CONFIG,
        ":configs": f"{keys.CONFIG}#",
        ":limit": _LIMIT,
    }


def is_one_limit(item: Mapping[str, Value]) -> bool:
    """A limit in an item of its own."""
    return keys.key_of(item).sk.startswith(_LIMIT)


def is_setting(item: Mapping[str, Value]) -> bool:
    key = keys.key_of(item)
    return key.sk in {keys.META, keys.CONFIG} or key.sk.startswith(f"{keys.CONFIG}#")


def decode_setting(item: Mapping[str, Value], prefix: str, now_ms: int) -> LegacySetting:
    key = keys.key_of(item)
    if not key.pk.startswith(prefix):
        raise UnknownShape(item, "its key does not begin as those of the old layouts do")
    name = key.pk.removeprefix(prefix)
    if key.sk == keys.META and name.startswith(_ENTITY):
        return LegacyEntity(key, decode_legacy_entity(item, name.removeprefix(_ENTITY), now_ms))
    scope = _scope(name, key.sk)
    if scope is None:
        raise UnknownShape(item, "its key names no entity and no level of limits")
    stored, left_out = decode_legacy_limits(item, now_ms)
    return LegacyLimits(key, scope, stored, optional_whole(item, "config_version"), left_out)


def decode_legacy_limits(item: Mapping[str, Value], now_ms: int) -> tuple[StoredLimits, int]:
    """Those that can be defined here, and how many can not."""
    limits, left_out = _limits(item)
    version = optional_whole(item, "config_version") or 1
    return StoredLimits(limits, _on_unavailable(item), version, now_ms, now_ms), left_out


def decode_legacy_entity(item: Mapping[str, Value], entity_id: str, now_ms: int) -> Entity:
    """In the first items the attributes are in a map `data`."""
    data = item.get("data")
    fields = data if isinstance(data, dict) else item
    metadata = fields.get("metadata")
    return Entity(
        entity=entity_id,
        name=_text_or_none(fields, "name"),
        parent=_text_or_none(fields, "parent_id"),
        cascade=fields.get("cascade") is True,
        metadata=metadata if isinstance(metadata, dict) else {},
        version=1,
        created_at_ms=_time_ms(fields.get("created_at"), now_ms),
        updated_at_ms=now_ms,
    )


def limits_of_any_layout(item: Mapping[str, Value]) -> StoredLimits:
    """Also of an item that a migration has not reached yet."""
    return decode_limits(item) if "kind" in item else decode_legacy_limits(item, 0)[0]


def entity_of_any_layout(item: Mapping[str, Value], entity_id: str) -> Entity:
    """Also of an item that a migration has not reached yet."""
    return decode_entity(item) if "kind" in item else decode_legacy_entity(item, entity_id, 0)


def setting_writes(namespace: str, setting: LegacySetting) -> list[TransactWrite]:
    """Today's item in place of the old one. Fails if either was written since."""
    put = (
        entity_put(namespace, setting.entity, None)
        if isinstance(setting, LegacyEntity)
        else limits_put(namespace, setting.scope, setting.stored, None)
    )
    if keys.key_of(put["Put"]["Item"]) != setting.key:
        return [put, drop_setting(setting)]
    request = put["Put"]
    condition, values = _as_seen(setting)
    request["ConditionExpression"] = condition
    if values:
        request["ExpressionAttributeValues"] = values
    return [put]


def setting_key(namespace: str, setting: LegacySetting) -> Key:
    """Where today's item stands."""
    if isinstance(setting, LegacyEntity):
        return keys.entity(namespace, setting.entity.entity)
    return keys.limits(namespace, setting.scope)


def drop_setting(setting: LegacySetting) -> TransactWrite:
    condition, values = _as_seen(setting)
    key: Item = {**setting.key.attributes}
    if not values:
        return {"Delete": {"Key": key, "ConditionExpression": condition}}
    return {"Delete": {"Key": key, "ConditionExpression": condition, "ExpressionAttributeValues": values}}


def _as_seen(setting: LegacySetting) -> tuple[str, dict[str, Value]]:
    condition = "attribute_exists(PK) AND attribute_not_exists(kind)"
    if isinstance(setting, LegacyEntity) or setting.seen_version is None:
        return condition, {}
    return f"{condition} AND config_version = :version", {":version": setting.seen_version}


def _scope(name: str, sk: str) -> Scope | None:
    if name.startswith(_ENTITY) and sk.startswith(f"{keys.CONFIG}#"):
        return Scope(name.removeprefix(_ENTITY), sk.removeprefix(f"{keys.CONFIG}#"))
    if name.startswith(_RESOURCE) and sk == keys.CONFIG:
        return Scope(resource=name.removeprefix(_RESOURCE))
    return Scope() if name == _SYSTEM and sk == keys.CONFIG else None


def _limits(item: Mapping[str, Value]) -> tuple[dict[str, Limit | None], int]:
    """Only the oldest composite items have a burst."""
    names = [attribute[2:-3] for attribute in item if attribute.startswith("l_") and attribute.endswith("_cp")]
    limits: dict[str, Limit | None] = {}
    for name in names:
        capacity, burst, amount, period_s = (optional_whole(item, f"l_{name}_{field}") for field in _FIELDS)
        if capacity is None or period_s is None or name in RESERVED_NAMES or not _LIMIT_NAME.fullmatch(name):
            continue
        try:
            limits[name] = define_limit(name, capacity, period_s, burst, amount)
        except InvalidRequest:
            continue
    return limits, len(names) - len(limits)


def _on_unavailable(item: Mapping[str, Value]) -> OnUnavailable | None:
    value = item.get("on_unavailable")
    return OnUnavailable(value) if value in {choice.value for choice in OnUnavailable} else None


def _text_or_none(fields: Mapping[str, Value], attribute: str) -> str | None:
    value = fields.get(attribute)
    return value if isinstance(value, str) else None


def _time_ms(value: Value, default_ms: int) -> int:
    """Times of the old layouts are text."""
    if not isinstance(value, str):
        return default_ms
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return default_ms
    return default_ms if moment.tzinfo is None else int(moment.timestamp() * 1000)
