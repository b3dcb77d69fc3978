"""Apps on an engine: made, changed and removed with their entity and credentials."""

from collections.abc import Callable
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.audit import Author
from sluice.core.errors import Ambiguous, IdTaken, InUse, InvalidRequest, NotFound, PreconditionFailed
from sluice.core.identity import Role
from sluice.core.limits import Limit, Scope
from sluice.core.orgs import AppChange, AppSettings, EntityRole, OrgChange
from sluice.core.period import local_day
from sluice.edge.etags import app_etag, app_if_match
from sluice.repository import keys
from sluice.repository.orgs import Org
from sluice.repository.revocations import decode_mark
from sluice.repository.sticky import STICKY_STATE, Override, StickyName, override_set
from sluice.services.chains import AcquireRequest
from sluice.services.entities import EntityChange
from sluice.services.listing import PageRequest
from sluice.services.orgs import OrgPath
from sluice.services.zones import ZoneCalendar
from sluice.shell import new_token
from tests.fakes import FakeClock
from tests.integration.conftest import Host
from tests.integration.provisioning import Provider, meanwhile, start_provider
from tests.integration.tenants import OPERATOR, Crash, raw_items
from tests.integration.test_jobs import raising

ACME = OrgPath("acme")
DAY_MS = 86_400_000
BOT = AppChange(name="Bot")
RPM = {"rpm": Limit(60, 60, 60, 60)}


@pytest.fixture
def new_provider(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Callable[[], Provider]:
    return lambda: start_provider(dynamodb, table, clock)


@pytest.fixture
def provider(new_provider: Callable[[], Provider]) -> Provider:
    return new_provider()


@pytest.fixture
def org(provider: Provider) -> Org:
    change = OrgChange(model_ordering=("big", "small"), quotas_usd_micros={"big": 5, "small": 7})
    return provider.orgs.put(ACME, change, author=OPERATOR).org


def test_an_app_is_made_with_all_that_it_needs(provider: Provider, org: Org, clock: FakeClock) -> None:
    provider.store.taken_calls()
    done = provider.apps.put(ACME, "bot", BOT, author=OPERATOR)
    assert provider.store.taken_calls().count("transact") == 1
    assert done.created
    app = done.app
    assert (app.app, app.namespace, app.version, app.created_at_ms) == ("bot", org.namespace, 1, clock.now_ms)
    assert app.settings == AppSettings(name="Bot")
    found = provider.apps.get(ACME, "bot")
    assert (found.app, found.org, found.client_secret) == (app, org, None)
    entity = provider.entity(org.namespace, "bot")
    assert entity is not None
    assert (entity.role, entity.parent, entity.cascade, entity.name) == (EntityRole.APP, "acme", True, "Bot")
    client = provider.credentials.find(app.client_id)
    assert client is not None
    assert (client.namespace, client.entity, client.role) == (org.namespace, "bot", Role.APP)
    assert provider.opens(app.client_id, str(done.client_secret))
    (told,) = provider.audit(org.namespace, "bot")
    assert (told.action, told.target, told.author) == ("app.put", "orgs/acme/apps/bot", OPERATOR)
    assert told.before is None
    assert app.client_id not in repr(told.after)
    assert str(done.client_secret) not in repr(done)


def test_a_change_merges_and_gives_no_secret(provider: Provider, org: Org, clock: FakeClock) -> None:
    made = provider.apps.put(ACME, "bot", BOT, author=OPERATOR).app
    clock.advance(5)
    change = AppChange(quotas_usd_micros={"small": 1}, tight_mode_threshold_pct=50)
    done = provider.apps.put(ACME, "bot", change, author=Author("client", "request"))
    assert (done.client_secret, done.app.version, done.app.client_id) == (None, 2, made.client_id)
    assert (done.app.created_at_ms, done.app.updated_at_ms) == (made.created_at_ms, clock.now_ms)
    assert done.effective.quotas_usd_micros == {"big": 5, "small": 1}
    assert "quotas.small" not in done.effective.inherited
    provider.store.taken_calls()
    assert provider.apps.put(ACME, "bot", change, author=OPERATOR) == done
    assert "transact" not in provider.store.taken_calls()
    told = provider.audit(org.namespace, "bot")
    assert [event.author.actor for event in told] == ["client", "operator"]
    assert len(provider.kinds("client")) == 2


def test_what_an_app_inherits_follows_the_org(provider: Provider, org: Org) -> None:
    provider.apps.put(ACME, "bot", AppChange(quotas_usd_micros={"small": 1}), author=OPERATOR)
    provider.orgs.put(ACME, OrgChange(quotas_usd_micros={"big": 50, "small": 70}), author=OPERATOR)
    assert provider.apps.get(ACME, "bot").effective.quotas_usd_micros == {"big": 50, "small": 1}


def test_an_app_is_judged_by_what_holds_for_it(provider: Provider, org: Org) -> None:
    with pytest.raises(InvalidRequest) as raised:
        provider.apps.put(ACME, "bot", AppChange(model_ordering=("new",)), author=OPERATOR)
    assert raised.value.field == "quotas.new"
    with pytest.raises(NotFound, match="no such app"):
        provider.apps.get(ACME, "bot")


def test_an_id_that_names_something_else_is_taken(
    provider: Provider, org: Org, dynamodb: DynamoDBClient, table: str
) -> None:
    provider.entities.put(org.namespace, "user-1", EntityChange())
    before = raw_items(dynamodb, table)
    for taken in ("user-1", "acme"):
        with pytest.raises(IdTaken):
            provider.apps.put(ACME, taken, BOT, author=OPERATOR)
        for refuse in (
            lambda app=taken: provider.apps.get(ACME, app),
            lambda app=taken: provider.apps.delete(ACME, app, author=OPERATOR),
            lambda app=taken: provider.apps.rotate(ACME, app, 24, author=OPERATOR),
        ):
            with pytest.raises(NotFound, match="no such app"):
                refuse()
    assert raw_items(dynamodb, table) == before


def test_an_entity_that_appears_meanwhile_keeps_its_id(
    provider: Provider, org: Org, new_provider: Callable[[], Provider]
) -> None:
    other = new_provider()
    meanwhile(provider, lambda: other.entities.put(org.namespace, "bot", EntityChange()))
    with pytest.raises(IdTaken):
        provider.apps.put(ACME, "bot", BOT, author=OPERATOR)
    assert len(provider.kinds("client")) == 1


def test_of_two_who_make_one_app_one_makes_it(
    provider: Provider, org: Org, new_provider: Callable[[], Provider]
) -> None:
    other = new_provider()
    theirs: list[Any] = []
    meanwhile(provider, lambda: theirs.append(other.apps.put(ACME, "bot", BOT, author=OPERATOR)))
    mine = provider.apps.put(ACME, "bot", AppChange(suspended=True), author=OPERATOR)
    assert (mine.created, theirs[0].created, mine.app.version) == (False, True, 2)
    assert mine.app.settings == AppSettings(name="Bot", suspended=True)
    assert {item["client_id"] for item in provider.kinds("client")} == {org.client_id, mine.app.client_id}


def test_after_a_lost_answer_the_app_is_there_and_its_secret_is_rotated(provider: Provider, org: Org) -> None:
    provider.store.after = raising(Ambiguous("x"), "transact")
    with pytest.raises(Ambiguous):
        provider.apps.put(ACME, "bot", BOT, author=OPERATOR)
    assert provider.apps.put(ACME, "bot", BOT, author=OPERATOR).client_secret is None
    rotated = provider.apps.rotate(ACME, "bot", 24, author=OPERATOR)
    assert provider.opens(rotated.client_id, rotated.client_secret)
    assert provider.audit(org.namespace, "bot")[0].action in {"credentials.rotate", "app.put"}


def test_the_version_that_was_seen(provider: Provider, org: Org) -> None:
    with pytest.raises(PreconditionFailed):
        provider.apps.put(ACME, "bot", BOT, app_if_match("*"), author=OPERATOR)
    tag = app_etag(provider.apps.put(ACME, "bot", BOT, author=OPERATOR).app)
    changed = provider.apps.put(ACME, "bot", AppChange(name="B"), app_if_match(tag), author=OPERATOR).app
    with pytest.raises(PreconditionFailed):
        provider.apps.put(ACME, "bot", BOT, app_if_match(tag), author=OPERATOR)
    with pytest.raises(PreconditionFailed):
        provider.apps.delete(ACME, "bot", app_if_match(tag), author=OPERATOR)
    provider.apps.delete(ACME, "bot", app_if_match(app_etag(changed)), author=OPERATOR)
    with pytest.raises(NotFound):
        provider.apps.delete(ACME, "bot", app_if_match(tag), author=OPERATOR)


def test_the_entity_of_an_app_goes_only_with_the_app(provider: Provider, org: Org) -> None:
    provider.apps.put(ACME, "bot", BOT, author=OPERATOR)
    with pytest.raises(InUse, match="delete the app"):
        provider.entities.delete(org.namespace, "bot")
    provider.entities.put(org.namespace, "other", EntityChange())
    for parent in ("other", None):
        with pytest.raises(InvalidRequest) as raised:
            provider.entities.put(org.namespace, "bot", EntityChange(parent=parent))
        assert raised.value.field == "parent"
    changed = provider.entities.put(
        org.namespace, "bot", EntityChange(name="N", parent="acme", cascade=False, metadata={"a": 1})
    ).entity
    assert (changed.role, changed.parent, changed.cascade) == (EntityRole.APP, "acme", False)


def test_an_app_goes_with_all_that_it_has(provider: Provider, org: Org, dynamodb: DynamoDBClient, table: str) -> None:
    before = {key for key, item in raw_items(dynamodb, table).items() if item["kind"]["S"] != "audit"}
    done = provider.apps.put(ACME, "bot", BOT, author=OPERATOR)
    provider.limits.put(org.namespace, Scope("bot", "gpt-4"), RPM, None)
    provider.apps.delete(ACME, "bot", author=OPERATOR)
    left = {key: item for key, item in raw_items(dynamodb, table).items() if item["kind"]["S"] != "audit"}
    mark_key = tuple(keys.revoked_client(done.app.client_id))
    assert left.keys() == before | {mark_key}
    mark = provider.find(keys.revoked_client(done.app.client_id))
    assert mark is not None
    assert decode_mark(mark).min_generation == 2
    told = {event.action: event for event in provider.audit(org.namespace, "bot")}
    assert told.keys() == {"app.put", "limits.put", "app.delete", "limits.delete"}
    deleted = told["app.delete"]
    assert (deleted.target, deleted.after) == ("orgs/acme/apps/bot", None)
    assert deleted.before is not None
    assert deleted.before["name"] == "Bot"
    for gone in (
        lambda: provider.apps.get(ACME, "bot"),
        lambda: provider.apps.delete(ACME, "bot", author=OPERATOR),
        lambda: provider.apps.rotate(ACME, "bot", 24, author=OPERATOR),
    ):
        with pytest.raises(NotFound, match="no such app"):
            gone()
    again = provider.apps.put(ACME, "bot", BOT, author=OPERATOR)
    assert again.created
    assert again.app.client_id != done.app.client_id
    assert not provider.opens(again.app.client_id, str(done.client_secret))


def test_an_app_begins_without_what_was_selected_for_an_earlier_one(
    provider: Provider, org: Org, clock: FakeClock
) -> None:
    """What an override is for goes with the app; another app's selection stays where it is."""
    provider.apps.put(ACME, "bot", BOT, author=OPERATOR)
    for app in ("bot", "bot-2"):
        for day_at_ms in (clock.now_ms - DAY_MS, clock.now_ms):
            day = local_day(org.settings.zones, day_at_ms, ZoneCalendar())
            override = Override("small", "big is down", "client-7", day.ends_ms)
            name = StickyName(org.namespace, app, day)
            provider.store.inner.transact([override_set(name, override, None, clock.now_ms)], new_token())
    provider.apps.put(ACME, "bot", AppChange(name="Bot 2"), author=OPERATOR)
    assert len(provider.kinds(STICKY_STATE)) == 4
    provider.apps.delete(ACME, "bot", author=OPERATOR)
    provider.apps.put(ACME, "bot", BOT, author=OPERATOR)
    assert [item["entity_id"] for item in provider.kinds(STICKY_STATE)] == ["bot-2", "bot-2"]


def test_the_buckets_of_an_app_go_with_it(provider: Provider, org: Org, host: Host) -> None:
    provider.apps.put(ACME, "bot", BOT, author=OPERATOR)
    for entity in ("bot", "acme"):
        provider.limits.put(org.namespace, Scope(entity, "gpt-4"), RPM, None)
    host.service.acquire(AcquireRequest(org.namespace, "bot", "gpt-4", {"rpm": 1}, None))
    # What an app takes is taken from its org as well.
    assert {item["entity_id"] for item in provider.kinds("bucket")} == {"bot", "acme"}
    provider.apps.delete(ACME, "bot", author=OPERATOR)
    assert [item["entity_id"] for item in provider.kinds("bucket")] == ["acme"]


def test_an_app_with_others_below_it_stays(provider: Provider, org: Org, dynamodb: DynamoDBClient, table: str) -> None:
    provider.apps.put(ACME, "bot", BOT, author=OPERATOR)
    provider.entities.put(org.namespace, "user-1", EntityChange(parent="bot"))
    before = raw_items(dynamodb, table)
    with pytest.raises(InUse):
        provider.apps.delete(ACME, "bot", author=OPERATOR)
    assert raw_items(dynamodb, table) == before


@pytest.mark.parametrize("rotated", [False, True])
def test_an_app_that_gets_a_child_meanwhile_is_put_back_with_its_credentials(
    provider: Provider, org: Org, new_provider: Callable[[], Provider], rotated: bool
) -> None:
    """Also with the mark that an earlier rotation left."""
    done = provider.apps.put(ACME, "bot", BOT, author=OPERATOR)
    secret = str(done.client_secret)
    if rotated:
        secret = provider.apps.rotate(ACME, "bot", 0, author=OPERATOR).client_secret
    mark_key = keys.revoked_client(done.app.client_id)
    before = provider.find(mark_key), provider.credentials.find(done.app.client_id)
    other = new_provider()
    meanwhile(provider, lambda: other.entities.put(org.namespace, "user-1", EntityChange(parent="bot")))
    with pytest.raises(InUse):
        provider.apps.delete(ACME, "bot", author=OPERATOR)
    assert provider.apps.get(ACME, "bot").app == done.app
    assert (provider.find(mark_key), provider.credentials.find(done.app.client_id)) == before
    assert (before[0] is not None) == rotated
    assert provider.opens(done.app.client_id, secret)
    entity = provider.entity(org.namespace, "bot")
    assert entity is not None
    assert entity.role is EntityRole.APP


def test_a_rotation_meanwhile_does_not_save_the_app(
    provider: Provider, org: Org, new_provider: Callable[[], Provider]
) -> None:
    done = provider.apps.put(ACME, "bot", BOT, author=OPERATOR)
    other = new_provider()
    meanwhile(provider, lambda: other.apps.rotate(ACME, "bot", 24, author=OPERATOR))
    provider.apps.delete(ACME, "bot", author=OPERATOR)
    assert provider.credentials.find(done.app.client_id) is None
    mark = provider.find(keys.revoked_client(done.app.client_id))
    assert mark is not None
    assert decode_mark(mark).min_generation == 3


def test_a_deletion_that_broke_off_is_ended_by_the_next(provider: Provider, org: Org) -> None:
    provider.apps.put(ACME, "bot", BOT, author=OPERATOR)
    for number in range(45):
        provider.limits.put(org.namespace, Scope("bot", f"r{number}"), RPM, None)
    provider.store.after = raising(Crash(), "transact")
    with pytest.raises(Crash):
        provider.apps.delete(ACME, "bot", author=OPERATOR)
    provider.store.after = None
    assert provider.entity(org.namespace, "bot") is None
    assert len(provider.kinds("limits")) == 5
    provider.apps.delete(ACME, "bot", author=OPERATOR)
    assert provider.kinds("limits") == []
    with pytest.raises(NotFound):
        provider.apps.delete(ACME, "bot", author=OPERATOR)


def test_what_stands_under_an_id_that_never_was_an_app_stays(provider: Provider, org: Org) -> None:
    provider.limits.put(org.namespace, Scope("user-1", "gpt-4"), RPM, None)
    with pytest.raises(NotFound, match="no such app"):
        provider.apps.delete(ACME, "user-1", author=OPERATOR)
    assert len(provider.kinds("limits")) == 1


def test_nothing_is_added_once_the_purge_has_begun(
    provider: Provider, org: Org, new_provider: Callable[[], Provider]
) -> None:
    other = new_provider()
    meanwhile(provider, lambda: other.orgs.delete(ACME, author=OPERATOR))
    with pytest.raises(InUse):
        provider.apps.put(ACME, "bot", BOT, author=OPERATOR)
    assert len(provider.kinds("client")) == 1


def test_apps_are_listed_page_by_page(provider: Provider, org: Org) -> None:
    made = [provider.apps.put(ACME, f"app{number}", BOT, author=OPERATOR).app for number in range(5)]
    provider.orgs.put(OrgPath("other"), OrgChange(), author=OPERATOR)
    provider.apps.put(OrgPath("other"), "app9", BOT, author=OPERATOR)
    first = provider.apps.list(ACME, PageRequest(3))
    second = provider.apps.list(ACME, PageRequest(3, first.next_cursor))
    assert [found.app for found in (*first.items, *second.items)] == made
    assert second.next_cursor is None
    with pytest.raises(InvalidRequest):
        provider.apps.list(OrgPath("other"), PageRequest(3, first.next_cursor))
