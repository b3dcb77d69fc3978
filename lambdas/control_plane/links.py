"""Where a client can go from an answer of the control plane, as OpenAPI links."""

from collections.abc import Mapping
from typing import Final

from sluice.edge.documentation import Links, link

_GET_ENTITY: Final = "get_entity_v1_entities__entity__get"
_PUT_ENTITY: Final = "put_entity_v1_entities__entity__put"
_DELETE_ENTITY: Final = "delete_entity_v1_entities__entity__delete"
_PUT_ENTITY_LIMITS: Final = "put_entity_v1_limits_entities__entity___resource__put"
_EFFECTIVE: Final = "effective_v1_limits_effective_get"
_AUDIT: Final = "audit_v1_audit_get"

_VERSION: Final = {"header.if-match": "$response.header.ETag"}
_CURSOR: Final = {"cursor": "$response.body#/next_cursor"}
_ENTITY: Final = {"entity": "$response.body#/entity"}
_FIRST_ENTITY: Final = {"entity": "$response.body#/items/0/entity"}
_FIRST_RESOURCE: Final = {"resource": "$response.body#/items/0/resource"}
_REQUESTED_ENTITY: Final = {"entity": "$request.path.entity"}
_REQUESTED_RESOURCE: Final = {"resource": "$request.path.resource"}
_REQUESTED_LEVEL: Final = {**_REQUESTED_ENTITY, **_REQUESTED_RESOURCE}

FROM_ENTITY: Final[Links] = {
    "get": link(_GET_ENTITY, _ENTITY),
    "change": link(_PUT_ENTITY, {**_ENTITY, **_VERSION}),
    "remove": link(_DELETE_ENTITY, {**_ENTITY, **_VERSION}),
    "children": link("children_v1_entities__entity__children_get", _ENTITY),
    "buckets": link("buckets_v1_entities__entity__buckets_get", _ENTITY),
    "usage": link("entity_usage_v1_entities__entity__usage_get", _ENTITY),
    "limits": link(_PUT_ENTITY_LIMITS, _ENTITY),
    "audit": link(_AUDIT, _ENTITY),
}
FROM_SYSTEM_LIMITS: Final[Links] = {
    "get": link("get_system_v1_limits_system_get", {}),
    "change": link("put_system_v1_limits_system_put", _VERSION),
    "remove": link("delete_system_v1_limits_system_delete", _VERSION),
}
FROM_RESOURCE_LIMITS: Final[Links] = {
    "get": link("get_resource_v1_limits_resources__resource__get", _REQUESTED_RESOURCE),
    "change": link("put_resource_v1_limits_resources__resource__put", {**_REQUESTED_RESOURCE, **_VERSION}),
    "remove": link("delete_resource_v1_limits_resources__resource__delete", {**_REQUESTED_RESOURCE, **_VERSION}),
    "capacity": link("capacity_v1_resources__resource__capacity_get", _REQUESTED_RESOURCE),
    "effective": link(_EFFECTIVE, _REQUESTED_RESOURCE),
}
FROM_ENTITY_LIMITS: Final[Links] = {
    "get": link("get_entity_v1_limits_entities__entity___resource__get", _REQUESTED_LEVEL),
    "change": link(_PUT_ENTITY_LIMITS, {**_REQUESTED_LEVEL, **_VERSION}),
    "remove": link("delete_entity_v1_limits_entities__entity___resource__delete", {**_REQUESTED_LEVEL, **_VERSION}),
    "list": link("entities_with_limits_v1_limits_entities_get", _REQUESTED_RESOURCE),
    "effective": link(_EFFECTIVE, _REQUESTED_LEVEL),
    "acquire": link("acquire_v1_acquire_post", {}, _REQUESTED_LEVEL),
}
FROM_ENTITIES: Final[Links] = {
    "get": link(_GET_ENTITY, _FIRST_ENTITY),
    "change": link(_PUT_ENTITY, _FIRST_ENTITY),
    "remove": link(_DELETE_ENTITY, _FIRST_ENTITY),
    "adopt": link(_PUT_ENTITY, {}, {"parent": "$response.body#/items/0/entity"}),
    "audit": link(_AUDIT, _FIRST_ENTITY),
}
FROM_RESOURCES: Final[Links] = {
    "get": link("get_resource_v1_limits_resources__resource__get", _FIRST_RESOURCE),
    "change": link("put_resource_v1_limits_resources__resource__put", _FIRST_RESOURCE),
    "remove": link("delete_resource_v1_limits_resources__resource__delete", _FIRST_RESOURCE),
}
FROM_ENTITIES_WITH_LIMITS: Final[Links] = {
    "get": link(
        "get_entity_v1_limits_entities__entity___resource__get",
        {**_FIRST_ENTITY, "resource": "$request.query.resource"},
    ),
    "change": link(_PUT_ENTITY_LIMITS, {**_FIRST_ENTITY, "resource": "$request.query.resource"}),
}
FROM_JOBS: Final[Links] = {"get": link("job_v1_jobs__job__get", {"job": "$response.body#/items/0/id"})}
FROM_STARTED_JOB: Final[Links] = {"get": link("job_v1_jobs__job__get", {"job": "$response.body#/id"})}


def next_page(operation_id: str, same: Mapping[str, str] | None = None) -> Links:
    """`same`: the parameters that say which list it is."""
    return {"next": link(operation_id, {**(same or {}), **_CURSOR})}


NEXT_CHILDREN: Final = next_page("children_v1_entities__entity__children_get", _REQUESTED_ENTITY)
NEXT_BUCKETS: Final = next_page("buckets_v1_entities__entity__buckets_get", _REQUESTED_ENTITY)
NEXT_CAPACITY: Final = next_page("capacity_v1_resources__resource__capacity_get", _REQUESTED_RESOURCE)
NEXT_USAGE: Final = next_page(
    "entity_usage_v1_entities__entity__usage_get", {**_REQUESTED_ENTITY, "resource": "$request.query.resource"}
)
NEXT_RESOURCE_USAGE: Final = next_page("resource_usage_v1_resources__resource__usage_get", _REQUESTED_RESOURCE)
NEXT_AUDIT: Final = next_page(_AUDIT, {"entity": "$request.query.entity"})
NEXT_ENTITIES: Final = next_page("entities_v1_entities_get")
NEXT_RESOURCES: Final = next_page("resources_v1_resources_get")
NEXT_JOBS: Final = next_page("jobs_v1_jobs_get")
NEXT_ENTITIES_WITH_LIMITS: Final = next_page(
    "entities_with_limits_v1_limits_entities_get", {"resource": "$request.query.resource"}
)
