"""All routes of the control plane."""

from typing import Final

from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from control_plane.document_routes import DOCUMENT_ROUTES, add_document_routes
from control_plane.entity_routes import ENTITY_ROUTES, add_entity_routes
from control_plane.job_routes import JOB_ROUTES, add_job_routes
from control_plane.limit_routes import LIMIT_ROUTES, add_limit_routes
from control_plane.list_routes import LIST_ROUTES, add_list_routes
from control_plane.migration_routes import MIGRATION_ROUTES, add_migration_routes
from control_plane.usage_routes import USAGE_ROUTES, add_usage_routes
from sluice.shell import Services

ROUTES: Final = {
    **DOCUMENT_ROUTES,
    **JOB_ROUTES,
    **LIMIT_ROUTES,
    **LIST_ROUTES,
    **ENTITY_ROUTES,
    **MIGRATION_ROUTES,
    **USAGE_ROUTES,
}


def build_router(services: Services) -> APIGatewayHttpRouter:
    router = APIGatewayHttpRouter()
    add_document_routes(router)
    add_job_routes(router, services)
    add_limit_routes(router, services)
    add_list_routes(router, services)
    add_entity_routes(router, services)
    add_migration_routes(router, services)
    add_usage_routes(router, services)
    return router
