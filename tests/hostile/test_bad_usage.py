"""Every report of usage that the contract refuses: alone and in a batch, by its fields and by its bytes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from sluice.core.metering import AHEAD_MAX_MS, BATCH_MAX, LATE_MAX_MS
from sluice.edge.problems import rfc3339
from sluice.edge.requests import BODY_BYTES_MAX, LARGE_BODIES, USAGE_BATCH
from tests.hostile.bad import Bad
from tests.hostile.furniture import LONER, PROFILED, STRANGER, TEAM, USER, Known
from tests.hostile.gateway import Answer
from tests.hostile.product import BASE_URL, Product
from tests.hostile.test_bad_money import BAD_OF_BOTH, EVENT, JSON, NO_IDS, NO_TIMES, OVERRIDE, Refused

SETTLE = "/v1/leases/settle"
NO_TAG_VALUES: list[Any] = ["v" * 129, 1, None, True, {}, ["v"]]
NO_MODEL_IDS: list[Any] = ["", "a b", "x" * 257, "é", "a\x00", 1, []]
BAD_EVENTS: dict[str, list[Any]] = {
    **BAD_OF_BOTH,
    "request_id": ["", "x" * 129, "é", "a\n", "a\x00", "\x7f", 1, None, [], {}],
    "entity": NO_IDS,
    "status": ["", "OK", "failed", 1, None, True],
    "occurred_at": [*NO_TIMES, "2027-09-15T08:00:00Z", "9999-12-31T23:59:59Z", "2026-01-01T00:00:00Z"],
    "tags": [[], "x", None, {f"t{number}": "v" for number in range(11)}],
    "tags.t": [{"t": value} for value in NO_TAG_VALUES],
    "tags.": [{"": "v"}],
    f"tags.{'t' * 65}": [{"t" * 65: "v"}],
    "lease": [1, [], {}, True],
}


def bad_events() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each with the field that is to blame."""
    for blamed, values in BAD_EVENTS.items():
        for value in values:
            yield blamed, {**EVENT, blamed.partition(".")[0]: value}
    for name in ("request_id", "input_tokens", "output_tokens", "status"):
        yield name, {field: value for field, value in EVENT.items() if field != name}
    nameless = {field: value for field, value in EVENT.items() if field != "label"}
    yield "label", nameless
    yield "label", {**EVENT, "model_id": "model-of-premium"}
    for model_id in NO_MODEL_IDS:
        yield "model_id", {**nameless, "model_id": model_id}
    yield "region", {**EVENT, "label": PROFILED}
    yield "region", {**EVENT, "label": PROFILED, "region": "us-east-1"}


def test_an_event_that_can_not_be(refused: Refused) -> None:
    for blamed, body in bad_events():
        refused(Bad("POST", "/v1/usage", 400, "invalid-request", blamed, body))


def test_an_event_that_can_not_be_fails_alone_in_a_batch(product: Product, refused: Refused) -> None:
    """With the answer that it would get alone, and nothing of it is counted. The others are."""
    bad = list(bad_events())
    before = product.changes
    for start in range(0, len(bad), BATCH_MAX):
        some = bad[start : start + BATCH_MAX]
        answer = product.call("POST", USAGE_BATCH, {"events": [body for _, body in some]})
        assert answer.status == 207, answer
        assert (answer.json()["accepted"], answer.json()["failed"]) == (0, len(some))
        for (blamed, body), result in zip(some, answer.json()["results"], strict=True):
            assert (result["status"], result["problem"]["field"]) == (400, blamed)
            assert result["problem"] == product.call("POST", "/v1/usage", body).json()
    assert product.changes == before
    events = [bad[0][1], {**EVENT, "request_id": "good-1"}, {**EVENT, "request_id": "good-1"}, bad[1][1]]
    answer = product.call("POST", USAGE_BATCH, {"events": events}).json()
    assert (answer["accepted"], answer["duplicates"], answer["failed"]) == (2, 1, 2)


@pytest.mark.parametrize(
    ("moved_ms", "accepted"),
    [(AHEAD_MAX_MS, True), (AHEAD_MAX_MS + 1, False), (-LATE_MAX_MS, True), (-LATE_MAX_MS - 1, False)],
)
def test_a_call_is_neither_ahead_of_time_nor_too_old(moved_ms: int, accepted: bool, product: Product) -> None:
    """And its time is never changed into one that would do."""
    before = product.changes
    body = {**EVENT, "occurred_at": rfc3339(product.clock.now_ms + moved_ms)}
    answer = product.call("POST", "/v1/usage", body)
    assert answer.status == (202 if accepted else 400)
    assert (product.changes > before) is accepted
    assert accepted or answer.json()["field"] == "occurred_at"


REFUSED_EVENTS: list[tuple[dict[str, Any], int, str, str | None]] = [
    ({"label": "unheard-of"}, 422, "unknown-label", "label"),
    # Nobody becomes known by it either.
    ({"label": "unheard-of", "entity": "newcomer"}, 422, "unknown-label", "label"),
    ({"label": None, "model_id": "nobody.knows-it", "entity": "newcomer"}, 422, "price-missing", None),
    ({"label": None, "model_id": "nobody.knows-it"}, 422, "price-missing", None),
    ({"pricing": "batch"}, 422, "price-missing", None),
    ({"cache_read_tokens": 1}, 422, "price-missing", None),
    ({"request_id": "r-1"}, 409, "request-id-conflict", None),
    ({"request_id": "r-1", "entity": LONER}, 409, "request-id-conflict", None),
]


@pytest.mark.parametrize(("changed", "status", "kind", "blamed"), REFUSED_EVENTS)
def test_an_event_that_is_not_counted(
    changed: dict[str, Any], status: int, kind: str, blamed: str | None, refused: Refused
) -> None:
    refused(Bad("POST", "/v1/usage", status, kind, blamed, {**EVENT, **changed}))


def test_a_lease_that_does_not_fit_an_event(known: Known, refused: Refused) -> None:
    assert known.foreign is not None
    opened = known.leases[2]
    invalid = (opened[:-1], opened + "A", "", "x" * 9000, known.cursors[0], known.foreign.leases[2], "é", "\x00")
    told = set()
    for lease in invalid:
        told.add(refused(Bad("POST", "/v1/usage", 400, "invalid-lease", "lease", {**EVENT, "lease": lease})).body)
    for entity in (LONER, TEAM, "newcomer", STRANGER):
        body = {**EVENT, "entity": entity, "lease": opened}
        told.add(refused(Bad("POST", "/v1/usage", 400, "invalid-lease", "lease", body)).body)
    assert len(told) == 1, "nobody is told what is wrong with a lease"


def settled_with(known: Known, usage: Any, tpm: int = 0) -> dict[str, Any]:
    """The lease is open, and of the entity that the event is of."""
    return {"lease": known.leases[2], "actual": {"rpm": tpm}, "usage": usage}


def test_a_settle_with_an_event_that_can_not_be(known: Known, refused: Refused) -> None:
    """The lease is not closed by it. Its own `lease` belongs to the settle."""
    for blamed, event in bad_events():
        refused(Bad("POST", SETTLE, 400, "invalid-request", f"usage.{blamed}", settled_with(known, event)))
    for lease in (known.leases[2], "", "x"):
        body = settled_with(known, {**EVENT, "lease": lease})
        refused(Bad("POST", SETTLE, 400, "invalid-request", "usage.lease", body))
    for usage in ([], "x", 1, True, [EVENT]):
        refused(Bad("POST", SETTLE, 400, "invalid-request", "usage", settled_with(known, usage)))


@pytest.mark.parametrize(("changed", "status", "kind", "blamed"), REFUSED_EVENTS)
def test_a_settle_with_an_event_that_is_not_counted(
    changed: dict[str, Any], status: int, kind: str, blamed: str | None, known: Known, refused: Refused
) -> None:
    if "entity" in changed:
        status, kind, blamed = 400, "invalid-lease", "lease"
    named = f"usage.{blamed}" if kind == "unknown-label" else blamed
    refused(Bad("POST", SETTLE, status, kind, named, settled_with(known, {**EVENT, **changed})))


def test_a_settle_with_usage_of_a_lease_that_is_none(known: Known, refused: Refused) -> None:
    assert known.foreign is not None
    expired, closed, opened = known.leases[:3]
    body = {"actual": {}, "usage": EVENT}
    refused(Bad("POST", SETTLE, 410, "lease-expired", None, {**body, "lease": expired}))
    refused(Bad("POST", SETTLE, 409, "lease-closed", None, {**body, "lease": closed}))
    for lease in (opened[:-1], opened + "A", "", "x" * 9000, known.cursors[0], known.foreign.leases[2], "\x00"):
        refused(Bad("POST", SETTLE, 400, "invalid-lease", "lease", {**body, "lease": lease}))
    for entity in (LONER, TEAM, "newcomer", STRANGER):
        usage = {**EVENT, "entity": entity}
        refused(Bad("POST", SETTLE, 400, "invalid-lease", "lease", settled_with(known, usage)))
    more = {**settled_with(known, EVENT), "actual": {"tpd": 1}}
    refused(Bad("POST", SETTLE, 400, "unknown-limit", "actual.tpd", more))


BAD_BATCHES: list[tuple[Any, str]] = [
    ({}, "events"),
    ({"events": []}, "events"),
    ({"events": [EVENT] * (BATCH_MAX + 1)}, "events"),
    ({"events": {}}, "events"),
    ({"events": None}, "events"),
    ({"events": "x"}, "events"),
    ({"events": [EVENT, 1]}, "events.1"),
    ({"events": [[EVENT]]}, "events.0"),
    ({"events": [None]}, "events.0"),
    ([EVENT], "body"),
]


@pytest.mark.parametrize(("body", "blamed"), BAD_BATCHES)
def test_a_batch_that_can_not_be(body: Any, blamed: str, refused: Refused) -> None:
    refused(Bad("POST", USAGE_BATCH, 400, "invalid-request", blamed, body))


def raw(product: Product, path: str, body: bytes) -> Answer:
    return product.send("POST", BASE_URL + path, JSON, body)


@pytest.mark.parametrize(("path", "most"), [("/v1/usage", BODY_BYTES_MAX), (USAGE_BATCH, LARGE_BODIES[USAGE_BATCH])])
def test_a_body_that_is_too_long(path: str, most: int, product: Product) -> None:
    good = json.dumps(EVENT if path == "/v1/usage" else {"events": [EVENT]}).encode()
    before = product.changes
    answer = raw(product, path, good + b" " * (most + 1 - len(good)))
    assert (answer.status, answer.json()["type"]) == (413, "urn:sluice:problem:payload-too-large")
    assert product.changes == before
    assert raw(product, path, good + b" " * (most - len(good))).status in (202, 207)


WHOLE = json.dumps(EVENT).encode()
DAMAGED = {
    "a member twice": WHOLE[:-1] + b', "input_tokens": 2}',
    "nested by the thousand": WHOLE[:-1] + b', "tags": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    "objects by the thousand": WHOLE[:-1] + b', "tags": ' + b'{"a":' * 9_000 + b"1" + b"}" * 9_000 + b"}",
    "a number of thousands of digits": WHOLE.replace(b": 1,", b": " + b"1" * 5_000 + b",", 1),
    "no number": WHOLE.replace(b": 1,", b": NaN,", 1),
    "no end": WHOLE.replace(b": 1,", b": Infinity,", 1),
    "cut": WHOLE[:-1],
    "a NUL between": WHOLE + b"\x00",
    "nothing": b"",
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_bodies_that_are_no_json(damage: str, product: Product) -> None:
    before = product.changes
    for path, body in (("/v1/usage", DAMAGED[damage]), (USAGE_BATCH, b'{"events": [' + DAMAGED[damage] + b"]}")):
        answer = raw(product, path, body)
        assert answer.status == 400, (path, answer)
        assert answer.json()["field"] in {"body", "events"}
    assert product.changes == before


def test_signs_of_all_kinds_in_tags_come_back_as_they_were(product: Product) -> None:
    tags = {"\x00": "\x00\x1f\x7f", "é\u202e": "\U0001f600", "#PROFILE#": "'; --", "PK": "lh"}
    assert product.call("POST", "/v1/usage", {**EVENT, "tags": tags}).status == 202
    shown = product.call("GET", f"/v1/events?entity={USER}&limit=100").json()["items"]
    assert next(event["tags"] for event in shown if event["request_id"] == EVENT["request_id"]) == tags


def test_half_a_sign_is_none(refused: Refused) -> None:
    """Nothing could be stored that way."""
    for half in ("\ud800", "\udfff"):
        refused(Bad("POST", "/v1/usage", 400, "invalid-request", "tags.t", {**EVENT, "tags": {"t": half}}))
        named = "tags.\ufffd\ufffd\ufffd"
        refused(Bad("POST", "/v1/usage", 400, "invalid-request", named, {**EVENT, "tags": {half: "v"}}))
        body = {"model_id": "m", "description": half}
        refused(Bad("PUT", "/v1/labels/x", 400, "invalid-request", "description", body))
        refused(Bad("PUT", "/v1/selection/override", 400, "invalid-request", "reason", {**OVERRIDE, "reason": half}))
