"""What the routes of the control plane have in common: statuses, preconditions and how they are documented."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Header
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from sluice.edge.application import Caller
from sluice.edge.documentation import answer, problems

IfMatch = Annotated[str | None, Header(alias="if-match")]

ALWAYS: Final = (
    (HTTPStatus.BAD_REQUEST, "invalid-request"),
    (HTTPStatus.UNAUTHORIZED, "unauthorized"),
    (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
)
NOT_FOUND: Final = (HTTPStatus.NOT_FOUND, "not-found")
_CHANGE: Final = ((HTTPStatus.PRECONDITION_FAILED, "precondition-failed"), (HTTPStatus.TOO_MANY_REQUESTS, "contended"))

DELETE_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.NO_CONTENT.value: {"description": "removed"},
    **problems(*ALWAYS, NOT_FOUND, *_CHANGE),
}


def get_responses(model: type) -> dict[int, Any]:
    return {HTTPStatus.OK.value: answer(model, "as stored; its ETag is the version"), **problems(*ALWAYS, NOT_FOUND)}


def put_responses(model: type) -> dict[int, Any]:
    return {
        HTTPStatus.OK.value: answer(model, "changed"),
        HTTPStatus.CREATED.value: answer(model, "created"),
        **problems(
            *ALWAYS,
            *_CHANGE,
            (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "payload-too-large"),
            (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type"),
        ),
    }


def namespace_of(router: APIGatewayHttpRouter) -> str:
    caller: Caller = router.context["caller"]
    return caller.namespace


def removed() -> Response[str]:
    # An empty body, not none: the local engine fails on a null one.
    return Response(status_code=HTTPStatus.NO_CONTENT, body="")


def put_status(*, created: bool) -> HTTPStatus:
    return HTTPStatus.CREATED if created else HTTPStatus.OK
