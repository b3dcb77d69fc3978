"""Limit definitions: what they may be, which level gives which limit, and the fingerprint of a set of them.

Limits resolve by name over four levels, the most specific first. A level that gives a name `None` switches that limit
off: the name stays known and takes nothing. So overriding one limit never drops another.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Final

from sluice.core.bucket import MILLI, Parameters, fill_time_ms
from sluice.core.errors import InvalidRequest
from sluice.core.shards import shard_parameters

AMOUNT_MAX: Final = 10**12
PERIOD_MAX_S: Final = 31_536_000
LIMITS_MAX: Final = 10
# Keeps every quoted time within what RFC 3339 can express.
FILL_TIME_MAX_MS: Final = 10 * 365 * 86_400 * 1000

LIMIT_NAME_PATTERN: Final = r"[a-z][a-z0-9_]{0,31}"
_LIMIT_NAME: Final = re.compile(LIMIT_NAME_PATTERN)
RESERVED_NAMES: Final = frozenset({"wcu"})
FINGERPRINT_LENGTH: Final = 16


class Source(StrEnum):
    """Where a limit comes from."""

    CALL = "call"
    ENTITY = "entity"
    ENTITY_DEFAULT = "entity_default"
    RESOURCE = "resource"
    SYSTEM = "system"


DEFAULT_RESOURCE: Final = "_default_"
"""Stands for every resource of an entity. No resource can have this name."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A level at which limits are stored: of an entity and resource, of a resource, or of the whole system."""

    entity: str | None = None
    resource: str | None = None

    @property
    def source(self) -> Source:
        if self.entity is not None:
            return Source.ENTITY_DEFAULT if self.resource == DEFAULT_RESOURCE else Source.ENTITY
        return Source.SYSTEM if self.resource is None else Source.RESOURCE


SYSTEM: Final = Scope()


def scopes_of(entity: str, resource: str) -> tuple[Scope, ...]:
    """All levels that may define a limit for this entity and resource, the most specific first."""
    return (Scope(entity, resource), Scope(entity, DEFAULT_RESOURCE), Scope(resource=resource), SYSTEM)


# Buckets under such limits are as permanent as the entity, so they never expire.
OWN_SOURCES: Final = frozenset({Source.ENTITY, Source.ENTITY_DEFAULT})


class OnUnavailable(StrEnum):
    """What an acquire answers while the table does not."""

    ALLOW = "allow"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class Limit:
    """A named token bucket, as people define it: whole tokens and whole seconds."""

    capacity: int
    burst: int
    refill_amount: int
    refill_period_seconds: int

    @property
    def parameters(self) -> Parameters:
        return Parameters(
            capacity_milli=self.capacity * MILLI,
            burst_milli=self.burst * MILLI,
            refill_amount_milli=self.refill_amount * MILLI,
            refill_period_ms=self.refill_period_seconds * 1000,
        )


LimitsByName = Mapping[str, Limit | None]


@dataclass(frozen=True)
class LimitSet:
    """The limits of one bucket, each with its source. Computed once per cache fill, read on every acquire."""

    limits: Mapping[str, Limit]
    sources: Mapping[str, Source]
    switched_off: frozenset[str] = frozenset()

    @cached_property
    def parameters(self) -> Mapping[str, Parameters]:
        return MappingProxyType({name: limit.parameters for name, limit in self.limits.items()})

    @cached_property
    def _shards(self) -> dict[tuple[int, int], Mapping[str, Parameters]]:
        return {}

    def shard_parameters(self, shard: int, count: int) -> Mapping[str, Parameters]:
        """What one shard of so many has of every limit."""
        if count == 1:
            return self.parameters
        found = self._shards.get((shard, count))
        if found is None:
            found = {name: shard_parameters(limit, shard, count) for name, limit in self.parameters.items()}
            self._shards[shard, count] = found
        return found

    @cached_property
    def fingerprint(self) -> str:
        """Of the limits, and of whether such a bucket expires: both are written by a rebase."""
        return fingerprint(self.limits, expires=self.expires)

    @cached_property
    def fill_time_ms(self) -> int:
        return fill_time_ms(self.parameters.values())

    @cached_property
    def expires(self) -> bool:
        return OWN_SOURCES.isdisjoint(self.sources.values())

    @cached_property
    def own(self) -> frozenset[str]:
        """The names that are set on the entity itself."""
        return frozenset(name for name, source in self.sources.items() if source in OWN_SOURCES)


def define_limit(
    field: str,
    capacity: int,
    refill_period_seconds: int,
    burst: int | None = None,
    refill_amount: int | None = None,
) -> Limit:
    """A checked limit. Burst and refill amount default to the capacity."""
    limit = Limit(
        capacity=capacity,
        burst=capacity if burst is None else burst,
        refill_amount=capacity if refill_amount is None else refill_amount,
        refill_period_seconds=refill_period_seconds,
    )
    _check_range(f"{field}.capacity", limit.capacity, AMOUNT_MAX)
    _check_range(f"{field}.burst", limit.burst, AMOUNT_MAX)
    _check_range(f"{field}.refill_amount", limit.refill_amount, AMOUNT_MAX)
    _check_range(f"{field}.refill_period_seconds", limit.refill_period_seconds, PERIOD_MAX_S)
    if limit.burst < limit.capacity:
        raise InvalidRequest(f"{field}.burst", "must not be below the capacity")
    if fill_time_ms([limit.parameters]) > FILL_TIME_MAX_MS:
        raise InvalidRequest(f"{field}.burst", "must be refilled within 10 years")
    return limit


def check_limit_names(field: str, names: Sequence[str]) -> None:
    """Refuses names that no limit may have, and more of them than one level may define."""
    if not names:
        raise InvalidRequest(field, "must name at least one limit")
    if len(names) > LIMITS_MAX:
        raise InvalidRequest(field, f"must not name more than {LIMITS_MAX} limits")
    for name in names:
        if not _LIMIT_NAME.fullmatch(name):
            raise InvalidRequest(field, f"limit names must match {LIMIT_NAME_PATTERN}")
        if name in RESERVED_NAMES:
            raise InvalidRequest(f"{field}.{name}", "is a reserved limit name")


def resolve(levels: Sequence[tuple[Source, LimitsByName]]) -> LimitSet:
    """Merges levels, given from the most specific to the least: the first that defines a name decides it."""
    limits: dict[str, Limit] = {}
    sources: dict[str, Source] = {}
    switched_off: set[str] = set()
    for source, defined in levels:
        for name, limit in defined.items():
            if name in limits or name in switched_off:
                continue
            if limit is None:
                switched_off.add(name)
            else:
                limits[name] = limit
                sources[name] = source
    return LimitSet(MappingProxyType(limits), MappingProxyType(sources), frozenset(switched_off))


def fingerprint(limits: Mapping[str, Limit], *, expires: bool) -> str:
    """Equal for equal limits, whatever their order. Sixteen hex digits: a collision needs 2^32 sets."""
    canonical = "expires;" if expires else "stays;"
    canonical += ";".join(
        f"{name}={limit.capacity},{limit.burst},{limit.refill_amount},{limit.refill_period_seconds}"
        for name, limit in sorted(limits.items())
    )
    return hashlib.sha256(canonical.encode()).hexdigest()[:FINGERPRINT_LENGTH]


def _check_range(field: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise InvalidRequest(field, f"must be between 1 and {most}")
