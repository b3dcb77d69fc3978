"""Clients as fibers on one thread, woken in the order of a simulated time: the same seed runs the same way.

A fiber runs until it waits, and everything that waits (a store call, a pause between retries) comes here. Fibers that
wake in the same millisecond go in an order drawn from the seed.
"""

import heapq
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from random import Random
from typing import Final, TypeVar

from greenlet import getcurrent, greenlet

T = TypeVar("T")

STEPS_MAX: Final = 200_000


class Crashed(BaseException):
    """Thrown into every fiber of a process that crashes. Nothing of the product catches it."""


class Stuck(Exception):
    """The simulation does not come to an end."""


class Process:
    """Fibers that crash together. `on_crash` runs once they are gone."""

    def __init__(self, name: str, on_crash: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.alive = True
        self.on_crash = on_crash
        # A dictionary keeps their order: a set would end them in another one from run to run.
        self.fibers: dict[Fiber, None] = {}


class Fiber:
    """`cause`: whose request this works for; what it starts works for the same one."""

    __slots__ = ("_greenlet", "cause", "process")

    def __init__(self, process: Process, work: Callable[[], None], cause: Hashable, hub: greenlet) -> None:
        self.process = process
        self.cause = cause
        self._greenlet = greenlet(self._guarded(work), hub)
        process.fibers[self] = None

    def resume(self) -> None:
        self._greenlet.switch()

    def crash(self) -> None:
        # One that never ran has nothing to unwind.
        if self._greenlet:
            self._greenlet.throw(Crashed)
        self.process.fibers.pop(self, None)

    def _guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except Crashed:
                pass
            finally:
                self.process.fibers.pop(self, None)

        return run


class Scheduler:
    def __init__(self, random: Random, start_ms: int) -> None:
        self.now_ms = start_ms
        self.steps = 0
        self._random = random
        self._queue: list[tuple[int, float, int, Fiber]] = []
        self._entries = 0
        self._hub = getcurrent()
        self._current: Fiber | None = None
        self._crashing: Process | None = None
        self._processes: list[Process] = []

    @property
    def current(self) -> Fiber:
        assert self._current is not None, "only a fiber may wait"
        return self._current

    def clock_ms(self) -> int:
        return self.now_ms

    def cause(self) -> Hashable:
        return None if self._current is None else self._current.cause

    def start(self, process: Process, work: Callable[[], None], *, in_ms: int = 0) -> None:
        if process not in self._processes:
            self._processes.append(process)
        self._wake(Fiber(process, work, self.cause(), self._hub), in_ms)

    def pause(self, duration_ms: int) -> None:
        """Lets others run until then."""
        fiber = self._current
        assert fiber is not None, "only a fiber may wait"
        self.steps += 1
        if self.steps > STEPS_MAX:
            raise Stuck(f"{STEPS_MAX} steps")
        queue = self._queue
        self._entries += 1
        entry = (self.now_ms + duration_ms, self._random.random(), self._entries, fiber)
        if not queue or entry < queue[0]:
            # It would be the next one anyway.
            self.now_ms = entry[0]
            return
        heapq.heappush(queue, entry)
        self._switch()

    def run_all(self, tasks: Sequence[Callable[[], T]]) -> list[T | Exception]:
        """Each task in a fiber of its own; returns once all are done."""
        parent = self.current
        outcomes: dict[int, T | Exception] = {}

        def run(number: int, task: Callable[[], T]) -> None:
            try:
                outcomes[number] = task()
            except Exception as error:  # noqa: BLE001 - this is what the threads of the product do with it
                outcomes[number] = error
            if len(outcomes) == len(tasks):
                self._wake(parent, 0)

        for number, task in enumerate(tasks):
            self.start(parent.process, partial(run, number, task))
        self._switch()
        return [outcomes[number] for number in range(len(tasks))]

    def crash(self) -> None:
        """Ends the process of the current fiber, here and now. Does not return."""
        self._crashing = self.current.process
        self._switch()

    def run(self) -> None:
        """Until nothing waits any more. What a fiber raises is raised here, and the rest is ended."""
        try:
            while self._queue:
                time_ms, _, _, fiber = heapq.heappop(self._queue)
                if not fiber.process.alive:
                    continue
                self.now_ms = time_ms
                self._current = fiber
                fiber.resume()
                self._current = None
                if self._crashing is not None:
                    self._end(self._crashing)
                    self._crashing.on_crash()
                    self._crashing = None
        finally:
            self._current = None
            for process in self._processes:
                self._end(process)

    def _end(self, process: Process) -> None:
        process.alive = False
        for fiber in list(process.fibers):
            fiber.crash()

    def _wake(self, fiber: Fiber, in_ms: int) -> None:
        heapq.heappush(self._queue, self._entry(fiber, in_ms))

    def _entry(self, fiber: Fiber, in_ms: int) -> tuple[int, float, int, Fiber]:
        self._entries += 1
        return (self.now_ms + in_ms, self._random.random(), self._entries, fiber)

    def _switch(self) -> None:
        self._hub.switch()
