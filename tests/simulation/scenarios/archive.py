"""Two tenants act for a while, one of them is purged, and what expires is removed; archivers follow the stream.

Each shard of the stream comes in order, late, and at least once: a batch is cut where it failed, comes again as it was
because its answer was lost, or partly, in other pieces. A third archiver reads stretches of any shard again, as a
redrive does. An aggregator makes the snapshots that expire later.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from zlib import crc32

from sluice.core.audit import BY_SYSTEM, SYSTEM_SUBJECT, Action
from sluice.core.errors import Contended, NotFound, Unavailable
from sluice.core.limits import Limit, Scope
from sluice.core.orgs import OrgChange
from sluice.repository import keys
from sluice.repository.archive import S3Archive
from sluice.repository.audit import AuditEvent, audit_put
from sluice.repository.idempotency import IdempotencyKey
from sluice.services.archiving import Archiving
from sluice.services.chains import AcquireRequest
from sluice.services.counting import Counting
from sluice.services.effects import Effects
from sluice.services.entities import EntityChange
from sluice.services.jobs import Work
from sluice.services.orgs import OrgPath
from sluice.services.purge import PURGE, Purge
from tests.simulation.archived import (
    a_name_stands_for_one_content,
    every_line_is_read_once,
    nothing_else_is_archived,
    nothing_of_the_purged_is_archived,
)
from tests.simulation.identity_hosts import desks_of
from tests.simulation.invariants import every_item_decodes
from tests.simulation.job_runs import MINUTE_MS, RUNS, jobs_come_to_their_end
from tests.simulation.objects import BucketConnection, SimulatedBucket
from tests.simulation.scenario import Admin, Scenario, Violated
from tests.simulation.scheduler import Process
from tests.simulation.stream import StreamRecord
from tests.simulation.world import RESOURCE, Client, Host, Outcome, World

STREAM: Final = "arn:aws:dynamodb:us-east-1:123456789012:table/simulated/stream/2027-01-15T00:00:00.000"
ENTITIES: Final = ("user-1", "user-2", "user-3")
LIMITS: Final = {"rpm": Limit(1_000, 1_000, 1_000, 1)}
CLIENTS: Final = 3
REQUESTS: Final = 6
# The longest goes over midnight.
THINK_MS: Final = (200, 10_000, 14_400_000)
SHARDS: Final = 2
TURNS: Final = 30
LAG_MOST_MS: Final = 5_000
BATCH_MOST: Final = 12
PEACEFUL_ROUNDS: Final = 500
DAY_MS: Final = 86_400_000
COUNTED_AFTER_MS: Final = 2 * DAY_MS
# Behind the time of an hour's snapshots, of audit events, of a day's snapshots.
SWEEPS_AFTER_MS: Final = (36 * DAY_MS, 95 * DAY_MS, 402 * DAY_MS)
SWEEPS: Final = 10
ALL_EXPIRED_MS: Final = 420 * DAY_MS


@dataclass
class Deliveries:
    """How far each shard of the stream was archived, by the place in all of it, and how far all of it was counted."""

    started_ms: int
    sweeps_ms: int
    shards: list[int] = field(default_factory=lambda: [0] * SHARDS)
    counted: int = 0
    archivers: dict[Process, Archiving] = field(default_factory=dict)


def setup(world: World, admin: Admin) -> None:
    identity = desks_of(world).at(admin.host, world.scheduler.clock_ms)
    kept, purged = (
        identity.orgs.put(OrgPath(org), OrgChange(), author=BY_SYSTEM).org.namespace for org in ("kept", "purged")
    )
    world.namespace = kept
    started_ms = world.scheduler.now_ms
    world.notes |= {
        "purged": purged,
        "bucket": SimulatedBucket(lambda: len(world.table.stream)),
        "deliveries": Deliveries(started_ms, started_ms + world.random.choice(SWEEPS_AFTER_MS)),
        "failures": [],
    }
    for namespace in (kept, purged):
        admin.host.limits.put(namespace, Scope(resource=RESOURCE), LIMITS)
    world.limits |= dict.fromkeys(ENTITIES, LIMITS)
    _tell_the_registry(world, admin)
    think_ms = world.random.choice(THINK_MS)

    def act(client: Client) -> None:
        while client.done < REQUESTS:
            client.done += 1
            client.wait(world.random_below(think_ms))
            _act(client, client.random.choice((kept, kept, purged)))

    for number in range(CLIENTS):
        world.add_client(f"client-{number}", act)
    for shard in range(SHARDS):
        world.add_client(f"shard-{shard}", partial(archive, shard=shard, think_ms=think_ms))
    world.add_client("again", partial(archive_again, think_ms=think_ms))
    world.add_client("aggregator", count)
    world.add_client("ttl", sweep)
    purge_ms = world.random_below(world.random.choice((2_000, 60_000, think_ms * REQUESTS)))
    if world.random.random() < 0.3:
        purge_ms += _deliveries(world).sweeps_ms - started_ms
    world.add_client("operator", partial(purge, after_ms=purge_ms))
    world.add_client("runner", partial(run_purges, after_ms=purge_ms))


def _tell_the_registry(world: World, admin: Admin) -> None:
    """An event that belongs to no tenant."""
    event = AuditEvent(
        event_id=world.new_token(),
        subject=SYSTEM_SUBJECT,
        at_ms=world.scheduler.now_ms,
        author=BY_SYSTEM,
        action=Action.ENTITY_PUT,
        target="registry",
        before=None,
        after=None,
    )
    admin.host.store.transact([audit_put(keys.REGISTRY_NAMESPACE, event)], world.new_token())


def _act(client: Client, namespace: str) -> None:
    """As the routes do: asks first whether the namespace is there."""
    world, random, host = client.world, client.random, client.host
    entity, consume = random.choice(ENTITIES), {"rpm": 1 + world.random_below(20)}
    request = AcquireRequest(namespace, entity, RESOURCE, consume)
    drawn = random.random()
    if drawn < 0.3:
        client.acquire(entity, consume, namespace=namespace)
        return

    def ask() -> Outcome:
        host.namespaces.require_active(namespace)
        if drawn < 0.6:
            host.entities.put(namespace, entity, EntityChange(name=f"by {client.name} {client.done}"))
        elif drawn < 0.7:
            host.limits.put(namespace, Scope(entity, RESOURCE), {"rpm": Limit(2_000, 2_000, client.done, 1)})
        elif drawn < 0.85:
            key = IdempotencyKey(namespace, entity, f"{client.name} {client.done}", "body")
            host.idempotent_acquire.acquire(request, key, lambda _admission: "admitted")
        else:
            host.leases.release(host.leases.open(host.acquire.acquire(request), 20_000))
        return Outcome.DONE

    client.attempt(entity, ask)


def archive(client: Client, shard: int, think_ms: int) -> None:
    """As the function on the stream, with one batch of a shard after the other."""
    random = client.random
    while client.done < TURNS:
        _wait_for_turn(client, think_ms)
        _deliver_next(
            client.world, client.host, shard, random.randint(1, BATCH_MOST), random.choice((0, 0, 0, 1, 5, 99))
        )


def archive_again(client: Client, think_ms: int) -> None:
    world = client.world
    while client.done < TURNS:
        _wait_for_turn(client, think_ms)
        shard = world.random_below(SHARDS)
        of_shard = [record for record in world.table.stream if _shard(record) == shard]
        if of_shard:
            first = world.random_below(len(of_shard))
            _archive(world, client.host, of_shard[first : first + 1 + world.random_below(BATCH_MOST)])


def _wait_for_turn(client: Client, think_ms: int) -> None:
    """Half of the turns while the clients act, half while items expire."""
    world = client.world
    client.done += 1
    now_ms, sweeps_ms = world.scheduler.now_ms, _deliveries(world).sweeps_ms
    if client.done <= TURNS // 2:
        client.wait(world.random_below(LAG_MOST_MS + think_ms // 4))
    else:
        client.wait(max(0, sweeps_ms - now_ms) + world.random_below(LAG_MOST_MS))


def _deliver_next(world: World, host: Host, shard: int, size: int, overlap: int = 0) -> bool:
    """Whether there was anything. `overlap`: so many of what was done come again before the rest."""
    deliveries, stream = _deliveries(world), world.table.stream
    places = [at for at in range(deliveries.shards[shard], len(stream)) if _shard(stream[at]) == shard][:size]
    if not places:
        return False
    done = _archive(world, host, [stream[at] for at in places])
    kept = max(0, done - overlap)
    deliveries.shards[shard] = places[kept] if kept < len(places) else places[-1] + 1
    return True


def _archive(world: World, host: Host, records: list[StreamRecord]) -> int:
    """How many are done. The next batch begins with the first that is not."""
    events = [record.as_event() for record in records]
    archived = _archiver(world, host).archive(STREAM, events)
    if archived.error is not None and not isinstance(archived.error, Unavailable):
        raise archived.error
    if archived.failed is None:
        return len(records)
    return [event["dynamodb"]["SequenceNumber"] for event in events].index(archived.failed)


def _archiver(world: World, host: Host) -> Archiving:
    """Of this process: a crash takes its memory along."""
    found = _deliveries(world).archivers
    if host.process not in found:
        found[host.process] = Archiving(_bucket_of(world, host), host.namespaces, host.meter)
    return found[host.process]


def count(client: Client) -> None:
    """Until all is counted, long before the first snapshot expires: a stream keeps its records for a day only."""
    world = client.world
    deliveries = _deliveries(world)
    effects = Effects(world.scheduler.clock_ms, world.random_below, world.new_token, client.host.meter)
    counting = Counting(client.host.store, client.host.namespaces, effects)
    while True:
        client.wait(world.random_below(LAG_MOST_MS))
        records = world.table.stream[deliveries.counted : deliveries.counted + BATCH_MOST]
        first = counting.count([record.as_event() for record in records]).first_uncounted
        deliveries.counted += len(records) if first is None else first
        if not records:
            if world.scheduler.now_ms > deliveries.started_ms + COUNTED_AFTER_MS:
                return
            client.wait(world.random_below(DAY_MS // 4))


def sweep(client: Client) -> None:
    """Not a client of the product: what DynamoDB does by itself."""
    world = client.world
    client.wait(max(0, _deliveries(world).sweeps_ms - world.scheduler.now_ms))
    while client.done < SWEEPS:
        client.done += 1
        client.wait(1 + world.random_below(LAG_MOST_MS))
        for key in world.table.expired_keys():
            if client.random.random() < 0.3:
                world.table.expire(key)


def purge(client: Client, after_ms: int) -> None:
    """Until it is certain that it was started."""
    client.wait(max(0, _deliveries(client.world).started_ms + after_ms - client.world.scheduler.now_ms))
    while True:
        try:
            client.host.namespaces.purge("purged", BY_SYSTEM)
        except (Contended, Unavailable):
            client.wait(500)
        except NotFound:
            # After a crash it may be over.
            return
        else:
            return


def run_purges(client: Client, after_ms: int) -> None:
    """Also one run right after the other: a purge that does not wait by itself is over before all have noticed it."""
    world, random = client.world, client.random
    client.wait(max(0, _deliveries(world).started_ms + after_ms - world.scheduler.now_ms))
    work = _work(world, client.host)
    while client.done < RUNS:
        client.done += 1
        client.wait(world.random_below(random.choice((500, 5_000, MINUTE_MS))))
        try:
            run = client.host.jobs.run_open(work, lambda: random.random() < 0.1)
        except (Contended, Unavailable):
            continue
        world.notes["failures"] += run.failures


def _work(world: World, host: Host) -> Mapping[str, Work]:
    """With an archive to empty."""
    effects = Effects(world.scheduler.clock_ms, world.random_below, world.new_token, host.meter)
    return {**host.work, PURGE: Purge(host.store, effects, _bucket_of(world, host))}


def _bucket_of(world: World, host: Host) -> S3Archive:
    return S3Archive(BucketConnection(world.network, host.process, world.notes["bucket"]), "simulated")


def _deliveries(world: World) -> Deliveries:
    deliveries: Deliveries = world.notes["deliveries"]
    return deliveries


def _shard(record: StreamRecord) -> int:
    return crc32(record.key.pk.encode()) % SHARDS


def the_purge_ends(world: World) -> None:
    """Changes the world, and goes before whatever looks at all changes."""
    jobs_come_to_their_end(world, partial(_work, world))


def everything_expires_and_is_archived(world: World) -> None:
    """In peace. Changes the world, and goes before whatever looks at all changes."""

    def expire_and_drain(host: Host) -> None:
        world.scheduler.pause(max(0, _deliveries(world).started_ms + ALL_EXPIRED_MS - world.scheduler.now_ms))
        for key in world.table.expired_keys():
            world.table.expire(key)
        for _ in range(PEACEFUL_ROUNDS):
            if not any(_deliver_next(world, host, shard, BATCH_MOST) for shard in range(SHARDS)):
                return
        raise Violated(f"records are left after {PEACEFUL_ROUNDS} rounds in peace")

    world.afterwards(expire_and_drain)


ARCHIVE: Final = Scenario(
    name="archive",
    setup=setup,
    holds=(
        the_purge_ends,
        everything_expires_and_is_archived,
        every_line_is_read_once,
        nothing_else_is_archived,
        nothing_of_the_purged_is_archived,
        a_name_stands_for_one_content,
        every_item_decodes,
    ),
)
