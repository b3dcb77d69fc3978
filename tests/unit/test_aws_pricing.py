"""What AWS's price list says, product by product; how it is asked; and which models its names are."""

import json
from dataclasses import replace
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError
from botocore.stub import Stubber
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.errors import Unavailable
from sluice.core.model_ids import ALIASES, ids_by_slug, served_anywhere, slug, without_geography
from sluice.core.price_list import SERVICE_CODES, Column, Rate, Skipped, believed, read_product
from sluice.core.pricing import PRICE_MAX_USD_MICROS, Price, PriceSource, TokenKind
from sluice.repository.aws_pricing import AwsPriceList, PlaceLost, PricePage
from sluice.services.shipped_prices import ShippedPrices
from tests.price_lists import changed, native, nova_pro, product, sold, sonnet_4_5

INPUT, OUTPUT = TokenKind.INPUT, TokenKind.OUTPUT
READ, WRITE, WRITE_1H = TokenKind.CACHE_READ, TokenKind.CACHE_WRITE, TokenKind.CACHE_WRITE_1H
USUAL, BATCH = Column(), Column(is_batch=True)
LONG, LONG_BATCH = Column(is_long=True), Column(is_batch=True, is_long=True)

# What follows the place in a usage type of AmazonBedrock.
NATIVE = [
    ("NovaPro-input-tokens", INPUT, USUAL, False),
    ("NovaPro-output-tokens", OUTPUT, USUAL, False),
    ("NovaPro-cache-read-input-token-count", READ, USUAL, False),
    ("NovaPro-cache-write-input-token-count", WRITE, USUAL, False),
    ("Claude4Sonnet-cache-write-1h-input-token-count", WRITE_1H, USUAL, False),
    ("NovaPro-input-tokens-batch", INPUT, BATCH, False),
    ("Nova2.0Lite-output-tokens-cross-region-global", OUTPUT, USUAL, True),
    ("NovaPro-input-tokens-cross-region-geo", INPUT, USUAL, False),
    ("Nova2.0Lite-input-tokens-cross-region-global-batch", INPUT, BATCH, True),
    ("Claude4Sonnet-input-tokens-long-context", INPUT, LONG, False),
    ("Claude4Sonnet-output-tokens-long-context-cross-region-global", OUTPUT, LONG, True),
    ("Claude4Sonnet-cache-read-input-token-count-long-context-cross-region-global", READ, LONG, True),
    ("Llama3-1-405B-output-tokens-batch", OUTPUT, BATCH, False),
    ("NovaSonic2.0-text-input-tokens", INPUT, USUAL, False),
    ("NovaSonic2.0-text-output-tokens", OUTPUT, USUAL, False),
    ("Qwen3-32B-input-tokens-standard", INPUT, USUAL, False),
]
# What follows the places in one of AmazonBedrockFoundationModels: as it was written first, and as it is now.
SOLD = [
    ("InputTokenCount", INPUT, USUAL, False),
    ("OutputTokenCount", OUTPUT, USUAL, False),
    ("CacheReadInputTokenCount", READ, USUAL, False),
    ("CacheWriteInputTokenCount", WRITE, USUAL, False),
    ("CacheWrite1hInputTokenCount", WRITE_1H, USUAL, False),
    ("InputTokenCount_Global", INPUT, USUAL, True),
    ("OutputTokenCount_Geo", OUTPUT, USUAL, False),
    ("InputTokenCount_Batch", INPUT, BATCH, False),
    ("OutputTokenCount_Global_Batch", OUTPUT, BATCH, True),
    ("InputTokenCount_LCtx", INPUT, LONG, False),
    ("CacheWrite1hInputTokenCount_LCtx_Global", WRITE_1H, LONG, True),
    ("input_tokens_standard", INPUT, USUAL, False),
    ("output_tokens_global_standard", OUTPUT, USUAL, True),
    ("cache_read_tokens_standard", READ, USUAL, False),
    ("cached_input_tokens_standard", READ, USUAL, False),
    ("cache_write_tokens_global_standard", WRITE, USUAL, True),
    ("cache_write_tokens_1h_standard", WRITE_1H, USUAL, False),
    ("cache_write_tokens_1h_long_ctx_global_standard", WRITE_1H, LONG, True),
    ("input_tokens_long_ctx_standard", INPUT, LONG, False),
    ("input_tokens_long_ctx_global_batch", INPUT, LONG_BATCH, True),
    ("output_tokens_batch", OUTPUT, BATCH, False),
]


@pytest.mark.parametrize(("usage", "kind", "column", "anywhere"), NATIVE, ids=[case[0] for case in NATIVE])
def test_usage_types_of_bedrock(usage: str, kind: TokenKind, column: Column, anywhere: bool) -> None:
    assert read_product(native("Model X", usage, "0.0008000000")) == Rate(
        "Model X", "us-east-1", kind, column, anywhere, 800_000
    )


@pytest.mark.parametrize(("usage", "kind", "column", "anywhere"), SOLD, ids=[case[0] for case in SOLD])
def test_usage_types_of_the_marketplace(usage: str, kind: TokenKind, column: Column, anywhere: bool) -> None:
    assert read_product(sold("Model X", usage, "3.3000000000", "eu-west-1")) == Rate(
        "Model X", "eu-west-1", kind, column, anywhere, 3_300_000
    )


@pytest.mark.parametrize(
    "usage",
    [
        "NovaPro-input-tokens-flex",
        "NovaPro-output-tokens-priority",
        "Nova2.0Lite-input-tokens-priority-cross-region-global",
        "NovaPro-input-tokens-latency-optimized",
        "NovaPro-output-tokens-custom-model",
        "NovaPro-cache-read-input-token-count-custom-model",
        "Nova2.0Omni-input-audio-token-count",
        "Nova2.0Omni-input-image-token-count",
        "NovaSonic2.0-speech-input-tokens",
        "NovaCanvas-T2I-1024-Standard",
        "NovaReel-T2V-HDRes",
        "Nova2.0Lite-Customization-Training",
        "Nova2.0Lite-ProvisionedThroughput-NoCommit-ModelUnits",
        "Guardrail-ContentPolicyUnitsConsumed",
        "moonshotai.kimi-k3-mantle-input-tokens-standard",
        "deepseek.v3.2-mantle-output-tokens-flex",
        "NovaPro-input-tokens-of-tomorrow",
        "input-tokens",
    ],
)
def test_what_else_bedrock_sells_is_left_alone(usage: str) -> None:
    assert read_product(native("Model X", usage, "0.0008000000")) is Skipped.OTHER


@pytest.mark.parametrize(
    "usage",
    [
        "Reserved_1Month_InputTPM_Geo",
        "ProvisionedThroughput_NoCommit_ModelUnits_Usage",
        "InputImageCount",
        "InputTokenCount_LatencyOptimized",
        "MillionBatchInputTokens",
        "search_units",
        "created_image",
        "cache_write_tokens_30m_standard",
        "input_tokens_flex",
        "output_tokens_global_priority",
        "input_tokens_1h_standard",
    ],
)
def test_what_else_the_marketplace_sells_is_left_alone(usage: str) -> None:
    assert read_product(sold("Model X", usage, "3.3000000000")) is Skipped.OTHER


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"inferenceType": "Input tokens batch"}, BATCH),
        ({"service_tier": "batch"}, BATCH),
        ({"feature": "Batch Inference"}, BATCH),
        ({"inferenceType": "Input tokens long context"}, LONG),
        ({"service_tier": "standard", "inferenceType": "Input tokens"}, USUAL),
        ({"service_tier": "flex"}, None),
        ({"inferenceType": "Input tokens priority"}, None),
        ({"inferenceType": "Speech understanding input tokens"}, None),
        ({"feature": "Model Customization"}, None),
        ({"feature": "Provisioned Throughput"}, None),
        ({"model": "Model X Latency Optimized"}, None),
    ],
)
def test_what_only_the_attributes_say(attributes: dict[str, str], expected: Column | None) -> None:
    found = read_product(native("Model X", "X-input-tokens", "0.0008000000", **attributes))
    if expected is None:
        assert found is Skipped.OTHER
    else:
        assert isinstance(found, Rate)
        assert found.column == expected


def test_global_may_stand_in_the_attributes_alone() -> None:
    found = read_product(native("Model X", "X-input-tokens", "0.0008", inferenceType="Input tokens global"))
    assert isinstance(found, Rate)
    assert found.served_anywhere


def test_a_model_without_a_name_is_named_by_its_usage_type() -> None:
    found = read_product(changed(native("", "deepseek.v3.2-input-tokens", "0.0008"), ["product", "sku"], "x"))
    assert isinstance(found, Rate)
    assert found.model == "deepseek.v3.2"


@pytest.mark.parametrize(
    ("unit", "usd", "expected"),
    [
        ("1K tokens", "0.0008000000", 800_000),
        ("1M tokens", "3.3000000000", 3_300_000),
        ("1k Tokens", "0.0000350000", 35_000),
        ("1K tokens", "0.0000087500", 8_750),
        # Not whole: up.
        ("1K tokens", "0.0000000001", 1),
        ("1K tokens", "0.0000010001", 1_001),
        ("1M tokens", "0.0000011", 2),
        ("1M tokens", "999999.999999", 999_999_999_999),
        ("1M tokens", "0.123456789012", 123_457),
        ("1K tokens", "1000", 10**12),
    ],
)
def test_prices_are_exact_and_round_up(unit: str, usd: str, expected: int) -> None:
    attributes = {"usagetype": "USE1-X-input-tokens", "model": "Model X"}
    found = read_product(product(attributes, unit, usd))
    assert isinstance(found, Rate)
    assert found.usd_micros_per_1m == expected


RATE = ("terms", "OnDemand", "*", "priceDimensions", "*")
GOOD = native("Model X", "X-input-tokens", "0.0008000000")
OFFER = next(iter(json.loads(GOOD)["terms"]["OnDemand"].values()))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((*RATE, "unit"), "Hrs"),
        ((*RATE, "unit"), "1M TPM Hour"),
        ((*RATE, "unit"), "Units"),
        ((*RATE, "unit"), None),
        ((*RATE, "unit"), 5),
        ((*RATE, "pricePerUnit"), {"CNY": "0.0008"}),
        ((*RATE, "pricePerUnit"), "0.0008"),
        ((*RATE, "pricePerUnit"), {"USD": 0.0008}),
        ((*RATE, "pricePerUnit"), {"USD": "-0.0008"}),
        ((*RATE, "pricePerUnit"), {"USD": "NaN"}),
        ((*RATE, "pricePerUnit"), {"USD": "1e-3"}),
        ((*RATE, "pricePerUnit"), {"USD": ""}),
        ((*RATE, "pricePerUnit"), {"USD": "0.0000000000"}),
        ((*RATE, "pricePerUnit"), {"USD": "1000.0001"}),
        ((*RATE, "pricePerUnit"), {"USD": "9" * 400}),
        ((*RATE, "pricePerUnit"), {"USD": "\u0663.5"}),
        (RATE[:-1], {}),
        (RATE[:-1], {"a": OFFER["priceDimensions"], "b": {}}),
        (("terms", "OnDemand"), {}),
        (("terms", "OnDemand"), {"a": OFFER, "b": OFFER}),
        (("terms", "OnDemand"), [OFFER]),
        (("terms",), None),
        (("terms",), {"Reserved": {}}),
        (("product", "attributes", "regionCode"), None),
        (("product", "attributes", "regionCode"), ""),
        (("product", "attributes", "usagetype"), None),
        (("product", "attributes"), None),
        (("product", "attributes"), []),
        (("product",), None),
        (("product",), "x"),
    ],
)
def test_what_is_not_as_documented_is_not_believed(path: tuple[str, ...], value: Any) -> None:
    assert isinstance(read_product(GOOD), Rate)
    assert read_product(changed(GOOD, path, value)) is Skipped.UNREADABLE


def test_several_rates_of_one_offer_are_a_scale_that_no_single_call_has() -> None:
    rates = OFFER["priceDimensions"]
    rate = next(iter(rates.values()))
    assert read_product(changed(GOOD, RATE[:-1], {**rates, "more": rate})) is Skipped.UNREADABLE


@pytest.mark.parametrize("text", ["", "null", "[]", "5", '"x"', "{", "[" * 100_000, "1" * 5_000, "{}"])
def test_what_is_no_product(text: str) -> None:
    assert read_product(text) is Skipped.UNREADABLE


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["product", "attributes", "terms", "OnDemand", "priceDimensions", "pricePerUnit", "usagetype", "x"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_no_document_makes_it_raise(document: Any) -> None:
    assert isinstance(read_product(json.dumps(document)), Skipped)


@given(st.integers(0, PRICE_MAX_USD_MICROS))
def test_every_price_that_can_be_comes_out_as_it_was(micros: int) -> None:
    usd = f"{micros // 10**6}.{micros % 10**6:06d}"
    found = read_product(sold("Model X", "CacheWriteInputTokenCount", usd))
    assert isinstance(found, Rate) == (len(usd) <= 13)
    assert not isinstance(found, Rate) or found.usd_micros_per_1m == micros


def test_writing_to_a_cache_may_be_free_and_nothing_else() -> None:
    for usage, kind, _, _ in SOLD:
        found = read_product(sold("Model X", usage, "0.0000000000"))
        assert isinstance(found, Rate) == (kind in {WRITE, WRITE_1H})


def test_a_unit_that_says_nothing_needs_words_that_do() -> None:
    said = "AWS Marketplace software usage|us-east-1|Million Input Tokens Regional CRIS"
    found = read_product(sold("Model X", "InputTokenCount", "3.3", unit="Units", said=said))
    assert isinstance(found, Rate)
    assert found.usd_micros_per_1m == 3_300_000
    for other in ("", "Million Images", "Tokens", "Input Tokens by the Million"):
        assert read_product(sold("Model X", "InputTokenCount", "3.3", unit="Units", said=other)) is Skipped.UNREADABLE


def test_whole_models_are_read() -> None:
    rates = [read_product(text) for text in (*nova_pro(), *sonnet_4_5())]
    assert all(isinstance(rate, Rate) for rate in rates)
    assert len(rates) == 6 + 24


def listed(**changes: Any) -> Price:
    price = Price("aws:x:us-east-1:2026-11-18", PriceSource.AWS, {INPUT: 30, OUTPUT: 150}, region="us-east-1")
    return replace(price, **changes)


def known(**changes: Any) -> Price:
    return replace(listed(**changes), price_id="shipped:x", source=PriceSource.SHIPPED)


@pytest.mark.parametrize(
    ("said", "shipped"),
    [
        (listed(), None),
        (listed(), known()),
        (listed(batch={INPUT: 15}), known()),
        (listed(standard={INPUT: 30, OUTPUT: 150, READ: 3}), known()),
        (listed(standard={INPUT: 1, OUTPUT: 2}), known()),
    ],
)
def test_what_says_enough_is_believed(said: Price, shipped: Price | None) -> None:
    assert believed(said, shipped) == said


@pytest.mark.parametrize(
    ("said", "shipped"),
    [
        (listed(standard={INPUT: 30}), None),
        (listed(standard={OUTPUT: 30}), None),
        (listed(standard={}), None),
        (listed(), known(standard={INPUT: 30, OUTPUT: 150, READ: 3})),
        (listed(), known(batch={INPUT: 15})),
        # It has become dearer for long calls, and nobody knows from when on a call is long.
        (listed(long_standard={INPUT: 60}), None),
        (listed(long_standard={INPUT: 60}), known()),
        (listed(batch={INPUT: 15}, long_batch={INPUT: 30}), known()),
        # Else long calls would be priced as short ones.
        (listed(), known(long_from_tokens=200, long_standard={INPUT: 60})),
        (listed(long_standard={INPUT: 60}), known(long_from_tokens=200, long_standard={INPUT: 60, OUTPUT: 1})),
        (listed(long_standard={INPUT: 60}), known(long_from_tokens=200, long_batch={INPUT: 60})),
    ],
)
def test_what_says_less_than_is_known_is_not_believed(said: Price, shipped: Price | None) -> None:
    assert believed(said, shipped) is None


def test_the_length_of_long_calls_comes_from_what_ships() -> None:
    said = listed(long_standard={INPUT: 60, OUTPUT: 200}, long_batch={INPUT: 30})
    shipped = known(long_from_tokens=200_000, long_standard={INPUT: 1})
    assert believed(said, shipped) == replace(said, long_from_tokens=200_000)


def test_long_calls_that_cost_the_same_are_no_column() -> None:
    said = listed(batch={INPUT: 15}, long_standard={INPUT: 30, OUTPUT: 150}, long_batch={INPUT: 15})
    assert believed(said, known()) == replace(said, long_standard={}, long_batch={})


IDS = ids_by_slug(ShippedPrices().bedrock_ids())


@pytest.mark.parametrize(
    ("name", "model_id"),
    [
        ("Claude Sonnet 4.5", "anthropic.claude-sonnet-4-5-20250929-v1:0"),
        ("Claude 3.5 Sonnet", "anthropic.claude-3-5-sonnet-20240620-v1:0"),
        ("Claude 3.5 Sonnet v2", "anthropic.claude-3-5-sonnet-20241022-v2:0"),
        ("Claude 3.7 Sonnet", "anthropic.claude-3-7-sonnet-20250219-v1:0"),
        ("Claude Haiku 4.5", "anthropic.claude-haiku-4-5-20251001-v1:0"),
        ("Claude Opus 4", "anthropic.claude-opus-4-20250514-v1:0"),
        ("Claude Opus 4.1", "anthropic.claude-opus-4-1-20250805-v1:0"),
        ("Claude Opus 4.6", "anthropic.claude-opus-4-6-v1"),
        ("OpenAI GPT-6 Astra", "openai.gpt-6-astra"),
        ("gpt-oss-120b", "openai.gpt-oss-120b-1:0"),
        ("Nova Pro", "amazon.nova-pro-v1:0"),
        ("Nova 2.0 Lite", "amazon.nova-2-lite-v1:0"),
        ("Llama 3.3 70B", "meta.llama3-3-70b-instruct-v1:0"),
        ("R1", "deepseek.r1-v1:0"),
        ("DeepSeek v3.2", "deepseek.v3.2"),
        ("Command R+", "cohere.command-r-plus-v1:0"),
        ("Command R", "cohere.command-r-v1:0"),
        ("Qwen3 32B", "qwen.qwen3-32b-v1:0"),
    ],
)
def test_names_of_the_list(name: str, model_id: str) -> None:
    assert IDS[slug(name)] == model_id


@pytest.mark.parametrize("name", ["Claude Instant (100K)", "Claude", "Sonnet", "Nova Pro Latency Optimized", "", "?"])
def test_names_that_are_no_model_we_know(name: str) -> None:
    assert slug(name) not in IDS


def test_a_name_that_could_be_two_models_is_none() -> None:
    found = ids_by_slug(
        ["a.x-big-v1:0", "a.x-big-20250101-v1:0", "a.x-small", "b.x-small", "a.x-tiny", "a.x-tiny-v1:0"]
    )
    assert "x-big" not in found
    assert "x-small" not in found
    assert (found["a-x-small"], found["b-x-small"]) == ("a.x-small", "b.x-small")
    assert found["x-tiny"] == found["a-x-tiny"] == "a.x-tiny-v1:0"
    assert found.items() >= ALIASES.items()


def test_ids_that_are_no_models_of_bedrock_have_no_name() -> None:
    assert ids_by_slug(["gpt-x", "us.a.x-big-v1:0", "a.x-big@20250101", "a.big-v1"]) == ALIASES


def test_geographies() -> None:
    assert without_geography("us.anthropic.claude-x-v1:0") == "anthropic.claude-x-v1:0"
    assert without_geography("us-gov.amazon.nova-pro-v1:0") == "amazon.nova-pro-v1:0"
    assert without_geography(served_anywhere("a.b")) == "a.b"
    for model_id in ("anthropic.claude-x", "deepseek.v3.2", "gpt-x", "mars.a.b", ""):
        assert without_geography(model_id) == model_id


class Asked:
    """A client of boto3 that answers as it is told, and how often one was made."""

    def __init__(self) -> None:
        self.client = boto3.client(
            "pricing", region_name="us-east-1", aws_access_key_id="testing", aws_secret_access_key="testing"
        )
        self.stubber = Stubber(self.client)
        self.made = 0
        self.prices = AwsPriceList(self.make, lambda: ["eu-west-1"])

    def make(self) -> Any:
        self.made += 1
        return self.client


@pytest.fixture
def asked() -> Asked:
    return Asked()


def expected(region: str, **more: str) -> dict[str, Any]:
    return {
        "ServiceCode": "AmazonBedrock",
        "Filters": [{"Type": "TERM_MATCH", "Field": "regionCode", "Value": region}],
        "FormatVersion": "aws_v1",
        "MaxResults": 100,
        **more,
    }


def test_pages_are_asked_for_one_by_one(asked: Asked) -> None:
    asked.stubber.add_response(
        "get_products", {"FormatVersion": "aws_v1", "PriceList": ["a", "b"], "NextToken": "t"}, expected("eu-west-1")
    )
    asked.stubber.add_response(
        "get_products", {"FormatVersion": "aws_v1", "PriceList": []}, expected("eu-west-1", NextToken="t")
    )
    with asked.stubber:
        assert asked.made == 0
        assert asked.prices.page(SERVICE_CODES[0], "eu-west-1", None) == PricePage(("a", "b"), "t")
        assert asked.prices.page(SERVICE_CODES[0], "eu-west-1", "t") == PricePage((), None)
    asked.stubber.assert_no_pending_responses()
    assert asked.made == 1
    assert asked.prices.regions() == ["eu-west-1"]


def test_an_answer_without_a_list_is_an_empty_page(asked: Asked) -> None:
    asked.stubber.add_response("get_products", {}, expected("eu-west-1"))
    with asked.stubber:
        assert asked.prices.page(SERVICE_CODES[0], "eu-west-1", None) == PricePage((), None)


@pytest.mark.parametrize(
    ("code", "status", "raised"),
    [
        ("ExpiredNextTokenException", 400, PlaceLost),
        ("InvalidNextTokenException", 400, PlaceLost),
        ("ThrottlingException", 400, Unavailable),
        ("InternalErrorException", 400, Unavailable),
        ("ServiceUnavailable", 503, Unavailable),
        ("AccessDeniedException", 400, ClientError),
        ("InvalidParameterException", 400, ClientError),
    ],
)
def test_what_the_list_refuses(asked: Asked, code: str, status: int, raised: type[Exception]) -> None:
    """What passes is asked again; a missing right fails the job of the day."""
    asked.stubber.add_client_error("get_products", code, http_status_code=status)
    with asked.stubber, pytest.raises(raised):
        asked.prices.page(SERVICE_CODES[0], "eu-west-1", "t")


class Broken:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def get_products(self, **_request: Any) -> Any:
        raise self.error


@pytest.mark.parametrize(
    "error", [EndpointConnectionError(endpoint_url="https://p"), ReadTimeoutError(endpoint_url="https://p")]
)
def test_silence_passes(error: Exception) -> None:
    broken = AwsPriceList(lambda: Broken(error), list)
    with pytest.raises(Unavailable):
        broken.page(SERVICE_CODES[0], "eu-west-1", None)
