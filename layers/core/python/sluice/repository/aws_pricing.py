"""The one place that talks to AWS's price list. It reads pages of it; what they say is for `core.price_list`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from botocore.exceptions import ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as ClientConnectionError

from sluice.core.errors import Unavailable

PAGE: Final = 100
"""As many products as one answer can have."""
FORMAT: Final = "aws_v1"

_LOST: Final = frozenset({"ExpiredNextTokenException", "InvalidNextTokenException"})
_BUSY: Final = frozenset({"InternalErrorException", "ThrottlingException", "Throttling", "RequestLimitExceeded"})


class PlaceLost(Exception):
    """The list no longer knows where a reader was: it has to begin again."""


@dataclass(frozen=True, slots=True)
class PricePage:
    """`products`: each a JSON text. `next_token`: what the next page is asked for with; None on the last."""

    products: tuple[str, ...]
    next_token: str | None


class PriceList(Protocol):
    def regions(self) -> Sequence[str]:
        """Where models are sold."""
        ...

    def page(self, service_code: str, region: str, token: str | None) -> PricePage:
        """Raises PlaceLost for a token that is too old."""
        ...


class AwsPriceList:
    """`make_client`: makes boto3's for Pricing, which few processes ever need."""

    def __init__(self, make_client: Callable[[], Any], regions: Callable[[], Sequence[str]]) -> None:
        self._make_client = make_client
        self._regions = regions
        self._client: Any = None

    def regions(self) -> Sequence[str]:
        return self._regions()

    def page(self, service_code: str, region: str, token: str | None) -> PricePage:
        request: dict[str, Any] = {
            "ServiceCode": service_code,
            "Filters": [{"Type": "TERM_MATCH", "Field": "regionCode", "Value": region}],
            "FormatVersion": FORMAT,
            "MaxResults": PAGE,
        }
        if token is not None:
            request["NextToken"] = token
        if self._client is None:
            self._client = self._make_client()
        with _typed():
            answer = self._client.get_products(**request)
        return PricePage(tuple(answer.get("PriceList") or ()), answer.get("NextToken") or None)


@contextmanager
def _typed() -> Iterator[None]:
    """What passes becomes Unavailable. Anything else is a bug or a missing right, and passes through."""
    try:
        yield
    except (ClientConnectionError, HTTPClientError) as error:
        raise Unavailable(type(error).__name__) from error
    except ClientError as error:
        response = cast("Mapping[str, Any]", error.response)
        code = str(response["Error"]["Code"])
        if code in _LOST:
            raise PlaceLost(code) from error
        if code in _BUSY or response["ResponseMetadata"]["HTTPStatusCode"] >= 500:
            raise Unavailable(code) from error
        raise
