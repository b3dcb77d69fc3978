"""What Bedrock answers about an inference profile, in the documented shape, and what becomes of its refusals."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError, NoCredentialsError, ReadTimeoutError
from botocore.stub import Stubber

from sluice.clients import _has_bedrock, inference_profiles
from sluice.core.arns import ModelInRegion, ProfileArn, ProfileRefused, parse_profile_arn
from sluice.core.errors import ModelsUnavailable, Unavailable
from sluice.repository.inference_profiles import CLIENTS_MAX, InferenceProfiles

SONNET = "anthropic.claude-sonnet-4-5-20250929-v1:0"
ARN = f"arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.{SONNET}"
WHEN = datetime(2026, 1, 2, tzinfo=UTC)


def arn_in(region: str) -> ProfileArn:
    return parse_profile_arn("arn", f"arn:aws:bedrock:{region}:123456789012:application-inference-profile/abc")


def answer(*model_arns: str) -> dict[str, Any]:
    return {
        "inferenceProfileName": "US Anthropic Claude Sonnet 4.5",
        "description": "Routes requests to Anthropic Claude Sonnet 4.5 in the US",
        "createdAt": WHEN,
        "updatedAt": WHEN,
        "inferenceProfileArn": ARN,
        "models": [{"modelArn": model} for model in model_arns],
        "inferenceProfileId": f"us.{SONNET}",
        "status": "ACTIVE",
        "type": "SYSTEM_DEFINED",
    }


@pytest.fixture
def client() -> Any:
    return boto3.client("bedrock", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")


@contextmanager
def stubbed(client: Any) -> Iterator[Stubber]:
    with Stubber(client) as stub:
        yield stub
        stub.assert_no_pending_responses()


def source_of(client: Any, *, known: bool = True) -> InferenceProfiles:
    return InferenceProfiles(lambda _region: client, lambda _region: known)


def test_the_models_are_read_with_their_regions(client: Any) -> None:
    with stubbed(client) as stub:
        documented = answer(
            f"arn:aws:bedrock:us-east-1::foundation-model/{SONNET}",
            f"arn:aws:bedrock:us-west-2::foundation-model/{SONNET}",
            f"arn:aws:bedrock:::foundation-model/{SONNET}",
            "arn:aws:bedrock:us-east-1:123456789012:custom-model/mine",
        )
        stub.add_response("get_inference_profile", documented, {"inferenceProfileIdentifier": ARN})
        assert source_of(client).models(parse_profile_arn("arn", ARN)) == (
            ModelInRegion(SONNET, "us-east-1"),
            ModelInRegion(SONNET, "us-west-2"),
            ModelInRegion(SONNET, None),
        )


class Answering:
    def __init__(self, answer: dict[str, Any]) -> None:
        self._answer = answer

    def get_inference_profile(self, **_arguments: Any) -> Any:
        return self._answer


@pytest.mark.parametrize(
    "told", [{}, {"models": []}, {"models": [{}]}, answer("arn:aws:bedrock:us-east-1:123456789012:custom-model/mine")]
)
def test_a_profile_without_a_foundation_model_is_of_no_use(told: dict[str, Any]) -> None:
    with pytest.raises(ProfileRefused, match="no foundation model"):
        source_of(Answering(told)).models(arn_in("us-east-1"))


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [
        ("ResourceNotFoundException", 404, "knows no such"),
        ("ValidationException", 400, "does not accept"),
        ("AccessDeniedException", 403, "does not let"),
        # As a region answers that the account did not opt in to.
        ("UnrecognizedClientException", 403, "does not tell"),
    ],
)
def test_a_refusal_says_why_in_our_own_words(client: Any, code: str, status: int, said: str) -> None:
    with stubbed(client) as stub:
        theirs = "User: arn:aws:sts::123456789012:assumed-role/x is not authorized"
        stub.add_client_error("get_inference_profile", code, theirs, http_status_code=status)
        with pytest.raises(ProfileRefused, match=said) as raised:
            source_of(client).models(arn_in("us-east-1"))
    assert "assumed-role" not in str(raised.value)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("ThrottlingException", 429),
        ("Throttling", 400),
        ("TooManyRequests", 429),
        ("ExpiredTokenException", 403),
        ("InternalServerException", 500),
        ("ServiceUnavailableException", 503),
    ],
)
def test_what_passes_is_unavailable(client: Any, code: str, status: int) -> None:
    with stubbed(client) as stub:
        stub.add_client_error("get_inference_profile", code, http_status_code=status)
        with pytest.raises(ModelsUnavailable) as raised:
            source_of(client).models(arn_in("us-east-1"))
    assert isinstance(raised.value, Unavailable)


class Failing:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def get_inference_profile(self, **_arguments: Any) -> Any:
        raise self._error


@pytest.mark.parametrize(
    "error",
    [
        ConnectTimeoutError(endpoint_url="-"),
        ReadTimeoutError(endpoint_url="-"),
        EndpointConnectionError(endpoint_url="-"),
    ],
)
def test_silence_is_unavailable(error: Exception) -> None:
    with pytest.raises(ModelsUnavailable):
        source_of(Failing(error)).models(arn_in("us-east-1"))


def test_a_region_that_is_not_there_is_the_arns_fault() -> None:
    nowhere = Failing(EndpointConnectionError(endpoint_url="-"))
    with pytest.raises(ProfileRefused, match="no such region"):
        source_of(nowhere, known=False).models(arn_in("us-nowhere-1"))


def test_our_own_fault_is_nobody_elses() -> None:
    with pytest.raises(NoCredentialsError):
        source_of(Failing(NoCredentialsError())).models(arn_in("us-east-1"))


def test_a_region_has_one_client_and_only_a_few_are_kept(client: Any) -> None:
    made: list[str] = []

    def make(region: str) -> Any:
        made.append(region)
        return client

    source = InferenceProfiles(make, lambda _region: True)
    regions = [f"eu-west-{number}" for number in range(1, CLIENTS_MAX + 2)]
    with stubbed(client) as stub:
        for region in [regions[0], regions[0], *regions[1:], regions[0]]:
            stub.add_response("get_inference_profile", answer(f"arn:aws:bedrock:{region}::foundation-model/{SONNET}"))
            assert source.models(arn_in(region)) == (ModelInRegion(SONNET, region),)
    assert made == [*regions, regions[0]]


def test_a_bounded_client_is_made_in_the_region_of_the_arn_when_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []

    def record(service: str, *, region_name: str | None, config: Any) -> Any:
        made.append((service, region_name, config.retries, config.connect_timeout, config.read_timeout))
        return Failing(ReadTimeoutError(endpoint_url="-"))

    monkeypatch.setattr("sluice.clients.boto3.client", record)
    source = inference_profiles(2000)
    assert made == []
    with pytest.raises(ModelsUnavailable):
        source.models(arn_in("us-gov-west-1"))
    assert made == [("bedrock", "us-gov-west-1", {"total_max_attempts": 2, "mode": "standard"}, 1, 2.0)]


@pytest.mark.parametrize(
    ("region", "known"),
    [("us-east-1", True), ("us-gov-west-1", True), ("eusc-de-east-1", True), ("us-nowhere-1", False)],
)
def test_the_sdk_knows_where_bedrock_is(region: str, known: bool) -> None:
    assert _has_bedrock(region) == known
