"""Budgets bind an app: with its own token it neither removes them, nor moves out of them, nor begins them anew."""

from typing import Any

import pytest

from sluice.core.identity import Role
from sluice.repository.wire import Item
from tests.hostile.gateway import Answer
from tests.hostile.product import Product
from tests.hostile.test_confinement import APP, OWNER, headers
from tests.tenancy import tenant_items

TEAM, USER = "team-of-app", "user-of-app"
HARD = {"day_cost_usd_micros": 1_000_000, "enforcement": "hard"}
SOFT = {"day_cost_usd_micros": 1_000_000, "enforcement": "soft"}
AS_ORG = (OWNER, Role.ORG)
AS_APP = (APP, Role.APP)
DAY_MS = 86_400_000


@pytest.fixture
def product() -> Product:
    """An app with a team, and a user in that."""
    product = Product(7)
    for item in tenant_items(OWNER, OWNER, APP):
        product.table.put({"Item": item})
    put(product, f"/v1/entities/{TEAM}", {"parent": APP})
    put(product, f"/v1/entities/{USER}", {"parent": TEAM})
    price = {"standard": {"input_usd_micros_per_1m": 1_000_000, "output_usd_micros_per_1m": 1_000_000}}
    put(product, "/v1/prices?model_id=m", price)
    return product


def ask(product: Product, caller: tuple[str, Role], method: str, target: str, body: object = None) -> Answer:
    return product.call(method, target, body, headers(product, OWNER, *caller))


def put(product: Product, target: str, body: object) -> None:
    assert ask(product, AS_ORG, "PUT", target, body).status in (200, 201)


def spend(product: Product, request_id: str = "r-1") -> None:
    """Half a dollar."""
    said = {"request_id": request_id, "entity": USER, "model_id": "m", "status": "ok"}
    event: dict[str, Any] = {**said, "input_tokens": 500_000, "output_tokens": 0}
    assert ask(product, AS_APP, "POST", "/v1/usage", event).status == 202


def refused(product: Product, method: str, target: str, body: object = None) -> None:
    before: list[Item] = product.items_of(OWNER)
    answer = ask(product, AS_APP, method, target, body)
    assert (answer.status, answer.json()["type"]) == (403, "urn:sluice:problem:forbidden"), answer.body
    assert "org's token" in answer.json()["detail"]
    assert product.items_of(OWNER) == before


@pytest.mark.parametrize("budget", [HARD, SOFT, {"enforcement": "none"}])
def test_a_budget_of_its_own_is_the_orgs_to_remove(product: Product, budget: dict[str, object]) -> None:
    put(product, f"/v1/budgets/{USER}", budget)
    refused(product, "DELETE", f"/v1/entities/{USER}")
    # And once it is removed there is nothing to get out of.
    assert ask(product, AS_ORG, "DELETE", f"/v1/budgets/{USER}").status == 204
    assert ask(product, AS_APP, "DELETE", f"/v1/entities/{USER}").status == 204


def test_the_org_removes_what_it_has_bound(product: Product) -> None:
    put(product, f"/v1/budgets/{USER}", HARD)
    spend(product)
    assert ask(product, AS_ORG, "DELETE", f"/v1/entities/{USER}").status == 204


@pytest.mark.parametrize("parent", [APP, "another-team"])
def test_nobody_is_moved_out_of_a_budget(product: Product, parent: str) -> None:
    put(product, f"/v1/budgets/{TEAM}", HARD)
    put(product, "/v1/entities/another-team", {"parent": APP})
    refused(product, "PUT", f"/v1/entities/{USER}", {"parent": parent})
    # Its name is the app's to change.
    assert ask(product, AS_APP, "PUT", f"/v1/entities/{USER}", {"name": "x"}).status == 200


@pytest.mark.parametrize(
    ("target", "body"),
    [
        (f"/v1/budgets/{TEAM}", HARD),
        (f"/v1/budgets/{TEAM}", {"enforcement": "none"}),
        (f"/v1/limits/entities/{TEAM}/r", {"limits": {"rpm": {"capacity": 9, "refill_period_seconds": 60}}}),
    ],
)
def test_nobody_is_removed_to_be_made_anew_out_of_a_budget(product: Product, target: str, body: object) -> None:
    """Hole: what may not be moved was removed, and put elsewhere."""
    put(product, target, body)
    refused(product, "DELETE", f"/v1/entities/{USER}")
    assert ask(product, AS_ORG, "DELETE", target).status == 204
    assert ask(product, AS_APP, "DELETE", f"/v1/entities/{USER}").status == 204


def test_what_binds_all_of_an_app_keeps_nobody_in_it(product: Product) -> None:
    """Whatever is made anew stands below it again."""
    for entity in (APP, OWNER):
        put(product, f"/v1/budgets/{entity}", HARD)
    assert ask(product, AS_APP, "DELETE", f"/v1/entities/{USER}").status == 204


def test_a_new_id_is_the_apps_to_put_wherever_it_likes(product: Product) -> None:
    """So a budget of a team binds who is in it, and no users that the app makes up."""
    put(product, f"/v1/budgets/{TEAM}", HARD)
    assert ask(product, AS_APP, "PUT", "/v1/entities/made-up", {"parent": APP}).status == 201


def test_who_stays_below_a_budget_may_move(product: Product) -> None:
    for entity in (USER, APP):
        put(product, f"/v1/budgets/{entity}", HARD)
    assert ask(product, AS_APP, "PUT", f"/v1/entities/{USER}", {"parent": APP}).status == 200


def test_nobody_begins_an_inherited_hard_budget_anew(product: Product) -> None:
    put(product, "/v1/budgets/_default_", HARD)
    spend(product)
    refused(product, "DELETE", f"/v1/entities/{USER}")
    # Tomorrow nothing of it is spent yet.
    product.wait(DAY_MS)
    assert ask(product, AS_APP, "DELETE", f"/v1/entities/{USER}").status == 204


def test_a_default_that_became_hard_binds_at_once(product: Product) -> None:
    """Though the ledger, which nobody wrote since, does not know it."""
    put(product, "/v1/budgets/_default_", SOFT)
    spend(product)
    put(product, "/v1/budgets/_default_", HARD)
    refused(product, "DELETE", f"/v1/entities/{USER}")


@pytest.mark.parametrize("budget", [SOFT, {"enforcement": "none"}, {"day_cost_usd_micros": 9, "enforcement": "none"}])
def test_what_binds_nobody_keeps_nobody(product: Product, budget: dict[str, object]) -> None:
    put(product, "/v1/budgets/_default_", budget)
    spend(product)
    assert ask(product, AS_APP, "DELETE", f"/v1/entities/{USER}").status == 204


def test_who_has_spent_nothing_may_go(product: Product) -> None:
    put(product, "/v1/budgets/_default_", HARD)
    assert ask(product, AS_APP, "DELETE", f"/v1/entities/{USER}").status == 204


def test_alerts_of_an_earlier_entity_are_not_an_apps_to_see(product: Product) -> None:
    half = {"entity": USER, "resource": "r", "consume": {}, "reserve": {"cost_usd_micros": 600_000}}

    def seen(caller: tuple[str, Role]) -> list[str]:
        alerts = ask(product, caller, "GET", f"/v1/budgets/{USER}/alerts").json()["items"]
        return [alert["type"] for alert in alerts]

    for times in (1, 2):
        put(product, f"/v1/budgets/{USER}", HARD)
        assert seen(AS_APP) == []
        spend(product, f"r-{times}")
        assert ask(product, AS_APP, "POST", "/v1/acquire", half).status == 429
        assert seen(AS_APP) == ["budget.hard_cap"]
        assert seen(AS_ORG) == ["budget.hard_cap"] * times
        assert ask(product, AS_ORG, "DELETE", f"/v1/entities/{USER}").status == 204
        product.wait(1_000)
        put(product, f"/v1/entities/{USER}", {"parent": TEAM})
