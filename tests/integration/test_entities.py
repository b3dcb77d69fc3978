"""Entities: merged, versioned, and never in a cycle or too deep."""

from collections.abc import Callable
from typing import Any

import pytest

from sluice.core.audit import Author
from sluice.core.errors import Contended, InUse, InvalidRequest, NotFound, PreconditionFailed
from sluice.core.limits import DEFAULT_RESOURCE, Scope
from sluice.repository.store import Cancelled
from sluice.services.entities import EntityChange
from sluice.shell import new_token
from tests.fakes import FakeClock
from tests.integration.audits import events, other_items
from tests.integration.conftest import ENTITY, NAMESPACE, RESOURCE, Host
from tests.integration.test_acquire import per_minute
from tests.integration.test_limits import before_transact, forget_the_token, lose_an_answer, sent_transactions


def put(host: Host, entity: str, parent: str | None = None) -> None:
    host.entities.put(NAMESPACE, entity, EntityChange(parent=parent))


def chain_of(host: Host, *entities: str) -> None:
    """Each stands below the one before."""
    for parent, entity in zip((None, *entities), entities, strict=False):
        put(host, entity, parent)


def test_an_entity_is_created_with_defaults(host: Host, clock: FakeClock) -> None:
    done = host.entities.put(NAMESPACE, "user", EntityChange())
    assert done.created
    assert done.entity == host.entities.get(NAMESPACE, "user")
    assert (done.entity.name, done.entity.parent, done.entity.cascade) == (None, None, True)
    assert (done.entity.version, done.entity.created_at_ms) == (1, clock.now_ms)


def test_only_what_is_sent_changes_and_none_clears(host: Host, clock: FakeClock) -> None:
    put(host, "team")
    first = EntityChange(name="User", parent="team", cascade=False, metadata={"tier": "gold", "seats": 3, "vip": True})
    host.entities.put(NAMESPACE, "user", first)
    clock.advance(5)
    done = host.entities.put(NAMESPACE, "user", EntityChange(name="Other"))
    assert not done.created
    entity = done.entity
    assert (entity.name, entity.parent, entity.cascade) == ("Other", "team", False)
    assert entity.metadata == {"tier": "gold", "seats": 3, "vip": True}
    assert (entity.version, entity.updated_at_ms - entity.created_at_ms) == (2, 5)
    cleared = host.entities.put(NAMESPACE, "user", EntityChange(name=None, parent=None, metadata=None)).entity
    assert (cleared.name, cleared.parent, cleared.metadata) == (None, None, {})
    assert host.entities.get(NAMESPACE, "user") == cleared


def test_a_parent_must_exist(host: Host) -> None:
    with pytest.raises(InvalidRequest) as raised:
        put(host, "user", "nobody")
    assert raised.value.field == "parent"
    with pytest.raises(NotFound):
        host.entities.get(NAMESPACE, "user")


def test_four_levels_are_the_most(host: Host) -> None:
    chain_of(host, "org", "app", "team", "user")
    with pytest.raises(InvalidRequest, match="at most 4"):
        put(host, "key", "user")


def test_nobody_stands_above_himself(host: Host) -> None:
    chain_of(host, "a", "b", "c")
    for parent in ("a", "b", "c"):
        with pytest.raises(InvalidRequest, match="above itself"):
            put(host, "a", parent)
    assert host.entities.get(NAMESPACE, "a").parent is None


def test_two_writers_can_not_become_each_others_parent(host: Host, start_host: Callable[[], Host]) -> None:
    other = start_host()
    put(host, "a")
    put(host, "b")

    def interfere(verb: str, _request: Any) -> None:
        if verb == "transact":
            host.store.before = None
            put(other, "b", "a")

    host.store.before = interfere
    with pytest.raises(InvalidRequest, match="above itself"):
        put(host, "a", "b")
    assert host.entities.get(NAMESPACE, "a").parent is None
    assert host.entities.get(NAMESPACE, "b").parent == "a"


def test_who_has_others_below_can_not_move_too_deep(host: Host) -> None:
    chain_of(host, "org", "app")
    chain_of(host, "team", "user")
    put(host, "team", "app")
    chain_of(host, "x", "y", "z")
    with pytest.raises(InvalidRequest, match="stand below"):
        put(host, "x", "app")
    put(host, "x", "org")


def test_a_change_that_meets_another_is_made_on_top_of_it(host: Host, start_host: Callable[[], Host]) -> None:
    other = start_host()
    put(host, "user")

    def interfere(verb: str, _request: Any) -> None:
        if verb == "transact":
            host.store.before = None
            other.entities.put(NAMESPACE, "user", EntityChange(name="theirs"))

    host.store.before = interfere
    done = host.entities.put(NAMESPACE, "user", EntityChange(metadata={"mine": 1}))
    assert (done.entity.name, done.entity.metadata, done.entity.version) == ("theirs", {"mine": 1}, 3)


def test_changes_under_interference_are_bounded(host: Host, start_host: Callable[[], Host]) -> None:
    other = start_host()
    put(host, "user")
    host.store.before = lambda verb, _request: put(other, "user") if verb == "transact" else None
    with pytest.raises(Contended):
        put(host, "user")


def test_a_precondition_guards_change_and_removal(host: Host) -> None:
    seen = host.entities.put(NAMESPACE, "user", EntityChange()).entity
    put(host, "user")
    for act in (
        lambda: host.entities.put(NAMESPACE, "user", EntityChange(name="x"), lambda now: now == seen),
        lambda: host.entities.delete(NAMESPACE, "user", lambda now: now == seen),
    ):
        with pytest.raises(PreconditionFailed):
            act()
    assert host.entities.get(NAMESPACE, "user").name is None


def test_removal_takes_limits_and_buckets_along(host: Host) -> None:
    put(host, ENTITY)
    host.put_limits({"rpm": per_minute(10)}, Scope(ENTITY, RESOURCE))
    host.put_limits({"rpm": per_minute(10)}, Scope(ENTITY, DEFAULT_RESOURCE))
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=10)
    host.ask({"rpm": 1}, {"rpm": per_minute(5)})
    host.entities.delete(NAMESPACE, ENTITY)
    assert host.find_bucket() is None
    assert [item["PK"] for item in other_items(host)] == [f"{NAMESPACE}/RESOURCE#{RESOURCE}"]
    with pytest.raises(NotFound):
        host.entities.delete(NAMESPACE, ENTITY)


def test_who_has_others_below_is_not_removed(host: Host) -> None:
    chain_of(host, "team", "user")
    with pytest.raises(InUse):
        host.entities.delete(NAMESPACE, "team")
    host.entities.delete(NAMESPACE, "user")
    host.entities.delete(NAMESPACE, "team")


def test_ids_that_begin_alike_do_not_lose_their_items(host: Host) -> None:
    put(host, ENTITY)
    put(host, f"{ENTITY}0")
    host.put_limits({"rpm": per_minute(10)}, Scope(f"{ENTITY}0", RESOURCE))
    host.ask({"rpm": 1}, entity=f"{ENTITY}0")
    host.entities.delete(NAMESPACE, ENTITY)
    kinds = sorted(str(item["kind"]) for item in other_items(host))
    assert kinds == ["bucket", "entity", "limits"]


SOMEBODY = Author("client-7", "request-9")


def test_every_change_of_an_entity_is_told(host: Host, clock: FakeClock) -> None:
    put(host, "team")
    clock.advance(1)
    host.entities.put(NAMESPACE, "user", EntityChange(name="User", parent="team"), author=SOMEBODY)
    clock.advance(1)
    host.entities.put(NAMESPACE, "user", EntityChange(metadata={"tier": "gold", "seats": 3, "vip": True, "note": None}))
    clock.advance(1)
    host.entities.delete(NAMESPACE, "user", author=SOMEBODY)
    created, changed, removed = (event for event in events(host) if event.subject == "user")
    image = {"name": "User", "parent": "team", "cascade": True, "metadata": {}, "version": 1}
    assert (created.action, created.before, created.after) == ("entity.put", None, image)
    metadata = {"tier": "gold", "seats": 3, "vip": True, "note": None}
    assert (changed.before, changed.after) == (image, {**image, "metadata": metadata, "version": 2})
    assert (removed.action, removed.before, removed.after) == ("entity.delete", changed.after, None)
    assert [event.author for event in (created, removed)] == [SOMEBODY, SOMEBODY]
    assert {event.target for event in (created, changed, removed)} == {"entities/user"}


def test_what_is_refused_is_not_told(host: Host) -> None:
    chain_of(host, "team", "user")
    for act, error in (
        (lambda: put(host, "user", "nobody"), InvalidRequest),
        (lambda: host.entities.put(NAMESPACE, "user", EntityChange(), lambda _seen: False), PreconditionFailed),
        (lambda: host.entities.delete(NAMESPACE, "user", lambda _seen: False), PreconditionFailed),
        (lambda: host.entities.delete(NAMESPACE, "team"), InUse),
        (lambda: host.entities.delete(NAMESPACE, "nobody"), NotFound),
    ):
        with pytest.raises(error):
            act()
    assert [event.action for event in events(host)] == ["entity.put"] * 2


def test_a_change_that_was_applied_after_all_is_recognised(host: Host, start_host: Callable[[], Host]) -> None:
    other = start_host()
    forget_the_token(host, lambda: other.entities.put(NAMESPACE, "user", EntityChange(name="theirs")))
    mine = host.entities.put(NAMESPACE, "user", EntityChange(name="mine"))
    assert (mine.created, mine.entity.name, mine.entity.version) == (True, "mine", 1)
    assert host.entities.get(NAMESPACE, "user").name == "theirs"
    assert len(events(host)) == 2


def test_a_try_that_arrives_late_changes_nothing(host: Host, start_host: Callable[[], Host]) -> None:
    other = start_host()
    tries = sent_transactions(host)
    before_transact(host, lambda: put(other, "user"))
    put(host, "user")
    other.entities.delete(NAMESPACE, "user")
    late, _made = tries
    assert isinstance(host.store.inner.transact(late, new_token()), Cancelled)
    assert other_items(host) == []


def test_a_lost_answer_of_a_change_is_asked_for_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    lose_an_answer(host, monkeypatch)
    assert host.entities.put(NAMESPACE, "user", EntityChange()).created
    assert host.entities.get(NAMESPACE, "user").version == 1
    assert len(events(host)) == 1
