"""Routes of the data plane: parse, call one service, answer."""

from http import HTTPStatus
from typing import Final

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from data_plane.models import AcquireAnswer, AcquireBody, StatusAnswer
from sluice.core.limits import check_limit_names
from sluice.edge.application import Caller
from sluice.edge.headers import rate_limit_headers
from sluice.repository import keys
from sluice.services.acquire import AcquireRequest
from sluice.shell import Services

ACQUIRE: Final = "/v1/acquire"
HEALTH: Final = "/v1/health"
READY: Final = "/v1/ready"

ROUTES: Final = {ACQUIRE: ("POST",), HEALTH: ("GET",), READY: ("GET",)}
OPEN_PATHS: Final = frozenset({HEALTH, READY})


def build_router(services: Services) -> APIGatewayHttpRouter:
    router = APIGatewayHttpRouter()

    @router.post(ACQUIRE)
    def acquire(body: AcquireBody) -> Response[AcquireAnswer]:
        limits = None
        if body.limits is not None:
            check_limit_names("limits", list(body.limits))
            limits = {name: limit.to_limit(f"limits.{name}") for name, limit in body.limits.items()}
        caller: Caller = router.context["caller"]
        admission = services.acquire.acquire(
            AcquireRequest(caller.namespace, body.entity, body.resource, body.consume, limits)
        )
        return Response(
            status_code=HTTPStatus.CREATED,
            content_type="application/json",
            body=AcquireAnswer.of(admission),
            headers=dict(rate_limit_headers(admission.levels)),
        )

    @router.get(HEALTH)
    def health() -> StatusAnswer:
        """Answers without any dependency."""
        return StatusAnswer(status="ok")

    @router.get(READY)
    def ready() -> StatusAnswer:
        """Answers after one read of the table."""
        services.store.get(keys.schema_version(keys.REGISTRY_NAMESPACE))
        return StatusAnswer(status="ready")

    return router
