"""Orgs and apps are made by several at once, changed, rotated, removed and purged, while their tokens are used.

A name that was purged is given away again. `quiet` is an org that nobody touches.
"""

from typing import Final

from sluice.services.purge import UNNOTICED_MS
from tests.simulation.identity_deeds import Doer, journal_of, set_up
from tests.simulation.identity_fates import (
    clients_have_owners,
    end_in_peace,
    refreshed_once,
    rotated_one_by_one,
    secrets_last_as_promised,
    tokens_end_in_time,
)
from tests.simulation.identity_hosts import desks_of
from tests.simulation.identity_purges import (
    jobs_touch_only_what_is_purged,
    made_once,
    nothing_of_the_purged_is_left,
    quiet_org_is_as_it_was,
)
from tests.simulation.invariants import every_item_decodes
from tests.simulation.job_runs import jobs_come_to_their_end
from tests.simulation.scenario import Admin, Scenario
from tests.simulation.world import Client, Outcome, World

ORGS: Final = ("acme", "acme-2")
APPS: Final = ("app-1", "app-2")
QUIET: Final = "quiet"
QUIET_SECRETS: Final = 2
CLIENTS: Final = 5
REQUESTS: Final = 12
RUNNERS: Final = 2
RUNS: Final = 8
MINUTE_MS: Final = 60_000
THINK_MS: Final = (0, 500, 10_000, 30_000)


def setup(world: World, admin: Admin) -> None:
    identity = desks_of(world).at(admin.host, world.scheduler.clock_ms)
    set_up(world, identity, QUIET, APPS[0])
    if world.random.random() < 0.5:
        set_up(world, identity, ORGS[0], *APPS)
    world.notes |= {"failures": [], "quiet": QUIET, "before": world.table.items()}
    think_ms = world.random.choice(THINK_MS)

    def act(client: Client) -> None:
        doer = Doer(client)
        while client.done < REQUESTS:
            client.done += 1
            client.wait(world.random_below(think_ms + 1))
            _act(client, doer)

    for number in range(CLIENTS):
        world.add_client(f"client-{number}", act)
    for number in range(RUNNERS):
        world.add_client(f"runner-{number}", _run_jobs)
    world.add_client("purger", _purge)
    world.add_client("latecomer", _come_late)


def _act(client: Client, doer: Doer) -> None:
    random, journal = client.random, journal_of(client.world)
    org, app = random.choice(ORGS), random.choice(APPS)
    drawn = random.random()
    if drawn < 0.12:
        doer.put_org(org, f"by {client.name} {random.choice((1, 2))}")
    elif drawn < 0.26:
        doer.put_app(org, app, f"by {client.name} {random.choice((1, 2))}")
    elif drawn < 0.34:
        doer.delete_app(org, app)
    elif drawn < 0.40:
        doer.rotate(org, random.choice((None, app)), random.choice((0, 24)))
    elif drawn < 0.60 or not journal.held:
        # The first ones are those of the org that nobody touches.
        secrets = journal.secrets[QUIET_SECRETS:]
        if not secrets:
            doer.put_org(org, "first")
            return
        doer.log_in(random.choice(secrets[-4:] if random.random() < 0.7 else secrets))
    else:
        tokens = random.choice(journal.held[-5:] if random.random() < 0.6 else journal.held)
        if drawn < 0.75:
            doer.use(tokens, closed=random.random() < 0.8)
        elif drawn < 0.94:
            doer.refresh(tokens)
        else:
            doer.revoke(journal.fellow(tokens, random), tokens, whole_family=random.random() < 0.5)


def _run_jobs(client: Client) -> None:
    doer = Doer(client)
    while client.done < RUNS:
        client.done += 1
        client.wait(client.world.random_below(client.random.choice((2_000, MINUTE_MS, MINUTE_MS))))
        doer.run_jobs()


def _purge(client: Client) -> None:
    """Until it is certain that it was started, or that there is nothing to purge."""
    doer = Doer(client)
    client.wait(client.world.random_below(client.random.choice((10, 2_000, MINUTE_MS))))
    while doer.purge(ORGS[0]).outcome not in {Outcome.DONE, Outcome.INVALID}:
        client.wait(500)


def _come_late(client: Client) -> None:
    """Shows whatever there is about when a purge waits no longer for anybody, and a little after."""
    doer, journal = Doer(client), journal_of(client.world)
    if client.done == 0:
        client.done = 1
        client.wait(UNNOTICED_MS - client.world.random_below(10_000))
    while client.done <= REQUESTS:
        client.done += 1
        client.wait(client.world.random_below(5_000))
        secrets = journal.secrets[QUIET_SECRETS:]
        if journal.held and (not secrets or client.random.random() < 0.5):
            doer.refresh(client.random.choice(journal.held))
        elif secrets:
            doer.log_in(client.random.choice(secrets))


PROVISIONING: Final = Scenario(
    name="provisioning",
    setup=setup,
    holds=(
        clients_have_owners,
        made_once,
        rotated_one_by_one,
        refreshed_once,
        secrets_last_as_promised,
        tokens_end_in_time,
        end_in_peace,
        jobs_come_to_their_end,
        nothing_of_the_purged_is_left,
        jobs_touch_only_what_is_purged,
        quiet_org_is_as_it_was,
        every_item_decodes,
    ),
)
