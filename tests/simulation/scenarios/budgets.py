"""Calls under budgets around a midnight, perhaps of a month: held, settled, released, forgotten and swept, while
limits, defaults, parents and zones change.

In `budgets` everybody is orderly, and no hard limit is ever passed. In `overruns` calls take more than their estimate,
are reported late, twice and without a lease: only what the API says passes a limit. In `late-sweeps` one caller is
outlived by sweeps of minutes that are old enough to be passed.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from sluice.core.audit import BY_SYSTEM
from sluice.core.budget import DEFAULTS, SLOTS, Dimension, Enforcement, OwnBudget
from sluice.core.errors import Contended, Unavailable
from sluice.core.limits import Limit, Scope
from sluice.core.orgs import OrgChange, OrgSettings
from sluice.core.timelines import always
from sluice.repository import budget_keys
from sluice.repository.requests import UpdateRequest
from sluice.repository.sweeps import put_cursor
from sluice.services.budget_refresh import INDEXES_MS
from sluice.services.entities import EntityChange
from tests.simulation.budget_calls import Caller, Calls, calls_of
from tests.simulation.budget_fates import (
    counted_as_told,
    cursors_pass_what_is_over,
    events_are_charged,
    everything_held_is_freed,
    hard_limits_hold,
    held_is_what_open_holds_hold,
    holds_are_whole,
    holds_wait_for_reports,
    periods_are_right,
    refreshes_find_nothing,
    spent_is_what_events_took,
)
from tests.simulation.budget_hosts import APPS, ORG, USERS, WORKER, desks_in, found_tenant, org_path
from tests.simulation.invariants import every_item_decodes
from tests.simulation.local_days import day_at, end_ms
from tests.simulation.scenario import SETTLED_MS, Admin, Scenario
from tests.simulation.world import RESOURCE, Client, Outcome, World

CLIENTS: Final = 4
TURNS: Final = 8
CHANGES: Final = 6
SWEEPS: Final = 4
REFRESH_RUNS: Final = 10
SWEEPS_WITHIN_MS: Final = 100
SWEEP_LATE_MS: Final = 12 * 60_000
"""When minutes are old enough to be passed."""
BUCKETS: Final = {"rpm": Limit(30, 60, 30, 1)}
MINUTE_MS: Final = 60_000
ZONES: Final = ("Pacific/Honolulu", "Pacific/Kiritimati", "America/Anchorage", "Asia/Kathmandu", "UTC")
THINK_MS: Final = (200, 4_000, 15_000)
BEFORE_MIDNIGHT_MS: Final = (100, 2_000, 15_000, 60_000)
# Some hours before the last of January is over anywhere.
LATE_JANUARY_MS: Final = 1_801_310_400_000
AMOUNTS: Final = {
    Dimension.COST: (0, 20_000, 150_000, 600_000, 2_000_000),
    Dimension.TOKENS: (500, 4_000, 10_000, 40_000),
    Dimension.EXECUTIONS: (1, 3, 6, 20),
}


def setup(world: World, admin: Admin, *, orderly: bool, clients: int = CLIENTS, late_sweeps: int = 0) -> None:
    random = world.random
    zone, think_ms = random.choice(ZONES), random.choice(THINK_MS)
    desk = found_tenant(world, admin, OrgSettings(zones=always(zone), counter_shards=random.choice((1, 2))))
    admin.host.limits.put(world.namespace, Scope(resource=RESOURCE), BUCKETS)
    calls = world.notes["calls"] = Calls(orderly, (WORKER,) if random.random() < 0.3 else ())
    calls.refreshes = random.random() < 0.3
    if calls.refreshes:
        world.add_client("jobs", partial(_refresh, think_ms=think_ms))
    if random.random() < 0.6:
        desk.money.budgets.put_defaults(world.namespace, _drawn(world, DEFAULTS), author=BY_SYSTEM)
    for entity in (*USERS, WORKER, *APPS, ORG):
        if random.random() < 0.45:
            desk.money.budgets.put(world.namespace, entity, _drawn(world, entity), author=BY_SYSTEM)
    _go_to_midnight(world, zone)
    minute = budget_keys.expiry_minute(world.scheduler.now_ms)
    world.table.put(put_cursor(minute - 1, world.scheduler.now_ms))
    for number in range(clients):
        world.add_client(f"client-{number}", partial(_call, think_ms=think_ms))
    world.add_client("keeper", partial(_change, think_ms=think_ms))
    for number in range(random.choice((1, 2, 2))):
        world.add_client(f"sweep-{number}", _sweep)
    if random.random() < 0.15:
        world.add_client("sweep-late", partial(_sweep, first_ms=SWEEP_LATE_MS))
    for number in range(late_sweeps):
        world.add_client(f"sweep-late-{number}", partial(_sweep, first_ms=SWEEP_LATE_MS))
    world.add_client("ttl", partial(_forget, think_ms=think_ms))


def _go_to_midnight(world: World, zone: str) -> None:
    """To a little before one, in most worlds; often of a month."""
    scheduler, zones = world.scheduler, always(zone)
    drawn = world.random.random()
    if drawn > 0.85:
        return
    if drawn < 0.4:
        scheduler.pause(max(0, LATE_JANUARY_MS - scheduler.now_ms))
        midnight_ms = end_ms(zones, scheduler.now_ms)
        while not day_at(zones, midnight_ms).endswith("01"):
            midnight_ms = end_ms(zones, midnight_ms)
    else:
        midnight_ms = end_ms(zones, scheduler.now_ms)
    before_ms = SETTLED_MS + world.random.choice(BEFORE_MIDNIGHT_MS)
    scheduler.pause(max(0, midnight_ms - before_ms - scheduler.now_ms))


def _drawn(world: World, entity: str) -> OwnBudget:
    """Never hard where somebody reports without a lease below."""
    random, calls = world.random, calls_of(world)
    soft = calls.orderly and calls.leaseless and entity in {DEFAULTS, ORG, WORKER}
    slots = random.sample(SLOTS, random.choice((0, 1, 1, 2, 6)))
    levels = (Enforcement.SOFT, Enforcement.NONE) if soft else (*(Enforcement.HARD,) * 4, Enforcement.SOFT, None)
    return OwnBudget(
        limits={slot: random.choice(AMOUNTS[slot.dimension]) for slot in slots},
        enforcement=random.choice(levels),
        inherit=random.random() < 0.7,
    )


def _call(client: Client, think_ms: int) -> None:
    caller = Caller(client)
    while client.done < TURNS:
        client.done += 1
        client.wait(client.world.random_below(think_ms + 1))
        drawn = client.random.random()
        if drawn < 0.5:
            caller.acquire()
        elif drawn < (0.85 if calls_of(client.world).orderly else 0.7):
            caller.report()
        elif drawn < 0.92:
            caller.release()
        elif waiting := caller.waiting():
            caller.send(waiting[:3])
    while waiting := caller.waiting():
        client.wait(client.world.random_below(think_ms + 1))
        caller.send(waiting[:3])


def _change(client: Client, think_ms: int) -> None:
    """What holds, who stands where, what day it is, and the epochs of ledgers."""
    world, random = client.world, client.random
    while client.done < CHANGES:
        client.done += 1
        client.wait(world.random_below(2 * think_ms + 1))
        money = desks_in(world).of(client).money
        drawn, entity = random.random(), random.choice((*USERS, WORKER, *APPS, ORG))
        work: Callable[[], object]
        if drawn < 0.45:
            own = _drawn(world, entity)
            work = lambda: money.budgets.put(world.namespace, entity, own, author=BY_SYSTEM)  # noqa: E731, B023
        elif drawn < 0.55:
            work = lambda: money.budgets.delete(world.namespace, entity, author=BY_SYSTEM)  # noqa: E731, B023
        elif drawn < 0.7:
            own = _drawn(world, DEFAULTS)
            work = lambda: money.budgets.put_defaults(world.namespace, own, author=BY_SYSTEM)  # noqa: E731, B023
        elif drawn < 0.75:
            work = lambda: money.budgets.delete_defaults(world.namespace, author=BY_SYSTEM)  # noqa: E731, B023
        elif drawn < 0.8 and calls_of(world).refreshes:
            work = lambda: money.budget_refreshes.start(world.namespace, entity)  # noqa: E731, B023
        elif drawn < 0.8:
            work = lambda: client.host.store.update(_next_epoch(world, entity), repeatable=False)  # noqa: E731, B023
        elif drawn < 0.92:
            user, parent = random.choice(list(USERS)), random.choice((*APPS, ORG))
            work = lambda: client.host.entities.put(  # noqa: E731
                world.namespace,
                user,  # noqa: B023
                EntityChange(parent=parent),  # noqa: B023
            )
        else:
            zone = OrgChange(timezone=random.choice(ZONES))
            work = lambda: desks_in(world).of(client).orgs.put(org_path(), zone, author=BY_SYSTEM)  # noqa: E731, B023

        def ask(work: Callable[[], object] = work) -> Outcome:
            work()
            return Outcome.DONE

        client.attempt("change", ask)


def _next_epoch(world: World, entity: str) -> UpdateRequest:
    """What the refresh of a ledger does first."""
    return {
        "Key": {**budget_keys.ledger(world.namespace, entity).attributes},
        "UpdateExpression": "ADD #epoch :one, #v :one",
        "ConditionExpression": "attribute_exists(PK)",
        "ExpressionAttributeNames": {"#epoch": "epoch", "#v": "v"},
        "ExpressionAttributeValues": {":one": 1},
    }


def _sweep(client: Client, first_ms: int = 0) -> None:
    """Each minute, so that two of them are about the same holds."""
    scheduler = client.world.scheduler
    if not client.done:
        client.wait(first_ms)
    while client.done < SWEEPS:
        client.done += 1
        client.wait(MINUTE_MS - scheduler.now_ms % MINUTE_MS + client.world.random_below(SWEEPS_WITHIN_MS))
        run = desks_in(client.world).of(client).money.hold_sweep.run(lambda: client.random.random() < 0.02)
        for failure in run.failures:
            # A fault of the table is nobody's fault; anything else is.
            if not isinstance(failure, Contended | Unavailable):
                raise failure


def _refresh(client: Client, think_ms: int) -> None:
    """Of somebody or of all, and whatever else was asked for, in several runs beside the calls."""
    world = client.world
    while client.done < REFRESH_RUNS:
        client.done += 1
        # In between it rests until the indexes have caught up.
        client.wait(world.random_below(client.random.choice((think_ms + 1, INDEXES_MS, 2 * INDEXES_MS))))
        if client.done == 1:
            entity = client.random.choice((None, None, *USERS, *APPS, ORG))
            client.attempt(f"refresh {entity}", partial(_start_refresh, client, entity))
        work = desks_in(client.world).of(client).money.work
        try:
            run = client.host.jobs.run_open(work, lambda: client.random.random() < 0.05)
        except (Contended, Unavailable):
            continue
        for failure in run.failures:
            if not isinstance(failure.error, Contended | Unavailable):
                raise failure.error


def _start_refresh(client: Client, entity: str | None) -> Outcome:
    desks_in(client.world).of(client).money.budget_refreshes.start(client.world.namespace, entity)
    return Outcome.DONE


def _forget(client: Client, think_ms: int) -> None:
    """What DynamoDB does with whatever has a `ttl` that is over: at any time after that."""
    table = client.world.table
    while client.done < TURNS:
        client.done += 1
        client.wait(client.world.random_below(3 * think_ms + 1))
        for key in table.expired_keys():
            table.expire(key)


HOLDS: Final = (
    everything_held_is_freed,
    refreshes_find_nothing,
    held_is_what_open_holds_hold,
    spent_is_what_events_took,
    hard_limits_hold,
    periods_are_right,
    events_are_charged,
    holds_are_whole,
    holds_wait_for_reports,
    counted_as_told,
    cursors_pass_what_is_over,
    every_item_decodes,
)

BUDGETS: Final = Scenario("budgets", partial(setup, orderly=True), HOLDS)
OVERRUNS: Final = Scenario("overruns", partial(setup, orderly=False), HOLDS)
LATE_SWEEPS: Final = Scenario("late-sweeps", partial(setup, orderly=True, clients=1, late_sweeps=2), HOLDS)
