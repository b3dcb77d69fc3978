"""Rebuilds ledgers from the usage events while traffic goes on.

1. Each ledger begins a new epoch and keeps a copy of what was spent until then, in one update.
2. The job rests until the indexes surely show whoever has reported before that.
3. All events of the month that carry an earlier epoch of one of these ledgers are summed up, whoever reported them.
   None of these can come any more: every event is put together with an update that asks for the epoch. One walk over
   the events is for a group of ledgers.
4. Each ledger gets the sum less the copy, once, in the periods that have not turned meanwhile.

Every step is bounded, and what it found stands in the cursor. A step that runs twice finds what the first one did.
`total` counts the ledgers that have begun, `done` those that are at their end.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from sluice.core.backoff import contended_wait_ms
from sluice.core.budget import Amounts, LedgerChange, Periods, Span, Used
from sluice.core.errors import Contended, NotFound
from sluice.core.period import day_name, day_number
from sluice.repository import budget_keys, keys
from sluice.repository.events import UsageEvent, decode_event, events_query
from sluice.repository.jobs import Job
from sluice.repository.ledger_items import Ledger, decode_ledger
from sluice.repository.ledger_refresh import begin_refresh, copied, end_refresh
from sluice.repository.ledgers import change_ledger, ledgers_queries
from sluice.repository.money_keys import EVENT_PARTITIONS
from sluice.repository.requests import QueryRequest
from sluice.repository.shapes import optional_text
from sluice.repository.store import Applied, Store
from sluice.repository.wire import Item, Value
from sluice.services.callers import START, CallerWalk
from sluice.services.effects import Effects
from sluice.services.jobs import Jobs, Step, page_start
from sluice.services.ledger_book import LedgerBook

REFRESH_BUDGETS: Final = "refresh_budgets"
GROUP: Final = 25
QUERIES_MAX: Final = 100
EVENTS_MAX: Final = 10_000
"""In one step; the last query of it may bring a megabyte more."""
NAMED_MAX: Final = 50
"""So many of the ledgers that differed are in the result, each with its difference. It must fit into an item."""
INDEXES_MS: Final = 30_000
"""Longer than indexes lag and than clocks differ."""
_ROUNDS: Final = 8

_FIELDS: Final = ("cost_usd_micros", "tokens", "executions", "errors")


@dataclass(slots=True)
class _Rebuilt:
    """One ledger on the way. `copy` and `sums`: by span. `last`: the latest of its events."""

    entity: str
    first_epoch: int
    epoch: int
    periods: Periods
    copy: dict[Span, Used]
    sums: dict[Span, Used] = field(default_factory=lambda: {span: Used() for span in Span})
    last: tuple[int, str] | None = None

    def add(self, event: UsageEvent) -> None:
        if not self.first_epoch <= event.epochs.get(self.entity, self.epoch) < self.epoch:
            return
        periods = Periods.of_name(event.day)
        one = Used(Amounts(event.cost_usd_micros or 0, sum(event.tokens.values()), 1), int(event.status.value != "ok"))
        for span in Span:
            if periods.of_span(span) == self.periods.of_span(span):
                self.sums[span] += one
        if self.last is None or event.occurred_at_ms >= self.last[0]:
            self.last = (event.occurred_at_ms, event.status.value)

    def difference(self) -> dict[Span, Used]:
        return {
            span: Used(self.sums[span].used - self.copy[span].used, self.sums[span].errors - self.copy[span].errors)
            for span in Span
        }

    def encoded(self) -> dict[str, Value]:
        item: dict[str, Value] = {
            "entity": self.entity,
            "first_epoch": self.first_epoch,
            "epoch": self.epoch,
            "day": self.periods.day,
            "month": self.periods.month,
            "copy": _encoded(self.copy),
            "sums": _encoded(self.sums),
        }
        return item if self.last is None else item | {"last_at": self.last[0], "last_status": self.last[1]}

    @classmethod
    def begun(cls, item: Item) -> "_Rebuilt":
        """Of the periods it began in, which may have turned since."""
        ledger = decode_ledger(item)
        return cls(ledger.entity, ledger.first_epoch, ledger.epoch, *copied(item))

    @classmethod
    def decoded(cls, item: Mapping[str, Any]) -> "_Rebuilt":
        last = (item["last_at"], item["last_status"]) if "last_at" in item else None
        periods = Periods(item["day"], item["month"])
        epochs = item["first_epoch"], item["epoch"]
        return cls(item["entity"], *epochs, periods, _decoded(item["copy"]), _decoded(item["sums"]), last)


class BudgetRefreshes:
    """The service behind POST /v1/budgets/refresh and POST /v1/budgets/{entity}/refresh."""

    def __init__(self, store: Store, jobs: Jobs) -> None:
        self._store = store
        self._jobs = jobs

    def start(self, namespace: str, entity: str | None) -> Job:
        """None: of all. Raises NotFound for an entity that has no counters."""
        if entity is None:
            return self._jobs.start(namespace, REFRESH_BUDGETS, {})
        if self._store.get(budget_keys.ledger(namespace, entity), consistent=True) is None:
            raise NotFound("there is nothing counted for this entity")
        return self._jobs.start(namespace, REFRESH_BUDGETS, {"entity": entity})


class RefreshBudgets:
    """The job. Safe to run twice at once."""

    def __init__(self, store: Store, book: LedgerBook, callers: CallerWalk, effects: Effects) -> None:
        self._store = store
        self._book = book
        self._callers = callers
        self._effects = effects

    def step(self, job: Job) -> Step:
        # Only this module writes what is in the cursor.
        cursor = cast("dict[str, Any]", dict(job.cursor or {}))
        try:
            if "group" in cursor:
                group = [_Rebuilt.decoded(one) for one in cursor["group"]]
                is_summed = "at" not in cursor and "behind" not in cursor
                return self._end(job, cursor, group) if is_summed else self._sum(job, cursor, group)
            if "rebuild" in cursor:
                return self._rebuild(job, cursor["rebuild"])
            if "rests_until_ms" in cursor:
                is_over = self._effects.clock_ms() >= cursor["rests_until_ms"]
                return Step(0, {"rebuild": {}}) if is_over else Step(0, cursor, rest=True)
            return self._begin(job, cursor)
        except NotFound:
            # The org was removed meanwhile.
            return Step(0, None)

    def _begin(self, job: Job, place: dict[str, Any]) -> Step:
        entities, following = self._next(job, place)
        begun = sum(self._begun(job, entity) for entity in entities)
        total = (job.total or 0) + begun
        if following is not None:
            return Step(0, following, total=total)
        rest: dict[str, Value] = {"rests_until_ms": self._effects.clock_ms() + INDEXES_MS}
        return Step(0, rest if total else None, total=total)

    def _rebuild(self, job: Job, place: dict[str, Any]) -> Step:
        """The next group of those that have begun."""
        entities, following = self._next(job, place)
        wanted = [budget_keys.ledger(job.namespace, entity) for entity in entities]
        items = self._store.batch_get(wanted, consistent=True)
        group = [_Rebuilt.begun(item) for item in items if _is_ours(item, job)]
        # A refresh that has begun later takes a ledger over, and is right about it. One without any was made since.
        overtaken = sum(not _is_ours(item, job) and _has_begun(item) for item in items)
        result = _counted_on(job, "overtaken", overtaken)
        behind: dict[str, Value] | None = None if following is None else {"rebuild": following}
        if not group:
            return Step(_ended_more(job, overtaken, behind), behind, result=result)
        first = min(one.periods.month for one in group) + "01"
        after: dict[str, Value] = {"group": [one.encoded() for one in group], "first": first, "behind": START}
        after |= {} if behind is None else {"following": behind}
        return Step(_ended_more(job, overtaken, after), after, result=result)

    def _next(self, job: Job, place: dict[str, Any]) -> tuple[list[str], dict[str, Value] | None]:
        """Some entities, and where the others begin."""
        entity = optional_text(job.parameters, "entity")
        if entity is not None:
            return [entity], None
        side = int(place.get("side", 0))
        request: QueryRequest = {**ledgers_queries(job.namespace)[side], "Limit": GROUP}
        start = page_start(place)
        if start is not None:
            request["ExclusiveStartKey"] = start
        page = self._store.query(request)
        items = self._store.batch_get([keys.key_of(item) for item in page.items], consistent=True)
        following: dict[str, Value] | None = {"side": side + 1} if side == 0 else None
        if page.next_start is not None:
            following = {"side": side, "start": page.next_start}
        return sorted(decode_ledger(item).entity for item in items), following

    def _begun(self, job: Job, entity: str) -> bool:
        """False where there is no such ledger any more."""
        key = budget_keys.ledger(job.namespace, entity)
        item = self._store.get(key, consistent=True)
        for _ in range(_ROUNDS):
            if item is None:
                return False
            seen = decode_ledger(item)
            if seen.refresh_id == job.job_id:
                return True
            present = self._book.present(job.namespace)
            now_ms = self._effects.clock_ms()
            if present > seen.standing.periods:
                # It turns first: what is copied is of the present periods.
                request = change_ledger(seen, present, LedgerChange(), now_ms)
            else:
                request = begin_refresh(seen, job.job_id, now_ms)
            # A second time it fails on the epoch or the periods, and shows what the first did.
            item = self._store.update(request, repeatable=True).item
        raise Contended(contended_wait_ms(self._effects.random_below))

    def _sum(self, job: Job, cursor: dict[str, Any], group: Sequence[_Rebuilt]) -> Step:
        """The events of some callers, in bounded steps; then those of the ones behind them."""
        at = cursor.get("at")
        if at is None:
            some = self._callers.behind(job.namespace, cursor["behind"])
            cursor |= {"callers": list(some.found), "behind": some.reached}
            at = {"caller": 0, "day": cursor["first"], "partition": 0} if some.found else None
        last_day = max(one.periods.day for one in group)
        summed = 0
        for _ in range(QUERIES_MAX):
            if at is None or summed >= EVENTS_MAX:
                break
            query = events_query(job.namespace, cursor["callers"][at["caller"]], at["day"], at["partition"])
            request: QueryRequest = {**query, "ConsistentRead": True}
            start = page_start(at)
            if start is not None:
                request["ExclusiveStartKey"] = start
            page = self._store.query(request)
            for event in _counted_somewhere(page.items):
                summed += 1
                for one in group:
                    one.add(event)
            at = _after(at, page.next_start, cursor, last_day)
        after: dict[str, Value] = cursor | {"group": [one.encoded() for one in group], "at": at}
        return Step(0, {name: value for name, value in after.items() if value is not None})

    def _end(self, job: Job, cursor: dict[str, Any], group: Sequence[_Rebuilt]) -> Step:
        result = _counted_on(job, "ledgers", len(group))
        for one in group:
            if not self._ended(job, one):
                result["overtaken"] = result.get("overtaken", 0) + 1
                continue
            difference = _encoded(one.difference())
            if any(amount for span in difference.values() for amount in span.values()):
                result["differing"] = result.get("differing", 0) + 1
                if result["differing"] <= NAMED_MAX:
                    result["entities"] = result.get("entities", {}) | {one.entity: difference}
            total = result.get("difference", {})
            result["difference"] = {
                span: {name: total.get(span, {}).get(name, 0) + amount for name, amount in amounts.items()}
                for span, amounts in difference.items()
            }
        following = cursor.get("following")
        return Step(_ended_more(job, len(group), following), following, result=result)

    def _ended(self, job: Job, one: _Rebuilt) -> bool:
        """False where another refresh of the ledger has begun since, or it is gone."""
        item = self._store.get(budget_keys.ledger(job.namespace, one.entity), consistent=True)
        for _ in range(_ROUNDS):
            if item is None:
                return False
            seen = decode_ledger(item)
            if seen.epoch != one.epoch:
                return False
            if seen.refresh_id != job.job_id:
                # In its own epoch nobody but this refresh takes the id away.
                return True
            outcome = self._store.update(
                end_refresh(seen, job.job_id, _not_turned(one, seen), one.last, self._effects.clock_ms()),
                repeatable=True,
            )
            item = outcome.item
            if isinstance(outcome, Applied):
                return True
        raise Contended(contended_wait_ms(self._effects.random_below))


def _is_ours(item: Item, job: Job) -> bool:
    return decode_ledger(item).refresh_id == job.job_id


def _has_begun(item: Item) -> bool:
    ledger = decode_ledger(item)
    return ledger.epoch != ledger.first_epoch


def _ended_more(job: Job, ledgers: int, following: Mapping[str, Value] | None) -> int:
    """Of those that have begun. With the last step all are at their end, also those that were removed meanwhile; and
    others that were made since, and overtaken as well, are none of them."""
    left = max((job.total or 0) - job.done, 0)
    return left if following is None else min(ledgers, left)


def _counted_on(job: Job, name: str, more: int) -> dict[str, Any]:
    """The result so far, with more of these if there are any."""
    result = cast("dict[str, Any]", dict(job.result or {}))
    return result | {name: result.get(name, 0) + more} if more else result


def _not_turned(one: _Rebuilt, seen: Ledger) -> dict[Span, Used]:
    periods = seen.standing.periods
    return {span: used for span, used in one.difference().items() if periods.of_span(span) == one.periods.of_span(span)}


def _counted_somewhere(items: Sequence[Item]) -> Iterator[UsageEvent]:
    return (decode_event(item) for item in items if "epochs" in item)


def _after(at: dict[str, Any], start: Item | None, cursor: Mapping[str, Any], last_day: str) -> dict[str, Any] | None:
    """Where the walk goes on: through the partitions of a day, the days of a caller, and the callers."""
    place = {name: value for name, value in at.items() if name != "start"}
    if start is not None:
        return place | {"start": start}
    if at["partition"] + 1 < EVENT_PARTITIONS:
        return place | {"partition": at["partition"] + 1}
    if at["day"] < last_day:
        return place | {"partition": 0, "day": day_name(day_number(at["day"]) + 1)}
    if at["caller"] + 1 < len(cursor["callers"]):
        return place | {"caller": at["caller"] + 1, "day": cursor["first"], "partition": 0}
    return None


def _encoded(counters: Mapping[Span, Used]) -> dict[str, Any]:
    return {
        span.value: dict(
            zip(_FIELDS, (used.used.cost_usd_micros, used.used.tokens, used.used.executions, used.errors), strict=True)
        )
        for span, used in counters.items()
    }


def _decoded(item: Mapping[str, Any]) -> dict[Span, Used]:
    found = {}
    for span in Span:
        cost, tokens, executions, errors = (item[span.value][name] for name in _FIELDS)
        found[span] = Used(Amounts(cost, tokens, executions), errors)
    return found
