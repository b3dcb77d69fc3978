"""Logins: a secret for tokens, a refresh token for newer ones, and the end of either.

A refresh token is good once. Used again, somebody has a copy, and nobody knows who: the whole family ends.
"""

import zlib
from contextlib import suppress
from typing import Final

from sluice.core.errors import Contended, LimitExceeded, TooManyRequests, Unauthorized, Unavailable, WrongCredentials
from sluice.core.identity import Bearer, Claims, Role, TokenType
from sluice.core.limits import Limit
from sluice.core.signals import Signal
from sluice.repository import keys
from sluice.repository.clients import Client, StoredSecret, decode_client
from sluice.repository.namespaces import decode_namespace
from sluice.repository.revocations import family_mark_put, token_mark_put, use_writes
from sluice.repository.store import Committed, Store
from sluice.repository.wire import Item
from sluice.services.acquire import Acquire
from sluice.services.bearers import BearerTerms, is_revoked, mark_keys, standing_keys, standing_of
from sluice.services.chains import AcquireRequest
from sluice.services.client_secrets import ClientSecrets
from sluice.services.credentials import Credentials
from sluice.services.effects import Effects
from sluice.services.tokens import IssuedTokens, Tokens

LOGINS_PER_MINUTE: Final = 30
UNKNOWN_CLIENT_BUCKETS: Final = 16
# No id begins with a dollar sign, so nobody can ask for this bucket but a login.
_CLIENT_PREFIX: Final = "$client:"
_LOGIN: Final = "$login"
_LIMITS: Final = {
    "logins": Limit(
        capacity=LOGINS_PER_MINUTE, burst=LOGINS_PER_MINUTE, refill_amount=LOGINS_PER_MINUTE, refill_period_seconds=60
    )
}


# Looked for in the place of a client that there is not: no namespace has this id.
_NOBODY: Final = Bearer("", "-", "-", Role.APP, 0)


class Logins:
    def __init__(
        self,
        store: Store,
        credentials: Credentials,
        client_secrets: ClientSecrets,
        tokens: Tokens,
        acquire: Acquire,
        effects: Effects,
    ) -> None:
        self._store = store
        self._credentials = credentials
        self._client_secrets = client_secrets
        self._tokens = tokens
        self._acquire = acquire
        self._effects = effects

    def log_in(self, client_id: str, client_secret: str) -> IssuedTokens:
        """Takes the same steps for a client that there is not: whoever asks must not learn which there are."""
        client = self._credentials.find(client_id)
        items = self._read(standing_keys(_NOBODY if client is None else _of(client)))
        # Nothing is counted in a namespace that goes: it might come after the purge has looked.
        self._throttle(client_id, None if client is None or _is_gone(_of(client), items) else client)
        now_ms = self._effects.clock_ms()
        secrets = () if client is None else client.valid_secrets(now_ms)
        found = self._client_secrets.find(client_secret, [secret.hash for secret in secrets])
        if client is None or found is None:
            raise self._wrong()
        bearer = _bearer(client, secrets[found])
        self._require_standing(bearer, items)
        with suppress(Contended, Unavailable):
            self._credentials.renew_hash(client, secrets[found], client_secret)
        return self._issue(bearer, None, now_ms)

    def refresh(self, token: str) -> IssuedTokens:
        # Before the transaction: what is revoked after it was revoked after these were issued.
        now_ms = self._effects.clock_ms()
        try:
            claims = self._tokens.read(token, TokenType.REFRESH, now_ms)
        except Unauthorized:
            raise WrongCredentials from None
        bearer = claims.bearer
        client_key = keys.client(bearer.client_id)
        items = self._read([client_key, *mark_keys(claims), *standing_keys(bearer)])
        if _is_gone(bearer, items):
            # All its tokens are worth nothing already, and a mark might come after the purge has looked for marks.
            raise self._wrong()
        if keys.revoked_token(claims.token_id) in items:
            raise self._reused(claims)
        if is_revoked(claims, items) or not _secret_stands(bearer, items.get(client_key), now_ms):
            raise self._wrong()
        self._require_standing(bearer, items)
        outcome = self._store.transact(use_writes(claims, now_ms), self._effects.new_token())
        if isinstance(outcome, Committed):
            return self._issue(bearer, claims.family, now_ms)
        if outcome.failures[0] is not None:
            raise self._reused(claims)
        raise self._wrong()

    def revoke(self, claims: Claims, token: str) -> None:
        """Ends a token that the caller may end, a refresh token with its family. Says nothing about any other."""
        now_ms = self._effects.clock_ms()
        named = self._tokens.find(token, now_ms)
        if named is None or not _may_end(claims.bearer, named.bearer):
            return
        is_refresh = named.token_type is TokenType.REFRESH
        mark = family_mark_put(named, now_ms) if is_refresh else token_mark_put(named, now_ms)
        self._store.put(mark, repeatable=True)
        self._effects.meter.count(Signal.TOKENS_REVOKED)

    def _throttle(self, client_id: str, client: Client | None) -> None:
        """Clients that there are not share a few buckets: else a stranger could fill the table with them."""
        if client is None:
            bucket = zlib.crc32(client_id.encode("utf-8", "surrogatepass")) % UNKNOWN_CLIENT_BUCKETS
            namespace, name = keys.REGISTRY_NAMESPACE, f"unknown-{bucket}"
        else:
            namespace, name = client.namespace, client.client_id
        request = AcquireRequest(namespace, _CLIENT_PREFIX + name, _LOGIN, {"logins": 1}, _LIMITS)
        try:
            admission = self._acquire.acquire(request)
        except LimitExceeded as refused:
            self._effects.meter.count(Signal.LOGINS_THROTTLED)
            raise TooManyRequests(refused.retry_after_ms) from None
        if admission.degraded:
            # Whatever the namespace says about its traffic: a login is administration.
            raise Unavailable("the table does not answer")

    def _read(self, wanted: list[keys.Key]) -> dict[keys.Key, Item]:
        return {keys.key_of(item): item for item in self._store.batch_get(wanted, consistent=True)}

    def _require_standing(self, bearer: Bearer, items: dict[keys.Key, Item]) -> None:
        standing = standing_of(bearer, items)
        if isinstance(standing, BearerTerms):
            return
        self._effects.meter.count(Signal.TOKENS_REFUSED)
        raise WrongCredentials if standing is Unauthorized else standing

    def _issue(self, bearer: Bearer, family: str | None, now_ms: int) -> IssuedTokens:
        issued = self._tokens.issue(bearer, family, now_ms)
        self._effects.meter.count(Signal.TOKENS_ISSUED)
        return issued

    def _reused(self, claims: Claims) -> WrongCredentials:
        """Put before the answer leaves: until then the copy may still be of use."""
        self._store.put(family_mark_put(claims, self._effects.clock_ms()), repeatable=True)
        self._effects.meter.count(Signal.TOKENS_REVOKED)
        return self._wrong()

    def _wrong(self) -> WrongCredentials:
        self._effects.meter.count(Signal.TOKENS_REFUSED)
        return WrongCredentials()


def _of(client: Client, secret_generation: int = 0) -> Bearer:
    return Bearer(client.client_id, client.namespace, client.entity, client.role, secret_generation)


def _bearer(client: Client, secret: StoredSecret) -> Bearer:
    return _of(client, secret.generation)


def _secret_stands(bearer: Bearer, item: Item | None, now_ms: int) -> bool:
    """The client is there, for the same bearer, and the secret that the token was opened with is still valid."""
    client = None if item is None else decode_client(item)
    return client is not None and any(_bearer(client, secret) == bearer for secret in client.valid_secrets(now_ms))


def _is_gone(bearer: Bearer, items: dict[keys.Key, Item]) -> bool:
    namespace = items.get(keys.namespace_by_id(bearer.namespace))
    return namespace is None or not decode_namespace(namespace).is_active


def _may_end(caller: Bearer, named: Bearer) -> bool:
    if caller.namespace != named.namespace:
        return False
    return caller.role is Role.ORG or caller.client_id == named.client_id
