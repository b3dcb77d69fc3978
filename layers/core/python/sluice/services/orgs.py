"""Orgs: a tenant with its settings, its root entity and its credentials, made in one transaction.

Whoever loses a race for a new org finds the winner's and changes that. An org that is being purged takes no change: its
name is free again when the purge has ended.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from sluice.core.audit import SYSTEM_SUBJECT, Action, Author
from sluice.core.backoff import contended_wait_ms
from sluice.core.changes import Unset
from sluice.core.errors import Contended, InUse, InvalidRequest, NotFound, PreconditionFailed
from sluice.core.identity import Role
from sluice.core.orgs import EntityRole, OrgChange, merge_org
from sluice.repository import keys
from sluice.repository.audit import AuditEvent, audit_put
from sluice.repository.entities import entity_put
from sluice.repository.items import Entity
from sluice.repository.jobs import Job
from sluice.repository.legacy_settings import entity_of_any_layout
from sluice.repository.namespaces import Namespace
from sluice.repository.orgs import Org, decode_org, namespace_active, org_put, settings_image
from sluice.repository.requests import TransactWrite
from sluice.repository.store import Committed, Store
from sluice.services.configuration import Configuration
from sluice.services.credentials import Credentials, NewClient, Rotated
from sluice.services.effects import Effects
from sluice.services.namespaces import Namespaces
from sluice.services.zones import ZoneCalendar, zone_names

_WRITE_ROUNDS: Final = 4

OrgPrecondition = Callable[[Org | None], bool]


def any_org(_org: Org | None) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class OrgPath:
    """Which org a request names. `namespace`: the only one that it may mean; None for an operator.

    A name is given away again after a purge, and a token of the org that had it before must not open the new one.
    """

    org: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class OrgChanged:
    """`client_secret`: only of an org that was made by this call. Nobody can read it again."""

    org: Org
    client_secret: str | None = field(repr=False)

    @property
    def created(self) -> bool:
        return self.client_secret is not None


@dataclass(frozen=True, slots=True)
class _Events:
    """What a call tells the audit, however often it is tried: so it is told, and happens, once."""

    org_event: str
    namespace_event: str
    at_ms: int
    author: Author

    def org_put(self, before: Org | None, after: Org) -> AuditEvent:
        return AuditEvent(
            event_id=self.org_event,
            subject=SYSTEM_SUBJECT,
            at_ms=self.at_ms,
            author=self.author,
            action=Action.ORG_PUT,
            target=f"orgs/{after.org}",
            before=None if before is None else settings_image(before),
            after=settings_image(after),
        )


class Orgs:
    def __init__(
        self,
        store: Store,
        namespaces: Namespaces,
        credentials: Credentials,
        configuration: Configuration,
        effects: Effects,
    ) -> None:
        self._store = store
        self._namespaces = namespaces
        self._credentials = credentials
        self._configuration = configuration
        self._effects = effects
        self._calendar = ZoneCalendar()

    def get(self, path: OrgPath) -> Org:
        org = self._settings_of(self.namespace(path))
        if org is None:
            raise NotFound("there is no such org")
        return org

    def namespace(self, path: OrgPath) -> Namespace:
        """Where an org is, and that it may be used."""
        found = self._usable(path)
        if found is None:
            raise NotFound("there is no such org")
        return found

    def put(
        self, path: OrgPath, change: OrgChange, precondition: OrgPrecondition = any_org, *, author: Author
    ) -> OrgChanged:
        """Merges what was sent into what is stored, or makes the org."""
        _check_zone(change.timezone)
        events = _Events(self._effects.new_token(), self._effects.new_token(), self._effects.clock_ms(), author)
        tried: dict[str, str] = {}
        for _ in range(_WRITE_ROUNDS):
            namespace = self._usable(path)
            before = None if namespace is None else self._settings_of(namespace)
            if before is not None and before.client_id in tried:
                # An earlier try was applied after all.
                return OrgChanged(before, tried[before.client_id])
            if not precondition(before):
                raise PreconditionFailed("the stored version is another one")
            if before is not None:
                org, writes = self._changed(before, change, events)
                secret = None
                if org is before:
                    return OrgChanged(org, None)
            else:
                org, client, writes = self._made(path.org, namespace, change, events)
                secret = tried[client.client_id] = client.client_secret
            if isinstance(self._store.transact(writes, self._effects.new_token()), Committed):
                self._configuration.forget(org.namespace)
                return OrgChanged(org, secret)
            # Another was faster, or an id is taken, or the purge has begun.
        raise Contended(contended_wait_ms(self._effects.random_below))

    def delete(self, path: OrgPath, precondition: OrgPrecondition = any_org, *, author: Author) -> Job:
        """Starts the purge, which ends everything that the org has. Asked again, it answers the same job."""
        found = self._named(path)
        if found is None:
            raise NotFound("there is no such org")
        if found.is_active and not precondition(self._settings_of(found)):
            raise PreconditionFailed("the stored version is another one")
        return self._namespaces.purge(path.org, author)

    def rotate(self, path: OrgPath, grace_hours: int, *, author: Author) -> Rotated:
        org = self.get(path)
        return self._credentials.rotate(org.client_id, org.org, grace_hours, author)

    def _changed(self, before: Org, change: OrgChange, events: _Events) -> tuple[Org, list[TransactWrite]]:
        """What was there already, if nothing is changed."""
        now_ms = self._effects.clock_ms()
        settings = merge_org(before.settings, change, now_ms, self._calendar)
        if settings == before.settings:
            return before, []
        org = replace(before, settings=settings, version=before.version + 1, updated_at_ms=now_ms)
        return org, [
            audit_put(org.namespace, events.org_put(before, org)),
            org_put(org, before),
            namespace_active(org.namespace),
        ]

    def _made(
        self, name: str, namespace: Namespace | None, change: OrgChange, events: _Events
    ) -> tuple[Org, NewClient, list[TransactWrite]]:
        """The org and whatever of it is not there. A namespace may be older than its org."""
        now_ms = events.at_ms
        settings = merge_org(None, change, now_ms, self._calendar)
        if namespace is None:
            namespace, first = self._namespaces.creation(name, events.author, events.namespace_event, now_ms)
            root = None
        else:
            first = [namespace_active(namespace.namespace_id)]
            root = self._root_of(namespace)
        namespace_id = namespace.namespace_id
        client = self._credentials.create(namespace_id, name, Role.ORG, now_ms)
        org = Org(name, namespace_id, client.client_id, settings, 1, now_ms, now_ms)
        return (
            org,
            client,
            [
                *first,
                org_put(org, None),
                entity_put(namespace_id, _root_entity(org, root), root),
                *client.writes,
                audit_put(namespace_id, events.org_put(None, org)),
            ],
        )

    def _root_of(self, namespace: Namespace) -> Entity | None:
        item = self._store.get(keys.entity(namespace.namespace_id, namespace.name), consistent=True)
        return None if item is None else entity_of_any_layout(item, namespace.name)

    def _usable(self, path: OrgPath) -> Namespace | None:
        found = self._named(path)
        if found is not None and not found.is_active:
            raise InUse("this org is being purged; its name is free again when that has ended")
        return found

    def _named(self, path: OrgPath) -> Namespace | None:
        found = self._namespaces.find(path.org)
        if found is None or path.namespace not in (None, found.namespace_id):
            return None
        return found

    def _settings_of(self, namespace: Namespace) -> Org | None:
        item = self._store.get(keys.org_settings(namespace.namespace_id), consistent=True)
        return None if item is None else decode_org(item)


def _check_zone(zone: str | Unset | None) -> None:
    if isinstance(zone, str) and zone not in zone_names():
        raise InvalidRequest("timezone", "is not the IANA name of a time zone")


def _root_entity(org: Org, before: Entity | None) -> Entity:
    """At the top. An entity that has the org's id already becomes the root, with what it has."""
    if before is not None:
        moved = replace(before, parent=None, role=EntityRole.ORG)
        return replace(moved, version=before.version + 1, updated_at_ms=org.created_at_ms)
    return Entity(
        entity=org.org,
        name=org.settings.name,
        parent=None,
        cascade=True,
        metadata={},
        version=1,
        created_at_ms=org.created_at_ms,
        updated_at_ms=org.created_at_ms,
        role=EntityRole.ORG,
    )
