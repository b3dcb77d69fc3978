"""One process of one product: reads requests as lines of JSON, does them, and answers each with a line of JSON.

python -m bench.compare.worker ours|theirs
"""

import importlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

from bench.compare import measures
from bench.compare.meter import BillingMeter
from bench.compare.product import Client, Job, Product

_PRODUCTS: Final = {"ours": ("bench.compare.ours", "Sluice"), "theirs": ("bench.compare.theirs", "ZaeLimiter")}
# Long enough for all processes to have heard of it.
_START_S: Final = 0.3


class Worker:
    def __init__(self, product: Product) -> None:
        self._product = product
        self._warm: Client | None = None
        self._crowd: list[Connection] = []

    def set_up(self, *, rate_per_s: int, busy_burst: int) -> dict[str, str]:
        self._product.create()
        measures.put_shared(self._product, rate_per_s=rate_per_s, busy_burst=busy_burst)
        return self._product.versions()

    def costs(self) -> dict[str, dict[str, Any]]:
        return measures.Costs(self._product).measure()

    def cpu(self, *, entity: str, operations: int) -> float:
        return measures.cpu_us(self._warmed(entity), entity, operations)

    def splits(self, *, capacity: int) -> int:
        return measures.admitted_over_two_splits(self._product.connect(), capacity)

    def slow_refill(self, *, seconds: int) -> int:
        return measures.slow_refill_milli(self._product, seconds)

    def start_crowd(self, *, size: int) -> None:
        """Before this process has a client or a thread: neither can be shared."""
        context = multiprocessing.get_context("fork")
        for number in range(size):
            here, there = context.Pipe()
            context.Process(target=_serve, args=(self._product, number, there), daemon=True).start()
            there.close()  # so that the death of a client ends the wait for its answer
            self._crowd.append(here)
        self._ask_all(size, "warm", {})

    def throughput(self, *, clients: int, seconds: float) -> float:
        """Acquires per second, each client on a bucket of its own."""
        done = self._ask_all(clients, "throughput", {"start_s": time.time() + _START_S, "seconds": seconds})
        return float(sum(done) / seconds)

    def has_refill_job(self) -> bool:
        return self._product.refill_job() is not None

    def busy(self, *, with_job: bool, **demand: Any) -> dict[str, Any]:
        """Clients on one bucket, beside the job that refills it."""
        job = self._product.refill_job() if with_job else None
        if job is None:
            return {**self.contend(**demand, steady=True), "job": None}
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        context.Process(target=_work, args=(job, there), daemon=True).start()
        there.close()
        here.recv()
        answer = self.contend(**demand, steady=True)
        here.send("stop")
        return {**answer, "job": here.recv()}

    def contend(
        self,
        *,
        entity: str,
        clients: int,
        per_s: float,
        seconds: float,
        drain: int,
        seed: int,
        steady: bool = False,
    ) -> dict[str, Any]:
        """So many clients on one bucket, of which so much was taken at the start. `steady`: each has used it since."""
        crowd = self._crowd[:clients]
        bucket = {"entity": entity, "resource": "busy" if steady else "contended"}
        for number in range(clients):
            self._ask(number, "touch", bucket)
        drained_s = self._ask(0, "drain", {**bucket, "amount": drain})
        if steady:
            for number in range(clients):
                self._ask(number, "touch", bucket)
        common = {
            **bucket,
            "per_s": per_s / clients,
            "start_s": time.time() + _START_S,
            "seconds": seconds,
        }
        for number, client in enumerate(crowd):
            client.send(("contend", {**common, "seed": seed * 100 + number}))
        parts = [client.recv() for client in crowd]
        return {
            "drained_s": drained_s,
            "attempts": sorted(attempt for part in parts for attempt in part["attempts"]),
            **{name: sum(part[name] for part in parts) for name in ("asked", "writes", "write_units")},
        }

    def _warmed(self, entity: str) -> Client:
        if self._warm is None:
            self._warm = self._product.connect()
        for _ in range(2):
            self._warm.acquire(entity, "endless", measures.CONSUME)
        return self._warm

    def _ask(self, number: int, do: str, arguments: dict[str, Any]) -> Any:
        self._crowd[number].send((do, arguments))
        return self._crowd[number].recv()

    def _ask_all(self, clients: int, do: str, arguments: dict[str, Any]) -> list[Any]:
        for client in self._crowd[:clients]:
            client.send((do, arguments))
        return [client.recv() for client in self._crowd[:clients]]


class CrowdClient:
    """One of many clients, in a process of its own."""

    def __init__(self, product: Product, number: int) -> None:
        self._entity = f"client-{number:02}"
        self._client = product.connect()
        # Where writes are counted nobody measures time, and the other way round.
        self._counted = product.connect()
        self._meter = BillingMeter(self._counted.dynamodb)

    def warm(self) -> None:
        for _ in range(2):
            self._client.acquire(self._entity, "endless", measures.CONSUME)

    def throughput(self, *, start_s: float, seconds: float) -> int:
        return measures.throughput(self._client, self._entity, start_s, seconds)

    def touch(self, *, entity: str, resource: str) -> None:
        self._counted.acquire(entity, resource, {"rps": 1})

    def drain(self, *, entity: str, resource: str, amount: int) -> float:
        """The time, once so much was taken."""
        time.sleep(1)  # full again
        self._counted.acquire(entity, resource, {"rps": amount})
        return time.time()

    def contend(self, **demand: Any) -> dict[str, Any]:
        return measures.contend(self._counted, self._meter, measures.Demand(**demand))


def _serve(product: Product, number: int, requests: Connection) -> None:
    client = CrowdClient(product, number)
    while True:
        try:
            do, arguments = requests.recv()
        except EOFError:
            return
        requests.send(getattr(client, do)(**arguments))


def _work(job: Job, owner: Connection) -> None:
    # What a function logs for each batch would bury the progress of the run.
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    job.run(owner)


def main() -> None:
    module, name = _PRODUCTS[sys.argv[1]]
    make: Callable[[], Product] = getattr(importlib.import_module(module), name)
    worker = Worker(make())
    # Whatever a product prints must not end up among the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        answer = getattr(worker, request.pop("do"))(**request)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
