"""A process that runs jobs and keeps the registry, with a clock that a test moves."""

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.audit import Author
from sluice.repository import keys
from sluice.repository.jobs import Job
from sluice.repository.namespaces import Namespace, NamespaceState, create_writes
from sluice.repository.retries import Retries
from sluice.repository.store import DynamoStore
from sluice.repository.wire import Item, item_to_wire
from sluice.services.effects import Effects
from sluice.services.jobs import Jobs, Run, Step, Work
from sluice.services.namespaces import Namespaces
from sluice.services.purge import PURGE, Purge
from sluice.shell import _random_below, new_token
from tests.fakes import CountingMeter, FakeClock
from tests.recording import RecordingStore

OPERATOR = Author("operator", "request-7")
Raw = dict[tuple[str, str], Any]


class Crash(BaseException):
    """The process ends here: nothing of the product may catch it."""


@dataclass
class Process:
    store: RecordingStore
    effects: Effects
    jobs: Jobs
    namespaces: Namespaces
    meter: CountingMeter
    clock: FakeClock

    def run(self, kinds: Mapping[str, Work] | None = None, *, steps: int = 100_000) -> Run:
        """As one scheduled run does, for so many steps."""
        left = steps

        def out_of_time() -> bool:
            nonlocal left
            left -= 1
            return left < 0

        return self.jobs.run_open({PURGE: Purge(self.store, self.effects)} if kinds is None else kinds, out_of_time)


@dataclass
class Counting:
    """Counts to `until`, one a step, and remembers what it was called with."""

    until: int = 3
    seen: list[Mapping[str, Any] | None] = field(default_factory=list)
    during: Callable[[Job], object] | None = None

    def step(self, job: Job) -> Step:
        self.seen.append(job.cursor)
        if self.during is not None:
            self.during(job)
        at = 0 if job.cursor is None else int(str(job.cursor["at"]))
        if at + 1 == self.until:
            return Step(1, None, self.until, {"counted": self.until})
        return Step(1, {"at": at + 1}, self.until, None)


def start_process(client: DynamoDBClient, table: str, clock: FakeClock) -> Process:
    meter = CountingMeter()
    store = RecordingStore(DynamoStore(client, table, Retries(lambda _ms: None, _random_below, meter)))
    effects = Effects(clock, _random_below, new_token, meter)
    jobs = Jobs(store, effects)
    return Process(store, effects, jobs, Namespaces(store, jobs, effects, clock), meter, clock)


def raw_items(client: DynamoDBClient, table: str) -> Raw:
    """Every item of the table as it is on the wire, by key."""
    found: Raw = {}
    for page in client.get_paginator("scan").paginate(TableName=table, ConsistentRead=True):
        for item in page["Items"]:
            found[item["PK"]["S"], item["SK"]["S"]] = item
    return found


def put_items(client: DynamoDBClient, table: str, namespace: str, each: int) -> int:
    """Puts so many items of every kind into a namespace and answers how many there are."""
    items = list(items_of(namespace, each))
    for start in range(0, len(items), 25):
        requests: Any = [{"PutRequest": {"Item": item_to_wire(one)}} for one in items[start : start + 25]]
        answer = client.batch_write_item(RequestItems={table: requests})
        assert not answer["UnprocessedItems"]
    return len(items)


def items_of(namespace: str, each: int) -> Iterator[Item]:
    """By the design's table of items, also those that no code writes yet: (partition, sort key, in GSI4)."""
    own = keys.encode(namespace)
    for number in range(each):
        for partition, sort_key, indexed in (
            (f"{own}/SYSTEM#", f"#LABEL#{number}", True),
            (f"{own}/RESOURCE#r{number}", "#CONFIG", True),
            (f"{own}/ENTITY#e{number}", "#META", True),
            (f"{own}/ENTITY#e{number}", "#CONFIG#r", True),
            (f"{own}/ENTITY#e{number}", "#APP", True),
            (f"{own}/ENTITY#e{number}", "#PROFILE#l", True),
            (f"{own}/ENTITY#e{number}", "#USAGE#r#hour#1", True),
            (f"{own}/BUCKET#e{number}#r#0", "#STATE", True),
            (f"{own}/BUCKET#e{number}#r!lh#0", "#STATE", True),
            (f"{own}/AUDIT#e", f"#AUDIT#{number}", True),
            (f"{own}/TOTAL#e", f"#DAY#{number}#l", True),
            (f"{own}/BUDGET#e{number}", "#LEDGER#0", True),
            (f"{own}/JOB#j{number}", "#STATE", True),
            (f"{own}/PRICE#m{number}", "#2026-11-18", False),
            (f"{own}/LEASE#l{number}", "#STATE", False),
            (f"{own}/LEASE#l{number}", "#HOLD", False),
            (f"{own}/IDEMPOTENCY#e#{number}", "#ANSWER", False),
            (f"{own}/EVENT#e#20261118#{number % 16}", f"#EVENT#{number}", False),
            (f"{own}/COST#a#l#{number}", "#DAY#20261118", False),
            (f"{own}/STICKY#e{number}", "#DAY#20261118", False),
            (f"{own}/BUDGET#e{number}", "#ALERT#d#c#80#1", False),
        ):
            yield item(namespace, partition, sort_key, indexed=indexed)
        # The registry keeps these about a namespace.
        label = zlib.crc32(f"{namespace}{number}".encode())
        yield item(namespace, f"_/CLIENT#{label}", "#CREDENTIALS", indexed=True)
        yield item(namespace, f"_/TOKEN#{label}", "#REVOKED", indexed=True)


def item(namespace: str, partition: str, sort_key: str, *, indexed: bool) -> Item:
    key = keys.Key(partition, sort_key)
    index = keys.namespace_index(namespace, key) if indexed else {}
    return {**key.attributes, **index, "kind": "test", "about": namespace, "payload": ["x", 1, {"y": None}]}


def register(process: Process, name: str, namespace_id: str) -> None:
    """A namespace with an id that nobody would draw."""
    now_ms = process.clock.now_ms
    made = Namespace(name, namespace_id, NamespaceState.ACTIVE, None, now_ms, now_ms)
    process.store.transact(create_writes(made), process.effects.new_token())


def about(namespace_id: str, items: Raw) -> Raw:
    """Whatever of it is there, the job apart."""
    prefix = f"{keys.encode(namespace_id)}/"
    return {
        key: found
        for key, found in items.items()
        if key[0].startswith(prefix) or {"S": namespace_id} in (found.get("about"), found.get("ns"))
        if found["kind"] != {"S": "job"} or key[0].startswith(prefix)
    }


def without_jobs(items: Raw) -> Raw:
    return {key: found for key, found in items.items() if found["kind"] != {"S": "job"}}
