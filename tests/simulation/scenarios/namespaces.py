"""Two namespaces, the id of one the beginning of the other's: one is purged while everybody asks in both.

`world.namespace` is the one that stays.
"""

from dataclasses import dataclass, field
from typing import Final

from sluice.core.audit import BY_SYSTEM
from sluice.core.errors import Contended, NotFound, Unavailable
from sluice.core.limits import Limit, Scope
from sluice.repository import keys
from sluice.repository.idempotency import IdempotencyKey
from sluice.repository.namespaces import Namespace, NamespaceState, create_writes
from sluice.services.chains import AcquireRequest
from sluice.services.entities import EntityChange
from sluice.services.registration import Registration
from tests.simulation.invariants import (
    buckets_begin_full,
    bursts_are_kept,
    charged_exactly,
    every_item_decodes,
    everything_passes_again,
    levels_stay_above_zero,
    nothing_is_lost,
    nothing_is_minted,
    within_the_rate,
)
from tests.simulation.job_runs import jobs_come_to_their_end, run_jobs
from tests.simulation.scenario import Admin, Invariant, Scenario, Violated
from tests.simulation.stream import StreamRecord
from tests.simulation.world import RESOURCE, Client, Outcome, World

ENTITIES: Final = ("user-1", "user-2")
NEWCOMERS: Final = ("new-1", "new-2", "new-3")
CLIENTS: Final = 6
REQUESTS: Final = 8
RUNNERS: Final = 2
LIMITS: Final = {"rpm": Limit(10, 15, 10, 1)}
THINK_MS: Final = (0, 500, 10_000, 30_000)


@dataclass
class Tenants:
    """`asked`: in which namespace each request was."""

    kept: Namespace
    purged: Namespace
    asked: dict[int, str] = field(default_factory=dict)

    def of(self, record: StreamRecord) -> str | None:
        """The id of the one whose item it is."""
        for namespace in (self.kept.namespace_id, self.purged.namespace_id):
            if record.key.pk.startswith(f"{namespace}/"):
                return namespace
        return None


def setup(world: World, admin: Admin) -> None:
    shorter, longer = f"{world.namespace}x", f"{world.namespace}xy"
    kept, purged = world.random.sample((shorter, longer), 2)
    world.namespace = kept
    now_ms = world.scheduler.now_ms
    tenants = Tenants(_tenant(kept, now_ms), _tenant(purged, now_ms))
    world.notes |= {"tenants": tenants, "failures": []}
    for tenant in (tenants.kept, tenants.purged):
        # The product draws ids of one length: none is the beginning of another.
        admin.host.store.transact(create_writes(tenant), world.new_token())
        admin.host.limits.put(tenant.namespace_id, Scope(resource=RESOURCE), LIMITS)
        for entity in ENTITIES:
            admin.host.entities.put(tenant.namespace_id, entity, EntityChange())
    world.limits |= dict.fromkeys((*ENTITIES, *NEWCOMERS), LIMITS)
    think_ms = world.random.choice(THINK_MS)

    def ask(client: Client) -> None:
        while client.done < REQUESTS:
            client.done += 1
            client.wait(world.random_below(think_ms + 1))
            _ask(client, tenants)

    for number in range(CLIENTS):
        world.add_client(f"client-{number}", ask)
    for number in range(RUNNERS):
        world.add_client(f"runner-{number}", run_jobs)
    world.add_client("operator", purge)


def _tenant(namespace: str, now_ms: int) -> Namespace:
    return Namespace(f"name of {namespace}", namespace, NamespaceState.ACTIVE, None, now_ms, now_ms)


def _ask(client: Client, tenants: Tenants) -> None:
    world, random = client.world, client.random
    namespace = random.choice((tenants.kept, tenants.purged)).namespace_id
    consume = {"rpm": world.random_below(6)}
    tenants.asked[len(world.history)] = namespace
    drawn = random.random()
    if drawn < 0.6:
        client.acquire(random.choice(ENTITIES), consume, namespace=namespace)
    elif drawn < 0.8:
        registration = Registration(None, BY_SYSTEM)
        client.acquire(random.choice(NEWCOMERS), consume, namespace=namespace, registration=registration)
    else:
        entity = random.choice(ENTITIES)
        # Never twice, so that a request is charged or not.
        key = IdempotencyKey(namespace, entity, f"{client.name} {client.done}", "body")

        def under_key() -> Outcome:
            client.host.namespaces.require_active(namespace)
            asked = AcquireRequest(namespace, entity, RESOURCE, consume)
            client.host.idempotent_acquire.acquire(asked, key, lambda _admission: "admitted")
            return Outcome.ADMITTED

        client.attempt(entity, under_key, consume)


def purge(client: Client) -> None:
    """Until it is certain that it was started."""
    world = client.world
    tenants: Tenants = world.notes["tenants"]
    client.wait(world.random_below(client.random.choice((10, 2_000, 30_000))))
    while True:
        try:
            client.host.namespaces.purge(tenants.purged.name, BY_SYSTEM)
        except (Contended, Unavailable):
            client.wait(500)
        except NotFound:
            # After a crash it may be over.
            return
        else:
            return


def nothing_of_the_purged_is_left(world: World) -> None:
    tenants: Tenants = world.notes["tenants"]
    prefix = f"{tenants.purged.namespace_id}/"
    records = {keys.namespace_by_name(tenants.purged.name), keys.namespace_by_id(tenants.purged.namespace_id)}
    left = [key for key in map(keys.key_of, world.table.items()) if key.pk.startswith(prefix) or key in records]
    if left:
        raise Violated(f"left of the purged namespace: {left}")


def nothing_of_the_other_is_removed(world: World) -> None:
    tenants: Tenants = world.notes["tenants"]
    records = {keys.namespace_by_name(tenants.kept.name), keys.namespace_by_id(tenants.kept.namespace_id)}
    for record in world.table.stream:
        if record.new is None and (tenants.of(record) == tenants.kept.namespace_id or record.key in records):
            raise Violated(f"removed from the other namespace: {record}")


def requests_stay_in_their_namespace(world: World) -> None:
    tenants: Tenants = world.notes["tenants"]
    for record in world.table.stream:
        asked = tenants.asked.get(record.cause) if isinstance(record.cause, int) else None
        if asked is not None and tenants.of(record) != asked:
            raise Violated(f"a request in {asked} wrote {record}")


def where_nothing_is_removed(invariant: Invariant) -> Invariant:
    """A bucket that is purged begins full for whoever has not noticed, also for one who repeats a lost create."""

    def holds(world: World) -> None:
        tenants: Tenants = world.notes["tenants"]
        prefix = f"{world.namespace}/"
        every, history = world.changes, world.history
        world.changes = {bucket: changes for bucket, changes in every.items() if bucket.startswith(prefix)}
        world.history = [request for request in history if tenants.asked.get(request.number) == world.namespace]
        try:
            invariant(world)
        finally:
            world.changes, world.history = every, history

    return holds


def charged_once_a_life(world: World) -> None:
    """Also in the namespace that is purged: a bucket is never charged more by a request than it asked for, between its
    creation and its removal. Over its removal nothing is promised: who repeats a lost create makes it again.
    """
    for changes in world.changes.values():
        charged: dict[object, int] = {}
        for change in changes:
            if change.is_removed:
                charged = {}
                continue
            charged[change.cause] = charged.get(change.cause, 0) + change.limits["rpm"].consumed
            wanted = world.history[change.cause].consume.get("rpm", 0) if isinstance(change.cause, int) else 0
            if not 0 <= charged[change.cause] <= 1000 * wanted:
                raise Violated(f"charged {charged[change.cause]} where {wanted} were asked for: {change}")


NAMESPACES: Final = Scenario(
    name="namespaces",
    setup=setup,
    holds=(
        jobs_come_to_their_end,
        nothing_of_the_purged_is_left,
        nothing_of_the_other_is_removed,
        requests_stay_in_their_namespace,
        where_nothing_is_removed(charged_exactly),
        charged_once_a_life,
        buckets_begin_full,
        nothing_is_minted,
        bursts_are_kept,
        every_item_decodes,
        nothing_is_lost,
        levels_stay_above_zero,
        where_nothing_is_removed(within_the_rate),
        everything_passes_again,
    ),
)
