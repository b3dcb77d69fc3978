"""What small scopes start from."""

from collections.abc import Callable

from sluice.core.limits import LimitsByName, Scope
from sluice.repository import keys
from sluice.repository.items import decode_bucket
from sluice.repository.legacy import is_legacy, shard_key
from sluice.repository.wire import Item
from sluice.services.chains import AcquireRequest
from sluice.services.entities import EntityChange
from tests.simulation.exhaustive import Enter, Setup, SmallWorld
from tests.simulation.small_programs import FIRST, NAMESPACE, OF_RESOURCE, ORG, SLOW, USER, acquire, desk, reshard
from tests.simulation.world import RESOURCE, START_MS, Client, Host, Outcome


def having(
    limits: LimitsByName, *, taken: int = 0, splits: tuple[int, ...] = (), own: bool = False, bucket: bool = True
) -> Setup:
    """A bucket under these limits, of which some was taken; then these shards are split."""

    def setup(world: SmallWorld, host: Host) -> None:
        scope = Scope(USER, RESOURCE) if own else OF_RESOURCE
        host.limits.put(NAMESPACE, scope, limits)
        if bucket:
            acquire(host, NAMESPACE, USER, {"rpm": taken})
        for shard in splits:
            reshard(host, shard, merges=False)

    return setup


def losing(setup: Setup, *shards: int) -> Setup:
    """A bucket of which somebody deleted these shards by hand."""

    def with_a_hole(world: SmallWorld, host: Host) -> None:
        setup(world, host)
        for shard in shards:
            host.store.delete({"Key": {**keys.bucket_shard(FIRST, shard).attributes}})

    return with_a_hole


def below_org(of_user: LimitsByName, of_org: LimitsByName, *, org_taken: int = 0) -> Setup:
    def setup(world: SmallWorld, host: Host) -> None:
        host.limits.put(NAMESPACE, OF_RESOURCE, of_user)
        host.limits.put(NAMESPACE, Scope(ORG, RESOURCE), of_org)
        host.entities.put(NAMESPACE, ORG, EntityChange())
        host.entities.put(NAMESPACE, USER, EntityChange(parent=ORG))
        acquire(host, NAMESPACE, ORG, {"rpm": org_taken})
        acquire(host, NAMESPACE, USER, {"rpm": 0})

    return setup


def widest(limits: LimitsByName, of_org: LimitsByName | None = None) -> Callable[[SmallWorld], None]:
    """What the invariants may hold an entity to: the widest limits that it has in this scope."""

    def note(world: SmallWorld) -> None:
        world.limits[USER] = {name: limit for name, limit in limits.items() if limit is not None}
        if of_org is not None:
            world.limits[ORG] = {name: limit for name, limit in of_org.items() if limit is not None}
            world.demand_of = lambda request: dict.fromkeys(
                (USER, ORG) if request.entity == USER else (request.entity,), request.consume
            )

    return note


def entering(limits: LimitsByName, *also: Enter, of_org: LimitsByName | None = None, warm: bool = True) -> Enter:
    """Warm clients know the limits and have an image of shard 0."""

    def enter(world: SmallWorld) -> None:
        widest(limits, of_org)(world)
        if warm:
            for client in world.clients:
                _warm(client, (USER,) if of_org is None else (USER, ORG))
        for one in also:
            one(world)

    return enter


def _warm(client: Client, entities: tuple[str, ...]) -> None:
    host = client.host
    for entity in entities:
        host.configuration.look_up(NAMESPACE, entity, RESOURCE)
        first = keys.bucket(NAMESPACE, entity, RESOURCE, 0)
        items = [host.store.get(keys.bucket_shard(first, shard), consistent=True) for shard in range(4)]
        for item in items:
            if item is not None and not is_legacy(item):
                host.buckets.taker.remember(decode_bucket(item))


def leased(amount: int) -> Enter:
    """A lease that the first client took."""

    def enter(world: SmallWorld) -> None:
        client = world.clients[0]

        def ask() -> Outcome:
            admission = client.host.acquire.acquire(AcquireRequest(NAMESPACE, USER, RESOURCE, {"rpm": amount}))
            lease = client.host.leases.open(admission, 300_000)
            desk(world).leases.append(lease)
            desk(world).of_request[world.scheduler.cause()] = lease.lease_id
            return Outcome.ADMITTED

        client.attempt(USER, ask, {"rpm": amount})

    return enter


def legacy_bucket(tokens: int) -> Setup:
    """An item of the layout before, under the key of the bucket."""

    def setup(world: SmallWorld, host: Host) -> None:
        host.limits.put(NAMESPACE, OF_RESOURCE, SLOW)
        limit = SLOW["rpm"]
        item: Item = {
            **shard_key(keys.namespace_prefix(NAMESPACE), USER, RESOURCE, 0).attributes,
            "entity_id": USER,
            "resource": RESOURCE,
            "rf": START_MS,
            "shard_count": 1,
            "b_rpm_tk": tokens * 1000,
            "b_rpm_cp": limit.capacity * 1000,
            "b_rpm_bx": limit.burst * 1000,
            "b_rpm_ra": limit.refill_amount * 1000,
            "b_rpm_rp": limit.refill_period_seconds * 1000,
            "b_rpm_tc": 0,
        }
        host.store.put({"Item": item}, repeatable=True)

    return setup
