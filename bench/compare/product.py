"""What both products are asked to do, and what for. Runs in either virtual environment: the standard library only."""

import os
from collections.abc import Callable
from enum import Enum
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple, Protocol

NAMESPACE: Final = "ns"


class Rate(NamedTuple):
    """One limit. The burst is the capacity."""

    capacity: int
    refill_amount: int
    refill_period_s: int


class Answer(Enum):
    ADMITTED = "admitted"
    REFUSED = "refused"
    CONTENDED = "contended"
    """Refused although nothing says that the tokens are not there."""


class BotoClient(Protocol):
    meta: Any


class Client(Protocol):
    """One process, as far as connections and caches go."""

    @property
    def dynamodb(self) -> BotoClient: ...

    def put_limits(self, resource: str, limits: dict[str, Rate], entity: str | None = None) -> None: ...

    def put_entity(self, entity: str, parent: str | None = None) -> None:
        """With a parent, what it takes is taken from the parent as well."""

    def acquire(self, entity: str, resource: str, consume: dict[str, int]) -> Answer: ...

    def forget_limits(self) -> None:
        """As after a minute."""

    def split(self, entity: str, resource: str) -> None:
        """Doubles the shards of a bucket, as the product itself does when one is hot."""

    def level_milli(self, entity: str, resource: str, limit: str, now_ms: int) -> int: ...


class Job(Protocol):
    def run(self, owner: Connection) -> None:
        """In a process of its own: sends a word once it works, and what it wrote when it is sent one."""


class Product(Protocol):
    def versions(self) -> dict[str, str]: ...

    def create(self) -> None:
        """The table and the namespace, once."""

    def connect(self, clock_ms: Callable[[], int] | None = None) -> Client: ...

    def refill_job(self) -> Job | None:
        """What has to run beside the clients so that a busy bucket is refilled, if anything has to."""


def engine_url() -> str:
    return os.environ["AWS_ENDPOINT_URL"]
