"""HTTP to the deployed API, without a library that would follow, retry or correct anything."""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self
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
    """`headers`: who calls, sent with every call."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

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
        headers = {**self.headers, **(more_headers or {})}
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

    def with_token(self, token: str) -> Self:
        return replace(self, headers={"authorization": f"Bearer {token}"})

    def logged_in(self, credentials: Mapping[str, str]) -> Self:
        """As the client of an answer that shows its secret."""
        body = {name: credentials[name] for name in ("client_id", "client_secret")}
        answer = replace(self, headers={}).call("POST", "/v1/auth/token", body)
        assert answer.status == 200, answer.body
        return self.with_token(answer.json()["access_token"])
