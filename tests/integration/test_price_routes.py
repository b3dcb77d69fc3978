"""Prices over HTTP, event in and answer out, on moto."""

from collections.abc import Iterator
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import boto3
import pytest

from sluice.core.identity import Role
from sluice.core.pricing import Price, PriceSource, TokenKind
from sluice.repository.audit import audit_query, decode_audit_event
from sluice.repository.keys import REGISTRY_NAMESPACE
from sluice.repository.prices import StoredPrice, encode_price
from sluice.repository.wire import item_to_wire
from sluice.shell import Environment, build_services, clock_ms, make_client
from tests.fakes import CountingMeter
from tests.http import (
    APP,
    AS_NOBODY,
    AS_OPERATOR,
    NAMESPACE,
    TABLE,
    Answer,
    Call,
    authorized,
    caller_of,
    deployed,
    items_in_table,
)

PRICES = "/v1/prices"
QUOTE = "/v1/prices/quote"
MODEL = "amazon.nova-pro-v1:0"
OWN_MODEL = "own.model/v1#x"
AS_APP = authorized(APP, Role.APP)
COLUMN = {"input_usd_micros_per_1m": 1_000_000, "output_usd_micros_per_1m": 5_000_000}
NONE_OF = {
    "input_usd_micros_per_1m": None,
    "output_usd_micros_per_1m": None,
    "cache_read_usd_micros_per_1m": None,
    "cache_write_usd_micros_per_1m": None,
    "cache_write_1h_usd_micros_per_1m": None,
}
BODY = {"standard": COLUMN}
FULL = {
    "region": "eu-west-1",
    "from_day": "2026-01-02",
    "standard": {**COLUMN, "cache_read_usd_micros_per_1m": 0, "cache_write_usd_micros_per_1m": 3},
    "batch": {"input_usd_micros_per_1m": 4},
    "long_from_tokens": 200_000,
    "long_standard": {"output_usd_micros_per_1m": 10**12},
    "long_batch": {"cache_write_1h_usd_micros_per_1m": 6},
}
CALL = {"model_id": MODEL, "input_tokens": 1500, "output_tokens": 800}


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with deployed("control_plane.handler", monkeypatch) as handler:
        yield handler


@pytest.fixture
def call(module: ModuleType) -> Call:
    return caller_of(module, "GET", PRICES)


def today() -> str:
    return f"{datetime.fromtimestamp(clock_ms() // 1000, UTC):%Y-%m-%d}"


def put(call: Call, body: Any, model_id: str = MODEL, **more: Any) -> Answer:
    return call("PUT", PRICES, body, query={"model_id": model_id}, **more)


def get(call: Call, model_id: str = MODEL, caller: Any = None, **query: str) -> Answer:
    return call("GET", PRICES, query={"model_id": model_id, **query}, caller=caller)


def quote(call: Call, caller: Any = None, **changes: Any) -> Answer:
    body = {name: value for name, value in {**CALL, **changes}.items() if value is not None}
    return call("POST", QUOTE, body, caller=caller)


def test_what_ships_is_shown_kind_by_kind(call: Call) -> None:
    answer = get(call)
    assert answer.status == 200
    assert answer.body["price_id"].startswith(f"shipped:{MODEL}:-:")
    assert {name: answer.body[name] for name in ("model_id", "source", "region", "from_day")} == {
        "model_id": MODEL,
        "source": "shipped",
        "region": None,
        "from_day": None,
    }
    assert answer.body["standard"] == {
        **NONE_OF,
        "input_usd_micros_per_1m": 800_000,
        "output_usd_micros_per_1m": 3_200_000,
        "cache_read_usd_micros_per_1m": 200_000,
    }
    assert answer.body["batch"]["input_usd_micros_per_1m"] == 400_000
    assert [answer.body[name] for name in ("long_from_tokens", "long_standard", "long_batch")] == [None] * 3


def test_an_own_price_is_put_shown_replaced_and_removed(call: Call) -> None:
    query = {"region": "eu-west-1", "day": "2026-01-02"}
    created = put(call, FULL)
    assert created.status == 201
    shown = {
        "model_id": MODEL,
        "price_id": f"override:{MODEL}:eu-west-1:2026-01-02",
        "source": "override",
        "region": "eu-west-1",
        "from_day": "2026-01-02",
        "standard": {**NONE_OF, **FULL["standard"]},  # type: ignore[dict-item]  # each value of the body has its own type
        "batch": {**NONE_OF, "input_usd_micros_per_1m": 4},
        "long_from_tokens": 200_000,
        "long_standard": {**NONE_OF, "output_usd_micros_per_1m": 10**12},
        "long_batch": {**NONE_OF, "cache_write_1h_usd_micros_per_1m": 6},
    }
    times = {"created_at": created.body["created_at"], "updated_at": created.body["updated_at"]}
    assert created.body == {**shown, **times}
    assert get(call, **query).body == shown
    assert get(call, region="eu-west-1", day="2026-01-01").body["source"] == "shipped"
    assert get(call, region="us-east-1", day="2026-01-02").body["source"] == "shipped"
    replaced = put(call, {**BODY, "region": "eu-west-1", "from_day": "2026-01-02"})
    assert (replaced.status, replaced.body["batch"], replaced.body["long_from_tokens"]) == (200, None, None)
    assert replaced.body["created_at"] == created.body["created_at"]
    remove = {"model_id": MODEL, "region": "eu-west-1", "from_day": "2026-01-02"}
    removed = call("DELETE", PRICES, query=remove)
    assert (removed.status, removed.body) == (204, None)
    assert get(call, **query).body["source"] == "shipped"
    assert call("DELETE", PRICES, query=remove).problem == "not-found"
    assert [item["kind"]["S"] for item in items_in_table()] == ["audit"] * 3


def test_a_put_that_is_repeated_answers_the_same(call: Call) -> None:
    first, second = put(call, FULL), put(call, FULL)
    assert (first.status, second.status) == (201, 200)
    assert {**first.body, "updated_at": None} == {**second.body, "updated_at": None}


def test_without_a_day_a_price_begins_today(call: Call) -> None:
    days = {today()}
    answer = put(call, BODY)
    assert answer.body["from_day"] in days | {today()}
    assert answer.body["region"] is None
    assert get(call).body["price_id"] == answer.body["price_id"]
    assert get(call, region="us-east-1").body["price_id"] == answer.body["price_id"]


def test_a_price_may_begin_in_the_past_or_later(call: Call) -> None:
    assert put(call, {**BODY, "from_day": "2024-02-29"}).status == 201
    assert put(call, {"standard": {"input_usd_micros_per_1m": 7}, "from_day": "2999-12-31"}).status == 201
    assert get(call).body["standard"]["input_usd_micros_per_1m"] == 1_000_000
    assert get(call, day="2024-02-28").body["source"] == "shipped"
    assert get(call, day="2999-12-31").body["standard"] == {**NONE_OF, "input_usd_micros_per_1m": 7}


def test_what_another_process_put_is_seen_at_once(call: Call) -> None:
    assert get(call).body["source"] == "shipped"
    environment = Environment("test", TABLE, 2000)
    elsewhere = build_services(environment, make_client(environment), CountingMeter())
    stored = StoredPrice(
        NAMESPACE,
        MODEL,
        "2026-01-01",
        Price("override:x", PriceSource.OVERRIDE, {TokenKind.INPUT: 9}, from_day="2026-01-01"),
        1,
        1,
        1,
    )
    elsewhere.store.put({"Item": encode_price(stored)}, repeatable=True)
    assert get(call).body["price_id"] == "override:x"


def test_what_aws_said_is_shown_with_its_day_and_region(call: Call) -> None:
    price = Price("aws:x", PriceSource.AWS, {TokenKind.INPUT: 9}, region="us-east-1", from_day="2026-01-01")
    stored = StoredPrice(REGISTRY_NAMESPACE, MODEL, "2026-01-01", price, 1, 1, 1, 1)
    boto3.client("dynamodb").put_item(TableName=TABLE, Item=item_to_wire(encode_price(stored)))
    found = get(call, f"us.{MODEL}", region="us-east-1").body
    assert (found["model_id"], found["source"], found["region"], found["from_day"]) == (
        f"us.{MODEL}",
        "aws",
        "us-east-1",
        "2026-01-01",
    )
    # Nobody can change it.
    assert put(call, {**BODY, "region": "us-east-1", "from_day": "2026-01-01"}).status == 201
    remove = {"model_id": MODEL, "region": "us-east-1", "from_day": "2026-01-01"}
    assert call("DELETE", PRICES, query=remove).status == 204
    assert get(call, region="us-east-1").body["price_id"] == "aws:x"


def test_a_model_that_nobody_knows(call: Call) -> None:
    assert get(call, "own.model").problem == "not-found"


def define_label(call: Call, **changes: Any) -> None:
    body = {"model_id": OWN_MODEL, "input_price_usd_micros_per_1m": 2_000_000, **changes}
    assert call("PUT", "/v1/labels/big", body).status in (200, 201)


def test_the_price_of_its_label_is_the_last_resort(call: Call) -> None:
    assert get(call, OWN_MODEL).problem == "not-found"
    define_label(call)
    found = get(call, OWN_MODEL).body
    assert (found["source"], found["price_id"]) == ("label", "label:big:1")
    assert found["standard"] == {**NONE_OF, "input_usd_micros_per_1m": 2_000_000}


def test_a_quote_of_a_model(call: Call) -> None:
    answer = quote(call)
    assert answer.status == 200
    assert {name: answer.body[name] for name in ("label", "model_id", "region", "pricing")} == {
        "label": None,
        "model_id": MODEL,
        "region": None,
        "pricing": "standard",
    }
    assert (answer.body["cost_usd_micros"], answer.body["estimate_usd_micros"]) == (3_760, 3_760)
    assert answer.body["price"] == get(call).body
    assert answer.body["price_id"] == answer.body["price"]["price_id"]
    assert answer.body["day"] in {today(), answer.body["day"]}
    assert items_in_table() == []


def test_a_quote_rounds_its_cost_and_its_estimate_otherwise(call: Call) -> None:
    micro = quote(call, model_id="amazon.nova-micro-v1:0", input_tokens=20, output_tokens=5)
    assert (micro.body["cost_usd_micros"], micro.body["estimate_usd_micros"]) == (1, 2)


def test_a_quote_of_a_batch_of_a_day_with_a_cache(call: Call) -> None:
    put(call, {**FULL, "batch": {**COLUMN, "cache_read_usd_micros_per_1m": 500_000}})
    answer = quote(
        call,
        region="eu-west-1",
        day="2026-01-02",
        pricing="batch",
        input_tokens=1_000,
        output_tokens=100,
        cache_read_tokens=2_000,
    )
    assert answer.body["cost_usd_micros"] == 1_000 + 500 + 1_000
    assert (answer.body["day"], answer.body["pricing"]) == ("2026-01-02", "batch")
    assert quote(call, region="eu-west-1", day="2026-01-01").body["price"]["source"] == "shipped"


def test_a_quote_of_a_label(call: Call) -> None:
    define_label(call, output_price_usd_micros_per_1m=0)
    answer = quote(call, model_id=None, label="big", input_tokens=10**12, output_tokens=10**12)
    assert (answer.body["label"], answer.body["model_id"]) == ("big", OWN_MODEL)
    assert answer.body["cost_usd_micros"] == 2_000_000_000_000
    assert answer.body["price"]["source"] == "label"
    # The same model by its id is counted under that label.
    assert quote(call, model_id=OWN_MODEL, input_tokens=1, output_tokens=1).body["label"] == "big"


def test_a_quote_without_a_price_says_what_is_missing(call: Call) -> None:
    unknown = quote(call, model_id="own.model")
    assert (unknown.status, unknown.problem) == (422, "price-missing")
    assert "own.model" in unknown.body["detail"]
    kinds = quote(call, cache_write_tokens=1, cache_write_1h_tokens=1)
    assert (kinds.status, kinds.problem) == (422, "price-missing")
    assert f"cache_write, cache_write_1h tokens of the model {MODEL}" in kinds.body["detail"]


def test_a_quote_of_an_unknown_label(call: Call) -> None:
    answer = quote(call, model_id=None, label="unheard-of")
    assert (answer.status, answer.problem, answer.body["field"]) == (422, "unknown-label", "label")


def test_an_app_reads_and_quotes_and_may_not_put(call: Call) -> None:
    put(call, BODY)
    assert get(call, caller=AS_APP).body["source"] == "override"
    assert quote(call, AS_APP).status == 200
    assert put(call, BODY, caller=AS_APP).problem == "forbidden"
    remove = {"model_id": MODEL, "from_day": today()}
    assert call("DELETE", PRICES, query=remove, caller=AS_APP).problem == "forbidden"
    assert get(call).body["source"] == "override"


def test_an_app_is_quoted_by_its_own_labels(call: Call) -> None:
    """An inference profile that the app alone has."""
    define_label(call)
    arn = f"arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.{MODEL}"
    profile = {"inference_profile_arn": arn}
    assert call("PUT", "/v1/inference-profiles/big", profile, query={"app": APP}).status == 201
    assert quote(call, model_id=f"us.{MODEL}", caller=AS_APP).body["label"] == "big"
    assert quote(call, model_id=f"us.{MODEL}").body["label"] is None


@pytest.mark.parametrize("caller", [AS_NOBODY, AS_OPERATOR])
def test_nobody_else_is_let_in(call: Call, caller: Any) -> None:
    for answer in (
        get(call, caller=caller),
        put(call, BODY, caller=caller),
        call("DELETE", PRICES, query={"model_id": MODEL, "from_day": "2026-01-02"}, caller=caller),
        quote(call, caller),
    ):
        assert answer.problem in ("unauthorized", "forbidden")
    assert items_in_table() == []


def test_changes_are_in_the_audit(call: Call, module: ModuleType) -> None:
    put(call, FULL)
    environment = Environment("test", TABLE, 2000)
    store = build_services(environment, make_client(environment), CountingMeter()).store
    (event,) = map(decode_audit_event, store.query(audit_query(NAMESPACE, "$SYSTEM")).items)
    assert (event.action, event.target) == ("price.put", f"prices?model_id={MODEL}")
    assert event.author.actor == f"client-{NAMESPACE}"
    assert event.author.request_id == "request-7"


WRONG_BODIES: list[tuple[str, Any]] = [
    ("body", [BODY]),
    ("standard", {}),
    ("standard", {"standard": {}}),
    ("standard", {"standard": {"cache_read_usd_micros_per_1m": 1}}),
    ("standard", {"standard": 5}),
    ("standard.input_usd_micros_per_1m", {"standard": {"input_usd_micros_per_1m": -1}}),
    ("standard.input_usd_micros_per_1m", {"standard": {"input_usd_micros_per_1m": 1.5}}),
    ("standard.input_usd_micros_per_1m", {"standard": {"input_usd_micros_per_1m": 1.0}}),
    ("standard.input_usd_micros_per_1m", {"standard": {"input_usd_micros_per_1m": "1"}}),
    ("standard.input_usd_micros_per_1m", {"standard": {"input_usd_micros_per_1m": True}}),
    ("standard.input_usd_micros_per_1m", {"standard": {"input_usd_micros_per_1m": 10**12 + 1}}),
    ("standard.input_usd_micros_per_1m", {"standard": {"input_usd_micros_per_1m": 10**40}}),
    ("standard.input", {"standard": {**COLUMN, "input": 1}}),
    ("batch.output_usd_micros_per_1m", {**BODY, "batch": {"output_usd_micros_per_1m": -1}}),
    ("long_from_tokens", {**BODY, "long_from_tokens": 0, "long_standard": COLUMN}),
    ("long_from_tokens", {**BODY, "long_from_tokens": 10**12 + 1, "long_standard": COLUMN}),
    ("long_from_tokens", {**BODY, "long_from_tokens": 200_000}),
    ("long_from_tokens", {**BODY, "long_from_tokens": 200_000, "long_standard": {}}),
    ("long_standard", {**BODY, "long_standard": COLUMN}),
    ("long_batch", {**BODY, "long_batch": COLUMN}),
    ("region", {**BODY, "region": "US East"}),
    ("region", {**BODY, "region": "us-east-1#x"}),
    ("region", {**BODY, "region": "us-east-1\n"}),
    ("region", {**BODY, "region": ""}),
    ("region", {**BODY, "region": "a" * 100}),
    ("from_day", {**BODY, "from_day": "2026-02-30"}),
    ("from_day", {**BODY, "from_day": "20260202"}),
    ("from_day", {**BODY, "from_day": "2026-1-2"}),
    ("from_day", {**BODY, "from_day": "0000-01-01"}),
    ("from_day", {**BODY, "from_day": "\u0662026-01-02"}),
    ("from_day", {**BODY, "from_day": 20260202}),
    ("model_id", {**BODY, "model_id": MODEL}),
    ("source", {**BODY, "source": "aws"}),
]


def refused(answer: Answer, field: str, what: object) -> None:
    assert (answer.status, answer.problem, answer.body["field"]) == (400, "invalid-request", field), what


def test_a_wrong_body_names_its_field_and_writes_nothing(call: Call) -> None:
    for field, body in WRONG_BODIES:
        refused(put(call, body), field, body)
    assert items_in_table() == []


WRONG_QUOTES: list[tuple[str, dict[str, Any]]] = [
    ("label", {"label": "big"}),
    ("label", {"model_id": None}),
    ("label", {"model_id": None, "label": "a#b"}),
    ("model_id", {"model_id": "a" * 257}),
    ("model_id", {"model_id": "a b"}),
    ("model_id", {"model_id": ""}),
    ("region", {"region": "nowhere"}),
    ("input_tokens", {"input_tokens": None}),
    ("output_tokens", {"output_tokens": None}),
    ("input_tokens", {"input_tokens": -1}),
    ("input_tokens", {"input_tokens": 0.5}),
    ("output_tokens", {"output_tokens": 10**12 + 1}),
    ("cache_read_tokens", {"cache_read_tokens": "1"}),
    ("cache_write_1h_tokens", {"cache_write_1h_tokens": True}),
    ("pricing", {"pricing": "flex"}),
    ("day", {"day": "2026-13-01"}),
    ("day", {"day": "today"}),
    ("surprise", {"surprise": 1}),
]


def test_a_wrong_quote_names_its_field(call: Call) -> None:
    for field, changes in WRONG_QUOTES:
        refused(quote(call, **changes), field, changes)


WRONG_QUERIES: list[tuple[str, str, dict[str, str]]] = [
    ("model_id", "GET", {}),
    ("model_id", "GET", {"model_id": ""}),
    ("model_id", "GET", {"model_id": "a" * 257}),
    ("model_id", "GET", {"model_id": "a\n"}),
    ("model_id", "GET", {"model_id": "\u00e9"}),
    ("region", "GET", {"model_id": MODEL, "region": "x"}),
    ("day", "GET", {"model_id": MODEL, "day": "2026-02-29"}),
    ("day", "GET", {"model_id": MODEL, "day": "2026-02-28T00:00:00Z"}),
    ("day", "GET", {"model_id": MODEL, "day": ""}),
    ("model_id", "PUT", {}),
    ("from_day", "DELETE", {"model_id": MODEL}),
    ("from_day", "DELETE", {"model_id": MODEL, "from_day": "yesterday"}),
    ("region", "DELETE", {"model_id": MODEL, "from_day": "2026-01-02", "region": "US"}),
    ("model_id", "DELETE", {"from_day": "2026-01-02"}),
]


def test_a_wrong_query_names_its_field(call: Call) -> None:
    for field, method, query in WRONG_QUERIES:
        refused(call(method, PRICES, BODY if method == "PUT" else None, query=query), field, (method, query))
    assert items_in_table() == []


def test_hostile_model_ids_are_ids_like_any_other(call: Call) -> None:
    for model_id in ("../../x", "a/b", "_/PRICE", "%23", "a#2026-01-02#us-east-1", "{}", "';--", "!"):
        assert put(call, BODY, model_id).status == 201
        assert get(call, model_id).body["model_id"] == model_id
    found = [item["PK"]["S"] for item in items_in_table() if item["kind"]["S"] == "price"]
    assert len(set(found)) == 8
    assert all(pk.startswith(f"{NAMESPACE}/PRICE#") for pk in found)
