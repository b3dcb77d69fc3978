"""Who changed what: the words of the audit."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice.core.budget import DEFAULTS
from sluice.core.limits import Scope

SYSTEM_SUBJECT: Final = "$SYSTEM"
RESOURCE_SUBJECT_PREFIX: Final = "$RESOURCE:"
"""No id begins with a dollar sign, so neither can be taken for an entity."""


class Action(StrEnum):
    LIMITS_PUT = "limits.put"
    LIMITS_DELETE = "limits.delete"
    ENTITY_PUT = "entity.put"
    ENTITY_DELETE = "entity.delete"
    ENTITY_REGISTER = "entity.register"
    NAMESPACE_CREATE = "namespace.create"
    NAMESPACE_PURGE = "namespace.purge"
    MIGRATION_START = "migration.start"
    ORG_PUT = "org.put"
    APP_PUT = "app.put"
    APP_DELETE = "app.delete"
    CREDENTIALS_ROTATE = "credentials.rotate"
    LABEL_PUT = "label.put"
    LABEL_DELETE = "label.delete"
    PROFILE_PUT = "inference_profile.put"
    PROFILE_DELETE = "inference_profile.delete"
    PRICE_PUT = "price.put"
    PRICE_DELETE = "price.delete"
    SELECTION_OVERRIDE_PUT = "selection_override.put"
    SELECTION_OVERRIDE_DELETE = "selection_override.delete"
    BUDGET_PUT = "budget.put"
    BUDGET_DELETE = "budget.delete"


@dataclass(frozen=True, slots=True)
class Author:
    """`actor`: a client id, `operator` or `system`. `request_id`: finds the request in the log."""

    actor: str
    request_id: str


BY_SYSTEM: Final = Author("system", "-")


def limits_subject(scope: Scope) -> str:
    """Under whom a change of these limits is found: the entity, or what stands for a level without one."""
    if scope.entity is not None:
        return scope.entity
    return SYSTEM_SUBJECT if scope.resource is None else RESOURCE_SUBJECT_PREFIX + scope.resource


def limits_target(scope: Scope) -> str:
    """What was changed, by its path in the API."""
    if scope.entity is not None:
        return f"limits/entities/{scope.entity}/{scope.resource}"
    return "limits/system" if scope.resource is None else f"limits/resources/{scope.resource}"


def entity_target(entity: str) -> str:
    return f"entities/{entity}"


def budget_subject(entity: str) -> str:
    """The defaults of an org are a matter of its system."""
    return SYSTEM_SUBJECT if entity == DEFAULTS else entity


def budget_target(entity: str) -> str:
    return f"budgets/{entity}"


def override_target(entity: str) -> str:
    return f"selection/override?entity={entity}"


def price_target(model_id: str) -> str:
    return f"prices?model_id={model_id}"
