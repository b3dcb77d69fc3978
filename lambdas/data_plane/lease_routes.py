"""Routes of leases: parse, call one service, answer."""

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Annotated, Any, Final

from aws_lambda_powertools.event_handler.openapi.params import Header
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from data_plane.models import AdjustAnswer, AdjustBody, ReleaseAnswer, ReleaseBody, SettleAnswer, SettleBody
from data_plane.usage_routes import reporter_of
from sluice.core.errors import (
    InvalidLease,
    InvalidRequest,
    LeaseClosed,
    LeaseExpired,
    NotFound,
    UnknownLabel,
    UnknownLimit,
)
from sluice.core.lease import Lease
from sluice.edge.callers import caller_of
from sluice.edge.conventions import NOT_FOUND
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
    **problems(
        *_PROBLEMS,
        _UNKNOWN_LIMIT,
        (HTTPStatus.FORBIDDEN, "forbidden"),
        NOT_FOUND,
        (HTTPStatus.CONFLICT, "request-id-conflict"),
        (HTTPStatus.UNPROCESSABLE_ENTITY, "price-missing"),
        (HTTPStatus.UNPROCESSABLE_ENTITY, "unknown-label"),
    ),
}
_ADJUST_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.OK.value: answer(AdjustAnswer, "adjusted"),
    **problems(*_PROBLEMS, _UNKNOWN_LIMIT, _MISMATCH),
}
_RELEASE_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.OK.value: answer(ReleaseAnswer, "closed, and all of this given back"),
    **problems(*_PROBLEMS),
}


_USAGE: Final = "usage"
_NOT_COUNTED: Final = "this settle counted nothing; POST /v1/usage with this lease counts the call"


def add_lease_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    leases, settling = services.leases, services.money.settling

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
        """Limits that are left out keep their amount. The same again is answered the same.

        With `usage` the call is counted and what is held for it is settled, in the same transaction. Without it a hold
        stays open for the report that follows.
        """
        lease = lease_of(body.lease)
        if body.usage is None:
            return SettleAnswer.of(leases.settle(lease, body.actual))
        with _about_usage():
            settled = settling.settle(lease, body.actual, reporter_of(router), body.usage.to_report(lease))
        return SettleAnswer.of(settled.changed, settled.counted)

    @router.post(ADJUST, summary="Take more, or give some back, while a lease is open", responses=_ADJUST_RESPONSES)
    def adjust(body: AdjustBody, idempotency_key: IdempotencyKey) -> AdjustAnswer:
        """Once for each Idempotency-Key. More may be taken than there is: refill repays the debt."""
        return AdjustAnswer.of(leases.adjust(lease_of(body.lease), body.delta, idempotency_key))

    @router.post(RELEASE, summary="Close a lease and give everything back", responses=_RELEASE_RESPONSES)
    def release(body: ReleaseBody) -> ReleaseAnswer:
        """The same again is answered the same."""
        return ReleaseAnswer.of(leases.release(lease_of(body.lease)))


@contextmanager
def _about_usage() -> Iterator[None]:
    """What is wrong with the usage of a settle names the way to it; and nobody loses a call by a lease that is over."""
    try:
        yield
    except (InvalidLease, UnknownLimit):
        # Of the settle itself.
        raise
    except InvalidRequest as error:
        raise InvalidRequest(f"{_USAGE}.{error.field}", error.detail) from error
    except UnknownLabel as error:
        raise UnknownLabel(f"{_USAGE}.{error.field}", error.detail) from error
    except (LeaseClosed, LeaseExpired) as error:
        raise type(error)(f"{error}; {_NOT_COUNTED}") from error
