"""Routes of entities: parse, call one service, answer."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Path
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from control_plane.links import FROM_ENTITY
from control_plane.models import EntityAnswer, EntityBody
from sluice.edge.callers import author_of, caller_of
from sluice.edge.conventions import (
    DELETE_RESPONSES,
    NOT_FOUND,
    IfMatch,
    get_responses,
    namespace_of,
    put_responses,
    put_status,
    removed,
)
from sluice.edge.documentation import problems
from sluice.edge.etags import entity_etag, entity_if_match
from sluice.edge.models import ID_PATTERN
from sluice.repository.items import Entity
from sluice.services.entities import Place
from sluice.shell import Services

ENTITY: Final = "/v1/entities/<entity>"
ENTITY_ROUTES: Final = {ENTITY: ("GET", "PUT", "DELETE")}

_EntityPath = Annotated[str, Path(pattern=ID_PATTERN)]
# What belongs to somebody else looks missing to an app.
_PUT: Final[dict[int, Any]] = {**put_responses(EntityAnswer, FROM_ENTITY), **problems(NOT_FOUND)}
_DELETE: Final[dict[int, Any]] = {**DELETE_RESPONSES, **problems((HTTPStatus.CONFLICT, "in-use"))}


def add_entity_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    entities = services.entities

    @router.get(ENTITY, summary="Who consumes, and below whom", responses=get_responses(EntityAnswer))
    def get_entity(entity: _EntityPath) -> Response[EntityAnswer]:
        return _answer(entities.get(namespace_of(router), entity), HTTPStatus.OK)

    @router.put(
        ENTITY,
        summary="Create or change an entity; null clears a field",
        responses=_PUT,
    )
    def put_entity(entity: _EntityPath, body: EntityBody, match: IfMatch = None) -> Response[EntityAnswer]:
        done = entities.put(
            namespace_of(router),
            entity,
            body.to_change(),
            entity_if_match(match),
            author=author_of(router),
            place=_place(router),
        )
        return _answer(done.entity, put_status(created=done.created))

    @router.delete(ENTITY, summary="Remove an entity with its limits, budget and buckets", responses=_DELETE)
    def delete_entity(entity: _EntityPath, match: IfMatch = None) -> Response[str]:
        entities.delete(
            namespace_of(router), entity, entity_if_match(match), author=author_of(router), place=_place(router)
        )
        return removed()


def _place(router: APIGatewayHttpRouter) -> Place:
    caller = caller_of(router)
    return Place(caller.entity, caller.within)


def _answer(entity: Entity, status: HTTPStatus) -> Response[EntityAnswer]:
    return Response(
        status_code=status,
        content_type="application/json",
        body=EntityAnswer.of(entity),
        headers={"ETag": entity_etag(entity)},
    )
