"""Processes are killed under load on a real engine; what they and their successors were told must fit the table.

SLUICE_KILLS says how many, SLUICE_KILL_EVERY_MS how often: 30 about every second, or as many as one has time for.
"""

import os
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from local.engine import Endpoint
from sluice.core.limits import Limit, Scope
from sluice.core.shards import SHARDS_MAX
from sluice.repository import keys
from sluice.repository.items import Bucket, decode_bucket
from sluice.repository.leases import State
from sluice.repository.retries import Retries
from sluice.repository.store import DynamoStore
from sluice.services.configuration import Configuration
from sluice.services.entities import Entities, EntityChange
from sluice.services.limits import Limits
from sluice.shell import clock_ms, new_token
from tests.fakes import CountingMeter, never_random
from tests.histories import MILLI, Admitted, Violated, check_every_window
from tests.integration.fault_accounts import Accounts, Demand, KeyAccount, LeaseAccount
from tests.killing import (
    CHILDREN,
    LEASED,
    NAMESPACE,
    RESOURCE,
    SHARED,
    TEAM,
    WIDE,
    Crew,
    Event,
    Task,
    histories,
    idempotency_key,
    lease_from_json,
)

KILLS: Final = int(os.environ.get("SLUICE_KILLS", "30"))
EVERY_MS: Final = int(os.environ.get("SLUICE_KILL_EVERY_MS", "1000"))
WORKERS: Final = 4
OWNERS: Final = (SHARED, WIDE, LEASED, TEAM, *CHILDREN)
LIMITS: Final = {
    SHARED: Limit(20, 30, 20, 1),
    WIDE: Limit(100, 160, 60, 1),
    TEAM: Limit(20, 20, 12, 1),
    # So much that nobody is refused: what leases take is looked at, not whether.
    LEASED: Limit(10**9, 10**9, 10**9, 31_536_000),
}
OF_CHILDREN: Final = Limit(200, 200, 200, 1)
MIDDLE: Final = 0.5


@pytest.fixture
def store(dynamodb: DynamoDBClient, table: str) -> DynamoStore:
    return DynamoStore(dynamodb, table, Retries(lambda _ms: None, never_random, CountingMeter()))


def set_up(store: DynamoStore) -> None:
    configuration = Configuration(store, clock_ms)
    limits = Limits(store, configuration, clock_ms, never_random, new_token)
    entities = Entities(store, configuration, clock_ms, never_random, new_token)
    limits.put(NAMESPACE, Scope(resource=RESOURCE), {"rpm": OF_CHILDREN})
    for entity, limit in LIMITS.items():
        limits.put(NAMESPACE, Scope(entity, RESOURCE), {"rpm": limit})
    entities.put(NAMESPACE, TEAM, EntityChange())
    for child in CHILDREN:
        entities.put(NAMESPACE, child, EntityChange(parent=TEAM))


def kill_under_load(task: Task) -> int:
    crew = Crew(task, WORKERS)
    random = Random(f"{task.seed} kills")
    try:
        for _ in range(KILLS):
            time.sleep(EVERY_MS / 1000 * (MIDDLE + random.random()))
            crew.kill_one()
        time.sleep(EVERY_MS / 1000)
        crew.stop()
    finally:
        crew.end()
    return crew.kills


def demand_of(event: Event) -> Demand:
    consume = {"rpm": event.amount}
    return {event.entity: consume, TEAM: consume} if event.entity in CHILDREN else {event.entity: consume}


def accounts_of(events: Sequence[Event]) -> Accounts:
    """What the answers say, and what is left in doubt."""
    accounts = Accounts()
    by_key: dict[str, KeyAccount] = {}
    by_lease: dict[str, LeaseAccount] = {}
    for event in events:
        if event.verb == "lease" and event.is_admitted:
            by_lease[event.result["lease"]["lease_id"]] = LeaseAccount(lease_from_json(event.result["lease"]))
    for event in events:
        if event.verb == "key":
            account = by_key.setdefault(
                event.more["key"],
                KeyAccount(idempotency_key(event.more["key"]), event.entity, {"rpm": event.amount}, demand_of(event)),
            )
            if event.is_admitted:
                account.answers.append(event.result["text"])
        elif event.verb == "adjust":
            of_lease = by_lease[event.more["lease"]].adjusted
            of_lease[event.more["key"]] = ({"rpm": event.amount}, event.is_admitted)
        elif event.verb == "close":
            if event.is_admitted:
                how = State.SETTLED if event.amount else State.RELEASED
                by_lease[event.more["lease"]].closed.append((how, {"rpm": event.amount}))
        elif event.is_open:
            accounts.charge(demand_of(event), certain=False)
        elif event.verb == "acquire" and event.is_admitted:
            accounts.charge(demand_of(event), certain=True)
    accounts.keys = list(by_key.values())
    accounts.leases = list(by_lease.values())
    return accounts


def check_windows(events: Sequence[Event]) -> None:
    """Of what nothing is given back to; the first answer under a key is its admission."""
    admitted: dict[str, list[Admitted]] = {SHARED: [], WIDE: []}
    answered_keys: set[str] = set()
    longest_ms = max(event.answered_ms - event.sent_ms for event in events if event.answered_ms is not None)
    for event in sorted(events, key=lambda event: event.answered_ms or 0):
        if not event.is_admitted or event.answered_ms is None or event.entity not in admitted:
            continue
        if event.verb == "key":
            if event.more["key"] in answered_keys:
                continue
            answered_keys.add(event.more["key"])
        admitted[event.entity].append(Admitted(event.amount, event.sent_ms, event.answered_ms))
    for entity, found in admitted.items():
        check_every_window(found, LIMITS[entity], longest_ms)


def check_chains(events: Sequence[Event], buckets: Sequence[Bucket]) -> None:
    """Whatever a child was charged its team was charged, up to requests of which nobody knows."""
    of_team = sum(bucket.limits["rpm"].consumed_milli for bucket in buckets if bucket.entity == TEAM)
    of_children = sum(bucket.limits["rpm"].consumed_milli for bucket in buckets if bucket.entity in CHILDREN)
    doubt = sum(event.amount * MILLI for event in events if event.is_open and event.entity in CHILDREN)
    if abs(of_team - of_children) > doubt:
        raise Violated(f"the team was charged {of_team}, its children {of_children}, in doubt are {doubt}")


def test_what_the_killed_and_their_successors_were_told_fits_the_table(
    store: DynamoStore, dynamodb_endpoint: Endpoint, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up(store)
    seed = secrets.randbelow(10**9)
    kills = kill_under_load(Task(dynamodb_endpoint, table, tmp_path, seed, "worker"))
    events = [event for history in histories(tmp_path) for event in history]
    wanted = [keys.bucket(NAMESPACE, entity, RESOURCE, shard) for entity in OWNERS for shard in range(SHARDS_MAX)]
    # Each of them decodes: there is no half item.
    buckets = [decode_bucket(item) for item in store.batch_get(wanted, consistent=True)]
    accounts_of(events).check(store, OWNERS, buckets)
    check_windows(events)
    check_chains(events, buckets)
    assert kills == KILLS
    in_flight = [event for event in events if event.answer is None]
    assert 0 < len(in_flight) <= kills, "they are killed in the middle of something"
    assert not any(event.answer == "Unavailable" for event in events)
    assert {event.verb for event in events if event.is_admitted} == {"acquire", "key", "lease", "adjust", "close"}
    check_that_it_would_be_noticed(store, events, buckets)
    with capsys.disabled():
        print(f"\n{kills:,} kills, {len(events):,} requests, {len(in_flight)} of them in flight")  # noqa: T201


def check_that_it_would_be_noticed(store: DynamoStore, events: Sequence[Event], buckets: Sequence[Bucket]) -> None:
    """The same history with one lie in it does not fit."""
    admitted = next(event for event in events if event.verb == "acquire" and event.is_admitted)
    closed = next(event for event in events if event.verb == "close" and event.is_admitted)
    lies = {
        "an admission that was none": [*events, *[admitted] * len(events)],
        "a refusal that was none": [
            replace(event, answer="LimitExceeded") if event.verb == "acquire" else event for event in events
        ],
        "a second close": [*events, replace(closed, amount=closed.amount + 1)],
    }
    for lie, told in lies.items():
        try:
            accounts_of(told).check(store, OWNERS, buckets)
        except Violated:
            continue
        raise AssertionError(f"nobody notices {lie}")
