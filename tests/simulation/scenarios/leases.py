"""Leases that are adjusted and closed by several clients at once, each sending again what was not answered."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sluice.core.lease import Lease
from sluice.core.lease_changes import amounts_of
from sluice.core.limits import Limit, Scope
from sluice.repository import keys
from sluice.repository.leases import LeaseState, State, decode_lease
from sluice.services.chains import AcquireRequest
from sluice.services.entities import EntityChange
from tests.simulation.invariants import (
    buckets_begin_full,
    bursts_are_kept,
    every_item_decodes,
    everything_passes_again,
    nothing_is_lost,
    nothing_is_minted,
    shards_are_whole,
)
from tests.simulation.scenario import Admin, Scenario, Violated
from tests.simulation.world import RESOURCE, Client, Outcome, World

ENTITY: Final = "user-1"
ORG: Final = "org"
CLIENTS: Final = 5
ACTIONS: Final = 6
LIMITS: Final = {"rpm": Limit(20, 30, 20, 1), "tpm": Limit(1000, 1700, 1000, 10)}
OF_ORG: Final = {"rpm": Limit(40, 60, 40, 1)}
TTLS_MS: Final = (1_500, 20_000, 300_000)
AGAIN: Final = 0.7
TRIES_MAX: Final = 4


@dataclass
class Desk:
    """What all clients know of each other's leases. `of_request`: which lease a request was about."""

    leases: list[Lease] = field(default_factory=list)
    of_request: dict[object, str] = field(default_factory=dict)
    keys_used: int = 0


def setup(world: World, admin: Admin) -> None:
    admin.host.limits.put(world.namespace, Scope(resource=RESOURCE), LIMITS)
    world.limits[ENTITY] = LIMITS
    if world.random.random() < 0.5:
        admin.host.limits.put(world.namespace, Scope(ORG, RESOURCE), OF_ORG)
        admin.host.entities.put(world.namespace, ORG, EntityChange())
        admin.host.entities.put(world.namespace, ENTITY, EntityChange(parent=ORG))
    desk = Desk()
    world.notes["desk"] = desk
    think_ms = world.random.choice((0, 50, 1_000))

    def act(client: Client) -> None:
        while client.done < ACTIONS:
            client.done += 1
            client.wait(world.random_below(think_ms + 1))
            if not desk.leases or world.random.random() < 0.4:
                _take(client, desk)
            else:
                _change(client, desk, world.random.choice(desk.leases))

    for number in range(CLIENTS):
        world.add_client(f"client-{number}", act)


def _take(client: Client, desk: Desk) -> None:
    world = client.world
    consume = {"rpm": world.random_below(8), "tpm": world.random_below(400)}

    def ask() -> Outcome:
        admission = client.host.acquire.acquire(AcquireRequest(world.namespace, ENTITY, RESOURCE, consume))
        lease = client.host.leases.open(admission, world.random.choice(TTLS_MS))
        desk.leases.append(lease)
        desk.of_request[world.scheduler.cause()] = lease.lease_id
        return Outcome.ADMITTED

    client.attempt(ENTITY, ask, consume)


def _change(client: Client, desk: Desk, lease: Lease) -> None:
    """The same again, also by another host after a crash, until it is answered or the client gives up."""
    random = client.random
    drawn = random.random()
    send: Callable[[], object]
    if drawn < 0.5:
        desk.keys_used += 1
        delta = {"rpm": random.randint(-3, 6), "tpm": random.randint(-200, 300)}
        text, key = f"adjust by {delta}", f"key-{desk.keys_used if drawn < 0.4 else 0}"
        send = lambda: client.host.leases.adjust(lease, delta, key)  # noqa: E731
    elif drawn < 0.8:
        actual = {"rpm": random.randint(0, 9)}
        text = f"settle {actual}"
        send = lambda: client.host.leases.settle(lease, actual)  # noqa: E731
    else:
        text = "release"
        send = lambda: client.host.leases.release(lease)  # noqa: E731

    def ask() -> Outcome:
        desk.of_request[client.world.scheduler.cause()] = lease.lease_id
        send()
        return Outcome.DONE

    for _ in range(TRIES_MAX):
        request = client.attempt(f"{text} {lease.lease_id}", ask)
        if request.outcome not in {Outcome.CONTENDED, Outcome.UNAVAILABLE} or random.random() >= AGAIN:
            break


def leases_add_up(world: World) -> None:
    """What a lease took, in all its requests together, is what its item says, to the token."""
    desk: Desk = world.notes["desk"]
    charged: dict[str, dict[tuple[str, str], int]] = {}
    for changes in world.changes.values():
        for change in changes:
            lease_id = desk.of_request.get(change.cause)
            if lease_id is not None:
                sums = charged.setdefault(lease_id, {})
                for name, limit in change.limits.items():
                    place = (change.entity, name)
                    sums[place] = sums.get(place, 0) + limit.consumed
    for lease in desk.leases:
        amounts = _amounts(lease, _state(world, lease))
        for member in lease.members:
            for name in member.shares[0].amounts_milli:
                found = charged.get(lease.lease_id, {}).get((member.entity, name), 0)
                if found != amounts[name] * 1000:
                    raise Violated(f"lease {lease.lease_id} took {found} of {name} of {member.entity}, not {amounts}")


def closed_as_told(world: World) -> None:
    """Who was told that a lease is closed in some way finds it so."""
    desk: Desk = world.notes["desk"]
    leases = {lease.lease_id: lease for lease in desk.leases}
    told = {"settle": State.SETTLED, "release": State.RELEASED}
    for request in world.history:
        expected = told.get(request.entity.partition(" ")[0])
        if expected is None or request.outcome is not Outcome.DONE:
            continue
        state = _state(world, leases[desk.of_request[request.number]])
        if state is None or state.state is not expected:
            raise Violated(f"{request}, but the lease is {state}")


def _state(world: World, lease: Lease) -> LeaseState | None:
    item = world.table.get(keys.lease(world.namespace, lease.lease_id))
    return None if item is None else decode_lease(item)


def _amounts(lease: Lease, state: LeaseState | None) -> dict[str, int]:
    if state is None:
        return dict(lease.consumed)
    return dict(amounts_of(lease, state.adjusted) if state.state is State.OPEN else state.closed_with)


LEASES: Final = Scenario(
    name="leases",
    setup=setup,
    holds=(
        buckets_begin_full,
        nothing_is_minted,
        bursts_are_kept,
        shards_are_whole,
        every_item_decodes,
        nothing_is_lost,
        leases_add_up,
        closed_as_told,
        everything_passes_again,
    ),
)
