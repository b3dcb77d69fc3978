"""Routes of selection: parse, call one service, answer."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from data_plane.links import FROM_OVERRIDE, FROM_SELECTION
from data_plane.selection_models import OverrideAnswer, OverrideBody, SelectionAnswer
from sluice.edge.callers import author_of, caller_of
from sluice.edge.conventions import ALWAYS, NOT_FOUND, put_status, removed
from sluice.edge.documentation import answer, problems
from sluice.edge.models import ID_PATTERN, REGION_PATTERN
from sluice.edge.times import time_ms
from sluice.services.overrides import Wanted
from sluice.shell import Services

SELECTION: Final = "/v1/selection"
OVERRIDE: Final = "/v1/selection/override"

SELECTION_ROUTES: Final = {SELECTION: ("GET",), OVERRIDE: ("PUT", "DELETE")}

_Entity = Annotated[str | None, Query(pattern=ID_PATTERN)]
_Region = Annotated[str | None, Query(pattern=REGION_PATTERN)]

_UNKNOWN_LABEL: Final = (HTTPStatus.UNPROCESSABLE_ENTITY, "unknown-label")
_CONTENDED: Final = (HTTPStatus.TOO_MANY_REQUESTS, "contended")
_SELECTION_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.OK.value: answer(SelectionAnswer, "the label to use now", FROM_SELECTION),
    **problems(*ALWAYS, NOT_FOUND, _UNKNOWN_LABEL, (HTTPStatus.TOO_MANY_REQUESTS, "all-quotas-exceeded")),
}
_PUT_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.OK.value: answer(OverrideAnswer, "replaced", FROM_OVERRIDE),
    HTTPStatus.CREATED.value: answer(OverrideAnswer, "created", FROM_OVERRIDE),
    **problems(
        *ALWAYS,
        NOT_FOUND,
        _UNKNOWN_LABEL,
        _CONTENDED,
        (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "payload-too-large"),
        (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type"),
    ),
}
_DELETE_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.NO_CONTENT.value: {"description": "removed"},
    **problems(*ALWAYS, NOT_FOUND, _CONTENDED),
}


def add_selection_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    overrides, selection = services.money.overrides, services.money.selection

    @router.get(SELECTION, summary="Which label to use now, and when to ask again", responses=_SELECTION_RESPONSES)
    def select(entity: _Entity = None, region: _Region = None) -> SelectionAnswer:
        """By the quotas of the entity's app, or else of the org. `region`: for models and prices that differ by it."""
        caller = caller_of(router)
        asked = entity or str(caller.entity)
        return SelectionAnswer.of(selection.select_for(caller.namespace, asked, region, within=caller.within))

    @router.put(OVERRIDE, summary="Set the label for the rest of the local day", responses=_PUT_RESPONSES)
    def put_override(body: OverrideBody) -> Response[OverrideAnswer]:
        """Whatever was spent. It holds for the whole app that the entity belongs to, or else for the org."""
        caller = caller_of(router)
        until_ms = None if body.until is None else time_ms("until", body.until)
        wanted = Wanted(body.label, body.reason, until_ms)
        done = overrides.put(caller.namespace, body.entity, wanted, within=caller.within, author=author_of(router))
        status = put_status(created=done.created)
        return Response(status_code=status, content_type="application/json", body=OverrideAnswer.of(done))

    @router.delete(OVERRIDE, summary="Let selection go on by itself", responses=_DELETE_RESPONSES)
    def delete_override(entity: _Entity = None) -> Response[str]:
        caller = caller_of(router)
        overrides.remove(caller.namespace, entity or str(caller.entity), within=caller.within, author=author_of(router))
        return removed()
