"""Entities that appear by asking: nobody registers a million users by hand."""

from dataclasses import dataclass

from sluice.core.audit import Action, Author, entity_target
from sluice.repository.audit import AuditEvent, audit_put
from sluice.repository.entities import entity_image, entity_put
from sluice.repository.items import Entity
from sluice.repository.store import Committed, Store
from sluice.services.configuration import Configuration
from sluice.services.effects import Effects


@dataclass(frozen=True, slots=True)
class Registration:
    """Whoever asks below this entity, or at the top, is registered there if nobody knows it yet."""

    below: str | None
    author: Author


class Registrar:
    def __init__(self, store: Store, configuration: Configuration, effects: Effects) -> None:
        self._store = store
        self._configuration = configuration
        self._effects = effects

    def register(self, namespace: str, entity_id: str, resource: str | None, registration: Registration) -> bool:
        """Whether it was registered by us. If somebody else was first, what they stored stands.

        `resource`: what it asks for, so that this process knows the limits of that again; None for a report of usage.
        """
        now_ms = self._effects.clock_ms()
        entity = Entity(
            entity=entity_id,
            name=None,
            parent=registration.below,
            cascade=True,
            metadata={},
            version=1,
            created_at_ms=now_ms,
            updated_at_ms=now_ms,
        )
        event = AuditEvent(
            event_id=self._effects.new_token(),
            subject=entity_id,
            at_ms=now_ms,
            author=registration.author,
            action=Action.ENTITY_REGISTER,
            target=entity_target(entity_id),
            before=None,
            after=entity_image(entity),
        )
        writes = [entity_put(namespace, entity, None), audit_put(namespace, event)]
        registered = isinstance(self._store.transact(writes, self._effects.new_token()), Committed)
        if resource is None:
            return registered
        if registered:
            self._configuration.note_registered(namespace, entity_id, resource, registration.below)
        else:
            self._configuration.look_up(namespace, entity_id, resource)
        return registered
