"""The chain of an acquire: the entity that asks and, while they cascade, those above it, each with its limits."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sluice.core.admission import CHAIN_MAX, check_names
from sluice.core.limits import LimitsByName, LimitSet, Source, resolve
from sluice.repository import keys
from sluice.repository.items import decode_bucket
from sluice.repository.legacy import is_legacy
from sluice.services.claims import Claim, Terms, terms_of
from sluice.services.configuration import Configuration, Resolved
from sluice.services.confinement import no_such_entity, require_cached
from sluice.services.images import ImageCache
from sluice.services.registration import Registrar, Registration


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """What a caller asks for, in whole tokens. `limits`: per-call limits, which use a bucket of their own.

    `registration`: where an entity that nobody knows yet is registered; None leaves it unregistered.
    `known_only`: such an entity is refused instead. `within`: only this entity and those below it may be asked for.
    """

    namespace: str
    entity: str
    resource: str
    consume: Mapping[str, int]
    limits: LimitsByName | None = None
    registration: Registration | None = None
    known_only: bool = False
    within: str | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """A member of the chain. `known_missing`: its bucket was looked for just now and is not there."""

    terms: Terms
    known_missing: bool


@dataclass(frozen=True, slots=True)
class Chain:
    """`entities`: all members, the one that asks first. `opened`: those that have to give something."""

    entities: tuple[str, ...]
    opened: list[Opened]


@dataclass(frozen=True, slots=True)
class _Member:
    claim: Claim
    limits: LimitSet
    registered: bool
    known_missing: bool


class Chains:
    """Safe to share between threads."""

    def __init__(self, configuration: Configuration, images: ImageCache, registrar: Registrar) -> None:
        self._configuration = configuration
        self._images = images
        self._registrar = registrar

    def open(self, request: AcquireRequest) -> Chain:
        """Refuses what can never pass before anything is written."""
        members = self._allowed_members(request)
        opened = _checked(request, members)
        registration = request.registration
        if registration is None or members[0].registered:
            return opened
        # As last read, which saves a check in the transaction: a parent that is being removed is a race either way.
        if registration.below == request.entity or (len(members) > 1 and not members[1].registered):
            raise no_such_entity()
        if self._registrar.register(request.namespace, request.entity, request.resource, registration):
            return opened
        return _checked(request, self._allowed_members(request))

    def would_register(self, request: AcquireRequest) -> bool:
        """Whether opening this chain would make somebody known."""
        return request.registration is not None and not self._allowed_members(request)[0].registered

    def look(self, request: AcquireRequest) -> Chain:
        """As `open`, without registering anybody."""
        if request.within is not None and not self._members(request)[0].registered:
            # Somebody else may have made it its own meanwhile, and what it has left is not for everybody.
            self._configuration.look_up(request.namespace, request.entity, request.resource)
        return _checked(request, self._allowed_members(request))

    def _allowed_members(self, request: AcquireRequest) -> list[_Member]:
        members = self._members(request)
        if request.known_only and not members[0].registered:
            raise no_such_entity()
        # Who is about to be registered has its parent in the chain already.
        if request.within is not None and all(member.claim.entity != request.within for member in members):
            require_cached(self._configuration, request.namespace, request.within, request.entity, request.resource)
        return members

    def _members(self, request: AcquireRequest) -> list[_Member]:
        call_limits = None if request.limits is None else resolve([(Source.CALL, request.limits)])
        members = [self._member(request, request.entity, call_limits, asks=True)]
        while len(members) < CHAIN_MAX and (parent := members[-1].claim.parent) is not None:
            # Parents come from reads of different age: after two changed places, one may be met again.
            if any(member.claim.entity == parent for member in members):
                break
            members.append(self._member(request, parent, None, asks=False))
        if len(members) == 1:
            return members
        return [replace(member, claim=replace(member.claim, alone=False)) for member in members]

    def _member(self, request: AcquireRequest, entity: str, call_limits: LimitSet | None, *, asks: bool) -> _Member:
        call_fingerprint = None if call_limits is None else call_limits.fingerprint
        first = keys.bucket(request.namespace, entity, request.resource, 0, call_fingerprint)
        unseen = None if self._images.knows(first) else first
        found = self._configuration.resolve(request.namespace, entity, request.resource, unseen)
        if found.bucket_item is not None and not is_legacy(found.bucket_item):
            # Perhaps stale: good enough to guess a form from, never to refuse by.
            self._images.remember(decode_bucket(found.bucket_item))
        resolved = found.resolved
        claim = Claim(
            namespace=request.namespace,
            entity=entity,
            resource=request.resource,
            consume=request.consume,
            asks=asks,
            parent=_parent(request, resolved) if asks else resolved.parent,
            alone=True,
            first=first,
            call_fingerprint=call_fingerprint,
            legacy_prefix=resolved.version.legacy_prefix if resolved.version.is_migrating else None,
        )
        limits = resolved.limits if call_limits is None else call_limits
        return _Member(claim, limits, resolved.registered, found.bucket_read and found.bucket_item is None)


def _parent(request: AcquireRequest, resolved: Resolved) -> str | None:
    """Of an entity that nobody knows yet: where it is about to be registered."""
    registration = request.registration
    if resolved.registered or registration is None or registration.below == request.entity:
        return resolved.parent
    return registration.below


def _checked(request: AcquireRequest, members: list[_Member]) -> Chain:
    asked = [member.claim.member(member.limits) for member in members]
    check_names(request.entity, request.resource, request.consume, asked)
    opened = [Opened(terms_of(member.claim, member.limits), member.known_missing) for member in members]
    entities = tuple(member.claim.entity for member in members)
    return Chain(entities, [one for one in opened if one.terms.demand])
