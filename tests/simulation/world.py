"""One simulation: a table, a network, clients, and the history of what they asked and were told."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from random import Random
from types import MappingProxyType
from typing import Any, Final, TypeVar

from sluice.core.errors import (
    Contended,
    IdempotencyMismatch,
    InUse,
    InvalidRequest,
    LeaseClosed,
    LeaseExpired,
    LimitExceeded,
    NeverAdmissible,
    NoLimits,
    NotFound,
    Unavailable,
)
from sluice.core.limits import Limit
from sluice.core.signals import Signal
from sluice.repository.retries import Conflict, Retries
from sluice.repository.store import Store
from sluice.services.acquire import Acquire
from sluice.services.chains import AcquireRequest, Chains
from sluice.services.configuration import Configuration
from sluice.services.corrections import Corrections
from sluice.services.effects import Effects
from sluice.services.entities import Entities
from sluice.services.idempotency import IdempotentAcquire
from sluice.services.jobs import Jobs, Work
from sluice.services.leases import Leases
from sluice.services.limits import Limits
from sluice.services.migration import MIGRATION, Migrate, Migrations
from sluice.services.namespaces import Namespaces
from sluice.services.purge import PURGE, Purge
from sluice.services.registration import Registrar, Registration
from sluice.services.taking import Buckets, build_buckets
from sluice.services.together import Together
from tests.fakes import CountingMeter
from tests.simulation.changes import Change, bucket_changes
from tests.simulation.faults import RESTART_MOST_MS, FaultPlan, Latency
from tests.simulation.network import Connection, Network
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.store import Call, SimulatedStore
from tests.simulation.table import SimulatedTable
from tests.simulation.trace import Trace

T = TypeVar("T")

START_MS: Final = 1_800_000_000_000
RESOURCE: Final = "gpt-4"
NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


INVALID: Final = (
    IdempotencyMismatch,
    InUse,
    InvalidRequest,
    LeaseClosed,
    LeaseExpired,
    NeverAdmissible,
    NoLimits,
    NotFound,
)
"""What a caller is told who asked for what can not be done."""


class Outcome(StrEnum):
    DONE = "done"
    ADMITTED = "admitted"
    DEGRADED = "let through unchecked"
    REFUSED = "refused"
    INVALID = "invalid"
    CONTENDED = "contended"
    UNAVAILABLE = "unavailable"


@dataclass(slots=True)
class Request:
    """What a client asked. Without an outcome it crashed on the way. `lost_credits`: give-backs it had to give up.

    `opened`: how often it was counted as let through unchecked. `admit_at_ms`: what a refusal quoted, by the clock of
    the client. `skews_ms`: how far that was off meanwhile.
    """

    number: int
    client: "Client"
    entity: str
    consume: Mapping[str, int]
    started_ms: int
    ended_ms: int | None = None
    outcome: Outcome | None = None
    lost_credits: int = 0
    opened: int = 0
    admit_at_ms: int = 0
    skews_ms: tuple[int, ...] = ()

    @property
    def may_be_charged(self) -> bool:
        """Whether nobody can know if it was charged."""
        return self.outcome in {None, Outcome.UNAVAILABLE, Outcome.DEGRADED} or self.lost_credits > 0

    def __str__(self) -> str:
        return f"request {self.number} of {self.client.name} for {self.entity} {dict(self.consume)}: {self.outcome}"


@dataclass(frozen=True, slots=True)
class Host:
    """A process of the product with empty caches."""

    process: Process
    store: Store
    configuration: Configuration
    entities: Entities
    limits: Limits
    buckets: Buckets
    acquire: Acquire
    idempotent_acquire: IdempotentAcquire
    leases: Leases
    jobs: Jobs
    migrations: Migrations
    namespaces: Namespaces
    work: Mapping[str, Work]
    meter: CountingMeter


class Client:
    """Whoever calls the product, on a machine with a clock of its own. A crash costs it its host, not its work."""

    def __init__(self, world: "World", name: str, skew_ms: int, program: Callable[["Client"], None]) -> None:
        self.world = world
        self.name = name
        self.skews_ms = [skew_ms]
        """Each that its clock ever had; the last one is what it has now."""
        self.random = world.random
        self.done = 0
        """How far the program came. It starts again after a crash."""
        self.host = self._new_host()
        self._program = program

    def clock_ms(self) -> int:
        plan = self.world.plan
        if plan.jumps and not self.world.network.calm and self.random.random() < plan.jumps:
            self.skews_ms.append(self.random.randint(-plan.skew_most_ms, plan.skew_most_ms))
        return self.world.scheduler.now_ms + self.skews_ms[-1]

    def start(self, in_ms: int = 0) -> None:
        self.world.scheduler.start(self.host.process, lambda: self._program(self), in_ms=in_ms)

    def wait(self, duration_ms: int) -> None:
        self.world.scheduler.pause(duration_ms)

    def acquire(
        self,
        entity: str,
        consume: Mapping[str, int],
        *,
        namespace: str | None = None,
        resource: str = RESOURCE,
        registration: Registration | None = None,
    ) -> Request:
        """`namespace`: one that may be purged, so it is asked first whether it is there, as the routes do."""
        asked = AcquireRequest(namespace or self.world.namespace, entity, resource, consume, registration=registration)

        def ask() -> Outcome:
            if namespace is not None:
                self.host.namespaces.require_active(namespace)
            admission = self.host.acquire.acquire(asked)
            return Outcome.DEGRADED if admission.degraded else Outcome.ADMITTED

        return self.attempt(entity, ask, consume)

    def attempt(self, entity: str, ask: Callable[[], Outcome], consume: Mapping[str, int] = NOTHING) -> Request:
        """Asks, and writes down what it was told. What the product should never raise passes through."""
        with self.world.request(self, entity, consume) as request:
            before = self.host.meter.counts.copy()
            try:
                request.outcome = ask()
            except LimitExceeded as refusal:
                request.outcome = Outcome.REFUSED
                request.admit_at_ms = refusal.admit_at_ms
            except INVALID:
                request.outcome = Outcome.INVALID
            except Contended:
                request.outcome = Outcome.CONTENDED
            except Unavailable:
                request.outcome = Outcome.UNAVAILABLE
            counted = self.host.meter.counts - before
            request.lost_credits = counted[Signal.GIVE_BACKS_LOST]
            request.opened = counted[Signal.FAIL_OPEN_ADMISSIONS]
        return request

    def _new_host(self) -> Host:
        process = Process(self.name, on_crash=self._restart)
        return build_host(self.world, process, self.clock_ms)

    def _restart(self) -> None:
        self.host = self._new_host()
        self.start(in_ms=int(RESTART_MOST_MS * self.random.random()))


class CountedConnection(Connection):
    """Knows what each request met on the wire."""

    def __init__(self, world: "World", process: Process) -> None:
        super().__init__(world.network, process)
        self._world = world
        self.processed = self._processed

    def carry(self, call: Call, apply: Callable[[], T]) -> T:
        cause = self._world.scheduler.cause()
        if call.writes:
            self._world.writes[cause] += 1
        try:
            return super().carry(call, apply)
        except Unavailable:
            self._world.unavailable.add(cause)
            raise
        except Conflict:
            self._world.conflicted.add(cause)
            raise

    def _processed(self, keys: int) -> int:
        answered = self._world.network.processed(keys)
        if answered < keys:
            self._world.unavailable.add(self._world.scheduler.cause())
        return answered


class World:
    def __init__(
        self, seed: int, plan: FaultPlan, latency: Latency, random: Random, trace: Trace, table: SimulatedTable
    ) -> None:
        self.seed = seed
        self.random = random
        self.plan = plan
        self.trace = trace
        self.namespace = f"s{seed}"
        self.scheduler = Scheduler(random, START_MS)
        self.network = Network(self.scheduler, random, plan, latency, trace)
        self.table = table
        table.clock_ms = self.scheduler.clock_ms
        table.index_lag_ms = self.network.index_lag_ms
        table.cause = self.scheduler.cause
        self.clients: list[Client] = []
        self.history: list[Request] = []
        self.limits: dict[str, Mapping[str, Limit]] = {}
        """The widest that each entity has in this scenario."""
        self.demand_of: Callable[[Request], Mapping[str, Mapping[str, int]]] = lambda request: {
            request.entity: request.consume
        }
        """What a request should take from whom. A scenario with chains says so itself."""
        self.writes: Counter[Hashable] = Counter()
        """How many were sent for each request, whatever came of them."""
        self.unavailable: set[Hashable] = set()
        self.conflicted: set[Hashable] = set()
        """The requests for which the table, once at least, was not there."""
        self.notes: dict[str, Any] = {}
        """What a scenario's invariants need to know of what its programs did."""
        self._tokens = 0

    def add_client(self, name: str, program: Callable[[Client], None]) -> Client:
        most = self.plan.skew_most_ms
        client = Client(self, name, self.random.randint(-most, most), program)
        self.clients.append(client)
        return client

    @contextmanager
    def request(self, client: Client, entity: str, consume: Mapping[str, int]) -> Iterator[Request]:
        """Everything written within is put down to this request."""
        request = Request(len(self.history), client, entity, consume, self.scheduler.now_ms)
        self.history.append(request)
        fiber = self.scheduler.current
        fiber.cause = request.number
        clocks = len(client.skews_ms) - 1
        yield request
        fiber.cause = None
        request.ended_ms = self.scheduler.now_ms
        request.skews_ms = tuple(client.skews_ms[clocks:])
        self.trace.add(request.ended_ms, client.name, request, "")

    def afterwards(self, work: Callable[[Host], None]) -> None:
        """Once everybody is done: on a new host with the right time, in peace."""
        self.network.calm = True
        host = build_host(self, Process("afterwards"), self.scheduler.clock_ms)
        self.scheduler.start(host.process, lambda: work(host))
        self.scheduler.run()

    def random_below(self, below: int) -> int:
        return int(self.random.random() * below)

    def new_token(self) -> str:
        self._tokens += 1
        return f"{self.namespace}-{self._tokens}"

    @property
    def skews_ms(self) -> list[int]:
        """Of all clients, all that they ever had, and of the setup, which has the right time."""
        return [0, *(skew_ms for client in self.clients for skew_ms in client.skews_ms)]

    def limits_of(self, entity: str) -> Mapping[str, Limit]:
        return self.limits[entity]

    @cached_property
    def changes(self) -> dict[str, list[Change]]:
        """Of every bucket. Asked for at the end."""
        return bucket_changes(self.table.stream)

    @cached_property
    def longest_request_ms(self) -> int:
        """From a client's look at its clock to the last effect of that. Asked for at the end."""
        started = {request.number: request.started_ms for request in self.history}
        longest = max(
            (request.ended_ms - request.started_ms for request in self.history if request.ended_ms), default=0
        )
        for record in self.table.stream:
            if isinstance(record.cause, int):
                longest = max(longest, record.created_ms - started[record.cause])
        return longest


def build_host(world: World, process: Process, clock_ms: Callable[[], int]) -> Host:
    """As `shell.py` builds it, on simulated effects."""
    meter = CountingMeter()
    scheduler = world.scheduler
    retries = Retries(scheduler.pause, world.random_below, meter)
    store = SimulatedStore(world.table, CountedConnection(world, process), retries)
    # Caches live by a timer, which no clock of a machine can set back.
    timer_ms = scheduler.clock_ms
    configuration = Configuration(store, timer_ms)
    effects = Effects(clock_ms, world.random_below, world.new_token, meter)
    buckets = build_buckets(store, configuration, effects, timer_ms)
    chains = Chains(configuration, buckets.memory.images, Registrar(store, configuration, effects))
    acquire = Acquire(configuration, chains, buckets.taker, scheduler.run_all, meter)
    together = Together(store, buckets, effects)
    jobs = Jobs(store, effects)
    return Host(
        process=process,
        store=store,
        configuration=configuration,
        entities=Entities(store, configuration, clock_ms, world.random_below, world.new_token),
        limits=Limits(store, configuration, clock_ms, world.random_below, world.new_token),
        buckets=buckets,
        acquire=acquire,
        idempotent_acquire=IdempotentAcquire(store, acquire, chains, together, effects),
        leases=Leases(store, Corrections(store, buckets.taker), effects),
        jobs=jobs,
        migrations=Migrations(store, jobs, effects),
        namespaces=Namespaces(store, jobs, effects, timer_ms),
        work={MIGRATION: Migrate(store, buckets.legacy, effects), PURGE: Purge(store, effects)},
        meter=meter,
    )
