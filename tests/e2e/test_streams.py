"""The aggregator of the deployed stacks: what was admitted over HTTP is what usage shows, to the millitoken.

Four clients take, give back and take more at once. Each keeps its own book from the answers it got; the books are
compared with the API and with the items of the table, where millitokens are seen.
"""

import random
import statistics
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from local.deploy import Outputs
from local.engine import Engine, dynamodb_client, engine_client
from local.redrive import Clients, Stretch, redrive
from sluice.core.snapshots import Window
from sluice.repository import keys
from sluice.repository.items import BUCKET, decode_bucket
from sluice.repository.snapshots import Snapshot, decode_snapshot
from sluice.repository.wire import item_from_wire, item_to_wire
from tests.e2e.api import Answer, Api
from tests.e2e.test_limiter_api import pages
from tests.e2e.test_purge import namespace_of

ACQUIRES = 1_000
CLIENTS = 4
REDRIVEN = 500
# Generous: it takes seconds, and only an aggregator that never runs can reach this.
COUNTED_SECONDS = 120
# Of a call that lost every round against others. It may be sent again: it changed nothing.
CONTENDED_MAX = 100

APP, TEAM = "app", "team"
USERS = ("user-free", "user-few-tokens", "user-of-team")
CHAINS = {USERS[0]: (USERS[0], APP), USERS[1]: (USERS[1], APP), USERS[2]: (USERS[2], TEAM, APP)}
ENTITIES = (*USERS, TEAM, APP)
RESOURCE = "chat"
AMPLE = {"rpm": 10**6, "tpm": 10**9}
# One refuses by itself. The other is refused by the team above it, when the user's own tokens may be taken already.
CAPACITIES = {USERS[1]: AMPLE | {"tpm": 20_000}, TEAM: AMPLE | {"rpm": 150}}

# By entity and limit, in whole tokens: nothing else can be taken over HTTP.
Book = Counter[tuple[str, str]]


@dataclass
class Done:
    """What a client did, by the answers it got."""

    book: Book = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)

    def take(self, user: str, amounts: Mapping[str, int]) -> None:
        for entity in CHAINS[user]:
            for limit, amount in amounts.items():
                self.book[entity, limit] += amount


@dataclass(frozen=True)
class Place:
    """An org with an app that both may use. `since`: no window of its usage ended before."""

    engine: Engine
    outputs: Outputs
    org: Api
    clients: tuple[Api, ...]
    namespace: str
    since: str

    def snapshots(self, entity: str, window: Window, resource: str = RESOURCE) -> list[Snapshot]:
        client: Any = dynamodb_client(self.engine.endpoint)
        wanted = {":pk": keys.usage_partition(self.namespace, entity), ":sk": keys.usage_of(resource, window)}
        answer = client.query(
            TableName=self.outputs.table,
            KeyConditionExpression="PK = :pk AND begins_with(SK, :sk)",
            ExpressionAttributeValues=item_to_wire(dict(wanted)),
            ConsistentRead=True,
        )
        return [decode_snapshot(item_from_wire(item)) for item in answer["Items"]]

    def counted(self, window: Window) -> Book:
        """As the table has it, in millitokens."""
        book: Book = Counter()
        for entity in ENTITIES:
            for snapshot in self.snapshots(entity, window):
                for limit, milli in snapshot.consumed_milli.items():
                    book[entity, limit] += milli
        return book

    def shown(self, entity: str, window: Window, resource: str = RESOURCE) -> list[dict[str, Any]]:
        query = f"resource={resource}&window={window.value}&from={self.since}"
        answer = self.org.call("GET", f"/v1/entities/{entity}/usage?{query}")
        assert answer.status == 200, answer.body
        items: list[dict[str, Any]] = answer.json()["items"]
        return items


@dataclass(frozen=True)
class Traffic:
    place: Place
    book: Book
    steps: Counter[str]


@pytest.fixture(scope="module")
def place(deployed_engine: tuple[Engine, Outputs], operator: Api) -> Place:
    engine, outputs = deployed_engine
    since = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    name = f"org-{uuid.uuid4().hex[:12]}"
    made = operator.call("PUT", f"/v1/orgs/{name}", {}).json()
    org = operator.logged_in(made)
    app = org.call("PUT", f"/v1/orgs/{name}/apps/{APP}", {}).json()
    for entity, parent in ((TEAM, APP), (USERS[0], APP), (USERS[1], APP), (USERS[2], TEAM)):
        assert org.call("PUT", f"/v1/entities/{entity}", {"parent": parent}).status == 201
    for entity in ENTITIES:
        put_limits(org, entity, RESOURCE, CAPACITIES.get(entity, AMPLE))
    clients = tuple(operator.logged_in(credentials) for credentials in (made, app, made, app))
    return Place(engine, outputs, org, clients, namespace_of(engine, outputs, name), since)


def put_limits(org: Api, entity: str, resource: str, capacities: Mapping[str, int]) -> None:
    limits = {limit: {"capacity": capacity, "refill_period_seconds": 3600} for limit, capacity in capacities.items()}
    assert org.call("PUT", f"/v1/limits/entities/{entity}/{resource}", {"limits": limits}).status == 201


@pytest.fixture(scope="module")
def traffic(place: Place) -> Traffic:
    """All of it done and counted, and whatever came after it in the stream as well."""
    assert len(place.clients) == CLIENTS
    with ThreadPoolExecutor(CLIENTS) as threads:
        done = list(threads.map(use, place.clients, range(CLIENTS)))
    book = sum((each.book for each in done), Counter())
    wanted = milli(book)
    deadline = time.monotonic() + COUNTED_SECONDS
    while (counted := place.counted(Window.HOUR)) != wanted and time.monotonic() < deadline:
        time.sleep(0.2)
    assert counted == wanted
    # What would be counted twice would be counted before this.
    show_one(place, f"after-{uuid.uuid4().hex[:12]}")
    return Traffic(place, book, sum((each.steps for each in done), Counter()))


def use(client: Api, number: int) -> Done:
    chance = random.Random(number)
    done = Done()
    for turn in range(ACQUIRES // CLIENTS):
        acquire_once(client, chance, done, USERS[turn % len(USERS)], f"{number}-{turn}")
    return done


def acquire_once(client: Api, chance: random.Random, done: Done, user: str, key: str) -> None:
    """One call, and for some of those admitted what a client does with its lease."""
    tokens = chance.randint(1, 400)
    step = chance.choice(("keep", "keep", "keep", "repeat", "release", "settle less", "settle more", "adjust"))
    body = {"entity": user, "resource": RESOURCE, "consume": {"rpm": 1, "tpm": tokens}}
    headers = {"Idempotency-Key": key}
    taken = client.call("POST", "/v1/acquire", body, more_headers=headers if step == "repeat" else None)
    if taken.status == 429:
        done.steps[f"{user} refused"] += 1
        return
    assert taken.status == 201, taken.body
    answer = taken.json()
    assert tuple(level["entity"] for level in answer["levels"]) == CHAINS[user]
    done.steps[step] += 1
    done.take(user, {"rpm": 1, "tpm": tokens})
    lease = {"lease": answer["lease"]}
    match step:
        case "repeat":
            again = client.call("POST", "/v1/acquire", body, more_headers=headers)
            assert (again.status, again.json()) == (201, answer)
        case "release":
            change(client, "release", lease)
            done.take(user, {"rpm": -1, "tpm": -tokens})
        case "settle less":
            change(client, "settle", {**lease, "actual": {"tpm": tokens // 3}})
            done.take(user, {"tpm": tokens // 3 - tokens})
        case "settle more":
            change(client, "settle", {**lease, "actual": {"tpm": tokens + 7}})
            done.take(user, {"tpm": 7})
        case "adjust":
            change(client, "adjust", {**lease, "delta": {"tpm": 11}}, headers)
            done.take(user, {"tpm": 11})


def change(client: Api, action: str, body: object, headers: Mapping[str, str] | None = None) -> Answer:
    for _ in range(CONTENDED_MAX):
        answer = client.call("POST", f"/v1/leases/{action}", body, more_headers=headers)
        if answer.status != 429:
            break
        time.sleep(answer.json()["retry_after_ms"] / 1000)
    assert answer.status == 200, answer.body
    return answer


def show_one(place: Place, entity: str, taken: int = 1) -> float:
    """Takes one, the so manyth of this entity, and waits until usage shows it. The seconds from the answer on."""
    limits = {"rpm": {"capacity": 1000, "refill_period_seconds": 60}}
    body = {"entity": entity, "resource": "single", "consume": {"rpm": 1}, "limits": limits}
    assert place.org.call("POST", "/v1/acquire", body).status == 201
    answered = time.monotonic()
    while total(place.shown(entity, Window.HOUR, "single")) != {"rpm": taken}:
        assert time.monotonic() < answered + COUNTED_SECONDS
        time.sleep(0.01)
    return time.monotonic() - answered


def total(items: Iterable[Mapping[str, Any]]) -> Counter[str]:
    consumed: Counter[str] = Counter()
    for item in items:
        consumed.update(item["consumed"])
    return consumed


def milli(book: Book) -> Book:
    return Counter({name: amount * 1000 for name, amount in book.items()})


def test_every_single_acquire_is_shown(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """One by one, so that none waits for another to be counted with."""
    entity = f"single-{uuid.uuid4().hex[:12]}"
    seconds = [show_one(place, entity, number) for number in range(1, 11)]
    with capsys.disabled():
        print(f"\nshown after {statistics.median(seconds) * 1000:.0f} ms, median of {len(seconds)}")  # noqa: T201


def test_the_traffic_was_of_every_kind(traffic: Traffic) -> None:
    """Else the other tests would show less than they say."""
    steps = traffic.steps
    assert steps.total() == ACQUIRES
    kinds = {"keep", "repeat", "release", "settle less", "settle more", "adjust"}
    assert steps.keys() >= kinds | {f"{USERS[1]} refused", f"{USERS[2]} refused"}, steps
    assert {entity for entity, _ in traffic.book} == set(ENTITIES)


@pytest.mark.parametrize("window", Window)
def test_the_table_has_what_was_admitted_to_the_millitoken(traffic: Traffic, window: Window) -> None:
    assert traffic.place.counted(window) == milli(traffic.book)


@pytest.mark.parametrize("window", Window)
def test_every_write_of_a_bucket_was_counted_once(traffic: Traffic, window: Window) -> None:
    """Also those of which nothing is left: taken from a user, given back when the team refused."""
    place = traffic.place
    client: Any = dynamodb_client(place.engine.endpoint)
    for entity in ENTITIES:
        key = item_to_wire({**keys.bucket(place.namespace, entity, RESOURCE, 0).attributes})
        answer = client.get_item(TableName=place.outputs.table, Key=key, ConsistentRead=True)
        bucket = decode_bucket(item_from_wire(answer["Item"]))
        assert bucket.shard_count == 1
        assert sum(snapshot.total_events for snapshot in place.snapshots(entity, window)) == bucket.version


@pytest.mark.parametrize("window", Window)
@pytest.mark.parametrize("entity", ENTITIES)
def test_an_entity_is_shown_what_it_was_admitted(traffic: Traffic, window: Window, entity: str) -> None:
    items = traffic.place.shown(entity, window)
    # The hour may have turned.
    assert len(items) in {1, 2}
    assert total(items) == {limit: amount for (name, limit), amount in traffic.book.items() if name == entity}


@pytest.mark.parametrize("window", Window)
def test_a_resource_is_shown_with_all_its_entities(traffic: Traffic, window: Window) -> None:
    place = traffic.place
    path = f"/v1/resources/{RESOURCE}/usage?window={window.value}&from={place.since}&limit=2"
    book: Book = Counter()
    for item in pages(place.org, path):
        assert item["call_limits"] is False
        assert isinstance(item["consumed"], dict)
        book.update({(str(item["entity"]), limit): amount for limit, amount in item["consumed"].items()})
    assert book == traffic.book


def test_a_stretch_that_is_delivered_again_changes_nothing(traffic: Traffic) -> None:
    """As after an outage: the function is given the last of it once more."""
    place = traffic.place
    before = {(entity, window): place.snapshots(entity, window) for entity in ENTITIES for window in Window}
    clients = Clients(
        engine_client("dynamodbstreams", place.engine.endpoint),
        engine_client("lambda", place.engine.endpoint),
        engine_client("sqs", place.engine.endpoint),
    )
    assert redrive(clients, stretch_of(place, clients)) >= REDRIVEN
    after = {(entity, window): place.snapshots(entity, window) for entity in ENTITIES for window in Window}
    assert after == before


def stretch_of(place: Place, clients: Clients) -> Stretch:
    """The last records of buckets of this org, and what is between them."""
    table = dynamodb_client(place.engine.endpoint).describe_table(TableName=place.outputs.table)["Table"]
    arn = table["LatestStreamArn"]
    (shard,) = clients.streams.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"]
    iterator = clients.streams.get_shard_iterator(
        StreamArn=arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    wanted = {"ns": {"S": place.namespace}, "kind": {"S": BUCKET}}
    sequences: list[str] = []
    while (page := clients.streams.get_records(ShardIterator=iterator))["Records"]:
        iterator = page["NextShardIterator"]
        changes = [record["dynamodb"] for record in page["Records"]]
        sequences += [
            change["SequenceNumber"] for change in changes if wanted.items() <= change.get("NewImage", {}).items()
        ]
    sources = clients.functions.list_event_source_mappings(EventSourceArn=arn)["EventSourceMappings"]
    (function,) = {source["FunctionArn"] for source in sources if "Aggregator" in source["FunctionArn"]}
    return Stretch(function, arn, shard["ShardId"], sequences[-REDRIVEN], sequences[-1])
