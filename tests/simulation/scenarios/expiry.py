"""Buckets that are left alone for days: TTL deletes them, whenever it likes, and nobody may notice."""

from typing import Final

from sluice.core.limits import Limit, Scope
from sluice.repository import keys
from sluice.repository.items import decode_bucket
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
from tests.simulation.scenario import Admin, Scenario, Violated
from tests.simulation.world import RESOURCE, Client, Outcome, World

ENTITY: Final = "user-1"
CLIENTS: Final = 4
REQUESTS: Final = 7
HOUR_MS: Final = 3_600_000
LEASE_MOST_MS: Final = 24 * HOUR_MS
# Long and short of 2F + 2L.
WAITS_MS: Final = (200, 200, 30_000, 10 * HOUR_MS, 40 * HOUR_MS, 60 * HOUR_MS)
LIMITS: Final = (
    {"rpm": Limit(10, 10, 10, 60)},
    {"rpm": Limit(20, 20, 1, 3600)},
    {"rpm": Limit(5, 8, 5, 1), "daily": Limit(30, 30, 30, 86_400)},
)
RESHARDINGS: Final = 4
SWEEPS: Final = 60
SWEEP_MOST_MS: Final = 8 * HOUR_MS


def setup(world: World, admin: Admin) -> None:
    limits = world.random.choice(LIMITS)
    admin.host.limits.put(world.namespace, Scope(resource=RESOURCE), limits)
    world.limits[ENTITY] = limits

    def ask(client: Client) -> None:
        while client.done < REQUESTS:
            client.done += 1
            client.wait(1 + world.random_below(world.random.choice(WAITS_MS)))
            client.acquire(ENTITY, {name: world.random_below(1 + limit.burst // 2) for name, limit in limits.items()})

    for number in range(CLIENTS):
        world.add_client(f"client-{number}", ask)
    if world.random.random() < 0.4:
        world.add_client("resharding", reshard)
    world.add_client("ttl", sweep)


def reshard(client: Client) -> None:
    """A split bucket does not expire: its shards would do so one by one."""
    world, random = client.world, client.random
    while client.done < RESHARDINGS:
        client.done += 1
        client.wait(world.random_below(random.choice(WAITS_MS)))
        merges = random.random() < 0.3

        def once(*, merges: bool = merges) -> Outcome:
            item = client.host.store.get(keys.bucket(world.namespace, ENTITY, RESOURCE, 0), consistent=True)
            if item is not None:
                sharding = client.host.buckets.sharding
                (sharding.merge if merges else sharding.split)(decode_bucket(item))
            return Outcome.DONE

        client.attempt("reshard", once)


def sweep(client: Client) -> None:
    """Not a client of the product: what DynamoDB does by itself."""
    table, random = client.world.table, client.random
    while client.done < SWEEPS:
        client.done += 1
        client.wait(1 + client.world.random_below(SWEEP_MOST_MS))
        for key in table.expired_keys():
            if random.random() < 0.5:
                table.expire(key)


def only_the_full_expire(world: World) -> None:
    """By the slowest clock, and a lease after the last debit."""
    slowest_ms = min(world.skews_ms)
    for changes in world.changes.values():
        spent_ms = 0
        for change in changes:
            if any(limit.consumed > 0 for limit in change.limits.values()):
                spent_ms = change.time_ms
            if not change.by_ttl:
                continue
            for name, limit in change.limits.items():
                if any(state.level(change.time_ms + slowest_ms) < state.burst for state in limit.before):
                    raise Violated(f"{name} expired before it was full: {change}")
            if change.time_ms - spent_ms < LEASE_MOST_MS - world.longest_request_ms + slowest_ms:
                raise Violated(f"expired {change.time_ms - spent_ms} ms after it was spent from: {change}")


EXPIRY: Final = Scenario(
    name="expiry",
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
        only_the_full_expire,
        everything_passes_again,
    ),
)
