"""Routes of the data plane: parse, call one service, answer."""

from http import HTTPStatus
from typing import Any, Final

from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from data_plane.acquire_routes import ACQUIRE_ROUTES, add_acquire_routes
from data_plane.lease_routes import LEASE_ROUTES, add_lease_routes
from data_plane.models import StatusAnswer
from data_plane.selection_routes import SELECTION_ROUTES, add_selection_routes
from data_plane.usage_routes import USAGE_ROUTES, add_usage_routes
from sluice.edge.documentation import answer, problems
from sluice.repository import keys
from sluice.shell import Services

HEALTH: Final = "/v1/health"
READY: Final = "/v1/ready"

ROUTES: Final = {
    **ACQUIRE_ROUTES,
    **LEASE_ROUTES,
    **SELECTION_ROUTES,
    **USAGE_ROUTES,
    HEALTH: ("GET",),
    READY: ("GET",),
}

_HEALTH_RESPONSES: Final[dict[int, Any]] = {HTTPStatus.OK.value: answer(StatusAnswer, "alive")}
_READY_RESPONSES: Final = {
    HTTPStatus.OK.value: answer(StatusAnswer, "ready"),
    **problems((HTTPStatus.SERVICE_UNAVAILABLE, "unavailable")),
}


def build_router(services: Services) -> APIGatewayHttpRouter:
    router = APIGatewayHttpRouter()

    add_acquire_routes(router, services)
    add_lease_routes(router, services)
    add_selection_routes(router, services)
    add_usage_routes(router, services)

    @router.get(HEALTH, summary="Is the function alive?", responses=_HEALTH_RESPONSES)
    def health() -> StatusAnswer:
        """Answers without any dependency."""
        return StatusAnswer(status="ok")

    @router.get(READY, summary="Does the table answer?", responses=_READY_RESPONSES)
    def ready() -> StatusAnswer:
        """Answers after one read of the table."""
        services.store.get(keys.schema_version(keys.REGISTRY_NAMESPACE))
        return StatusAnswer(status="ready")

    return router
