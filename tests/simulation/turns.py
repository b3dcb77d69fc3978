"""Calls that wait for their turn, and what each of them touches."""

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

from sluice.core.errors import Ambiguous
from sluice.repository.keys import Key, key_of
from sluice.repository.store import Committed, ConditionFailed
from tests.simulation.faults import CALM, LATENCIES
from tests.simulation.network import Network
from tests.simulation.scheduler import Crashed, Fiber, Process, Scheduler
from tests.simulation.store import Call
from tests.simulation.table import SimulatedTable, Stored
from tests.simulation.trace import Trace

T = TypeVar("T")

_NOTHING: Final[frozenset[Key]] = frozenset()


class Touched(NamedTuple):
    """What one call read and wrote. `all_read`: an index or a partition; `all_written`: no one knows what."""

    read: frozenset[Key]
    written: frozenset[Key]
    all_read: bool = False
    all_written: bool = False

    def meets(self, other: "Touched") -> bool:
        """Whether the order of the two could matter."""
        if self.all_written or other.all_written:
            return True
        if (self.all_read and other.written) or (other.all_read and self.written):
            return True
        return not (
            self.written.isdisjoint(other.written)
            and self.written.isdisjoint(other.read)
            and self.read.isdisjoint(other.written)
        )


EVERYTHING: Final = Touched(_NOTHING, _NOTHING, all_read=True, all_written=True)


class Turn(NamedTuple):
    """One call of one fiber. `who`: the client, with a number where it has several fibers."""

    who: str
    client: str
    touched: Touched

    def meets(self, other: "Turn") -> bool:
        """A client's own calls share its memory."""
        return self.client == other.client or self.touched.meets(other.touched)


class NotingTable(SimulatedTable):
    """Notes what is touched. A write whose condition failed has only read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[Key] = set()
        self.written: set[Key] = set()

    def get(self, key: Key, *, as_of_ms: int | None = None) -> Any:
        self.read.add(key)
        return super().get(key, as_of_ms=as_of_ms)

    def put(self, request: Any) -> Any:
        return self._noted([key_of(request["Item"])], super().put(request))

    def update(self, request: Any) -> Any:
        return self._noted([key_of(request["Key"])], super().update(request))

    def delete(self, request: Any) -> Any:
        return self._noted([key_of(request["Key"])], super().delete(request))

    def transact(self, writes: Any, token: str) -> Any:
        touched = [key_of(one.get("Item") or one["Key"]) for write in writes for one in write.values()]
        return self._noted(touched, super().transact(writes, token))

    def take_touched(self) -> Touched:
        touched = Touched(frozenset(self.read), frozenset(self.written))
        self.read.clear()
        self.written.clear()
        return touched

    def copy(self) -> "NotingTable":
        """Items are never changed in place, so they are shared."""
        copied = NotingTable()
        copied.stream = list(self.stream)
        copied.partitions = {
            pk: {sk: _copied_stored(stored) for sk, stored in partition.items()}
            for pk, partition in self.partitions.items()
        }
        for name, index in self.indexes.items():
            index.catch_up(self.clock_ms())
            twin = copy(index)
            twin._partitions = {place: dict(entries) for place, entries in index._partitions.items()}
            twin._place = dict(index._place)
            twin._pending = []
            twin._due_ms = {}
            copied.indexes[name] = twin
        copied._changes, copied._writes = self._changes, self._writes
        return copied

    def _noted(self, keys: Iterable[Key], outcome: T) -> T:
        refused = isinstance(outcome, ConditionFailed) or not (
            isinstance(outcome, Committed) or hasattr(outcome, "item")
        )
        (self.read if refused else self.written).update(keys)
        return outcome


def _copied_stored(stored: Stored) -> Stored:
    copied = Stored()
    copied.item, copied.bytes_most, copied.flat = stored.item, stored.bytes_most, stored.flat
    copied.versions = [*stored.versions[-1:]]
    return copied


Choose = Callable[[Mapping[str, str]], str]
"""Of those who wait, each with its client, who is next."""


class Turns(Scheduler):
    """Fibers that wait for their turn. `free`: nobody does, as in the setup and at the end."""

    def __init__(self, start_ms: int, tick_ms: int, table: NotingTable, choose: Choose) -> None:
        super().__init__(Random(0), start_ms)
        self.free = True
        self.taken: list[Turn] = []
        self._tick_ms = tick_ms
        self._table = table
        self._choose = choose
        self._ready: list[Fiber] = []
        self._waiting: dict[str, Fiber] = {}
        self._names: dict[Fiber, str] = {}
        self._fibers_of: dict[str, int] = {}
        self._touched = EVERYTHING

    def pause(self, duration_ms: int) -> None:
        if self.free:
            self.now_ms += duration_ms

    def turn(self) -> None:
        """Waits until this fiber is chosen."""
        if not self.free:
            self._waiting[self._name(self.current)] = self.current
            self._switch()
            self.now_ms += self._tick_ms
            # What is touched from here on until the next wait is this call's.
            self._table.take_touched()
            self._touched = EVERYTHING

    def touch(self, touched: Touched) -> None:
        self._touched = touched

    def run(self) -> None:
        try:
            while True:
                while self._ready:
                    self._resume(self._ready.pop(0))
                if not self._waiting:
                    return
                clients = {who: fiber.process.name for who, fiber in self._waiting.items()}
                who = self._choose(clients)
                try:
                    self._resume(self._waiting.pop(who))
                finally:
                    self.taken.append(Turn(who, clients[who], self._touched))
        finally:
            self._current = None
            for process in self._processes:
                self._end(process)

    def _resume(self, fiber: Fiber) -> None:
        self._current = fiber
        fiber.resume()
        self._current = None

    def _wake(self, fiber: Fiber, in_ms: int) -> None:
        self._ready.append(fiber)

    def _name(self, fiber: Fiber) -> str:
        """The same in every order: by which of the client's own fibers it is."""
        if fiber not in self._names:
            client = fiber.process.name
            number = self._fibers_of.get(client, 0)
            self._fibers_of[client] = number + 1
            self._names[fiber] = f"{client}{number}" if number else client
        return self._names[fiber]


class LostAnswer(NamedTuple):
    """The answer to so many-eth write of a client is lost after it was applied."""

    client: str
    number: int


class Wire(Network):
    """Every call waits for its turn; one of them may lose its answer."""

    def __init__(self, turns: Turns, table: NotingTable, trace: Trace, lost: LostAnswer | None) -> None:
        super().__init__(turns, Random(0), CALM, LATENCIES[0], trace)
        self.calm = True
        self.answers_lost = 0
        self._turns = turns
        self._table = table
        self._lost = lost
        self._writes: dict[str, int] = {}

    def carry(self, process: Process, call: Call, apply: Callable[[], T]) -> T:
        if not process.alive:
            raise Crashed
        if self._turns.free:
            return apply()
        self._turns.turn()
        answer = apply()
        self._note(call)
        if self._is_lost(process.name, call):
            self.answers_lost += 1
            self._trace.add(self._turns.now_ms, process.name, call, "*** applied, and the answer is lost")
            raise Ambiguous("lost")
        self._trace.add(self._turns.now_ms, process.name, call, answer)
        return answer

    def _note(self, call: Call) -> None:
        touched = self._table.take_touched()
        if call.verb in {"query", "scan"}:
            touched = touched._replace(all_read=True)
        self._turns.touch(touched)

    def _is_lost(self, client: str, call: Call) -> bool:
        if self._lost is None or not call.writes:
            return False
        self._writes[client] = self._writes.get(client, 0) + 1
        return self._lost == (client, self._writes[client])
