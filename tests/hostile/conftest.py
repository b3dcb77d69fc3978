"""One furnished product, copied for each test; and how many requests there were."""

from collections.abc import Callable
from typing import Any

import pytest

from sluice.edge.problems import TYPE_PREFIX
from tests.hostile.bad import Bad
from tests.hostile.checks import complaints
from tests.hostile.document import register_formats
from tests.hostile.furniture import Known, furnish
from tests.hostile.fuzz import SEED, Fuzz
from tests.hostile.gateway import Answer
from tests.hostile.product import BASE_URL, Product

_REQUESTS = "requests"
_requests: list[int] = []


@pytest.fixture(scope="session")
def furniture() -> tuple[Product, Known]:
    product = Product(SEED)
    known = furnish(product)
    register_formats(known)
    return product, known


@pytest.fixture(scope="session")
def furnished(furniture: tuple[Product, Known]) -> Product:
    return furniture[0]


@pytest.fixture(scope="session")
def known(furniture: tuple[Product, Known]) -> Known:
    return furniture[1]


@pytest.fixture
def product(furnished: Product) -> Product:
    return furnished.copied()


@pytest.fixture
def fuzz(product: Product) -> Fuzz:
    return Fuzz(product, BASE_URL, lambda: product.changes)


@pytest.fixture
def conclude(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Callable[[Fuzz], None]:
    """Called at the end of a test: fails if an answer was wrong, and counts the requests."""

    def concluded(fuzz: Fuzz) -> None:
        record_property(_REQUESTS, fuzz.sent)
        fuzz.conclude(request.node.nodeid)

    return concluded


@pytest.fixture
def refused(product: Product) -> Callable[[Bad], Answer]:
    """Sends it, and sees that it is refused as it must be and changes nothing."""

    def asked(bad: Bad) -> Answer:
        before = product.changes
        answer = product.call(bad.method, bad.target, bad.body, bad.headers)
        problem = answer.json()
        found = (answer.status, problem.get("type", "").removeprefix(TYPE_PREFIX), problem.get("field"))
        assert found == (bad.status, bad.kind, bad.blamed), answer
        path = bad.target.partition("?")[0]
        assert list(complaints(bad.method, path, answer, changed=product.changes != before)) == []
        return answer

    return asked


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: nobody waits for it at the end."""
    items.sort(key=lambda item: "test_links_are_followed" not in item.name)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        _requests.extend(int(str(count)) for name, count in report.user_properties if name == _REQUESTS)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _requests:
        terminalreporter.write_line(f"{sum(_requests)} generated requests with seed {SEED}")
