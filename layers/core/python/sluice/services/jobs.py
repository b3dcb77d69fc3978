"""Jobs: work that is too long for a request, done in bounded steps from a cursor.

A step does one page of work and must be idempotent: after a crash, or beside a second runner, the same step runs again.
After each step its progress is written on the version that was seen, so of two runners one stops, and whoever goes on
starts from a cursor that is never ahead of the work.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from sluice.core.errors import Contended, NotFound, Unavailable
from sluice.core.signals import Signal
from sluice.repository import keys
from sluice.repository.jobs import (
    Job,
    JobState,
    decode_job,
    jobs_queries,
    open_jobs_query,
    put_job,
    queued_job,
    replace_job,
)
from sluice.repository.requests import TransactWrite
from sluice.repository.shapes import UnknownShape
from sluice.repository.store import Applied, Store
from sluice.repository.wire import Item, Value
from sluice.services.effects import Effects

# More than these wait for the next minute; ids begin with the time, so the oldest come first.
OPEN_MAX: Final = 1_000
PAGE_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did. `cursor`: from where the next one goes on; None when there is nothing left to do.

    `total` and `result` replace what the job has, None keeps it. `rest`: there is nothing to do until the next run.
    """

    done_more: int
    cursor: Mapping[str, Value] | None
    total: int | None = None
    result: Mapping[str, Value] | None = None
    rest: bool = False


class Work(Protocol):
    """One kind of job."""

    def step(self, job: Job) -> Step: ...


class Start(NamedTuple):
    """A job that does not exist before `write` is part of a committed transaction."""

    job: Job
    write: TransactWrite


@dataclass(frozen=True, slots=True)
class Failure:
    kind: str
    error: Exception


@dataclass(frozen=True, slots=True)
class Run:
    """What one call of `run_open` did. `left`: jobs that are still open, as far as this run knows."""

    steps: int
    finished: int
    failures: Sequence[Failure]
    left: int


@dataclass(frozen=True, slots=True)
class JobPage:
    """The newest first; `next_before` continues."""

    jobs: Sequence[Job]
    next_before: str | None


class Jobs:
    def __init__(self, store: Store, effects: Effects) -> None:
        self._store = store
        self._effects = effects

    def start(self, namespace: str, kind: str, parameters: Mapping[str, Value], *, registry: bool = False) -> Job:
        """Queues a job; the next scheduled run takes it up."""
        start = self.start_writes(namespace, kind, parameters, registry=registry)
        # The id was drawn for this job: one that is there already is this very job, after a lost answer.
        self._store.put(put_job(start.job), repeatable=True)
        return start.job

    def start_writes(
        self, namespace: str, kind: str, parameters: Mapping[str, Value], *, registry: bool = False
    ) -> Start:
        """For whoever starts a job in the transaction of its cause. `registry`: the job outlives the namespace."""
        owner = keys.REGISTRY_NAMESPACE if registry else namespace
        now_ms = self._effects.clock_ms()
        job = queued_job(owner, namespace, f"{now_ms:012x}{self._effects.new_token()[:20]}", kind, parameters, now_ms)
        return Start(job, {"Put": put_job(job)})

    def start_once(self, job_id: str, kind: str) -> bool:
        """A job of the registry with an id that makes it once. Whether this call started it."""
        owner = keys.REGISTRY_NAMESPACE
        job = queued_job(owner, owner, job_id, kind, {}, self._effects.clock_ms())
        return isinstance(self._store.put(put_job(job), repeatable=True), Applied)

    def get(self, namespace: str, job_id: str) -> Job:
        """A job of the registry is found under `keys.REGISTRY_NAMESPACE`."""
        found = self.find(namespace, job_id)
        if found is None:
            raise NotFound("there is no such job")
        return found

    def find(self, namespace: str, job_id: str) -> Job | None:
        item = self._store.get(keys.job(namespace, job_id), consistent=True)
        return None if item is None else decode_job(item)

    def list(self, namespace: str, *, limit: int = PAGE_MAX, before: str | None = None) -> JobPage:
        """A page of a namespace's jobs. The index lags: a job that was just started may come a moment later."""
        # One more to know whether there are others, and one for `before` itself, which its own query finds again.
        requests = jobs_queries(namespace, before, limit + 2)
        found = {keys.key_of(item) for request in requests for item in self._store.query(request).items}
        if before is not None:
            found.discard(keys.job(namespace, before))
        newest = sorted(found, reverse=True)
        items = self._store.batch_get(newest[:limit])
        jobs = sorted(map(decode_job, items), key=lambda job: job.job_id, reverse=True)
        return JobPage(jobs, jobs[-1].job_id if jobs and len(newest) > limit else None)

    def open_jobs(self) -> Sequence[Job]:
        """All jobs that are not done, as far as the index knows, each as it is now."""
        jobs, _ = _decoded(self._open_items())
        return jobs

    def _open_items(self) -> Sequence[Item]:
        found: list[keys.Key] = []
        start: Item | None = None
        while len(found) < OPEN_MAX:
            request = open_jobs_query()
            if start is not None:
                request["ExclusiveStartKey"] = start
            page = self._store.query(request)
            found += [keys.key_of(item) for item in page.items]
            start = page.next_start
            if start is None:
                break
        return self._store.batch_get(found[:OPEN_MAX], consistent=True)

    def run_open(self, kinds: Mapping[str, Work], out_of_time: Callable[[], bool]) -> Run:
        """Works on the open jobs in turn, a step each, until all are done or the time is up.

        A kind that is not known stays open: another version of the product may know it.
        """
        still_open, failures = _decoded(self._open_items())
        for _ in failures:
            self._effects.meter.count(Signal.JOBS_FAILED)
        known = deque(job for job in still_open if job.kind in kinds)
        unknown = len(still_open) - len(known)
        if known:
            # Nobody is always first: with many jobs a run may end before each had its turn.
            known.rotate(self._effects.random_below(len(known)))
        steps = finished = resting = 0
        while known and not out_of_time():
            job = known.popleft()
            outcome = self._take_step(job, kinds[job.kind])
            steps += 1
            if isinstance(outcome, Failure):
                failures.append(outcome)
            elif outcome is None:
                resting += 1
            elif outcome.is_open:
                known.append(outcome)
            else:
                finished += 1
        return Run(steps, finished, failures, len(known) + resting + unknown)

    def _take_step(self, job: Job, work: Work) -> Job | Failure | None:
        """The job as it is afterwards; None when there is nothing more to do about it in this run."""
        started_ms = self._effects.clock_ms()
        self._effects.meter.count(Signal.JOB_STEPS)
        try:
            step = work.step(job)
            after = self._write(job, _advanced(job, step, started_ms, self._effects.clock_ms()))
        except (Unavailable, Contended):
            return None
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one job, the others must go on
            self._effects.meter.count(Signal.JOBS_FAILED)
            self._write(job, _failed(job, error, started_ms, self._effects.clock_ms()))
            return Failure(job.kind, error)
        return None if step.rest and after is not None and after.is_open else after

    def _write(self, seen: Job, after: Job) -> Job | None:
        """None: another runner was faster, the job was removed, or the table does not answer."""
        try:
            outcome = self._store.put(replace_job(seen, after, self._effects.clock_ms()), repeatable=True)
        except (Unavailable, Contended):
            return None
        return replace(after, version=seen.version + 1) if isinstance(outcome, Applied) else None


def page_start(cursor: Mapping[str, Value] | None) -> Item | None:
    """Where the next page begins, for a cursor that keeps it under `start`."""
    start = None if cursor is None else cursor.get("start")
    if start is not None and not isinstance(start, dict):
        raise UnknownShape({} if cursor is None else cursor, "start is not a key")
    return start


def _advanced(job: Job, step: Step, started_ms: int, now_ms: int) -> Job:
    finished = step.cursor is None
    return replace(
        job,
        state=JobState.DONE if finished else JobState.RUNNING,
        done=job.done + step.done_more,
        total=job.total if step.total is None else step.total,
        cursor=step.cursor,
        result=job.result if step.result is None else step.result,
        started_at_ms=started_ms if job.started_at_ms is None else job.started_at_ms,
        ended_at_ms=now_ms if finished else None,
    )


def _failed(job: Job, error: Exception, started_ms: int, now_ms: int) -> Job:
    """Only the error's type is shown: its text may hold ids."""
    return replace(
        job,
        state=JobState.FAILED,
        error=type(error).__name__,
        started_at_ms=started_ms if job.started_at_ms is None else job.started_at_ms,
        ended_at_ms=now_ms,
    )


def _decoded(items: Sequence[Item]) -> tuple[list[Job], list[Failure]]:
    """The open ones, the oldest first. One that can not be read is a failure of its own, and stays as it is."""
    jobs: list[Job] = []
    failures: list[Failure] = []
    for item in items:
        try:
            jobs.append(decode_job(item))
        except UnknownShape as error:
            failures.append(Failure("unknown", error))
    return sorted((job for job in jobs if job.is_open), key=_age), failures


def _age(job: Job) -> tuple[int, str]:
    return job.created_at_ms, job.job_id
