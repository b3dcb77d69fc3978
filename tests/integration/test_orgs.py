"""Orgs on an engine: made once, changed by merging, purged."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.audit import SYSTEM_SUBJECT
from sluice.core.errors import Ambiguous, Contended, InUse, InvalidRequest, NotFound, PreconditionFailed, Unavailable
from sluice.core.identity import Role
from sluice.core.orgs import AppChange, EntityRole, OrgChange, OrgSettings, QuotaScope
from sluice.core.timelines import From, always
from sluice.edge.etags import org_etag, org_if_match
from sluice.repository import keys
from sluice.repository.orgs import Org
from sluice.repository.retries import Throttled
from sluice.repository.store import Cancelled, ConditionFailed
from sluice.repository.versions import CURRENT, decode_version
from sluice.services.entities import EntityChange
from sluice.services.listing import PageRequest
from sluice.services.orgs import OrgChanged, OrgPath
from sluice.services.purge import UNNOTICED_MS
from tests.fakes import FakeClock
from tests.integration.provisioning import Provider, meanwhile, start_provider
from tests.integration.tenants import OPERATOR, raw_items
from tests.integration.test_jobs import raising

ACME = OrgPath("acme")
BERLIN = OrgChange(name="Acme", timezone="Europe/Berlin")


@pytest.fixture
def new_provider(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Callable[[], Provider]:
    return lambda: start_provider(dynamodb, table, clock)


@pytest.fixture
def provider(new_provider: Callable[[], Provider]) -> Provider:
    return new_provider()


def run_purge(provider: Provider) -> None:
    """It goes on until nobody can still take the org for active."""
    while provider.process.run().left:
        provider.process.clock.advance(UNNOTICED_MS)


def test_an_org_is_made_with_all_that_it_needs(provider: Provider, clock: FakeClock) -> None:
    done = provider.orgs.put(ACME, BERLIN, author=OPERATOR)
    assert done.created
    org = done.org
    assert (org.org, org.version, org.created_at_ms, org.updated_at_ms) == ("acme", 1, clock.now_ms, clock.now_ms)
    assert org.settings == OrgSettings(name="Acme", zones=always("Europe/Berlin"))
    assert provider.orgs.get(ACME) == org
    assert provider.process.namespaces.get("acme").namespace_id == org.namespace
    assert decode_version(provider.find(keys.schema_version(org.namespace))) == CURRENT
    root = provider.entity(org.namespace, "acme")
    assert root is not None
    assert (root.role, root.name, root.parent, root.cascade) == (EntityRole.ORG, "Acme", None, True)
    client = provider.credentials.find(org.client_id)
    assert client is not None
    assert (client.namespace, client.entity, client.role) == (org.namespace, "acme", Role.ORG)
    assert provider.opens(org.client_id, str(done.client_secret))
    told = provider.audit(org.namespace, SYSTEM_SUBJECT)
    assert {event.action for event in told} == {"namespace.create", "org.put"}
    assert provider.store.calls.count("transact") == 1


def test_the_secret_is_stored_and_told_nowhere(provider: Provider, dynamodb: DynamoDBClient, table: str) -> None:
    done = provider.orgs.put(ACME, BERLIN, author=OPERATOR)
    secret = str(done.client_secret)
    assert secret not in repr(raw_items(dynamodb, table))
    assert secret not in repr(done)
    for event in provider.audit(done.org.namespace, SYSTEM_SUBJECT):
        assert done.org.client_id not in repr((event.before, event.after))


def test_a_change_merges_and_gives_no_secret(provider: Provider, clock: FakeClock) -> None:
    made = provider.orgs.put(ACME, BERLIN, author=OPERATOR).org
    clock.advance(1000)
    done = provider.orgs.put(ACME, OrgChange(suspended=True), author=OPERATOR)
    assert (done.created, done.client_secret) == (False, None)
    assert (done.org.client_id, done.org.version) == (made.client_id, 2)
    assert (done.org.created_at_ms, done.org.updated_at_ms) == (made.created_at_ms, clock.now_ms)
    assert (done.org.settings.name, done.org.settings.suspended) == ("Acme", True)
    assert provider.orgs.get(ACME) == done.org
    assert len(provider.kinds("client")) == 1
    told = provider.audit(made.namespace, SYSTEM_SUBJECT)[0]
    assert (told.action, told.target, told.author) == ("org.put", "orgs/acme", OPERATOR)
    assert told.before is not None
    assert told.after is not None
    assert (told.before["suspended"], told.after["suspended"], told.after["version"]) == (False, True, 2)


def test_a_change_of_nothing_writes_nothing(provider: Provider, clock: FakeClock) -> None:
    made = provider.orgs.put(ACME, BERLIN, author=OPERATOR).org
    clock.advance(86_400_000)
    provider.store.taken_calls()
    for change in (OrgChange(), BERLIN, OrgChange(quota_scope=None, suspended=None, quotas_usd_micros={"x": None})):
        done = provider.orgs.put(ACME, change, author=OPERATOR)
        assert (done.org, done.created) == (made, False)
    assert set(provider.store.taken_calls()) == {"consistent get"}


def test_a_zone_and_a_scope_begin_at_a_local_midnight(provider: Provider, clock: FakeClock) -> None:
    clock.now_ms = 1_777_000_000_000  # 2026-04-24T03:06:40Z
    provider.orgs.put(ACME, OrgChange(timezone="Africa/Cairo"), author=OPERATOR)
    done = provider.orgs.put(ACME, OrgChange(timezone="UTC", quota_scope=QuotaScope.APP), author=OPERATOR)
    cairo_midnight = 1_777_064_400_000  # 2026-04-24T21:00Z: summer time began that night
    utc_midnight = 1_777_075_200_000
    assert done.org.settings.zones == (From(0, "Africa/Cairo"), From(cairo_midnight, "UTC"))
    assert done.org.settings.quota_scopes == (From(0, QuotaScope.ORG), From(utc_midnight, QuotaScope.APP))


@pytest.mark.parametrize("zone", ["Europe/Bielefeld", "America", "/etc/passwd", "../UTC", "localtime", "utc", "UTC\n"])
def test_a_zone_must_be_known(provider: Provider, zone: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        provider.orgs.put(ACME, OrgChange(timezone=zone), author=OPERATOR)
    assert raised.value.field == "timezone"
    assert provider.store.calls == []


def test_a_refused_change_changes_nothing(provider: Provider, dynamodb: DynamoDBClient, table: str) -> None:
    with pytest.raises(InvalidRequest):
        provider.orgs.put(ACME, OrgChange(model_ordering=("big",)), author=OPERATOR)
    assert raw_items(dynamodb, table) == {}
    provider.orgs.put(ACME, BERLIN, author=OPERATOR)
    before = raw_items(dynamodb, table)
    with pytest.raises(InvalidRequest) as raised:
        provider.orgs.put(ACME, OrgChange(counter_shards=7), author=OPERATOR)
    assert raised.value.field == "counter_shards"
    assert raw_items(dynamodb, table) == before


def test_the_version_that_was_seen(provider: Provider) -> None:
    with pytest.raises(PreconditionFailed):
        provider.orgs.put(ACME, BERLIN, org_if_match("*"), author=OPERATOR)
    made = provider.orgs.put(ACME, BERLIN, author=OPERATOR).org
    tag = org_etag(made)
    changed = provider.orgs.put(ACME, OrgChange(name="A"), org_if_match(tag), author=OPERATOR).org
    for refuse in (
        lambda: provider.orgs.put(ACME, OrgChange(name="B"), org_if_match(tag), author=OPERATOR),
        lambda: provider.orgs.delete(ACME, org_if_match(tag), author=OPERATOR),
    ):
        with pytest.raises(PreconditionFailed):
            refuse()
    assert provider.orgs.get(ACME) == changed
    provider.orgs.delete(ACME, org_if_match(org_etag(changed)), author=OPERATOR)


def test_of_two_who_make_one_org_one_makes_it(provider: Provider, new_provider: Callable[[], Provider]) -> None:
    other = new_provider()
    theirs: list[Any] = []
    meanwhile(provider, lambda: theirs.append(other.orgs.put(ACME, BERLIN, author=OPERATOR)))
    mine = provider.orgs.put(ACME, OrgChange(suspended=True), author=OPERATOR)
    assert (mine.created, theirs[0].created) == (False, True)
    assert mine.org.client_id == theirs[0].org.client_id
    assert (mine.org.settings.name, mine.org.settings.suspended, mine.org.version) == ("Acme", True, 2)
    assert provider.orgs.get(ACME) == mine.org
    # No client or namespace of the one that lost is left.
    assert [item["client_id"] for item in provider.kinds("client")] == [mine.org.client_id]
    assert {item["ns"] for item in provider.kinds("namespace")} == {mine.org.namespace}
    assert provider.opens(mine.org.client_id, theirs[0].client_secret)


def test_of_many_who_make_one_org_at_once_one_makes_it(new_provider: Callable[[], Provider]) -> None:
    providers = [new_provider() for _ in range(6)]

    def put(provider: Provider) -> OrgChanged | Contended:
        try:
            return provider.orgs.put(ACME, BERLIN, author=OPERATOR)
        except Contended as contended:
            return contended

    with ThreadPoolExecutor(len(providers)) as threads:
        done = [one for one in threads.map(put, providers) if isinstance(one, OrgChanged)]
    (created,) = [one for one in done if one.created]
    assert all(one.org == created.org for one in done)
    assert [item["client_id"] for item in providers[0].kinds("client")] == [created.org.client_id]
    assert {item["ns"] for item in providers[0].kinds("namespace")} == {created.org.namespace}
    assert providers[0].opens(created.org.client_id, str(created.client_secret))


def test_of_two_changes_at_once_none_is_lost(provider: Provider, new_provider: Callable[[], Provider]) -> None:
    provider.orgs.put(ACME, BERLIN, author=OPERATOR)
    other = new_provider()
    meanwhile(provider, lambda: other.orgs.put(ACME, OrgChange(suspended=True), author=OPERATOR))
    done = provider.orgs.put(ACME, OrgChange(accept_unpriced=True), author=OPERATOR).org
    assert (done.version, done.settings.suspended, done.settings.accept_unpriced) == (3, True, True)


def test_changes_that_never_get_through_are_contended(provider: Provider, new_provider: Callable[[], Provider]) -> None:
    provider.orgs.put(ACME, BERLIN, author=OPERATOR)
    other = new_provider()
    numbers = iter(range(100))

    def interfere(verb: str, _request: Any) -> None:
        if verb == "transact":
            other.orgs.put(ACME, OrgChange(name=f"n{next(numbers)}"), author=OPERATOR)

    provider.store.before = interfere
    with pytest.raises(Contended):
        provider.orgs.put(ACME, OrgChange(suspended=True), author=OPERATOR)


def test_a_creation_that_was_applied_unseen_gives_its_secret(provider: Provider) -> None:
    real = provider.store.inner.transact

    def applied_unseen(writes: Any, token: str) -> Any:
        provider.store.inner.transact = real  # type: ignore[method-assign]  # once
        real(writes, token)
        return Cancelled((ConditionFailed(None), *([None] * (len(writes) - 1))))

    provider.store.inner.transact = applied_unseen  # type: ignore[method-assign, assignment]  # the lost answer is played here
    done = provider.orgs.put(ACME, BERLIN, author=OPERATOR)
    assert done.created
    assert provider.opens(done.org.client_id, str(done.client_secret))
    assert len(provider.kinds("client")) == 1


def test_after_a_lost_answer_the_org_is_there_and_its_secret_is_rotated(provider: Provider) -> None:
    provider.store.after = raising(Ambiguous("x"), "transact")
    with pytest.raises(Ambiguous):
        provider.orgs.put(ACME, BERLIN, author=OPERATOR)
    again = provider.orgs.put(ACME, BERLIN, author=OPERATOR)
    assert (again.created, again.client_secret, again.org.version) == (False, None, 1)
    rotated = provider.orgs.rotate(ACME, 0, author=OPERATOR)
    assert rotated.client_id == again.org.client_id
    assert provider.opens(rotated.client_id, rotated.client_secret)


def test_a_creation_that_fails_leaves_nothing(provider: Provider, dynamodb: DynamoDBClient, table: str) -> None:
    provider.store.before = raising(Throttled("x"), "transact")
    with pytest.raises(Unavailable):
        provider.orgs.put(ACME, BERLIN, author=OPERATOR)
    assert raw_items(dynamodb, table) == {}


def test_a_client_id_that_is_taken_is_drawn_again(provider: Provider) -> None:
    first = provider.orgs.put(ACME, BERLIN, author=OPERATOR)
    draws = [first.org.client_id, "B" * 20]
    provider.credentials._new_id = lambda: draws.pop(0)  # type: ignore[method-assign]  # what is drawn next
    second = provider.orgs.put(OrgPath("other"), OrgChange(), author=OPERATOR)
    assert second.org.client_id == "B" * 20
    assert provider.opens(first.org.client_id, str(first.client_secret))
    assert {item["name"] for item in provider.kinds("namespace")} == {"acme", "other"}


def test_a_namespace_from_before_there_were_orgs_becomes_one(provider: Provider) -> None:
    namespace = provider.process.namespaces.create("acme", OPERATOR).namespace
    with pytest.raises(NotFound):
        provider.orgs.get(ACME)
    done = provider.orgs.put(ACME, BERLIN, author=OPERATOR)
    assert (done.created, done.org.namespace) == (True, namespace.namespace_id)
    root = provider.entity(namespace.namespace_id, "acme")
    assert root is not None
    assert root.role is EntityRole.ORG
    assert provider.opens(done.org.client_id, str(done.client_secret))


def test_an_entity_with_the_id_of_the_org_becomes_its_root(provider: Provider) -> None:
    namespace = provider.process.namespaces.create("acme", OPERATOR).namespace.namespace_id
    provider.entities.put(namespace, "above", EntityChange())
    before = provider.entities.put(
        namespace, "acme", EntityChange(name="Old", parent="above", metadata={"a": 1})
    ).entity
    provider.orgs.put(ACME, BERLIN, author=OPERATOR)
    root = provider.entity(namespace, "acme")
    assert root is not None
    assert (root.role, root.parent, root.name, root.metadata) == (EntityRole.ORG, None, "Old", {"a": 1})
    assert (root.version, root.created_at_ms) == (before.version + 1, before.created_at_ms)


def test_the_root_entity_goes_only_with_the_org(provider: Provider) -> None:
    namespace = provider.orgs.put(ACME, BERLIN, author=OPERATOR).org.namespace
    with pytest.raises(InUse, match="delete the org"):
        provider.entities.delete(namespace, "acme")
    provider.entities.put(namespace, "other", EntityChange())
    with pytest.raises(InvalidRequest) as raised:
        provider.entities.put(namespace, "acme", EntityChange(parent="other"))
    assert raised.value.field == "parent"
    changed = provider.entities.put(
        namespace, "acme", EntityChange(name="New", parent=None, cascade=False, metadata={"a": 1})
    ).entity
    assert (changed.role, changed.name, changed.cascade) == (EntityRole.ORG, "New", False)
    assert provider.entity(namespace, "acme") == changed


def test_a_purge_ends_the_org_and_frees_its_name(provider: Provider, dynamodb: DynamoDBClient, table: str) -> None:
    first = provider.orgs.put(ACME, BERLIN, author=OPERATOR).org
    provider.apps.put(ACME, "bot", AppChange(), author=OPERATOR)
    job = provider.orgs.delete(ACME, author=OPERATOR)
    assert provider.orgs.delete(ACME, org_if_match('"0-0"'), author=OPERATOR) == job
    for refuse in (
        lambda: provider.orgs.get(ACME),
        lambda: provider.orgs.put(ACME, OrgChange(suspended=True), author=OPERATOR),
        lambda: provider.orgs.rotate(ACME, 24, author=OPERATOR),
        lambda: provider.apps.put(ACME, "bot", AppChange(suspended=True), author=OPERATOR),
        lambda: provider.apps.get(ACME, "bot"),
        lambda: provider.apps.delete(ACME, "bot", author=OPERATOR),
    ):
        with pytest.raises(InUse):
            refuse()
    assert provider.lists.orgs(PageRequest(10)).items == ()
    run_purge(provider)
    assert {item["kind"]["S"] for item in raw_items(dynamodb, table).values()} <= {"job"}
    with pytest.raises(NotFound):
        provider.orgs.delete(ACME, author=OPERATOR)
    again = provider.orgs.put(ACME, OrgChange(), author=OPERATOR)
    assert again.created
    assert again.org.namespace != first.namespace
    assert again.org.client_id != first.client_id


def test_what_is_being_made_while_the_purge_begins_is_not_made(
    provider: Provider, new_provider: Callable[[], Provider]
) -> None:
    provider.process.namespaces.create("acme", OPERATOR)
    other = new_provider()
    meanwhile(provider, lambda: other.orgs.delete(ACME, author=OPERATOR))
    with pytest.raises(InUse):
        provider.orgs.put(ACME, BERLIN, author=OPERATOR)
    assert provider.kinds("client") == []


def test_a_token_of_a_purged_org_does_not_open_the_one_with_its_name(provider: Provider) -> None:
    first = provider.orgs.put(ACME, BERLIN, author=OPERATOR).org
    provider.orgs.delete(ACME, author=OPERATOR)
    run_purge(provider)
    second = provider.orgs.put(ACME, BERLIN, author=OPERATOR).org
    old = OrgPath("acme", first.namespace)
    for refuse in (
        lambda: provider.orgs.get(old),
        lambda: provider.orgs.rotate(old, 24, author=OPERATOR),
        lambda: provider.orgs.delete(old, author=OPERATOR),
        lambda: provider.apps.put(old, "bot", AppChange(), author=OPERATOR),
        lambda: provider.apps.list(old, PageRequest(10)),
    ):
        with pytest.raises(NotFound):
            refuse()
    assert provider.orgs.get(OrgPath("acme", second.namespace)) == second


def test_orgs_are_listed_page_by_page(provider: Provider) -> None:
    names = [f"org{number}" for number in range(5)]
    made = {name: provider.orgs.put(OrgPath(name), OrgChange(name=name), author=OPERATOR).org for name in names}
    provider.process.namespaces.create("org2a", OPERATOR)
    provider.orgs.delete(OrgPath("org1"), author=OPERATOR)
    cursor = None
    listed: list[Org] = []
    for size in (2, 2):
        page = provider.lists.orgs(PageRequest(2, cursor))
        assert len(page.items) == size
        listed += page.items
        cursor = page.next_cursor
    assert cursor is None
    assert listed == [made[name] for name in ("org0", "org2", "org3", "org4")]
    other = provider.lists.orgs(PageRequest(1)).next_cursor
    with pytest.raises(InvalidRequest):
        provider.lists.apps(made["org0"].namespace, PageRequest(1, other))


def test_nobody_is_there(provider: Provider) -> None:
    for call in (
        lambda: provider.orgs.get(ACME),
        lambda: provider.orgs.rotate(ACME, 24, author=OPERATOR),
        lambda: provider.orgs.delete(ACME, author=OPERATOR),
        lambda: provider.apps.get(ACME, "bot"),
    ):
        with pytest.raises(NotFound, match=re.escape("there is no such org")):
            call()
