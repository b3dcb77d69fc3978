"""Holds as this process saw them.

Nothing of a hold ever changes but that it is closed, and whoever closes one asks that it is still open: so an old image
is good enough to build from.
"""

from collections.abc import Iterable
from dataclasses import replace
from threading import Lock
from typing import Final

from cachetools import LRUCache

from sluice.core.holds import Hold, HoldState
from sluice.core.lease import Lease
from sluice.repository import budget_keys
from sluice.repository.holds import decode_hold
from sluice.repository.store import Store
from sluice.repository.wire import Item

HOLDS_MAX: Final = 2_000

_Name = tuple[str, str]


class HoldBook:
    """Safe to share between threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._holds: LRUCache[_Name, Hold] = LRUCache(HOLDS_MAX)
        self._lock = Lock()

    def find(self, lease: Lease) -> Hold | None:
        """Of a lease that has one. None: it was closed so long ago that nothing is left of it."""
        with self._lock:
            known = self._holds.get((lease.namespace, lease.lease_id))
        if known is not None:
            return known
        item = self._store.get(budget_keys.hold(lease.namespace, lease.lease_id), consistent=True)
        return None if item is None else self.learn(item)

    def load(self, leases: Iterable[Lease]) -> None:
        """Many at once, so that they are found without further reads."""
        names = dict.fromkeys((lease.namespace, lease.lease_id) for lease in leases if lease.holds)
        with self._lock:
            wanted = [name for name in names if name not in self._holds]
        # One is found as cheaply by itself.
        if len(wanted) > 1:
            for item in self._store.batch_get([budget_keys.hold(*name) for name in wanted], consistent=True):
                self.learn(item)

    def taken(self, hold: Hold) -> None:
        """It was put just now."""
        self._remember(hold)

    def learn(self, item: Item) -> Hold:
        hold = decode_hold(item)
        self._remember(hold)
        return hold

    def now(self, hold: Hold) -> Hold:
        """As far as this process knows by now."""
        with self._lock:
            return self._holds.get((hold.namespace, hold.lease_id), hold)

    def closed(self, hold: Hold, how: HoldState) -> None:
        """It happened."""
        self._remember(replace(hold, state=how))

    def forget(self, hold: Hold) -> None:
        """It is gone: it was closed long ago."""
        self.closed(hold, HoldState.EXPIRED)

    def _remember(self, hold: Hold) -> None:
        with self._lock:
            known = self._holds.get((hold.namespace, hold.lease_id))
            # A closed one never opens again.
            if known is None or known.state is HoldState.OPEN:
                self._holds[hold.namespace, hold.lease_id] = hold
