"""Quotas of the day on an engine: who is told when a total reaches one, and that nobody is forgotten."""

from dataclasses import replace

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.errors import Unavailable
from sluice.core.orgs import QuotaScope
from sluice.core.signals import Signal
from sluice.core.timelines import From
from tests.fakes import FakeClock
from tests.integration.selecting import start_selector
from tests.integration.summing_desks import (
    BY_APP,
    BY_ORG,
    CHAT,
    DAY_MS,
    NAMESPACE,
    ORG,
    PREMIUM,
    SEARCH,
    STANDARD,
    TODAY,
    SummingDesk,
    engine_desk,
)


@pytest.fixture
def desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> SummingDesk:
    return engine_desk(dynamodb, table, clock).put_tenant()


def test_a_quota_that_is_reached_moves_its_app_on(desk: SummingDesk) -> None:
    desk.use_and_mark(9_499)
    desk.wait()
    desk.run()
    assert desk.advances.told == []
    assert desk.meter.counts[Signal.QUOTAS_TIGHT] == 0
    desk.use_and_mark(1)
    desk.wait()
    desk.run()
    assert desk.advances.told == []
    assert desk.meter.counts[Signal.QUOTAS_TIGHT] == 1
    desk.use_and_mark(500)
    desk.wait()
    desk.run()
    assert desk.advances.told == [(CHAT, TODAY)]
    assert desk.meter.counts[Signal.QUOTAS_EXCEEDED] == 1


def test_it_is_told_once_by_a_process_and_again_by_another(desk: SummingDesk) -> None:
    for _ in range(3):
        desk.use_and_mark(10_000)
        desk.wait()
        desk.run()
    assert desk.advances.told == [(CHAT, TODAY)]
    desk.use_and_mark(1)
    desk.wait()
    desk.elsewhere().run()
    assert desk.advances.told == [(CHAT, TODAY)] * 2


def test_who_is_not_behind_the_label_is_told_again(desk: SummingDesk) -> None:
    """The mark goes all the same: a label that nobody uses any more needs nobody to move on."""
    desk.advances.left = {CHAT}
    for times in (1, 2):
        desk.use_and_mark(20_000)
        desk.wait()
        assert desk.run().failures == []
        assert (desk.marks(), desk.advances.told.count((CHAT, TODAY))) == (set(), times)
    desk.advances.left = set()
    for _ in range(2):
        desk.use_and_mark(1)
        desk.wait()
        desk.run()
        assert desk.advances.told.count((CHAT, TODAY)) == 3


def test_all_apps_of_an_org_are_told_once(desk: SummingDesk) -> None:
    """Hole: where a label of the ordering is not defined yet nobody can move, and every run is about these apps."""
    desk.put_tenant(BY_ORG)
    desk.advances.left = {ORG, CHAT, SEARCH}
    for _ in range(2):
        desk.use_and_mark(20_000, entity=ORG)
        desk.wait()
        desk.run()
        assert sorted(desk.advances.told) == [(ORG, TODAY), (CHAT, TODAY), (SEARCH, TODAY)]


def test_a_quota_that_was_changed_is_another_one(desk: SummingDesk) -> None:
    desk.use_and_mark(10_000)
    desk.wait()
    desk.run()
    desk.change_org(quotas_usd_micros={PREMIUM: 20_000, STANDARD: 5_000})
    desk.use_and_mark(9_999)
    desk.wait()
    desk.run()
    assert desk.advances.told == [(CHAT, TODAY)]
    desk.use_and_mark(1)
    desk.wait()
    desk.run()
    assert desk.advances.told == [(CHAT, TODAY)] * 2


def test_an_apps_own_quota_counts(desk: SummingDesk) -> None:
    desk.change_app(CHAT, quotas_usd_micros={PREMIUM: 500})
    for entity in (CHAT, SEARCH):
        desk.use_and_mark(600, entity=entity)
    desk.wait()
    desk.run()
    assert desk.advances.told == [(CHAT, TODAY)]


def test_a_label_without_a_quota_and_an_app_that_was_removed_move_nobody(desk: SummingDesk) -> None:
    desk.use_and_mark(10**9, label="model-7")
    desk.use_and_mark(10**9, entity="former")
    desk.wait()
    assert desk.run().done == 2
    assert desk.advances.told == []
    assert desk.spent(entity="former") == (10**9, 1)


def test_what_no_app_stands_for_counts_for_the_org_itself(desk: SummingDesk) -> None:
    desk.use_and_mark(10_000, entity=ORG)
    desk.wait()
    desk.run()
    assert desk.advances.told == [(ORG, TODAY)]


def test_a_quota_of_the_whole_org_moves_everybody_on(desk: SummingDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.services.summing._APPS_PAGE", 2)
    apps = [f"app-{number}" for number in range(5)]
    desk.put_tenant(BY_ORG, *apps)
    desk.use_and_mark(20_000, entity=CHAT)
    desk.wait()
    desk.run()
    # An app's own totals are compared with nothing.
    assert desk.advances.told == []
    desk.use_and_mark(20_000, entity=ORG)
    desk.wait()
    desk.run()
    assert sorted(desk.advances.told) == sorted((entity, TODAY) for entity in (ORG, CHAT, SEARCH, *apps))


def test_so_many_apps_are_told_and_no_more(desk: SummingDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.services.summing._APPS_PAGE", 2)
    monkeypatch.setattr("sluice.services.summing.APPS_MAX", 4)
    desk.put_tenant(BY_ORG, *(f"app-{number}" for number in range(9)))
    desk.use_and_mark(20_000, entity=ORG)
    desk.wait()
    assert desk.run().done == 1
    assert len(desk.advances.told) == 5


def test_the_scope_is_the_one_in_which_the_day_began(desk: SummingDesk) -> None:
    begins_ms = desk.day().starts_ms
    scopes = (From(0, QuotaScope.APP), From(begins_ms, QuotaScope.ORG), From(begins_ms + 1, QuotaScope.APP))
    desk.change_org(quota_scopes=scopes)
    desk.use_and_mark(20_000)
    desk.use_and_mark(20_000, entity=ORG)
    desk.wait()
    desk.run()
    assert sorted(desk.advances.told) == sorted([(ORG, TODAY), (CHAT, TODAY), (SEARCH, TODAY)])


def test_who_can_not_be_told_is_told_by_the_next_run(desk: SummingDesk) -> None:
    """The total is written, and its mark stays."""
    desk.put_tenant(BY_ORG)
    desk.use_and_mark(20_000, entity=ORG)
    desk.wait()

    def refuse(entity: str) -> None:
        if entity == SEARCH:
            raise Unavailable("x")

    desk.advances.act = refuse
    assert len(desk.run().failures) == 1
    assert desk.spent(entity=ORG) == (20_000, 1)
    assert len(desk.marks()) == 1
    desk.advances.act = None
    # Also after more was used: that it was above the quota before does not mean that anybody was told.
    desk.use_and_mark(1, entity=ORG)
    desk.wait()
    desk.advances.told.clear()
    assert desk.run().failures == []
    assert sorted(desk.advances.told) == sorted([(ORG, TODAY), (CHAT, TODAY), (SEARCH, TODAY)])
    assert desk.marks() == set()


def test_where_the_time_ends_the_mark_stays(desk: SummingDesk) -> None:
    desk.put_tenant(BY_ORG)
    desk.use_and_mark(20_000, entity=ORG)
    desk.wait()
    # For the total, and for one of the two apps.
    found = desk.run(totals=2)
    assert (found.done, found.left, found.failures) == (0, 1, [])
    assert len(desk.marks()) == 1
    assert desk.run().done == 1
    assert desk.marks() == set()


def test_the_day_is_the_orgs_own(desk: SummingDesk) -> None:
    """Nine hours after midnight in UTC, in Kiritimati it is tomorrow, and there today's quota is."""
    desk.clock.now_ms += 3 * 3_600_000
    desk.change_org(zones=(From(0, "Pacific/Kiritimati"),))
    for day in (TODAY, "20270116"):
        desk.use_and_mark(20_000, day=day)
    desk.wait()
    desk.run()
    assert desk.advances.told == [(CHAT, "20270116")]


def test_selection_moves_on_without_anybody_asking(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> None:
    """With the selection of the product."""
    selector = start_selector(dynamodb, table, clock)
    selector.put_tenant(
        replace(
            BY_APP,
            model_ordering=(PREMIUM, STANDARD, "economy"),
            quotas_usd_micros={PREMIUM: 10_000, STANDARD: 5_000, "economy": 2_000},
        )
    )
    desk = SummingDesk.opened(selector.store, clock, advance=selector.selection.advance)
    desk.use_and_mark(9_999)
    desk.use_and_mark(6_000, label=STANDARD)
    desk.wait()
    desk.run()
    assert selector.state().active_label is None
    desk.use_and_mark(1)
    desk.wait()
    desk.run()
    state = selector.state()
    assert (state.active_label, state.previous_label) == ("economy", PREMIUM)
    assert selector.selection.select(NAMESPACE, CHAT).label == "economy"
    clock.advance(DAY_MS)
    assert selector.selection.select(NAMESPACE, CHAT).label == PREMIUM


def test_selection_moves_on_once_it_knows_where_to(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> None:
    """Hole: told once, while the next label was not defined or by settings of the minute before, and never again."""
    selector = start_selector(dynamodb, table, clock)
    selector.put_tenant(replace(BY_APP, model_ordering=(PREMIUM, STANDARD)))
    selector.remove_label(STANDARD)
    desk = SummingDesk.opened(selector.store, clock, advance=selector.selection.advance)

    def use_and_run(cost_usd_micros: int) -> str | None:
        desk.use_and_mark(cost_usd_micros)
        desk.wait()
        assert desk.run().failures == []
        return selector.state().active_label

    assert use_and_run(10_000) is None
    selector.define(STANDARD)
    assert use_and_run(1) == STANDARD


def test_selection_moves_on_by_the_quotas_that_the_rollup_goes_by(
    dynamodb: DynamoDBClient, table: str, clock: FakeClock
) -> None:
    selector = start_selector(dynamodb, table, clock)
    selector.put_tenant(replace(BY_ORG, quotas_usd_micros={PREMIUM: 90_000, STANDARD: 5_000}))
    desk = SummingDesk.opened(selector.store, clock, advance=selector.selection.advance)
    desk.use_and_mark(10_000, entity=ORG)
    desk.wait()
    assert selector.selection.select(NAMESPACE, CHAT).label == PREMIUM
    selector.change_org(BY_ORG)
    desk.run()
    assert selector.state().active_label == STANDARD
