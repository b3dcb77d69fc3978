"""Actors that use every path of the product at once, each a process of its own behind a client that meets faults."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from threading import Lock
from typing import Final, TypeVar

from botocore.config import Config

from local.engine import Endpoint, dynamodb_client
from sluice.core.admission import Admission
from sluice.core.audit import Author
from sluice.core.errors import (
    Contended,
    InvalidRequest,
    LeaseClosed,
    LimitExceeded,
    NotFound,
    Unavailable,
)
from sluice.core.lease import LEASE_MAX_MS
from sluice.core.limits import Limit, LimitsByName, Scope
from sluice.core.shards import SHARDS_MAX
from sluice.core.signals import Signal
from sluice.repository import keys
from sluice.repository.idempotency import IdempotencyKey
from sluice.repository.items import Bucket, decode_bucket
from sluice.repository.leases import State
from sluice.repository.retries import Retries
from sluice.repository.store import DynamoStore, Store
from sluice.services.acquire import Acquire
from sluice.services.chains import AcquireRequest, Chains
from sluice.services.configuration import Configuration
from sluice.services.corrections import Corrections
from sluice.services.effects import Effects
from sluice.services.entities import Entities, EntityChange
from sluice.services.explain import Explain
from sluice.services.idempotency import IdempotentAcquire
from sluice.services.leases import Changed, Leases
from sluice.services.limits import Limits
from sluice.services.registration import Registrar, Registration
from sluice.services.taking import Buckets, build_buckets
from sluice.services.together import Together
from sluice.shell import new_token, run_all
from tests.boto_faults import Interference, Late
from tests.fakes import CountingMeter, FakeClock
from tests.integration.fault_accounts import Accounts, Amounts, Demand, KeyAccount, LeaseAccount

T = TypeVar("T")

NAMESPACE: Final = "ns"
RESOURCE: Final = "gpt-4"
TEAM: Final = "team"
SOLO: Final = ("solo-0", "solo-1")
CHILDREN: Final = ("child-0", "child-1", "child-2")
WIDE: Final = "wide"
LEASED: Final = "leased"
MOVING: Final = "moving"
RENAMED: Final = "renamed"
EVERYBODY: Final = {"rpm": Limit(40, 40, 9, 1), "tpm": Limit(1000, 1500, 200, 1)}
OF_TEAM: Final = {"rpm": Limit(60, 60, 15, 1)}
OF_WIDE: Final = {"rpm": Limit(100, 130, 50, 1), "tpm": Limit(4000, 4000, 500, 1)}
OF_MOVING: Final = ({"rpm": Limit(30, 30, 20, 1)}, {"rpm": Limit(20, 50, 45, 1)})
WIDEST: Final = {
    **dict.fromkeys(SOLO + CHILDREN, EVERYBODY["rpm"]),
    TEAM: OF_TEAM["rpm"],
    WIDE: OF_WIDE["rpm"],
    MOVING: Limit(30, 50, 45, 1),
}
"""Of whoever is only acquired from, the most that its limits ever allow."""
THINK_MOST_MS: Final = 12
OWN: Final = Author("client-1", "request-1")


@dataclass
class World:
    endpoint: Endpoint
    table: str
    seed: int
    clock: FakeClock
    late: Late
    accounts: Accounts = field(default_factory=Accounts)
    outcomes: Counter[str] = field(default_factory=Counter)
    registered: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    renamed: int = 0
    moved: int = 0
    lock: Lock = field(default_factory=Lock)

    def think(self, duration_ms: int) -> None:
        with self.lock:
            self.clock.advance(duration_ms)

    def next(self, kind: str) -> str:
        with self.lock:
            self.outcomes[kind] += 1
            return f"{kind}-{self.outcomes[kind]}"


class Actor:
    """`interference.rate` decides how many of its requests meet a fault; at first none does."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.accounts = world.accounts
        self.random = Random(f"{world.seed} {name} does")
        config = Config(retries={"total_max_attempts": 1, "mode": "standard"}, read_timeout=60)
        self.client = client = dynamodb_client(world.endpoint, config)
        self.interference = Interference(client, f"{world.seed} {name} meets", world.late)
        self.meter = meter = CountingMeter()
        random_below = self.random.randrange
        clock = world.clock
        self.store: Store = DynamoStore(client, world.table, Retries(lambda _ms: None, random_below, meter))
        configuration = Configuration(self.store, clock)
        effects = Effects(clock, random_below, new_token, meter)
        self.buckets: Buckets = build_buckets(self.store, configuration, effects, clock)
        chains = Chains(configuration, self.buckets.memory.images, Registrar(self.store, configuration, effects))
        self.service = Acquire(configuration, chains, self.buckets.taker, run_all, meter)
        together = Together(self.store, self.buckets, effects)
        self.idempotent = IdempotentAcquire(self.store, self.service, chains, together, effects)
        self.leases = Leases(self.store, Corrections(self.store, self.buckets.taker), effects)
        self.limits = Limits(self.store, configuration, clock, random_below, new_token)
        self.entities = Entities(self.store, configuration, clock, random_below, new_token)
        self.explain = Explain(chains, self.buckets.writer, clock)

    def work(self, steps: int, fresh: str) -> None:
        """`fresh`: a bucket that does not exist yet. All actors come for it at once."""
        if self.acquire(fresh, {"rpm": 1}) is not None:
            self.accounts.charge({fresh: {"rpm": 1}}, certain=True)
        for _ in range(steps):
            self.world.think(self.random.randint(0, THINK_MOST_MS))
            self.random.choices(list(STEPS), list(STEPS.values()))[0](self)

    def acquire(self, entity: str, consume: Amounts, registration: Registration | None = None) -> Admission | None:
        """Charged if admitted; otherwise not, or perhaps if an answer was lost on the way."""
        demand = demand_of(entity, consume)
        doubts, sent_ms = self.doubts, self.world.clock.now_ms
        try:
            admission = self.service.acquire(
                AcquireRequest(NAMESPACE, entity, RESOURCE, consume, registration=registration)
            )
        except (LimitExceeded, Contended, Unavailable) as error:
            self.count("acquire", error)
            if self.doubts > doubts:
                self.accounts.charge(demand, certain=False)
            return None
        assert not admission.degraded
        self.count("acquire", None)
        self.accounts.admit(demand, sent_ms, self.world.clock.now_ms)
        return admission

    @property
    def doubts(self) -> int:
        counts = self.meter.counts
        return counts[Signal.STORE_AMBIGUOUS_WRITES] + counts[Signal.GIVE_BACKS_LOST]

    def count(self, what: str, error: Exception | None) -> None:
        with self.world.lock:
            self.world.outcomes[f"{what}: {'done' if error is None else type(error).__name__}"] += 1

    def image(self, entity: str, shard: int = 0) -> Bucket | None:
        item = self.store.get(keys.bucket(NAMESPACE, entity, RESOURCE, shard), consistent=True)
        return None if item is None else decode_bucket(item)

    def insist(self, what: str, do: Callable[[], object]) -> None:
        """Until it is done. What is gone was removed by an earlier try."""
        while True:
            try:
                do()
            except (Contended, Unavailable) as error:
                self.count(what, error)
            except NotFound:
                return
            else:
                self.count(what, None)
                return


def demand_of(entity: str, consume: Amounts) -> Demand:
    if entity in CHILDREN or entity.startswith("new-"):
        return {entity: consume, TEAM: {name: amount for name, amount in consume.items() if name in OF_TEAM}}
    return {entity: consume}


def take(actor: Actor) -> None:
    entity = actor.random.choice([*SOLO, *CHILDREN, *CHILDREN, LEASED])
    consume = {"rpm": actor.random.choice((0, 1, 1, 3, 15))}
    if actor.random.random() < 0.5:
        consume["tpm"] = actor.random.choice((1, 50, 400))
    if actor.acquire(entity, consume) is not None:
        actor.accounts.charge(demand_of(entity, consume), certain=True)


def take_wide(actor: Actor) -> None:
    """Often more than one shard has."""
    consume = {"rpm": actor.random.choice((1, 5, 20, 40)), "tpm": actor.random.choice((1, 100, 700))}
    if actor.acquire(WIDE, consume) is not None:
        actor.accounts.charge({WIDE: consume}, certain=True)


def take_moving(actor: Actor) -> None:
    consume = {"rpm": actor.random.choice((1, 2, 5))}
    if actor.acquire(MOVING, consume) is not None:
        actor.accounts.charge({MOVING: consume}, certain=True)


def move_limits(actor: Actor) -> None:
    try:
        actor.limits.put(NAMESPACE, Scope(MOVING, RESOURCE), actor.random.choice(OF_MOVING))
    except (Contended, Unavailable) as error:
        actor.count("limits", error)
    else:
        actor.count("limits", None)
        with actor.world.lock:
            actor.world.moved += 1


def rename(actor: Actor) -> None:
    try:
        actor.entities.put(NAMESPACE, RENAMED, EntityChange(name=actor.world.next("name")))
    except (Contended, Unavailable) as error:
        actor.count("entity", error)
    else:
        actor.count("entity", None)
        with actor.world.lock:
            actor.world.renamed += 1


def register(actor: Actor) -> None:
    """Somebody new, who is asked for twice."""
    entity = actor.world.next("new")
    for _ in range(2):
        if actor.acquire(entity, {"rpm": 1}, Registration(TEAM, OWN)) is not None:
            actor.accounts.charge(demand_of(entity, {"rpm": 1}), certain=True)
            with actor.world.lock:
                actor.world.registered.append(entity)


def come_and_go(actor: Actor) -> None:
    """An entity with limits and a bucket of its own, which is then removed."""
    entity, doubts = actor.world.next("gone"), actor.doubts
    actor.insist("entity", lambda: actor.entities.put(NAMESPACE, entity, EntityChange()))
    actor.insist("limits", lambda: actor.limits.put(NAMESPACE, Scope(entity, RESOURCE), EVERYBODY))
    actor.acquire(entity, {"rpm": 1})
    # Its bucket goes with it, unless a write that makes it arrives later still.
    actor.accounts.charge({entity: {"rpm": 1}}, certain=False)
    if actor.random.random() < 0.5 and (image := _attempt(actor, lambda: actor.image(entity))) is not None:
        actor.buckets.sharding.relieve(image)
    actor.insist("removal", lambda: actor.entities.delete(NAMESPACE, entity))
    if actor.doubts == doubts:
        # Else a write that was given up may make it again.
        with actor.world.lock:
            actor.world.removed.append(entity)


def split(actor: Actor) -> None:
    entity = actor.random.choice((WIDE, WIDE, WIDE, LEASED, TEAM))
    image = _attempt(actor, lambda: actor.image(entity, actor.random.choice((0, 0, 1, 2, 3))))
    if image is not None and image.shard_count < SHARDS_MAX // 2:
        actor.buckets.sharding.relieve(image)


def look(actor: Actor) -> None:
    request = AcquireRequest(NAMESPACE, actor.random.choice((WIDE, *CHILDREN)), RESOURCE, {"rpm": 30})
    _attempt(actor, lambda: actor.explain.explain(request))


def use_a_key(actor: Actor) -> None:
    accounts = actor.accounts
    account = None
    if accounts.keys and actor.random.random() < 0.5:
        account = actor.random.choice(accounts.keys[-20:])
    if account is None:
        entity = actor.random.choice((*SOLO, *CHILDREN, WIDE))
        consume = {"rpm": 1, "tpm": actor.random.choice((1, 60))}
        key = IdempotencyKey(NAMESPACE, "app", actor.world.next("key"), "hash")
        account = KeyAccount(key, entity, consume, demand_of(entity, consume))
        with accounts.lock:
            accounts.keys.append(account)
    sent_ms = actor.world.clock.now_ms
    text = f"{account.key.text} by {new_token()}"
    try:
        answered = actor.idempotent.acquire(
            AcquireRequest(NAMESPACE, account.entity, RESOURCE, account.consume), account.key, lambda _admission: text
        )
    except (LimitExceeded, Contended, Unavailable) as error:
        actor.count("acquire with a key", error)
        return
    actor.count("acquire with a key", None)
    account.answers.append(answered.text)
    if not answered.repeated:
        accounts.admit(account.demand, sent_ms, actor.world.clock.now_ms)


def take_a_lease(actor: Actor) -> None:
    entity = actor.random.choice((LEASED, LEASED, WIDE, *CHILDREN))
    consume = {"rpm": 1, "tpm": actor.random.choice((10, 100))}
    admission = actor.acquire(entity, consume)
    if admission is not None:
        account = LeaseAccount(actor.leases.open(admission, LEASE_MAX_MS))
        with actor.accounts.lock:
            actor.accounts.leases.append(account)


def change_a_lease(actor: Actor) -> None:
    """Whosever it is."""
    if not actor.accounts.leases:
        return
    account = actor.random.choice(actor.accounts.leases[-12:])
    chosen = actor.random.random()
    if chosen < 0.4:
        _adjust(actor, account)
    elif chosen < 0.8:
        actual = {"tpm": actor.random.choice((0, 10, 30, 250))}
        _close(actor, account, State.SETTLED, lambda: actor.leases.settle(account.lease, actual))
    else:
        _close(actor, account, State.RELEASED, lambda: actor.leases.release(account.lease))


def hold(actor: Actor) -> None:
    """In process: every write is sent once, so each lost answer leaves a doubt."""
    consume = {"tpm": 100}
    admission = actor.acquire(LEASED, consume)
    if admission is None:
        return
    held = actor.leases.hold(admission)
    stands, doubts = {"least": 100, "most": 100}, actor.doubts
    fails = actor.random.random() < 0.5
    delta = actor.random.choice((-60, -10, 20, 150))
    try:
        with held:
            try:
                held.adjust({"tpm": delta})
            except (Contended, Unavailable) as error:
                actor.count("hold", error)
                if actor.doubts > doubts:
                    stands["most"] += max(0, delta)
                    stands["least"] += min(0, delta)
            else:
                stands["least"] += delta
                stands["most"] += delta if actor.doubts == doubts else max(0, delta)
            doubts = actor.doubts
            _raise_if(fails)
    except _Failed:
        lost = actor.doubts > doubts
        most = stands["most"] if lost else stands["most"] - held.consumed["tpm"]
        stands = {"least": stands["least"] - held.consumed["tpm"], "most": most}
    actor.accounts.between(LEASED, "tpm", stands["least"], stands["most"])


class _Failed(Exception):
    pass


def _raise_if(fails: bool) -> None:
    if fails:
        raise _Failed


def _adjust(actor: Actor, account: LeaseAccount) -> None:
    key = actor.random.choice(("a", "b", "c"))
    delta: Mapping[str, int] = {"tpm": {"a": 35, "b": -5, "c": -3}[key]}
    with actor.accounts.lock:
        account.adjusted.setdefault(key, (delta, False))
    try:
        actor.leases.adjust(account.lease, delta, key)
    except (Contended, InvalidRequest, LeaseClosed, Unavailable) as error:
        actor.count("adjust", error)
        return
    actor.count("adjust", None)
    account.adjusted[key] = (delta, True)


def _close(actor: Actor, account: LeaseAccount, how: State, close: Callable[[], Changed]) -> None:
    try:
        changed = close()
    except (Contended, LeaseClosed, Unavailable) as error:
        actor.count(how.value, error)
        return
    actor.count(how.value, None)
    amounts = changed.amounts if how is State.SETTLED else dict.fromkeys(account.lease.consumed, 0)
    account.closed.append((how, amounts))


def _attempt(actor: Actor, do: Callable[[], T]) -> T | None:
    try:
        return do()
    except (Contended, Unavailable) as error:
        actor.count("look", error)
        return None


STEPS: Final[Mapping[Callable[[Actor], None], int]] = {
    take: 10,
    take_wide: 6,
    take_moving: 4,
    move_limits: 2,
    rename: 1,
    register: 2,
    come_and_go: 1,
    split: 1,
    look: 1,
    use_a_key: 6,
    take_a_lease: 4,
    change_a_lease: 8,
    hold: 3,
}


def set_up(actor: Actor) -> None:
    """In peace."""
    limits: dict[Scope, LimitsByName] = {
        Scope(resource=RESOURCE): EVERYBODY,
        Scope(TEAM, RESOURCE): OF_TEAM,
        Scope(WIDE, RESOURCE): OF_WIDE,
        Scope(MOVING, RESOURCE): OF_MOVING[0],
    }
    for scope, defined in limits.items():
        actor.limits.put(NAMESPACE, scope, defined)
    actor.entities.put(NAMESPACE, TEAM, EntityChange())
    for child in CHILDREN:
        actor.entities.put(NAMESPACE, child, EntityChange(parent=TEAM))
    actor.entities.put(NAMESPACE, RENAMED, EntityChange())
