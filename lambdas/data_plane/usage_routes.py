"""Routes of usage: parse, call one service, answer."""

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from data_plane.links import FROM_USAGE
from data_plane.usage_models import (
    REQUEST_ID_PATTERN,
    CountedResult,
    FailedResult,
    MalformedEvent,
    UsageAnswer,
    UsageBatchAnswer,
    UsageBatchBody,
    UsageBody,
)
from sluice.core.errors import Forbidden, SluiceError
from sluice.core.reports import UsageReport
from sluice.edge.callers import author_of, caller_of
from sluice.edge.conventions import ALWAYS, NOT_FOUND
from sluice.edge.documentation import answer, problems
from sluice.edge.lease_tokens import read_token
from sluice.edge.problems import INTERNAL, Problem, problem_of
from sluice.edge.requests import USAGE_BATCH
from sluice.edge.validation import validation_problem
from sluice.services.judging import Reporter
from sluice.services.metering import Counted
from sluice.shell import Services

USAGE: Final = "/v1/usage"

USAGE_ROUTES: Final = {USAGE: ("POST",), USAGE_BATCH: ("POST",)}

_BODY: Final = (
    (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "payload-too-large"),
    (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type"),
)
_USAGE_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.ACCEPTED.value: answer(UsageAnswer, "counted, now or before", FROM_USAGE),
    **problems(
        *ALWAYS,
        *_BODY,
        NOT_FOUND,
        (HTTPStatus.BAD_REQUEST, "invalid-lease"),
        (HTTPStatus.CONFLICT, "request-id-conflict"),
        (HTTPStatus.UNPROCESSABLE_ENTITY, "price-missing"),
        (HTTPStatus.UNPROCESSABLE_ENTITY, "unknown-label"),
        (HTTPStatus.TOO_MANY_REQUESTS, "contended"),
    ),
}
_BATCH_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.MULTI_STATUS.value: answer(UsageBatchAnswer, "each event has its own answer"),
    **problems(*ALWAYS, *_BODY),
}


def add_usage_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    metering = services.money.metering

    @router.post(USAGE, summary="Report a finished call", responses=_USAGE_RESPONSES)
    def report(body: UsageBody) -> Response[UsageAnswer]:
        """Counted once, however often it is sent. With a lease, that is closed and keeps what it took."""
        counted = metering.submit(reporter_of(router), _report(router, services, body))
        return Response(HTTPStatus.ACCEPTED, "application/json", UsageAnswer.of(counted))

    @router.post(USAGE_BATCH, summary="Report finished calls", responses=_BATCH_RESPONSES)
    def report_batch(body: UsageBatchBody) -> Response[UsageBatchAnswer]:
        """Each event is judged on its own; what is wrong with one is told in its result."""
        events: Sequence[UsageBody | MalformedEvent] = body.events
        read = [_read(router, services, event) for event in events]
        reports = [one for one in read if isinstance(one, UsageReport)]
        counted = iter(metering.submit_batch(reporter_of(router), reports) if reports else [])
        asked_as = author_of(router).request_id
        results = [
            _result(event, next(counted) if isinstance(one, UsageReport) else one, asked_as)
            for event, one in zip(events, read, strict=True)
        ]
        return Response(HTTPStatus.MULTI_STATUS, "application/json", UsageBatchAnswer.of(results))


def reporter_of(router: APIGatewayHttpRouter) -> Reporter:
    caller = caller_of(router)
    if caller.entity is None:
        raise Forbidden("only an org or an app uses anything")
    return Reporter(
        caller.namespace, caller.entity, caller.within, author_of(router), registers=caller.auto_register_entities
    )


def _report(router: APIGatewayHttpRouter, services: Services, body: UsageBody) -> UsageReport:
    lease = None if body.lease is None else read_token(services.signer, caller_of(router).namespace, body.lease)
    return body.to_report(lease)


def _read(
    router: APIGatewayHttpRouter, services: Services, event: UsageBody | MalformedEvent
) -> UsageReport | Problem | SluiceError:
    if isinstance(event, MalformedEvent):
        return validation_problem(event.errors)
    try:
        return _report(router, services, event)
    except SluiceError as error:
        return error


def _result(
    event: UsageBody | MalformedEvent, found: Counted | Problem | SluiceError, asked_as: str
) -> CountedResult | FailedResult:
    if isinstance(found, Counted):
        return CountedResult.of(found)
    problem = found if isinstance(found, Problem) else problem_of(found)
    if problem is INTERNAL and isinstance(found, SluiceError):
        # Our own fault, and nothing that a client could be told about an event.
        raise found
    return FailedResult.of(_named(event.request_id), problem, asked_as)


def _named(request_id: Any) -> str | None:
    """What is no request id is not repeated to anybody."""
    return request_id if isinstance(request_id, str) and re.fullmatch(REQUEST_ID_PATTERN, request_id) else None
