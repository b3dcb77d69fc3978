"""Ids made of the signs that separate the parts of a key: each bucket, limit and answer is still its own.

The product's edge refuses such ids. Below it nothing relies on that.
"""

from typing import Final

from sluice.core.limits import Limit, Scope
from sluice.repository.idempotency import IdempotencyKey
from sluice.services.chains import AcquireRequest
from tests.simulation.invariants import (
    bursts_are_kept,
    charged_exactly,
    every_item_decodes,
    levels_stay_above_zero,
    nothing_is_lost,
    nothing_is_minted,
    shards_are_whole,
    within_the_rate,
)
from tests.simulation.scenario import Admin, Scenario, Violated
from tests.simulation.world import RESOURCE, Client, Outcome, World

# Of each two, entity and resource together read the same.
PAIRS: Final = (
    ("a", f"b#{RESOURCE}"),
    ("a#b", RESOURCE),
    ("a!b", RESOURCE),
    ("a%23b", RESOURCE),
    ("a/b", RESOURCE),
)
LIMITS: Final = {"rpm": Limit(10, 12, 10, 1)}
CLIENTS: Final = 4
REQUESTS: Final = 8


def setup(world: World, admin: Admin) -> None:
    for resource in {resource: None for _, resource in PAIRS}:
        admin.host.limits.put(world.namespace, Scope(resource=resource), LIMITS)
    world.limits |= {entity: LIMITS for entity, _ in PAIRS}
    world.notes["answers"] = {}
    think_ms = world.random.choice((0, 100, 1_000))

    def ask(client: Client) -> None:
        while client.done < REQUESTS:
            client.done += 1
            client.wait(world.random_below(think_ms + 1))
            entity, resource = world.random.choice(PAIRS)
            consume = {"rpm": 1 + world.random_below(3)}
            if world.random.random() < 0.7:
                client.acquire(entity, consume, resource=resource)
            else:
                _ask_under_key(client, entity, resource, consume)

    for number in range(CLIENTS):
        world.add_client(f"client-{number}", ask)


def _ask_under_key(client: Client, entity: str, resource: str, consume: dict[str, int]) -> None:
    """Under a key of its own: the caller and the key, put together, read the same for two callers."""
    world = client.world
    unique = f"{client.name} {client.done}"
    key = IdempotencyKey(world.namespace, entity, unique if "#" in entity else f"b#{unique}", entity)

    def under_key() -> Outcome:
        asked = AcquireRequest(world.namespace, entity, resource, consume)
        answered = client.host.idempotent_acquire.acquire(asked, key, lambda _admission: entity)
        world.notes["answers"][world.scheduler.cause()] = answered.text
        return Outcome.ADMITTED

    client.attempt(entity, under_key, consume)


def answers_are_ones_own(world: World) -> None:
    for request in world.history:
        answer = world.notes["answers"].get(request.number, request.entity)
        if answer != request.entity:
            raise Violated(f"{request} was answered what {answer} had asked")


def buckets_are_apart(world: World) -> None:
    """One bucket for each entity and resource that was asked for."""
    for changes in world.changes.values():
        owners = {
            (item["entity_id"], item["resource"])
            for change in changes
            for record in change.records
            if (item := record.new or record.old) is not None
        }
        if len(owners) > 1:
            raise Violated(f"one bucket of {sorted(map(str, owners))}")


NAMES: Final = Scenario(
    name="names",
    setup=setup,
    holds=(
        charged_exactly,
        answers_are_ones_own,
        buckets_are_apart,
        nothing_is_minted,
        bursts_are_kept,
        shards_are_whole,
        every_item_decodes,
        nothing_is_lost,
        levels_stay_above_zero,
        within_the_rate,
    ),
)
