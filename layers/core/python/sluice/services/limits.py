"""The limits of one level: read, replaced and removed, each guarded by the version that was seen.

A change and its audit event are one transaction. A change that met another is built anew, with the same event: should
an earlier try have been applied after all, the event is there already, and the change is done.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sluice.core.audit import BY_SYSTEM, Action, Author, limits_subject, limits_target
from sluice.core.backoff import RandomBelow, contended_wait_ms
from sluice.core.errors import Contended, NotFound, PreconditionFailed
from sluice.core.limits import SYSTEM, LimitsByName, OnUnavailable, Scope, check_limit_names
from sluice.repository import keys
from sluice.repository.audit import AuditEvent, audit_put, decode_audit_event
from sluice.repository.items import StoredLimits, decode_limits
from sluice.repository.legacy_settings import limits_of_any_layout
from sluice.repository.limits import limits_delete, limits_image, limits_put
from sluice.repository.store import Committed, ConditionFailed, Store
from sluice.services.configuration import Configuration

_WRITE_ROUNDS: Final = 4

Precondition = Callable[[StoredLimits | None], bool]
"""What a caller demands of the stored version, such as If-Match."""


def any_version(_stored: StoredLimits | None) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Replaced:
    """What is stored now. `created`: there was nothing before."""

    stored: StoredLimits
    created: bool


class Limits:
    """A writer that meets another one looks again, so that no version is overwritten unseen."""

    def __init__(
        self,
        store: Store,
        configuration: Configuration,
        clock_ms: Callable[[], int],
        random_below: RandomBelow,
        new_token: Callable[[], str],
    ) -> None:
        self._store = store
        self._configuration = configuration
        self._clock_ms = clock_ms
        self._random_below = random_below
        self._new_token = new_token

    def get(self, namespace: str, scope: Scope) -> StoredLimits:
        found = self._find(namespace, scope)
        if found is None:
            raise NotFound("no limits are stored at this level")
        return found

    def put(
        self,
        namespace: str,
        scope: Scope,
        limits: LimitsByName,
        on_unavailable: OnUnavailable | None = None,
        precondition: Precondition = any_version,
        *,
        author: Author = BY_SYSTEM,
    ) -> Replaced:
        """Replaces the level as a whole."""
        # The system's level may be there for `on_unavailable` alone.
        if limits or scope != SYSTEM:
            check_limit_names("limits", list(limits))
        before = self._find(namespace, scope)
        tell = self._teller(scope, Action.LIMITS_PUT, author)
        tried: list[Replaced] = []
        for _ in range(_WRITE_ROUNDS):
            _demand(precondition, before)
            now_ms = self._clock_ms()
            stored = StoredLimits(
                limits=limits,
                on_unavailable=on_unavailable,
                config_version=1 if before is None else before.config_version + 1,
                created_at_ms=now_ms if before is None else before.created_at_ms,
                updated_at_ms=now_ms,
            )
            tried.append(Replaced(stored, created=before is None))
            writes = [limits_put(namespace, scope, stored, before), audit_put(namespace, tell(before, stored))]
            outcome = self._store.transact(writes, self._new_token())
            if isinstance(outcome, Committed):
                self._configuration.forget(namespace)
                return tried[-1]
            seen, told = outcome.failures
            if told is not None:
                self._configuration.forget(namespace)
                return _applied(tried, told)
            before = _stored(seen)
        raise Contended(contended_wait_ms(self._random_below))

    def delete(
        self, namespace: str, scope: Scope, precondition: Precondition = any_version, *, author: Author = BY_SYSTEM
    ) -> None:
        before: StoredLimits | None = self.get(namespace, scope)
        tell = self._teller(scope, Action.LIMITS_DELETE, author)
        for _ in range(_WRITE_ROUNDS):
            _demand(precondition, before)
            if before is None:
                return
            writes = [limits_delete(namespace, scope, before), audit_put(namespace, tell(before, None))]
            outcome = self._store.transact(writes, self._new_token())
            if isinstance(outcome, Committed) or outcome.failures[1] is not None:
                self._configuration.forget(namespace)
                return
            before = _stored(outcome.failures[0])
        raise Contended(contended_wait_ms(self._random_below))

    def _find(self, namespace: str, scope: Scope) -> StoredLimits | None:
        item = self._store.get(keys.limits(namespace, scope), consistent=True)
        return None if item is None else limits_of_any_layout(item)

    def _teller(
        self, scope: Scope, action: Action, author: Author
    ) -> Callable[[StoredLimits | None, StoredLimits | None], AuditEvent]:
        """Builds the event of one change, again and again with the same id and time."""
        event_id = self._new_token()
        at_ms = self._clock_ms()

        def tell(before: StoredLimits | None, after: StoredLimits | None) -> AuditEvent:
            return AuditEvent(
                event_id=event_id,
                subject=limits_subject(scope),
                at_ms=at_ms,
                author=author,
                action=action,
                target=limits_target(scope),
                before=None if before is None else limits_image(before),
                after=None if after is None else limits_image(after),
            )

        return tell


def _demand(precondition: Precondition, stored: StoredLimits | None) -> None:
    if not precondition(stored):
        raise PreconditionFailed("the stored version is another one")


def _applied(tried: Sequence[Replaced], told: ConditionFailed) -> Replaced:
    """Which of our tries the event that is there tells of."""
    image = None if told.item is None else decode_audit_event(told.item).after
    return next(done for done in reversed(tried) if limits_image(done.stored) == image)


def _stored(failed: ConditionFailed | None) -> StoredLimits | None:
    return None if failed is None or failed.item is None else decode_limits(failed.item)
