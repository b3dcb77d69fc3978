"""Every operation alone: requests as documented, about what exists, not as documented, and at every bound."""

from collections.abc import Callable

import pytest

from control_plane.routes import ROUTES as CONTROL_PLANE_ROUTES
from data_plane.routes import ROUTES as DATA_PLANE_ROUTES
from identity.routes import ROUTES as IDENTITY_ROUTES
from tests.hostile.document import operation_labels
from tests.hostile.fuzz import REQUESTS, SEED, Fuzz
from tests.hostile.generated import Variety, boundaries, generate
from tests.hostile.product import FOREIGN_NAMESPACE, Product

OPERATIONS = [
    (method, path.replace("<", "{").replace(">", "}"))
    for path, methods in {**DATA_PLANE_ROUTES, **CONTROL_PLANE_ROUTES, **IDENTITY_ROUTES}.items()
    for method in methods
]
EACH = REQUESTS // 2 // len(OPERATIONS) // len(Variety)

operations = pytest.mark.parametrize(
    ("method", "path"), [pytest.param(method, path, id=f"{method} {path}") for method, path in OPERATIONS]
)


def test_every_route_is_in_the_document() -> None:
    assert sorted(OPERATIONS) == sorted(operation_labels())


@operations
@pytest.mark.parametrize("variety", Variety)
def test_generated_requests(
    variety: Variety, method: str, path: str, product: Product, fuzz: Fuzz, conclude: Callable[[Fuzz], None]
) -> None:
    foreign = product.items_of(FOREIGN_NAMESPACE)
    fuzz.exact = variety is not Variety.LIKELY
    generate(variety, method, path, count=EACH, seed=SEED, run=fuzz.run)
    conclude(fuzz)
    assert product.items_of(FOREIGN_NAMESPACE) == foreign


@operations
def test_bounds(method: str, path: str, fuzz: Fuzz, conclude: Callable[[Fuzz], None]) -> None:
    for case in boundaries(method, path):
        fuzz.run(case)
    conclude(fuzz)
    assert fuzz.sent >= 3
