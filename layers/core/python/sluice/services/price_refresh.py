"""Once a day AWS's price list is read, region by region, and what has changed is stored from that day on.

A step reads one page, or stores some models: what a region's pages say of a model is gathered in the cursor, because
the list has no order. It is stored only where it says at least what ships with the product (`core.price_list`), so a
list that is written otherwise tomorrow changes no price. What is left out is counted in the job's result.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Protocol

from sluice.core.model_ids import ids_by_slug, served_anywhere, slug
from sluice.core.price_list import SERVICE_CODES, Rate, Skipped, believed, read_product
from sluice.core.pricing import Price, PriceSource, same_prices
from sluice.core.signals import Signal
from sluice.repository.aws_pricing import PlaceLost, PriceList
from sluice.repository.jobs import Job
from sluice.repository.keys import REGISTRY_NAMESPACE
from sluice.repository.prices import StoredPrice, attribute_of, columns_in, price_id, price_put, price_superseded
from sluice.repository.shapes import UnknownShape, optional_text, text, whole, wholes
from sluice.repository.store import Committed, Store
from sluice.repository.wire import Value
from sluice.services.effects import Effects
from sluice.services.jobs import Step
from sluice.services.price_book import all_prices

REFRESH_PRICES: Final = "refresh_prices"
MODELS_PER_STEP: Final = 25
PAGES_MAX: Final = 500
"""Of one region. A region has about twenty."""
GIVE_UP_MS: Final = 6 * 3600 * 1000
"""So long a list that does not answer is asked again, once a minute. Tomorrow is another job."""

# Two products that contradict each other: neither is believed.
_CONTRADICTED: Final = -1

Found = dict[str, dict[str, int]]
"""By model id, then by the attribute that a price is stored under."""


class PricesOutOfReach(Exception):
    """The price list did not answer for hours, or has no end."""


class Known(Protocol):
    """The prices that come with the product."""

    def find(self, model_id: str, region: str | None) -> Price | None: ...

    def bedrock_ids(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a refresh is: in the list of a service code, from `token` on; behind the last it stores what it found.

    `pages`: so many of the region were read.
    """

    region: str
    service: int = 0
    token: str | None = None
    pages: int = 0
    found: Found = field(default_factory=dict)

    @property
    def is_read(self) -> bool:
        return self.service == len(SERVICE_CODES)

    def cursor(self) -> dict[str, Value]:
        cursor: dict[str, Value] = {
            "region": self.region,
            "service": self.service,
            "pages": self.pages,
            "found": {model_id: {**rates} for model_id, rates in self.found.items()},
        }
        if self.token is not None:
            cursor["token"] = self.token
        return cursor

    @classmethod
    def read(cls, cursor: Mapping[str, Value]) -> "_Place":
        found = cursor.get("found")
        if not isinstance(found, dict):
            raise UnknownShape(cursor, "found is not a map")
        rates = {model_id: wholes(found, model_id) for model_id in found}
        return cls(
            region=text(cursor, "region"),
            service=whole(cursor, "service"),
            token=optional_text(cursor, "token"),
            pages=whole(cursor, "pages"),
            found=rates,
        )


class RefreshPrices:
    def __init__(self, store: Store, prices: PriceList, known: Known, effects: Effects) -> None:
        self._store = store
        self._prices = prices
        self._known = known
        self._effects = effects
        self._ids: Mapping[str, str] | None = None

    def step(self, job: Job) -> Step:
        if self._effects.clock_ms() >= job.created_at_ms + GIVE_UP_MS:
            raise PricesOutOfReach
        place = self._first("") if job.cursor is None else _Place.read(job.cursor)
        counts = Counter(wholes({"so_far": dict(job.result or {})}, "so_far"))
        if place is None:
            return Step(0, None)
        after = self._keep(place, counts) if place.is_read else self._gather(place, counts)
        done = counts["products"] - job.done
        return Step(done, None if after is None else after.cursor(), result={**counts})

    def _first(self, behind: str) -> _Place | None:
        region = min((region for region in self._prices.regions() if region > behind), default=None)
        return None if region is None else _Place(region)

    def _gather(self, place: _Place, counts: Counter[str]) -> _Place:
        if place.pages >= PAGES_MAX:
            raise PricesOutOfReach
        try:
            page = self._prices.page(SERVICE_CODES[place.service], place.region, place.token)
        except PlaceLost:
            counts["begun_again"] += 1
            return _Place(place.region)
        found = {model_id: {**rates} for model_id, rates in place.found.items()}
        for product in page.products:
            counts["products"] += 1
            self._add(found, place.region, read_product(product), counts)
        service = place.service if page.next_token is not None else place.service + 1
        return _Place(place.region, service, page.next_token, place.pages + 1, found)

    def _add(self, found: Found, region: str, rate: Rate | Skipped, counts: Counter[str]) -> None:
        if isinstance(rate, Skipped):
            counts[rate.name.lower()] += 1
            return
        model_id = self._model_id(rate.model)
        if model_id is None:
            counts["unmapped"] += 1
            return
        if rate.region != region:
            counts["unreadable"] += 1
            return
        rates = found.setdefault(served_anywhere(model_id) if rate.served_anywhere else model_id, {})
        name = attribute_of(rate.kind, rate.column)
        if rates.setdefault(name, rate.usd_micros_per_1m) != rate.usd_micros_per_1m:
            counts["contradicted"] += 1
            rates[name] = _CONTRADICTED

    def _keep(self, place: _Place, counts: Counter[str]) -> _Place | None:
        chosen = sorted(place.found)[:MODELS_PER_STEP]
        written = 0
        for model_id in chosen:
            outcome = self._keep_one(model_id, place.region, place.found[model_id])
            counts[outcome] += 1
            written += outcome == "written"
        if written:
            self._effects.meter.count(Signal.PRICES_REFRESHED, written)
        left = {model_id: rates for model_id, rates in place.found.items() if model_id not in chosen}
        return replace(place, found=left) if left else self._first(place.region)

    def _keep_one(self, model_id: str, region: str, rates: Mapping[str, int]) -> str:
        """What became of it."""
        now_ms = self._effects.clock_ms()
        today = f"{datetime.fromtimestamp(now_ms // 1000, UTC):%Y-%m-%d}"
        price = believed(_listed(model_id, region, today, rates), self._known.find(model_id, region))
        if price is None:
            return "incomplete"
        stored = all_prices(self._store, REGISTRY_NAMESPACE, model_id)
        newest = next((one for one in stored if one.price.region == region), None)
        if newest is not None and same_prices(newest.price, price):
            return "unchanged"
        if newest is not None and newest.from_day > today:
            # Stored by somebody whose clock is ahead: nothing may come before it.
            return "busy"
        replaced = newest if newest is not None and newest.from_day == today else None
        after = StoredPrice(
            namespace=REGISTRY_NAMESPACE,
            model_id=model_id,
            from_day=today,
            price=price,
            version=1 if replaced is None else replaced.version + 1,
            created_at_ms=now_ms if replaced is None else replaced.created_at_ms,
            updated_at_ms=now_ms,
            fetched_at_ms=now_ms,
        )
        writes = [price_put(after, replaced)]
        if newest is not None and replaced is None:
            writes.append(price_superseded(newest, now_ms))
        outcome = self._store.transact(writes, self._effects.new_token())
        # Else another run was faster: what it stored is as new.
        return "written" if isinstance(outcome, Committed) else "busy"

    def _model_id(self, name: str) -> str | None:
        if self._ids is None:
            self._ids = ids_by_slug(self._known.bedrock_ids())
        return self._ids.get(slug(name))


def _listed(model_id: str, region: str, from_day: str, rates: Mapping[str, int]) -> Price:
    believed_rates: dict[str, Value] = {name: price for name, price in rates.items() if price != _CONTRADICTED}
    standard, batch, long_standard, long_batch = columns_in(believed_rates)
    return Price(
        price_id=price_id(PriceSource.AWS, model_id, region, from_day),
        source=PriceSource.AWS,
        standard=standard,
        batch=batch,
        long_standard=long_standard,
        long_batch=long_batch,
        region=region,
        from_day=from_day,
    )
