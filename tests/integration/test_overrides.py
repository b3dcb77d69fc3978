"""The label that somebody sets for the rest of a day: whom it is for, until when, and what is told of it."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.errors import (
    Contended,
    InvalidRequest,
    NotFound,
    UnknownLabel,
)
from sluice.core.orgs import AppSettings
from sluice.core.quotas import Mode
from sluice.core.selection import Reason
from sluice.core.timelines import From
from sluice.repository.sticky import StickyName, override_set
from sluice.repository.store import Committed, TransactOutcome
from tests.fakes import FakeClock
from tests.integration.selecting import (
    AUTHOR,
    CHAT,
    HOUR_MS,
    MINUTE_MS,
    NAMESPACE,
    ORDERING,
    ORG,
    SEARCH,
    SETTINGS,
    USER,
    Selector,
    Start,
    at_transaction,
    selected,
    start_selector,
)


@pytest.fixture
def start(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Start:
    """One more process on the same table, with the same clock unless it is given another."""

    def begin(own_clock: FakeClock | None = None) -> Selector:
        return start_selector(dynamodb, table, own_clock or clock)

    return begin


@pytest.fixture
def here(start: Start) -> Selector:
    process = start()
    process.put_tenant()
    return process


class TestOverrides:
    def test_wins_over_quotas(self, here: Selector) -> None:
        here.spend(0, 5_000, 1_900)
        done = here.set_override("standard")
        assert (done.entity, done.created, done.override.until_ms) == (CHAT, True, here.day().ends_ms)
        found = here.selection.select(NAMESPACE, CHAT)
        assert (found.label, found.reason, found.mode) == ("standard", Reason.OVERRIDE, Mode.EXCEEDED)
        assert (found.sticky.override, found.previous_label, found.check_again_in_s) == (done.override, None, 60)
        assert selected(here, SEARCH)[0] == "premium"
        here.spend(10_000, 5_000, 2_000)
        assert selected(here)[:2] == ("standard", Reason.OVERRIDE)
        assert here.state().active_label is None, "selection itself stands where it stood"

    def test_ends(self, here: Selector) -> None:
        until_ms = here.clock.now_ms + HOUR_MS
        here.set_override("economy", until_ms)
        here.clock.now_ms = until_ms - 1
        assert selected(here)[1] is Reason.OVERRIDE
        here.clock.now_ms = until_ms
        assert selected(here) == ("premium", Reason.NORMAL, None, None)
        here.set_override("economy")
        here.clock.now_ms = here.day().ends_ms
        assert selected(here) == ("premium", Reason.NORMAL, None, None)

    def test_lasts_for_the_whole_day_also_where_a_change_of_the_zone_makes_it_longer(self, here: Selector) -> None:
        """Unless somebody said when it ends."""
        here.set_override("economy", entity=SEARCH)
        here.set_override("standard", entity=SEARCH, until_ms=here.day().ends_ms)
        here.set_override("standard", until_ms=here.day().ends_ms)
        here.set_override("economy")
        known = here.day()
        changed = replace(SETTINGS, zones=(*SETTINGS.zones, From(known.ends_ms, "Pacific/Honolulu")))
        here.change_org(changed)
        here.clock.now_ms = known.ends_ms + HOUR_MS
        longer = here.day(changed)
        assert (longer.name, longer.ends_ms) == (known.name, known.ends_ms + 10 * HOUR_MS)
        found = here.selection.select(NAMESPACE, CHAT)
        assert (found.label, found.reason) == ("economy", Reason.OVERRIDE)
        assert found.sticky.override is not None
        assert found.sticky.override.until_ms == longer.ends_ms
        assert selected(here, SEARCH)[0] == "premium"
        here.clock.now_ms = longer.ends_ms - 1
        assert selected(here)[1] is Reason.OVERRIDE
        here.clock.now_ms = longer.ends_ms
        assert selected(here) == ("premium", Reason.NORMAL, None, None)

    def test_is_replaced_and_removed(self, here: Selector) -> None:
        here.spend(10_000)
        selected(here)
        assert here.set_override("economy").created
        again = here.set_override("premium", here.clock.now_ms + HOUR_MS, USER)
        assert (again.entity, again.created) == (CHAT, False)
        assert selected(here) == ("premium", Reason.OVERRIDE, None, "standard")
        here.overrides.remove(NAMESPACE, USER, author=AUTHOR)
        assert selected(here) == ("standard", Reason.STICKY, "premium", "standard")
        with pytest.raises(NotFound):
            here.overrides.remove(NAMESPACE, CHAT, author=AUTHOR)

    def test_one_that_is_over_is_as_good_as_none(self, here: Selector) -> None:
        here.set_override("economy", here.clock.now_ms + 1)
        here.clock.advance(1)
        with pytest.raises(NotFound):
            here.overrides.remove(NAMESPACE, CHAT, author=AUTHOR)
        assert here.set_override("standard").created
        assert here.audit()[0].before is None

    def test_every_change_has_its_audit_event(self, here: Selector) -> None:
        first = here.set_override("economy").override
        second = here.set_override("standard", here.clock.now_ms + 5).override
        here.overrides.remove(NAMESPACE, CHAT, author=AUTHOR)
        images = [
            {"label": one.label, "reason": "premium is down", "until_ms": one.until_ms} for one in (first, second)
        ]
        # All in one millisecond, so in no order.
        changes = [(event.action, event.before, event.after) for event in here.audit()]
        assert len(changes) == 3
        for change in (
            ("selection_override.put", None, images[0]),
            ("selection_override.put", images[0], images[1]),
            ("selection_override.delete", images[1], None),
        ):
            assert change in changes
        assert {event.author for event in here.audit()} == {AUTHOR}
        assert {event.target for event in here.audit()} == {"selection/override?entity=chat"}

    @pytest.mark.parametrize("label", ["gold", "unquoted", "undefined", "Premium"])
    def test_a_label_that_selection_would_not_use(self, here: Selector, label: str) -> None:
        here.define("unquoted")
        here.define("gold")
        quotas = {**SETTINGS.quotas_usd_micros, "undefined": 5}
        here.change_org(replace(SETTINGS, quotas_usd_micros=quotas))
        here.change_app(AppSettings(model_ordering=(*ORDERING, "unquoted", "undefined")))
        with pytest.raises(UnknownLabel) as raised:
            here.set_override(label)
        assert raised.value.field == "label"
        assert (here.item(), here.audit()) == (None, [])

    def test_a_label_that_was_defined_elsewhere_just_now(self, here: Selector) -> None:
        """Hole: unknown for a minute to whoever had read the definitions before."""
        here.remove_label("economy")
        selected(here)
        with pytest.raises(UnknownLabel):
            here.set_override("economy")
        here.define("economy")
        here.clock.advance(1_000)
        assert here.set_override("economy").created

    def test_labels_are_not_read_for_every_refusal(self, here: Selector) -> None:
        here.set_override("economy")
        here.clock.advance(1_000)
        here.store.taken_calls()
        for _ in range(5):
            with pytest.raises(UnknownLabel):
                here.set_override("nobody-knows")
        assert here.store.taken_calls().count("query") <= 1

    def test_a_time_that_can_not_be(self, here: Selector) -> None:
        for until_ms in (0, here.clock.now_ms, here.day().ends_ms + 1):
            with pytest.raises(InvalidRequest) as raised:
                here.set_override("economy", until_ms)
            assert raised.value.field == "until"
        assert (here.item(), here.audit()) == (None, [])

    def test_whoever_may_not_speak_for_an_entity(self, here: Selector) -> None:
        for entity, within in ((USER, SEARCH), (SEARCH, CHAT), (ORG, CHAT), ("nobody", CHAT), ("nobody", None)):
            with pytest.raises(NotFound):
                here.set_override("economy", entity=entity, within=within)
            with pytest.raises(NotFound):
                here.overrides.remove(NAMESPACE, entity, within=within, author=AUTHOR)
        for entity in (USER, CHAT):
            here.set_override("economy", entity=entity, within=CHAT)

    def test_a_label_that_the_org_takes_away_suspends_it(self, here: Selector) -> None:
        here.set_override("economy")
        here.change_org(replace(SETTINGS, model_ordering=("premium", "standard")))
        here.clock.advance(MINUTE_MS)
        assert selected(here) == ("premium", Reason.NORMAL, None, None)
        here.change_org(SETTINGS)
        here.clock.advance(MINUTE_MS)
        assert selected(here)[1] is Reason.OVERRIDE

    def test_two_set_it_at_once(self, here: Selector, start: Start) -> None:
        other = start()
        at_transaction(here, lambda: other.set_override("standard"))
        assert not here.set_override("economy").created
        assert here.state().override is not None
        befores = sorted(str((event.before or {}).get("label")) for event in here.audit())
        assert befores == ["None", "standard"]

    def test_two_remove_it_at_once(self, here: Selector, start: Start) -> None:
        other = start()
        here.set_override("economy")
        at_transaction(here, lambda: other.overrides.remove(NAMESPACE, CHAT, author=AUTHOR))
        here.overrides.remove(NAMESPACE, CHAT, author=AUTHOR)
        assert [event.action for event in here.audit()].count("selection_override.delete") == 1

    def test_one_that_is_replaced_while_it_is_removed(self, here: Selector, start: Start) -> None:
        other = start()
        here.set_override("economy")
        at_transaction(here, lambda: other.set_override("standard"))
        here.overrides.remove(NAMESPACE, CHAT, author=AUTHOR)
        assert here.state().override is None
        (deleted,) = [event for event in here.audit() if event.action == "selection_override.delete"]
        assert (deleted.before or {}).get("label") == "standard"

    @pytest.mark.parametrize("created", [True, False])
    def test_what_was_applied_after_all_happens_once(self, here: Selector, created: bool) -> None:
        """Sent, answered by nobody, and built anew because another change came in between."""
        if not created:
            here.set_override("standard")
        before = len(here.audit())
        store = here.store.inner
        transact = store.transact

        def applied_and_failed(writes: Any, token: str) -> TransactOutcome:
            assert isinstance(transact(writes, token), Committed)
            return transact(writes, f"{token[:-1]}!")

        with patch.object(store, "transact", applied_and_failed):
            assert here.set_override("economy").created is created
            assert len(here.audit()) == before + 1
            here.overrides.remove(NAMESPACE, CHAT, author=AUTHOR)
        assert len(here.audit()) == before + 2
        assert here.state().override is None

    def test_a_change_that_is_always_overtaken(self, here: Selector) -> None:
        here.set_override("economy")
        store, labels = here.store.inner, iter(ORDERING * 4)
        transact = store.transact

        def overtaken(writes: Any, token: str) -> TransactOutcome:
            found = here.state().override
            assert found is not None
            name = StickyName(NAMESPACE, CHAT, here.day())
            other = replace(found, reason=f"{found.reason}.", label=next(labels))
            assert isinstance(transact([override_set(name, other, found, 1)], f"{token[:-1]}!"), Committed)
            return transact(writes, token)

        with patch.object(store, "transact", overtaken):
            with pytest.raises(Contended):
                here.set_override("standard")
            with pytest.raises(Contended):
                here.overrides.remove(NAMESPACE, CHAT, author=AUTHOR)
        assert len(here.audit()) == 1
