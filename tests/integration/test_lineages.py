"""Who stands above an entity: whom a call is charged to, and for which app it is counted."""

import pytest

from sluice.core.orgs import EntityRole
from sluice.repository import keys
from sluice.repository.entities import entity_put
from sluice.repository.items import Entity
from sluice.services.entities import EntityChange
from sluice.services.lineages import CACHE_MS, Lineage, Lineages
from sluice.shell import new_token
from tests.fakes import FakeClock
from tests.integration.catalogs import BOT, CHAT, ORG, put_tenant
from tests.integration.conftest import NAMESPACE, Host


@pytest.fixture
def lineages(host: Host, clock: FakeClock) -> Lineages:
    put_tenant(host)
    return Lineages(host.store, clock)


def put(host: Host, entity: str, parent: str | None, *, cascade: bool = True) -> None:
    host.entities.put(NAMESPACE, entity, EntityChange(parent=parent, cascade=cascade))


def write(host: Host, entity: str, parent: str | None, *, namespace: str = NAMESPACE) -> None:
    """Past every check."""
    made = Entity(entity, None, parent, True, {}, 1, 5, 6, EntityRole.OTHER)
    host.store.inner.delete({"Key": dict(keys.entity(namespace, entity).attributes)})
    host.store.inner.transact([entity_put(namespace, made, None)], new_token())


def found(lineages: Lineages, entity: str) -> Lineage:
    lineage = lineages.find(NAMESPACE, entity)
    assert lineage is not None
    return lineage


def test_a_chain_goes_up_to_the_org(host: Host, lineages: Lineages) -> None:
    put(host, "team", CHAT)
    put(host, "user", "team")
    assert found(lineages, "user") == Lineage("user", ("user", "team", CHAT, ORG), ("team", CHAT, ORG), CHAT)
    assert found(lineages, CHAT) == Lineage(CHAT, (CHAT, ORG), (ORG,), CHAT)
    assert found(lineages, ORG) == Lineage(ORG, (ORG,), (), None)


def test_without_cascade_the_chain_ends_and_the_app_stays(host: Host, lineages: Lineages) -> None:
    put(host, "team", CHAT, cascade=False)
    put(host, "user", "team")
    lineage = found(lineages, "user")
    assert (lineage.chain, lineage.above) == (("user", "team"), ("team", CHAT, ORG))
    assert lineage.app == CHAT
    put(host, "alone", BOT, cascade=False)
    assert (found(lineages, "alone").chain, found(lineages, "alone").app) == (("alone",), BOT)


def test_right_below_the_org_there_is_no_app(host: Host, lineages: Lineages) -> None:
    put(host, "user", ORG)
    assert found(lineages, "user").app is None


def test_whom_an_entity_stands_within(host: Host, lineages: Lineages) -> None:
    put(host, "team", CHAT, cascade=False)
    put(host, "user", "team")
    lineage = found(lineages, "user")
    within = [None, "user", "team", CHAT, ORG, BOT, "nobody"]
    assert [lineage.stands_within(one) for one in within] == [True, True, True, True, True, False, False]


def test_nobody_knows_it_is_no_answer_that_is_kept(host: Host, lineages: Lineages) -> None:
    assert lineages.find(NAMESPACE, "user") is None
    put(host, "user", CHAT)
    assert found(lineages, "user").app == CHAT


def test_a_parent_that_is_gone_ends_it(host: Host, lineages: Lineages) -> None:
    write(host, "orphan", "gone")
    assert found(lineages, "orphan") == Lineage("orphan", ("orphan",), (), None)


def test_a_ring_ends_where_it_began(host: Host, lineages: Lineages) -> None:
    """Parents are read at different times, so one may be met again."""
    write(host, "a", "b")
    write(host, "b", "a")
    assert found(lineages, "a") == Lineage("a", ("a", "b"), ("b",), None)


def test_no_more_than_four_are_asked(host: Host, lineages: Lineages) -> None:
    for number in range(6):
        write(host, f"e{number}", f"e{number + 1}")
    host.store.taken_calls()
    assert found(lineages, "e0").chain == ("e0", "e1", "e2", "e3")
    assert host.store.taken_calls() == ["consistent get"] * 4


def test_entities_are_kept_one_by_one(host: Host, lineages: Lineages) -> None:
    put(host, "team", CHAT)
    for user in ("user-1", "user-2"):
        put(host, user, "team")
    host.store.taken_calls()
    assert found(lineages, "user-1").app == CHAT
    assert len(host.store.taken_calls()) == 4
    # Only the one that was not met yet.
    assert found(lineages, "user-2").app == CHAT
    assert host.store.taken_calls() == ["consistent get"]
    assert found(lineages, "user-1").app == CHAT
    assert host.store.taken_calls() == []


def test_a_moved_entity_is_followed_within_a_minute(host: Host, lineages: Lineages, clock: FakeClock) -> None:
    put(host, "user", CHAT)
    assert found(lineages, "user").app == CHAT
    put(host, "user", BOT)
    clock.advance(CACHE_MS - 1)
    assert found(lineages, "user").app == CHAT
    clock.advance(1)
    assert found(lineages, "user").app == BOT


def test_the_minute_counts_from_before_the_read(host: Host, lineages: Lineages, clock: FakeClock) -> None:
    put(host, "user", CHAT)

    def slow(_verb: str, _request: object) -> None:
        host.store.after = None
        write(host, "user", BOT)
        clock.advance(CACHE_MS - 1)

    host.store.after = slow
    assert found(lineages, "user").app == CHAT
    clock.advance(1)
    assert found(lineages, "user").app == BOT


def test_nothing_crosses_a_namespace(host: Host, lineages: Lineages) -> None:
    put_tenant(host, namespace="elsewhere")
    put(host, "user", CHAT)
    write(host, "user", BOT, namespace="elsewhere")
    assert found(lineages, "user").app == CHAT
    elsewhere = lineages.find("elsewhere", "user")
    assert elsewhere is not None
    assert elsewhere.app == BOT
    assert lineages.find("nowhere", "user") is None
