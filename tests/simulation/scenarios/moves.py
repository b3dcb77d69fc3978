"""Users who ask while those above them change places."""

from collections.abc import Mapping
from typing import Final

from sluice.core.limits import Limit, Scope
from sluice.services.entities import EntityChange
from tests.simulation.invariants import (
    bursts_are_kept,
    every_item_decodes,
    levels_stay_above_zero,
    nothing_is_lost,
    nothing_is_minted,
    shards_are_whole,
    within_the_rate,
)
from tests.simulation.scenario import Admin, Scenario, Violated
from tests.simulation.world import RESOURCE, Client, Outcome, World

USER: Final = "user"
ABOVE: Final = ("left", "right")
CLIENTS: Final = 4
REQUESTS: Final = 8
SWAPS: Final = 3
LIMITS: Final = {"rpm": Limit(100, 100, 100, 1)}
AMOUNT_MOST: Final = 5


def setup(world: World, admin: Admin) -> None:
    host, namespace = admin.host, world.namespace
    left, right = ABOVE
    for entity in (*ABOVE, USER):
        host.limits.put(namespace, Scope(entity, RESOURCE), LIMITS)
        world.limits[entity] = LIMITS
    host.entities.put(namespace, right, EntityChange())
    host.entities.put(namespace, left, EntityChange(parent=right))
    host.entities.put(namespace, USER, EntityChange(parent=left))
    think_ms = world.random.choice((500, 5_000, 20_000))

    def ask(client: Client) -> None:
        while client.done < REQUESTS:
            client.done += 1
            client.wait(world.random_below(think_ms))
            client.acquire(world.random.choice((USER, *ABOVE)), {"rpm": 1 + world.random_below(AMOUNT_MOST)})

    for number in range(CLIENTS):
        world.add_client(f"client-{number}", ask)
    world.add_client("operator", swap)


def swap(client: Client) -> None:
    """Whoever stands below the other one comes to stand above it."""
    world = client.world
    entities = client.host.entities
    while client.done < SWAPS:
        client.done += 1
        client.wait(world.random_below(30_000))
        upper, lower = client.random.sample(ABOVE, 2)

        def change(upper: str = upper, lower: str = lower) -> Outcome:
            entities.put(world.namespace, upper, EntityChange(parent=None))
            entities.put(world.namespace, lower, EntityChange(parent=upper))
            return Outcome.DONE

        client.attempt("swap", change)


def nobody_is_charged_twice(world: World) -> None:
    """Which chain a request met depends on caches; that each member gives once does not."""
    charged: dict[tuple[object, str], int] = {}
    for changes in world.changes.values():
        for change in changes:
            place = (change.cause, change.entity)
            charged[place] = charged.get(place, 0) + change.limits["rpm"].consumed
    for request in world.history:
        wanted: Mapping[str, int] = request.consume
        for entity in (USER, *ABOVE):
            found = charged.get((request.number, entity), 0)
            most = wanted.get("rpm", 0) * 1000
            if found > most or (found and request.outcome is Outcome.REFUSED and not request.lost_credits):
                raise Violated(f"{request}: {entity} was charged {found}")
            if request.outcome is Outcome.ADMITTED and entity == request.entity and found != most:
                raise Violated(f"{request}: {entity} was charged {found}")


MOVES: Final = Scenario(
    name="moves",
    setup=setup,
    holds=(
        nobody_is_charged_twice,
        nothing_is_minted,
        bursts_are_kept,
        shards_are_whole,
        every_item_decodes,
        within_the_rate,
        nothing_is_lost,
        levels_stay_above_zero,
    ),
)
