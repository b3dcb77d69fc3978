"""The run: workers of both products on one engine, in turns."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.compare.figures import Busy, Contention, Measured, Refill
from local import ROOT
from local.engine import SECRET_KEY, Endpoint
from local.process import LocalError

OURS: Final = "ours"
THEIRS: Final = "theirs"
_THEIR_PYTHON: Final = ROOT / ".engine" / "compare" / "bin" / "python"

CLIENTS: Final = 16
RATE_PER_S: Final = 40
DRAINED: Final = 36
DEMANDS: Final = (0.7, 1.0, 1.5)
SPLIT_CAPACITY: Final = 1000
# A refill that comes every hundred records finds room in it, and is sent only while less than a batch of them is left.
# At this demand an exact bucket neither fills up nor runs dry meanwhile; a stored balance does run dry.
BUSY_BURST: Final = 10 * RATE_PER_S
BUSY_LEFT: Final = 60
BUSY_DEMAND: Final = 0.95


@dataclass(frozen=True)
class Plan:
    cpu_rounds: int
    cpu_operations: int
    throughput_rounds: int
    throughput_s: float
    contention_rounds: int
    contention_s: float
    busy_s: float
    slow_refill_s: int


FULL: Final = Plan(
    cpu_rounds=20,
    cpu_operations=40,
    throughput_rounds=8,
    throughput_s=0.8,
    contention_rounds=2,
    contention_s=6.0,
    busy_s=20.0,
    slow_refill_s=1080,
)
QUICK: Final = Plan(
    cpu_rounds=5,
    cpu_operations=20,
    throughput_rounds=2,
    throughput_s=0.8,
    contention_rounds=1,
    contention_s=2.0,
    busy_s=8.0,
    slow_refill_s=180,
)


class WorkerProcess:
    """A worker at the other end of a pipe."""

    def __init__(self, product: str, python: Path, environment: dict[str, str]) -> None:
        self._product = product
        self._process = subprocess.Popen(
            [str(python), "-m", "bench.compare.worker", product],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def ask(self, do: str, **arguments: Any) -> Any:
        requests, answers = self._process.stdin, self._process.stdout
        if requests is None or answers is None:
            raise AssertionError("started without pipes")
        try:
            requests.write(json.dumps({"do": do, **arguments}) + "\n")
            requests.flush()
            return json.loads(answers.readline())
        except (BrokenPipeError, json.JSONDecodeError) as error:
            raise LocalError(f"the worker of {self._product} failed at {do}") from error

    def stop(self) -> None:
        """With the clients that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


class Comparison:
    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        self.measured = {OURS: Measured(), THEIRS: Measured()}

    def run(self, endpoint: Endpoint) -> None:
        with _workers(endpoint) as alone, _workers(endpoint) as crowds:
            for product, worker in alone.items():
                self.measured[product].versions = worker.ask("set_up", rate_per_s=RATE_PER_S, busy_burst=BUSY_BURST)
            self._say("calls and units")
            for product, worker in alone.items():
                self.measured[product].costs = worker.ask("costs")
            self._measure_cpu(alone)
            self._say("splits")
            for product, worker in alone.items():
                self.measured[product].admitted = worker.ask("splits", capacity=SPLIT_CAPACITY)
            self._say("slow refill")
            for product, worker in alone.items():
                self.measured[product].slow_milli = worker.ask("slow_refill", seconds=self._plan.slow_refill_s)
            for worker in crowds.values():
                worker.ask("start_crowd", size=CLIENTS)
            self._measure_throughput(crowds)
            self._measure_contention(crowds)
            self._measure_busy(crowds)

    def _measure_cpu(self, workers: dict[str, WorkerProcess]) -> None:
        self._say("client CPU")
        for name, entity in (("warm acquire", "user"), ("warm acquire, chain of two", "app")):
            for _ in range(self._plan.cpu_rounds):
                for product, worker in workers.items():
                    taken = worker.ask("cpu", entity=entity, operations=self._plan.cpu_operations)
                    self.measured[product].cpu_us.setdefault(name, []).append(taken)

    def _measure_throughput(self, workers: dict[str, WorkerProcess]) -> None:
        self._say("throughput")
        for clients in (1, CLIENTS):
            for _ in range(self._plan.throughput_rounds):
                for product, worker in workers.items():
                    per_s = worker.ask("throughput", clients=clients, seconds=self._plan.throughput_s)
                    self.measured[product].acquires_per_s.setdefault(clients, []).append(per_s)

    def _measure_contention(self, workers: dict[str, WorkerProcess]) -> None:
        for demand in DEMANDS:
            self._say(f"{CLIENTS} processes on one bucket at {demand} times its rate")
            for number in range(self._plan.contention_rounds):
                for product, worker in workers.items():
                    found = self._contend(worker, demand, number)
                    by_demand = self.measured[product].contention
                    by_demand[demand] = by_demand[demand] + found if demand in by_demand else found

    def _contend(self, worker: WorkerProcess, demand: float, number: int) -> Contention:
        per_s, seconds = demand * RATE_PER_S, self._plan.contention_s
        entity = f"shared-{demand}-{number}"
        demanded = {"per_s": per_s, "seconds": seconds, "drain": DRAINED, "seed": number}
        answer = worker.ask("contend", entity=entity, clients=CLIENTS, **demanded)
        level = RATE_PER_S - DRAINED
        return Contention.of(answer, planned=per_s * seconds, rate_per_s=RATE_PER_S, level=level)

    def _measure_busy(self, workers: dict[str, WorkerProcess]) -> None:
        for clients in (1, CLIENTS):
            self._say(f"a busy bucket from {clients} {'process' if clients == 1 else 'processes'}, refill jobs running")
            for product, worker in workers.items():
                measured = self.measured[product]
                measured.busy[clients] = self._busy(worker, clients, with_job=True)
                if worker.ask("has_refill_job"):
                    measured.busy_alone[clients] = self._busy(worker, clients, with_job=False)

    def _busy(self, worker: WorkerProcess, clients: int, *, with_job: bool) -> Busy:
        per_s = BUSY_DEMAND * RATE_PER_S
        demanded = {"per_s": per_s, "seconds": self._plan.busy_s, "drain": BUSY_BURST - BUSY_LEFT, "seed": clients}
        entity = f"busy-{clients}-{with_job}"
        answer = worker.ask("busy", entity=entity, clients=clients, with_job=with_job, **demanded)
        found = Contention.of(
            answer,
            planned=per_s * self._plan.busy_s,
            rate_per_s=RATE_PER_S,
            level=BUSY_LEFT - clients,  # each has seen it by taking one
            burst=BUSY_BURST,
        )
        return Busy(found, Refill.of(answer["job"]))


@contextmanager
def _workers(endpoint: Endpoint) -> Iterator[dict[str, WorkerProcess]]:
    """One of each product. They see nothing of the person's own settings and keys."""
    if not _THEIR_PYTHON.exists():
        raise LocalError("zae-limiter is not installed; `make compare` installs it")
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "AWS_ENDPOINT_URL": endpoint.endpoint_url,
        "AWS_DEFAULT_REGION": endpoint.region,
        "AWS_ACCESS_KEY_ID": endpoint.access_key,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "POWERTOOLS_SERVICE_NAME": "bench",
    }
    ours_path = os.pathsep.join([str(ROOT), str(ROOT / "layers" / "core" / "python")])
    with ExitStack() as started:
        workers: dict[str, WorkerProcess] = {}
        for product, python, path in (
            (OURS, Path(sys.executable), ours_path),
            (THEIRS, _THEIR_PYTHON, str(ROOT)),
        ):
            workers[product] = WorkerProcess(product, python, {**environment, "PYTHONPATH": path})
            started.callback(workers[product].stop)
        yield workers
