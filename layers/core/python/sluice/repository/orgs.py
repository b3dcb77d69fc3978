"""Orgs and apps as they are stored, and the requests about them, each guarded by what was seen.

The client id stands in the settings, so that whoever has the org or the app finds its credentials.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from sluice.core.orgs import AppSettings, OrgSettings, QuotaScope
from sluice.core.timelines import From, Timeline
from sluice.repository import keys, schema
from sluice.repository.audit import Image
from sluice.repository.namespaces import NamespaceState
from sluice.repository.requests import QueryRequest, TransactWrite
from sluice.repository.shapes import (
    UnknownShape,
    check_kind,
    optional_text,
    optional_whole,
    text,
    texts,
    whole,
    wholes,
)
from sluice.repository.wire import Item, Value

ORG: Final = "org"
APP: Final = "app"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Org:
    """`org`: its name, and the id of its root entity. `namespace`: where everything of it is."""

    org: str
    namespace: str
    client_id: str
    settings: OrgSettings
    version: int
    created_at_ms: int
    updated_at_ms: int


@dataclass(frozen=True, slots=True)
class App:
    """`app`: also the id of its entity."""

    app: str
    namespace: str
    client_id: str
    settings: AppSettings
    version: int
    created_at_ms: int
    updated_at_ms: int


def org_put(org: Org, seen: Org | None) -> TransactWrite:
    """Replaces what was seen, or nothing."""
    return _put(encode_org(org), seen)


def app_put(app: App, seen: App | None) -> TransactWrite:
    """Replaces what was seen, or nothing."""
    return _put(encode_app(app), seen)


def app_delete(seen: App) -> TransactWrite:
    condition, values = _as_seen(seen)
    key: Item = {**keys.app_settings(seen.namespace, seen.app).attributes}
    return {"Delete": {"Key": key, "ConditionExpression": condition, "ExpressionAttributeValues": values}}


def namespace_active(namespace: str) -> TransactWrite:
    """Nothing is added to a namespace once its purge has begun: the purge might not see it."""
    return {
        "ConditionCheck": {
            "Key": {**keys.namespace_by_id(namespace).attributes},
            "ConditionExpression": "#state = :active",
            "ExpressionAttributeNames": {"#state": "state"},
            "ExpressionAttributeValues": {":active": NamespaceState.ACTIVE.value},
        }
    }


def client_mark_put_back(client_id: str, before: Item | None) -> TransactWrite:
    """The mark of a client as it was before the client was ended, for a client that stays after all."""
    if before is not None:
        return {"Put": {"Item": before}}
    return {"Delete": {"Key": {**keys.revoked_client(client_id).attributes}}}


def apps_query(namespace: str) -> QueryRequest:
    """The keys of all apps, by id."""
    return {
        "IndexName": schema.GSI3,
        "KeyConditionExpression": "GSI3PK = :apps",
        "ExpressionAttributeValues": {":apps": keys.apps_of(namespace)},
    }


def apps_behind_query(namespace: str, encoded: str) -> QueryRequest:
    """Of those the ones behind an id, as keys spell it."""
    return {
        "IndexName": schema.GSI3,
        "KeyConditionExpression": "GSI3PK = :apps AND GSI3SK > :behind",
        # No key is empty; keys spell nothing below a blank.
        "ExpressionAttributeValues": {":apps": keys.apps_of(namespace), ":behind": encoded or "\x1f"},
    }


def encode_org(org: Org) -> Item:
    key = keys.org_settings(org.namespace)
    settings = org.settings
    item: Item = {
        **key.attributes,
        **keys.namespace_index(org.namespace, key),
        "kind": ORG,
        "org": org.org,
        "ns": org.namespace,
        "client_id": org.client_id,
        "zones": [{"from_ms": one.from_ms, "zone": one.value} for one in settings.zones],
        "quota_scopes": [{"from_ms": one.from_ms, "scope": one.value.value} for one in settings.quota_scopes],
        "model_ordering": list(settings.model_ordering),
        "quotas": dict(settings.quotas_usd_micros),
        "sticky_fallback_enabled": settings.sticky_fallback_enabled,
        "counter_shards": settings.counter_shards,
        "auto_register_entities": settings.auto_register_entities,
        "accept_unpriced": settings.accept_unpriced,
        "suspended": settings.suspended,
        "tight_mode_threshold_pct": settings.tight_mode_threshold_pct,
        "refresh_interval_normal_secs": settings.refresh_interval_normal_secs,
        "refresh_interval_tight_secs": settings.refresh_interval_tight_secs,
        "v": org.version,
        "created_at": org.created_at_ms,
        "updated_at": org.updated_at_ms,
    }
    if settings.name is not None:
        item["name"] = settings.name
    return item


def decode_org(item: Mapping[str, Value]) -> Org:
    check_kind(item, ORG)
    settings = OrgSettings(
        name=optional_text(item, "name"),
        zones=_timeline(item, "zones", lambda one: text(one, "zone")),
        quota_scopes=_timeline(item, "quota_scopes", _scope),
        model_ordering=texts(item, "model_ordering"),
        quotas_usd_micros=wholes(item, "quotas"),
        sticky_fallback_enabled=_switch(item, "sticky_fallback_enabled"),
        counter_shards=whole(item, "counter_shards"),
        auto_register_entities=_switch(item, "auto_register_entities"),
        accept_unpriced=_switch(item, "accept_unpriced"),
        suspended=_switch(item, "suspended"),
        tight_mode_threshold_pct=whole(item, "tight_mode_threshold_pct"),
        refresh_interval_normal_secs=whole(item, "refresh_interval_normal_secs"),
        refresh_interval_tight_secs=whole(item, "refresh_interval_tight_secs"),
    )
    return Org(
        org=text(item, "org"),
        namespace=text(item, "ns"),
        client_id=text(item, "client_id"),
        settings=settings,
        version=whole(item, "v"),
        created_at_ms=whole(item, "created_at"),
        updated_at_ms=whole(item, "updated_at"),
    )


def encode_app(app: App) -> Item:
    """Only what the app has of its own: what it inherits is the org's to change."""
    settings = app.settings
    item: Item = {
        **keys.app_settings(app.namespace, app.app).attributes,
        **keys.app_indexes(app.namespace, app.app),
        "kind": APP,
        "app": app.app,
        "ns": app.namespace,
        "client_id": app.client_id,
        "suspended": settings.suspended,
        "quotas": dict(settings.quotas_usd_micros),
        "v": app.version,
        "created_at": app.created_at_ms,
        "updated_at": app.updated_at_ms,
    }
    own: dict[str, Value] = {
        "name": settings.name,
        "model_ordering": None if settings.model_ordering is None else list(settings.model_ordering),
        "tight_mode_threshold_pct": settings.tight_mode_threshold_pct,
        "refresh_interval_normal_secs": settings.refresh_interval_normal_secs,
        "refresh_interval_tight_secs": settings.refresh_interval_tight_secs,
    }
    return item | {name: value for name, value in own.items() if value is not None}


def decode_app(item: Mapping[str, Value]) -> App:
    check_kind(item, APP)
    settings = AppSettings(
        name=optional_text(item, "name"),
        suspended=_switch(item, "suspended"),
        model_ordering=texts(item, "model_ordering") if "model_ordering" in item else None,
        quotas_usd_micros=wholes(item, "quotas"),
        tight_mode_threshold_pct=optional_whole(item, "tight_mode_threshold_pct"),
        refresh_interval_normal_secs=optional_whole(item, "refresh_interval_normal_secs"),
        refresh_interval_tight_secs=optional_whole(item, "refresh_interval_tight_secs"),
    )
    return App(
        app=text(item, "app"),
        namespace=text(item, "ns"),
        client_id=text(item, "client_id"),
        settings=settings,
        version=whole(item, "v"),
        created_at_ms=whole(item, "created_at"),
        updated_at_ms=whole(item, "updated_at"),
    )


def settings_image(stored: Org | App) -> Image:
    """As the audit shows it: the settings and their version, nothing of keys or credentials."""
    item = encode_org(stored) if isinstance(stored, Org) else encode_app(stored)
    left_out = {"kind", "org", "app", "ns", "client_id", "v", "created_at", "updated_at"}
    shown = {name: value for name, value in item.items() if name.islower() and name not in left_out}
    return {**shown, "version": stored.version}


def _put(item: Item, seen: Org | App | None) -> TransactWrite:
    if seen is None:
        return {"Put": {"Item": item, "ConditionExpression": "attribute_not_exists(PK)"}}
    condition, values = _as_seen(seen)
    return {"Put": {"Item": item, "ConditionExpression": condition, "ExpressionAttributeValues": values}}


def _as_seen(stored: Org | App) -> tuple[str, dict[str, Value]]:
    """Removed and made again it starts at version 1 once more; the client is then another one."""
    values: dict[str, Value] = {":version": stored.version, ":client": stored.client_id}
    return "v = :version AND client_id = :client", values


def _switch(item: Mapping[str, Value], attribute: str) -> bool:
    value = item.get(attribute)
    if not isinstance(value, bool):
        raise UnknownShape(item, f"{attribute} is neither true nor false")
    return value


def _scope(item: Mapping[str, Value]) -> QuotaScope:
    try:
        return QuotaScope(text(item, "scope"))
    except ValueError:
        raise UnknownShape(item, "scope is not known") from None


def _timeline(item: Mapping[str, Value], attribute: str, value_of: Callable[[Mapping[str, Value]], T]) -> Timeline[T]:
    entries = item.get(attribute)
    if not isinstance(entries, list) or not entries:
        raise UnknownShape(item, f"{attribute} is not a list with elements")
    timeline = []
    for entry in entries:
        if not isinstance(entry, dict):
            raise UnknownShape(item, f"{attribute} has elements that are not maps")
        timeline.append(From(whole(entry, "from_ms"), value_of(entry)))
    return tuple(timeline)
