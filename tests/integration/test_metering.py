"""Usage, one report at a time: what is counted, for whom, on which day, and what is told about it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.errors import (
    InvalidLease,
    InvalidRequest,
    LeaseClosed,
    ModelsUnavailable,
    NotFound,
    PriceMissing,
    RequestIdConflict,
    SluiceError,
    Unavailable,
    UnknownLabel,
)
from sluice.core.metering import LATE_MAX_MS, CallStatus, Counters
from sluice.core.orgs import OrgSettings, QuotaScope
from sluice.core.period import day_number
from sluice.core.pricing import Price, PriceSource, Pricing, TokenKind
from sluice.core.quotas import Mode
from sluice.core.signals import Signal
from sluice.core.timelines import From, always
from sluice.repository import keys
from sluice.repository.audit import audit_query
from sluice.repository.events import UsageEvent
from sluice.repository.leases import State
from sluice.repository.retries import Retries, Throttled
from sluice.repository.store import DynamoStore
from sluice.services.entities import EntityChange
from sluice.services.judging import Reporter
from sluice.services.lineages import CACHE_MS
from sluice.services.metering import Counted
from sluice.services.spending import Quota, Spending
from tests.fakes import CountingMeter, FakeClock
from tests.integration.metering_desks import (
    APP,
    AS_APP,
    AS_ORG,
    COST,
    DAY_MS,
    HOUR_MS,
    LABEL,
    MIDNIGHT_MS,
    MINUTE_MS,
    MODEL,
    NAMESPACE,
    NOTHING,
    NOW_MS,
    ORG,
    OTHER_APP,
    SETTINGS,
    TODAY,
    YESTERDAY,
    MeteringDesk,
    lease_of,
    make_unreadable,
    report,
)

ONCE = Counters(
    COST,
    {
        TokenKind.INPUT: 1_500,
        TokenKind.OUTPUT: 800,
        TokenKind.CACHE_READ: 0,
        TokenKind.CACHE_WRITE: 0,
        TokenKind.CACHE_WRITE_1H: 0,
    },
    1,
)
BY_ORG = replace(SETTINGS, quota_scopes=always(QuotaScope.ORG))

Start = Callable[[OrgSettings], MeteringDesk]


@pytest.fixture
def start(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Start:
    def started(settings: OrgSettings) -> MeteringDesk:
        retries = Retries(lambda _ms: None, lambda _below: 0, CountingMeter())
        return MeteringDesk.opened(DynamoStore(dynamodb, table, retries), clock).found(settings)

    return started


@pytest.fixture
def desk(start: Start) -> MeteringDesk:
    return start(SETTINGS)


def test_a_call_is_an_event_and_an_addition(desk: MeteringDesk) -> None:
    counted = desk.submit(
        entity="user-1", region="us-east-1", tags={"team": "a", "é": ""}, occurred_at_ms=desk.clock.now_ms - 7
    )
    assert (counted.duplicate, counted.event) == (False, desk.event())
    assert counted.event == UsageEvent(
        namespace=NAMESPACE,
        request_id="request-1",
        body_hash=counted.event.body_hash,
        entity="user-1",
        app=APP,
        chain=("user-1", APP, ORG),
        day=TODAY,
        occurred_at_ms=desk.clock.now_ms - 7,
        received_at_ms=desk.clock.now_ms,
        label=LABEL,
        model_id=MODEL,
        region="us-east-1",
        status=CallStatus.OK,
        pricing=Pricing.STANDARD,
        tokens={TokenKind.INPUT: 1_500, TokenKind.OUTPUT: 800},
        cost_usd_micros=COST,
        price_id="aws:premium",
        tags={"team": "a", "é": ""},
        lease_id=None,
    )
    assert desk.used() == ONCE
    (shard,) = desk.shards()
    assert (shard.shard, shard.revision) == (0, 1)
    assert desk.used(ORG) == NOTHING
    assert desk.models.asked == [(NAMESPACE, APP, LABEL, "us-east-1")]
    assert desk.prices.asked == [(NAMESPACE, MODEL, "us-east-1", day_number(TODAY), LABEL)]


def test_calls_of_a_report(desk: MeteringDesk) -> None:
    desk.submit()
    desk.store.taken_calls()
    desk.submit(request_id="request-2")
    assert desk.store.taken_calls() == ["transact", "get"]
    desk.submit(request_id="request-2")
    assert desk.store.taken_calls() == ["transact", "get"]


def test_every_call_is_counted_however_it_ended(desk: MeteringDesk) -> None:
    for number, status in enumerate(CallStatus):
        desk.submit(request_id=f"{number}", status=status)
    used = desk.used()
    assert (used.requests, used.errors, used.cost_usd_micros) == (3, 2, 3 * COST)


@pytest.mark.parametrize(
    ("settings", "reporter", "entity", "counted_for"),
    [
        (SETTINGS, AS_APP, None, [APP]),
        (SETTINGS, AS_APP, "user-1", [APP]),
        (SETTINGS, AS_ORG, "user-1", [APP]),
        (SETTINGS, AS_ORG, None, [ORG]),
        (BY_ORG, AS_APP, "user-1", [APP, ORG]),
        (BY_ORG, AS_ORG, OTHER_APP, [OTHER_APP, ORG]),
        (BY_ORG, AS_ORG, None, [ORG]),
    ],
)
def test_a_call_is_counted_for_its_app_and_where_quotas_are_the_orgs_for_that_too(
    start: Start, settings: OrgSettings, reporter: Reporter, entity: str | None, counted_for: list[str]
) -> None:
    desk = start(settings)
    desk.submit(reporter, entity=entity)
    for one in (APP, OTHER_APP, ORG, "user-1"):
        assert desk.used(one) == (ONCE if one in counted_for else NOTHING)


def test_an_app_counts_whatever_cascades(desk: MeteringDesk) -> None:
    desk.entities.put(NAMESPACE, "loner", EntityChange(parent=APP, cascade=False))
    counted = desk.submit(entity="loner")
    assert (counted.event.chain, counted.event.app) == (("loner",), APP)
    assert desk.used() == ONCE


def test_the_scope_of_a_day_is_the_one_that_it_began_with(start: Start) -> None:
    turning = (From(0, QuotaScope.ORG), From(MIDNIGHT_MS, QuotaScope.APP))
    desk = start(replace(SETTINGS, quota_scopes=turning))
    desk.submit(request_id="late", occurred_at_ms=MIDNIGHT_MS - 1)
    desk.submit(request_id="now", occurred_at_ms=MIDNIGHT_MS)
    assert desk.used(ORG, day=YESTERDAY) == desk.used(day=YESTERDAY) == ONCE
    assert (desk.used(ORG), desk.used()) == (NOTHING, ONCE)


def test_money_44_a_call_is_counted_on_its_own_day(start: Start) -> None:
    desk = start(replace(SETTINGS, zones=always("America/New_York")))
    midnight_ms = MIDNIGHT_MS + 5 * HOUR_MS
    desk.clock.now_ms = midnight_ms + 60_000
    counted = desk.submit(occurred_at_ms=midnight_ms - 60_000)
    assert counted.event.day == YESTERDAY
    assert (desk.used(day=YESTERDAY), desk.used()) == (ONCE, NOTHING)
    assert desk.prices.asked[0][3] == day_number(YESTERDAY)


def test_money_45_the_same_again_is_answered_the_same_and_changes_nothing(desk: MeteringDesk) -> None:
    first = desk.submit()
    shards = desk.shards()
    for process in (desk, desk.elsewhere()):
        desk.clock.advance(1_000)
        again = process.submit()
        assert (again.event, again.duplicate) == (first.event, True)
    assert desk.shards() == shards
    assert desk.used().requests == 1
    assert desk.meter.counts[Signal.USAGE_EVENTS] == 1
    assert desk.meter.counts[Signal.USAGE_DUPLICATES] == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"tokens": {TokenKind.INPUT: 1_501, TokenKind.OUTPUT: 800}},
        {"status": CallStatus.ERROR},
        {"label": "economy"},
        {"label": None, "model_id": MODEL},
        {"entity": APP},
        {"region": "us-east-1"},
        {"pricing": Pricing.BATCH},
        {"occurred_at_ms": NOW_MS - 1},
        {"occurred_at_ms": None},
        {"tags": {"a": "b"}},
    ],
)
def test_money_46_another_body_under_the_same_id_is_a_conflict(desk: MeteringDesk, changed: dict[str, Any]) -> None:
    desk.submit()
    shards = desk.shards()
    with pytest.raises(RequestIdConflict):
        desk.submit(**changed)
    assert desk.shards() == shards
    assert desk.shards(label="economy") == []


def test_ids_are_the_callers_own(desk: MeteringDesk) -> None:
    """Two callers do not know of each other's ids, also where both report for the same entity."""
    assert not desk.submit().duplicate
    assert not desk.submit(AS_ORG, entity=APP).duplicate
    assert desk.used().requests == 2
    assert desk.event(caller=ORG) is not None


def test_one_id_on_two_days_is_two_events(desk: MeteringDesk) -> None:
    for days in range(3):
        assert not desk.submit(occurred_at_ms=desk.clock.now_ms - days * DAY_MS).duplicate
    assert desk.used().requests == desk.used(day=YESTERDAY).requests == 1


def test_money_67_shards_that_are_added_in_the_middle_of_the_day(desk: MeteringDesk) -> None:
    turn = iter(range(10**6))
    desk.random.draw = lambda below: next(turn) % below
    for number in range(100):
        desk.submit(request_id=f"before-{number}")
    assert {shard.shard for shard in desk.shards()} == set(range(8))
    desk.change_org(lambda settings: replace(settings, counter_shards=16))
    for number in range(100):
        desk.submit(request_id=f"after-{number}")
    assert {shard.shard for shard in desk.shards()} == set(range(16))
    assert desk.used().requests == sum(shard.revision for shard in desk.shards()) == 200
    assert desk.used().cost_usd_micros == 200 * COST


@pytest.mark.parametrize(
    ("ms", "passes"), [(60_000, True), (60_001, False), (-LATE_MAX_MS, True), (-LATE_MAX_MS - 1, False)]
)
def test_how_far_off_a_call_may_be(desk: MeteringDesk, ms: int, passes: bool) -> None:
    at_ms = desk.clock.now_ms + ms
    if passes:
        assert desk.submit(occurred_at_ms=at_ms).event.occurred_at_ms == at_ms
        return
    with pytest.raises(InvalidRequest) as refused:
        desk.submit(occurred_at_ms=at_ms)
    assert refused.value.field == "occurred_at"
    assert desk.store.taken_calls() == []


# Without a time.


def test_without_a_time_the_servers_counts(desk: MeteringDesk) -> None:
    counted = desk.submit(occurred_at_ms=None)
    assert counted.event.occurred_at_ms == counted.event.received_at_ms == desk.clock.now_ms
    assert desk.submit(occurred_at_ms=None).duplicate
    desk.store.taken_calls()
    desk.submit(request_id="another", occurred_at_ms=None)
    assert desk.store.taken_calls() == ["transact", "get"]


@pytest.mark.parametrize("later_ms", [1, 60_000, HOUR_MS - 1])
def test_without_a_time_a_repeat_is_known_for_an_hour_over_midnight(desk: MeteringDesk, later_ms: int) -> None:
    desk.clock.now_ms = MIDNIGHT_MS - 1
    first = desk.submit(occurred_at_ms=None)
    desk.clock.advance(later_ms)
    again = desk.elsewhere().submit(occurred_at_ms=None)
    assert (again.duplicate, again.event, again.event.day) == (True, first.event, YESTERDAY)
    with pytest.raises(RequestIdConflict):
        desk.submit(occurred_at_ms=None, label="economy")
    assert (desk.used(), desk.used(day=YESTERDAY)) == (NOTHING, ONCE)


@pytest.mark.parametrize("behind_ms", [1, 2_000, 60_000])
def test_without_a_time_a_repeat_is_known_where_the_first_clock_was_ahead(desk: MeteringDesk, behind_ms: int) -> None:
    desk.clock.now_ms = MIDNIGHT_MS
    first = desk.submit(occurred_at_ms=None)
    desk.clock.advance(-behind_ms)
    again = desk.elsewhere().submit(occurred_at_ms=None)
    assert (again.duplicate, again.event, again.event.day) == (True, first.event, TODAY)
    assert (desk.used(), desk.used(day=YESTERDAY)) == (ONCE, NOTHING)


def test_without_a_time_the_same_id_on_the_next_day_is_another_call(desk: MeteringDesk) -> None:
    """Also within the first hour of that day: what came in longer ago is no repeat."""
    desk.clock.now_ms = MIDNIGHT_MS - HOUR_MS
    desk.submit(occurred_at_ms=None)
    desk.clock.advance(HOUR_MS + 1)
    assert not desk.submit(occurred_at_ms=None).duplicate
    assert (desk.used(), desk.used(day=YESTERDAY)) == (ONCE, ONCE)


def test_without_a_time_a_day_of_half_an_hour_is_not_forgotten(start: Start) -> None:
    """A change of the zone made it: it lies between the day of an hour ago and today."""
    turns_ms = MIDNIGHT_MS + HOUR_MS * 19 // 2
    desk = start(replace(SETTINGS, zones=(From(0, "Pacific/Marquesas"), From(turns_ms, "Pacific/Kiritimati"))))
    desk.clock.now_ms = turns_ms + 10 * MINUTE_MS
    first = desk.submit(occurred_at_ms=None)
    desk.clock.now_ms = turns_ms + 45 * MINUTE_MS
    assert desk.submit(request_id="another", occurred_at_ms=None).event.day == "20270116"
    assert desk.submit(request_id="old", occurred_at_ms=turns_ms - 15 * MINUTE_MS).event.day == YESTERDAY
    assert (first.event.day, desk.submit(occurred_at_ms=None).event) == (TODAY, first.event)


# Labels, models and prices.


def test_a_model_counts_under_the_label_that_stands_for_it_else_under_itself(desk: MeteringDesk) -> None:
    desk.prices.prices["bare"] = PRICE_OF_ALL
    known = desk.submit(label=None, model_id=MODEL)
    bare = desk.submit(request_id="2", label=None, model_id="bare")
    assert (known.event.label, known.event.model_id) == (LABEL, MODEL)
    assert (bare.event.label, bare.event.model_id) == ("bare", "bare")
    assert desk.used() == ONCE
    assert desk.used(label="bare").requests == 1
    assert [asked[-1] for asked in desk.prices.asked] == [LABEL, None]


PRICE_OF_ALL = Price("aws:all", PriceSource.AWS, dict.fromkeys(TokenKind, 1_000_000), dict.fromkeys(TokenKind, 500_000))


@pytest.mark.parametrize("names", [{"label": None}, {"model_id": MODEL}])
def test_a_report_names_a_label_or_a_model(desk: MeteringDesk, names: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        desk.submit(**names)
    assert refused.value.field == "label"
    assert desk.event() is None


def test_batch_prices_and_every_kind_of_token(desk: MeteringDesk) -> None:
    desk.prices.prices[MODEL] = PRICE_OF_ALL
    counted = desk.submit(tokens={kind: number for number, kind in enumerate(TokenKind, 1)}, pricing=Pricing.BATCH)
    assert counted.event.cost_usd_micros == 8  # fifteen at a half each, half up
    assert desk.used().tokens == {kind: number for number, kind in enumerate(TokenKind, 1)}


def test_an_unknown_label_and_an_unknown_price_are_refused(desk: MeteringDesk) -> None:
    with pytest.raises(UnknownLabel):
        desk.submit(label="nonsense")
    del desk.prices.prices[MODEL]
    with pytest.raises(PriceMissing, match=MODEL):
        desk.submit()
    # Also without tokens: who knows what it costs to be refused by that model?
    with pytest.raises(PriceMissing):
        desk.submit(tokens={}, status=CallStatus.ERROR)
    assert desk.event() is None
    assert desk.used() == NOTHING


def test_tokens_of_a_kind_without_a_price_are_refused_by_name(desk: MeteringDesk) -> None:
    with pytest.raises(PriceMissing, match="cache_read"):
        desk.submit(tokens={TokenKind.INPUT: 1, TokenKind.CACHE_READ: 1})
    # None of them is not one of them.
    assert desk.submit(tokens={TokenKind.INPUT: 1, TokenKind.CACHE_READ: 0}).event.cost_usd_micros == 3


def test_a_call_without_tokens_costs_nothing_where_the_price_is_known(desk: MeteringDesk) -> None:
    counted = desk.submit(tokens={}, status=CallStatus.TIMEOUT)
    assert (counted.event.cost_usd_micros, counted.event.price_id) == (0, "aws:premium")
    assert desk.used() == replace(ONCE, cost_usd_micros=0, tokens=dict.fromkeys(TokenKind, 0), errors=1)


@pytest.mark.parametrize("tokens", [{TokenKind.INPUT: 5, TokenKind.CACHE_WRITE: 5}, {TokenKind.CACHE_WRITE: 1}])
def test_an_org_may_accept_what_nobody_knows_the_price_of(start: Start, tokens: dict[TokenKind, int]) -> None:
    desk = start(replace(SETTINGS, accept_unpriced=True))
    counted = desk.submit(tokens=tokens)
    assert (counted.event.cost_usd_micros, counted.event.price_id) == (None, None)
    del desk.prices.prices[MODEL]
    assert desk.submit(request_id="2", tokens={}).event.cost_usd_micros is None
    used = desk.used()
    assert (used.requests, used.unpriced, used.cost_usd_micros) == (2, 2, 0)
    assert used.tokens[TokenKind.CACHE_WRITE] == tokens[TokenKind.CACHE_WRITE]
    assert desk.submit(tokens=tokens).duplicate
    assert desk.meter.counts[Signal.USAGE_UNPRICED] == 2


# Whose it is.


@pytest.mark.parametrize("entity", [OTHER_APP, "stranger", ORG])
def test_what_belongs_to_others_looks_as_if_it_were_not_there(desk: MeteringDesk, entity: str) -> None:
    with pytest.raises(NotFound) as refused:
        desk.submit(entity=entity)
    assert str(refused.value) == "there is no such entity"
    assert desk.event() is None
    assert desk.used(entity) == desk.used() == NOTHING
    assert not desk.submit(AS_ORG, entity=entity).duplicate


def test_an_unknown_entity_is_registered_below_whoever_reports_for_it(desk: MeteringDesk) -> None:
    for reporter, parent, counted_for in ((AS_APP, APP, APP), (AS_ORG, ORG, ORG)):
        entity = f"new-below-{parent}"
        counted = desk.submit(reporter, entity=entity)
        registered = desk.entity(entity)
        assert registered is not None
        assert (registered.parent, registered.cascade) == (parent, True)
        assert counted.event.chain[:2] == (entity, parent)
        assert desk.used(counted_for).requests == 1
        desk.store.taken_calls()
        desk.submit(reporter, request_id="2", entity=entity)
        assert desk.store.taken_calls() == ["transact", "get"]
    (told,) = desk.store.inner.query(audit_query(NAMESPACE, "new-below-chat")).items
    assert (told["actor"], told["action"]) == ("client-chat", "entity.register")


def test_an_org_may_keep_unknown_entities_out(desk: MeteringDesk) -> None:
    for reporter in (AS_APP, AS_ORG):
        with pytest.raises(NotFound):
            desk.submit(replace(reporter, registers=False), entity="new")
    assert desk.entity("new") is None
    assert desk.event() is None


def test_an_entity_that_somebody_else_registers_meanwhile_is_theirs(desk: MeteringDesk) -> None:
    other = desk.elsewhere()

    def register_first(verb: str, _request: object) -> None:
        if verb == "transact":
            desk.store.before = None
            other.submit(replace(AS_APP, entity=OTHER_APP, within=OTHER_APP), entity="new")

    desk.store.before = register_first
    with pytest.raises(NotFound):
        desk.submit(entity="new")
    assert desk.used() == NOTHING
    registered = desk.entity("new")
    assert registered is not None
    assert registered.parent == OTHER_APP


def test_who_is_gone_registers_nobody(desk: MeteringDesk) -> None:
    ghost = replace(AS_APP, entity="ghost", within="ghost")
    for entity in (None, "new"):
        with pytest.raises(NotFound):
            desk.submit(ghost, entity=entity)
    assert desk.entity("new") is None


@pytest.mark.parametrize("change", ["label", "price", "entity", "moved", "unpriced", "region", "silence"])
def test_a_repeat_is_one_whatever_has_become_of_what_it_names(start: Start, change: str) -> None:
    desk = start(replace(SETTINGS, accept_unpriced=True))
    first = desk.submit(entity="user-1")
    if change == "label":
        desk.models.labels.clear()
    elif change == "region":
        desk.models.error = InvalidRequest("region", "is needed")
    elif change == "silence":
        desk.models.error = ModelsUnavailable()
    elif change == "entity":
        desk.store.inner.delete({"Key": {**keys.entity(NAMESPACE, "user-1").attributes}})
    elif change == "moved":
        desk.entities.put(NAMESPACE, "user-1", EntityChange(parent=OTHER_APP))
    else:
        desk.prices.prices.clear()
        desk.change_org(lambda settings: replace(settings, accept_unpriced=change == "unpriced"))
    desk.clock.advance(CACHE_MS)
    again = desk.elsewhere().submit(entity="user-1")
    assert (again.event, again.duplicate) == (first.event, True)
    with pytest.raises(RequestIdConflict):
        desk.elsewhere().submit(entity="user-1", region="us-east-1")
    assert desk.used() == ONCE
    assert (desk.entity("user-1") is None) == (change == "entity"), "a repeat makes nobody known"


def test_a_refusal_costs_one_look(desk: MeteringDesk) -> None:
    desk.submit()
    desk.store.taken_calls()
    with pytest.raises(UnknownLabel):
        desk.submit(request_id="2", label="nonsense")
    assert desk.store.taken_calls() == ["consistent batch_get"]


def test_while_nobody_can_tell_the_model_nothing_is_counted(desk: MeteringDesk) -> None:
    desk.models.error = ModelsUnavailable()
    with pytest.raises(ModelsUnavailable):
        desk.submit()
    assert desk.event() is None


def test_a_report_that_names_a_model_waits_for_its_label(desk: MeteringDesk) -> None:
    by_model = report(request_id="1", label=None, model_id=MODEL)
    nobodys = report(request_id="2", label=None, model_id="nobodys")
    desk.models.error = ModelsUnavailable()
    for answer in desk.metering.submit_batch(AS_APP, [by_model, nobodys]):
        assert isinstance(answer, ModelsUnavailable)
    assert desk.used() == NOTHING
    desk.models.error = None
    counted, unknown = desk.metering.submit_batch(AS_APP, [by_model, nobodys])
    assert isinstance(counted, Counted)
    assert counted.event.label == LABEL
    assert isinstance(unknown, PriceMissing)
    desk.models.error = ModelsUnavailable()
    assert desk.submit(request_id="1", label=None, model_id=MODEL).duplicate


def test_without_an_org_there_is_nothing_to_count(desk: MeteringDesk) -> None:
    with pytest.raises(NotFound):
        desk.submit(replace(AS_APP, namespace="nowhere"))


# What is told about the quota.


def spending(cost_usd_micros: int, requests: int, as_of_ms: int | None, quota: Quota | None) -> Spending:
    tokens = {kind: ONCE.tokens[kind] * requests for kind in TokenKind} if requests else {}
    return Spending(Counters(cost_usd_micros, tokens, requests), as_of_ms, quota)


def test_the_quota_is_shown_as_last_rolled_up(desk: MeteringDesk) -> None:
    assert desk.submit(request_id="1").spending == spending(0, 0, None, Quota(100_000, 0, Mode.NORMAL))
    desk.roll_up()
    rolled_ms = desk.clock.now_ms
    told = spending(COST, 1, rolled_ms, Quota(100_000, 165, Mode.NORMAL))
    assert desk.submit(request_id="2").spending == told
    assert desk.submit(request_id="2").spending == told
    for number in range(3, 7):
        desk.submit(request_id=str(number))
    desk.roll_up()
    assert desk.submit(request_id="7").spending == spending(6 * COST, 6, rolled_ms, Quota(100_000, 990, Mode.TIGHT))
    desk.roll_up()
    last = desk.submit(request_id="8").spending
    assert last == spending(7 * COST, 7, rolled_ms, Quota(100_000, 1155, Mode.EXCEEDED))


def test_a_label_without_a_quota_and_one_with_a_quota_of_nothing(start: Start) -> None:
    desk = start(replace(SETTINGS, quotas_usd_micros={LABEL: 0}))
    assert desk.submit(label="economy").spending == spending(0, 0, None, None)
    assert desk.submit(request_id="2").spending == spending(0, 0, None, Quota(0, None, Mode.EXCEEDED))


def test_with_quotas_of_the_org_its_totals_are_shown(start: Start) -> None:
    desk = start(BY_ORG)
    desk.submit(AS_ORG, entity=OTHER_APP, request_id="of another app")
    desk.submit()
    desk.roll_up(ORG)
    desk.roll_up(APP)
    told = desk.submit(request_id="2").spending
    assert told is not None
    assert told.counters.requests == 2
    desk.store.taken_calls()
    desk.submit(request_id="3")
    assert desk.store.taken_calls() == ["transact", "get"]


def test_a_late_call_is_told_of_its_own_day(desk: MeteringDesk) -> None:
    desk.submit(request_id="1", occurred_at_ms=MIDNIGHT_MS - 1)
    desk.roll_up(day=YESTERDAY)
    told = desk.submit(request_id="2", occurred_at_ms=MIDNIGHT_MS - 1).spending
    assert told is not None
    assert told.counters.requests == 1


@pytest.mark.parametrize("error", [Throttled("x"), Unavailable("x")])
def test_a_total_that_can_not_be_read_takes_nothing_back(desk: MeteringDesk, error: SluiceError) -> None:
    desk.submit(request_id="warm")

    def fail(verb: str, _request: object) -> None:
        if verb == "get":
            raise error

    desk.store.before = fail
    counted = desk.submit()
    assert (counted.duplicate, counted.spending) == (False, None)
    assert desk.used().requests == 2


def test_a_total_that_nobody_understands_takes_nothing_back(desk: MeteringDesk) -> None:
    """Another release may have written it. The call is counted, and every repeat is told so."""
    desk.submit(request_id="warm")
    desk.roll_up()
    make_unreadable(desk)
    for duplicate in (False, True):
        counted = desk.submit()
        assert (counted.duplicate, counted.spending) == (duplicate, None)
    assert desk.used().requests == 2
    assert desk.meter.counts[Signal.TOTALS_FAILED] == 2


# Leases.


def test_a_report_closes_its_lease_and_leaves_what_it_took(desk: MeteringDesk) -> None:
    lease = lease_of(desk.clock)
    counted = desk.submit(lease=lease)
    assert counted.event.lease_id == "lease-1"
    state = desk.lease_state(lease)
    assert state is not None
    assert (state.state, state.closed_with, state.version) == (State.SETTLED, {"tpm": 500}, 1)
    for process in (desk, desk.elsewhere()):
        with pytest.raises(LeaseClosed):
            process.leases.release(lease)
        with pytest.raises(LeaseClosed):
            process.leases.settle(lease, {"tpm": 1})
        # The same close is answered the same.
        assert process.leases.settle(lease, {}).amounts == {"tpm": 500}


def test_a_report_without_its_lease_is_another_body(desk: MeteringDesk) -> None:
    desk.submit(lease=lease_of(desk.clock))
    with pytest.raises(RequestIdConflict):
        desk.submit()
    with pytest.raises(RequestIdConflict):
        desk.submit(lease=lease_of(desk.clock, lease_id="lease-2"))


def test_a_repeat_of_the_report_that_closed_the_lease_is_a_repeat(desk: MeteringDesk) -> None:
    lease = lease_of(desk.clock)
    first = desk.submit(lease=lease)
    for process in (desk, desk.elsewhere()):
        again = process.submit(lease=lease)
        assert (again.event, again.duplicate) == (first.event, True)
    assert desk.used() == ONCE
    state = desk.lease_state(lease)
    assert state is not None
    assert state.version == 1


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_lease_that_is_over_is_counted_all_the_same(desk: MeteringDesk, elsewhere: bool) -> None:
    lease = lease_of(desk.clock)
    desk.leases.settle(lease, {})
    before = desk.lease_state(lease)
    process = desk.elsewhere() if elsewhere else desk
    assert not process.submit(lease=lease).duplicate
    assert process.submit(lease=lease).duplicate
    # A second event on one lease as well.
    assert not process.submit(request_id="2", lease=lease).duplicate
    assert desk.used().requests == 2
    assert desk.lease_state(lease) == before


def test_an_expired_lease_is_counted_all_the_same(desk: MeteringDesk) -> None:
    lease = lease_of(desk.clock, ttl_ms=1_000)
    desk.clock.advance(1_000)
    assert not desk.submit(lease=lease).duplicate
    assert desk.lease_state(lease) is None


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_lease_that_was_adjusted_is_closed_as_it_is(desk: MeteringDesk, elsewhere: bool) -> None:
    lease = lease_of(desk.clock)
    # An adjustment that needs no bucket.
    desk.leases.adjust(replace(lease, members=()), {"tpm": 70}, "key-1")
    process = desk.elsewhere() if elsewhere else desk
    assert not process.submit(lease=lease).duplicate
    state = desk.lease_state(lease)
    assert state is not None
    assert (state.state, state.closed_with, state.version) == (State.SETTLED, {"tpm": 570}, 2)
    assert len(state.adjustment_marks) == 1
    assert desk.used() == ONCE


def test_a_call_is_of_whoever_has_its_lease(desk: MeteringDesk) -> None:
    counted = desk.submit(lease=lease_of(desk.clock, "user-1"))
    assert (counted.event.entity, counted.event.chain[0], counted.event.app) == ("user-1", "user-1", APP)


@pytest.mark.parametrize(("lease", "named"), [("user-1", APP), (APP, "user-1"), ("stranger", None), ("stranger", APP)])
def test_a_lease_of_another_entity_is_refused(desk: MeteringDesk, lease: str, named: str | None) -> None:
    with pytest.raises(InvalidLease):
        desk.submit(lease=lease_of(desk.clock, lease), entity=named)
    with pytest.raises(InvalidLease):
        desk.submit(lease=replace(lease_of(desk.clock), namespace="elsewhere"))
    assert desk.event() is None


def test_another_label_than_that_of_the_lease_is_accepted(desk: MeteringDesk) -> None:
    assert not desk.submit(lease=lease_of(desk.clock), label="economy").duplicate
    assert desk.used(label="economy").requests == 1
