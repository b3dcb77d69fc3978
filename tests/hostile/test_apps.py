"""Requests with an app's token: nothing outside its own entity and those below it is changed, whatever is asked for."""

from collections.abc import Callable, Iterator, Mapping

import pytest

from sluice.core.identity import Role
from sluice.edge.access import ACCESS
from sluice.repository.keys import Key, key_of
from sluice.repository.wire import Item
from tests.hostile.document import operation_labels
from tests.hostile.furniture import APP, APP_USER, OTHER_APP, OTHER_APP_USER, RESOURCES, TEAM, Known
from tests.hostile.fuzz import REQUESTS, SEED, Fuzz
from tests.hostile.generated import Variety, generate
from tests.hostile.product import FOREIGN_NAMESPACE, NAMESPACE, Product
from tests.hostile.test_bad_money import EVENT, MODEL_PRICE, PROFILE

Items = Mapping[Key, Item]


def roles_for(method: str, path: str) -> frozenset[Role]:
    return ACCESS[method, path.replace("{", "<").replace("}", ">")].roles


FOR_APPS = [label for label in operation_labels() if Role.APP in roles_for(*label)]
FOR_OTHERS = [label for label in operation_labels() if roles_for(*label) and label not in FOR_APPS]
EACH = REQUESTS // 8 // len(FOR_APPS) // 2
# Made once and never again: what they were, they stay.
_WRITTEN_ONCE = frozenset({"lease", "idempotent_answer", "audit", "usage_event"})


@pytest.fixture
def app(product: Product, known: Known) -> Product:
    """The tenant's app, logged in."""
    assert known.identity is not None
    login = {"client_id": known.identity.client_ids[0], "client_secret": known.identity.client_secrets[0]}
    product.app = APP
    product.bearer = product.call("POST", "/v1/auth/token", login).json()["access_token"]
    assert product.call("GET", "/v1/whoami").json()["entity"] == APP
    return product


def items(product: Product) -> Items:
    return {key_of(item): item for item in product.items_of(NAMESPACE)}


def parents(found: Items) -> dict[str, str | None]:
    """Of every entity, by what the items say of themselves."""
    entities = [item for item in found.values() if item["kind"] == "entity"]
    return {str(item["entity_id"]): str(above) if (above := item.get("parent_id")) else None for item in entities}


def stands_below_app(entity: str | None, above: Mapping[str, str | None]) -> bool:
    while entity is not None and entity != APP:
        entity = above.get(entity)
    return entity == APP


def trespasses(before: Items, after: Items, client_id: str) -> Iterator[str]:
    """What an app has done that it must not."""
    was, became = parents(before), parents(after)
    others = {entity for entity in was if not stands_below_app(entity, was)}
    for entity in became.keys() - was.keys():
        if not stands_below_app(entity, became):
            yield f"{entity} was made elsewhere"
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if old != new and not _may_change(old, new, others, client_id):
            yield f"{key} was changed from {old} to {new}"


def _may_change(old: Item | None, new: Item | None, others: set[str], client_id: str) -> bool:
    item = new or old or {}
    kind, whose = item["kind"], item.get("entity_id", item.get("subject"))
    if kind in _WRITTEN_ONCE and old is not None:
        return False
    if kind in {"bucket", "cost_shard", "ledger"} and whose == NAMESPACE:
        # What an app takes is taken from its org as well, and what it used is counted for both.
        return True
    if kind == "revoked":
        return item["client_id"] == client_id
    return kind in {"lease", "idempotent_answer"} if whose is None else kind != "client" and whose not in others


@pytest.mark.parametrize("variety", [Variety.LIKELY, Variety.INVALID])
@pytest.mark.parametrize(("method", "path"), [pytest.param(*label, id=" ".join(label)) for label in FOR_APPS])
def test_an_app_changes_nothing_but_its_own(
    variety: Variety, method: str, path: str, app: Product, known: Known, fuzz: Fuzz, conclude: Callable[[Fuzz], None]
) -> None:
    assert known.identity is not None
    before, foreign = items(app), app.items_of(FOREIGN_NAMESPACE)
    fuzz.exact = variety is Variety.INVALID
    generate(variety, method, path, count=EACH, seed=SEED, run=fuzz.run)
    conclude(fuzz)
    assert list(trespasses(before, items(app), known.identity.client_ids[0])) == []
    assert app.items_of(FOREIGN_NAMESPACE) == foreign


def test_whatever_else_there_is_an_app_is_refused(app: Product, fuzz: Fuzz, conclude: Callable[[Fuzz], None]) -> None:
    before = app.table.items()
    for method, path in FOR_OTHERS:
        generate(Variety.LIKELY, method, path, count=3, seed=SEED, run=fuzz.run)
    conclude(fuzz)
    # The operator's endpoints know no token; and where no org is named that is the app's own, there is nothing.
    assert fuzz.statuses.keys() <= {401, 403, 404}, fuzz.statuses
    assert app.table.items() == before


def test_what_an_app_may_do_is_told_from_what_it_may_not(app: Product) -> None:
    """The judge itself: else the tests above would pass whatever an app did."""
    start = items(app)

    def told(after: Items) -> list[str]:
        return list(trespasses(start, after, "its client"))

    assert told(start) == []
    take = {"entity": APP_USER, "resource": RESOURCES[0], "consume": {"rpm": 1}}
    assert app.call("POST", "/v1/acquire", take).status == 201
    assert app.call("PUT", "/v1/entities/new", {}).status == 201
    assert app.call("PUT", f"/v1/entities/{APP_USER}", {"name": "changed"}).status == 200
    override = {"entity": APP_USER, "label": "economy", "reason": "because"}
    assert app.call("POST", "/v1/usage", {**EVENT, "entity": APP_USER}).status == 202
    assert app.call("PUT", "/v1/selection/override", {**override, "label": "standard"}).status == 200
    assert app.call("PUT", f"/v1/inference-profiles/new?app={APP}", PROFILE).status == 201
    own = items(app)
    assert own != start
    assert told(own) == []
    app.app = app.bearer = None
    for method, target, body in (
        ("PUT", "/v1/entities/elsewhere", {}),
        ("PUT", f"/v1/entities/{TEAM}", {"parent": APP}),
        ("PUT", f"/v1/entities/{OTHER_APP_USER}", {"name": "changed"}),
        ("PUT", f"/v1/limits/resources/{RESOURCES[0]}", {"limits": {"rpm": None}}),
        ("PUT", f"/v1/orgs/{NAMESPACE}/apps/{APP}", {"name": "changed"}),
        ("POST", f"/v1/orgs/{NAMESPACE}/apps/{APP}/credentials/rotate", {}),
        ("POST", "/v1/acquire", {**take, "entity": OTHER_APP_USER}),
        ("POST", "/v1/usage", {**EVENT, "entity": OTHER_APP_USER}),
        ("PUT", "/v1/selection/override", {**override, "entity": OTHER_APP_USER}),
        ("PUT", f"/v1/inference-profiles/new?app={OTHER_APP}", PROFILE),
        ("PUT", "/v1/inference-profiles/new", PROFILE),
        ("PUT", "/v1/labels/new", {"model_id": "m"}),
        ("PUT", "/v1/prices?model_id=m", MODEL_PRICE),
    ):
        copy = app.copied()
        assert copy.call(method, target, body).status in (200, 201, 202)
        assert told(items(copy)) != [], target


def test_usage_before_the_app_was_made(app: Product) -> None:
    """Hole: the table refuses bounds that cross, and takes them for our fault."""
    asked = "resource=gpt-4&from=2020-01-01T00:00:00Z&to=2020-01-01T05:00:00Z"
    answer = app.call("GET", f"/v1/entities/{APP_USER}/usage?{asked}")
    assert (answer.status, answer.json()) == (200, {"items": [], "next_cursor": None})


def test_a_cursor_of_an_audit_trail_that_began_anew(app: Product) -> None:
    """Hole: the table refuses a place before the bounds that moved, and takes it for our fault."""
    path, trail = "/v1/entities/made-anew", "/v1/audit?entity=made-anew&limit=1"
    for number in range(3):
        assert app.call("PUT", path, {"parent": APP, "metadata": {"number": str(number)}}).status in (200, 201)
        app.wait(1)
    cursor = app.call("GET", trail).json()["next_cursor"]
    assert app.call("DELETE", path).status == 204
    app.wait(1)
    assert app.call("PUT", path, {"parent": APP}).status == 201
    answer = app.call("GET", f"{trail}&cursor={cursor}")
    assert (answer.status, answer.json()) == (200, {"items": [], "next_cursor": None})
