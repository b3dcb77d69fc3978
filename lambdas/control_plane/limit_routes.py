"""Routes of limits: parse, call one service, answer."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Path, Query
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from control_plane.links import FROM_ENTITY_LIMITS, FROM_RESOURCE_LIMITS, FROM_SYSTEM_LIMITS
from control_plane.models import (
    EffectiveAnswer,
    LimitsAnswer,
    LimitsBody,
    SystemLimitsAnswer,
    SystemLimitsBody,
    limits_of,
)
from sluice.core.limits import DEFAULT_RESOURCE, SYSTEM, OnUnavailable, Scope
from sluice.edge.callers import author_of
from sluice.edge.conventions import (
    ALWAYS,
    DELETE_RESPONSES,
    NOT_FOUND,
    IfMatch,
    get_responses,
    namespace_of,
    put_responses,
    put_status,
    removed,
)
from sluice.edge.documentation import answer, problems
from sluice.edge.etags import limits_etag, limits_if_match
from sluice.edge.models import ID_PATTERN
from sluice.repository.items import StoredLimits
from sluice.services.limits import Replaced
from sluice.shell import Services

SYSTEM_LIMITS: Final = "/v1/limits/system"
RESOURCE_LIMITS: Final = "/v1/limits/resources/<resource>"
ENTITY_LIMITS: Final = "/v1/limits/entities/<entity>/<resource>"
EFFECTIVE_LIMITS: Final = "/v1/limits/effective"

_EDIT: Final = ("GET", "PUT", "DELETE")
LIMIT_ROUTES: Final = {
    SYSTEM_LIMITS: _EDIT,
    RESOURCE_LIMITS: _EDIT,
    ENTITY_LIMITS: _EDIT,
    EFFECTIVE_LIMITS: ("GET",),
}

_EntityPath = Annotated[str, Path(pattern=ID_PATTERN)]
_ResourcePath = Annotated[str, Path(pattern=ID_PATTERN)]
_ResourceOrDefaultPath = Annotated[str, Path(pattern=f"^{DEFAULT_RESOURCE}$|{ID_PATTERN}")]
_EFFECTIVE: Final[dict[int, Any]] = {
    HTTPStatus.OK.value: answer(EffectiveAnswer, "resolved just now"),
    **problems(*ALWAYS, NOT_FOUND),
}


def add_limit_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    _add_system_routes(router, services)
    _add_resource_routes(router, services)
    _add_entity_routes(router, services)

    @router.get(
        EFFECTIVE_LIMITS,
        summary="The limits that hold for an entity and resource, and the level each comes from",
        responses=_EFFECTIVE,
    )
    def effective(
        entity: Annotated[str, Query(pattern=ID_PATTERN)], resource: Annotated[str, Query(pattern=ID_PATTERN)]
    ) -> EffectiveAnswer:
        resolved = services.configuration.reread(namespace_of(router), entity, resource)
        return EffectiveAnswer.of(entity, resource, resolved)


def _add_system_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    limits = services.limits

    @router.get(SYSTEM_LIMITS, summary="Limits of the whole system", responses=get_responses(SystemLimitsAnswer))
    def get_system() -> Response[SystemLimitsAnswer]:
        stored = limits.get(namespace_of(router), SYSTEM)
        return _stored(stored, SystemLimitsAnswer.of(stored), HTTPStatus.OK)

    @router.put(
        SYSTEM_LIMITS,
        summary="Replace the limits of the system",
        responses=put_responses(SystemLimitsAnswer, FROM_SYSTEM_LIMITS),
    )
    def put_system(body: SystemLimitsBody, match: IfMatch = None) -> Response[SystemLimitsAnswer]:
        done = limits.put(
            namespace_of(router),
            SYSTEM,
            limits_of(body),
            OnUnavailable(body.on_unavailable),
            limits_if_match(match),
            author=author_of(router),
        )
        return _stored(done.stored, SystemLimitsAnswer.of(done.stored), put_status(created=done.created))

    @router.delete(SYSTEM_LIMITS, summary="Remove the limits of the system", responses=DELETE_RESPONSES)
    def delete_system(match: IfMatch = None) -> Response[str]:
        limits.delete(namespace_of(router), SYSTEM, limits_if_match(match), author=author_of(router))
        return removed()


def _add_resource_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    limits = services.limits

    @router.get(RESOURCE_LIMITS, summary="Limits of a resource", responses=get_responses(LimitsAnswer))
    def get_resource(resource: _ResourcePath) -> Response[LimitsAnswer]:
        stored = limits.get(namespace_of(router), Scope(resource=resource))
        return _stored(stored, LimitsAnswer.of(stored), HTTPStatus.OK)

    @router.put(
        RESOURCE_LIMITS,
        summary="Replace the limits of a resource",
        responses=put_responses(LimitsAnswer, FROM_RESOURCE_LIMITS),
    )
    def put_resource(resource: _ResourcePath, body: LimitsBody, match: IfMatch = None) -> Response[LimitsAnswer]:
        scope = Scope(resource=resource)
        done = _put(router, services, scope, body, match)
        return _stored(done.stored, LimitsAnswer.of(done.stored), put_status(created=done.created))

    @router.delete(RESOURCE_LIMITS, summary="Remove the limits of a resource", responses=DELETE_RESPONSES)
    def delete_resource(resource: _ResourcePath, match: IfMatch = None) -> Response[str]:
        limits.delete(namespace_of(router), Scope(resource=resource), limits_if_match(match), author=author_of(router))
        return removed()


def _add_entity_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    limits = services.limits

    @router.get(
        ENTITY_LIMITS, summary="Limits of an entity for a resource, or for all", responses=get_responses(LimitsAnswer)
    )
    def get_entity(entity: _EntityPath, resource: _ResourceOrDefaultPath) -> Response[LimitsAnswer]:
        stored = limits.get(namespace_of(router), Scope(entity, resource))
        return _stored(stored, LimitsAnswer.of(stored), HTTPStatus.OK)

    @router.put(
        ENTITY_LIMITS,
        summary="Replace the limits of an entity",
        responses=put_responses(LimitsAnswer, FROM_ENTITY_LIMITS),
    )
    def put_entity(
        entity: _EntityPath, resource: _ResourceOrDefaultPath, body: LimitsBody, match: IfMatch = None
    ) -> Response[LimitsAnswer]:
        scope = Scope(entity, resource)
        done = _put(router, services, scope, body, match)
        return _stored(done.stored, LimitsAnswer.of(done.stored), put_status(created=done.created))

    @router.delete(ENTITY_LIMITS, summary="Remove the limits of an entity", responses=DELETE_RESPONSES)
    def delete_entity(entity: _EntityPath, resource: _ResourceOrDefaultPath, match: IfMatch = None) -> Response[str]:
        limits.delete(namespace_of(router), Scope(entity, resource), limits_if_match(match), author=author_of(router))
        return removed()


def _put(
    router: APIGatewayHttpRouter, services: Services, scope: Scope, body: LimitsBody, match: str | None
) -> Replaced:
    return services.limits.put(
        namespace_of(router),
        scope,
        limits_of(body),
        precondition=limits_if_match(match),
        author=author_of(router),
    )


def _stored(stored: StoredLimits, body: Any, status: HTTPStatus) -> Response[Any]:
    headers = {"ETag": limits_etag(stored)}
    return Response(status_code=status, content_type="application/json", body=body, headers=headers)
