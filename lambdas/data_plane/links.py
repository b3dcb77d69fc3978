"""Where a client can go from an answer of the data plane, as OpenAPI links."""

from typing import Final

from sluice.edge.documentation import Links, link

_LEASE: Final = {"lease": "$response.body#/lease"}

FROM_ADMITTED: Final[Links] = {
    "settle": link("settle_v1_leases_settle_post", {}, _LEASE),
    "adjust": link("adjust_v1_leases_adjust_post", {}, _LEASE),
    "release": link("release_v1_leases_release_post", {}, _LEASE),
    "usage": link("report_v1_usage_post", {}, {"lease": "$response.body#/lease", "entity": "$response.body#/entity"}),
    "entity": link("get_entity_v1_entities__entity__get", {"entity": "$response.body#/entity"}),
    "buckets": link("buckets_v1_entities__entity__buckets_get", {"entity": "$response.body#/entity"}),
    "capacity": link("capacity_v1_resources__resource__capacity_get", {"resource": "$response.body#/resource"}),
    "limits": link(
        "effective_v1_limits_effective_get",
        {"entity": "$response.body#/entity", "resource": "$response.body#/resource"},
    ),
}

_SELECTING: Final = {"entity": "$response.body#/entity"}

FROM_SELECTION: Final[Links] = {
    "again": link("select_v1_selection_get", _SELECTING),
    "override": link(
        "put_override_v1_selection_override_put",
        {},
        {"entity": "$response.body#/entity", "label": "$response.body#/labels/0/label"},
    ),
    "let go": link("delete_override_v1_selection_override_delete", _SELECTING),
    "price": link("get_price_v1_prices_get", {"model_id": "$response.body#/model_id"}),
    "quote": link("quote_price_v1_prices_quote_post", {}, {"label": "$response.body#/label"}),
    "usage": link("report_v1_usage_post", {}, {"entity": "$response.body#/entity", "label": "$response.body#/label"}),
    "batch": link("report_batch_v1_usage_batch_post", {}),
    "audit": link("audit_v1_audit_get", _SELECTING),
}
FROM_OVERRIDE: Final[Links] = {
    "select": link("select_v1_selection_get", _SELECTING),
    "change": link("put_override_v1_selection_override_put", {}, _SELECTING),
    "remove": link("delete_override_v1_selection_override_delete", _SELECTING),
    "audit": link("audit_v1_audit_get", _SELECTING),
}

_DAY: Final = "$response.body#/day"

FROM_USAGE: Final[Links] = {
    "events": link("events_v1_events_get", {"day": _DAY}),
    "totals": link("aggregates_v1_aggregates_get", {"from": _DAY, "to": _DAY}),
    "select": link("select_v1_selection_get", {}),
    "batch": link("report_batch_v1_usage_batch_post", {}),
}
