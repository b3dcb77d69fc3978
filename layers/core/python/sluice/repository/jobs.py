"""Jobs: work that outlives a request, as one item that its runners hand to each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from sluice.repository import keys, schema
from sluice.repository.requests import PutRequest, QueryRequest
from sluice.repository.shapes import UnknownShape, check_kind, optional_text, optional_whole, text, whole
from sluice.repository.wire import Item, Value

JOB: Final = "job"
KEPT_S: Final = 30 * 86_400


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


_OPEN: Final = frozenset({JobState.QUEUED, JobState.RUNNING})


@dataclass(frozen=True, slots=True)
class Job:
    """`namespace`: what it works on; `key` says where it lives. `cursor`: from where to go on, None at the start.

    `done` counts in whatever unit the kind works; `total` is None where nobody knows it.
    """

    key: keys.Key
    job_id: str
    namespace: str
    kind: str
    state: JobState
    parameters: Mapping[str, Value]
    done: int
    total: int | None
    cursor: Mapping[str, Value] | None
    result: Mapping[str, Value] | None
    error: str | None
    version: int
    created_at_ms: int
    started_at_ms: int | None
    ended_at_ms: int | None

    @property
    def is_open(self) -> bool:
        return self.state in _OPEN

    @property
    def owner(self) -> str:
        """The namespace that GSI4 finds it under: a job of the registry stays when its namespace goes."""
        return self.namespace if keys.job(self.namespace, self.job_id) == self.key else keys.REGISTRY_NAMESPACE


def queued_job(owner: str, namespace: str, job_id: str, kind: str, parameters: Mapping[str, Value], now_ms: int) -> Job:
    """`owner`: in whose partition it lives, the namespace's own or the registry's."""
    return Job(
        key=keys.job(owner, job_id),
        job_id=job_id,
        namespace=namespace,
        kind=kind,
        state=JobState.QUEUED,
        parameters=parameters,
        done=0,
        total=None,
        cursor=None,
        result=None,
        error=None,
        version=1,
        created_at_ms=now_ms,
        started_at_ms=None,
        ended_at_ms=None,
    )


def put_job(job: Job) -> PutRequest:
    """A new job, unless one with its id is there."""
    return {"Item": encode_job(job, job.created_at_ms), "ConditionExpression": "attribute_not_exists(PK)"}


def replace_job(seen: Job, after: Job, now_ms: int) -> PutRequest:
    """What a step left behind. Of two runners one writes, and a job that was removed stays removed."""
    written = replace(after, version=seen.version + 1)
    return {
        "Item": encode_job(written, now_ms),
        "ConditionExpression": "v = :seen",
        "ExpressionAttributeValues": {":seen": seen.version},
    }


def open_jobs_query() -> QueryRequest:
    """The keys of all jobs that are not done, the oldest first."""
    return {
        "IndexName": schema.GSI3,
        "KeyConditionExpression": "GSI3PK = :open",
        "ExpressionAttributeValues": {":open": keys.OPEN_JOBS},
    }


def jobs_queries(owner: str, before: str | None, limit: int) -> Sequence[QueryRequest]:
    """The keys of an owner's jobs, the newest first: one query for each partition that they are spread over."""
    prefix = keys.jobs_of(owner)
    condition = "begins_with(GSI4SK, :first)"
    values: dict[str, Value] = {":first": prefix}
    if before is not None:
        condition = "GSI4SK BETWEEN :first AND :last"
        values[":last"] = keys.job(owner, before).pk
    return [
        {
            "IndexName": schema.GSI4,
            "KeyConditionExpression": f"GSI4PK = :partition AND {condition}",
            "ExpressionAttributeValues": {**values, ":partition": partition},
            "ScanIndexForward": False,
            "Limit": limit,
        }
        for partition in keys.namespace_partitions(owner)
    ]


def encode_job(job: Job, now_ms: int) -> Item:
    """In the index of open jobs only while it is open; it expires some time after its end."""
    item: Item = {
        **job.key.attributes,
        **keys.namespace_index(job.owner, job.key),
        "kind": JOB,
        "job_id": job.job_id,
        "job_kind": job.kind,
        "ns": job.namespace,
        "state": job.state.value,
        "parameters": dict(job.parameters),
        "done": job.done,
        "v": job.version,
        "created_at": job.created_at_ms,
        "updated_at": now_ms,
    }
    if job.is_open:
        item |= keys.open_job_index(job.job_id)
    optional: dict[str, Value] = {
        "total": job.total,
        "cursor": None if job.cursor is None else dict(job.cursor),
        "result": None if job.result is None else dict(job.result),
        "error": job.error,
        "started_at": job.started_at_ms,
        "ended_at": job.ended_at_ms,
        schema.TTL_ATTRIBUTE: None if job.ended_at_ms is None else job.ended_at_ms // 1000 + KEPT_S,
    }
    item |= {name: value for name, value in optional.items() if value is not None}
    return item


def decode_job(item: Mapping[str, Value]) -> Job:
    check_kind(item, JOB)
    return Job(
        key=keys.key_of(item),
        job_id=text(item, "job_id"),
        namespace=text(item, "ns"),
        kind=text(item, "job_kind"),
        state=_state(item),
        parameters=_optional_map(item, "parameters") or {},
        done=whole(item, "done"),
        total=optional_whole(item, "total"),
        cursor=_optional_map(item, "cursor"),
        result=_optional_map(item, "result"),
        error=optional_text(item, "error"),
        version=whole(item, "v"),
        created_at_ms=whole(item, "created_at"),
        started_at_ms=optional_whole(item, "started_at"),
        ended_at_ms=optional_whole(item, "ended_at"),
    )


def _state(item: Mapping[str, Value]) -> JobState:
    try:
        return JobState(text(item, "state"))
    except ValueError:
        raise UnknownShape(item, "state is not known") from None


def _optional_map(item: Mapping[str, Value], attribute: str) -> dict[str, Value] | None:
    if attribute not in item:
        return None
    value = item[attribute]
    if not isinstance(value, dict):
        raise UnknownShape(item, f"{attribute} is not a map")
    return value
