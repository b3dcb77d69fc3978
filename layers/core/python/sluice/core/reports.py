"""What a client reports about one finished model call, before anybody has judged it."""

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sluice.core.errors import InvalidRequest
from sluice.core.lease import Lease
from sluice.core.metering import AHEAD_MAX_MS, LATE_MAX_MS, CallStatus
from sluice.core.pricing import Pricing, TokenKind, Tokens

_NO_TAGS: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True)
class UsageReport:
    """`entity`: None for the lease's or, without one, the reporter's own. Of `label` and `model_id` one is given.
    `occurred_at_ms`: None where the client did not say. `tokens`: a kind that is absent has none. `lease`: the one that
    the call was made under.

    `actual`: what that lease is settled with by the report, which then comes alone; None: it keeps what it took.
    """

    request_id: str
    status: CallStatus
    tokens: Tokens
    label: str | None = None
    model_id: str | None = None
    entity: str | None = None
    region: str | None = None
    pricing: Pricing = Pricing.STANDARD
    occurred_at_ms: int | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: _NO_TAGS)
    lease: Lease | None = None
    actual: Mapping[str, int] | None = None


def check_report(report: UsageReport, now_ms: int) -> None:
    """What is wrong whoever sends it. A time is refused and never corrected: the next attempt would be corrected to
    another one, and be counted as another call."""
    if (report.label is None) == (report.model_id is None):
        raise InvalidRequest("label", "either label or model_id must be given, and not both")
    if report.occurred_at_ms is None:
        return
    if report.occurred_at_ms > now_ms + AHEAD_MAX_MS:
        raise InvalidRequest("occurred_at", f"is more than {AHEAD_MAX_MS // 1000} seconds ahead of our time")
    if report.occurred_at_ms < now_ms - LATE_MAX_MS:
        raise InvalidRequest("occurred_at", f"is more than {LATE_MAX_MS // 86_400_000} days ago")


def body_hash(report: UsageReport) -> str:
    """Equal for equal reports, in whatever order their members came. Nothing that the server adds is in it.

    Nor is `actual`: whoever settled with a report may send the same report again by itself, and is told that it was
    counted.
    What is as it would be without being said is left out: so it stays the same when reports learn to say more.
    """
    said: dict[str, object] = {
        "request_id": report.request_id,
        "status": report.status.value,
        "tokens": {kind.value: report.tokens[kind] for kind in TokenKind if report.tokens.get(kind)},
        "label": report.label,
        "model_id": report.model_id,
        "entity": report.entity,
        "region": report.region,
        "pricing": None if report.pricing is Pricing.STANDARD else report.pricing.value,
        "occurred_at_ms": report.occurred_at_ms,
        "tags": dict(report.tags) or None,
        "lease": None if report.lease is None else report.lease.lease_id,
    }
    canonical = json.dumps(
        {name: value for name, value in said.items() if value is not None}, sort_keys=True, separators=(",", ":")
    )
    # A third shorter than hexadecimal: events should fit into one unit.
    return base64.urlsafe_b64encode(hashlib.sha256(canonical.encode()).digest()).decode().rstrip("=")
