"""Processes of the product on one simulated table, and beside them what exact buckets would have done."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any, Final

from sluice.core.errors import LimitExceeded
from sluice.core.limits import Limit, LimitsByName, Scope
from sluice.core.shards import SHARDS_MAX
from sluice.repository import keys
from sluice.repository.items import BUCKET, Bucket, decode_bucket
from sluice.repository.retries import Retries
from sluice.services.acquire import Acquire
from sluice.services.chains import Chains
from sluice.services.configuration import CACHE_MS, Configuration
from sluice.services.corrections import Corrections
from sluice.services.denials import DENIAL_MS
from sluice.services.effects import Effects
from sluice.services.entities import Entities, EntityChange
from sluice.services.idempotency import IdempotentAcquire
from sluice.services.leases import Leases
from sluice.services.limits import Limits
from sluice.services.registration import Registrar
from sluice.services.taking import Buckets, build_buckets
from sluice.services.together import Together
from tests.fakes import CountingMeter, FakeClock, never_random
from tests.integration.conftest import one_by_one
from tests.recording import RecordingStore
from tests.simulation.exact import MILLI, Demand, must_admit, must_refuse, quoted
from tests.simulation.reference import Reference, consumed_by, rates_of, shares_of
from tests.simulation.store import PerfectWire, SimulatedStore
from tests.simulation.table import SimulatedTable

NAMESPACE: Final = "ns"
USER: Final = "user"
TEAM: Final = "team"
RESOURCE: Final = "gpt-4"
OF_RESOURCE: Final = Scope(resource=RESOURCE)
# The limits, and the record of an Idempotency-Key; no bucket.
_CALLS_OF_STANDING: Final = {"batch_get", "consistent get"}

Levels = Mapping[Scope, LimitsByName]


@dataclass(frozen=True)
class Effective:
    """The limits of one entity, resolved per name, the most specific level first."""

    limits: Mapping[str, Limit]
    own: frozenset[str]
    off: frozenset[str]

    @classmethod
    def of(cls, entity: str, levels: Levels) -> "Effective":
        own = levels.get(Scope(entity, RESOURCE), {})
        merged = {**levels.get(OF_RESOURCE, {}), **own}
        limits = {name: limit for name, limit in merged.items() if limit is not None}
        return cls(limits, frozenset(own.keys() & limits.keys()), frozenset(merged.keys() - limits.keys()))

    def names(self, entity: str) -> frozenset[str]:
        """Those that count when the user asks: above it only what is set there."""
        return frozenset(self.limits) if entity == USER else self.own

    def demand(self, entity: str, consume: Mapping[str, int]) -> Demand:
        return {name: amount * MILLI for name, amount in consume.items() if name in self.names(entity)}


@dataclass
class Process:
    """One host. `denied`: by whom it was last refused, and at which step it remembered that."""

    store: RecordingStore
    configuration: Configuration
    limits: Limits
    entities: Entities
    buckets: Buckets
    acquire: Acquire
    idempotent: IdempotentAcquire
    leases: Leases
    denied: dict[str, tuple[int, Any]] = field(default_factory=dict)


@dataclass
class Asked:
    """What an acquire came to, and what was known when it was sent."""

    process: Process
    consume: Mapping[str, int]
    known: Mapping[str, Effective]
    calls: int


@dataclass(frozen=True)
class Found:
    """What changed in the bucket of one entity. `taken`: by shard and limit. `touched`: shards that were written."""

    taken: Mapping[int, Counter[str]]
    touched: frozenset[int]

    def total(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for taken in self.taken.values():
            total.update(taken)
        return +total


class Model:
    def __init__(self, seed: int, *, processes: int, chained: bool) -> None:
        self.clock = FakeClock()
        self.table = SimulatedTable(self.clock)
        self.random = Random(seed)
        self.members = (USER, TEAM) if chained else (USER,)
        self.references = {entity: Reference(self.clock.now_ms) for entity in self.members}
        self.images: dict[str, dict[int, Bucket]] = {entity: {} for entity in self.members}
        self.levels: dict[Scope, LimitsByName] = {}
        self.level_history: list[tuple[int, Levels]] = []
        self.step = 0
        self.raised_step = 0
        """When somebody last did what a remembered refusal does not know of."""
        self._tokens = 0
        self.processes = [self._start() for _ in range(processes)]
        if chained:
            self.processes[0].entities.put(NAMESPACE, TEAM, EntityChange())
            self.processes[0].entities.put(NAMESPACE, USER, EntityChange(parent=TEAM))

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms

    def put_limits(self, process: Process, scope: Scope, limits: LimitsByName) -> None:
        process.limits.put(NAMESPACE, scope, limits)
        self.levels[scope] = dict(limits)
        self._note_levels()

    def delete_limits(self, process: Process, scope: Scope) -> None:
        process.limits.delete(NAMESPACE, scope)
        del self.levels[scope]
        self._note_levels()

    def advance(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        for reference in self.references.values():
            reference.advance(self.now_ms)

    def effective(self, entity: str) -> Effective:
        return Effective.of(entity, self.levels)

    def ask(self, process: Process, consume: Mapping[str, int]) -> Asked:
        """To be called before it is sent."""
        known = {entity: self._known(process, entity) for entity in self.members}
        return Asked(process, consume, known, len(process.store.calls))

    def must_be_invalid(self, asked: Asked) -> None:
        """After an UnknownLimit or NeverAdmissible: some limits that it may have seen say so. Nothing was taken."""
        now = {entity: self.effective(entity) for entity in self.members}
        assert self._is_invalid(asked.consume, asked.known) or self._is_invalid(asked.consume, now)
        self._nothing_taken()

    def must_be_admitted(self, asked: Asked) -> None:
        assert not self._is_invalid(asked.consume, asked.known), "what can never pass has passed"
        for entity in self.members:
            found = self.follow(entity)
            demand = self._demand(asked, entity, found)
            wanted = +Counter(demand)
            assert found.total() == wanted, f"{entity} gave {found.total()}, asked for was {wanted}"
            if demand:
                assert found.touched, "a need of zero is asked as well"
                self._check_takes(entity, demand, found)
            self.apply(entity, found)

    def must_be_refused(self, asked: Asked, refused: LimitExceeded) -> bool:
        """Whether the quoted time is exact: that of a refusal which still stands is a lower bound."""
        assert not self._is_invalid(asked.consume, asked.known)
        process, standing = asked.process, set(asked.process.store.calls[asked.calls :]) <= _CALLS_OF_STANDING
        refusing = {violation.entity for violation in refused.violations}
        assert refusing <= set(self.members)
        assert refused.admit_at_ms > self.now_ms
        assert refused.retry_after_ms == refused.admit_at_ms - self.now_ms
        self._nothing_taken()
        if standing:
            denials = [process.denied[entity] for entity in refusing]
            assert all(self.now_ms - denial.denied_ms < DENIAL_MS for _, denial in denials)
            if any(step < self.raised_step for step, _ in denials):
                return False
        stretches = {entity: self._stretches(asked, entity) for entity in refusing}
        latest_ms = max(last for found in stretches.values() for _, last in found)
        if standing:
            # By older images, so a lower bound.
            assert refused.admit_at_ms <= latest_ms
        else:
            earliest_ms = max(min(first for first, _ in found) for found in stretches.values())
            assert earliest_ms <= refused.admit_at_ms <= latest_ms, (earliest_ms, refused.admit_at_ms, latest_ms)
            if len(refusing) == 1:
                (found,) = stretches.values()
                assert any(first <= refused.admit_at_ms <= last for first, last in found)
        for entity in refusing:
            demand = self.effective_demand(asked, entity)
            assert not must_admit(*self.references[entity].judged(demand), self.now_ms), f"{entity} had it"
        return not standing

    def check(self) -> None:
        """After every step: the product stands where the exact buckets stand."""
        self._note_denials()
        for entity, reference in self.references.items():
            images = self.images_of(entity)
            assert images == self.images[entity], "something was written that nobody followed"
            consumed: Counter[str] = Counter(reference.gone)
            for shard, image in images.items():
                consumed.update(consumed_by(image))
                exact = reference.shards[shard]
                assert (image.shard_count, image.generation) == (exact.count, exact.generation)
                for name, limit in exact.limits.items():
                    level = self.level_of(image, name)
                    assert limit.agrees_with(level), f"{entity}/{shard} {name}: {level}, exact is {limit}"
            assert images.keys() == reference.shards.keys()
            assert +consumed == +reference.consumed
            for name, whole in reference.whole.items():
                levels = [self.level_of(image, name) for image in images.values() if name in image.limits]
                assert sum(levels) <= whole.level + reference.above(name), f"{entity} {name} was minted"

    def level_of(self, image: Bucket, name: str) -> int:
        """Rule 1.2, written out once more so that the product's own function is not its own judge."""
        limit = image.limits[name]
        refill = self.now_ms * limit.parameters.refill_amount_milli // limit.parameters.refill_period_ms
        return min(limit.balance_milli + refill, limit.parameters.burst_milli)

    def images_of(self, entity: str) -> dict[int, Bucket]:
        first = keys.bucket(NAMESPACE, entity, RESOURCE, 0)
        found = [self.table.get(keys.bucket_shard(first, shard)) for shard in range(SHARDS_MAX)]
        return {image.shard: image for image in (decode_bucket(item) for item in found if item is not None)}

    def follow(self, entity: str) -> Found:
        """Takes in created and rebased shards, and says what was taken; that is left for `apply`."""
        reference, old, new = self.references[entity], self.images[entity], self.images_of(entity)
        if new and not old:
            reference.create(new[0])
        assert new.keys() == reference.shards.keys(), "shards come and go by splits and merges alone"
        taken: dict[int, Counter[str]] = {}
        for shard, image in new.items():
            assert image.generation == reference.shards[shard].generation
            if rates_of(image) != {name: limit.rates for name, limit in reference.shards[shard].limits.items()}:
                assert rates_of(image) == shares_of(self.effective(entity).limits, shard, image.shard_count)
                reference.rebase(shard, rates_of(image))
                self.raised_step = self.step
            before = consumed_by(old[shard]) if shard in old else Counter()
            difference = consumed_by(image)
            difference.subtract(before)
            taken[shard] = Counter({name: amount for name, amount in difference.items() if amount})
        touched = {shard for shard, image in new.items() if shard not in old or image.version > old[shard].version}
        self.images[entity] = new
        return Found({shard: by_name for shard, by_name in taken.items() if by_name}, frozenset(touched))

    def apply(self, entity: str, found: Found) -> None:
        for shard, by_name in found.taken.items():
            for name, amount in by_name.items():
                self.references[entity].change(shard, name, amount)
                if amount < 0:
                    self.raised_step = self.step

    def effective_demand(self, asked: Asked, entity: str) -> Demand:
        """By the limits that its bucket is under now, or by those that were known where there is none."""
        images = self.images[entity].values()
        known, now = asked.known[entity], self.effective(entity)
        stale = any(rates_of(image) != shares_of(known.limits, image.shard, image.shard_count) for image in images)
        return (now if stale else known).demand(entity, asked.consume)

    def new_token(self) -> str:
        self._tokens += 1
        return f"token-{self._tokens}"

    def expired(self) -> list[tuple[str, keys.Key]]:
        """Buckets that TTL may remove now."""
        found = []
        for key in self.table.expired_keys():
            item = self.table.get(key)
            if item is not None and item["kind"] == BUCKET:
                found.append((decode_bucket(item).entity, key))
        return found

    def _check_takes(self, entity: str, demand: Demand, found: Found) -> None:
        reference = self.references[entity]
        least, most = reference.judged(demand)
        assert not must_refuse(least, most, self.now_ms), f"{entity} did not have {demand}"
        for shard, by_name in found.taken.items():
            for name, amount in by_name.items():
                assert 0 < amount <= reference.shards[shard].limits[name].most().level + reference.above(name)
        for name, amount in demand.items():
            if amount:
                # A debt binds its own shard only.
                had = reference.whole[name].level + reference.debt(name)
                assert amount <= had + reference.above(name), "one exact bucket would refuse"
        if len(found.taken) > 1:
            assert not least.alone, "one shard had it all"

    def _nothing_taken(self) -> None:
        for entity in self.members:
            assert not self.follow(entity).taken

    def _demand(self, asked: Asked, entity: str, found: Found) -> Demand:
        """By the limits that the shards which gave it are under: those known, or those that hold now."""
        for by in (asked.known[entity], self.effective(entity)):
            if not found.touched and not by.demand(entity, asked.consume):
                return {}
            if found.touched and all(
                rates_of(image) == shares_of(by.limits, shard, image.shard_count)
                for shard, image in self.images[entity].items()
                if shard in found.touched
            ):
                return by.demand(entity, asked.consume)
        raise AssertionError(f"{entity} gave nothing, or under limits that hold no more")

    def _stretches(self, asked: Asked, entity: str) -> list[tuple[int, int]]:
        demand = self.effective_demand(asked, entity)
        return quoted(*self.references[entity].judged(demand), self.now_ms)

    def _known(self, process: Process, entity: str) -> Effective:
        """What the process has cached, which was true at some moment of the last minute, or what it will read."""
        cached = process.configuration._cache.get((NAMESPACE, entity, RESOURCE))
        if cached is None:
            return self.effective(entity)
        assert self.now_ms - cached.read_ms < CACHE_MS
        limits = dict(cached.resolved.limits.limits)
        seen = [Effective.of(entity, levels) for levels in self._levels_around(cached.read_ms)]
        return next(
            known for known in seen if known.limits == limits and known.off == cached.resolved.limits.switched_off
        )

    def _levels_around(self, time_ms: int) -> Iterable[Levels]:
        """All that were stored at that millisecond, the latest first."""
        for put_ms, levels in reversed(self.level_history):
            if put_ms <= time_ms:
                yield levels
            if put_ms < time_ms:
                return

    def _is_invalid(self, consume: Mapping[str, int], limits: Mapping[str, Effective]) -> bool:
        known = {name for entity, one in limits.items() for name in one.names(entity) | one.off}
        return not consume.keys() <= known or any(
            amount > one.limits[name].burst
            for entity, one in limits.items()
            for name, amount in consume.items()
            if name in one.names(entity)
        )

    def _note_levels(self) -> None:
        self.level_history.append((self.now_ms, MappingProxyType(dict(self.levels))))
        self.raised_step = self.step

    def _note_denials(self) -> None:
        for process in self.processes:
            for entity in self.members:
                remembered = process.buckets.memory.denials._denials.get(keys.bucket(NAMESPACE, entity, RESOURCE, 0).pk)
                if remembered is not None and process.denied.get(entity, (0, None))[1] is not remembered:
                    process.denied[entity] = (self.step, remembered)

    def _start(self) -> Process:
        meter = CountingMeter()
        retries = Retries(lambda _ms: None, never_random, meter)
        store = RecordingStore(SimulatedStore(self.table, PerfectWire(), retries))
        configuration = Configuration(store, self.clock)
        effects = Effects(self.clock, self.random.randrange, self.new_token, meter)
        buckets = build_buckets(store, configuration, effects, self.clock)
        chains = Chains(configuration, buckets.memory.images, Registrar(store, configuration, effects))
        acquire = Acquire(configuration, chains, buckets.taker, one_by_one, meter)
        return Process(
            store=store,
            configuration=configuration,
            limits=Limits(store, configuration, self.clock, never_random, self.new_token),
            entities=Entities(store, configuration, self.clock, never_random, self.new_token),
            buckets=buckets,
            acquire=acquire,
            idempotent=IdempotentAcquire(store, acquire, chains, Together(store, buckets, effects), effects),
            leases=Leases(store, Corrections(store, buckets.taker), effects),
        )
