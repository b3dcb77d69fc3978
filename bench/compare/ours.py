"""Sluice, by the services that the function itself calls."""

from collections.abc import Callable
from typing import Final
from unittest import mock

import boto3
from mypy_boto3_dynamodb import DynamoDBClient

from bench.compare.product import NAMESPACE, Answer, Job, Rate
from local.table import create_table
from sluice import shell
from sluice.core.bucket import level_milli
from sluice.core.errors import Contended, LimitExceeded
from sluice.core.limits import Limit, Scope
from sluice.core.signals import Signal
from sluice.repository import keys
from sluice.repository.items import Bucket, decode_bucket
from sluice.services.chains import AcquireRequest
from sluice.services.entities import EntityChange
from sluice.services.holding import Wish

_TABLE: Final = "sluice"
_LEASE_MS: Final = 300_000
_ENVIRONMENT: Final = shell.Environment("bench", _TABLE, 10_000)


class Uncounted:
    """A benchmark reads consumed capacity, not signals."""

    def count(self, signal: Signal, amount: int = 1) -> None:
        pass


class SluiceClient:
    def __init__(self, dynamodb: DynamoDBClient, services: shell.Services) -> None:
        self._dynamodb = dynamodb
        self._services = services

    @property
    def dynamodb(self) -> DynamoDBClient:
        return self._dynamodb

    def put_limits(self, resource: str, limits: dict[str, Rate], entity: str | None = None) -> None:
        ours = {
            name: Limit(rate.capacity, rate.capacity, rate.refill_amount, rate.refill_period_s)
            for name, rate in limits.items()
        }
        self._services.limits.put(NAMESPACE, Scope(entity, resource), ours)

    def put_entity(self, entity: str, parent: str | None = None) -> None:
        self._services.entities.put(NAMESPACE, entity, EntityChange(parent=parent))

    def acquire(self, entity: str, resource: str, consume: dict[str, int]) -> Answer:
        try:
            self._services.holding.acquire(Wish(AcquireRequest(NAMESPACE, entity, resource, consume), None, _LEASE_MS))
        except LimitExceeded:
            return Answer.REFUSED
        except Contended:
            return Answer.CONTENDED
        return Answer.ADMITTED

    def forget_limits(self) -> None:
        self._services.configuration.forget(NAMESPACE)

    def split(self, entity: str, resource: str) -> None:
        for shard in range(self._shard(entity, resource, 0).shard_count):
            if not self._services.sharding.split(self._shard(entity, resource, shard)):
                raise AssertionError(f"shard {shard} was not split")

    def level_milli(self, entity: str, resource: str, limit: str, now_ms: int) -> int:
        found = self._shard(entity, resource, 0).limits[limit]
        return level_milli(found.parameters, found.balance_milli, now_ms)

    def _shard(self, entity: str, resource: str, shard: int) -> Bucket:
        item = self._services.store.get(keys.bucket(NAMESPACE, entity, resource, shard), consistent=True)
        if item is None:
            raise AssertionError(f"{entity} has no shard {shard}")
        return decode_bucket(item)


class Sluice:
    def versions(self) -> dict[str, str]:
        return {"boto3": boto3.__version__}

    def create(self) -> None:
        create_table(shell.make_client(_ENVIRONMENT), _TABLE)

    def connect(self, clock_ms: Callable[[], int] | None = None) -> SluiceClient:
        dynamodb = shell.make_client(_ENVIRONMENT)
        # The shell hands its clock to everything below it, once.
        with mock.patch.object(shell, "clock_ms", clock_ms or shell.clock_ms):
            return SluiceClient(dynamodb, shell.build_services(_ENVIRONMENT, dynamodb, Uncounted()))

    def refill_job(self) -> Job | None:
        """None: refill is never stored, so there is nothing to top up."""
        return None
