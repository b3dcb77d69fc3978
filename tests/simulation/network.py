"""Between the clients and the table: every call takes time, and some of them fail."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TypeVar

from sluice.core.errors import Ambiguous
from sluice.repository.retries import Conflict, NotSent, Throttled
from tests.simulation.faults import (
    INDEX_LAG_MOST_MS,
    LATE_MOST_MS,
    STALE_MOST_MS,
    TIMEOUT_MS,
    Fault,
    FaultPlan,
    Latency,
    fits,
)
from tests.simulation.paths import Path
from tests.simulation.scheduler import Crashed, Process, Scheduler
from tests.simulation.store import Call
from tests.simulation.trace import Trace

T = TypeVar("T")


class Network:
    """Shared by all processes of a simulation."""

    def __init__(self, scheduler: Scheduler, random: Random, plan: FaultPlan, latency: Latency, trace: Trace) -> None:
        self.faults: Counter[Fault] = Counter()
        self.met: Counter[tuple[Path, Fault]] = Counter()
        """Which fault met which write path, and how often."""
        self.calls = 0
        self.calm = False
        """While set, nothing fails: for what a scenario sets up, and for its end."""
        self._scheduler = scheduler
        self._random = random
        self._plan = plan
        self._latency = latency
        self._trace = trace
        self._of_reads, self._of_writes = plan.draws()
        self._elsewhere = Process("network")

    def index_lag_ms(self, _index: str) -> int:
        if self._spared(self._plan.lag):
            return 0
        self.faults[Fault.INDEX_LAG] += 1
        return int(INDEX_LAG_MOST_MS * self._random.random() ** 2)

    def read_lag_ms(self) -> int:
        if self._spared(self._plan.reads):
            return 0
        self.faults[Fault.STALE_READ] += 1
        return 1 + int(STALE_MOST_MS * self._random.random() ** 2)

    def processed(self, keys: int) -> int:
        """DynamoDB answers at least one key, or throttles the whole batch."""
        if self._spared(self._plan.reads) or keys == 1:
            return keys
        self.faults[Fault.UNPROCESSED] += 1
        return 1 + int(self._random.random() * (keys - 1))

    def page_cut(self) -> int | None:
        if self._spared(self._plan.reads):
            return None
        self.faults[Fault.SHORT_PAGE] += 1
        return 1 + int(self._random.random() * 3)

    def carry(self, process: Process, call: Call, apply: Callable[[], T]) -> T:
        if not process.alive:
            raise Crashed
        self.calls += 1
        assert call.path is not None or not call.writes, f"on which path is {call}?"
        fault = self._fault(call)
        if fault is not None:
            self.faults[fault] += 1
            if call.path is not None:
                self.met[call.path, fault] += 1
            return self._fail(process, call, apply, fault)
        self._scheduler.pause(self._latency.draw(self._random))
        answer = apply()
        self._trace.add(self._scheduler.now_ms, process.name, call, answer)
        self._scheduler.pause(self._latency.draw(self._random))
        return answer

    def _fault(self, call: Call) -> Fault | None:
        if self.calm:
            return None
        if call.writes and self._plan.aim is not None:
            return self._plan.aim(call, self._random.random())
        fault = (self._of_writes if call.writes else self._of_reads)(self._random.random())
        return fault if fault is None or fits(fault, call) else None

    def _fail(self, process: Process, call: Call, apply: Callable[[], T], fault: Fault) -> T:
        scheduler = self._scheduler
        scheduler.pause(self._latency.draw(self._random))
        self._trace.add(scheduler.now_ms, process.name, call, fault)
        if fault in {Fault.ERROR_AFTER, Fault.TIMEOUT_AFTER, Fault.CRASH_AFTER}:
            self._trace.add(scheduler.now_ms, process.name, call, apply())
        elif fault is Fault.TIMEOUT_LATE:
            self._apply_late(process, call, apply)
        if fault in {Fault.CRASH_BEFORE, Fault.CRASH_AFTER}:
            scheduler.crash()
        if fault in {Fault.TIMEOUT_BEFORE, Fault.TIMEOUT_AFTER, Fault.TIMEOUT_LATE}:
            scheduler.pause(TIMEOUT_MS)
        else:
            scheduler.pause(self._latency.draw(self._random))
        raise _raised(fault)

    def _apply_late(self, process: Process, call: Call, apply: Callable[[], object]) -> None:
        def arrive() -> None:
            self._trace.add(self._scheduler.now_ms, f"late {process.name}", call, apply())

        self._scheduler.start(self._elsewhere, arrive, in_ms=1 + int(LATE_MOST_MS * self._random.random()))

    def _spared(self, share: float) -> bool:
        return self.calm or self._random.random() >= share


class Connection:
    """The wire of one process."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process
        self.read_lag_ms = network.read_lag_ms
        self.processed = network.processed
        self.page_cut = network.page_cut

    def carry(self, call: Call, apply: Callable[[], T]) -> T:
        return self._network.carry(self._process, call, apply)


def _raised(fault: Fault) -> Exception:
    match fault:
        case Fault.THROTTLED | Fault.HOT_KEY:
            return Throttled(fault.value, hot_key=fault is Fault.HOT_KEY)
        case Fault.CONFLICT:
            return Conflict(fault.value)
        case Fault.NOT_SENT:
            return NotSent(fault.value)
        case _:
            return Ambiguous(fault.value)
