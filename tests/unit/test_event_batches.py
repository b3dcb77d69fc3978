"""Packing events into transactions."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.lease import Lease
from sluice.core.metering import CallStatus, Counters, counted_call
from sluice.core.orgs import OrgSettings
from sluice.core.period import LocalDay, day_name
from sluice.core.pricing import Pricing, TokenKind
from sluice.core.reports import UsageReport
from sluice.repository import keys, money_keys
from sluice.repository.counters import CounterName
from sluice.repository.events import UsageEvent, event_absent, put_event
from sluice.repository.leases import LeaseState, State
from sluice.repository.orgs import Org
from sluice.repository.requests import TransactWrite
from sluice.repository.store import Cancelled, ConditionFailed
from sluice.services.corrections import Plan
from sluice.services.event_batches import TRANSACTION_ITEMS_MAX, Parcel, parcels
from sluice.services.judging import Charge, Opened
from sluice.services.leases import Closing

DAY = LocalDay(740_000, 1_799_971_200_000, 1_800_057_600_000)
ORG = Org("acme", "ns", "client", OrgSettings(), 1, 0, 0)


def charge(
    request_id: str,
    *entities: str,
    label: str = "premium",
    days_elsewhere: int = 0,
    lease_id: str | None = None,
    cost: int = 5,
) -> Charge:
    lease = None if lease_id is None else Lease(lease_id, "ns", "chat", "r", {"tpm": 5}, (), 10**15)
    report = UsageReport(request_id, CallStatus.OK, {TokenKind.INPUT: 1}, label=label, lease=lease)
    elsewhere = tuple(
        money_keys.event("ns", "chat", day_name(DAY.number - days), request_id) for days in range(1, days_elsewhere + 1)
    )
    key = money_keys.event("ns", "chat", DAY.name, request_id)
    opened = Opened(report, "chat", "hash", ORG, DAY, 7, key, elsewhere, 0)
    event = UsageEvent(
        "ns", request_id, "hash", "chat", "chat", ("chat",), DAY.name, 7, 7, label, "m", None,
        CallStatus.OK, Pricing.STANDARD, report.tokens, cost, "p", {}, lease_id,
    )  # fmt: skip
    put: TransactWrite = {"Put": put_event("chat", event)}
    checks: list[TransactWrite] = [{"ConditionCheck": event_absent(one, 0)} for one in elsewhere]
    counters = tuple(CounterName("ns", entity, label, DAY.name) for entity in entities or ("chat",))
    return Charge(opened, event, (put, *checks), counters, counted_call(cost, report.tokens, CallStatus.OK), 8)


def items_of(packed: list[Charge]) -> int:
    """How many items the transaction has, if it closes all leases that it can."""
    counters = {name for one in packed for name in one.counters}
    leases = {one.lease.lease_id for one in packed if one.lease is not None}
    return sum(len(one.writes) for one in packed) + len(counters) + len(leases)


def test_a_hundred_of_one_counter_are_ninety_nine_and_one() -> None:
    assert [len(one) for one in parcels([charge(f"{number}") for number in range(100)])] == [99, 1]
    assert [len(one) for one in parcels([charge(f"{number}") for number in range(99)])] == [99]
    assert parcels([]) == []


def test_with_two_counters_they_are_ninety_eight_and_two() -> None:
    both = [charge(f"{number}", "chat", "acme") for number in range(100)]
    assert [len(one) for one in parcels(both)] == [98, 2]


def test_a_lease_of_many_counts_once() -> None:
    same = [charge(f"{number}", lease_id="one") for number in range(100)]
    each = [charge(f"{number}", lease_id=f"{number}") for number in range(100)]
    assert [len(one) for one in parcels(same)] == [98, 2]
    assert [len(one) for one in parcels(each)] == [49, 49, 2]


def test_what_is_counted_together_goes_together() -> None:
    labels = [charge(f"{number}", label=f"label-{number % 50}") for number in range(100)]
    packed = parcels(labels)
    # In their order, each transaction would have nearly all fifty counters.
    assert [(len(one), items_of(one)) for one in packed] == [(66, 99), (34, 51)]


def test_one_request_id_never_meets_itself_and_keeps_its_order() -> None:
    first, second, third = charge("a", days_elsewhere=1), charge("a", label="economy"), charge("a", label="basic")
    assert parcels([first, charge("b"), second, third]) == [[first, charge("b")], [second], [third]]


charges = st.builds(
    charge,
    st.integers(0, 60).map(str),
    st.sampled_from(["chat", "search"]),
    label=st.sampled_from([f"label-{number}" for number in range(30)]),
    days_elsewhere=st.integers(0, 3),
    lease_id=st.none() | st.integers(0, 40).map(str),
)


@given(st.lists(charges, max_size=150))
def test_every_parcel_fits_and_nothing_is_lost(given_charges: list[Charge]) -> None:
    packed = parcels(given_charges)
    assert sorted(map(id, given_charges)) == sorted(id(one) for parcel in packed for one in parcel)
    for parcel in packed:
        assert 1 <= items_of(parcel) <= TRANSACTION_ITEMS_MAX
        assert len({one.event.request_id for one in parcel}) == len(parcel)
    order = [one for parcel in packed for one in parcel]
    for request_id in {one.event.request_id for one in given_charges}:
        mine = [id(one) for one in given_charges if one.event.request_id == request_id]
        assert [id(one) for one in order if one.event.request_id == request_id] == mine


def closing(lease_id: str, corrections: int = 0) -> Closing:
    """With so many buckets. Nobody looks at what is in its writes here."""
    puts: list[TransactWrite] = [
        {"Put": {"Item": {"PK": f"{lease_id}{number}", "SK": "s"}}} for number in range(1 + corrections)
    ]
    lease = Lease(lease_id, "ns", "chat", "r", {"tpm": 5}, (), 10**15)
    state = LeaseState(keys.lease("ns", lease_id), State.SETTLED, {}, (), {}, frozenset(), 1, 10**15, 0, 0)
    return Closing(lease, state, tuple(puts), Plan((), frozenset()), {}, 9, settles=bool(corrections))


def test_additions_to_one_counter_are_one_update_on_a_shard_of_its_own() -> None:
    batch = [charge("1", "chat", "acme"), charge("2", "acme", days_elsewhere=2), charge("3", "acme", cost=7)]
    drawn = iter([3, 6])
    parcel = Parcel(batch, {"l": closing("l")}, 9)
    shards = parcel.drawn(lambda below: next(drawn) if below == 8 else -1)
    writes = parcel.writes(shards)
    assert [next(iter(write)) for write in writes] == [
        "Put",
        "Put",
        "ConditionCheck",
        "ConditionCheck",
        "Put",
        "Put",
        "Update",
        "Update",
    ]
    updates = [write["Update"] for write in writes[-2:]]
    names = [CounterName("ns", entity, "premium", DAY.name) for entity in ("chat", "acme")]
    assert [keys.key_of(update["Key"]) for update in updates] == [
        money_keys.cost_shard(*names[0], 3),
        money_keys.cost_shard(*names[1], 6),
    ]
    added = [set(update["ExpressionAttributeValues"].values()) for update in updates]
    assert 5 in added[0]
    assert {17, 3} <= added[1]


@pytest.mark.parametrize("shard", range(8))
def test_whoever_is_in_the_way_is_left_for_any_of_the_others(shard: int) -> None:
    parcel = Parcel([charge("1", "chat", "acme")], {}, 9)
    shards = parcel.drawn(lambda _below: shard)

    def moves(drawn: int) -> list[int]:
        return list(parcel.moved(shards, {7: drawn}.__getitem__).values())

    others = [moves(drawn) for drawn in range(7)]
    assert {one for one, _ in others} == {one for _, one in others} == set(range(8)) - {shard}


def test_the_only_shard_there_is_stays() -> None:
    parcel = Parcel([replace(charge("1"), shards=1)], {}, 9)
    shards = parcel.drawn(lambda below: below - 1)
    assert list(parcel.moved(shards, lambda below: below - 1).values()) == [0]


def test_failures_are_told_apart_by_their_place() -> None:
    batch = [charge("1"), charge("2", days_elsewhere=1), charge("3")]
    parcel = Parcel(batch, {"a": closing("a"), "b": closing("b")}, 9)
    seen = ConditionFailed({"PK": "p", "SK": "s"})
    failures = (None, None, seen, seen, None, seen, None)
    assert len(failures) == len(parcel.writes(parcel.drawn(lambda _below: 0)))
    cancelled = Cancelled(failures)
    assert [(one.event.request_id, failed) for one, failed in parcel.of_events(cancelled)] == [
        ("1", []),
        ("2", [seen]),
        ("3", [seen]),
    ]
    assert parcel.of_leases(cancelled) == [(parcel.closings["b"], (seen,))]


def test_a_settle_has_as_many_writes_as_it_corrects_buckets() -> None:
    done = replace(closing("done"), writes=())
    parcel = Parcel([charge("1")], {"done": done, "a": closing("a", 2), "b": closing("b")}, 9)
    seen = ConditionFailed({"PK": "p", "SK": "s"})
    failures = (None, None, None, seen, None, None)
    assert len(failures) == len(parcel.writes(parcel.drawn(lambda _below: 0)))
    assert parcel.of_leases(Cancelled(failures)) == [(parcel.closings["a"], (None, None, seen))]
    assert parcel.of_budgets(Cancelled(failures)) == ()


@pytest.mark.parametrize("count", [1, 2, 99])
def test_a_sum_is_what_its_events_add(count: int) -> None:
    batch = [charge(f"{number}", cost=number) for number in range(count)]
    parcel = Parcel(batch, {}, 9)
    writes = parcel.writes(parcel.drawn(lambda _below: 0))
    (update,) = [write["Update"] for write in writes if "Update" in write]
    expected = sum((one.increase for one in batch), Counters())
    values = update["ExpressionAttributeValues"]
    names = update["ExpressionAttributeNames"]
    by_name = {attribute: values[alias.replace("#", ":")] for alias, attribute in names.items()}
    assert by_name["requests"] == expected.requests == count
    assert by_name.get("cost_usd_micros", 0) == expected.cost_usd_micros
    assert by_name["rev"] == 1
