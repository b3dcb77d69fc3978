"""HTTP to the deployed API, without a library that would follow, retry or correct anything."""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Api:
    url: str

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str | None = "application/json",
        more_headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Bytes are sent as they are, anything else as JSON."""
        address = urlsplit(self.url + path)
        content = None
        headers = dict(more_headers or {})
        if body is not None:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            if content_type is not None:
                headers["content-type"] = content_type
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        try:
            target = f"{address.path}?{address.query}" if address.query else address.path
            connection.request(method, target, content, headers)
            response = connection.getresponse()
            received = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, received, response.read())
        finally:
            connection.close()
