"""The frame around every HTTP function: guards, routing, problem documents, one log line per request."""

import inspect
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.event_handler.exceptions import NotFoundError
from aws_lambda_powertools.event_handler.openapi.exceptions import RequestValidationError
from aws_lambda_powertools.utilities.typing import LambdaContext

from sluice.core.errors import InvalidRequest, NotFound, SluiceError
from sluice.core.identity import Claims, Role
from sluice.core.signals import Meter, Signal
from sluice.edge.access import ACCESS, Access, Scope
from sluice.edge.models import ID_PATTERN
from sluice.edge.problems import INTERNAL, Problem, RequestRejected, problem_of
from sluice.edge.requests import parse_json, path_of, with_plain_body
from sluice.edge.validation import validation_problem
from sluice.services.confinement import Confinement
from sluice.shell import logger, metrics

_NOTHING_HERE: Final = Problem(HTTPStatus.NOT_FOUND, "not-found", "there is nothing at this path")

Event = Mapping[str, Any]
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Caller:
    """On whose behalf a request runs. `entity`: its own; an operator has none. `actor`: who it is, for the audit.

    `claims`: of its token. `auto_register_entities`: whoever it asks for becomes known by that.
    """

    namespace: str
    actor: str
    entity: str | None
    role: Role
    claims: Claims | None = None
    auto_register_entities: bool = True

    @property
    def within(self) -> str | None:
        """An app is confined to its own entity and those below it."""
        return self.entity if self.role is Role.APP else None


class Route:
    """A path, with `<name>` for what varies, and what each of its methods asks of a caller."""

    def __init__(self, path: str, access: Mapping[str, Access]) -> None:
        self.path = path
        self.access = access
        # No control characters: the router would drop a newline at the end, and act on another id.
        self._pattern = re.compile(re.sub(r"<(\w+)>", r"(?P<\1>[^/\\x00-\\x1f\\x7f]+)", path))

    def matched(self, path: str) -> Mapping[str, str] | None:
        """What stands for the names in a path; None for another path."""
        found = self._pattern.fullmatch(path)
        return None if found is None else found.groupdict()


class Application:
    """Serves one router. Routes find the caller in their router's context.

    Before the body is read, `identify` says who calls, or None where everybody may, or raises; and the caller is kept
    to its own. A route that the table of accesses does not know can not be served at all.
    """

    def __init__(
        self,
        router: Router,
        routes: Mapping[str, Iterable[str]],
        identify: Callable[[Event, Access], Caller | None],
        confinement: Confinement,
        meter: Meter,
    ) -> None:
        self._routes = [
            Route(path, {method: ACCESS[method, path] for method in methods}) for path, methods in routes.items()
        ]
        self._identify = identify
        self._confinement = confinement
        self._meter = meter
        self._resolver = APIGatewayHttpResolver(enable_validation=True, json_body_deserializer=parse_json)
        self._resolver.include_router(router)
        self._register_problems()

    def handle(self, event: Event, context: LambdaContext) -> Answer:
        started_ns = time.perf_counter_ns()
        method = event["requestContext"]["http"]["method"]
        path = path_of(event)
        route, named = self._route(path, method)
        try:
            access = _access(route, method)
            caller = self._identify(event, access)
            self._confine(caller, access, named, event)
            plain = with_plain_body(event)
            self._resolver.append_context(caller=caller)
            answer = self._resolver.resolve(plain, context)
        except RequestRejected as rejected:
            answer = _to_answer(rejected.problem.response(_request_id(event)))
        except SluiceError as error:
            answer = _to_answer(self._problem(error).response(_request_id(event)))
        except Exception as error:  # noqa: BLE001 - before the router has it, nobody else turns it into an answer
            answer = _to_answer(self._bug(error).response(_request_id(event)))
        # Neither an id nor a path or method that a client made up belongs in a log.
        logger.info(
            "request",
            extra={
                "route": f"{method} {route.path}" if route is not None and method in route.access else "other",
                "status": answer["statusCode"],
                "duration_us": (time.perf_counter_ns() - started_ns) // 1000,
            },
        )
        return answer

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document of these routes. What the function of one says about itself describes its operation."""
        resolver = self._resolver
        for route in (*resolver._static_routes, *resolver._dynamic_routes):  # noqa: SLF001 - it lists them nowhere else
            route.description = inspect.getdoc(route.func)
        text = self._resolver.get_openapi_json_schema(title="Sluice", version="1", openapi_version="3.1.0")
        document: dict[str, Any] = json.loads(text)
        return document

    def _register_problems(self) -> None:
        handlers: dict[type[Exception], Callable[[Any], Response[str]]] = {
            SluiceError: self._on_error,
            NotFoundError: lambda _error: self._answer(_NOTHING_HERE),
            RequestValidationError: lambda error: self._answer(validation_problem(error.errors())),
            Exception: self._on_bug,
        }
        self._resolver.exception_handler_manager.update_exception_handlers(handlers)

    def _route(self, path: str, method: str) -> tuple[Route | None, Mapping[str, str]]:
        """The one that takes the method: an entity may be called as another route ends. Else the first of the path."""
        matching = [(route, named) for route in self._routes if (named := route.matched(path)) is not None]
        taking = (one for one in matching if method in one[0].access)
        return next(taking, matching[0] if matching else (None, {}))

    def _confine(self, caller: Caller | None, access: Access, named: Mapping[str, str], event: Event) -> None:
        """Keeps an org to its own org, and an app to its own entity and those below it."""
        if caller is None:
            return
        if access.scope is Scope.ORG and caller.role is Role.ORG and named["org"] != caller.entity:
            raise NotFound("there is no such org")
        if caller.within is None:
            return
        about = None
        if access.scope is Scope.PATH_ENTITY:
            about = named["entity"]
        elif access.scope is Scope.QUERY_ENTITY:
            about = (event.get("queryStringParameters") or {}).get("entity")
        if about is None:
            return
        # What the router might read otherwise than we do is never let through.
        if re.fullmatch(ID_PATTERN, about) is None:
            raise InvalidRequest("entity", "is not an id")
        self._confinement.require(caller.namespace, caller.within, about)

    def _on_error(self, error: SluiceError) -> Response[str]:
        return self._answer(self._problem(error))

    def _on_bug(self, error: Exception) -> Response[str]:
        return self._answer(self._bug(error))

    def _problem(self, error: SluiceError) -> Problem:
        problem = problem_of(error)
        return self._bug(error) if problem is INTERNAL else problem

    def _bug(self, error: Exception) -> Problem:
        logger.error("unexpected error", exc_info=error)
        self._meter.count(Signal.INTERNAL_ERRORS)
        return INTERNAL

    def _answer(self, problem: Problem) -> Response[str]:
        return problem.response(_request_id(self._resolver.current_event.raw_event))


def _access(route: Route | None, method: str) -> Access:
    """Before anything else is looked at: what is wrong with it does not matter where it can not go."""
    if route is None:
        raise RequestRejected(_NOTHING_HERE)
    if method not in route.access:
        allowed = ", ".join(sorted(route.access))
        headers = {"Allow": allowed}
        raise RequestRejected(
            Problem(HTTPStatus.METHOD_NOT_ALLOWED, "method-not-allowed", f"allowed: {allowed}", headers=headers)
        )
    return route.access[method]


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
