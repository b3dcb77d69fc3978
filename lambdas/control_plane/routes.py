"""Routes of the control plane: parse, call one service, answer."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Header, Path, Query
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from control_plane.models import (
    EffectiveAnswer,
    LimitsAnswer,
    LimitsBody,
    SystemLimitsAnswer,
    SystemLimitsBody,
    limits_of,
)
from sluice.core.limits import DEFAULT_RESOURCE, SYSTEM, OnUnavailable, Scope
from sluice.edge.application import Caller
from sluice.edge.documentation import answer, problems
from sluice.edge.etags import if_match, limits_etag
from sluice.edge.models import ID_PATTERN
from sluice.repository.items import StoredLimits
from sluice.shell import Services

SYSTEM_LIMITS: Final = "/v1/limits/system"
RESOURCE_LIMITS: Final = "/v1/limits/resources/<resource>"
ENTITY_LIMITS: Final = "/v1/limits/entities/<entity>/<resource>"
EFFECTIVE_LIMITS: Final = "/v1/limits/effective"

_EDIT: Final = ("GET", "PUT", "DELETE")
ROUTES: Final = {
    SYSTEM_LIMITS: _EDIT,
    RESOURCE_LIMITS: _EDIT,
    ENTITY_LIMITS: _EDIT,
    EFFECTIVE_LIMITS: ("GET",),
}

_EntityPath = Annotated[str, Path(pattern=ID_PATTERN)]
_ResourcePath = Annotated[str, Path(pattern=ID_PATTERN)]
_ResourceOrDefaultPath = Annotated[str, Path(pattern=f"^{DEFAULT_RESOURCE}$|{ID_PATTERN}")]
_IfMatch = Annotated[str | None, Header(alias="if-match")]

_ALWAYS: Final = (
    (HTTPStatus.BAD_REQUEST, "invalid-request"),
    (HTTPStatus.UNAUTHORIZED, "unauthorized"),
    (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
)
_PRECONDITION: Final = (HTTPStatus.PRECONDITION_FAILED, "precondition-failed")
_CONTENDED: Final = (HTTPStatus.TOO_MANY_REQUESTS, "contended")
_NOT_FOUND: Final = (HTTPStatus.NOT_FOUND, "not-found")


def _get(model: type) -> dict[int, Any]:
    return {HTTPStatus.OK.value: answer(model, "as stored; its ETag is the version"), **problems(*_ALWAYS, _NOT_FOUND)}


def _put(model: type) -> dict[int, Any]:
    return {
        HTTPStatus.OK.value: answer(model, "replaced"),
        HTTPStatus.CREATED.value: answer(model, "created"),
        **problems(
            *_ALWAYS,
            _PRECONDITION,
            _CONTENDED,
            (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "payload-too-large"),
            (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type"),
        ),
    }


_EFFECTIVE: Final[dict[int, Any]] = {
    HTTPStatus.OK.value: answer(EffectiveAnswer, "resolved just now"),
    **problems(*_ALWAYS),
}
_DELETE: Final[dict[int, Any]] = {
    HTTPStatus.NO_CONTENT.value: {"description": "removed"},
    **problems(*_ALWAYS, _NOT_FOUND, _PRECONDITION, _CONTENDED),
}


def build_router(services: Services) -> APIGatewayHttpRouter:
    router = APIGatewayHttpRouter()
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
        resolved = services.configuration.reread(_namespace(router), entity, resource)
        return EffectiveAnswer.of(entity, resource, resolved)

    return router


def _add_system_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    limits = services.limits

    @router.get(SYSTEM_LIMITS, summary="Limits of the whole system", responses=_get(SystemLimitsAnswer))
    def get_system() -> Response[SystemLimitsAnswer]:
        stored = limits.get(_namespace(router), SYSTEM)
        return _stored(stored, SystemLimitsAnswer.of(stored), HTTPStatus.OK)

    @router.put(SYSTEM_LIMITS, summary="Replace the limits of the system", responses=_put(SystemLimitsAnswer))
    def put_system(body: SystemLimitsBody, match: _IfMatch = None) -> Response[SystemLimitsAnswer]:
        on_unavailable = OnUnavailable(body.on_unavailable)
        done = limits.put(_namespace(router), SYSTEM, limits_of(body), on_unavailable, if_match(match))
        return _stored(done.stored, SystemLimitsAnswer.of(done.stored), _put_status(created=done.created))

    @router.delete(SYSTEM_LIMITS, summary="Remove the limits of the system", responses=_DELETE)
    def delete_system(match: _IfMatch = None) -> Response[str]:
        limits.delete(_namespace(router), SYSTEM, if_match(match))
        return _removed()


def _add_resource_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    limits = services.limits

    @router.get(RESOURCE_LIMITS, summary="Limits of a resource", responses=_get(LimitsAnswer))
    def get_resource(resource: _ResourcePath) -> Response[LimitsAnswer]:
        stored = limits.get(_namespace(router), Scope(resource=resource))
        return _stored(stored, LimitsAnswer.of(stored), HTTPStatus.OK)

    @router.put(RESOURCE_LIMITS, summary="Replace the limits of a resource", responses=_put(LimitsAnswer))
    def put_resource(resource: _ResourcePath, body: LimitsBody, match: _IfMatch = None) -> Response[LimitsAnswer]:
        scope = Scope(resource=resource)
        done = limits.put(_namespace(router), scope, limits_of(body), precondition=if_match(match))
        return _stored(done.stored, LimitsAnswer.of(done.stored), _put_status(created=done.created))

    @router.delete(RESOURCE_LIMITS, summary="Remove the limits of a resource", responses=_DELETE)
    def delete_resource(resource: _ResourcePath, match: _IfMatch = None) -> Response[str]:
        limits.delete(_namespace(router), Scope(resource=resource), if_match(match))
        return _removed()


def _add_entity_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    limits = services.limits

    @router.get(ENTITY_LIMITS, summary="Limits of an entity for a resource, or for all", responses=_get(LimitsAnswer))
    def get_entity(entity: _EntityPath, resource: _ResourceOrDefaultPath) -> Response[LimitsAnswer]:
        stored = limits.get(_namespace(router), Scope(entity, resource))
        return _stored(stored, LimitsAnswer.of(stored), HTTPStatus.OK)

    @router.put(ENTITY_LIMITS, summary="Replace the limits of an entity", responses=_put(LimitsAnswer))
    def put_entity(
        entity: _EntityPath, resource: _ResourceOrDefaultPath, body: LimitsBody, match: _IfMatch = None
    ) -> Response[LimitsAnswer]:
        scope = Scope(entity, resource)
        done = limits.put(_namespace(router), scope, limits_of(body), precondition=if_match(match))
        return _stored(done.stored, LimitsAnswer.of(done.stored), _put_status(created=done.created))

    @router.delete(ENTITY_LIMITS, summary="Remove the limits of an entity", responses=_DELETE)
    def delete_entity(entity: _EntityPath, resource: _ResourceOrDefaultPath, match: _IfMatch = None) -> Response[str]:
        limits.delete(_namespace(router), Scope(entity, resource), if_match(match))
        return _removed()


def _removed() -> Response[str]:
    # An empty body, not none: the local engine fails on a null one.
    return Response(status_code=HTTPStatus.NO_CONTENT, body="")


def _namespace(router: APIGatewayHttpRouter) -> str:
    caller: Caller = router.context["caller"]
    return caller.namespace


def _stored(stored: StoredLimits, body: Any, status: HTTPStatus) -> Response[Any]:
    headers = {"ETag": limits_etag(stored)}
    return Response(status_code=status, content_type="application/json", body=body, headers=headers)


def _put_status(*, created: bool) -> HTTPStatus:
    return HTTPStatus.CREATED if created else HTTPStatus.OK
