"""What is due once a day: quiet buckets that were split become whole again."""

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
from sluice.services.jobs import Jobs, Step

MERGE_SHARDS: Final = "merge_shards"
PAGE: Final = 100


class Merger(Protocol):
    def merge(self, first_image: Bucket) -> bool:
        """Whether the bucket of this shard 0 was merged."""
        ...


class Daily:
    """Starts the work of the day, once: its id is the day's, in UTC."""

    def __init__(self, jobs: Jobs, effects: Effects) -> None:
        self._jobs = jobs
        self._effects = effects

    def start_due(self) -> bool:
        """Whether this call started it. Not while an earlier day's still runs."""
        today = datetime.fromtimestamp(self._effects.clock_ms() // 1000, UTC)
        job_id = f"merge-{today:%Y%m%d}"
        if self._jobs.find(keys.REGISTRY_NAMESPACE, job_id) is not None:
            return False
        if any(job.kind == MERGE_SHARDS for job in self._jobs.open_jobs()):
            return False
        return self._jobs.start_once(job_id, MERGE_SHARDS)


class MergeShards:
    """Looks at every item of the table, a page at a time, for buckets with several shards."""

    def __init__(self, store: Store, merger: Merger) -> None:
        self._store = store
        self._merger = merger

    def step(self, job: Job) -> Step:
        page = self._store.scan(split_buckets_scan(_start(job.cursor), PAGE))
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


def _start(cursor: Mapping[str, Value] | None) -> Item | None:
    if cursor is None:
        return None
    start = cursor.get("start")
    if not isinstance(start, dict):
        raise UnknownShape(cursor, "start is not a key")
    return start
