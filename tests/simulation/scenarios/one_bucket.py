"""Eight clients on one bucket, more demand than it refills."""

from typing import Final

from sluice.core.limits import SYSTEM, Limit, OnUnavailable, Scope
from tests.simulation.invariants import (
    buckets_begin_full,
    bursts_are_kept,
    charged_exactly,
    every_item_decodes,
    everything_passes_again,
    gate_opens_for_cause,
    levels_stay_above_zero,
    nothing_is_lost,
    nothing_is_minted,
    shards_are_whole,
    within_the_rate,
)
from tests.simulation.refused import refusals_are_exact, refused_for_a_reason
from tests.simulation.scenario import Admin, Scenario
from tests.simulation.world import RESOURCE, Client, World

ENTITY: Final = "user-1"
CLIENTS: Final = 8
REQUESTS: Final = 6
LIMITS: Final = (
    {"rpm": Limit(10, 10, 10, 60)},
    {"rpm": Limit(20, 30, 20, 1)},
    {"rpm": Limit(300, 300, 300, 1)},
    {"rpm": Limit(12, 12, 12, 1), "tpm": Limit(1000, 2000, 1000, 60)},
)
THINK_MS: Final = (0, 20, 400)


def setup(world: World, admin: Admin) -> None:
    limits = world.random.choice(LIMITS)
    scope = world.random.choice((Scope(resource=RESOURCE), Scope(ENTITY, RESOURCE)))
    admin.host.limits.put(world.namespace, scope, limits)
    world.notes["gate_may_open"] = world.random.random() < 0.3
    if world.notes["gate_may_open"]:
        admin.host.limits.put(world.namespace, SYSTEM, {}, OnUnavailable.ALLOW)
    world.limits[ENTITY] = limits
    think_ms = world.random.choice(THINK_MS)

    def ask(client: Client) -> None:
        while client.done < REQUESTS:
            client.done += 1
            client.wait(world.random_below(think_ms + 1))
            consume = {name: world.random_below(1 + limit.burst // 3) for name, limit in limits.items()}
            client.acquire(ENTITY, consume)

    for number in range(CLIENTS):
        world.add_client(f"client-{number}", ask)


ONE_BUCKET: Final = Scenario(
    name="one-bucket",
    setup=setup,
    holds=(
        charged_exactly,
        gate_opens_for_cause,
        buckets_begin_full,
        nothing_is_minted,
        bursts_are_kept,
        shards_are_whole,
        every_item_decodes,
        nothing_is_lost,
        levels_stay_above_zero,
        within_the_rate,
        refused_for_a_reason,
        refusals_are_exact,
        everything_passes_again,
    ),
)
