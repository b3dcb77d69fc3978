"""All routes of the control plane."""

from typing import Final

from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from control_plane.entity_routes import ENTITY_ROUTES, add_entity_routes
from control_plane.limit_routes import LIMIT_ROUTES, add_limit_routes
from sluice.shell import Services

ROUTES: Final = {**LIMIT_ROUTES, **ENTITY_ROUTES}


def build_router(services: Services) -> APIGatewayHttpRouter:
    router = APIGatewayHttpRouter()
    add_limit_routes(router, services)
    add_entity_routes(router, services)
    return router
