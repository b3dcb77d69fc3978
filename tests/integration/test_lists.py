"""Lists on a real engine: each item once, page by page, of one namespace, whatever the index shows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pytest

from sluice.core.audit import Author
from sluice.core.bucket import top_milli
from sluice.core.errors import InvalidRequest, NotFound
from sluice.core.limits import DEFAULT_RESOURCE, Limit, Scope
from sluice.core.shards import shard_parameters
from sluice.core.standing import Standing, Sum, sums
from sluice.repository import keys
from sluice.repository.audit import AuditEvent, audit_put
from sluice.repository.entities import entity_put
from sluice.repository.items import Bucket, BucketLimit, Entity, encode_bucket, limits_hash
from sluice.repository.requests import QueryRequest
from sluice.repository.store import Page
from sluice.services import listing
from sluice.services.bucket_lists import BucketLists
from sluice.services.cursors import Cursors
from sluice.services.entities import EntityChange
from sluice.services.listing import Listed, Lists, PageRequest
from sluice.services.signing import Signer, SigningKeys
from sluice.shell import new_token
from tests.fakes import FakeClock
from tests.integration.conftest import ENTITY, NAMESPACE, RESOURCE, Host
from tests.integration.old_buckets import put_old_bucket, put_old_settings
from tests.integration.test_acquire import per_minute

T = TypeVar("T")
OTHER = "ns2"
LIMIT = Limit(capacity=1001, burst=2003, refill_amount=7, refill_period_seconds=60)


class FixedKeys:
    def known(self) -> SigningKeys:
        return SigningKeys(b"k" * 32)

    looked_up = known


@dataclass
class Tables:
    """The lists of one process."""

    lists: Lists
    buckets: BucketLists


@pytest.fixture
def shown(host: Host) -> Tables:
    cursors = Cursors(Signer(FixedKeys()))
    return Tables(Lists(host.store, cursors), BucketLists(host.store, cursors, host.clock))


def pages(ask: Callable[[PageRequest], Listed[T]], limit: int) -> list[tuple[T, ...]]:
    found: list[tuple[T, ...]] = []
    cursor: str | None = None
    for _ in range(1000):
        listed = ask(PageRequest(limit, cursor))
        found.append(listed.items)
        cursor = listed.next_cursor
        if cursor is None:
            return found
    raise AssertionError("the list does not end")


def everything(ask: Callable[[PageRequest], Listed[T]], limit: int) -> list[T]:
    """All items, after checking that only the last page is short, and not empty unless it is the only one."""
    found = pages(ask, limit)
    assert all(len(page) == limit for page in found[:-1])
    assert found[-1] or len(found) == 1
    return [item for page in found for item in page]


def put_entities(host: Host, names: Sequence[str], parent: str | None = None, namespace: str = NAMESPACE) -> None:
    """Many at once: the rules of entities do not matter here."""
    for start in range(0, len(names), 100):
        entities = [Entity(name, None, parent, True, {}, 1, 1, 1) for name in names[start : start + 100]]
        writes = [entity_put(namespace, entity, None) for entity in entities]
        host.store.inner.transact(writes, new_token())


def put_bucket(
    host: Host,
    *,
    entity: str = ENTITY,
    resource: str = RESOURCE,
    count: int = 1,
    limits: dict[str, Limit] | None = None,
    call_fingerprint: str | None = None,
    namespace: str = NAMESPACE,
    debt_milli: int = 0,
) -> None:
    """A full bucket of so many shards, less a debt of shard 0."""
    for number in range(count):
        shares = {
            name: shard_parameters(limit.parameters, number, count)
            for name, limit in (limits or {"rpm": LIMIT}).items()
        }
        bucket = Bucket(
            key=keys.bucket(namespace, entity, resource, number, call_fingerprint),
            namespace=namespace,
            entity=entity,
            resource=resource,
            call_fingerprint=call_fingerprint,
            shard=number,
            shard_count=count,
            version=1,
            generation=1,
            limits_hash=limits_hash("f" * 16, count),
            cascade=False,
            parent=None,
            expires_at_s=None,
            created_at_ms=1,
            limits={
                name: BucketLimit(share, top_milli(share, host.clock.now_ms) - (0 if number else debt_milli), 0)
                for name, share in shares.items()
            },
            retired_consumed_milli={},
        )
        host.store.inner.put({"Item": encode_bucket(bucket)}, repeatable=True)


def test_250_entities_are_listed_each_once(host: Host, shown: Tables) -> None:
    names = [f"user-{number}" for number in range(250)]
    put_entities(host, names)
    put_entities(host, names[:20], namespace=OTHER)
    for limit in (100, 13):
        found = everything(lambda page: shown.lists.entities(NAMESPACE, page), limit)
        assert sorted(entity.entity for entity in found) == sorted(names)
    found = everything(lambda page: shown.lists.entities(OTHER, page), 100)
    assert sorted(entity.entity for entity in found) == sorted(names[:20])
    assert shown.lists.entities("ns3", PageRequest(100)) == Listed((), None)


@pytest.mark.parametrize("count", [1, 9, 10, 11, 20])
def test_a_page_that_is_just_full_promises_nothing_more(host: Host, shown: Tables, count: int) -> None:
    put_entities(host, [f"user-{number}" for number in range(count)])
    assert len(pages(lambda page: shown.lists.entities(NAMESPACE, page), 10)) == -(-count // 10)


def test_2000_children_are_listed_each_once_and_by_id(host: Host, shown: Tables) -> None:
    names = sorted(f"user-{number}" for number in range(2000))
    put_entities(host, ["team", "team2"])
    put_entities(host, names, parent="team")
    put_entities(host, ["other"], parent="team2")
    found = everything(lambda page: shown.lists.children(NAMESPACE, "team", page), 100)
    assert [entity.entity for entity in found] == names
    assert {entity.parent for entity in found} == {"team"}


def test_a_page_costs_a_bounded_number_of_calls(host: Host, shown: Tables) -> None:
    put_entities(host, [f"user-{number}" for number in range(250)])
    host.store.taken_calls()
    shown.lists.entities(NAMESPACE, PageRequest(100))
    calls = host.store.taken_calls()
    assert len(calls) <= 10
    assert set(calls) == {"query", "batch_get"}


def test_children_of_one_namespace(host: Host, shown: Tables) -> None:
    for namespace, child in ((NAMESPACE, "a"), (OTHER, "b")):
        host.entities.put(namespace, "team", EntityChange())
        host.entities.put(namespace, child, EntityChange(parent="team"))
    for namespace, child in ((NAMESPACE, "a"), (OTHER, "b")):
        listed = shown.lists.children(namespace, "team", PageRequest(10))
        assert [entity.entity for entity in listed.items] == [child]
    with pytest.raises(NotFound):
        shown.lists.children(NAMESPACE, "b", PageRequest(10))


def test_an_entity_without_children(host: Host, shown: Tables) -> None:
    host.entities.put(NAMESPACE, "team", EntityChange())
    assert shown.lists.children(NAMESPACE, "team", PageRequest(10)) == Listed((), None)
    with pytest.raises(NotFound):
        shown.lists.children(NAMESPACE, "nobody", PageRequest(10))


def test_what_only_the_index_still_has_is_left_out_and_the_page_is_full(
    host: Host, shown: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"user-{number}" for number in range(30)]
    put_entities(host, names)
    gone = set(names[::2])
    real = host.store.inner.batch_get

    def batch_get(wanted: Any, *, consistent: bool = False) -> Any:
        return [item for item in real(wanted, consistent=consistent) if item["entity_id"] not in gone]

    monkeypatch.setattr(host.store.inner, "batch_get", batch_get)
    found = everything(lambda page: shown.lists.entities(NAMESPACE, page), 4)
    assert sorted(entity.entity for entity in found) == sorted(set(names) - gone)


def test_a_walk_through_nothing_is_cut_and_goes_on(host: Host, shown: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index full of what is gone: the page is short, and the next one goes on behind it."""
    names = sorted(f"user-{number}" for number in range(40))
    put_entities(host, ["team"])
    put_entities(host, names, parent="team")
    monkeypatch.setattr(listing, "QUERIES_MAX", 3)
    real = host.store.inner.query

    def query(request: QueryRequest) -> Page:
        return real({**request, "Limit": min(5, request["Limit"])})

    monkeypatch.setattr(host.store.inner, "query", query)
    found = pages(lambda page: shown.lists.children(NAMESPACE, "team", page), 100)
    assert [entity.entity for page in found for entity in page] == names
    assert {len(page) for page in found[:-1]} == {15}


def test_entities_with_limits_of_their_own(host: Host, shown: Tables) -> None:
    names = sorted(f"user-{number}" for number in range(25))
    for name in names:
        host.limits.put(NAMESPACE, Scope(name, RESOURCE), {"rpm": per_minute(5), "tpm": None})
    host.limits.put(NAMESPACE, Scope("other", f"{RESOURCE}-mini"), {"rpm": per_minute(5)})
    host.limits.put(NAMESPACE, Scope("all", DEFAULT_RESOURCE), {"rpm": per_minute(5)})
    host.limits.put(NAMESPACE, Scope(resource=RESOURCE), {"rpm": per_minute(5)})
    host.limits.put(OTHER, Scope("foreign", RESOURCE), {"rpm": per_minute(5)})
    found = everything(lambda page: shown.lists.entities_with_limits(NAMESPACE, RESOURCE, page), 10)
    assert [one.scope for one in found] == [Scope(name, RESOURCE) for name in names]
    assert found[0].stored == host.limits.get(NAMESPACE, found[0].scope)
    listed = shown.lists.entities_with_limits(NAMESPACE, DEFAULT_RESOURCE, PageRequest(10))
    assert [one.scope.entity for one in listed.items] == ["all"]


def test_resources_with_limits(host: Host, shown: Tables) -> None:
    names = sorted(f"model-{number}" for number in range(25))
    for name in names:
        host.limits.put(NAMESPACE, Scope(resource=name), {"rpm": per_minute(5)})
    host.limits.put(NAMESPACE, Scope("e", "of-an-entity"), {"rpm": per_minute(5)})
    host.limits.put(OTHER, Scope(resource="foreign"), {"rpm": per_minute(5)})
    found = everything(lambda page: shown.lists.resources(NAMESPACE, page), 10)
    assert [one.scope.resource for one in found] == names
    host.limits.delete(NAMESPACE, Scope(resource=names[0]))
    assert [one.scope.resource for one in everything(lambda page: shown.lists.resources(NAMESPACE, page), 10)] == names[
        1:
    ]


def test_audit_events_the_newest_first(host: Host, shown: Tables, clock: FakeClock) -> None:
    for number in range(25):
        host.limits.put(NAMESPACE, Scope(resource="r"), {"rpm": per_minute(1 + number)})
        clock.advance(1)
    host.limits.put(NAMESPACE, Scope(resource="r2"), {"rpm": per_minute(1)})
    host.limits.put(OTHER, Scope(resource="r"), {"rpm": per_minute(1)})
    found = everything(lambda page: shown.lists.audit(NAMESPACE, "$RESOURCE:r", page), 10)
    assert [event.after["config_version"] for event in found if event.after] == list(range(25, 0, -1))
    assert shown.lists.audit(NAMESPACE, "$SYSTEM", PageRequest(10)) == Listed((), None)


def test_a_change_shows_in_the_audit_at_once(host: Host, shown: Tables) -> None:
    host.limits.put(NAMESPACE, Scope("e", "r"), {"rpm": per_minute(1)})
    host.store.taken_calls()
    assert len(shown.lists.audit(NAMESPACE, "e", PageRequest(1)).items) == 1
    requests: list[Any] = []
    host.store.before = lambda _verb, request: requests.append(request)
    shown.lists.audit(NAMESPACE, "e", PageRequest(1))
    assert requests[0]["ConsistentRead"] is True


def test_1000_audit_events_of_one_moment(host: Host, shown: Tables) -> None:
    """The same millisecond: the id keeps them apart, and a page ends among them."""
    ids = sorted(f"event-{number:04}" for number in range(1000))
    for start in range(0, 1000, 100):
        writes = [
            audit_put(NAMESPACE, AuditEvent(event_id, "e", 7, Author("a", "b"), "entity.put", "t", None, None))
            for event_id in ids[start : start + 100]
        ]
        host.store.inner.transact(writes, new_token())
    found = everything(lambda page: shown.lists.audit(NAMESPACE, "e", page), 99)
    assert [event.event_id for event in found] == list(reversed(ids))


def test_a_cursor_goes_nowhere_else(host: Host, shown: Tables) -> None:
    for namespace in (NAMESPACE, OTHER):
        put_entities(host, [f"user-{number}" for number in range(10)], namespace=namespace)
        put_entities(host, ["team"], namespace=namespace)
        put_entities(host, ["x", "y", "z"], parent="team", namespace=namespace)
        put_entities(host, ["team2"], namespace=namespace)
    cursor = shown.lists.children(NAMESPACE, "team", PageRequest(1)).next_cursor
    assert cursor is not None
    again = PageRequest(1, cursor)
    assert [entity.entity for entity in shown.lists.children(NAMESPACE, "team", again).items] == ["y"]
    elsewhere: list[Callable[[], object]] = [
        lambda: shown.lists.children(OTHER, "team", again),
        lambda: shown.lists.children(NAMESPACE, "team2", again),
        lambda: shown.lists.entities(NAMESPACE, again),
        lambda: shown.lists.resources(NAMESPACE, again),
        lambda: shown.lists.entities_with_limits(NAMESPACE, "team", again),
        lambda: shown.lists.audit(NAMESPACE, "team", again),
        lambda: shown.buckets.of_entity(NAMESPACE, "team", again),
        lambda: shown.buckets.of_resource(NAMESPACE, "team", again),
    ]
    for ask in elsewhere:
        with pytest.raises(InvalidRequest) as raised:
            ask()
        assert raised.value.field == "cursor"


def test_a_list_goes_on_where_it_was_when_its_last_item_is_gone(host: Host, shown: Tables) -> None:
    put_entities(host, ["team"])
    put_entities(host, ["a", "b", "c", "d"], parent="team")
    first = shown.lists.children(NAMESPACE, "team", PageRequest(2))
    host.entities.delete(NAMESPACE, "b")
    host.entities.delete(NAMESPACE, "c")
    second = shown.lists.children(NAMESPACE, "team", PageRequest(2, first.next_cursor))
    assert [entity.entity for entity in second.items] == ["d"]


FULL = Standing(capacity=1001, burst=2003, available=2003, refill_amount=7, refill_period_seconds=60)


@pytest.mark.parametrize("count", [1, 2, 4, 16])
def test_shards_are_one_bucket(host: Host, shown: Tables, count: int) -> None:
    put_bucket(host, count=count)
    (item,) = everything(lambda page: shown.buckets.of_entity(NAMESPACE, ENTITY, page), 50)
    assert (item.resource, item.limit, item.shards, item.call_limits) == (RESOURCE, "rpm", count, False)
    assert item.standing == FULL
    (capacity,) = everything(lambda page: shown.buckets.of_resource(NAMESPACE, RESOURCE, page), 50)
    assert (capacity.entity, capacity.limits) == (ENTITY, {"rpm": FULL})


def test_a_shard_in_debt_counts_negative(host: Host, shown: Tables) -> None:
    put_bucket(host, count=2, debt_milli=5_000_500)
    (item,) = shown.buckets.of_entity(NAMESPACE, ENTITY, PageRequest(50)).items
    assert item.standing.available == 2003 - 5001


def test_what_a_real_acquire_leaves(host: Host, shown: Tables, clock: FakeClock) -> None:
    host.put_limits({"rpm": per_minute(60), "tpm": Limit(100, 200, 50, 120)})
    host.acquire(rpm=30, tpm=150)
    host.ask({"rpm": 1}, {"rpm": per_minute(5)})
    clock.advance(10_000)
    items = everything(lambda page: shown.buckets.of_entity(NAMESPACE, ENTITY, page), 2)
    assert sorted((item.limit, item.call_limits, item.standing.available) for item in items) == [
        ("rpm", False, 40),
        ("rpm", True, 4),
        ("tpm", False, 54),
    ]
    tpm = next(item.standing for item in items if item.limit == "tpm")
    assert (tpm.capacity, tpm.burst, tpm.refill_amount, tpm.refill_period_seconds) == (100, 200, 50, 120)
    (capacity,) = shown.buckets.of_resource(NAMESPACE, RESOURCE, PageRequest(50)).items
    assert {name: one.available for name, one in capacity.limits.items()} == {"rpm": 40, "tpm": 54}


NAMES = ["gpt", "gpt-4", "gpt-4.1", "gpt-4+", "gpt-40", "gpt-4:x", "gpt-4@x"]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_pages_never_cut_a_bucket_apart(host: Host, shown: Tables, limit: int) -> None:
    """Names that begin alike, shards whose text is out of order, limits of calls in between, several limits each."""
    limits = {"rpm": LIMIT, "tpm": LIMIT, "a_b": LIMIT}
    for number, name in enumerate(NAMES):
        put_bucket(host, resource=name, count=(1, 16, 2)[number % 3], limits=limits)
    put_bucket(host, resource="gpt-4", count=2, limits=limits, call_fingerprint="c" * 16)
    put_bucket(host, resource="gpt-4", count=1, limits=limits, call_fingerprint="d" * 16)
    put_bucket(host, resource="gpt-4", entity=f"{ENTITY}0")
    put_bucket(host, resource="gpt-4", namespace=OTHER)
    items = everything(lambda page: shown.buckets.of_entity(NAMESPACE, ENTITY, page), limit)
    assert {item.standing for item in items} == {FULL}
    expected = [(name, limit, False) for name in NAMES for limit in limits]
    expected += [("gpt-4", limit, True) for limit in limits] * 2
    assert sorted((item.resource, item.limit, item.call_limits) for item in items) == sorted(expected)


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_capacity_of_a_resource_by_entity(host: Host, shown: Tables, limit: int) -> None:
    entities = [f"user-{number}" for number in range(20)] + ["user", "user-1.", "user+"]
    for number, entity in enumerate(entities):
        put_bucket(host, entity=entity, count=(1, 4, 16)[number % 3])
        put_bucket(host, entity=entity, count=2, call_fingerprint="c" * 16)
        put_bucket(host, entity=entity, count=1, call_fingerprint="d" * 16)
    put_bucket(host, entity="only-by-call", call_fingerprint="c" * 16)
    put_bucket(host, entity="elsewhere", resource=f"{RESOURCE}0")
    put_bucket(host, entity="foreign", namespace=OTHER)
    items = everything(lambda page: shown.buckets.of_resource(NAMESPACE, RESOURCE, page), limit)
    assert sorted(item.entity for item in items) == sorted(entities)
    assert all(item.limits == {"rpm": FULL} for item in items)
    assert sums(item.limits for item in items) == {"rpm": Sum(2003 * len(entities), 1001 * len(entities))}


def test_a_shard_that_the_index_does_not_show_yet_is_counted(
    host: Host, shown: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_bucket(host, count=4)
    real = host.store.inner.query

    def query(request: Any) -> Page:
        page = real(request)
        return Page(tuple(item for item in page.items if not str(item["PK"]).endswith("#3")), page.next_start)

    monkeypatch.setattr(host.store.inner, "query", query)
    (item,) = shown.buckets.of_entity(NAMESPACE, ENTITY, PageRequest(50)).items
    assert (item.standing, item.shards) == (FULL, 4)


def test_a_bucket_that_goes_while_it_is_listed_is_shown_as_it_was(
    host: Host, shown: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_bucket(host, count=2)
    real = host.store.inner.batch_get

    def batch_get(wanted: Any, *, consistent: bool = False) -> Any:
        return [] if consistent else [item for item in real(wanted) if item["shard"] == 0]

    monkeypatch.setattr(host.store.inner, "batch_get", batch_get)
    (item,) = shown.buckets.of_entity(NAMESPACE, ENTITY, PageRequest(50)).items
    assert item.shards == 1


def test_a_bucket_that_only_the_index_has_is_left_out(host: Host, shown: Tables, monkeypatch: Any) -> None:
    host.entities.put(NAMESPACE, ENTITY, EntityChange())
    put_bucket(host)
    monkeypatch.setattr(host.store.inner, "batch_get", lambda wanted, *, consistent=False: [])
    assert shown.buckets.of_entity(NAMESPACE, ENTITY, PageRequest(50)) == Listed((), None)
    assert shown.buckets.of_resource(NAMESPACE, RESOURCE, PageRequest(50)) == Listed((), None)


@pytest.mark.parametrize("limit", [2, 100])
def test_a_walk_that_is_cut_among_shards_goes_on_before_them(
    host: Host, shown: Tables, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    entities = [f"u{number}" for number in range(7)]
    for entity in entities:
        put_bucket(host, entity=entity, count=4)
        put_bucket(host, resource=entity, count=4)
    monkeypatch.setattr(listing, "QUERIES_MAX", 3)
    real = host.store.inner.query

    def query(request: QueryRequest) -> Page:
        return real({**request, "Limit": min(2, request["Limit"])})

    monkeypatch.setattr(host.store.inner, "query", query)
    capacities = [
        item
        for page in pages(lambda page: shown.buckets.of_resource(NAMESPACE, RESOURCE, page), limit)
        for item in page
    ]
    assert [item.entity for item in capacities] == entities
    assert all(item.limits == {"rpm": FULL} for item in capacities)
    buckets = [
        item for page in pages(lambda page: shown.buckets.of_entity(NAMESPACE, ENTITY, page), limit) for item in page
    ]
    assert [item.resource for item in buckets] == entities
    assert {(item.standing, item.shards) for item in buckets} == {(FULL, 4)}


def test_a_bucket_longer_than_a_walk_is_shown_whole(host: Host, shown: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather twice than never: the list must go on."""
    put_bucket(host, count=16)
    monkeypatch.setattr(listing, "QUERIES_MAX", 1)
    real = host.store.inner.query

    def query(request: QueryRequest) -> Page:
        return real({**request, "Limit": 5})

    monkeypatch.setattr(host.store.inner, "query", query)
    found = pages(lambda page: shown.buckets.of_entity(NAMESPACE, ENTITY, page), 50)
    assert {(item.standing, item.shards) for page in found for item in page} == {(FULL, 16)}


def test_limits_that_go_between_two_pages_of_one_bucket(host: Host, shown: Tables) -> None:
    """The place within a bucket is a name: what comes after it, not so many further on."""
    put_bucket(host, resource="a", limits={"a": LIMIT, "b": LIMIT, "c": LIMIT, "d": LIMIT})
    put_bucket(host, resource="b", limits={"a": LIMIT})
    first = shown.buckets.of_entity(NAMESPACE, ENTITY, PageRequest(2))
    assert [item.limit for item in first.items] == ["a", "b"]
    put_bucket(host, resource="a", limits={"a": LIMIT, "d": LIMIT})
    second = shown.buckets.of_entity(NAMESPACE, ENTITY, PageRequest(2, first.next_cursor))
    assert [(item.resource, item.limit) for item in second.items] == [("a", "d"), ("b", "a")]
    host.store.inner.delete({"Key": {**keys.bucket(NAMESPACE, ENTITY, "a", 0).attributes}})
    third = shown.buckets.of_entity(NAMESPACE, ENTITY, PageRequest(2, first.next_cursor))
    assert [(item.resource, item.limit) for item in third.items] == [("b", "a")]


def test_an_entity_without_buckets_is_empty_and_an_unknown_one_is_not_found(host: Host, shown: Tables) -> None:
    host.entities.put(NAMESPACE, "known", EntityChange())
    assert shown.buckets.of_entity(NAMESPACE, "known", PageRequest(50)) == Listed((), None)
    with pytest.raises(NotFound):
        shown.buckets.of_entity(NAMESPACE, "unknown", PageRequest(50))
    # It consumes without having been put: there is something to show.
    put_bucket(host, entity="unknown")
    assert len(shown.buckets.of_entity(NAMESPACE, "unknown", PageRequest(50)).items) == 1
    assert shown.buckets.of_resource(NAMESPACE, "unknown", PageRequest(50)) == Listed((), None)


def test_items_of_old_layouts_are_left_out_until_they_are_moved(host: Host, shown: Tables) -> None:
    host.entities.put(NAMESPACE, "team", EntityChange())
    put_old_settings(host)
    put_old_bucket(host)
    put_bucket(host, resource="new")
    put_bucket(host, entity="other")
    found = everything(lambda page: shown.lists.entities(NAMESPACE, page), 10)
    assert [entity.entity for entity in found] == ["team"]
    assert shown.lists.children(NAMESPACE, "team", PageRequest(10)).items == ()
    assert shown.lists.entities_with_limits(NAMESPACE, RESOURCE, PageRequest(10)).items == ()
    buckets = shown.buckets.of_entity(NAMESPACE, ENTITY, PageRequest(10))
    assert [item.resource for item in buckets.items] == ["new"]
    capacity = shown.buckets.of_resource(NAMESPACE, RESOURCE, PageRequest(10))
    assert [item.entity for item in capacity.items] == ["other"]


def test_hundreds_of_buckets(host: Host, shown: Tables) -> None:
    for number in range(130):
        put_bucket(host, resource=f"r{number}", count=2)
    items = everything(lambda page: shown.buckets.of_entity(NAMESPACE, ENTITY, page), 100)
    assert sorted(item.resource for item in items) == sorted(f"r{number}" for number in range(130))
    assert {item.standing for item in items} == {FULL}


def test_shards_split_at_different_times_are_one_bucket(host: Host, shown: Tables) -> None:
    put_bucket(host, count=2)
    two = shown.buckets.of_entity(NAMESPACE, ENTITY, PageRequest(50)).items[0]
    # 0 and 2 of four, 1 still of two.
    kept = host.store.inner.get(keys.bucket(NAMESPACE, ENTITY, RESOURCE, 1))
    put_bucket(host, count=4)
    assert kept is not None
    host.store.inner.put({"Item": kept}, repeatable=True)
    host.store.inner.delete({"Key": {**keys.bucket(NAMESPACE, ENTITY, RESOURCE, 3).attributes}})
    (item,) = shown.buckets.of_entity(NAMESPACE, ENTITY, PageRequest(50)).items
    assert item == replace(two, shards=3)
