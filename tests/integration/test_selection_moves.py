"""A move is kept for the whole day, so nobody makes one by what is only cached. And one that can not be written."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.errors import Ambiguous, Contended, SluiceError, Unavailable, UnknownLabel
from sluice.core.orgs import AppSettings
from sluice.core.selection import Reason
from sluice.core.signals import Signal
from sluice.repository.retries import Throttled
from tests.fakes import FakeClock
from tests.integration.selecting import (
    CHAT,
    MINUTE_MS,
    NAMESPACE,
    SETTINGS,
    Selector,
    Start,
    at_update,
    selected,
    start_selector,
)

LATE = "late"
"""Named by the ordering before anybody defines it."""
WITH_LATE = replace(
    SETTINGS,
    model_ordering=("premium", LATE, "standard", "economy"),
    quotas_usd_micros={**SETTINGS.quotas_usd_micros, LATE: 1_000},
)

Move = Callable[[Selector], object]


def advance(process: Selector) -> bool:
    return process.selection.advance(NAMESPACE, CHAT, process.day(), process.clock.now_ms)


MOVES: dict[str, Move] = {"whoever asks": selected, "the rollup": advance}


@pytest.fixture(params=MOVES)
def move(request: pytest.FixtureRequest) -> Move:
    return MOVES[request.param]


@pytest.fixture
def start(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Start:
    def begin() -> Selector:
        return start_selector(dynamodb, table, clock)

    return begin


@pytest.fixture
def here(start: Start) -> Selector:
    process = start()
    process.put_tenant()
    return process


class TestNoMoveByWhatIsCached:
    def test_a_quota_that_was_raised_since(self, here: Selector, move: Move) -> None:
        here.spend(10_000, 4_000)
        advance(here)
        assert selected(here)[0] == "standard"
        here.change_org(replace(SETTINGS, quotas_usd_micros={**SETTINGS.quotas_usd_micros, "standard": 9_000}))
        here.spend(10_000, 6_000)
        move(here)
        assert here.state().active_label == "standard"
        assert selected(here) == ("standard", Reason.STICKY, "premium", "standard")
        here.spend(10_000, 9_000)
        move(here)
        assert here.state().active_label == "economy"

    def test_the_apps_own_quota(self, here: Selector, move: Move) -> None:
        selected(here)
        here.change_app(AppSettings(quotas_usd_micros={"premium": 20_000}))
        here.spend(10_000)
        move(here)
        assert here.item() is None

    def test_whoever_saw_the_old_quota_reads_the_new_one_once(self, here: Selector) -> None:
        """And answers by it from then on."""
        selected(here)
        here.change_org(replace(SETTINGS, quotas_usd_micros={**SETTINGS.quotas_usd_micros, "premium": 20_000}))
        here.spend(10_000)
        assert selected(here) == ("premium", Reason.NORMAL, None, None)
        here.store.taken_calls()
        assert selected(here) == ("premium", Reason.NORMAL, None, None)
        assert here.store.taken_calls() == ["batch_get"]

    def test_a_label_that_another_process_knows_and_moved_to(self, here: Selector, start: Start, move: Move) -> None:
        """Hole: it looks undefined, so selection begins anew and passes over it, whatever was just read of labels."""
        here.change_org(WITH_LATE)
        selected(here)
        here.define(LATE)
        here.spend(10_000)
        assert selected(start()) == (LATE, Reason.QUOTA_EXCEEDED, "premium", LATE)
        move(here)
        assert here.state().active_label == LATE
        assert selected(here)[:2] == (LATE, Reason.STICKY)

    def test_a_label_that_another_process_moves_to_in_between(self, here: Selector, start: Start, move: Move) -> None:
        here.change_org(WITH_LATE)
        selected(here)
        here.spend(10_000)

        def overtake() -> None:
            here.define(LATE)
            assert selected(start())[0] == LATE

        at_update(here, overtake)
        move(here)
        assert here.state().active_label == LATE

    def test_a_label_that_was_defined_since(self, here: Selector, move: Move) -> None:
        here.change_org(WITH_LATE)
        selected(here)
        here.define(LATE)
        here.spend(10_000)
        here.clock.advance(1_000)
        move(here)
        assert here.state().active_label == LATE

    def test_a_label_that_was_put_into_the_ordering_since_is_judged_by_its_total(
        self, here: Selector, move: Move
    ) -> None:
        here.change_org(replace(SETTINGS, model_ordering=("premium", "standard")))
        selected(here)
        here.change_org(replace(SETTINGS, model_ordering=("premium", "economy", "standard")))
        here.spend(10_000, 0, 2_000)
        move(here)
        assert here.state().active_label == "standard"

    def test_sticky_fallback_that_was_switched_off_since(self, here: Selector, move: Move) -> None:
        selected(here)
        here.change_org(replace(SETTINGS, sticky_fallback_enabled=False))
        here.spend(10_000)
        move(here)
        assert here.item() is None
        assert selected(here) == ("standard", Reason.QUOTA_EXCEEDED, "premium", None)

    @pytest.mark.parametrize("ordering", [(), ("nobody-defines",)])
    def test_an_ordering_of_which_nothing_is_left(self, here: Selector, ordering: tuple[str, ...]) -> None:
        """Waiting for another day would not help."""
        selected(here)
        quotas = {**SETTINGS.quotas_usd_micros, "nobody-defines": 5}
        here.change_org(replace(SETTINGS, model_ordering=ordering, quotas_usd_micros=quotas))
        here.spend(10_000)
        with pytest.raises(UnknownLabel):
            selected(here)


class TestTheRollupTells:
    def test_that_nothing_is_left_to_be_done(self, here: Selector) -> None:
        here.spend(10_000)
        for _ in range(2):
            assert advance(here)
        here.spend(10_000, 5_000, 2_000)
        assert advance(here)

    def test_that_a_label_that_is_not_defined_yet_may_be_moved_to(self, here: Selector) -> None:
        here.change_org(
            replace(SETTINGS, model_ordering=("premium", LATE), quotas_usd_micros=WITH_LATE.quotas_usd_micros)
        )
        here.spend(10_000)
        assert not advance(here)
        here.define(LATE)
        here.clock.advance(1_000)
        assert advance(here)
        assert here.state().active_label == LATE

    def test_that_others_moved_it_faster(self, here: Selector) -> None:
        here.spend(10_000)
        elsewhere = iter(["gone-1", "gone-2", "gone-3", "gone-4"])

        def flip(verb: str, request: Any) -> None:
            if verb == "update":
                here.store.inner.put(
                    {"Item": {**request["Key"], **sticky_item(here, next(elsewhere))}}, repeatable=True
                )

        here.store.before = flip
        assert not advance(here)


def sticky_item(process: Selector, label: str) -> dict[str, Any]:
    return {
        "kind": "sticky_state",
        "ns": NAMESPACE,
        "entity_id": CHAT,
        "day": process.day().name,
        "active_label": label,
    }


FAULTS = (Contended(50), Throttled("too much"), Unavailable("silence"), Ambiguous("lost"))


class TestAMoveThatCanNotBeWritten:
    @pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
    @pytest.mark.parametrize("at", ["update", "consistent batch_get"])
    def test_its_choice_is_answered_and_not_kept(self, here: Selector, fault: SluiceError, at: str) -> None:
        """Also where the settings can not be read anew."""
        selected(here)
        here.spend(10_000)
        failing(here, at, fault)
        assert selected(here) == ("standard", Reason.QUOTA_EXCEEDED, "premium", None)
        assert here.item() is None
        assert here.meter.counts[Signal.STICKY_ADVANCES] == 0
        here.store.before = None
        assert selected(here) == ("standard", Reason.QUOTA_EXCEEDED, "premium", "standard")

    def test_what_was_found_meanwhile_counts(self, here: Selector, start: Start) -> None:
        """Another put a label into the ordering, and moved to it; then the table falls silent."""
        other = start()
        selected(here)
        here.spend(10_000)

        def overtake() -> None:
            here.change_org(WITH_LATE)
            here.define(LATE)
            assert selected(other)[0] == LATE
            failing(here, "consistent batch_get", Unavailable("silence"))

        at_update(here, overtake)
        assert selected(here) == ("standard", Reason.QUOTA_EXCEEDED, "premium", None)
        assert here.state().active_label == LATE

    def test_no_total_is_taken_for_unspent_because_it_could_not_be_read(self, here: Selector) -> None:
        here.change_org(replace(SETTINGS, model_ordering=("premium", "standard")))
        selected(here)
        here.change_org(replace(SETTINGS, model_ordering=("premium", "economy", "standard")))
        here.spend(10_000, 0, 2_000)
        faults = iter([None, Unavailable("silence")])

        def fail(verb: str, _request: Any) -> None:
            if verb == "consistent batch_get" and (fault := next(faults)) is not None:
                raise fault

        here.store.before = fail
        assert selected(here) == ("standard", Reason.QUOTA_EXCEEDED, "premium", None)

    @pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
    def test_the_rollup_is_told(self, here: Selector, fault: SluiceError) -> None:
        here.spend(10_000)
        failing(here, "update", fault)
        with pytest.raises(type(fault)):
            advance(here)


def failing(process: Selector, at: str, fault: SluiceError) -> None:
    def fail(verb: str, _request: Any) -> None:
        if verb == at:
            raise fault

    process.store.before = fail


class TestAnOrderingOfWhichNothingIsKnown:
    def test_what_was_just_defined_is_found_within_a_second(self, here: Selector) -> None:
        here.change_org(replace(SETTINGS, model_ordering=(LATE,), quotas_usd_micros={LATE: 5}))
        for _ in range(2):
            with pytest.raises(UnknownLabel):
                selected(here)
        here.define(LATE)
        here.clock.advance(1_000)
        assert selected(here)[0] == LATE

    def test_labels_are_not_read_for_every_refusal(self, here: Selector) -> None:
        here.change_org(replace(SETTINGS, model_ordering=(LATE,), quotas_usd_micros={LATE: 5}))
        here.clock.advance(MINUTE_MS)
        here.store.taken_calls()
        for _ in range(5):
            with pytest.raises(UnknownLabel):
                selected(here)
        assert here.store.taken_calls().count("query") <= 3, "labels, and profiles of the app and of the org"
