"""The events of a day on an engine: whose they are, page by page, and none of anybody else's."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.errors import InvalidRequest, NotFound
from sluice.core.metering import CallStatus, Counters
from sluice.core.orgs import EntityRole
from sluice.core.period import day_number
from sluice.core.pricing import Pricing, TokenKind
from sluice.core.timelines import From
from sluice.edge.conventions import CURSOR_MAX
from sluice.repository import keys
from sluice.repository.counters import CounterName
from sluice.repository.entities import entity_put
from sluice.repository.events import UsageEvent, put_event
from sluice.repository.items import Entity
from sluice.repository.money_keys import EVENT_PARTITIONS
from sluice.repository.retries import Retries
from sluice.repository.store import Applied, DynamoStore, Store
from sluice.repository.totals import write_total
from sluice.services import event_lists
from sluice.services.counted import CountedEntities
from sluice.services.cursors import Cursors
from sluice.services.event_lists import EventLists
from sluice.services.lineages import CACHE_MS, Lineages
from sluice.services.listing import PageRequest
from sluice.services.settings import SettingsCache
from sluice.services.signing import Signer
from sluice.shell import new_token
from tests.fakes import CountingMeter, FakeClock, never_random
from tests.integration.metering_desks import AS_APP, AS_ORG, MeteringDesk
from tests.integration.metering_desks import SETTINGS as METERING_SETTINGS
from tests.integration.summing_desks import BY_APP, CHAT, NAMESPACE, ORG, SEARCH, TODAY, YESTERDAY
from tests.recording import RecordingStore
from tests.tenancy import MADE_AT_MS, FixedKeys, tenant_items

USER, OTHER_USER, OF_ORG = "user-1", "stranger", "robot"
MINUTE_MS = 60_000
DAY_MS = 86_400_000
# The local day of MADE_AT_MS, on which orgs and apps of tests are made.
MADE_ON = "20231114"


@dataclass
class EventDesk:
    store: RecordingStore
    clock: FakeClock
    lists: EventLists
    numbers: int = 0

    def put_entity(self, entity: str, parent: str | None, role: EntityRole = EntityRole.OTHER) -> None:
        made = Entity(entity, None, parent, True, {}, 1, 1, 1, role)
        self.store.inner.transact([entity_put(NAMESPACE, made, None)], new_token())

    def report(
        self, caller: str, entity: str, app: str | None, chain: Sequence[str], day: str = TODAY, **changed: Any
    ) -> str:
        """As the intake does it, with a total behind it. Answers the request id."""
        self.numbers += 1
        event = UsageEvent(
            namespace=NAMESPACE,
            request_id=f"request-{self.numbers}",
            body_hash="hash",
            entity=entity,
            app=app,
            chain=tuple(chain),
            day=day,
            # The later, the earlier: so the order of writing is not that of time.
            occurred_at_ms=self.clock.now_ms - self.numbers,
            received_at_ms=self.clock.now_ms,
            label="premium",
            model_id="model",
            region=None,
            status=CallStatus.OK,
            pricing=Pricing.STANDARD,
            tokens={TokenKind.INPUT: 7},
            cost_usd_micros=3,
            price_id="aws:model",
            tags={"a": "b"},
            lease_id=None,
        )
        event = replace(event, **changed)
        assert isinstance(self.store.inner.put(put_event(caller, event), repeatable=False), Applied)
        name = CounterName(NAMESPACE, app or ORG, "premium", day)
        self.store.inner.update(
            write_total(name, Counters(requests=1), self.numbers, self.clock.now_ms), repeatable=True
        )
        return event.request_id

    def page(
        self,
        entity: str,
        limit: int = 100,
        cursor: str | None = None,
        day: str | None = TODAY,
        within: str | None = None,
    ) -> tuple[list[str], str | None]:
        number = None if day is None else day_number(day)
        listed = self.lists.of(NAMESPACE, entity, number, PageRequest(limit, cursor), within)
        times = [event.occurred_at_ms for event in listed.items]
        assert times == sorted(times)
        assert len(listed.items) <= limit
        return [event.request_id for event in listed.items], listed.next_cursor

    def all(self, entity: str, limit: int = 100, **asked: Any) -> list[str]:
        """Of all pages, none of them twice."""
        found, cursor = self.page(entity, limit, **asked)
        for _ in range(200):
            if cursor is None:
                assert len(set(found)) == len(found)
                return sorted(found)
            more, cursor = self.page(entity, limit, cursor, **asked)
            found += more
        raise AssertionError("the pages do not end")


class TickingClock(FakeClock):
    """A millisecond later whenever it is looked at."""

    def __call__(self) -> int:
        self.now_ms += 1
        return self.now_ms


def opened(inner: Store, clock: FakeClock) -> EventDesk:
    store = RecordingStore(inner)
    lists = EventLists(
        store,
        Cursors(Signer(FixedKeys())),
        Lineages(store, clock),
        SettingsCache(store, clock),
        CountedEntities(store),
        clock,
    )
    return EventDesk(store, clock, lists)


@pytest.fixture
def desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> EventDesk:
    made = opened(DynamoStore(dynamodb, table, Retries(lambda _ms: None, never_random, CountingMeter())), clock)
    for item in tenant_items(NAMESPACE, ORG, CHAT, SEARCH, settings=BY_APP):
        made.store.inner.put({"Item": item}, repeatable=True)
    for entity, parent in ((USER, CHAT), (OTHER_USER, SEARCH), (OF_ORG, ORG)):
        made.put_entity(entity, parent)
    return made


@pytest.fixture
def ids(desk: EventDesk) -> dict[str, str]:
    """Who reported about whom: one event each."""
    return {
        "chat on itself": desk.report(CHAT, CHAT, CHAT, (CHAT, ORG)),
        "chat on user": desk.report(CHAT, USER, CHAT, (USER, CHAT, ORG)),
        "org on user": desk.report(ORG, USER, CHAT, (USER, CHAT, ORG)),
        "org on chat": desk.report(ORG, CHAT, CHAT, (CHAT, ORG)),
        "org on robot": desk.report(ORG, OF_ORG, None, (OF_ORG, ORG)),
        "org on itself": desk.report(ORG, ORG, None, (ORG,)),
        "search on stranger": desk.report(SEARCH, OTHER_USER, SEARCH, (OTHER_USER, SEARCH, ORG)),
        "former on itself": desk.report("former", "former", "former", ("former", ORG)),
    }


def named(ids: dict[str, str], found: Sequence[str]) -> set[str]:
    return {name for name, request_id in ids.items() if request_id in found}


@pytest.mark.parametrize("limit", [1, 2, 100])
@pytest.mark.parametrize(
    ("entity", "expected"),
    [
        (CHAT, {"chat on itself", "chat on user", "org on user", "org on chat"}),
        (USER, {"chat on user", "org on user"}),
        (SEARCH, {"search on stranger"}),
        (OTHER_USER, {"search on stranger"}),
        (OF_ORG, {"org on robot"}),
    ],
)
def test_each_sees_what_is_its_own(
    desk: EventDesk, ids: dict[str, str], entity: str, expected: set[str], limit: int
) -> None:
    assert named(ids, desk.all(entity, limit)) == expected


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_the_org_sees_all_of_them(desk: EventDesk, ids: dict[str, str], limit: int) -> None:
    """Those of former apps as well."""
    assert desk.all(ORG, limit) == sorted(ids.values())


def test_whoever_an_event_was_charged_to_sees_it(desk: EventDesk) -> None:
    """Also after it found another place."""
    moved = desk.report(CHAT, "former-user", CHAT, ("former-user", USER, CHAT, ORG))
    assert desk.all(USER) == [moved]


def test_an_event_is_shown_as_it_was_reported(desk: EventDesk) -> None:
    desk.report(CHAT, USER, CHAT, (USER, CHAT, ORG), label="x", cost_usd_micros=None, price_id=None, lease_id="lease-1")
    (event,) = desk.lists.of(NAMESPACE, CHAT, None, PageRequest(10)).items
    assert (event.entity, event.app, event.label, event.cost_usd_micros, event.lease_id) == (
        USER,
        CHAT,
        "x",
        None,
        "lease-1",
    )
    assert (event.tags, event.tokens) == ({"a": "b"}, {TokenKind.INPUT: 7})


def test_only_the_day_that_was_asked_for(desk: EventDesk) -> None:
    today = desk.report(CHAT, CHAT, CHAT, (CHAT,))
    yesterday = desk.report(CHAT, CHAT, CHAT, (CHAT,), day=YESTERDAY)
    for entity in (CHAT, ORG):
        assert desk.all(entity) == desk.all(entity, day=None) == [today]
        assert desk.all(entity, day=YESTERDAY) == [yesterday]
        assert desk.all(entity, day="20270116") == []


@pytest.mark.parametrize("day", ["20270117", "20261016", "00010101", "99991231"])
def test_days_without_any_events_are_refused(desk: EventDesk, day: str) -> None:
    with pytest.raises(InvalidRequest, match="day: must be one of the last 90 days"):
        desk.page(CHAT, day=day)
    assert desk.page(CHAT, day="20261017") == ([], None)


def test_today_is_the_orgs_own(desk: EventDesk, clock: FakeClock) -> None:
    settings = replace(BY_APP, zones=(From(0, "Pacific/Kiritimati"),))
    for item in tenant_items(NAMESPACE, ORG, settings=settings):
        desk.store.inner.put({"Item": item}, repeatable=True)
    clock.advance(3 * 3_600_000)
    tomorrow_in_utc = desk.report(CHAT, CHAT, CHAT, (CHAT,), day="20270116")
    assert desk.all(CHAT, day=None) == [tomorrow_in_utc]


def test_many_events_of_many_reporters(desk: EventDesk) -> None:
    expected = {CHAT: set[str](), ORG: set[str]()}
    for number in range(120):
        app = f"app-{number % 7}"
        caller = (CHAT, ORG, app)[number % 3]
        about = app if caller == app else CHAT
        request_id = desk.report(caller, about, about, (about, ORG))
        expected[ORG].add(request_id)
        if about == CHAT:
            expected[CHAT].add(request_id)
    for entity, found in expected.items():
        for limit in (7, 100):
            assert set(desk.all(entity, limit)) == found


def test_a_page_is_full_unless_it_is_the_last_or_was_cut(desk: EventDesk) -> None:
    for _ in range(25):
        desk.report(CHAT, CHAT, CHAT, (CHAT,))
    sizes, cursor = [], None
    for _ in range(3):
        found, cursor = desk.page(CHAT, 10, cursor)
        sizes.append(len(found))
    assert (sizes, cursor) == ([10, 10, 5], None)


@pytest.mark.parametrize("most", [1, 2, 3, 5])
def test_a_page_that_was_cut_goes_on(
    desk: EventDesk, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Whether or not it found anything: what the filter leaves out moves the cursor on as well."""
    monkeypatch.setattr(event_lists, "QUERIES_MAX", most)
    for _ in range(10):
        desk.report(ORG, OF_ORG, None, (OF_ORG, ORG))
    assert named(ids, desk.all(USER, 5)) == {"chat on user", "org on user"}
    assert named(ids, desk.all(ORG, 5)) == set(ids)
    desk.store.taken_calls()
    desk.page(SEARCH)
    assert desk.store.taken_calls().count("query") <= most + 1


def test_apps_without_totals_of_the_day_are_not_asked_for_events(desk: EventDesk) -> None:
    for number in range(5):
        desk.report(f"app-{number}", f"app-{number}", f"app-{number}", (ORG,), day=YESTERDAY)
    desk.store.taken_calls()
    assert desk.page(ORG) == ([], None)
    # The org's own partitions, those of the index, and two for each app: to find it, and to find that it has no totals.
    queries = EVENT_PARTITIONS + keys.NAMESPACE_PARTITIONS + 2 * 5
    assert desk.store.taken_calls().count("query") == queries


def test_reporters_that_come_meanwhile_move_nobody_off_a_page(desk: EventDesk, ids: dict[str, str]) -> None:
    found, cursor = desk.page(ORG, 3)
    for number in range(20):
        desk.report(f"new-{number}", f"new-{number}", f"new-{number}", (ORG,))
    while cursor is not None:
        more, cursor = desk.page(ORG, 3, cursor)
        found += more
    assert len(set(found)) == len(found)
    assert named(ids, found) == set(ids)


def test_an_entity_that_finds_another_place_ends_its_list(desk: EventDesk, clock: FakeClock) -> None:
    for _ in range(5):
        desk.report(CHAT, USER, CHAT, (USER, CHAT, ORG))
    _, cursor = desk.page(USER, 2)
    assert cursor is not None
    desk.store.inner.delete({"Key": {**keys.entity(NAMESPACE, USER).attributes}})
    desk.put_entity(USER, SEARCH)
    clock.advance(CACHE_MS)
    assert desk.page(USER, 2, cursor) == ([], None)


def test_an_app_sees_nothing_from_before_it_was_made(desk: EventDesk) -> None:
    """Another app may have had its id."""
    before = [
        desk.report(caller, about, CHAT, (about, ORG), received_at_ms=MADE_AT_MS - 1)
        for caller in (CHAT, ORG)
        for about in (CHAT, USER)
    ]
    later = {
        about: [desk.report(caller, about, CHAT, (about, ORG), received_at_ms=MADE_AT_MS) for caller in (CHAT, ORG)]
        for about in (CHAT, USER)
    }
    assert desk.all(USER, within=CHAT) == sorted(later[USER])
    assert desk.all(CHAT, within=CHAT) == sorted([*later[USER], *later[CHAT]])
    assert len(desk.all(CHAT)) == len(before) + 4


def test_an_app_sees_the_reports_that_made_its_entities_known(dynamodb: DynamoDBClient, table: str) -> None:
    """They came in before the entity was made; and calls may be told of that were before the app was made."""
    clock = TickingClock()
    store = DynamoStore(dynamodb, table, Retries(lambda _ms: None, never_random, CountingMeter()))
    metering = MeteringDesk.opened(store, clock).found(METERING_SETTINGS)
    clock.now_ms = MADE_AT_MS + MINUTE_MS
    for number, reporter in enumerate((AS_APP, AS_ORG)):
        newcomer = f"newcomer-{number}"
        occurred_at_ms = MADE_AT_MS - MINUTE_MS + number
        metering.submit(reporter, request_id=newcomer, entity=newcomer, occurred_at_ms=occurred_at_ms)
        made, event = metering.entity(newcomer), metering.event(newcomer, reporter.entity, MADE_ON)
        assert made is not None
        assert event is not None
        assert event.received_at_ms < made.created_at_ms
    desk = opened(store, clock)
    assert desk.all("newcomer-0", day=MADE_ON, within=CHAT) == ["newcomer-0"]
    assert desk.all(CHAT, day=MADE_ON, within=CHAT) == ["newcomer-0"]
    assert desk.all("newcomer-1", day=MADE_ON) == ["newcomer-1"]


def test_an_app_sees_nothing_of_an_entity_from_when_it_was_another_apps(desk: EventDesk, clock: FakeClock) -> None:
    """Neither in its org's reports nor in those of the other app, also while it is remembered to stand there."""
    desk.report(SEARCH, OTHER_USER, SEARCH, (OTHER_USER, SEARCH, ORG))
    desk.report(ORG, OTHER_USER, SEARCH, (OTHER_USER, SEARCH, ORG))
    assert len(desk.all(OTHER_USER)) == 2
    desk.store.inner.delete({"Key": {**keys.entity(NAMESPACE, OTHER_USER).attributes}})
    desk.put_entity(OTHER_USER, CHAT)
    own = [desk.report(caller, OTHER_USER, CHAT, (OTHER_USER, CHAT, ORG)) for caller in (CHAT, ORG)]
    assert desk.all(OTHER_USER, within=CHAT) == sorted(own)
    clock.advance(CACHE_MS)
    assert desk.all(OTHER_USER, within=CHAT) == sorted(own)


def test_an_app_that_is_gone_sees_nothing(desk: EventDesk) -> None:
    desk.all(USER, within=CHAT)
    desk.store.inner.delete({"Key": {**keys.entity(NAMESPACE, CHAT).attributes}})
    with pytest.raises(NotFound):
        desk.page(USER, within=CHAT)


def test_nobody_whom_nobody_knows(desk: EventDesk) -> None:
    for entity in ("nobody", "former"):
        with pytest.raises(NotFound):
            desk.page(entity)


def test_a_cursor_is_good_for_its_own_list_only(desk: EventDesk) -> None:
    for _ in range(3):
        desk.report(CHAT, USER, CHAT, (USER, CHAT, ORG))
    _, cursor = desk.page(CHAT, 1)
    assert cursor is not None
    for entity, day in ((USER, TODAY), (ORG, TODAY), (CHAT, YESTERDAY), (ORG, None)):
        with pytest.raises(InvalidRequest, match="cursor"):
            desk.page(entity, 1, cursor, day=day)
    assert desk.page(CHAT, 1, cursor, day=TODAY) == desk.page(CHAT, 1, cursor, day=None)


@pytest.mark.parametrize("entity", [CHAT, ORG])
def test_a_list_that_began_before_midnight_ends_after_it(desk: EventDesk, clock: FakeClock, entity: str) -> None:
    expected = sorted(desk.report(CHAT, CHAT, CHAT, (CHAT,)) for _ in range(3))
    found, cursor = desk.page(entity, 2, day=None)
    clock.advance(DAY_MS)
    desk.report(CHAT, CHAT, CHAT, (CHAT,), day="20270116")
    while cursor is not None:
        more, cursor = desk.page(entity, 2, cursor, day=None)
        found += more
    assert sorted(found) == expected


def test_the_longest_ids_make_cursors_that_are_accepted(desk: EventDesk) -> None:
    app = "a" * 128
    for number in range(8):
        request_id = "%#/" * 42 + f"{number:02d}"
        desk.report(app, app, app, (app, ORG), request_id=request_id)
    cursor: str | None = None
    cursors = []
    for _ in range(100):
        _, cursor = desk.page(ORG, 1, cursor)
        if cursor is None:
            break
        cursors.append(cursor)
    assert len(cursors) == 7
    assert max(map(len, cursors)) <= CURSOR_MAX


def test_events_of_another_namespace_are_never_there(desk: EventDesk, ids: dict[str, str]) -> None:
    before = desk.all(ORG)
    for namespace in ("ns2", "n"):
        desk.report(CHAT, CHAT, CHAT, (CHAT,), namespace=namespace)
    assert desk.all(ORG) == before
