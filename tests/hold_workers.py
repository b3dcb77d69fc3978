"""Processes that hold for real: their own clients and caches, one table, and one instant for all of them."""

import multiprocessing
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from queue import Queue
from typing import Any

from botocore.config import Config

from local.engine import Endpoint, dynamodb_client
from sluice.core.errors import BudgetExceeded, Contended
from sluice.repository.retries import Retries
from sluice.repository.store import DynamoStore
from tests.fakes import CountingMeter, FakeClock
from tests.integration.holding_desks import HoldDesk


@dataclass(frozen=True)
class HoldWork:
    """What every process asks for, again and again, without taking from a bucket."""

    endpoint: Endpoint
    table: str
    cost_usd_micros: int
    now_ms: int


@dataclass(frozen=True)
class HoldReport:
    admitted: int
    refused: int
    contended: int


def run_hold_processes(work: HoldWork, attempts: Sequence[int]) -> list[HoldReport]:
    """One process for each number of attempts. What was contended is tried again until it is decided."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["boto3", "tests.hold_workers"])
    barrier = context.Barrier(len(attempts))
    reports: Any = context.Queue()
    processes = [context.Process(target=_run, args=(work, count, barrier, reports)) for count in attempts]
    for process in processes:
        process.start()
    try:
        return [reports.get(timeout=240) for _ in processes]
    finally:
        for process in processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()


def _run(work: HoldWork, attempts: int, barrier: Barrier, reports: "Queue[HoldReport]") -> None:
    config = Config(retries={"total_max_attempts": 1, "mode": "standard"}, read_timeout=60)
    client = dynamodb_client(work.endpoint, config)
    retries = Retries(lambda ms: time.sleep(ms / 1000), secrets.randbelow, CountingMeter())
    desk = HoldDesk.opened(DynamoStore(client, work.table, retries), FakeClock(work.now_ms))
    barrier.wait(timeout=120)
    reports.put(_hold_all(desk, work, attempts))


def _hold_all(desk: HoldDesk, work: HoldWork, attempts: int) -> HoldReport:
    admitted = refused = contended = 0
    while admitted + refused < attempts:
        try:
            desk.take(work.cost_usd_micros, consume={})
        except BudgetExceeded:
            refused += 1
        except Contended as error:
            contended += 1
            time.sleep(error.retry_after_ms / 1000)
        else:
            admitted += 1
    return HoldReport(admitted, refused, contended)
