"""One synth and one deployment for all end-to-end tests, with an org of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from local.deploy import Outputs, deploy, read_operator_key, synth
from local.engine import Engine
from tests.e2e.api import Api

ORG = "e2e"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes minutes by itself is begun by an early test and looked at by a late one."""
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    return (item.get_closest_marker("late") is not None) - (item.get_closest_marker("early") is not None)


@pytest.fixture(scope="session")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synth(tmp_path_factory.mktemp("assembly"))


@pytest.fixture(scope="session")
def deployed_engine(assembly: Path) -> Iterator[tuple[Engine, Outputs]]:
    with Engine() as engine:
        yield engine, deploy(engine, assembly)


@pytest.fixture(scope="session")
def outputs(deployed_engine: tuple[Engine, Outputs]) -> Outputs:
    return deployed_engine[1]


@pytest.fixture(scope="session")
def nobody(outputs: Outputs) -> Api:
    """Without a token."""
    return Api(outputs.api_url)


@pytest.fixture(scope="session")
def operator(deployed_engine: tuple[Engine, Outputs], nobody: Api) -> Api:
    engine, outputs = deployed_engine
    return Api(nobody.url, {"x-api-key": read_operator_key(engine.endpoint, outputs)})


@pytest.fixture(scope="session")
def api(operator: Api) -> Api:
    """As the org of these tests. An access token lives an hour, much longer than they take."""
    made = operator.call("PUT", f"/v1/orgs/{ORG}", {})
    assert made.status == 201, made.body
    return operator.logged_in(made.json())
