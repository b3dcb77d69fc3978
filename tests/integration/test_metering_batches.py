"""Usage in batches: each event is judged on its own, and few transactions carry all of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.errors import (
    InvalidLease,
    InvalidRequest,
    NotFound,
    PriceMissing,
    RequestIdConflict,
    SluiceError,
    Unavailable,
    UnknownLabel,
)
from sluice.core.metering import CallStatus, Counters
from sluice.core.orgs import QuotaScope
from sluice.core.pricing import TokenKind
from sluice.core.reports import UsageReport
from sluice.core.signals import Signal
from sluice.core.timelines import always
from sluice.repository.leases import State
from sluice.repository.retries import Retries
from sluice.repository.store import DynamoStore
from sluice.services.metering import BEGIN_WITHIN_MS, Counted
from tests.fakes import CountingMeter, FakeClock
from tests.integration.metering_desks import (
    APP,
    AS_APP,
    AS_ORG,
    COST,
    DAY_MS,
    LABEL,
    MIDNIGHT_MS,
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
    simulated_desk,
)

Answers = Sequence[Counted | SluiceError]


@pytest.fixture
def desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> MeteringDesk:
    retries = Retries(lambda _ms: None, lambda _below: 0, CountingMeter())
    return MeteringDesk.opened(DynamoStore(dynamodb, table, retries), clock).found()


def reports(count: int, first: int = 0, **changed: Any) -> list[UsageReport]:
    return [report(request_id=f"r-{number}", **changed) for number in range(first, first + count)]


def shown(answers: Answers) -> list[object]:
    """What came of each, in one word."""
    return [
        type(answer).__name__ if isinstance(answer, SluiceError) else "duplicate" if answer.duplicate else "counted"
        for answer in answers
    ]


def events_of(answers: Answers) -> list[object]:
    return [answer.event if isinstance(answer, Counted) else None for answer in answers]


def sent_items(desk: MeteringDesk) -> list[int]:
    """How many items each transaction has that is sent from now on."""
    sizes: list[int] = []
    desk.store.before = lambda verb, request: sizes.append(len(request)) if verb == "transact" else None
    return sizes


def test_money_47_three_of_which_one_was_counted_before(desk: MeteringDesk) -> None:
    earlier = desk.submit(request_id="r-1")
    answers = desk.metering.submit_batch(AS_APP, reports(3))
    assert shown(answers) == ["counted", "duplicate", "counted"]
    assert events_of(answers)[1] == earlier.event
    assert [desk.event(f"r-{number}") for number in range(3)] == events_of(answers)
    assert (desk.used().requests, desk.used().cost_usd_micros) == (3, 3 * COST)
    assert desk.meter.counts[Signal.USAGE_EVENTS] == 3
    assert desk.meter.counts[Signal.USAGE_DUPLICATES] == 1


def test_a_hundred_calls_of_one_app_and_label_are_two_transactions(desk: MeteringDesk) -> None:
    desk.submit()
    desk.store.taken_calls()
    sizes = sent_items(desk)
    answers = desk.metering.submit_batch(AS_APP, reports(100))
    assert shown(answers) == ["counted"] * 100
    assert sizes == [100, 2]
    assert desk.store.taken_calls() == ["transact", "transact", "get"]
    assert desk.used().requests == 101
    assert sum(shard.revision for shard in desk.shards()) == 3
    again = desk.metering.submit_batch(AS_APP, reports(100))
    assert shown(again) == ["duplicate"] * 100
    assert events_of(again) == events_of(answers)
    assert desk.used().requests == 101


def test_a_hundred_calls_with_quotas_of_the_org_are_two_transactions(desk: MeteringDesk) -> None:
    desk.change_org(lambda settings: replace(settings, quota_scopes=always(QuotaScope.ORG)))
    sizes = sent_items(desk)
    assert shown(desk.metering.submit_batch(AS_APP, reports(100))) == ["counted"] * 100
    assert sizes == [100, 4]
    assert desk.used().requests == desk.used(ORG).requests == 100


def test_calls_of_many_labels_and_days_go_together_as_they_are_counted(desk: MeteringDesk) -> None:
    """In whatever order they come: what is added to one counter is one update of a transaction."""
    batch = [
        report(
            request_id=f"r-{number}", label=(LABEL, "economy")[number % 2], occurred_at_ms=NOW_MS - number % 3 * DAY_MS
        )
        for number in range(90)
    ]
    sizes = sent_items(desk)
    assert shown(desk.metering.submit_batch(AS_APP, batch)) == ["counted"] * 90
    assert sizes == [96]
    for label in (LABEL, "economy"):
        for day in (TODAY, YESTERDAY, "20270113"):
            assert desk.used(label=label, day=day).requests == 15


def test_what_is_wrong_with_one_does_not_touch_the_others(desk: MeteringDesk) -> None:
    desk.submit(request_id="used")
    batch = [
        report(request_id="good-1"),
        report(request_id="label", label="nonsense"),
        report(request_id="both", model_id="m"),
        report(request_id="late", occurred_at_ms=NOW_MS - 36 * DAY_MS),
        report(request_id="early", occurred_at_ms=NOW_MS + 60_001),
        report(request_id="price", tokens={TokenKind.CACHE_READ: 1}),
        report(request_id="foreign", entity=OTHER_APP),
        report(request_id="lease", entity=APP, lease=lease_of(desk.clock, "user-1")),
        report(request_id="used", status=CallStatus.ERROR),
        report(request_id="used"),
        report(request_id="good-2"),
    ]
    answers = desk.metering.submit_batch(AS_APP, batch)
    kinds: list[type[SluiceError]] = [
        UnknownLabel,
        InvalidRequest,
        InvalidRequest,
        InvalidRequest,
        PriceMissing,
        NotFound,
        InvalidLease,
        RequestIdConflict,
    ]
    assert shown(answers) == ["counted", *(kind.__name__ for kind in kinds), "duplicate", "counted"]
    assert desk.used().requests == 3
    # Each is told what it would be told alone.
    for one, answer in zip(batch[1:9], answers[1:9], strict=True):
        assert isinstance(answer, SluiceError)
        with pytest.raises(type(answer)) as alone:
            desk.metering.submit(AS_APP, one)
        assert str(alone.value) == str(answer)


def test_of_two_with_one_id_the_second_is_the_repeat(desk: MeteringDesk) -> None:
    batch = [report(), report(status=CallStatus.ERROR), report(), report(request_id="2")]
    desk.submit(request_id="warm")
    desk.store.taken_calls()
    answers = desk.metering.submit_batch(AS_APP, batch)
    assert shown(answers) == ["counted", "RequestIdConflict", "duplicate", "counted"]
    assert desk.store.taken_calls() == ["transact", "get"]
    assert desk.used().requests == 3
    assert shown(desk.metering.submit_batch(AS_APP, batch)) == [
        "duplicate",
        "RequestIdConflict",
        "duplicate",
        "duplicate",
    ]


def test_of_two_with_one_id_the_first_that_can_be_counted_is(desk: MeteringDesk) -> None:
    answers = desk.metering.submit_batch(AS_APP, [report(label="nonsense"), report(), report(label="nonsense")])
    assert shown(answers) == ["UnknownLabel", "counted", "UnknownLabel"]


def test_of_two_with_one_id_the_second_may_be_the_repeat_of_an_earlier_call(desk: MeteringDesk) -> None:
    earlier = desk.submit()
    answers = desk.metering.submit_batch(AS_APP, [report(status=CallStatus.ERROR), report()])
    assert shown(answers) == ["RequestIdConflict", "duplicate"]
    assert events_of(answers)[1] == earlier.event


def test_one_id_on_two_days_of_one_batch_is_two_calls(desk: MeteringDesk) -> None:
    batch = [report(occurred_at_ms=NOW_MS - days * DAY_MS) for days in range(3)]
    assert shown(desk.metering.submit_batch(AS_APP, batch)) == ["counted"] * 3
    assert desk.used().requests == desk.used(day=YESTERDAY).requests == 1


def test_around_midnight_with_and_without_a_time(desk: MeteringDesk) -> None:
    """No transaction may touch the key of a day twice, and what comes first is seen by what comes second."""
    desk.clock.now_ms = MIDNIGHT_MS + 1
    untimed, yesterdays = report(occurred_at_ms=None), report(occurred_at_ms=MIDNIGHT_MS - 1)
    one, other = report(request_id="other", occurred_at_ms=None), report(request_id="other", occurred_at_ms=MIDNIGHT_MS)
    answers = desk.metering.submit_batch(AS_APP, [yesterdays, untimed, one, other, untimed, one])
    assert shown(answers) == [
        "counted",
        # The same id came in a moment ago, with a time.
        "RequestIdConflict",
        "counted",
        "RequestIdConflict",
        "RequestIdConflict",
        "duplicate",
    ]
    assert (
        shown(
            desk.metering.submit_batch(AS_APP, [replace(untimed, request_id="3"), replace(yesterdays, request_id="3")])
        )
        == ["counted"] * 2
    )


def test_a_batch_registers_who_is_unknown_once(desk: MeteringDesk) -> None:
    batch = [report(request_id=f"{number}", entity=f"new-{number % 2}") for number in range(6)]
    desk.submit(request_id="warm")
    desk.store.taken_calls()
    assert shown(desk.metering.submit_batch(AS_APP, batch)) == ["counted"] * 6
    calls = desk.store.taken_calls()
    assert calls.count("transact") == 3
    assert calls.count("consistent batch_get") == 1
    assert desk.used().requests == 7
    # None of the repeats makes anybody known.
    assert shown(desk.elsewhere().metering.submit_batch(AS_APP, batch)) == ["duplicate"] * 6


# Leases.


def test_two_events_on_one_lease_close_it_once(desk: MeteringDesk) -> None:
    lease = lease_of(desk.clock)
    sizes = sent_items(desk)
    assert shown(desk.metering.submit_batch(AS_APP, reports(2, lease=lease))) == ["counted"] * 2
    assert sizes == [4]
    state = desk.lease_state(lease)
    assert state is not None
    assert (state.state, state.version) == (State.SETTLED, 1)


def test_a_lease_of_events_in_two_transactions_is_closed_by_the_first(desk: MeteringDesk) -> None:
    lease = lease_of(desk.clock)
    sizes = sent_items(desk)
    assert shown(desk.metering.submit_batch(AS_APP, reports(100, lease=lease))) == ["counted"] * 100
    assert sizes == [100, 3]
    state = desk.lease_state(lease)
    assert state is not None
    assert state.version == 1


def test_a_lease_is_closed_by_the_event_that_is_left(desk: MeteringDesk) -> None:
    """The first on it turns out to be no news."""
    lease = lease_of(desk.clock)
    desk.elsewhere().submit(AS_APP, request_id="r-0", status=CallStatus.ERROR)
    assert shown(desk.metering.submit_batch(AS_APP, reports(2, lease=lease))) == ["RequestIdConflict", "counted"]
    state = desk.lease_state(lease)
    assert state is not None
    assert state.state is State.SETTLED


def test_an_event_that_is_not_counted_closes_no_lease(desk: MeteringDesk) -> None:
    lease = lease_of(desk.clock)
    desk.submit(request_id="r-0")
    assert shown(desk.metering.submit_batch(AS_APP, reports(1, lease=lease))) == ["RequestIdConflict"]
    assert desk.lease_state(lease) is None


def test_fifty_leases_are_closed_as_they_are(desk: MeteringDesk) -> None:
    leases = [lease_of(desk.clock, lease_id=f"lease-{number}") for number in range(50)]
    for lease in leases[:10]:
        desk.elsewhere().leases.settle(lease, {})
    for lease in leases[10:20]:
        desk.elsewhere().leases.adjust(replace(lease, members=()), {"tpm": 1}, "k")
    batch = [report(request_id=f"{number}", lease=lease) for number, lease in enumerate(leases)]
    assert shown(desk.metering.submit_batch(AS_APP, batch)) == ["counted"] * 50
    states = [desk.lease_state(lease) for lease in leases]
    assert [state and state.closed_with["tpm"] for state in states] == [500] * 10 + [501] * 10 + [500] * 30
    assert desk.used().requests == 50


# When things take long.


def test_nothing_is_begun_when_it_is_too_late(desk: MeteringDesk) -> None:
    """What was counted is told; what was not is told to come again."""
    desk.submit(request_id="warm")
    desk.store.after = lambda verb, _request: desk.clock.advance(BEGIN_WITHIN_MS + 1) if verb == "transact" else None
    answers = desk.metering.submit_batch(AS_APP, reports(100))
    assert shown(answers) == ["counted"] * 99 + ["Unavailable"]
    assert [answer.spending for answer in answers if isinstance(answer, Counted)] == [None] * 99
    desk.store.after = None
    assert shown(desk.metering.submit_batch(AS_APP, reports(100))) == ["duplicate"] * 99 + ["counted"]
    assert desk.used().requests == 101


def test_a_judgement_that_takes_long_ends_in_time(desk: MeteringDesk) -> None:
    find = desk.prices.find

    def slowly(*arguments: Any) -> Any:
        desk.clock.advance(2_500)
        return find(*arguments)

    desk.prices.find = slowly  # type: ignore[method-assign, assignment]  # as slow as a table can be
    desk.submit(request_id="warm")
    answers = desk.metering.submit_batch(AS_APP, reports(5))
    assert shown(answers) == ["Unavailable"] * 5
    assert desk.used().requests == 1


# Whatever is in it: as if each had been sent alone.

IDS = st.sampled_from(["a", "b", "c"])
TIMES = st.sampled_from([None, MIDNIGHT_MS + 1, MIDNIGHT_MS - 1, MIDNIGHT_MS - 40 * DAY_MS])
ONES = st.builds(
    report,
    request_id=IDS,
    occurred_at_ms=TIMES,
    label=st.sampled_from([LABEL, "economy", "nonsense"]),
    entity=st.sampled_from([None, "user-1", "new", "stranger"]),
    status=st.sampled_from(CallStatus),
)


@settings(deadline=None)
@given(st.lists(ONES, max_size=12), st.lists(ONES, max_size=3), st.booleans())
def test_a_batch_comes_to_what_its_events_come_to_one_by_one(
    batch: list[UsageReport], before: list[UsageReport], by_org: bool
) -> None:
    org = replace(SETTINGS, quota_scopes=always(QuotaScope.ORG)) if by_org else SETTINGS
    (together, _), (alone, _) = simulated_desk(settings=org), simulated_desk(settings=org)
    for one_of_both in (together, alone):
        one_of_both.clock.now_ms = MIDNIGHT_MS + 2
        for one in before:
            one_of_both.metering.submit_batch(AS_ORG if one.entity == "stranger" else AS_APP, [one])
    answers = together.metering.submit_batch(AS_APP, batch)
    each = [alone.metering.submit_batch(AS_APP, [one])[0] for one in batch]
    # A refusal may differ in its reason: who comes later is told of the event before it, or of itself.
    assert [_word(answer) for answer in answers] == [_word(answer) for answer in each]
    for entity in (APP, ORG):
        for label in (LABEL, "economy"):
            for day in (TODAY, YESTERDAY):
                assert together.used(entity, label, day) == alone.used(entity, label, day)
    assert sum_of_events(answers) == sum_of_events(each)


def _word(answer: Counted | SluiceError) -> str:
    return "refused" if isinstance(answer, SluiceError) else "duplicate" if answer.duplicate else "counted"


def sum_of_events(answers: Answers) -> Counters:
    counted = [answer.event for answer in answers if isinstance(answer, Counted) and not answer.duplicate]
    return Counters(sum(event.cost_usd_micros or 0 for event in counted), requests=len(counted))


def test_an_empty_batch_is_no_work(desk: MeteringDesk) -> None:
    assert desk.metering.submit_batch(AS_APP, []) == []
    assert desk.store.taken_calls() == []


def test_a_batch_of_refusals_reads_once_and_writes_nothing(desk: MeteringDesk) -> None:
    desk.submit(request_id="warm")
    desk.store.taken_calls()
    answers = desk.metering.submit_batch(AS_APP, reports(100, label="nonsense"))
    assert shown(answers) == ["UnknownLabel"] * 100
    assert desk.store.taken_calls() == ["consistent batch_get"]


def test_totals_of_a_batch_are_read_in_one_call(desk: MeteringDesk) -> None:
    batch = [*reports(2), *reports(2, first=2, label="economy")]
    desk.metering.submit_batch(AS_APP, batch)
    desk.roll_up()
    desk.store.taken_calls()
    answers = desk.metering.submit_batch(AS_APP, batch)
    assert desk.store.taken_calls() == ["transact", "batch_get"]
    spendings = [answer.spending for answer in answers if isinstance(answer, Counted)]
    assert [spending and spending.counters.requests for spending in spendings] == [2, 2, 0, 0]


def test_one_total_that_nobody_understands_hides_no_other_answer(desk: MeteringDesk) -> None:
    batch = [*reports(2), *reports(2, first=2, label="economy")]
    desk.metering.submit_batch(AS_APP, batch)
    for label in (LABEL, "economy"):
        desk.roll_up(label=label)
    make_unreadable(desk, LABEL)
    answers = desk.metering.submit_batch(AS_APP, batch)
    assert shown(answers) == ["duplicate"] * 4
    spendings = [answer.spending for answer in answers if isinstance(answer, Counted)]
    assert [spending and spending.counters.requests for spending in spendings] == [None, None, 2, 2]
    assert desk.meter.counts[Signal.TOTALS_FAILED] == 1


def test_a_table_that_does_not_answer_while_it_is_looked_for_repeats(desk: MeteringDesk) -> None:
    desk.submit(request_id="warm")

    def fail(verb: str, _request: Any) -> None:
        if verb == "consistent batch_get":
            raise Unavailable("x")

    desk.store.before = fail
    answers = desk.metering.submit_batch(AS_APP, [report(), report(request_id="2", label="nonsense")])
    assert shown(answers) == ["counted", "Unavailable"]
