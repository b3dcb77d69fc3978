"""Routes of the data plane: parse, call one service, answer."""

from http import HTTPStatus
from typing import Any, Final

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from data_plane.models import AcquireAnswer, AcquireBody, StatusAnswer
from sluice.core.limits import check_limit_names
from sluice.edge.application import Caller
from sluice.edge.documentation import answer, problems
from sluice.edge.headers import rate_limit_headers
from sluice.repository import keys
from sluice.services.acquire import AcquireRequest
from sluice.shell import Services

ACQUIRE: Final = "/v1/acquire"
HEALTH: Final = "/v1/health"
READY: Final = "/v1/ready"

ROUTES: Final = {ACQUIRE: ("POST",), HEALTH: ("GET",), READY: ("GET",)}
OPEN_PATHS: Final = frozenset({HEALTH, READY})

_ACQUIRE_RESPONSES: Final = {
    HTTPStatus.CREATED.value: answer(AcquireAnswer, "admitted"),
    **problems(
        (HTTPStatus.BAD_REQUEST, "invalid-request"),
        (HTTPStatus.BAD_REQUEST, "unknown-limit"),
        (HTTPStatus.UNAUTHORIZED, "unauthorized"),
        (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "payload-too-large"),
        (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type"),
        (HTTPStatus.UNPROCESSABLE_ENTITY, "never-admissible"),
        (HTTPStatus.UNPROCESSABLE_ENTITY, "no-limits"),
        (HTTPStatus.TOO_MANY_REQUESTS, "limit-exceeded"),
        (HTTPStatus.TOO_MANY_REQUESTS, "contended"),
        (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
    ),
}
_HEALTH_RESPONSES: Final[dict[int, Any]] = {HTTPStatus.OK.value: answer(StatusAnswer, "alive")}
_READY_RESPONSES: Final = {
    HTTPStatus.OK.value: answer(StatusAnswer, "ready"),
    **problems((HTTPStatus.SERVICE_UNAVAILABLE, "unavailable")),
}


def build_router(services: Services) -> APIGatewayHttpRouter:
    router = APIGatewayHttpRouter()

    @router.post(ACQUIRE, summary="Take tokens, or learn when to try again", responses=_ACQUIRE_RESPONSES)
    def acquire(body: AcquireBody) -> Response[AcquireAnswer]:
        """Takes from every named limit at once, or takes nothing."""
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
