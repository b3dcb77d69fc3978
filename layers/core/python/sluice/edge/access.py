"""Who may call what: one line per endpoint, and nothing is decided anywhere else.

`scope` says what keeps a caller to its own. `closed`: refused while nobody can tell whether the token was revoked; only
what takes and returns tokens goes on, because there the system limits decide what happens while the table is away.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sluice.core.identity import Role


class Scope(Enum):
    """What of a request names whom it is about."""

    OPEN = "needs no caller"
    CALLER = "is about the caller itself"
    NAMESPACE = "is about the whole namespace of the caller"
    REGISTRY = "is about all namespaces"
    ORG = "the org in the path: an org's own"
    PATH_ENTITY = "the entity in the path: an app's own, or one below it"
    QUERY_ENTITY = "the entity in the query: an app's own, or one below it"
    ASKED_ENTITY = "the entity in the query, which the service confines by cached parents"
    PUT_ENTITY = "the entity in the path, which may be new: the service confines it"
    BODY_ENTITY = "the entity in the body, which the service confines"
    QUERY_APP = "the app in the query, an app's own; without one, the whole org: the service confines it"
    LEASE = "the entity of the lease in the body, which the route confines"


@dataclass(frozen=True, slots=True)
class Access:
    roles: frozenset[Role]
    scope: Scope
    closed: bool = True


_O, _A, _P = Role.OPERATOR, Role.ORG, Role.APP


def _to(*roles: Role, scope: Scope, closed: bool = True) -> Access:
    return Access(frozenset(roles), scope, closed)


_OPEN: Final = _to(scope=Scope.OPEN, closed=False)
_CALLER: Final = _to(_A, _P, scope=Scope.CALLER)
_REGISTRY: Final = _to(_O, scope=Scope.REGISTRY)
_ANY_JOB: Final = _to(_O, _A, scope=Scope.NAMESPACE)
_ORG: Final = _to(_O, _A, scope=Scope.ORG)
_ORG_BY_OPERATOR: Final = _to(_O, scope=Scope.ORG)
_NAMESPACE: Final = _to(_A, scope=Scope.NAMESPACE)
_PATH_ENTITY: Final = _to(_A, _P, scope=Scope.PATH_ENTITY)
_QUERY_ENTITY: Final = _to(_A, _P, scope=Scope.QUERY_ENTITY)
# Asked for again and again: a walk up the table as it is now would cost more than the answer.
_ASKING: Final = _to(_A, _P, scope=Scope.ASKED_ENTITY)
_TAKING: Final = _to(_A, _P, scope=Scope.BODY_ENTITY, closed=False)
_LEASE: Final = _to(_A, _P, scope=Scope.LEASE, closed=False)
# About the entity in the body or the query, or else about the caller itself. Money is closed while nobody can tell.
_REPORTING: Final = _to(_A, _P, scope=Scope.BODY_ENTITY)
_QUERY_APP: Final = _to(_A, _P, scope=Scope.QUERY_APP)
_READING: Final = _to(_A, _P, scope=Scope.CALLER)

_LIMITS_OF_ENTITY: Final = "/v1/limits/entities/<entity>/<resource>"
_APP: Final = "/v1/orgs/<org>/apps/<app>"

ACCESS: Final[Mapping[tuple[str, str], Access]] = {
    # Probes and logins.
    ("GET", "/v1/health"): _OPEN,
    ("GET", "/v1/ready"): _OPEN,
    ("GET", "/v1/openapi.json"): _OPEN,
    ("POST", "/v1/auth/token"): _OPEN,
    ("POST", "/v1/auth/refresh"): _OPEN,
    ("POST", "/v1/auth/revoke"): _CALLER,
    ("GET", "/v1/whoami"): _CALLER,
    # Orgs and apps.
    ("GET", "/v1/orgs"): _REGISTRY,
    ("GET", "/v1/orgs/<org>"): _ORG,
    ("PUT", "/v1/orgs/<org>"): _ORG_BY_OPERATOR,
    ("DELETE", "/v1/orgs/<org>"): _ORG_BY_OPERATOR,
    ("POST", "/v1/orgs/<org>/credentials/rotate"): _ORG,
    ("GET", "/v1/orgs/<org>/apps"): _ORG,
    ("GET", _APP): _ORG,
    ("PUT", _APP): _ORG,
    ("DELETE", _APP): _ORG,
    ("POST", f"{_APP}/credentials/rotate"): _ORG,
    # Entities and limits.
    ("GET", "/v1/entities"): _CALLER,
    ("GET", "/v1/entities/<entity>"): _PATH_ENTITY,
    ("PUT", "/v1/entities/<entity>"): _to(_A, _P, scope=Scope.PUT_ENTITY),
    ("DELETE", "/v1/entities/<entity>"): _PATH_ENTITY,
    ("GET", "/v1/entities/<entity>/children"): _PATH_ENTITY,
    ("GET", "/v1/entities/<entity>/buckets"): _PATH_ENTITY,
    ("GET", "/v1/entities/<entity>/usage"): _PATH_ENTITY,
    ("GET", "/v1/limits/system"): _NAMESPACE,
    ("PUT", "/v1/limits/system"): _NAMESPACE,
    ("DELETE", "/v1/limits/system"): _NAMESPACE,
    ("GET", "/v1/limits/resources/<resource>"): _NAMESPACE,
    ("PUT", "/v1/limits/resources/<resource>"): _NAMESPACE,
    ("DELETE", "/v1/limits/resources/<resource>"): _NAMESPACE,
    ("GET", _LIMITS_OF_ENTITY): _NAMESPACE,
    ("PUT", _LIMITS_OF_ENTITY): _NAMESPACE,
    ("DELETE", _LIMITS_OF_ENTITY): _NAMESPACE,
    ("GET", "/v1/limits/effective"): _QUERY_ENTITY,
    ("GET", "/v1/limits/entities"): _NAMESPACE,
    ("GET", "/v1/resources"): _NAMESPACE,
    ("GET", "/v1/resources/<resource>/capacity"): _NAMESPACE,
    ("GET", "/v1/resources/<resource>/usage"): _NAMESPACE,
    ("GET", "/v1/audit"): _QUERY_ENTITY,
    # Jobs.
    ("GET", "/v1/jobs"): _ANY_JOB,
    ("GET", "/v1/jobs/<job>"): _ANY_JOB,
    ("POST", "/v1/migrations"): _REGISTRY,
    # Labels, profiles and prices.
    ("GET", "/v1/labels"): _READING,
    ("GET", "/v1/labels/<label>"): _NAMESPACE,
    ("PUT", "/v1/labels/<label>"): _NAMESPACE,
    ("DELETE", "/v1/labels/<label>"): _NAMESPACE,
    ("GET", "/v1/inference-profiles"): _QUERY_APP,
    ("GET", "/v1/inference-profiles/<label>"): _QUERY_APP,
    ("PUT", "/v1/inference-profiles/<label>"): _QUERY_APP,
    ("DELETE", "/v1/inference-profiles/<label>"): _QUERY_APP,
    ("GET", "/v1/prices"): _READING,
    ("PUT", "/v1/prices"): _NAMESPACE,
    ("DELETE", "/v1/prices"): _NAMESPACE,
    ("POST", "/v1/prices/quote"): _READING,
    # What was used, and what may be.
    ("POST", "/v1/usage"): _REPORTING,
    ("POST", "/v1/usage/batch"): _REPORTING,
    ("GET", "/v1/selection"): _ASKING,
    ("PUT", "/v1/selection/override"): _REPORTING,
    ("DELETE", "/v1/selection/override"): _QUERY_ENTITY,
    ("GET", "/v1/aggregates"): _QUERY_ENTITY,
    ("POST", "/v1/aggregates/rollup"): _NAMESPACE,
    ("GET", "/v1/events"): _QUERY_ENTITY,
    # Budgets.
    ("GET", "/v1/budgets"): _READING,
    ("GET", "/v1/budgets/_default_"): _NAMESPACE,
    ("PUT", "/v1/budgets/_default_"): _NAMESPACE,
    ("DELETE", "/v1/budgets/_default_"): _NAMESPACE,
    ("GET", "/v1/budgets/<entity>"): _PATH_ENTITY,
    ("PUT", "/v1/budgets/<entity>"): _NAMESPACE,
    ("DELETE", "/v1/budgets/<entity>"): _NAMESPACE,
    ("GET", "/v1/budgets/<entity>/alerts"): _PATH_ENTITY,
    ("POST", "/v1/budgets/<entity>/refresh"): _NAMESPACE,
    ("POST", "/v1/budgets/refresh"): _NAMESPACE,
    # Taking and returning tokens.
    ("POST", "/v1/acquire"): _TAKING,
    ("POST", "/v1/explain"): _TAKING,
    ("POST", "/v1/leases/settle"): _LEASE,
    ("POST", "/v1/leases/adjust"): _LEASE,
    ("POST", "/v1/leases/release"): _LEASE,
}
