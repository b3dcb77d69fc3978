"""A bucket that hardly anybody asks: split and merged all the time, by several at once."""

from typing import Final

from sluice.core.limits import Limit, Scope
from sluice.repository import keys
from sluice.repository.items import decode_bucket
from sluice.services.chains import AcquireRequest
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
from tests.simulation.refused import refused_for_a_reason
from tests.simulation.reshaping import resharding_loses_nothing, splits_leave_no_debt
from tests.simulation.scenario import Admin, Scenario
from tests.simulation.world import RESOURCE, Client, Outcome, World

ENTITY: Final = "user-1"
LIMITS: Final = {"rpm": Limit(16, 21, 16, 1)}
MERGERS: Final = 3
TURNS: Final = 8
REQUESTS: Final = 3


def setup(world: World, admin: Admin) -> None:
    admin.host.limits.put(world.namespace, Scope(resource=RESOURCE), LIMITS)
    world.limits[ENTITY] = LIMITS
    admin.host.acquire.acquire(AcquireRequest(world.namespace, ENTITY, RESOURCE, {"rpm": 0}))

    def ask(client: Client) -> None:
        while client.done < REQUESTS:
            client.done += 1
            client.wait(world.random_below(30_000))
            client.acquire(ENTITY, {"rpm": world.random_below(12)})

    world.add_client("client", ask)
    for number in range(MERGERS):
        world.add_client(f"merger-{number}", reshard)


def reshard(client: Client) -> None:
    """Merges whatever is split, splits what is whole."""
    world = client.world
    first = keys.bucket(world.namespace, ENTITY, RESOURCE, 0)

    def once() -> Outcome:
        item = client.host.store.get(first, consistent=True)
        if item is not None:
            image = decode_bucket(item)
            sharding = client.host.buckets.sharding
            (sharding.split if image.shard_count == 1 else sharding.merge)(image)
        return Outcome.DONE

    while client.done < TURNS:
        client.done += 1
        client.wait(world.random_below(8_000))
        client.attempt("reshard", once)


MERGES: Final = Scenario(
    name="merges",
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
        splits_leave_no_debt,
        resharding_loses_nothing,
        refused_for_a_reason,
        everything_passes_again,
    ),
)
