"""What an org says that a model costs: its own prices, by the day they begin. Put, removed, and looked up.

A price may be put for a past day. It is for the calls that are reported from then on: what was counted before keeps the
cost and the price that it was counted with.
"""

from dataclasses import dataclass, field
from typing import Final

from sluice.core.audit import SYSTEM_SUBJECT, Action, Author, price_target
from sluice.core.errors import InvalidRequest
from sluice.core.period import local_day, shown_day
from sluice.core.pricing import Price, Prices, PriceSource, check_prices
from sluice.repository import money_keys
from sluice.repository.prices import (
    StoredPrice,
    decode_price,
    price_delete,
    price_id,
    price_image,
    price_put,
)
from sluice.repository.store import Store
from sluice.services.effects import Effects
from sluice.services.price_book import PriceBook, all_prices
from sluice.services.replacing import Replaced, Replacing, Shelf
from sluice.services.settings import SettingsCache
from sluice.services.zones import ZoneCalendar

PRICES_MAX: Final = 1_000
"""So many prices of one model a namespace may have: all are read at once. Two writers may pass it by a few."""


@dataclass(frozen=True, slots=True)
class PriceName:
    """Which price is meant. `from_day`: numbered as in `core.period`. `region`: None for those without one."""

    model_id: str
    region: str | None
    from_day: int


@dataclass(frozen=True, slots=True)
class PriceFields:
    """What is put, as a whole."""

    standard: Prices
    batch: Prices = field(default_factory=dict)
    long_from_tokens: int | None = None
    long_standard: Prices = field(default_factory=dict)
    long_batch: Prices = field(default_factory=dict)


class OwnPrices:
    """An org's own, and nobody else's."""

    def __init__(self, store: Store, book: PriceBook, settings: SettingsCache, effects: Effects) -> None:
        self._store = store
        self._book = book
        self._settings = settings
        self._effects = effects
        self._replacing = Replacing(store, effects)
        self._calendar = ZoneCalendar()

    def today(self, namespace: str) -> int:
        """In the org's zone."""
        zones = self._settings.org(namespace).settings.zones
        return local_day(zones, self._effects.clock_ms(), self._calendar).number

    def put(self, namespace: str, name: PriceName, fields: PriceFields, *, author: Author) -> Replaced[StoredPrice]:
        price = _price(name, fields)
        check_prices(price)

        def make(before: StoredPrice | None, now_ms: int) -> StoredPrice:
            if before is None and len(all_prices(self._store, namespace, name.model_id)) >= PRICES_MAX:
                raise InvalidRequest("model_id", f"has {PRICES_MAX} prices already")
            return StoredPrice(
                namespace=namespace,
                model_id=name.model_id,
                from_day=shown_day(name.from_day),
                price=price,
                version=1 if before is None else before.version + 1,
                created_at_ms=now_ms if before is None else before.created_at_ms,
                updated_at_ms=now_ms,
            )

        try:
            return self._replacing.put(_shelf(namespace, name), make, _any, Action.PRICE_PUT, author)
        finally:
            self._book.forget(namespace, name.model_id)

    def delete(self, namespace: str, name: PriceName, *, author: Author) -> None:
        try:
            self._replacing.delete(_shelf(namespace, name), _any, Action.PRICE_DELETE, author)
        finally:
            self._book.forget(namespace, name.model_id)


def _any(_stored: StoredPrice | None) -> bool:
    return True


def _shelf(namespace: str, name: PriceName) -> Shelf[StoredPrice]:
    return Shelf(
        namespace=namespace,
        key=money_keys.price(namespace, name.model_id, shown_day(name.from_day), name.region),
        decode=decode_price,
        put=price_put,
        delete=price_delete,
        image=price_image,
        subject=SYSTEM_SUBJECT,
        target=price_target(name.model_id),
        missing="there is no such price of this org",
    )


def _price(name: PriceName, fields: PriceFields) -> Price:
    from_day = shown_day(name.from_day)
    return Price(
        price_id=price_id(PriceSource.OVERRIDE, name.model_id, name.region, from_day),
        source=PriceSource.OVERRIDE,
        standard=fields.standard,
        batch=fields.batch,
        long_from_tokens=fields.long_from_tokens,
        long_standard=fields.long_standard,
        long_batch=fields.long_batch,
        region=name.region,
        from_day=from_day,
    )
