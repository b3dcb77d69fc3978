"""The measurements, the same for both products. What they return fits into JSON."""

import secrets
import time
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final

from bench.compare.meter import BillingMeter
from bench.compare.product import Answer, Client, Product, Rate

# As in bench/costs.py, with ids of the same length: a bucket that is still written for one unit.
LIMITS: Final = {"rpm": Rate(1000, 1, 60), "tpm": Rate(1_000_000, 100, 60), "rpd": Rate(100_000, 100, 86_400)}
CONSUME: Final = {"rpm": 1, "tpm": 500, "rpd": 1}
# Never drained, never full again while this runs: every acquire is the one-write path.
ENDLESS: Final = {name: Rate(10**9, 1, rate.refill_period_s) for name, rate in LIMITS.items()}
# Both products may answer from a cached refusal for one second.
CACHE_S: Final = 1.1
TEN_YEARS_S: Final = 10 * 365 * 86_400
HOUR_S: Final = 3600


def new_entity() -> str:
    return "user-" + secrets.token_hex(17)


def put_shared(product: Product, *, rate_per_s: int, busy_burst: int) -> None:
    """What the other measurements find in the table."""
    client = product.connect()
    client.put_limits("endless", ENDLESS)
    client.put_limits("contended", {"rps": Rate(rate_per_s, rate_per_s, 1)})
    client.put_limits("busy", {"rps": Rate(busy_burst, rate_per_s, 1)})
    client.put_entity("org")
    client.put_entity("app", "org")
    client.put_limits("endless", ENDLESS, "org")


class Costs:
    """Calls and units of each operation."""

    def __init__(self, product: Product) -> None:
        self._product = product
        self._client = product.connect()
        self._meter = BillingMeter(self._client.dynamodb)
        self._figures: dict[str, dict[str, Any]] = {}

    def measure(self) -> dict[str, dict[str, Any]]:
        client, entity = self._client, new_entity()
        client.put_limits("r", LIMITS)
        # What a process asks once, whoever it acquires for, is not part of a first acquire.
        client.acquire(new_entity(), "r", CONSUME)
        self._expect("first acquire", Answer.ADMITTED, entity, CONSUME)
        self._expect("warm acquire", Answer.ADMITTED, entity, CONSUME)
        self._measure_cold_process(entity)
        client.forget_limits()
        self._expect("acquire after a minute (limits read again)", Answer.ADMITTED, entity, CONSUME)
        client.acquire(entity, "r", {"rpm": 900})
        self._expect("refused right after an acquire of its own", Answer.REFUSED, entity, {"rpm": 900})
        time.sleep(CACHE_S)
        self._expect("refused later", Answer.REFUSED, entity, {"rpm": 900})
        self._expect("refused again within a second", Answer.REFUSED, entity, {"rpm": 900})
        self._measure_chain()
        return self._figures

    def _measure_cold_process(self, entity: str) -> None:
        cold = self._product.connect()
        meter = BillingMeter(cold.dynamodb)
        if cold.acquire(entity, "r", CONSUME) is not Answer.ADMITTED:
            raise AssertionError("a process without caches was refused")
        self._figures["acquire in a new process"] = asdict(meter.taken())

    def _measure_chain(self) -> None:
        client, user, team = self._client, new_entity(), new_entity()
        client.put_entity(team)
        client.put_entity(user, team)
        client.put_limits("r", LIMITS, team)
        self._expect("first acquire, chain of two", Answer.ADMITTED, user, CONSUME)
        self._expect("warm acquire, chain of two", Answer.ADMITTED, user, CONSUME)
        # Others of the team spend what it has.
        client.acquire(team, "r", {"rpm": 990})
        time.sleep(CACHE_S)
        self._expect("refused by the parent, chain of two", Answer.REFUSED, user, {"rpm": 100})
        self._expect("refused by the parent again within a second", Answer.REFUSED, user, {"rpm": 100})

    def _expect(self, name: str, answer: Answer, entity: str, consume: dict[str, int]) -> None:
        self._meter.taken()
        if self._client.acquire(entity, "r", consume) is not answer:
            raise AssertionError(f"{name}: not {answer.value}")
        self._figures[name] = asdict(self._meter.taken())


def cpu_us(client: Client, entity: str, operations: int) -> float:
    """CPU of this whole process for each acquire, the threads of a chain included."""
    start_ns = time.process_time_ns()
    for _ in range(operations):
        client.acquire(entity, "endless", CONSUME)
    return (time.process_time_ns() - start_ns) / 1000 / operations


def throughput(client: Client, entity: str, start_s: float, seconds: float) -> int:
    """Acquires in so many seconds from a common start."""
    _sleep_until(start_s)
    done = 0
    while time.time() < start_s + seconds:
        client.acquire(entity, "endless", CONSUME)
        done += 1
    return done


def admitted_over_two_splits(client: Client, capacity: int) -> int:
    """Of a bucket without refill four tenths are taken, then it is split, two tenths, split, and all that is left."""
    entity = new_entity()
    client.put_limits("split", {"tokens": Rate(capacity, 1, TEN_YEARS_S)})
    admitted = _taken(client, entity, 10, most=4 * capacity // 10)
    client.split(entity, "split")
    admitted += _taken(client, entity, 10, most=2 * capacity // 10)
    client.split(entity, "split")
    for amount in (10, 1):
        admitted += _taken(client, entity, amount, most=4 * capacity)
    time.sleep(CACHE_S)
    return admitted + _taken(client, entity, 1, most=4 * capacity)


def _taken(client: Client, entity: str, amount: int, *, most: int) -> int:
    """In such amounts, until so much was taken or each of four shards must have refused."""
    taken = refused_in_a_row = 0
    while taken < most and refused_in_a_row < 64:
        if client.acquire(entity, "split", {"tokens": amount}) is Answer.ADMITTED:
            taken += amount
            refused_in_a_row = 0
        else:
            refused_in_a_row += 1
    return taken


def slow_refill_milli(product: Product, seconds: int) -> int:
    """What 1 an hour gains in so many seconds of a moved clock, beside 20 a minute that are asked for twice as fast."""
    now_ms = time.time_ns() // 1_000_000
    client, entity = product.connect(lambda: now_ms), new_entity()
    client.put_limits("beside", {"slow": Rate(10, 1, HOUR_S), "busy": Rate(20, 20, 60)})
    if client.acquire(entity, "beside", {"slow": 10, "busy": 20}) is not Answer.ADMITTED:
        raise AssertionError("a full bucket refused")
    step_ms = 1500
    for _ in range(seconds * 1000 // step_ms):
        now_ms += step_ms
        client.acquire(entity, "beside", {"busy": 1})
    return client.level_milli(entity, "beside", "slow", now_ms)


@dataclass(frozen=True)
class Demand:
    """What one of several processes asks of one bucket, at random moments: `per_s` on average."""

    entity: str
    resource: str
    per_s: float
    start_s: float
    seconds: float
    seed: int


def contend(client: Client, meter: BillingMeter, demand: Demand) -> dict[str, Any]:
    """A process that falls behind asks as fast as it can; what is left at the end is not asked."""
    random = Random(demand.seed)
    due_s = demand.start_s + random.expovariate(demand.per_s)
    end_s = demand.start_s + demand.seconds
    attempts: list[tuple[float, str]] = []
    asked = 0
    meter.taken()
    writes, write_units = 0, 0.0
    while due_s < end_s and time.time() < end_s:
        _sleep_until(due_s)
        at_s = time.time()
        answer = client.acquire(demand.entity, demand.resource, {"rps": 1})
        bill = meter.taken()
        attempts.append((at_s, answer.value))
        asked += bill.calls > 0
        writes += bill.writes
        write_units += bill.write_units
        due_s += random.expovariate(demand.per_s)
    return {"attempts": attempts, "asked": asked, "writes": writes, "write_units": write_units}


def _sleep_until(moment_s: float) -> None:
    time.sleep(max(0.0, moment_s - time.time()))
