"""Reports of usage over HTTP, event in and answer out, on moto."""

import importlib
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from data_plane.usage_models import UsageBody
from sluice.core.errors import Ambiguous, Contended, SluiceError
from sluice.core.identity import Role
from sluice.core.labels import LabelDefinition
from sluice.core.limits import Limit, Scope
from sluice.core.metering import Counters
from sluice.core.orgs import OrgSettings
from sluice.core.pricing import TokenKind
from sluice.edge.requests import BODY_BYTES_MAX, LARGE_BODIES
from sluice.repository import keys
from sluice.repository.counters import CounterName, decode_cost_shard
from sluice.repository.labels import label_put
from sluice.repository.orgs import decode_org, encode_org
from sluice.repository.retries import Throttled
from sluice.repository.store import DynamoStore
from sluice.repository.totals import write_total
from sluice.repository.wire import item_from_wire
from sluice.services.judging import Judge
from sluice.shell import Environment, Services, build_services, clock_ms, logger, make_client
from tests.fakes import CountingMeter
from tests.http import APP, NAMESPACE, TABLE, Call, authorized, caller_of, deployed, items_in_table

USAGE = "/v1/usage"
BATCH = "/v1/usage/batch"
MODEL = "model-of-premium"
EVENT = {"request_id": "request-1", "label": "premium", "input_tokens": 1_500, "output_tokens": 800, "status": "ok"}
COST = 16_500
LIMITS = {"tpm": Limit(1_000, 1_000, 1, 31_536_000)}
AS_APP = authorized(APP, Role.APP)


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    """As an operator would have set the org up."""
    with deployed("data_plane.handler", monkeypatch):
        environment = Environment("test", TABLE, 2000)
        services = build_services(environment, make_client(environment), CountingMeter())
        for label, price in (("premium", 3_000_000), ("economy", None)):
            definition = LabelDefinition(
                label, f"model-of-{label}", None, None, None, price, None if price is None else 5 * price, 1, 0, 0
            )
            services.store.transact([label_put(NAMESPACE, definition, None)], label)
        services.limits.put(NAMESPACE, Scope(resource="gpt-4"), LIMITS)
        settle_org(services, OrgSettings(quotas_usd_micros={"premium": 100_000}))
        yield services


@pytest.fixture
def call(services: Services) -> Call:
    return another_process()


def another_process() -> Call:
    """Which has read nothing yet."""
    return caller_of(importlib.reload(importlib.import_module("data_plane.handler")), "POST", USAGE)


def settle_org(services: Services, settings: OrgSettings) -> None:
    item = services.store.get(keys.org_settings(NAMESPACE), consistent=True)
    assert item is not None
    services.store.put({"Item": encode_org(replace(decode_org(item), settings=settings))}, repeatable=True)


def kinds() -> list[str]:
    """Of the items that were written, but for what the tests set up."""
    found = [item["kind"]["S"] for item in items_in_table()]
    return sorted(kind for kind in found if kind in {"usage_event", "cost_shard", "lease", "entity"})


def used(entity: str = NAMESPACE, label: str = "premium") -> Counters:
    items = [item_from_wire(item) for item in items_in_table() if item["kind"]["S"] == "cost_shard"]
    shards = [decode_cost_shard(item) for item in items]
    return sum(
        (one.counters for one in shards if (one.name.entity, one.name.label) == (entity, label)), start=Counters()
    )


def rfc3339(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def now(**off: float) -> str:
    return rfc3339(datetime.now(UTC) + timedelta(**off))


NO_TOTAL = {
    "cost_usd_micros": 0,
    "requests": 0,
    "errors": 0,
    "unpriced": 0,
    "input_tokens": 0,
    "output_tokens": 0,
    "cache_read_tokens": 0,
    "cache_write_tokens": 0,
    "cache_write_1h_tokens": 0,
    "as_of": None,
}


def test_a_report_and_its_repeat(call: Call) -> None:
    body = {**EVENT, "occurred_at": now(), "tags": {"team": "billing"}, "region": "us-east-1"}
    expected = {
        "request_id": "request-1",
        "cost_usd_micros": COST,
        "price_id": "label:premium:1",
        "duplicate": False,
        "day": datetime.now(UTC).date().isoformat(),
        "total": NO_TOTAL,
        "quota": {"limit_usd_micros": 100_000, "percent": 0.0, "mode": "NORMAL"},
    }
    first = call(body=body)
    assert (first.status, first.body) == (202, expected)
    # However its members are ordered.
    again = call(body=dict(reversed(body.items())))
    assert (again.status, again.body) == (202, {**expected, "duplicate": True})
    conflict = call(body={**body, "input_tokens": 1_501})
    assert (conflict.status, conflict.problem) == (409, "request-id-conflict")
    assert kinds() == ["cost_shard", "usage_event"]
    assert (used().requests, used().cost_usd_micros) == (1, COST)


def test_a_time_to_the_nanosecond_is_the_same_call_as_one_to_the_millisecond(call: Call) -> None:
    """Go and Java print what their clocks know. What is finer than we keep is no part of the call's name."""
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    first = call(body={**EVENT, "occurred_at": f"{at}.123456789Z"})
    assert (first.status, first.body.get("duplicate")) == (202, False)
    for again in (f"{at}.1239Z", f"{at}.123Z", f"{at.lower()}.123456z", f"{at}.123999999+00:00"):
        assert call(body={**EVENT, "occurred_at": again}).body.get("duplicate") is True, again
    assert call(body={**EVENT, "occurred_at": f"{at}.124000000Z"}).problem == "request-id-conflict"
    (event,) = [item for item in items_in_table() if item["kind"]["S"] == "usage_event"]
    assert event["occurred_at_ms"]["N"].endswith("123")
    assert used().requests == 1


def test_the_total_and_the_quota_of_the_label(call: Call, services: Services) -> None:
    day = datetime.now(UTC).strftime("%Y%m%d")
    counters = Counters(95_123, dict(zip(TokenKind, range(1, 6), strict=True)), 7, 2, 1)
    at_ms = clock_ms()
    services.store.update(
        write_total(CounterName(NAMESPACE, NAMESPACE, "premium", day), counters, 7, at_ms), repeatable=True
    )
    answer = call(body=EVENT, caller=AS_APP)
    as_of = answer.body["total"].pop("as_of")
    assert abs(datetime.fromisoformat(as_of).timestamp() * 1000 - at_ms) < 1
    assert answer.body["total"] == {
        "cost_usd_micros": 95_123,
        "requests": 7,
        "errors": 2,
        "unpriced": 1,
        "input_tokens": 1,
        "output_tokens": 2,
        "cache_read_tokens": 3,
        "cache_write_tokens": 4,
        "cache_write_1h_tokens": 5,
    }
    assert answer.body["quota"] == {"limit_usd_micros": 100_000, "percent": 95.1, "mode": "TIGHT"}


def test_a_total_that_can_not_be_read(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    call(body=EVENT)

    def throttled(*_arguments: Any, **_named: Any) -> Any:
        raise Throttled("x")

    monkeypatch.setattr(DynamoStore, "get", throttled)
    answer = call(body={**EVENT, "request_id": "2"})
    assert (answer.status, answer.body["total"], answer.body["quota"]) == (202, None, None)


def test_a_label_without_a_quota(call: Call, services: Services) -> None:
    settle_org(services, OrgSettings())
    answer = call(body=EVENT)
    assert (answer.body["quota"], answer.body["total"]) == (None, NO_TOTAL)


def test_an_unknown_price(call: Call, services: Services) -> None:
    body = {**EVENT, "label": "economy"}
    refused = call(body=body)
    assert (refused.status, refused.problem) == (422, "price-missing")
    assert "model-of-economy" in refused.body["detail"]
    assert kinds() == []
    settle_org(services, OrgSettings(accept_unpriced=True))
    accepted = another_process()(body=body)
    assert (accepted.status, accepted.body["cost_usd_micros"], accepted.body["price_id"]) == (202, None, None)
    assert (used(label="economy").unpriced, used(label="economy").cost_usd_micros) == (1, 0)


def test_a_model_counts_under_its_label(call: Call) -> None:
    body = {name: value for name, value in EVENT.items() if name != "label"}
    assert call(body={**body, "model_id": MODEL}).body["cost_usd_micros"] == COST
    assert used().requests == 1


def test_callers_and_what_they_may_report_for(call: Call) -> None:
    assert call(body=EVENT, caller=AS_APP).status == 202
    assert call(body={**EVENT, "entity": "new-user"}, caller=AS_APP).problem == "request-id-conflict"
    answer = call(body={**EVENT, "entity": "new-user", "request_id": "2"}, caller=AS_APP)
    assert answer.status == 202
    assert [kind for kind in kinds() if kind != "cost_shard"] == ["entity", "usage_event", "usage_event"]
    for entity in (NAMESPACE, "foreign"):
        if entity == "foreign":
            assert call(body={**EVENT, "entity": "foreign"}).status == 202
        refused = call(body={**EVENT, "entity": entity, "request_id": "3"}, caller=AS_APP)
        assert (refused.status, refused.problem) == (404, "not-found")
    assert call(body=EVENT, caller={}).status == 401
    assert (used(APP).requests, used(NAMESPACE).requests) == (2, 3)


def test_an_org_that_keeps_unknown_entities_out(call: Call, services: Services) -> None:
    settle_org(services, OrgSettings(auto_register_entities=False))
    refused = another_process()(body={**EVENT, "entity": "new-user"})
    assert (refused.status, refused.problem) == (404, "not-found")
    assert kinds() == []


def test_a_lease_is_closed_with_what_it_took(call: Call) -> None:
    acquired = call(path="/v1/acquire", body={"entity": APP, "resource": "gpt-4", "consume": {"tpm": 5}}).body
    lease = {"lease": acquired["lease"]}
    other = call(body={**EVENT, **lease, "entity": "somebody-else"})
    assert (other.status, other.problem, other.body["field"]) == (400, "invalid-lease", "lease")
    body = {**EVENT, **lease, "entity": APP}
    assert call(body=body).body["duplicate"] is False
    assert call(body=body).body["duplicate"] is True
    settled = call(path="/v1/leases/settle", body={**lease, "actual": {"tpm": 4}})
    assert (settled.status, settled.problem) == (409, "lease-closed")
    assert call(path="/v1/leases/settle", body={**lease, "actual": {"tpm": 5}}).body["settled"] == {"tpm": 5}
    for token in ("", "x", acquired["lease"][:-2], "A" * 8_193, "\ud800"):
        refused = call(body={**body, "lease": token, "request_id": "2"})
        assert (refused.status, refused.problem, refused.body["field"]) == (400, "invalid-lease", "lease")


BAD: list[tuple[str, Any]] = [
    ("request_id", {"request_id": None}),
    ("request_id", {"request_id": ""}),
    ("request_id", {"request_id": "x" * 129}),
    ("request_id", {"request_id": "é"}),
    ("request_id", {"request_id": "a\n"}),
    ("request_id", {"request_id": "\0"}),
    ("request_id", {"request_id": 7}),
    ("entity", {"entity": ""}),
    ("entity", {"entity": "a/b"}),
    ("entity", {"entity": "$SYSTEM"}),
    ("entity", {"entity": "x" * 129}),
    ("label", {"label": None}),
    ("label", {"label": "a b"}),
    ("label", {"model_id": MODEL}),
    ("model_id", {"label": None, "model_id": ""}),
    ("model_id", {"label": None, "model_id": "a b"}),
    ("model_id", {"label": None, "model_id": "x" * 257}),
    ("model_id", {"label": None, "model_id": "a\ud800"}),
    ("region", {"region": "nowhere"}),
    ("region", {"region": "us-east-1\n"}),
    ("region", {"region": "a" * 5_000}),
    ("input_tokens", {"input_tokens": -1}),
    ("input_tokens", {"input_tokens": 1.5}),
    ("input_tokens", {"input_tokens": 1.0}),
    ("input_tokens", {"input_tokens": "1"}),
    ("input_tokens", {"input_tokens": True}),
    ("input_tokens", {"input_tokens": None}),
    ("input_tokens", {"input_tokens": 10**12 + 1}),
    ("output_tokens", {"output_tokens": 10**30}),
    ("cache_read_tokens", {"cache_read_tokens": -1}),
    ("cache_write_tokens", {"cache_write_tokens": 0.5}),
    ("cache_write_1h_tokens", {"cache_write_1h_tokens": -(10**12)}),
    ("status", {"status": "fine"}),
    ("status", {"status": None}),
    ("pricing", {"pricing": "free"}),
    ("pricing", {"pricing": None}),
    ("occurred_at", {"occurred_at": "yesterday"}),
    ("occurred_at", {"occurred_at": "2026-11-18T20:00:00"}),
    ("occurred_at", {"occurred_at": "2026-02-30T00:00:00Z"}),
    ("occurred_at", {"occurred_at": "2026-11-18T20:00:60Z"}),
    ("occurred_at", {"occurred_at": "2026-11-18T20:00:00.Z"}),
    ("occurred_at", {"occurred_at": "2026-11-18T20:00:00." + "0" * 20 + "Z"}),
    ("occurred_at", {"occurred_at": "0001-01-01T00:00:00+14:00"}),
    ("occurred_at", {"occurred_at": "9999-12-31T23:59:59-14:00"}),
    ("occurred_at", {"occurred_at": "1969-12-31T23:59:59Z"}),
    ("occurred_at", {"occurred_at": "٢٠٢٦-11-18T20:00:00Z"}),
    ("occurred_at", {"occurred_at": 1_800_000_000}),
    ("occurred_at", {"occurred_at": now(days=1)}),
    ("occurred_at", {"occurred_at": now(days=-36)}),
    ("tags", {"tags": None}),
    ("tags", {"tags": ["a"]}),
    ("tags", {"tags": {str(number): "" for number in range(11)}}),
    ("tags.", {"tags": {"": "x"}}),
    ("tags." + "n" * 65, {"tags": {"n" * 65: "x"}}),
    ("tags.a", {"tags": {"a": "v" * 129}}),
    ("tags.a", {"tags": {"a": 1}}),
    ("tags.a", {"tags": {"a": "\ud800"}}),
    ("lease", {"lease": 7}),
    ("lease", {"lease": "nonsense"}),
    ("day", {"day": "2026-11-18"}),
    ("cost_usd_micros", {"cost_usd_micros": 1}),
]


def test_bad_input_names_its_field_alone_and_in_a_batch_and_changes_nothing(call: Call) -> None:
    alone = []
    for field, changed in BAD:
        answer = call(body={**EVENT, **changed})
        assert (answer.status, answer.body["field"]) == (400, field), changed
        assert answer.problem in {"invalid-request", "invalid-lease"}
        alone.append(answer.body)
    assert kinds() == []
    good = {**EVENT, "request_id": "good"}
    batch = call(path=BATCH, body={"events": [*({**EVENT, **changed} for _, changed in BAD), good]})
    assert batch.status == 207
    *failed, counted = batch.body["results"]
    for (field, changed), told, problem in zip(BAD, failed, alone, strict=True):
        sent = changed.get("request_id", EVENT["request_id"])
        assert told == {"request_id": None if field == "request_id" else sent, "status": 400, "problem": problem}
    assert (counted["status"], counted["request_id"], counted["duplicate"]) == (202, "good", False)
    assert {name: batch.body[name] for name in ("accepted", "duplicates", "failed")} == {
        "accepted": 1,
        "duplicates": 0,
        "failed": len(BAD),
    }
    assert used().requests == 1


def test_what_every_event_says(call: Call) -> None:
    for missing in ("request_id", "input_tokens", "output_tokens", "status"):
        event = {name: value for name, value in EVENT.items() if name != missing}
        alone = call(body=event)
        assert (alone.status, alone.body["field"]) == (400, missing)
        (failed,) = call(path=BATCH, body={"events": [event]}).body["results"]
        assert failed["problem"] == alone.body


def test_the_ends_of_what_an_event_may_say(call: Call) -> None:
    longest = {
        "request_id": "~" * 128,
        "entity": "e" * 128,
        "label": None,
        "model_id": MODEL,
        "region": "us-gov-west-1",
        "input_tokens": 10**12,
        "output_tokens": 10**12,
        "cache_read_tokens": 0,
        "cache_write_tokens": 0,
        "cache_write_1h_tokens": 0,
        "pricing": "standard",
        "status": "timeout",
        "occurred_at": now(seconds=50).replace("Z", "+00:00"),
        "tags": {f"{number}" + "\U0001f600" * 63: "\U0001f600" * 128 for number in range(10)},
        "lease": None,
    }
    assert longest.keys() == UsageBody.model_fields.keys()
    answer = call(body=longest)
    assert (answer.status, answer.body["cost_usd_micros"]) == (202, 18 * 10**12)
    (event,) = [item for item in items_in_table() if item["kind"]["S"] == "usage_event"]
    assert len(event["tags"]["M"]) == 10
    assert call(body={**EVENT, "request_id": "%#/! ", "occurred_at": now(days=-34)}).status == 202


def test_unknown_labels(call: Call) -> None:
    refused = call(body={**EVENT, "label": "nonsense"})
    assert (refused.status, refused.problem, refused.body["field"]) == (422, "unknown-label", "label")


# Batches.


def test_a_batch(call: Call) -> None:
    earlier = call(body=EVENT).body
    batch = [EVENT, {**EVENT, "request_id": "2"}, {**EVENT, "request_id": "2"}, {**EVENT, "label": "nonsense"}]
    batch += [{**EVENT, "status": "error"}, {**EVENT, "request_id": "3", "status": "error"}]
    answer = call(path=BATCH, body={"events": batch})
    assert answer.status == 207
    assert {name: answer.body[name] for name in ("accepted", "duplicates", "failed")} == {
        "accepted": 4,
        "duplicates": 2,
        "failed": 2,
    }
    results = answer.body["results"]
    assert results[0] == {**earlier, "duplicate": True, "status": 202}
    assert [(result["request_id"], result["status"]) for result in results] == [
        ("request-1", 202),
        ("2", 202),
        ("2", 202),
        ("request-1", 409),
        ("request-1", 409),
        ("3", 202),
    ]
    assert results[1] == {**earlier, "request_id": "2", "status": 202}
    assert results[4]["problem"] == call(body=batch[4]).body
    assert results[4].keys() == {"request_id", "status", "problem"}
    assert (used().requests, used().errors) == (3, 1)


NO_BATCH: list[tuple[str, Any]] = [
    ("events", {}),
    ("events", {"events": []}),
    ("events", {"events": [{**EVENT, "request_id": str(number)} for number in range(101)]}),
    ("events", {"events": EVENT}),
    ("events", {"events": None}),
    ("events.0", {"events": [7]}),
    ("events.1", {"events": [EVENT, None]}),
    ("events.1", {"events": [EVENT, [EVENT]]}),
    ("more", {"events": [EVENT], "more": 1}),
]


def test_what_is_no_batch_is_refused_as_a_whole(call: Call) -> None:
    for field, body in NO_BATCH:
        answer = call(path=BATCH, body=body)
        assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", field)
    assert kinds() == []


def test_how_large_a_body_may_be(call: Call) -> None:
    """A megabyte for a batch, and for nothing else."""
    most = LARGE_BODIES[BATCH]
    events = [{**EVENT, "request_id": "1", "lease": "x" * 9_000}, {**EVENT, "request_id": "2"}]
    text = json.dumps({"events": events})
    answer = call(path=BATCH, raw=text + " " * (most - len(text)))
    assert [result["status"] for result in answer.body["results"]] == [400, 202]
    too_large = call(path=BATCH, raw=text + " " * (most - len(text) + 1))
    assert (too_large.status, too_large.problem) == (413, "payload-too-large")
    assert str(most) in too_large.body["detail"]
    text = json.dumps(EVENT)
    assert call(raw=text + " " * (BODY_BYTES_MAX - len(text))).status == 202
    assert call(raw=text + " " * (BODY_BYTES_MAX - len(text) + 1)).problem == "payload-too-large"


@pytest.mark.parametrize("path", [USAGE, BATCH])
def test_what_is_no_json_object_is_refused(call: Call, path: str) -> None:
    for raw in ("", "null", "[]", "{", '{"events": [NaN]}', '{"events": 1, "events": 2}', "[" * 100_000):
        answer = call(path=path, raw=raw)
        assert answer.status in {400, 413}
    assert call(path=path, raw="{}", content_type="text/plain").problem == "unsupported-media-type"
    assert call("GET", path).problem == "method-not-allowed"
    assert kinds() == []


def test_nothing_of_an_event_is_logged(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(logger.registered_handler, "stream", written)
    canary = {**EVENT, "request_id": "canary", "entity": "canary", "tags": {"canary": "canary"}}
    call(body=canary)
    call(path=BATCH, body={"events": [canary, {**canary, "status": "canary"}]})
    assert [json.loads(line)["route"] for line in written.getvalue().splitlines()] == [f"POST {USAGE}", f"POST {BATCH}"]
    assert "canary" not in written.getvalue()


@pytest.mark.parametrize(
    ("error", "status", "problem", "detail"),
    [
        (Throttled("x"), 503, "unavailable", "the table does not answer"),
        (Ambiguous("x"), 503, "unavailable", "the table does not answer; the request may have been applied"),
        (Contended(30), 429, "contended", "contended, try again in 30 ms"),
    ],
)
def test_when_it_can_not_be_written(
    call: Call, monkeypatch: pytest.MonkeyPatch, error: SluiceError, status: int, problem: str, detail: str
) -> None:
    def fail(*_arguments: Any, **_named: Any) -> Any:
        raise error

    monkeypatch.setattr(DynamoStore, "transact", fail)
    alone = call(body=EVENT)
    assert (alone.status, alone.problem, alone.body["detail"]) == (status, problem, detail)
    assert "Retry-After" in alone.headers
    batch = call(path=BATCH, body={"events": [EVENT, {**EVENT, "label": "nonsense"}]})
    assert batch.status == 207
    first, second = batch.body["results"]
    assert (first["status"], first["problem"]) == (status, alone.body)
    assert second["status"] == 422
    assert kinds() == []


def test_a_bug_is_no_problem_of_an_event(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    class Strange(SluiceError):
        """One that nobody has a problem document for."""

    def fail(*_arguments: Any, **_named: Any) -> Any:
        raise Strange

    monkeypatch.setattr(Judge, "judge", fail)
    for path, body in ((USAGE, EVENT), (BATCH, {"events": [EVENT]})):
        answer = call(path=path, body=body)
        assert (answer.status, answer.problem) == (500, "internal")
