"""What configuration routes have in common: statuses, preconditions, pages and how they are documented."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Header, Query
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter
from pydantic import BaseModel, Field

from sluice.edge.callers import caller_of
from sluice.edge.documentation import NO_LINKS, Links, answer, problems

PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 100
# The longest ids make cursors of about half this length.
CURSOR_MAX: Final = 2048

PageLimit = Annotated[int, Query(ge=1, le=PAGE_MAX)]
PageCursor = Annotated[str | None, Query(max_length=CURSOR_MAX)]
IfMatch = Annotated[str | None, Header(alias="if-match")]


class Page(BaseModel):
    next_cursor: str | None = Field(description="the next page; null if there is none")


ALWAYS: Final = (
    (HTTPStatus.BAD_REQUEST, "invalid-request"),
    (HTTPStatus.UNAUTHORIZED, "unauthorized"),
    (HTTPStatus.FORBIDDEN, "forbidden"),
    (HTTPStatus.FORBIDDEN, "suspended"),
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


def put_responses(model: type, links: Links) -> dict[int, Any]:
    return {
        HTTPStatus.OK.value: answer(model, "changed", links),
        HTTPStatus.CREATED.value: answer(model, "created", links),
        **problems(
            *ALWAYS,
            *_CHANGE,
            (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "payload-too-large"),
            (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type"),
        ),
    }


def list_responses(model: type, links: Links = NO_LINKS, *, of_one: bool = False) -> dict[int, Any]:
    """`of_one`: the list belongs to something that may not be there."""
    found = answer(model, "a page; what was written a moment ago may be missing", links)
    return {HTTPStatus.OK.value: found, **problems(*ALWAYS, *((NOT_FOUND,) if of_one else ()))}


def namespace_of(router: APIGatewayHttpRouter) -> str:
    return caller_of(router).namespace


def removed() -> Response[str]:
    # An empty body, not none: the local engine fails on a null one.
    return Response(status_code=HTTPStatus.NO_CONTENT, body="")


def put_status(*, created: bool) -> HTTPStatus:
    return HTTPStatus.CREATED if created else HTTPStatus.OK
