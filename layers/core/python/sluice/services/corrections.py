"""Credits and debits of a lease as writes of its buckets, and what is learned when one of them fails.

A credit needs no image: it goes to the incarnation that gave, or nowhere. A debit is computed from the bucket's own
parameters; the image that this process last saw serves as long as it is of the incarnation that gave, so the usual
case needs no read. That a bucket or a limit is gone is only ever concluded from a consistent read or from the image
that a failed write returned.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from sluice.core import bucket as math
from sluice.core import shards
from sluice.core.lease import Lease, LeaseMember
from sluice.core.lease_changes import MemberChange, is_left_out, mark
from sluice.core.levels import Level, LimitLevel
from sluice.repository import keys, writes
from sluice.repository.items import Bucket, BucketLimit, decode_bucket
from sluice.repository.keys import Key
from sluice.repository.legacy import is_legacy
from sluice.repository.requests import UpdateRequest
from sluice.repository.store import ConditionFailed, Store
from sluice.repository.wire import Item
from sluice.services.taking import Taker

Known = dict[Key, Bucket | None]
"""Buckets as they certainly were a moment ago; None where there was none."""


@dataclass(frozen=True, slots=True)
class Correction:
    """One write of one bucket. Amounts above zero are taken, those below given back."""

    key: Key
    generation: int
    amounts_milli: Mapping[str, int]
    request: UpdateRequest


@dataclass(frozen=True, slots=True)
class Plan:
    """`left_out`: what gets no credit any more, with everything that was left out before."""

    corrections: tuple[Correction, ...]
    left_out: frozenset[str]


class Corrections:
    """Safe to share between threads."""

    def __init__(self, store: Store, taker: Taker) -> None:
        self._store = store
        self._taker = taker

    def plan(
        self, lease: Lease, changes: Iterable[MemberChange], left_out: Collection[str], known: Known, now_ms: int
    ) -> Plan:
        """The writes that a change calls for, as far as known. Reads what a debit must know, and nothing else."""
        gone = set(left_out)
        found: list[Correction] = []
        for change in changes:
            found += self._plan_member(lease, change, gone, known, now_ms)
        return Plan(tuple(found), frozenset(gone))

    def learn(self, known: Known, key: Key, item: Item | None) -> None:
        """Takes in what a read or a failed write returned. What was never ours, in an old layout, counts as gone."""
        image = None if item is None or is_legacy(item) else decode_bucket(item)
        known[key] = image
        if image is not None:
            self._taker.remember(image)

    def overtaken(self, plan: Plan, failures: Iterable[ConditionFailed | None], known: Known) -> None:
        """Nothing happened. One failure for each correction: what is there instead is learned."""
        for correction, failure in zip(plan.corrections, failures, strict=True):
            if failure is not None:
                self.learn(known, correction.key, failure.item)

    def applied(self, lease: Lease, plan: Plan, known: Known, now_ms: int) -> tuple[Level, ...]:
        """After the writes happened: where the members stand, as far as this process can tell without a read."""
        for member in lease.members:
            self._taker.forget_refusal(_key(lease, member, 0))
        for correction in plan.corrections:
            image = self._image(correction.key, correction.generation, known)
            if image is not None and correction.amounts_milli.keys() <= image.limits.keys():
                changed = known[correction.key] = _changed(image, correction.amounts_milli, now_ms)
                self._taker.remember(changed)
        return self.levels(lease, known, now_ms)

    def levels(self, lease: Lease, known: Known, now_ms: int) -> tuple[Level, ...]:
        """The entity first, then upwards. A member that was split, or was not seen lately, is left out."""
        first_shares = [(member, member.shares[0]) for member in lease.members]
        images = [
            self._image(_key(lease, member, share.shard), share.generation, known) for member, share in first_shares
        ]
        return tuple(_level(image, now_ms) for image in images if image is not None and image.shard_count == 1)

    def _image(self, key: Key, generation: int, known: Known) -> Bucket | None:
        """The latest of this incarnation that is at hand, perhaps an old one."""
        image = known[key] if key in known else self._taker.image_of(key)
        return image if image is not None and image.generation == generation else None

    def _plan_member(
        self, lease: Lease, change: MemberChange, gone: set[str], known: Known, now_ms: int
    ) -> list[Correction]:
        member = lease.members[change.member]
        # First, as it may read: what turns out to be gone gets no credit either.
        debited = self._debited(lease, member, change, known) if change.debits_milli else None
        amounts: dict[Key, dict[str, int]] = {}
        generations: dict[Key, int] = {}
        for number, (share, credits_milli) in enumerate(zip(member.shares, change.credits_milli, strict=True)):
            key = _key(lease, member, share.shard)
            if key in known and not _is_incarnation(known[key], share.generation):
                gone.add(mark(change.member, number))
            given_back = _creditable(change.member, number, credits_milli, known.get(key), gone)
            if given_back:
                amounts[key] = {name: -amount for name, amount in given_back.items()}
                generations[key] = share.generation
        if debited is not None:
            amounts.setdefault(debited.key, {}).update(_debitable(change, debited, gone))
            generations[debited.key] = debited.generation
        return [
            Correction(key, generations[key], wanted, _request(key, generations[key], wanted, debited, now_ms))
            for key, wanted in amounts.items()
            if wanted
        ]

    def _debited(self, lease: Lease, member: LeaseMember, change: MemberChange, known: Known) -> Bucket | None:
        """The bucket that a debit goes to: the one that gave or, if that is gone, the one that took over."""
        share = member.shares[0]
        key = _key(lease, member, share.shard)
        if key not in known:
            seen = self._image(key, share.generation, known)
            # Also what the first share gets back: it goes into the same write.
            named = change.debits_milli.keys() | change.credits_milli[0].keys()
            if seen is not None and named <= seen.limits.keys():
                return seen
        shard = share.shard
        found = self._certain(key, known)
        while found is None and shard > 0:
            shard = shards.donor(shard)
            found = self._certain(_key(lease, member, shard), known)
        return found

    def _certain(self, key: Key, known: Known) -> Bucket | None:
        if key not in known:
            self.learn(known, key, self._store.get(key, consistent=True))
        return known[key]


def _key(lease: Lease, member: LeaseMember, shard: int) -> Key:
    return keys.bucket(lease.namespace, member.entity, lease.resource, shard, member.call_fingerprint)


def _is_incarnation(image: Bucket | None, generation: int) -> bool:
    return image is not None and image.generation == generation


def _creditable(
    member: int, share: int, credits_milli: Mapping[str, int], image: Bucket | None, gone: set[str]
) -> dict[str, int]:
    """What may still be given back. A limit that the image no longer has is gone from here on."""
    if image is not None:
        gone.update(mark(member, share, name) for name in credits_milli if name not in image.limits)
    return {name: amount for name, amount in credits_milli.items() if not is_left_out(gone, member, share, name)}


def _debitable(change: MemberChange, image: Bucket, gone: set[str]) -> dict[str, int]:
    """What can be taken. What is not taken now must not be given back later."""
    missing = [name for name in change.debits_milli if name not in image.limits]
    gone.update(mark(change.member, 0, name) for name in missing)
    return {name: amount for name, amount in change.debits_milli.items() if name in image.limits}


def _request(
    key: Key, generation: int, amounts_milli: Mapping[str, int], debited: Bucket | None, now_ms: int
) -> UpdateRequest:
    if debited is not None and key == debited.key:
        # With what is given back beside it: a transaction may touch an item only once.
        return writes.adjust(debited, amounts_milli, now_ms)
    return writes.give_back(key, generation, {name: -amount for name, amount in amounts_milli.items()})


def _changed(image: Bucket, amounts_milli: Mapping[str, int], now_ms: int) -> Bucket:
    """The bucket after a write that returned no image."""
    limits = dict(image.limits)
    for name, amount_milli in amounts_milli.items():
        old = limits[name]
        balance_milli = old.balance_milli
        if amount_milli > 0:
            balance_milli = min(balance_milli, math.top_milli(old.parameters, now_ms))
        limits[name] = BucketLimit(old.parameters, balance_milli - amount_milli, old.consumed_milli + amount_milli)
    return replace(image, version=image.version + 1, limits=limits)


def _level(image: Bucket, now_ms: int) -> Level:
    return Level(image.entity, tuple(_limit_level(name, limit, now_ms) for name, limit in image.limits.items()))


def _limit_level(name: str, limit: BucketLimit, now_ms: int) -> LimitLevel:
    parameters = limit.parameters
    level_milli = math.level_milli(parameters, limit.balance_milli, now_ms)
    window_ms = math.refill_time_ms(parameters, parameters.capacity_milli)
    return LimitLevel(
        limit=name,
        capacity=parameters.capacity_milli // math.MILLI,
        window_seconds=math.ceil_div(window_ms, 1000),
        remaining=level_milli // math.MILLI,
        full_in_ms=math.refill_time_ms(parameters, parameters.burst_milli - level_milli),
    )
