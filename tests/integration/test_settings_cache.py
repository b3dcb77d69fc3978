"""The settings of orgs and apps: read together, kept for a while, and never for longer."""

from dataclasses import replace

import pytest

from sluice.core.errors import NotFound, Unavailable
from sluice.core.orgs import AppSettings, OrgSettings
from sluice.repository import keys
from sluice.repository.orgs import app_put, decode_app, decode_org, org_put
from sluice.repository.requests import TransactWrite
from sluice.repository.store import Committed
from sluice.services.settings import CACHE_MS, SettingsCache
from sluice.shell import new_token
from tests.fakes import FakeClock
from tests.integration.catalogs import BOT, CHAT, ORG, put_tenant
from tests.integration.conftest import NAMESPACE, Host


@pytest.fixture
def settings(host: Host, clock: FakeClock) -> SettingsCache:
    put_tenant(host, OrgSettings(model_ordering=("big",), quotas_usd_micros={"big": 5, "small": 7}))
    return SettingsCache(host.store, clock)


def change(host: Host, *writes: TransactWrite) -> None:
    assert isinstance(host.store.inner.transact(list(writes), new_token()), Committed)


def change_org(host: Host, settings: OrgSettings) -> None:
    item = host.store.inner.get(keys.org_settings(NAMESPACE), consistent=True)
    assert item is not None
    seen = decode_org(item)
    change(host, org_put(replace(seen, settings=settings, version=seen.version + 1), seen))


def change_app(host: Host, settings: AppSettings, app: str = CHAT) -> None:
    item = host.store.inner.get(keys.app_settings(NAMESPACE, app), consistent=True)
    assert item is not None
    seen = decode_app(item)
    change(host, app_put(replace(seen, settings=settings, version=seen.version + 1), seen))


def test_the_org_and_its_app_are_read_together_and_once(host: Host, settings: SettingsCache) -> None:
    tenant = settings.tenant(NAMESPACE, CHAT)
    assert (tenant.org.org, tenant.entity) == (ORG, CHAT)
    assert tenant.app is not None
    assert tenant.app.app == CHAT
    assert host.store.taken_calls() == ["batch_get"]
    assert settings.tenant(NAMESPACE, CHAT) == tenant
    assert host.store.taken_calls() == []


def test_the_org_itself_has_no_app(host: Host, settings: SettingsCache) -> None:
    tenant = settings.tenant(NAMESPACE)
    assert (tenant.app, tenant.entity, tenant.org) == (None, ORG, settings.org(NAMESPACE))
    assert tenant.effective.model_ordering == ("big",)
    assert host.store.taken_calls() == ["batch_get"]


def test_an_entity_that_is_no_app_has_the_settings_of_the_org(host: Host, settings: SettingsCache) -> None:
    tenant = settings.tenant(NAMESPACE, "user-1")
    assert (tenant.app, tenant.entity) == (None, ORG)
    assert tenant.effective == settings.tenant(NAMESPACE).effective


def test_what_an_app_overrides_holds_for_it_alone(host: Host, settings: SettingsCache) -> None:
    change_app(host, AppSettings(model_ordering=("small", "big"), quotas_usd_micros={"small": 1}))
    mine = settings.tenant(NAMESPACE, CHAT).effective
    assert (mine.model_ordering, dict(mine.quotas_usd_micros)) == (("small", "big"), {"big": 5, "small": 1})
    other = settings.tenant(NAMESPACE, BOT).effective
    assert (other.model_ordering, dict(other.quotas_usd_micros)) == (("big",), {"big": 5, "small": 7})


def test_a_change_acts_after_a_minute_at_the_latest(host: Host, settings: SettingsCache, clock: FakeClock) -> None:
    settings.tenant(NAMESPACE, CHAT)
    change_org(host, OrgSettings(tight_mode_threshold_pct=50))
    change_app(host, AppSettings(refresh_interval_normal_secs=11))
    clock.advance(CACHE_MS - 1)
    before = settings.tenant(NAMESPACE, CHAT).effective
    assert (before.tight_mode_threshold_pct, before.refresh_interval_normal_secs) == (95, 300)
    clock.advance(1)
    after = settings.tenant(NAMESPACE, CHAT).effective
    assert (after.tight_mode_threshold_pct, after.refresh_interval_normal_secs) == (50, 11)


def test_the_minute_counts_from_before_the_read(host: Host, settings: SettingsCache, clock: FakeClock) -> None:
    """What was changed while a slow read was under way may be missing in it."""

    def slow(_verb: str, _request: object) -> None:
        host.store.after = None
        change_org(host, OrgSettings(tight_mode_threshold_pct=50))
        clock.advance(CACHE_MS - 1)

    host.store.after = slow
    assert settings.org(NAMESPACE).settings.tight_mode_threshold_pct == 95
    clock.advance(1)
    assert settings.org(NAMESPACE).settings.tight_mode_threshold_pct == 50


def test_an_org_that_is_not_there_yet_is_looked_for_each_time(host: Host, settings: SettingsCache) -> None:
    for asked in (None, CHAT):
        with pytest.raises(NotFound, match="no such org"):
            settings.tenant("later", asked)
    put_tenant(host, namespace="later")
    assert settings.tenant("later", CHAT).entity == CHAT


def test_nothing_crosses_a_namespace(host: Host, settings: SettingsCache) -> None:
    put_tenant(host, OrgSettings(tight_mode_threshold_pct=50), namespace="elsewhere")
    found = [settings.tenant(namespace, CHAT).effective for namespace in (NAMESPACE, "elsewhere", NAMESPACE)]
    assert [effective.tight_mode_threshold_pct for effective in found] == [95, 50, 95]


def test_whoever_must_not_miss_a_change_reads_past_the_cache(host: Host, settings: SettingsCache) -> None:
    settings.org(NAMESPACE)
    change_org(host, OrgSettings(counter_shards=16))
    host.store.taken_calls()
    now = settings.org_now(NAMESPACE)
    assert now is not None
    assert now.settings.counter_shards == 16
    assert host.store.taken_calls() == ["consistent get"]
    assert settings.org_now("nowhere") is None


def test_a_table_that_is_away_is_told_and_nothing_is_kept(host: Host, settings: SettingsCache) -> None:
    def away(_verb: str, _request: object) -> None:
        raise Unavailable("away")

    host.store.before = away
    with pytest.raises(Unavailable):
        settings.org(NAMESPACE)
    host.store.before = None
    assert settings.org(NAMESPACE).org == ORG
