"""Selection on a table: quotas that fill, days that end, and many processes at once."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.arns import ProfileRefused
from sluice.core.errors import (
    AllQuotasExceeded,
    InvalidRequest,
    NotFound,
    SpentLabel,
    Unavailable,
    UnknownLabel,
)
from sluice.core.orgs import AppSettings, QuotaScope
from sluice.core.period import LocalDay
from sluice.core.pricing import TokenKind
from sluice.core.quotas import Mode
from sluice.core.selection import Reason
from sluice.core.signals import Signal
from sluice.core.timelines import From, always
from sluice.repository.requests import UpdateRequest
from sluice.repository.sticky import StickyState
from sluice.repository.store import Applied, ConditionFailed, Outcome
from tests.fakes import FakeClock
from tests.integration.selecting import (
    CHAT,
    HOUR_MS,
    MINUTE_MS,
    NAMESPACE,
    ORG,
    PROFILED_MODEL,
    REGION,
    SEARCH,
    SETTINGS,
    USER,
    Selector,
    Start,
    at_update,
    read_by,
    reading,
    selected,
    start_selector,
)

APP_SCOPE = replace(SETTINGS, quota_scopes=always(QuotaScope.APP))


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


def all_spent(process: Selector, app: str | None = CHAT) -> AllQuotasExceeded:
    with pytest.raises(AllQuotasExceeded) as raised:
        process.selection.select(NAMESPACE, app)
    return raised.value


class TestADay:
    def test_from_the_first_to_none_and_anew_at_midnight(self, here: Selector) -> None:
        """Vectors 21 and 23."""
        assert selected(here) == ("premium", Reason.NORMAL, None, None)
        assert here.item() is None, "nothing to be kept"
        here.spend(9_999, 0, 0)
        assert selected(here) == ("premium", Reason.NORMAL, None, None)
        here.spend(10_000, 0, 0)
        assert selected(here) == ("standard", Reason.QUOTA_EXCEEDED, "premium", "standard")
        for _ in range(2):
            assert selected(here) == ("standard", Reason.STICKY, "premium", "standard")
        here.spend(10_000, 5_000, 0)
        assert selected(here) == ("economy", Reason.QUOTA_EXCEEDED, "standard", "economy")
        assert selected(here) == ("economy", Reason.STICKY, "standard", "economy")
        here.spend(10_001, 5_002, 2_000)
        today = here.day()
        refused = all_spent(here)
        assert refused.resets_at_ms == today.ends_ms
        assert refused.retry_after_ms == today.ends_ms - here.clock.now_ms
        assert refused.labels == (
            SpentLabel("premium", 10_001, 10_000),
            SpentLabel("standard", 5_002, 5_000),
            SpentLabel("economy", 2_000, 2_000),
        )
        assert here.meter.counts[Signal.STICKY_ADVANCES] == 2
        here.clock.now_ms = today.ends_ms - 1
        all_spent(here)
        here.clock.now_ms = today.ends_ms
        assert selected(here) == ("premium", Reason.NORMAL, None, None)
        assert here.state(day=today).active_label == "economy"

    def test_what_is_told(self, here: Selector) -> None:
        here.clock.now_ms = here.day().starts_ms + 10 * HOUR_MS
        here.spend(10_000, 4_800)
        found = here.selection.select(NAMESPACE, CHAT)
        assert (found.entity, found.day, found.label) == (CHAT, here.day(), "standard")
        assert found.mode is Mode.TIGHT
        # 480 an hour: the last 200 go in 25 minutes.
        assert found.check_again_in_s == 60
        assert found.as_of_ms == here.clock.now_ms
        assert [(one.spend.label, one.spend.spent_usd_micros, one.mode) for one in found.labels] == [
            ("premium", 10_000, Mode.EXCEEDED),
            ("standard", 4_800, Mode.TIGHT),
            ("economy", 0, Mode.NORMAL),
        ]
        assert [one.as_of_ms for one in found.labels] == [here.clock.now_ms, here.clock.now_ms, None]
        assert found.model_id == "model-of-standard"
        assert found.price is not None
        assert found.price.standard == {TokenKind.INPUT: 3}
        here.spend(10_000, 4_990)
        # 499 an hour: the last 10 go in 72 s, and that is later than the interval.
        assert here.selection.select(NAMESPACE, CHAT).check_again_in_s == 60
        here.spend(10_000, 4_995)
        assert here.selection.select(NAMESPACE, CHAT).check_again_in_s == 36

    def test_a_quota_that_is_raised_does_not_bring_it_back(self, here: Selector) -> None:
        """Vector 24."""
        here.spend(10_000)
        selected(here)
        here.change_org(replace(SETTINGS, quotas_usd_micros={**SETTINGS.quotas_usd_micros, "premium": 90_000}))
        here.clock.advance(MINUTE_MS)
        assert selected(here) == ("standard", Reason.STICKY, "premium", "standard")

    def test_an_ordering_that_lacks_the_label_is_begun_anew(self, here: Selector) -> None:
        """Vector 24."""
        here.spend(10_000)
        selected(here)
        here.change_org(replace(SETTINGS, model_ordering=("premium", "economy")))
        here.clock.advance(MINUTE_MS)
        assert selected(here) == ("economy", Reason.QUOTA_EXCEEDED, "premium", "economy")
        assert here.state().active_label == "economy"

    def test_without_sticky_nothing_is_kept(self, here: Selector, start: Start) -> None:
        """Vector 24. The state of before the switch is not looked at either."""
        here.spend(10_000)
        selected(here)
        here.change_org(replace(SETTINGS, sticky_fallback_enabled=False))
        here.clock.advance(MINUTE_MS)
        before = here.item()
        for _ in range(2):
            assert selected(here) == ("standard", Reason.QUOTA_EXCEEDED, "premium", None)
        raised = {**SETTINGS.quotas_usd_micros, "premium": 90_000}
        here.change_org(replace(SETTINGS, sticky_fallback_enabled=False, quotas_usd_micros=raised))
        assert selected(start()) == ("premium", Reason.NORMAL, None, None)
        assert here.item() == before


class TestWhoseTotals:
    def test_of_the_whole_org(self, here: Selector) -> None:
        here.spend(10_000, of=CHAT)
        assert selected(here)[0] == "premium"
        here.spend(10_000, of=ORG)
        for app in (CHAT, SEARCH, None):
            assert selected(here, app) == ("standard", Reason.QUOTA_EXCEEDED, "premium", "standard")
        assert [here.state(entity).active_label for entity in (CHAT, SEARCH, ORG)] == ["standard"] * 3

    def test_of_the_app_alone(self, here: Selector) -> None:
        here.change_org(APP_SCOPE)
        here.spend(10_000, of=CHAT)
        assert selected(here, CHAT)[0] == "standard"
        assert selected(here, SEARCH)[0] == "premium"
        assert selected(here, None)[0] == "premium"

    def test_another_scope_acts_at_midnight(self, here: Selector) -> None:
        midnight_ms = here.day().ends_ms
        scopes = (From(0, QuotaScope.ORG), From(midnight_ms, QuotaScope.APP))
        here.change_org(replace(SETTINGS, quota_scopes=scopes))
        here.spend(0, of=ORG)
        here.spend(10_000, of=CHAT)
        here.clock.now_ms = midnight_ms - 1
        assert selected(here)[0] == "premium"
        here.clock.now_ms = midnight_ms
        here.spend(0, of=ORG)
        here.spend(10_000, of=CHAT)
        assert selected(here)[0] == "standard"

    def test_an_app_with_an_ordering_and_quotas_of_its_own(self, here: Selector) -> None:
        here.change_app(AppSettings(model_ordering=("economy", "premium"), quotas_usd_micros={"economy": 1_000}))
        here.spend(0, 0, 999)
        assert selected(here) == ("economy", Reason.NORMAL, None, None)
        here.spend(0, 0, 1_000)
        assert selected(here) == ("premium", Reason.QUOTA_EXCEEDED, "economy", "premium")
        assert selected(here, SEARCH)[0] == "premium"
        assert here.state(SEARCH).active_label is None

    def test_of_a_local_day(self, here: Selector) -> None:
        zones = always("America/New_York")
        here.change_org(replace(SETTINGS, zones=zones))
        # Noon in New York, 2026-03-08: a day of 23 hours.
        here.clock.now_ms = 1_772_985_600_000
        today = here.day(replace(SETTINGS, zones=zones))
        assert (today.name, today.ends_ms - today.starts_ms) == ("20260308", 23 * HOUR_MS)
        here.spend(10_000, 5_000, 2_000, day=today)
        assert all_spent(here).resets_at_ms == today.ends_ms
        here.clock.now_ms = today.ends_ms
        assert selected(here)[0] == "premium"

    def test_the_nearest_app_of_an_entity(self, here: Selector) -> None:
        here.put_entity("loner", ORG)
        here.change_org(APP_SCOPE)
        here.spend(10_000, of=CHAT)
        for entity, owner, label in (
            (USER, CHAT, "standard"),
            (CHAT, CHAT, "standard"),
            ("loner", ORG, "premium"),
            (ORG, ORG, "premium"),
        ):
            found = here.selection.select_for(NAMESPACE, entity)
            assert (found.entity, found.label) == (owner, label)
        with pytest.raises(NotFound):
            here.selection.select_for(NAMESPACE, "nobody")
        with pytest.raises(NotFound):
            here.selection.select_for("elsewhere", USER)


class TestWhatIsPassedOver:
    def test_a_label_that_is_not_defined(self, here: Selector) -> None:
        here.remove_label("premium")
        assert selected(here) == ("standard", Reason.NORMAL, None, None)
        found = here.selection.select(NAMESPACE, CHAT)
        assert [(one.spend.label, one.is_defined) for one in found.labels] == [
            ("premium", False),
            ("standard", True),
            ("economy", True),
        ]
        here.define("premium")
        here.clock.advance(MINUTE_MS)
        assert selected(here)[0] == "premium"

    def test_a_label_that_lost_its_quota(self, here: Selector) -> None:
        """The org took it away from under the app's own ordering."""
        here.change_app(AppSettings(model_ordering=("gold", "standard")))
        here.define("gold")
        found = here.selection.select(NAMESPACE, CHAT)
        assert (found.label, [one.spend.label for one in found.labels]) == ("standard", ["standard"])

    @pytest.mark.parametrize("ordering", [(), ("gold",)])
    def test_nothing_is_left(self, here: Selector, ordering: tuple[str, ...]) -> None:
        here.change_app(AppSettings(model_ordering=ordering, quotas_usd_micros={"gold": 5}))
        with pytest.raises(UnknownLabel) as raised:
            here.selection.select(NAMESPACE, CHAT)
        assert raised.value.field == "model_ordering"

    def test_where_it_stood_is_no_longer_defined(self, here: Selector) -> None:
        here.spend(10_000)
        assert selected(here)[0] == "standard"
        here.remove_label("standard")
        here.clock.advance(MINUTE_MS)
        assert selected(here) == ("economy", Reason.QUOTA_EXCEEDED, "premium", "economy")


class TestManyAtOnce:
    def test_22_two_move_at_once_and_a_third_saw_the_label_before(self, here: Selector, start: Start) -> None:
        second, third = start(), start()
        here.spend(10_000)

        def overtake() -> None:
            assert selected(second) == ("standard", Reason.QUOTA_EXCEEDED, "premium", "standard")

        at_update(here, overtake)
        assert selected(here) == ("standard", Reason.STICKY, "premium", "standard")
        assert selected(third) == ("standard", Reason.STICKY, "premium", "standard")
        moves = [one.meter.counts[Signal.STICKY_ADVANCES] for one in (here, second, third)]
        assert moves == [0, 1, 0]
        assert here.state().active_label == "standard"

    def test_the_loser_looks_no_further(self, here: Selector, start: Start) -> None:
        """The failed condition tells where it stands."""
        second = start()
        selected(here)
        here.spend(10_000)
        here.store.taken_calls()
        at_update(here, lambda: selected(second))
        selected(here)
        read, anew, moved, *prices = here.store.taken_calls()
        assert (read, anew, moved, set(prices)) == ("batch_get", "consistent batch_get", "update", {"query"})

    def test_whoever_is_overtaken_twice(self, here: Selector, start: Start) -> None:
        """First by one that saw less spent."""
        second, third = start(), start()
        selected(second)
        here.spend(10_000)
        less_spent = read_by(second)
        here.spend(10_000, 5_000)

        def first_by_the_second() -> None:
            with reading(second, less_spent):
                assert selected(second)[0] == "standard"
            at_update(here, lambda: selected(third))

        at_update(here, first_by_the_second)
        assert selected(here) == ("economy", Reason.STICKY, "standard", "economy")
        assert here.store.calls.count("update") == 2
        assert [one.meter.counts[Signal.STICKY_ADVANCES] for one in (here, second, third)] == [0, 1, 1]

    def test_old_reads_and_wrong_clocks_move_nothing_back(self, here: Selector, start: Start) -> None:
        """Hole: a process that read long ago writes what it takes for the next label."""
        late, early = (start(FakeClock(here.clock.now_ms + skew_ms)) for skew_ms in (-2_000, 2_000))
        selected(late)
        fresh = read_by(late)
        here.spend(10_000, 0, 0)
        one_spent = read_by(late)
        assert selected(early)[0] == "standard"
        one_moved = read_by(late)
        here.spend(10_000, 5_000, 0)
        assert selected(early)[0] == "economy"
        kept = here.item()
        for old, label in ((fresh, "premium"), (one_spent, "economy"), (one_moved, "standard")):
            with reading(late, old):
                # What it read may be all it knows, and then it writes nothing.
                assert selected(late)[0] == label
            assert here.item() == kept
        assert selected(late) == ("economy", Reason.STICKY, "standard", "economy")

    def test_a_move_whose_answer_was_lost_happens_once(self, here: Selector) -> None:
        here.spend(10_000)
        store = here.store.inner

        def lost_and_sent_again(request: UpdateRequest, *, repeatable: bool) -> Outcome:
            assert repeatable
            assert isinstance(update(request, repeatable=True), Applied)
            again = update(request, repeatable=True)
            assert isinstance(again, ConditionFailed)
            return ConditionFailed(again.item, repeated=True)

        update = store.update
        with patch.object(store, "update", lost_and_sent_again):
            assert selected(here) == ("standard", Reason.QUOTA_EXCEEDED, "premium", "standard")
        assert here.meter.counts[Signal.STICKY_ADVANCES] == 1
        assert selected(here) == ("standard", Reason.STICKY, "premium", "standard")

    def test_after_some_rounds_the_choice_is_answered_and_not_kept(self, here: Selector) -> None:
        """None of our processes moves to labels that nobody knows, again and again."""
        here.spend(10_000)
        elsewhere = iter(["gone-1", "gone-2", "gone-3", "gone-4"])

        def flip(verb: str, request: Any) -> None:
            if verb == "update":
                away: Any = {**request, "ExpressionAttributeValues": dict(request["ExpressionAttributeValues"])}
                del away["ConditionExpression"]
                away["ExpressionAttributeNames"] = {
                    name: attribute
                    for name, attribute in request["ExpressionAttributeNames"].items()
                    if name != "#active"
                }
                away["ExpressionAttributeValues"].pop(":seen", None)
                for name, value in away["ExpressionAttributeValues"].items():
                    if value == "standard":
                        away["ExpressionAttributeValues"][name] = next(elsewhere)
                here.store.inner.update(away, repeatable=True)

        here.store.before = flip
        assert selected(here) == ("standard", Reason.QUOTA_EXCEEDED, "premium", None)
        assert here.store.taken_calls().count("update") == 4
        assert here.state().active_label == "gone-4"


class TestTheRollup:
    def advance(self, process: Selector, entity: str = CHAT, day: LocalDay | None = None) -> StickyState:
        on = process.day() if day is None else day
        process.selection.advance(NAMESPACE, entity, on, process.clock.now_ms)
        return process.state(entity, on)

    def test_moves_on_what_is_spent(self, here: Selector) -> None:
        here.spend(9_999)
        assert self.advance(here).active_label is None
        here.spend(10_000)
        state = self.advance(here)
        assert (state.active_label, state.previous_label) == ("standard", "premium")
        for _ in range(2):
            assert self.advance(here) == state
        assert here.meter.counts[Signal.STICKY_ADVANCES] == 1
        assert selected(here) == ("standard", Reason.STICKY, "premium", "standard")
        here.spend(10_000, 5_000)
        assert self.advance(here).active_label == "economy"
        here.spend(10_000, 5_000, 2_000)
        assert self.advance(here).active_label == "economy"
        assert here.meter.counts[Signal.STICKY_ADVANCES] == 2

    def test_of_the_org_moves_the_orgs_alone(self, here: Selector) -> None:
        here.spend(10_000)
        assert self.advance(here, ORG).active_label == "standard"
        assert here.state(CHAT).active_label is None

    def test_reads_consistently_in_two_calls(self, here: Selector) -> None:
        """The settings, and what they are held against."""
        self.advance(here)
        here.store.taken_calls()
        self.advance(here)
        assert here.store.taken_calls() == ["consistent batch_get"] * 2

    def test_two_at_once_move_it_once(self, here: Selector, start: Start) -> None:
        other = start()
        here.spend(10_000)
        at_update(here, lambda: self.advance(other))
        assert self.advance(here).active_label == "standard"
        counts = [one.meter.counts[Signal.STICKY_ADVANCES] for one in (here, other)]
        assert counts == [0, 1]

    def test_leaves_an_override_alone(self, here: Selector) -> None:
        here.set_override("economy")
        here.spend(10_000)
        state = self.advance(here)
        assert state.active_label == "standard"
        assert state.override is not None
        assert selected(here) == ("economy", Reason.OVERRIDE, None, "standard")

    def test_has_nothing_to_do(self, here: Selector) -> None:
        """On a day that is over, for what is no app, without sticky fallback, without another label, without an org."""
        here.spend(10_000)
        today = here.day()
        for entity in (USER, "nobody"):
            self.advance(here, entity)
        here.selection.advance("elsewhere", CHAT, today, here.clock.now_ms)
        here.selection.advance(NAMESPACE, CHAT, today, today.ends_ms)
        for settings in (
            replace(SETTINGS, sticky_fallback_enabled=False),
            replace(SETTINGS, model_ordering=("premium",)),
        ):
            here.change_org(settings)
            here.clock.advance(MINUTE_MS)
            self.advance(here)
        assert not [entity for entity in (CHAT, ORG, USER, "nobody") if here.item(entity) is not None]
        assert "update" not in here.store.calls


class TestModelsAndPrices:
    def model(self, process: Selector, region: str | None = None) -> tuple[str | None, int | None]:
        found = process.selection.select(NAMESPACE, CHAT, region)
        return found.model_id, None if found.price is None else found.price.standard[TokenKind.INPUT]

    def test_of_a_definition(self, here: Selector) -> None:
        for region in (None, REGION):
            assert self.model(here, region) == ("model-of-premium", 3)

    def test_a_price_that_nobody_knows(self, here: Selector) -> None:
        here.remove_label("premium")
        here.define("premium", None)
        assert self.model(here) == ("model-of-premium", None)

    def test_of_an_inference_profile(self, here: Selector) -> None:
        here.put_profile("premium")
        assert self.model(here, REGION) == (PROFILED_MODEL, 7)
        # Without a region its model is not known: that is no reason not to select.
        assert self.model(here) == ("model-of-premium", None)
        with pytest.raises(InvalidRequest) as raised:
            self.model(here, "us-east-1")
        assert raised.value.field == "region"

    def test_of_an_inference_profile_without_a_definition(self, here: Selector) -> None:
        here.put_profile("premium")
        here.remove_label("premium")
        assert self.model(here, REGION) == (PROFILED_MODEL, 7)
        assert self.model(here) == (None, None)

    @pytest.mark.parametrize("raises", [ProfileRefused("AWS does not know it"), Unavailable("silence")])
    def test_while_aws_does_not_tell(self, here: Selector, raises: Exception) -> None:
        here.put_profile("premium")
        here.source.raises = raises
        assert self.model(here, REGION) == ("model-of-premium", None)


class TestCalls:
    def test_one_read_when_warm(self, here: Selector) -> None:
        here.spend(0, 0, 0)
        here.selection.select_for(NAMESPACE, USER)
        for entity in (USER, CHAT, USER):
            here.selection.select_for(NAMESPACE, entity)
            last = here.store.taken_calls()
        assert last == ["batch_get"]

    def test_a_move_is_one_write_by_settings_and_labels_read_anew(self, here: Selector) -> None:
        selected(here)
        here.spend(10_000)
        here.store.taken_calls()
        here.clock.advance(1_000)
        selected(here)
        calls = here.store.taken_calls()
        assert calls[:4] == ["batch_get", "consistent batch_get", "query", "update"], "and the prices of another model"
        selected(here)
        assert here.store.taken_calls() == ["batch_get"]

    def test_a_table_that_does_not_answer(self, here: Selector) -> None:
        selected(here)

        def silence(_verb: str, _request: Any) -> None:
            raise Unavailable("silence")

        here.store.before = silence
        with pytest.raises(Unavailable):
            selected(here)
