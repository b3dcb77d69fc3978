"""ARNs of inference profiles and models, read part by part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.arns import (
    ModelInRegion,
    ProfileArn,
    ProfileKind,
    model_in,
    parse_model_arn,
    parse_profile_arn,
    priced_model_id,
)
from sluice.core.errors import InvalidRequest

FIELD = "inference_profile_arn"
APPLICATION = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc"
SONNET = "anthropic.claude-sonnet-4-5-20250929-v1:0"
SYSTEM = f"arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.{SONNET}"

PARTITIONS = ("aws", "aws-cn", "aws-us-gov", "aws-iso", "aws-iso-b", "aws-iso-e", "aws-iso-f", "aws-eusc")
REGIONS = (
    "us-east-1",
    "us-gov-west-1",
    "ap-southeast-7",
    "cn-northwest-1",
    "us-iso-east-1",
    "us-isob-east-1",
    "eu-isoe-west-1",
    "eusc-de-east-1",
    "mx-central-1",
)
profile_ids = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9.:-]{0,63}\Z")
arns = st.builds(
    ProfileArn,
    st.sampled_from(PARTITIONS),
    st.sampled_from(REGIONS),
    st.from_regex(r"\A[0-9]{12}\Z"),
    st.sampled_from(ProfileKind),
    profile_ids,
)


@pytest.mark.parametrize(
    ("text", "kind", "profile_id"),
    [
        (APPLICATION, ProfileKind.APPLICATION, "abc"),
        (SYSTEM, ProfileKind.SYSTEM, f"us.{SONNET}"),
    ],
)
def test_both_forms_are_read(text: str, kind: ProfileKind, profile_id: str) -> None:
    arn = parse_profile_arn(FIELD, text)
    assert arn == ProfileArn("aws", "us-east-1", "123456789012", kind, profile_id)
    assert str(arn) == text


@pytest.mark.parametrize("profile", ["application-inference-profile/abc", f"inference-profile/us-gov.{SONNET}"])
def test_the_government_region_is_accepted(profile: str) -> None:
    arn = parse_profile_arn(FIELD, f"arn:aws-us-gov:bedrock:us-gov-west-1:123456789012:{profile}")
    assert (arn.partition, arn.region) == ("aws-us-gov", "us-gov-west-1")


@given(arns)
def test_every_partition_and_region_comes_back_as_it_was(arn: ProfileArn) -> None:
    assert parse_profile_arn(FIELD, str(arn)) == arn


@given(arns, st.data())
def test_what_was_damaged_is_refused_or_says_just_what_it_says(arn: ProfileArn, data: st.DataObject) -> None:
    text = str(arn)
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 3))
    damaged = text[:at] + data.draw(st.text(max_size=3)) + text[at + cut :]
    assert said_by(damaged) in (FIELD, damaged)


def said_by(text: str) -> str:
    """The field that is blamed, or what was read as it is written."""
    try:
        return str(parse_profile_arn(FIELD, text))
    except InvalidRequest as error:
        return error.field


@given(st.text(max_size=80))
def test_any_text_is_refused_with_the_field(text: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_profile_arn(FIELD, text)
    assert raised.value.field == FIELD


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "form"),
        ("abc", "form"),
        (f"us.{SONNET}", "form"),
        (APPLICATION.replace("arn:", "ARN:"), "form"),
        (APPLICATION.replace(":bedrock:", ":s3:"), "form"),
        (f" {APPLICATION}", "form"),
        ("arn:aws:bedrock:us-east-1:123456789012", "form"),
        (APPLICATION.replace(":aws:", ":azure:"), "partition"),
        (APPLICATION.replace(":aws:", ":aws-:"), "partition"),
        (APPLICATION.replace(":aws:", ":AWS:"), "partition"),
        (APPLICATION.replace("us-east-1", ""), "region"),
        (APPLICATION.replace("us-east-1", "*"), "region"),
        (APPLICATION.replace("us-east-1", "us-east-1.evil.example"), "region"),
        (APPLICATION.replace("us-east-1", "us-east-1@evil"), "region"),
        (APPLICATION.replace("us-east-1", "us-east-\u0661"), "region"),
        (APPLICATION.replace("123456789012", ""), "account"),
        (APPLICATION.replace("123456789012", "12345678901"), "account"),
        (APPLICATION.replace("123456789012", "\u0661" * 12), "account"),
        (APPLICATION.removesuffix("abc"), "id"),
        (APPLICATION.removesuffix("/abc"), "id"),
        (f"{APPLICATION}/more", "id"),
        (f"{APPLICATION}\n", "id"),
        (f"{APPLICATION} ", "id"),
        (f"{APPLICATION}{'c' * 62}", "id"),
        (APPLICATION.replace("application-inference-profile", "foundation-model"), "not the ARN of an inference"),
        (APPLICATION.replace("application-inference-profile", "my-inference-profile"), "not the ARN of an inference"),
        (APPLICATION.replace("application-inference-profile", "Inference-Profile"), "not the ARN of an inference"),
    ],
)
def test_the_part_that_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        parse_profile_arn(FIELD, text)
    assert raised.value.field == FIELD
    assert said in raised.value.detail


def test_models_are_read() -> None:
    regional = f"arn:aws:bedrock:us-west-2::foundation-model/{SONNET}"
    assert parse_model_arn(regional) == ModelInRegion(SONNET, "us-west-2")
    # As a global profile has one beside that of its own region.
    assert parse_model_arn(f"arn:aws:bedrock:::foundation-model/{SONNET}") == ModelInRegion(SONNET, None)
    government = "arn:aws-us-gov:bedrock:us-gov-west-1::foundation-model/amazon.nova-pro-v1:0"
    assert parse_model_arn(government) == ModelInRegion("amazon.nova-pro-v1:0", "us-gov-west-1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        SONNET,
        f"arn:aws:s3:us-west-2::foundation-model/{SONNET}",
        f"ARN:aws:bedrock:us-west-2::foundation-model/{SONNET}",
        f"arn:aws:bedrock:us-west-2:123456789012:foundation-model/{SONNET}",
        f"arn:aws:bedrock:us-west-2::custom-model/{SONNET}",
        "arn:aws:bedrock:us-west-2::foundation-model/",
        "arn:aws:bedrock:us-west-2::foundation-model/a/b",
        f"arn:azure:bedrock:us-west-2::foundation-model/{SONNET}",
        f"arn:aws:bedrock:somewhere::foundation-model/{SONNET}",
    ],
)
def test_what_is_no_foundation_model_is_none(text: str) -> None:
    assert parse_model_arn(text) is None


def test_the_model_of_a_region_comes_before_that_of_any() -> None:
    models = (ModelInRegion("old", "us-east-1"), ModelInRegion("new", "us-west-2"), ModelInRegion("any", None))
    assert [model_in(models, region) for region in ("us-east-1", "us-west-2", "eu-west-1")] == ["old", "new", "any"]
    assert model_in(models[:2], "eu-west-1") is None
    # A region is a name, not the beginning of one.
    assert model_in(models[:2], "us-east") is None


@pytest.mark.parametrize(
    ("kind", "profile_id", "priced"),
    [
        (ProfileKind.SYSTEM, f"us.{SONNET}", f"us.{SONNET}"),
        (ProfileKind.SYSTEM, f"us-gov.{SONNET}", f"us-gov.{SONNET}"),
        (ProfileKind.SYSTEM, f"global.{SONNET}", f"global.{SONNET}"),
        (ProfileKind.SYSTEM, SONNET, SONNET),
        (ProfileKind.SYSTEM, f".{SONNET}", SONNET),
        (ProfileKind.SYSTEM, "us.another.model", SONNET),
        (ProfileKind.SYSTEM, "tenant-a", SONNET),
        (ProfileKind.APPLICATION, f"us.{SONNET}", SONNET),
    ],
)
def test_profiles_of_aws_have_prices_of_their_own(kind: ProfileKind, profile_id: str, priced: str) -> None:
    assert priced_model_id(ProfileArn("aws", "us-east-1", "123456789012", kind, profile_id), SONNET) == priced
