"""Routes of what was used: sums, single events, and a rollup on demand. Parse, call one service, answer."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from control_plane.aggregate_models import AggregateAnswer, EventPage, RollupBody
from control_plane.links import FROM_AGGREGATE, FROM_STARTED_JOB, NEXT_EVENTS
from sluice.core.period import parse_day
from sluice.edge.callers import caller_of
from sluice.edge.conventions import ALWAYS, NOT_FOUND, PAGE_DEFAULT, PageCursor, PageLimit, list_responses, namespace_of
from sluice.edge.documentation import answer, problems
from sluice.edge.job_answers import JobAnswer
from sluice.edge.models import ID_PATTERN
from sluice.edge.times import DAY_PATTERN
from sluice.services.aggregates import DayRange
from sluice.services.listing import PageRequest
from sluice.shell import Services

AGGREGATES: Final = "/v1/aggregates"
ROLLUP: Final = "/v1/aggregates/rollup"
EVENTS: Final = "/v1/events"
AGGREGATE_ROUTES: Final = {AGGREGATES: ("GET",), ROLLUP: ("POST",), EVENTS: ("GET",)}

_Entity = Annotated[str | None, Query(pattern=ID_PATTERN)]
_Day = Annotated[str | None, Query(pattern=DAY_PATTERN)]
_From = Annotated[str | None, Query(alias="from", pattern=DAY_PATTERN)]
_To = Annotated[str | None, Query(alias="to", pattern=DAY_PATTERN)]

_NO_TOTALS: Final = (HTTPStatus.UNPROCESSABLE_ENTITY, "no-totals")
_AGGREGATE_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.OK.value: answer(AggregateAnswer, "as of the last rollup", FROM_AGGREGATE),
    **problems(*ALWAYS, NOT_FOUND, _NO_TOTALS),
}
_ROLLUP_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.ACCEPTED.value: answer(JobAnswer, "started; its job is at Location", FROM_STARTED_JOB),
    **problems(
        *ALWAYS,
        NOT_FOUND,
        _NO_TOTALS,
        (HTTPStatus.TOO_MANY_REQUESTS, "contended"),
        (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "payload-too-large"),
        (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type"),
    ),
}


def add_aggregate_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    @router.get(
        AGGREGATES,
        summary="What an app or the org used, by day and label; up to 85 s and the stream's lag old at a run a minute",
        responses=_AGGREGATE_RESPONSES,
    )
    def aggregates(entity: _Entity = None, from_: _From = None, to: _To = None) -> AggregateAnswer:
        """Today unless asked otherwise; at most 400 days, each of which is shown. `to` without `from` is one day.

        Each run of the rollup that does not take place makes it a minute older.
        """
        caller = caller_of(router)
        asked = DayRange(_day("from", from_), _day("to", to))
        about = entity or str(caller.entity)
        confined = caller.within is not None
        return AggregateAnswer.of(services.money.aggregates.of(caller.namespace, about, asked, confined=confined))

    @router.post(
        ROLLUP,
        summary="Sum up an app or the org anew: the totals of the last 36 days",
        responses=_ROLLUP_RESPONSES,
    )
    def roll_up(body: RollupBody) -> Response[JobAnswer]:
        job = services.money.entity_rollups.start(namespace_of(router), body.entity)
        return Response(
            status_code=HTTPStatus.ACCEPTED,
            content_type="application/json",
            body=JobAnswer.of(job),
            headers={"Location": f"/v1/jobs/{job.job_id}"},
        )

    @router.get(
        EVENTS,
        summary="The usage events of a day, each page sorted by time; a page may be short, or empty, and others follow",
        responses=list_responses(EventPage, NEXT_EVENTS, of_one=True),
    )
    def events(
        entity: _Entity = None, day: _Day = None, limit: PageLimit = PAGE_DEFAULT, cursor: PageCursor = None
    ) -> EventPage:
        """Of today unless asked otherwise; a cursor stays on the day that its list began on. Events are kept for 90
        days, then they are in the archive alone."""
        caller, page = caller_of(router), PageRequest(limit, cursor)
        about = entity or str(caller.entity)
        lists, asked = services.money.event_lists, _day("day", day)
        return EventPage.of(lists.of(caller.namespace, about, asked, page, caller.within))


def _day(field: str, text: str | None) -> int | None:
    return None if text is None else parse_day(field, text)
