"""One HTTP function: its application, made once per process, and the handler that Lambda calls."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aws_lambda_powertools.event_handler.api_gateway import Router
from aws_lambda_powertools.logging import correlation_paths
from aws_lambda_powertools.utilities.typing import LambdaContext

from sluice.edge.application import Application, flush_metrics
from sluice.edge.identity import Identity
from sluice.shell import PowertoolsMeter, Services, build_services, clock_ms, logger, make_client, process_environment

Handler = Callable[[Mapping[str, Any], LambdaContext], dict[str, Any]]


def build_application(build_router: Callable[[Services], Router], routes: Mapping[str, Iterable[str]]) -> Application:
    environment = process_environment()
    meter = PowertoolsMeter(environment)
    services = build_services(environment, make_client(environment), meter)
    identity = Identity(services.tokens, services.bearers, services.operators, clock_ms)
    return Application(build_router(services), routes, identity.caller, services.confinement, meter)


def build_handler(application: Application) -> Handler:
    def handle(event: Mapping[str, Any], context: LambdaContext) -> dict[str, Any]:
        try:
            return application.handle(event, context)
        finally:
            flush_metrics()

    decorated: Handler = logger.inject_lambda_context(
        handle, correlation_id_path=correlation_paths.API_GATEWAY_HTTP, clear_state=True
    )
    return decorated
