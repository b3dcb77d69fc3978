"""Operations one after the other: what one answers, the next is asked with."""

from collections.abc import Callable

import pytest
from schemathesis import Response

from tests.hostile.fuzz import REQUESTS, SEED, Case, Fuzz
from tests.hostile.generated import Variety, schema_of
from tests.hostile.product import BASE_URL, FOREIGN_NAMESPACE, Product
from tests.hostile.sequences import Scenario, follow_links

PARTS = 1 if REQUESTS <= 20_000 else 2
# Mostly at once, and now and then after leases and caches are over.
PAUSES_MS = (0, 0, 0, 0, 1, 1, 1, 40, 40, 1_500, 1_500, 400_000)
LOGINS = ("/v1/auth/token", "/v1/auth/refresh")
# After each request: the next is sent by the org and the operator again.
FORGOTTEN = 0.2
REACHED = (
    "POST /v1/acquire",
    "POST /v1/leases/adjust",
    "POST /v1/leases/settle",
    "POST /v1/leases/release",
    "PUT /v1/entities/{entity}",
    "DELETE /v1/entities/{entity}",
    "PUT /v1/limits/entities/{entity}/{resource}",
    "GET /v1/entities/{entity}/children",
    "POST /v1/migrations",
    "GET /v1/jobs/{job}",
    "PUT /v1/orgs/{org}",
    "DELETE /v1/orgs/{org}",
    "PUT /v1/orgs/{org}/apps/{app}",
    "POST /v1/orgs/{org}/apps/{app}/credentials/rotate",
    "POST /v1/auth/token",
    "POST /v1/auth/refresh",
    "POST /v1/auth/revoke",
    "GET /v1/whoami",
    "PUT /v1/labels/{label}",
    "PUT /v1/inference-profiles/{label}",
    "PUT /v1/prices",
    "POST /v1/prices/quote",
    "POST /v1/usage",
    "POST /v1/usage/batch",
    "GET /v1/selection",
    "PUT /v1/selection/override",
    "DELETE /v1/selection/override",
    "GET /v1/aggregates",
    "POST /v1/aggregates/rollup",
    "GET /v1/events",
)
"""What sequences must have succeeded in, or they would say nothing."""
ENOUGH = 2_000
# Chance may leave out one or two.
MISSED_MAX = 2


class OwnProduct(Scenario):
    """Every sequence has a product of its own; at the end the jobs that it started are run."""

    def __init__(self, furnished: Product, fuzz: Fuzz) -> None:
        self._product = furnished.copied()
        self._fuzz = fuzz
        self._foreign = self._product.items_of(FOREIGN_NAMESPACE)

    def begin(self) -> None:
        self._fuzz.target = self._product
        self._fuzz.changes = lambda: self._product.changes

    def after(self, case: Case, response: Response) -> None:
        """Whoever logs in goes on as that client, until its token is worth nothing or another one comes."""
        if case.operation.path in LOGINS and response.status_code == 200:
            self._product.bearer = response.json()["access_token"]
        elif response.status_code in (401, 403) or self._product.random.random() < FORGOTTEN:
            self._product.bearer = None
        self._product.wait(self._product.random.choice(PAUSES_MS))

    def end(self) -> None:
        services = self._product.services
        run = services.jobs.run_open(services.work, lambda: False)
        self._fuzz.failures += [f"a {failure.kind} failed: {failure.error!r}" for failure in run.failures]
        if self._product.items_of(FOREIGN_NAMESPACE) != self._foreign:
            self._fuzz.failures.append("what belongs to another tenant was changed")


@pytest.mark.parametrize("part", range(PARTS))
def test_links_are_followed(part: int, furnished: Product, conclude: Callable[[Fuzz], None]) -> None:
    fuzz = Fuzz(furnished, BASE_URL, exact=False)
    count = REQUESTS * 2 // 5 // PARTS
    reached = follow_links(fuzz, lambda: OwnProduct(furnished, fuzz), count=count, seed=SEED + 1000 * part)
    conclude(fuzz)
    succeeded = {label for label, status in reached if status < 300}
    missed = [label for label in REACHED if label not in succeeded]
    assert count < ENOUGH or len(missed) <= MISSED_MAX, missed


def test_the_links_lead_somewhere() -> None:
    """A link to an operation or parameter that is not there is refused when the machine is built."""
    schema = schema_of(Variety.VALID)
    assert schema.statistic.transitions.total >= 90
    schema.as_state_machine()
