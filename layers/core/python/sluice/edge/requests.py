"""What is looked at before a body is parsed: its size, its type, its encoding; and a JSON parser that never crashes."""

import base64
import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, NoReturn

from sluice.edge.problems import Problem, RequestRejected, invalid_request

BODY_BYTES_MAX: Final = 64 * 1024
# A hundred events, of which each could be as large as one alone is.
USAGE_BATCH: Final = "/v1/usage/batch"
LARGE_BODIES: Final[Mapping[str, int]] = {USAGE_BATCH: 1024 * 1024}
JSON_MEDIA_TYPE: Final = "application/json"
_METHODS_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})


def path_of(event: Mapping[str, Any]) -> str:
    """The path that routes are matched by. Whatever decides about a request must look at this one."""
    path: str = event["rawPath"]
    return path


def with_plain_body(event: Mapping[str, Any]) -> dict[str, Any]:
    """The same event with its body as text. Raises RequestRejected for a body that is not worth parsing."""
    if event["requestContext"]["http"]["method"] not in _METHODS_WITH_BODY:
        return {**event, "body": None, "isBase64Encoded": False}
    raw = _body_bytes(event)
    bytes_max = LARGE_BODIES.get(path_of(event), BODY_BYTES_MAX)
    if len(raw) > bytes_max:
        detail = f"a body may have {bytes_max} bytes at most"
        raise RequestRejected(Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "payload-too-large", detail))
    headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
    if not raw and "content-type" not in headers:
        # Some routes are told all they need by their path. Clients send no type of what they do not send.
        return {**event, "headers": {**headers, "content-type": JSON_MEDIA_TYPE}, "body": "", "isBase64Encoded": False}
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != JSON_MEDIA_TYPE:
        detail = f"content-type must be {JSON_MEDIA_TYPE}"
        raise RequestRejected(
            Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", detail, {"field": "content-type"})
        )
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise RequestRejected(invalid_request("body", "is not UTF-8")) from None
    # Spelled one way: the router compares content types to the letter.
    return {**event, "headers": {**headers, "content-type": media_type}, "body": text, "isBase64Encoded": False}


def parse_json(text: str) -> dict[str, Any]:
    """As json.loads, with one error for everything that is wrong, so that nothing a client sends is our failure."""
    try:
        value = json.loads(text, object_pairs_hook=_unique_members, parse_constant=_refuse_constant)
    except json.JSONDecodeError:
        raise
    # A number of thousands of digits; arrays nested by the thousand.
    except (ValueError, RecursionError) as error:
        raise json.JSONDecodeError(type(error).__name__, "", 0) from None
    # The router would take the first element of an array for the body.
    if not isinstance(value, dict):
        raise json.JSONDecodeError("not an object", "", 0)
    return value


def _body_bytes(event: Mapping[str, Any]) -> bytes:
    body: str = event.get("body") or ""
    if not event.get("isBase64Encoded"):
        return body.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(body, validate=True)
    except ValueError:
        raise RequestRejected(invalid_request("body", "is not valid base64")) from None


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise json.JSONDecodeError("a member stands twice", "", 0)
    return members


def _refuse_constant(constant: str) -> NoReturn:
    raise json.JSONDecodeError(f"{constant} is not JSON", "", 0)
