"""Whether the bearer of a token still stands: nothing was revoked, its namespace lives, nobody is suspended.

One consistent read decides, and is remembered for CACHE_MS: so a revocation acts within that time in every process.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Final

from cachetools import LRUCache, TLRUCache

from sluice.core.errors import Suspended, Unauthorized, Unavailable
from sluice.core.identity import Bearer, Claims, Role
from sluice.core.signals import Meter, Signal
from sluice.repository import keys
from sluice.repository.namespaces import decode_namespace
from sluice.repository.orgs import decode_app, decode_org
from sluice.repository.revocations import client_mark_refuses, decode_mark
from sluice.repository.store import Store
from sluice.repository.wire import Item

CACHE_MS: Final = 30_000
CACHE_SIZE: Final = 10_000


@dataclass(frozen=True, slots=True)
class BearerTerms:
    """What the org's settings say about its callers."""

    auto_register_entities: bool


# While nothing can be read: an entity registered by mistake would stay.
_UNKNOWN_TERMS: Final = BearerTerms(auto_register_entities=False)

Refusal = type[Unauthorized] | type[Suspended]


@dataclass(frozen=True, slots=True)
class _Judged:
    verdict: BearerTerms | Refusal
    read_ms: int


class Bearers:
    """Safe to share between threads. The timer must be monotonic: a clock set back would keep a revoked token alive."""

    def __init__(self, store: Store, timer_ms: Callable[[], int], meter: Meter) -> None:
        self._store = store
        self._timer_ms = timer_ms
        self._meter = meter
        self._judged: TLRUCache[str, _Judged] = TLRUCache(CACHE_SIZE, _until, timer=timer_ms)
        self._last_terms: LRUCache[str, BearerTerms] = LRUCache(CACHE_SIZE)
        self._lock = Lock()

    def require(self, claims: Claims, *, closed: bool) -> BearerTerms:
        """`closed`: while the table does not answer, nobody is let through; else whoever has a token that we signed."""
        with self._lock:
            judged = self._judged.get(claims.token_id)
        if judged is not None:
            self._meter.count(Signal.STANDING_CACHE_HITS)
        else:
            try:
                judged = self._judge(claims)
            except Unavailable:
                self._meter.count(Signal.STANDING_LOOKUPS_FAILED)
                if closed:
                    raise
                return self._last_known(claims.bearer)
        if isinstance(judged.verdict, BearerTerms):
            return judged.verdict
        self._meter.count(Signal.TOKENS_REFUSED)
        raise judged.verdict

    def _judge(self, claims: Claims) -> _Judged:
        self._meter.count(Signal.STANDING_READS)
        # Counted from before the read: what is stored a moment later is not in it.
        read_ms = self._timer_ms()
        found = self._store.batch_get([*mark_keys(claims), *standing_keys(claims.bearer)], consistent=True)
        items = {keys.key_of(item): item for item in found}
        judged = _Judged(_verdict(claims, items), read_ms)
        with self._lock:
            self._judged[claims.token_id] = judged
            if isinstance(judged.verdict, BearerTerms):
                self._last_terms[claims.bearer.namespace] = judged.verdict
        return judged

    def _last_known(self, bearer: Bearer) -> BearerTerms:
        with self._lock:
            return self._last_terms.get(bearer.namespace, _UNKNOWN_TERMS)


def mark_keys(claims: Claims) -> list[keys.Key]:
    """Where it would be written that this token is worth nothing."""
    return [
        keys.revoked_token(claims.token_id),
        keys.revoked_family(claims.family),
        keys.revoked_client(claims.bearer.client_id),
    ]


def standing_keys(bearer: Bearer) -> list[keys.Key]:
    wanted = [keys.namespace_by_id(bearer.namespace), keys.org_settings(bearer.namespace)]
    return [*wanted, keys.app_settings(bearer.namespace, bearer.entity)] if bearer.role is Role.APP else wanted


def is_revoked(claims: Claims, items: Mapping[keys.Key, Item]) -> bool:
    token, family, client = (items.get(key) for key in mark_keys(claims))
    if token is not None or family is not None:
        return True
    return client is not None and client_mark_refuses(decode_mark(client), claims.bearer)


def standing_of(bearer: Bearer, items: Mapping[keys.Key, Item]) -> BearerTerms | Refusal:
    """From what was read under `standing_keys`."""
    namespace, org, *app = (items.get(key) for key in standing_keys(bearer))
    if namespace is None or not decode_namespace(namespace).is_active or org is None:
        return Unauthorized
    settings = decode_org(org).settings
    suspended = settings.suspended
    if app:
        if app[0] is None:
            return Unauthorized
        suspended = suspended or decode_app(app[0]).settings.suspended
    return Suspended if suspended else BearerTerms(settings.auto_register_entities)


def _verdict(claims: Claims, items: Mapping[keys.Key, Item]) -> BearerTerms | Refusal:
    return Unauthorized if is_revoked(claims, items) else standing_of(claims.bearer, items)


def _until(_token_id: str, judged: _Judged, _now_ms: float) -> float:
    return judged.read_ms + CACHE_MS
