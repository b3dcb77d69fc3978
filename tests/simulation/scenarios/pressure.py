"""Twenty hosts on one bucket that ask for as much as it refills, or for more. Nothing fails, but calls take time."""

from collections import Counter
from random import Random
from typing import Final

from sluice.core.limits import Limit, Scope
from sluice.services.chains import AcquireRequest
from tests.simulation.faults import CALM, FaultPlan
from tests.simulation.invariants import (
    bursts_are_kept,
    charged_exactly,
    levels_stay_above_zero,
    nothing_is_lost,
    nothing_is_minted,
    within_the_rate,
)
from tests.simulation.refused import refusals_are_exact, refused_for_a_reason
from tests.simulation.scenario import Admin, Scenario, Violated
from tests.simulation.world import RESOURCE, Client, Outcome, World

ENTITY: Final = "user-1"
CLIENTS: Final = 20
REQUESTS: Final = 12
RATE: Final = 100
LIMITS: Final = {"rpm": Limit(RATE, RATE, RATE, 1)}
LOADS: Final = (1.0, 1.5)
LEARNING: Final = 2
WRITES_MOST: Final = 1.3
"""Of an acquire, on average: what the rules promise for a bucket under pressure."""


def plan(_random: Random) -> FaultPlan:
    """Clocks that differ would leave all of it to the fastest one."""
    return CALM


def setup(world: World, admin: Admin) -> None:
    admin.host.limits.put(world.namespace, Scope(resource=RESOURCE), LIMITS)
    world.limits[ENTITY] = LIMITS
    admin.host.acquire.acquire(AcquireRequest(world.namespace, ENTITY, RESOURCE, {"rpm": 0}))
    load = world.random.choice(LOADS)
    every_ms = int(1000 * CLIENTS / RATE / load)

    def ask(client: Client) -> None:
        while client.done < REQUESTS:
            client.done += 1
            client.wait(world.random_below(2 * every_ms))
            client.acquire(ENTITY, {"rpm": 1})

    def drain(client: Client) -> None:
        client.acquire(ENTITY, {"rpm": RATE})

    if load > 1:
        # At the rate it stays full; above the rate it shall be empty from the start.
        world.add_client("drain", drain)
    for number in range(CLIENTS):
        world.add_client(f"client-{number}", ask)


def served_at_the_rate(world: World) -> None:
    """Nobody is refused by contention. As nobody is refused while there is room either, all of the refill is served."""
    for request in world.history:
        if request.outcome not in {Outcome.ADMITTED, Outcome.REFUSED}:
            raise Violated(f"{request}, where only the limit may refuse")


def writes_are_few(world: World) -> None:
    """Of hosts that know the bucket, and which form fits it when it is full: that takes one request each."""
    asked: Counter[str] = Counter()
    writes: list[int] = []
    for request in world.history:
        asked[request.client.name] += 1
        if asked[request.client.name] > LEARNING:
            writes.append(world.writes[request.number])
    if sum(writes) > WRITES_MOST * len(writes):
        raise Violated(f"{sum(writes)} writes for {len(writes)} acquires")


PRESSURE: Final = Scenario(
    name="pressure",
    setup=setup,
    holds=(
        charged_exactly,
        nothing_is_minted,
        bursts_are_kept,
        nothing_is_lost,
        levels_stay_above_zero,
        within_the_rate,
        refused_for_a_reason,
        refusals_are_exact,
        served_at_the_rate,
        writes_are_few,
    ),
    plan=plan,
)
