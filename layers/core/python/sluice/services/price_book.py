"""What a model costs on a day, in a region, for a namespace. The nearest source that knows it decides:

the namespace's own price, then what AWS said, then what ships with the product, then the label's own price. Each of
the first two for just that region, else for no region, by the newest price that began on the day or before it. So an
event of a past day has the price of that day, as far as it is known by now.

Own prices are for exactly the id they name. What AWS said is looked for under the id and then under the model's own,
for a profile costs what its model costs where nothing else is said. A global profile may cost less than its model does
in a region: where a price of its own ships, what AWS said of the model is none of it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock
from typing import Final, Protocol

from cachetools import LRUCache, TLRUCache

from sluice.core.labels import LabelDefinition, fallback_price
from sluice.core.model_ids import served_anywhere, without_geography
from sluice.core.period import shown_day
from sluice.core.pricing import Price, in_force
from sluice.repository.keys import REGISTRY_NAMESPACE
from sluice.repository.prices import StoredPrice, decode_price, prices_query
from sluice.repository.store import Store
from sluice.repository.wire import Item

CACHE_MS: Final = 60_000
CACHE_SIZE: Final = 20_000
"""In prices, not in models: a model may have a thousand."""
AGAIN_MS: Final = 1_000
"""What was read within that is not read again, whoever asks for what is not there."""
_MODELS: Final = 10_000


class Shipped(Protocol):
    """The prices that come with the product."""

    def find(self, model_id: str, region: str | None) -> Price | None: ...

    def lists(self, model_id: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Cached:
    prices: tuple[Price, ...]
    read_ms: int


class PriceBook:
    """Safe to share between threads. The timer must be monotonic: a clock set back would keep old prices alive.

    A price that is put acts within CACHE_MS in every process. That there is none is kept as well; but before a price is
    said to be unknown the namespace's own are read again, for an event that is accepted without one stays without. The
    definition is the caller's to read again.
    """

    def __init__(self, store: Store, shipped: Shipped, timer_ms: Callable[[], int]) -> None:
        self._store = store
        self._shipped = shipped
        self._timer_ms = timer_ms
        # By namespace and model id.
        self._cache: TLRUCache[tuple[str, str], _Cached] = TLRUCache(
            CACHE_SIZE, _until, timer=timer_ms, getsizeof=_weight
        )
        self._forgotten: LRUCache[tuple[str, str], int] = LRUCache(_MODELS)
        self._lock = Lock()

    def find(
        self, namespace: str, model_id: str, region: str | None, day: int, definition: LabelDefinition | None
    ) -> Price | None:
        """`definition`: of the label that the call is counted under. None where nobody knows a price."""
        found = self._find(namespace, model_id, region, day, definition)
        if found is not None or not self.look_again(namespace, model_id):
            return found
        return self._find(namespace, model_id, region, day, definition)

    def look_again(self, namespace: str, model_id: str) -> bool:
        """Before a price is said to be missing. False where its own prices were read just now."""
        with self._lock:
            cached = self._cache.get((namespace, model_id))
        if cached is not None and self._timer_ms() - cached.read_ms < AGAIN_MS:
            return False
        self.forget(namespace, model_id)
        return True

    def forget(self, namespace: str, model_id: str) -> None:
        """Drops what is kept of a model's own prices: one was changed, here or by another process."""
        with self._lock:
            self._forgotten[namespace, model_id] = self._forgotten.get((namespace, model_id), 0) + 1
            self._cache.pop((namespace, model_id), None)

    def _find(
        self, namespace: str, model_id: str, region: str | None, day: int, definition: LabelDefinition | None
    ) -> Price | None:
        shown = shown_day(day)
        own = in_force(self._prices(namespace, model_id), region, shown)
        if own is not None:
            return own
        for known_as in self._said_of(model_id):
            said = in_force(self._prices(REGISTRY_NAMESPACE, known_as), region, shown)
            if said is not None:
                return said
        shipped = self._shipped.find(model_id, region)
        if shipped is not None or definition is None:
            return shipped
        return fallback_price(definition)

    def _said_of(self, model_id: str) -> Iterable[str]:
        """The ids under which AWS may have said what this one costs."""
        model = without_geography(model_id)
        if model_id == served_anywhere(model) and self._shipped.lists(model_id):
            return (model_id,)
        return dict.fromkeys((model_id, model))

    def _prices(self, namespace: str, model_id: str) -> tuple[Price, ...]:
        with self._lock:
            cached = self._cache.get((namespace, model_id))
            forgotten = self._forgotten.get((namespace, model_id), 0)
        if cached is not None:
            return cached.prices
        read_ms = self._timer_ms()
        found = _Cached(tuple(one.price for one in all_prices(self._store, namespace, model_id)), read_ms)
        with self._lock:
            # What was read before a change was made must not be kept after it.
            if self._forgotten.get((namespace, model_id), 0) == forgotten:
                self._cache[namespace, model_id] = found
        return found.prices


def all_prices(store: Store, namespace: str, model_id: str) -> list[StoredPrice]:
    """As they are now, the latest to begin first."""
    items: list[Item] = []
    start: Item | None = None
    while True:
        page = store.query(prices_query(namespace, model_id, start))
        items += page.items
        start = page.next_start
        if start is None:
            return [decode_price(item) for item in items]


def _until(_key: object, cached: _Cached, _now_ms: float) -> float:
    return cached.read_ms + CACHE_MS


def _weight(cached: _Cached) -> int:
    return min(CACHE_SIZE, 1 + len(cached.prices))
