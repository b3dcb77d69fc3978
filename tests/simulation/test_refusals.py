"""What AWS refuses, without an engine: `tests/integration/test_conformance.py` compares the same with one."""

from typing import Any

import pytest

from sluice.repository.keys import Key
from sluice.repository.retries import Retries
from sluice.repository.store import Applied
from sluice.repository.wire import Value
from tests.fakes import CountingMeter, never_random
from tests.simulation.disagreements import ACCEPTED, WRONG
from tests.simulation.hostile import HOSTILE, TRICKY, Hostile
from tests.simulation.refusals import Refusal, ValidationException
from tests.simulation.store import PerfectWire, SimulatedStore
from tests.simulation.table import SimulatedTable

KEY = Key("p", "s")
# Of these the generator of sequences has no example: they need large requests, or stored items of other types.
WITHOUT_EXAMPLE = {
    Refusal.PLACEHOLDERS_ALONE,
    Refusal.STORED_TYPE,
    Refusal.KEY_SHAPE,
    Refusal.START_KEY_EXTRA,
    Refusal.LIMIT,
    Refusal.TRANSACTION_EMPTY,
    Refusal.TRANSACTION_SIZE,
}


@pytest.fixture
def store() -> SimulatedStore:
    return SimulatedStore(SimulatedTable(), PerfectWire(), Retries(lambda _ms: None, never_random, CountingMeter()))


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.text)
def test_a_hostile_request_is_refused_and_changes_nothing(store: SimulatedStore, hostile: Hostile) -> None:
    store.put({"Item": {**KEY.attributes, "n": 1, "v": 1, "s": "x"}}, repeatable=True)
    changes = len(store.table.stream)
    with pytest.raises(ValidationException) as refused:
        hostile.run(store, KEY)
    assert refused.value.kind is hostile.kind
    assert len(store.table.stream) == changes


@pytest.mark.parametrize(("condition", "values", "holds"), TRICKY, ids=[condition for condition, _, _ in TRICKY])
def test_a_tricky_condition(store: SimulatedStore, condition: str, values: dict[str, Value], holds: bool) -> None:
    store.put({"Item": {**KEY.attributes, "n": 5, "s": "abc", "flag": True}}, repeatable=True)
    request: Any = {"Item": {**KEY.attributes}, "ConditionExpression": condition}
    if values:
        request["ExpressionAttributeValues"] = values
    assert isinstance(store.put(request, repeatable=False), Applied) == holds


def test_every_refusal_has_an_example() -> None:
    assert {hostile.kind for hostile in HOSTILE} == set(Refusal) - WITHOUT_EXAMPLE


def test_every_disagreement_is_about_an_example() -> None:
    texts = {hostile.text for hostile in HOSTILE}
    conditions = {condition for condition, _, _ in TRICKY}
    for engine in ACCEPTED:
        assert ACCEPTED[engine] <= texts
        assert WRONG[engine] <= conditions


@pytest.mark.parametrize(
    ("refusal", "send"),
    [
        (
            Refusal.PLACEHOLDERS_ALONE,
            lambda table: table.put({"Item": {**KEY.attributes}, "ExpressionAttributeNames": {}}),
        ),
        (
            Refusal.STORED_TYPE,
            lambda table: table.update(
                {
                    "Key": {**KEY.attributes},
                    "UpdateExpression": "ADD s :one",
                    "ExpressionAttributeValues": {":one": 1},
                }
            ),
        ),
        (Refusal.KEY_SHAPE, lambda table: table.delete({"Key": {"PK": "p"}})),
        (Refusal.TRANSACTION_EMPTY, lambda table: table.transact([], "token")),
        (
            Refusal.TRANSACTION_SIZE,
            lambda table: table.transact(
                [{"Put": {"Item": {"PK": f"p{n}", "SK": "s", "text": "x" * 390 * 1024}}} for n in range(11)], "token"
            ),
        ),
    ],
    ids=lambda value: value.value if isinstance(value, Refusal) else "",
)
def test_the_rest_is_refused_as_well(store: SimulatedStore, refusal: Refusal, send: Any) -> None:
    store.put({"Item": {**KEY.attributes, "s": "x"}}, repeatable=True)
    with pytest.raises(ValidationException) as refused:
        send(store.table)
    assert refused.value.kind is refusal


@pytest.mark.parametrize(
    ("refusal", "more"),
    [
        (Refusal.START_KEY_EXTRA, {"ExclusiveStartKey": {"PK": "p", "SK": "s", "n": 1}}),
        (Refusal.LIMIT, {"Limit": 0}),
    ],
)
def test_pages_are_asked_for_properly(store: SimulatedStore, refusal: Refusal, more: dict[str, Any]) -> None:
    request: Any = {"KeyConditionExpression": "PK = :p", "ExpressionAttributeValues": {":p": "p"}, **more}
    with pytest.raises(ValidationException) as refused:
        store.query(request)
    assert refused.value.kind is refusal
