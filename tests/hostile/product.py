"""The product in one process: both functions on a table in memory, behind what API Gateway does to a request."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final
from unittest.mock import patch

from aws_lambda_powertools.event_handler.api_gateway import Router

from control_plane.routes import ROUTES as CONTROL_PLANE_ROUTES
from control_plane.routes import build_router as build_control_plane
from data_plane.routes import OPEN_PATHS
from data_plane.routes import ROUTES as DATA_PLANE_ROUTES
from data_plane.routes import build_router as build_data_plane
from sluice.edge.application import Application, Caller, Event
from sluice.edge.function import Handler, build_handler
from sluice.edge.requests import path_of
from sluice.repository.retries import Retries
from sluice.repository.store import Store
from sluice.repository.wire import Item
from sluice.services.acquire import Task
from sluice.services.claims import Taken
from sluice.services.signing import SigningKeys
from sluice.shell import Environment, Services, build_services, logger
from tests.fakes import CountingMeter, FakeClock
from tests.hostile.gateway import Answer, answer_of, event_of
from tests.http import Context
from tests.simulation.store import PerfectWire, SimulatedStore
from tests.simulation.table import SimulatedTable

BASE_URL: Final = "http://sluice.test"
NAMESPACE: Final = "tenant"
REQUEST_ID: Final = "request-7"
_JSON: Final = {"content-type": "application/json"}


class FixedKeys:
    def known(self) -> SigningKeys:
        return SigningKeys(b"k" * 64)

    looked_up = known


class Product:
    """Nothing in it depends on the time or on chance but by `clock` and the seed.

    `namespace`: on whose behalf requests run from now on. `sent`: how many there were.
    """

    def __init__(self, seed: int) -> None:
        self.clock = FakeClock()
        self.random = Random(seed)
        self.namespace = NAMESPACE
        self.sent = 0
        self.meter = CountingMeter()
        self.table = SimulatedTable(self.clock)
        retries = Retries(self.clock.advance, self.random.randrange, self.meter)
        store = SimulatedStore(self.table, PerfectWire(), retries)
        self.services = services_on(store, self.clock, self.random, self.meter)
        self._data_plane = self._function(build_data_plane, DATA_PLANE_ROUTES)
        self._control_plane = self._function(build_control_plane, CONTROL_PLANE_ROUTES)
        # One line per request is of no use here; unexpected errors are.
        logger.setLevel("ERROR")

    def send(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        self.sent += 1
        event = event_of(method, url, headers, body, REQUEST_ID)
        # The routes of the data plane have no parameters; all other paths go to the control plane.
        handler = self._data_plane if path_of(event) in DATA_PLANE_ROUTES else self._control_plane
        context: Any = Context()
        return answer_of(handler(event, context))

    def call(self, method: str, target: str, body: object = None, headers: Mapping[str, str] | None = None) -> Answer:
        """As a client does who means well."""
        content = b"" if body is None else json.dumps(body).encode()
        return self.send(method, BASE_URL + target, {**_JSON, **(headers or {})}, content)

    def wait(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)

    def copied(self) -> "Product":
        """Another process, at the same time, on a table with the same items. Nothing is cached in it yet."""
        copy = Product(0)
        copy.clock.now_ms = self.clock.now_ms
        copy.random.setstate(self.random.getstate())
        copy.namespace = self.namespace
        for item in self.table.items():
            copy.table.put({"Item": item})
        return copy

    @property
    def changes(self) -> int:
        """How many items were changed since the beginning."""
        return len(self.table.stream)

    def items_of(self, namespace: str) -> list[Item]:
        """In the order of their keys."""
        found = [item for item in self.table.items() if str(item["PK"]).startswith(f"{namespace}/")]
        return sorted(found, key=lambda item: (str(item["PK"]), str(item["SK"])))

    def _function(self, build_router: Callable[[Services], Router], routes: Mapping[str, Iterable[str]]) -> Handler:
        return build_handler(Application(build_router(self.services), routes, self._identify, self.meter))

    def _identify(self, event: Event) -> Caller | None:
        return None if path_of(event) in OPEN_PATHS else Caller(self.namespace)


def services_on(store: Store, clock: FakeClock, random: Random, meter: CountingMeter) -> Services:
    """As the product builds them, on another store, in a time and with a chance that a test rules."""
    with patch.multiple(
        "sluice.shell",
        DynamoStore=lambda *_arguments: store,
        _key_source=lambda _environment: FixedKeys(),
        _random_below=random.randrange,
        clock_ms=clock,
        timer_ms=clock,
        new_token=lambda: f"{random.getrandbits(128):032x}",
        run_all=_one_by_one,
    ):
        client: Any = None
        return build_services(Environment("hostile", "table", 1000, None), client, meter)


def _one_by_one(tasks: Sequence[Task]) -> list[Taken | Exception]:
    outcomes: list[Taken | Exception] = []
    for task in tasks:
        try:
            outcomes.append(task())
        except Exception as error:  # noqa: BLE001 - as the threads do it: whoever runs them decides
            outcomes.append(error)
    return outcomes
