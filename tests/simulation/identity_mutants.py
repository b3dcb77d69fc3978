"""Holes in identity, opened again."""

from collections.abc import Sequence
from typing import Any, Final
from unittest.mock import patch

from sluice.core.identity import SECRETS_MAX
from sluice.repository.clients import client_replace
from sluice.repository.requests import TransactWrite
from sluice.repository.revocations import client_mark_put, use_writes
from sluice.repository.store import Committed, TransactOutcome
from sluice.services import bearers, credentials, logins
from sluice.services.credentials import Credentials
from sluice.services.logins import Logins
from sluice.services.purge import Purge
from tests.simulation.hole import Mutant
from tests.simulation.paths import Path, path_of_transaction
from tests.simulation.store import SimulatedStore

_client_mark_put = client_mark_put
_client_replace = client_replace
_end_writes = Credentials.end_writes
_remove_partition = Purge._remove_partition
_rotated = credentials._rotated
_transact = SimulatedStore.transact
_use_writes = use_writes


def _knows_no_reuse(self: Logins, _claims: Any) -> Any:
    return self._wrong()


def _uses_again(*arguments: Any) -> Any:
    mark, *checks = _use_writes(*arguments)
    return [{"Put": {"Item": mark["Put"]["Item"]}}, *checks]


def _rotates_over_others(*arguments: Any) -> Any:
    write = _client_replace(*arguments)
    return {"Put": {"Item": write["Put"]["Item"]}}


def _marks_no_generation(namespace: str, client_id: str, _min_generation: int, now_ms: int) -> Any:
    return _client_mark_put(namespace, client_id, 0, now_ms)


def _leaves_the_registry(self: Purge, namespace: str, pk: str, found: Any) -> tuple[int, bool]:
    return (0, True) if pk.startswith("_/") else _remove_partition(self, namespace, pk, found)


def _makes_clients_later(self: SimulatedStore, writes: Sequence[TransactWrite], token: str) -> TransactOutcome:
    """The org first, then its client, each in a transaction of its own."""
    if path_of_transaction(writes) is not Path.ORG:
        return _transact(self, writes, token)
    clients = [write for write in writes if "Put" in write and write["Put"]["Item"].get("kind") == "client"]
    outcome = _transact(self, [write for write in writes if write not in clients], token)
    return _transact(self, clients, f"{token}-2") if isinstance(outcome, Committed) else outcome


def _rotates_without_grace(seen: Any, new_hash: str, _grace_hours: int, now_ms: int) -> Any:
    return _rotated(seen, new_hash, 0, now_ms)


IDENTITIES: Final = (
    Mutant("a reuse is only refused", "identity", lambda: patch.object(Logins, "_reused", _knows_no_reuse)),
    Mutant("a token is used up twice", "identity", lambda: patch.object(logins, "use_writes", _uses_again), 2_000),
    Mutant(
        "a rotation overwrites another",
        "identity",
        lambda: patch.object(credentials, "client_replace", _rotates_over_others),
        2_000,
    ),
    Mutant("bearers stand for ten minutes", "identity", lambda: patch.object(bearers, "CACHE_MS", 600_000)),
    Mutant(
        "no grace ends no token", "identity", lambda: patch.object(credentials, "client_mark_put", _marks_no_generation)
    ),
    Mutant("grace is forgotten", "identity", lambda: patch.object(credentials, "_rotated", _rotates_without_grace)),
    Mutant("one secret too many", "identity", lambda: patch.object(credentials, "SECRETS_MAX", SECRETS_MAX + 1), 2_000),
    Mutant(
        "a secret's tokens outlive it",
        "identity",
        lambda: patch.object(logins, "_secret_stands", lambda *_arguments: True),
    ),
    Mutant(
        "a purge leaves clients",
        "provisioning",
        lambda: patch.object(Purge, "_remove_partition", _leaves_the_registry),
    ),
    Mutant(
        "an org before its client",
        "provisioning",
        lambda: patch.object(SimulatedStore, "transact", _makes_clients_later),
    ),
    Mutant(
        "a removed app's client stays",
        "provisioning",
        lambda: patch.object(Credentials, "end_writes", lambda self, client: _end_writes(self, client)[1:]),
    ),
    Mutant(
        "a removed app's tokens stay",
        "provisioning",
        lambda: patch.object(Credentials, "end_writes", lambda self, client: _end_writes(self, client)[:1]),
        2_000,
    ),
    Mutant(
        "a login opens what is purged",
        "provisioning",
        lambda: patch.object(Logins, "_require_standing", lambda *_arguments: None),
    ),
)
