"""What can go wrong, as types. The HTTP edge maps each to one problem document; nothing below it knows HTTP."""

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.core.levels import Level


class SluiceError(Exception):
    """Everything this product raises on purpose."""


class InvalidRequest(SluiceError):
    """The caller sent something that can not be understood. Nothing was changed."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail


class UnknownLimit(InvalidRequest):
    """A limit was named that is defined nowhere for this request."""


class NotFound(SluiceError):
    """What was asked for is not there, or may not be seen: the two look the same."""


class PreconditionFailed(SluiceError):
    """The caller's If-Match names another version than the stored one. Nothing was changed."""


class InUse(SluiceError):
    """Something still depends on what should be removed. Nothing was changed."""


class InvalidLease(InvalidRequest):
    """A lease that we did not give, or gave to somebody else: the two look the same."""

    def __init__(self) -> None:
        super().__init__("lease", "is not a valid lease, or one of another entity")


class LeaseExpired(SluiceError):
    """The lease is past its time. Nothing is given back."""


class LeaseClosed(SluiceError):
    """The lease was closed already, and otherwise than now asked for."""


class IdempotencyMismatch(SluiceError):
    """The Idempotency-Key was used before, with another body."""


class Unauthorized(SluiceError):
    """No credential, or none that is worth anything. One text for all reasons: it must not tell what nearly fits."""

    def __init__(self) -> None:
        super().__init__("a valid access token is needed")


class WrongCredentials(Unauthorized):
    """At the token endpoint: the client is not known, its secret is wrong, or the refresh token is worth nothing."""

    def __str__(self) -> str:
        return "the credentials or the refresh token are not valid"


class Forbidden(SluiceError):
    """The caller is known and may not do this, whatever it names."""


class Suspended(SluiceError):
    """The caller's org or app is suspended."""

    def __init__(self) -> None:
        super().__init__("this org or app is suspended")


class IdTaken(SluiceError):
    """The id already names something of another kind."""


class RotationConflict(SluiceError):
    """The credentials changed meanwhile, or as many secrets as may be are still valid. Nothing was changed."""


class TooManyRequests(SluiceError):
    """Too many logins of one client."""

    def __init__(self, retry_after_ms: int) -> None:
        super().__init__(f"too many requests, try again in {retry_after_ms} ms")
        self.retry_after_ms = retry_after_ms


class RequestIdConflict(SluiceError):
    """The request id was used before, with another body. Nothing was counted."""

    def __init__(self) -> None:
        super().__init__("this request id was used before, with another body")


class PriceMissing(SluiceError):
    """Nobody knows what the call costs. `what`: the model, label or kinds of tokens without a price."""

    def __init__(self, what: str) -> None:
        super().__init__(f"there is no price for {what}")


class UnknownLabel(SluiceError):
    """A label that resolves to no model, or that is not in the ordering where it must be."""

    def __init__(self, field: str, detail: str) -> None:
        super().__init__(f"{field}: {detail}")
        self.field = field
        self.detail = detail


class NoTotals(SluiceError):
    """Totals are kept for apps and for the org, not for whom was asked."""

    def __init__(self) -> None:
        super().__init__("totals are kept for apps and for the org only")


@dataclass(frozen=True, slots=True)
class SpentLabel:
    """A label whose quota of the day is spent."""

    label: str
    spent_usd_micros: int
    quota_usd_micros: int


class AllQuotasExceeded(SluiceError):
    """No label of the ordering has anything left before the next local midnight."""

    def __init__(self, resets_at_ms: int, retry_after_ms: int, labels: Sequence[SpentLabel]) -> None:
        super().__init__("the quotas of all labels are spent for today")
        self.resets_at_ms = resets_at_ms
        self.retry_after_ms = retry_after_ms
        self.labels = tuple(labels)


class NoLimits(SluiceError):
    """No limit at all is defined for this entity and resource."""

    def __init__(self, entity: str, resource: str) -> None:
        super().__init__(f"no limits are defined for entity {entity} and resource {resource}")
        self.entity = entity
        self.resource = resource


class NeverAdmissible(SluiceError):
    """The amount is above the burst: waiting does not help."""

    def __init__(self, entity: str, resource: str, limit: str, requested: int, burst: int) -> None:
        super().__init__(f"{requested} of {limit} can never be admitted: its burst is {burst}")
        self.entity = entity
        self.resource = resource
        self.limit = limit
        self.requested = requested
        self.burst = burst


@dataclass(frozen=True, slots=True)
class Violation:
    """One limit that is short of what was asked. Amounts are whole tokens."""

    entity: str
    resource: str
    limit: str
    requested: int
    available: int
    retry_after_ms: int
    source: str


class LimitExceeded(SluiceError):
    """Refused now; admitted at `admit_at_ms` if nobody else spends until then."""

    def __init__(
        self, violations: Sequence[Violation], admit_at_ms: int, retry_after_ms: int, levels: Sequence[Level]
    ) -> None:
        super().__init__(f"limit exceeded, try again in {retry_after_ms} ms")
        self.violations = tuple(violations)
        self.admit_at_ms = admit_at_ms
        self.retry_after_ms = retry_after_ms
        self.levels = tuple(levels)


@dataclass(frozen=True, slots=True)
class BudgetViolation:
    """A hard limit of a budget that has no room for what was asked. `used` contains what is held.

    `period`: day or month. `unit`: of all the amounts.
    """

    entity: str
    period: str
    dimension: str
    limit: int
    used: int
    held: int
    requested: int
    unit: str


@dataclass(frozen=True, slots=True)
class Remedy:
    """What would be admitted instead. `kind`: max_output_tokens or label."""

    kind: str
    value: int | str


class BudgetExceeded(SluiceError):
    """Refused by a hard budget. Waiting helps only when the periods are over; trying again before is of no use."""

    def __init__(
        self, violations: Sequence[BudgetViolation], resets_at_ms: int, remedies: Sequence[Remedy] = ()
    ) -> None:
        super().__init__("a budget has no room for this")
        self.violations = tuple(violations)
        self.resets_at_ms = resets_at_ms
        self.remedies = tuple(remedies)


class NeverWithinBudget(SluiceError):
    """The amount is above a whole limit, or the limit is zero: waiting for the next period does not help."""

    def __init__(self, violations: Sequence[BudgetViolation], remedies: Sequence[Remedy] = ()) -> None:
        first = violations[0]
        super().__init__(
            f"{first.requested} {first.unit} can never be admitted: the {first.period}'s limit of {first.entity} is "
            f"{first.limit}"
        )
        self.violations = tuple(violations)
        self.remedies = tuple(remedies)


class ReserveRequired(SluiceError):
    """A hard budget must know before what a call may take at most. `dimensions`: those without an amount."""

    def __init__(self, dimensions: Sequence[str]) -> None:
        super().__init__(f"a hard budget needs `reserve` with amounts of: {', '.join(dimensions)}")
        self.dimensions = tuple(dimensions)


class Contended(SluiceError):
    """Too many writers on the same items: nothing was decided, and a short wait helps."""

    def __init__(self, retry_after_ms: int) -> None:
        super().__init__(f"contended, try again in {retry_after_ms} ms")
        self.retry_after_ms = retry_after_ms


class Unavailable(SluiceError):
    """The table does not answer. The only error that may open the gate under `on_unavailable: allow`."""


class ModelsUnavailable(Unavailable):
    """AWS does not answer which models an inference profile has."""

    def __init__(self) -> None:
        super().__init__("AWS does not answer which models an inference profile has")


class SigningUnavailable(SluiceError):
    """There is no key to sign with. Told before anything was taken; nothing opens the gate for it."""


class Ambiguous(Unavailable):
    """A write was sent and its answer was lost: it may or may not have been applied."""
