"""Faults on every path, between boto3 and a real engine: whatever the client is told, the books are right afterwards.

SLUICE_FAULTS says how many faults at least. A run that fails prints its seed; SLUICE_FAULTS_SEED draws the same again,
though threads meet each other differently each time.
"""

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest

from local.engine import Endpoint
from sluice.core.audit import Action
from sluice.core.errors import Contended, Unavailable
from sluice.core.limits import Scope
from sluice.core.shards import SHARDS_MAX
from sluice.repository import keys
from sluice.repository.audit import decode_audit_event
from sluice.repository.items import BUCKET, Bucket, decode_bucket, decode_entity, decode_limits
from sluice.repository.wire import Item
from sluice.services.chains import AcquireRequest
from sluice.services.entities import EntityChange
from sluice.services.purge import UNNOTICED_MS
from tests.boto_faults import FAULTS, Fault, Late, Met
from tests.engines import MINISTACK
from tests.fakes import FakeClock
from tests.histories import MILLI, SLACK_MS, Violated, check_every_window
from tests.integration.fault_workload import (
    CHILDREN,
    EVERYBODY,
    LEASED,
    MOVING,
    NAMESPACE,
    OF_WIDE,
    RENAMED,
    RESOURCE,
    SOLO,
    TEAM,
    WIDE,
    WIDEST,
    Actor,
    World,
    set_up,
)
from tests.integration.tenants import OPERATOR, start_process

ACTORS: Final = 4
STEPS: Final = 40
RATES: Final = (0.1, 0.25, 0.4, 0.55)
ROUNDS_MAX: Final = 2_000
PURGES_MAX: Final = 60
OWNERS: Final = (*SOLO, *CHILDREN, TEAM, WIDE, LEASED, MOVING)
# One millitoken per shard and change of parameters: no round has as many.
ROUNDING: Final = 500


def least_faults() -> int:
    """Fewer on the reference engine, which is slower and comes on top."""
    engine = os.environ.get("SLUICE_TEST_ENGINE", MINISTACK)
    return int(os.environ.get("SLUICE_FAULTS", "5000" if engine == MINISTACK else "2000"))


@dataclass
class Run:
    world: World
    watcher: Actor
    """Meets no fault: sets up, checks, and sees to it that all is well again."""
    actors: list[Actor]
    random: Random
    held: dict[str, int] = field(default_factory=dict)
    """What each bucket had and had given at the end of the last round, in millitokens."""
    checked_ms: int = 0

    @property
    def met(self) -> Met:
        met: Met = Counter()
        for actor in self.actors:
            met.update(actor.interference.met)
        return met

    def begin(self) -> None:
        set_up(self.watcher)
        purge_some(self)
        self.checked_ms = self.world.clock.now_ms
        self.held = {entity: self.total_milli(entity) for entity in OWNERS}

    def round(self) -> None:
        rate = self.random.choice(RATES)
        for actor in self.actors:
            actor.interference.rate = rate
        fresh = self.world.next("fresh")
        with ThreadPoolExecutor(ACTORS) as threads:
            for done in [threads.submit(actor.work, STEPS, fresh) for actor in self.actors]:
                done.result()
        self.world.late.pass_on(everything=True)
        self.check()
        if self.random.random() < 0.3:
            # Long enough for every shard to be full, so that the bucket can be merged; or not.
            self.world.clock.advance(self.random.choice((0, 60_000)))
            self.merge(self.random.choice((WIDE, WIDE, LEASED, TEAM)))
            self.check()

    def merge(self, entity: str) -> None:
        """With faults, but while nobody else writes: what the other shards have counted leaves with them."""
        before = self.shards(entity)
        if before:
            try:
                self.actors[0].buckets.sharding.merge(before[0])
            except (Contended, Unavailable) as error:
                self.actors[0].count("merge", error)
        self.world.late.pass_on(everything=True)
        after = {bucket.shard for bucket in self.shards(entity)}
        for bucket in before:
            if bucket.shard not in after:
                for name, limit in bucket.limits.items():
                    self.world.accounts.left[entity, name] += limit.consumed_milli

    def shards(self, entity: str) -> list[Bucket]:
        wanted = [keys.bucket(NAMESPACE, entity, RESOURCE, shard) for shard in range(SHARDS_MAX)]
        found = [decode_bucket(item) for item in self.watcher.store.batch_get(wanted, consistent=True)]
        return sorted(found, key=lambda bucket: bucket.shard)

    def total_milli(self, entity: str) -> int:
        """What the bucket has and what it ever gave."""
        found = self.shards(entity)
        if not found:
            return WIDEST.get(entity, EVERYBODY["rpm"]).burst * MILLI
        had = self.world.accounts.left[entity, "rpm"] + sum(bucket.limits["rpm"].consumed_milli for bucket in found)
        return had + sum(self._level_milli(bucket) for bucket in found)

    def check(self) -> None:
        """After every round: nothing out of nothing, nothing below zero, and every account is right."""
        now_ms = self.world.clock.now_ms
        for entity in OWNERS:
            limit = WIDEST.get(entity, EVERYBODY["rpm"])
            rate, period_ms = limit.refill_amount * MILLI, limit.refill_period_seconds * 1000
            refilled = rate * (now_ms - self.checked_ms) // period_ms
            slack = SLACK_MS * rate // period_ms // MILLI * MILLI
            total = self.total_milli(entity)
            if total > self.held[entity] + refilled + slack + ROUNDING:
                raise Violated(f"{entity} has and gave {total}, had {self.held[entity]} and {refilled} was refilled")
            self.held[entity] = total
            # Nobody adjusts this limit; a split may leave a debt of 100 ms.
            if any(self._level_milli(bucket) < -SLACK_MS * rate // period_ms for bucket in self.shards(entity)):
                raise Violated(f"{entity} was spent below zero")
        self.checked_ms = now_ms
        buckets = [bucket for entity in OWNERS for bucket in self.shards(entity)]
        self.world.accounts.check(self.watcher.store, OWNERS, buckets)

    def _level_milli(self, bucket: Bucket) -> int:
        limit = bucket.limits["rpm"]
        parameters = limit.parameters
        refill = self.world.clock.now_ms * parameters.refill_amount_milli // parameters.refill_period_ms
        return min(limit.balance_milli + refill, parameters.burst_milli)

    def check_at_the_end(self) -> None:
        for entity, limit in WIDEST.items():
            check_every_window(self.world.accounts.admitted[entity], limit, self.world.accounts.longest_ms)
        items = self._all_items()
        # Each of them decodes: there is no half item, nor one without a kind.
        buckets = [decode_bucket(item) for item in items if item["kind"] == BUCKET]
        self.world.accounts.check(self.watcher.store, {bucket.entity for bucket in buckets}, buckets)
        self._check_changes(items)
        self._check_people()
        self._check_that_everything_passes()

    def _check_changes(self, items: list[Item]) -> None:
        """Each change that was made has one event, and each that was answered was made."""
        events = [decode_audit_event(item) for item in items if item["kind"] == "audit"]
        entity = self.watcher.store.get(keys.entity(NAMESPACE, RENAMED), consistent=True)
        limits = self.watcher.store.get(keys.limits(NAMESPACE, Scope(MOVING, RESOURCE)), consistent=True)
        assert entity is not None
        assert limits is not None
        renamed = [event for event in events if event.subject == RENAMED]
        moved = [event for event in events if event.subject == MOVING and event.action == Action.LIMITS_PUT]
        assert 1 + self.world.renamed <= len(renamed) == decode_entity(entity).version
        assert 1 + self.world.moved <= len(moved) == decode_limits(limits).config_version
        registered = Counter(event.subject for event in events if event.action == Action.ENTITY_REGISTER)
        assert set(registered.values()) == {1}, "somebody was registered twice"
        assert registered.keys() >= set(self.world.registered), "who was admitted is registered"

    def _check_people(self) -> None:
        for entity in self.world.removed:
            assert self.watcher.store.get(keys.entity(NAMESPACE, entity), consistent=True) is None
            assert self.watcher.store.get(keys.limits(NAMESPACE, Scope(entity, RESOURCE)), consistent=True) is None

    def _check_that_everything_passes(self) -> None:
        """Whatever happened to a bucket, once it is refilled its whole burst passes."""
        host = Actor(self.world, "afterwards")
        for entity in (*SOLO, WIDE, LEASED):
            burst = {name: limit.burst for name, limit in (OF_WIDE if entity == WIDE else EVERYBODY).items()}
            self.world.clock.advance(600_000)
            assert not host.service.acquire(AcquireRequest(NAMESPACE, entity, RESOURCE, burst)).degraded

    def _all_items(self) -> list[Item]:
        page = self.watcher.store.scan({"ConsistentRead": True})
        items = list(page.items)
        while page.next_start is not None:
            page = self.watcher.store.scan({"ConsistentRead": True, "ExclusiveStartKey": page.next_start})
            items += page.items
        return items


def purge_some(run: Run) -> None:
    """Namespaces that come and go, with faults: for the paths that look at the whole table, which is still small."""
    actor = run.actors[0]
    process = start_process(actor.client, run.world.table, run.world.clock)
    for number in range(PURGES_MAX):
        actor.interference.rate = 0.5
        name = f"org-{number}"
        actor.insist("namespace", lambda name=name: process.namespaces.create(name, OPERATOR))  # type: ignore[misc]
        actor.interference.rate = 0
        namespace = process.namespaces.get(name).namespace_id
        run.watcher.entities.put(namespace, "somebody", EntityChange())
        run.watcher.limits.put(namespace, Scope(resource=RESOURCE), EVERYBODY)
        run.watcher.service.acquire(AcquireRequest(namespace, "somebody", RESOURCE, {"rpm": 1}))
        actor.interference.rate = 0.5
        actor.insist("purge", lambda name=name: process.namespaces.purge(name, OPERATOR))  # type: ignore[misc]
        while _is_there(run, name):
            run.world.clock.advance(UNNOTICED_MS)
            try:
                assert not process.run().failures
            except (Contended, Unavailable) as error:
                actor.count("purge", error)
        run.world.late.pass_on(everything=True)
        prefix = keys.namespace_prefix(namespace)
        left = [item for item in run._all_items() if str(item["PK"]).startswith(prefix)]
        assert not left, f"a purge has left {left}"
        if all(run.met["Scan", fault] for fault in FAULTS["Scan"]):
            return
    raise AssertionError("the sweep did not meet every fault")


def _is_there(run: Run, name: str) -> bool:
    found = run.watcher.store.get(keys.namespace_by_name(name), consistent=True)
    return found is not None


@pytest.fixture
def run(dynamodb_endpoint: Endpoint, table: str) -> Run:
    seed = int(os.environ.get("SLUICE_FAULTS_SEED", "1"))
    random = Random(f"{seed} plan")
    world = World(dynamodb_endpoint, table, seed, FakeClock(), Late(Random(f"{seed} late")))
    return Run(world, Actor(world, "watcher"), [Actor(world, f"actor-{number}") for number in range(ACTORS)], random)


def unmet(met: Met) -> list[tuple[str, Fault]]:
    return [(verb, fault) for verb, faults in FAULTS.items() for fault in faults if not met[verb, fault]]


def test_whatever_boto3_says_the_books_are_right(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = least_faults()
    try:
        run.begin()
        for _ in range(ROUNDS_MAX):
            run.round()
            if run.met.total() >= wanted and not unmet(run.met):
                break
        run.check_at_the_end()
    except BaseException as error:
        error.add_note(f"SLUICE_FAULTS_SEED={run.world.seed} SLUICE_FAULTS={wanted}; {told(run)}")
        raise
    assert run.met.total() >= wanted
    assert not unmet(run.met), "every fault meets every verb"
    with capsys.disabled():
        print(f"\n{told(run)}")  # noqa: T201 - how much was shown


def told(run: Run) -> str:
    by_verb: Counter[str] = Counter()
    for (verb, _), count in run.met.items():
        by_verb[verb] += count
    outcomes = ", ".join(f"{count:,} {what}" for what, count in sorted(run.world.outcomes.items()) if ":" in what)
    return f"{run.met.total():,} faults ({dict(by_verb)}); {outcomes}"
