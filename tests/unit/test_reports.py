"""Reports of usage: what is wrong with one by itself, and when two of them are the same."""

import base64
import hashlib
from dataclasses import fields, replace
from typing import Any

import pytest

from sluice.core.errors import InvalidRequest
from sluice.core.lease import Lease
from sluice.core.metering import AHEAD_MAX_MS, LATE_MAX_MS, CallStatus
from sluice.core.pricing import Pricing, TokenKind
from sluice.core.reports import UsageReport, body_hash, check_report

NOW_MS = 1_800_000_000_000
REPORT = UsageReport("request-1", CallStatus.OK, {TokenKind.INPUT: 5}, label="premium", occurred_at_ms=NOW_MS)
LEASE = Lease("lease-1", "ns", "chat", "gpt-4", {"rpm": 1}, (), NOW_MS)


@pytest.mark.parametrize("ms", [None, NOW_MS, NOW_MS + AHEAD_MAX_MS, NOW_MS - LATE_MAX_MS])
def test_when_a_call_may_have_been(ms: int | None) -> None:
    check_report(replace(REPORT, occurred_at_ms=ms), NOW_MS)


@pytest.mark.parametrize(
    ("ms", "detail"),
    [
        (NOW_MS + AHEAD_MAX_MS + 1, "is more than 60 seconds ahead of our time"),
        (NOW_MS - LATE_MAX_MS - 1, "is more than 35 days ago"),
        (10**15, "is more than 60 seconds ahead of our time"),
    ],
)
def test_when_it_may_not(ms: int, detail: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_report(replace(REPORT, occurred_at_ms=ms), NOW_MS)
    assert (refused.value.field, refused.value.detail) == ("occurred_at", detail)


def test_of_a_label_and_a_model_one_is_named() -> None:
    check_report(replace(REPORT, label=None, model_id="m"), NOW_MS)
    for label, model_id in ((None, None), ("premium", "m")):
        with pytest.raises(InvalidRequest) as refused:
            check_report(replace(REPORT, label=label, model_id=model_id), NOW_MS)
        assert refused.value.field == "label"


CHANGED: dict[str, Any] = {
    "request_id": "request-2",
    "status": CallStatus.ERROR,
    "tokens": {TokenKind.INPUT: 6},
    "label": "economy",
    "model_id": "m",
    "entity": "chat",
    "region": "us-east-1",
    "pricing": Pricing.BATCH,
    "occurred_at_ms": NOW_MS - 1,
    "tags": {"a": "b"},
    "lease": LEASE,
}


def test_whatever_a_client_says_is_in_the_hash() -> None:
    # What the lease is settled with is said of the lease: the same report alone is the same call.
    assert CHANGED.keys() | {"actual"} == {one.name for one in fields(UsageReport)}
    assert body_hash(replace(REPORT, actual={"tpm": 7})) == body_hash(REPORT)
    changed = [replace(REPORT, **{name: value}) for name, value in CHANGED.items()]
    changed += [replace(REPORT, occurred_at_ms=None), replace(REPORT, tokens={TokenKind.OUTPUT: 5})]
    changed += [replace(REPORT, tags=tags) for tags in ({"a": ""}, {"b": "a"}, {"a": "b", "c": "d"})]
    changed.append(replace(REPORT, lease=replace(LEASE, lease_id="lease-2")))
    assert len({body_hash(one) for one in (REPORT, *changed)}) == len(changed) + 1


def test_what_goes_without_saying_is_not_in_the_hash() -> None:
    """Nor is the order in which it was said."""
    kinds = dict.fromkeys(TokenKind, 0) | {TokenKind.INPUT: 5}
    assert body_hash(replace(REPORT, tokens=kinds, pricing=Pricing.STANDARD, tags={})) == body_hash(REPORT)
    one = replace(REPORT, tags={"a": "1", "b": "2"}, tokens={TokenKind.INPUT: 5, TokenKind.OUTPUT: 7})
    other = replace(REPORT, tags={"b": "2", "a": "1"}, tokens={TokenKind.OUTPUT: 7, TokenKind.INPUT: 5})
    assert body_hash(one) == body_hash(other)


def test_the_hash_stays_what_it_is() -> None:
    """Events keep it for ninety days: whoever changes how it is made turns repeats into conflicts."""
    full = replace(REPORT, tags={"é": "x"}, pricing=Pricing.BATCH, lease=LEASE, region="us-east-1", entity="chat")
    assert body_hash(REPORT) == hash_of(
        '{"label":"premium","occurred_at_ms":1800000000000,"request_id":"request-1","status":"ok","tokens":{"input":5}}'
    )
    assert body_hash(full) == hash_of(
        '{"entity":"chat","label":"premium","lease":"lease-1","occurred_at_ms":1800000000000,"pricing":"batch",'
        '"region":"us-east-1","request_id":"request-1","status":"ok","tags":{"\\u00e9":"x"},"tokens":{"input":5}}'
    )


def hash_of(canonical: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(canonical.encode()).digest()).decode().rstrip("=")
