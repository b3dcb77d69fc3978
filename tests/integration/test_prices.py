"""Prices on an engine: who is believed, from which day on, how long an answer is kept, and the daily refresh."""

from dataclasses import replace
from typing import Any

import pytest
from mypy_boto3_dynamodb import DynamoDBClient

import sluice.services.price_refresh
import sluice.services.prices
from sluice.core.audit import Action, Author
from sluice.core.errors import InvalidRequest, NotFound, Unavailable
from sluice.core.labels import LabelDefinition
from sluice.core.orgs import OrgSettings
from sluice.core.period import parse_day
from sluice.core.pricing import NO_PRICES, Price, Prices, PriceSource, TokenKind
from sluice.core.signals import Signal
from sluice.core.timelines import always
from sluice.repository import keys, money_keys
from sluice.repository.audit import audit_query, decode_audit_event
from sluice.repository.jobs import Job, JobState
from sluice.repository.prices import SUPERSEDED_KEPT_S, StoredPrice, decode_price, price_id, price_put
from sluice.services.daily import Daily
from sluice.services.price_book import AGAIN_MS, CACHE_MS, PriceBook, all_prices
from sluice.services.price_refresh import GIVE_UP_MS, REFRESH_PRICES, RefreshPrices
from sluice.services.prices import OwnPrices, PriceFields, PriceName
from sluice.services.settings import SettingsCache
from sluice.services.shipped_prices import ShippedPrices
from tests.fakes import FakeClock
from tests.integration.tenants import Process, start_process
from tests.price_lists import LOST, OUT_OF_REACH, FakePriceList, native, nova_pro, sold, sonnet_4_5
from tests.tenancy import tenant_items

REGISTRY = keys.REGISTRY_NAMESPACE
NAMESPACE, OTHER = "ns", "other"
BEDROCK, MARKETPLACE = "AmazonBedrock", "AmazonBedrockFoundationModels"
INPUT, OUTPUT = TokenKind.INPUT, TokenKind.OUTPUT
MODEL = "amazon.nova-pro-v1:0"
SONNET = "anthropic.claude-sonnet-4-5-20250929-v1:0"
EAST, WEST = "us-east-1", "eu-west-1"
NOON_MS = 1_795_003_200_000
DAY_MS = 86_400_000
TODAY = "2026-11-18"
AUTHOR = Author("client-acme", "request-7")
LABEL = LabelDefinition("big", MODEL, None, None, None, 70, None, 1, 1, 1)


class Shipped:
    def __init__(self, *known: str) -> None:
        self.known = known

    def find(self, model_id: str, region: str | None) -> Price | None:
        return Price(f"shipped:{model_id}", PriceSource.SHIPPED, {INPUT: 60}) if model_id in self.known else None

    def lists(self, model_id: str) -> bool:
        return model_id in self.known


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOON_MS)


@pytest.fixture
def process(dynamodb: DynamoDBClient, table: str, clock: FakeClock) -> Process:
    process = start_process(dynamodb, table, clock)
    settings = OrgSettings(zones=always("Asia/Tokyo"))
    for item in (*tenant_items(NAMESPACE, "acme", settings=settings), *tenant_items(OTHER, "rival")):
        process.store.inner.put({"Item": item}, repeatable=True)
    return process


@pytest.fixture
def book(process: Process) -> PriceBook:
    return PriceBook(process.store, Shipped(MODEL, f"us.{MODEL}"), process.clock)


@pytest.fixture
def own(process: Process, book: PriceBook) -> OwnPrices:
    return OwnPrices(process.store, book, SettingsCache(process.store, process.clock), process.effects)


def say(process: Process, model_id: str, region: str | None, from_day: str, usd_micros: int) -> None:
    """As AWS."""
    prices = {INPUT: usd_micros, OUTPUT: usd_micros}
    name = price_id(PriceSource.AWS, model_id, region, from_day)
    price = Price(name, PriceSource.AWS, prices, region=region, from_day=from_day)
    stored = StoredPrice(REGISTRY, model_id, from_day, price, 1, 1, 1, 1)
    process.store.inner.put(price_put(stored, None)["Put"], repeatable=True)


def put_own(
    own: OwnPrices,
    model_id: str,
    region: str | None,
    from_day: str,
    usd_micros: int,
    namespace: str = NAMESPACE,
    batch: Prices = NO_PRICES,
) -> bool:
    name = PriceName(model_id, region, parse_day("day", from_day))
    return own.put(namespace, name, PriceFields({INPUT: usd_micros}, batch), author=AUTHOR).created


def found(
    book: PriceBook,
    model_id: str = MODEL,
    region: str | None = None,
    day: str = TODAY,
    namespace: str = NAMESPACE,
    definition: LabelDefinition | None = None,
) -> tuple[str, int] | None:
    """Who says so, and what."""
    price = book.find(namespace, model_id, region, parse_day("day", day), definition)
    return None if price is None else (price.source.value, price.standard[INPUT])


def test_the_nearest_source_decides(process: Process, clock: FakeClock, own: OwnPrices, book: PriceBook) -> None:
    unknown = "own.model"
    assert found(book, unknown, EAST) is None
    assert found(book, unknown, EAST, definition=replace(LABEL, input_price_usd_micros_per_1m=None)) is None
    assert found(book, unknown, EAST, definition=LABEL) == ("label", 70)
    assert found(book, MODEL, EAST, definition=LABEL) == ("shipped", 60)
    say(process, MODEL, None, "2026-01-01", 50)
    clock.advance(CACHE_MS)
    assert found(book, MODEL, EAST, definition=LABEL) == ("aws", 50)
    say(process, MODEL, EAST, "2026-01-01", 40)
    clock.advance(CACHE_MS)
    assert found(book, MODEL, EAST) == ("aws", 40)
    assert found(book, MODEL, WEST) == found(book, MODEL) == ("aws", 50)
    put_own(own, MODEL, None, "2026-01-01", 30)
    assert found(book, MODEL, EAST) == ("override", 30)
    put_own(own, MODEL, EAST, "2026-01-01", 20)
    assert found(book, MODEL, EAST) == ("override", 20)
    assert found(book, MODEL, WEST) == ("override", 30)


def test_the_price_of_a_day_is_the_newest_that_had_begun(process: Process, own: OwnPrices, book: PriceBook) -> None:
    for day, usd_micros in (("2026-11-01", 41), ("2026-11-10", 42), ("2026-11-18", 43)):
        say(process, MODEL, EAST, day, usd_micros)
    assert found(book, MODEL, EAST, "2026-10-31") == ("shipped", 60)
    assert found(book, MODEL, EAST, "2026-11-01") == ("aws", 41)
    assert found(book, MODEL, EAST, "2026-11-09") == ("aws", 41)
    assert found(book, MODEL, EAST, "2026-11-17") == ("aws", 42)
    assert found(book, MODEL, EAST, "2026-11-18") == ("aws", 43)
    # Put for the past and for the future.
    put_own(own, MODEL, None, "2026-11-05", 31)
    put_own(own, MODEL, None, "2026-12-01", 32)
    assert found(book, MODEL, EAST, "2026-11-04") == ("aws", 41)
    assert found(book, MODEL, EAST, "2026-11-05") == found(book, MODEL, EAST, "2026-11-30") == ("override", 31)
    assert found(book, MODEL, EAST, "2027-01-01") == ("override", 32)


def test_a_profile_costs_what_its_model_does_unless_it_is_listed(
    process: Process, clock: FakeClock, own: OwnPrices, book: PriceBook
) -> None:
    say(process, MODEL, EAST, "2026-01-01", 40)
    assert found(book, f"us.{MODEL}", EAST) == found(book, f"global.{MODEL}", EAST) == ("aws", 40)
    assert found(book, f"us.{MODEL}", WEST) == ("shipped", 60)
    say(process, f"global.{MODEL}", EAST, "2026-01-01", 36)
    clock.advance(CACHE_MS)
    assert found(book, f"global.{MODEL}", EAST) == ("aws", 36)
    assert found(book, f"us.{MODEL}", EAST) == ("aws", 40)
    # The profile was listed later than its model.
    say(process, f"us.{MODEL}", EAST, "2026-06-01", 38)
    clock.advance(CACHE_MS)
    assert found(book, f"us.{MODEL}", EAST, "2026-05-31") == ("aws", 40)
    assert found(book, f"us.{MODEL}", EAST) == ("aws", 38)
    # An own price is for the id that it names, and for no other.
    put_own(own, MODEL, None, "2026-01-01", 30)
    assert found(book, MODEL, EAST) == ("override", 30)
    assert found(book, f"us.{MODEL}", EAST) == ("aws", 38)


def test_what_aws_says_of_a_model_is_no_price_of_its_global_profile(process: Process, clock: FakeClock) -> None:
    """Hole: called through the global profile, it was charged a tenth more than AWS takes."""
    book = PriceBook(process.store, Shipped(MODEL, f"us.{MODEL}", f"global.{MODEL}"), clock)
    say(process, MODEL, EAST, "2026-01-01", 66)
    assert found(book, f"global.{MODEL}", EAST) == found(book, f"global.{MODEL}") == ("shipped", 60)
    assert found(book, f"us.{MODEL}", EAST) == found(book, MODEL, EAST) == ("aws", 66)
    say(process, f"global.{MODEL}", EAST, "2026-01-01", 59)
    clock.advance(CACHE_MS)
    assert found(book, f"global.{MODEL}", EAST) == ("aws", 59)
    # Nothing of its own ships in another book.
    other = PriceBook(process.store, Shipped(MODEL), clock)
    say(process, MODEL, WEST, "2026-01-01", 67)
    assert found(other, f"global.{MODEL}", WEST) == ("aws", 67)


def test_an_own_price_is_nobody_elses(own: OwnPrices, book: PriceBook) -> None:
    put_own(own, MODEL, None, "2026-01-01", 30)
    assert found(book, MODEL, namespace=OTHER) == ("shipped", 60)
    with pytest.raises(NotFound):
        own.delete(OTHER, PriceName(MODEL, None, parse_day("day", "2026-01-01")), author=AUTHOR)
    assert found(book, MODEL) == ("override", 30)


def test_an_answer_is_kept_for_a_minute(process: Process, clock: FakeClock, book: PriceBook) -> None:
    """Also that there is none. One query for each partition, whatever the day and region."""
    model_id = f"us.{MODEL}"
    assert found(book, model_id, EAST) == ("shipped", 60)
    assert process.store.taken_calls() == ["query"] * 3
    say(process, MODEL, EAST, "2026-01-01", 40)
    clock.advance(CACHE_MS - 1)
    for region, day in ((EAST, TODAY), (WEST, "2026-01-01"), (None, "2025-01-01")):
        assert found(book, model_id, region, day) == ("shipped", 60)
    assert process.store.taken_calls() == []
    clock.advance(1)
    assert found(book, model_id, EAST) == ("aws", 40)
    assert process.store.taken_calls() == ["query"] * 3


def test_it_counts_from_before_the_read(process: Process, clock: FakeClock, book: PriceBook) -> None:
    def slow(_verb: str, _request: Any) -> None:
        clock.advance(CACHE_MS // 2)

    process.store.after = slow
    found(book)
    process.store.after = None
    process.store.taken_calls()
    # The first of the two queries is as old as both took.
    found(book)
    assert process.store.taken_calls() == ["query"]


def test_a_price_acts_at_once_where_it_was_put(
    process: Process, clock: FakeClock, own: OwnPrices, book: PriceBook
) -> None:
    elsewhere = PriceBook(process.store, Shipped(MODEL), clock)
    assert found(book) == found(elsewhere) == ("shipped", 60)
    put_own(own, MODEL, None, "2026-01-01", 30)
    assert (found(book), found(elsewhere)) == (("override", 30), ("shipped", 60))
    clock.advance(CACHE_MS)
    assert found(elsewhere) == ("override", 30)


def test_nobody_is_told_that_a_price_is_unknown_before_it_is_looked_for_again(
    process: Process, clock: FakeClock, own: OwnPrices, book: PriceBook
) -> None:
    elsewhere = PriceBook(process.store, Shipped(), clock)
    assert found(elsewhere) is None
    put_own(own, MODEL, None, "2026-01-01", 30)
    process.store.taken_calls()
    clock.advance(AGAIN_MS - 1)
    assert found(elsewhere) is None
    assert process.store.taken_calls() == []
    clock.advance(1)
    assert found(elsewhere) == ("override", 30)
    # What AWS said stays as it was read.
    assert process.store.taken_calls() == ["query"]


def test_what_was_read_before_a_put_is_not_kept_after_it(process: Process, own: OwnPrices, book: PriceBook) -> None:
    def put_meanwhile(_verb: str, _request: Any) -> None:
        process.store.after = None
        put_own(own, MODEL, None, "2026-01-01", 30)

    process.store.after = put_meanwhile
    assert found(book) == ("shipped", 60)
    assert found(book) == ("override", 30)


def test_a_model_with_many_prices_is_read_as_a_whole(
    process: Process, own: OwnPrices, book: PriceBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = process.store.inner.query

    def small_pages(request: Any) -> Any:
        limited: Any = {**request, "Limit": 3}
        return query(limited)

    monkeypatch.setattr(process.store.inner, "query", small_pages)
    for number in range(10, 20):
        put_own(own, MODEL, None, f"2026-01-{number}", number)
    assert found(book, day="2026-01-10") == ("override", 10)
    assert found(book, day="2026-01-19") == ("override", 19)


def test_there_is_a_bound_on_prices_of_a_model(
    own: OwnPrices, book: PriceBook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sluice.services.prices, "PRICES_MAX", 2)
    put_own(own, MODEL, None, "2026-01-01", 1)
    put_own(own, MODEL, EAST, "2026-01-01", 2)
    with pytest.raises(InvalidRequest) as raised:
        put_own(own, MODEL, WEST, "2026-01-01", 3)
    assert raised.value.field == "model_id"
    # What is there may still be changed, and others have their own bound.
    assert not put_own(own, MODEL, EAST, "2026-01-01", 4)
    assert put_own(own, f"us.{MODEL}", EAST, "2026-01-01", 5)
    assert put_own(own, MODEL, EAST, "2026-01-01", 6, OTHER)
    assert found(book, region=WEST) == ("override", 1)


def stored_own(process: Process, region: str | None = None) -> StoredPrice | None:
    item = process.store.inner.get(money_keys.price(NAMESPACE, MODEL, "2026-01-01", region), consistent=True)
    return None if item is None else decode_price(item)


def told(process: Process) -> list[Any]:
    page = process.store.inner.query(audit_query(NAMESPACE, "$SYSTEM"))
    return [decode_audit_event(item) for item in page.items][::-1]


def test_every_change_is_told_in_its_own_transaction(process: Process, clock: FakeClock, own: OwnPrices) -> None:
    assert put_own(own, MODEL, None, "2026-01-01", 30)
    clock.advance(5)
    assert not put_own(own, MODEL, None, "2026-01-01", 31, batch={OUTPUT: 7})
    stored = stored_own(process)
    assert stored is not None
    assert (stored.version, stored.created_at_ms, stored.updated_at_ms) == (2, NOON_MS, NOON_MS + 5)
    assert stored.fetched_at_ms is None
    assert stored.price.price_id == f"override:{MODEL}:-:2026-01-01"
    clock.advance(5)
    own.delete(NAMESPACE, PriceName(MODEL, None, parse_day("day", "2026-01-01")), author=AUTHOR)
    assert stored_own(process) is None
    events = told(process)
    assert [event.action for event in events] == [Action.PRICE_PUT, Action.PRICE_PUT, Action.PRICE_DELETE]
    assert {event.target for event in events} == {f"prices?model_id={MODEL}"}
    assert {event.author for event in events} == {AUTHOR}
    first, second, third = events
    image = {"model_id": MODEL, "from_day": "2026-01-01", "p_input": 30}
    assert (first.before, first.after) == (None, image)
    assert (second.before, second.after) == (image, {**image, "p_input": 31, "p_batch_output": 7})
    assert (third.before, third.after) == (second.after, None)


def test_a_put_that_is_repeated_changes_nothing_that_counts(own: OwnPrices, book: PriceBook) -> None:
    assert put_own(own, MODEL, None, "2026-01-01", 30)
    assert not put_own(own, MODEL, None, "2026-01-01", 30)
    assert found(book) == ("override", 30)


def test_of_two_writers_none_overwrites_the_other_unseen(process: Process, own: OwnPrices) -> None:
    def interfere(verb: str, _request: Any) -> None:
        if verb == "transact":
            process.store.before = None
            put_own(own, MODEL, None, "2026-01-01", 41)

    process.store.before = interfere
    assert not put_own(own, MODEL, None, "2026-01-01", 42)
    changes = {event.after["p_input"]: event.before for event in told(process)}
    assert changes[41] is None
    assert changes[42]["p_input"] == 41
    stored = stored_own(process)
    assert stored is not None
    assert (stored.version, stored.price.standard) == (2, {INPUT: 42})


def test_today_is_the_orgs_own(own: OwnPrices, clock: FakeClock) -> None:
    assert own.today(NAMESPACE) == parse_day("day", "2026-11-18")
    clock.advance(3 * 3_600_000 - 1)
    assert own.today(NAMESPACE) == parse_day("day", "2026-11-18")
    clock.advance(1)
    assert own.today(NAMESPACE) == parse_day("day", "2026-11-19")
    assert own.today(OTHER) == parse_day("day", "2026-11-18")


# The daily refresh.


@pytest.fixture
def prices() -> FakePriceList:
    """Two models that the list names, among things that are none of ours."""
    others = [
        native("Nova Pro", "NovaPro-input-tokens-flex", "0.0004"),
        native("Unheard of", "Unheard-input-tokens", "0.0004"),
        native("Nova Micro", "NovaMicro-input-tokens", "0.000035"),
        "not JSON",
    ]
    return FakePriceList(
        {
            (EAST, BEDROCK): [*nova_pro(), *others],
            (EAST, MARKETPLACE): sonnet_4_5(),
            (WEST, BEDROCK): nova_pro(WEST, "0.0009"),
        }
    )


def refresh(process: Process, prices: FakePriceList, name: str = "prices-1") -> Job:
    process.jobs.start_once(name, REFRESH_PRICES)
    process.run({REFRESH_PRICES: RefreshPrices(process.store, prices, ShippedPrices(), process.effects)})
    return process.jobs.get(REGISTRY, name)


def kept(process: Process, model_id: str) -> list[StoredPrice]:
    return all_prices(process.store.inner, REGISTRY, model_id)


def test_what_the_list_says_is_stored_by_model_and_region(
    process: Process, prices: FakePriceList, book: PriceBook
) -> None:
    job = refresh(process, prices)
    assert (job.state, job.done) == (JobState.DONE, 6 + 4 + 24 + 6)
    assert job.result == {
        "products": 40,
        "other": 1,
        "unmapped": 1,
        "unreadable": 1,
        # Nova Micro without a price of output.
        "incomplete": 1,
        "written": 4,
    }
    assert process.meter.counts[Signal.PRICES_REFRESHED] == 4
    east, west = kept(process, MODEL)
    assert (east.price.region, west.price.region) == (EAST, WEST)
    assert (east.namespace, east.from_day, east.fetched_at_ms, east.version) == (REGISTRY, TODAY, NOON_MS, 1)
    assert east.price == Price(
        price_id=f"aws:{MODEL}:{EAST}:{TODAY}",
        source=PriceSource.AWS,
        standard={
            INPUT: 800_000,
            OUTPUT: 3_200_000,
            TokenKind.CACHE_READ: 200_000,
            TokenKind.CACHE_WRITE: 0,
        },
        batch={INPUT: 400_000, OUTPUT: 1_600_000},
        region=EAST,
        from_day=TODAY,
    )
    assert west.price.standard[INPUT] == 900_000
    (regional,) = kept(process, SONNET)
    (anywhere,) = kept(process, f"global.{SONNET}")
    assert (regional.price.standard[INPUT], anywhere.price.standard[INPUT]) == (3_300_000, 3_000_000)
    assert regional.price.long_from_tokens == anywhere.price.long_from_tokens == 200_000
    assert regional.price.long_standard[OUTPUT] == 24_750_000
    assert anywhere.price.batch == {INPUT: 1_500_000, OUTPUT: 7_500_000}
    assert found(book, f"us.{SONNET}", EAST) == ("aws", 3_300_000)
    assert found(book, f"global.{SONNET}", EAST) == ("aws", 3_000_000)


def test_every_region_is_read_from_both_lists_to_the_end(process: Process, prices: FakePriceList) -> None:
    refresh(process, prices)
    assert [asked[:2] for asked in prices.asked if asked[2] is None] == [
        (BEDROCK, WEST),
        (MARKETPLACE, WEST),
        (BEDROCK, EAST),
        (MARKETPLACE, EAST),
    ]
    assert [token for code, region, token in prices.asked if (code, region) == (MARKETPLACE, EAST)] == [
        None,
        "7",
        "14",
        "21",
    ]


def test_a_second_refresh_writes_nothing(process: Process, clock: FakeClock, prices: FakePriceList) -> None:
    refresh(process, prices)
    before = {model_id: kept(process, model_id) for model_id in (MODEL, SONNET, f"global.{SONNET}")}
    clock.advance(DAY_MS)
    job = refresh(process, prices, "prices-2")
    assert job.result is not None
    assert (job.result["unchanged"], job.result.get("written")) == (4, None)
    assert {model_id: kept(process, model_id) for model_id in before} == before
    assert process.meter.counts[Signal.PRICES_REFRESHED] == 4


def expires(process: Process, from_day: str, region: str = EAST) -> Any:
    item = process.store.inner.get(money_keys.price(REGISTRY, MODEL, from_day, region), consistent=True)
    assert item is not None
    return item.get("ttl")


def test_what_a_newer_price_replaces_stays_for_four_hundred_days(
    process: Process, clock: FakeClock, prices: FakePriceList, book: PriceBook
) -> None:
    refresh(process, prices)
    clock.advance(DAY_MS)
    prices.products[EAST, BEDROCK] = nova_pro(input_usd="0.0007")
    refresh(process, prices, "prices-2")
    assert expires(process, TODAY) == clock.now_ms // 1000 + SUPERSEDED_KEPT_S
    assert expires(process, "2026-11-19") is None
    assert expires(process, TODAY, WEST) is None
    assert found(book, region=EAST, day=TODAY) == ("aws", 800_000)
    assert found(book, region=EAST, day="2026-11-19") == ("aws", 700_000)
    # Back to what it was: a new one, from that day on.
    clock.advance(DAY_MS)
    prices.products[EAST, BEDROCK] = nova_pro()
    refresh(process, prices, "prices-3")
    assert [one.from_day for one in kept(process, MODEL) if one.price.region == EAST] == [
        "2026-11-20",
        "2026-11-19",
        TODAY,
    ]


def test_a_price_of_today_is_replaced_today(process: Process, clock: FakeClock, prices: FakePriceList) -> None:
    refresh(process, prices)
    clock.advance(3_600_000)
    prices.products[EAST, BEDROCK] = nova_pro(input_usd="0.0007")
    job = refresh(process, prices, "prices-2")
    assert job.result is not None
    assert job.result["written"] == 1
    (east,) = (one for one in kept(process, MODEL) if one.price.region == EAST)
    assert (east.price.standard[INPUT], east.version, east.from_day) == (700_000, 2, TODAY)
    assert (east.created_at_ms, east.fetched_at_ms) == (NOON_MS, NOON_MS + 3_600_000)
    assert expires(process, TODAY) is None


def test_a_list_that_says_less_changes_nothing(process: Process, clock: FakeClock, prices: FakePriceList) -> None:
    """Nova Pro without its price of cache reads, Sonnet without the length of its calls: written otherwise, maybe."""
    refresh(process, prices)
    before = kept(process, MODEL), kept(process, SONNET)
    clock.advance(DAY_MS)
    prices.products[EAST, BEDROCK] = [text for text in nova_pro(input_usd="0.1") if "cache-read" not in text]
    prices.products[EAST, MARKETPLACE] = [text for text in sonnet_4_5() if "LCtx" not in text]
    job = refresh(process, prices, "prices-2")
    assert job.result is not None
    assert job.result["incomplete"] == 3
    assert (kept(process, MODEL), kept(process, SONNET)) == before


def test_two_products_that_contradict_each_other_are_both_left_out(process: Process, prices: FakePriceList) -> None:
    again = native("Nova Pro", "NovaPro-input-tokens", "0.0009")
    same = native("Nova Pro", "NovaPro-output-tokens-standard", "0.0032")
    prices.products[EAST, BEDROCK] = [*nova_pro(), again, same, again]
    job = refresh(process, prices)
    assert job.result is not None
    assert (job.result["contradicted"], job.result["incomplete"]) == (2, 1)
    assert [one.price.region for one in kept(process, MODEL)] == [WEST]


def test_a_product_of_another_region_is_not_taken(process: Process, prices: FakePriceList) -> None:
    prices.products = {(EAST, MARKETPLACE): [sold("Claude Sonnet 4.5", "InputTokenCount", "1", WEST)]}
    job = refresh(process, prices)
    assert job.result == {"products": 1, "unreadable": 1}


def test_a_list_that_does_not_answer_is_asked_again_in_the_next_run(process: Process, prices: FakePriceList) -> None:
    prices.errors = [OUT_OF_REACH]
    assert refresh(process, prices).state is JobState.QUEUED
    assert refresh(process, prices).state is JobState.DONE
    assert process.meter.counts[Signal.JOBS_FAILED] == 0
    # In the middle of a region: it goes on from the page that it missed.
    prices.asked.clear()
    process.jobs.start_once("prices-2", REFRESH_PRICES)
    refreshing = RefreshPrices(process.store, prices, ShippedPrices(), process.effects)
    process.run({REFRESH_PRICES: refreshing}, steps=4)
    prices.errors = [OUT_OF_REACH]
    process.run({REFRESH_PRICES: refreshing})
    process.run({REFRESH_PRICES: refreshing})
    assert process.jobs.get(REGISTRY, "prices-2").state is JobState.DONE
    assert len(prices.asked) == len({*prices.asked}) + 1


def test_after_hours_of_silence_the_job_fails_and_the_day_after_has_another(
    process: Process, clock: FakeClock, prices: FakePriceList
) -> None:
    daily = Daily(process.jobs, process.effects, {"prices": REFRESH_PRICES})
    refreshing = RefreshPrices(process.store, prices, ShippedPrices(), process.effects)
    assert daily.start_due() == 1
    prices.errors = [OUT_OF_REACH] * 3
    process.run({REFRESH_PRICES: refreshing})
    clock.advance(GIVE_UP_MS - 1)
    process.run({REFRESH_PRICES: refreshing})
    job = process.jobs.get(REGISTRY, "prices-20261118")
    assert job.state is JobState.QUEUED
    clock.advance(1)
    run = process.run({REFRESH_PRICES: refreshing})
    assert [failure.kind for failure in run.failures] == [REFRESH_PRICES]
    job = process.jobs.get(REGISTRY, "prices-20261118")
    assert (job.state, job.error) == (JobState.FAILED, "PricesOutOfReach")
    assert process.meter.counts[Signal.JOBS_FAILED] == 1
    assert daily.start_due() == 0
    prices.errors = []
    clock.advance(DAY_MS // 2)
    assert daily.start_due() == 1
    process.run({REFRESH_PRICES: refreshing})
    assert process.jobs.get(REGISTRY, "prices-20261119").state is JobState.DONE


def test_a_missing_right_fails_the_job_at_once_and_no_other(process: Process, prices: FakePriceList) -> None:
    prices.errors = [PermissionError("AccessDenied")]
    job = refresh(process, prices)
    assert (job.state, job.error) == (JobState.FAILED, "PermissionError")


def test_a_place_that_is_lost_begins_the_region_again(process: Process, prices: FakePriceList) -> None:
    process.jobs.start_once("prices-1", REFRESH_PRICES)
    refreshing = RefreshPrices(process.store, prices, ShippedPrices(), process.effects)
    # West is read and stored; East is in the middle.
    process.run({REFRESH_PRICES: refreshing}, steps=5)
    prices.errors = [LOST]
    process.run({REFRESH_PRICES: refreshing})
    job = process.jobs.get(REGISTRY, "prices-1")
    assert job.state is JobState.DONE
    assert job.result is not None
    assert (job.result["begun_again"], job.result["written"]) == (1, 4)
    assert prices.asked.count((BEDROCK, EAST, None)) == 2
    assert prices.asked.count((BEDROCK, WEST, None)) == 1


def test_a_list_without_an_end_is_given_up(
    process: Process, prices: FakePriceList, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sluice.services.price_refresh, "PAGES_MAX", 20)
    prices.endless = True
    job = refresh(process, prices)
    assert (job.state, job.error) == (JobState.FAILED, "PricesOutOfReach")
    assert len(prices.asked) == 20


def test_many_models_are_stored_a_few_at_a_time(
    process: Process, prices: FakePriceList, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sluice.services.price_refresh, "MODELS_PER_STEP", 1)
    job = refresh(process, prices)
    assert job.result is not None
    assert job.result["written"] == 4
    # Two regions with five pages and three, and one step for each model.
    assert job.version == 1 + len(prices.asked) + 5


def test_a_step_that_runs_again_stores_nothing_twice(process: Process, prices: FakePriceList) -> None:
    """A crash after the prices were stored, and before the job knew."""
    refreshing = RefreshPrices(process.store, prices, ShippedPrices(), process.effects)
    process.jobs.start_once("prices-1", REFRESH_PRICES)
    process.run({REFRESH_PRICES: refreshing}, steps=2)
    job = process.jobs.get(REGISTRY, "prices-1")
    refreshing.step(job)
    before = kept(process, MODEL)
    refreshing.step(job)
    assert kept(process, MODEL) == before
    assert len(before) == 1


def test_of_two_runs_at_once_one_stores_it(process: Process, prices: FakePriceList) -> None:
    refreshing = RefreshPrices(process.store, prices, ShippedPrices(), process.effects)
    process.jobs.start_once("prices-1", REFRESH_PRICES)
    process.run({REFRESH_PRICES: refreshing}, steps=2)
    job = process.jobs.get(REGISTRY, "prices-1")

    def interfere(verb: str, _request: Any) -> None:
        if verb == "transact":
            process.store.before = None
            refreshing.step(job)

    process.store.before = interfere
    step = refreshing.step(job)
    assert step.result is not None
    assert (step.result["busy"], step.result.get("written")) == (1, None)
    assert [one.version for one in kept(process, MODEL)] == [1]


def test_nothing_is_stored_behind_a_price_of_tomorrow(
    process: Process, clock: FakeClock, prices: FakePriceList
) -> None:
    """Of a process whose clock is ahead."""
    say(process, MODEL, EAST, "2026-11-19", 40)
    job = refresh(process, prices)
    assert job.result is not None
    assert (job.result["busy"], job.result["written"]) == (1, 3)
    assert [one.from_day for one in kept(process, MODEL) if one.price.region == EAST] == ["2026-11-19"]


def test_where_nothing_is_sold_there_is_nothing_to_do(process: Process) -> None:
    assert refresh(process, FakePriceList({})).state is JobState.DONE


def test_a_table_out_of_reach_is_asked_again(process: Process, prices: FakePriceList) -> None:
    def away(verb: str, _request: Any) -> None:
        if verb == "query":
            raise Unavailable("x")

    refreshing = RefreshPrices(process.store, prices, ShippedPrices(), process.effects)
    process.jobs.start_once("prices-1", REFRESH_PRICES)
    process.run({REFRESH_PRICES: refreshing}, steps=2)
    process.store.before = away
    with pytest.raises(Unavailable):
        refreshing.step(process.jobs.get(REGISTRY, "prices-1"))
    process.store.before = None
    assert refresh(process, prices).state is JobState.DONE
