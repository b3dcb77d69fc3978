"""All routes of the control plane."""

from typing import Final

from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from control_plane.aggregate_routes import AGGREGATE_ROUTES, add_aggregate_routes
from control_plane.alert_routes import ALERT_ROUTES, add_alert_routes
from control_plane.budget_routes import BUDGET_ROUTES, add_budget_routes
from control_plane.document_routes import DOCUMENT_ROUTES, add_document_routes
from control_plane.entity_routes import ENTITY_ROUTES, add_entity_routes
from control_plane.job_routes import JOB_ROUTES, add_job_routes
from control_plane.label_routes import LABEL_ROUTES, add_label_routes
from control_plane.limit_routes import LIMIT_ROUTES, add_limit_routes
from control_plane.list_routes import LIST_ROUTES, add_list_routes
from control_plane.migration_routes import MIGRATION_ROUTES, add_migration_routes
from control_plane.price_routes import PRICE_ROUTES, add_price_routes
from control_plane.profile_routes import PROFILE_ROUTES, add_profile_routes
from control_plane.usage_routes import USAGE_ROUTES, add_usage_routes
from sluice.shell import Services

ROUTES: Final = {
    **AGGREGATE_ROUTES,
    **ALERT_ROUTES,
    **BUDGET_ROUTES,
    **DOCUMENT_ROUTES,
    **JOB_ROUTES,
    **LABEL_ROUTES,
    **LIMIT_ROUTES,
    **LIST_ROUTES,
    **ENTITY_ROUTES,
    **MIGRATION_ROUTES,
    **PRICE_ROUTES,
    **PROFILE_ROUTES,
    **USAGE_ROUTES,
}


def build_router(services: Services) -> APIGatewayHttpRouter:
    router = APIGatewayHttpRouter()
    add_aggregate_routes(router, services)
    add_alert_routes(router, services)
    add_budget_routes(router, services)
    add_document_routes(router)
    add_job_routes(router, services)
    add_label_routes(router, services)
    add_limit_routes(router, services)
    add_list_routes(router, services)
    add_entity_routes(router, services)
    add_migration_routes(router, services)
    add_price_routes(router, services)
    add_profile_routes(router, services)
    add_usage_routes(router, services)
    return router
