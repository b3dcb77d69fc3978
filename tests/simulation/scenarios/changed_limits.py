"""Limits that an operator changes while everybody asks."""

from contextlib import suppress
from typing import Final

from sluice.core.errors import Contended, NotFound, Unavailable
from sluice.core.limits import Limit, LimitsByName, Scope
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
from tests.simulation.limit_changes import changes_act_within_a_minute, levels_survive_a_rebase
from tests.simulation.reshaping import rebases_go_by_what_holds
from tests.simulation.scenario import Admin, Scenario
from tests.simulation.world import RESOURCE, Client, Outcome, World

ENTITY: Final = "user-1"
CLIENTS: Final = 6
REQUESTS: Final = 7
CHANGES: Final = 3
OF_RESOURCE: Final = Scope(resource=RESOURCE)
OF_ENTITY: Final = Scope(ENTITY, RESOURCE)

# Requests name `rpm` only: whether a removed limit is known is another question.
VARIANTS: Final[tuple[LimitsByName, ...]] = (
    {"rpm": Limit(30, 30, 30, 10)},
    {"rpm": Limit(30, 60, 30, 10)},
    {"rpm": Limit(12, 12, 60, 10)},
    {"rpm": Limit(20, 25, 1, 60), "tpm": Limit(1000, 1000, 1000, 60)},
    {"rpm": Limit(40, 40, 400, 10), "tpm": Limit(500, 900, 500, 1)},
)
# The largest burst and the highest rate of all of them.
AT_MOST: Final = {"rpm": Limit(60, 60, 400, 10)}
AMOUNT_MOST: Final = 12
GIVEN_BACK: Final = 0.3


class WorkFailed(Exception):
    """Of the caller, not of the product."""


def setup(world: World, admin: Admin) -> None:
    admin.host.limits.put(world.namespace, OF_RESOURCE, world.random.choice(VARIANTS))
    world.limits[ENTITY] = AT_MOST

    # All at once, or with time for a cache to end in between.
    waits_ms, world.notes["change_ms"] = world.random.choice(
        (((100, 3_000, 40_000), 40_000), ((100, 100, 3_000), 1_500))
    )

    def ask(client: Client) -> None:
        while client.done < REQUESTS:
            client.done += 1
            client.wait(world.random_below(world.random.choice(waits_ms)))
            amount = world.random_below(1 + AMOUNT_MOST)
            if world.random.random() < GIVEN_BACK:
                _take_and_give_back(client, amount)
            else:
                client.acquire(ENTITY, {"rpm": amount})

    for number in range(CLIENTS):
        world.add_client(f"client-{number}", ask)
    world.add_client("operator", change)


def _take_and_give_back(client: Client, amount: int) -> None:
    """So that balances rise as well while they are moved."""
    world = client.world

    def ask() -> Outcome:
        admission = client.host.acquire.acquire(AcquireRequest(world.namespace, ENTITY, RESOURCE, {"rpm": amount}))
        with suppress(WorkFailed), client.host.leases.hold(admission):
            client.wait(world.random_below(world.random.choice((30, 300, 3_000))))
            raise WorkFailed
        return Outcome.DONE

    client.attempt(ENTITY, ask, {"rpm": amount})


def change(client: Client) -> None:
    world, random = client.world, client.random
    while client.done < CHANGES:
        client.done += 1
        client.wait(world.random_below(world.notes["change_ms"]))
        limits = client.host.limits
        scope = random.choice((OF_RESOURCE, OF_RESOURCE, OF_ENTITY))
        try:
            if scope is OF_ENTITY and random.random() < 0.4:
                limits.delete(world.namespace, scope)
            else:
                limits.put(world.namespace, scope, random.choice(VARIANTS))
        except (Contended, NotFound, Unavailable):
            # What came of it is in the stream.
            continue


CHANGED_LIMITS: Final = Scenario(
    name="changed-limits",
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
        levels_survive_a_rebase,
        rebases_go_by_what_holds,
        changes_act_within_a_minute,
        everything_passes_again,
    ),
)
