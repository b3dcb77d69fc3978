"""The frame around every HTTP function: guards, routing, problem documents, one log line per request."""

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.exceptions import NotFoundError
from aws_lambda_powertools.event_handler.openapi.exceptions import RequestValidationError
from aws_lambda_powertools.utilities.typing import LambdaContext

from sluice.core.errors import SluiceError
from sluice.core.signals import Meter, Signal
from sluice.edge.problems import INTERNAL, Problem, RequestRejected, invalid_request, problem_of
from sluice.edge.requests import parse_json, path_of, with_plain_body
from sluice.shell import logger, metrics

# Clients choose names of fields, so what is repeated to them is bounded.
_ERRORS_MAX: Final = 10
_FIELD_NAME_MAX: Final = 200
_LOCATIONS: Final = frozenset({"body", "header", "path", "query"})
_NOTHING_HERE: Final = Problem(HTTPStatus.NOT_FOUND, "not-found", "there is nothing at this path")

Event = Mapping[str, Any]
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf a request runs. `entity`: its own, if it has one. `actor`: who it is, for the audit."""

    namespace: str
    actor: str = "open"
    entity: str | None = None


class Route:
    """A path, with `<name>` for what varies, and the methods that it takes."""

    def __init__(self, path: str, methods: frozenset[str]) -> None:
        self.path = path
        self.methods = methods
        # No control characters: the router would drop a newline at the end, and act on another id.
        self._pattern = re.compile(re.sub(r"<\w+>", r"[^/\\x00-\\x1f\\x7f]+", path))

    def matches(self, path: str) -> bool:
        return self._pattern.fullmatch(path) is not None


class Application:
    """Serves one router.

    `identify` looks at a request before its body is read: it says who calls, or None for a path that is open to
    everyone, or rejects the request. Routes find the caller in their router's context.
    """

    def __init__(
        self,
        router: Router,
        routes: Mapping[str, Iterable[str]],
        identify: Callable[[Event], Caller | None],
        meter: Meter,
    ) -> None:
        self._routes = [Route(path, frozenset(methods)) for path, methods in routes.items()]
        self._identify = identify
        self._meter = meter
        self._resolver = APIGatewayHttpResolver(enable_validation=True, json_body_deserializer=parse_json)
        self._resolver.include_router(router)
        self._register_problems()

    def handle(self, event: Event, context: LambdaContext) -> Answer:
        started_ns = time.perf_counter_ns()
        method = event["requestContext"]["http"]["method"]
        path = path_of(event)
        route = next((route for route in self._routes if route.matches(path)), None)
        try:
            caller = self._identify(event)
            _check_route(route, method)
            plain = with_plain_body(event)
            self._resolver.append_context(caller=caller)
            answer = self._resolver.resolve(plain, context)
        except RequestRejected as rejected:
            answer = _to_answer(rejected.problem.response(_request_id(event)))
        # Neither an id nor a path or method that a client made up belongs in a log.
        logger.info(
            "request",
            extra={
                "route": f"{method} {route.path}" if route is not None and method in route.methods else "other",
                "status": answer["statusCode"],
                "duration_us": (time.perf_counter_ns() - started_ns) // 1000,
            },
        )
        return answer

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document of these routes."""
        text = self._resolver.get_openapi_json_schema(title="Sluice", version="1", openapi_version="3.1.0")
        document: dict[str, Any] = json.loads(text)
        return document

    def _register_problems(self) -> None:
        handlers: dict[type[Exception], Callable[[Any], Response[str]]] = {
            SluiceError: self._on_error,
            NotFoundError: lambda _error: self._answer(_NOTHING_HERE),
            RequestValidationError: lambda error: self._answer(_validation_problem(error.errors())),
            Exception: self._on_bug,
        }
        self._resolver.exception_handler_manager.update_exception_handlers(handlers)

    def _on_error(self, error: SluiceError) -> Response[str]:
        problem = problem_of(error)
        return self._on_bug(error) if problem is INTERNAL else self._answer(problem)

    def _on_bug(self, _error: Exception) -> Response[str]:
        logger.exception("unexpected error")
        self._meter.count(Signal.INTERNAL_ERRORS)
        return self._answer(INTERNAL)

    def _answer(self, problem: Problem) -> Response[str]:
        return problem.response(_request_id(self._resolver.current_event.raw_event))


def _check_route(route: Route | None, method: str) -> None:
    """Before the body is looked at: what is wrong with it does not matter where it can not go."""
    if route is None:
        raise RequestRejected(_NOTHING_HERE)
    if method not in route.methods:
        allowed = ", ".join(sorted(route.methods))
        headers = {"Allow": allowed}
        raise RequestRejected(
            Problem(HTTPStatus.METHOD_NOT_ALLOWED, "method-not-allowed", f"allowed: {allowed}", headers=headers)
        )


def flush_metrics() -> None:
    """Writes the counts of this request, if there are any."""
    if metrics.metric_set:
        metrics.flush_metrics()


def _request_id(event: Event) -> str:
    return str(event["requestContext"].get("requestId", ""))


def _to_answer(response: Response[str]) -> Answer:
    headers = {"Content-Type": response.content_type or "", **{name: str(v) for name, v in response.headers.items()}}
    return {
        "statusCode": response.status_code,
        "body": response.body,
        "headers": headers,
        "isBase64Encoded": False,
    }


def _validation_problem(found: Sequence[Any]) -> Problem:
    """Names the field, never the value: it may be a secret that was put into the wrong place."""
    if found[0]["type"] == "json_invalid":
        return invalid_request("body", "is not a JSON object")
    named = [{"field": _field_name(error["loc"]), "detail": str(error["msg"])} for error in found[:_ERRORS_MAX]]
    first = named[0]
    return invalid_request(first["field"], first["detail"], named if len(named) > 1 else ())


def _field_name(location: Sequence[str | int]) -> str:
    inside = location[1:] if location and location[0] in _LOCATIONS else location
    parts = [str(part) for part in inside if part != "[key]"]
    return ".".join(parts)[:_FIELD_NAME_MAX] or "body"
