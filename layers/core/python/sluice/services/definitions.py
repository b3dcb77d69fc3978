"""What labels stand for: the definitions of a namespace, the inference profiles of an app or org. Kept for a minute.

All of them are read at once, because a model id is looked up among all of them; `LABELS_MAX` bounds how many there are.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Final

from cachetools import LRUCache, TLRUCache

from sluice.core.labels import InferenceProfile, LabelDefinition
from sluice.repository.labels import decode_label, labels_query
from sluice.repository.profiles import decode_profile, profiles_query
from sluice.repository.requests import QueryRequest
from sluice.repository.store import Store
from sluice.repository.wire import Item

CACHE_MS: Final = 60_000
CACHE_SIZE: Final = 20_000
"""In definitions, not in namespaces: one namespace may have a thousand."""
AGAIN_MS: Final = 1_000
"""What was read within that is not read again, whoever asks for what is not there."""
LABELS_MAX: Final = 1_000
"""So many labels a namespace may have, and so many profiles an app. Two writers at once may pass it by a few."""
_NAMESPACES: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Cached:
    labels: Mapping[str, LabelDefinition]
    profiles: Mapping[str, InferenceProfile]
    read_ms: int


class Definitions:
    """Safe to share between threads. The timer must be monotonic: a clock set back would keep old ones alive.

    A change acts within CACHE_MS in every process. That there is none is kept as well, but nobody is told so before
    `look_again`: what was just defined elsewhere works at once.
    """

    def __init__(self, store: Store, timer_ms: Callable[[], int]) -> None:
        self._store = store
        self._timer_ms = timer_ms
        # By namespace and entity; the labels stand under the empty name.
        self._cache: TLRUCache[tuple[str, str], _Cached] = TLRUCache(
            CACHE_SIZE, _until, timer=timer_ms, getsizeof=_weight
        )
        self._forgotten: LRUCache[str, int] = LRUCache(_NAMESPACES)
        self._lock = Lock()

    def labels(self, namespace: str) -> Mapping[str, LabelDefinition]:
        def read(read_ms: int) -> _Cached:
            found = map(decode_label, self._all(labels_query(namespace)))
            return _Cached({label.label: label for label in found}, {}, read_ms)

        return self._find(namespace, "", read).labels

    def profiles(self, namespace: str, entity: str) -> Mapping[str, InferenceProfile]:
        """By label. `entity`: an app, or the org for those of all apps."""

        def read(read_ms: int) -> _Cached:
            found = map(decode_profile, self._all(profiles_query(namespace, entity)))
            return _Cached({}, {profile.label: profile for profile in found}, read_ms)

        return self._find(namespace, entity, read).profiles

    def forget(self, namespace: str) -> None:
        """Drops what is kept of a namespace: something of it was changed here."""
        with self._lock:
            self._forgotten[namespace] = self._forgotten.get(namespace, 0) + 1
            for cached in [key for key in self._cache if key[0] == namespace]:
                with suppress(KeyError):
                    del self._cache[cached]

    def look_again(self, namespace: str) -> bool:
        """Before something is said to be missing. False where all of it was read just now."""
        with self._lock:
            known = [self._cache.get(key) for key in list(self._cache) if key[0] == namespace]
        now_ms = self._timer_ms()
        if all(cached is not None and now_ms - cached.read_ms < AGAIN_MS for cached in known):
            return False
        self.forget(namespace)
        return True

    def _find(self, namespace: str, name: str, read: Callable[[int], _Cached]) -> _Cached:
        with self._lock:
            cached = self._cache.get((namespace, name))
            forgotten = self._forgotten.get(namespace, 0)
        if cached is not None:
            return cached
        found = read(self._timer_ms())
        with self._lock:
            # What was read before a change was made must not be kept after it.
            if self._forgotten.get(namespace, 0) == forgotten:
                self._cache[namespace, name] = found
        return found

    def _all(self, request: QueryRequest) -> list[Item]:
        page = self._store.query(request)
        items = list(page.items)
        while page.next_start is not None:
            page = self._store.query({**request, "ExclusiveStartKey": page.next_start})
            items += page.items
        return items


def _until(_key: object, cached: _Cached, _now_ms: float) -> float:
    return cached.read_ms + CACHE_MS


def _weight(cached: _Cached) -> int:
    return min(CACHE_SIZE, 1 + len(cached.labels) + len(cached.profiles))
