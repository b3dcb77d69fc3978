"""The data plane: the hot function, asked before and after every model call."""

import os
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from aws_lambda_powertools.logging import correlation_paths
from aws_lambda_powertools.utilities.typing import LambdaContext

from data_plane.routes import OPEN_PATHS, ROUTES, build_router
from sluice.core.signals import Meter
from sluice.edge.application import Application, Caller, Event, flush_metrics
from sluice.edge.problems import Problem, RequestRejected
from sluice.edge.requests import path_of
from sluice.shell import Environment, PowertoolsMeter, Services, build_services, logger, make_client


def build_application(environment: Environment, services: Services, meter: Meter) -> Application:
    def identify(event: Event) -> Caller | None:
        if path_of(event) in OPEN_PATHS:
            return None
        if environment.open_namespace is None:
            detail = "this deployment accepts no calls: it has neither a login nor an open namespace"
            headers = {"WWW-Authenticate": "Bearer"}
            raise RequestRejected(Problem(HTTPStatus.UNAUTHORIZED, "unauthorized", detail, headers=headers))
        return Caller(environment.open_namespace)

    return Application(build_router(services), ROUTES, identify, meter)


_environment = Environment.read(os.environ)
_meter = PowertoolsMeter(_environment)
application = build_application(_environment, build_services(_environment, make_client(_environment), _meter), _meter)


@logger.inject_lambda_context(correlation_id_path=correlation_paths.API_GATEWAY_HTTP, clear_state=True)
def handler(event: Mapping[str, Any], context: LambdaContext) -> dict[str, Any]:
    try:
        return application.handle(event, context)
    finally:
        flush_metrics()
