"""Tenants for tests that are not about how a tenant comes to be: its first items, and tokens for it."""

from collections.abc import Iterator

from sluice.core.identity import Bearer, Role
from sluice.core.orgs import AppSettings, EntityRole, OrgSettings
from sluice.repository.entities import entity_put
from sluice.repository.items import Entity
from sluice.repository.namespaces import Namespace, NamespaceState, create_writes
from sluice.repository.orgs import App, Org, app_put, org_put
from sluice.repository.requests import TransactWrite
from sluice.repository.wire import Item
from sluice.services.signing import SigningKeys
from sluice.services.tokens import Tokens

KEY = "k" * 64
OPERATOR_KEY = "o" * 64
MADE_AT_MS = 1_700_000_000_000


class FixedKeys:
    """One key that never rotates."""

    def __init__(self, key: str = KEY) -> None:
        self._keys = SigningKeys(key.encode())

    def known(self) -> SigningKeys:
        return self._keys

    looked_up = known


def tenant_items(namespace: str, org: str, *apps: str, settings: OrgSettings | None = None) -> Iterator[Item]:
    """What a namespace has once its org and apps were put."""
    record = Namespace(org, namespace, NamespaceState.ACTIVE, None, MADE_AT_MS, MADE_AT_MS)
    stored = Org(org, namespace, f"client-{org}", settings or OrgSettings(), 1, MADE_AT_MS, MADE_AT_MS)
    writes: list[TransactWrite] = [*create_writes(record), org_put(stored, None)]
    writes.append(entity_put(namespace, _entity(org, None, EntityRole.ORG), None))
    for app in apps:
        made = App(app, namespace, f"client-{app}", AppSettings(), 1, MADE_AT_MS, MADE_AT_MS)
        writes.append(app_put(made, None))
        writes.append(entity_put(namespace, _entity(app, org, EntityRole.APP), None))
    return (write["Put"]["Item"] for write in writes)


def access_token(
    environment: str, namespace: str, entity: str, role: Role = Role.ORG, *, now_ms: int, key: str = KEY
) -> str:
    ids = iter(("family", f"token-of-{namespace}-{entity}", "refresh"))
    tokens = Tokens(FixedKeys(key), f"sluice-{environment}", lambda: next(ids))
    bearer = Bearer(f"client-{entity}", namespace, entity, role, 1)
    return tokens.issue(bearer, None, now_ms).access_token


def _entity(entity: str, parent: str | None, role: EntityRole) -> Entity:
    return Entity(
        entity=entity,
        name=None,
        parent=parent,
        cascade=True,
        metadata={},
        version=1,
        created_at_ms=MADE_AT_MS,
        updated_at_ms=MADE_AT_MS,
        role=role,
    )
