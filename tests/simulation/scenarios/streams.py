"""A bucket that is asked, split and merged for hours, while aggregators count its stream and carry its splits.

Each item's records come in order, late, and at least once: a batch is cut where it failed, or comes again because
nobody learned how far the aggregator came. A third one reads stretches again that were counted, beside the others.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from zlib import crc32

from sluice.core.limits import Limit, Scope
from sluice.repository.namespaces import Namespace, NamespaceState, create_writes
from sluice.services.chains import AcquireRequest
from sluice.services.counting import Counting
from sluice.services.effects import Effects
from sluice.services.entities import EntityChange
from sluice.services.growth import Growth
from tests.simulation.invariants import (
    buckets_begin_full,
    charged_exactly,
    every_item_decodes,
    levels_stay_above_zero,
    nothing_is_minted,
    shards_are_whole,
)
from tests.simulation.reshaping import resharding_loses_nothing, splits_leave_no_debt
from tests.simulation.scenario import Admin, Scenario, Violated
from tests.simulation.scenarios.shards import ENTITY, OF_ORG, ORG, reshard
from tests.simulation.stream import StreamRecord
from tests.simulation.world import RESOURCE, Client, Host, World

LIMITS: Final = (
    {"rpm": Limit(16, 16, 16, 60)},
    {"rpm": Limit(30, 30, 30, 1), "total_events": Limit(1000, 1700, 1000, 10)},
)
CLIENTS: Final = 4
REQUESTS: Final = 6
THINK_MS: Final = (200, 20_000, 1_800_000, 20_000_000)
LANES: Final = 2
TURNS: Final = 25
LAG_MOST_MS: Final = 5_000
BATCH_MOST: Final = 12
PEACEFUL_ROUNDS: Final = 500
LENGTH_MS: Final = {"hour": 3_600_000, "day": 86_400_000}

Sums = dict[tuple[str, str, int], Counter[str]]
"""By entity, window and its start."""


@dataclass
class Delivery:
    """How far each lane of the stream was counted, by the place in all of it. `done`: what need not come again."""

    lanes: list[int] = field(default_factory=lambda: [0] * LANES)
    done: list[StreamRecord] = field(default_factory=list)
    aggregators: dict[int, tuple[Host, Counting, Growth]] = field(default_factory=dict)
    """By the identity of the host, which is kept: another must not get it."""


def setup(world: World, admin: Admin) -> None:
    limits = world.random.choice(LIMITS)
    now_ms = world.scheduler.now_ms
    tenant = Namespace("acme", world.namespace, NamespaceState.ACTIVE, None, now_ms, now_ms)
    admin.host.store.transact(create_writes(tenant), world.new_token())
    admin.host.limits.put(world.namespace, Scope(resource=RESOURCE), limits)
    world.limits[ENTITY] = limits
    if world.random.random() < 0.5:
        _put_below_org(world, admin)
    world.notes["delivery"] = Delivery()
    admin.host.acquire.acquire(AcquireRequest(world.namespace, ENTITY, RESOURCE, dict.fromkeys(limits, 1)))
    think_ms = world.random.choice(THINK_MS)

    def ask(client: Client) -> None:
        while client.done < REQUESTS:
            client.done += 1
            client.wait(world.random_below(think_ms))
            share = world.random.choice((8, 3, 1))
            consume = {name: world.random_below(1 + limit.burst // share) for name, limit in limits.items()}
            client.acquire(ENTITY, consume)

    for number in range(CLIENTS):
        world.add_client(f"client-{number}", ask)
    world.add_client("resharding", reshard)
    for lane in range(LANES):
        world.add_client(f"lane-{lane}", partial(aggregate, lane=lane, think_ms=think_ms))
    world.add_client("again", partial(read_again, think_ms=think_ms))


def _put_below_org(world: World, admin: Admin) -> None:
    """Which refuses much of it, so that it is given back."""
    admin.host.limits.put(world.namespace, Scope(ORG, RESOURCE), OF_ORG)
    admin.host.entities.put(world.namespace, ORG, EntityChange())
    admin.host.entities.put(world.namespace, ENTITY, EntityChange(parent=ORG))
    world.limits[ORG] = OF_ORG
    world.demand_of = lambda request: {
        entity: {name: amount for name, amount in request.consume.items() if name in world.limits[entity]}
        for entity in (ENTITY, ORG)
    }


def aggregate(client: Client, lane: int, think_ms: int) -> None:
    """As the function on the stream: one batch after the other, each until it is counted."""
    world, random = client.world, client.random
    while client.done < TURNS:
        client.done += 1
        client.wait(world.random_below(LAG_MOST_MS + think_ms // 4))
        _deliver_next(world, client.host, lane, random.randint(1, BATCH_MOST), random.choice((0, 0, 0, 1, 5)))


def read_again(client: Client, think_ms: int) -> None:
    """Whatever was counted, once more: as a redrive does."""
    world = client.world
    while client.done < TURNS:
        client.done += 1
        client.wait(world.random_below(LAG_MOST_MS + think_ms // 4))
        done = _delivery(world).done
        if done:
            first = world.random_below(len(done))
            _count(world, client.host, done[first : first + 1 + world.random_below(BATCH_MOST)])


def _deliver_next(world: World, host: Host, lane: int, size: int, overlap: int = 0) -> bool:
    """Whether there was anything. `overlap`: so many of what was done come again before the rest."""
    delivery = _delivery(world)
    begin = delivery.lanes[lane]
    stream = world.table.stream
    of_lane = [at for at in range(begin, len(stream)) if _lane(stream[at]) == lane][:size]
    if not of_lane:
        return False
    done = _count(world, host, [stream[at] for at in of_lane])
    delivery.done += [stream[at] for at in of_lane[:done]]
    kept = max(0, done - overlap)
    delivery.lanes[lane] = of_lane[kept] if kept < len(of_lane) else of_lane[-1] + 1
    return True


def _count(world: World, host: Host, records: list[StreamRecord]) -> int:
    """How many are done. The next batch begins with the first that is not."""
    counting, growth = _aggregator(world, host)
    counted = counting.count([record.as_event() for record in records])
    unexpected = growth.grow(counted.observations)
    if unexpected:
        raise unexpected[0]
    first = counted.first_uncounted
    return len(records) if first is None else first


def _aggregator(world: World, host: Host) -> tuple[Counting, Growth]:
    """Of this process: a crash takes its memory along."""
    found = _delivery(world).aggregators
    if id(host) not in found:
        effects = Effects(world.scheduler.clock_ms, world.random_below, world.new_token, host.meter)
        found[id(host)] = (
            host,
            Counting(host.store, host.namespaces, effects),
            Growth(host.store, host.buckets.writer, host.buckets.sharding, host.namespaces, effects),
        )
    _, counting, growth = found[id(host)]
    return counting, growth


def _delivery(world: World) -> Delivery:
    delivery: Delivery = world.notes["delivery"]
    return delivery


def _lane(record: StreamRecord) -> int:
    return crc32(record.key.pk.encode()) % LANES


def the_stream_runs_dry(world: World) -> None:
    """Once nobody asks any more and nothing fails, the aggregators come to an end: what they write does not feed them.

    Changes the world, and goes before whatever looks at all changes.
    """

    def drain(host: Host) -> None:
        for _ in range(PEACEFUL_ROUNDS):
            if not any(_deliver_next(world, host, lane, BATCH_MOST) for lane in range(LANES)):
                return
        raise Violated(f"records are left after {PEACEFUL_ROUNDS} rounds in peace")

    world.afterwards(drain)


def snapshots_equal_the_consumption(world: World) -> None:
    """By what each write changed, which is told without the product."""
    right: Sums = defaultdict(Counter)
    for changes in world.changes.values():
        for change in changes:
            for window, length_ms in LENGTH_MS.items():
                start_ms = change.time_ms // length_ms * length_ms
                for name, limit in change.limits.items():
                    right[change.entity, window, start_ms][name] += limit.consumed
    counted: Sums = defaultdict(Counter)
    for item in world.table.items():
        if item.get("kind") == "snapshot":
            content: Any = item
            where = (content["entity_id"], content["window"], content["window_start"])
            counted[where].update({name[2:]: content[name] for name in content if name.startswith("c_")})
    for where in right.keys() | counted.keys():
        if _without_zeros(right[where]) != _without_zeros(counted[where]):
            raise Violated(f"{where}: counted {dict(counted[where])}, consumed were {dict(right[where])}")


def _without_zeros(sums: Counter[str]) -> dict[str, int]:
    return {name: milli for name, milli in sums.items() if milli}


STREAMS: Final = Scenario(
    name="streams",
    setup=setup,
    holds=(
        the_stream_runs_dry,
        snapshots_equal_the_consumption,
        charged_exactly,
        buckets_begin_full,
        nothing_is_minted,
        shards_are_whole,
        every_item_decodes,
        levels_stay_above_zero,
        splits_leave_no_debt,
        resharding_loses_nothing,
    ),
)
