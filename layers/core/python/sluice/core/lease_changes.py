"""What an adjustment or a close of a lease means for the buckets it was taken from. Pure.

A lease stands for an amount of each limit, in whole tokens: what was consumed, and every adjustment since. A change of
that amount is a credit or a debit at every member of the chain where the limit applied:

- a credit goes back to the shards that gave, in the order of the shares; what earlier debits added went to the first
  share and comes back to it first;
- a debit is taken from the shard of the first share.

So the sum over the shards is exact. Which shard of a gathered lease gets how much is exact as well, unless a lease was
lowered below what was taken and raised again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sluice.core.bucket import MILLI
from sluice.core.errors import InvalidRequest, UnknownLimit
from sluice.core.lease import Lease, LeaseMember
from sluice.core.limits import AMOUNT_MAX

Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class MemberChange:
    """What one member of the chain is to give or get. `credits_milli`: one element for each share."""

    member: int
    debits_milli: Amounts
    credits_milli: tuple[Amounts, ...]


def check_names(lease: Lease, field: str, names: Collection[str]) -> None:
    for name in names:
        if name not in lease.consumed:
            raise UnknownLimit(f"{field}.{name}", "is not a limit of this lease")


def amounts_of(lease: Lease, adjusted: Amounts) -> dict[str, int]:
    """What the lease stands for after these adjustments."""
    return {name: amount + adjusted.get(name, 0) for name, amount in lease.consumed.items()}


def adjustments_after(lease: Lease, adjusted: Amounts, delta: Amounts) -> dict[str, int]:
    """The adjustments with one more. What a lease stands for never falls below zero."""
    after = {**adjusted, **{name: adjusted.get(name, 0) + amount for name, amount in delta.items()}}
    amounts = amounts_of(lease, after)
    for name in delta:
        if amounts[name] < 0:
            raise InvalidRequest(f"delta.{name}", "takes away more than the lease stands for")
        if amounts[name] > AMOUNT_MAX:
            raise InvalidRequest(f"delta.{name}", f"would make the lease stand for more than {AMOUNT_MAX}")
    return after


def settled_amounts(before: Amounts, actual: Amounts) -> dict[str, int]:
    """Limits that are left out keep their amount."""
    return {**before, **actual}


def nothing(before: Amounts) -> dict[str, int]:
    return dict.fromkeys(before, 0)


def changes(lease: Lease, before: Amounts, after: Amounts) -> list[MemberChange]:
    """What each member of the chain has to give or get; none where nothing changes."""
    found = [
        _member_change(number, member, _applying(member, before), _applying(member, after))
        for number, member in enumerate(lease.members)
    ]
    return [change for change in found if change.debits_milli or any(change.credits_milli)]


def write_by_write(change: MemberChange) -> list[MemberChange]:
    """The same change in parts that are each one write, the debit first."""
    none: tuple[Amounts, ...] = tuple({} for _ in change.credits_milli)
    parts = [MemberChange(change.member, change.debits_milli, none)] if change.debits_milli else []
    for number, credits_milli in enumerate(change.credits_milli):
        if credits_milli:
            alone = (*none[:number], credits_milli, *none[number + 1 :])
            parts.append(MemberChange(change.member, {}, alone))
    return parts


def mark(member: int, share: int, limit: str | None = None) -> str:
    """Names a share, or one limit of it, that gets no credit any more: its bucket or limit is gone."""
    return f"{member}.{share}" if limit is None else f"{member}.{share}.{limit}"


def is_left_out(left_out: Collection[str], member: int, share: int, limit: str) -> bool:
    return mark(member, share) in left_out or mark(member, share, limit) in left_out


def _applying(member: LeaseMember, amounts: Amounts) -> dict[str, int]:
    return {name: amounts[name] * MILLI for name in member.shares[0].amounts_milli}


def _member_change(number: int, member: LeaseMember, before_milli: Amounts, after_milli: Amounts) -> MemberChange:
    debits_milli = {name: after_milli[name] - had for name, had in before_milli.items() if after_milli[name] > had}
    credits_milli: list[dict[str, int]] = [{} for _ in member.shares]
    for name, had_milli in before_milli.items():
        if after_milli[name] >= had_milli:
            continue
        given = [share.amounts_milli.get(name, 0) for share in member.shares]
        held = zip(_held(given, had_milli), _held(given, after_milli[name]), strict=True)
        for credit, (holds, keeps) in zip(credits_milli, held, strict=True):
            if holds > keeps:
                credit[name] = holds - keeps
    return MemberChange(number, debits_milli, tuple(credits_milli))


def _held(given: Sequence[int], total: int) -> list[int]:
    """How a total is spread over shares that gave so much: what came on top, or was given back, is the first's."""
    beyond = total - sum(given)
    if beyond >= 0:
        return [given[0] + beyond, *given[1:]]
    back = -beyond
    held = []
    for amount in given:
        returned = min(back, amount)
        held.append(amount - returned)
        back -= returned
    return held
