"""The one place that asks Amazon Bedrock: which models an inference profile has.

AWS answers, or refuses for good (there is no such profile, it is another account's, the ARN is malformed), or is in no
state to answer. Its own words are not passed on: they name our role and account.
"""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, Final, cast

from botocore.exceptions import ClientError, EndpointConnectionError, HTTPClientError
from botocore.exceptions import ConnectionError as ClientConnectionError
from cachetools import LRUCache

from sluice.core.arns import ModelInRegion, ProfileArn, ProfileRefused, parse_model_arn
from sluice.core.errors import ModelsUnavailable

# People choose the regions, so there may be any number; a client has some MB.
CLIENTS_MAX: Final = 8
_REFUSALS: Final[Mapping[str, str]] = {
    "ResourceNotFoundException": "AWS knows no such inference profile",
    "ValidationException": "AWS does not accept its ARN",
    "AccessDeniedException": "AWS does not let this service read it",
}
_REFUSED: Final = "AWS does not tell its models"
# Refusals by their status that are none: they pass.
_PASSING: Final = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "RequestTimeout",
        "RequestTimeoutException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)


class InferenceProfiles:
    """`client_of`: boto3's client for Bedrock in a region. `has_bedrock`: whether the SDK knows it to be there."""

    def __init__(self, client_of: Callable[[str], Any], has_bedrock: Callable[[str], bool]) -> None:
        self._client_of = client_of
        self._has_bedrock = has_bedrock
        self._clients: LRUCache[str, Any] = LRUCache(CLIENTS_MAX)
        self._lock = Lock()

    def models(self, arn: ProfileArn) -> tuple[ModelInRegion, ...]:
        try:
            answer = self._client(arn.region).get_inference_profile(inferenceProfileIdentifier=str(arn))
        except EndpointConnectionError as error:
            # A region that does not exist has no address. That is the ARN's fault and no outage.
            if not self._has_bedrock(arn.region):
                raise ProfileRefused("there is no such region") from error
            raise ModelsUnavailable from error
        except (ClientConnectionError, HTTPClientError) as error:
            raise ModelsUnavailable from error
        except ClientError as error:
            if _is_passing(error):
                raise ModelsUnavailable from error
            raise ProfileRefused(_REFUSALS.get(_code(error), _REFUSED)) from error
        found = [parse_model_arn(model.get("modelArn", "")) for model in answer.get("models") or ()]
        models = tuple(model for model in found if model is not None)
        if not models:
            raise ProfileRefused("AWS names no foundation model of it")
        return models

    def _client(self, region: str) -> Any:
        # Made one at a time: boto3's session is not made for threads.
        with self._lock:
            client = self._clients.get(region)
            if client is None:
                client = self._clients[region] = self._client_of(region)
            return client


def _is_passing(error: ClientError) -> bool:
    status = cast("Mapping[str, Any]", error.response).get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    return _code(error) in _PASSING or status >= 500 or status == 429


def _code(error: ClientError) -> str:
    return str(cast("Mapping[str, Any]", error.response)["Error"]["Code"])
