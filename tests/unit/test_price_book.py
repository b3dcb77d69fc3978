"""The pure parts of `make price-book`: what an entry is about and costs, and which of several is taken."""

import json
from decimal import Decimal
from typing import Any

import pytest

from sluice.core.pricing import TokenKind
from sluice.services.shipped_prices import FORMAT, ShippedPrices, decode
from tools.price_book import book
from tools.price_book.book import Clash, Findings, Model, Resold, build
from tools.price_book.entries import LeftOut, Mode, Provider, Subject, provider_of, subject_of
from tools.price_book.rates import Rates, dearest, read

INPUT, OUTPUT = TokenKind.INPUT, TokenKind.OUTPUT
READ, WRITE, WRITE_1H = TokenKind.CACHE_READ, TokenKind.CACHE_WRITE, TokenKind.CACHE_WRITE_1H


def entry(provider: str = "bedrock", mode: str | None = "chat", **prices: Any) -> dict[str, Any]:
    costs = {"input_cost_per_token": "1e-06", "output_cost_per_token": "2e-06", **prices}
    numbers = {name: Decimal(cost) if isinstance(cost, str) else cost for name, cost in costs.items()}
    return {"litellm_provider": provider, "mode": mode, **numbers}


def rates(text: str, mode: Mode = Mode.CHAT) -> Rates:
    return read(json.loads(text, parse_float=Decimal), mode).rates


def built(**table: dict[str, Any]) -> tuple[dict[str, Model], Findings]:
    return build(table)


def test_every_field_has_its_place() -> None:
    found = rates("""{
        "input_cost_per_token": 3e-06, "output_cost_per_token": 1.5e-05,
        "cache_read_input_token_cost": 3e-07, "cache_creation_input_token_cost": 3.75e-06,
        "cache_creation_input_token_cost_above_1hr": 6e-06,
        "input_cost_per_token_batches": 1.5e-06, "output_cost_per_token_batches": 7.5e-06,
        "cache_read_input_token_cost_batches": 1.5e-07, "cache_creation_input_token_cost_batches": 1.875e-06,
        "cache_creation_input_token_cost_above_1hr_batches": 2.9e-06,
        "input_cost_per_token_above_200k_tokens": 6e-06, "output_cost_per_token_above_200k_tokens": 2.25e-05,
        "cache_read_input_token_cost_above_200k_tokens": 6e-07,
        "cache_creation_input_token_cost_above_200k_tokens": 7.5e-06,
        "cache_creation_input_token_cost_above_1hr_above_200k_tokens": 1.2e-05,
        "input_cost_per_token_above_200k_tokens_batches": 2.8e-06,
        "output_cost_per_token_above_200k_tokens_batches": 1.1e-05,
        "cache_read_input_token_cost_above_200k_tokens_batches": 2.7e-07,
        "cache_creation_input_token_cost_above_200k_tokens_batches": 3.7e-06,
        "cache_creation_input_token_cost_above_1hr_above_200k_tokens_batches": 5.9e-06
    }""")
    assert found == Rates(
        standard={INPUT: 3_000_000, OUTPUT: 15_000_000, READ: 300_000, WRITE: 3_750_000, WRITE_1H: 6_000_000},
        batch={INPUT: 1_500_000, OUTPUT: 7_500_000, READ: 150_000, WRITE: 1_875_000, WRITE_1H: 2_900_000},
        long_from_tokens=200_000,
        long_standard={INPUT: 6_000_000, OUTPUT: 22_500_000, READ: 600_000, WRITE: 7_500_000, WRITE_1H: 12_000_000},
        long_batch={INPUT: 2_800_000, OUTPUT: 11_000_000, READ: 270_000, WRITE: 3_700_000, WRITE_1H: 5_900_000},
    )


@pytest.mark.parametrize("thousands", [32, 100, 128, 200, 256, 272, 512])
def test_every_threshold_is_understood(thousands: int) -> None:
    found = read(entry(**{f"input_cost_per_token_above_{thousands}k_tokens": "5e-06"}), Mode.CHAT).rates
    assert found.long_from_tokens == thousands * 1000
    assert found.long_standard == {INPUT: 5_000_000}


def test_two_thresholds_are_more_than_a_price_can_have() -> None:
    two = entry(input_cost_per_token_above_32k_tokens="5e-06", input_cost_per_token_above_128k_tokens="9e-06")
    with pytest.raises(LeftOut, match="more than one long-context tier"):
        read(two, Mode.CHAT)


@pytest.mark.parametrize(
    "name",
    [
        "input_cost_per_token_priority",
        "input_cost_per_token_flex",
        "input_cost_per_token_above_272k_tokens_flex",
        "input_cost_per_audio_token",
        "output_cost_per_reasoning_token",
        "cache_read_input_audio_token_cost",
        "cache_creation_input_token_cost_above_12hr",
        "cache_creation_input_token_cost_above_12hr_batches",
        "input_cost_per_token_cache_hit",
        "input_cost_per_character_above_128k_tokens",
        "xinput_cost_per_token",
    ],
)
def test_what_the_book_has_no_place_for_is_counted(name: str) -> None:
    models, findings = built(m=entry(**{name: "9e-06"}))
    assert models["m"].rates == Rates({INPUT: 1_000_000, OUTPUT: 2_000_000})
    assert findings.not_carried == {name: 1}


@pytest.mark.parametrize(
    ("cost", "price", "is_rounded"),
    [
        ("3e-06", 3_000_000, False),
        ("0.0000000001", 100, False),
        ("1e-12", 1, False),
        ("1.1e-12", 2, True),
        ("1e-13", 1, True),
        ("1e-40", 1, True),
        ("2.0000000000000000000000000001e-06", 2_000_001, True),
        # As a float it would be a little more, and rounded up.
        ("4.125e-06", 4_125_000, False),
        ("1", 10**12, False),
    ],
)
def test_a_price_is_whole_and_never_rounded_down(cost: str, price: int, is_rounded: bool) -> None:
    _, findings = built(m=entry(input_cost_per_token=cost))
    assert read(entry(input_cost_per_token=cost), Mode.CHAT).rates.standard[INPUT] == price
    assert findings.rounded == ([("m", "input_cost_per_token")] if is_rounded else [])


@pytest.mark.parametrize("value", ["-1e-06", "1.1", "NaN", "Infinity"])
def test_a_number_that_is_no_price_stops_everything(value: str) -> None:
    with pytest.raises((ValueError, OverflowError)):
        built(m=entry(input_cost_per_token=value))


@pytest.mark.parametrize("value", ["text", 1e-06, True, {"a": 1}])
def test_what_is_not_an_exact_number_stops_everything(value: Any) -> None:
    with pytest.raises(TypeError, match="is no number"):
        read({**entry(), "input_cost_per_token": value}, Mode.CHAT)


def test_a_field_without_a_value_is_as_none() -> None:
    assert read({**entry(), "cache_read_input_token_cost": None}, Mode.CHAT).rates.standard.keys() == {INPUT, OUTPUT}


@pytest.mark.parametrize(
    ("prices", "reason"),
    [
        ({"input_cost_per_token": 0, "output_cost_per_token": 0}, "no price per token, or zero"),
        ({"input_cost_per_token": "0.0", "output_cost_per_token": "0E-9"}, "no price per token, or zero"),
        ({"input_cost_per_token": 0}, "no price per token of input"),
        ({"output_cost_per_token": 0}, "no price per token of output"),
    ],
)
def test_nothing_is_free_because_nobody_knows_its_price(prices: dict[str, Any], reason: str) -> None:
    models, findings = built(m=entry(**prices))
    assert models == {}
    assert findings.left_out == {reason: ["m"]}


def test_a_zero_is_believed_of_the_output_of_an_embedding_only() -> None:
    free: dict[str, Any] = {
        "output_cost_per_token": 0,
        "output_cost_per_token_batches": 0,
        "cache_read_input_token_cost": 0,
    }
    models, findings = built(e=entry(mode="embedding", **free), m=entry(cache_read_input_token_cost=0))
    assert models["e"].rates == Rates({INPUT: 1_000_000, OUTPUT: 0}, {OUTPUT: 0})
    assert models["m"].rates == Rates({INPUT: 1_000_000, OUTPUT: 2_000_000})
    assert findings.zeros == [(key, "cache_read_input_token_cost") for key in ("e", "m")]


def test_an_embedding_without_a_price_of_output_has_none() -> None:
    only_input = entry(mode="embedding")
    del only_input["output_cost_per_token"]
    models, _ = built(e=only_input)
    assert models["e"].rates.standard == {INPUT: 1_000_000}


@pytest.mark.parametrize("mode", ["image_generation", "realtime", "audio_speech", "rerank", "moderation", None])
def test_what_is_not_paid_by_the_token_of_text_is_left_out(mode: Any) -> None:
    models, findings = built(m=entry(mode=mode))
    assert models == {}
    assert findings.left_out == {f"not paid by the token of text: {mode}": ["m"]}


@pytest.mark.parametrize("mode", ["chat", "responses", "completion", "embedding"])
def test_what_is_paid_by_the_token_of_text_is_kept(mode: str) -> None:
    assert built(m=entry(mode=mode))[0].keys() == {"m"}


@pytest.mark.parametrize(
    ("name", "provider"),
    [
        ("bedrock", Provider.BEDROCK),
        ("bedrock_converse", Provider.BEDROCK),
        ("bedrock_mantle", Provider.BEDROCK),
        ("anthropic", Provider.ANTHROPIC),
        ("openai", Provider.OPENAI),
        ("text-completion-openai", Provider.OPENAI),
        ("gemini", Provider.GOOGLE),
        ("vertex_ai", Provider.GOOGLE),
        ("vertex_ai-anthropic_models", Provider.GOOGLE),
        ("azure", None),
        ("vertex", None),
        ("openrouter", None),
    ],
)
def test_who_sells_it(name: str, provider: Provider | None) -> None:
    assert provider_of({"litellm_provider": name}) is provider
    models, findings = built(m=entry(name))
    assert len(models) + findings.foreign == 1


@pytest.mark.parametrize(
    ("key", "provider", "subject"),
    [
        ("amazon.nova-pro-v1:0", Provider.BEDROCK, Subject(Provider.BEDROCK, "amazon.nova-pro-v1:0")),
        ("us.amazon.nova-pro-v1:0", Provider.BEDROCK, Subject(Provider.BEDROCK, "us.amazon.nova-pro-v1:0")),
        ("bedrock/us.deepseek.r1", Provider.BEDROCK, Subject(Provider.BEDROCK, "us.deepseek.r1")),
        ("bedrock_mantle/xai.grok-4.3", Provider.BEDROCK, Subject(Provider.BEDROCK, "xai.grok-4.3")),
        ("bedrock/us-gov-west-1/m:0", Provider.BEDROCK, Subject(Provider.BEDROCK, "m:0", "us-gov-west-1")),
        ("bedrock_mantle/eu-west-2/m", Provider.BEDROCK, Subject(Provider.BEDROCK, "m", "eu-west-2")),
        ("bedrock/ap-southeast-3/m", Provider.BEDROCK, Subject(Provider.BEDROCK, "m", "ap-southeast-3")),
        ("bedrock/invoke/m", Provider.BEDROCK, Subject(Provider.BEDROCK, "m")),
        ("bedrock/claude_platform/claude-x", Provider.BEDROCK, Subject(Provider.ANTHROPIC, "claude-x")),
        ("openai/gpt-x", Provider.OPENAI, Subject(Provider.OPENAI, "gpt-x")),
        ("ft:gpt-x", Provider.OPENAI, Subject(Provider.OPENAI, "ft:gpt-x")),
        ("anthropic/claude-x", Provider.ANTHROPIC, Subject(Provider.ANTHROPIC, "claude-x")),
        ("gemini/gemini-x", Provider.GOOGLE, Subject(Provider.GOOGLE, "gemini-x")),
        ("gemini-x", Provider.GOOGLE, Subject(Provider.GOOGLE, "gemini-x")),
        ("vertex_ai/claude-x@1", Provider.GOOGLE, Subject(Provider.GOOGLE, "claude-x@1")),
        ("vertex_ai/meta/llama-x", Provider.GOOGLE, Subject(Provider.GOOGLE, "meta/llama-x")),
    ],
)
def test_what_an_entry_is_about(key: str, provider: Provider, subject: Subject) -> None:
    assert subject_of(key, provider) == subject


@pytest.mark.parametrize(
    ("key", "provider", "reason"),
    [
        ("bedrock/us-east-1/1-month-commitment/m", Provider.BEDROCK, "under a commitment"),
        ("bedrock/*/6-month-commitment/m", Provider.BEDROCK, "under a commitment"),
        ("bedrock/elsewhere/m", Provider.BEDROCK, "names no model"),
        ("1024-x-1024/50-steps/m", Provider.BEDROCK, "names no model"),
        ("low/1024-x-1024/m", Provider.OPENAI, "names no model"),
    ],
)
def test_a_key_that_names_no_model(key: str, provider: Provider, reason: str) -> None:
    with pytest.raises(LeftOut, match=reason):
        subject_of(key, provider)


def test_prices_of_regions_are_with_their_model() -> None:
    models, _ = built(
        m=entry("bedrock_converse"),
        **{"bedrock/us-gov-west-1/m": entry(input_cost_per_token="4e-06")},
        **{"bedrock_mantle/eu-west-2/m": entry("bedrock_mantle", input_cost_per_token="5e-06")},
    )
    assert models["m"] == Model(
        Provider.BEDROCK,
        Rates({INPUT: 1_000_000, OUTPUT: 2_000_000}),
        {
            "eu-west-2": Rates({INPUT: 5_000_000, OUTPUT: 2_000_000}),
            "us-gov-west-1": Rates({INPUT: 4_000_000, OUTPUT: 2_000_000}),
        },
    )


def test_a_region_alone_is_no_model() -> None:
    models, findings = build({"bedrock/eu-west-1/m": entry()})
    assert models == {}
    assert findings.left_out == {"a price of some regions, but none of the model": ["bedrock/eu-west-1/m"]}


def test_of_several_entries_of_one_provider_the_dearest_price_of_each_kind_is_taken() -> None:
    table = {
        "m": entry(cache_read_input_token_cost="1e-07"),
        "bedrock_mantle/m": entry("bedrock_mantle", input_cost_per_token="1.1e-06", output_cost_per_token="1.9e-06"),
        "bedrock/invoke/m": entry(input_cost_per_token_batches="5e-07"),
    }
    models, findings = build(table)
    assert models["m"].rates == Rates({INPUT: 1_100_000, OUTPUT: 2_000_000, READ: 100_000}, {INPUT: 500_000})
    everyone = ("bedrock/invoke/m", "bedrock_mantle/m", "m")
    assert findings.clashes == [
        Clash(
            "m", None, "standard input", 1_100_000, dict(zip(everyone, (1_000_000, 1_100_000, 1_000_000), strict=True))
        ),
        Clash(
            "m", None, "standard output", 2_000_000, dict(zip(everyone, (2_000_000, 1_900_000, 2_000_000), strict=True))
        ),
    ]
    # In whichever order the table has them.
    again, _ = build(dict(reversed(table.items())))
    assert again == models


def test_the_lowest_threshold_goes_with_the_dearest_prices() -> None:
    flat = Rates({INPUT: 1, OUTPUT: 1})
    early = Rates({INPUT: 1}, {}, 100, {INPUT: 2}, {INPUT: 1})
    late = Rates({INPUT: 1}, {}, 200, {INPUT: 5, OUTPUT: 3})
    assert dearest([flat, late, early]) == Rates({INPUT: 1, OUTPUT: 1}, {}, 100, {INPUT: 5, OUTPUT: 3}, {INPUT: 1})
    assert dearest([flat]) == flat


def test_of_several_providers_the_first_has_the_id() -> None:
    models, findings = build(
        {
            "vertex_ai/claude-x": entry("vertex_ai-anthropic_models", input_cost_per_token="9e-06"),
            "vertex_ai/claude-y": entry("vertex_ai-anthropic_models"),
            "claude-x": entry("anthropic"),
            "claude-y": entry("anthropic"),
        }
    )
    assert {model.provider for model in models.values()} == {Provider.ANTHROPIC}
    assert models["claude-x"].rates.standard[INPUT] == 1_000_000
    google, anthropic = Provider.GOOGLE, Provider.ANTHROPIC
    assert findings.resold == [
        Resold("claude-x", "vertex_ai/claude-x", google, anthropic, differs=True),
        Resold("claude-y", "vertex_ai/claude-y", google, anthropic, differs=False),
    ]


def test_the_file_has_a_line_per_model_and_is_what_the_product_reads() -> None:
    models, _ = build(
        {
            "b": entry(input_cost_per_token_above_200k_tokens="9e-06", input_cost_per_token_batches="5e-07"),
            "a": entry(),
            "bedrock/eu-west-1/a": entry(input_cost_per_token="3e-06"),
        }
    )
    text = book.text("1.2.3", {"litellm": {"version": "1.2.3"}}, models)
    assert text.splitlines() == [
        '{"format":1,"version":"1.2.3","sources":{',
        '"litellm":{"version":"1.2.3"}',
        '},"models":{',
        (
            '"a":{"provider":"bedrock","standard":{"input":1000000,"output":2000000},'
            '"regions":{"eu-west-1":{"standard":{"input":3000000,"output":2000000}}}},'
        ),
        (
            '"b":{"provider":"bedrock","standard":{"input":1000000,"output":2000000},"batch":{"input":500000},'
            '"long_from_tokens":200000,"long_standard":{"input":9000000}}'
        ),
        "}}",
    ]
    found = ShippedPrices(lambda: decode(text)).find("b", None)
    assert found is not None
    assert (found.long_from_tokens, found.long_standard) == (200_000, {INPUT: 9_000_000})
    assert book.FORMAT == FORMAT
