"""Who calls: roles, and what a token says about its bearer.

A token names its namespace; nothing else a client sends does. An org acts in its whole namespace, an app on its own
entity and on what stands below it.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

ACCESS_MS: Final = 3600 * 1000
REFRESH_MS: Final = 30 * 24 * 3600 * 1000
# How far the clocks of two processes may be apart.
LEEWAY_MS: Final = 10 * 1000
# Marks outlive the last token that they are about.
MARK_BEYOND_MS: Final = LEEWAY_MS + 3600 * 1000

GRACE_HOURS_DEFAULT: Final = 24
GRACE_HOURS_MAX: Final = 168
SECRETS_MAX: Final = 5


class Role(StrEnum):
    OPERATOR = "operator"
    ORG = "org"
    APP = "app"


class TokenType(StrEnum):
    ACCESS = "access"
    REFRESH = "refresh"


@dataclass(frozen=True, slots=True)
class Bearer:
    """Whom a credential or a token is for. `secret_generation`: the secret that it was opened with."""

    client_id: str
    namespace: str
    entity: str
    role: Role
    secret_generation: int


@dataclass(frozen=True, slots=True)
class Claims:
    """A token of ours, verified. `family`: all tokens that came from one login by refreshing."""

    bearer: Bearer
    token_type: TokenType
    token_id: str
    family: str
    issued_at_ms: int
    expires_at_ms: int
