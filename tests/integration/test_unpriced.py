"""Before a call is counted without a price, or refused for it, all that this process keeps of prices is read again.

An event that was accepted without a price stays without one, so what another process was just told must not be missed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

from sluice.core.errors import PriceMissing
from sluice.core.period import parse_day
from sluice.core.pricing import TokenKind
from sluice.repository.retries import Retries
from sluice.repository.store import DynamoStore, Store
from sluice.services.catalog import Catalog
from sluice.services.cursors import Cursors
from sluice.services.definitions import AGAIN_MS, Definitions
from sluice.services.effects import Effects
from sluice.services.labels import LabelFields, Labels
from sluice.services.listing import Lists
from sluice.services.price_book import PriceBook
from sluice.services.prices import OwnPrices, PriceFields, PriceName
from sluice.services.profile_models import ProfileModels
from sluice.services.settings import SettingsCache
from sluice.services.shipped_prices import ShippedPrices
from sluice.services.signing import Signer
from sluice.shell import new_token
from tests.fakes import CountingMeter, FakeClock, never_random
from tests.integration.catalogs import FakeBedrock
from tests.integration.metering_desks import APP, AS_APP, AUTHOR, NAMESPACE, SETTINGS, MeteringDesk
from tests.tenancy import FixedKeys

OWN = "our-model"
INPUT, OUTPUT = TokenKind.INPUT, TokenKind.OUTPUT
NAMES = pytest.mark.parametrize("names", [{"label": "ours"}, {"label": None, "model_id": OWN}])


@dataclass
class Elsewhere:
    """Another process, in which labels and prices are put."""

    labels: Labels
    prices: OwnPrices

    @classmethod
    def opened(cls, store: Store, clock: FakeClock) -> "Elsewhere":
        effects = Effects(clock, never_random, new_token, CountingMeter())
        settings = SettingsCache(store, clock)
        lists = Lists(store, Cursors(Signer(FixedKeys())))
        return cls(
            labels=Labels(store, Definitions(store, clock), lists, effects),
            prices=OwnPrices(store, PriceBook(store, ShippedPrices(), clock), settings, effects),
        )

    def define(self, input_price: int | None = None, output_price: int | None = None) -> None:
        fields = LabelFields(
            OWN, input_price_usd_micros_per_1m=input_price, output_price_usd_micros_per_1m=output_price
        )
        self.labels.put(NAMESPACE, "ours", fields, author=AUTHOR)

    def put_price(self, *kinds: TokenKind) -> None:
        name = PriceName(OWN, None, parse_day("day", "2026-01-01"))
        self.prices.put(NAMESPACE, name, PriceFields(dict.fromkeys(kinds, 2_000_000)), author=AUTHOR)


@pytest.fixture
def elsewhere(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Elsewhere:
    retries = Retries(lambda _ms: None, lambda _below: 0, CountingMeter())
    return Elsewhere.opened(DynamoStore(dynamodb, table, retries), clock)


@pytest.fixture
def open_desk(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Callable[[bool], MeteringDesk]:
    """With the labels and prices of the product, kept as it keeps them."""

    def opened(accept_unpriced: bool) -> MeteringDesk:
        retries = Retries(lambda _ms: None, lambda _below: 0, CountingMeter())
        desk = MeteringDesk.opened(DynamoStore(dynamodb, table, retries), clock)
        judge = desk.metering._intake._judge
        settings = SettingsCache(desk.store, clock)
        judge._models = Catalog(Definitions(desk.store, clock), ProfileModels(FakeBedrock(), clock), settings)
        judge._prices = PriceBook(desk.store, ShippedPrices(), clock)
        return desk.found(replace(SETTINGS, accept_unpriced=accept_unpriced))

    return opened


@pytest.fixture
def desk(open_desk: Callable[[bool], MeteringDesk]) -> MeteringDesk:
    return open_desk(True)


def cost(desk: MeteringDesk, request_id: str, **names: object) -> int | None:
    """Of a million tokens of input and of output each."""
    tokens = {INPUT: 1_000_000, OUTPUT: 1_000_000}
    return desk.submit(AS_APP, request_id=request_id, tokens=tokens, **names).event.cost_usd_micros


@NAMES
def test_a_price_that_was_just_given_to_a_label_is_not_missed(
    desk: MeteringDesk, elsewhere: Elsewhere, clock: FakeClock, names: dict[str, object]
) -> None:
    elsewhere.define()
    assert cost(desk, "1", **names) is None
    elsewhere.define(3_000_000, 15_000_000)
    clock.advance(AGAIN_MS)
    assert cost(desk, "2", **names) == 18_000_000


def test_a_label_that_was_just_defined_for_a_model_is_not_missed(
    desk: MeteringDesk, elsewhere: Elsewhere, clock: FakeClock
) -> None:
    assert cost(desk, "1", label=None, model_id=OWN) is None
    elsewhere.define(3_000_000, 15_000_000)
    clock.advance(AGAIN_MS)
    counted = desk.submit(request_id="2", tokens={INPUT: 1_000_000}, label=None, model_id=OWN)
    # And the call counts under it.
    assert (counted.event.label, counted.event.cost_usd_micros) == ("ours", 3_000_000)
    assert desk.used(APP, "ours").requests == 1


@NAMES
def test_a_kind_that_was_just_given_a_price_is_not_missed(
    desk: MeteringDesk, elsewhere: Elsewhere, clock: FakeClock, names: dict[str, object]
) -> None:
    elsewhere.define(3_000_000)
    assert cost(desk, "1", **names) is None
    elsewhere.define(3_000_000, 15_000_000)
    clock.advance(AGAIN_MS)
    assert cost(desk, "2", **names) == 18_000_000


@NAMES
@pytest.mark.parametrize("before", [(), (INPUT,)])
def test_an_own_price_of_more_kinds_is_not_missed(
    desk: MeteringDesk,
    elsewhere: Elsewhere,
    clock: FakeClock,
    names: dict[str, object],
    before: tuple[TokenKind, ...],
) -> None:
    """Also where the price that is known is another one: the label's, or an own one of before."""
    elsewhere.define(3_000_000)
    if before:
        elsewhere.put_price(*before)
    assert cost(desk, "1", **names) is None
    elsewhere.put_price(INPUT, OUTPUT)
    clock.advance(AGAIN_MS)
    assert cost(desk, "2", **names) == 4_000_000


@NAMES
def test_nobody_is_refused_for_a_price_that_was_just_put(
    open_desk: Callable[[bool], MeteringDesk], elsewhere: Elsewhere, clock: FakeClock, names: dict[str, object]
) -> None:
    desk = open_desk(False)
    elsewhere.define()
    with pytest.raises(PriceMissing, match=OWN):
        cost(desk, "1", **names)
    elsewhere.define(3_000_000, 15_000_000)
    clock.advance(AGAIN_MS)
    assert cost(desk, "1", **names) == 18_000_000


@NAMES
def test_what_has_no_price_is_looked_for_once_a_second(
    desk: MeteringDesk, elsewhere: Elsewhere, clock: FakeClock, names: dict[str, object]
) -> None:
    elsewhere.define()
    cost(desk, "1", **names)
    desk.store.taken_calls()

    def read_again() -> int:
        cost(desk, str(clock.now_ms), **names)
        return desk.store.taken_calls().count("query")

    clock.advance(AGAIN_MS - 1)
    assert read_again() == 0
    clock.advance(1)
    # The labels, the profiles of the app and those of the org, and the own prices of the model.
    assert read_again() == 4
    clock.advance(1)
    assert read_again() == 0


def test_who_has_a_price_is_not_looked_for_again(desk: MeteringDesk, elsewhere: Elsewhere, clock: FakeClock) -> None:
    elsewhere.define(3_000_000, 15_000_000)
    assert cost(desk, "1", label="ours") == 18_000_000
    desk.store.taken_calls()
    clock.advance(2 * AGAIN_MS)
    assert cost(desk, "2", label="ours") == 18_000_000
    assert "query" not in desk.store.taken_calls()


def test_what_another_thread_reads_anew_meanwhile_is_not_missed(
    desk: MeteringDesk, elsewhere: Elsewhere, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had looked before the other read, so that all is fresh by now tells it nothing."""
    elsewhere.define()
    assert cost(desk, "1", label="ours") is None
    elsewhere.define(3_000_000, 15_000_000)
    clock.advance(AGAIN_MS)
    models = desk.metering._intake._judge._models
    look_again = models.look_again

    def other_thread_first(namespace: str) -> bool:
        look_again(namespace)
        models.definition(namespace, "ours")
        return look_again(namespace)

    monkeypatch.setattr(models, "look_again", other_thread_first)
    assert cost(desk, "2", label="ours") == 18_000_000
