"""Routes of jobs: what was started, and how far it is."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from aws_lambda_powertools.event_handler.openapi.params import Path
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter
from pydantic import BaseModel, Field

from control_plane.common import ALWAYS, NOT_FOUND, PAGE_DEFAULT, PageCursor, PageLimit, list_responses, namespace_of
from control_plane.links import FROM_JOBS, NEXT_JOBS
from control_plane.list_models import Page
from sluice.edge.documentation import answer, problems
from sluice.edge.models import ID_PATTERN
from sluice.edge.problems import rfc3339
from sluice.repository.jobs import Job
from sluice.services.listing import Listed, PageRequest
from sluice.shell import Services

JOBS: Final = "/v1/jobs"
JOB: Final = "/v1/jobs/<job>"
JOB_ROUTES: Final = dict.fromkeys((JOBS, JOB), ("GET",))

_JobPath = Annotated[str, Path(pattern=ID_PATTERN)]


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


class JobPage(Page):
    items: list[JobAnswer]

    @classmethod
    def of(cls, listed: Listed[Job]) -> "JobPage":
        return cls(items=[JobAnswer.of(job) for job in listed.items], next_cursor=listed.next_cursor)


_ONE: Final[dict[int, Any]] = {HTTPStatus.OK.value: answer(JobAnswer, "as it is now"), **problems(*ALWAYS, NOT_FOUND)}


def add_job_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    @router.get(JOBS, summary="Jobs, the newest first", responses=list_responses(JobPage, {**FROM_JOBS, **NEXT_JOBS}))
    def jobs(limit: PageLimit = PAGE_DEFAULT, cursor: PageCursor = None) -> JobPage:
        return JobPage.of(services.job_lists.of(namespace_of(router), PageRequest(limit, cursor)))

    @router.get(JOB, summary="One job and how far it is; kept for 30 days after its end", responses=_ONE)
    def job(job: _JobPath) -> JobAnswer:
        return JobAnswer.of(services.jobs.get(namespace_of(router), job))
