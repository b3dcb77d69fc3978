"""Limits of a level: replaced and removed with their audit event, once, and never over a version that was not seen."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from sluice.core.audit import Author
from sluice.core.errors import Ambiguous, Contended, InvalidRequest, NotFound, PreconditionFailed
from sluice.core.limits import DEFAULT_RESOURCE, SYSTEM, OnUnavailable, Scope
from sluice.edge.etags import limits_etag
from sluice.repository.items import StoredLimits
from sluice.repository.store import Cancelled
from sluice.shell import new_token
from tests.fakes import FakeClock
from tests.integration.audits import events, other_items
from tests.integration.conftest import NAMESPACE, OF_RESOURCE, RESOURCE, Host
from tests.integration.test_acquire import per_minute

SOMEBODY = Author("client-7", "request-9")


def before_transact(host: Host, act: Callable[[], object]) -> None:
    """Once, at the last moment before the write."""

    def interfere(verb: str, _request: Any) -> None:
        if verb == "transact":
            host.store.before = None
            act()

    host.store.before = interfere


def forget_the_token(host: Host, meanwhile: Callable[[], object] = lambda: None) -> None:
    """The next transaction is applied and its answer lost; sent again, it is judged anew. The worst that can be."""
    real = host.store.inner.transact

    def transact(writes: Any, token: str) -> Any:
        host.store.inner.transact = real  # type: ignore[method-assign]  # only once
        real(writes, token)
        meanwhile()
        return real(writes, token[::-1])

    host.store.inner.transact = transact  # type: ignore[method-assign, assignment]  # the lost answer is played here


def sent_transactions(host: Host) -> list[Any]:
    """The transactions that are sent from now on."""
    sent: list[Any] = []
    host.store.after = lambda verb, request: sent.append(request) if verb == "transact" else None
    return sent


def lose_an_answer(host: Host, monkeypatch: pytest.MonkeyPatch, times: int = 1) -> None:
    """The engine applies the transaction, and the client's time is over before it hears so."""
    client = host.store.inner._client  # type: ignore[attr-defined]  # the real store
    real = client.transact_write_items
    left = [times]

    def transact_write_items(**arguments: Any) -> Any:
        answer = real(**arguments)
        if left[0]:
            left[0] -= 1
            raise ReadTimeoutError(endpoint_url="-")
        return answer

    monkeypatch.setattr(client, "transact_write_items", transact_write_items)


def test_every_change_is_told_with_what_was_and_what_is(host: Host, clock: FakeClock) -> None:
    first, second = {"rpm": per_minute(5)}, {"rpm": None, "tpm": per_minute(7)}
    host.limits.put(NAMESPACE, OF_RESOURCE, first, author=SOMEBODY)
    clock.advance(1)
    host.limits.put(NAMESPACE, OF_RESOURCE, second)
    clock.advance(1)
    host.limits.delete(NAMESPACE, OF_RESOURCE, author=SOMEBODY)
    put, replaced, removed = events(host)
    five = {"capacity": 5, "burst": 5, "refill_amount": 5, "refill_period_seconds": 60}
    seven = {"capacity": 7, "burst": 7, "refill_amount": 7, "refill_period_seconds": 60}
    assert (put.action, put.before, put.after) == (
        "limits.put",
        None,
        {"config_version": 1, "limits": {"rpm": five}},
    )
    assert (replaced.action, replaced.before, replaced.after) == (
        "limits.put",
        put.after,
        {"config_version": 2, "limits": {"rpm": None, "tpm": seven}},
    )
    assert (removed.action, removed.before, removed.after) == ("limits.delete", replaced.after, None)
    assert [event.author.actor for event in (put, replaced, removed)] == ["client-7", "system", "client-7"]
    assert put.author == SOMEBODY
    assert {event.subject for event in (put, replaced, removed)} == {f"$RESOURCE:{RESOURCE}"}
    assert [event.at_ms - put.at_ms for event in (put, replaced, removed)] == [0, 1, 2]
    assert len({event.event_id for event in (put, replaced, removed)}) == 3


@pytest.mark.parametrize(
    ("scope", "subject", "target"),
    [
        (SYSTEM, "$SYSTEM", "limits/system"),
        (Scope(resource="r"), "$RESOURCE:r", "limits/resources/r"),
        (Scope("e", "r"), "e", "limits/entities/e/r"),
        (Scope("e", DEFAULT_RESOURCE), "e", "limits/entities/e/_default_"),
    ],
)
def test_every_level_has_its_subject(host: Host, scope: Scope, subject: str, target: str) -> None:
    host.limits.put(NAMESPACE, scope, {"rpm": per_minute(5)}, OnUnavailable.ALLOW if scope == SYSTEM else None)
    (event,) = events(host)
    assert (event.subject, event.target) == (subject, target)
    assert event.after is not None
    assert event.after.get("on_unavailable") == ("allow" if scope == SYSTEM else None)


def test_a_change_that_is_not_made_is_not_told(host: Host) -> None:
    host.put_limits({"rpm": per_minute(5)})
    with pytest.raises(PreconditionFailed):
        host.limits.put(NAMESPACE, OF_RESOURCE, {"rpm": per_minute(6)}, precondition=lambda _seen: False)
    with pytest.raises(PreconditionFailed):
        host.limits.delete(NAMESPACE, OF_RESOURCE, lambda _seen: False)
    with pytest.raises(InvalidRequest):
        host.limits.put(NAMESPACE, OF_RESOURCE, {"wcu": per_minute(6)})
    with pytest.raises(NotFound):
        host.limits.delete(NAMESPACE, SYSTEM)
    assert len(events(host)) == 1


def test_writers_of_limits_do_not_overwrite_each_other_unseen(host: Host, start_host: Callable[[], Host]) -> None:
    other = start_host()
    before_transact(host, lambda: other.put_limits({"rpm": per_minute(1)}))
    done = host.limits.put(NAMESPACE, OF_RESOURCE, {"rpm": per_minute(2)})
    assert (done.stored.config_version, done.created) == (2, False)
    assert host.configuration.reread(NAMESPACE, "e", RESOURCE).limits["rpm"].capacity == 2
    # Whoever met another tells what it really replaced.
    assert sorted((event.before is None) for event in events(host)) == [False, True]


def test_limits_are_written_again_and_again_under_interference_only_so_often(
    host: Host, start_host: Callable[[], Host]
) -> None:
    other = start_host()
    host.store.before = lambda verb, _request: other.put_limits({"rpm": per_minute(1)}) if verb == "transact" else None
    with pytest.raises(Contended):
        host.limits.put(NAMESPACE, OF_RESOURCE, {"rpm": per_minute(2)}, author=SOMEBODY)
    assert SOMEBODY not in [event.author for event in events(host)]


def test_a_level_that_was_removed_and_made_again_is_another_version(host: Host, clock: FakeClock) -> None:
    first = host.limits.put(NAMESPACE, OF_RESOURCE, {"rpm": per_minute(5)}).stored
    host.limits.delete(NAMESPACE, OF_RESOURCE)
    clock.advance(1)
    again = host.limits.put(NAMESPACE, OF_RESOURCE, {"rpm": per_minute(5)}).stored
    assert first.config_version == again.config_version
    with pytest.raises(PreconditionFailed):
        host.limits.put(NAMESPACE, OF_RESOURCE, {"rpm": per_minute(6)}, precondition=lambda seen: seen == first)


@pytest.mark.parametrize("verb", ["put", "delete"])
def test_a_precondition_is_judged_on_what_is_really_replaced(
    host: Host, start_host: Callable[[], Host], verb: str
) -> None:
    """The version changes between the look and the write: the demand is made again of what is there then."""
    other = start_host()
    seen = host.limits.put(NAMESPACE, OF_RESOURCE, {"rpm": per_minute(5)}).stored

    def as_seen(now: StoredLimits | None) -> bool:
        return now == seen

    acts: dict[str, Callable[[], object]] = {
        "put": lambda: host.limits.put(NAMESPACE, OF_RESOURCE, {"rpm": per_minute(7)}, precondition=as_seen),
        "delete": lambda: host.limits.delete(NAMESPACE, OF_RESOURCE, as_seen),
    }
    before_transact(host, lambda: other.put_limits({"rpm": per_minute(6)}))
    with pytest.raises(PreconditionFailed):
        acts[verb]()
    assert host.limits.get(NAMESPACE, OF_RESOURCE).limits == {"rpm": per_minute(6)}
    assert len(events(host)) == 2


def test_removing_what_another_removes_at_once_is_done_and_told_once(
    host: Host, start_host: Callable[[], Host]
) -> None:
    other = start_host()
    host.put_limits({"rpm": per_minute(5)})
    before_transact(host, lambda: other.limits.delete(NAMESPACE, OF_RESOURCE))
    host.limits.delete(NAMESPACE, OF_RESOURCE)
    assert len(events(host, "limits.delete")) == 1
    with pytest.raises(NotFound):
        host.limits.delete(NAMESPACE, OF_RESOURCE)


def test_removing_under_interference_is_bounded(host: Host, start_host: Callable[[], Host]) -> None:
    other = start_host()
    host.put_limits({"rpm": per_minute(5)})
    host.store.before = lambda verb, _request: other.put_limits({"rpm": per_minute(1)}) if verb == "transact" else None
    with pytest.raises(Contended):
        host.limits.delete(NAMESPACE, OF_RESOURCE)


def test_a_lost_answer_is_asked_for_again_under_the_same_token(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    lose_an_answer(host, monkeypatch)
    done = host.limits.put(NAMESPACE, OF_RESOURCE, {"rpm": per_minute(5)})
    assert (done.created, done.stored) == (True, host.limits.get(NAMESPACE, OF_RESOURCE))
    lose_an_answer(host, monkeypatch)
    host.limits.delete(NAMESPACE, OF_RESOURCE)
    assert [event.action for event in events(host)] in (
        ["limits.put", "limits.delete"],
        ["limits.delete", "limits.put"],
    )
    assert other_items(host) == []


@pytest.mark.parametrize("applied", [True, False])
def test_an_answer_that_was_lost_twice_leaves_a_doubt_and_no_half_change(
    host: Host, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    def fail(verb: str, _request: Any) -> None:
        if verb == "transact":
            raise Ambiguous("timeout")

    if applied:
        lose_an_answer(host, monkeypatch, times=2)
    else:
        host.store.before = fail
    with pytest.raises(Ambiguous):
        host.limits.put(NAMESPACE, OF_RESOURCE, {"rpm": per_minute(5)})
    assert len(other_items(host)) == len(events(host)) == (1 if applied else 0)


def test_a_change_that_was_applied_after_all_is_recognised_by_its_event(host: Host) -> None:
    forget_the_token(host)
    first = host.limits.put(NAMESPACE, OF_RESOURCE, {"rpm": per_minute(5)})
    assert (first.created, first.stored) == (True, host.limits.get(NAMESPACE, OF_RESOURCE))
    forget_the_token(host)
    second = host.limits.put(NAMESPACE, OF_RESOURCE, {"rpm": per_minute(6)})
    assert (second.created, second.stored) == (False, host.limits.get(NAMESPACE, OF_RESOURCE))
    forget_the_token(host)
    host.limits.delete(NAMESPACE, OF_RESOURCE, lambda seen: seen == second.stored)
    assert other_items(host) == []
    assert len(events(host)) == 3


def test_a_change_that_was_applied_after_all_does_not_undo_what_came_after(
    host: Host, start_host: Callable[[], Host]
) -> None:
    """Hole: built anew on top of the other's version, it would overwrite that unseen and be made twice."""
    other = start_host()
    forget_the_token(host, lambda: other.put_limits({"rpm": per_minute(6)}))
    mine = host.limits.put(NAMESPACE, OF_RESOURCE, {"rpm": per_minute(5)})
    assert mine.stored.limits == {"rpm": per_minute(5)}
    assert host.limits.get(NAMESPACE, OF_RESOURCE).limits == {"rpm": per_minute(6)}

    def make_again() -> None:
        host.clock.advance(1)
        other.put_limits({"rpm": per_minute(7)})

    forget_the_token(host, make_again)
    host.limits.delete(NAMESPACE, OF_RESOURCE)
    assert host.limits.get(NAMESPACE, OF_RESOURCE).limits == {"rpm": per_minute(7)}
    assert len(events(host)) == 4


def test_a_try_that_arrives_late_changes_nothing(host: Host, start_host: Callable[[], Host]) -> None:
    """Hole: the first try creates, so it would bring back what was removed long after it had been given up."""
    other = start_host()
    tries = sent_transactions(host)
    before_transact(host, lambda: other.put_limits({"rpm": per_minute(1)}))
    host.put_limits({"rpm": per_minute(2)})
    other.limits.delete(NAMESPACE, OF_RESOURCE)
    late, _made = tries
    assert isinstance(host.store.inner.transact(late, new_token()), Cancelled)
    assert other_items(host) == []


def test_the_change_and_its_event_are_one_transaction(host: Host) -> None:
    host.put_limits({"rpm": per_minute(5)})
    host.limits.delete(NAMESPACE, OF_RESOURCE)
    assert host.store.taken_calls() == ["consistent get", "transact"] * 2


def test_cancelled_elements_say_which_failed(host: Host) -> None:
    """Both engines must name the event among the failures, as AWS does: the recognition above rests on it."""
    seen: list[Cancelled] = []
    real = host.store.inner.transact

    def transact(writes: Any, token: str) -> Any:
        real(writes, token)
        again = real(writes, token[::-1])
        assert isinstance(again, Cancelled)
        seen.append(again)
        return again

    host.store.inner.transact = transact  # type: ignore[method-assign, assignment]  # as above
    host.put_limits({"rpm": per_minute(5)})
    (cancelled,) = seen
    assert [failure is not None and failure.item is not None for failure in cancelled.failures] == [True, True]


def test_a_replaced_level_says_when(host: Host, clock: FakeClock) -> None:
    first = host.limits.put(NAMESPACE, OF_RESOURCE, {"rpm": per_minute(5)}).stored
    clock.advance(5)
    second = host.limits.put(NAMESPACE, OF_RESOURCE, {"rpm": per_minute(5)}).stored
    assert (second.created_at_ms, second.updated_at_ms) == (first.created_at_ms, first.updated_at_ms + 5)
    clock.advance(1)
    host.limits.delete(NAMESPACE, OF_RESOURCE)
    again = host.limits.put(NAMESPACE, OF_RESOURCE, {"rpm": per_minute(5)}).stored
    assert limits_etag(again) not in {limits_etag(first), limits_etag(second)}


def test_writers_at_once_leave_one_history_without_a_gap(host: Host, start_host: Callable[[], Host]) -> None:
    """Each change is told once, on top of the one before: the events form one chain of versions."""
    writers = [start_host() for _ in range(4)]
    made = [0] * len(writers)

    def write(number: int) -> None:
        for round_number in range(10):
            try:
                writers[number].limits.put(NAMESPACE, OF_RESOURCE, {f"l{number}": per_minute(1 + round_number)})
            except Contended:
                continue
            made[number] += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(writers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    versions = sorted(
        (0 if event.before is None else event.before["config_version"], event.after["config_version"])
        for event in events(host)
        if event.after is not None
    )
    assert versions == [(number, number + 1) for number in range(sum(made))]
    assert host.limits.get(NAMESPACE, OF_RESOURCE).config_version == sum(made) > len(writers)
