"""The label that somebody set for the rest of a local day, or for less, whatever was spent.

A change and its audit event are one transaction. A change that met another is built anew, with the same event: should
an earlier try have been applied after all, the event is there already, and the change is done.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sluice.core.audit import Action, Author, override_target
from sluice.core.backoff import contended_wait_ms
from sluice.core.errors import Contended, InvalidRequest, NotFound, UnknownLabel
from sluice.core.period import LocalDay
from sluice.repository import money_keys
from sluice.repository.audit import AuditEvent, audit_put, decode_audit_event
from sluice.repository.sticky import Override, StickyName, decode_sticky, override_image, override_remove, override_set
from sluice.repository.store import Committed, ConditionFailed, Store
from sluice.repository.wire import Item
from sluice.services.effects import Effects
from sluice.services.grounds import Ground, Grounds

_WRITE_ROUNDS: Final = 4

_Tell = Callable[[Override | None, Override | None], AuditEvent]


@dataclass(frozen=True, slots=True)
class Wanted:
    """`until_ms`: None for the rest of the local day."""

    label: str
    reason: str
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class OverrideOfDay:
    """`entity`: the app, or the org, whose selection it is. `created`: none held before."""

    entity: str
    day: LocalDay
    override: Override
    created: bool


class Overrides:
    """Of the selection that holds for an entity: its app's, or else the org's."""

    def __init__(self, store: Store, grounds: Grounds, effects: Effects) -> None:
        self._store = store
        self._grounds = grounds
        self._effects = effects

    def put(
        self, namespace: str, entity: str, wanted: Wanted, *, within: str | None = None, author: Author
    ) -> OverrideOfDay:
        """`within`: whose entities the caller may speak for. Replaces an override that holds."""
        now_ms = self._effects.clock_ms()
        ground = self._grounds.today(namespace, self._grounds.app_of(namespace, entity, within), now_ms)
        if wanted.label not in ground.usable:
            ground = self._grounds.anew(ground)
        if wanted.label not in ground.usable:
            raise UnknownLabel("label", "is no label of the ordering that is defined and has a quota")
        until_ms = _until_ms(wanted, ground.day, now_ms)
        override = Override(wanted.label, wanted.reason, author.actor, until_ms, whole_day=wanted.until_ms is None)
        tell = self._teller(ground, Action.SELECTION_OVERRIDE_PUT, author, now_ms)
        seen = self._stored(ground.name)
        for _ in range(_WRITE_ROUNDS):
            before = _holding(seen, now_ms)
            writes = [
                override_set(ground.name, override, seen, now_ms),
                audit_put(namespace, tell(before, override)),
            ]
            outcome = self._store.transact(writes, self._effects.new_token())
            if isinstance(outcome, Committed):
                return OverrideOfDay(ground.name.entity, ground.day, override, created=before is None)
            met, told = outcome.failures
            if told is not None:
                created = told.item is None or decode_audit_event(told.item).before is None
                return OverrideOfDay(ground.name.entity, ground.day, override, created)
            seen = _override_in(met)
        raise Contended(contended_wait_ms(self._effects.random_below))

    def remove(self, namespace: str, entity: str, *, within: str | None = None, author: Author) -> None:
        """Selection goes on from where it stands."""
        now_ms = self._effects.clock_ms()
        ground = self._grounds.today(namespace, self._grounds.app_of(namespace, entity, within), now_ms)
        tell = self._teller(ground, Action.SELECTION_OVERRIDE_DELETE, author, now_ms)
        seen = _holding(self._stored(ground.name), now_ms)
        if seen is None:
            raise NotFound("no override holds for this entity")
        for _ in range(_WRITE_ROUNDS):
            writes = [override_remove(ground.name, seen, now_ms), audit_put(namespace, tell(seen, None))]
            outcome = self._store.transact(writes, self._effects.new_token())
            if isinstance(outcome, Committed) or outcome.failures[1] is not None:
                return
            seen = _holding(_override_in(outcome.failures[0]), now_ms)
            if seen is None:
                # Another removed it meanwhile, and told so.
                return
        raise Contended(contended_wait_ms(self._effects.random_below))

    def _stored(self, name: StickyName) -> Override | None:
        key = money_keys.sticky(name.namespace, name.entity, name.day.name)
        return _override_of(self._store.get(key, consistent=True))

    def _teller(self, ground: Ground, action: Action, author: Author, now_ms: int) -> _Tell:
        """Builds the event of one change, again and again with the same id and time."""
        event_id, subject = self._effects.new_token(), ground.name.entity

        def tell(before: Override | None, after: Override | None) -> AuditEvent:
            return AuditEvent(
                event_id=event_id,
                subject=subject,
                at_ms=now_ms,
                author=author,
                action=action,
                target=override_target(subject),
                before=None if before is None else override_image(before),
                after=None if after is None else override_image(after),
            )

        return tell


def _until_ms(wanted: Wanted, day: LocalDay, now_ms: int) -> int:
    if wanted.until_ms is None:
        return day.ends_ms
    if wanted.until_ms <= now_ms:
        raise InvalidRequest("until", "must be in the future")
    if wanted.until_ms > day.ends_ms:
        raise InvalidRequest("until", "must not be after the next local midnight, when selection begins anew")
    return wanted.until_ms


def _holding(override: Override | None, now_ms: int) -> Override | None:
    return override if override is not None and override.holds(now_ms) else None


def _override_in(failed: ConditionFailed | None) -> Override | None:
    return None if failed is None else _override_of(failed.item)


def _override_of(item: Item | None) -> Override | None:
    return None if item is None else decode_sticky(item).override
