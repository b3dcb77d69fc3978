"""Routes of jobs: what was started, and how far it is."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from aws_lambda_powertools.event_handler.openapi.params import Path, Query
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from control_plane.links import FROM_JOBS, NEXT_JOBS
from sluice.core.errors import NotFound
from sluice.core.identity import Role
from sluice.edge.callers import caller_of
from sluice.edge.conventions import (
    ALWAYS,
    NOT_FOUND,
    PAGE_DEFAULT,
    Page,
    PageCursor,
    PageLimit,
    list_responses,
)
from sluice.edge.documentation import answer, problems
from sluice.edge.job_answers import JobAnswer
from sluice.edge.models import ID_PATTERN
from sluice.repository.jobs import Job
from sluice.services.listing import Listed, PageRequest
from sluice.shell import Services

JOBS: Final = "/v1/jobs"
JOB: Final = "/v1/jobs/<job>"
JOB_ROUTES: Final = dict.fromkeys((JOBS, JOB), ("GET",))

_JobPath = Annotated[str, Path(pattern=ID_PATTERN)]
# The operator sees the purges, and with this the jobs of an org.
_Org = Annotated[str | None, Query(pattern=ID_PATTERN)]


class JobPage(Page):
    items: list[JobAnswer]

    @classmethod
    def of(cls, listed: Listed[Job]) -> "JobPage":
        return cls(items=[JobAnswer.of(job) for job in listed.items], next_cursor=listed.next_cursor)


_ONE: Final[dict[int, Any]] = {HTTPStatus.OK.value: answer(JobAnswer, "as it is now"), **problems(*ALWAYS, NOT_FOUND)}


def add_job_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    def owner(org: str | None) -> str:
        caller = caller_of(router)
        if org is None:
            return caller.namespace
        if caller.role is Role.OPERATOR:
            return services.namespaces.get(org).namespace_id
        if org != caller.entity:
            raise NotFound("there is no such namespace")
        return caller.namespace

    @router.get(
        JOBS,
        summary="Jobs, the newest first",
        responses=list_responses(JobPage, {**FROM_JOBS, **NEXT_JOBS}, of_one=True),
    )
    def jobs(limit: PageLimit = PAGE_DEFAULT, cursor: PageCursor = None, org: _Org = None) -> JobPage:
        return JobPage.of(services.job_lists.of(owner(org), PageRequest(limit, cursor)))

    @router.get(JOB, summary="One job and how far it is; kept for 30 days after its end", responses=_ONE)
    def job(job: _JobPath, org: _Org = None) -> JobAnswer:
        return JobAnswer.of(services.jobs.get(owner(org), job))
