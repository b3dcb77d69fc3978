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
_SELECT: Final = "select_v1_selection_get"
_REPORT: Final = "report_v1_usage_post"
_PUT_PRICE: Final = "put_price_v1_prices_put"
_QUOTE: Final = "quote_price_v1_prices_quote_post"

_GET_LABEL: Final = "get_label_v1_labels__label__get"
_PUT_LABEL: Final = "put_label_v1_labels__label__put"
_DELETE_LABEL: Final = "delete_label_v1_labels__label__delete"
_GET_PROFILE: Final = "get_profile_v1_inference_profiles__label__get"
_PUT_PROFILE: Final = "put_profile_v1_inference_profiles__label__put"
_DELETE_PROFILE: Final = "delete_profile_v1_inference_profiles__label__delete"

_GET_BUDGET: Final = "get_budget_v1_budgets__entity__get"
_PUT_BUDGET: Final = "put_budget_v1_budgets__entity__put"
_DELETE_BUDGET: Final = "delete_budget_v1_budgets__entity__delete"

_VERSION: Final = {"header.if-match": "$response.header.ETag"}
_CURSOR: Final = {"cursor": "$response.body#/next_cursor"}
_ENTITY: Final = {"entity": "$response.body#/entity"}
_FIRST_ENTITY: Final = {"entity": "$response.body#/items/0/entity"}
_FIRST_RESOURCE: Final = {"resource": "$response.body#/items/0/resource"}
_LABEL: Final = {"label": "$response.body#/label"}
_FIRST_LABEL: Final = {"label": "$response.body#/items/0/label"}
_MODEL: Final = {"model_id": "$response.body#/model_id"}
_REQUESTED_APP: Final = {"app": "$request.query.app"}
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
    "budget": link(_PUT_BUDGET, _ENTITY),
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
FROM_LABEL: Final[Links] = {
    "get": link(_GET_LABEL, _LABEL),
    "change": link(_PUT_LABEL, {**_LABEL, **_VERSION}),
    "remove": link(_DELETE_LABEL, {**_LABEL, **_VERSION}),
    "profile": link(_PUT_PROFILE, _LABEL),
    "price": link(_PUT_PRICE, _MODEL),
    "quote": link(_QUOTE, {}, _LABEL),
    "usage": link(_REPORT, {}, _LABEL),
}
FROM_LABELS: Final[Links] = {
    "get": link(_GET_LABEL, _FIRST_LABEL),
    "change": link(_PUT_LABEL, _FIRST_LABEL),
    "remove": link(_DELETE_LABEL, _FIRST_LABEL),
    "price": link(_PUT_PRICE, {"model_id": "$response.body#/items/0/model_id"}),
}
FROM_PROFILE: Final[Links] = {
    "get": link(_GET_PROFILE, {**_LABEL, **_REQUESTED_APP}),
    "change": link(_PUT_PROFILE, {**_LABEL, **_REQUESTED_APP, **_VERSION}),
    "remove": link(_DELETE_PROFILE, {**_LABEL, **_REQUESTED_APP, **_VERSION}),
    "list": link("list_profiles_v1_inference_profiles_get", _REQUESTED_APP),
}
FROM_PROFILES: Final[Links] = {
    "get": link(_GET_PROFILE, {**_FIRST_LABEL, **_REQUESTED_APP}),
    "change": link(_PUT_PROFILE, {**_FIRST_LABEL, **_REQUESTED_APP}),
    "remove": link(_DELETE_PROFILE, {**_FIRST_LABEL, **_REQUESTED_APP}),
}
FROM_PRICE: Final[Links] = {
    "get": link("get_price_v1_prices_get", {**_MODEL, "day": "$response.body#/from_day"}),
    "change": link(_PUT_PRICE, _MODEL),
    "remove": link("delete_price_v1_prices_delete", {**_MODEL, "from_day": "$response.body#/from_day"}),
    "quote": link(_QUOTE, {}, _MODEL),
}
FROM_BUDGET: Final[Links] = {
    "get": link(_GET_BUDGET, _ENTITY),
    "change": link(_PUT_BUDGET, {**_ENTITY, **_VERSION}),
    "remove": link(_DELETE_BUDGET, {**_ENTITY, **_VERSION}),
    "audit": link(_AUDIT, _ENTITY),
}
FROM_BUDGETS: Final[Links] = {
    "get": link(_GET_BUDGET, _FIRST_ENTITY),
    "change": link(_PUT_BUDGET, _FIRST_ENTITY),
    "remove": link(_DELETE_BUDGET, _FIRST_ENTITY),
}
FROM_DEFAULTS: Final[Links] = {
    "get": link("get_defaults_v1_budgets__default__get", {}),
    "change": link("put_defaults_v1_budgets__default__put", _VERSION),
    "remove": link("delete_defaults_v1_budgets__default__delete", _VERSION),
    "list": link("list_budgets_v1_budgets_get", {}),
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
FROM_AGGREGATE: Final[Links] = {
    "events": link("events_v1_events_get", {**_ENTITY, "day": "$response.body#/days/0/day"}),
    "rollup": link("roll_up_v1_aggregates_rollup_post", {}, _ENTITY),
    "select": link(_SELECT, _ENTITY),
}
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
NEXT_LABELS: Final = next_page("list_labels_v1_labels_get")
NEXT_PROFILES: Final = next_page("list_profiles_v1_inference_profiles_get", _REQUESTED_APP)
NEXT_JOBS: Final = next_page("jobs_v1_jobs_get")
NEXT_ENTITIES_WITH_LIMITS: Final = next_page(
    "entities_with_limits_v1_limits_entities_get", {"resource": "$request.query.resource"}
)
NEXT_ALERTS: Final = next_page("budget_alerts_v1_budgets__entity__alerts_get", _REQUESTED_ENTITY)
NEXT_BUDGETS: Final = next_page("list_budgets_v1_budgets_get", {"sort": "$request.query.sort"})
NEXT_EVENTS: Final = next_page("events_v1_events_get", {"entity": "$request.query.entity", "day": "$request.query.day"})
