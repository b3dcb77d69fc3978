"""The settings of orgs and apps as requests need them: read together, and kept for less than a minute.

What changes at a midnight is planned at least two minutes ahead, so every process knows it in time: also for a call
that a client reports whose clock is a minute ahead, and after a change that took its time to be stored.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final

from cachetools import TLRUCache

from sluice.core.errors import NotFound
from sluice.core.orgs import NEW_APP, EffectiveSettings, effective_settings
from sluice.repository import keys
from sluice.repository.orgs import App, Org, decode_app, decode_org
from sluice.repository.store import Store

CACHE_MS: Final = 45_000
"""Plus the minute by which a call may be reported ahead, and what clocks, old reads and slow writes add, it is less
than timelines.LEAD_MS: else two processes would count such a call on two days."""
CACHE_SIZE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Tenant:
    """An org, and one of its apps or None for the org itself."""

    org: Org
    app: App | None

    @property
    def entity(self) -> str:
        return self.org.org if self.app is None else self.app.app

    @property
    def effective(self) -> EffectiveSettings:
        return effective_settings(self.org.settings, NEW_APP if self.app is None else self.app.settings)


@dataclass(frozen=True, slots=True)
class _Cached:
    org: Org | None
    app: App | None
    read_ms: int


class SettingsCache:
    """Safe to share between threads. The timer must be monotonic: a clock set back would keep old settings alive."""

    def __init__(self, store: Store, timer_ms: Callable[[], int]) -> None:
        self._store = store
        self._timer_ms = timer_ms
        # By namespace and app; the org's alone stand under the empty name.
        self._cache: TLRUCache[tuple[str, str], _Cached] = TLRUCache(CACHE_SIZE, _until, timer=timer_ms)
        self._lock = Lock()

    def org(self, namespace: str) -> Org:
        return self.tenant(namespace).org

    def tenant(self, namespace: str, app: str | None = None) -> Tenant:
        """`app`: an entity; the org's settings alone hold for one that is no app. Raises NotFound without an org."""
        found = self._find(namespace, app or "")
        if found.org is None:
            raise NotFound("there is no such org")
        return Tenant(found.org, found.app)

    def tenant_now(self, namespace: str, app: str | None = None) -> Tenant:
        """As `tenant`, past the cache and consistently, and kept from now on: for what is decided for a whole day."""
        found = self._read(namespace, app or "", consistent=True)
        if found.org is None:
            raise NotFound("there is no such org")
        return Tenant(found.org, found.app)

    def org_now(self, namespace: str) -> Org | None:
        """Past the cache and consistently: for whoever must not miss a counter shard."""
        item = self._store.get(keys.org_settings(namespace), consistent=True)
        return None if item is None else decode_org(item)

    def _find(self, namespace: str, app: str) -> _Cached:
        with self._lock:
            cached = self._cache.get((namespace, app))
        return cached or self._read(namespace, app, consistent=False)

    def _read(self, namespace: str, app: str, *, consistent: bool) -> _Cached:
        org_key, app_key = keys.org_settings(namespace), keys.app_settings(namespace, app)
        read_ms = self._timer_ms()
        wanted = [org_key, app_key] if app else [org_key]
        items = {keys.key_of(item): item for item in self._store.batch_get(wanted, consistent=consistent)}
        found = _Cached(
            org=decode_org(items[org_key]) if org_key in items else None,
            app=decode_app(items[app_key]) if app and app_key in items else None,
            read_ms=read_ms,
        )
        if found.org is not None:
            # An org that is not there yet may be there in a moment.
            with self._lock:
                self._cache[namespace, app] = found
        return found


def _until(_key: object, cached: _Cached, _now_ms: float) -> float:
    return cached.read_ms + CACHE_MS
