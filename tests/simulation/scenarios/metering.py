"""Apps and their org report calls, sent again and again, around a local midnight; others add up what was counted.

Clients keep their reports until they know what became of them, and send each other's again. Meanwhile leases are closed
by others, shards are added, the zone and the scope of the quotas change, prices rise, and of everything that runs
several run at once.
"""

from functools import partial
from typing import Final

from sluice.core.audit import BY_SYSTEM
from sluice.core.limits import Limit, Scope
from sluice.core.orgs import OrgChange, OrgSettings, QuotaScope
from sluice.core.timelines import always
from sluice.repository import money_keys
from sluice.services.chains import AcquireRequest
from tests.simulation.invariants import every_item_decodes
from tests.simulation.local_days import end_ms
from tests.simulation.money_hosts import APPS, LABELS, ORG, USERS, found_org, money_of, org_path
from tests.simulation.paces import MINUTE_MS, pace_of
from tests.simulation.rollups import (
    add_keepers,
    everything_is_rolled_up,
    marks_stay_until_summed,
    run_jobs,
    stream_of,
    whole_runs_leave_nothing_out,
)
from tests.simulation.scenario import Admin, Scenario
from tests.simulation.usage_books import Writer, book_of
from tests.simulation.usage_fates import (
    buckets_know_nothing_of_usage,
    counted_as_told,
    events_are_right,
    every_write_adds_its_events,
    leases_close_once,
    reports_count_once,
    totals_are_sums,
    totals_only_rise,
)
from tests.simulation.world import RESOURCE, Client, Outcome, World

CLIENTS: Final = 4
TURNS: Final = 7
LIMITS: Final = {"rpm": Limit(20, 30, 20, 1)}
TTLS_MS: Final = (1_500, 30_000, 300_000)
ZONES: Final = ("Pacific/Honolulu", "Pacific/Kiritimati", "America/Anchorage", "Asia/Kathmandu", "Africa/Cairo", "UTC")
# The last hours before clocks in Cairo jump over a midnight.
CAIRO_JUMPS_MS: Final = 1_809_036_000_000
SHARDS: Final = (1, 2, 4)
SHARDS_MOST: Final = 32


def setup(world: World, admin: Admin) -> None:
    random = world.random
    zone = random.choice(ZONES)
    book = book_of(world)
    book.shards = random.choice(SHARDS)
    settings = OrgSettings(
        zones=always(zone),
        quota_scopes=always(random.choice(list(QuotaScope))),
        counter_shards=book.shards,
        accept_unpriced=random.random() < 0.7,
    )
    found_org(world, admin, settings)
    admin.host.limits.put(world.namespace, Scope(resource=RESOURCE), LIMITS)
    _go_to_midnight(world, zone)
    if random.random() < 0.6:
        # Nearly all of it on a few counters.
        book.labels, book.reporters = random.sample(book.labels, 1), random.sample(book.reporters, 1)
        book.late_share = 0.08
    for number in range(CLIENTS):
        world.add_client(f"client-{number}", _report)
    world.add_client("keeper", _change_settings)
    add_keepers(world, TURNS)
    stream_of(world).loses = random.random() < 0.15
    if random.random() < 0.3:
        world.add_client("jobs", partial(run_jobs, turns=TURNS))


def _go_to_midnight(world: World, zone: str) -> None:
    """To some minutes before one, in most worlds."""
    scheduler = world.scheduler
    if zone == "Africa/Cairo":
        scheduler.pause(CAIRO_JUMPS_MS - scheduler.now_ms)
    if world.random.random() < 0.8:
        before_ms = world.random.choice((20_000, MINUTE_MS, 3 * MINUTE_MS, 5 * MINUTE_MS))
        scheduler.pause(max(0, end_ms(always(zone), scheduler.now_ms) - before_ms - scheduler.now_ms))


def _report(client: Client) -> None:
    pace, writer = pace_of(client.world), Writer(client)
    while client.done < TURNS:
        client.done += 1
        pace.wait(client)
        drawn = client.random.random()
        if drawn < 0.15:
            _take_lease(client)
        elif drawn < 0.3:
            _change_lease(client)
        elif drawn < 0.55:
            if not writer.report_waiting():
                writer.report_again()
        elif drawn < 0.62:
            writer.report_otherwise()
        else:
            writer.report_new()
    while writer.report_waiting():
        pace.wait(client)


def _take_lease(client: Client) -> None:
    world = client.world
    entity = client.random.choice((ORG, *APPS, *USERS))

    def ask() -> Outcome:
        admission = client.host.acquire.acquire(AcquireRequest(world.namespace, entity, RESOURCE, {"rpm": 1}))
        book_of(world).leases.append(client.host.leases.open(admission, client.random.choice(TTLS_MS)))
        return Outcome.ADMITTED

    client.attempt(entity, ask)


def _change_lease(client: Client) -> None:
    random, book = client.random, book_of(client.world)
    if not book.leases:
        return
    lease, leases = random.choice(book.leases[-6:]), client.host.leases
    drawn, key = random.random(), f"key-{len(client.world.history)}"

    def ask() -> Outcome:
        if drawn < 0.5:
            leases.adjust(lease, {"rpm": 1}, key)
        elif drawn < 0.75:
            leases.settle(lease, {"rpm": 2})
        else:
            leases.release(lease)
        return Outcome.DONE

    client.attempt(f"lease {lease.lease_id}", ask)


def _change_settings(client: Client) -> None:
    world, random = client.world, client.random
    while client.done < TURNS:
        client.done += 1
        if random.random() < 0.3:
            _raise_price(world)
        pace_of(world).wait(client)
        drawn = random.random()
        if drawn < 0.5:
            change = OrgChange(counter_shards=_more_shards(world))
        elif drawn < 0.75:
            change = OrgChange(timezone=random.choice(ZONES))
        else:
            change = OrgChange(quota_scope=random.choice(list(QuotaScope)))

        def ask(change: OrgChange = change) -> Outcome:
            money_of(world).of(client).orgs.put(org_path(), change, author=BY_SYSTEM)
            return Outcome.DONE

        client.attempt("settings", ask)


def _more_shards(world: World) -> int:
    """Twice as many, so that every other call goes to one that is new."""
    book = book_of(world)
    book.shards = min(2 * book.shards, SHARDS_MOST)
    return book.shards


def _raise_price(world: World) -> None:
    """Of all labels, in no time."""
    factors = book_of(world).factors
    factors.append(factors[-1] + 1)
    for label, price in LABELS.items():
        item = world.table.get(money_keys.label(world.namespace, label))
        assert item is not None
        raised = {"input_price": price * factors[-1], "output_price": 5 * price * factors[-1]}
        world.table.put({"Item": {**item, **raised}})


METERING: Final = Scenario(
    name="metering",
    setup=setup,
    holds=(
        everything_is_rolled_up,
        marks_stay_until_summed,
        whole_runs_leave_nothing_out,
        counted_as_told,
        reports_count_once,
        events_are_right,
        every_write_adds_its_events,
        totals_are_sums,
        totals_only_rise,
        buckets_know_nothing_of_usage,
        leases_close_once,
        every_item_decodes,
    ),
)
