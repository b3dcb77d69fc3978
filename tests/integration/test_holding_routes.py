"""Acquire with a reserve over HTTP, event in and answer out, on moto."""

import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

import pytest

from sluice.core.audit import BY_SYSTEM
from sluice.core.budget import Dimension, Enforcement, OwnBudget, Slot, Span
from sluice.core.errors import Unavailable
from sluice.core.identity import Role
from sluice.core.labels import LabelDefinition
from sluice.core.limits import Limit, OnUnavailable, Scope
from sluice.core.orgs import OrgSettings
from sluice.repository.entities import entity_put
from sluice.repository.items import Entity
from sluice.repository.labels import encode_label
from sluice.repository.ledger_items import decode_ledger
from sluice.repository.store import DynamoStore
from sluice.repository.wire import item_from_wire
from sluice.services.ledger_book import LedgerBook
from sluice.shell import Environment, Services, build_services, make_client
from tests.fakes import CountingMeter
from tests.http import APP, NAMESPACE, TABLE, Answer, Call, authorized, caller_of, deployed, items_in_table
from tests.tenancy import tenant_items

USER: Final = "user-1"
ACQUIRE: Final = "/v1/acquire"
EXPLAIN: Final = "/v1/explain"
RELEASE: Final = "/v1/leases/release"
PREMIUM: Final = {"label": "premium", "input_tokens": 1_500, "max_output_tokens": 800}
BODY: Final[dict[str, Any]] = {"entity": USER, "resource": "gpt-4", "consume": {"rpm": 1}, "reserve": PREMIUM}
AS_APP: Final = authorized(APP, Role.APP)
COST: Final = 16_500
DAY_COST: Final = Slot(Span.DAY, Dimension.COST)
DAY_TOKENS: Final = Slot(Span.DAY, Dimension.TOKENS)
MADE_AT_MS: Final = 1_700_000_000_000


@pytest.fixture
def handler_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with deployed("data_plane.handler", monkeypatch) as module:
        yield module


@pytest.fixture
def services(handler_module: ModuleType) -> Services:
    """As an operator would have set the org up."""
    environment = Environment("test", TABLE, 2000)
    services = build_services(environment, make_client(environment), CountingMeter())
    settings = OrgSettings(model_ordering=("premium", "economy"))
    user = Entity(
        entity=USER,
        name=None,
        parent=APP,
        cascade=True,
        metadata={},
        version=1,
        created_at_ms=MADE_AT_MS,
        updated_at_ms=MADE_AT_MS,
    )
    labels = [
        LabelDefinition(label, f"model-of-{label}", None, None, None, price, 5 * price, 1, MADE_AT_MS, MADE_AT_MS)
        for label, price in (("premium", 3_000_000), ("economy", 300_000))
    ]
    org_items = tenant_items(NAMESPACE, NAMESPACE, APP, settings=settings)
    for item in (
        *org_items,
        entity_put(NAMESPACE, user, None)["Put"]["Item"],
        *(encode_label(NAMESPACE, label) for label in labels),
    ):
        services.store.put({"Item": item}, repeatable=True)
    services.limits.put(NAMESPACE, Scope(resource="gpt-4"), {"rpm": Limit(100, 100, 1, 31_536_000)})
    return services


@pytest.fixture
def call(handler_module: ModuleType, services: Services) -> Call:
    return caller_of(handler_module, "POST", ACQUIRE)


def put_budget(services: Services, limits: dict[Slot, int], entity: str = USER) -> None:
    services.money.budgets.put(NAMESPACE, entity, OwnBudget(limits, Enforcement.HARD), author=BY_SYSTEM)


def held(entity: str = USER) -> tuple[int, int, int]:
    items = [item_from_wire(item) for item in items_in_table()]
    (ledger,) = [decode_ledger(one) for one in items if one["kind"] == "ledger" and one["entity_id"] == entity]
    amounts = ledger.standing.held
    return amounts.cost_usd_micros, amounts.tokens, amounts.executions


def acquire(call: Call, path: str = ACQUIRE, **changed: Any) -> Answer:
    key = changed.pop("key", None)
    headers = {} if key is None else {"idempotency-key": key}
    body = {name: value for name, value in {**BODY, **changed}.items() if value is not None}
    return call("POST", path, body=body, caller=AS_APP, headers=headers)


def test_what_is_held_is_answered(call: Call, services: Services) -> None:
    put_budget(services, {DAY_COST: 10_000_000})
    answer = acquire(call)
    assert answer.status == 201
    assert answer.body["budget"] == {
        "held_usd_micros": COST,
        "held_tokens": 2_300,
        "held_executions": 1,
        "entities": [USER],
    }
    assert held() == (COST, 2_300, 1)
    released = call("POST", RELEASE, body={"lease": answer.body["lease"]}, caller=AS_APP)
    assert (released.status, released.body["released"]) == (200, {"rpm": 1})
    assert held() == (0, 0, 0)
    again = call("POST", RELEASE, body={"lease": answer.body["lease"]}, caller=AS_APP)
    assert (again.status, again.body["released"]) == (200, {"rpm": 1})


def test_without_a_budget_nothing_is_held(call: Call) -> None:
    answer = acquire(call)
    assert (answer.status, answer.body["budget"]) == (201, None)


def test_amounts_may_be_told(call: Call, services: Services) -> None:
    put_budget(services, {DAY_COST: 10_000, DAY_TOKENS: 100})
    answer = acquire(call, reserve={"cost_usd_micros": 7, "tokens": 5}, consume={})
    assert (answer.status, answer.body["consumed"], answer.body["levels"]) == (201, {}, [])
    assert held() == (7, 5, 1)
    assert "RateLimit" not in answer.headers
    answer = acquire(call, reserve={"cost_usd_micros": 7})
    assert (answer.status, answer.problem, answer.body["dimensions"]) == (422, "reserve-required", ["tokens"])
    answer = acquire(call, reserve=None)
    assert (answer.status, answer.problem, answer.body["dimensions"]) == (422, "reserve-required", ["cost", "tokens"])


def test_a_refusal_tells_what_is_in_the_way(call: Call, services: Services) -> None:
    put_budget(services, {DAY_COST: 20_000})
    assert acquire(call, reserve={"cost_usd_micros": 10_000}).status == 201
    answer = acquire(call)
    assert (answer.status, answer.problem) == (429, "budget-exceeded")
    assert answer.headers["x-should-retry"] == "false"
    assert "Retry-After" not in answer.headers
    assert answer.body["resets_at"].endswith("T00:00:00.000Z")
    assert answer.body["violations"] == [
        {
            "entity": USER,
            "period": "day",
            "dimension": "cost",
            "limit": 20_000,
            "used": 10_000,
            "held": 10_000,
            "requested": COST,
            "unit": "usd_micros",
        }
    ]
    assert answer.body["remedies"] == [
        {"kind": "max_output_tokens", "value": 366},
        {"kind": "label", "value": "economy"},
    ]
    assert acquire(call, reserve={**PREMIUM, "max_output_tokens": 366}).status == 201


def test_more_than_the_whole_limit(call: Call, services: Services) -> None:
    put_budget(services, {DAY_COST: COST - 1})
    for path in (ACQUIRE, EXPLAIN):
        answer = acquire(call, path)
        assert (answer.status, answer.problem) == (422, "never-admissible")
        assert answer.body["violations"][0]["limit"] == COST - 1
        assert answer.body["remedies"] == [
            {"kind": "max_output_tokens", "value": 799},
            {"kind": "label", "value": "economy"},
        ]


def test_a_repeat_answers_the_same(call: Call, services: Services) -> None:
    put_budget(services, {DAY_COST: 20_000})
    first = acquire(call, key="key-1")
    again = acquire(call, key="key-1")
    assert (first.status, again.status) == (201, 201)
    assert first.body == again.body
    assert held() == (COST, 2_300, 1)
    other = acquire(call, key="key-1", reserve={**PREMIUM, "max_output_tokens": 7})
    assert (other.status, other.problem) == (422, "idempotency-mismatch")
    assert acquire(call, key="key-2").problem == "budget-exceeded"


def test_explain_tells_budgets_and_changes_nothing(call: Call, services: Services) -> None:
    put_budget(services, {DAY_COST: 20_000, DAY_TOKENS: 100_000}, APP)
    assert acquire(call, reserve={"cost_usd_micros": 10_000, "tokens": 1}).status == 201
    before = items_in_table()
    answer = acquire(call, EXPLAIN)
    assert items_in_table() == before
    assert (answer.status, answer.body["admissible"]) == (200, False)
    assert [(one["entity"], one["dimension"], one["unit"], one["fits"]) for one in answer.body["budgets"]] == [
        (APP, "cost", "usd_micros", False),
        (APP, "tokens", "tokens", True),
    ]
    assert [remedy["kind"] for remedy in answer.body["remedies"]] == ["wait", "max_output_tokens", "label"]
    assert answer.body["remedies"][2] == {"kind": "label", "value": "economy", "limit": None}
    answer = acquire(call, EXPLAIN, reserve={"cost_usd_micros": 10_000, "tokens": 1})
    assert (answer.body["admissible"], answer.body["remedies"]) == (True, [])


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"consume": {}, "reserve": None}, "consume"),
        ({"reserve": {}}, "reserve"),
        ({"reserve": {"input_tokens": 1, "max_output_tokens": 1}}, "reserve"),
        ({"reserve": {**PREMIUM, "model_id": "m"}}, "reserve"),
        ({"reserve": {**PREMIUM, "input_tokens": -1}}, "reserve"),
        ({"reserve": {**PREMIUM, "input_tokens": 1.5}}, "reserve"),
        ({"reserve": {**PREMIUM, "max_output_tokens": 10**12 + 1}}, "reserve"),
        ({"reserve": {**PREMIUM, "region": "nowhere"}}, "reserve"),
        ({"reserve": {**PREMIUM, "cost_usd_micros": 1}}, "reserve"),
        ({"reserve": {"cost_usd_micros": -1}}, "reserve"),
        ({"reserve": {"cost_usd_micros": 10**15 + 1}}, "reserve"),
        ({"reserve": {"cost_usd_micros": True}}, "reserve"),
        ({"reserve": {"cost_usd_micros": 1, "tokens": "5"}}, "reserve"),
        ({"reserve": {"tokens": 5}}, "reserve"),
        ({"reserve": []}, "reserve"),
        ({"reserve": "all"}, "reserve"),
        ({"reserve": 5}, "reserve"),
    ],
)
def test_bad_reserves_are_told_and_change_nothing(
    call: Call, services: Services, changed: dict[str, Any], field: str
) -> None:
    put_budget(services, {DAY_COST: 20_000})
    before = items_in_table()
    for path in (ACQUIRE, EXPLAIN):
        answer = acquire(call, path, **changed)
        assert (answer.status, answer.problem) == (400, "invalid-request"), answer.body
        assert answer.body["field"].split(".")[0] == field
        assert "Body" not in json.dumps(answer.body), "names of our own types tell a client nothing"
    assert items_in_table() == before


def test_unknown_models_and_labels(call: Call, services: Services) -> None:
    put_budget(services, {DAY_COST: 20_000})
    unpriced = {"model_id": "nobodys", "input_tokens": 1, "max_output_tokens": 1}
    assert acquire(call, reserve=unpriced).problem == "price-missing"
    unheard = acquire(call, reserve={**PREMIUM, "label": "unheard"})
    assert (unheard.problem, unheard.body["field"]) == ("unknown-label", "reserve.label")


def test_an_outage_never_opens_a_hard_budget(call: Call, services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    put_budget(services, {DAY_COST: 10_000_000})
    services.limits.put(NAMESPACE, Scope(), {"rpm": Limit(5, 5, 5, 60)}, OnUnavailable.ALLOW)
    assert acquire(call).status == 201

    def down(*_: Any, **__: Any) -> Any:
        raise Unavailable("down")

    monkeypatch.setattr(DynamoStore, "transact", down)
    for key in (None, "key-1"):
        answer = acquire(call, key=key)
        assert (answer.status, answer.problem) == (503, "unavailable")
    monkeypatch.setattr(LedgerBook, "for_hold", down)
    assert acquire(call).status == 503
