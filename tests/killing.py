"""Processes that are killed in the middle of their work, and the history that they leave.

Each writes down what it is about to ask before it asks, and the answer before it goes on, with one system call each: a
process that is gone has said everything it knew. Its successor reads that and takes up what was left open: it asks
again under the same Idempotency-Key, and closes leases that were perhaps closed already, in the same way or in another.
"""

import json
import multiprocessing
import os
import secrets
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Any, Final

from botocore.config import Config

from local.engine import Endpoint, dynamodb_client
from sluice.core.errors import Contended, LeaseClosed, LimitExceeded, Unavailable
from sluice.core.lease import LEASE_MAX_MS, Lease, LeaseMember, Share
from sluice.repository import keys
from sluice.repository.idempotency import IdempotencyKey
from sluice.repository.retries import Retries
from sluice.repository.store import DynamoStore
from sluice.services.acquire import Acquire
from sluice.services.chains import AcquireRequest, Chains
from sluice.services.configuration import Configuration
from sluice.services.corrections import Corrections
from sluice.services.effects import Effects
from sluice.services.idempotency import IdempotentAcquire
from sluice.services.leases import Leases
from sluice.services.registration import Registrar
from sluice.services.taking import build_buckets
from sluice.services.together import Together
from sluice.shell import clock_ms, new_token, run_all, timer_ms
from tests.fakes import CountingMeter

NAMESPACE: Final = "ns"
RESOURCE: Final = "r"
SHARED: Final = "shared"
WIDE: Final = "wide"
LEASED: Final = "leased"
TEAM: Final = "team"
CHILDREN: Final = ("child-0", "child-1", "child-2")
STOP: Final = "stop"
STOP_S: Final = 60


@dataclass(frozen=True)
class Task:
    endpoint: Endpoint
    table: str
    folder: Path
    seed: int
    name: str
    incarnation: int = 0

    @property
    def history(self) -> Path:
        return self.folder / f"{self.name}-{self.incarnation}.history"

    @property
    def died_of(self) -> Path:
        return self.folder / f"{self.name}-{self.incarnation}.error"


@dataclass
class Event:
    """A request and, unless the process was killed on the way, its answer."""

    id: str
    verb: str
    entity: str
    amount: int
    sent_ms: int
    more: Mapping[str, Any]
    answer: str | None = None
    answered_ms: int | None = None
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_admitted(self) -> bool:
        return self.answer == "done"

    @property
    def is_open(self) -> bool:
        """Nobody knows what came of it."""
        return self.answer is None or self.answer == Unavailable.__name__


def read_history(path: Path) -> list[Event]:
    """What one process did, in its order. Only the last line may be cut."""
    events: dict[str, Event] = {}
    for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
        if not line.endswith("\n"):
            break
        written = json.loads(line)
        if "verb" in written:
            events[written["id"]] = Event(**written)
        else:
            event = events[written["id"]]
            event.answer, event.answered_ms, event.result = written["answer"], written["at_ms"], written["result"]
    return list(events.values())


class Crew:
    """Workers, of whom one is killed now and then and replaced at once."""

    def __init__(self, task: Task, count: int) -> None:
        # A fork server has no threads of its own, and imports what all processes need only once.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["boto3", "tests.killing"])
        self._random = Random(f"{task.seed} crew")
        self._folder = task.folder
        self._workers: list[tuple[Task, BaseProcess]] = []
        self.kills = 0
        for number in range(count):
            self._workers.append(self._start(replace(task, name=f"{task.name}-{number}")))

    def kill_one(self) -> None:
        number = self._random.randrange(len(self._workers))
        task, process = self._workers[number]
        self._must_live(task, process)
        process.kill()
        process.join()
        if process.exitcode != -signal.SIGKILL:
            raise AssertionError(f"{task.name} was gone before: {process.exitcode}")
        self.kills += 1
        self._workers[number] = self._start(replace(task, incarnation=task.incarnation + 1))

    def stop(self) -> None:
        """Everybody ends what it is at."""
        (self._folder / STOP).touch()
        for task, process in self._workers:
            process.join(STOP_S)
            if process.exitcode != 0:
                self._must_live(task, process)
                raise AssertionError(f"{task.name} does not end")

    def end(self) -> None:
        """Whatever happened."""
        for _, process in self._workers:
            if process.is_alive():
                process.kill()
            process.join()

    def _start(self, task: Task) -> tuple[Task, BaseProcess]:
        process = self._context.Process(target=run_worker, args=(task,), daemon=True)
        process.start()
        return task, process

    def _must_live(self, task: Task, process: BaseProcess) -> None:
        if not process.is_alive():
            why = task.died_of.read_text() if task.died_of.exists() else process.exitcode
            raise AssertionError(f"{task.name} died by itself: {why}")


def run_worker(task: Task) -> None:
    try:
        Worker(task).run()
    except BaseException:
        task.died_of.write_text(traceback.format_exc())
        raise


class Worker:
    def __init__(self, task: Task) -> None:
        self.task = task
        self.random = Random(f"{task.seed} {task.name} {task.incarnation}")
        self._fd = os.open(task.history, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._requests = 0
        config = Config(retries={"total_max_attempts": 1, "mode": "standard"}, read_timeout=60)
        client = dynamodb_client(task.endpoint, config)
        meter = CountingMeter()
        store = DynamoStore(client, task.table, Retries(lambda ms: time.sleep(ms / 1000), secrets.randbelow, meter))
        configuration = Configuration(store, timer_ms)
        effects = Effects(clock_ms, secrets.randbelow, new_token, meter)
        self.buckets = build_buckets(store, configuration, effects, timer_ms)
        chains = Chains(configuration, self.buckets.memory.images, Registrar(store, configuration, effects))
        self.service = Acquire(configuration, chains, self.buckets.taker, run_all, meter)
        together = Together(store, self.buckets, effects)
        self.idempotent = IdempotentAcquire(store, self.service, chains, together, effects)
        self.leases = Leases(store, Corrections(store, self.buckets.taker), effects)

    def run(self) -> None:
        if self.task.incarnation:
            self._take_up(read_history(replace(self.task, incarnation=self.task.incarnation - 1).history))
        stop = self.task.folder / STOP
        while not stop.exists():
            self.random.choices(list(STEPS), list(STEPS.values()))[0](self)

    def ask(self, verb: str, entity: str, amount: int, do: Callable[[], Mapping[str, Any]], **more: Any) -> Event:
        """Writes the request, does it, writes the answer. What the product should never raise ends the worker."""
        self._requests += 1
        event = Event(
            f"{self.task.name}-{self.task.incarnation}-{self._requests}", verb, entity, amount, clock_ms(), more
        )
        sent = {"id": event.id, "verb": verb, "entity": entity, "amount": amount, "sent_ms": event.sent_ms}
        self._write({**sent, "more": more})
        try:
            event.result = do()
            event.answer = "done"
        except (Contended, LeaseClosed, LimitExceeded, Unavailable) as error:
            event.answer = Unavailable.__name__ if isinstance(error, Unavailable) else type(error).__name__
        event.answered_ms = clock_ms()
        self._write({"id": event.id, "answer": event.answer, "at_ms": event.answered_ms, "result": event.result})
        return event

    def acquire(self, entity: str, amount: int) -> Event:
        request = AcquireRequest(NAMESPACE, entity, RESOURCE, {"rpm": amount})
        return self.ask("acquire", entity, amount, lambda: _nothing(self.service.acquire(request)))

    def acquire_with_a_key(self, entity: str, amount: int, key: str) -> Event:
        request = AcquireRequest(NAMESPACE, entity, RESOURCE, {"rpm": amount})
        text = f"answer {new_token()}"

        def do() -> Mapping[str, Any]:
            answered = self.idempotent.acquire(request, idempotency_key(key), lambda _admission: text)
            return {"text": answered.text}

        return self.ask("key", entity, amount, do, key=key)

    def take_a_lease(self, entity: str, amount: int) -> Event:
        request = AcquireRequest(NAMESPACE, entity, RESOURCE, {"rpm": amount})

        def do() -> Mapping[str, Any]:
            return {"lease": lease_to_json(self.leases.open(self.service.acquire(request), LEASE_MAX_MS))}

        return self.ask("lease", entity, amount, do)

    def adjust(self, entity: str, lease: Mapping[str, Any], delta: int, key: str) -> Event:
        taken = lease_from_json(lease)
        change = {"rpm": delta}
        return self.ask(
            "adjust",
            entity,
            delta,
            lambda: _nothing(self.leases.adjust(taken, change, key)),
            lease=lease["lease_id"],
            key=key,
        )

    def close(self, entity: str, lease: Mapping[str, Any], actual: int) -> Event:
        """Nothing used: it is released."""
        taken = lease_from_json(lease)

        def do() -> Mapping[str, Any]:
            if actual:
                self.leases.settle(taken, {"rpm": actual})
            else:
                self.leases.release(taken)
            return {}

        return self.ask("close", entity, actual, do, lease=lease["lease_id"])

    def _take_up(self, before: list[Event]) -> None:
        closed = {event.more["lease"] for event in before if event.verb == "close" and not event.is_open}
        for event in before:
            if event.verb == "key" and event.is_open:
                self.acquire_with_a_key(event.entity, event.amount, event.more["key"])
            elif event.verb == "lease" and event.is_admitted and event.result["lease"]["lease_id"] not in closed:
                self.close(event.entity, event.result["lease"], self.random.choice((0, 2, 7)))

    def _write(self, line: Mapping[str, Any]) -> None:
        os.write(self._fd, json.dumps(line).encode() + b"\n")


def take(worker: Worker) -> None:
    worker.acquire(worker.random.choice((SHARED, SHARED, WIDE)), worker.random.choice((1, 1, 2)))


def take_wide(worker: Worker) -> None:
    """More than one shard has."""
    worker.acquire(WIDE, worker.random.choice((20, 40)))


def take_in_a_chain(worker: Worker) -> None:
    worker.acquire(worker.random.choice(CHILDREN), 1)


def take_with_a_key(worker: Worker) -> None:
    """Twice: the second time is answered as the first was."""
    key = new_token()
    entity = worker.random.choice((*CHILDREN, WIDE, SHARED))
    worker.acquire_with_a_key(entity, 1, key)
    worker.acquire_with_a_key(entity, 1, key)


def lease(worker: Worker) -> None:
    entity = worker.random.choice((LEASED, LEASED, *CHILDREN))
    taken = worker.take_a_lease(entity, 5)
    if not taken.is_admitted:
        return
    found = taken.result["lease"]
    for number in range(worker.random.randrange(3)):
        worker.adjust(entity, found, worker.random.choice((-2, 3)), f"key-{number}")
    if worker.random.random() < 0.9:
        worker.close(entity, found, worker.random.choice((0, 5, 9)))


def split(worker: Worker) -> None:
    images, _ = worker.buckets.writer.look_at(keys.bucket(NAMESPACE, WIDE, RESOURCE, 0))
    if images:
        worker.buckets.sharding.relieve(worker.random.choice(images))


STEPS: Final[Mapping[Callable[[Worker], None], int]] = {
    take: 8,
    take_wide: 2,
    take_in_a_chain: 6,
    take_with_a_key: 3,
    lease: 4,
    split: 1,
}


def idempotency_key(text: str) -> IdempotencyKey:
    return IdempotencyKey(NAMESPACE, "app", text, "hash")


def lease_to_json(lease: Lease) -> dict[str, Any]:
    members = [
        [member.entity, [[share.shard, share.generation, dict(share.amounts_milli)] for share in member.shares]]
        for member in lease.members
    ]
    return {
        "lease_id": lease.lease_id,
        "consumed": dict(lease.consumed),
        "members": members,
        "expires_at_ms": lease.expires_at_ms,
    }


def lease_from_json(written: Mapping[str, Any]) -> Lease:
    members = tuple(
        LeaseMember(entity, tuple(Share(shard, generation, amounts) for shard, generation, amounts in shares))
        for entity, shares in written["members"]
    )
    return Lease(
        written["lease_id"],
        NAMESPACE,
        members[0].entity,
        RESOURCE,
        written["consumed"],
        members,
        written["expires_at_ms"],
    )


def histories(folder: Path) -> Iterator[list[Event]]:
    for path in sorted(folder.glob("*.history")):
        yield read_history(path)


def _nothing(_answer: object) -> Mapping[str, Any]:
    return {}
