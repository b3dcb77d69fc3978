"""Acquire: take from the entity's bucket and from those of everyone above it, or take nothing.

The members of a chain are written in parallel, one write each. If one refuses, what the others gave is given back
before the answer leaves. A crash in between leaves a member charged for the requests in flight; refill heals it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sluice.core.admission import Admission, check_names, merged_refusal
from sluice.core.errors import Contended, LimitExceeded, Unavailable
from sluice.core.limits import LimitsByName, LimitSet, OnUnavailable, Source, resolve
from sluice.core.signals import Meter, Signal
from sluice.repository import keys
from sluice.repository.items import decode_bucket
from sluice.services.configuration import Configuration
from sluice.services.taking import SHARD, Claim, Taken, Taker, Terms, terms_of

CHAIN_MAX: Final = 4

Task = Callable[[], Taken]
RunAll = Callable[[Sequence[Task]], "list[Taken | Exception]"]
"""Runs tasks at once and returns what each came to. Passed in, so that a simulation decides the order."""


@dataclass(frozen=True, slots=True)
class AcquireRequest:
    """What a caller asks for, in whole tokens. `limits`: per-call limits, which use a bucket of their own."""

    namespace: str
    entity: str
    resource: str
    consume: Mapping[str, int]
    limits: LimitsByName | None = None


@dataclass(frozen=True, slots=True)
class _Opened:
    """A member of the chain. `known_missing`: its bucket was looked for just now and is not there."""

    claim: Claim
    limits: LimitSet
    known_missing: bool


class Acquire:
    """The service behind POST /v1/acquire. Safe to share between threads."""

    def __init__(self, configuration: Configuration, taker: Taker, run_all: RunAll, meter: Meter) -> None:
        self._configuration = configuration
        self._taker = taker
        self._run_all = run_all
        self._meter = meter

    def acquire(self, request: AcquireRequest) -> Admission:
        """Admits, or raises: a refusal is a LimitExceeded with its retry time."""
        try:
            admission = self._acquire(request)
        except LimitExceeded:
            self._meter.count(Signal.REFUSED)
            raise
        except Contended:
            self._meter.count(Signal.CONTENDED)
            raise
        except Unavailable:
            if self._configuration.on_unavailable(request.namespace) is not OnUnavailable.ALLOW:
                raise
            self._meter.count(Signal.FAIL_OPEN_ADMISSIONS)
            return Admission(request.entity, request.resource, request.consume, degraded=True)
        self._meter.count(Signal.ADMITTED)
        return admission

    def _acquire(self, request: AcquireRequest) -> Admission:
        chain = self._open(request)
        members = [opened.claim.member(opened.limits) for opened in chain]
        check_names(request.entity, request.resource, request.consume, members)
        claimed = [(terms_of(member.claim, member.limits), member.known_missing) for member in chain]
        wanted = [(terms, missing) for terms, missing in claimed if terms.demand]
        self._refuse_again([terms for terms, _ in wanted])
        outcomes = self._take_all(wanted)
        taken = [outcome for outcome in outcomes if isinstance(outcome, Taken)]
        failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if failures:
            for one in taken:
                self._taker.give_back(one)
            raise _verdict(failures)
        return Admission(
            request.entity,
            request.resource,
            request.consume,
            measure=lambda: tuple(level for one in taken for level in one.levels),
        )

    def _open(self, request: AcquireRequest) -> list[_Opened]:
        """The entity that asks and, while they cascade, those above it."""
        call_limits = None if request.limits is None else resolve([(Source.CALL, request.limits)])
        opened = [self._open_member(request, request.entity, call_limits, asks=True)]
        while len(opened) < CHAIN_MAX and (parent := opened[-1].claim.parent) is not None:
            opened.append(self._open_member(request, parent, None, asks=False))
        if len(opened) == 1:
            return opened
        return [replace(member, claim=replace(member.claim, alone=False)) for member in opened]

    def _open_member(
        self, request: AcquireRequest, entity: str, call_limits: LimitSet | None, *, asks: bool
    ) -> _Opened:
        call_fingerprint = None if call_limits is None else call_limits.fingerprint
        key = keys.bucket(request.namespace, entity, request.resource, SHARD, call_fingerprint)
        unseen = None if self._taker.knows(key) else key
        found = self._configuration.resolve(request.namespace, entity, request.resource, unseen)
        if found.bucket_item is not None:
            # Perhaps stale: good enough to guess a form from, never to refuse by.
            self._taker.remember(decode_bucket(found.bucket_item))
        claim = Claim(
            namespace=request.namespace,
            entity=entity,
            resource=request.resource,
            consume=request.consume,
            asks=asks,
            parent=found.resolved.parent,
            alone=True,
            key=key,
            call_fingerprint=call_fingerprint,
        )
        limits = found.resolved.limits if call_limits is None else call_limits
        return _Opened(claim, limits, found.bucket_read and found.bucket_item is None)

    def _refuse_again(self, chain: Sequence[Terms]) -> None:
        """A refusal by one member costs no write of another while it stands."""
        standing = [self._taker.standing_refusal(terms) for terms in chain]
        refusals = [refused for refused in standing if refused is not None]
        if refusals:
            raise merged_refusal(refusals)

    def _take_all(self, wanted: Sequence[tuple[Terms, bool]]) -> "list[Taken | Exception]":
        if len(wanted) == 1:
            # The usual case needs no thread.
            terms, missing = wanted[0]
            return [self._taker.take(terms, known_missing=missing)]
        return self._run_all([_task(self._taker, terms, known_missing=missing) for terms, missing in wanted])


def _task(taker: Taker, terms: Terms, *, known_missing: bool) -> Task:
    return lambda: taker.take(terms, known_missing=known_missing)


def _verdict(failures: Sequence[Exception]) -> Exception:
    """What a chain answers whose members failed differently: first what waiting does not cure."""
    refusals = [failure for failure in failures if isinstance(failure, LimitExceeded)]
    contended = [failure for failure in failures if isinstance(failure, Contended)]
    unavailable = [failure for failure in failures if isinstance(failure, Unavailable)]
    curable = {*refusals, *contended, *unavailable}
    for failure in failures:
        if failure not in curable:
            return failure
    if unavailable:
        return unavailable[0]
    return merged_refusal(refusals) if refusals else contended[0]
