"""What holds, charges and sweeps on a simulated host: the product's services about budgets, with caches of their own.

Also the tenant of those scenarios: an org, two apps, users below them, and somebody right below the org.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sluice.core.audit import BY_SYSTEM
from sluice.core.orgs import OrgSettings
from sluice.core.timelines import Timeline
from sluice.money import Foundations, Money, build_money
from sluice.repository import keys
from sluice.repository.orgs import decode_org
from sluice.services.acquire import Acquire
from sluice.services.chains import Chains
from sluice.services.corrections import Corrections
from sluice.services.cursors import Cursors
from sluice.services.effects import Effects
from sluice.services.entities import EntityChange
from sluice.services.freeing import Freeing
from sluice.services.hold_book import HoldBook
from sluice.services.holding import Allowances, Holding
from sluice.services.idempotency import IdempotentAcquire
from sluice.services.judging import Reporter
from sluice.services.labels import LabelFields
from sluice.services.leases import Leases
from sluice.services.ledger_book import LedgerBook
from sluice.services.listing import Lists
from sluice.services.orgs import OrgPath, Orgs
from sluice.services.registration import Registrar
from sluice.services.settings import SettingsCache
from sluice.services.signing import Signer
from sluice.services.together import Together
from tests.simulation.identity_hosts import ReadKeys, StoredKeys, desks_of
from tests.simulation.money_hosts import NoProfiles
from tests.simulation.scenario import Admin
from tests.simulation.scheduler import Process
from tests.simulation.world import Client, Host, World
from tests.tenancy import tenant_items

ORG: Final = "acme"
APPS: Final = ("chat", "search")
USERS: Final = {"user-1": "chat", "user-2": "chat", "user-3": "search"}
"""By whom they stand below at first."""
WORKER: Final = "worker"
"""Stands below the org alone."""
PRICES: Final = {"premium": 30_000_000, "economy": 250_000}
"""Of a million tokens of input, in micro-dollars. Output costs five times as much. They never change."""


@dataclass(frozen=True)
class Desk:
    """What a process has of the product."""

    host: Host
    money: Money
    holding: Holding
    leases: Leases
    orgs: Orgs


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
        """As `shell` puts it together."""
        world = self._world
        timer_ms = world.scheduler.clock_ms
        effects = Effects(clock_ms, world.random_below, world.new_token, host.meter)
        registrar = Registrar(host.store, host.configuration, effects)
        chains = Chains(host.configuration, host.buckets.memory.images, registrar)
        settings = SettingsCache(host.store, timer_ms)
        book = LedgerBook(host.store, settings, effects, timer_ms, host.configuration.budget_defaults)
        holds = HoldBook(host.store)
        corrections = Corrections(host.store, host.buckets.taker)
        leases = Leases(host.store, corrections, effects, Freeing(holds, book, effects))
        cursors = Cursors(Signer(ReadKeys(StoredKeys("cursors"), timer_ms)))
        below = Foundations(
            profile_source=NoProfiles(),
            registrar=registrar,
            leases=leases,
            lists=Lists(host.store, cursors),
            cursors=cursors,
            jobs=host.jobs,
            tenants=host.namespaces,
            configuration=host.configuration,
            settings=settings,
            ledger_book=book,
            hold_book=holds,
            alert_bus=None,
        )
        money = build_money(host.store, effects, timer_ms, below)
        acquire = Acquire(host.configuration, chains, host.buckets.taker, world.scheduler.run_all, host.meter)
        together = Together(host.store, host.buckets, effects)
        idempotent = IdempotentAcquire(host.store, acquire, chains, together, effects)
        allowances = Allowances(book, holds, money.reserves, settings)
        holding = Holding(acquire, idempotent, chains, together, allowances, effects, timer_ms)
        return Desk(host, money, holding, leases, desks_of(world).at(host, clock_ms).orgs)


def desks_in(world: World) -> Desks:
    if "budget desks" not in world.notes:
        world.notes["budget desks"] = Desks(world)
    desks: Desks = world.notes["budget desks"]
    return desks


def found_tenant(world: World, admin: Admin, settings: OrgSettings) -> Desk:
    """In peace, before the first request."""
    for item in tenant_items(world.namespace, ORG, *APPS, settings=settings):
        world.table.put({"Item": item})
    for user, parent in {**USERS, WORKER: ORG}.items():
        admin.host.entities.put(world.namespace, user, EntityChange(parent=parent))
    desk = desks_in(world).at(admin.host, world.scheduler.clock_ms)
    for label, price in PRICES.items():
        fields = LabelFields(
            f"model-of-{label}", input_price_usd_micros_per_1m=price, output_price_usd_micros_per_1m=5 * price
        )
        desk.money.labels.put(world.namespace, label, fields, author=BY_SYSTEM)
    return desk


def org_path() -> OrgPath:
    return OrgPath(ORG)


def reporter_of(world: World) -> Reporter:
    """The org, which reports for everybody."""
    return Reporter(world.namespace, ORG, None, BY_SYSTEM, registers=True)


def zones_of(world: World) -> Timeline[str]:
    """All that the org ever had: none is taken back."""
    item = world.table.get(keys.org_settings(world.namespace))
    assert item is not None
    return decode_org(item).settings.zones
