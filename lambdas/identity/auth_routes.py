"""Routes of logins and tokens: parse, call one service, answer."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter
from pydantic import BaseModel, Field

from identity.links import FROM_TOKENS
from sluice.core.errors import Unauthorized
from sluice.core.identity import Claims, Role
from sluice.edge.callers import caller_of
from sluice.edge.documentation import answer, problems
from sluice.edge.models import Strict
from sluice.edge.problems import rfc3339
from sluice.services.tokens import TOKEN_MAX, IssuedTokens
from sluice.shell import Services

TOKEN: Final = "/v1/auth/token"  # noqa: S105 - a path
REFRESH: Final = "/v1/auth/refresh"
REVOKE: Final = "/v1/auth/revoke"
WHOAMI: Final = "/v1/whoami"
AUTH_ROUTES: Final = {TOKEN: ("POST",), REFRESH: ("POST",), REVOKE: ("POST",), WHOAMI: ("GET",)}

# More than ours ever have: a longer one is refused for its length, every other for being wrong.
_Text = Annotated[str, Field(min_length=1, max_length=256)]
_Token = Annotated[str, Field(min_length=1, max_length=TOKEN_MAX)]


class LoginBody(Strict):
    client_id: _Text
    client_secret: _Text


class RefreshBody(Strict):
    refresh_token: _Token


class RevokeBody(Strict):
    token: _Token


class TokensAnswer(BaseModel):
    access_token: str
    refresh_token: str = Field(description="good once: refreshing gives another")
    token_type: str = Field(description="always Bearer")
    expires_in: int = Field(description="of the access token, in seconds")
    refresh_expires_in: int = Field(description="of the refresh token, in seconds")

    @classmethod
    def of(cls, issued: IssuedTokens) -> "TokensAnswer":
        return cls(
            access_token=issued.access_token,
            refresh_token=issued.refresh_token,
            token_type="Bearer",  # noqa: S106 - the word for it
            expires_in=issued.expires_in_s,
            refresh_expires_in=issued.refresh_expires_in_s,
        )


class WhoamiAnswer(BaseModel):
    org: str
    entity: str
    role: str = Field(description="org or app")
    expires_at: str


_BODY: Final = (
    (HTTPStatus.BAD_REQUEST, "invalid-request"),
    (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "payload-too-large"),
    (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type"),
)
_REFUSED: Final = (
    (HTTPStatus.UNAUTHORIZED, "unauthorized"),
    (HTTPStatus.FORBIDDEN, "suspended"),
    (HTTPStatus.TOO_MANY_REQUESTS, "contended"),
    (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
)
_ISSUED: Final = answer(TokensAnswer, "tokens; kept by nobody but you", FROM_TOKENS)
_LOGIN_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.OK.value: _ISSUED,
    **problems(*_BODY, *_REFUSED, (HTTPStatus.TOO_MANY_REQUESTS, "too-many-requests")),
}
_REFRESH_RESPONSES: Final[dict[int, Any]] = {HTTPStatus.OK.value: _ISSUED, **problems(*_BODY, *_REFUSED)}
_CALLER_REFUSED: Final = (*_REFUSED, (HTTPStatus.FORBIDDEN, "forbidden"))
_REVOKE_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.NO_CONTENT.value: {"description": "it is worth nothing within a minute, if it was yours"},
    **problems(*_BODY, *_CALLER_REFUSED),
}
_WHOAMI_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.OK.value: answer(WhoamiAnswer, "whom the token is for"),
    **problems(*_CALLER_REFUSED),
}


def add_auth_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    @router.post(TOKEN, summary="Log in: a client's secret for tokens", responses=_LOGIN_RESPONSES)
    def log_in(body: LoginBody) -> Response[TokensAnswer]:
        """30 a minute for each client."""
        return _not_stored(services.logins.log_in(body.client_id, body.client_secret))

    @router.post(REFRESH, summary="A refresh token for newer tokens", responses=_REFRESH_RESPONSES)
    def refresh(body: RefreshBody) -> Response[TokensAnswer]:
        """A refresh token is good once. Used again, every token that came from the same login ends."""
        return _not_stored(services.logins.refresh(body.refresh_token))

    @router.post(REVOKE, summary="End a token; a refresh token ends its whole login", responses=_REVOKE_RESPONSES)
    def revoke(body: RevokeBody) -> Response[str]:
        """Answers the same for a token that is not yours, or none at all."""
        services.logins.revoke(_claims(router), body.token)
        # An empty body, not none: the local engine fails on a null one.
        return Response(status_code=HTTPStatus.NO_CONTENT, body="")

    @router.get(WHOAMI, summary="Whom the token is for", responses=_WHOAMI_RESPONSES)
    def whoami() -> WhoamiAnswer:
        claims = _claims(router)
        bearer = claims.bearer
        is_org = bearer.role is Role.ORG
        return WhoamiAnswer(
            org=bearer.entity if is_org else services.namespaces.by_id(bearer.namespace).name,
            entity=bearer.entity,
            role=bearer.role.value,
            expires_at=rfc3339(claims.expires_at_ms),
        )


def _claims(router: APIGatewayHttpRouter) -> Claims:
    claims = caller_of(router).claims
    if claims is None:
        raise Unauthorized
    return claims


def _not_stored(issued: IssuedTokens) -> Response[TokensAnswer]:
    """No cache on the way may keep it."""
    return Response(
        status_code=HTTPStatus.OK,
        content_type="application/json",
        body=TokensAnswer.of(issued),
        headers={"Cache-Control": "no-store"},
    )
