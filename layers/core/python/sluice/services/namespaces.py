"""Namespaces: the tenants of the table. Made under an opaque id that is never used again, and purged by a job."""

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

from cachetools import TTLCache

from sluice.core.audit import SYSTEM_SUBJECT, Action, Author
from sluice.core.backoff import contended_wait_ms
from sluice.core.errors import Contended, NotFound
from sluice.repository import keys
from sluice.repository.audit import AuditEvent, audit_put
from sluice.repository.jobs import Job, JobState
from sluice.repository.namespaces import (
    Namespace,
    NamespaceState,
    create_writes,
    decode_namespace,
    namespaces_query,
    purge_writes,
)
from sluice.repository.requests import TransactWrite
from sluice.repository.store import Committed, Store
from sluice.repository.versions import CURRENT, encode_version
from sluice.services.effects import Effects
from sluice.services.jobs import Jobs
from sluice.services.purge import PURGE, purge_parameters

CACHE_MS: Final = 30_000
PAGE_MAX: Final = 100
ID_LENGTH: Final = 11
_ALPHABET: Final = string.ascii_letters + string.digits
_CACHE_SIZE: Final = 10_000
_WRITE_ROUNDS: Final = 4


@dataclass(frozen=True, slots=True)
class Created:
    """`created`: it was not there before."""

    namespace: Namespace
    created: bool


@dataclass(frozen=True, slots=True)
class NamespacePage:
    """In the order of their names; `next_after` continues."""

    namespaces: Sequence[Namespace]
    next_after: str | None


class Namespaces:
    """The timer must be monotonic: a clock that is set back would keep a purged namespace alive."""

    def __init__(self, store: Store, jobs: Jobs, effects: Effects, timer_ms: Callable[[], int]) -> None:
        self._store = store
        self._jobs = jobs
        self._effects = effects
        self._active: TTLCache[str, bool] = TTLCache(_CACHE_SIZE, CACHE_MS, timer=timer_ms)
        self._lock = Lock()

    def create(self, name: str, author: Author) -> Created:
        """A name that is taken is answered as it is, also while it is purged."""
        event_id, now_ms = self._effects.new_token(), self._effects.clock_ms()
        drawn: set[str] = set()
        for _ in range(_WRITE_ROUNDS):
            found = self._find(keys.namespace_by_name(name))
            if found is not None:
                # After a lost answer it may be our own.
                return Created(found, created=found.namespace_id in drawn)
            namespace, writes = self.creation(name, author, event_id, now_ms)
            drawn.add(namespace.namespace_id)
            if isinstance(self._store.transact(writes, self._effects.new_token()), Committed):
                return Created(namespace, created=True)
            # Another was faster, or the id is taken.
        raise Contended(contended_wait_ms(self._effects.random_below))

    def creation(self, name: str, author: Author, event_id: str, now_ms: int) -> tuple[Namespace, list[TransactWrite]]:
        """A new namespace under a new id, and what makes it: for the caller's own transaction, by name first."""
        namespace = Namespace(name, self._new_id(), NamespaceState.ACTIVE, None, now_ms, now_ms)
        return namespace, [*create_writes(namespace), *_first_items(namespace, author, event_id)]

    def find(self, name: str) -> Namespace | None:
        return self._find(keys.namespace_by_name(name))

    def get(self, name: str) -> Namespace:
        return _required(self._find(keys.namespace_by_name(name)))

    def by_id(self, namespace_id: str) -> Namespace:
        return _required(self._find(keys.namespace_by_id(namespace_id)))

    def list(self, *, limit: int = PAGE_MAX, after: str | None = None) -> NamespacePage:
        page = self._store.query(namespaces_query(after, limit))
        found = [decode_namespace(item) for item in page.items]
        return NamespacePage(found, found[-1].name if found and page.next_start is not None else None)

    def require_active(self, namespace_id: str) -> None:
        """Raises NotFound for a namespace that is not there or is being purged: within CACHE_MS in every process."""
        with self._lock:
            if namespace_id in self._active:
                return
        # Only what is active is remembered: one that was just made is let in at once.
        if not self.by_id(namespace_id).is_active:
            raise NotFound("there is no such namespace")
        with self._lock:
            self._active[namespace_id] = True

    def purge(self, name: str, author: Author) -> Job:
        """Starts to remove everything of a namespace. Asked again, it answers the same job, unless that failed."""
        for _ in range(_WRITE_ROUNDS):
            found = self.get(name)
            running = self._purge_of(found)
            if running is not None:
                return running
            parameters = purge_parameters(found, author)
            job, start = self._jobs.start_writes(found.namespace_id, PURGE, parameters, registry=True)
            event = AuditEvent(
                event_id=job.job_id,
                subject=SYSTEM_SUBJECT,
                at_ms=job.created_at_ms,
                author=author,
                action=Action.NAMESPACE_PURGE,
                target=_target(name),
                before={"state": found.state.value},
                after={"state": NamespaceState.PURGING.value, "job_id": job.job_id},
            )
            marks = purge_writes(found, job.job_id, job.created_at_ms)
            writes = [*marks, start, audit_put(found.namespace_id, event)]
            if isinstance(self._store.transact(writes, self._effects.new_token()), Committed):
                with self._lock:
                    self._active.pop(found.namespace_id, None)
                return job
            # Another was faster, or an earlier try of this very transaction: the record tells.
        raise Contended(contended_wait_ms(self._effects.random_below))

    def _purge_of(self, namespace: Namespace) -> Job | None:
        """Its purge, unless there is none or it failed and has to be started again."""
        if namespace.job_id is None:
            return None
        job = self._jobs.find(keys.REGISTRY_NAMESPACE, namespace.job_id)
        return None if job is None or job.state is JobState.FAILED else job

    def _find(self, key: keys.Key) -> Namespace | None:
        item = self._store.get(key, consistent=True)
        return None if item is None else decode_namespace(item)

    def _new_id(self) -> str:
        return "".join(_ALPHABET[self._effects.random_below(len(_ALPHABET))] for _ in range(ID_LENGTH))


def _first_items(namespace: Namespace, author: Author, event_id: str) -> list[TransactWrite]:
    """What a namespace has from its first moment: its schema version, and the audit event of its creation."""
    now_ms = namespace.created_at_ms
    version = encode_version(namespace.namespace_id, CURRENT, now_ms)
    event = AuditEvent(
        event_id=event_id,
        subject=SYSTEM_SUBJECT,
        at_ms=now_ms,
        author=author,
        action=Action.NAMESPACE_CREATE,
        target=_target(namespace.name),
        before=None,
        after={"name": namespace.name, "state": namespace.state.value},
    )
    return [{"Put": {"Item": version}}, audit_put(namespace.namespace_id, event)]


def _target(name: str) -> str:
    """What was changed, by its path in the API."""
    return f"orgs/{name}"


def _required(found: Namespace | None) -> Namespace:
    if found is None:
        raise NotFound("there is no such namespace")
    return found
