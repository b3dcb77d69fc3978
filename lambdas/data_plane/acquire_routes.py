"""Routes of acquire and explain: parse, call one service, answer."""

import hashlib
import json
from http import HTTPStatus
from typing import Annotated, Any, Final

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Header
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from data_plane.lease_routes import IDEMPOTENCY_KEY_PATTERN
from data_plane.links import FROM_ADMITTED
from data_plane.models import AcquireAnswer, AcquireBody, ExplainAnswer
from sluice.core.admission import Admission
from sluice.core.errors import Forbidden
from sluice.core.identity import Role
from sluice.core.limits import check_limit_names
from sluice.edge.callers import author_of, caller_of
from sluice.edge.documentation import answer, problems
from sluice.edge.headers import rate_limit_headers
from sluice.edge.lease_tokens import write_token
from sluice.repository.idempotency import IdempotencyKey
from sluice.services.chains import AcquireRequest
from sluice.services.holding import Wish
from sluice.services.registration import Registration
from sluice.shell import Services

ACQUIRE: Final = "/v1/acquire"
EXPLAIN: Final = "/v1/explain"

ACQUIRE_ROUTES: Final = {ACQUIRE: ("POST",), EXPLAIN: ("POST",)}

_OptionalKey = Annotated[str | None, Header(alias="idempotency-key", pattern=IDEMPOTENCY_KEY_PATTERN)]

_PROBLEMS: Final = (
    (HTTPStatus.BAD_REQUEST, "invalid-request"),
    (HTTPStatus.BAD_REQUEST, "unknown-limit"),
    (HTTPStatus.UNAUTHORIZED, "unauthorized"),
    (HTTPStatus.FORBIDDEN, "forbidden"),
    (HTTPStatus.FORBIDDEN, "suspended"),
    (HTTPStatus.NOT_FOUND, "not-found"),
    (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "payload-too-large"),
    (HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type"),
    (HTTPStatus.UNPROCESSABLE_ENTITY, "never-admissible"),
    (HTTPStatus.UNPROCESSABLE_ENTITY, "no-limits"),
    (HTTPStatus.UNPROCESSABLE_ENTITY, "reserve-required"),
    (HTTPStatus.UNPROCESSABLE_ENTITY, "price-missing"),
    (HTTPStatus.UNPROCESSABLE_ENTITY, "unknown-label"),
    (HTTPStatus.TOO_MANY_REQUESTS, "contended"),
    (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"),
)
_ACQUIRE_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.CREATED.value: answer(AcquireAnswer, "admitted", FROM_ADMITTED),
    **problems(
        *_PROBLEMS,
        (HTTPStatus.UNPROCESSABLE_ENTITY, "idempotency-mismatch"),
        (HTTPStatus.TOO_MANY_REQUESTS, "limit-exceeded"),
        (HTTPStatus.TOO_MANY_REQUESTS, "budget-exceeded"),
    ),
}
_EXPLAIN_RESPONSES: Final[dict[int, Any]] = {
    HTTPStatus.OK.value: answer(ExplainAnswer, "as an acquire would be judged now"),
    **problems(*_PROBLEMS),
}


def add_acquire_routes(router: APIGatewayHttpRouter, services: Services) -> None:
    @router.post(ACQUIRE, summary="Take tokens, or learn when to try again", responses=_ACQUIRE_RESPONSES)
    def acquire(body: AcquireBody, idempotency_key: _OptionalKey = None) -> Response[AcquireAnswer]:
        """Takes from every named limit at once, or takes nothing.

        Where a hard budget must agree, what the call takes at most is held until it is reported, released or expired.
        With an Idempotency-Key a repeat gets the first answer again, for a day, and takes nothing.
        """
        wish = _wish(router, body)
        # Before anything is taken: without a key there is no lease, and nobody could give it back.
        services.signer.prepare()
        if idempotency_key is None:
            admission = services.holding.acquire(wish)
            return _created(_answer(services, body, admission), dict(rate_limit_headers(admission.levels)))
        named = IdempotencyKey(wish.request.namespace, caller_of(router).entity, idempotency_key, _hash(body))
        answered = services.holding.acquire_once(wish, named, lambda found: _rendered(services, body, found))
        recorded = json.loads(answered.text)
        return _created(AcquireAnswer.model_validate(recorded["body"]), recorded["headers"])

    @router.post(EXPLAIN, summary="Would this pass, when, and what would make it pass?", responses=_EXPLAIN_RESPONSES)
    def explain(body: AcquireBody) -> ExplainAnswer:
        """Takes nothing and writes nothing."""
        return ExplainAnswer.of(services.hold_explain.explain(_wish(router, body)))


def _wish(router: APIGatewayHttpRouter, body: AcquireBody) -> Wish:
    reserve = body.to_reserve()
    return Wish(_request(router, body), reserve, body.ttl_seconds * 1000)


def _request(router: APIGatewayHttpRouter, body: AcquireBody) -> AcquireRequest:
    limits = None
    caller = caller_of(router)
    if body.limits is not None:
        if caller.role is not Role.ORG:
            raise Forbidden("limits of a call need the org's own token")
        check_limit_names("limits", list(body.limits))
        limits = {name: limit.to_limit(f"limits.{name}") for name, limit in body.limits.items()}
    registers = caller.auto_register_entities
    return AcquireRequest(
        caller.namespace,
        body.entity,
        body.resource,
        body.consume,
        limits,
        registration=Registration(caller.entity, author_of(router)) if registers else None,
        known_only=not registers,
        within=caller.within,
    )


def _answer(services: Services, body: AcquireBody, admission: Admission) -> AcquireAnswer:
    lease = None if admission.degraded else services.leases.open(admission, body.ttl_seconds * 1000)
    token = None if lease is None else write_token(services.signer, lease)
    return AcquireAnswer.of(admission, lease, token)


def _rendered(services: Services, body: AcquireBody, admission: Admission) -> str:
    """As it is recorded: a repeat gets the same headers too."""
    recorded = {
        "body": _answer(services, body, admission).model_dump(),
        "headers": rate_limit_headers(admission.levels),
    }
    return json.dumps(recorded, separators=(",", ":"))


def _created(body: AcquireAnswer, headers: dict[str, str]) -> Response[AcquireAnswer]:
    return Response(status_code=HTTPStatus.CREATED, content_type="application/json", body=body, headers={**headers})


def _hash(body: AcquireBody) -> str:
    # Without what was left out: the same body means the same after another field was added.
    content = body.model_dump() if body.reserve is not None else body.model_dump(exclude={"reserve"})
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
