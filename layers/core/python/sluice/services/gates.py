"""Whom a table that does not answer may let through, where `on_unavailable` allows it: who had no hard budget when it
last did. Money is closed: not knowing keeps the gate shut, and so does a hard budget that came to be known since."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import Final

from cachetools import LRUCache, TTLCache

UNBUDGETED_MS: Final = 3_600_000
"""So long it counts that somebody had no hard budget when the table last answered."""
_REMEMBERED_MAX: Final = 10_000
_ALL: Final = ""


@dataclass(slots=True)
class Gate:
    """Whether a table that does not answer may let this one through."""

    shut: bool

    def may_open(self) -> bool:
        return not self.shut


class Gates:
    """Safe to share between threads."""

    def __init__(self, timer_ms: Callable[[], int]) -> None:
        self._looks = count()
        self._lock = Lock()
        # Which look found no hard budget, by namespace and entity; all entities where the namespace has no budget.
        self._unbudgeted: TTLCache[tuple[str, str], int] = TTLCache(_REMEMBERED_MAX, UNBUDGETED_MS, timer_ms)
        self._hard: TTLCache[tuple[str, str], bool] = TTLCache(_REMEMBERED_MAX, UNBUDGETED_MS, timer_ms)
        # Which look found a hard budget that was not known, by namespace. Those who stand below it are not known.
        self._hardened: LRUCache[str, int] = LRUCache(_REMEMBERED_MAX)

    def of(self, namespace: str, entity: str) -> Gate:
        """By what the table said last."""
        with self._lock:
            hardened = self._hardened.get(namespace, -1)
            known = any(self._unbudgeted.get((namespace, name), -1) > hardened for name in (_ALL, entity))
        return Gate(shut=not known)

    def looked(self, namespace: str, entity: str, hard: Collection[str], *, has_any: bool) -> None:
        """The table answered. `hard`: whose hard budgets this entity meets. `has_any`: whether anybody has a budget."""
        with self._lock:
            look = next(self._looks)
            if any((namespace, name) not in self._hard for name in hard):
                self._hardened[namespace] = look
            self._hard.update({(namespace, name): True for name in hard})
            for name, unbudgeted in ((_ALL, not has_any), (entity, not hard)):
                if unbudgeted:
                    self._unbudgeted[namespace, name] = look
                else:
                    self._unbudgeted.pop((namespace, name), None)
