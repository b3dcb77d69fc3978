"""What is asked of one bucket, under which limits, and what it gave."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sluice.core import bucket as math
from sluice.core.admission import Asked, Member, demand_milli
from sluice.core.backoff import RandomBelow
from sluice.core.lease import LeaseMember, Share
from sluice.core.limits import LimitSet
from sluice.core.shards import View
from sluice.repository import keys, writes
from sluice.repository.items import Bucket, limits_hash

_GENERATION_SPREAD: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Claim:
    """What is asked of one bucket, before its limits are looked at. `alone`: no other member could know a name.

    `first`: the key of shard 0.
    """

    namespace: str
    entity: str
    resource: str
    consume: Mapping[str, int]
    asks: bool
    parent: str | None
    alone: bool
    first: keys.Key
    call_fingerprint: str | None = None
    legacy_prefix: str | None = None
    """While the namespace is in migration: how the keys of its old items begin."""

    def member(self, limits: LimitSet) -> Member:
        return Member(self.entity, limits, self.asks)


@dataclass(frozen=True, slots=True)
class Terms:
    """A claim under the limits that hold for it now."""

    claim: Claim
    limits: LimitSet
    demand: Mapping[str, int]

    @property
    def asked(self) -> Asked:
        claim = self.claim
        return Asked(claim.entity, claim.resource, self.limits, self.demand, own_only=not claim.asks)

    def target(self, shard: int, count: int) -> writes.Target:
        limits, first = self.limits, self.claim.first
        return writes.Target(
            key=first if shard == 0 else keys.bucket_shard(first, shard),
            limits_hash=limits_hash(limits.fingerprint, count),
            parameters=limits.shard_parameters(shard, count),
            fill_time_ms=limits.fill_time_ms,
            # Shards that expired one by one would each come back full.
            expires=limits.expires and count == 1,
        )

    def fits(self, shard: int, count: int) -> bool:
        """Whether the share of this shard could ever hold what is asked."""
        parameters = self.limits.shard_parameters(shard, count)
        return all(amount <= parameters[name].burst_milli for name, amount in self.demand.items())

    def agrees_with(self, image: Bucket) -> bool:
        """Whether the bucket is under the limits that the claim is judged by."""
        return image.fingerprint == self.limits.fingerprint

    def view(self, image: Bucket, judged_ms: int) -> View:
        parameters = self.limits.shard_parameters(image.shard, image.shard_count)
        return View(image.shard, parameters, image.balances_milli, judged_ms)


@dataclass(frozen=True, slots=True)
class Part:
    """What one shard gave. `image`: as it stood after the write; after a transaction, as far as its writer knows."""

    image: Bucket
    demand: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Taken:
    """A claim that was admitted. Without parts nothing was taken."""

    terms: Terms
    parts: Sequence[Part]
    written_ms: int

    def lease_members(self) -> tuple[LeaseMember, ...]:
        if not self.parts:
            return ()
        shares = [Share(part.image.shard, part.image.generation, part.demand) for part in self.parts]
        named = {name: shares[0].amounts_milli.get(name, 0) for name in self.terms.demand}
        first = Share(shares[0].shard, shares[0].generation, named)
        claim = self.terms.claim
        return (LeaseMember(claim.entity, (first, *shares[1:]), claim.call_fingerprint),)


def spent(image: Bucket, demand: Mapping[str, int], now_ms: int) -> Bucket:
    """What a write leaves of an image, for the transaction that returns none."""
    limits = dict(image.limits)
    for name, amount_milli in demand.items():
        limit = limits[name]
        balance_milli = min(limit.balance_milli, math.top_milli(limit.parameters, now_ms))
        limits[name] = replace(
            limit, balance_milli=balance_milli - amount_milli, consumed_milli=limit.consumed_milli + amount_milli
        )
    return replace(image, limits=limits, version=image.version + 1)


def terms_of(claim: Claim, limits: LimitSet) -> Terms:
    return Terms(claim, limits, demand_milli(claim.resource, claim.consume, claim.member(limits)))


def new_generation(now_ms: int, random_below: RandomBelow) -> int:
    return now_ms * _GENERATION_SPREAD + random_below(_GENERATION_SPREAD)
