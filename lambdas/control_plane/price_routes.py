"""Routes of prices: parse, call one service, answer."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from control_plane.links import FROM_PRICE
from control_plane.price_models import OwnPriceAnswer, PriceBody, QuoteAnswer, QuoteBody
from sluice.core.period import parse_day
from sluice.core.pricing import Pricing
from sluice.edge.callers import author_of, caller_of
from sluice.edge.conventions import ALWAYS, NOT_FOUND, put_status, removed
from sluice.edge.documentation import answer, problems
from sluice.edge.models import MODEL_ID_PATTERN, REGION_PATTERN
from sluice.edge.prices import PriceAnswer
from sluice.edge.times import DAY_PATTERN
from sluice.services.prices import PriceName
from sluice.services.quotes import Asked
from sluice.shell import Services

PRICES: Final = "/v1/prices"
QUOTE: Final = "/v1/prices/quote"
PRICE_ROUTES: Final = {PRICES: ("GET", "PUT", "DELETE"), QUOTE: ("POST",)}

_ModelId = Annotated[str, Query(pattern=MODEL_ID_PATTERN)]
_Region = Annotated[str | None, Query(pattern=REGION_PATTERN)]
_Day = Annotated[str | None, Query(pattern=DAY_PATTERN, description="a local day; today if none is named")]
_FromDay = Annotated[str, Query(pattern=DAY_PATTERN, description="the day on which it begins")]

_CONTENDED: Final = (HTTPStatus.TOO_MANY_REQUESTS, "contended")
_BODY: Final = (
    (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "payload-too-large"),
    (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type"),
)
_GET_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.OK.value: answer(PriceAnswer, "what a call of the model costs on that day", FROM_PRICE),
    **problems(*ALWAYS, NOT_FOUND),
}
_PUT_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.OK.value: answer(OwnPriceAnswer, "changed", FROM_PRICE),
    HTTPStatus.CREATED.value: answer(OwnPriceAnswer, "created", FROM_PRICE),
    **problems(*ALWAYS, _CONTENDED, *_BODY),
}
_DELETE_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.NO_CONTENT.value: {"description": "removed"},
    **problems(*ALWAYS, NOT_FOUND, _CONTENDED),
}
_QUOTE_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.OK.value: answer(QuoteAnswer, "what the call would cost"),
    **problems(
        *ALWAYS,
        (HTTPStatus.UNPROCESSABLE_ENTITY, "price-missing"),
        (HTTPStatus.UNPROCESSABLE_ENTITY, "unknown-label"),
        *_BODY,
    ),
}


def add_price_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    own_prices, quotes = services.money.own_prices, services.money.quotes

    def day_or_today(field: str, day: str | None) -> int:
        return own_prices.today(caller_of(router).namespace) if day is None else parse_day(field, day)

    @router.get(PRICES, summary="The price of a model that holds on a day, and who says so", responses=_GET_RESPONSES)
    def get_price(model_id: _ModelId, region: _Region = None, day: _Day = None) -> PriceAnswer:
        caller = caller_of(router)
        asked = Asked(caller.namespace, caller.within, None, model_id, region, day_or_today("day", day))
        return PriceAnswer.of(model_id, quotes.price(asked))

    @router.put(
        PRICES,
        summary="Set your own price of a model from a day on, before all other sources; it acts within a minute",
        responses=_PUT_RESPONSES,
    )
    def put_price(model_id: _ModelId, body: PriceBody) -> Response[OwnPriceAnswer]:
        name = PriceName(model_id, body.region, day_or_today("from_day", body.from_day))
        done = own_prices.put(caller_of(router).namespace, name, body.to_fields(), author=author_of(router))
        status = put_status(created=done.created)
        return Response(status_code=status, content_type="application/json", body=OwnPriceAnswer.of_stored(done.stored))

    @router.delete(
        PRICES,
        summary="Remove your own price that begins on a day; calls counted by it keep their cost",
        responses=_DELETE_RESPONSES,
    )
    def delete_price(model_id: _ModelId, from_day: _FromDay, region: _Region = None) -> Response[str]:
        name = PriceName(model_id, region, parse_day("from_day", from_day))
        own_prices.delete(caller_of(router).namespace, name, author=author_of(router))
        return removed()

    @router.post(QUOTE, summary="What a call would cost; nothing is counted", responses=_QUOTE_RESPONSES)
    def quote_price(body: QuoteBody) -> QuoteAnswer:
        caller = caller_of(router)
        day, pricing = day_or_today("day", body.day), Pricing(body.pricing)
        asked = body.to_asked(caller.namespace, caller.within, day)
        return QuoteAnswer.of(quotes.quote(asked, body.to_tokens(), pricing), day, pricing)
