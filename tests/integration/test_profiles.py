"""Inference profiles: of an app or the whole org, changed by whom they belong to, and gone with their app."""

from collections.abc import Callable
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.errors import Contended, Forbidden, InvalidRequest, NotFound, PreconditionFailed
from sluice.core.orgs import AppChange, OrgChange
from sluice.edge.etags import profile_etag, profile_if_match
from sluice.repository import keys, money_keys
from sluice.repository.wire import Item
from sluice.services import profiles as profiles_module
from sluice.services.entities import EntityChange
from sluice.services.listing import PageRequest
from sluice.services.orgs import OrgPath
from sluice.services.profiles import ProfileOwner
from sluice.services.removal import _PROFILES_AT_ONCE
from tests.fakes import FakeClock
from tests.integration.audits import all_items
from tests.integration.catalogs import (
    BOT,
    CHAT,
    OF_ORG,
    ORG,
    SOMEBODY,
    SYSTEM_ARN,
    Shop,
    application_arn,
    of_app,
    put_tenant,
)
from tests.integration.conftest import NAMESPACE, Host
from tests.integration.provisioning import start_provider
from tests.integration.tenants import OPERATOR
from tests.integration.test_limits import before_transact, lose_an_answer

PAGE = PageRequest(50)


@pytest.fixture
def shop(host: Host) -> Shop:
    put_tenant(host)
    return Shop.opened(host)


def put(shop: Shop, owner: ProfileOwner, label: str = "premium", arn: str = SYSTEM_ARN) -> Any:
    return shop.profiles.put(owner, label, arn, "for a few", author=SOMEBODY)


def names(shop: Shop, owner: ProfileOwner) -> list[str]:
    return [profile.label for profile in shop.profiles.list(owner, PAGE).items]


def stored_profiles(host: Host) -> list[Item]:
    return [item for item in all_items(host) if item.get("kind") == "inference_profile"]


def test_profiles_of_apps_and_of_the_org_are_separate(shop: Shop, clock: FakeClock) -> None:
    arns = {ORG: application_arn("o"), CHAT: application_arn("c"), BOT: application_arn("b")}
    owners = {ORG: OF_ORG, CHAT: of_app(CHAT), BOT: of_app(BOT)}
    for name, owner in owners.items():
        done = put(shop, owner, arn=arns[name])
        assert (done.created, done.stored.entity, done.stored.version) == (True, name, 1)
        assert (done.stored.created_at_ms, done.stored.updated_at_ms) == (clock.now_ms, clock.now_ms)
    for name, owner in owners.items():
        found = shop.profiles.get(owner, "premium")
        assert (str(found.arn), found.entity, found.description) == (arns[name], name, "for a few")
    clock.advance(7)
    replaced = shop.profiles.put(of_app(CHAT), "premium", SYSTEM_ARN, None, author=SOMEBODY)
    assert (replaced.created, replaced.stored.version, replaced.stored.description) == (False, 2, None)
    assert replaced.stored.updated_at_ms - replaced.stored.created_at_ms == 7
    shop.profiles.delete(of_app(CHAT), "premium", author=SOMEBODY)
    for refused in (shop.profiles.get, lambda owner, label: shop.profiles.delete(owner, label, author=SOMEBODY)):
        with pytest.raises(NotFound, match="no such inference profile"):
            refused(of_app(CHAT), "premium")
    assert names(shop, OF_ORG) == names(shop, of_app(BOT)) == ["premium"]


def test_every_change_is_told_under_whom_it_belongs_to(shop: Shop) -> None:
    put(shop, OF_ORG)
    put(shop, of_app(CHAT))
    shop.profiles.delete(of_app(CHAT), "premium", author=SOMEBODY)
    (told,) = shop.audit(ORG)
    assert (told.action, told.target, told.author) == (
        "inference_profile.put",
        "inference-profiles/premium",
        SOMEBODY,
    )
    assert told.after == {
        "label": "premium",
        "version": 1,
        "inference_profile_arn": SYSTEM_ARN,
        "description": "for a few",
    }
    made, removed = sorted(shop.audit(CHAT), key=lambda event: event.before is not None)
    assert (made.target, removed.target) == ("inference-profiles/premium?app=chat",) * 2
    assert (removed.action, removed.before, removed.after) == ("inference_profile.delete", made.after, None)


def test_what_is_no_app_has_none(shop: Shop) -> None:
    shop.host.entities.put(NAMESPACE, "user-1", EntityChange(parent=CHAT))
    for name in ("user-1", "nobody", ORG):
        for act in (
            lambda owner: put(shop, owner),
            lambda owner: shop.profiles.get(owner, "premium"),
            lambda owner: shop.profiles.delete(owner, "premium", author=SOMEBODY),
            lambda owner: shop.profiles.list(owner, PAGE),
        ):
            with pytest.raises(NotFound, match="no such app"):
                act(of_app(name))
    assert stored_profiles(shop.host) == []


def test_an_app_acts_on_itself_alone(shop: Shop) -> None:
    put(shop, OF_ORG)
    put(shop, of_app(BOT))
    mine = of_app(CHAT, within=CHAT)
    assert put(shop, mine).created
    assert shop.profiles.get(mine, "premium").entity == CHAT
    assert names(shop, mine) == ["premium"]
    shop.profiles.delete(mine, "premium", author=SOMEBODY)
    # What holds for it may be seen, and changed by the org alone.
    whole = ProfileOwner(NAMESPACE, None, within=CHAT)
    assert shop.profiles.get(whole, "premium").entity == ORG
    assert names(shop, whole) == ["premium"]
    for change in (lambda: put(shop, whole), lambda: shop.profiles.delete(whole, "premium", author=SOMEBODY)):
        with pytest.raises(Forbidden):
            change()
    # Another app, or nobody: the two look the same.
    for name in (BOT, "nobody", ORG):
        owner = of_app(name, within=CHAT)
        for act in (
            lambda owner=owner: put(shop, owner),
            lambda owner=owner: shop.profiles.get(owner, "premium"),
            lambda owner=owner: shop.profiles.list(owner, PAGE),
            lambda owner=owner: shop.profiles.delete(owner, "premium", author=SOMEBODY),
        ):
            with pytest.raises(NotFound, match=r"^there is no such app$"):
                act()


@pytest.mark.parametrize("arn", ["abc", "arn:aws:bedrock:us-east-1:123456789012:foundation-model/x", SYSTEM_ARN + "\n"])
def test_a_malformed_arn_is_refused_by_its_field(shop: Shop, arn: str) -> None:
    for owner in (OF_ORG, of_app(CHAT)):
        with pytest.raises(InvalidRequest) as raised:
            put(shop, owner, arn=arn)
        assert raised.value.field == "inference_profile_arn"
    assert stored_profiles(shop.host) == []


def test_a_version_that_was_not_seen_is_not_touched(shop: Shop) -> None:
    match = profile_if_match(profile_etag(put(shop, OF_ORG).stored))
    shop.profiles.put(OF_ORG, "premium", SYSTEM_ARN, None, match, author=SOMEBODY)
    with pytest.raises(PreconditionFailed):
        shop.profiles.put(OF_ORG, "premium", SYSTEM_ARN, None, match, author=SOMEBODY)
    with pytest.raises(PreconditionFailed):
        shop.profiles.delete(OF_ORG, "premium", match, author=SOMEBODY)
    assert len(shop.audit(ORG)) == 2


def test_a_lost_answer_is_repeated_under_its_token(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    lose_an_answer(shop.host, monkeypatch)
    assert put(shop, of_app(CHAT)).created
    assert len(shop.audit(CHAT)) == 1


def test_nothing_is_added_to_an_app_that_goes_meanwhile(shop: Shop) -> None:
    inner = shop.host.store.inner
    gone = keys.app_settings(NAMESPACE, CHAT)
    before_transact(shop.host, lambda: inner.delete({"Key": dict(gone.attributes)}))
    with pytest.raises(NotFound, match="no such inference profile"):
        put(shop, of_app(CHAT))
    assert stored_profiles(shop.host) == []
    assert shop.audit(CHAT) == []


def test_profiles_are_listed_by_label_and_page(shop: Shop) -> None:
    for label in ("c", "a", "b"):
        put(shop, of_app(CHAT), label)
    put(shop, OF_ORG, "z")
    first = shop.profiles.list(of_app(CHAT), PageRequest(2))
    assert [profile.label for profile in first.items] == ["a", "b"]
    rest = shop.profiles.list(of_app(CHAT), PageRequest(2, first.next_cursor))
    assert ([profile.label for profile in rest.items], rest.next_cursor) == (["c"], None)
    with pytest.raises(InvalidRequest):
        shop.profiles.list(of_app(BOT), PageRequest(2, first.next_cursor))


def test_there_are_only_so_many(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles_module, "LABELS_MAX", 1)
    put(shop, of_app(CHAT), "a")
    with pytest.raises(InvalidRequest, match="1 inference profiles already") as raised:
        put(shop, of_app(CHAT), "b")
    assert raised.value.field == "label"
    assert put(shop, of_app(CHAT), "a").stored.version == 2
    assert put(shop, of_app(BOT), "b").created


def test_profiles_go_with_their_app(dynamodb: DynamoDBClient, table: str, host: Host, clock: FakeClock) -> None:
    provider = start_provider(dynamodb, table, clock)
    org = provider.orgs.put(OrgPath(ORG), OrgChange(), author=OPERATOR).org
    for app in (CHAT, BOT):
        provider.apps.put(OrgPath(ORG), app, AppChange(), author=OPERATOR)
    shop = Shop.opened(host)
    count = 2 * _PROFILES_AT_ONCE + 3
    for number in range(count):
        put(shop, ProfileOwner(org.namespace, CHAT), f"label-{number}")
    for owner in (ProfileOwner(org.namespace, BOT), ProfileOwner(org.namespace)):
        put(shop, owner)
    provider.apps.delete(OrgPath(ORG), CHAT, author=OPERATOR)
    assert sorted(str(item["entity_id"]) for item in stored_profiles(host)) == [ORG, BOT]
    told = [event for event in provider.audit(org.namespace, CHAT) if event.action == "inference_profile.delete"]
    assert len(told) == count
    assert {event.author for event in told} == {OPERATOR}
    assert all(event.before is not None and event.after is None for event in told)
    provider.apps.put(OrgPath(ORG), CHAT, AppChange(), author=OPERATOR)
    assert names(shop, ProfileOwner(org.namespace, CHAT)) == []


def test_what_a_broken_removal_left_goes_with_the_next(
    dynamodb: DynamoDBClient, table: str, host: Host, clock: FakeClock
) -> None:
    provider = start_provider(dynamodb, table, clock)
    org = provider.orgs.put(OrgPath(ORG), OrgChange(), author=OPERATOR).org
    provider.apps.put(OrgPath(ORG), CHAT, AppChange(), author=OPERATOR)
    shop = Shop.opened(host)
    put(shop, ProfileOwner(org.namespace, CHAT))
    removals = 0

    def fail_on_profiles(verb: str, request: Any) -> None:
        nonlocal removals
        if verb == "query" and ":profile" in request["ExpressionAttributeValues"]:
            removals += 1
            raise Contended(1)

    provider.store.before = fail_on_profiles
    with pytest.raises(Contended):
        provider.apps.delete(OrgPath(ORG), CHAT, author=OPERATOR)
    assert (removals, len(stored_profiles(host))) == (1, 1)
    provider.store.before = None
    provider.apps.delete(OrgPath(ORG), CHAT, author=OPERATOR)
    assert stored_profiles(host) == []
    with pytest.raises(NotFound):
        provider.apps.delete(OrgPath(ORG), CHAT, author=OPERATOR)


def test_a_profile_stands_with_its_entity(shop: Shop) -> None:
    put(shop, of_app(CHAT))
    (item,) = stored_profiles(shop.host)
    assert keys.key_of(item) == money_keys.profile(NAMESPACE, CHAT, "premium")


@pytest.mark.parametrize("owner", [OF_ORG, of_app(CHAT)])
def test_a_change_is_known_at_once_in_its_own_process(
    shop: Shop, owner: ProfileOwner, start_host: Callable[[], Host]
) -> None:
    other = Shop.opened(start_host())
    for process in (shop, other):
        assert not process.catalog.is_defined(NAMESPACE, CHAT, "premium")
    put(shop, owner)
    assert shop.catalog.is_defined(NAMESPACE, CHAT, "premium")
    assert not other.catalog.is_defined(NAMESPACE, CHAT, "premium")
    shop.profiles.delete(owner, "premium", author=SOMEBODY)
    assert not shop.catalog.is_defined(NAMESPACE, CHAT, "premium")
