"""Removing an entity: told, repeatable, each bucket whole, and never from under its children."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sluice.core.audit import Author
from sluice.core.bucket import top_milli
from sluice.core.errors import Ambiguous, Contended, InUse, InvalidRequest, NotFound, PreconditionFailed
from sluice.core.limits import DEFAULT_RESOURCE, Scope
from sluice.core.shards import SHARDS_MAX, shard_parameters
from sluice.edge.etags import entity_if_match
from sluice.repository import keys
from sluice.repository.items import Bucket, BucketLimit, decode_bucket, encode_bucket, limits_hash
from sluice.repository.store import Page
from sluice.services.entities import EntityChange
from sluice.services.removal import _LIMITS_AT_ONCE
from tests.integration.audits import events, other_items
from tests.integration.conftest import ENTITY, NAMESPACE, RESOURCE, Host
from tests.integration.old_buckets import put_old_bucket, put_older_buckets
from tests.integration.test_acquire import per_minute
from tests.integration.test_limits import before_transact, forget_the_token, lose_an_answer

SOMEBODY = Author("client-7", "request-9")


def put(host: Host, entity: str, parent: str | None = None) -> None:
    host.entities.put(NAMESPACE, entity, EntityChange(parent=parent))


def put_shards(host: Host, count: int, entity: str = ENTITY) -> None:
    """Splits the one bucket of the entity into so many shards, as far as anybody can see."""
    item = host.store.inner.get(keys.bucket(NAMESPACE, entity, RESOURCE, 0), consistent=True)
    assert item is not None
    first = decode_bucket(item)
    for number in range(count):
        shard = shard_of(first, number, count, host.clock.now_ms)
        host.store.inner.put({"Item": encode_bucket(shard)}, repeatable=True)


def shard_of(first: Bucket, number: int, count: int, now_ms: int) -> Bucket:
    """Full."""
    shares = {name: shard_parameters(limit.parameters, number, count) for name, limit in first.limits.items()}
    return replace(
        first,
        key=keys.bucket_shard(first.key, number),
        shard=number,
        shard_count=count,
        limits_hash=limits_hash(first.fingerprint, count),
        expires_at_s=None,
        limits={name: BucketLimit(share, top_milli(share, now_ms), 0) for name, share in shares.items()},
    )


def removes_shards(verb: str, request: Any) -> bool:
    """Whether this call is the removal of a bucket, split or not."""
    return verb == "delete" or (verb == "transact" and all("Put" not in write for write in request))


def test_the_limits_are_told_of_one_by_one(host: Host) -> None:
    put(host, ENTITY)
    scopes = [Scope(ENTITY, RESOURCE), Scope(ENTITY, "other"), Scope(ENTITY, DEFAULT_RESOURCE)]
    for scope in scopes:
        host.put_limits({"rpm": per_minute(10)}, scope)
    host.store.taken_calls()
    host.entities.delete(NAMESPACE, ENTITY, author=SOMEBODY)
    assert host.store.calls.count("transact") == 1
    removed = [event for event in events(host) if event.author == SOMEBODY]
    assert {(event.action, event.target) for event in removed} == {
        ("entity.delete", f"entities/{ENTITY}"),
        *(("limits.delete", f"limits/entities/{ENTITY}/{scope.resource}") for scope in scopes),
    }
    assert {event.subject for event in removed} == {ENTITY}
    assert all(event.before is not None and event.after is None for event in removed)
    assert other_items(host) == []


def test_more_limits_than_a_transaction_takes(host: Host) -> None:
    put(host, ENTITY)
    for number in range(2 * _LIMITS_AT_ONCE + 3):
        host.put_limits({"rpm": per_minute(10)}, Scope(ENTITY, f"r{number}"))
    host.entities.delete(NAMESPACE, ENTITY)
    assert other_items(host) == []
    assert len(events(host, "limits.delete")) == 2 * _LIMITS_AT_ONCE + 3


def test_all_shards_go_in_one_transaction(host: Host) -> None:
    """Hole: one after the other, a crash leaves a bucket that can not keep its promises, or shards without donor."""
    put(host, ENTITY)
    host.put_limits({"rpm": per_minute(1000)})
    host.acquire(rpm=1)
    put_shards(host, SHARDS_MAX)
    host.store.taken_calls()
    host.entities.delete(NAMESPACE, ENTITY)
    assert host.store.taken_calls()[-2:] == ["consistent batch_get", "transact"]
    assert [item["kind"] for item in other_items(host)] == ["limits"]


def test_a_bucket_that_is_split_meanwhile_is_removed_with_its_new_shard(
    host: Host, start_host: Callable[[], Host]
) -> None:
    """The index does not show the new shard yet; the condition on the donor does."""
    other = start_host()
    put(host, ENTITY)
    host.put_limits({"rpm": per_minute(1000)})
    host.acquire(rpm=1)

    def split(verb: str, _request: Any) -> None:
        if verb == "delete":
            host.store.before = None
            put_shards(other, 2)

    host.store.before = split
    host.store.taken_calls()
    host.entities.delete(NAMESPACE, ENTITY)
    assert host.store.taken_calls()[-3:] == ["delete", "consistent batch_get", "transact"]
    assert [item["kind"] for item in other_items(host)] == ["limits"]


@pytest.mark.parametrize("lost", [(3,), (3, 2), (1,), (0,), (0, 1, 3)])
def test_a_bucket_that_has_lost_shards_is_removed(host: Host, lost: tuple[int, ...]) -> None:
    put(host, ENTITY)
    host.put_limits({"rpm": per_minute(1000)})
    host.acquire(rpm=1)
    put_shards(host, 4)
    for shard in lost:
        host.store.inner.delete({"Key": {**keys.bucket(NAMESPACE, ENTITY, RESOURCE, shard).attributes}})
    host.entities.delete(NAMESPACE, ENTITY)
    assert [item["kind"] for item in other_items(host)] == ["limits"]


def test_shards_that_the_index_does_not_show_are_removed(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    put(host, ENTITY)
    host.put_limits({"rpm": per_minute(1000)})
    host.acquire(rpm=1)
    put_shards(host, 4)
    real = host.store.inner.query

    def query(request: Any) -> Page:
        page = real(request)
        return Page(tuple(item for item in page.items if str(item["PK"]).endswith("#0")), page.next_start)

    monkeypatch.setattr(host.store.inner, "query", query)
    host.entities.delete(NAMESPACE, ENTITY)
    assert [item["kind"] for item in other_items(host)] == ["limits"]


def test_a_bucket_that_never_stands_still_is_contended(host: Host, start_host: Callable[[], Host]) -> None:
    other = start_host()
    put(host, ENTITY)
    host.put_limits({"rpm": per_minute(1000)})
    host.acquire(rpm=1)
    counts = iter([2, 4, 8, 16])
    host.store.before = lambda verb, request: put_shards(other, next(counts)) if removes_shards(verb, request) else None
    with pytest.raises(Contended):
        host.entities.delete(NAMESPACE, ENTITY)


def test_traffic_does_not_keep_a_bucket_from_being_removed(host: Host, start_host: Callable[[], Host]) -> None:
    other = start_host()
    put(host, ENTITY)
    host.put_limits({"rpm": per_minute(1000)})
    host.acquire(rpm=1)
    put_shards(host, 2)

    def spend(verb: str, request: Any) -> None:
        if removes_shards(verb, request):
            other.acquire(rpm=1)

    host.store.before = spend
    host.entities.delete(NAMESPACE, ENTITY)
    left = [item for item in other_items(host) if item["kind"] == "bucket"]
    # Whoever spends after the last removal makes the bucket anew: whole, and shard 0 alone.
    assert [(item["shard"], item["shard_count"]) for item in left] in ([], [(0, 1)])


def test_buckets_of_old_layouts_go_too(host: Host) -> None:
    put(host, ENTITY)
    put_old_bucket(host)
    put_old_bucket(host, "other", 1)
    put_older_buckets(host)
    put_older_buckets(host, f"{ENTITY}0")
    host.entities.delete(NAMESPACE, ENTITY)
    assert {item["PK"] for item in other_items(host)} == {f"{NAMESPACE}/ENTITY#{ENTITY}0"}


def test_an_old_bucket_that_is_moved_meanwhile_goes_too(host: Host, start_host: Callable[[], Host]) -> None:
    other = start_host()
    put(host, ENTITY)
    host.put_limits({"rpm": per_minute(1000)})
    host.acquire(rpm=1)
    today = other.store.inner.get(keys.bucket(NAMESPACE, ENTITY, RESOURCE, 0), consistent=True)
    assert today is not None
    put_old_bucket(host)

    def move(verb: str, _request: Any) -> None:
        if verb == "delete":
            host.store.before = None
            other.store.inner.put({"Item": today}, repeatable=True)

    host.store.before = move
    host.entities.delete(NAMESPACE, ENTITY)
    assert [item["kind"] for item in other_items(host)] == ["limits"]


@pytest.mark.parametrize("fails_at", range(1, 4))
def test_a_removal_that_ended_half_way_is_ended_by_the_next(host: Host, fails_at: int) -> None:
    put(host, ENTITY)
    host.put_limits({"rpm": per_minute(10)}, Scope(ENTITY, RESOURCE))
    host.put_limits({"rpm": per_minute(10)}, Scope(ENTITY, DEFAULT_RESOURCE))
    host.acquire(rpm=1)
    put_shards(host, 4)
    writes = [0]

    def crash(verb: str, _request: Any) -> None:
        writes[0] += verb in {"transact", "delete"}
        if writes[0] == fails_at:
            raise Ambiguous("crashed")

    host.store.after = crash
    if fails_at <= 2:
        with pytest.raises(Ambiguous):
            host.entities.delete(NAMESPACE, ENTITY)
    else:
        host.entities.delete(NAMESPACE, ENTITY)
    host.store.after = None
    left = [item for item in other_items(host) if item["kind"] == "bucket"]
    assert len(left) in {0, 4}, "whole, or gone"
    if other_items(host):
        host.entities.delete(NAMESPACE, ENTITY)
    assert other_items(host) == []
    assert len(events(host, "entity.delete")) == 1
    assert len(events(host, "limits.delete")) == 2
    with pytest.raises(NotFound):
        host.entities.delete(NAMESPACE, ENTITY)


def test_what_is_left_of_an_entity_is_not_removed_on_a_version_that_is_gone(host: Host) -> None:
    host.put_limits({"rpm": per_minute(10)}, Scope(ENTITY, RESOURCE))
    with pytest.raises(NotFound):
        host.entities.delete(NAMESPACE, ENTITY, entity_if_match('"1-1"'))
    assert [item["kind"] for item in other_items(host)] == ["limits"]
    host.entities.delete(NAMESPACE, ENTITY)
    assert other_items(host) == []


def test_a_removal_meets_a_change(host: Host, start_host: Callable[[], Host]) -> None:
    """On a version that was seen it fails; without a demand it removes what is there then."""
    other = start_host()
    seen = host.entities.put(NAMESPACE, "user", EntityChange()).entity

    def rename() -> object:
        return other.entities.put(NAMESPACE, "user", EntityChange(name="theirs"))

    before_transact(host, rename)
    with pytest.raises(PreconditionFailed):
        host.entities.delete(NAMESPACE, "user", lambda now: now == seen)
    before_transact(host, rename)
    host.entities.delete(NAMESPACE, "user")
    (removed,) = events(host, "entity.delete")
    assert removed.before is not None
    assert (removed.before["name"], removed.before["version"]) == ("theirs", 3)


def test_limits_that_change_meanwhile_are_removed_as_they_are_then(host: Host, start_host: Callable[[], Host]) -> None:
    other = start_host()
    put(host, ENTITY)
    own = Scope(ENTITY, RESOURCE)
    host.put_limits({"rpm": per_minute(10)}, own)
    before_transact(host, lambda: other.put_limits({"rpm": per_minute(11)}, own))
    host.entities.delete(NAMESPACE, ENTITY)
    (removed,) = events(host, "limits.delete")
    assert removed.before is not None
    assert removed.before["config_version"] == 2
    assert other_items(host) == []


def test_removing_under_interference_is_bounded(host: Host, start_host: Callable[[], Host]) -> None:
    other = start_host()
    put(host, "user")
    host.store.before = lambda verb, _request: put(other, "user") if verb == "transact" else None
    with pytest.raises(Contended):
        host.entities.delete(NAMESPACE, "user")
    assert host.entities.get(NAMESPACE, "user").version == 5


def test_limits_left_behind_under_interference_are_bounded(host: Host, start_host: Callable[[], Host]) -> None:
    other = start_host()
    own = Scope(ENTITY, RESOURCE)
    host.put_limits({"rpm": per_minute(10)}, own)
    host.store.before = lambda verb, _request: (
        other.put_limits({"rpm": per_minute(1)}, own) if verb == "transact" else None
    )
    with pytest.raises(Contended):
        host.entities.delete(NAMESPACE, ENTITY)


def test_a_lost_answer_is_asked_for_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    put(host, "user")
    lose_an_answer(host, monkeypatch)
    host.entities.delete(NAMESPACE, "user")
    assert len(events(host, "entity.delete")) == 1


def test_a_removal_that_was_applied_after_all_is_recognised(host: Host) -> None:
    seen = host.entities.put(NAMESPACE, "user", EntityChange()).entity
    forget_the_token(host)
    host.entities.delete(NAMESPACE, "user", lambda now: now == seen)
    assert other_items(host) == []
    assert len(events(host, "entity.delete")) == 1


def test_nobody_is_put_below_an_entity_that_is_gone(host: Host, start_host: Callable[[], Host]) -> None:
    """The parent is removed after the child's writer looked: its transaction fails, and it looks again."""
    other = start_host()
    put(host, "team")
    before_transact(host, lambda: other.entities.delete(NAMESPACE, "team"))
    with pytest.raises(InvalidRequest, match="no such entity"):
        put(host, "user", "team")
    assert other_items(host) == []


def test_an_entity_whose_child_comes_in_between_is_put_back(host: Host, start_host: Callable[[], Host]) -> None:
    """The child is put after the look for children and before the removal, which no condition notices."""
    other = start_host()
    before = host.entities.put(NAMESPACE, "team", EntityChange(name="Team", metadata={"a": 1})).entity
    own = Scope("team", RESOURCE)
    host.put_limits({"rpm": per_minute(10)}, own)
    limits = host.limits.get(NAMESPACE, own)
    before_transact(host, lambda: put(other, "user", "team"))
    with pytest.raises(InUse):
        host.entities.delete(NAMESPACE, "team", author=SOMEBODY)
    assert host.entities.get(NAMESPACE, "team") == before
    assert host.limits.get(NAMESPACE, own) == limits
    told = [(event.action, event.target) for event in events(host) if event.author == SOMEBODY]
    assert sorted(told) == [
        ("entity.delete", "entities/team"),
        ("entity.put", "entities/team"),
        ("limits.delete", f"limits/entities/team/{RESOURCE}"),
        ("limits.put", f"limits/entities/team/{RESOURCE}"),
    ]


def test_an_entity_that_was_made_anew_is_not_overwritten_by_the_old_one(
    host: Host, start_host: Callable[[], Host]
) -> None:
    other = start_host()
    put(host, "team")

    def child_then_anew(verb: str, _request: Any) -> None:
        if verb == "transact":
            host.store.before = anew
            put(other, "user", "team")

    def anew(verb: str, _request: Any) -> None:
        if verb == "transact":
            host.store.before = None
            other.entities.put(NAMESPACE, "team", EntityChange(name="new"))

    host.store.before = child_then_anew
    with pytest.raises(InUse):
        host.entities.delete(NAMESPACE, "team")
    assert host.entities.get(NAMESPACE, "team").name == "new"


def test_no_child_is_left_without_a_parent_whoever_is_first(host: Host, start_host: Callable[[], Host]) -> None:
    """On engines whose indexes do not lag, so that the look after the removal sees everyone."""
    remover, registrar = start_host(), start_host()
    outcomes: list[str] = []
    start = threading.Barrier(2)

    def remove() -> None:
        for number in range(20):
            start.wait(timeout=60)
            try:
                remover.entities.delete(NAMESPACE, f"team-{number}")
            except InUse:
                outcomes.append("in use")
            except Contended:
                outcomes.append("contended")

    def register() -> None:
        for number in range(20):
            start.wait(timeout=60)
            try:
                put(registrar, f"user-{number}", f"team-{number}")
            except InvalidRequest:
                outcomes.append("no parent")
            except Contended:
                outcomes.append("contended")

    for number in range(20):
        put(host, f"team-{number}")
    threads = [threading.Thread(target=remove), threading.Thread(target=register)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entities = {str(item["entity_id"]): item.get("parent_id") for item in other_items(host)}
    orphans = [entity for entity, parent in entities.items() if parent is not None and parent not in entities]
    assert orphans == []
    assert len(outcomes) >= 20


def test_another_namespace_keeps_what_it_has_under_the_same_id(host: Host) -> None:
    for namespace in (NAMESPACE, "ns2"):
        host.entities.put(namespace, ENTITY, EntityChange())
        host.limits.put(namespace, Scope(ENTITY, RESOURCE), {"rpm": per_minute(10)})
    host.entities.delete(NAMESPACE, ENTITY)
    assert {item["PK"] for item in other_items(host)} == {f"ns2/ENTITY#{ENTITY}"}
    assert len(other_items(host)) == 2
