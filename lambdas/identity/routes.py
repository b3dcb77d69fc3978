"""All routes of identity."""

from typing import Final

from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from identity.app_routes import APP_ROUTES, add_app_routes
from identity.auth_routes import AUTH_ROUTES, add_auth_routes
from identity.org_routes import ORG_ROUTES, add_org_routes
from sluice.shell import Services

ROUTES: Final = {**AUTH_ROUTES, **ORG_ROUTES, **APP_ROUTES}


def build_router(services: Services) -> APIGatewayHttpRouter:
    router = APIGatewayHttpRouter()
    add_auth_routes(router, services)
    add_org_routes(router, services)
    add_app_routes(router, services)
    return router
