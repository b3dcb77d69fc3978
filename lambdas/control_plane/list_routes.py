"""Routes of lists: parse, call one service, answer a page."""

from typing import Annotated, Final

from aws_lambda_powertools.event_handler.openapi.params import Path, Query
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from control_plane.links import (
    FROM_ENTITIES,
    FROM_ENTITIES_WITH_LIMITS,
    FROM_RESOURCES,
    NEXT_AUDIT,
    NEXT_BUCKETS,
    NEXT_CAPACITY,
    NEXT_CHILDREN,
    NEXT_ENTITIES,
    NEXT_ENTITIES_WITH_LIMITS,
    NEXT_RESOURCES,
)
from control_plane.list_models import (
    AuditPage,
    BucketPage,
    CapacityPage,
    EntityLimitsPage,
    EntityPage,
    ResourcePage,
)
from sluice.core.audit import RESOURCE_SUBJECT_PREFIX, SYSTEM_SUBJECT
from sluice.core.limits import DEFAULT_RESOURCE
from sluice.edge.callers import caller_of
from sluice.edge.conventions import PAGE_DEFAULT, PageCursor, PageLimit, list_responses, namespace_of
from sluice.edge.models import ID_PATTERN
from sluice.services.listing import PageRequest
from sluice.shell import Services

ENTITIES: Final = "/v1/entities"
CHILDREN: Final = "/v1/entities/<entity>/children"
BUCKETS: Final = "/v1/entities/<entity>/buckets"
ENTITIES_WITH_LIMITS: Final = "/v1/limits/entities"
RESOURCES: Final = "/v1/resources"
CAPACITY: Final = "/v1/resources/<resource>/capacity"
AUDIT: Final = "/v1/audit"
LIST_ROUTES: Final = dict.fromkeys(
    (ENTITIES, CHILDREN, BUCKETS, ENTITIES_WITH_LIMITS, RESOURCES, CAPACITY, AUDIT), ("GET",)
)

# An entity, or what stands for the levels that have none.
_SUBJECT_PATTERN: Final = (
    ID_PATTERN + rf"|^\{SYSTEM_SUBJECT}$" + rf"|^\{RESOURCE_SUBJECT_PREFIX}" + ID_PATTERN.removeprefix("^")
)
_EntityPath = Annotated[str, Path(pattern=ID_PATTERN)]
_ResourcePath = Annotated[str, Path(pattern=ID_PATTERN)]
_Resource = Annotated[str, Query(pattern=f"^{DEFAULT_RESOURCE}$|{ID_PATTERN}")]
_Subject = Annotated[str, Query(pattern=_SUBJECT_PATTERN)]


def add_list_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    _add_entity_lists(router, services)
    _add_resource_lists(router, services)

    @router.get(
        AUDIT,
        summary="What was changed and by whom, the newest first: of an entity, of $SYSTEM or of $RESOURCE:{name}",
        responses=list_responses(AuditPage, NEXT_AUDIT, of_one=True),
    )
    def audit(entity: _Subject, limit: PageLimit = PAGE_DEFAULT, cursor: PageCursor = None) -> AuditPage:
        since_ms = services.entities.own_since_ms(namespace_of(router), caller_of(router).within, entity)
        return AuditPage.of(services.lists.audit(namespace_of(router), entity, PageRequest(limit, cursor), since_ms))


def _add_entity_lists(router: APIGatewayHttpRouter, services: Services) -> None:
    @router.get(
        ENTITIES,
        summary="All entities, in no particular order; for an app those right below it",
        responses=list_responses(EntityPage, {**FROM_ENTITIES, **NEXT_ENTITIES}),
    )
    def entities(limit: PageLimit = PAGE_DEFAULT, cursor: PageCursor = None) -> EntityPage:
        caller, page = caller_of(router), PageRequest(limit, cursor)
        if caller.within is not None:
            return EntityPage.of(services.lists.children(caller.namespace, caller.within, page))
        return EntityPage.of(services.lists.entities(caller.namespace, page))

    @router.get(
        CHILDREN,
        summary="The entities right below one, by id",
        responses=list_responses(EntityPage, {**FROM_ENTITIES, **NEXT_CHILDREN}, of_one=True),
    )
    def children(entity: _EntityPath, limit: PageLimit = PAGE_DEFAULT, cursor: PageCursor = None) -> EntityPage:
        return EntityPage.of(services.lists.children(namespace_of(router), entity, PageRequest(limit, cursor)))

    @router.get(
        BUCKETS,
        summary="The buckets of an entity: one item per limit, all shards counted",
        responses=list_responses(BucketPage, NEXT_BUCKETS, of_one=True),
    )
    def buckets(entity: _EntityPath, limit: PageLimit = PAGE_DEFAULT, cursor: PageCursor = None) -> BucketPage:
        page = PageRequest(limit, cursor)
        return BucketPage.of(services.bucket_lists.of_entity(namespace_of(router), entity, page))

    @router.get(
        ENTITIES_WITH_LIMITS,
        summary="The entities with limits of their own for a resource, or for all",
        responses=list_responses(EntityLimitsPage, {**FROM_ENTITIES_WITH_LIMITS, **NEXT_ENTITIES_WITH_LIMITS}),
    )
    def entities_with_limits(
        resource: _Resource, limit: PageLimit = PAGE_DEFAULT, cursor: PageCursor = None
    ) -> EntityLimitsPage:
        page = PageRequest(limit, cursor)
        return EntityLimitsPage.of(services.lists.entities_with_limits(namespace_of(router), resource, page))


def _add_resource_lists(router: APIGatewayHttpRouter, services: Services) -> None:
    @router.get(
        RESOURCES,
        summary="The resources with limits, by name",
        responses=list_responses(ResourcePage, {**FROM_RESOURCES, **NEXT_RESOURCES}),
    )
    def resources(limit: PageLimit = PAGE_DEFAULT, cursor: PageCursor = None) -> ResourcePage:
        return ResourcePage.of(services.lists.resources(namespace_of(router), PageRequest(limit, cursor)))

    @router.get(
        CAPACITY,
        summary="The entities with a bucket of a resource, and what each of them has left",
        responses=list_responses(CapacityPage, NEXT_CAPACITY),
    )
    def capacity(resource: _ResourcePath, limit: PageLimit = PAGE_DEFAULT, cursor: PageCursor = None) -> CapacityPage:
        page = PageRequest(limit, cursor)
        return CapacityPage.of(services.bucket_lists.of_resource(namespace_of(router), resource, page))
