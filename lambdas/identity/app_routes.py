"""Routes of apps: parse, call one service, answer."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Path
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from identity.links import FROM_APP, FROM_APPS, FROM_NEW_APP
from identity.models import AppAnswer, AppBody, AppPage, NewAppAnswer, RotateBody, RotatedAnswer
from identity.org_routes import IN_USE, NOT_STORED, ROTATE_RESPONSES, OrgInPath, org_path, rotated
from sluice.edge.callers import author_of
from sluice.edge.conventions import (
    DELETE_RESPONSES,
    NOT_FOUND,
    PAGE_DEFAULT,
    IfMatch,
    PageCursor,
    PageLimit,
    get_responses,
    list_responses,
    put_responses,
    removed,
)
from sluice.edge.documentation import answer, problems
from sluice.edge.etags import app_etag, app_if_match
from sluice.edge.models import ID_PATTERN
from sluice.services.apps import AppOfOrg
from sluice.services.listing import PageRequest
from sluice.shell import Services

APPS: Final = "/v1/orgs/<org>/apps"
APP: Final = "/v1/orgs/<org>/apps/<app>"
ROTATE_APP: Final = "/v1/orgs/<org>/apps/<app>/credentials/rotate"
APP_ROUTES: Final = {APPS: ("GET",), APP: ("GET", "PUT", "DELETE"), ROTATE_APP: ("POST",)}

_AppPath = Annotated[str, Path(pattern=ID_PATTERN)]
_GET: Final[dict[int, Any]] = {**get_responses(AppAnswer), **problems(IN_USE)}
_LIST: Final[dict[int, Any]] = {**list_responses(AppPage, FROM_APPS, of_one=True), **problems(IN_USE)}
_PUT: Final[dict[int, Any]] = {
    **put_responses(AppAnswer, FROM_APP),
    HTTPStatus.CREATED.value: answer(NewAppAnswer, "created, with the credentials", FROM_NEW_APP),
    **problems(NOT_FOUND, IN_USE, (HTTPStatus.CONFLICT, "id-taken")),
}
_DELETE: Final[dict[int, Any]] = {**DELETE_RESPONSES, **problems(IN_USE)}


def add_app_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    apps = services.apps

    @router.get(APPS, summary="The apps of an org, by id", responses=_LIST)
    def list_apps(org: OrgInPath, limit: PageLimit = PAGE_DEFAULT, cursor: PageCursor = None) -> AppPage:
        return AppPage.of(apps.list(org_path(router, org), PageRequest(limit, cursor)))

    @router.get(APP, summary="What holds for an app, and what of it is the org's", responses=_GET)
    def get_app(org: OrgInPath, app: _AppPath) -> Response[AppAnswer]:
        return _answer(apps.get(org_path(router, org), app))

    @router.put(APP, summary="Create or change an app; null takes a field from the org", responses=_PUT)
    def put_app(
        org: OrgInPath, app: _AppPath, body: AppBody, match: IfMatch = None
    ) -> Response[NewAppAnswer | AppAnswer]:
        """The client secret is in the answer that creates the app, and nowhere else."""
        path = org_path(router, org)
        return _put_answer(apps.put(path, app, body.to_change(), app_if_match(match), author=author_of(router)))

    @router.delete(
        APP, summary="Remove an app with its entity, limits, budget, buckets and credentials", responses=_DELETE
    )
    def delete_app(org: OrgInPath, app: _AppPath, match: IfMatch = None) -> Response[str]:
        apps.delete(org_path(router, org), app, app_if_match(match), author=author_of(router))
        return removed()

    @router.post(ROTATE_APP, summary="A new client secret for an app", responses=ROTATE_RESPONSES)
    def rotate_app(org: OrgInPath, app: _AppPath, body: RotateBody) -> Response[RotatedAnswer]:
        return rotated(apps.rotate(org_path(router, org), app, body.grace_period_hours, author=author_of(router)))


def _answer(found: AppOfOrg) -> Response[AppAnswer]:
    return Response(
        status_code=HTTPStatus.OK,
        content_type="application/json",
        body=AppAnswer.of(found),
        headers={"ETag": app_etag(found.app)},
    )


def _put_answer(done: AppOfOrg) -> Response[NewAppAnswer | AppAnswer]:
    shown = AppAnswer.of(done)
    if done.client_secret is None:
        return Response(
            status_code=HTTPStatus.OK,
            content_type="application/json",
            body=shown,
            headers={"ETag": app_etag(done.app)},
        )
    return Response(
        status_code=HTTPStatus.CREATED,
        content_type="application/json",
        body=NewAppAnswer.model_validate({**shown.model_dump(), "client_secret": done.client_secret}),
        headers={"ETag": app_etag(done.app), **NOT_STORED},
    )
