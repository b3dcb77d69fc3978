"""Where selection stands, as it is stored."""

from dataclasses import replace

import pytest

from sluice.core.period import LocalDay, local_day
from sluice.core.selection import Choice, Reason, Stand
from sluice.core.timelines import From, always
from sluice.repository import money_keys
from sluice.repository.keys import key_of
from sluice.repository.requests import TransactWrite, UpdateRequest
from sluice.repository.shapes import UnknownShape
from sluice.repository.sticky import (
    KEPT_S,
    Override,
    StickyName,
    StickyState,
    decode_sticky,
    forget,
    latest_query,
    move,
    override_image,
    override_remove,
    override_set,
)
from sluice.repository.store import Applied, Cancelled, Committed, ConditionFailed
from sluice.repository.wire import Item
from sluice.services.zones import ZoneCalendar
from tests.fakes import FakeClock
from tests.simulation.table import SimulatedTable

# Ends within a second.
DAY = LocalDay(739_000, 1_800_000_000_000, 1_800_086_399_500)
NAME = StickyName("ns", "chat", DAY)
NOW_MS = DAY.starts_ms + 5
OVERRIDE = Override("economy", "premium is down", "client-1", DAY.ends_ms)


def to(label: str, previous: str = "premium") -> Choice:
    return Choice(label, Reason.QUOTA_EXCEEDED, previous, moves=True)


@pytest.fixture
def table() -> SimulatedTable:
    return SimulatedTable(FakeClock(NOW_MS))


def moved(table: SimulatedTable, request: UpdateRequest) -> bool:
    return isinstance(table.update(request), Applied)


def written(table: SimulatedTable, write: TransactWrite, token: str) -> bool:
    return isinstance(table.transact([write], token), Committed)


def item(table: SimulatedTable) -> Item:
    found = table.get(money_keys.sticky("ns", "chat", DAY.name))
    assert found is not None
    return found


def test_the_first_move(table: SimulatedTable) -> None:
    assert moved(table, move(NAME, to("standard"), None, NOW_MS))
    assert item(table) == {
        "PK": "ns/STICKY#chat",
        "SK": f"#DAY#{DAY.name}",
        "kind": "sticky_state",
        "ns": "ns",
        "entity_id": "chat",
        "day": DAY.name,
        "active_label": "standard",
        "previous_label": "premium",
        "reason": "quota_exceeded",
        "activated_at": NOW_MS,
        "created_at": NOW_MS,
        "updated_at": NOW_MS,
        # An hour after the end of the day, rounded up.
        "ttl": 1_800_086_400 + KEPT_S,
    }
    assert decode_sticky(item(table)) == StickyState("standard", "premium", NOW_MS, None)


def test_the_next_move_is_from_what_was_seen(table: SimulatedTable) -> None:
    moved(table, move(NAME, to("standard"), None, NOW_MS))
    assert not moved(table, move(NAME, to("economy"), None, NOW_MS + 1))
    assert not moved(table, move(NAME, to("economy"), "premium", NOW_MS + 1))
    assert moved(table, move(NAME, to("economy", "standard"), "standard", NOW_MS + 2))
    assert decode_sticky(item(table)) == StickyState("economy", "standard", NOW_MS + 2)
    assert (item(table)["created_at"], item(table)["updated_at"]) == (NOW_MS, NOW_MS + 2)
    # Who saw an older one, whatever that was.
    for seen in (None, "premium", "standard"):
        assert not moved(table, move(NAME, to("standard"), seen, NOW_MS + 3))


def test_a_move_that_is_repeated_finds_its_own_label(table: SimulatedTable) -> None:
    request = move(NAME, to("standard"), None, NOW_MS)
    assert moved(table, request)
    again = table.update(request)
    assert isinstance(again, ConditionFailed)
    assert again.item is not None
    assert decode_sticky(again.item) == StickyState("standard", "premium", NOW_MS)


def test_a_move_where_the_item_is_gone(table: SimulatedTable) -> None:
    """Nobody else moved it since."""
    assert moved(table, move(NAME, to("economy"), "standard", NOW_MS))


def test_overrides_and_moves_leave_each_other_alone(table: SimulatedTable) -> None:
    assert written(table, override_set(NAME, OVERRIDE, None, NOW_MS), "1")
    assert decode_sticky(item(table)) == StickyState(override=OVERRIDE)
    assert item(table)["ttl"] == 1_800_086_400 + KEPT_S
    assert moved(table, move(NAME, to("standard"), None, NOW_MS + 1))
    assert decode_sticky(item(table)) == StickyState("standard", "premium", NOW_MS + 1, OVERRIDE)
    assert written(table, override_remove(NAME, OVERRIDE, NOW_MS + 2), "2")
    assert decode_sticky(item(table)) == StickyState("standard", "premium", NOW_MS + 1)
    assert item(table)["updated_at"] == NOW_MS + 2
    assert written(table, override_set(NAME, OVERRIDE, None, NOW_MS + 3), "3")
    assert decode_sticky(item(table)) == StickyState("standard", "premium", NOW_MS + 1, OVERRIDE)


def test_an_override_replaces_the_one_that_was_seen(table: SimulatedTable) -> None:
    other = Override("economy", "another reason", "client-1", DAY.ends_ms)
    assert written(table, override_set(NAME, OVERRIDE, None, NOW_MS), "1")
    for write in (
        override_set(NAME, other, None, NOW_MS),
        override_set(NAME, OVERRIDE, other, NOW_MS),
        override_remove(NAME, other, NOW_MS),
    ):
        outcome = table.transact([write], f"{write}"[:36])
        assert isinstance(outcome, Cancelled)
        assert outcome.failures[0] is not None
        assert outcome.failures[0].item == item(table)
    assert written(table, override_set(NAME, other, OVERRIDE, NOW_MS), "2")
    assert decode_sticky(item(table)).override == other


def test_an_override_for_the_whole_day_is_another_than_one_until_its_end(table: SimulatedTable) -> None:
    whole = replace(OVERRIDE, whole_day=True)
    token = 0
    for seen, override in ((None, OVERRIDE), (OVERRIDE, whole), (whole, OVERRIDE), (OVERRIDE, whole)):
        other = whole if seen == OVERRIDE else OVERRIDE
        for wrong in (override_set(NAME, override, other, NOW_MS), override_remove(NAME, other, NOW_MS)):
            assert isinstance(table.transact([wrong], f"wrong-{(token := token + 1)}"), Cancelled)
        assert written(table, override_set(NAME, override, seen, NOW_MS), f"{(token := token + 1)}")
        assert decode_sticky(item(table)).override == override
    assert written(table, override_remove(NAME, whole, NOW_MS), "last")
    assert decode_sticky(item(table)) == StickyState()
    assert not [attribute for attribute in item(table) if attribute.startswith("override")]


def test_an_override_for_the_whole_day_ends_with_it() -> None:
    whole = replace(OVERRIDE, whole_day=True)
    longer = replace(DAY, ends_ms=DAY.ends_ms + 5)
    assert whole.holds(longer.ends_ms - 1)
    assert whole.on(longer).until_ms == longer.ends_ms
    assert not OVERRIDE.holds(DAY.ends_ms)
    assert OVERRIDE.on(longer) == OVERRIDE


def test_an_earlier_apps_items_are_looked_for_and_forgotten(table: SimulatedTable) -> None:
    assert written(table, override_set(NAME, OVERRIDE, None, NOW_MS), "1")
    request = latest_query(NAME.namespace, NAME.entity)
    assert request["ExpressionAttributeValues"] == {":pk": key_of(item(table)).pk}
    assert request["ConsistentRead"]
    assert written(table, forget(key_of(item(table))), "2")
    assert table.get(money_keys.sticky(NAME.namespace, NAME.entity, NAME.day.name)) is None


def test_where_it_stands() -> None:
    state = StickyState("standard", "premium", NOW_MS, OVERRIDE)
    assert state.stand(DAY.ends_ms - 1) == Stand("standard", "premium", "economy")
    assert state.stand(DAY.ends_ms) == Stand("standard", "premium", None)
    assert StickyState("standard", "premium").stand(NOW_MS) == Stand("standard", "premium", None)


def test_what_the_audit_shows() -> None:
    assert override_image(OVERRIDE) == {
        "label": "economy",
        "reason": "premium is down",
        "until_ms": DAY.ends_ms,
    }


def test_nothing_else_is_taken_for_it() -> None:
    others: list[Item] = [{"kind": "daily_total"}, {"kind": "sticky_state", "active_label": 1}]
    for wrong in others:
        with pytest.raises(UnknownShape):
            decode_sticky(wrong)


def test_a_day_that_a_change_of_the_zone_makes_longer_keeps_its_item(table: SimulatedTable) -> None:
    """It was written before anybody knew of the change. The two zones are as far apart as any."""
    zones, calendar = always("Pacific/Kiritimati"), ZoneCalendar()
    day = local_day(zones, NOW_MS, calendar)
    assert moved(table, move(NAME._replace(day=day), to("standard"), None, NOW_MS))
    stored = table.get(money_keys.sticky(NAME.namespace, NAME.entity, day.name))
    assert stored is not None
    longer = local_day((*zones, From(day.ends_ms, "Etc/GMT+12")), NOW_MS, calendar)
    assert (longer.name, longer.ends_ms - day.ends_ms) == (day.name, 26 * 3_600_000)
    assert stored["ttl"] == longer.ends_ms // 1000 + 3_600
