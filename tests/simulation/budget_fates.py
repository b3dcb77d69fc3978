"""What must hold of budgets, in every state that the table was ever in. Told by its stream of changes alone.

A ledger is judged by its own history, the open holds and the events beside it. Which ledgers must take part is judged
by what budgets and defaults said for longer than any process may remember.
"""

from collections import defaultdict
from typing import Any, Final

from sluice.core.budget import (
    NOTHING,
    SLOTS,
    Amounts,
    Dimension,
    Span,
)
from sluice.core.holds import Hold, HoldState
from sluice.core.metering import AHEAD_MAX_MS
from sluice.repository.events import UsageEvent
from sluice.repository.holds import HOLD, decode_hold
from sluice.repository.jobs import JobState
from sluice.repository.ledger_items import LEDGER, Ledger, decode_ledger
from sluice.services.budget_refresh import INDEXES_MS, REFRESH_BUDGETS
from sluice.services.hold_sweep import GRACE_MS, MINUTE_MS, SETTLED_MS
from tests.simulation.budget_calls import calls_of
from tests.simulation.budget_history import Changed, History, Write, history_of
from tests.simulation.budget_hosts import desks_in
from tests.simulation.local_days import day_at
from tests.simulation.scenario import Violated
from tests.simulation.world import Host, World

EXPIRED_WAITS_MS: Final = 60_000
"""After the end of a lease: until then a call that took as long as that may still be reported."""
PEACEFUL_SWEEPS: Final = 20
PEACEFUL_RUNS: Final = 60


def held_is_what_open_holds_hold(world: World) -> None:
    """Of every ledger, in every state of the table."""
    held: dict[str, Amounts] = defaultdict(Amounts)
    for write in history_of(world).writes:
        for hold in write.taken:
            for one in hold.ledgers:
                held[one.entity] += one.amounts
        for hold in write.ended:
            for one in hold.ledgers:
                held[one.entity] -= one.amounts
        touched = {one.entity for hold in (*write.taken, *write.ended) for one in hold.ledgers}
        for entity in touched - write.ledgers.keys():
            raise Violated(f"{entity} was not changed with its holds at {write.at_ms}")
        for entity, changed in write.ledgers.items():
            if changed.after.standing.held != held[entity]:
                raise Violated(f"{entity} holds {changed.after.standing.held}, its open holds {held[entity]}")


def spent_is_what_events_took(world: World) -> None:
    """`used - held` of a ledger's day and month is the sum of the events of that day and month, and so are errors."""
    sums: dict[tuple[str, str], Amounts] = defaultdict(Amounts)
    errors: dict[tuple[str, str], int] = defaultdict(int)
    for write in history_of(world).writes:
        for event in write.events:
            for entity in event.epochs:
                if entity not in write.ledgers:
                    raise Violated(f"{entity} was not changed with {event}")
                for period in (event.day, event.day[:6]):
                    sums[entity, period] += _took(event)
                    errors[entity, period] += event.status.value != "ok"
        for entity, changed in write.ledgers.items():
            standing = changed.after.standing
            for span in Span:
                name = entity, standing.periods.of_span(span)
                if standing.spent(span) != sums[name] or standing.of(span).errors != errors[name]:
                    raise Violated(f"{name}: {standing}, its events took {sums[name]} with {errors[name]} errors")


def hard_limits_hold(world: World) -> None:
    """No write takes a hard period above its limit, but what was above it already; only the printed exceptions do."""
    history = history_of(world)
    for write in history.writes:
        for entity, changed in write.ledgers.items():
            _check_limits(history, write, entity, changed)


def _check_limits(history: History, write: Write, entity: str, changed: Changed) -> None:
    after = changed.after.standing
    for slot in SLOTS:
        limit = changed.after.terms.hard_limits.get(slot)
        if limit is None:
            continue
        if changed.before is None:
            base = NOTHING
        else:
            before = changed.before.standing
            base = before.held if changed.turned(slot.span) else before.of(slot.span).used
        excess = 0
        if after.of(slot.span).used.of(slot.dimension) > max(limit, base.of(slot.dimension)):
            excess = _excused(history, write, entity, slot.dimension, after.periods.of_span(slot.span))
        most = max(limit, base.of(slot.dimension)) + excess
        if after.of(slot.span).used.of(slot.dimension) > most:
            raise Violated(f"{slot.name} of {entity}: limit {limit}, before {base}, excused {excess}, after {after}")


def _excused(history: History, write: Write, entity: str, dimension: Dimension, period: str) -> int:
    """What events took for which nothing was held here, or not as much. Only where the API says that this may be."""
    found, freed = 0, {hold.lease_id: hold.held_in(entity).of(dimension) for hold in write.ended}
    for event in write.events:
        if entity not in event.epochs or not event.day.startswith(period):
            continue
        # What is held for a lease is there for the first event on it alone.
        least = freed.pop(event.lease_id or "", 0)
        more = max(0, _took(event).of(dimension) - least)
        if more and not _may_pass(history, entity, event, dimension):
            raise Violated(f"{more} {dimension.value} of {entity} was never held: {event}")
        found += more
    return found


def _may_pass(history: History, entity: str, event: UsageEvent, dimension: Dimension) -> bool:
    """Whether the API says that this call may: the budget became hard while it was under way or, of callers who are not
    orderly, it has no lease, or its hold is over or was too small."""
    is_orderly = calls_of(history.world).orderly
    if event.lease_id is None:
        return not is_orderly
    known = history.taken.get(event.lease_id)
    if known is None:
        told = next(one for one in calls_of(history.world).told if one.lease_id == event.lease_id)
        at_ms = told.request.started_ms
        until_ms = told.request.ended_ms or at_ms
        if entity not in history.chain(event.entity, at_ms, until_ms):
            # It was moved below this one meanwhile.
            return True
        # A budget that was not hard at some moment of the acquire may have let it through without a hold.
        return not history.must_hold(entity, event.entity, at_ms, until_ms)
    taken, hold = known
    if any(one.entity == entity for one in hold.ledgers):
        # A limit that was set while the call was under way: nothing of that dimension was held.
        unheld = not hold.held_in(entity).of(dimension)
        return not is_orderly or (unheld and not history.must_hold_of(dimension, entity, hold.entity, taken.at_ms))
    return not history.must_hold(entity, hold.entity, taken.at_ms, taken.at_ms)


def periods_are_right(world: World) -> None:
    """They never move back, and are neither behind nor ahead of what every clock in the world says."""
    history = history_of(world)
    slowest_ms = min(world.skews_ms) - world.longest_request_ms
    fastest_ms = max(world.skews_ms) + AHEAD_MAX_MS + max(world.skews_ms) - min(world.skews_ms)
    for write in history.writes:
        for entity, changed in write.ledgers.items():
            periods = changed.after.standing.periods
            if periods.month != periods.day[:6]:
                raise Violated(f"{entity} is in {periods}")
            if changed.before is not None and periods < changed.before.standing.periods:
                raise Violated(f"{entity} went back from {changed.before.standing.periods} to {periods}")
            if changed.before is not None and _of_a_refresh(changed.before, changed.after):
                # It works in whatever periods there are.
                continue
            first, last = (day_at(history.zones, write.at_ms + by_ms) for by_ms in (slowest_ms, fastest_ms))
            if not first <= periods.day <= last:
                raise Violated(f"{entity} is in {periods.day} at {write.at_ms}, between {first} and {last}")


def _of_a_refresh(before: Ledger, after: Ledger) -> bool:
    return (before.epoch, before.refresh_id) != (after.epoch, after.refresh_id)


def events_are_charged(world: World) -> None:
    """To the chain of their hold, in the epoch of each ledger, on the day of the call or of its hold."""
    history = history_of(world)
    for write in history.writes:
        for event in write.events:
            _, hold = history.taken.get(event.lease_id or "", (None, None))
            day = day_at(history.zones, event.occurred_at_ms)
            if hold is not None and event.chain != hold.chain:
                raise Violated(f"not charged to the chain of {hold}: {event}")
            if event.day != (day if hold is None else max(day, hold.day)):
                raise Violated(f"not of the day of its call or hold {hold}: {event}")
            _check_ledgers(history, write, event, hold)
        ended = [hold for hold in write.ended if hold.state is HoldState.SETTLED]
        if {hold.lease_id for hold in ended} - {event.lease_id for event in write.events}:
            raise Violated(f"settled without an event: {ended}")


def _check_ledgers(history: History, write: Write, event: UsageEvent, hold: Hold | None) -> None:
    listed = set() if hold is None else {one.entity for one in hold.ledgers}
    if not listed <= event.epochs.keys() <= {*event.chain, *listed}:
        raise Violated(f"charged to others than {event.chain}, {listed}: {event}")
    for entity in event.chain:
        if entity not in event.epochs and history.must_charge(entity, event.entity, write.at_ms, write.at_ms):
            raise Violated(f"not charged to {entity}: {event}")
    for entity, epoch in event.epochs.items():
        before = write.ledgers[entity].before
        if before is None or before.epoch != epoch:
            raise Violated(f"{entity} was in another epoch: {event}")
    ended = None if hold is None else history.ended.get(hold.lease_id)
    # One moment may have several writes: which came first tells.
    if hold is not None and (ended is None or ended.number > write.number):
        raise Violated(f"its hold stayed open: {event}")


def holds_are_whole(world: World) -> None:
    """Whoever was admitted has a hold in every ledger that must agree; whoever was refused changed nothing."""
    history, calls = history_of(world), calls_of(world)
    for write, hold in history.taken.values():
        missing = [
            entity
            for entity in hold.chain
            if entity not in {one.entity for one in hold.ledgers}
            and history.must_hold(entity, hold.entity, write.at_ms, write.at_ms)
        ]
        if missing or len({one.amounts for one in hold.ledgers}) > 1:
            raise Violated(f"does not hold in {missing}: {hold}")
        if any(write.ledgers[one.entity].after.standing.periods.day > hold.day for one in hold.ledgers):
            raise Violated(f"one of its ledgers is in a later day: {hold}")
    for told in calls.told:
        started_ms, ended_ms = told.request.started_ms, told.request.ended_ms or told.request.started_ms
        if told.hold is not None and history.taken.get(told.lease_id, (None, None))[1] != told.hold:
            raise Violated(f"{told.request}, but this is not stored: {told.hold}")
        chain = history.chain(told.entity, started_ms, ended_ms)
        if told.hold is None and any(history.must_hold(one, told.entity, started_ms, ended_ms) for one in chain):
            raise Violated(f"{told.request} without a hold")
    refused = set(calls.refused)
    for write in history.writes:
        if write.cause not in refused:
            continue
        for entity, changed in write.ledgers.items():
            before = changed.before
            spent = before is not None and before.standing.at(changed.after.standing.periods) != changed.after.standing
            if write.taken or write.ended or spent:
                raise Violated(f"{world.history[int(str(write.cause))]} changed {entity}: {changed}")


def holds_wait_for_reports(world: World) -> None:
    """None is taken to be forgotten before its lease was over for a minute, by the clock of whoever says so."""
    for write in history_of(world).writes:
        for hold in write.ended:
            least_ms = hold.expires_at_ms + EXPIRED_WAITS_MS - max(world.skews_ms)
            if hold.state is HoldState.EXPIRED and write.at_ms < least_ms:
                raise Violated(f"swept at {write.at_ms}: {hold}")


def counted_as_told(world: World) -> None:
    """Who was told that a call was counted finds it counted, once."""
    counted = [event.request_id for write in history_of(world).writes for event in write.events]
    if len(counted) != len(set(counted)):
        raise Violated("a call was counted twice")
    for request_id in calls_of(world).counted:
        if request_id not in counted:
            raise Violated(f"{request_id} was told to be counted")


def everything_held_is_freed(world: World) -> None:
    """Once nobody asks any more and nothing fails, sweeps end what is open. Changes the world, so it goes first."""

    def work(host: Host) -> None:
        sweep = desks_in(world).at(host, world.scheduler.clock_ms).money.hold_sweep
        for _ in range(PEACEFUL_SWEEPS):
            open_holds = [item for item in world.table.items() if item.get("kind") == HOLD and item["state"] == "open"]
            if not open_holds:
                break
            last_ms = max(int(str(item["expires_at_ms"])) for item in open_holds)
            world.scheduler.pause(max(MINUTE_MS // 2, last_ms + GRACE_MS - world.scheduler.now_ms))
            run = sweep.run(lambda: False)
            if run.failures:
                raise run.failures[0]
        else:
            raise Violated(f"still held: {open_holds}")

    world.afterwards(work)
    for item in world.table.items():
        if item.get("kind") == LEDGER and decode_ledger(item).standing.held != NOTHING:
            raise Violated(f"held for nobody: {item}")


def refreshes_find_nothing(world: World) -> None:
    """No refresh that was run finds a difference, and neither does one of everything in the end. Changes the world."""
    calls = calls_of(world)
    if not calls.refreshes:
        return

    def work(host: Host) -> None:
        money = desks_in(world).at(host, world.scheduler.clock_ms).money
        last = money.budget_refreshes.start(world.namespace, None)
        for _ in range(PEACEFUL_RUNS):
            world.scheduler.pause(INDEXES_MS)
            run = host.jobs.run_open(money.work, lambda: False)
            if run.failures:
                raise run.failures[0].error
            job = host.jobs.get(world.namespace, last.job_id)
            if job.state is JobState.DONE:
                break
        else:
            raise Violated(f"not done: {job}")
        for item in world.table.items():
            result: Any = item.get("result") if item.get("job_kind") == REFRESH_BUDGETS else None
            if result and result.get("differing"):
                raise Violated(f"a refresh found {result}")

    world.afterwards(work)


def cursors_pass_what_is_over(world: World) -> None:
    """No hold is open in a minute that the sweeps have passed, and they never go back."""
    open_minutes: dict[str, int] = {}
    passed = 0
    for record in world.table.stream:
        item: Any = record.new or {}
        if item.get("kind") == HOLD:
            hold = decode_hold(item)
            open_minutes.pop(hold.lease_id, None)
            if hold.state is HoldState.OPEN:
                open_minutes[hold.lease_id] = hold.expires_at_ms // MINUTE_MS
        elif item.get("kind") == "sweep":
            if item["minute"] < passed:
                raise Violated(f"the sweep went back to {item['minute']}")
            passed = item["minute"]
            if passed * MINUTE_MS + SETTLED_MS > record.created_ms + max(world.skews_ms) and record.old is not None:
                raise Violated(f"{passed} is not old enough at {record.created_ms}")
        if any(minute < passed for minute in open_minutes.values()):
            raise Violated(f"open before minute {passed}: {open_minutes}")


def _took(event: UsageEvent) -> Amounts:
    return Amounts(event.cost_usd_micros or 0, sum(event.tokens.values()), 1)
