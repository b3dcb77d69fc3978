"""A process that provisions orgs and apps, with a clock that a test moves."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mypy_boto3_dynamodb import DynamoDBClient

from sluice.repository import keys
from sluice.repository.audit import AuditEvent, audit_query, decode_audit_event
from sluice.repository.items import Entity, decode_entity
from sluice.repository.wire import Item
from sluice.services.apps import Apps
from sluice.services.client_secrets import ClientSecrets
from sluice.services.configuration import Configuration
from sluice.services.credentials import Credentials
from sluice.services.cursors import Cursors
from sluice.services.entities import Entities
from sluice.services.limits import Limits
from sluice.services.listing import Lists
from sluice.services.orgs import Orgs
from sluice.services.signing import Signer
from tests.fakes import FakeClock
from tests.integration.tenants import Process, start_process
from tests.recording import RecordingStore
from tests.tenancy import FixedKeys


@dataclass
class Provider:
    process: Process
    secrets: ClientSecrets
    credentials: Credentials
    orgs: Orgs
    apps: Apps
    lists: Lists
    entities: Entities
    limits: Limits

    @property
    def store(self) -> RecordingStore:
        return self.process.store

    def find(self, key: keys.Key) -> Item | None:
        return self.store.inner.get(key, consistent=True)

    def entity(self, namespace: str, entity_id: str) -> Entity | None:
        item = self.find(keys.entity(namespace, entity_id))
        return None if item is None else decode_entity(item)

    def opens(self, client_id: str, secret: str) -> bool:
        """Whether the secret is one that the client has now."""
        client = self.credentials.find(client_id)
        return client is not None and self.secrets.find(secret, [one.hash for one in client.secrets]) is not None

    def kinds(self, kind: str) -> list[Item]:
        page = self.store.inner.scan({"ConsistentRead": True})
        assert page.next_start is None
        return [item for item in page.items if item.get("kind") == kind]

    def audit(self, namespace: str, subject: str) -> list[AuditEvent]:
        """The newest first."""
        return [decode_audit_event(item) for item in self.store.inner.query(audit_query(namespace, subject)).items]


def start_provider(client: DynamoDBClient, table: str, clock: FakeClock) -> Provider:
    process = start_process(client, table, clock)
    store, effects = process.store, process.effects
    secrets = ClientSecrets(FixedKeys(), effects.random_below)
    credentials = Credentials(store, secrets, effects)
    configuration = Configuration(store, clock)
    lists = Lists(store, Cursors(Signer(FixedKeys())))
    orgs = Orgs(store, process.namespaces, credentials, configuration, effects)
    return Provider(
        process=process,
        secrets=secrets,
        credentials=credentials,
        orgs=orgs,
        apps=Apps(store, orgs, credentials, lists, configuration, effects),
        lists=lists,
        entities=Entities(store, configuration, clock, effects.random_below, effects.new_token),
        limits=Limits(store, configuration, clock, effects.random_below, effects.new_token),
    )


def meanwhile(provider: Provider, act: Callable[[], object], *, at: int = 1) -> None:
    """Acts once, right before the transaction with this number is sent."""
    left = at

    def interfere(verb: str, _request: Any) -> None:
        nonlocal left
        if verb == "transact":
            left -= 1
            if left == 0:
                provider.store.before = None
                act()

    provider.store.before = interfere
