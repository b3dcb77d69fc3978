"""Routes about what budgets reached, and of rebuilding their counters: parse, call one service, answer."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Path
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from control_plane.alert_models import AlertPage
from control_plane.links import FROM_STARTED_JOB, NEXT_ALERTS
from sluice.edge.callers import caller_of
from sluice.edge.conventions import (
    ALWAYS,
    NOT_FOUND,
    PAGE_DEFAULT,
    PageCursor,
    PageLimit,
    list_responses,
    namespace_of,
)
from sluice.edge.documentation import answer, problems
from sluice.edge.job_answers import JobAnswer
from sluice.edge.models import ID_PATTERN
from sluice.repository.jobs import Job
from sluice.services.listing import PageRequest
from sluice.shell import Services

BUDGET_ALERTS: Final = "/v1/budgets/<entity>/alerts"
REFRESH_ALL: Final = "/v1/budgets/refresh"
REFRESH: Final = "/v1/budgets/<entity>/refresh"
ALERT_ROUTES: Final = {BUDGET_ALERTS: ("GET",), REFRESH_ALL: ("POST",), REFRESH: ("POST",)}

_EntityPath = Annotated[str, Path(pattern=ID_PATTERN)]
_STARTED: Final = answer(JobAnswer, "started; its job is at Location", FROM_STARTED_JOB)
_REFUSED: Final = (
    (HTTPStatus.TOO_MANY_REQUESTS, "contended"),
    (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "payload-too-large"),
    (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type"),
)
_REFRESH_ALL: Final[dict[int, Any]] = {HTTPStatus.ACCEPTED.value: _STARTED, **problems(*ALWAYS, *_REFUSED)}
_REFRESH: Final[dict[int, Any]] = {HTTPStatus.ACCEPTED.value: _STARTED, **problems(*ALWAYS, NOT_FOUND, *_REFUSED)}


def add_alert_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    money = services.money

    @router.get(
        BUDGET_ALERTS,
        summary="What the budget of an entity reached, the latest period first; kept for 40 days after its period",
        responses=list_responses(AlertPage, NEXT_ALERTS, of_one=True),
    )
    def budget_alerts(entity: _EntityPath, limit: PageLimit = PAGE_DEFAULT, cursor: PageCursor = None) -> AlertPage:
        namespace, page = namespace_of(router), PageRequest(limit, cursor)
        since_ms = services.entities.own_since_ms(namespace, caller_of(router).within, entity)
        return AlertPage.of(money.alerts.of(namespace, entity, page, since_ms))

    @router.post(
        REFRESH_ALL,
        summary="Rebuild the counters of all budgets from the usage events, while calls go on",
        responses=_REFRESH_ALL,
    )
    def refresh_budgets() -> Response[JobAnswer]:
        return _started(money.budget_refreshes.start(namespace_of(router), None))

    @router.post(
        REFRESH,
        summary="Rebuild the counters of an entity's budget from the usage events, while calls go on",
        responses=_REFRESH,
    )
    def refresh_budget(entity: _EntityPath) -> Response[JobAnswer]:
        return _started(money.budget_refreshes.start(namespace_of(router), entity))


def _started(job: Job) -> Response[JobAnswer]:
    """Its result is the difference found."""
    return Response(
        status_code=HTTPStatus.ACCEPTED,
        content_type="application/json",
        body=JobAnswer.of(job),
        headers={"Location": f"/v1/jobs/{job.job_id}"},
    )
