"""One synth and one deployment for all end-to-end tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from local.deploy import Outputs, deploy, synth
from local.engine import Engine
from tests.e2e.api import Api


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
def api(outputs: Outputs) -> Api:
    return Api(outputs.api_url)
