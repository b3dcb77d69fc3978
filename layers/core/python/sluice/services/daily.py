"""What is due once a day, a job for each kind. One of them: quiet buckets that were split become whole again."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Protocol

from sluice.core.errors import Contended
from sluice.repository import keys
from sluice.repository.enumeration import split_buckets_scan
from sluice.repository.items import Bucket, decode_bucket
from sluice.repository.jobs import Job
from sluice.repository.shapes import UnknownShape, wholes
from sluice.repository.store import Store
from sluice.repository.wire import Item, Value
from sluice.services.effects import Effects
from sluice.services.jobs import Jobs, Step, page_start

MERGE_SHARDS: Final = "merge_shards"
PAGE: Final = 100


class Merger(Protocol):
    def merge(self, first_image: Bucket) -> bool:
        """Whether the bucket of this shard 0 was merged."""
        ...


class Daily:
    """Starts the work of the day, each kind once: its id is the day's, in UTC. `kinds`: by how their ids begin."""

    def __init__(self, jobs: Jobs, effects: Effects, kinds: Mapping[str, str]) -> None:
        self._jobs = jobs
        self._effects = effects
        self._kinds = kinds
        # What was found to have been started needs no other look.
        self._started: set[str] = set()

    def start_due(self) -> int:
        """How many this call started. None while an earlier day's of its kind still runs."""
        today = datetime.fromtimestamp(self._effects.clock_ms() // 1000, UTC)
        wanted = {f"{name}-{today:%Y%m%d}": kind for name, kind in self._kinds.items()}
        self._started &= wanted.keys()
        return sum(self._start(job_id, kind) for job_id, kind in wanted.items() if job_id not in self._started)

    def _start(self, job_id: str, kind: str) -> bool:
        if self._jobs.find(keys.REGISTRY_NAMESPACE, job_id) is None:
            if any(job.kind == kind for job in self._jobs.open_jobs()):
                return False
            started = self._jobs.start_once(job_id, kind)
        else:
            started = False
        self._started.add(job_id)
        return started


class MergeShards:
    """Looks at every item of the table, a page at a time, for buckets with several shards."""

    def __init__(self, store: Store, merger: Merger) -> None:
        self._store = store
        self._merger = merger

    def step(self, job: Job) -> Step:
        page = self._store.scan(split_buckets_scan(page_start(job.cursor), PAGE))
        result = {"split": 0, "merged": 0, "busy": 0, "unreadable": 0} | wholes(
            {"so_far": dict(job.result or {})}, "so_far"
        )
        merged = 0
        for item in page.items:
            outcome = self._merge(item)
            result["split"] += 1
            merged += outcome == "merged"
            if outcome is not None:
                result[outcome] += 1
        cursor: dict[str, Value] | None = None if page.next_start is None else {"start": page.next_start}
        return Step(merged, cursor, result={**result})

    def _merge(self, item: Item) -> str | None:
        """One bucket that can not be merged today must not keep the others from it."""
        try:
            return "merged" if self._merger.merge(decode_bucket(item)) else None
        except Contended:
            return "busy"
        except UnknownShape:
            return "unreadable"
