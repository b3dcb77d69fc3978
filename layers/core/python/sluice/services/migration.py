"""The migration of a namespace to today's layout: a job that scans the table while traffic goes on.

The first pass brings entities and limits into today's shape, so that traffic can be admitted, and counts the old
buckets. The passes after it move them. The migration ends with a pass that found nothing: then the version is set, and
traffic stops looking for old items. Old clients must be stopped before that; while they still write, passes go on, up
to PASSES_MAX, and then the job fails and leaves the fall-back in place.

Each item is moved by a write that can happen only once, so a page that is worked on again changes nothing. A dry run is
one pass that only counts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sluice.core.audit import SYSTEM_SUBJECT, Action, Author
from sluice.core.backoff import contended_wait_ms
from sluice.core.errors import Contended, InUse, InvalidRequest
from sluice.repository import keys
from sluice.repository.audit import AuditEvent, audit_put
from sluice.repository.jobs import Job
from sluice.repository.legacy import LegacyItem, bucket_filter, decode_legacy
from sluice.repository.legacy_settings import (
    LegacyLimits,
    LegacySetting,
    decode_setting,
    drop_setting,
    is_one_limit,
    is_setting,
    setting_filter,
    setting_key,
    setting_writes,
)
from sluice.repository.requests import ScanRequest, TransactWrite
from sluice.repository.shapes import UnknownShape, text, whole, wholes
from sluice.repository.store import Committed, Store
from sluice.repository.versions import SchemaVersion, decode_version, finish_migration, start_migration
from sluice.repository.wire import Item, Value
from sluice.services.effects import Effects
from sluice.services.jobs import Jobs, Step
from sluice.services.legacy import BucketName, LegacyBuckets

MIGRATION: Final = "migration"
PAGE: Final = 100
PASSES_MAX: Final = 20
_WRITE_ROUNDS: Final = 4

_COUNTS: Final = (
    "layout_1",
    "layout_2",
    "layout_3",
    "entities",
    "limits",
    "limits_left_out",
    "limit_items_left",
    "superseded",
)


class StillWritten(Exception):
    """Old items were found in every pass: old clients still make them."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a migration is. `found`: old items that this pass may have left; `unreadable`: what nobody understands."""

    passes: int = 1
    found: int = 0
    unreadable: int = 0
    start: Item | None = None

    @property
    def moves_buckets(self) -> bool:
        return self.passes > 1

    def cursor(self) -> dict[str, Value]:
        cursor: dict[str, Value] = {"passes": self.passes, "found": self.found, "unreadable": self.unreadable}
        if self.start is not None:
            cursor["start"] = self.start
        return cursor

    @classmethod
    def read(cls, cursor: Mapping[str, Value] | None) -> "_Place":
        if cursor is None:
            return cls()
        start = cursor.get("start")
        if start is not None and not isinstance(start, dict):
            raise UnknownShape(cursor, "start is not a key")
        return cls(whole(cursor, "passes"), whole(cursor, "found"), whole(cursor, "unreadable"), start)


@dataclass(slots=True)
class _Tally:
    """What one step saw and did. `left`: old items that are, or may be, still there for another pass.

    `buckets`: those that it has moved; other items of theirs went with them.
    """

    counts: Counter[str]
    buckets: set[tuple[str, str]] = field(default_factory=set)
    done: int = 0
    left: int = 0
    unreadable: int = 0


class Migrations:
    """The service behind POST /v1/migrations."""

    def __init__(self, store: Store, jobs: Jobs, effects: Effects) -> None:
        self._store = store
        self._jobs = jobs
        self._effects = effects

    def start(self, namespace: str, author: Author, *, dry_run: bool, legacy_namespace: str | None = None) -> Job:
        """`legacy_namespace`: under which id the old items stand; empty for a table from before namespaces."""
        prefix = self._prefix(namespace, legacy_namespace)
        parameters: dict[str, Value] = {"dry_run": dry_run, "legacy_prefix": prefix}
        job, put = self._jobs.start_writes(namespace, MIGRATION, parameters)
        event = AuditEvent(
            event_id=job.job_id,
            subject=SYSTEM_SUBJECT,
            at_ms=job.created_at_ms,
            author=author,
            action=Action.MIGRATION_START,
            target="migrations",
            before=None,
            after={"job_id": job.job_id, **parameters},
        )
        for _ in range(_WRITE_ROUNDS):
            writes = [put, audit_put(namespace, event)]
            version = decode_version(self._store.get(keys.schema_version(namespace), consistent=True))
            if version.job_id == job.job_id:
                # An earlier try of this very transaction was applied, and its answer lost.
                return job
            if not dry_run:
                self._require_idle(namespace, version)
                writes.append({"Put": start_migration(namespace, version, job.job_id, prefix, job.created_at_ms)})
            if isinstance(self._store.transact(writes, self._effects.new_token()), Committed):
                return job
            if dry_run and self._jobs.find(namespace, job.job_id) is not None:
                return job
        raise Contended(contended_wait_ms(self._effects.random_below))

    def _prefix(self, namespace: str, legacy_namespace: str | None) -> str:
        if legacy_namespace is None or legacy_namespace == namespace:
            return keys.namespace_prefix(namespace)
        if not legacy_namespace:
            return ""
        record = self._store.get(keys.namespace_by_id(legacy_namespace), consistent=True)
        if legacy_namespace == keys.REGISTRY_NAMESPACE or (record is not None and "kind" in record):
            raise InvalidRequest("legacy_namespace", "is in use: its items are not old ones")
        return keys.namespace_prefix(legacy_namespace)

    def _require_idle(self, namespace: str, version: SchemaVersion) -> None:
        """A migration whose job failed is started again; its fall-back has gone on meanwhile."""
        if version.job_id is None:
            return
        running = self._jobs.find(namespace, version.job_id)
        if running is not None and running.is_open:
            raise InUse("a migration of this namespace is running")


class Migrate:
    """The work of a migration's job."""

    def __init__(self, store: Store, buckets: LegacyBuckets, effects: Effects) -> None:
        self._store = store
        self._buckets = buckets
        self._effects = effects

    def step(self, job: Job) -> Step:
        place = _Place.read(job.cursor)
        if place.passes > PASSES_MAX:
            raise StillWritten
        prefix = text(job.parameters, "legacy_prefix")
        dry_run = job.parameters.get("dry_run") is True
        page = self._store.scan(_scan(prefix, place.start))
        tally = _Tally(_counted(job))
        for item in page.items:
            try:
                if is_one_limit(item):
                    tally.counts["limit_items_left"] += not place.moves_buckets
                elif dry_run:
                    _count(item, prefix, tally)
                elif is_setting(item):
                    self._move_setting(job.namespace, decode_setting(item, prefix, self._effects.clock_ms()), tally)
                elif place.moves_buckets:
                    self._move_bucket(job.namespace, decode_legacy(item, prefix), prefix, tally)
                else:
                    decode_legacy(item, prefix)
                    tally.left += 1
            except UnknownShape:
                tally.unreadable += 1
        place = replace(
            place,
            found=place.found + tally.left,
            unreadable=place.unreadable + tally.unreadable,
            start=page.next_start,
        )
        return self._after(job, place, tally, dry_run=dry_run)

    def _after(self, job: Job, place: _Place, tally: _Tally, *, dry_run: bool) -> Step:
        result: dict[str, Value] = {**tally.counts, "unreadable": place.unreadable, "passes": place.passes}
        done = job.done + tally.done
        if place.start is not None:
            return Step(tally.done, place.cursor(), result=result)
        if dry_run:
            return Step(tally.done, None, total=done, result=result)
        if place.found or not place.moves_buckets:
            total = done + place.found if not place.moves_buckets else None
            return Step(tally.done, _Place(place.passes + 1).cursor(), total=total, result=result)
        # The condition fails on what an earlier run of this step did, or on a migration that was started since.
        self._store.put(finish_migration(job.namespace, job.job_id, self._effects.clock_ms()), repeatable=True)
        return Step(tally.done, None, total=done, result=result)

    def _move_bucket(self, namespace: str, item: LegacyItem, prefix: str, tally: _Tally) -> None:
        # Whatever becomes of it, only the next pass can tell that nothing was left.
        tally.left += 1
        if (item.entity, item.resource) in tally.buckets:
            return
        tally.buckets.add((item.entity, item.resource))
        try:
            moved = self._buckets.move(BucketName(namespace, item.entity, item.resource, prefix), item.shard_count)
        except Contended:
            return
        tally.done += len(moved.parts)
        tally.counts.update(_layout(part) for part in moved.parts)

    def _move_setting(self, namespace: str, setting: LegacySetting, tally: _Tally) -> None:
        tally.left += 1
        if self._committed(setting_writes(namespace, setting)):
            tally.counts[_kind(setting)] += 1
            tally.counts["limits_left_out"] += setting.left_out if isinstance(setting, LegacyLimits) else 0
        else:
            today = setting_key(namespace, setting)
            if today == setting.key or self._store.get(today, consistent=True) is None:
                return
            # Somebody has defined it anew: that is what holds.
            if not self._committed([drop_setting(setting)]):
                return
            tally.counts["superseded"] += 1
        tally.left -= 1
        tally.done += 1

    def _committed(self, writes: Sequence[TransactWrite]) -> bool:
        return isinstance(self._store.transact(writes, self._effects.new_token()), Committed)


def _scan(prefix: str, start: Item | None) -> ScanRequest:
    buckets, bucket_values = bucket_filter(prefix)
    settings, setting_values = setting_filter(prefix)
    request: ScanRequest = {
        "FilterExpression": f"({buckets}) OR ({settings})",
        "ExpressionAttributeValues": {**bucket_values, **setting_values},
        "ConsistentRead": True,
        "Limit": PAGE,
    }
    if start is not None:
        request["ExclusiveStartKey"] = start
    return request


def _counted(job: Job) -> Counter[str]:
    so_far = wholes({"so_far": dict(job.result or {})}, "so_far")
    return Counter({name: so_far.get(name, 0) for name in _COUNTS})


def _count(item: Item, prefix: str, tally: _Tally) -> None:
    if is_setting(item):
        setting = decode_setting(item, prefix, 0)
        tally.counts[_kind(setting)] += 1
        tally.counts["limits_left_out"] += setting.left_out if isinstance(setting, LegacyLimits) else 0
    else:
        tally.counts[_layout(decode_legacy(item, prefix))] += 1
    tally.done += 1


def _layout(item: LegacyItem) -> str:
    return f"layout_{item.layout}"


def _kind(setting: LegacySetting) -> str:
    return "limits" if isinstance(setting, LegacyLimits) else "entities"
