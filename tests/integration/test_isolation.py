"""Two tenants with hostile, similar ids on an engine: what one removes, or all of it, is removed of nobody else."""

from random import Random

from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.limits import Scope
from sluice.repository import keys
from sluice.repository.retries import Retries
from sluice.repository.store import DynamoStore
from tests.fakes import CountingMeter, FakeClock, never_random
from tests.hostile.product import services_on
from tests.hostile.tenants import OPERATOR, app_of, live, org_of, purge, register
from tests.integration.tenants import Raw, raw_items

SIMILAR = ("a", "a/", "a%2F", "a/ENTITY#a#r", "A")
ENTITIES = ("a", "a#r", "a%23r")
RESOURCES = ("r", "r#0")


def about(namespace: str, items: Raw) -> Raw:
    """Whatever of it is there, the jobs of the registry apart."""
    prefix = keys.namespace_prefix(namespace)
    return {
        key: item
        for key, item in items.items()
        if key[0].startswith(prefix) or (item["kind"] != {"S": "job"} and item.get("ns") == {"S": namespace})
    }


def test_similar_tenants_do_not_touch_one_another(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> None:
    meter = CountingMeter()
    store = DynamoStore(dynamodb, table, Retries(lambda _ms: None, never_random, meter))
    services = services_on(store, clock, Random(7), meter)
    for namespace in SIMILAR:
        register(services, namespace, clock)
        live(services, namespace, ENTITIES, RESOURCES)
    left = list(SIMILAR)
    while left:
        target = left.pop(0)
        before = raw_items(dynamodb, table)
        assert len(about(target, before)) > 50
        services.limits.delete(target, Scope(resource="r"))
        services.entities.delete(target, "a")
        services.apps.delete(org_of(target), app_of(target), author=OPERATOR)
        removed = raw_items(dynamodb, table)
        assert about(target, removed) != about(target, before)
        purge(services, target, clock)
        after = raw_items(dynamodb, table)
        assert about(target, after) == {}
        for namespace in left:
            assert about(namespace, removed) == about(namespace, before)
            assert about(namespace, after) == about(namespace, before)
