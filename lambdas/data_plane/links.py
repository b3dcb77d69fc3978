"""Where a client can go from an answer of the data plane, as OpenAPI links."""

from typing import Final

from sluice.edge.documentation import Links, link

_LEASE: Final = {"lease": "$response.body#/lease"}

FROM_ADMITTED: Final[Links] = {
    "settle": link("settle_v1_leases_settle_post", {}, _LEASE),
    "adjust": link("adjust_v1_leases_adjust_post", {}, _LEASE),
    "release": link("release_v1_leases_release_post", {}, _LEASE),
    "entity": link("get_entity_v1_entities__entity__get", {"entity": "$response.body#/entity"}),
    "buckets": link("buckets_v1_entities__entity__buckets_get", {"entity": "$response.body#/entity"}),
    "capacity": link("capacity_v1_resources__resource__capacity_get", {"resource": "$response.body#/resource"}),
    "limits": link(
        "effective_v1_limits_effective_get",
        {"entity": "$response.body#/entity", "resource": "$response.body#/resource"},
    ),
}
