"""Processes that acquire for real: their own clients, caches and clocks, one table."""

import itertools
import multiprocessing
import secrets
import time
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from queue import Queue
from typing import Any

from botocore.config import Config

from local.engine import Endpoint, dynamodb_client
from sluice.core.errors import Contended, LimitExceeded
from sluice.repository import keys
from sluice.repository.retries import Retries
from sluice.repository.store import DynamoStore
from sluice.services.acquire import Acquire
from sluice.services.chains import AcquireRequest, Chains
from sluice.services.configuration import Configuration
from sluice.services.effects import Effects
from sluice.services.registration import Registrar
from sluice.services.taking import Buckets, build_buckets
from sluice.shell import clock_ms, new_token, run_all, timer_ms
from tests.fakes import CountingMeter
from tests.recording import RecordingStore

NAMESPACE = "ns"
ENTITY = "shared"
RESOURCE = "r"


@dataclass(frozen=True)
class Work:
    """What every process does: so many acquires of one token, or as many as fit into so many seconds."""

    endpoint: Endpoint
    table: str
    attempts: int
    for_ms: int | None = None
    entities: tuple[str, ...] = (ENTITY,)
    """The processes share these in turn."""
    split_every: int | None = None
    """After so many attempts a process splits a shard of its bucket, whichever it chooses."""
    amount: int = 1


@dataclass(frozen=True)
class Report:
    admitted: int
    refused: int
    contended: int
    writes: int
    asked: int
    """Attempts that made a call: a refusal that still stands makes none."""
    least_remaining: int
    first_ms: int
    last_ms: int


def run_processes(work: Work, count: int) -> list[Report]:
    # A fork server has no threads of its own, and imports what all processes need only once.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["boto3", "tests.workers"])
    barrier = context.Barrier(count)
    reports: Any = context.Queue()
    entities = itertools.cycle(work.entities)
    processes = [context.Process(target=_run, args=(work, next(entities), barrier, reports)) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        return [reports.get(timeout=240) for _ in processes]
    finally:
        for process in processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()


def _run(work: Work, entity: str, barrier: Barrier, reports: "Queue[Report]") -> None:
    config = Config(retries={"total_max_attempts": 1, "mode": "standard"}, read_timeout=60)
    client = dynamodb_client(work.endpoint, config)
    meter = CountingMeter()
    retries = Retries(lambda ms: time.sleep(ms / 1000), secrets.randbelow, meter)
    store = RecordingStore(DynamoStore(client, work.table, retries))
    configuration = Configuration(store, clock_ms)
    effects = Effects(clock_ms, secrets.randbelow, new_token, meter)
    buckets = build_buckets(store, configuration, effects, timer_ms)
    chains = Chains(configuration, buckets.memory.images, Registrar(store, configuration, effects))
    service = Acquire(configuration, chains, buckets.taker, run_all, meter)
    # Stored limits: the bucket is the same for everybody, and its configuration is read by everybody.
    request = AcquireRequest(NAMESPACE, entity, RESOURCE, {"rpm": work.amount})
    barrier.wait(timeout=120)
    reports.put(_acquire_all(service, buckets, store, request, work))


def _split_one(buckets: Buckets, request: AcquireRequest) -> None:
    first = keys.bucket(request.namespace, request.entity, request.resource, 0)
    try:
        images, _ = buckets.writer.look_at(first)
    except Contended:
        return
    if images:
        buckets.sharding.relieve(secrets.choice(images))


def _acquire_all(
    service: Acquire, buckets: Buckets, store: RecordingStore, request: AcquireRequest, work: Work
) -> Report:
    admitted = refused = contended = asked = 0
    least_remaining = 0
    first_ms = clock_ms()
    for attempt in range(work.attempts):
        if work.split_every is not None and attempt % work.split_every == work.split_every - 1:
            _split_one(buckets, request)
        if work.for_ms is not None and clock_ms() - first_ms > work.for_ms:
            break
        calls = len(store.calls)
        try:
            admission = service.acquire(request)
        except LimitExceeded:
            refused += 1
        except Contended:
            contended += 1
        else:
            admitted += 1
            least_remaining = min(least_remaining, *(limit.remaining for limit in admission.levels[0].limits))
        asked += len(store.calls) > calls
    writes = sum(1 for call in store.calls if call in {"put", "update"})
    return Report(admitted, refused, contended, writes, asked, least_remaining, first_ms, clock_ms())
