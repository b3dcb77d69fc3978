"""Routes of labels: parse, call one service, answer."""

from http import HTTPStatus
from typing import Annotated, Final

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Path
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from control_plane.label_models import LabelAnswer, LabelBody, LabelPage
from control_plane.links import FROM_LABEL, FROM_LABELS, NEXT_LABELS
from sluice.core.labels import LabelDefinition
from sluice.edge.callers import author_of
from sluice.edge.conventions import (
    DELETE_RESPONSES,
    PAGE_DEFAULT,
    IfMatch,
    PageCursor,
    PageLimit,
    get_responses,
    list_responses,
    namespace_of,
    put_responses,
    put_status,
    removed,
)
from sluice.edge.etags import label_etag, label_if_match
from sluice.edge.models import ID_PATTERN
from sluice.services.listing import PageRequest
from sluice.shell import Services

LABELS: Final = "/v1/labels"
LABEL: Final = "/v1/labels/<label>"
LABEL_ROUTES: Final = {LABELS: ("GET",), LABEL: ("GET", "PUT", "DELETE")}

_LabelPath = Annotated[str, Path(pattern=ID_PATTERN)]


def add_label_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    labels = services.money.labels

    @router.get(
        LABELS, summary="All labels, by name", responses=list_responses(LabelPage, {**FROM_LABELS, **NEXT_LABELS})
    )
    def list_labels(limit: PageLimit = PAGE_DEFAULT, cursor: PageCursor = None) -> LabelPage:
        return LabelPage.of(labels.list(namespace_of(router), PageRequest(limit, cursor)))

    @router.get(LABEL, summary="What a label stands for", responses=get_responses(LabelAnswer))
    def get_label(label: _LabelPath) -> Response[LabelAnswer]:
        return _answer(labels.get(namespace_of(router), label), HTTPStatus.OK)

    @router.put(
        LABEL,
        summary="Define a label, or replace its definition",
        responses=put_responses(LabelAnswer, FROM_LABEL),
    )
    def put_label(label: _LabelPath, body: LabelBody, match: IfMatch = None) -> Response[LabelAnswer]:
        done = labels.put(
            namespace_of(router), label, body.to_fields(), label_if_match(match), author=author_of(router)
        )
        return _answer(done.stored, put_status(created=done.created))

    @router.delete(
        LABEL,
        summary="Remove a label's definition; an ordering may still name it, and selection skips it then",
        responses=DELETE_RESPONSES,
    )
    def delete_label(label: _LabelPath, match: IfMatch = None) -> Response[str]:
        labels.delete(namespace_of(router), label, label_if_match(match), author=author_of(router))
        return removed()


def _answer(label: LabelDefinition, status: HTTPStatus) -> Response[LabelAnswer]:
    return Response(
        status_code=status,
        content_type="application/json",
        body=LabelAnswer.of(label),
        headers={"ETag": label_etag(label)},
    )
