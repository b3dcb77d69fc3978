"""The services about money, put together. `shell` makes what they need of the world outside."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sluice.repository.alert_bus import AlertBus
from sluice.repository.store import Store
from sluice.services.aggregates import Aggregates
from sluice.services.alerts import Alerts
from sluice.services.budget_lists import BudgetLists
from sluice.services.budget_refresh import REFRESH_BUDGETS, BudgetRefreshes, RefreshBudgets
from sluice.services.budget_states import BudgetStates
from sluice.services.budgets import Budgets
from sluice.services.callers import CallerWalk
from sluice.services.catalog import Catalog
from sluice.services.configuration import Configuration
from sluice.services.counted import CountedEntities
from sluice.services.counting import Tenants
from sluice.services.cursors import Cursors
from sluice.services.definitions import Definitions
from sluice.services.effects import Effects
from sluice.services.event_lists import EventLists
from sluice.services.freeing import Freeing
from sluice.services.grounds import Grounds
from sluice.services.hold_book import HoldBook
from sluice.services.hold_sweep import HoldSweep
from sluice.services.intake import Intake
from sluice.services.jobs import Jobs, Work
from sluice.services.judging import Judge
from sluice.services.labels import Labels
from sluice.services.leases import Leases
from sluice.services.ledger_book import LedgerBook
from sluice.services.ledger_charges import LedgerCharges
from sluice.services.lineages import Lineages
from sluice.services.listing import Lists
from sluice.services.marking import Marking
from sluice.services.metering import Metering
from sluice.services.overrides import Overrides
from sluice.services.price_book import PriceBook
from sluice.services.prices import OwnPrices
from sluice.services.profile_models import ProfileModels, ProfileSource
from sluice.services.profiles import Profiles
from sluice.services.quotes import Quotes
from sluice.services.registration import Registrar
from sluice.services.reserves import Reserves
from sluice.services.rollup import Rollup
from sluice.services.rollup_jobs import ROLLUP_ENTITY, SUM_TOTALS, EntityRollups, RollUpEntity, SumTotals
from sluice.services.selection import Selection
from sluice.services.settings import SettingsCache
from sluice.services.settling import Settling
from sluice.services.shipped_prices import ShippedPrices
from sluice.services.spending import Spendings
from sluice.services.summing import Summing


@dataclass(frozen=True, slots=True)
class Foundations:
    """What the services about money are built on. `profile_source`: what AWS says about inference profiles."""

    profile_source: ProfileSource
    registrar: Registrar
    leases: Leases
    lists: Lists
    cursors: Cursors
    jobs: Jobs
    tenants: Tenants
    configuration: Configuration
    settings: SettingsCache
    ledger_book: LedgerBook
    hold_book: HoldBook
    alert_bus: AlertBus | None


@dataclass(frozen=True, slots=True)
class Money:
    """What a handler may call about money. `work`: what its jobs do, by their kinds."""

    aggregates: Aggregates
    alerts: Alerts
    budget_lists: BudgetLists
    budget_refreshes: BudgetRefreshes
    budgets: Budgets
    catalog: Catalog
    entity_rollups: EntityRollups
    event_lists: EventLists
    hold_sweep: HoldSweep
    labels: Labels
    ledger_book: LedgerBook
    lineages: Lineages
    marking: Marking
    metering: Metering
    overrides: Overrides
    own_prices: OwnPrices
    profiles: Profiles
    quotes: Quotes
    reserves: Reserves
    rollup: Rollup
    selection: Selection
    settings: SettingsCache
    settling: Settling
    work: Mapping[str, Work]


def build_money(store: Store, effects: Effects, timer_ms: Callable[[], int], below: Foundations) -> Money:
    settings = below.settings
    lineages = Lineages(store, timer_ms)
    definitions = Definitions(store, timer_ms)
    catalog = Catalog(definitions, ProfileModels(below.profile_source, timer_ms), settings)
    price_book = PriceBook(store, ShippedPrices(), timer_ms)
    grounds = Grounds(settings, lineages, catalog)
    holds = below.hold_book
    ledger_charges = LedgerCharges(below.ledger_book, holds, effects)
    judge = Judge(settings, lineages, catalog, price_book, below.registrar, holds)
    selection = Selection(store, grounds, catalog, price_book, effects)
    summing = Summing(store, settings, selection.advance, effects)
    counted = CountedEntities(store)
    budget_states = BudgetStates(settings, effects.clock_ms)
    spendings = Spendings(store, settings, effects.meter)
    metering = Metering(store, Intake(store, judge), below.leases, ledger_charges, spendings, effects)
    return Money(
        aggregates=Aggregates(store, settings, counted, effects.clock_ms),
        alerts=Alerts(store, settings, below.lists, below.tenants, effects, below.alert_bus),
        budget_lists=BudgetLists(store, below.lists, below.cursors, budget_states),
        budget_refreshes=BudgetRefreshes(store, below.jobs),
        budgets=Budgets(store, below.ledger_book, budget_states, below.configuration, effects),
        catalog=catalog,
        entity_rollups=EntityRollups(counted, below.jobs),
        event_lists=EventLists(store, below.cursors, lineages, settings, counted, effects.clock_ms),
        hold_sweep=HoldSweep(store, Freeing(holds, below.ledger_book, effects), effects),
        labels=Labels(store, definitions, below.lists, effects),
        ledger_book=below.ledger_book,
        lineages=lineages,
        marking=Marking(store, below.tenants, effects),
        metering=metering,
        overrides=Overrides(store, grounds, effects),
        own_prices=OwnPrices(store, price_book, settings, effects),
        profiles=Profiles(store, definitions, settings, below.lists, effects),
        quotes=Quotes(catalog, price_book),
        reserves=Reserves(settings, lineages, catalog, price_book),
        rollup=Rollup(store, summing, below.tenants, effects),
        selection=selection,
        settings=settings,
        settling=Settling(below.leases, metering),
        work={
            ROLLUP_ENTITY: RollUpEntity(store, summing, settings, below.tenants),
            REFRESH_BUDGETS: RefreshBudgets(store, below.ledger_book, CallerWalk(store, settings, counted), effects),
            SUM_TOTALS: SumTotals(store, summing, below.tenants),
        },
    )
