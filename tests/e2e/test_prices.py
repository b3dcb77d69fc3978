"""Prices of every kind in the deployed stacks, and an org whose apps share their quotas: for whom a call is counted,
what is chosen while nothing is kept, and until when.

Labels, prices and settings are made before anything is used, as every process keeps what it has read for a minute.
"""

import time
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from local.deploy import Outputs
from local.engine import Engine, engine_client
from tests.e2e.api import Answer, Api
from tests.e2e.test_api import assert_problem
from tests.e2e.test_limiter_api import pages

# Generous: only a function that never runs can reach this.
DONE_SECONDS = 120
ORDERING = ("premium", "standard", "economy")
# A token of any label costs a millionth of a dollar.
QUOTAS = {"premium": 10_000, "standard": 5_000, "economy": 2_000}
SHIPPED = "anthropic.claude-haiku-4-5-20251001-v1:0"
OWN = "own-model"
OWN_PRICE = {
    "standard": {
        "input_usd_micros_per_1m": 3_000_001,
        "output_usd_micros_per_1m": 15_000_000,
        "cache_read_usd_micros_per_1m": 300_000,
        "cache_write_usd_micros_per_1m": 3_750_000,
        "cache_write_1h_usd_micros_per_1m": 6_000_000,
    },
    "batch": {"input_usd_micros_per_1m": 1_500_000, "output_usd_micros_per_1m": 7_500_000},
    "long_from_tokens": 200_000,
    "long_standard": {"input_usd_micros_per_1m": 6_000_002, "output_usd_micros_per_1m": 22_500_000},
}


def rounded(*parts: tuple[int, int]) -> int:
    """Tokens and their price: half up, once."""
    return (sum(tokens * price for tokens, price in parts) + 500_000) // 1_000_000


def half_a_day_away() -> tuple[str, timedelta]:
    """A zone in which it is about noon, so that no local day ends meanwhile; and how far it is ahead."""
    hours = 12 - datetime.now(UTC).hour
    return (f"Etc/GMT{-hours:+d}" if hours else "Etc/GMT"), timedelta(hours=hours)


class Shop:
    """An org with two apps, whose quotas are for all of it, and in which selection keeps nothing."""

    def __init__(self, engine: Engine, operator: Api) -> None:
        zone, ahead = half_a_day_away()
        self.name = f"shop-{uuid.uuid4().hex[:12]}"
        self.day = (datetime.now(UTC) + ahead).date()
        midnight = datetime.combine(self.day + timedelta(days=1), datetime.min.time(), UTC) - ahead
        self.resets_at = f"{midnight:%Y-%m-%dT%H:%M:%S}.000Z"
        settings = {
            "timezone": zone,
            "model_ordering": list(ORDERING),
            "quotas": QUOTAS,
            "sticky_fallback_enabled": False,
        }
        self.org = operator.logged_in(_made(operator.call("PUT", f"/v1/orgs/{self.name}", settings)))
        self.apps = [
            self.org.logged_in(_made(self.org.call("PUT", f"/v1/orgs/{self.name}/apps/{app}", {})))
            for app in ("first", "second")
        ]
        price = {"input_price_usd_micros_per_1m": 10**6, "output_price_usd_micros_per_1m": 10**6}
        for label in ORDERING:
            _made(self.org.call("PUT", f"/v1/labels/{label}", {"model_id": f"model-of-{label}", **price}))
        _made(self.org.call("PUT", "/v1/labels/shipped", {"model_id": SHIPPED}))
        _made(self.org.call("PUT", f"/v1/prices?model_id={OWN}", OWN_PRICE))
        self._functions = engine_client("lambda", engine.endpoint)
        listed = self._functions.list_functions()["Functions"]
        (self._rollup,) = [one["FunctionName"] for one in listed if "Rollup" in one["FunctionName"]]

    def roll_up(self, *entities: str) -> None:
        """By a job for each, which the scheduled function does when it is next called: now."""
        jobs = [self.org.call("POST", "/v1/aggregates/rollup", {"entity": entity}) for entity in entities]
        deadline = time.monotonic() + DONE_SECONDS
        while any(self._is_open(job) for job in jobs):
            assert time.monotonic() < deadline
            self._functions.invoke(FunctionName=self._rollup, Payload=b"{}")

    def _is_open(self, job: Answer) -> bool:
        assert job.status == 202, job.body
        shown = self.org.call("GET", job.headers["location"]).json()
        assert shown["error"] is None, shown
        return str(shown["state"]) != "done"

    def totals(self, client: Api) -> dict[str, Any]:
        answer = client.call("GET", f"/v1/aggregates?from={self.day}&to={self.day}")
        assert answer.status == 200, answer.body
        (day,) = answer.json()["days"]
        return {label["label"]: label for label in day["labels"]}


def _made(answer: Answer) -> Any:
    assert answer.status == 201, answer.body
    return answer.json()


@pytest.fixture(scope="module")
def shop(deployed_engine: tuple[Engine, Outputs], operator: Api) -> Shop:
    return Shop(deployed_engine[0], operator)


def call(request_id: str, **said: object) -> dict[str, Any]:
    return {"request_id": request_id, "input_tokens": 0, "output_tokens": 0, "status": "ok", **said}


# What is said, the label that it is counted under, and what it costs.
CALLS: Mapping[str, tuple[dict[str, Any], str, int]] = {
    "own": ({"model_id": OWN, "input_tokens": 1_500, "output_tokens": 800}, OWN, 16_500),
    "caches": (
        {"model_id": OWN, "input_tokens": 7, "cache_read_tokens": 11, "cache_write_tokens": 13},
        OWN,
        rounded((7, 3_000_001), (11, 300_000), (13, 3_750_000)),
    ),
    "an hour": ({"model_id": OWN, "cache_write_1h_tokens": 1}, OWN, 6),
    "batch": (
        {"model_id": OWN, "input_tokens": 3, "output_tokens": 5, "pricing": "batch"},
        OWN,
        rounded((3, 1_500_000), (5, 7_500_000)),
    ),
    "as long as may be": ({"model_id": OWN, "input_tokens": 200_000}, OWN, rounded((200_000, 3_000_001))),
    # What a long call reads from a cache keeps its usual price here.
    "long": (
        {"model_id": OWN, "input_tokens": 190_000, "cache_read_tokens": 10_001, "output_tokens": 1},
        OWN,
        rounded((190_000, 6_000_002), (10_001, 300_000), (1, 22_500_000)),
    ),
    "shipped": (
        {"label": "shipped", "input_tokens": 333, "output_tokens": 77, "cache_read_tokens": 5},
        "shipped",
        rounded((333, 1_000_000), (77, 5_000_000), (5, 100_000)),
    ),
    "by its model": ({"model_id": SHIPPED, "input_tokens": 1}, "shipped", 1),
    "nothing": ({"label": "shipped", "status": "timeout"}, "shipped", 0),
}


def test_every_kind_of_price_counts_for_the_app_and_for_the_org(shop: Shop) -> None:
    first, _ = shop.apps
    events = [call(name, tags={"case": name}, **said) for name, (said, _, _) in CALLS.items()]
    for duplicates in (0, len(events)):
        answer = first.call("POST", "/v1/usage/batch", {"events": events})
        assert answer.status == 207, answer.body
        assert (answer.json()["accepted"], answer.json()["duplicates"]) == (len(events), duplicates)
        told = [result["cost_usd_micros"] for result in answer.json()["results"]]
        assert told == [cost for _, _, cost in CALLS.values()]
    deadline = time.monotonic() + DONE_SECONDS
    # Labels without a quota are found by their totals, which the stream makes.
    while not all({OWN, "shipped"} <= shop.totals(client).keys() for client in (first, shop.org)):
        assert time.monotonic() < deadline
    shop.roll_up("first", shop.name)
    of_org = shop.totals(shop.org)
    for label in (OWN, "shipped"):
        cost = sum(cost for _, counted_under, cost in CALLS.values() if counted_under == label)
        for shown in (shop.totals(first)[label], of_org[label]):
            assert shown["cost_usd_micros"] == cost
            assert shown["requests"] == sum(counted_under == label for _, counted_under, _ in CALLS.values())
    assert of_org["shipped"]["errors"] == 1
    listed = pages(first, f"/v1/events?day={shop.day}&limit=2")
    assert {str(event["request_id"]): event["tags"] for event in listed} == {name: {"case": name} for name in CALLS}
    assert len(listed) == len(CALLS)


def spend(client: Api, label: str, usd_micros: int) -> Any:
    answer = client.call("POST", "/v1/usage", call(uuid.uuid4().hex, label=label, input_tokens=usd_micros))
    assert answer.status == 202, answer.body
    return answer.json()


def test_apps_share_the_quotas_of_their_org(shop: Shop) -> None:
    """Neither of them passes a quota, both together do. Nothing is kept, so each choice says again why."""
    first, second = shop.apps

    def chosen(expected: Callable[[Any], bool]) -> None:
        for client in (first, second, shop.org):
            answer = client.call("GET", "/v1/selection").json()
            assert expected(answer), answer
            assert (answer["day"], answer["resets_at"]) == (str(shop.day), shop.resets_at)

    chosen(lambda one: (one["label"], one["reason"], one["mode"]) == ("premium", "normal", "NORMAL"))
    for client, usd_micros in ((first, 4_000), (second, 5_599)):
        spend(client, "premium", usd_micros)
    shop.roll_up(shop.name)
    # 95.99 percent of it.
    chosen(lambda one: (one["label"], one["reason"], one["mode"]) == ("premium", "normal", "TIGHT"))
    chosen(lambda one: one["labels"][0]["percent"] == 95.9 and one["check_again_in_seconds"] <= 60)
    assert spend(second, "premium", 401)["quota"] == {"limit_usd_micros": 10_000, "percent": 95.9, "mode": "TIGHT"}
    shop.roll_up(shop.name)
    chosen(lambda one: (one["label"], one["reason"]) == ("standard", "quota_exceeded"))
    chosen(lambda one: (one["previous_label"], one["sticky"]) == ("premium", None))
    spend(first, "standard", 5_000)
    spend(first, "economy", 1_999)
    shop.roll_up(shop.name)
    chosen(lambda one: (one["label"], one["reason"], one["mode"]) == ("economy", "quota_exceeded", "TIGHT"))
    spend(second, "economy", 1)
    shop.roll_up(shop.name)
    for client in (first, second, shop.org):
        refused = client.call("GET", "/v1/selection")
        assert_problem(refused, 429, "all-quotas-exceeded")
        problem = refused.json()
        assert problem["resets_at"] == shop.resets_at
        assert {one["label"]: one["spent_usd_micros"] for one in problem["labels"]} == QUOTAS
        assert refused.headers["retry-after-ms"] == str(problem["retry_after_ms"])
