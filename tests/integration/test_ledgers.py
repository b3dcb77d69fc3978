"""Ledgers on a real engine against an exact model: over turns of day and month, and under writers with stale images."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.budget import (
    NOTHING,
    Amounts,
    Charge,
    Dimension,
    Enforcement,
    LedgerChange,
    Periods,
    Slot,
    Span,
    Standing,
    Terms,
    violations,
)
from sluice.core.errors import Contended
from sluice.repository import budget_keys
from sluice.repository.ledger_items import Ledger, decode_ledger, new_ledger
from sluice.repository.ledgers import (
    change_ledger,
    change_terms,
    changed_ledger,
    hold_in_ledger,
    put_ledger,
    with_terms,
)
from sluice.repository.requests import TransactWrite, UpdateRequest
from sluice.repository.retries import Retries
from sluice.repository.store import Applied, Committed, DynamoStore
from sluice.shell import new_token
from tests.fakes import CountingMeter

NAMESPACE: Final = "ns"
DAYS: Final = tuple(map(Periods.of_name, ("20260130", "20260131", "20260201", "20260202")))
FIRST: Final = DAYS[0]
NOW_MS: Final = 1_800_000_000_000
DAY_COST: Final = Slot(Span.DAY, Dimension.COST)
MONTH_COST: Final = Slot(Span.MONTH, Dimension.COST)
TRIES: Final = 200
SLOW_MS: Final = 3


@pytest.fixture
def store(dynamodb: DynamoDBClient, table: str) -> DynamoStore:
    random = Random(7)
    return DynamoStore(
        dynamodb, table, Retries(lambda ms: time.sleep(min(ms, SLOW_MS) / 1000), random.randrange, CountingMeter())
    )


def made(store: DynamoStore, entity: str, terms: Terms) -> Ledger:
    ledger = new_ledger(NAMESPACE, entity, FIRST, terms, 0, NOW_MS, 0)
    assert isinstance(store.put(put_ledger(ledger), repeatable=True), Applied)
    return ledger


def stored(store: DynamoStore, entity: str) -> Ledger:
    item = store.get(budget_keys.ledger(NAMESPACE, entity), consistent=True)
    assert item is not None
    return decode_ledger(item)


def hard(day: int, month: int) -> Terms:
    return Terms({DAY_COST: day, MONTH_COST: month}, Enforcement.HARD)


@dataclass
class Writer:
    """One process: the image that it saw last, and what it believes of today."""

    store: DynamoStore
    seen: Ledger
    tries: int = 0

    def write(self, build: Callable[[Ledger], UpdateRequest]) -> bool:
        """One update; whether it was applied. What comes back is what it saw last."""
        self.tries += 1
        outcome = self.store.update(build(self.seen), repeatable=False)
        assert outcome.item is not None
        self.seen = decode_ledger(outcome.item)
        return isinstance(outcome, Applied)

    def write_on(self, build: Callable[[Ledger], UpdateRequest]) -> None:
        """The image that a failure returns builds the next try, and nobody writes in between."""
        assert self.write(build) or self.write(build)


@dataclass
class Model:
    """What the ledger must be."""

    standing: Standing
    terms: Terms
    holds: list[Amounts] = field(default_factory=list)
    charges: list[Charge] = field(default_factory=list)

    def change(self, change: LedgerChange, present: Periods) -> None:
        self.standing = self.standing.after(change, present)
        self.charges += change.charges

    def check(self, ledger: Ledger) -> None:
        assert ledger.standing == self.standing
        assert ledger.standing.held == sum(self.holds, NOTHING)
        for span in Span:
            counted = [one for one in self.charges if one.periods.of_span(span) == self.standing.periods.of_span(span)]
            assert ledger.standing.spent(span) == sum((one.amounts for one in counted), NOTHING)
            assert ledger.standing.of(span).errors == sum(one.errors for one in counted)


def amounts(random: Random) -> Amounts:
    return Amounts(random.randrange(8), random.randrange(50), 1)


@pytest.mark.parametrize("seed", range(4))
def test_a_ledger_is_what_its_holds_and_events_make_it(store: DynamoStore, seed: int) -> None:
    random = Random(seed)
    ledger = made(store, "user-1", hard(40, 90))
    model = Model(ledger.standing, ledger.terms)
    writers = [Writer(store, ledger) for _ in range(4)]
    refused = late = 0
    for step in range(160):
        writer = random.choice(writers)
        # Days pass; some writers are behind.
        known = step // 50
        present = DAYS[max(0, known - random.randrange(2))]
        of = DAYS[max(0, known - random.randrange(3))]
        verb = random.choice(["hold", "hold", "hold", "free", "settle", "settle", "charge", "limit"])
        if verb == "hold":
            wanted = amounts(random)
            fits = not violations(model.terms, model.standing.at(present), wanted)
            hold = _hold(present, wanted)
            admitted = writer.write(hold) or writer.write(hold)
            assert admitted == fits
            if admitted:
                model.holds.append(wanted)
                model.change(LedgerChange(held=wanted), present)
            refused += not admitted
        elif verb == "limit":
            model.terms = hard(random.randrange(60), random.randrange(120))
            writer.write_on(_limit(present, model.terms))
            model.change(LedgerChange(), present)
        elif verb == "charge" or model.holds:
            freed = NOTHING - model.holds.pop(random.randrange(len(model.holds))) if verb != "charge" else NOTHING
            charges = () if verb == "free" else (Charge(of, amounts(random), random.randrange(2)),)
            late += any(charge.periods < model.standing.periods for charge in charges)
            change = LedgerChange(freed, charges, NOW_MS + step, "ok")
            writer.write_on(_change(present, change))
            model.change(change, present)
        model.check(stored(store, "user-1"))
    assert refused > 5
    assert late > 5
    assert model.standing.periods == DAYS[3]
    # Stale images were in the way now and then, and the ones that came back were good.
    assert sum(writer.tries for writer in writers) > 160


def _hold(present: Periods, wanted: Amounts) -> Callable[[Ledger], UpdateRequest]:
    return lambda seen: hold_in_ledger(seen, present, wanted, NOW_MS)


def _limit(present: Periods, terms: Terms) -> Callable[[Ledger], UpdateRequest]:
    return lambda seen: change_terms(seen, with_terms(seen, present, terms, 0, NOW_MS))


def _change(present: Periods, change: LedgerChange) -> Callable[[Ledger], UpdateRequest]:
    return lambda seen: change_ledger(seen, present, change, NOW_MS)


@dataclass
class Account:
    """What one thread did."""

    held: int = 0
    refused: int = 0
    charges: list[Charge] = field(default_factory=list)


def transacted(
    store: DynamoStore,
    seen: dict[str, Ledger],
    build: Callable[[Ledger], UpdateRequest],
    after: Callable[[Ledger], Ledger],
) -> bool:
    """Every ledger in one transaction, each turned or not from its own image. False once no image lets it pass."""
    for _ in range(TRIES):
        writes: Sequence[TransactWrite] = [{"Update": build(ledger)} for ledger in seen.values()]
        try:
            outcome = store.transact(writes, new_token())
        except Contended:
            continue
        if isinstance(outcome, Committed):
            seen.update({entity: after(ledger) for entity, ledger in seen.items()})
            return True
        failed = {
            entity: decode_ledger(failure.item)
            for entity, failure in zip(seen, outcome.failures, strict=True)
            if failure is not None and failure.item is not None
        }
        # What only the counters refused will be refused again.
        if all(_same_guards(seen[entity], image) for entity, image in failed.items()):
            return False
        seen.update(failed)
    raise AssertionError("the writers never came through")


def _same_guards(old: Ledger, new: Ledger) -> bool:
    return (old.standing.periods, old.epoch, old.limits_version) == (
        new.standing.periods,
        new.epoch,
        new.limits_version,
    )


def test_writers_with_stale_images_lose_nothing_over_a_turn_and_pass_no_limit(store: DynamoStore) -> None:
    """Two ledgers in each transaction; every thread goes over to the new month when it likes."""
    limit, amount = 400, Amounts(10, 3, 1)
    chain = {entity: made(store, entity, hard(limit, limit)) for entity in ("user-1", "app-1")}
    actual = Amounts(4, 2, 1)

    def work(number: int) -> Account:
        random, account, seen = Random(number), Account(), dict(chain)
        turns_at = random.randrange(5, 15)
        for step in range(20):
            present = DAYS[2] if step >= turns_at else FIRST
            if not transacted(store, seen, _hold(present, amount), _holding(present, amount)):
                account.refused += 1
                continue
            if random.randrange(4) == 0:
                account.held += 1
                continue
            # Reported by the clock of somebody who may still be in January.
            charge = Charge(random.choice((present, FIRST)), actual, 1)
            change = LedgerChange(NOTHING - amount, (charge,), NOW_MS, "error")
            assert transacted(store, seen, _change(present, change), _changing(present, change))
            account.charges.append(charge)
        return account

    with ThreadPoolExecutor(max_workers=8) as pool:
        accounts = list(pool.map(work, range(8)))
    february = [charge for account in accounts for charge in account.charges if charge.periods == DAYS[2]]
    held = sum(account.held for account in accounts)
    assert held > 10
    assert february
    for entity in chain:
        ledger = stored(store, entity)
        assert ledger.standing.periods == DAYS[2]
        assert ledger.standing.held == Amounts(10 * held, 3 * held, held)
        for span in Span:
            assert ledger.standing.spent(span) == Amounts(4 * len(february), 2 * len(february), len(february))
            assert ledger.standing.of(span).errors == len(february)
            assert ledger.standing.of(span).used.cost_usd_micros <= limit


def _holding(present: Periods, wanted: Amounts) -> Callable[[Ledger], Ledger]:
    return lambda seen: changed_ledger(seen, present, LedgerChange(held=wanted), NOW_MS)


def _changing(present: Periods, change: LedgerChange) -> Callable[[Ledger], Ledger]:
    return lambda seen: changed_ledger(seen, present, change, NOW_MS)


def test_of_many_holds_at_once_exactly_those_that_fit_are_admitted(store: DynamoStore) -> None:
    """Vector 63, in threads: 40 holds of 2 on a limit of 30, while the limit itself is changed three times."""
    ledger = made(store, "user-1", hard(30, 1000))

    def hold(_number: int) -> bool:
        seen = {"user-1": ledger}
        return transacted(store, seen, _hold(FIRST, Amounts(2)), _holding(FIRST, Amounts(2)))

    def lower(_number: int) -> bool:
        seen = {"user-1": ledger}
        terms = hard(30, 1000)
        return transacted(store, seen, _limit(FIRST, terms), lambda one: with_terms(one, FIRST, terms, 0, NOW_MS))

    with ThreadPoolExecutor(max_workers=8) as pool:
        changed = pool.map(lower, range(3))
        admitted = sum(pool.map(hold, range(40)))
        assert list(changed) == [True] * 3
    assert admitted == 15
    assert stored(store, "user-1").standing.held == Amounts(30)
    assert stored(store, "user-1").limits_version == 4
