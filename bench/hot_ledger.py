"""How many holds one ledger takes, with ever more processes after it: `make hot-ledger`.

Every acquire takes from no bucket, so the ledger of one entity is all that they share. Holds per second are those of
this machine and its engines. Conflicts are tries that met another transaction, as on AWS they may; ministack has none.
"""

import multiprocessing
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from queue import Queue
from typing import Any, Final

from botocore.config import Config

from bench.costs import Uncounted
from bench.usage import USER, put_org
from local.engine import Endpoint, Engine, dynamodb_client
from local.reference import ReferenceEngine, available
from local.table import create_table
from sluice.core.audit import BY_SYSTEM
from sluice.core.budget import Dimension, Enforcement, OwnBudget, Slot, Span
from sluice.core.errors import Contended
from sluice.core.orgs import QuotaScope
from sluice.core.reserves import AmountReserve
from sluice.core.signals import Meter, Signal
from sluice.repository import budget_keys
from sluice.repository.ledger_items import decode_ledger
from sluice.services.chains import AcquireRequest
from sluice.services.holding import Wish
from sluice.shell import Environment, Services, build_services

PROCESSES: Final = (1, 4, 16)
SECONDS: Final = 5.0
COST_USD_MICROS: Final = 10
_TABLE: Final = "hot-ledger"
_READY_SECONDS: Final = 120


@dataclass(frozen=True)
class Report:
    """`contended`: acquires that gave up. `conflicts`: tries that met another transaction."""

    holds: int
    contended: int
    conflicts: int


class Conflicts(Meter):
    def __init__(self) -> None:
        self.counted: Counter[Signal] = Counter()

    def count(self, signal: Signal, amount: int = 1) -> None:
        self.counted[signal] += amount


def main() -> None:
    with Engine() as engine:
        _show("ministack", engine.endpoint)
    if available():
        with ReferenceEngine() as reference:
            _show("DynamoDB Local", reference.endpoint)


def _show(name: str, endpoint: Endpoint) -> None:
    print(f"| {name:14} | holds/s | conflicts per hold | gave up per hold |")
    print(f"|{'-' * 16}|{'-' * 8}:|{'-' * 19}:|{'-' * 17}:|")
    client = dynamodb_client(endpoint)
    create_table(client, _TABLE)
    services = build_services(_environment(), client, Uncounted())
    for processes in PROCESSES:
        namespace = f"hot-{processes}"
        _found(services, namespace)
        reports = run(endpoint, namespace, processes)
        holds = sum(report.holds for report in reports)
        _check(services, namespace, holds)
        conflicts = sum(report.conflicts for report in reports) / holds
        contended = sum(report.contended for report in reports) / holds
        row = f"{holds / SECONDS:7.0f} | {conflicts:18.2f} | {contended:16.2f}"
        print(f"| {processes:2} process(es) | {row} |", flush=True)


def _environment() -> Environment:
    return Environment("bench", _TABLE, 60_000)


def _found(services: Services, namespace: str) -> None:
    """A hard budget that is never reached."""
    put_org(services, namespace, QuotaScope.APP)
    budget = OwnBudget({Slot(Span.DAY, Dimension.COST): 10**15}, Enforcement.HARD)
    services.money.budgets.put(namespace, USER, budget, author=BY_SYSTEM)


def _check(services: Services, namespace: str, holds: int) -> None:
    item = services.store.get(budget_keys.ledger(namespace, USER), consistent=True)
    held = None if item is None else decode_ledger(item).standing.held.cost_usd_micros
    if held != holds * COST_USD_MICROS:
        raise AssertionError(f"{holds} holds were told, and {held} micro-dollars are held")


def run(endpoint: Endpoint, namespace: str, processes: int) -> Sequence[Report]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["boto3", "bench.costs"])
    barrier = context.Barrier(processes)
    reports: Any = context.Queue()
    started = [context.Process(target=_hold, args=(endpoint, namespace, barrier, reports)) for _ in range(processes)]
    for process in started:
        process.start()
    try:
        return [reports.get(timeout=_READY_SECONDS) for _ in started]
    finally:
        for process in started:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()


def _hold(endpoint: Endpoint, namespace: str, barrier: Barrier, reports: "Queue[Report]") -> None:
    client = dynamodb_client(endpoint, Config(retries={"total_max_attempts": 1, "mode": "standard"}, read_timeout=60))
    meter = Conflicts()
    services = build_services(_environment(), client, meter)
    wish = Wish(AcquireRequest(namespace, USER, "gpt-4", {}), AmountReserve(COST_USD_MICROS, None), 300_000)
    # What is read once is read before the clock runs.
    services.hold_explain.explain(wish)
    holds = contended = 0
    barrier.wait(timeout=_READY_SECONDS)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        try:
            services.holding.acquire(wish)
        except Contended as error:
            contended += 1
            time.sleep(error.retry_after_ms / 1000)
        else:
            holds += 1
    reports.put(Report(holds, contended, meter.counted[Signal.STORE_CONFLICTS]))


if __name__ == "__main__":
    main()
