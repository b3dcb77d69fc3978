"""The item of a usage event."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.capacity import size_bytes
from sluice.core.metering import CallStatus
from sluice.core.pricing import Pricing, TokenKind
from sluice.repository import keys, money_keys
from sluice.repository.events import (
    UsageEvent,
    decode_event,
    encode_event,
    event_absent,
    events_query,
    put_event,
)
from sluice.repository.shapes import UnknownShape
from sluice.repository.wire import Value, item_to_wire

texts = st.text(min_size=1, max_size=20)
amounts = st.integers(0, 10**20)
events = st.builds(
    UsageEvent,
    namespace=texts,
    request_id=texts,
    body_hash=texts,
    entity=texts,
    app=st.none() | texts,
    chain=st.lists(texts, max_size=4).map(tuple),
    day=st.just("20270115"),
    occurred_at_ms=amounts,
    received_at_ms=amounts,
    label=texts,
    model_id=texts,
    region=st.none() | texts,
    status=st.sampled_from(CallStatus),
    pricing=st.sampled_from(Pricing),
    tokens=st.dictionaries(st.sampled_from(TokenKind), st.integers(1, 10**12)),
    cost_usd_micros=st.none() | amounts,
    price_id=st.none() | texts,
    tags=st.dictionaries(texts, st.text(max_size=20), max_size=10),
    lease_id=st.none() | texts,
)


@given(events)
def test_an_event_comes_back_as_it_was(event: UsageEvent) -> None:
    assert decode_event(encode_event("chat", event)) == event


# As a busy client sends it: long ids of an org, an app and a user, a long name of a model, a request id and a lease id
# as they are usually made, and two tags.
USUAL = UsageEvent(
    namespace="n" * 20,
    request_id="123e4567-e89b-12d3-a456-426614174000",
    body_hash="h" * 43,
    entity="user-" + "u" * 31,
    app="support-assistant",
    chain=("user-" + "u" * 31, "support-assistant", "acme-corporation"),
    day="20270115",
    occurred_at_ms=1_800_000_000_000,
    received_at_ms=1_800_000_000_321,
    label="premium",
    model_id="us.anthropic.claude-sonnet-4-5-20250929-v1:0",
    region="us-east-1",
    status=CallStatus.OK,
    pricing=Pricing.STANDARD,
    tokens=dict.fromkeys(TokenKind, 123_456),
    cost_usd_micros=1_234_567,
    price_id="aws:us.anthropic.claude-sonnet-4-5-20250929-v1:0:us-east-1:2026-11-18",
    tags={"team": "billing", "feature": "summary"},
    lease_id="0123456789abcdef" * 2,
)


def test_attributes_are_those_of_the_table() -> None:
    assert encode_event("support-assistant", USUAL) == {
        "PK": f"{'n' * 20}/EVENT#support-assistant#20270115#6",
        "SK": "#EVENT#123e4567-e89b-12d3-a456-426614174000",
        "kind": "usage_event",
        "ns": "n" * 20,
        "request_id": "123e4567-e89b-12d3-a456-426614174000",
        "body_hash": "h" * 43,
        "entity_id": "user-" + "u" * 31,
        "app_id": "support-assistant",
        "chain": ["user-" + "u" * 31, "support-assistant", "acme-corporation"],
        "day": "20270115",
        "occurred_at_ms": 1_800_000_000_000,
        "received_at_ms": 1_800_000_000_321,
        "label": "premium",
        "model_id": "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "region": "us-east-1",
        "status": "ok",
        "pricing": "standard",
        "input_tokens": 123_456,
        "output_tokens": 123_456,
        "cache_read_tokens": 123_456,
        "cache_write_tokens": 123_456,
        "cache_write_1h_tokens": 123_456,
        "cost_usd_micros": 1_234_567,
        "price_id": "aws:us.anthropic.claude-sonnet-4-5-20250929-v1:0:us-east-1:2026-11-18",
        "tags": {"team": "billing", "feature": "summary"},
        "lease_id": "0123456789abcdef" * 2,
        "created_at": 1_800_000_000_321,
        "ttl": 1_800_000_000 + 90 * 86_400,
    }


def test_a_usual_event_is_written_for_one_unit() -> None:
    wire = item_to_wire(encode_event("support-assistant", USUAL))
    lists = sum(len(one["S"]) + 1 for one in wire["chain"]["L"]) + 3
    maps = sum(len(name) + len(value["S"]) + 1 for name, value in wire["tags"]["M"].items()) + 3
    assert size_bytes(wire) + lists + maps <= 1024


def test_one_is_put_where_there_is_none() -> None:
    assert put_event("chat", USUAL) == {
        "Item": encode_event("chat", USUAL),
        "ConditionExpression": "attribute_not_exists(PK)",
    }
    key = keys.Key("p", "s")
    assert event_absent(key, 7) == {
        "Key": {"PK": "p", "SK": "s"},
        "ConditionExpression": "attribute_not_exists(PK) OR #received < :since",
        "ExpressionAttributeNames": {"#received": "received_at_ms"},
        "ExpressionAttributeValues": {":since": 7},
    }


def test_the_events_of_a_caller_and_day_are_listed_by_partition() -> None:
    item = encode_event("chat", USUAL)
    partitions = [
        events_query(USUAL.namespace, "chat", USUAL.day, number)["ExpressionAttributeValues"][":pk"]
        for number in range(money_keys.EVENT_PARTITIONS)
    ]
    assert partitions.count(item["PK"]) == 1
    assert len(set(map(str, partitions))) == money_keys.EVENT_PARTITIONS


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("kind", "bucket"),
        ("status", "fine"),
        ("pricing", "free"),
        ("tags", []),
        ("tags", {"a": 1}),
        ("chain", "chat"),
        ("cost_usd_micros", "1"),
        ("input_tokens", "1"),
        ("request_id", 1),
    ],
)
def test_a_shape_that_is_not_known_raises(attribute: str, value: Value) -> None:
    with pytest.raises(UnknownShape):
        decode_event({**encode_event("chat", USUAL), attribute: value})
