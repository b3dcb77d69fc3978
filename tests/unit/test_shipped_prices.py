"""The prices that ship: the money vectors by the real file, which ids are found, and files that are refused."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sluice.core.model_ids import GEOGRAPHIES
from sluice.core.pricing import (
    PRICE_MAX_USD_MICROS,
    Price,
    PriceSource,
    PriceUnknown,
    Pricing,
    TokenKind,
    Tokens,
    cost_usd_micros,
    estimate_usd_micros,
)
from sluice.services import shipped_prices
from sluice.services.shipped_prices import BookInvalid, ShippedPrices, decode, shipped

SONNET = "anthropic.claude-sonnet-4-5-20250929-v1:0"
INPUT, OUTPUT = TokenKind.INPUT, TokenKind.OUTPUT
READ, WRITE = TokenKind.CACHE_READ, TokenKind.CACHE_WRITE
PRICES = ShippedPrices()


def price(model_id: str, region: str | None = None) -> Price:
    found = PRICES.find(model_id, region)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("model_id", "tokens", "pricing", "expected"),
    [
        ("amazon.nova-pro-v1:0", {INPUT: 1500, OUTPUT: 800}, Pricing.STANDARD, 3_760),
        ("us.amazon.nova-2-lite-v1:0", {INPUT: 10_000, OUTPUT: 2000}, Pricing.STANDARD, 8_800),
        ("amazon.nova-micro-v1:0", {INPUT: 5000, OUTPUT: 1000}, Pricing.STANDARD, 315),
        ("amazon.nova-micro-v1:0", {INPUT: 20, OUTPUT: 5}, Pricing.STANDARD, 1),
        ("amazon.nova-micro-v1:0", {INPUT: 10}, Pricing.STANDARD, 0),
        ("amazon.nova-micro-v1:0", {INPUT: 15}, Pricing.STANDARD, 1),
        (f"us.{SONNET}", {INPUT: 1000, OUTPUT: 500, READ: 20_000, WRITE: 2000}, Pricing.STANDARD, 26_400),
        (f"global.{SONNET}", {INPUT: 10_000, OUTPUT: 1000}, Pricing.BATCH, 22_500),
        (f"global.{SONNET}", {INPUT: 250_000, OUTPUT: 1000}, Pricing.STANDARD, 1_522_500),
        # What is read from the cache counts towards the length as well; at the threshold a call is not long yet.
        (f"global.{SONNET}", {INPUT: 100_000, READ: 100_000, OUTPUT: 1000}, Pricing.STANDARD, 345_000),
        (f"global.{SONNET}", {INPUT: 100_000, READ: 100_001, OUTPUT: 1000}, Pricing.STANDARD, 682_501),
    ],
)
def test_what_calls_cost(model_id: str, tokens: Tokens, pricing: Pricing, expected: int) -> None:
    assert cost_usd_micros(price(model_id), tokens, pricing) == expected


def test_an_estimate_rounds_up() -> None:
    assert estimate_usd_micros(price("amazon.nova-micro-v1:0"), {INPUT: 20, OUTPUT: 5}) == 2


def test_an_embedding_puts_out_nothing_that_costs() -> None:
    assert cost_usd_micros(price("amazon.titan-embed-text-v2:0"), {INPUT: 1_000_000, OUTPUT: 7}) == 20_000


def test_what_the_file_does_not_price_is_unknown_and_not_free() -> None:
    with pytest.raises(PriceUnknown):
        cost_usd_micros(price("amazon.nova-pro-v1:0"), {INPUT: 1, TokenKind.CACHE_WRITE_1H: 1})
    with pytest.raises(PriceUnknown):
        cost_usd_micros(price("us.amazon.nova-pro-v1:0"), {READ: 1}, Pricing.BATCH)


def test_a_price_says_where_it_is_from() -> None:
    found = price(f"us.{SONNET}", "us-east-1")
    assert found.source is PriceSource.SHIPPED
    assert found.price_id == f"shipped:us.{SONNET}:-:{shipped().version}"
    assert found.region is None


def test_a_region_may_have_a_price_of_its_own() -> None:
    there = price(SONNET, "us-gov-west-1")
    assert there.standard[INPUT] == 3_600_000
    assert there.region == "us-gov-west-1"
    assert there.price_id == f"shipped:{SONNET}:us-gov-west-1:{shipped().version}"
    # It stands alone.
    assert there.batch == {}
    assert there.long_from_tokens is None
    assert price(SONNET, "eu-west-1") == price(SONNET) != there


def test_an_id_is_found_as_it_is_before_its_geography_is_taken_off() -> None:
    assert price(f"eu.{SONNET}").standard[INPUT] == 3_300_000
    assert price(SONNET).standard[INPUT] == 3_000_000
    # Also where the shorter one has a price for the region.
    assert price(f"us-gov.{SONNET}", "us-gov-west-1").price_id.startswith(f"shipped:us-gov.{SONNET}:-:")


@pytest.mark.parametrize("geography", ["ca", "us-gov", "in", "au", "global"])
def test_a_geography_that_has_no_price_of_its_own_is_taken_off(geography: str) -> None:
    assert price(f"{geography}.amazon.nova-lite-v1:0") == price("amazon.nova-lite-v1:0")


def test_with_the_geography_off_the_region_still_counts() -> None:
    found = price("us-gov.amazon.nova-lite-v1:0", "us-gov-west-1")
    assert found.standard[INPUT] == 72_000
    assert found.price_id == f"shipped:amazon.nova-lite-v1:0:us-gov-west-1:{shipped().version}"


@pytest.mark.parametrize(
    "model_id",
    [
        "",
        ".",
        "us.",
        "us.gpt-unheard-of",
        "amazon.nova-lite",
        "nova-lite-v1:0",
        "xamazon.nova-lite-v1:0",
        "amazon.nova-lite-v1:0x",
        "US.amazon.nova-lite-v1:0",
        "Amazon.Nova-Lite-v1:0",
        "eu.us.amazon.nova-lite-v1:0x",
        "eu.us.us.amazon.nova-lite-v1:0",
        "mars.amazon.nova-lite-v1:0",
        "bedrock/amazon.nova-lite-v1:0",
    ],
)
def test_an_id_that_is_merely_alike_is_unknown(model_id: str) -> None:
    assert PRICES.find(model_id, None) is None
    assert PRICES.find(model_id, "us-east-1") is None


def test_every_geography_of_the_file_is_known() -> None:
    bedrock = {model_id for model_id, model in shipped().models.items() if model["provider"] == "bedrock"}
    split = (model_id.partition(".") for model_id in bedrock)
    seen = {head for head, _, rest in split if "." in rest and rest in bedrock}
    assert seen <= GEOGRAPHIES
    assert {"us", "eu", "apac", "global", "us-gov"} <= seen


def test_every_price_of_the_file_can_be_taken() -> None:
    for model_id, model in shipped().models.items():
        for region in (None, *model.get("regions", ())):
            found = price(model_id, region)
            assert found.region == region
            assert found.standard[INPUT] > 0
            # Nothing but the output of an embedding is free.
            columns = (found.standard, found.batch, found.long_standard, found.long_batch)
            free = {kind for column in columns for kind, usd_micros in column.items() if usd_micros == 0}
            assert free <= {OUTPUT}
            assert not free or "embed" in model_id


@pytest.fixture
def unread() -> Iterator[None]:
    shipped_prices._read.cache_clear()
    yield
    shipped_prices._read.cache_clear()


@pytest.mark.usefixtures("unread")
def test_the_file_is_read_once_and_only_when_a_price_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []

    def counted(text: str) -> shipped_prices.Book:
        reads.append(len(text))
        return decode(text)

    monkeypatch.setattr(shipped_prices, "decode", counted)
    every = [ShippedPrices() for _ in range(8)]
    assert reads == []
    with ThreadPoolExecutor(len(every)) as pool:
        found = list(pool.map(lambda prices: prices.find(SONNET, None), every))
    assert len(reads) == 1
    assert found == [price(SONNET)] * len(every)


def document(**changes: Any) -> dict[str, Any]:
    model = {"provider": "bedrock", "standard": {"input": 1, "output": 2}}
    return {"format": 1, "version": "1.2.3", "sources": {}, "models": {"m": model}, **changes}


def of_model(**changes: Any) -> dict[str, Any]:
    return document(models={"m": {"provider": "bedrock", "standard": {"input": 1, "output": 2}, **changes}})


def test_a_file_that_is_as_it_should_be() -> None:
    text = json.dumps(
        of_model(long_from_tokens=5, long_standard={"input": 9}, regions={"r": {"standard": {"input": 3}}})
    )
    prices = ShippedPrices(lambda: decode(text))
    found = prices.find("eu.m", "s")
    assert found == Price(
        "shipped:m:-:1.2.3",
        PriceSource.SHIPPED,
        {INPUT: 1, OUTPUT: 2},
        long_from_tokens=5,
        long_standard={INPUT: 9},
    )
    assert prices.find("m", "r") == Price("shipped:m:r:1.2.3", PriceSource.SHIPPED, {INPUT: 3}, region="r")


@pytest.mark.parametrize(
    "broken",
    [
        [],
        {},
        document(format=2),
        document(format="1"),
        document(version=""),
        document(version=1),
        document(models=[]),
        document(models={"m": None}),
        document(models={"m": {}}),
        document(models={"m": {"standard": {"input": 1}}}),
        of_model(standard={}),
        of_model(standard={"output": 1}),
        of_model(standard={"input": 1.5}),
        of_model(standard={"input": True}),
        of_model(standard={"input": "1"}),
        of_model(standard={"input": -1}),
        of_model(standard={"input": None}),
        of_model(standard={"input": PRICE_MAX_USD_MICROS + 1}),
        of_model(standard={"input": 1, "thoughts": 1}),
        of_model(standard=[]),
        of_model(batch=None),
        of_model(priority={"input": 1}),
        of_model(long_standard={"input": 1}),
        of_model(long_from_tokens=1),
        of_model(long_from_tokens=0, long_standard={"input": 1}),
        of_model(long_from_tokens=1.0, long_standard={"input": 1}),
        of_model(long_from_tokens=True, long_standard={"input": 1}),
        of_model(regions=[]),
        of_model(regions={"r": None}),
        of_model(regions={"r": {}}),
        of_model(regions={"r": {"provider": "bedrock", "standard": {"input": 1}}}),
        of_model(regions={"r": {"standard": {"input": 1}, "regions": {}}}),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_refused(broken: Any) -> None:
    with pytest.raises(BookInvalid):
        decode(json.dumps(broken))


@pytest.mark.parametrize("text", ["", "{", "prices"])
def test_a_file_that_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(BookInvalid, match="no JSON"):
        decode(text)


def test_a_refused_file_prices_nothing() -> None:
    broken: Callable[[], shipped_prices.Book] = lambda: decode("{}")  # noqa: E731
    with pytest.raises(BookInvalid):
        ShippedPrices(broken).find("m", None)


def test_bedrocks_ids_are_those_that_aws_sells() -> None:
    found = set(PRICES.bedrock_ids())
    assert {SONNET, f"us.{SONNET}", "amazon.nova-pro-v1:0"} <= found
    assert not any(shipped().models[model_id]["provider"] != "bedrock" for model_id in found)
    assert len(found) < len(shipped().models)
