"""Prices as they are stored."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.price_list import Column
from sluice.core.pricing import PRICE_MAX_USD_MICROS, Price, PriceSource, TokenKind
from sluice.repository.keys import REGISTRY_NAMESPACE, key_of
from sluice.repository.prices import (
    SUPERSEDED_KEPT_S,
    StoredPrice,
    attribute_of,
    columns_in,
    decode_price,
    encode_price,
    price_attributes,
    price_delete,
    price_id,
    price_image,
    price_put,
    price_superseded,
    prices_query,
)
from sluice.repository.shapes import UnknownShape

INPUT, OUTPUT, WRITE_1H = TokenKind.INPUT, TokenKind.OUTPUT, TokenKind.CACHE_WRITE_1H
AWS = StoredPrice(
    namespace=REGISTRY_NAMESPACE,
    model_id="amazon.nova-pro-v1:0",
    from_day="2026-11-18",
    price=Price(
        price_id="aws:amazon.nova-pro-v1:0:us-east-1:2026-11-18",
        source=PriceSource.AWS,
        standard={INPUT: 1, OUTPUT: 2, WRITE_1H: 0},
        batch={INPUT: 3},
        long_from_tokens=200_000,
        long_standard={OUTPUT: 4},
        long_batch={WRITE_1H: 5},
        region="us-east-1",
        from_day="2026-11-18",
    ),
    version=3,
    created_at_ms=5,
    updated_at_ms=6,
    fetched_at_ms=7,
)
OWN = StoredPrice(
    namespace="ns1",
    model_id="a/b#c",
    from_day="2026-01-02",
    price=Price("override:a/b#c:-:2026-01-02", PriceSource.OVERRIDE, {INPUT: 9}, from_day="2026-01-02"),
    version=1,
    created_at_ms=5,
    updated_at_ms=5,
)


def test_a_price_of_aws_by_its_attributes() -> None:
    assert encode_price(AWS) == {
        "PK": "_/PRICE#amazon.nova-pro-v1:0",
        "SK": "#2026-11-18#us-east-1",
        "kind": "price",
        "ns": "_",
        "model_id": "amazon.nova-pro-v1:0",
        "region": "us-east-1",
        "from_day": "2026-11-18",
        "source": "aws",
        "price_id": "aws:amazon.nova-pro-v1:0:us-east-1:2026-11-18",
        "p_input": 1,
        "p_output": 2,
        "p_cache_write_1h": 0,
        "p_batch_input": 3,
        "tier_tokens": 200_000,
        "t_output": 4,
        "t_batch_cache_write_1h": 5,
        "v": 3,
        "created_at": 5,
        "updated_at": 6,
        "fetched_at": 7,
    }


def test_an_own_price_by_its_attributes() -> None:
    item = encode_price(OWN)
    assert (item["PK"], item["SK"]) == ("ns1/PRICE#a%2Fb%23c", "#2026-01-02")
    assert {"region", "fetched_at", "tier_tokens", "ttl", "GSI4PK"} & item.keys() == set()


@pytest.mark.parametrize("stored", [AWS, OWN])
def test_prices_come_back_as_they_were(stored: StoredPrice) -> None:
    assert decode_price(encode_price(stored)) == stored
    # One that a newer one has replaced expires some day, and is read until then.
    assert decode_price({**encode_price(stored), "ttl": 9}) == stored


columns = st.dictionaries(st.sampled_from(TokenKind), st.integers(0, PRICE_MAX_USD_MICROS))


@given(columns, columns, columns, columns, st.none() | st.integers(1, 10**12))
def test_no_column_is_taken_for_another(
    standard: Any, batch: Any, long_standard: Any, long_batch: Any, long_from: int | None
) -> None:
    price = Price("p", PriceSource.AWS, standard, batch, long_from, long_standard, long_batch)
    attributes = price_attributes(price)
    assert columns_in({**attributes}) == (standard, batch, long_standard, long_batch)
    by_column = {
        Column(): standard,
        Column(is_batch=True): batch,
        Column(is_long=True): long_standard,
        Column(is_batch=True, is_long=True): long_batch,
    }
    named = {attribute_of(kind, column): usd for column, prices in by_column.items() for kind, usd in prices.items()}
    assert {**named, **({} if long_from is None else {"tier_tokens": long_from})} == attributes


@pytest.mark.parametrize(
    "damage",
    [
        {"kind": "label"},
        {"source": "rumour"},
        {"source": None},
        {"p_input": "1"},
        {"p_batch_input": True},
        {"t_output": None},
        {"tier_tokens": "many"},
        {"from_day": 20261118},
        {"price_id": None},
        {"region": 5},
        {"v": None},
        {"ns": None},
    ],
)
def test_another_shape_is_not_read(damage: dict[str, Any]) -> None:
    with pytest.raises(UnknownShape):
        decode_price({**encode_price(AWS), **damage})


@pytest.mark.parametrize(
    ("region", "expected"),
    [("eu-west-1", "aws:m:eu-west-1:2026-01-02"), (None, "aws:m:-:2026-01-02")],
)
def test_price_ids(region: str | None, expected: str) -> None:
    assert price_id(PriceSource.AWS, "m", region, "2026-01-02") == expected


def test_the_newest_come_first_and_in_one_partition() -> None:
    days = [("2026-01-01", None), ("2026-01-01", "eu-west-1"), ("2026-01-02", None), ("2026-02-01", "a")]
    stored = [replace(OWN, from_day=day, price=replace(OWN.price, region=region)) for day, region in days]
    found = [key_of(encode_price(one)) for one in stored]
    assert found == sorted(found)
    assert len({key.pk for key in found}) == 1
    query = prices_query("ns1", OWN.model_id)
    assert query["ExpressionAttributeValues"] == {":model": found[0].pk}
    assert query["ScanIndexForward"] is False
    assert query["ConsistentRead"] is True
    assert "ExclusiveStartKey" not in query
    assert prices_query("ns1", OWN.model_id, {"PK": "x"})["ExclusiveStartKey"] == {"PK": "x"}


def test_a_put_replaces_what_was_seen_or_nothing() -> None:
    first = price_put(OWN, None)["Put"]
    assert first["ConditionExpression"] == "attribute_not_exists(PK)"
    second = price_put(replace(OWN, version=2), OWN)["Put"]
    assert second["ConditionExpression"] == "v = :version AND created_at = :created"
    assert second["ExpressionAttributeValues"] == {":version": 1, ":created": 5}
    assert second["Item"]["v"] == 2


def test_a_delete_removes_what_was_seen() -> None:
    removal = price_delete(AWS)["Delete"]
    assert removal["Key"] == {"PK": "_/PRICE#amazon.nova-pro-v1:0", "SK": "#2026-11-18#us-east-1"}
    assert removal["ExpressionAttributeValues"] == {":version": 3, ":created": 5}


def test_a_superseded_price_goes_after_four_hundred_days() -> None:
    update = price_superseded(AWS, 1_001)["Update"]
    assert update["UpdateExpression"] == "SET #ttl = :expires, updated_at = :now"
    assert update["ExpressionAttributeNames"] == {"#ttl": "ttl"}
    assert SUPERSEDED_KEPT_S == 400 * 86_400
    assert update["ExpressionAttributeValues"] == {
        ":version": 3,
        ":created": 5,
        ":expires": 2 + SUPERSEDED_KEPT_S,
        ":now": 1_001,
    }
    assert update["ConditionExpression"] == "v = :version AND created_at = :created"


def test_what_the_audit_shows() -> None:
    assert price_image(OWN) == {"model_id": "a/b#c", "from_day": "2026-01-02", "p_input": 9}
    shown = price_image(AWS)
    assert (shown["region"], shown["p_output"], shown["tier_tokens"]) == ("us-east-1", 2, 200_000)
