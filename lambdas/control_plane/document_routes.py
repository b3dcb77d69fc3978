"""The route of the API's own description."""

from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

DOCUMENT: Final = "/v1/openapi.json"
DOCUMENT_ROUTES: Final = {DOCUMENT: ("GET",)}

# Written by `make docs` from the routes of all functions; a test notices a stale one.
_FILE: Final = Path(__file__).with_name("openapi.json")
_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.OK.value: {
        "description": "this document",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }
}


def add_document_routes(router: APIGatewayHttpRouter) -> None:
    @router.get(DOCUMENT, summary="This API as an OpenAPI 3.1 document", responses=_RESPONSES)
    def openapi_document() -> Response[str]:
        return Response(status_code=HTTPStatus.OK, content_type="application/json", body=_document())


@cache
def _document() -> str:
    return _FILE.read_text()
