"""Between HTTP and a function, as API Gateway's HTTP APIs do it (payload format 2.0)."""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

_ESCAPES: Final = re.compile(r"(?:%[0-9A-Fa-f]{2})+")
_TEXT_TYPES: Final = frozenset({"application/json", "application/xml", "application/javascript"})


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def content_type(self) -> str:
        return self.header("content-type").partition(";")[0]

    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str:
        return next((value for found, value in self.headers.items() if found.lower() == name), "")


def event_of(method: str, url: str, headers: Mapping[str, str], body: bytes, request_id: str) -> dict[str, Any]:
    """The event that a function is given for a request."""
    parts = urlsplit(url)
    path = decoded_path(parts.path)
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": parts.query,
        "headers": {name.lower(): value for name, value in headers.items()},
        "requestContext": {"http": {"method": method, "path": path}, "requestId": request_id, "stage": "$default"},
        "isBase64Encoded": False,
    }
    query = _joined(parts.query)
    if query:
        event["queryStringParameters"] = query
    if body:
        event |= _body(body, event["headers"].get("content-type", ""))
    return event


def answer_of(answer: Mapping[str, Any]) -> Answer:
    """What a client gets for what a function answered."""
    body: str = answer.get("body") or ""
    content = base64.b64decode(body) if answer.get("isBase64Encoded") else body.encode()
    headers = dict(answer["headers"])
    headers.setdefault("content-length", str(len(content)))
    return Answer(answer["statusCode"], headers, content)


def decoded_path(path: str) -> str:
    """Every escape is decoded, but for that of the percent sign."""
    return _ESCAPES.sub(_decoded, path)


def _decoded(match: re.Match[str]) -> str:
    escaped = [part for part in re.split(r"(%25)", match[0]) if part]
    return "".join(part if part == "%25" else _bytes_of(part).decode("utf-8", "replace") for part in escaped)


def _bytes_of(escapes: str) -> bytes:
    return bytes.fromhex(escapes.replace("%", ""))


def _joined(query: str) -> dict[str, str]:
    """A name that stands more than once has its values joined by commas."""
    found: dict[str, list[str]] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        found.setdefault(name, []).append(value)
    return {name: ",".join(values) for name, values in found.items()}


def _body(body: bytes, content_type: str) -> dict[str, Any]:
    """As text for a few types only. Those are not checked to be UTF-8."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type.startswith("text/") or media_type in _TEXT_TYPES:
        return {"body": body.decode("utf-8", "replace")}
    return {"body": base64.b64encode(body).decode(), "isBase64Encoded": True}
