"""The route of migrations: parse, call one service, answer."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter
from pydantic import Field

from control_plane.links import FROM_STARTED_JOB
from sluice.edge.callers import author_of
from sluice.edge.conventions import ALWAYS, NOT_FOUND
from sluice.edge.documentation import answer, problems
from sluice.edge.job_answers import JobAnswer
from sluice.edge.models import Id, Strict
from sluice.shell import Services

MIGRATIONS: Final = "/v1/migrations"
MIGRATION_ROUTES: Final = {MIGRATIONS: ("POST",)}

_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.ACCEPTED.value: answer(JobAnswer, "started; its job is at Location", FROM_STARTED_JOB),
    **problems(
        *ALWAYS,
        NOT_FOUND,
        (HTTPStatus.CONFLICT, "in-use"),
        (HTTPStatus.TOO_MANY_REQUESTS, "contended"),
        (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "payload-too-large"),
        (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type"),
    ),
}


class MigrationBody(Strict):
    org: Id
    dry_run: bool = Field(default=False, description="only count what there is to move")
    legacy_namespace: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,64}$")] | None = Field(
        default=None,
        description="under which id the old items stand, if not that of the org; empty for a table from before ids",
    )


def add_migration_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    @router.post(MIGRATIONS, summary="Bring items of older layouts into today's", responses=_RESPONSES)
    def start_migration(body: MigrationBody) -> Response[JobAnswer]:
        namespace = services.namespaces.get(body.org)
        job = services.migrations.start(
            namespace.namespace_id,
            author_of(router),
            dry_run=body.dry_run,
            legacy_namespace=body.legacy_namespace,
        )
        return Response(
            status_code=HTTPStatus.ACCEPTED,
            content_type="application/json",
            body=JobAnswer.of(job),
            headers={"Location": f"/v1/jobs/{job.job_id}?org={body.org}"},
        )
