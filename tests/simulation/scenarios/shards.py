"""A bucket of several shards that goes on being split and merged, and requests above one share.

In every other simulation the org above refuses much of it, so that it is given back.
"""

from typing import Final

from sluice.core.errors import Contended, Unavailable
from sluice.core.limits import Limit, Scope
from sluice.repository import keys
from sluice.repository.items import decode_bucket
from sluice.services.chains import AcquireRequest
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
from tests.simulation.refused import refused_for_a_reason
from tests.simulation.reshaping import resharding_loses_nothing, splits_leave_no_debt
from tests.simulation.scenario import Admin, Scenario
from tests.simulation.world import RESOURCE, Client, Host, World

ENTITY: Final = "user-1"
ORG: Final = "org"
OF_ORG: Final = {"rpm": Limit(33, 33, 5, 1)}
CLIENTS: Final = 6
REQUESTS: Final = 6
LIMITS: Final = (
    {"rpm": Limit(16, 16, 16, 60)},
    {"rpm": Limit(20, 33, 20, 1)},
    {"rpm": Limit(30, 30, 30, 1), "tpm": Limit(1000, 1700, 1000, 10)},
)
RESHARDINGS: Final = 5
THINK_MS: Final = (0, 50, 1_500)


def setup(world: World, admin: Admin) -> None:
    limits = world.random.choice(LIMITS)
    admin.host.limits.put(world.namespace, Scope(resource=RESOURCE), limits)
    world.limits[ENTITY] = limits
    if world.random.random() < 0.5:
        _put_below_org(world, admin)
    admin.host.acquire.acquire(AcquireRequest(world.namespace, ENTITY, RESOURCE, dict.fromkeys(limits, 0)))
    for shard in world.random.choice(((), (0,), (0, 0), (0, 0, 1))):
        _reshard_once(world, admin.host, shard, merges=False)
    think_ms = world.random.choice(THINK_MS)

    def ask(client: Client) -> None:
        while client.done < REQUESTS:
            client.done += 1
            client.wait(world.random_below(think_ms + 1))
            share = world.random.choice((8, 3, 1))
            consume = {name: world.random_below(1 + limit.burst // share) for name, limit in limits.items()}
            client.acquire(ENTITY, consume)

    for number in range(CLIENTS):
        world.add_client(f"client-{number}", ask)
    world.add_client("resharding", reshard)


def _put_below_org(world: World, admin: Admin) -> None:
    admin.host.limits.put(world.namespace, Scope(ORG, RESOURCE), OF_ORG)
    admin.host.entities.put(world.namespace, ORG, EntityChange())
    admin.host.entities.put(world.namespace, ENTITY, EntityChange(parent=ORG))
    world.limits[ORG] = OF_ORG
    world.demand_of = lambda request: {
        entity: {name: amount for name, amount in request.consume.items() if name in world.limits[entity]}
        for entity in (ENTITY, ORG)
    }


def reshard(client: Client) -> None:
    """As a hot shard or the daily pass would."""
    world, random = client.world, client.random
    while client.done < RESHARDINGS:
        client.done += 1
        client.wait(world.random_below(random.choice((20, 500, 60_000))))
        try:
            _reshard_once(world, client.host, random.choice((0, 0, 1, 2, 3)), merges=random.random() < 0.4)
        except (Contended, Unavailable):
            continue


def _reshard_once(world: World, host: Host, shard: int, *, merges: bool) -> None:
    first = keys.bucket(world.namespace, ENTITY, RESOURCE, 0)
    item = host.store.get(keys.bucket_shard(first, shard), consistent=True)
    if item is None:
        return
    if merges and shard == 0:
        host.buckets.sharding.merge(decode_bucket(item))
    else:
        host.buckets.sharding.split(decode_bucket(item))


SHARDS: Final = Scenario(
    name="shards",
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
