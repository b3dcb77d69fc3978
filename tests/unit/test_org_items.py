"""Orgs and apps as they are stored."""

from collections.abc import Mapping
from typing import Any

import pytest

from sluice.core.orgs import AppSettings, EntityRole, OrgSettings, QuotaScope
from sluice.core.timelines import From
from sluice.repository import keys
from sluice.repository.items import Entity, decode_entity, encode_entity
from sluice.repository.orgs import (
    App,
    Org,
    client_mark_put_back,
    decode_app,
    decode_org,
    encode_app,
    encode_org,
    settings_image,
)
from sluice.repository.shapes import UnknownShape

PLAIN_ORG = Org("acme", "ns1", "client", OrgSettings(), 1, 5, 6)
FULL_ORG = Org(
    "acme",
    "ns1",
    "client",
    OrgSettings(
        name="Acme",
        zones=(From(0, "UTC"), From(50, "Europe/Berlin")),
        quota_scopes=(From(0, QuotaScope.ORG), From(60, QuotaScope.APP)),
        model_ordering=("big", "small"),
        quotas_usd_micros={"big": 10**15, "small": 0},
        sticky_fallback_enabled=False,
        counter_shards=64,
        auto_register_entities=False,
        accept_unpriced=True,
        suspended=True,
        tight_mode_threshold_pct=1,
        refresh_interval_normal_secs=3600,
        refresh_interval_tight_secs=10,
    ),
    7,
    5,
    6,
)
PLAIN_APP = App("bot", "ns1", "client", AppSettings(), 1, 5, 6)
FULL_APP = App(
    "bot",
    "ns1",
    "client",
    AppSettings(
        name="Bot",
        suspended=True,
        model_ordering=("big",),
        quotas_usd_micros={"big": 3},
        tight_mode_threshold_pct=2,
        refresh_interval_normal_secs=11,
        refresh_interval_tight_secs=12,
    ),
    3,
    5,
    6,
)


@pytest.mark.parametrize("org", [PLAIN_ORG, FULL_ORG])
def test_an_org_comes_back_as_it_was(org: Org) -> None:
    item = encode_org(org)
    assert keys.key_of(item) == keys.org_settings("ns1") == ("ns1/SYSTEM#", "#ORG")
    assert item["GSI4SK"] == "ns1/SYSTEM#"
    assert decode_org(item) == org


@pytest.mark.parametrize("app", [PLAIN_APP, FULL_APP])
def test_an_app_comes_back_as_it_was(app: App) -> None:
    item = encode_app(app)
    assert keys.key_of(item) == keys.app_settings("ns1", "bot") == ("ns1/ENTITY#bot", "#APP")
    assert (item["GSI3PK"], item["GSI3SK"], item["GSI4SK"]) == ("ns1/APPS", "bot", "ns1/ENTITY#bot")
    assert decode_app(item) == app


def test_an_app_stores_only_what_it_has_of_its_own() -> None:
    fields = {name for name in encode_app(PLAIN_APP) if name.islower()}
    assert fields == {"kind", "app", "ns", "client_id", "suspended", "quotas", "v", "created_at", "updated_at"}


@pytest.mark.parametrize("stored", [FULL_ORG, FULL_APP])
def test_the_audit_shows_settings_and_no_credential(stored: Org | App) -> None:
    image = settings_image(stored)
    assert image["version"] == stored.version
    assert (image["name"], image["suspended"]) == (stored.settings.name, True)
    assert "client" not in repr(image)
    assert "ns1" not in repr(image)
    assert image.keys().isdisjoint({"PK", "SK", "GSI3PK", "GSI4PK", "kind", "v"})


@pytest.mark.parametrize(
    "damage",
    [
        {"kind": "app"},
        {"zones": []},
        {"zones": "UTC"},
        {"zones": ["UTC"]},
        {"zones": [{"from_ms": "0", "zone": "UTC"}]},
        {"zones": [{"from_ms": 0}]},
        {"quota_scopes": [{"from_ms": 0, "scope": "ALL"}]},
        {"suspended": None},
        {"suspended": 1},
        {"quotas": {"big": "5"}},
        {"model_ordering": [1]},
        {"counter_shards": True},
        {"client_id": None},
    ],
)
def test_an_org_of_another_shape_is_not_guessed(damage: Mapping[str, Any]) -> None:
    with pytest.raises(UnknownShape):
        decode_org({**encode_org(FULL_ORG), **damage})


@pytest.mark.parametrize("damage", [{"kind": "org"}, {"model_ordering": "big"}, {"suspended": "no"}, {"v": "1"}])
def test_an_app_of_another_shape_is_not_guessed(damage: Mapping[str, Any]) -> None:
    with pytest.raises(UnknownShape):
        decode_app({**encode_app(FULL_APP), **damage})


@pytest.mark.parametrize("role", EntityRole)
def test_the_role_of_an_entity_is_stored_unless_it_is_none(role: EntityRole) -> None:
    entity = Entity("bot", None, None, True, {}, 1, 5, 6, role)
    item = encode_entity(keys.entity("ns1", "bot"), {}, entity)
    assert item.get("role") == (None if role is EntityRole.OTHER else role.value)
    assert decode_entity(item) == entity
    with pytest.raises(UnknownShape):
        decode_entity({**item, "role": "king"})


def test_a_mark_is_put_back_as_it_was() -> None:
    key = keys.revoked_client("client").attributes
    assert client_mark_put_back("client", None) == {"Delete": {"Key": key}}
    before: Any = {**key, "min_gen": 3}
    assert client_mark_put_back("client", before) == {"Put": {"Item": before}}
