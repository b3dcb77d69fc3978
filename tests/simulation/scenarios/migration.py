"""Buckets of old layouts that are moved while everybody asks: by the job, which breaks off, and by the traffic itself.

In some simulations the migration starts under way: whoever has not noticed makes full buckets beside the old items.
"""

from dataclasses import dataclass
from random import Random
from typing import Any, Final

from sluice.core.audit import BY_SYSTEM
from sluice.core.errors import Contended, InUse, Unavailable
from sluice.core.limits import Limit, Scope
from sluice.repository import keys
from sluice.repository.items import decode_bucket
from sluice.repository.versions import CURRENT, decode_version
from tests.integration import old_tables
from tests.integration.old_tables import OldTable
from tests.simulation.changes import is_old
from tests.simulation.invariants import (
    buckets_begin_full,
    bursts_are_kept,
    charged_exactly,
    everything_passes_again,
    levels_stay_above_zero,
    nothing_is_lost,
    nothing_is_minted,
    within_the_rate,
)
from tests.simulation.job_runs import jobs_come_to_their_end, run_jobs
from tests.simulation.scenario import Admin, Scenario, Violated
from tests.simulation.world import RESOURCE, Client, World

LAYOUT_1: Final = "in-1"
LAYOUT_2: Final = "in-2"
LAYOUT_3: Final = ("in-3", "in-3-too")
SPLIT: Final = "in-3-split"
ENTITIES: Final = (LAYOUT_1, LAYOUT_2, *LAYOUT_3, SPLIT)
CLIENTS: Final = 5
REQUESTS: Final = 6
RUNNERS: Final = 2
LIMITS: Final = (
    {"rpm": Limit(12, 12, 12, 60)},
    {"rpm": Limit(30, 40, 30, 10), "tpm": Limit(900, 900, 9, 60)},
)
THINK_MS: Final = (0, 200, 5_000)
LEGACY_NAMESPACE: Final = "before"


@dataclass(frozen=True)
class Before:
    """What was there at a moment. `is_late`: the migration was started when everybody asked already."""

    old: OldTable
    is_late: bool

    def of(self, entity: str, name: str) -> tuple[int, int]:
        """The level and what was consumed, in millitokens."""
        return self.old.worth[entity, RESOURCE, name]


def setup(world: World, admin: Admin) -> None:
    random = world.random
    limits = random.choice(LIMITS)
    scope = random.choice((Scope(resource=RESOURCE), Scope()))
    admin.host.limits.put(world.namespace, scope, limits)
    world.limits |= dict.fromkeys(ENTITIES, limits)
    legacy = random.choice((world.namespace, world.namespace, LEGACY_NAMESPACE, ""))
    old = _old_items(world, limits, f"{legacy}/" if legacy else "")
    before = Before(old, random.random() < 0.3)
    world.notes |= {"before": before, "failures": []}
    for item in old.items:
        world.table.put({"Item": item})
    if not before.is_late:
        admin.host.migrations.start(world.namespace, BY_SYSTEM, dry_run=False, legacy_namespace=legacy)
    think_ms = random.choice(THINK_MS)

    def ask(client: Client) -> None:
        while client.done < REQUESTS:
            client.done += 1
            client.wait(world.random_below(think_ms + 1))
            consume = {name: world.random_below(1 + limit.burst // 4) for name, limit in limits.items()}
            client.acquire(random.choice(ENTITIES), consume)

    def migrate(client: Client) -> None:
        if before.is_late:
            client.wait(world.random_below(2_000))
            _start(client, legacy)
        run_jobs(client)

    for number in range(CLIENTS):
        world.add_client(f"client-{number}", ask)
    for number in range(RUNNERS):
        world.add_client(f"runner-{number}", migrate)


def _old_items(world: World, limits: dict[str, Limit], prefix: str) -> OldTable:
    most = 1000 * max(limit.burst for limit in limits.values())
    old = OldTable(prefix, world.scheduler.now_ms, Random(world.random_below(10**9)), tokens=(-most // 4, most))
    stored = {
        name: old_tables.Limit(
            1000 * limit.capacity, 1000 * limit.burst, 1000 * limit.refill_amount, 1000 * limit.refill_period_seconds
        )
        for name, limit in limits.items()
    }
    old.add_layout_1(LAYOUT_1, RESOURCE, limits=stored, nested=world.random.random() < 0.3)
    old.add_layout_2(LAYOUT_2, RESOURCE, limits=stored)
    for entity in LAYOUT_3:
        old.add_layout_3(entity, RESOURCE, limits=stored)
    # A shard in debt takes nothing from the others, so the sum would say less than what may be taken.
    old.tokens = (0, most)
    old.add_layout_3(SPLIT, RESOURCE, 4, world.random.choice(((), (2,))), limits=stored)
    return old


def _start(client: Client, legacy: str) -> None:
    """Until it is certain that there is one."""
    while True:
        try:
            client.host.migrations.start(client.world.namespace, BY_SYSTEM, dry_run=False, legacy_namespace=legacy)
        except InUse:
            return
        except (Contended, Unavailable):
            client.wait(500)
        else:
            return


def no_more_than_was_there(world: World) -> None:
    """What a bucket had, and what was refilled since, is all that is ever admitted.

    Where a migration starts under way, a full bucket may have been made beside the old items before: one burst more,
    for the entities that this happened to.
    """
    before: Before = world.notes["before"]
    unsure_ms = max(world.skews_ms) - min(world.skews_ms) + world.longest_request_ms
    for changes in world.changes.values():
        entity = changes[0].entity
        for name, limit in world.limits[entity].items():
            had, _ = before.of(entity, name)
            # Each shard rounds its refill by itself.
            beside = before.is_late and any(change.is_created for change in changes)
            had = max(had, 0) + limit.burst * 1000 if beside else had + 4
            period_ms = 1000 * limit.refill_period_seconds
            taken = 0
            for change in changes:
                if change.limits[name].consumed <= 0:
                    continue
                taken += change.limits[name].consumed
                since_ms = change.time_ms - before.old.now_ms + unsure_ms
                if taken * period_ms > had * period_ms + limit.refill_amount * 1000 * since_ms:
                    raise Violated(f"{taken} of {name} of {entity} were taken where {had} were left: {change}")


def moves_keep_the_level(world: World) -> None:
    """By the clock of whoever moved it; a bucket that is made of old items has what these had, limit by limit."""
    before: Before = world.notes["before"]
    if before.is_late:
        return
    for changes in world.changes.values():
        made = [change for change in changes if change.is_moved]
        if len(made) > 1:
            raise Violated(f"moved {len(made)} times: {made}")
        for change in made:
            for name, limit in world.limits[change.entity].items():
                after = change.limits[name].after
                had, _ = before.of(change.entity, name)
                level = sum(min(state.level(change.time_ms), state.burst) for state in after)
                _check_level(world, change.time_ms, level, had, limit)


def _check_level(world: World, time_ms: int, level: int, had: int, limit: Limit) -> None:
    before: Before = world.notes["before"]
    period_ms, amount = 1000 * limit.refill_period_seconds, 1000 * limit.refill_amount
    blur = 8 + amount * (max(map(abs, world.skews_ms)) + world.longest_request_ms) // period_ms
    most = min(had + (time_ms - before.old.now_ms) * amount // period_ms, limit.burst * 1000)
    if level > most + blur:
        raise Violated(f"a bucket was moved at {level} where {most} were left")
    # Shards that were full keep no refill: the whole may have less than one bucket would.
    if level < min(had, limit.burst * 1000) - blur:
        raise Violated(f"a bucket was moved at {level} where there had been {had}")


def counts_are_carried(world: World) -> None:
    before: Before = world.notes["before"]
    counts: dict[tuple[str, str], int] = {}
    for item in world.table.items():
        if item.get("kind") != "bucket":
            continue
        bucket = decode_bucket(item)
        for name, limit in bucket.limits.items():
            place = (bucket.entity, name)
            counts[place] = counts.get(place, 0) + limit.consumed_milli
    for changes in world.changes.values():
        for name in world.limits[changes[0].entity]:
            place = (changes[0].entity, name)
            counts[place] = counts.get(place, 0) - sum(change.limits[name].consumed for change in changes)
    for entity in ENTITIES:
        for name in world.limits[entity]:
            _, consumed = before.of(entity, name)
            if counts.get((entity, name)) != consumed:
                raise Violated(f"{entity} had consumed {consumed} of {name}, carried is {counts.get((entity, name))}")


def nothing_old_is_left(world: World) -> None:
    left: list[Any] = [item for item in world.table.items() if is_old(item)]
    if left:
        raise Violated(f"still in an old layout: {left}")
    version = decode_version(world.table.get(keys.schema_version(world.namespace)))
    if version != CURRENT:
        raise Violated(f"the version is {version}")


MIGRATION: Final = Scenario(
    name="migration",
    setup=setup,
    holds=(
        jobs_come_to_their_end,
        nothing_old_is_left,
        counts_are_carried,
        no_more_than_was_there,
        moves_keep_the_level,
        charged_exactly,
        buckets_begin_full,
        nothing_is_minted,
        bursts_are_kept,
        nothing_is_lost,
        levels_stay_above_zero,
        within_the_rate,
        everything_passes_again,
    ),
)
