"""What an admitted acquire took, bucket by bucket, so that it can be corrected or given back later."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

LEASE_DEFAULT_MS: Final = 300 * 1000
LEASE_LEAST_MS: Final = 1000
LEASE_MAX_MS: Final = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Share:
    """What one shard gave. The generation names the incarnation of the bucket: a later one owes nothing."""

    shard: int
    generation: int
    amounts_milli: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LeaseMember:
    """One entity of the chain. Every name that applied there is in its first share, if only with zero."""

    entity: str
    shares: tuple[Share, ...]
    call_fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """An admitted acquire of `entity`. `consumed`: what was asked for, in whole tokens.

    `holds`: hard budgets hold something for it, under its id.
    """

    lease_id: str
    namespace: str
    entity: str
    resource: str
    consumed: Mapping[str, int]
    members: tuple[LeaseMember, ...]
    expires_at_ms: int
    holds: bool = False
