"""Tenants and entities with ids that look like one another: what is removed of one is removed of nobody else."""

from collections import defaultdict
from random import Random

import pytest

from sluice.core.limits import Scope
from sluice.repository import keys
from sluice.repository.clients import CLIENT
from sluice.repository.keys import Key, key_of
from sluice.repository.namespaces import NAMESPACE
from sluice.repository.revocations import REVOKED
from sluice.repository.wire import Item
from sluice.shell import Services
from tests.hostile.fuzz import SEED
from tests.hostile.ids import hostile_ids
from tests.hostile.product import Product
from tests.hostile.tenants import (
    ENTITIES,
    NAMESPACES,
    OPERATOR,
    RESOURCES,
    app_of,
    live,
    org_of,
    purge,
    register,
    spend,
)

Items = dict[Key, Item]
OF_MONEY = frozenset(
    {"label", "price", "inference_profile", "usage_event", "cost_shard", "daily_total", "sticky_state", "ledger"}
)
# What the registry keeps about a tenant; each kind is there for every one of them.
OF_REGISTRY = frozenset({NAMESPACE, CLIENT, REVOKED})


def items_by_owner(product: Product) -> dict[str, Items]:
    """Of each tenant, by the text before the first separator; the registry's records are about whom they say."""
    found: dict[str, Items] = defaultdict(dict)
    for item in product.table.items():
        key = key_of(item)
        owner = key.pk.partition("/")[0]
        if owner == keys.REGISTRY_NAMESPACE and item["kind"] in OF_REGISTRY:
            owner = keys.encode(str(item["ns"]))
        found[owner][key] = item
    return found


def inhabited(namespaces: list[str], entities: list[str], resources: list[str]) -> Product:
    product = Product(SEED)
    for namespace in namespaces:
        register(product.services, namespace, product.clock)
        live(product.services, namespace, entities, resources)
    return product


def test_a_purge_leaves_every_other_tenant_as_it_was() -> None:
    product = inhabited(list(NAMESPACES), list(ENTITIES[:3]), list(RESOURCES[:2]))
    random = Random(SEED)
    left = list(NAMESPACES)
    while left:
        target = left.pop(random.randrange(len(left)))
        before = items_by_owner(product)
        assert len(before[keys.encode(target)]) > 50
        kinds = {str(item["kind"]) for item in before[keys.encode(target)].values()}
        assert kinds >= OF_REGISTRY | OF_MONEY | {"org", "app"}
        purge(product.services, target, product.clock)
        after = items_by_owner(product)
        assert set(after.get(keys.encode(target), {})) == set()
        for namespace in left:
            owner = keys.encode(namespace)
            assert after[owner] == before[owner], (target, namespace)
    assert {str(item["kind"]) for item in product.table.items()} == {"job"}


def test_what_one_tenant_removes_stays_with_the_others() -> None:
    product = inhabited(list(NAMESPACES), list(ENTITIES[:4]), list(RESOURCES[:2]))
    for number, namespace in enumerate(NAMESPACES):
        before = items_by_owner(product)
        remove(product.services, namespace, ENTITIES[number % 4], RESOURCES[number % 2])
        after = items_by_owner(product)
        assert after[keys.encode(namespace)] != before[keys.encode(namespace)]
        for other in set(NAMESPACES) - {namespace}:
            owner = keys.encode(other)
            assert after[owner] == before[owner], (namespace, other)


def remove(services: Services, namespace: str, entity: str, resource: str) -> None:
    services.limits.delete(namespace, Scope(resource=resource))
    services.entities.delete(namespace, entity)
    services.apps.delete(org_of(namespace), app_of(namespace), author=OPERATOR)


def test_what_is_removed_of_an_entity_stays_with_the_others() -> None:
    product = inhabited(["n"], list(ENTITIES), list(RESOURCES))

    def items_of(entity: str) -> Items:
        """By what the items say of themselves, not by their keys."""
        own = {"entity_id": entity, "subject": entity}
        return {
            key_of(item): item
            for item in product.table.items()
            if any(item.get(name) == value for name, value in own.items())
        }

    left = list(ENTITIES)
    while left:
        target = left.pop(0)
        before = {entity: items_of(entity) for entity in left}
        made = {item["kind"] for item in items_of(target).values()}
        assert made == {"audit", "bucket", "entity", "ledger", "limits", "usage_event"}
        product.services.entities.delete("n", target)
        # What it used stays used.
        assert {item["kind"] for item in items_of(target).values()} == {"audit", "usage_event"}
        assert {entity: items_of(entity) for entity in left} == before


@pytest.mark.parametrize("part", range(2))
def test_generated_ids(part: int) -> None:
    """Many more ids, with less of each."""
    sendable = [one for one in hostile_ids(4_000, SEED + part) if _fits(one) and one not in {"", "_", "top"}]
    random = Random(SEED + part)
    namespaces = random.sample(sendable, 30)
    entities, resource = random.sample(sendable, 5), random.choice(sendable)
    product = Product(SEED)
    for namespace in namespaces:
        register(product.services, namespace, product.clock)
        live(product.services, namespace, entities[:2], [resource])
        for entity in entities:
            spend(product.services, namespace, entity, resource)
    for target in namespaces[:10]:
        before = items_by_owner(product)
        product.services.entities.delete(target, entities[0])
        purge(product.services, target, product.clock)
        after = items_by_owner(product)
        assert set(after.get(keys.encode(target), {})) == set()
        others = {keys.encode(namespace) for namespace in namespaces} - {keys.encode(target)}
        assert {owner: after[owner] for owner in others} == {owner: before[owner] for owner in others}


def _fits(one: str) -> bool:
    """Half of a sign can not be sent at all, and a key has 1 KB at most."""
    return len(keys.encode(one).encode()) <= 250 and not any("\ud800" <= sign <= "\udfff" for sign in one)
