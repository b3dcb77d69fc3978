"""Leases that a process holds while it works: corrected on the way, given back where the work fails."""

from dataclasses import dataclass, field
from typing import Final

from sluice.core.limits import Limit, Scope
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
LIMITS: Final = {"rpm": Limit(20, 30, 20, 1)}
OF_ORG: Final = {"rpm": Limit(50, 60, 50, 1)}
CLIENTS: Final = 5
REQUESTS: Final = 6
CORRECTION_MOST: Final = 6


class WorkFailed(Exception):
    """Of the caller, not of the product."""


@dataclass
class Desk:
    """What each request stood for in the end, and the most that it may stand for while nobody knows."""

    ended_with: dict[int, int] = field(default_factory=dict)
    most: dict[int, int] = field(default_factory=dict)


def setup(world: World, admin: Admin) -> None:
    admin.host.limits.put(world.namespace, Scope(resource=RESOURCE), LIMITS)
    world.limits[ENTITY] = LIMITS
    if world.random.random() < 0.5:
        admin.host.limits.put(world.namespace, Scope(ORG, RESOURCE), OF_ORG)
        admin.host.entities.put(world.namespace, ORG, EntityChange())
        admin.host.entities.put(world.namespace, ENTITY, EntityChange(parent=ORG))
        world.limits[ORG] = OF_ORG
    desk = world.notes["desk"] = Desk()
    think_ms = world.random.choice((0, 100, 2_000))

    def work(client: Client) -> None:
        while client.done < REQUESTS:
            client.done += 1
            client.wait(world.random_below(think_ms + 1))
            _hold(client, desk, think_ms)

    for number in range(CLIENTS):
        world.add_client(f"client-{number}", work)


def _hold(client: Client, desk: Desk, think_ms: int) -> None:
    world, random = client.world, client.random
    number = len(world.history)
    amount = world.random_below(8)
    desk.most[number] = amount

    def ask() -> Outcome:
        admission = client.host.acquire.acquire(AcquireRequest(world.namespace, ENTITY, RESOURCE, {"rpm": amount}))
        desk.ended_with[number] = 0
        try:
            with client.host.leases.hold(admission) as lease:
                for _ in range(2):
                    client.wait(world.random_below(think_ms + 1))
                    more = random.randint(-min(lease.consumed["rpm"], CORRECTION_MOST), CORRECTION_MOST)
                    # In doubt is one adjustment at a time: the ones before are certain.
                    desk.most[number] = lease.consumed["rpm"] + max(more, 0)
                    lease.adjust(rpm=more)
                    if more >= 0:
                        desk.most[number] = lease.consumed["rpm"]
                _work(fails=random.random() < 0.3)
                desk.ended_with[number] = lease.consumed["rpm"]
        except WorkFailed:
            return Outcome.DONE
        return Outcome.DONE

    client.attempt(ENTITY, ask, {"rpm": amount})


def _work(*, fails: bool) -> None:
    if fails:
        raise WorkFailed


def held_leases_add_up(world: World) -> None:
    """What was taken is what the lease stood for when it was left.

    In doubt it is not more than what it last stood for for certain and the one adjustment that was not answered; a
    credit that was lost on the way stays taken as well.
    """
    desk: Desk = world.notes["desk"]
    charged: dict[tuple[object, str], int] = {}
    for changes in world.changes.values():
        for change in changes:
            place = (change.cause, change.entity)
            charged[place] = charged.get(place, 0) + change.limits["rpm"].consumed
    for request in world.history:
        lost = int(request.lost_credits > 0 or request.outcome is None)
        certain = request.outcome in {Outcome.DONE, Outcome.REFUSED} and not request.lost_credits
        for entity in world.limits:
            found = charged.get((request.number, entity), 0)
            right = 1000 * desk.ended_with.get(request.number, 0)
            most = right if certain else 1000 * desk.most[request.number] + CORRECTION_MOST * 2000 * lost
            if not (right if certain else 0) <= found <= most:
                raise Violated(f"{request}: {entity} gave {found}, right is up to {most}")


HELD: Final = Scenario(
    name="held",
    setup=setup,
    holds=(
        buckets_begin_full,
        nothing_is_minted,
        bursts_are_kept,
        shards_are_whole,
        every_item_decodes,
        nothing_is_lost,
        held_leases_add_up,
        everything_passes_again,
    ),
)
