"""Budgets of the deployed stacks: a hard one is never passed, whoever asks; what a soft one reached is told once.

The limits are such that it shows which of two calls was the one too many. All budgets are put before anything is asked,
because a process may believe for a minute that an org has none.
"""

import json
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from local.deploy import Outputs
from local.engine import Engine, engine_client
from tests.e2e.api import Answer, Api
from tests.e2e.test_api import assert_problem
from tests.e2e.test_metering import ORDERING, House, build_house, cost_usd_micros
from tests.e2e.test_purge import namespace_of

CAPPED, TOLD = "app-0", "app-1"
# A call as it may be at most, what it costs then, and what it costs in the end.
MOST = {"label": "premium", "input_tokens": 100_000, "max_output_tokens": 1_000}
# Rounded up: a hold is never less than the cost.
HELD = cost_usd_micros("premium", 100_000, 1_000) + 1
SPENT = cost_usd_micros("premium", 50_000, 500)
# Room for three and for a smaller model.
LIMIT = 3 * HELD + 100_000
CHEAP = cost_usd_micros("standard", 100_000, 1_000)
# 40 percent of what may be told of, to the micro-dollar.
FORTY = cost_usd_micros("premium", 120_000, 0)
SOFT = FORTY * 5 // 2
GLOBAL = {"day_cost_usd_micros": 10**12, "month_executions": 10**6, "enforcement": "soft"}
# Generous: a message takes seconds, and only one that never comes can reach this.
TOLD_SECONDS = 120


@dataclass
class Alerts:
    """What lies in the queue, taken out and kept. From the topic and from the bus each alert comes once."""

    queue: Any
    url: str
    namespace: str
    by_topic: list[dict[str, Any]] = field(default_factory=list)
    by_bus: list[dict[str, Any]] = field(default_factory=list)

    def take(self) -> None:
        while True:
            answer = self.queue.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
            if not answer.get("Messages"):
                return
            for message in answer["Messages"]:
                self.queue.delete_message(QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])
                told = json.loads(message["Body"])
                alert, kept = (told["detail"], self.by_bus) if "detail" in told else (told, self.by_topic)
                if alert["namespace"] == self.namespace:
                    assert "detail" not in told or (told["source"], told["detail-type"]) == ("sluice", alert["type"])
                    kept.append(alert)

    def wait_for(self, **expected: Any) -> None:
        """Until both ways have told of such an alert."""
        deadline = time.monotonic() + TOLD_SECONDS
        while not all(_such(told, expected) for told in (self.by_topic, self.by_bus)):
            assert time.monotonic() < deadline, (expected, self.by_topic, self.by_bus)
            self.take()

    def of(self, **expected: Any) -> list[dict[str, Any]]:
        """Each once: both ways told the same, and neither of them anything twice."""
        found = _such(self.by_topic, expected)
        assert sorted(one["id"] for one in _such(self.by_bus, expected)) == sorted(one["id"] for one in found)
        assert len({one["id"] for one in found}) == len(found)
        return found


def _such(told: list[dict[str, Any]], expected: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in told if all(one[name] == value for name, value in expected.items())]


@pytest.fixture(scope="module")
def house(operator: Api) -> House:
    house = build_house(operator, dict.fromkeys(ORDERING, 10**12), 2)
    budgets = {
        house.name: GLOBAL,
        CAPPED: {"day_cost_usd_micros": LIMIT, "enforcement": "hard"},
        TOLD: {"day_cost_usd_micros": SOFT, "enforcement": "soft"},
    }
    for entity, budget in budgets.items():
        answer = house.org.call("PUT", f"/v1/budgets/{entity}", budget)
        assert answer.status == 201, answer.body
    return house


@pytest.fixture(scope="module")
def alerts(deployed_engine: tuple[Engine, Outputs], house: House) -> Alerts:
    engine, outputs = deployed_engine
    queue = engine_client("sqs", engine.endpoint)
    (url,) = [url for url in queue.list_queues()["QueueUrls"] if "AlertQueue" in url]
    return Alerts(queue, url, namespace_of(engine, outputs, house.name))


@pytest.fixture
def invoke_rollup(deployed_engine: tuple[Engine, Outputs]) -> Any:
    """Runs the scheduled function now."""
    client = engine_client("lambda", deployed_engine[0].endpoint)
    (name,) = [one["FunctionName"] for one in client.list_functions()["Functions"] if "Rollup" in one["FunctionName"]]

    def invoke() -> None:
        answer = client.invoke(FunctionName=name, Payload=b"{}")
        assert "FunctionError" not in answer, answer["Payload"].read()

    return invoke


def acquire(api: Api, path: str = "/v1/acquire", **reserve: Any) -> Answer:
    body = {"entity": CAPPED, "resource": "chat", "consume": {}, "reserve": {**MOST, **reserve}}
    return api.call("POST", path, body)


def call(label: str, input_tokens: int, output_tokens: int, **more: Any) -> dict[str, Any]:
    return {
        "request_id": uuid.uuid4().hex,
        "label": label,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "status": "ok",
        "occurred_at": datetime.now(UTC).isoformat(),
        **more,
    }


def use(api: Api, label: str, input_tokens: int, output_tokens: int, **more: Any) -> Any:
    answer = api.call("POST", "/v1/usage", call(label, input_tokens, output_tokens, **more))
    assert answer.status == 202, answer.body
    return answer.json()


def budget(house: House, entity: str) -> Any:
    answer = house.org.call("GET", f"/v1/budgets/{entity}")
    assert answer.status == 200, answer.body
    return answer.json()


def shown(day: Any) -> tuple[int, int, int, int, int, int]:
    names = ("cost_used_usd_micros", "cost_held_usd_micros", "tokens_used", "tokens_held", "executions")
    used, held, tokens, tokens_held, executions = (day[name] for name in names)
    return used, held, tokens, tokens_held, executions, day["executions_held"]


def test_a_hard_budget_is_held_settled_and_freed_exactly(house: House, alerts: Alerts) -> None:
    app = house.apps[CAPPED]
    leases = []
    for _ in range(3):
        answer = acquire(app)
        assert answer.status == 201, answer.body
        held = {"held_usd_micros": HELD, "held_tokens": 101_000, "held_executions": 1}
        # The global budget is soft: nothing is held from it.
        assert answer.json()["budget"] == {**held, "entities": [CAPPED]}
        leases.append(answer.json()["lease"])
    for _ in range(2):
        refused = acquire(app)
        assert_problem(refused, 429, "budget-exceeded")
        assert refused.headers["x-should-retry"] == "false"
        assert "retry-after" not in refused.headers
        problem = refused.json()
        assert problem["violations"] == [
            {
                "entity": CAPPED,
                "period": "day",
                "dimension": "cost",
                "limit": LIMIT,
                "used": 3 * HELD,
                "held": 3 * HELD,
                "requested": HELD,
                "unit": "usd_micros",
            }
        ]
        assert problem["resets_at"] == budget(house, CAPPED)["day"]["resets_at"]
        assert problem["remedies"] == [{"kind": "label", "value": "standard"}]
    explained = acquire(app, "/v1/explain")
    assert explained.status == 200, explained.body
    assert explained.json()["admissible"] is False
    (check,) = (one for one in explained.json()["budgets"] if one["entity"] == CAPPED)
    assert (check["used"], check["requested"], check["fits"]) == (3 * HELD, HELD, False)
    assert shown(budget(house, CAPPED)["day"]) == (3 * HELD, 3 * HELD, 303_000, 303_000, 0, 3)

    # Whoever settles the lease with what was used pays that, and what was held for more is free.
    usage = call("premium", 50_000, 500)
    for number in range(2):
        answer = app.call("POST", "/v1/leases/settle", {"lease": leases[0], "actual": {}, "usage": usage})
        assert answer.status == 200, answer.body
        told = answer.json()["usage"]
        assert (told["cost_usd_micros"], told["duplicate"]) == (SPENT, number == 1)
        settled = (2 * HELD + SPENT, 2 * HELD, 202_000 + 50_500, 202_000, 1, 2)
        assert shown(budget(house, CAPPED)["day"]) == settled
    same = {name: usage[name] for name in ("request_id", "occurred_at")}
    assert use(app, "premium", 50_000, 500, lease=leases[0], **same)["duplicate"] is True
    for _ in range(2):
        assert app.call("POST", "/v1/leases/release", {"lease": leases[1]}).status == 200
        now = budget(house, CAPPED)
        assert shown(now["day"]) == (HELD + SPENT, HELD, 101_000 + 50_500, 101_000, 1, 1)
    assert shown(now["month"]) == shown(now["day"])
    assert now["day"]["remaining"]["cost_usd_micros"] == LIMIT - HELD - SPENT
    assert (now["guarantee"]["mode"], now["guarantee"]["max_overshoot_usd_micros"]) == ("hard", 0)
    assert now["last_execution_status"] == "ok"
    assert acquire(app, "/v1/explain").json()["admissible"] is True
    assert acquire(app).status == 201
    assert shown(budget(house, CAPPED)["day"])[:2] == (2 * HELD + SPENT, 2 * HELD)
    # Both refusals were of one limit.
    alerts.wait_for(entity=CAPPED, type="budget.hard_cap")


def test_what_can_never_be_admitted_and_who_says_nothing(house: House) -> None:
    app = house.apps[CAPPED]
    before = budget(house, CAPPED)["day"]
    assert_problem(acquire(app, input_tokens=10**6), 422, "never-admissible")
    unsaid = app.call("POST", "/v1/acquire", {"entity": CAPPED, "resource": "chat", "consume": {"rpm": 1}})
    assert unsaid.status == 422, unsaid.body
    assert shown(budget(house, CAPPED)["day"]) == shown(before)


def test_each_crossing_of_a_soft_budget_is_told_once(house: House, alerts: Alerts) -> None:
    app = house.apps[TOLD]
    use(app, "premium", 120_000, 0)
    use(app, "premium", 120_000, 0)
    told = {"entity": TOLD, "type": "budget.soft_cap", "limit": SOFT}
    alerts.wait_for(**told, percent=80)
    # Beyond the limit nobody is refused.
    use(app, "premium", 120_000, 0)
    alerts.wait_for(**told, percent=100)
    use(app, "premium", 120_000, 0)
    # Another limit arms anew. When that is told, all that could have been told before it has been.
    raised = {"day_cost_usd_micros": 2 * SOFT, "enforcement": "soft"}
    assert house.org.call("PUT", f"/v1/budgets/{TOLD}", raised).status == 200
    alerts.wait_for(entity=TOLD, type="budget.soft_cap", limit=2 * SOFT, percent=80)
    alerts.take()
    assert [(one["percent"], one["used"]) for one in alerts.of(**told)] == [(80, 2 * FORTY), (100, 3 * FORTY)]
    for one in alerts.of(**told):
        assert (one["span"], one["dimension"], one["unit"]) == ("day", "cost", "usd_micros")
        assert one["period"] == house.today.replace("-", "")
    # At noon 80 percent foresee more than the limit.
    assert len(alerts.of(entity=TOLD, type="budget.forecast", limit=SOFT)) == 1
    assert len(alerts.of(entity=CAPPED, type="budget.hard_cap")) == 1
    listed = house.org.call("GET", f"/v1/budgets/{TOLD}/alerts").json()["items"]
    assert sorted((one["limit"], one["percent"]) for one in listed if one["type"] == "budget.soft_cap") == [
        (SOFT, 80),
        (SOFT, 100),
        (2 * SOFT, 80),
    ]
    assert budget(house, TOLD)["day"]["cost_used_usd_micros"] == 4 * FORTY


def test_the_global_budget_counts_everybody_and_who_names_nobody(house: House) -> None:
    before = budget(house, house.name)["day"]
    used, held = before["cost_used_usd_micros"], before["cost_held_usd_micros"]
    apps = [budget(house, app)["day"] for app in (CAPPED, TOLD)]
    assert used - held == sum(one["cost_used_usd_micros"] - one["cost_held_usd_micros"] for one in apps)
    assert before["executions"] == sum(one["executions"] for one in apps)
    use(house.org, "standard", 100_000, 1_000)
    after = budget(house, house.name)["day"]
    assert (after["cost_used_usd_micros"], after["cost_held_usd_micros"]) == (used + CHEAP, held)
    assert after["executions"] == before["executions"] + 1
    assert [budget(house, app)["day"]["executions"] for app in (CAPPED, TOLD)] == [one["executions"] for one in apps]
    listed = house.org.call("GET", "/v1/budgets?sort=day_cost").json()["items"]
    assert [one["entity"] for one in listed] == [house.name, TOLD, CAPPED]


def test_a_refresh_finds_no_difference(house: House, invoke_rollup: Any) -> None:
    counted = {entity: budget(house, entity) for entity in (house.name, CAPPED, TOLD)}
    started = house.org.call("POST", "/v1/budgets/refresh", {})
    assert started.status == 202, started.body
    deadline = time.monotonic() + TOLD_SECONDS
    while (job := house.org.call("GET", started.headers["location"]).json())["state"] in {"queued", "running"}:
        assert time.monotonic() < deadline, job
        invoke_rollup()
    assert (job["state"], job["error"]) == ("done", None)
    # The item of the defaults is one that nothing was ever counted on.
    assert job["result"]["ledgers"] >= len(counted)
    assert "differing" not in job["result"]
    assert not any(amount for span in job["result"]["difference"].values() for amount in span.values())
    for entity, before in counted.items():
        after = budget(house, entity)
        assert [shown(after[span]) for span in ("day", "month")] == [shown(before[span]) for span in ("day", "month")]


def test_another_org_sees_nothing_of_it(operator: Api, house: House) -> None:
    other = build_house(operator, dict.fromkeys(ORDERING, 1), 0)
    for entity in (CAPPED, house.name):
        for method in ("GET", "DELETE"):
            assert_problem(other.org.call(method, f"/v1/budgets/{entity}"), 404, "not-found")
        assert_problem(other.org.call("POST", f"/v1/budgets/{entity}/refresh", {}), 404, "not-found")
    assert other.org.call("GET", "/v1/budgets").json()["items"] == []
    # An app sees itself and those below it.
    assert house.apps[CAPPED].call("GET", f"/v1/budgets/{CAPPED}").status == 200
    for entity in (TOLD, house.name):
        assert_problem(house.apps[CAPPED].call("GET", f"/v1/budgets/{entity}"), 404, "not-found")


@pytest.mark.parametrize(
    ("wrong", "field_name"),
    [
        ({"day_cost_usd_micros": -1}, "day_cost_usd_micros"),
        ({"month_tokens": 1.5}, "month_tokens"),
        ({"enforcement": "strict"}, "enforcement"),
        ({"alert_percents": [10, 20, 30, 40, 50, 60]}, "alert_percents"),
        ({"alert_percents": [0]}, "alert_percents.0"),
    ],
)
def test_wrong_budgets_are_refused_and_change_nothing(house: House, wrong: dict[str, Any], field_name: str) -> None:
    before = budget(house, CAPPED)
    answer = house.org.call("PUT", f"/v1/budgets/{CAPPED}", wrong)
    assert_problem(answer, 400, "invalid-request")
    assert answer.json()["field"] == field_name
    after = budget(house, CAPPED)
    assert {name: after[name] for name in after if name not in {"day", "month"}} == {
        name: before[name] for name in before if name not in {"day", "month"}
    }


def test_the_day_is_the_orgs_own(house: House) -> None:
    day = budget(house, CAPPED)["day"]
    assert day["period"] == house.today
    midnight = datetime.fromisoformat(day["resets_at"])
    assert timedelta() < midnight - datetime.now(UTC) <= timedelta(days=1)
    assert date.fromisoformat(day["period"]) >= (datetime.now(UTC) - timedelta(days=1)).date()
