"""Routes of orgs: parse, call one service, answer."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Path
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from identity.links import FROM_CREDENTIALS, FROM_NEW_ORG, FROM_ORG, FROM_ORGS, FROM_PURGE
from identity.models import NewOrgAnswer, OrgAnswer, OrgBody, OrgPage, RotateBody, RotatedAnswer
from sluice.core.identity import Role
from sluice.edge.callers import author_of, caller_of
from sluice.edge.conventions import (
    ALWAYS,
    NOT_FOUND,
    PAGE_DEFAULT,
    IfMatch,
    PageCursor,
    PageLimit,
    get_responses,
    list_responses,
    put_responses,
)
from sluice.edge.documentation import answer, problems
from sluice.edge.etags import org_etag, org_if_match
from sluice.edge.job_answers import JobAnswer
from sluice.edge.models import ID_PATTERN
from sluice.repository.orgs import Org
from sluice.services.credentials import Rotated
from sluice.services.listing import PageRequest
from sluice.services.orgs import OrgPath
from sluice.shell import Services, clock_ms

ORGS: Final = "/v1/orgs"
ORG: Final = "/v1/orgs/<org>"
ROTATE_ORG: Final = "/v1/orgs/<org>/credentials/rotate"
ORG_ROUTES: Final = {ORGS: ("GET",), ORG: ("GET", "PUT", "DELETE"), ROTATE_ORG: ("POST",)}

OrgInPath = Annotated[str, Path(pattern=ID_PATTERN)]
IN_USE: Final = (HTTPStatus.CONFLICT, "in-use")
# No cache on the way may keep a secret.
NOT_STORED: Final = {"Cache-Control": "no-store"}
WITH_BODY: Final = (
    (HTTPStatus.TOO_MANY_REQUESTS, "contended"),
    (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "payload-too-large"),
    (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type"),
)
ROTATE_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.OK.value: answer(RotatedAnswer, "a new secret; the one before works until its end", FROM_CREDENTIALS),
    **problems(*ALWAYS, NOT_FOUND, (HTTPStatus.CONFLICT, "rotation-conflict"), IN_USE, *WITH_BODY),
}

_GET: Final[dict[int, Any]] = {**get_responses(OrgAnswer), **problems(IN_USE)}
_PUT: Final[dict[int, Any]] = {
    **put_responses(OrgAnswer, FROM_ORG),
    HTTPStatus.CREATED.value: answer(NewOrgAnswer, "created, with the credentials", FROM_NEW_ORG),
    **problems(IN_USE),
}
_DELETE: Final[dict[int, Any]] = {
    HTTPStatus.ACCEPTED.value: answer(JobAnswer, "the purge is started; its job is at Location", FROM_PURGE),
    **problems(
        *ALWAYS,
        NOT_FOUND,
        (HTTPStatus.PRECONDITION_FAILED, "precondition-failed"),
        (HTTPStatus.TOO_MANY_REQUESTS, "contended"),
    ),
}


def add_org_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    orgs = services.orgs

    @router.get(ORGS, summary="All orgs, by name", responses=list_responses(OrgPage, FROM_ORGS))
    def list_orgs(limit: PageLimit = PAGE_DEFAULT, cursor: PageCursor = None) -> OrgPage:
        """One that is being purged is left out."""
        return OrgPage.of(services.lists.orgs(PageRequest(limit, cursor)), clock_ms())

    @router.get(ORG, summary="The settings of an org", responses=_GET)
    def get_org(org: OrgInPath) -> Response[OrgAnswer]:
        found = orgs.get(org_path(router, org))
        return Response(
            status_code=HTTPStatus.OK,
            content_type="application/json",
            body=OrgAnswer.of(found, clock_ms()),
            headers={"ETag": org_etag(found)},
        )

    @router.put(ORG, summary="Create or change an org; null clears a field", responses=_PUT)
    def put_org(org: OrgInPath, body: OrgBody, match: IfMatch = None) -> Response[NewOrgAnswer | OrgAnswer]:
        """The client secret is in the answer that creates the org, and nowhere else."""
        done = orgs.put(org_path(router, org), body.to_org_change(), org_if_match(match), author=author_of(router))
        return _put_answer(done.org, done.client_secret)

    @router.delete(ORG, summary="Purge an org: everything that it has", responses=_DELETE)
    def delete_org(org: OrgInPath, match: IfMatch = None) -> Response[JobAnswer]:
        job = orgs.delete(org_path(router, org), org_if_match(match), author=author_of(router))
        return Response(
            status_code=HTTPStatus.ACCEPTED,
            content_type="application/json",
            body=JobAnswer.of(job),
            headers={"Location": f"/v1/jobs/{job.job_id}"},
        )

    @router.post(ROTATE_ORG, summary="A new client secret for an org", responses=ROTATE_RESPONSES)
    def rotate_org(org: OrgInPath, body: RotateBody) -> Response[RotatedAnswer]:
        return rotated(orgs.rotate(org_path(router, org), body.grace_period_hours, author=author_of(router)))


def org_path(router: APIGatewayHttpRouter, org: str) -> OrgPath:
    """An org's token is for its own namespace, whoever has its name now."""
    caller = caller_of(router)
    return OrgPath(org, None if caller.role is Role.OPERATOR else caller.namespace)


def rotated(done: Rotated) -> Response[RotatedAnswer]:
    return Response(
        status_code=HTTPStatus.OK,
        content_type="application/json",
        body=RotatedAnswer.of(done),
        headers=dict(NOT_STORED),
    )


def _put_answer(org: Org, secret: str | None) -> Response[NewOrgAnswer | OrgAnswer]:
    shown = OrgAnswer.of(org, clock_ms())
    if secret is None:
        return Response(
            status_code=HTTPStatus.OK,
            content_type="application/json",
            body=shown,
            headers={"ETag": org_etag(org)},
        )
    return Response(
        status_code=HTTPStatus.CREATED,
        content_type="application/json",
        body=NewOrgAnswer.model_validate({**shown.model_dump(by_alias=True), "client_secret": secret}),
        headers={"ETag": org_etag(org), **NOT_STORED},
    )
