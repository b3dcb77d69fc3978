"""Metering and selection of the deployed stacks: what is reported is counted once, to the micro-dollar, and moves the
choice of a label.

The clients keep their own book of what they reported, with prices worked out here. Nobody asks for the totals of the
first org: the stream and the scheduled function bring them, which takes up to three minutes, so the tests of other
files run meanwhile.
"""

import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from local.engine import Engine, engine_client
from tests.e2e.api import Answer, Api
from tests.e2e.test_api import assert_problem
from tests.e2e.test_limiter_api import pages

CALLS = 500
REPEATED = 50
SINGLE = 100
BATCH = 50
CLIENTS = 4
# Generous: a mark is taken at most two minutes after the call, and only what never runs can reach this.
SUMMED_SECONDS = 300

PRICES = {"premium": (3_333_333, 15_000_001), "standard": (250_001, 1_250_003), "economy": (35_000, 140_000)}
ORDERING = list(PRICES)


def cost_usd_micros(label: str, input_tokens: int, output_tokens: int) -> int:
    """Half up, once, as a bill is made out."""
    input_price, output_price = PRICES[label]
    return (input_tokens * input_price + output_tokens * output_price + 500_000) // 1_000_000


def noon_zone() -> str:
    """Somewhere it is around noon: no midnight may pass while the tests run. The signs of these names are reversed."""
    ahead = 12 - datetime.now(UTC).hour
    return f"Etc/GMT{-ahead:+d}" if ahead else "Etc/GMT"


@dataclass
class House:
    """An org with three apps, and what their clients reported."""

    name: str
    org: Api
    apps: dict[str, Api]
    today: str
    book: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    sent: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def note(self, app: str, call: Mapping[str, Any]) -> None:
        counted = {
            "cost_usd_micros": cost_usd_micros(call["label"], call["input_tokens"], call["output_tokens"]),
            "input_tokens": call["input_tokens"],
            "output_tokens": call["output_tokens"],
            "requests": 1,
            "errors": int(call["status"] != "ok"),
        }
        for attribute, amount in counted.items():
            self.book[app, call["label"], attribute] += amount

    def aggregate(self, app: str) -> Any:
        answer = self.apps[app].call("GET", f"/v1/aggregates?from={self.today}&to={self.today}")
        assert answer.status == 200, answer.body
        return answer.json()

    def is_summed(self, app: str) -> bool:
        (day,) = self.aggregate(app)["days"]
        shown = {label["label"]: label for label in day["labels"]}
        attributes = ("cost_usd_micros", "input_tokens", "output_tokens", "requests", "errors")
        return all(
            shown[label][attribute] == self.book[app, label, attribute] for label in PRICES for attribute in attributes
        )


def made(answer: Answer) -> dict[str, str]:
    assert answer.status == 201, answer.body
    shown: dict[str, str] = answer.json()
    return shown


def build_house(operator: Api, quotas: Mapping[str, int], apps: int) -> House:
    name, zone = f"house-{uuid.uuid4().hex[:12]}", noon_zone()
    settings = {"timezone": zone, "quota_scope": "APP", "model_ordering": ORDERING, "quotas": dict(quotas)}
    org = operator.logged_in(made(operator.call("PUT", f"/v1/orgs/{name}", settings)))
    for label, (input_price, output_price) in PRICES.items():
        definition = {
            "model_id": f"{name}.{label}",
            "input_price_usd_micros_per_1m": input_price,
            "output_price_usd_micros_per_1m": output_price,
        }
        assert org.call("PUT", f"/v1/labels/{label}", definition).status == 201
    logins = {
        f"app-{number}": org.logged_in(made(org.call("PUT", f"/v1/orgs/{name}/apps/app-{number}", {})))
        for number in range(apps)
    }
    ahead = timedelta(hours=12 - datetime.now(UTC).hour)
    return House(name, org, logins, (datetime.now(UTC) + ahead).date().isoformat())


@pytest.fixture(scope="session")
def house(operator: Api) -> House:
    """Of the session: one of the module would be another after the tests of other files."""
    return build_house(operator, dict.fromkeys(ORDERING, 10**12), 3)


@pytest.fixture
def invoke_rollup(deployed_engine: Any) -> Iterator[Any]:
    """Runs the scheduled function now."""
    engine: Engine = deployed_engine[0]
    client = engine_client("lambda", engine.endpoint)
    names = [one["FunctionName"] for one in client.list_functions()["Functions"] if "Rollup" in one["FunctionName"]]
    assert len(names) == 1

    def invoke() -> None:
        answer = client.invoke(FunctionName=names[0], Payload=b"{}")
        assert "FunctionError" not in answer, answer["Payload"].read()

    yield invoke
    client.close()


def drawn_call(random: Random, house: House, users: bool = True) -> tuple[str, dict[str, Any]]:
    app = random.choice(list(house.apps))
    call = {
        "request_id": str(uuid.UUID(int=random.getrandbits(128))),
        "label": random.choice(ORDERING),
        "input_tokens": random.randint(1, 50_000),
        "output_tokens": random.randint(1, 5_000),
        "status": random.choice(("ok", "ok", "ok", "error", "timeout")),
        "occurred_at": datetime.now(UTC).isoformat(),
        "tags": {"feature": random.choice(("chat", "search"))},
    }
    if users and random.random() < 0.5:
        call["entity"] = f"{app}-user-{random.randint(1, 3)}"
    return app, call


def send_single(house: House, app: str, call: Mapping[str, Any]) -> list[Any]:
    answer = house.apps[app].call("POST", "/v1/usage", call)
    assert answer.status == 202, answer.body
    return [answer.json()]


def send_batch(house: House, app: str, calls: list[dict[str, Any]]) -> list[Any]:
    answer = house.apps[app].call("POST", "/v1/usage/batch", {"events": calls})
    assert answer.status == 207, answer.body
    told = answer.json()
    assert (told["accepted"], told["failed"]) == (len(calls), 0), told
    results: list[Any] = told["results"]
    assert told["duplicates"] == sum(result["duplicate"] for result in results)
    return results


@pytest.mark.early
def test_five_hundred_calls_are_counted_and_fifty_of_them_only_once(house: House) -> None:
    random = Random(8)
    house.sent = [drawn_call(random, house) for _ in range(CALLS)]
    again = random.sample(house.sent, REPEATED)
    single, rest = house.sent[:SINGLE], house.sent[SINGLE:]
    batches: list[tuple[str, list[dict[str, Any]]]] = []
    for app in house.apps:
        of_app = [call for one, call in rest if one == app]
        batches += [(app, of_app[start : start + BATCH]) for start in range(0, len(of_app), BATCH)]
    with ThreadPoolExecutor(CLIENTS) as clients:
        told = [one for found in clients.map(lambda sent: send_single(house, *sent), single) for one in found]
        told += [one for found in clients.map(lambda sent: send_batch(house, *sent), batches) for one in found]
        repeats = [one for found in clients.map(lambda sent: send_single(house, *sent), again) for one in found]
    first = {one["request_id"]: one for one in told}
    assert len(first) == CALLS
    assert not any(one["duplicate"] for one in told)
    for one in repeats:
        assert one["duplicate"]
        before = first[one["request_id"]]
        assert all(one[name] == before[name] for name in ("cost_usd_micros", "price_id", "day"))
    for app, call in house.sent:
        house.note(app, call)
        expected = cost_usd_micros(call["label"], call["input_tokens"], call["output_tokens"])
        assert first[call["request_id"]]["cost_usd_micros"] == expected
        assert first[call["request_id"]]["day"] == house.today


def test_another_body_under_a_used_id_is_refused(house: House) -> None:
    app, call = house.sent[0]
    other = {**call, "output_tokens": call["output_tokens"] + 1}
    assert_problem(house.apps[app].call("POST", "/v1/usage", other), 409, "request-id-conflict")


def test_events_are_listed_once_each(house: House) -> None:
    for app, login in house.apps.items():
        listed = pages(login, f"/v1/events?day={house.today}&limit=100")
        assert sorted(str(event["request_id"]) for event in listed) == sorted(
            str(call["request_id"]) for one, call in house.sent if one == app
        )
        assert {event["app"] for event in listed} == {app}


def test_another_org_sees_nothing_of_it(operator: Api, house: House) -> None:
    other = build_house(operator, dict.fromkeys(ORDERING, 1), 0).org
    for path in ("/v1/aggregates", "/v1/events", "/v1/selection"):
        assert_problem(other.call("GET", f"{path}?entity=app-0&day={house.today}"), 404, "not-found")
    assert other.call("GET", f"/v1/events?day={house.today}").json()["items"] == []


@pytest.mark.late
def test_the_totals_come_by_themselves_exact_to_the_micro_dollar(house: House) -> None:
    deadline = time.monotonic() + SUMMED_SECONDS
    while not all(house.is_summed(app) for app in house.apps):
        assert time.monotonic() < deadline, [house.aggregate(app) for app in house.apps]
        time.sleep(1)
    whole = house.org.call("GET", f"/v1/aggregates?from={house.today}&to={house.today}").json()
    costs = sum(amount for (_, _, attribute), amount in house.book.items() if attribute == "cost_usd_micros")
    assert (whole["total"]["cost_usd_micros"], whole["total"]["requests"]) == (costs, CALLS)
    assert [month["cost_usd_micros"] for month in whole["months"]] == [costs]


def roll_up(house: House, entity: str, invoke: Any) -> None:
    started = house.org.call("POST", "/v1/aggregates/rollup", {"entity": entity})
    assert started.status == 202, started.body
    deadline = time.monotonic() + SUMMED_SECONDS
    while (shown := house.org.call("GET", started.headers["location"]).json())["state"] in {"queued", "running"}:
        assert time.monotonic() < deadline, shown
        invoke()
    assert shown["state"] == "done", shown


def test_selection_falls_as_quotas_fill(operator: Api, invoke_rollup: Any) -> None:
    """From premium to standard to economy to nothing. An override wins over all of it."""
    quotas = {label: cost_usd_micros(label, 100_000, 1_000) for label in ORDERING}
    house = build_house(operator, quotas, 2)
    app = house.apps["app-0"]

    def spend(label: str) -> Any:
        call = {
            "request_id": uuid.uuid4().hex,
            "label": label,
            "input_tokens": 100_000,
            "output_tokens": 1_000,
            "status": "ok",
            "occurred_at": datetime.now(UTC).isoformat(),
        }
        (told,) = send_single(house, "app-0", call)
        return told

    chosen = app.call("GET", "/v1/selection").json()
    assert (chosen["label"], chosen["reason"], chosen["mode"]) == ("premium", "normal", "NORMAL")
    assert chosen["prices"]["standard"]["input_usd_micros_per_1m"] == PRICES["premium"][0]
    for spent, following in (("premium", "standard"), ("standard", "economy")):
        spend(spent)
        roll_up(house, "app-0", invoke_rollup)
        chosen = app.call("GET", "/v1/selection").json()
        assert (chosen["label"], chosen["previous_label"]) == (following, spent)
        # Whoever asks after the rollup finds selection moved already.
        assert chosen["reason"] in {"quota_exceeded", "sticky"}
        assert app.call("GET", "/v1/selection").json()["reason"] == "sticky"
    assert app.call("GET", f"/v1/aggregates?from={house.today}&to={house.today}").json()["days"][0]["sticky"][
        "label"
    ] == ("economy")
    spend("economy")
    roll_up(house, "app-0", invoke_rollup)
    refused = app.call("GET", "/v1/selection")
    assert_problem(refused, 429, "all-quotas-exceeded")
    assert {one["label"] for one in refused.json()["labels"]} == set(ORDERING)
    assert int(refused.headers["retry-after"]) > 0
    override = {"entity": "app-0", "label": "standard", "reason": "a demo for the board"}
    assert house.org.call("PUT", "/v1/selection/override", override).status == 201
    chosen = app.call("GET", "/v1/selection").json()
    assert (chosen["label"], chosen["reason"], chosen["mode"]) == ("standard", "override", "EXCEEDED")
    assert house.org.call("DELETE", "/v1/selection/override?entity=app-0").status == 204
    assert_problem(app.call("GET", "/v1/selection"), 429, "all-quotas-exceeded")
    # The other app has spent nothing: its quotas are its own.
    assert house.apps["app-1"].call("GET", "/v1/selection").json()["label"] == "premium"
    assert_problem(house.apps["app-1"].call("GET", "/v1/selection?entity=app-0"), 404, "not-found")
