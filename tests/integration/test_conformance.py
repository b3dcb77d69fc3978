"""The simulated table and a real engine answer alike.

A simulation proves nothing if its table is kinder than the real one. Here generated sequences of calls run on both:
every answer, every image, the items at the end and the stream must be the same. SLUICE_CONFORMANCE_SEQUENCES says how
many, SLUICE_CONFORMANCE_FIRST with which to begin.
"""

import os
from collections.abc import Callable
from typing import Any, Final, cast

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, ParamValidationError
from mypy_boto3_dynamodb import DynamoDBClient

from local.engine import SECRET_KEY, Endpoint
from sluice.repository.keys import Key, key_of
from sluice.repository.retries import Retries
from sluice.repository.store import Applied, DynamoStore, Store
from sluice.repository.wire import Item, Value, item_from_wire
from tests.engines import MINISTACK
from tests.fakes import CountingMeter, never_random
from tests.simulation.disagreements import ACCEPTED, WRONG, lax_kinds
from tests.simulation.generator import Sequence, sequence
from tests.simulation.hostile import HOSTILE, TRICKY, Hostile
from tests.simulation.journal import JournalingTable
from tests.simulation.refusals import IdempotentParameterMismatch, Refusal, ValidationException
from tests.simulation.scenario import run_seed
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.store import PerfectWire, SimulatedStore
from tests.simulation.table import SimulatedTable

ENGINE: Final = os.environ.get("SLUICE_TEST_ENGINE", MINISTACK)
SEQUENCES: Final = int(os.environ.get("SLUICE_CONFORMANCE_SEQUENCES", "5000"))
FIRST: Final = int(os.environ.get("SLUICE_CONFORMANCE_FIRST", "0"))
END: Final = FIRST + SEQUENCES
PARTS: Final = 20
# The items of so many sequences are compared by one read.
TOGETHER: Final = 15
STREAMED_SEQUENCES: Final = 40
TRAFFIC_SEEDS: Final = max(1, SEQUENCES // 1000)

REFUSED: Final = "refused"
MISMATCH: Final = "token used for another request"
_CODES: Final = {"ValidationException": REFUSED, "IdempotentParameterMismatchException": MISMATCH}

Change = tuple[str, Item | None, Item | None]


def retries() -> Retries:
    return Retries(lambda _ms: None, never_random, CountingMeter())


@pytest.fixture(scope="module")
def shared_table(tables: Callable[[], str]) -> str:
    """Every sequence has keys of its own, so they can share a table."""
    return tables()


@pytest.fixture
def real(dynamodb: DynamoDBClient, shared_table: str) -> DynamoStore:
    return DynamoStore(dynamodb, shared_table, retries())


@pytest.fixture
def simulated() -> SimulatedStore:
    return SimulatedStore(SimulatedTable(), PerfectWire(), retries())


def answer_of(run: Callable[[Store], object], store: Store) -> tuple[object, Refusal | None]:
    """What a store answered; and why, where the simulated one refused."""
    try:
        return run(store), None
    except ValidationException as refusal:
        return REFUSED, refusal.kind
    except ParamValidationError:
        return REFUSED, None
    except IdempotentParameterMismatch:
        return MISMATCH, None
    except ClientError as error:
        code = error.response["Error"]["Code"]
        if code == "TransactionCanceledException":
            reasons = cast("list[dict[str, Any]]", cast("Any", error.response)["CancellationReasons"])
            assert any(reason["Code"] == "ValidationError" for reason in reasons), reasons
            return REFUSED, None
        if code not in _CODES:
            raise
        return _CODES[code], None


def run_on_both(one: Sequence, simulated: Store, real: Store) -> None:
    lax = lax_kinds(ENGINE)
    for number, step in enumerate(one.steps):
        expected, refusal = answer_of(step.run, simulated)
        if refusal in lax:
            continue
        answer, _ = answer_of(step.run, real)
        assert answer == expected, f"sequence {one.seed}, step {number} of {len(one.steps)}: {step.text}"


def items_at(keys: list[Key], store: Store) -> dict[Key, Item]:
    return {key_of(item): item for item in store.batch_get(keys, consistent=True)}


@pytest.mark.parametrize("part", range(PARTS))
def test_generated_sequences_end_alike(simulated: SimulatedStore, real: DynamoStore, part: int) -> None:
    seeds = range(FIRST + part, END, PARTS)
    for start in range(0, len(seeds), TOGETHER):
        together = seeds[start : start + TOGETHER]
        keys: list[Key] = []
        for seed in together:
            one = sequence(seed)
            run_on_both(one, simulated, real)
            keys += one.keys
        assert items_at(keys, simulated) == items_at(keys, real), f"items of sequences {together}"


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.text)
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "absent"])
def test_what_aws_refuses_is_refused(
    simulated: SimulatedStore, real: DynamoStore, hostile: Hostile, stored: bool
) -> None:
    """On the simulated table always; on an engine unless it is known to be lax there."""
    key = Key(f"hostile/{HOSTILE.index(hostile)}/{stored}", "s")
    if stored:
        for store in (simulated, real):
            store.put({"Item": {**key.attributes, "n": 1, "v": 1, "s": "x"}}, repeatable=True)
    assert answer_of(lambda store: hostile.run(store, key), simulated) == (REFUSED, hostile.kind)
    answer, _ = answer_of(lambda store: hostile.run(store, key), real)
    assert (answer != REFUSED) == (hostile.text in ACCEPTED[ENGINE])


@pytest.mark.parametrize(("condition", "values", "holds"), TRICKY, ids=[condition for condition, _, _ in TRICKY])
def test_conditions_are_judged_alike(
    simulated: SimulatedStore, real: DynamoStore, condition: str, values: dict[str, Value], holds: bool
) -> None:
    key = Key(f"tricky/{condition}", "s")
    request: Any = {"Item": {**key.attributes}, "ConditionExpression": condition}
    if values:
        request["ExpressionAttributeValues"] = values
    answers = []
    for store in (simulated, real):
        store.put({"Item": {**key.attributes, "n": 5, "s": "abc", "flag": True}}, repeatable=True)
        answers.append(answer_of(lambda store: isinstance(store.put(request, repeatable=False), Applied), store)[0])
    assert answers[0] == holds
    assert (answers[1] != holds) == (condition in WRONG[ENGINE])


@pytest.mark.parametrize("seed", range(TRAFFIC_SEEDS))
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_what_the_product_writes_comes_to_the_same(
    dynamodb: DynamoDBClient, table: str, scenario: str, seed: int
) -> None:
    """Every write of a simulation, with its faults and in its order, once more on the engine."""
    # A table of its own: the registry's names are not of one namespace.
    real = DynamoStore(dynamodb, table, retries())
    seed += FIRST + TRAFFIC_SEEDS * list(SCENARIOS).index(scenario)
    journaling = JournalingTable()
    run_seed(SCENARIOS[scenario], seed, table=journaling)
    assert journaling.journal
    for number, entry in enumerate(journaling.journal):
        assert entry.send(real) == entry.outcome, f"write {number} of {scenario} {seed}: {entry.text}"
    expected = {key_of(item): item for item in journaling.items()}
    assert items_at(list(expected), real) == expected


def test_scans_find_the_same_items(dynamodb: DynamoDBClient, table: str, simulated: SimulatedStore) -> None:
    real = DynamoStore(dynamodb, table, retries())
    for store in (simulated, real):
        for number in range(12):
            item: Item = {"PK": f"p{number % 4}", "SK": f"s{number}", "n": number}
            if number % 2:
                item |= {"GSI4PK": "g", "GSI4SK": f"x{number}"}
            store.put({"Item": item}, repeatable=True)
    for request in (
        {"ConsistentRead": True},
        {"Limit": 5, "ConsistentRead": True},
        {"FilterExpression": "n > :n AND SK <> :s", "ExpressionAttributeValues": {":n": 3, ":s": "s7"}, "Limit": 3},
        {"IndexName": "GSI4"},
        {"IndexName": "GSI4", "Limit": 2},
    ):
        found = [sorted(scanned(store, request), key=key_of) for store in (simulated, real)]
        assert found[0] == found[1]
        assert found[0]


def scanned(store: Store, request: dict[str, Any]) -> list[Item]:
    items: list[Item] = []
    more: dict[str, Any] = {}
    while True:
        page = store.scan(cast("Any", {**request, **more}))
        items += page.items
        if page.next_start is None:
            return items
        more = {"ExclusiveStartKey": page.next_start}


def test_the_stream_tells_the_same_changes(
    dynamodb: DynamoDBClient, dynamodb_endpoint: Endpoint, table: str, simulated: SimulatedStore
) -> None:
    real = DynamoStore(dynamodb, table, retries())
    # Tokens are one namespace for all tables of an engine: these sequences run here only.
    for seed in range(END, END + STREAMED_SEQUENCES):
        run_on_both(sequence(seed), simulated, real)
    expected: dict[Key, list[Change]] = {}
    for record in simulated.table.stream:
        expected.setdefault(record.key, []).append((record.event_name, record.old, record.new))
    assert changes_in_stream(dynamodb, dynamodb_endpoint, table) == expected


def changes_in_stream(dynamodb: DynamoDBClient, endpoint: Endpoint, table: str) -> dict[Key, list[Change]]:
    streams: Any = boto3.client(
        "dynamodbstreams",
        endpoint_url=endpoint.endpoint_url,
        region_name=endpoint.region,
        aws_access_key_id=endpoint.access_key,
        aws_secret_access_key=SECRET_KEY,
        config=Config(proxies={}),
    )
    arn = dynamodb.describe_table(TableName=table)["Table"]["LatestStreamArn"]
    changes: dict[Key, list[Change]] = {}
    for shard in streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]:
        position = streams.get_shard_iterator(
            StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        while position is not None:
            answer = streams.get_records(ShardIterator=position)
            for record in answer["Records"]:
                change = record["dynamodb"]
                key = key_of(item_from_wire(change["Keys"]))
                old, new = (
                    item_from_wire(change[image]) if image in change else None for image in ("OldImage", "NewImage")
                )
                changes.setdefault(key, []).append((record["eventName"], old, new))
            position = answer.get("NextShardIterator") if answer["Records"] else None
    return changes
