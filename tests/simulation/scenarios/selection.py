"""Apps ask which label to use, and use it, until the quotas of all labels are spent and the next local day begins.

Totals are as old as the last rollup, and whoever asks may read something older still. Meanwhile orderings, quotas, the
scope and the zone change, a label is defined, and labels are set by hand for a while.
"""

from functools import partial
from typing import Final

from sluice.core.audit import BY_SYSTEM
from sluice.core.errors import InvalidRequest
from sluice.core.orgs import AppChange, OrgChange, OrgSettings, QuotaScope
from sluice.core.timelines import always
from tests.simulation.choice_fates import answers_are_right, everybody_agrees_in_peace, selection_moves_on
from tests.simulation.choices import PRICES, QUOTA_USD_MICROS, Chooser, diary_of
from tests.simulation.invariants import every_item_decodes
from tests.simulation.local_days import end_ms
from tests.simulation.money_hosts import APPS, LABELS, found_org, money_of, org_path
from tests.simulation.paces import MINUTE_MS, pace_of
from tests.simulation.rollups import add_keepers, everything_is_rolled_up
from tests.simulation.scenario import Admin, Scenario
from tests.simulation.usage_fates import totals_only_rise
from tests.simulation.world import Client, Outcome, World

CLIENTS: Final = 4
TURNS: Final = 6
ZONES: Final = ("Pacific/Honolulu", "America/Anchorage", "Pacific/Kiritimati")


def setup(world: World, admin: Admin) -> None:
    random = world.random
    zone = random.choice(ZONES)
    settings = OrgSettings(
        zones=always(zone),
        quota_scopes=always(random.choice(list(QuotaScope))),
        model_ordering=_ordering(world),
        quotas_usd_micros=dict.fromkeys(PRICES, QUOTA_USD_MICROS),
        sticky_fallback_enabled=random.random() < 0.85,
        counter_shards=2,
    )
    found_org(world, admin, settings)
    if random.random() < 0.6:
        before_ms = random.choice((MINUTE_MS, 3 * MINUTE_MS, 5 * MINUTE_MS))
        world.scheduler.pause(end_ms(always(zone), world.scheduler.now_ms) - before_ms - world.scheduler.now_ms)
    diary = diary_of(world)
    diary.obedience = random.choice((0.9, 0.2))
    if random.random() < 0.6:
        diary.entities = random.sample(diary.entities, 2)
    for number in range(CLIENTS):
        world.add_client(f"client-{number}", _choose)
    world.add_client("keeper", partial(_change_settings, share=random.choice((0.0, 0.3, 0.7))))
    add_keepers(world, TURNS)


def _choose(client: Client) -> None:
    chooser = Chooser(client)
    while client.done < TURNS:
        client.done += 1
        pace_of(client.world).wait(client)
        chooser.ask_and_use()


def _change_settings(client: Client, share: float) -> None:
    """And labels by hand. `share`: of its turns in which it changes settings."""
    world, random, chooser = client.world, client.random, Chooser(client)
    while client.done < TURNS:
        client.done += 1
        pace_of(world).wait(client)
        drawn = random.random()
        if drawn < 0.8:
            chooser.set_or_remove()
        if drawn > 0.9:
            chooser.define_late()
        if random.random() < share:
            client.attempt("settings", partial(_change, client, random.choice((None, *APPS))))


def _change(client: Client, app: str | None) -> Outcome:
    world, random = client.world, client.random
    desk = money_of(world).of(client)
    drawn = random.random()
    own: AppChange
    if drawn < 0.4:
        own = AppChange(model_ordering=_ordering(world))
    else:
        label = random.choice(list(PRICES))
        own = AppChange(quotas_usd_micros={label: random.choice((0, 1, 2, 5)) * QUOTA_USD_MICROS // 2})
    try:
        if app is not None:
            desk.apps.put(org_path(), app, own, author=BY_SYSTEM)
        elif drawn < 0.8:
            change = OrgChange(model_ordering=own.model_ordering, quotas_usd_micros=own.quotas_usd_micros)
            desk.orgs.put(org_path(), change, author=BY_SYSTEM)
        elif drawn < 0.85:
            desk.orgs.put(org_path(), OrgChange(sticky_fallback_enabled=random.random() < 0.5), author=BY_SYSTEM)
        else:
            scope = random.choice(list(QuotaScope))
            change = OrgChange(quota_scope=scope, timezone=random.choice(ZONES))
            desk.orgs.put(org_path(), change, author=BY_SYSTEM)
    except InvalidRequest:
        return Outcome.INVALID
    return Outcome.DONE


def _ordering(world: World) -> tuple[str, ...]:
    """Mostly as usual."""
    random = world.random
    labels = list(LABELS)
    if random.random() < 0.4:
        labels = random.sample(list(PRICES), random.randint(2, 4))
    return tuple(labels)


SELECTION: Final = Scenario(
    name="selection",
    setup=setup,
    holds=(
        everything_is_rolled_up,
        selection_moves_on,
        answers_are_right,
        totals_only_rise,
        every_item_decodes,
        everybody_agrees_in_peace,
    ),
)
