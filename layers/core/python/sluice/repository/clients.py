"""Clients: who may log in, for whom, and the hashes of the secrets that open it.

Every change of a client is guarded by the version that was seen, so of two rotations at once one fails.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sluice.core.identity import Role
from sluice.repository import keys
from sluice.repository.requests import TransactWrite
from sluice.repository.shapes import UnknownShape, check_kind, optional_whole, text, whole
from sluice.repository.wire import Item, Value

CLIENT: Final = "client"


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """`expires_at_ms`: None for the newest one, which has no end yet."""

    generation: int
    hash: str = field(repr=False)
    created_at_ms: int
    expires_at_ms: int | None

    def is_valid(self, now_ms: int) -> bool:
        return self.expires_at_ms is None or now_ms < self.expires_at_ms


@dataclass(frozen=True, slots=True)
class Client:
    """`generation`: of its newest secret. `secrets`: the oldest first."""

    client_id: str
    namespace: str
    entity: str
    role: Role
    generation: int
    secrets: tuple[StoredSecret, ...]
    version: int
    created_at_ms: int
    updated_at_ms: int

    def valid_secrets(self, now_ms: int) -> tuple[StoredSecret, ...]:
        return tuple(secret for secret in self.secrets if secret.is_valid(now_ms))


def client_put(client: Client) -> TransactWrite:
    """A new one. Its id may not be taken."""
    return {"Put": {"Item": encode_client(client), "ConditionExpression": "attribute_not_exists(PK)"}}


def client_replace(seen: Client, after: Client) -> TransactWrite:
    condition, values = _as_seen(seen)
    return {
        "Put": {"Item": encode_client(after), "ConditionExpression": condition, "ExpressionAttributeValues": values}
    }


def client_delete(seen: Client) -> TransactWrite:
    condition, values = _as_seen(seen)
    key: Item = {**keys.client(seen.client_id).attributes}
    return {"Delete": {"Key": key, "ConditionExpression": condition, "ExpressionAttributeValues": values}}


def encode_client(client: Client) -> Item:
    key = keys.client(client.client_id)
    return {
        **key.attributes,
        **keys.namespace_index(client.namespace, key),
        "kind": CLIENT,
        "client_id": client.client_id,
        "ns": client.namespace,
        "entity_id": client.entity,
        "role": client.role.value,
        "gen": client.generation,
        "secrets": [_encode_secret(secret) for secret in client.secrets],
        "v": client.version,
        "created_at": client.created_at_ms,
        "updated_at": client.updated_at_ms,
    }


def decode_client(item: Mapping[str, Value]) -> Client:
    check_kind(item, CLIENT)
    secrets = item.get("secrets")
    if not isinstance(secrets, list):
        raise UnknownShape(item, "secrets is not a list")
    return Client(
        client_id=text(item, "client_id"),
        namespace=text(item, "ns"),
        entity=text(item, "entity_id"),
        role=_role(item),
        generation=whole(item, "gen"),
        secrets=tuple(_decode_secret(item, secret) for secret in secrets),
        version=whole(item, "v"),
        created_at_ms=whole(item, "created_at"),
        updated_at_ms=whole(item, "updated_at"),
    )


def _encode_secret(secret: StoredSecret) -> Item:
    encoded: Item = {"gen": secret.generation, "hash": secret.hash, "created_at": secret.created_at_ms}
    if secret.expires_at_ms is not None:
        encoded["expires_at"] = secret.expires_at_ms
    return encoded


def _decode_secret(item: Mapping[str, Value], secret: Value) -> StoredSecret:
    if not isinstance(secret, dict):
        raise UnknownShape(item, "a secret is not a map")
    return StoredSecret(
        generation=whole(secret, "gen"),
        hash=text(secret, "hash"),
        created_at_ms=whole(secret, "created_at"),
        expires_at_ms=optional_whole(secret, "expires_at"),
    )


def _role(item: Mapping[str, Value]) -> Role:
    try:
        return Role(text(item, "role"))
    except ValueError:
        raise UnknownShape(item, "role is not known") from None


def _as_seen(seen: Client) -> tuple[str, dict[str, Value]]:
    return "v = :seen", {":seen": seen.version}
