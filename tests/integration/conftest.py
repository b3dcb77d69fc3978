"""A process of the product, with a clock that a test moves."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.admission import Admission
from sluice.core.errors import LimitExceeded
from sluice.core.limits import LimitsByName, OnUnavailable, Scope
from sluice.repository import keys
from sluice.repository.items import Bucket, decode_bucket
from sluice.repository.retries import Retries
from sluice.repository.store import DynamoStore
from sluice.services.acquire import Acquire, Task
from sluice.services.chains import AcquireRequest, Chains
from sluice.services.claims import Taken
from sluice.services.configuration import Configuration
from sluice.services.effects import Effects
from sluice.services.entities import Entities
from sluice.services.explain import Explain
from sluice.services.idempotency import IdempotentAcquire
from sluice.services.limits import Limits
from sluice.services.registration import Registrar
from sluice.services.sharding import Sharding
from sluice.services.taking import Buckets, Taker, build_buckets
from sluice.services.together import Together
from sluice.shell import new_token
from tests.fakes import CountingMeter, FakeClock, FakeRandom, never_random
from tests.recording import RecordingStore

NAMESPACE = "ns"
ENTITY = "user-1"
RESOURCE = "gpt-4"
ADMITTED_MAX = 1000
OF_RESOURCE = Scope(resource=RESOURCE)


@dataclass
class Host:
    """One process: its own caches, the shared table and clock."""

    store: RecordingStore
    configuration: Configuration
    entities: Entities
    limits: Limits
    taker: Taker
    sharding: Sharding
    service: Acquire
    meter: CountingMeter
    clock: FakeClock
    random: FakeRandom
    buckets: Buckets
    idempotent: IdempotentAcquire
    explain: Explain

    def acquire(self, **consume: int) -> Admission:
        return self.ask(consume)

    def ask(self, consume: Mapping[str, int], limits: LimitsByName | None = None, entity: str = ENTITY) -> Admission:
        return self.service.acquire(AcquireRequest(NAMESPACE, entity, RESOURCE, consume, limits))

    def refused(self, **consume: int) -> LimitExceeded:
        with pytest.raises(LimitExceeded) as raised:
            self.ask(consume)
        return raised.value

    def admitted_until_refused(self, limits: LimitsByName | None = None, **consume: int) -> int:
        for admitted in range(ADMITTED_MAX):
            try:
                self.ask(consume, limits)
            except LimitExceeded:
                return admitted
        raise AssertionError(f"{ADMITTED_MAX} requests were admitted")

    def put_limits(
        self, limits: LimitsByName, scope: Scope = OF_RESOURCE, on_unavailable: OnUnavailable | None = None
    ) -> None:
        self.limits.put(NAMESPACE, scope, limits, on_unavailable)

    def bucket(self, call_fingerprint: str | None = None) -> Bucket:
        found = self.find_bucket(call_fingerprint)
        assert found is not None
        return found

    def find_bucket(self, call_fingerprint: str | None = None) -> Bucket | None:
        item = self.store.inner.get(keys.bucket(NAMESPACE, ENTITY, RESOURCE, 0, call_fingerprint), consistent=True)
        return None if item is None else decode_bucket(item)

    def level_milli(self, limit: str) -> int:
        """As rule 1.2 says, written out once more so that the product's own function is not its own judge."""
        found = self.bucket().limits[limit]
        refill = self.clock.now_ms * found.parameters.refill_amount_milli // found.parameters.refill_period_ms
        return min(found.balance_milli + refill, found.parameters.burst_milli)

    def consumed_milli(self, limit: str) -> int:
        return self.bucket().limits[limit].consumed_milli


def one_by_one(tasks: Sequence[Task]) -> list[Taken | Exception]:
    """In order, so that a test knows which write comes when."""
    outcomes: list[Taken | Exception] = []
    for task in tasks:
        try:
            outcomes.append(task())
        except Exception as error:  # noqa: BLE001 - this is what the threads of the product do with it
            outcomes.append(error)
    return outcomes


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def start_host(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Callable[[], Host]:
    """Call it for one more process on the same table."""

    def start() -> Host:
        meter = CountingMeter()
        random = FakeRandom()
        retries = Retries(lambda _ms: None, never_random, meter)
        store = RecordingStore(DynamoStore(dynamodb, table, retries))
        configuration = Configuration(store, clock)
        limits = Limits(store, configuration, clock, never_random, new_token)
        effects = Effects(clock, random, new_token, meter)
        buckets = build_buckets(store, configuration, effects, clock)
        chains = Chains(configuration, buckets.memory.images, Registrar(store, configuration, effects))
        entities = Entities(store, configuration, clock, never_random, new_token)
        service = Acquire(configuration, chains, buckets.taker, one_by_one, meter)
        return Host(
            store=store,
            configuration=configuration,
            entities=entities,
            limits=limits,
            taker=buckets.taker,
            sharding=buckets.sharding,
            service=service,
            meter=meter,
            clock=clock,
            random=random,
            buckets=buckets,
            idempotent=IdempotentAcquire(store, service, chains, Together(store, buckets, effects), effects),
            explain=Explain(chains, buckets.writer, clock),
        )

    return start


@pytest.fixture
def host(start_host: Callable[[], Host]) -> Host:
    return start_host()
