"""Credentials: clients are made, found, rotated and ended here. A secret is shown once and stored as its hash."""

import string
from dataclasses import dataclass, field, replace
from typing import Final

from sluice.core.audit import Action, Author
from sluice.core.backoff import contended_wait_ms
from sluice.core.errors import Contended, NotFound, RotationConflict
from sluice.core.identity import SECRETS_MAX, Role
from sluice.repository import keys
from sluice.repository.audit import AuditEvent, Image, audit_put
from sluice.repository.clients import (
    Client,
    StoredSecret,
    client_delete,
    client_put,
    client_replace,
    decode_client,
)
from sluice.repository.requests import TransactWrite
from sluice.repository.revocations import client_mark_put
from sluice.repository.store import Committed, Store
from sluice.services.client_secrets import ClientSecrets
from sluice.services.effects import Effects

CLIENT_ID_LENGTH: Final = 20
HOUR_MS: Final = 3600 * 1000
_ALPHABET: Final = string.ascii_letters + string.digits
_WRITE_ROUNDS: Final = 4


@dataclass(frozen=True, slots=True)
class NewClient:
    """`writes`: what makes it, not sent yet. Its id may turn out to be taken: then another one is drawn."""

    client_id: str
    client_secret: str = field(repr=False)
    writes: list[TransactWrite] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Rotated:
    """`old_secret_expires_at_ms`: when the secret that was the newest before ends."""

    client_id: str
    client_secret: str = field(repr=False)
    old_secret_expires_at_ms: int


class Credentials:
    def __init__(self, store: Store, client_secrets: ClientSecrets, effects: Effects) -> None:
        self._store = store
        self._client_secrets = client_secrets
        self._effects = effects

    def create(self, namespace: str, entity: str, role: Role, now_ms: int) -> NewClient:
        """For the caller's own transaction: a client exists exactly as long as what it is for."""
        secret = self._client_secrets.draw()
        stored = StoredSecret(1, self._client_secrets.hash(secret), now_ms, None)
        client = Client(
            client_id=self._new_id(),
            namespace=namespace,
            entity=entity,
            role=role,
            generation=1,
            secrets=(stored,),
            version=1,
            created_at_ms=now_ms,
            updated_at_ms=now_ms,
        )
        return NewClient(client.client_id, secret, [client_put(client)])

    def find(self, client_id: str) -> Client | None:
        item = self._store.get(keys.client(client_id), consistent=True)
        return None if item is None else decode_client(item)

    def rotate(self, client_id: str, subject_entity: str, grace_hours: int, author: Author) -> Rotated:
        """A new secret. The one before keeps working for the grace, older ones until their own end.

        Without grace every older secret ends, and every token that was opened with one.
        """
        generation: int | None = None
        for _ in range(_WRITE_ROUNDS):
            seen = self.find(client_id)
            if seen is None:
                raise NotFound("there is no such client")
            if generation is not None and seen.generation != generation:
                raise RotationConflict("the credentials were rotated meanwhile")
            generation = seen.generation
            now_ms = self._effects.clock_ms()
            secret = self._client_secrets.draw()
            after = _rotated(seen, self._client_secrets.hash(secret), grace_hours, now_ms)
            event = AuditEvent(
                event_id=self._effects.new_token(),
                subject=subject_entity,
                at_ms=now_ms,
                author=author,
                action=Action.CREDENTIALS_ROTATE,
                target=f"clients/{client_id}",
                before=_image(seen),
                after=_image(after),
            )
            writes = [audit_put(seen.namespace, event), client_replace(seen, after)]
            if grace_hours == 0:
                writes.append(client_mark_put(seen.namespace, client_id, after.generation, now_ms))
            if isinstance(self._store.transact(writes, self._effects.new_token()), Committed):
                return Rotated(client_id, secret, now_ms + grace_hours * HOUR_MS)
            # Another rotation, or a login that renewed a hash: the generation tells.
        raise Contended(contended_wait_ms(self._effects.random_below))

    def end_writes(self, client: Client) -> list[TransactWrite]:
        """For the caller's own transaction: nobody logs in any more, and every token of the client ends."""
        now_ms = self._effects.clock_ms()
        mark = client_mark_put(client.namespace, client.client_id, client.generation + 1, now_ms)
        return [client_delete(client), mark]

    def renew_hash(self, seen: Client, stored: StoredSecret, secret: str) -> None:
        """Once a key is rotated, hashes of the older one are replaced as their secrets come by.

        Left undone where somebody else changed the client: the next login comes by as well.
        """
        if self._client_secrets.is_current(stored.hash):
            return
        renewed = replace(stored, hash=self._client_secrets.hash(secret))
        secrets = tuple(renewed if one is stored else one for one in seen.secrets)
        after = replace(seen, secrets=secrets, version=seen.version + 1, updated_at_ms=self._effects.clock_ms())
        self._store.transact([client_replace(seen, after)], self._effects.new_token())

    def _new_id(self) -> str:
        return "".join(_ALPHABET[self._effects.random_below(len(_ALPHABET))] for _ in range(CLIENT_ID_LENGTH))


def _rotated(seen: Client, new_hash: str, grace_hours: int, now_ms: int) -> Client:
    ends_at_ms = now_ms + grace_hours * HOUR_MS
    kept = tuple(
        replace(secret, expires_at_ms=ends_at_ms) if secret.expires_at_ms is None else secret
        for secret in seen.valid_secrets(now_ms)
        if grace_hours > 0
    )
    if len(kept) == SECRETS_MAX:
        raise RotationConflict(f"{SECRETS_MAX} secrets are still valid; one must end first, or all with no grace")
    generation = seen.generation + 1
    return replace(
        seen,
        generation=generation,
        secrets=(*kept, StoredSecret(generation, new_hash, now_ms, None)),
        version=seen.version + 1,
        updated_at_ms=now_ms,
    )


def _image(client: Client) -> Image:
    """Which secrets there were and until when, never their hashes."""
    return {
        "client_id": client.client_id,
        "generation": client.generation,
        "secrets": [
            {"generation": secret.generation, "expires_at_ms": secret.expires_at_ms} for secret in client.secrets
        ],
    }
