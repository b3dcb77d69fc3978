"""One synth per environment and test run: each takes seconds."""

from collections.abc import Callable

import pytest

from stacks.composition import compose
from stacks.settings import ENVIRONMENTS
from tests.infrastructure.assembly import Assembly, new_app


@pytest.fixture(scope="session")
def synthesized(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Assembly]:
    done: dict[str, Assembly] = {}

    def synthesize(environment: str) -> Assembly:
        if environment not in done:
            folder = tmp_path_factory.mktemp(f"assembly-{environment}")
            app = new_app(folder)
            compose(app, ENVIRONMENTS[environment])
            app.synth()
            done[environment] = Assembly(settings=ENVIRONMENTS[environment], folder=folder)
        return done[environment]

    return synthesize


@pytest.fixture(scope="session")
def prod(synthesized: Callable[[str], Assembly]) -> Assembly:
    return synthesized("prod")


@pytest.fixture(scope="session")
def local(synthesized: Callable[[str], Assembly]) -> Assembly:
    return synthesized("local")


@pytest.fixture(scope="session", params=tuple(ENVIRONMENTS))
def each(request: pytest.FixtureRequest, synthesized: Callable[[str], Assembly]) -> Assembly:
    """Every environment in turn."""
    return synthesized(request.param)
