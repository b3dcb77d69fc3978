"""A job as the API shows it."""

from typing import Any

from pydantic import BaseModel, Field

from sluice.edge.problems import rfc3339
from sluice.repository.jobs import Job


class JobAnswer(BaseModel):
    id: str
    kind: str
    state: str = Field(description="queued, running, done or failed")
    done: int = Field(description="how much was done, in whatever unit this kind counts")
    total: int | None = Field(description="of how much, where that is known")
    error: str | None = Field(description="the kind of error that ended it")
    result: dict[str, Any] | None
    started_at: str | None
    ended_at: str | None

    @classmethod
    def of(cls, job: Job) -> "JobAnswer":
        return cls(
            id=job.job_id,
            kind=job.kind,
            state=job.state.value,
            done=job.done,
            total=job.total,
            error=job.error,
            result=None if job.result is None else dict(job.result),
            started_at=None if job.started_at_ms is None else rfc3339(job.started_at_ms),
            ended_at=None if job.ended_at_ms is None else rfc3339(job.ended_at_ms),
        )
