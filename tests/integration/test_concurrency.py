"""Sixteen processes on one bucket of a real engine."""

from dataclasses import replace
from fractions import Fraction

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from local.engine import Endpoint
from sluice.core.limits import Limit, Scope
from sluice.repository import keys
from sluice.repository.items import Bucket, decode_bucket
from sluice.repository.retries import Retries
from sluice.repository.store import DynamoStore
from sluice.services.configuration import Configuration
from sluice.services.entities import Entities, EntityChange
from sluice.services.limits import Limits
from sluice.shell import clock_ms, new_token
from tests.fakes import CountingMeter, never_random
from tests.workers import ENTITY, NAMESPACE, RESOURCE, Work, run_processes

PROCESSES = 16
OF_RESOURCE = Scope(resource=RESOURCE)
# So slow that a test sees at most a millitoken of it.
TEN_YEARS_S = 10 * 365 * 86_400


@pytest.fixture
def store(dynamodb: DynamoDBClient, table: str) -> DynamoStore:
    return DynamoStore(dynamodb, table, Retries(lambda _ms: None, never_random, CountingMeter()))


@pytest.fixture
def work(dynamodb_endpoint: Endpoint, table: str) -> Work:
    return Work(dynamodb_endpoint, table, attempts=0)


def configure(store: DynamoStore, limit: Limit, scope: Scope = OF_RESOURCE) -> None:
    configuration = Configuration(store, clock_ms)
    Limits(store, configuration, clock_ms, never_random, new_token).put(NAMESPACE, scope, {"rpm": limit})


def the_bucket(store: DynamoStore, entity: str = ENTITY) -> Bucket:
    item = store.get(keys.bucket(NAMESPACE, entity, RESOURCE, 0), consistent=True)
    assert item is not None
    return decode_bucket(item)


def refill_milli(bucket: Bucket, time_ms: int) -> int:
    parameters = bucket.limits["rpm"].parameters
    return time_ms * parameters.refill_amount_milli // parameters.refill_period_ms


def test_of_2000_attempts_on_500_tokens_exactly_500_are_admitted(store: DynamoStore, work: Work) -> None:
    configure(store, Limit(500, 500, 500, TEN_YEARS_S))
    reports = run_processes(replace(work, attempts=2000 // PROCESSES), PROCESSES)
    assert sum(report.admitted for report in reports) == 500
    assert sum(report.refused for report in reports) == 1500
    assert sum(report.contended for report in reports) == 0
    assert min(report.least_remaining for report in reports) == 0
    bucket = the_bucket(store)
    assert bucket.limits["rpm"].consumed_milli == 500_000
    # Level zero, to the millitoken, as of its creation.
    assert bucket.limits["rpm"].balance_milli + refill_milli(bucket, bucket.created_at_ms) == 0


def test_with_refill_running_nothing_is_minted_and_nothing_lost(store: DynamoStore, work: Work) -> None:
    configure(store, Limit(300, 300, 100, 1))
    reports = run_processes(replace(work, attempts=100_000, for_ms=5_000), PROCESSES)
    admitted = sum(report.admitted for report in reports)
    assert sum(report.contended for report in reports) == 0
    assert min(report.least_remaining for report in reports) == 0
    bucket = the_bucket(store)
    limit = bucket.limits["rpm"]
    assert limit.consumed_milli == admitted * 1000
    first_ms = min(report.first_ms for report in reports)
    last_ms = max(report.last_ms for report in reports)
    refilled_milli = refill_milli(bucket, last_ms) - refill_milli(bucket, first_ms)
    slack_milli = 10_000
    assert admitted * 1000 <= limit.parameters.burst_milli + slack_milli + refilled_milli
    level_milli = min(limit.balance_milli + refill_milli(bucket, last_ms), limit.parameters.burst_milli)
    assert level_milli >= 0
    assert any(report.refused for report in reports), "the demand must exceed the rate for this to show anything"
    # Served at the rate: nothing is lost but what overflowed while the bucket was still full at the start.
    second_milli = 100_000
    assert admitted * 1000 >= limit.parameters.burst_milli + refilled_milli - level_milli - second_milli
    assert sum(report.writes for report in reports) <= 1.3 * sum(report.asked for report in reports)


def test_sixteen_creators_make_one_bucket_and_all_are_counted(store: DynamoStore, work: Work) -> None:
    configure(store, Limit(1000, 1000, 1000, TEN_YEARS_S))
    reports = run_processes(replace(work, attempts=1), PROCESSES)
    assert [report.admitted for report in reports] == [1] * PROCESSES
    bucket = the_bucket(store)
    assert bucket.version == PROCESSES
    assert bucket.limits["rpm"].consumed_milli == PROCESSES * 1000
    kinds = [item["kind"] for item in store.scan({"ConsistentRead": True}).items]
    assert sorted(map(str, kinds)) == ["audit", "bucket", "limits"]


def test_users_of_one_team_share_its_limit_exactly(store: DynamoStore, work: Work) -> None:
    """Whatever a user took for a request that the team refused was given back: all counts agree in the end."""
    configure(store, Limit(1000, 1000, 1000, TEN_YEARS_S))
    configure(store, Limit(300, 300, 300, TEN_YEARS_S), Scope("team", RESOURCE))
    configuration = Configuration(store, clock_ms)
    entities = Entities(store, configuration, clock_ms, never_random, new_token)
    users = tuple(f"user-{number}" for number in range(4))
    entities.put(NAMESPACE, "team", EntityChange())
    for user in users:
        entities.put(NAMESPACE, user, EntityChange(parent="team"))
    reports = run_processes(replace(work, attempts=40, entities=users), PROCESSES)
    assert sum(report.admitted for report in reports) == 300
    assert sum(report.contended for report in reports) == 0
    assert the_bucket(store, "team").limits["rpm"].consumed_milli == 300_000
    by_user = [the_bucket(store, user).limits["rpm"].consumed_milli for user in users]
    assert sum(by_user) == 300_000


@pytest.mark.parametrize("amount", [1, 7])
def test_16_processes_that_split_as_they_go_admit_no_more_than_there_is(
    store: DynamoStore, work: Work, amount: int
) -> None:
    """Splits at any moment, some of which meet each other; amounts that do not divide the shares."""
    configure(store, Limit(1000, 1000, 1000, TEN_YEARS_S))
    reports = run_processes(replace(work, attempts=100, split_every=15, amount=amount), PROCESSES)
    admitted = sum(report.admitted for report in reports) * amount
    found = [decode_bucket(item) for item in store.batch_get(all_shards(), consistent=True)]
    # Splits that met each other may have left one or two undone; but what there is makes up the whole bucket.
    assert len(found) > 8
    assert sum(Fraction(1, bucket.shard_count) for bucket in found) == 1
    assert sum(bucket.limits["rpm"].consumed_milli for bucket in found) == admitted * 1000
    assert sum(bucket.limits["rpm"].parameters.burst_milli for bucket in found) == 1_000_000
    left_milli = sum(level_milli(bucket) for bucket in found)
    # Up to a millitoken per shard of the refill is still to come.
    assert 0 <= 1_000_000 - admitted * 1000 - left_milli <= 16
    assert left_milli < amount * 1000 + 16, "whatever the sum allows is admitted"


def all_shards() -> list[keys.Key]:
    return [keys.bucket(NAMESPACE, ENTITY, RESOURCE, shard) for shard in range(16)]


def level_milli(bucket: Bucket) -> int:
    limit = bucket.limits["rpm"]
    return min(limit.balance_milli + refill_milli(bucket, clock_ms()), limit.parameters.burst_milli)
