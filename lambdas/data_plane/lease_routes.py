"""Routes of leases: parse, call one service, answer."""

from http import HTTPStatus
from typing import Annotated, Any, Final

from aws_lambda_powertools.event_handler.openapi.params import Header
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from data_plane.models import AdjustAnswer, AdjustBody, ReleaseAnswer, ReleaseBody, SettleAnswer, SettleBody
from sluice.core.errors import InvalidLease, NotFound
from sluice.core.lease import Lease
from sluice.edge.callers import caller_of
from sluice.edge.documentation import answer, problems
from sluice.edge.lease_tokens import read_token
from sluice.services.confinement import require_cached
from sluice.shell import Services

SETTLE: Final = "/v1/leases/settle"
ADJUST: Final = "/v1/leases/adjust"
RELEASE: Final = "/v1/leases/release"

LEASE_ROUTES: Final = {SETTLE: ("POST",), ADJUST: ("POST",), RELEASE: ("POST",)}

IDEMPOTENCY_KEY_PATTERN: Final = r"^[ -~]{1,128}$"
IdempotencyKey = Annotated[str, Header(alias="idempotency-key", pattern=IDEMPOTENCY_KEY_PATTERN)]

_PROBLEMS: Final = (
    (HTTPStatus.BAD_REQUEST, "invalid-request"),
    (HTTPStatus.BAD_REQUEST, "invalid-lease"),
    (HTTPStatus.UNAUTHORIZED, "unauthorized"),
    (HTTPStatus.FORBIDDEN, "suspended"),
    (HTTPStatus.CONFLICT, "lease-closed"),
    (HTTPStatus.GONE, "lease-expired"),
    (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "payload-too-large"),
    (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type"),
    (HTTPStatus.TOO_MANY_REQUESTS, "contended"),
    (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
)
_UNKNOWN_LIMIT: Final = (HTTPStatus.BAD_REQUEST, "unknown-limit")
_MISMATCH: Final = (HTTPStatus.UNPROCESSABLE_ENTITY, "idempotency-mismatch")
_SETTLE_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.OK.value: answer(SettleAnswer, "closed with these amounts"),
    **problems(*_PROBLEMS, _UNKNOWN_LIMIT),
}
_ADJUST_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.OK.value: answer(AdjustAnswer, "adjusted"),
    **problems(*_PROBLEMS, _UNKNOWN_LIMIT, _MISMATCH),
}
_RELEASE_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.OK.value: answer(ReleaseAnswer, "closed, and all of this given back"),
    **problems(*_PROBLEMS),
}


def add_lease_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    leases = services.leases

    def lease_of(token: str) -> Lease:
        caller = caller_of(router)
        lease = read_token(services.signer, caller.namespace, token)
        try:
            require_cached(services.configuration, lease.namespace, caller.within, lease.entity, lease.resource)
        except NotFound:
            raise InvalidLease from None
        return lease

    @router.post(SETTLE, summary="Close a lease with what was really used", responses=_SETTLE_RESPONSES)
    def settle(body: SettleBody) -> SettleAnswer:
        """Limits that are left out keep their amount. The same again is answered the same."""
        return SettleAnswer.of(leases.settle(lease_of(body.lease), body.actual))

    @router.post(ADJUST, summary="Take more, or give some back, while a lease is open", responses=_ADJUST_RESPONSES)
    def adjust(body: AdjustBody, idempotency_key: IdempotencyKey) -> AdjustAnswer:
        """Once for each Idempotency-Key. More may be taken than there is: refill repays the debt."""
        return AdjustAnswer.of(leases.adjust(lease_of(body.lease), body.delta, idempotency_key))

    @router.post(RELEASE, summary="Close a lease and give everything back", responses=_RELEASE_RESPONSES)
    def release(body: ReleaseBody) -> ReleaseAnswer:
        """The same again is answered the same."""
        return ReleaseAnswer.of(leases.release(lease_of(body.lease)))
