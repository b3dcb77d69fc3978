"""An entity goes with its budget, and not while calls hold a part of it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from sluice.core.audit import Author
from sluice.core.budget import (
    DEFAULTS,
    NOTHING,
    Amounts,
    Charge,
    Dimension,
    Enforcement,
    LedgerChange,
    OwnBudget,
    Periods,
    Slot,
    Span,
    effective_terms,
)
from sluice.core.errors import Contended, Forbidden, InUse, NotFound
from sluice.repository import budget_keys, keys
from sluice.repository.ledger_items import Ledger, decode_ledger, encode_ledger, new_ledger
from sluice.repository.ledgers import asked, change_ledger
from sluice.repository.store import Applied
from sluice.services.entities import EntityChange, Place
from tests.integration.audits import events, other_items
from tests.integration.conftest import ENTITY, NAMESPACE, Host
from tests.integration.test_acquire import per_minute
from tests.integration.test_limits import before_transact
from tests.tenancy import tenant_items

SOMEBODY = Author("client-7", "request-9")
TODAY = Periods.of_name("20260131")
NOON_MS = 1_769_860_800_000
DAY_MS = 86_400_000
OWN = OwnBudget({Slot(Span.DAY, Dimension.COST): 25}, Enforcement.HARD)


def put_ledger(host: Host, held: Amounts = NOTHING, own: OwnBudget | None = OWN) -> None:
    made = new_ledger(NAMESPACE, ENTITY, TODAY, effective_terms(own, None), 1, 1, 0)
    made = made if own is None else asked(made, own)
    made = replace(made, standing=made.standing.after(LedgerChange(held=held), TODAY))
    host.store.inner.put({"Item": encode_ledger(made)}, repeatable=True)


def ledger(host: Host) -> Ledger | None:
    item = host.store.inner.get(budget_keys.ledger(NAMESPACE, ENTITY), consistent=True)
    return None if item is None else decode_ledger(item)


def change(host: Host, held: Amounts) -> None:
    seen = ledger(host)
    assert seen is not None
    outcome = host.store.inner.update(change_ledger(seen, TODAY, LedgerChange(held=held), 1), repeatable=False)
    assert isinstance(outcome, Applied)


def is_known(host: Host) -> bool:
    return host.store.inner.get(keys.entity(NAMESPACE, ENTITY), consistent=True) is not None


@pytest.fixture(autouse=True)
def entity(host: Host) -> None:
    host.entities.put(NAMESPACE, ENTITY, EntityChange())


def remove(host: Host) -> None:
    host.entities.delete(NAMESPACE, ENTITY, author=SOMEBODY)


def test_a_budget_is_told_of_and_goes(host: Host) -> None:
    put_ledger(host)
    remove(host)
    removed = {event.action: event for event in events(host) if event.author == SOMEBODY}
    assert set(removed) == {"entity.delete", "budget.delete"}
    told = removed["budget.delete"]
    assert (told.subject, told.target, told.after) == (ENTITY, f"budgets/{ENTITY}", None)
    assert told.before == {"day_cost_limit": 25, "enforcement": "hard", "inherit": True, "version": 1}
    assert other_items(host) == []


def test_counters_that_nobody_asked_for_go_without_a_word(host: Host) -> None:
    put_ledger(host, own=None)
    remove(host)
    assert {event.action for event in events(host) if event.author == SOMEBODY} == {"entity.delete"}
    assert other_items(host) == []


def test_while_something_is_held_nothing_is_removed(host: Host) -> None:
    put_ledger(host, Amounts(5, 0, 1))
    with pytest.raises(InUse):
        remove(host)
    assert is_known(host)
    change(host, Amounts(-5, 0, -1))
    remove(host)
    assert other_items(host) == []


def test_a_call_that_begins_at_the_last_moment_is_in_the_way(host: Host) -> None:
    put_ledger(host)
    before_transact(host, lambda: change(host, Amounts(5, 0, 1)))
    with pytest.raises(InUse):
        remove(host)
    assert is_known(host)


def test_what_is_held_of_an_entity_that_is_gone_stays_until_it_is_over(host: Host) -> None:
    """Taken by a chain that was read before: its settlement needs the ledger."""
    put_ledger(host)
    host.store.after = lambda verb, _request: change(host, Amounts(5, 0, 1)) if verb == "transact" else None
    with pytest.raises(InUse):
        remove(host)
    host.store.after = None
    assert not is_known(host)
    assert ledger(host) is not None
    with pytest.raises(InUse):
        remove(host)
    change(host, Amounts(-5, 0, -1))
    remove(host)
    assert ledger(host) is None
    with pytest.raises(NotFound):
        remove(host)


# By an app: only what binds it is in the way.


def remove_as_app(host: Host) -> None:
    host.entities.delete(NAMESPACE, ENTITY, place=Place(within="app"))


def spend(host: Host, executions: int = 1) -> None:
    seen = ledger(host)
    assert seen is not None
    change = LedgerChange(charges=(Charge(TODAY, Amounts(5, 0, executions)),))
    assert isinstance(host.store.inner.update(change_ledger(seen, TODAY, change, 1), repeatable=False), Applied)


def put_defaults(host: Host, own: OwnBudget) -> None:
    defaults = asked(new_ledger(NAMESPACE, DEFAULTS, TODAY, effective_terms(own, None), 0, 1, 0), own)
    host.store.inner.put({"Item": encode_ledger(defaults)}, repeatable=True)


def test_an_app_takes_an_entity_that_nobody_has_bound(host: Host) -> None:
    put_ledger(host, own=None)
    spend(host)
    remove_as_app(host)
    assert ledger(host) is None


def test_a_budget_that_is_put_at_the_last_moment_is_in_an_apps_way(host: Host) -> None:
    before_transact(host, lambda: put_ledger(host))
    with pytest.raises(Forbidden, match="budget of its own"):
        remove_as_app(host)
    assert is_known(host)


def test_what_is_spent_at_the_last_moment_is_in_an_apps_way(host: Host) -> None:
    for item in tenant_items(NAMESPACE, NAMESPACE):
        host.store.inner.put({"Item": item}, repeatable=True)
    put_defaults(host, OWN)
    put_ledger(host, own=None)
    host.clock.now_ms = NOON_MS
    before_transact(host, lambda: spend(host))
    with pytest.raises(Forbidden, match="has spent"):
        remove_as_app(host)
    assert is_known(host)
    # On the next day it begins anew in any case.
    host.clock.advance(DAY_MS)
    remove_as_app(host)
    assert not is_known(host)


def after_removal(host: Host, action: Callable[[], None]) -> None:
    """Once, right after the transaction in which the entity goes."""

    def once(verb: str, _request: object) -> None:
        if verb == "transact":
            host.store.after = None
            action()

    host.store.after = once


def test_what_is_spent_while_an_app_removes_its_entity_is_not_forgotten(host: Host) -> None:
    """By a chain that was read before. Made anew, the entity goes on with it."""
    for item in tenant_items(NAMESPACE, NAMESPACE):
        host.store.inner.put({"Item": item}, repeatable=True)
    host.clock.now_ms = NOON_MS
    put_defaults(host, OWN)
    put_ledger(host, own=None)
    before = ledger(host)
    after_removal(host, lambda: spend(host))
    remove_as_app(host)
    assert not is_known(host)
    kept = ledger(host)
    assert kept is not None
    assert before is not None
    assert kept.epoch == before.epoch
    assert kept.standing.day.used == Amounts(5, 0, 1)
    host.entities.put(NAMESPACE, ENTITY, EntityChange())
    with pytest.raises(Forbidden, match="has spent"):
        remove_as_app(host)
    host.store.inner.delete({"Key": {**keys.entity(NAMESPACE, ENTITY).attributes}})
    # It is the org's to remove, entity or not.
    remove(host)
    assert ledger(host) is None


def test_an_org_forgets_what_is_spent_while_it_removes(host: Host) -> None:
    put_ledger(host)
    after_removal(host, lambda: spend(host))
    remove(host)
    assert other_items(host) == []


def test_what_begins_while_an_app_removes_its_entity_is_not_in_the_way(host: Host) -> None:
    """The app could not ask again: to it the entity is gone. The call settles in the ledger that stays."""
    put_ledger(host, own=None)
    host.put_limits({"rpm": per_minute(10)})
    host.acquire(rpm=1)
    after_removal(host, lambda: change(host, Amounts(5, 0, 1)))
    remove_as_app(host)
    assert not is_known(host)
    assert host.find_bucket() is None
    kept = ledger(host)
    assert kept is not None
    assert kept.standing.held == Amounts(5, 0, 1)


def test_a_ledger_that_begins_while_an_app_removes_its_entity_stays(host: Host) -> None:
    after_removal(host, lambda: put_ledger(host, own=None))
    remove_as_app(host)
    assert not is_known(host)
    assert ledger(host) is not None


def test_what_an_entity_stands_below_at_the_last_moment_is_in_an_apps_way(host: Host) -> None:
    for entity, parent in (("app", None), ("user", "app"), (ENTITY, "app")):
        host.entities.put(NAMESPACE, entity, EntityChange(parent=parent))
    put_ledger(host)
    before_transact(host, lambda: host.entities.put(NAMESPACE, "user", EntityChange(parent=ENTITY)))
    with pytest.raises(Forbidden, match="stands below"):
        host.entities.delete(NAMESPACE, "user", place=Place(within="app"))
    assert host.entities.get(NAMESPACE, "user").parent == ENTITY


def test_who_spends_all_the_time_is_not_removed_by_an_app(host: Host) -> None:
    put_ledger(host, own=None)
    host.store.before = lambda verb, _request: spend(host) if verb == "transact" else None
    with pytest.raises(Contended):
        remove_as_app(host)
    host.store.before = None
    assert is_known(host)


def test_while_an_org_is_purged_its_app_takes_nothing_away(host: Host) -> None:
    put_defaults(host, OWN)
    put_ledger(host, own=None)
    with pytest.raises(Forbidden, match="has spent"):
        remove_as_app(host)


def test_an_app_moves_nobody_out_of_a_budget(host: Host) -> None:
    host.entities.put(NAMESPACE, "app", EntityChange())
    host.entities.put(NAMESPACE, ENTITY, EntityChange(parent="app"))
    host.entities.put(NAMESPACE, "user", EntityChange(parent=ENTITY))
    put_ledger(host)
    place = Place(below="app", within="app")
    with pytest.raises(Forbidden, match="stands below"):
        host.entities.put(NAMESPACE, "user", EntityChange(parent="app"), place=place)
    host.store.inner.delete({"Key": {**budget_keys.ledger(NAMESPACE, ENTITY).attributes}})
    assert host.entities.put(NAMESPACE, "user", EntityChange(parent="app"), place=place).entity.parent == "app"
