"""Leases that are kept for hours and taken far into debt, on buckets that expire or are removed meanwhile."""

from dataclasses import dataclass, field
from typing import Final

from sluice.core.audit import BY_SYSTEM
from sluice.core.lease import Lease
from sluice.core.lease_changes import amounts_of
from sluice.core.limits import Limit, Scope
from sluice.repository import keys
from sluice.repository.leases import State, decode_lease
from sluice.services.chains import AcquireRequest
from sluice.services.registration import Registration
from tests.simulation.invariants import (
    bursts_are_kept,
    every_item_decodes,
    everything_passes_again,
    nothing_is_lost,
    nothing_is_minted,
    shards_are_whole,
)
from tests.simulation.refused import refused_for_a_reason
from tests.simulation.scenario import Admin, Scenario, Violated
from tests.simulation.scenarios.expiry import HOUR_MS, only_the_full_expire, sweep
from tests.simulation.world import RESOURCE, Client, Outcome, World

ENTITY: Final = "user-1"
CLIENTS: Final = 4
ACTIONS: Final = 9
REMOVALS: Final = 4
LIMITS: Final = (
    {"rpm": Limit(10, 10, 10, 60)},
    {"rpm": Limit(20, 20, 1, 3600)},
)
# Of the slower limit: days, and so beyond the longest lease.
DEBT_MOST: Final = 100
LEASE_MS: Final = 24 * HOUR_MS
WAITS_MS: Final = (500, 20_000, HOUR_MS, 30 * HOUR_MS)


@dataclass
class Desk:
    """Leases that may be changed, and which one a request was about."""

    leases: list[Lease] = field(default_factory=list)
    of_request: dict[object, str] = field(default_factory=dict)
    keys_used: int = 0


def setup(world: World, admin: Admin) -> None:
    limits = world.random.choice(LIMITS)
    admin.host.limits.put(world.namespace, Scope(resource=RESOURCE), limits)
    world.limits[ENTITY] = limits
    desk = world.notes["desk"] = Desk()

    def act(client: Client) -> None:
        while client.done < ACTIONS:
            client.done += 1
            client.wait(world.random_below(client.random.choice(WAITS_MS)))
            if not desk.leases or client.random.random() < 0.5:
                _take(client, desk)
            else:
                _change(client, desk, client.random.choice(desk.leases))

    for number in range(CLIENTS):
        world.add_client(f"client-{number}", act)
    world.add_client("operator", remove)
    world.add_client("ttl", sweep)


def _take(client: Client, desk: Desk) -> None:
    world = client.world
    consume = {"rpm": world.random_below(6)}

    def ask() -> Outcome:
        registration = Registration(None, BY_SYSTEM)
        asked = AcquireRequest(world.namespace, ENTITY, RESOURCE, consume, registration=registration)
        lease = client.host.leases.open(client.host.acquire.acquire(asked), LEASE_MS)
        desk.leases.append(lease)
        desk.of_request[world.scheduler.cause()] = lease.lease_id
        return Outcome.ADMITTED

    client.attempt(ENTITY, ask, consume)


def _change(client: Client, desk: Desk, lease: Lease) -> None:
    random, leases = client.random, client.host.leases
    drawn = random.random()
    desk.keys_used += 1
    key, delta = f"key-{desk.keys_used}", {"rpm": random.randint(-2, random.choice((5, DEBT_MOST)))}

    def ask() -> Outcome:
        desk.of_request[client.world.scheduler.cause()] = lease.lease_id
        if drawn < 0.5:
            leases.adjust(lease, delta, key)
        elif drawn < 0.7:
            leases.settle(lease, {"rpm": max(0, delta["rpm"])})
        else:
            leases.release(lease)
        return Outcome.DONE

    client.attempt(f"change {lease.lease_id}", ask)


def remove(client: Client) -> None:
    world = client.world
    while client.done < REMOVALS:
        client.done += 1
        client.wait(world.random_below(client.random.choice((30_000, HOUR_MS, 40 * HOUR_MS))))

        def delete() -> Outcome:
            client.host.entities.delete(world.namespace, ENTITY)
            return Outcome.DONE

        client.attempt("remove", delete)


def credits_go_home(world: World) -> None:
    """A lease gives back to the very incarnation that it took from, and never more than it took from that."""
    desk: Desk = world.notes["desk"]
    taken: dict[tuple[str, object], int] = {}
    for changes in world.changes.values():
        for change in changes:
            lease_id = desk.of_request.get(change.cause)
            item = change.records[0].new
            if lease_id is None or item is None:
                continue
            place = (lease_id, item["gen"])
            taken[place] = taken.get(place, 0) + change.limits["rpm"].consumed
            if taken[place] < 0:
                raise Violated(f"given back to a bucket that had not given it: {change}")


def zero_waits_for_debts(world: World) -> None:
    """Who asks for nothing asks that there is no debt, by the fastest clock."""
    fastest_ms = max(world.skews_ms)
    asked = {request.number for request in world.history if request.entity == ENTITY and not request.consume["rpm"]}
    for changes in world.changes.values():
        for change in changes:
            if change.cause in asked and change.is_plain:
                (after,) = change.limits["rpm"].after
                if after.level(change.time_ms + fastest_ms) < 0:
                    raise Violated(f"admitted in debt: {change}")


def leases_take_what_they_say(world: World) -> None:
    """To the token. Where what had given is gone, nothing can be given back or taken: then it is noted as left out."""
    desk: Desk = world.notes["desk"]
    taken: dict[str, int] = {}
    for changes in world.changes.values():
        for change in changes:
            lease_id = desk.of_request.get(change.cause)
            if lease_id is not None:
                taken[lease_id] = taken.get(lease_id, 0) + change.limits["rpm"].consumed
    # A lease that is over expires as well: it counts as it last was.
    items = {record.key: record.new for record in world.table.stream if record.new is not None}
    for lease in desk.leases:
        item = items.get(keys.lease(world.namespace, lease.lease_id))
        state = None if item is None else decode_lease(item)
        if state is None:
            amounts = dict(lease.consumed)
        else:
            amounts = dict(amounts_of(lease, state.adjusted) if state.state is State.OPEN else state.closed_with)
        found, right = taken.get(lease.lease_id, 0), 1000 * amounts["rpm"]
        if found != right and not (state is not None and state.left_out):
            raise Violated(f"lease {lease.lease_id} took {found}, and is {state}")


DEBTS: Final = Scenario(
    name="debts",
    setup=setup,
    holds=(
        nothing_is_minted,
        bursts_are_kept,
        shards_are_whole,
        every_item_decodes,
        nothing_is_lost,
        only_the_full_expire,
        credits_go_home,
        zero_waits_for_debts,
        leases_take_what_they_say,
        refused_for_a_reason,
        everything_passes_again,
    ),
)
