"""Every minute: what was held for calls that nobody settled is given back.

An open hold stands in an index under the minute in which it expires. It is closed a minute later, in one transaction
with the ledgers that it lists; whoever closes it asks that it is still open, so two sweeps, or a sweep and a usage
event, end it once. Nothing is ever left to a TTL, which would remove a hold and leave its amounts held for ever.

The index lags behind the table, and a run may die anywhere. So the cursor passes a minute only if that is ten minutes
old and was found empty, and until then every run looks into it again.

A hold that nobody can end, such as one that this release does not understand, keeps the cursor where it is, and the
backlog behind it grows. So the young minutes go first, and a run that has too little time for the backlog says where
the next one goes on, whichever process that is: whatever stands still, the others are ended.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sluice.core.backoff import contended_wait_ms
from sluice.core.errors import Contended, NotFound, Unavailable
from sluice.core.holds import Hold, HoldState
from sluice.core.signals import Signal
from sluice.repository import budget_keys
from sluice.repository.holds import decode_hold, expiring_query
from sluice.repository.keys import key_of
from sluice.repository.shapes import UnknownShape
from sluice.repository.store import BATCH_KEYS_MAX, Committed, ConditionFailed, Store
from sluice.repository.sweeps import Part, SweepCursor, decode_cursor, move_cursor, put_cursor
from sluice.repository.wire import Item
from sluice.services.effects import Effects
from sluice.services.freeing import Freeing

MINUTE_MS: Final = 60_000
GRACE_MS: Final = 60_000
"""So long after its expiry a hold is closed: until then a call that took as long as its lease may still be reported."""
SETTLED_MS: Final = 600_000
"""So old a minute must be before an empty one is passed: longer than the index lags and than clocks differ."""
YOUNG_MINUTES: Final = 15
"""The latest ones, which every run looks into before the backlog. The very first run begins with them: before the first
deployment nothing was held."""

_ROUNDS: Final = 4

OutOfTime = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class SweepRun:
    """`lag_s`: for how long the oldest hold that is still open after the run should have been closed; of a minute that
    the run did not come to, nobody knows better. `failures`: one for each hold or minute that could not be worked on.
    """

    expired: int
    lag_s: int
    failures: tuple[Exception, ...]


@dataclass(slots=True)
class _Tally:
    """`is_cut`: something that was due was left for lack of time."""

    expired: int = 0
    expired_usd_micros: int = 0
    is_cut: bool = False
    oldest_left_ms: int | None = None
    failures: list[Exception] = field(default_factory=list)

    def leave(self, due_ms: int) -> None:
        """Something that was due then stays for the next run."""
        if self.oldest_left_ms is None or due_ms < self.oldest_left_ms:
            self.oldest_left_ms = due_ms


class HoldSweep:
    def __init__(self, store: Store, freeing: Freeing, effects: Effects) -> None:
        self._store = store
        self._freeing = freeing
        self._effects = effects

    def run(self, out_of_time: OutOfTime) -> SweepRun:
        """Until all that expired is closed or the time is up."""
        now_ms = self._effects.clock_ms()
        tally = _Tally()
        try:
            self._sweep_from(self._cursor(now_ms), now_ms, tally, out_of_time)
        except (Contended, Unavailable) as error:
            tally.failures.append(error)
        lag_s = 0 if tally.oldest_left_ms is None else max(0, now_ms - tally.oldest_left_ms) // 1000
        self._count(tally, lag_s)
        return SweepRun(tally.expired, lag_s, tuple(tally.failures))

    def _sweep_from(self, cursor: SweepCursor, now_ms: int, tally: _Tally, out_of_time: OutOfTime) -> None:
        last = budget_keys.expiry_minute(now_ms - GRACE_MS)
        first_young = max(cursor.minute, last + 1 - YOUNG_MINUTES)
        young, backlog = _parts(first_young, last + 1), _backlog(cursor, first_young)
        order = young + backlog
        empty: set[Part] = set()
        resume: Part | None = None
        for number, part in enumerate(order):
            if not out_of_time():
                if self._sweep(part, now_ms, tally, out_of_time):
                    empty.add(part)
                # The first of the backlog had all the time that a run can give: if that is too little, others go on.
                if not tally.is_cut or number == len(young):
                    continue
            tally.leave(min(order[number:]).minute * MINUTE_MS + GRACE_MS)
            # Who did not come to the backlog knows no better place in it.
            resume = cursor.resume if number < len(young) else part
            break
        passed = cursor.minute
        while (passed + 1) * MINUTE_MS + SETTLED_MS <= now_ms and empty.issuperset(_parts(passed, passed + 1)):
            passed += 1
        if (passed, resume) != (cursor.minute, cursor.resume):
            # Where another run was faster nothing is lost: this one looked at what it passes just as well.
            self._store.update(move_cursor(cursor, passed, resume, now_ms), repeatable=True)

    def _cursor(self, now_ms: int) -> SweepCursor:
        item = self._store.get(budget_keys.SWEEP, consistent=True)
        if item is not None:
            return decode_cursor(item)
        first = budget_keys.expiry_minute(now_ms) - YOUNG_MINUTES
        outcome = self._store.put(put_cursor(first, now_ms), repeatable=True)
        if isinstance(outcome, ConditionFailed) and outcome.item is not None:
            return decode_cursor(outcome.item)
        return SweepCursor(first, 1)

    def _sweep(self, part: Part, now_ms: int, tally: _Tally, out_of_time: OutOfTime) -> bool:
        """Whether the index showed nothing in this part, and all of it was seen."""
        is_empty, start = True, None
        try:
            while True:
                page = self._store.query({**expiring_query(*part, start), "Limit": BATCH_KEYS_MAX})
                if page.items:
                    is_empty = False
                    for item in self._store.batch_get([key_of(one) for one in page.items], consistent=True):
                        self._end(item, part.minute, now_ms, tally, out_of_time)
                start = page.next_start
                if start is None:
                    return is_empty
                if out_of_time():
                    tally.is_cut = True
                    break
        except (Contended, Unavailable) as error:
            tally.failures.append(error)
        tally.leave(part.minute * MINUTE_MS + GRACE_MS)
        return False

    def _end(self, item: Item, minute: int, now_ms: int, tally: _Tally, out_of_time: OutOfTime) -> None:
        try:
            hold = decode_hold(item)
        except UnknownShape as error:
            # What it says of itself is not to be relied on; the index has it under this minute.
            tally.leave(minute * MINUTE_MS + GRACE_MS)
            tally.failures.append(error)
            return
        due_ms = hold.expires_at_ms + GRACE_MS
        if hold.state is not HoldState.OPEN or due_ms > now_ms:
            return
        if out_of_time():
            tally.is_cut = True
            tally.leave(due_ms)
            return
        try:
            ended = self._expire(hold)
        except NotFound:
            # The org is gone: a purge is under way, which removes the hold.
            return
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one hold, the others must go on
            tally.leave(due_ms)
            tally.failures.append(error)
            return
        if ended:
            tally.expired += 1
            tally.expired_usd_micros += max((held.amounts.cost_usd_micros for held in hold.ledgers), default=0)

    def _expire(self, hold: Hold) -> bool:
        """False where somebody else closed it."""
        for _ in range(_ROUNDS):
            ending = self._freeing.end(hold, HoldState.EXPIRED)
            if ending is None:
                return False
            # A new token each time: what is sent again after a failure is another transaction.
            outcome = self._store.transact(ending.writes, self._effects.new_token())
            if isinstance(outcome, Committed):
                self._freeing.ended(ending)
                return True
            self._freeing.overtaken(ending, outcome.failures)
        raise Contended(contended_wait_ms(self._effects.random_below))

    def _count(self, tally: _Tally, lag_s: int) -> None:
        meter = self._effects.meter
        meter.count(Signal.SWEEP_LAG_SECONDS, lag_s)
        for signal, amount in (
            (Signal.HOLDS_EXPIRED, tally.expired),
            (Signal.EXPIRED_USD_MICROS, tally.expired_usd_micros),
            (Signal.SWEEP_FAILURES, len(tally.failures)),
        ):
            if amount:
                meter.count(signal, amount)


def _parts(first: int, end: int) -> list[Part]:
    """Of these minutes, the oldest first."""
    return [Part(minute, partition) for minute in range(first, end) for partition in range(budget_keys.HOLD_PARTITIONS)]


def _backlog(cursor: SweepCursor, end: int) -> list[Part]:
    """From where it was left, and round to there."""
    parts = _parts(cursor.minute, end)
    begin = 0 if cursor.resume is None else bisect_left(parts, cursor.resume)
    return parts[begin:] + parts[:begin]
