"""Calls and capacity units of each operation, as a table: `make costs`.

`tests/integration/test_costs.py` holds the same figures to their bounds.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mypy_boto3_dynamodb import DynamoDBClient

from bench.capacity import CapacityMeter, Consumption
from bench.holds import HoldCosts
from bench.selection import SelectionCosts
from bench.totals import TotalCosts
from bench.usage import UsageCosts
from data_plane.models import AcquireAnswer
from local.engine import Engine, dynamodb_client
from local.reference import ReferenceEngine, available
from local.table import create_table
from sluice.core.admission import Admission
from sluice.core.audit import BY_SYSTEM
from sluice.core.errors import LimitExceeded
from sluice.core.lease import Lease
from sluice.core.limits import Limit, Scope
from sluice.core.signals import Signal
from sluice.edge.lease_tokens import write_token
from sluice.repository import keys
from sluice.repository.idempotency import IdempotencyKey
from sluice.repository.items import Bucket, decode_bucket
from sluice.services.chains import AcquireRequest
from sluice.services.entities import EntityChange
from sluice.services.holding import Wish
from sluice.services.registration import Registration
from sluice.services.signing import Signer, SigningKeys
from sluice.shell import Environment, Services, build_services

NAMESPACE: Final = "ns"
RESOURCE: Final = "gpt-4"
# Three limits and ids of forty characters: what a bucket may have and still be written for one unit. They refill
# slowly, so that the figures do not depend on how fast this machine is.
LIMITS: Final = {
    "rpm": Limit(1000, 1000, 1, 60),
    "tpm": Limit(1_000_000, 2_000_000, 100, 60),
    "rpd": Limit(100_000, 100_000, 100, 86_400),
}
CONSUME: Final = {"rpm": 1, "tpm": 500, "rpd": 1}
LEASE_MS: Final = 300_000


@dataclass(frozen=True)
class Bound:
    """The most that an operation may cost. `transaction`: DynamoDB Local's figures for those follow no known rule."""

    calls: int
    write_units: float
    read_units: float
    transaction: bool = False


BOUNDS: Final = {
    "first acquire": Bound(2, 4, 3),
    "warm acquire": Bound(1, 1, 0),
    "refused acquire": Bound(1, 1, 0),
    "refused again within a second": Bound(0, 0, 0),
    "acquire in a cold process": Bound(2, 1, 3),
    "acquire after a minute (limits read again)": Bound(2, 1, 2),
    "acquire that meets changed limits": Bound(5, 3, 8),
    "warm acquire, chain of two": Bound(2, 2, 0),
    "warm acquire, chain of three": Bound(3, 3, 0),
    "refused by a parent, chain of two": Bound(3, 3, 0),
    "refused by a parent again within a second": Bound(0, 0, 0),
    "first acquire of an unknown entity": Bound(3, 12, 3, transaction=True),
    "acquire with Idempotency-Key": Bound(1, 4, 0, transaction=True),
    "acquire with Idempotency-Key, chain of two": Bound(1, 6, 0, transaction=True),
    "repeat with Idempotency-Key": Bound(1, 0, 0, transaction=True),
    "settle with no difference": Bound(1, 1, 0),
    "settle with a difference": Bound(1, 4, 0, transaction=True),
    "settle with a difference, chain of two": Bound(1, 6, 0, transaction=True),
    "adjust": Bound(1, 4, 0, transaction=True),
    "release": Bound(1, 4, 0, transaction=True),
    "adjust in process": Bound(1, 1, 0),
    "explain": Bound(1, 0, 1),
    "split of a shard": Bound(1, 8, 0, transaction=True),
    "warm acquire, four shards": Bound(1, 1, 0),
    "acquire above one share, four shards": Bound(2, 8, 4, transaction=True),
    "refused by all of four shards": Bound(2, 1, 4),
    "change of limits, with its audit event": Bound(2, 7, 1, transaction=True),
    "usage event": Bound(2, 4, 0.5, transaction=True),
    "usage event, quota scope ORG": Bound(2, 6, 0.5, transaction=True),
    "usage event repeated": Bound(2, 0, 0.5, transaction=True),
    "usage event that closes a lease": Bound(2, 6, 0.5, transaction=True),
    "usage event of an unknown entity": Bound(6, 12, 3, transaction=True),
    "usage event, 1 ledger": Bound(2, 6, 0.5, transaction=True),
    "usage event, 2 ledgers": Bound(2, 8, 0.5, transaction=True),
    "usage event, 3 ledgers": Bound(2, 10, 0.5, transaction=True),
    "usage event that settles a hold, 1 ledger": Bound(2, 11, 0.5, transaction=True),
    "usage event that settles a hold, 2 ledgers": Bound(2, 13, 0.5, transaction=True),
    "usage event that settles a hold, 3 ledgers": Bound(2, 15, 0.5, transaction=True),
    "settle with usage and a difference, 1 ledger": Bound(2, 13, 0.5, transaction=True),
    "settle with usage and a difference, 2 ledgers": Bound(2, 15, 0.5, transaction=True),
    "settle with usage and a difference, 3 ledgers": Bound(2, 17, 0.5, transaction=True),
    "batch of 100 usage events": Bound(3, 204, 0.5, transaction=True),
    "batch of 100 usage events, quota scope ORG": Bound(3, 208, 0.5, transaction=True),
    "acquire with a hold, 1 ledger": Bound(1, 7, 0, transaction=True),
    "acquire with a hold, 2 ledgers": Bound(1, 9, 0, transaction=True),
    "acquire with a hold, 3 ledgers": Bound(1, 11, 0, transaction=True),
    "acquire with a hold and no bucket, 1 ledger": Bound(1, 5, 0, transaction=True),
    "release of a hold, 1 ledger": Bound(1, 9, 0, transaction=True),
    "release of a hold, 3 ledgers": Bound(1, 13, 0, transaction=True),
    "first mark of a day": Bound(1, 4, 0),
    "mark of a total": Bound(1, 2, 0),
    # It is in the index already, and stays there.
    "mark of a total in steady use": Bound(1, 1, 0),
    # Eight looks at the index, the mark, the org, and its eight shards. AWS bills 14: absent shards as well.
    "rollup of one label": Bound(13, 3, 4.5),
    "rollup of one label in steady use": Bound(12, 1, 4.5),
    "rollup with nothing due": Bound(8, 0, 4),
    "selection, three labels": Bound(1, 0, 2),
    "selection by an app for its user, three labels": Bound(1, 0, 2),
    # Before it is kept: the settings, labels and profiles, read anew.
    "selection that moves on, three labels": Bound(5, 1, 4),
}


class _Keys:
    def known(self) -> SigningKeys:
        return SigningKeys(b"k" * 64)

    looked_up = known


_SIGNER: Final = Signer(_Keys())


class Uncounted:
    """A benchmark reads consumed capacity, not signals."""

    def count(self, signal: Signal, amount: int = 1) -> None:
        pass


class Costs:
    """Runs each operation once on an empty table."""

    def __init__(self, client: DynamoDBClient, table: str) -> None:
        self._meter = CapacityMeter(client)
        self._client = client
        self._environment = Environment("bench", table, 10_000)
        self._services = self._process()

    def measure(self) -> dict[str, Consumption]:
        entity = "user-" + secrets.token_hex(17)
        self._services.limits.put(NAMESPACE, Scope(resource=RESOURCE), LIMITS)
        figures = {"first acquire": self._one(lambda: self._acquire(self._services, entity))}
        figures["warm acquire"] = self._one(lambda: self._acquire(self._services, entity))
        cold = self._process()
        figures["acquire in a cold process"] = self._one(lambda: self._acquire(cold, entity))
        self._services.configuration.forget(NAMESPACE)
        figures["acquire after a minute (limits read again)"] = self._one(lambda: self._acquire(self._services, entity))
        self._services.limits.put(NAMESPACE, Scope(resource=RESOURCE), {**LIMITS, "rpm": Limit(500, 500, 1, 60)})
        figures["acquire that meets changed limits"] = self._one(lambda: self._acquire(self._services, entity))
        self._take(AcquireRequest(NAMESPACE, entity, RESOURCE, {"rpm": 400}))
        too_much = AcquireRequest(NAMESPACE, entity, RESOURCE, {"rpm": 400})
        figures["refused acquire"] = self._one(lambda: self._refused(too_much))
        figures["refused again within a second"] = self._one(lambda: self._refused(too_much))
        figures |= self._measure_chains()
        figures |= self._measure_leases("org", "")
        figures |= self._measure_leases("app", ", chain of two")
        figures |= self._measure_shards()
        figures |= TotalCosts(self._services, self._process, self._one).measure()
        figures |= UsageCosts(self._services, self._one).measure()
        figures |= HoldCosts(self._services, self._one).measure()
        figures |= SelectionCosts(self._services, self._one).measure()
        return {name: figures[name] for name in BOUNDS}

    def _measure_chains(self) -> dict[str, Consumption]:
        services = self._services
        for entity, parent in (("org", None), ("app", "org"), ("user", "app")):
            services.entities.put(NAMESPACE, entity, EntityChange(parent=parent))
        for entity in ("org", "app"):
            services.limits.put(NAMESPACE, Scope(entity, RESOURCE), LIMITS)
        self._acquire(services, "user")
        figures = {
            "warm acquire, chain of three": self._one(lambda: self._acquire(services, "user")),
            "warm acquire, chain of two": self._one(lambda: self._acquire(services, "app")),
        }
        small = {"rpm": Limit(2, 2, 1, 3600)}
        services.entities.put(NAMESPACE, "team", EntityChange())
        services.entities.put(NAMESPACE, "member", EntityChange(parent="team"))
        services.limits.put(NAMESPACE, Scope("team", RESOURCE), small)
        once = AcquireRequest(NAMESPACE, "member", RESOURCE, {"rpm": 1})
        self._take(once)
        self._take(once)
        figures["refused by a parent, chain of two"] = self._one(lambda: self._refused(once))
        figures["refused by a parent again within a second"] = self._one(lambda: self._refused(once))
        return figures

    def _measure_leases(self, entity: str, chain: str) -> dict[str, Consumption]:
        """The entity is one whose chain is as long as its name here says."""
        services = self._services
        request = AcquireRequest(NAMESPACE, entity, RESOURCE, CONSUME)
        registration = Registration(None, BY_SYSTEM)
        newcomer = AcquireRequest(NAMESPACE, f"new-{secrets.token_hex(17)}", RESOURCE, CONSUME, None, registration)
        self._acquire(services, entity)
        key = IdempotencyKey(NAMESPACE, "app", secrets.token_hex(16), secrets.token_hex(32))
        figures = {
            "first acquire of an unknown entity": self._one(lambda: self._take(newcomer)),
            f"acquire with Idempotency-Key{chain}": self._one(lambda: self._keyed(request, key)),
            "repeat with Idempotency-Key": self._one(lambda: self._keyed(request, key)),
        }

        def lease() -> Lease:
            return services.leases.open(self._take(request), LEASE_MS)

        same, less, adjusted, released = lease(), lease(), lease(), lease()
        more = {"tpm": CONSUME["tpm"] + 7}
        figures |= {
            "settle with no difference": self._one(lambda: services.leases.settle(same, CONSUME)),
            f"settle with a difference{chain}": self._one(lambda: services.leases.settle(less, more)),
            "adjust": self._one(lambda: services.leases.adjust(adjusted, {"tpm": 7}, "key-1")),
            "release": self._one(lambda: services.leases.release(released)),
            "explain": self._one(lambda: services.explain.explain(request)),
        }
        with services.leases.hold(self._take(request)) as held:
            figures["adjust in process"] = self._one(lambda: held.adjust(tpm=7))
        # Of a chain only the rows that say so are kept.
        return figures if not chain else {name: figure for name, figure in figures.items() if chain in name}

    def _measure_shards(self) -> dict[str, Consumption]:
        services = self._services
        entity = "user-" + secrets.token_hex(17)
        self._acquire(services, entity)
        image = self._image(entity)
        figures = {"split of a shard": self._one(lambda: services.sharding.split(image))}
        for shard in range(2):
            services.sharding.split(self._image(entity, shard))
        for _ in range(40):
            # Until this process has seen every shard.
            self._acquire(services, entity)
        figures["warm acquire, four shards"] = self._one(lambda: self._acquire(services, entity))
        large = AcquireRequest(NAMESPACE, entity, RESOURCE, {"rpm": 300})
        figures["acquire above one share, four shards"] = self._one(lambda: self._take(large))
        drained = AcquireRequest(NAMESPACE, entity, RESOURCE, {"rpm": 120})
        self._take(drained)
        figures["refused by all of four shards"] = self._one(lambda: self._refused(drained))
        scope = Scope(resource="another")
        figures["change of limits, with its audit event"] = self._one(
            lambda: services.limits.put(NAMESPACE, scope, LIMITS)
        )
        return figures

    def _image(self, entity: str, shard: int = 0) -> Bucket:
        item = self._services.store.get(keys.bucket(NAMESPACE, entity, RESOURCE, shard), consistent=True)
        if item is None:
            raise AssertionError("the bucket should be there")
        return decode_bucket(item)

    def _keyed(self, request: AcquireRequest, key: IdempotencyKey) -> None:
        def render(admission: Admission) -> str:
            lease = self._services.leases.open(admission, LEASE_MS)
            return AcquireAnswer.of(admission, lease, write_token(_SIGNER, lease)).model_dump_json()

        self._services.holding.acquire_once(Wish(request, None, LEASE_MS), key, render)

    def _process(self) -> Services:
        """One more process, as far as its caches go."""
        return build_services(self._environment, self._client, Uncounted())

    def _one(self, operation: Callable[[], object]) -> Consumption:
        with self._meter.measuring() as consumption:
            operation()
        return consumption

    @staticmethod
    def _acquire(services: Services, entity: str) -> None:
        services.holding.acquire(Wish(AcquireRequest(NAMESPACE, entity, RESOURCE, CONSUME), None, LEASE_MS))

    def _take(self, request: AcquireRequest) -> Admission:
        """As POST /v1/acquire does, which asks for hard budgets as well."""
        return self._services.holding.acquire(Wish(request, None, LEASE_MS))

    def _refused(self, request: AcquireRequest) -> None:
        try:
            self._take(request)
        except LimitExceeded:
            return
        raise AssertionError("the bucket should have been drained")


def measured(engine: Engine | ReferenceEngine) -> dict[str, Consumption]:
    client = dynamodb_client(engine.endpoint)
    create_table(client, "costs")
    return Costs(client, "costs").measure()


def main() -> None:
    with Engine() as engine:
        figures = measured(engine)
    reads = dict.fromkeys(figures, "?")
    if available():
        with ReferenceEngine() as reference:
            reads = {name: f"{figure.read_units:g}" for name, figure in measured(reference).items()}
    print("calls and WCU by ministack, RCU by DynamoDB Local, which does not count keys that are not there\n")
    print(f"| {'operation':44} | calls |  WCU |  RCU |\n|{'-' * 46}|------:|-----:|-----:|")
    for name, cost in figures.items():
        print(f"| {name:44} | {cost.calls:5} | {cost.write_units:4g} | {reads[name]:>4} |")


if __name__ == "__main__":
    main()
