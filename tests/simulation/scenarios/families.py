"""Operators who move, make and remove entities at the same time, with an index that lags."""

from typing import Final

from sluice.repository.wire import Item
from sluice.services.entities import EntityChange
from tests.simulation.scenario import Admin, Scenario, Violated
from tests.simulation.stream import StreamRecord
from tests.simulation.world import Client, Outcome, World

ENTITIES: Final = tuple(f"e{number}" for number in range(6))
OPERATORS: Final = 5
CHANGES: Final = 5
THINK_MS: Final = (0, 50, 3_000)


def setup(world: World, admin: Admin) -> None:
    for entity in ENTITIES[:4]:
        admin.host.entities.put(world.namespace, entity, EntityChange())
    think_ms = world.random.choice(THINK_MS)

    def operate(client: Client) -> None:
        while client.done < CHANGES:
            client.done += 1
            client.wait(world.random_below(think_ms + 1))
            _change(client)

    for number in range(OPERATORS):
        world.add_client(f"operator-{number}", operate)


def _change(client: Client) -> None:
    world, random = client.world, client.random
    entity, parent = random.sample(ENTITIES, 2)
    drawn = random.random()

    def put() -> Outcome:
        if drawn < 0.7:
            change = EntityChange(parent=parent if drawn < 0.55 else None)
        else:
            change = EntityChange(name=f"by {client.name}")
        client.host.entities.put(world.namespace, entity, change)
        return Outcome.DONE

    def delete() -> Outcome:
        client.host.entities.delete(world.namespace, entity)
        return Outcome.DONE

    client.attempt(f"{'put' if drawn < 0.85 else 'delete'} {entity}", put if drawn < 0.85 else delete)


def nobody_stands_above_himself(world: World) -> None:
    """At no moment: after every change all chains end."""
    parents: dict[str, str | None] = {}
    for record in _of_kind(world, "entity"):
        item = record.new or record.old
        assert item is not None
        entity = str(item["entity_id"])
        parents.pop(entity, None)
        if record.new is not None:
            parents[entity] = _parent(record.new)
        above, seen = entity, {entity}
        while (parent := parents.get(above)) is not None:
            if parent in seen:
                raise Violated(f"{sorted(seen)} stand above each other after {record}")
            seen.add(parent)
            above = parent


def every_change_is_told_once(world: World) -> None:
    """A change and its audit event are one write, and nothing changes without one."""
    changed = {record.write for record in _of_kind(world, "entity")}
    told = {record.write for record in _of_kind(world, "audit")}
    if not changed <= told:
        raise Violated(f"writes {sorted(changed - told)} are told by nobody")


def puts_happen_once(world: World) -> None:
    """Who was told that it is done has done it once; who was told otherwise has not; in doubt at most once."""
    made: dict[object, int] = {}
    for record in _of_kind(world, "entity"):
        made[record.cause] = made.get(record.cause, 0) + 1
    for request in world.history:
        if not request.entity.startswith("put"):
            continue
        count = made.get(request.number, 0)
        least = int(request.outcome is Outcome.DONE)
        most = int(request.outcome is Outcome.DONE or request.may_be_charged)
        if not least <= count <= most:
            raise Violated(f"{request} was made {count} times")


def _of_kind(world: World, kind: str) -> list[StreamRecord]:
    found = []
    for record in world.table.stream:
        item = record.new or record.old
        if item is not None and item.get("kind") == kind:
            found.append(record)
    return found


def _parent(item: Item) -> str | None:
    parent = item.get("parent_id")
    return None if parent is None else str(parent)


FAMILIES: Final = Scenario(
    name="families",
    setup=setup,
    holds=(nobody_stands_above_himself, every_change_is_told_once, puts_happen_once),
)
