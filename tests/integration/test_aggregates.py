"""What was used, day by day, on an engine: zeros, scopes, former apps, and the bounds of an answer."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.errors import InvalidRequest, NotFound, NoTotals
from sluice.core.metering import Counters
from sluice.core.orgs import EntityRole, OrgSettings, QuotaScope
from sluice.core.period import day_name, day_number, local_day, month_name, numbered_day
from sluice.core.pricing import TokenKind
from sluice.core.quotas import Mode
from sluice.core.timelines import From
from sluice.repository import keys
from sluice.repository.counters import CounterName
from sluice.repository.entities import entity_put
from sluice.repository.items import Entity
from sluice.repository.store import Applied
from sluice.repository.totals import write_total
from sluice.services import aggregates as aggregates_module
from sluice.services import counted as counted_module
from sluice.services.aggregates import Aggregates, DayRange, DayUsed, rows_bytes
from sluice.services.counted import CountedEntities
from sluice.services.settings import CACHE_MS, SettingsCache
from sluice.services.zones import ZoneCalendar
from sluice.shell import new_token
from tests.fakes import FakeClock
from tests.integration.selecting import SETTINGS, Selector, start_selector
from tests.integration.summing_desks import (
    BY_APP,
    BY_ORG,
    CHAT,
    DAY_MS,
    MINUTE_MS,
    NAMESPACE,
    ORG,
    PREMIUM,
    SEARCH,
    STANDARD,
    TODAY,
    YESTERDAY,
    SummingDesk,
    engine_desk,
)

TODAY_NUMBER = day_number(TODAY)


@dataclass
class Asking:
    desk: SummingDesk
    aggregates: Aggregates

    def total(
        self,
        cost_usd_micros: int,
        entity: str = CHAT,
        label: str = PREMIUM,
        day: str = TODAY,
        *,
        requests: int = 1,
        as_of_ms: int | None = None,
        **tokens: int,
    ) -> None:
        """As a rollup writes it; once for each name."""
        counters = Counters(
            cost_usd_micros, {TokenKind(kind): count for kind, count in tokens.items()}, requests, requests // 2
        )
        name = CounterName(NAMESPACE, entity, label, day)
        at_ms = self.desk.clock.now_ms if as_of_ms is None else as_of_ms
        outcome = self.desk.store.inner.update(write_total(name, counters, requests, at_ms), repeatable=True)
        assert isinstance(outcome, Applied)

    def days(self, entity: str = CHAT, first: str | None = None, last: str | None = None) -> dict[str, DayUsed]:
        asked = DayRange(_number(first), _number(last))
        return {day_name(day.day): day for day in self.aggregates.of(NAMESPACE, entity, asked).days}

    def change_org(self, settings: OrgSettings) -> None:
        """And wait until everybody knows it."""
        self.desk.change_org(
            **{name: getattr(settings, name) for name in ("zones", "quota_scopes", "quotas_usd_micros")}
        )
        self.desk.clock.advance(CACHE_MS)


def _number(day: str | None) -> int | None:
    return None if day is None else day_number(day)


@pytest.fixture
def desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> SummingDesk:
    return engine_desk(dynamodb, table, clock).put_tenant()


@pytest.fixture
def asking(desk: SummingDesk) -> Asking:
    settings = SettingsCache(desk.store, desk.clock)
    return Asking(desk, Aggregates(desk.store, settings, CountedEntities(desk.store), desk.clock))


def costs(day: DayUsed) -> dict[str, int]:
    return {used.label: used.counters.cost_usd_micros for used in day.labels}


def test_the_first_look_at_a_new_day_shows_zeros_and_writes_nothing(asking: Asking) -> None:
    """Vector 43."""
    asking.desk.store.taken_calls()
    found = asking.aggregates.of(NAMESPACE, CHAT, DayRange())
    (day,) = found.days
    assert day.day == TODAY_NUMBER
    # Every label that has a quota, none of which was used.
    assert [(one.label, one.quota_usd_micros, one.percent_tenths, one.mode) for one in day.labels] == [
        (PREMIUM, 10_000, 0, Mode.NORMAL),
        (STANDARD, 5_000, 0, Mode.NORMAL),
    ]
    assert {(one.cost_usd_micros, one.requests, sum(one.tokens.values())) for one in (day.total, found.total)} == {
        (0, 0, 0)
    }
    assert (day.sticky, found.updated_at_ms) == (None, None)
    assert found.zone == "UTC"
    calls = asking.desk.store.taken_calls()
    assert not {"put", "update", "delete", "transact"} & set(calls)


def test_a_day_shows_what_each_label_used(asking: Asking) -> None:
    asking.total(9_499, requests=4, input=100, cache_read=50, cache_write=25, cache_write_1h=25, output=7)
    asking.total(5_000, label=STANDARD)
    asking.total(3, label="vendor.model-v1")
    found = asking.aggregates.of(NAMESPACE, CHAT, DayRange())
    (day,) = found.days
    assert [(one.label, one.percent_tenths, one.mode) for one in day.labels] == [
        (PREMIUM, 949, Mode.NORMAL),
        (STANDARD, 1_000, Mode.EXCEEDED),
        # Counted under the model itself, it has no quota.
        ("vendor.model-v1", None, None),
    ]
    premium = day.labels[0].counters
    assert (premium.requests, premium.errors, premium.tokens[TokenKind.CACHE_READ]) == (4, 2, 50)
    assert (day.total.cost_usd_micros, day.total.requests) == (14_502, 6)
    assert found.total == day.total
    assert found.months == {"202701": day.total}


def test_a_range_shows_every_day_of_it(asking: Asking) -> None:
    asking.total(1)
    asking.total(2, day="20270101", as_of_ms=5)
    asking.total(4, day="20261231", as_of_ms=9_999_999_999_999)
    asking.total(8, day="20261228")
    asking.total(16, day="20270116")
    found = asking.aggregates.of(NAMESPACE, CHAT, DayRange(day_number("20261229"), None))
    assert len(found.days) == 18
    used = {day_name(day.day): day.total.cost_usd_micros for day in found.days if day.total.requests}
    assert used == {"20261231": 4, "20270101": 2, TODAY: 1}
    # Today alone lists what was not used.
    assert [day_name(day.day) for day in found.days if PREMIUM not in costs(day)] == [
        day_name(number) for number in range(day_number("20261229"), TODAY_NUMBER) if day_name(number) not in used
    ]
    assert {month: sums.cost_usd_micros for month, sums in found.months.items()} == {"202612": 4, "202701": 3}
    assert found.total.cost_usd_micros == 7
    assert found.updated_at_ms == 9_999_999_999_999


def test_the_sum_of_a_month_is_exact(asking: Asking) -> None:
    for number in range(day_number("20261201"), day_number("20270101")):
        asking.total(1_000_000_007, day=day_name(number))
        asking.total(10**12 + 1, day=day_name(number), label=STANDARD)
    found = asking.aggregates.of(NAMESPACE, CHAT, DayRange(day_number("20261201"), None))
    assert found.months["202612"].cost_usd_micros == 31 * (1_000_000_007 + 10**12 + 1)
    assert set(found.months) == {month_name(number) for number in (TODAY_NUMBER, day_number("20261201"))}


def test_days_that_have_not_begun_are_left_out(asking: Asking) -> None:
    asking.total(1)
    assert list(asking.days(first=YESTERDAY, last="20991231")) == [YESTERDAY, TODAY]
    # `to` alone is one day.
    assert list(asking.days(last=YESTERDAY)) == [YESTERDAY]
    assert list(asking.days(first=TODAY)) == [TODAY]


@pytest.mark.parametrize(
    ("first", "last", "detail"),
    [
        ("20270116", None, "must not be after to, nor in the future"),
        (TODAY, YESTERDAY, "must not be after to, nor in the future"),
        ("20251211", None, "totals are kept for 400 days"),
        ("00010101", "00010103", "totals are kept for 400 days"),
        ("99991231", "99991231", "must not be after to, nor in the future"),
    ],
)
def test_ranges_that_are_refused(asking: Asking, first: str, last: str | None, detail: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        asking.days(first=first, last=last)
    assert (raised.value.field, raised.value.detail) == ("from", detail)


def test_the_longest_range(asking: Asking) -> None:
    assert len(asking.days(first="20251212")) == 400


def test_several_pages_of_totals(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(8):
        asking.total(1, label=f"label-{number}")
    query = asking.desk.store.inner.query

    class Short:
        def __getattr__(self, name: str) -> object:
            return getattr(asking.desk.store.inner, name)

        def query(self, request: dict[str, object]) -> object:
            return query({**request, "Limit": 3})  # type: ignore[typeddict-item]  # it is a query all the same

    settings = SettingsCache(asking.desk.store, asking.desk.clock)
    short = Aggregates(Short(), settings, CountedEntities(asking.desk.store), asking.desk.clock)  # type: ignore[arg-type]
    assert short.of(NAMESPACE, CHAT, DayRange()).total.requests == 8


# Whose totals, and whose quotas.


def test_with_quotas_of_the_org_its_own_totals_are_everything(asking: Asking) -> None:
    asking.change_org(BY_ORG)
    asking.total(7)
    asking.total(9_600, entity=ORG)
    day = asking.days(ORG)[TODAY]
    assert (day.total.cost_usd_micros, costs(day)) == (9_600, {PREMIUM: 9_600, STANDARD: 0})
    assert [(one.quota_usd_micros, one.mode) for one in day.labels] == [(10_000, Mode.TIGHT), (5_000, Mode.NORMAL)]
    # An app's part of what the whole org may spend is no share of a quota of its own.
    of_app = asking.days(CHAT)[TODAY]
    assert costs(of_app) == {PREMIUM: 7, STANDARD: 0}
    assert {(one.quota_usd_micros, one.percent_tenths, one.mode) for one in of_app.labels} == {(None, None, None)}


def test_with_quotas_of_apps_the_org_is_the_sum_of_them_all(asking: Asking) -> None:
    """Those that were removed, and what no app stands for."""
    asking.total(1)
    asking.total(2, entity=SEARCH)
    asking.total(4, entity="former")
    asking.total(8, entity=ORG)
    asking.total(16, entity="former", label="other")
    for number in range(30):
        asking.total(1_000, entity=f"app-{number}", day=YESTERDAY)
    day = asking.days(ORG)[TODAY]
    assert costs(day) == {PREMIUM: 15, STANDARD: 0, "other": 16}
    assert day.total.cost_usd_micros == 31
    assert {(one.quota_usd_micros, one.mode) for one in day.labels} == {(None, None)}
    both = asking.days(ORG, YESTERDAY, TODAY)
    assert [day.total.cost_usd_micros for day in both.values()] == [30_000, 31]


def test_nothing_of_another_namespace_is_in_the_sum(asking: Asking) -> None:
    asking.total(1)
    for namespace in ("n", "ns2", "nsx", "ns/TOTAL#"):
        name = CounterName(namespace, CHAT, PREMIUM, TODAY)
        asking.desk.store.inner.update(write_total(name, Counters(1_000), 1, 1), repeatable=True)
    assert asking.days(ORG)[TODAY].total.cost_usd_micros == 1


def test_each_day_goes_by_the_scope_in_which_it_began(asking: Asking) -> None:
    begins_ms = numbered_day(OrgSettings().zones, TODAY_NUMBER, ZoneCalendar()).starts_ms
    scopes = (
        From(0, QuotaScope.APP),
        From(begins_ms - 2 * DAY_MS, QuotaScope.ORG),
        From(begins_ms, QuotaScope.APP),
    )
    asking.change_org(replace(BY_APP, quota_scopes=scopes))
    for day in ("20270112", "20270113", YESTERDAY, TODAY):
        asking.total(1, day=day)
        asking.total(10, entity=ORG, day=day)
    found = asking.days(ORG, "20270112", TODAY)
    assert [day.total.cost_usd_micros for day in found.values()] == [11, 10, 10, 11]
    of_org = {name: day.labels[0].quota_usd_micros for name, day in found.items()}
    assert of_org == {"20270112": None, "20270113": 10_000, YESTERDAY: 10_000, TODAY: None}
    of_app = {name: day.labels[0].quota_usd_micros for name, day in asking.days(CHAT, "20270112", TODAY).items()}
    assert of_app == {"20270112": 10_000, "20270113": None, YESTERDAY: None, TODAY: 10_000}


def test_an_apps_own_quotas_and_threshold_count(asking: Asking) -> None:
    asking.desk.change_app(CHAT, quotas_usd_micros={PREMIUM: 100, "own": 0}, tight_mode_threshold_pct=50)
    asking.total(50)
    day = asking.days(CHAT)[TODAY]
    assert [(one.label, one.quota_usd_micros, one.percent_tenths, one.mode) for one in day.labels] == [
        ("own", 0, None, Mode.EXCEEDED),
        (PREMIUM, 100, 500, Mode.TIGHT),
        (STANDARD, 5_000, 0, Mode.NORMAL),
    ]


def test_the_days_are_the_orgs_own(asking: Asking) -> None:
    asking.change_org(replace(BY_APP, zones=(From(0, "Pacific/Kiritimati"),)))
    asking.desk.clock.advance(3 * 3_600_000)
    asking.total(7, day="20270116")
    found = asking.aggregates.of(NAMESPACE, CHAT, DayRange())
    assert ([day_name(day.day) for day in found.days], found.zone) == (["20270116"], "Pacific/Kiritimati")
    assert found.total.cost_usd_micros == 7


def test_a_day_that_clocks_jumped_over_is_empty(asking: Asking) -> None:
    """Apia had no 30 December 2011."""
    asking.desk.clock.now_ms = 1_325_300_000_000
    asking.change_org(replace(BY_APP, zones=(From(0, "Pacific/Apia"),)))
    asking.total(7, day="20111229")
    found = asking.days(CHAT, "20111229", "20111231")
    assert [day.total.cost_usd_micros for day in found.values()] == [7, 0, 0]


def test_who_has_no_totals_is_told_so(asking: Asking) -> None:
    user = Entity("user-1", None, CHAT, True, {}, 1, 1, 1, EntityRole.OTHER)
    asking.desk.store.inner.transact([entity_put(NAMESPACE, user, None)], new_token())
    with pytest.raises(NoTotals):
        asking.days("user-1")
    with pytest.raises(NotFound):
        asking.days("former")


def test_an_app_sees_nothing_from_before_it_was_made(asking: Asking) -> None:
    """Another app may have had its id."""
    for day in ("20270113", YESTERDAY, TODAY):
        asking.total(1, entity="new", day=day)
    made_ms = asking.desk.clock.now_ms - DAY_MS
    made = Entity("new", None, ORG, True, {}, 1, made_ms, made_ms, EntityRole.APP)
    asking.desk.store.inner.transact([entity_put(NAMESPACE, made, None)], new_token())
    asked = DayRange(day_number("20270112"), None)
    confined, whole = (asking.aggregates.of(NAMESPACE, "new", asked, confined=one) for one in (True, False))
    assert [day.total.cost_usd_micros for day in confined.days] == [0, 0, 1, 1]
    assert [day.total.cost_usd_micros for day in whole.days] == [0, 1, 1, 1]
    # One made tomorrow, by a clock that is ahead, has no days yet.
    later = replace(made, created_at_ms=made_ms + 3 * DAY_MS)
    asking.desk.store.inner.transact([entity_put(NAMESPACE, later, made)], new_token())
    assert asking.aggregates.of(NAMESPACE, "new", asked, confined=True).total.requests == 0


# Bounds.


def test_so_many_rows_and_no_more(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = ("a", "b", "c" * 256)
    monkeypatch.setattr(aggregates_module, "ROWS_BYTES_MAX", rows_bytes(labels))
    for label in labels:
        asking.total(1, label=label, day=YESTERDAY)
    assert len(asking.days(last=YESTERDAY)[YESTERDAY].labels) == 3
    asking.total(1)
    with pytest.raises(InvalidRequest, match=r"from: these days have more labels .* ask for fewer, by from and to"):
        asking.days(first=YESTERDAY)
    # So it is done: one day after the other.
    assert len(asking.days(last=YESTERDAY)[YESTERDAY].labels) == 3
    assert asking.days()[TODAY].total.requests == 1


@pytest.mark.parametrize("settings", [BY_APP, BY_ORG])
def test_so_many_totals_and_no_more(asking: Asking, settings: OrgSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    asking.change_org(settings)
    monkeypatch.setattr(aggregates_module, "TOTALS_MAX", 3)
    for label in ("a", "b", "c"):
        asking.total(1, entity=ORG, label=label)
    assert asking.days(ORG)[TODAY].total.requests == 3
    asking.total(1, entity=ORG, label="d")
    with pytest.raises(InvalidRequest, match="from: these days have more than 3 totals"):
        asking.days(ORG)


def test_so_many_apps_and_no_more(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted_module, "ENTITIES_MAX", 3)
    for entity in ("a", "b", "c"):
        asking.total(1, entity=entity)
    assert asking.days(ORG)[TODAY].total.requests == 3
    asking.total(1, entity="d")
    with pytest.raises(InvalidRequest, match="entity: has more than 3 apps with totals"):
        asking.days(ORG)


def test_however_many_days_an_app_has_finding_it_takes_one_query(asking: Asking) -> None:
    for number in range(50):
        asking.total(1, day=day_name(TODAY_NUMBER - number))
    asking.desk.store.taken_calls()
    asking.days(ORG)
    # One for each partition of the index, one to find the app, and one for its totals.
    assert asking.desk.store.taken_calls().count("query") == keys.NAMESPACE_PARTITIONS + 2


# Selection.


@pytest.fixture
def selector(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Selector:
    made = start_selector(dynamodb, table, clock)
    made.put_tenant()
    return made


@pytest.fixture
def ask(selector: Selector) -> Callable[[], dict[str, DayUsed]]:
    store = selector.store
    aggregates = Aggregates(store, SettingsCache(store, selector.clock), CountedEntities(store), selector.clock)
    zones = OrgSettings().zones

    def days() -> dict[str, DayUsed]:
        today = local_day(zones, selector.clock.now_ms, ZoneCalendar()).number
        found = aggregates.of(NAMESPACE, CHAT, DayRange(today - 1, None))
        return {"today" if day.day == today else "yesterday": day for day in found.days}

    return days


def test_today_shows_where_selection_stands(selector: Selector, ask: Callable[[], dict[str, DayUsed]]) -> None:
    assert ask()["today"].sticky is None
    selector.spend(10_000)
    selector.selection.select(NAMESPACE, CHAT)
    state = ask()["today"].sticky
    assert state is not None
    assert (state.active_label, state.previous_label, state.override) == (STANDARD, PREMIUM, None)
    selector.clock.advance(MINUTE_MS)
    selector.set_override("economy", until_ms=selector.clock.now_ms + 2 * MINUTE_MS)
    state = ask()["today"].sticky
    assert state is not None
    assert state.override is not None
    assert (state.active_label, state.override.label) == (STANDARD, "economy")
    selector.change_org(replace(SETTINGS, sticky_fallback_enabled=False))
    selector.clock.advance(CACHE_MS)
    state = ask()["today"].sticky
    assert state is not None
    assert state.override is not None
    assert (state.active_label, state.override.label) == (None, "economy")
    # Its time is over, and what selection moved to is not kept.
    selector.clock.advance(2 * MINUTE_MS - CACHE_MS)
    assert ask()["today"].sticky is None
    selector.change_org(SETTINGS)
    selector.clock.advance(CACHE_MS)
    state = ask()["today"].sticky
    assert state is not None
    assert (state.active_label, state.override) == (STANDARD, None)
    selector.change_org(replace(SETTINGS, model_ordering=(PREMIUM, "economy")))
    selector.clock.advance(CACHE_MS)
    assert ask()["today"].sticky is None
    selector.clock.advance(DAY_MS)
    assert [day.sticky for day in ask().values()] == [None, None]
