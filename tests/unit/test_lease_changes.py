"""What a change of a lease means for its buckets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.errors import InvalidRequest, UnknownLimit
from sluice.core.lease import Lease, LeaseMember, Share
from sluice.core.lease_changes import (
    MemberChange,
    adjustments_after,
    amounts_of,
    changes,
    check_names,
    is_left_out,
    mark,
    nothing,
    settled_amounts,
    write_by_write,
)
from sluice.core.limits import AMOUNT_MAX

ONE_SHARD = LeaseMember("user", (Share(0, 7, {"rpm": 1_000, "tpm": 500_000}),))
# The rate of requests came from the second shard alone.
GATHERED = LeaseMember(
    "team", (Share(2, 8, {"tpm": 300_000}), Share(0, 9, {"tpm": 150_000}), Share(1, 6, {"tpm": 50_000}))
)


def lease(*members: LeaseMember) -> Lease:
    return Lease("id", "ns", "user-1", "gpt-4", {"rpm": 1, "tpm": 500}, members, 1_000)


def test_what_a_lease_stands_for() -> None:
    assert amounts_of(lease(), {"tpm": -100}) == {"rpm": 1, "tpm": 400}
    assert settled_amounts({"rpm": 1, "tpm": 400}, {"tpm": 2_000}) == {"rpm": 1, "tpm": 2_000}
    assert nothing({"rpm": 1, "tpm": 400}) == {"rpm": 0, "tpm": 0}


def test_a_name_that_is_not_in_the_lease() -> None:
    check_names(lease(), "actual", {"rpm", "tpm"})
    with pytest.raises(UnknownLimit) as raised:
        check_names(lease(), "actual", ["tpm", "tpd"])
    assert raised.value.field == "actual.tpd"


def test_adjustments_add_up_and_end_at_zero_and_at_the_largest_amount() -> None:
    assert adjustments_after(lease(), {"tpm": 100}, {"tpm": -600, "rpm": 0}) == {"tpm": -500, "rpm": 0}
    for delta in ({"tpm": -601}, {"rpm": -2}, {"tpm": AMOUNT_MAX - 599}):
        (name,) = delta
        with pytest.raises(InvalidRequest) as raised:
            adjustments_after(lease(), {"tpm": 100}, delta)
        assert raised.value.field == f"delta.{name}"
    assert adjustments_after(lease(), {"tpm": 100}, {"tpm": AMOUNT_MAX - 600}) == {"tpm": AMOUNT_MAX - 500}


def test_no_difference_changes_nothing() -> None:
    amounts = {"rpm": 1, "tpm": 500}
    assert changes(lease(ONE_SHARD, GATHERED), amounts, amounts) == []


def test_a_debit_and_a_credit_of_one_bucket() -> None:
    assert changes(lease(ONE_SHARD), {"rpm": 1, "tpm": 500}, {"rpm": 0, "tpm": 2_000}) == [
        MemberChange(0, {"tpm": 1_500_000}, ({"rpm": 1_000},))
    ]


def test_only_names_that_applied_at_a_member_change_there() -> None:
    """A limit that the team does not have, or that was switched off for it."""
    found = changes(lease(ONE_SHARD, GATHERED), {"rpm": 1, "tpm": 500}, {"rpm": 3, "tpm": 500})
    assert found == [MemberChange(0, {"rpm": 2_000}, ({},))]


def test_a_name_that_was_taken_with_zero_applies() -> None:
    member = LeaseMember("user", (Share(0, 7, {"rpm": 0}),))
    taken = Lease("id", "ns", "user-1", "r", {"rpm": 0}, (member,), 1_000)
    assert changes(taken, {"rpm": 0}, {"rpm": 5}) == [MemberChange(0, {"rpm": 5_000}, ({},))]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (500, 400, ({"tpm": 100_000}, {}, {})),
        (500, 100, ({"tpm": 300_000}, {"tpm": 100_000}, {})),
        (500, 0, ({"tpm": 300_000}, {"tpm": 150_000}, {"tpm": 50_000})),
        # What an earlier debit added was taken from the first, and comes back to it.
        (700, 600, ({"tpm": 100_000}, {}, {})),
        (700, 400, ({"tpm": 300_000}, {}, {})),
        (700, 0, ({"tpm": 500_000}, {"tpm": 150_000}, {"tpm": 50_000})),
        # What was given back before is not given back again.
        (150, 0, ({}, {"tpm": 100_000}, {"tpm": 50_000})),
    ],
)
def test_credits_go_back_in_the_order_of_the_shares(
    before: int, after: int, expected: tuple[dict[str, int], ...]
) -> None:
    found = changes(lease(GATHERED), {"rpm": 1, "tpm": before}, {"rpm": 1, "tpm": after})
    assert found == [MemberChange(0, {}, expected)]


def test_a_debit_goes_to_the_first_share() -> None:
    found = changes(lease(GATHERED), {"rpm": 1, "tpm": 150}, {"rpm": 1, "tpm": 600})
    assert found == [MemberChange(0, {"tpm": 450_000}, ({}, {}, {}))]


@given(
    given_milli=st.lists(st.integers(0, 1_000).map(lambda tokens: tokens * 1_000), min_size=1, max_size=16),
    deltas=st.lists(st.integers(-2_000, 2_000), max_size=8),
)
def test_over_any_way_what_is_taken_and_given_back_is_what_the_lease_stands_for(
    given_milli: list[int], deltas: list[int]
) -> None:
    member = LeaseMember("e", tuple(Share(shard, 1, {"tpm": amount}) for shard, amount in enumerate(given_milli)))
    taken = sum(given_milli) // 1_000
    held = Lease("id", "ns", "user-1", "r", {"tpm": taken}, (member,), 1_000)
    amount, charged_milli = taken, sum(given_milli)
    for delta in [*deltas, None]:
        after = 0 if delta is None else max(0, amount + delta)
        for change in changes(held, {"tpm": amount}, {"tpm": after}):
            charged_milli += change.debits_milli.get("tpm", 0)
            credits_milli = [credit.get("tpm", 0) for credit in change.credits_milli]
            assert min(credits_milli) >= 0
            charged_milli -= sum(credits_milli)
        amount = after
        assert charged_milli == amount * 1_000
    assert charged_milli == 0


@given(
    given_milli=st.lists(st.integers(0, 1_000).map(lambda tokens: tokens * 1_000), min_size=1, max_size=16),
    extra=st.integers(0, 1_000),
    steps=st.lists(st.integers(0, 500), max_size=6),
)
def test_who_only_gives_back_gives_every_shard_what_it_gave(
    given_milli: list[int], extra: int, steps: list[int]
) -> None:
    member = LeaseMember("e", tuple(Share(shard, 1, {"tpm": amount}) for shard, amount in enumerate(given_milli)))
    amount = sum(given_milli) // 1_000 + extra
    held = Lease("id", "ns", "user-1", "r", {"tpm": amount - extra}, (member,), 1_000)
    owed = [given_milli[0] + extra * 1_000, *given_milli[1:]]
    for step in [*steps, amount]:
        after = max(0, amount - step)
        for change in changes(held, {"tpm": amount}, {"tpm": after}):
            owed = [due - credit.get("tpm", 0) for due, credit in zip(owed, change.credits_milli, strict=True)]
            assert min(owed) >= 0
        amount = after
    assert owed == [0] * len(owed)


def test_write_by_write_the_debit_comes_first() -> None:
    change = MemberChange(3, {"rpm": 1}, ({"tpm": 2}, {}, {"tpm": 3}))
    assert write_by_write(change) == [
        MemberChange(3, {"rpm": 1}, ({}, {}, {})),
        MemberChange(3, {}, ({"tpm": 2}, {}, {})),
        MemberChange(3, {}, ({}, {}, {"tpm": 3})),
    ]
    assert write_by_write(MemberChange(0, {}, ({"tpm": 2},))) == [MemberChange(0, {}, ({"tpm": 2},))]


def test_what_is_left_out() -> None:
    left_out = {mark(0, 1), mark(1, 0, "tpm")}
    assert left_out == {"0.1", "1.0.tpm"}
    assert is_left_out(left_out, 0, 1, "rpm")
    assert is_left_out(left_out, 1, 0, "tpm")
    assert not is_left_out(left_out, 1, 0, "rpm")
    assert not is_left_out(left_out, 0, 0, "tpm")
