"""Apps: an entity below the org's root with settings and credentials of its own, made and removed with them.

What an app does not set is the org's, field by field, and quotas label by label.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sluice.core.audit import Action, Author
from sluice.core.backoff import contended_wait_ms
from sluice.core.errors import Contended, IdTaken, NotFound, PreconditionFailed
from sluice.core.identity import Role
from sluice.core.orgs import AppChange, EffectiveSettings, EntityRole, effective_settings, merge_app
from sluice.repository import keys
from sluice.repository.audit import AuditEvent, audit_put, audit_query
from sluice.repository.clients import client_put
from sluice.repository.entities import entity_put
from sluice.repository.items import Entity
from sluice.repository.orgs import (
    App,
    Org,
    app_delete,
    app_put,
    client_mark_put_back,
    decode_app,
    namespace_active,
    settings_image,
)
from sluice.repository.requests import TransactWrite
from sluice.repository.sticky import forget, latest_query
from sluice.repository.store import Committed, Store
from sluice.services.configuration import Configuration
from sluice.services.credentials import Credentials, NewClient, Rotated
from sluice.services.effects import Effects
from sluice.services.listing import Listed, Lists, PageRequest
from sluice.services.orgs import OrgPath, Orgs
from sluice.services.removal import Company, Removal

_WRITE_ROUNDS: Final = 4

AppPrecondition = Callable[[App | None], bool]


def any_app(_app: App | None) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class AppOfOrg:
    """`client_secret`: only of an app that was made by this call. Nobody can read it again."""

    app: App
    org: Org
    client_secret: str | None = field(default=None, repr=False)

    @property
    def created(self) -> bool:
        return self.client_secret is not None

    @property
    def effective(self) -> EffectiveSettings:
        return effective_settings(self.org.settings, self.app.settings)


class Apps:
    def __init__(
        self,
        store: Store,
        orgs: Orgs,
        credentials: Credentials,
        lists: Lists,
        configuration: Configuration,
        effects: Effects,
    ) -> None:
        self._store = store
        self._orgs = orgs
        self._credentials = credentials
        self._lists = lists
        self._configuration = configuration
        self._effects = effects
        self._removal = Removal(store, effects.clock_ms, effects.random_below, effects.new_token)

    def get(self, path: OrgPath, app_id: str) -> AppOfOrg:
        org = self._orgs.get(path)
        app = self._find(org.namespace, app_id)
        if app is None:
            raise _no_such_app()
        return AppOfOrg(app, org)

    def list(self, path: OrgPath, page: PageRequest) -> Listed[AppOfOrg]:
        org = self._orgs.get(path)
        listed = self._lists.apps(org.namespace, page)
        return Listed(tuple(AppOfOrg(app, org) for app in listed.items), listed.next_cursor)

    def put(
        self,
        path: OrgPath,
        app_id: str,
        change: AppChange,
        precondition: AppPrecondition = any_app,
        *,
        author: Author,
    ) -> AppOfOrg:
        """Merges what was sent into what is stored, or makes the app."""
        event_id, at_ms = self._effects.new_token(), self._effects.clock_ms()
        tried: dict[str, str] = {}
        for _ in range(_WRITE_ROUNDS):
            org = self._orgs.get(path)
            before = self._find(org.namespace, app_id)
            if before is not None and before.client_id in tried:
                # An earlier try was applied after all.
                return AppOfOrg(before, org, tried[before.client_id])
            if not precondition(before):
                raise PreconditionFailed("the stored version is another one")
            settings = merge_app(org.settings, None if before is None else before.settings, change)
            if before is not None:
                if settings == before.settings:
                    return AppOfOrg(before, org)
                now_ms = self._effects.clock_ms()
                app = replace(before, settings=settings, version=before.version + 1, updated_at_ms=now_ms)
                secret, writes = None, [app_put(app, before)]
            else:
                client = self._credentials.create(org.namespace, app_id, Role.APP, at_ms)
                app = App(app_id, org.namespace, client.client_id, settings, 1, at_ms, at_ms)
                secret, writes = client.client_secret, [*self._made(org, app, client)]
                tried[client.client_id] = client.client_secret
            event = AuditEvent(
                event_id=event_id,
                subject=app_id,
                at_ms=at_ms,
                author=author,
                action=Action.APP_PUT,
                target=_target(org, app_id),
                before=None if before is None else settings_image(before),
                after=settings_image(app),
            )
            writes += [audit_put(org.namespace, event), namespace_active(org.namespace)]
            if isinstance(self._store.transact(writes, self._effects.new_token()), Committed):
                self._configuration.forget(org.namespace)
                return AppOfOrg(app, org, secret)
            # Another was faster, or an id is taken, or the purge has begun.
        raise Contended(contended_wait_ms(self._effects.random_below))

    def delete(self, path: OrgPath, app_id: str, precondition: AppPrecondition = any_app, *, author: Author) -> None:
        """Removes the app with its entity, limits, budget, buckets and credentials. Its tokens end within a minute.

        One that broke off is ended by the next: the app is gone then, and what is left of it is removed.
        """
        org = self._orgs.get(path)
        app = self._find(org.namespace, app_id)
        if app is None and not (precondition(None) and self._was_deleted(org.namespace, app_id)):
            raise _no_such_app()
        try:
            self._removal.remove(
                org.namespace,
                app_id,
                lambda _entity: True,
                author,
                lambda _entity: self._company(org, app_id, precondition),
            )
        except NotFound:
            raise _no_such_app() from None
        finally:
            self._configuration.forget(org.namespace)

    def rotate(self, path: OrgPath, app_id: str, grace_hours: int, *, author: Author) -> Rotated:
        app = self.get(path, app_id).app
        return self._credentials.rotate(app.client_id, app_id, grace_hours, author)

    def _made(self, org: Org, app: App, client: NewClient) -> Sequence[TransactWrite]:
        if self._store.get(keys.entity(org.namespace, app.app), consistent=True) is not None:
            raise IdTaken("an entity that is not an app has this id")
        entity = Entity(
            entity=app.app,
            name=app.settings.name,
            parent=org.org,
            cascade=True,
            metadata={},
            version=1,
            created_at_ms=app.created_at_ms,
            updated_at_ms=app.created_at_ms,
            role=EntityRole.APP,
        )
        # Where the selection of an earlier app stood, and what somebody set for that one, is not this one's.
        earlier = self._store.query(latest_query(org.namespace, app.app)).items
        forgotten = [forget(keys.key_of(item)) for item in earlier]
        return [entity_put(org.namespace, entity, None), app_put(app, None), *client.writes, *forgotten]

    def _company(self, org: Org, app_id: str, precondition: AppPrecondition) -> Company:
        """What goes with the app's entity. An entity without settings of an app is none."""
        app = self._find(org.namespace, app_id)
        if app is None:
            raise _no_such_app()
        if not precondition(app):
            raise PreconditionFailed("the stored version is another one")
        removed, put_back = [app_delete(app)], [app_put(app, None)]
        client = self._credentials.find(app.client_id)
        if client is not None:
            mark = self._store.get(keys.revoked_client(app.client_id), consistent=True)
            removed += self._credentials.end_writes(client)
            put_back += [client_put(client), client_mark_put_back(app.client_id, mark)]
        return Company(
            deleted=Action.APP_DELETE,
            put=Action.APP_PUT,
            target=_target(org, app_id),
            image=settings_image(app),
            removed=removed,
            put_back=put_back,
        )

    def _was_deleted(self, namespace: str, app_id: str) -> bool:
        """By the audit: what is left under an id that never was an app's is not an app's."""
        request = audit_query(namespace, app_id)
        page = self._store.query(request)
        while not any(item.get("action") == Action.APP_DELETE for item in page.items):
            if page.next_start is None:
                return False
            page = self._store.query({**request, "ExclusiveStartKey": page.next_start})
        return True

    def _find(self, namespace: str, app_id: str) -> App | None:
        item = self._store.get(keys.app_settings(namespace, app_id), consistent=True)
        return None if item is None else decode_app(item)


def _target(org: Org, app_id: str) -> str:
    return f"orgs/{org.org}/apps/{app_id}"


def _no_such_app() -> NotFound:
    return NotFound("there is no such app")
