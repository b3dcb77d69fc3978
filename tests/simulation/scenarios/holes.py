"""Buckets that lose shards by other hands than the product's, which removes a bucket whole or not at all.

They are split, merged, removed and asked for meanwhile. Whoever meets a hole closes it.
"""

from fractions import Fraction
from typing import Final

from sluice.core.limits import Scope
from sluice.core.shards import SHARDS_MAX
from sluice.repository import keys
from sluice.repository.items import BUCKET, decode_bucket
from sluice.services.chains import AcquireRequest
from tests.simulation.invariants import (
    buckets_begin_full,
    every_item_decodes,
    everything_passes_again,
    levels_stay_above_zero,
    nothing_is_lost,
    nothing_is_minted,
)
from tests.simulation.scenario import Admin, Scenario, Violated
from tests.simulation.scenarios.removals import ENTITIES, LIMITS, removed_means_gone, split, waits_come_true
from tests.simulation.scenarios.removals import remove as remove_entities
from tests.simulation.world import RESOURCE, Client, Outcome, World

CLIENTS: Final = 3
REQUESTS: Final = 8
TURNS: Final = 8


def setup(world: World, admin: Admin) -> None:
    admin.host.limits.put(world.namespace, Scope(resource=RESOURCE), LIMITS)
    world.limits |= dict.fromkeys(ENTITIES, LIMITS)
    for entity in ENTITIES:
        admin.host.acquire.acquire(AcquireRequest(world.namespace, entity, RESOURCE, {"rpm": 0}))
    burst = LIMITS["rpm"].burst

    def ask(client: Client) -> None:
        while client.done < REQUESTS:
            client.done += 1
            client.wait(world.random_below(client.random.choice((50, 8_000))))
            share = client.random.choice((16, 4, 1))
            client.acquire(client.random.choice(ENTITIES), {"rpm": world.random_below(1 + burst // share)})

    for number in range(CLIENTS):
        world.add_client(f"client-{number}", ask)
    world.add_client("loser", lose_shards)
    world.add_client("merger", merge)
    if world.random.random() < 0.5:
        world.add_client("operator", remove_entities)


def lose_shards(client: Client) -> None:
    """Splits, then deletes one after the other: from the highest down, or whichever. Shard 0 stays."""
    world = client.world
    while client.done < TURNS:
        client.done += 1
        client.wait(world.random_below(6_000))
        entity = client.random.choice(ENTITIES)
        for _ in range(client.random.choice((1, 2, 4))):
            split(client, entity)

        def lose(entity: str = entity) -> Outcome:
            first = keys.bucket(world.namespace, entity, RESOURCE, 0)
            above = [keys.bucket_shard(first, shard) for shard in range(1, SHARDS_MAX)]
            there = [decode_bucket(item) for item in client.host.store.batch_get(above, consistent=True)]
            there.sort(key=lambda image: -image.shard)
            if client.random.random() < 0.5:
                client.random.shuffle(there)
            for image in there[: client.random.choice((1, 1, 2, SHARDS_MAX))]:
                client.host.store.delete({"Key": {**image.key.attributes}})
            return Outcome.DONE

        client.attempt(f"lose {entity}", lose)


def merge(client: Client) -> None:
    """As the daily pass would."""
    world = client.world
    while client.done < TURNS:
        client.done += 1
        client.wait(world.random_below(10_000))

        def once() -> Outcome:
            key = keys.bucket(world.namespace, client.random.choice(ENTITIES), RESOURCE, 0)
            item = client.host.store.get(key, consistent=True)
            if item is not None and item["shard_count"] != 1:
                client.host.buckets.sharding.merge(decode_bucket(item))
            return Outcome.DONE

        client.attempt("merge", once)


def holes_are_closed(world: World) -> None:
    """Of everything that was asked for since: nothing is missing, and nothing was left beside what was made anew."""
    shares: dict[str, Fraction] = {}
    for item in world.table.items():
        if item.get("kind") == BUCKET:
            bucket = decode_bucket(item)
            name = bucket.key.pk.rpartition("#")[0]
            shares[name] = shares.get(name, Fraction()) + Fraction(1, bucket.shard_count)
    if any(share != 1 for share in shares.values()):
        raise Violated(f"the shares add up to {shares}")


HOLES: Final = Scenario(
    name="holes",
    setup=setup,
    holds=(
        removed_means_gone,
        buckets_begin_full,
        nothing_is_minted,
        every_item_decodes,
        nothing_is_lost,
        levels_stay_above_zero,
        waits_come_true,
        everything_passes_again,
        holes_are_closed,
    ),
)
