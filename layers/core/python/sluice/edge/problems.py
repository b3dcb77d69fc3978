"""Problem documents (RFC 9457): the one place where errors become HTTP."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

from aws_lambda_powertools.event_handler import Response

from sluice.core import errors
from sluice.edge.headers import rate_limit_headers, retry_headers

CONTENT_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:sluice:problem:"
_CALENDAR_END_MS: Final = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class Problem:
    """What a client is told. `kind` is the last part of the type."""

    status: HTTPStatus
    kind: str
    detail: str
    members: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def document(self, request_id: str) -> dict[str, Any]:
        return {
            "type": TYPE_PREFIX + self.kind,
            "title": self.kind.replace("-", " ").capitalize(),
            "status": self.status.value,
            "detail": self.detail,
            "request_id": request_id,
            **self.members,
        }

    def response(self, request_id: str) -> Response[str]:
        return Response(
            status_code=self.status.value,
            content_type=CONTENT_TYPE,
            body=json.dumps(self.document(request_id)),
            headers=dict(self.headers),
        )


class RequestRejected(Exception):
    """Turned away at the edge, before any service was called."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def invalid_request(field_name: str, detail: str, more: Sequence[Mapping[str, str]] = ()) -> Problem:
    members: dict[str, Any] = {"field": field_name}
    if more:
        members["errors"] = list(more)
    return Problem(HTTPStatus.BAD_REQUEST, "invalid-request", f"{field_name}: {detail}", members)


INTERNAL: Final = Problem(
    HTTPStatus.INTERNAL_SERVER_ERROR,
    "internal",
    "an unexpected error happened; the request id finds it in the log",
)
UNAVAILABLE: Final = Problem(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "unavailable",
    "the table does not answer",
    headers={"Retry-After": "1"},
)
UNAUTHORIZED: Final = Problem(
    HTTPStatus.UNAUTHORIZED, "unauthorized", str(errors.Unauthorized()), headers={"WWW-Authenticate": "Bearer"}
)
WRONG_CREDENTIALS: Final = replace(UNAUTHORIZED, detail=str(errors.WrongCredentials()))
AMBIGUOUS: Final = replace(UNAVAILABLE, detail="the table does not answer; the request may have been applied")
MODELS_UNAVAILABLE: Final = replace(UNAVAILABLE, detail=str(errors.ModelsUnavailable()))
# Those that always read the same.
_FIXED: Final[Mapping[type, Problem]] = {
    errors.Unauthorized: UNAUTHORIZED,
    errors.WrongCredentials: WRONG_CREDENTIALS,
    errors.Unavailable: UNAVAILABLE,
    errors.Ambiguous: AMBIGUOUS,
    errors.ModelsUnavailable: MODELS_UNAVAILABLE,
}


# Those that need nothing but their own words.
_PLAIN: Final[Mapping[type[errors.SluiceError], tuple[HTTPStatus, str]]] = {
    errors.NotFound: (HTTPStatus.NOT_FOUND, "not-found"),
    errors.InUse: (HTTPStatus.CONFLICT, "in-use"),
    errors.LeaseClosed: (HTTPStatus.CONFLICT, "lease-closed"),
    errors.LeaseExpired: (HTTPStatus.GONE, "lease-expired"),
    errors.Forbidden: (HTTPStatus.FORBIDDEN, "forbidden"),
    errors.Suspended: (HTTPStatus.FORBIDDEN, "suspended"),
    errors.IdTaken: (HTTPStatus.CONFLICT, "id-taken"),
    errors.RotationConflict: (HTTPStatus.CONFLICT, "rotation-conflict"),
    errors.RequestIdConflict: (HTTPStatus.CONFLICT, "request-id-conflict"),
    errors.PriceMissing: (HTTPStatus.UNPROCESSABLE_ENTITY, "price-missing"),
    errors.NoTotals: (HTTPStatus.UNPROCESSABLE_ENTITY, "no-totals"),
}
# Those that ask to wait.
_WAITS: Final[Mapping[type[errors.SluiceError], str]] = {
    errors.Contended: "contended",
    errors.TooManyRequests: "too-many-requests",
}
# Those that blame a field.
_FIELDS: Final[Mapping[type[errors.SluiceError], tuple[HTTPStatus, str, str]]] = {
    errors.IdempotencyMismatch: (HTTPStatus.UNPROCESSABLE_ENTITY, "idempotency-mismatch", "idempotency-key"),
    errors.InvalidLease: (HTTPStatus.BAD_REQUEST, "invalid-lease", "lease"),
    errors.PreconditionFailed: (HTTPStatus.PRECONDITION_FAILED, "precondition-failed", "if-match"),
}


def problem_of(error: errors.SluiceError) -> Problem:
    """What is not named here is our own fault, not the client's."""
    plain = _PLAIN.get(type(error))
    if plain is not None:
        status, kind = plain
        return Problem(status, kind, str(error))
    blamed = _FIELDS.get(type(error))
    if blamed is not None:
        status, kind, field_name = blamed
        return Problem(status, kind, str(error), {"field": field_name})
    refused = _MONEY.get(type(error))
    if refused is not None:
        return refused(error)
    match error:
        case errors.UnknownLimit():
            problem = Problem(HTTPStatus.BAD_REQUEST, "unknown-limit", str(error), {"field": error.field})
        case errors.InvalidRequest():
            problem = invalid_request(error.field, error.detail)
        case errors.NoLimits():
            members: dict[str, Any] = {"entity": error.entity, "resource": error.resource}
            problem = Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "no-limits", str(error), members)
        case errors.NeverAdmissible():
            problem = Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "never-admissible", str(error), _never_admissible(error))
        case errors.LimitExceeded():
            headers = {**retry_headers(error.retry_after_ms), **rate_limit_headers(error.levels)}
            members = _limit_exceeded(error)
            problem = Problem(HTTPStatus.TOO_MANY_REQUESTS, "limit-exceeded", str(error), members, headers)
        case errors.Contended() | errors.TooManyRequests():
            members = {"retry_after_ms": error.retry_after_ms}
            headers = retry_headers(error.retry_after_ms)
            problem = Problem(HTTPStatus.TOO_MANY_REQUESTS, _WAITS[type(error)], str(error), members, headers)
        case errors.UnknownLabel():
            problem = Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "unknown-label", str(error), {"field": error.field})
        case errors.SigningUnavailable():
            problem = replace(UNAVAILABLE, detail=str(error))
        case _:
            # The narrowest type decides.
            problem = next((_FIXED[one] for one in type(error).__mro__ if one in _FIXED), INTERNAL)
    return problem


def _never_admissible(error: errors.NeverAdmissible) -> dict[str, Any]:
    return {
        "entity": error.entity,
        "resource": error.resource,
        "limit": error.limit,
        "requested": error.requested,
        "burst": error.burst,
    }


def _limit_exceeded(error: errors.LimitExceeded) -> dict[str, Any]:
    return {
        "retry_after_ms": error.retry_after_ms,
        "admit_at": rfc3339(error.admit_at_ms),
        "violations": [asdict(violation) for violation in error.violations],
        "remedies": [
            {"kind": "wait", "value": error.retry_after_ms},
            *(
                {"kind": "smaller_amount", "limit": violation.limit, "value": violation.available}
                for violation in error.violations
                if violation.available > 0
            ),
        ],
    }


def _all_quotas_exceeded(error: errors.AllQuotasExceeded) -> Problem:
    members = {
        "resets_at": rfc3339(error.resets_at_ms),
        "retry_after_ms": error.retry_after_ms,
        "labels": [asdict(label) for label in error.labels],
    }
    headers = retry_headers(error.retry_after_ms)
    return Problem(HTTPStatus.TOO_MANY_REQUESTS, "all-quotas-exceeded", str(error), members, headers)


def _budget_exceeded(error: errors.BudgetExceeded) -> Problem:
    """Without Retry-After: a client that waits for seconds is only refused again."""
    members = {
        "resets_at": rfc3339(error.resets_at_ms),
        "violations": [asdict(violation) for violation in error.violations],
        "remedies": [asdict(remedy) for remedy in error.remedies],
    }
    headers = {"x-should-retry": "false"}
    return Problem(HTTPStatus.TOO_MANY_REQUESTS, "budget-exceeded", str(error), members, headers)


def _never_within_budget(error: errors.NeverWithinBudget) -> Problem:
    members = {
        "violations": [asdict(violation) for violation in error.violations],
        "remedies": [asdict(remedy) for remedy in error.remedies],
    }
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "never-admissible", str(error), members)


def _reserve_required(error: errors.ReserveRequired) -> Problem:
    members = {"dimensions": list(error.dimensions)}
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "reserve-required", str(error), members)


# Refusals about money.
_MONEY: Final[Mapping[type[errors.SluiceError], Callable[[Any], Problem]]] = {
    errors.AllQuotasExceeded: _all_quotas_exceeded,
    errors.BudgetExceeded: _budget_exceeded,
    errors.NeverWithinBudget: _never_within_budget,
    errors.ReserveRequired: _reserve_required,
}


def rfc3339(time_ms: int) -> str:
    """The end of the calendar stands for everything after it: a large debt of a slow limit takes ages."""
    time_ms = min(time_ms, _CALENDAR_END_MS)
    moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"
