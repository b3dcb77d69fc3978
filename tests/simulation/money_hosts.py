"""What counts and chooses on a simulated host: the product's services about money, with caches of their own.

Also the tenant that the scenarios about money have, as it is once its org and apps were put.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sluice.core.arns import ProfileArn, ProfileRefused
from sluice.core.audit import BY_SYSTEM
from sluice.core.orgs import OrgSettings
from sluice.money import Foundations, Money, build_money
from sluice.services.apps import Apps
from sluice.services.cursors import Cursors
from sluice.services.effects import Effects
from sluice.services.entities import EntityChange
from sluice.services.hold_book import HoldBook
from sluice.services.judging import Reporter
from sluice.services.labels import LabelFields
from sluice.services.ledger_book import LedgerBook
from sluice.services.listing import Lists
from sluice.services.orgs import OrgPath, Orgs
from sluice.services.profile_models import Models
from sluice.services.registration import Registrar
from sluice.services.settings import SettingsCache
from sluice.services.signing import Signer
from tests.simulation.identity_hosts import ReadKeys, StoredKeys, desks_of
from tests.simulation.scenario import Admin
from tests.simulation.scheduler import Process
from tests.simulation.world import Client, Host, World
from tests.tenancy import tenant_items

ORG: Final = "acme"
APPS: Final = ("chat", "search")
USERS: Final = {"user-1": "chat", "user-2": "chat", "user-3": "search", "worker": ORG}
"""By whom they stand below."""
LABELS: Final = {"premium": 30_000_000, "standard": 3_000_000, "economy": 250_000}
"""In their order, with the price of a million tokens of input. Output costs five times as much."""
MODELS: Final = {label: f"model-of-{label}" for label in LABELS}


class NoProfiles:
    """No label here stands for an inference profile."""

    def models(self, arn: ProfileArn) -> Models:
        raise ProfileRefused(arn.region)


@dataclass(frozen=True)
class Desk:
    """What a process has of the product."""

    host: Host
    money: Money
    orgs: Orgs
    apps: Apps
    clock_ms: Callable[[], int]


class Desks:
    """One for each process, made when it is first asked for. Kept in the notes of its world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._made: dict[Process, Desk] = {}

    def of(self, client: Client) -> Desk:
        process = client.host.process
        if process not in self._made:
            self._made[process] = self.at(client.host, client.clock_ms)
        return self._made[process]

    def at(self, host: Host, clock_ms: Callable[[], int]) -> Desk:
        world = self._world
        timer_ms = world.scheduler.clock_ms
        effects = Effects(clock_ms, world.random_below, world.new_token, host.meter)
        cursors = Cursors(Signer(ReadKeys(StoredKeys("cursors"), timer_ms)))
        settings = SettingsCache(host.store, timer_ms)
        below = Foundations(
            profile_source=NoProfiles(),
            registrar=Registrar(host.store, host.configuration, effects),
            leases=host.leases,
            lists=Lists(host.store, cursors),
            cursors=cursors,
            jobs=host.jobs,
            tenants=host.namespaces,
            configuration=host.configuration,
            settings=settings,
            ledger_book=LedgerBook(host.store, settings, effects, timer_ms),
            hold_book=HoldBook(host.store),
            alert_bus=None,
        )
        money = build_money(host.store, effects, timer_ms, below)
        identity = desks_of(world).at(host, clock_ms)
        return Desk(host, money, identity.orgs, identity.apps, clock_ms)


def money_of(world: World) -> Desks:
    if "money" not in world.notes:
        world.notes["money"] = Desks(world)
    desks: Desks = world.notes["money"]
    return desks


def org_path() -> OrgPath:
    return OrgPath(ORG)


def found_org(world: World, admin: Admin, settings: OrgSettings) -> Desk:
    """In peace, before the first request."""
    for item in tenant_items(world.namespace, ORG, *APPS, settings=settings):
        world.table.put({"Item": item})
    for user, parent in USERS.items():
        admin.host.entities.put(world.namespace, user, EntityChange(parent=parent))
    desk = money_of(world).at(admin.host, world.scheduler.clock_ms)
    for label, price in LABELS.items():
        fields = LabelFields(
            MODELS[label], input_price_usd_micros_per_1m=price, output_price_usd_micros_per_1m=5 * price
        )
        desk.money.labels.put(world.namespace, label, fields, author=BY_SYSTEM)
    return desk


def reporter_of(world: World, entity: str) -> Reporter:
    """The org reports for everybody, an app for itself and those below it."""
    return Reporter(world.namespace, entity, None if entity == ORG else entity, BY_SYSTEM, registers=True)


def chain_of(entity: str, reporter: str) -> list[str]:
    """Itself and all above it. Who became known by a report stands below the reporter."""
    chain = [entity]
    while chain[-1] != ORG:
        chain.append(ORG if chain[-1] in APPS else USERS.get(chain[-1], reporter))
    return chain


def app_above(entity: str, reporter: str) -> str | None:
    """The nearest, itself included; None where there is none."""
    return next((one for one in chain_of(entity, reporter) if one in APPS), None)
