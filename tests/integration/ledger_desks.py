"""Budgets and holds beside a desk that counts usage."""

from dataclasses import replace

from sluice.core.budget import (
    DEFAULTS,
    Amounts,
    Dimension,
    Enforcement,
    OwnBudget,
    Periods,
    Slot,
    Span,
    effective_terms,
)
from sluice.core.holds import HeldIn, Hold
from sluice.core.lease import Lease
from sluice.repository import budget_keys
from sluice.repository.holds import decode_hold, put_hold
from sluice.repository.ledger_items import Ledger, decode_ledger, encode_ledger, new_ledger
from sluice.repository.ledgers import asked, hold_in_ledger
from sluice.repository.requests import TransactWrite
from sluice.repository.store import Committed, Store
from sluice.shell import new_token
from tests.integration.metering_desks import APP, NAMESPACE, TODAY, MeteringDesk, lease_of

DAY_COST = Slot(Span.DAY, Dimension.COST)
MONTH_COST = Slot(Span.MONTH, Dimension.COST)
HARD = OwnBudget({DAY_COST: 10_000_000}, Enforcement.HARD)
COUNTED = OwnBudget(enforcement=Enforcement.NONE)


def put_budget(desk: MeteringDesk, entity: str, own: OwnBudget = HARD, day: str = TODAY) -> Ledger:
    """And what stands for the org's defaults, without which nobody would look for it."""
    now_ms = desk.clock.now_ms
    for name, asks in ((DEFAULTS, None), (entity, own)):
        ledger = new_ledger(NAMESPACE, name, Periods.of_name(day), effective_terms(asks, None), 0, now_ms, 0)
        item = encode_ledger(ledger if asks is None else asked(ledger, asks))
        if asks is not None or desk.store.inner.get(budget_keys.ledger(NAMESPACE, DEFAULTS), consistent=True) is None:
            desk.store.inner.put({"Item": item}, repeatable=True)
    return ledger_of(desk.store.inner, entity)


def ledger_of(store: Store, entity: str = APP) -> Ledger:
    item = store.get(budget_keys.ledger(NAMESPACE, entity), consistent=True)
    assert item is not None
    return decode_ledger(item)


def take_hold(
    desk: MeteringDesk,
    amounts: Amounts,
    *ledgers: str,
    chain: tuple[str, ...] = (),
    day: str = TODAY,
    lease_id: str = "lease-1",
    ttl_ms: int = 300_000,
) -> Lease:
    """As an acquire takes it, on all of these ledgers or not at all. They are the chain where none is given."""
    names = ledgers or (APP,)
    lease = replace(lease_of(desk.clock, lease_id=lease_id, ttl_ms=ttl_ms), holds=True)
    hold = Hold(
        namespace=NAMESPACE,
        lease_id=lease_id,
        entity=APP,
        resource="gpt-4",
        chain=chain or names,
        ledgers=tuple(HeldIn(name, amounts) for name in names),
        day=day,
        taken_at_ms=desk.clock.now_ms,
        expires_at_ms=lease.expires_at_ms,
    )
    store, present = desk.store.inner, Periods.of_name(day)
    writes: list[TransactWrite] = [{"Put": put_hold(hold)}]
    writes += [
        {"Update": hold_in_ledger(ledger_of(store, name), present, amounts, desk.clock.now_ms)} for name in names
    ]
    assert isinstance(store.transact(writes, new_token()), Committed)
    return lease


def hold_of(store: Store, lease_id: str = "lease-1") -> Hold:
    item = store.get(budget_keys.hold(NAMESPACE, lease_id), consistent=True)
    assert item is not None
    return decode_hold(item)


def spent(ledger: Ledger, span: Span = Span.DAY) -> int:
    return ledger.standing.spent(span).cost_usd_micros


def used(ledger: Ledger, span: Span = Span.DAY) -> int:
    return ledger.standing.of(span).used.cost_usd_micros


def held(ledger: Ledger) -> int:
    return ledger.standing.held.cost_usd_micros
