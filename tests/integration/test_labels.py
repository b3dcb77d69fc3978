"""Labels: replaced and removed with their audit event, once, and never over a version that was not seen."""

from collections.abc import Callable

import pytest

from sluice.core.errors import Contended, InvalidRequest, NotFound, PreconditionFailed
from sluice.core.labels import LabelDefinition
from sluice.edge.etags import label_etag, label_if_match
from sluice.services import labels as labels_module
from sluice.services.labels import LabelFields
from sluice.services.listing import PageRequest
from tests.fakes import FakeClock
from tests.integration.catalogs import HAIKU, SOMEBODY, SONNET, Shop
from tests.integration.conftest import NAMESPACE, Host
from tests.integration.test_limits import before_transact, forget_the_token, lose_an_answer

FULL = LabelFields(SONNET, "high", "claude", "for the few", 3_000_000, 15_000_000)


@pytest.fixture
def shop(host: Host) -> Shop:
    return Shop.opened(host)


def test_a_label_is_put_replaced_and_removed(shop: Shop, clock: FakeClock) -> None:
    with pytest.raises(NotFound, match="no such label"):
        shop.labels.get(NAMESPACE, "premium")
    done = shop.labels.put(NAMESPACE, "premium", FULL, author=SOMEBODY)
    assert done.created
    made = LabelDefinition(
        "premium", SONNET, "high", "claude", "for the few", 3_000_000, 15_000_000, 1, clock.now_ms, clock.now_ms
    )
    assert done.stored == shop.labels.get(NAMESPACE, "premium") == made
    clock.advance(5)
    replaced = shop.labels.put(NAMESPACE, "premium", LabelFields(HAIKU), author=SOMEBODY)
    assert not replaced.created
    assert replaced.stored == LabelDefinition(
        "premium", HAIKU, None, None, None, None, None, 2, made.created_at_ms, clock.now_ms
    )
    assert shop.labels.get(NAMESPACE, "premium") == replaced.stored
    shop.labels.delete(NAMESPACE, "premium", author=SOMEBODY)
    for refused in (shop.labels.get, lambda ns, label: shop.labels.delete(ns, label, author=SOMEBODY)):
        with pytest.raises(NotFound, match="no such label"):
            refused(NAMESPACE, "premium")
    with pytest.raises(NotFound):
        shop.labels.get("another", "premium")


def test_every_change_is_told_with_what_was_and_what_is(shop: Shop, clock: FakeClock) -> None:
    shop.labels.put(NAMESPACE, "premium", FULL, author=SOMEBODY)
    clock.advance(1)
    shop.define("premium", HAIKU)
    clock.advance(1)
    shop.labels.delete(NAMESPACE, "premium", author=SOMEBODY)
    put, replaced, removed = shop.audit("$SYSTEM")
    assert {event.target for event in (put, replaced, removed)} == {"labels/premium"}
    assert {event.author for event in (put, replaced, removed)} == {SOMEBODY}
    assert [event.action for event in (put, replaced, removed)] == ["label.put", "label.put", "label.delete"]
    assert put.before is None
    assert put.after == {
        "label": "premium",
        "version": 1,
        "model_id": SONNET,
        "tier": "high",
        "family": "claude",
        "description": "for the few",
        "input_price": 3_000_000,
        "output_price": 15_000_000,
    }
    assert (replaced.before, removed.before) == (put.after, replaced.after)
    assert replaced.after == {"label": "premium", "version": 2, "model_id": HAIKU}
    assert removed.after is None


def test_a_version_that_was_not_seen_is_not_touched(shop: Shop) -> None:
    seen = label_etag(shop.define("premium"))
    newer = shop.labels.put(NAMESPACE, "premium", LabelFields(HAIKU), label_if_match(seen), author=SOMEBODY).stored
    for act in (
        lambda: shop.labels.put(NAMESPACE, "premium", FULL, label_if_match(seen), author=SOMEBODY),
        lambda: shop.labels.delete(NAMESPACE, "premium", label_if_match(seen), author=SOMEBODY),
        lambda: shop.labels.put(NAMESPACE, "other", FULL, label_if_match("*"), author=SOMEBODY),
    ):
        with pytest.raises(PreconditionFailed):
            act()
    assert shop.labels.get(NAMESPACE, "premium") == newer
    assert len(shop.audit("$SYSTEM")) == 2


def test_a_label_made_again_is_another_one(shop: Shop, clock: FakeClock) -> None:
    seen = label_etag(shop.define("premium"))
    shop.labels.delete(NAMESPACE, "premium", author=SOMEBODY)
    clock.advance(1)
    shop.define("premium")
    with pytest.raises(PreconditionFailed):
        shop.labels.delete(NAMESPACE, "premium", label_if_match(seen), author=SOMEBODY)


def test_a_writer_that_meets_another_looks_again(shop: Shop, start_host: Callable[[], Host]) -> None:
    other = Shop.opened(start_host())
    before_transact(shop.host, lambda: other.define("premium", HAIKU))
    done = shop.labels.put(NAMESPACE, "premium", FULL, author=SOMEBODY)
    assert (done.created, done.stored.version, done.stored.model_id) == (False, 2, SONNET)
    # Both at the same time, so in no order.
    told = shop.audit("$SYSTEM")
    assert {None if event.before is None else event.before["version"] for event in told} == {None, 1}
    # What it demands is demanded of what it then finds.
    before_transact(shop.host, lambda: other.define("premium", HAIKU))
    match = label_if_match(label_etag(done.stored))
    with pytest.raises(PreconditionFailed):
        shop.labels.put(NAMESPACE, "premium", FULL, match, author=SOMEBODY)


def test_a_remover_that_meets_another_looks_again(shop: Shop, start_host: Callable[[], Host]) -> None:
    other = Shop.opened(start_host())
    shop.define("premium")
    before_transact(shop.host, lambda: other.define("premium", HAIKU))
    shop.labels.delete(NAMESPACE, "premium", author=SOMEBODY)
    told = sorted(event.action for event in shop.audit("$SYSTEM"))
    assert told == ["label.delete", "label.put", "label.put"]
    # Removed by somebody else meanwhile: it is gone, and told once.
    shop.define("premium")
    before_transact(shop.host, lambda: other.labels.delete(NAMESPACE, "premium", author=SOMEBODY))
    shop.labels.delete(NAMESPACE, "premium", author=SOMEBODY)
    assert [event.action for event in shop.audit("$SYSTEM")].count("label.delete") == 2


def test_a_writer_does_not_try_for_ever(shop: Shop, start_host: Callable[[], Host]) -> None:
    other = Shop.opened(start_host())
    shop.define("premium")

    def always(verb: str, _request: object) -> None:
        if verb == "transact":
            other.define("premium", HAIKU)

    shop.host.store.before = always
    with pytest.raises(Contended):
        shop.define("premium")
    with pytest.raises(Contended):
        shop.labels.delete(NAMESPACE, "premium", author=SOMEBODY)
    assert shop.labels.get(NAMESPACE, "premium").model_id == HAIKU


def test_a_lost_answer_is_repeated_under_its_token(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    lose_an_answer(shop.host, monkeypatch)
    done = shop.labels.put(NAMESPACE, "premium", FULL, author=SOMEBODY)
    assert (done.created, done.stored.version) == (True, 1)
    assert len(shop.audit("$SYSTEM")) == 1


def test_a_change_that_was_applied_after_all_is_done_once(shop: Shop, start_host: Callable[[], Host]) -> None:
    other = Shop.opened(start_host())
    forget_the_token(shop.host, lambda: other.define("premium", HAIKU))
    done = shop.labels.put(NAMESPACE, "premium", FULL, author=SOMEBODY)
    assert (done.created, done.stored.version, done.stored.model_id) == (True, 1, SONNET)
    assert shop.labels.get(NAMESPACE, "premium").model_id == HAIKU


def test_a_removal_that_was_applied_after_all_does_not_remove_what_was_made_since(
    shop: Shop, clock: FakeClock, start_host: Callable[[], Host]
) -> None:
    other = Shop.opened(start_host())
    shop.define("premium")

    def make_again() -> None:
        clock.advance(1)
        other.define("premium", HAIKU)

    forget_the_token(shop.host, make_again)
    shop.host.store.taken_calls()
    shop.labels.delete(NAMESPACE, "premium", author=SOMEBODY)
    assert shop.host.store.taken_calls().count("transact") == 1
    assert shop.labels.get(NAMESPACE, "premium").model_id == HAIKU
    assert [event.action for event in shop.audit("$SYSTEM")].count("label.delete") == 1


def test_labels_are_listed_by_name_and_page(shop: Shop) -> None:
    names = [f"label-{number}" for number in range(5)]
    for name in reversed(names):
        shop.define(name)
    shop.labels.put("elsewhere", "foreign", FULL, author=SOMEBODY)
    listed: list[str] = []
    cursor: str | None = None
    for _ in range(3):
        page = shop.labels.list(NAMESPACE, PageRequest(2, cursor))
        listed += [label.label for label in page.items]
        cursor = page.next_cursor
    assert (listed, cursor) == (names, None)
    first = shop.labels.list(NAMESPACE, PageRequest(2))
    with pytest.raises(InvalidRequest) as raised:
        shop.labels.list("elsewhere", PageRequest(2, first.next_cursor))
    assert raised.value.field == "cursor"


def test_there_are_only_so_many(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels_module, "LABELS_MAX", 2)
    shop.define("a")
    shop.define("b")
    with pytest.raises(InvalidRequest, match="2 labels already") as raised:
        shop.define("c")
    assert raised.value.field == "label"
    assert shop.define("a", HAIKU).version == 2
    shop.labels.delete(NAMESPACE, "b", author=SOMEBODY)
    assert shop.define("c").version == 1
