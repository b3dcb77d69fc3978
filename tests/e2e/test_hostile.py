"""Generated requests over HTTP to the deployed stacks: each operation, and sequences along the links."""

import http.client
import json
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import pytest

from tests.e2e.api import Api
from tests.hostile.document import operation_labels, register_formats
from tests.hostile.furniture import furnish_tenant
from tests.hostile.fuzz import SEED, Case, Fuzz
from tests.hostile.gateway import Answer
from tests.hostile.generated import Variety, generate
from tests.hostile.sequences import Scenario, follow_links

REQUESTS = 300
JSON = {"content-type": "application/json"}


class Deployed:
    """Sends what it is given, as it is, as an org of its own and as the operator: whatever an endpoint asks for."""

    namespace = "hostile"

    def __init__(self, operator: Api) -> None:
        made = operator.call("PUT", f"/v1/orgs/{self.namespace}", {})
        assert made.status == 201, made.body
        self.url = operator.url
        self._caller = {**operator.headers, **operator.logged_in(made.json()).headers}

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        address = urlsplit(url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        try:
            target = f"{address.path}?{address.query}" if address.query else address.path
            connection.request(method, target, body or None, {**self._caller, **headers})
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def call(self, method: str, target: str, body: object = None) -> Answer:
        content = b"" if body is None else json.dumps(body).encode()
        return self.send(method, self.url + target, JSON if content else {}, content)

    def wait(self, duration_ms: int) -> None:
        time.sleep(duration_ms / 1000)


@pytest.fixture(scope="module")
def deployed(operator: Api) -> Deployed:
    target = Deployed(operator)
    register_formats(furnish_tenant(target))
    return target


def test_generated_requests(deployed: Deployed, request: pytest.FixtureRequest) -> None:
    fuzz = Fuzz(deployed, deployed.url)
    each = -(-REQUESTS // 2 // len(operation_labels()))
    for method, path in operation_labels():
        for variety in Variety:
            fuzz.exact = variety is not Variety.LIKELY
            generate(variety, method, path, count=each, seed=SEED, run=lambda case: _if_sendable(fuzz, case))
    fuzz.conclude(request.node.nodeid)
    assert fuzz.sent >= REQUESTS // 2


def test_links_are_followed(deployed: Deployed, request: pytest.FixtureRequest) -> None:
    fuzz = Fuzz(deployed, deployed.url, exact=False)
    reached = follow_links(fuzz, Scenario, count=REQUESTS // 2, seed=SEED)
    fuzz.conclude(request.node.nodeid)
    assert len({label for label, _status in reached}) >= 15


def _if_sendable(fuzz: Fuzz, case: Case) -> None:
    """Headers with signs beyond printable ASCII end at the server, before anything of ours."""
    if all(str(value).isascii() and str(value).isprintable() for value in case.headers.values()):
        fuzz.run(case)
