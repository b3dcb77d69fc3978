"""The limits of one level: read, replaced and removed, each guarded by the version that was seen."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sluice.core.backoff import RandomBelow, contended_wait_ms
from sluice.core.errors import Contended, NotFound, PreconditionFailed
from sluice.core.limits import SYSTEM, LimitsByName, OnUnavailable, Scope, check_limit_names
from sluice.repository import keys
from sluice.repository.items import StoredLimits, decode_limits, encode_limits
from sluice.repository.requests import PutRequest
from sluice.repository.store import Applied, ConditionFailed, Outcome, Store
from sluice.repository.wire import Item, Value
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
        self, store: Store, configuration: Configuration, clock_ms: Callable[[], int], random_below: RandomBelow
    ) -> None:
        self._store = store
        self._configuration = configuration
        self._clock_ms = clock_ms
        self._random_below = random_below

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
    ) -> Replaced:
        """Replaces the level as a whole."""
        # The system's level may be there for `on_unavailable` alone.
        if limits or scope != SYSTEM:
            check_limit_names("limits", list(limits))
        before = self._find(namespace, scope)
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
            outcome = self._store.put(_put_request(namespace, scope, stored, before), repeatable=False)
            if isinstance(outcome, Applied):
                self._configuration.forget(namespace)
                return Replaced(stored, created=before is None)
            before = _stored(outcome)
        raise Contended(contended_wait_ms(self._random_below))

    def delete(self, namespace: str, scope: Scope, precondition: Precondition = any_version) -> None:
        before: StoredLimits | None = self.get(namespace, scope)
        for _ in range(_WRITE_ROUNDS):
            _demand(precondition, before)
            if before is None:
                return
            condition, values = _as_seen(before)
            key: Item = {**keys.limits(namespace, scope).attributes}
            outcome = self._store.delete(
                {"Key": key, "ConditionExpression": condition, "ExpressionAttributeValues": values}
            )
            if isinstance(outcome, Applied) or _removed_before(outcome, before):
                self._configuration.forget(namespace)
                return
            before = _stored(outcome)
        raise Contended(contended_wait_ms(self._random_below))

    def _find(self, namespace: str, scope: Scope) -> StoredLimits | None:
        item = self._store.get(keys.limits(namespace, scope), consistent=True)
        return None if item is None else decode_limits(item)


def _demand(precondition: Precondition, stored: StoredLimits | None) -> None:
    if not precondition(stored):
        raise PreconditionFailed("the stored version is another one")


def _put_request(namespace: str, scope: Scope, stored: StoredLimits, before: StoredLimits | None) -> PutRequest:
    item = encode_limits(keys.limits(namespace, scope), keys.limits_indexes(namespace, scope), stored)
    if before is None:
        return {"Item": item, "ConditionExpression": "attribute_not_exists(PK)"}
    condition, values = _as_seen(before)
    return {"Item": item, "ConditionExpression": condition, "ExpressionAttributeValues": values}


def _as_seen(stored: StoredLimits) -> tuple[str, dict[str, Value]]:
    """Removed and made again, a level starts at version 1 once more: its creation time tells the two apart."""
    values: dict[str, Value] = {":version": stored.config_version, ":created": stored.created_at_ms}
    return "config_version = :version AND created_at = :created", values


def _removed_before(outcome: ConditionFailed, before: StoredLimits) -> bool:
    """After a lost answer, what should be removed may be gone because the first try removed it."""
    now = _stored(outcome)
    return outcome.repeated and (now is None or now.created_at_ms != before.created_at_ms)


def _stored(outcome: Outcome) -> StoredLimits | None:
    return None if outcome.item is None else decode_limits(outcome.item)
