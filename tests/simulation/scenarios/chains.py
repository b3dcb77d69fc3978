"""Users below a team below an org: taken from all of them, or from none."""

from collections.abc import Mapping
from typing import Final

from sluice.core.limits import Limit, Scope
from sluice.services.entities import EntityChange
from tests.simulation.invariants import (
    buckets_begin_full,
    bursts_are_kept,
    charged_exactly,
    every_item_decodes,
    everything_passes_again,
    levels_stay_above_zero,
    nothing_is_lost,
    nothing_is_minted,
    shards_are_whole,
    within_the_rate,
)
from tests.simulation.refused import refusals_are_exact, refused_for_a_reason
from tests.simulation.scenario import Admin, Scenario
from tests.simulation.world import RESOURCE, Client, Request, World

ORG: Final = "org"
TEAM: Final = "team"
USERS: Final = ("user-1", "user-2", "user-3")
CLIENTS: Final = 6
REQUESTS: Final = 5

OF_USERS: Final = {"rpm": Limit(8, 12, 8, 1)}
OF_TEAM: Final = {"rpm": Limit(15, 20, 15, 1)}
# A name that only the org defines.
OF_ORG: Final = {"rpm": Limit(20, 30, 20, 1), "tpm": Limit(500, 500, 500, 10)}


def setup(world: World, admin: Admin) -> None:
    host, namespace = admin.host, world.namespace
    host.limits.put(namespace, Scope(resource=RESOURCE), OF_USERS)
    host.limits.put(namespace, Scope(ORG, RESOURCE), OF_ORG)
    host.entities.put(namespace, ORG, EntityChange())
    host.entities.put(namespace, TEAM, EntityChange(parent=ORG))
    team_takes_part = world.random.random() < 0.7
    if team_takes_part:
        host.limits.put(namespace, Scope(TEAM, RESOURCE), OF_TEAM)
    for user in USERS:
        host.entities.put(namespace, user, EntityChange(parent=TEAM))
        world.limits[user] = OF_USERS
    world.limits |= {ORG: OF_ORG, TEAM: OF_TEAM}
    above = (TEAM, ORG) if team_takes_part else (ORG,)

    def demand_of(request: Request) -> Mapping[str, Mapping[str, int]]:
        return {
            entity: {name: amount for name, amount in request.consume.items() if name in world.limits[entity]}
            for entity in (request.entity, *above)
        }

    world.demand_of = demand_of
    think_ms = world.random.choice((0, 50, 400))

    def ask(client: Client) -> None:
        while client.done < REQUESTS:
            client.done += 1
            client.wait(world.random_below(think_ms + 1))
            consume = {"rpm": world.random_below(7)}
            if world.random.random() < 0.5:
                consume["tpm"] = world.random_below(150)
            client.acquire(world.random.choice(USERS), consume)

    for number in range(CLIENTS):
        world.add_client(f"client-{number}", ask)


CHAINS: Final = Scenario(
    name="chains",
    setup=setup,
    holds=(
        charged_exactly,
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
