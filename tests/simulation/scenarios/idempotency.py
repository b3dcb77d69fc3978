"""Acquires under an Idempotency-Key, sent again and again and by several clients at once."""

from dataclasses import dataclass, field
from typing import Final

from sluice.core.admission import Admission
from sluice.core.limits import Limit, Scope
from sluice.repository.idempotency import IdempotencyKey
from sluice.services.chains import AcquireRequest
from sluice.services.entities import EntityChange
from tests.simulation.invariants import (
    buckets_begin_full,
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

ENTITY: Final = "user-1"
ORG: Final = "org"
LIMITS: Final = {"rpm": Limit(10, 15, 10, 1)}
OF_ORG: Final = {"rpm": Limit(30, 30, 30, 2)}
CLIENTS: Final = 6
REQUESTS: Final = 7
KEYS: Final = 12


@dataclass
class Desk:
    """Each key with what it asks for, which requests used it, and what they were answered."""

    amounts: list[int]
    requests: dict[object, int] = field(default_factory=dict)
    answers: dict[int, set[str]] = field(default_factory=dict)


def setup(world: World, admin: Admin) -> None:
    admin.host.limits.put(world.namespace, Scope(resource=RESOURCE), LIMITS)
    world.limits |= {ENTITY: LIMITS, ORG: OF_ORG}
    if world.random.random() < 0.5:
        admin.host.limits.put(world.namespace, Scope(ORG, RESOURCE), OF_ORG)
        admin.host.entities.put(world.namespace, ORG, EntityChange())
        admin.host.entities.put(world.namespace, ENTITY, EntityChange(parent=ORG))
    desk = Desk([1 + world.random_below(6) for _ in range(KEYS)])
    world.notes["desk"] = desk
    think_ms = world.random.choice((0, 50, 1_500))

    def ask(client: Client) -> None:
        while client.done < REQUESTS:
            client.done += 1
            client.wait(world.random_below(think_ms + 1))
            if world.random.random() < 0.2:
                # Without a key, so that images of buckets are overtaken.
                client.acquire(ENTITY, {"rpm": world.random_below(4)})
            else:
                _ask_under_key(client, desk, world.random_below(KEYS))

    for number in range(CLIENTS):
        world.add_client(f"client-{number}", ask)


def _ask_under_key(client: Client, desk: Desk, number: int) -> None:
    world = client.world
    consume = {"rpm": desk.amounts[number]}
    key = IdempotencyKey(world.namespace, ENTITY, f"key-{number}", "body")

    def ask() -> Outcome:
        cause = world.scheduler.cause()
        desk.requests[cause] = number

        def render(admission: Admission) -> str:
            return f"{cause}: {admission.consumed}"

        asked = AcquireRequest(world.namespace, ENTITY, RESOURCE, consume)
        answered = client.host.idempotent_acquire.acquire(asked, key, render)
        desk.answers.setdefault(number, set()).add(answered.text)
        return Outcome.ADMITTED

    client.attempt(ENTITY, ask, consume)


def keys_take_once(world: World) -> None:
    """All requests of a key together are charged once if any was admitted, and all admitted got one answer."""
    desk: Desk = world.notes["desk"]
    charged: dict[tuple[int, str], int] = {}
    for changes in world.changes.values():
        for change in changes:
            number = desk.requests.get(change.cause)
            if number is not None:
                place = (number, change.entity)
                charged[place] = charged.get(place, 0) + change.limits["rpm"].consumed
    entities = {changes[0].entity for changes in world.changes.values()}
    for number, amount in enumerate(desk.amounts):
        answers = desk.answers.get(number, set())
        if len(answers) > 1:
            raise Violated(f"key-{number} was answered {answers}")
        for entity in entities:
            found = charged.get((number, entity), 0)
            allowed = {amount * 1000} if answers else {0, amount * 1000}
            if found not in allowed:
                raise Violated(f"key-{number} took {found} from {entity}, {sorted(allowed)} would be right")


IDEMPOTENCY: Final = Scenario(
    name="idempotency",
    setup=setup,
    holds=(
        keys_take_once,
        buckets_begin_full,
        nothing_is_minted,
        bursts_are_kept,
        shards_are_whole,
        every_item_decodes,
        within_the_rate,
        nothing_is_lost,
        levels_stay_above_zero,
    ),
)
