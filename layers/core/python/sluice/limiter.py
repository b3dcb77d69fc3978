"""Sluice as a library: a program with access to the table limits itself, without HTTP in between.

    limiter = Limiter(table="sluice", namespace="acme")
    with limiter.acquire("user-1", "gpt-4", rpm=1, tpm=500) as lease:
        answer = call_the_model()
        lease.adjust(tpm=answer.tokens - 500)

Leaving the block normally keeps what was taken; an exception gives it back. A refusal is a LimitExceeded with the time
at which to come again. A Limiter is safe to share between threads, and one per process is best: it remembers limits
and buckets.
"""

import re
from collections import Counter
from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from sluice.core.errors import InvalidRequest
from sluice.core.limits import AMOUNT_MAX, LIMITS_MAX
from sluice.core.signals import Signal
from sluice.services.chains import AcquireRequest
from sluice.services.held import HeldLease
from sluice.shell import Environment, build_services, make_client

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

__all__ = ["HeldLease", "Limiter", "SignalCounts"]

STORE_TIMEOUT_MS: Final = 2_000
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}")


class SignalCounts:
    """How often each signal was given since the start. Safe to share between threads."""

    def __init__(self) -> None:
        self._counts: Counter[Signal] = Counter()
        self._lock = Lock()

    def count(self, signal: Signal, amount: int = 1) -> None:
        with self._lock:
            self._counts[signal] += amount

    def taken(self) -> dict[Signal, int]:
        """The counts since this was last asked, for whoever hands them on to a metrics system."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return dict(counts)


class Limiter:
    """`client`: a DynamoDB client of one's own. It must make one attempt per call, else a write may happen twice."""

    def __init__(self, *, table: str, namespace: str, client: "DynamoDBClient | None" = None) -> None:
        self._namespace = _checked_id("namespace", namespace)
        environment = Environment("library", table, STORE_TIMEOUT_MS)
        if client is None:
            client = make_client(environment)
        elif not _sends_once(client):
            raise ValueError('the client must be made with retries={"total_max_attempts": 1}')
        self.signals = SignalCounts()
        self._services = build_services(environment, client, self.signals)

    def acquire(
        self, entity: str, resource: str, consume: Mapping[str, int] | None = None, **amounts: int
    ) -> HeldLease:
        """Takes from every named limit of the entity and of everyone above it, or raises and takes nothing.

        `consume`: the amounts as a mapping, for limits whose names are no Python names or are taken here.
        """
        consume = {**(consume or {}), **amounts}
        if not 1 <= len(consume) <= LIMITS_MAX:
            raise InvalidRequest("consume", f"names 1 to {LIMITS_MAX} limits")
        for name, amount in consume.items():
            if type(amount) is not int or not 0 <= amount <= AMOUNT_MAX:
                raise InvalidRequest(f"consume.{name}", f"is a whole number from 0 to {AMOUNT_MAX}")
        request = AcquireRequest(
            self._namespace, _checked_id("entity", entity), _checked_id("resource", resource), consume
        )
        return self._services.leases.hold(self._services.acquire.acquire(request))


def _sends_once(client: "DynamoDBClient") -> bool:
    config: Any = client.meta.config
    return (config.retries or {}).get("total_max_attempts") == 1


def _checked_id(field: str, value: str) -> str:
    if not _ID.fullmatch(value):
        raise InvalidRequest(field, "is not an id")
    return value
