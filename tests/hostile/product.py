"""The product in one process: its functions on a table in memory, behind what API Gateway does to a request."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final
from unittest.mock import patch

from aws_lambda_powertools.event_handler.api_gateway import Router

from control_plane.routes import ROUTES as CONTROL_PLANE_ROUTES
from control_plane.routes import build_router as build_control_plane
from data_plane.routes import ROUTES as DATA_PLANE_ROUTES
from data_plane.routes import build_router as build_data_plane
from identity.routes import ROUTES as IDENTITY_ROUTES
from identity.routes import build_router as build_identity
from sluice.core.arns import ModelInRegion, ProfileArn, ProfileRefused
from sluice.core.identity import ACCESS_MS, Role
from sluice.edge.application import Application
from sluice.edge.function import Handler, build_handler
from sluice.edge.identity import Identity
from sluice.edge.requests import path_of
from sluice.repository.retries import Retries
from sluice.repository.store import Store
from sluice.repository.wire import Item
from sluice.services.acquire import Task
from sluice.services.claims import Taken
from sluice.shell import Environment, Services, build_services, logger
from tests.fakes import CountingMeter, FakeClock
from tests.hostile.gateway import Answer, answer_of, event_of
from tests.http import Context
from tests.simulation.store import PerfectWire, SimulatedStore
from tests.simulation.table import SimulatedTable
from tests.tenancy import KEY, FixedKeys, access_token

BASE_URL: Final = "http://sluice.test"
NAMESPACE: Final = "tenant"
# One is the beginning of the other, and they have the same entities and apps.
FOREIGN_NAMESPACE: Final = "tenant-2"
REQUEST_ID: Final = "request-7"
PROFILE_ARN: Final = "arn:aws:bedrock:eu-west-1:123456789012:application-inference-profile/abc"
"""The only inference profile that AWS knows. It has one model, in one region."""
PROFILE_MODEL: Final = "vendor.large-v1"
PROFILE_REGION: Final = "eu-west-1"
_JSON: Final = {"content-type": "application/json"}
_FOREIGN_ORG: Final = re.compile(rf'"org"\s*:\s*"{FOREIGN_NAMESPACE}"')


class Product:
    """Nothing in it depends on the time or on chance but by `clock` and the seed.

    `namespace`: on whose behalf requests run from now on, unless they say so themselves; the org's, or `app`'s if there
    is one. `bearer`: an access token that is used in place of it. `sent`: how many requests there were.
    """

    def __init__(self, seed: int) -> None:
        self.clock = FakeClock()
        self.random = Random(seed)
        self.namespace = NAMESPACE
        self.app: str | None = None
        self.bearer: str | None = None
        self.sent = 0
        self.meter = CountingMeter()
        self.table = SimulatedTable(self.clock)
        retries = Retries(self.clock.advance, self.random.randrange, self.meter)
        store = SimulatedStore(self.table, PerfectWire(), retries)
        self.services = services_on(store, self.clock, self.random, self.meter)
        self._data_plane = self._function(build_data_plane, DATA_PLANE_ROUTES)
        self._control_plane = self._function(build_control_plane, CONTROL_PLANE_ROUTES)
        self._identity = self._function(build_identity, IDENTITY_ROUTES)
        self._tokens: dict[tuple[str, str | None], tuple[int, str]] = {}
        # One line per request is of no use here; unexpected errors are.
        logger.setLevel("ERROR")

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        self.sent += 1
        says_who = {"authorization", "x-api-key"} & headers.keys()
        event = event_of(method, url, headers, body, REQUEST_ID)
        if not says_who:
            event["headers"] |= self._credentials(names_foreign=_names_foreign(event))
        context: Any = Context()
        return answer_of(self._handler(path_of(event))(event, context))

    def call(self, method: str, target: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
        """As a client does who means well."""
        content = b"" if body is None else json.dumps(body).encode()
        return self.send(method, BASE_URL + target, {**_JSON, **(headers or {})}, content)

    def _handler(self, path: str) -> Handler:
        """As the API's routes lead: those of the data plane have no parameters, what is left is the control plane's."""
        if path in DATA_PLANE_ROUTES:
            return self._data_plane
        of_identity = path in ("/v1/orgs", "/v1/whoami") or path.startswith(("/v1/orgs/", "/v1/auth/"))
        return self._identity if of_identity else self._control_plane

    def _credentials(self, *, names_foreign: bool) -> dict[str, str]:
        """Of the tenant's org and of the operator: whatever an endpoint asks for. An app is an app and nothing else.

        An operator may do everything to every tenant. So that what happens to the foreign one is a fault, whoever names
        it is no operator.
        """
        caller = (self.namespace, self.app)
        expires_ms, token = self._tokens.get(caller, (0, ""))
        if expires_ms <= self.clock.now_ms:
            expires_ms = self.clock.now_ms + ACCESS_MS // 2
            role = Role.ORG if self.app is None else Role.APP
            token = access_token("hostile", self.namespace, self.app or self.namespace, role, now_ms=self.clock.now_ms)
            self._tokens[caller] = expires_ms, token
        found = {"authorization": f"Bearer {self.bearer or token}"}
        is_operator = self.app is None and not (names_foreign and self.namespace != FOREIGN_NAMESPACE)
        return {**found, "x-api-key": KEY} if is_operator else found

    def wait(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)

    def copied(self) -> "Product":
        """Another process, at the same time, on a table with the same items. Nothing is cached in it yet."""
        copy = Product(0)
        copy.clock.now_ms = self.clock.now_ms
        copy.random.setstate(self.random.getstate())
        copy.namespace, copy.app = self.namespace, self.app
        for item in self.table.items():
            copy.table.put({"Item": item})
        return copy

    @property
    def changes(self) -> int:
        """How many items were changed since the beginning."""
        return len(self.table.stream)

    def items_of(self, namespace: str) -> list[Item]:
        """In the order of their keys, with what the registry has of it.

        How often somebody tried to log in is left out: that is counted for whoever tries.
        """
        found = [
            item
            for item in self.table.items()
            if str(item["PK"]).startswith(f"{namespace}/") or item.get("ns") == namespace
            if not str(item.get("entity_id", "")).startswith("$client:")
        ]
        return sorted(found, key=lambda item: (str(item["PK"]), str(item["SK"])))

    def _function(self, build_router: Callable[[Services], Router], routes: Mapping[str, Iterable[str]]) -> Handler:
        services = self.services
        identity = Identity(services.tokens, services.bearers, services.operators, self.clock)
        router = build_router(services)
        return build_handler(Application(router, routes, identity.caller, services.confinement, self.meter))


def _names_foreign(event: Mapping[str, Any]) -> bool:
    """As an org. A namespace of the older layout is another matter."""
    where = (event["rawPath"], str(event.get("queryStringParameters", "")))
    return any(FOREIGN_NAMESPACE in part for part in where) or bool(_FOREIGN_ORG.search(event.get("body", "")))


class Profiles:
    """What AWS says about inference profiles."""

    def models(self, arn: ProfileArn) -> tuple[ModelInRegion, ...]:
        if str(arn) != PROFILE_ARN:
            raise ProfileRefused("AWS knows no such inference profile")
        return (ModelInRegion(PROFILE_MODEL, PROFILE_REGION),)


def services_on(store: Store, clock: FakeClock, random: Random, meter: CountingMeter) -> Services:
    """As the product builds them, on another store, in a time and with a chance that a test rules."""
    with patch.multiple(
        "sluice.shell",
        DynamoStore=lambda *_arguments: store,
        _key_source=lambda _secret, _environment: FixedKeys(),
        _random_below=random.randrange,
        clock_ms=clock,
        timer_ms=clock,
        new_token=lambda: f"{random.getrandbits(128):032x}",
        inference_profiles=lambda _timeout_ms: Profiles(),
        run_all=_one_by_one,
    ):
        client: Any = None
        return build_services(Environment("hostile", "table", 1000), client, meter)


def _one_by_one(tasks: Sequence[Task]) -> list[Taken | Exception]:
    outcomes: list[Taken | Exception] = []
    for task in tasks:
        try:
            outcomes.append(task())
        except Exception as error:  # noqa: BLE001 - as the threads do it: whoever runs them decides
            outcomes.append(error)
    return outcomes
