"""Fibers, time and crashes."""

from functools import partial
from random import Random

import pytest

from tests.simulation.scheduler import Crashed, Process, Scheduler, Stuck


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler(Random(1), 1_000)


def test_fibers_wake_in_the_order_of_time(scheduler: Scheduler) -> None:
    log: list[tuple[str, int]] = []

    def work(name: str, pauses: list[int]) -> None:
        for pause in pauses:
            scheduler.pause(pause)
            log.append((name, scheduler.now_ms))

    scheduler.start(Process("a"), lambda: work("a", [10, 30]))
    scheduler.start(Process("b"), lambda: work("b", [20, 5]), in_ms=1)
    scheduler.run()
    assert log == [("a", 1010), ("b", 1021), ("b", 1026), ("a", 1040)]


def test_ties_are_drawn_from_the_seed() -> None:
    def order(seed: int) -> str:
        scheduler = Scheduler(Random(seed), 0)
        log: list[str] = []

        def work(name: str) -> None:
            for _ in range(3):
                scheduler.pause(0)
                log.append(name)

        for name in "abc":
            scheduler.start(Process(name), partial(work, name))
        scheduler.run()
        return "".join(log)

    assert order(1) == order(1)
    assert len({order(seed) for seed in range(20)}) > 5


def test_tasks_run_at_once_and_keep_their_order(scheduler: Scheduler) -> None:
    results: list[object] = []

    def task(duration_ms: int) -> int:
        scheduler.pause(duration_ms)
        if duration_ms == 7:
            raise ValueError("seven")
        return duration_ms

    def work() -> None:
        results.extend(scheduler.run_all([partial(task, duration_ms) for duration_ms in (30, 7, 10)]))

    scheduler.start(Process("a"), work)
    scheduler.run()
    assert [type(result) for result in results] == [int, ValueError, int]
    assert (results[0], results[2], scheduler.now_ms) == (30, 10, 1_030)


def test_a_crash_ends_every_fiber_of_its_process_and_no_other(scheduler: Scheduler) -> None:
    log: list[str] = []

    def child() -> None:
        try:
            scheduler.pause(100)
        except Crashed:
            log.append("child ended")
            raise
        log.append("child went on")

    def parent() -> None:
        scheduler.run_all([child, crash])
        log.append("parent went on")

    def crash() -> None:
        scheduler.pause(10)
        scheduler.crash()
        log.append("crash returned")

    def other() -> None:
        scheduler.pause(200)
        log.append("other went on")

    process = Process("a", on_crash=lambda: log.append("restarted"))
    scheduler.start(process, parent)
    scheduler.start(Process("b"), other)
    scheduler.run()
    assert log == ["child ended", "restarted", "other went on"]
    assert not process.alive
    assert not process.fibers


def test_what_a_fiber_raises_ends_the_run(scheduler: Scheduler) -> None:
    ended: list[str] = []

    def work() -> None:
        try:
            scheduler.pause(100)
        except Crashed:
            ended.append("ended")
            raise

    def fail() -> None:
        scheduler.pause(1)
        raise ValueError("a bug")

    scheduler.start(Process("a"), work)
    scheduler.start(Process("b"), fail)
    with pytest.raises(ValueError, match="a bug"):
        scheduler.run()
    assert ended == ["ended"]


def test_what_a_fiber_starts_works_for_the_same_cause(scheduler: Scheduler) -> None:
    causes: list[object] = []

    def work() -> None:
        scheduler.current.cause = "request"
        scheduler.run_all([lambda: causes.append(scheduler.cause())])

    scheduler.start(Process("a"), work)
    scheduler.run()
    assert causes == ["request"]


def test_a_run_without_end_is_stopped(scheduler: Scheduler) -> None:
    def work() -> None:
        while True:
            scheduler.pause(1)

    scheduler.start(Process("a"), work)
    with pytest.raises(Stuck):
        scheduler.run()
