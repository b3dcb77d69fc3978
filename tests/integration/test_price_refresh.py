"""The refresh of prices in the scheduled function, on moto: only where it is told to, and by which client."""

from types import ModuleType
from typing import Any

import boto3
import pytest

from sluice import clients
from sluice.repository import money_keys
from sluice.repository.aws_pricing import AwsPriceList
from sluice.repository.keys import REGISTRY_NAMESPACE
from sluice.repository.prices import decode_price
from sluice.services.price_refresh import REFRESH_PRICES
from tests.http import deployed
from tests.integration.test_rollup import run
from tests.price_lists import FakePriceList, nova_pro

MODEL = "amazon.nova-pro-v1:0"


def jobs_of(module: ModuleType) -> set[str]:
    page = module._services().jobs.list(REGISTRY_NAMESPACE)
    return {job.kind for job in page.jobs}


def prices_of(module: ModuleType) -> list[Any]:
    query: Any = {
        "KeyConditionExpression": "PK = :model",
        "ExpressionAttributeValues": {":model": money_keys.registry_prices_of(MODEL)},
    }
    return [decode_price(item) for item in module._services().store.query(query).items]


def test_without_a_region_nothing_is_refreshed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_PRICING_REGION", "")
    with deployed("rollup.handler", monkeypatch) as module:
        run(module)
        assert REFRESH_PRICES not in jobs_of(module)
        assert REFRESH_PRICES not in module._services().work


def test_with_one_the_next_run_stores_what_the_list_says(monkeypatch: pytest.MonkeyPatch) -> None:
    prices = FakePriceList({("us-east-1", "AmazonBedrock"): nova_pro()})
    monkeypatch.setattr(AwsPriceList, "regions", lambda _self: prices.regions())
    monkeypatch.setattr(AwsPriceList, "page", lambda _self, *asked: prices.page(*asked))
    monkeypatch.setenv("SLUICE_PRICING_REGION", "us-east-1")
    with deployed("rollup.handler", monkeypatch) as module:
        run(module)
        assert REFRESH_PRICES in jobs_of(module)
        assert prices.asked == []
        run(module)
        (stored,) = prices_of(module)
        assert (stored.model_id, stored.price.region, stored.version) == (MODEL, "us-east-1", 1)


def test_the_client_is_bounded_and_asks_where_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Client:
        def get_products(self, **_request: Any) -> Any:
            return {"PriceList": []}

    def make(service: str, region_name: str, config: Any) -> Client:
        made.append((service, region_name, config.connect_timeout, config.read_timeout, config.retries))
        return Client()

    monkeypatch.setattr(boto3, "client", make)
    found = clients.price_list("eu-central-1")
    assert made == []
    for _ in range(2):
        found.page("AmazonBedrock", "us-east-1", None)
    assert made == [("pricing", "eu-central-1", 1, 5.0, {"total_max_attempts": 1, "mode": "standard"})]


def test_the_regions_are_those_that_have_bedrock() -> None:
    found = clients.price_list("us-east-1").regions()
    assert {"us-east-1", "eu-west-1", "ap-northeast-1"} <= set(found)
    assert "us-gov-west-1" not in found
