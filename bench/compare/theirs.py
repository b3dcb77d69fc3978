"""zae-limiter, by its synchronous API as its documentation recommends it: speculative writes on, its caches on.

Its package is not installed where this file is checked, so what is used of it is written down as protocols.
"""

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from typing import Any, Final, Protocol, cast

from bench.compare.product import NAMESPACE, Answer, BotoClient, Job, Rate, engine_url
from bench.compare.refill import RefillJob

_STACK: Final = "zae-limiter"  # also the name of its table
_REGION: Final = "us-east-1"
# Whom its audit trail names. Without one it asks STS, which the engine may not have.
_PRINCIPAL: Final = "bench"


class _State(Protocol):
    limit_name: str
    tokens_milli: int
    last_refill_ms: int
    capacity_milli: int
    refill_amount_milli: int
    refill_period_ms: int
    shard_count: int


class _Repository(Protocol):
    _now_ms: Callable[[], int]

    def create_table(self) -> None: ...

    def get_buckets(self, entity_id: str, resource: str) -> list[_State]: ...

    def bump_shard_count(self, entity_id: str, resource: str, current_count: int) -> int: ...

    def invalidate_config_cache(self) -> None: ...

    def _get_client(self) -> BotoClient: ...


class _Limiter(Protocol):
    def acquire(self, entity_id: str, resource: str, consume: dict[str, int]) -> AbstractContextManager[object]: ...

    def create_entity(self, entity_id: str, *, parent_id: str | None, cascade: bool, principal: str) -> object: ...

    def set_limits(self, entity_id: str, limits: list[object], resource: str, *, principal: str) -> None: ...

    def set_resource_defaults(self, resource: str, limits: list[object], *, principal: str) -> None: ...


class _RateLimitExceeded(Exception):
    contended: bool


class _Library(Protocol):
    RateLimitExceeded: type[_RateLimitExceeded]
    Limit: Any
    SyncRepository: Any

    def SyncRateLimiter(self, repository: _Repository) -> _Limiter: ...  # noqa: N802 - the library's own name


class ZaeClient:
    def __init__(self, library: _Library, repository: _Repository) -> None:
        self._library = library
        self._repository = repository
        self._limiter = library.SyncRateLimiter(repository=repository)
        self._exceeded = library.RateLimitExceeded

    @property
    def dynamodb(self) -> BotoClient:
        return self._repository._get_client()  # noqa: SLF001 - it has no other way to its client

    def put_limits(self, resource: str, limits: dict[str, Rate], entity: str | None = None) -> None:
        theirs = [
            self._library.Limit.custom(name, rate.capacity, rate.refill_amount, rate.refill_period_s)
            for name, rate in limits.items()
        ]
        if entity is None:
            self._limiter.set_resource_defaults(resource, theirs, principal=_PRINCIPAL)
        else:
            self._limiter.set_limits(entity, theirs, resource, principal=_PRINCIPAL)

    def put_entity(self, entity: str, parent: str | None = None) -> None:
        self._limiter.create_entity(entity, parent_id=parent, cascade=parent is not None, principal=_PRINCIPAL)

    def acquire(self, entity: str, resource: str, consume: dict[str, int]) -> Answer:
        try:
            with self._limiter.acquire(entity, resource, consume):
                pass
        except self._exceeded as refusal:
            return Answer.CONTENDED if refusal.contended else Answer.REFUSED
        return Answer.ADMITTED

    def forget_limits(self) -> None:
        self._repository.invalidate_config_cache()

    def split(self, entity: str, resource: str) -> None:
        """What its client calls once the reserved limit `wcu` of a bucket is used up."""
        count = max(state.shard_count for state in self._repository.get_buckets(entity, resource))
        if self._repository.bump_shard_count(entity, resource, count) != 2 * count:
            raise AssertionError("the shards were not doubled")

    def level_milli(self, entity: str, resource: str, limit: str, now_ms: int) -> int:
        refill = importlib.import_module("zae_limiter.bucket").refill_bucket
        (state,) = (state for state in self._repository.get_buckets(entity, resource) if state.limit_name == limit)
        refilled = refill(
            state.tokens_milli,
            state.last_refill_ms,
            now_ms,
            state.capacity_milli,
            state.refill_amount_milli,
            state.refill_period_ms,
        )
        return int(refilled.new_tokens_milli)


class ZaeLimiter:
    def __init__(self) -> None:
        self._library = cast(_Library, importlib.import_module("zae_limiter"))

    def versions(self) -> dict[str, str]:
        return {"zae-limiter": version("zae-limiter"), "boto3": version("boto3")}

    def create(self) -> None:
        """Its own table definition with the TTL of its stack, and then what its `open` adds to an empty table."""
        where = {"region": _REGION, "endpoint_url": engine_url()}
        repository = self._library.SyncRepository(_STACK, **where, _skip_deprecation_warning=True)
        repository.create_table()
        ttl = {"Enabled": True, "AttributeName": "ttl"}
        repository._get_client().update_time_to_live(TableName=_STACK, TimeToLiveSpecification=ttl)  # noqa: SLF001
        with _without_retries():
            self._library.SyncRepository.open(NAMESPACE, stack=_STACK, **where)

    def connect(self, clock_ms: Callable[[], int] | None = None) -> ZaeClient:
        repository: _Repository = self._library.SyncRepository.connect(
            NAMESPACE, stack=_STACK, region=_REGION, endpoint_url=engine_url()
        )
        if clock_ms is not None:
            repository._now_ms = clock_ms  # noqa: SLF001 - what its documentation says to replace
        return ZaeClient(self._library, repository)

    def refill_job(self) -> Job | None:
        return RefillJob(_STACK)


@contextmanager
def _without_retries() -> Iterator[None]:
    """`open` looks for its functions, and an engine without Lambda answers that with errors."""
    os.environ["AWS_MAX_ATTEMPTS"] = "1"
    try:
        yield
    finally:
        del os.environ["AWS_MAX_ATTEMPTS"]
