"""Who calls: the operator by a key, everybody else by a token. Decided before the body is read."""

from collections.abc import Callable, Mapping
from typing import Final

from sluice.core.errors import Forbidden, Unauthorized
from sluice.core.identity import Claims, Role, TokenType
from sluice.edge.access import Access, Scope
from sluice.edge.application import Caller, Event
from sluice.repository import keys
from sluice.services.bearers import Bearers
from sluice.services.operators import Operators
from sluice.services.tokens import Tokens

OPERATOR_HEADER: Final = "x-api-key"
_SCHEME: Final = "bearer "


class Identity:
    def __init__(self, tokens: Tokens, bearers: Bearers, operators: Operators, clock_ms: Callable[[], int]) -> None:
        self._tokens = tokens
        self._bearers = bearers
        self._operators = operators
        self._clock_ms = clock_ms

    def caller(self, event: Event, access: Access) -> Caller | None:
        """None where nobody has to say who it is. Raises Unauthorized, Suspended or Forbidden."""
        if access.scope is Scope.OPEN:
            return None
        headers: Mapping[str, str] = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
        presented = headers.get(OPERATOR_HEADER)
        if presented is not None and Role.OPERATOR in access.roles:
            if not self._operators.is_operator(presented):
                raise Unauthorized
            return Caller(keys.REGISTRY_NAMESPACE, "operator", None, Role.OPERATOR)
        claims = self._tokens.read(_token(headers), TokenType.ACCESS, self._clock_ms())
        terms = self._bearers.require(claims, closed=access.closed)
        if claims.bearer.role not in access.roles:
            raise Forbidden("this needs another role than yours")
        return _bearer(claims, auto_register=terms.auto_register_entities)


def _token(headers: Mapping[str, str]) -> str:
    authorization = headers.get("authorization", "")
    if authorization[: len(_SCHEME)].lower() != _SCHEME:
        raise Unauthorized
    return authorization[len(_SCHEME) :]


def _bearer(claims: Claims, *, auto_register: bool) -> Caller:
    bearer = claims.bearer
    return Caller(bearer.namespace, bearer.client_id, bearer.entity, bearer.role, claims, auto_register)
