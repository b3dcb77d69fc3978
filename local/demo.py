"""What `make run` puts into a fresh deployment, over its own API, so that the first call a person tries is answered."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from local.process import LocalError
from local.server import loopback_call

ORG: Final = "demo"
APP: Final = "demo-app"
USER: Final = "user-1"
RESOURCE: Final = "gpt-4"
# The best first. Their prices are in the price book that ships with the product; a handful of calls fills a quota.
MODELS: Final = {
    "premium": "anthropic.claude-sonnet-4-5-20250929-v1:0",
    "standard": "anthropic.claude-haiku-4-5-20251001-v1:0",
    "economy": "amazon.nova-lite-v1:0",
}
QUOTAS_USD_MICROS: Final = {"premium": 50_000, "standard": 20_000, "economy": 5_000}
_CALL_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Client:
    """What a login needs. The secret was shown once."""

    client_id: str
    client_secret: str = field(repr=False)


@dataclass(frozen=True)
class Demo:
    org: str
    org_client: Client
    app_client: Client


def load_demo(api_url: str, operator_key: str) -> Demo:
    """An org with limits for everybody and three labels in their order, each with a quota for the day; an app with
    limits of its own, and a user of that app."""
    operator = {"x-api-key": operator_key}
    settings = {"name": "Demo", "quota_scope": "APP", "model_ordering": list(MODELS), "quotas": QUOTAS_USD_MICROS}
    org = _client(_call(api_url, "PUT", f"/v1/orgs/{ORG}", operator, settings))
    as_org = _logged_in(api_url, org)
    for label, model_id in MODELS.items():
        _call(api_url, "PUT", f"/v1/labels/{label}", as_org, {"model_id": model_id, "tier": label})
    app = _client(_call(api_url, "PUT", f"/v1/orgs/{ORG}/apps/{APP}", as_org, {"name": "Demo app"}))
    for path, limits in {
        "/v1/limits/system": {"rpm": _per_minute(60)},
        f"/v1/limits/resources/{RESOURCE}": {"rpm": _per_minute(20), "tpm": {**_per_minute(10_000), "burst": 15_000}},
        f"/v1/limits/entities/{APP}/{RESOURCE}": {"rpm": _per_minute(100), "tpm": _per_minute(50_000)},
    }.items():
        _call(api_url, "PUT", path, as_org, {"limits": limits})
    _call(api_url, "PUT", f"/v1/entities/{USER}", _logged_in(api_url, app), {"name": "A user of the demo app"})
    return Demo(ORG, org, app)


def _per_minute(capacity: int) -> dict[str, int]:
    return {"capacity": capacity, "refill_period_seconds": 60}


def _client(answer: Mapping[str, Any]) -> Client:
    return Client(answer["client_id"], answer["client_secret"])


def _logged_in(api_url: str, client: Client) -> dict[str, str]:
    body = {"client_id": client.client_id, "client_secret": client.client_secret}
    tokens = _call(api_url, "POST", "/v1/auth/token", {}, body)
    return {"authorization": f"Bearer {tokens['access_token']}"}


def _call(
    api_url: str, method: str, path: str, headers: Mapping[str, str], body: Mapping[str, Any]
) -> Mapping[str, Any]:
    """An answer that is no success ends the run: nothing else has used the table yet."""
    url = urlsplit(api_url + path)
    content = json.dumps(body).encode()
    sent = {"content-type": "application/json", **headers}
    try:
        answer = loopback_call(url.port or 80, method, url.path, content, sent, timeout_seconds=_CALL_SECONDS)
    except OSError as error:
        raise LocalError(f"{method} {path} did not answer while the demo was loaded: {error}") from error
    if answer.status not in {200, 201}:
        said = answer.body[:2_000].decode(errors="replace")
        raise LocalError(f"{method} {path} answered {answer.status} while the demo was loaded: {said}")
    loaded: Mapping[str, Any] = json.loads(answer.body)
    return loaded
