"""Labels and inference profiles as they are stored, and the requests about them."""

from dataclasses import replace
from typing import Any

import pytest

from sluice.core.arns import parse_profile_arn
from sluice.core.labels import InferenceProfile, LabelDefinition, fallback_price
from sluice.core.pricing import PriceSource, TokenKind
from sluice.repository.labels import decode_label, encode_label, label_delete, label_image, label_put, labels_query
from sluice.repository.profiles import (
    app_exists,
    decode_profile,
    encode_profile,
    profile_delete,
    profile_image,
    profile_put,
    profile_target,
    profiles_query,
)
from sluice.repository.shapes import UnknownShape

ARN = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc"
PLAIN_LABEL = LabelDefinition("premium", "anthropic.claude-x", None, None, None, None, None, 1, 5, 6)
FULL_LABEL = LabelDefinition("premium", "anthropic.claude-x", "high", "claude", "for the few", 0, 10**12, 7, 5, 6)
PLAIN_PROFILE = InferenceProfile("chat", "premium", parse_profile_arn("arn", ARN), None, 1, 5, 6)
FULL_PROFILE = replace(PLAIN_PROFILE, description="of tenant a", version=7)


@pytest.mark.parametrize("label", [PLAIN_LABEL, FULL_LABEL])
def test_a_label_comes_back(label: LabelDefinition) -> None:
    item = encode_label("ns1", label)
    assert decode_label(item) == label
    assert (item["PK"], item["SK"]) == ("ns1/SYSTEM#", "#LABEL#premium")
    assert {name for name in item if name.startswith("GSI")} == {"GSI4PK", "GSI4SK"}
    assert None not in item.values()


@pytest.mark.parametrize("profile", [PLAIN_PROFILE, FULL_PROFILE])
def test_a_profile_comes_back(profile: InferenceProfile) -> None:
    item = encode_profile("ns1", profile)
    assert decode_profile(item) == profile
    assert (item["PK"], item["SK"]) == ("ns1/ENTITY#chat", "#PROFILE#premium")
    assert {name for name in item if name.startswith("GSI")} == {"GSI4PK", "GSI4SK"}
    assert item["inference_profile_arn"] == ARN


@pytest.mark.parametrize(
    "damage",
    [{"kind": "limits"}, {"model_id": 5}, {"tier": 5}, {"input_price": "5"}, {"v": None}],
)
def test_nobody_guesses_what_another_label_is(damage: dict[str, Any]) -> None:
    with pytest.raises(UnknownShape):
        decode_label({**encode_label("ns1", FULL_LABEL), **damage})


@pytest.mark.parametrize(
    "damage",
    [{"kind": "label"}, {"inference_profile_arn": "abc"}, {"inference_profile_arn": 5}, {"entity_id": None}],
)
def test_nobody_guesses_what_another_profile_is(damage: dict[str, Any]) -> None:
    with pytest.raises(UnknownShape):
        decode_profile({**encode_profile("ns1", FULL_PROFILE), **damage})


def test_a_write_is_guarded_by_what_was_seen() -> None:
    as_seen = {":version": 7, ":created": 5}
    condition = "v = :version AND created_at = :created"
    assert label_put("ns1", PLAIN_LABEL, None)["Put"]["ConditionExpression"] == "attribute_not_exists(PK)"
    assert profile_put("ns1", PLAIN_PROFILE, None)["Put"]["ConditionExpression"] == "attribute_not_exists(PK)"
    for put in (
        label_put("ns1", PLAIN_LABEL, FULL_LABEL)["Put"],
        profile_put("ns1", PLAIN_PROFILE, FULL_PROFILE)["Put"],
    ):
        assert (put["ConditionExpression"], put["ExpressionAttributeValues"]) == (condition, as_seen)
        assert put["Item"]["v"] == 1
    for delete, key in (
        (label_delete("ns1", FULL_LABEL)["Delete"], {"PK": "ns1/SYSTEM#", "SK": "#LABEL#premium"}),
        (profile_delete("ns1", FULL_PROFILE)["Delete"], {"PK": "ns1/ENTITY#chat", "SK": "#PROFILE#premium"}),
    ):
        assert (delete["ConditionExpression"], delete["ExpressionAttributeValues"]) == (condition, as_seen)
        assert delete["Key"] == key


def test_an_app_must_be_there() -> None:
    assert app_exists("ns1", "chat") == {
        "ConditionCheck": {
            "Key": {"PK": "ns1/ENTITY#chat", "SK": "#APP"},
            "ConditionExpression": "attribute_exists(PK)",
        }
    }


def test_lists_are_read_from_where_they_stand() -> None:
    assert labels_query("ns1")["ExpressionAttributeValues"] == {":system": "ns1/SYSTEM#", ":label": "#LABEL#"}
    values = profiles_query("ns1", "chat")["ExpressionAttributeValues"]
    assert values == {":entity": "ns1/ENTITY#chat", ":profile": "#PROFILE#"}


def test_the_audit_shows_what_was_put() -> None:
    assert label_image(PLAIN_LABEL) == {"label": "premium", "version": 1, "model_id": "anthropic.claude-x"}
    assert label_image(FULL_LABEL)["output_price"] == 10**12
    assert profile_image(PLAIN_PROFILE) == {"label": "premium", "version": 1, "inference_profile_arn": ARN}
    assert profile_image(FULL_PROFILE)["description"] == "of tenant a"
    assert profile_target("premium", "chat") == "inference-profiles/premium?app=chat"
    assert profile_target("premium", None) == "inference-profiles/premium"


def test_a_label_may_have_a_price_to_fall_back_on() -> None:
    assert fallback_price(PLAIN_LABEL) is None
    price = fallback_price(FULL_LABEL)
    assert price is not None
    assert (price.price_id, price.source) == ("label:premium:7", PriceSource.LABEL)
    assert price.standard == {TokenKind.INPUT: 0, TokenKind.OUTPUT: 10**12}
    half = fallback_price(replace(FULL_LABEL, input_price_usd_micros_per_1m=None))
    assert half is not None
    assert half.standard == {TokenKind.OUTPUT: 10**12}
