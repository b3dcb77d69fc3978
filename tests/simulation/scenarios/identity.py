"""Logins, refreshes, revocations and rotations of an org and its app, by several hosts that share what they were told.

So a refresh token is shown twice as a matter of course, secrets are rotated by two at once, and every host has an
opinion of its own about every token.
"""

from typing import Final

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
from tests.simulation.invariants import every_item_decodes
from tests.simulation.scenario import Admin, Scenario
from tests.simulation.world import Client, World

ORG: Final = "acme"
APP: Final = "app-1"
CLIENTS: Final = 5
REQUESTS: Final = 14
HOUR_MS: Final = 3_600_000
# The first ones race; with the others caches run out, then tokens, then secrets.
THINK_MS: Final = (0, 200, 15_000, 45_000, HOUR_MS)
GRACES_HOURS: Final = (0, 0, 1, 2, 24)


def setup(world: World, admin: Admin) -> None:
    desks = desks_of(world)
    set_up(world, desks.at(admin.host, world.scheduler.clock_ms), ORG, APP)
    think_ms = world.random.choice(THINK_MS)
    # Of what a client does; else most rotations end what the others would do.
    rotating = world.random.choice((0.03, 0.1, 0.3))

    def act(client: Client) -> None:
        doer = Doer(client)
        while client.done < REQUESTS:
            client.done += 1
            client.wait(world.random_below(think_ms + 1))
            _act(client, doer, rotating)

    # Mostly at once: then every secret of the setup is hashed anew by whoever logs in with it.
    turn_at_ms = 0 if world.random.random() < 0.7 else world.random_below(REQUESTS * (think_ms + 1))
    world.add_client("keeper", lambda client: _turn_keys(client, turn_at_ms))
    for number in range(CLIENTS):
        world.add_client(f"client-{number}", act)


def _act(client: Client, doer: Doer, rotating: float) -> None:
    random, journal = client.random, journal_of(client.world)
    if random.random() < rotating:
        doer.rotate(ORG, random.choice((None, APP)), random.choice(GRACES_HOURS))
        return
    drawn = random.random()
    if not journal.held or drawn < 0.2:
        # The newest most of the time: old ones are mostly worth nothing.
        newest = journal.secrets[-4:]
        doer.log_in(random.choice(newest if random.random() < 0.7 else journal.secrets))
        return
    tokens = random.choice(journal.held[-5:] if random.random() < 0.7 else journal.held)
    if drawn < 0.6:
        doer.use(tokens, closed=random.random() < 0.8)
    elif drawn < 0.9:
        doer.refresh(tokens)
    else:
        doer.revoke(journal.fellow(tokens, random), tokens, whole_family=random.random() < 0.5)


def _turn_keys(client: Client, at_ms: int) -> None:
    """Once: what was made with the key before the previous one is lost."""
    client.wait(at_ms)
    if client.done == 0:
        client.done = 1
        desks_of(client.world).credential_keys.turn()
        desks_of(client.world).token_keys.turn()


IDENTITY: Final = Scenario(
    name="identity",
    setup=setup,
    holds=(
        clients_have_owners,
        rotated_one_by_one,
        refreshed_once,
        secrets_last_as_promised,
        tokens_end_in_time,
        every_item_decodes,
        end_in_peace,
    ),
)
