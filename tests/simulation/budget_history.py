"""What happened to budgets, told by the stream of changes alone, and what budgets and defaults said for longer than any
process may remember."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, Final

from sluice.core.budget import DEFAULTS, Dimension, Span, Terms, effective_terms
from sluice.core.holds import Hold, HoldState
from sluice.repository import schema
from sluice.repository.events import USAGE_EVENT, UsageEvent, decode_event
from sluice.repository.holds import HOLD, decode_hold
from sluice.repository.items import ENTITY, decode_entity
from sluice.repository.ledger_items import LEDGER, Ledger, decode_ledger
from tests.simulation.budget_hosts import ORG, zones_of
from tests.simulation.faults import STALE_MOST_MS
from tests.simulation.scenario import Violated
from tests.simulation.stream import StreamRecord
from tests.simulation.world import World

REMEMBERED_MS: Final = 60_000 + STALE_MOST_MS
_HOLD_INDEX: Final = frozenset({schema.index_partition_key(schema.GSI3), schema.index_sort_key(schema.GSI3)})


@dataclass(frozen=True)
class Changed:
    before: Ledger | None
    after: Ledger

    def turned(self, span: Span) -> bool:
        return self.before is None or self.before.standing.periods.of_span(span) != self.after.standing.periods.of_span(
            span
        )


@dataclass
class Write:
    """One write, or one transaction, by what it changed of budgets. `number`: in their order. `events`: put by it."""

    number: int
    at_ms: int
    cause: object
    ledgers: dict[str, Changed] = field(default_factory=dict)
    taken: list[Hold] = field(default_factory=list)
    ended: list[Hold] = field(default_factory=list)
    events: list[UsageEvent] = field(default_factory=list)


class History:
    """Of the budgets of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.writes = [write for write in _writes(world.table.stream) if write is not None]
        self._states: dict[str, list[tuple[int, Ledger]]] = defaultdict(list)
        self._parents: dict[str, list[tuple[int, str | None]]] = defaultdict(list)
        self.taken: dict[str, tuple[Write, Hold]] = {}
        self.ended: dict[str, Write] = {}
        for write in self.writes:
            for entity, changed in write.ledgers.items():
                self._states[entity].append((write.at_ms, changed.after))
            self.taken |= {hold.lease_id: (write, hold) for hold in write.taken}
            self.ended |= {hold.lease_id: write for hold in write.ended}
        for record in world.table.stream:
            if record.new is not None and record.new.get("kind") == ENTITY:
                known = decode_entity(record.new)
                self._parents[known.entity].append((record.created_ms, known.parent))

    @cached_property
    def zones(self) -> Any:
        return zones_of(self.world)

    def states(self, entity: str, from_ms: int, to_ms: int) -> list[Ledger | None]:
        """All that its ledger was meanwhile; None where there was none."""
        return list(_meanwhile(self._states.get(entity, []), from_ms, to_ms))

    def must_hold(self, entity: str, asks: str, from_ms: int, to_ms: int) -> bool:
        """Whether everybody knew meanwhile that this ledger has hard limits for whoever asks."""
        found = self._terms(entity, asks, from_ms, to_ms)
        return all(terms is not None and bool(terms.hard_limits) for terms in found)

    def must_hold_of(self, dimension: Dimension, entity: str, asks: str, at_ms: int) -> bool:
        """Whether everybody knew then that it has a hard limit of that dimension."""
        found = self._terms(entity, asks, at_ms, at_ms)
        return all(
            terms is not None and any(slot.dimension is dimension for slot in terms.hard_limits) for terms in found
        )

    def must_charge(self, entity: str, asks: str, from_ms: int, to_ms: int) -> bool:
        """Whether everybody knew meanwhile that it takes part."""
        return all(terms is not None for terms in self._terms(entity, asks, from_ms, to_ms))

    def chain(self, entity: str, from_ms: int, to_ms: int) -> tuple[str, ...]:
        """As far as everybody knew the same one meanwhile."""
        since_ms = from_ms - REMEMBERED_MS - self.world.longest_request_ms
        found = [entity]
        while found[-1] != ORG:
            parents = set(_meanwhile(self._parents[found[-1]], since_ms, to_ms))
            (parent, *others) = parents
            if others or parent is None:
                break
            found.append(parent)
        return tuple(found)

    def _terms(self, entity: str, asks: str, from_ms: int, to_ms: int) -> Iterator[Terms | None]:
        """All that could have held for it by what anybody knew. None: it took no part."""
        since_ms = from_ms - REMEMBERED_MS - self.world.longest_request_ms
        mine, defaults = (self.states(one, since_ms, to_ms) for one in (entity, DEFAULTS))
        for ledger in mine:
            for inherited in defaults:
                if inherited is None or not _takes_part(entity, asks, ledger, inherited):
                    yield None
                else:
                    own = None if ledger is None else ledger.own
                    yield effective_terms(own, None if entity == ORG else inherited.own)


def _takes_part(entity: str, asks: str, ledger: Ledger | None, defaults: Ledger) -> bool:
    """Whoever asks has a ledger by the defaults, but for the org; those above only with a budget of their own."""
    if ledger is None:
        return entity == asks and entity != ORG and defaults.has_own
    return entity == asks or ledger.has_own


def history_of(world: World) -> History:
    known = world.notes.get("budget history")
    if known is None or known[0] != len(world.table.stream):
        known = world.notes["budget history"] = (len(world.table.stream), History(world))
    found: History = known[1]
    return found


def _meanwhile(states: Sequence[tuple[int, Any]], from_ms: int, to_ms: int) -> Iterator[Any]:
    before = None
    for at_ms, state in states:
        if at_ms > to_ms:
            break
        if at_ms > from_ms:
            yield before
        before = state
    yield before


def _writes(stream: Iterable[StreamRecord]) -> Iterator[Write | None]:
    for number, (_, records) in enumerate(groupby(stream, key=lambda record: record.write)):
        yield _write(number, list(records))


def _write(number: int, records: Sequence[StreamRecord]) -> Write | None:
    write = Write(number, records[0].created_ms, records[0].cause)
    for record in records:
        item: Any = record.new or record.old
        kind = item.get("kind")
        if kind in {LEDGER, HOLD} and record.new is None:
            raise Violated(f"gone is {item}")
        if kind == LEDGER:
            after = decode_ledger(item)
            write.ledgers[after.entity] = Changed(None if record.old is None else decode_ledger(record.old), after)
        elif kind == HOLD:
            _add_hold(write, record, decode_hold(item))
        elif kind == USAGE_EVENT and record.old is None:
            write.events.append(decode_event(item))
    return write if write.ledgers or write.taken or write.ended or write.events else None


def _add_hold(write: Write, record: StreamRecord, hold: Hold) -> None:
    is_open, item = hold.state is HoldState.OPEN, record.new or {}
    if is_open != (item.keys() >= _HOLD_INDEX) or is_open == (schema.TTL_ATTRIBUTE in item):
        raise Violated(f"a hold that is {hold.state.value} has {sorted(item)}")
    if record.old is None:
        if not is_open:
            raise Violated(f"begins closed: {hold}")
        write.taken.append(hold)
        return
    if decode_hold(record.old).state is not HoldState.OPEN:
        raise Violated(f"a closed hold was changed to {hold}")
    write.ended.append(hold)
