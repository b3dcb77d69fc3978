"""The ledgers that take part in what an entity does, as this process saw them: good to build a guarded write from.

Images may be old. A write that is built from one fails where that matters, and the image that comes back is learned and
builds the next try. Only what a write does not ask is bounded by time: that a ledger became hard, that a first budget
came to be, or that the org's defaults changed acts within CACHE_MS.

The defaults are an item of their own, and without it a namespace has no budgets at all. A ledger remembers the version
of the defaults that its limits come from. Whoever knows a newer version stores it first; whoever meets a ledger that
is ahead of what it knows reads the defaults again.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

from cachetools import LRUCache, TLRUCache

from sluice.core.backoff import contended_wait_ms
from sluice.core.budget import DEFAULTS, Periods, Terms, effective_terms
from sluice.core.errors import Contended
from sluice.core.period import LocalDay, local_day
from sluice.core.timelines import Zones
from sluice.repository import budget_keys
from sluice.repository.ledger_items import Ledger, decode_ledger, new_ledger
from sluice.repository.ledgers import change_terms, put_ledger, with_terms
from sluice.repository.store import Store
from sluice.repository.wire import Item
from sluice.services.claims import new_generation
from sluice.services.effects import Effects
from sluice.services.settings import SettingsCache
from sluice.services.zones import ZoneCalendar

# The item of the defaults as whoever reads the limits of an entity reads it along, and when that was.
ReadAlong = Callable[[str], tuple[Item | None, int] | None]

CACHE_MS: Final = 60_000
CACHE_SIZE: Final = 10_000

_WRITE_ROUNDS: Final = 4


@dataclass(frozen=True, slots=True)
class _Cached:
    """`ledger`: None where there is none. `read_ms`: when the table was last asked for it."""

    ledger: Ledger | None
    read_ms: int


@dataclass(frozen=True, slots=True)
class _Org:
    """`root`: the entity that is the org. It inherits nothing: defaults are allowances of those who ask."""

    namespace: str
    root: str
    defaults: Ledger


class LedgerBook:
    """Safe to share between threads. The timer must be monotonic: a clock set back would keep old ledgers alive."""

    def __init__(
        self,
        store: Store,
        settings: SettingsCache,
        effects: Effects,
        timer_ms: Callable[[], int],
        read_along: ReadAlong = lambda _namespace: None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock_ms = effects.clock_ms
        self._random_below = effects.random_below
        self._timer_ms = timer_ms
        self._read_along = read_along
        self._calendar = ZoneCalendar()
        self._cache: TLRUCache[tuple[str, str], _Cached] = TLRUCache(CACHE_SIZE, _until, timer=timer_ms)
        self._days: LRUCache[str, tuple[Zones, LocalDay]] = LRUCache(CACHE_SIZE)
        self._lock = Lock()

    def present(self, namespace: str) -> Periods:
        """Of now, by the zones of the org."""
        return Periods.of(self.today(namespace))

    def today(self, namespace: str) -> LocalDay:
        zones = self._settings.org(namespace).settings.zones
        now_ms = self._clock_ms()
        with self._lock:
            known = self._days.get(namespace)
        # Every write asks, and days are dear to find.
        if known is not None and known[0] == zones and known[1].starts_ms <= now_ms < known[1].ends_ms:
            return known[1]
        day = local_day(zones, now_ms, self._calendar)
        with self._lock:
            self._days[namespace] = zones, day
        return day

    def first_epoch(self, now_ms: int) -> int:
        """Of a new ledger."""
        return new_generation(now_ms, self._random_below)

    def for_charge(self, namespace: str, chain: Sequence[str], *, is_known: bool = True) -> list[Ledger]:
        """Those that what the entity used is added to: its own, made where it is missing, and those above it with a
        budget of their own. `chain`: the entity first; nothing is made for one that is gone."""
        return self._taking_part(namespace, chain, lambda _terms: is_known)

    def for_hold(self, namespace: str, chain: Sequence[str]) -> list[Ledger]:
        """Those with hard limits, which must agree before the entity spends."""
        found = self._taking_part(namespace, chain, lambda terms: bool(terms.hard_limits))
        return [ledger for ledger in found if ledger.terms.hard_limits]

    def named(self, namespace: str, entities: Sequence[str], sure: Collection[str] = ()) -> dict[str, Ledger]:
        """Those of these entities that there are. `sure`: of whose absence a read just now must tell."""
        known = self._cached_or_stored(namespace, entities)
        gone = [entity for entity in sure if known.get(entity) is None]
        if gone:
            self.refresh(namespace, gone)
            known |= self._cached_or_stored(namespace, gone)
        return {entity: ledger for entity, ledger in known.items() if ledger is not None}

    def learn(self, item: Item) -> Ledger:
        """Takes in what a failed or single write returned."""
        ledger = decode_ledger(item)
        self.keep(ledger)
        return ledger

    def keep(self, ledger: Ledger) -> None:
        """Takes it in as the table has it now."""
        self._take_in(ledger, self._timer_ms())

    def remember(self, ledger: Ledger) -> None:
        """Takes in what a write of ours made of an image. That does not make the rest of the image any newer: one whose
        minute was over meanwhile is read again, else it would live another minute with each such write."""
        self._take_in(ledger, None)

    def _take_in(self, ledger: Ledger, read_ms: int | None) -> None:
        name = (ledger.namespace, ledger.entity)
        with self._lock:
            cached = self._cache.get(name)
            if cached is None and read_ms is not None:
                self._cache[name] = _Cached(ledger, read_ms)
            elif cached is not None and (cached.ledger is None or _is_newer(ledger, cached.ledger)):
                self._cache[name] = replace(cached, ledger=ledger)

    def refresh(self, namespace: str, entities: Iterable[str]) -> None:
        """As they are now: after a failure that returned no image, or where one is gone."""
        wanted = tuple(entities)
        read_ms = self._timer_ms()
        found = self._stored(namespace, wanted, consistent=True)
        with self._lock:
            for entity in wanted:
                self._cache[namespace, entity] = _Cached(found.get(entity), read_ms)

    def _taking_part(self, namespace: str, chain: Sequence[str], worth: Callable[[Terms], bool]) -> list[Ledger]:
        """`worth`: under which limits a ledger is made that is not there."""
        known = self._known(namespace, (DEFAULTS, *chain))
        defaults = known[DEFAULTS]
        if defaults is None:
            return []
        org = _Org(namespace, self._settings.org(namespace).org, defaults)
        asks, *others = chain
        above = [ledger for entity in others if (ledger := known[entity]) is not None and ledger.has_own]
        found = [self._of_asking(org, asks, known[asks], worth), *(self._up_to_date(org, ledger) for ledger in above)]
        # What was stored meanwhile may say that its budget was removed.
        return [ledger for ledger in found if ledger is not None and (ledger.has_own or ledger.entity == asks)]

    def _of_asking(self, org: _Org, entity: str, known: Ledger | None, worth: Callable[[Terms], bool]) -> Ledger | None:
        """Whoever asks has a ledger while the org has defaults; the org itself only with a budget of its own."""
        ledger = None if known is None else self._up_to_date(org, known)
        if ledger is not None or entity == org.root or not org.defaults.has_own:
            return ledger
        terms = effective_terms(None, org.defaults.own)
        if not worth(terms):
            return None
        version, now_ms = org.defaults.limits_version, self._clock_ms()
        present, first_epoch = self.present(org.namespace), self.first_epoch(now_ms)
        made = new_ledger(org.namespace, entity, present, terms, version, now_ms, first_epoch)
        outcome = self._store.put(put_ledger(made), repeatable=True)
        if outcome.item is None:
            self.keep(made)
            return made
        # There was one: somebody else was first, and may know other defaults.
        return self._up_to_date(org, self.learn(outcome.item))

    def _up_to_date(self, org: _Org, ledger: Ledger) -> Ledger | None:
        """Under the defaults as they are known. None if it is gone."""
        defaults = org.defaults
        for _ in range(_WRITE_ROUNDS):
            if ledger.entity == org.root or not ledger.own.inherit:
                return ledger
            if ledger.defaults_version > defaults.limits_version:
                defaults = self._defaults_again(org.namespace) or defaults
            if ledger.defaults_version >= defaults.limits_version:
                return ledger
            after = with_terms(
                ledger,
                self.present(org.namespace),
                effective_terms(ledger.own, defaults.own),
                defaults.limits_version,
                self._clock_ms(),
            )
            outcome = self._store.update(change_terms(ledger, after), repeatable=True)
            if outcome.item is None:
                self.refresh(org.namespace, [ledger.entity])
                return None
            ledger = self.learn(outcome.item)
        raise Contended(contended_wait_ms(self._random_below))

    def _defaults_again(self, namespace: str) -> Ledger | None:
        self.refresh(namespace, [DEFAULTS])
        return self._known(namespace, [DEFAULTS])[DEFAULTS]

    def _known(self, namespace: str, entities: Sequence[str]) -> dict[str, Ledger | None]:
        """From the cache, and what is not there by one batch read. Without defaults nothing else counts."""
        with self._lock:
            cached = {entity: self._cache.get((namespace, entity)) for entity in entities}
        known = {entity: one.ledger for entity, one in cached.items() if one is not None}
        if DEFAULTS not in known and (along := self._read_along(namespace)) is not None:
            item, read_ms = along
            with self._lock:
                read = _Cached(None if item is None else decode_ledger(item), read_ms)
                known[DEFAULTS] = self._taken_in(namespace, DEFAULTS, read)
        if DEFAULTS in known and known[DEFAULTS] is None:
            return known
        return self._cached_or_stored(namespace, entities)

    def _cached_or_stored(self, namespace: str, entities: Sequence[str]) -> dict[str, Ledger | None]:
        with self._lock:
            cached = {entity: self._cache.get((namespace, entity)) for entity in entities}
        known = {entity: one.ledger for entity, one in cached.items() if one is not None}
        missing = [entity for entity in cached if entity not in known]
        if not missing:
            return known
        read_ms = self._timer_ms()
        found = self._stored(namespace, missing, consistent=False)
        with self._lock:
            for entity in missing:
                known[entity] = self._taken_in(namespace, entity, _Cached(found.get(entity), read_ms))
        return known

    def _taken_in(self, namespace: str, entity: str, read: _Cached) -> Ledger | None:
        """What was read may be behind what somebody learned meanwhile."""
        cached = self._cache.get((namespace, entity))
        learned = None if cached is None else cached.ledger
        if learned is not None and (read.ledger is None or _is_newer(learned, read.ledger)):
            read = replace(read, ledger=learned)
        self._cache[namespace, entity] = read
        return read.ledger

    def _stored(self, namespace: str, entities: Sequence[str], *, consistent: bool) -> dict[str, Ledger]:
        wanted = [budget_keys.ledger(namespace, entity) for entity in entities]
        found = map(decode_ledger, self._store.batch_get(wanted, consistent=consistent))
        return {ledger.entity: ledger for ledger in found}


def _is_newer(ledger: Ledger, other: Ledger) -> bool:
    """None of these goes back. A ledger that was made anew begins again."""
    return ledger.created_at_ms != other.created_at_ms or _age(ledger) >= _age(other)


def _age(ledger: Ledger) -> tuple[int, int, Periods, int]:
    """Counters of others are missing where a transaction is remembered, but never what holds, periods or epoch."""
    return ledger.limits_version, ledger.epoch, ledger.standing.periods, ledger.version


def _until(_key: object, cached: _Cached, _now_ms: float) -> float:
    return cached.read_ms + CACHE_MS
