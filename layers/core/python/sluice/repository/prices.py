"""Prices that are stored: what AWS says for everybody, and what a namespace says for itself. By the day they begin.

All prices of a model lie in one partition. So one query finds what held on any day in any region.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sluice.core.price_list import Column
from sluice.core.pricing import Price, Prices, PriceSource, TokenKind
from sluice.repository import money_keys, schema
from sluice.repository.audit import Image
from sluice.repository.requests import QueryRequest, TransactWrite
from sluice.repository.shapes import (
    UnknownShape,
    check_kind,
    optional_text,
    optional_whole,
    text,
    whole,
)
from sluice.repository.wire import Item, Value

PRICE: Final = "price"
SUPERSEDED_KEPT_S: Final = 400 * 86_400
"""Longer than a call may be reported late, and as long as its totals are kept."""

_STANDARD: Final = {kind: f"p_{kind.value}" for kind in TokenKind}
_BATCH: Final = {kind: f"p_batch_{kind.value}" for kind in TokenKind}
_LONG_STANDARD: Final = {kind: f"t_{kind.value}" for kind in TokenKind}
_LONG_BATCH: Final = {kind: f"t_batch_{kind.value}" for kind in TokenKind}


@dataclass(frozen=True, slots=True)
class StoredPrice:
    """`namespace`: whose it is, the registry's for everybody's. `fetched_at_ms`: when AWS said so; None of others."""

    namespace: str
    model_id: str
    from_day: str
    price: Price
    version: int
    created_at_ms: int
    updated_at_ms: int
    fetched_at_ms: int | None = None


def price_id(source: PriceSource, model_id: str, region: str | None, from_day: str) -> str:
    return f"{source.value}:{model_id}:{region or '-'}:{from_day}"


def price_put(stored: StoredPrice, seen: StoredPrice | None) -> TransactWrite:
    """Replaces what was seen, or nothing."""
    item = encode_price(stored)
    if seen is None:
        return {"Put": {"Item": item, "ConditionExpression": "attribute_not_exists(PK)"}}
    condition, values = _as_seen(seen)
    return {"Put": {"Item": item, "ConditionExpression": condition, "ExpressionAttributeValues": values}}


def price_delete(seen: StoredPrice) -> TransactWrite:
    condition, values = _as_seen(seen)
    return {
        "Delete": {"Key": _key(seen), "ConditionExpression": condition, "ExpressionAttributeValues": values},
    }


def price_superseded(seen: StoredPrice, now_ms: int) -> TransactWrite:
    """It goes some time after a newer one came."""
    condition, values = _as_seen(seen)
    return {
        "Update": {
            "Key": _key(seen),
            "UpdateExpression": "SET #ttl = :expires, updated_at = :now",
            "ConditionExpression": condition,
            "ExpressionAttributeNames": {"#ttl": schema.TTL_ATTRIBUTE},
            "ExpressionAttributeValues": {
                **values,
                ":expires": -(-now_ms // 1000) + SUPERSEDED_KEPT_S,
                ":now": now_ms,
            },
        }
    }


def prices_query(namespace: str, model_id: str, start: Item | None = None) -> QueryRequest:
    """All prices of a model, the latest to begin first. Consistently: a price counts from when it was put."""
    request: QueryRequest = {
        "KeyConditionExpression": "PK = :model",
        "ExpressionAttributeValues": {":model": money_keys.prices_of(namespace, model_id)},
        "ScanIndexForward": False,
        "ConsistentRead": True,
    }
    if start is not None:
        request["ExclusiveStartKey"] = start
    return request


def encode_price(stored: StoredPrice) -> Item:
    price = stored.price
    item: Item = {
        **money_keys.price(stored.namespace, stored.model_id, stored.from_day, price.region).attributes,
        "kind": PRICE,
        "ns": stored.namespace,
        "model_id": stored.model_id,
        "from_day": stored.from_day,
        "source": price.source.value,
        "price_id": price.price_id,
        "v": stored.version,
        "created_at": stored.created_at_ms,
        "updated_at": stored.updated_at_ms,
        **price_attributes(price),
    }
    optional: dict[str, Value] = {"region": price.region, "fetched_at": stored.fetched_at_ms}
    item |= {name: value for name, value in optional.items() if value is not None}
    return item


def decode_price(item: Mapping[str, Value]) -> StoredPrice:
    check_kind(item, PRICE)
    from_day = text(item, "from_day")
    standard, batch, long_standard, long_batch = columns_in(item)
    return StoredPrice(
        namespace=text(item, "ns"),
        model_id=text(item, "model_id"),
        from_day=from_day,
        price=Price(
            price_id=text(item, "price_id"),
            source=_source(item),
            standard=standard,
            batch=batch,
            long_from_tokens=optional_whole(item, "tier_tokens"),
            long_standard=long_standard,
            long_batch=long_batch,
            region=optional_text(item, "region"),
            from_day=from_day,
        ),
        version=whole(item, "v"),
        created_at_ms=whole(item, "created_at"),
        updated_at_ms=whole(item, "updated_at"),
        fetched_at_ms=optional_whole(item, "fetched_at"),
    )


def price_attributes(price: Price) -> dict[str, int]:
    """What it costs, flat."""
    columns = (
        (_STANDARD, price.standard),
        (_BATCH, price.batch),
        (_LONG_STANDARD, price.long_standard),
        (_LONG_BATCH, price.long_batch),
    )
    attributes = {names[kind]: prices[kind] for names, prices in columns for kind in TokenKind if kind in prices}
    if price.long_from_tokens is not None:
        attributes["tier_tokens"] = price.long_from_tokens
    return attributes


def columns_in(attributes: Mapping[str, Value]) -> tuple[Prices, Prices, Prices, Prices]:
    """The standard prices, those in batches, and the same of long calls."""
    return (
        _prices(attributes, _STANDARD),
        _prices(attributes, _BATCH),
        _prices(attributes, _LONG_STANDARD),
        _prices(attributes, _LONG_BATCH),
    )


def attribute_of(kind: TokenKind, column: Column) -> str:
    """Where one price stands."""
    if column.is_long:
        return (_LONG_BATCH if column.is_batch else _LONG_STANDARD)[kind]
    return (_BATCH if column.is_batch else _STANDARD)[kind]


def price_image(stored: StoredPrice) -> Image:
    """As the audit shows it."""
    image: dict[str, Value] = {"model_id": stored.model_id, "from_day": stored.from_day}
    if stored.price.region is not None:
        image["region"] = stored.price.region
    return {**image, **price_attributes(stored.price)}


def _key(stored: StoredPrice) -> Item:
    key = money_keys.price(stored.namespace, stored.model_id, stored.from_day, stored.price.region)
    return {**key.attributes}


def _as_seen(stored: StoredPrice) -> tuple[str, dict[str, Value]]:
    """Removed and made again, a price starts at version 1 once more: its creation time tells the two apart."""
    return "v = :version AND created_at = :created", {":version": stored.version, ":created": stored.created_at_ms}


def _prices(item: Mapping[str, Value], names: Mapping[TokenKind, str]) -> Prices:
    return {kind: whole(item, name) for kind, name in names.items() if name in item}


def _source(item: Mapping[str, Value]) -> PriceSource:
    try:
        return PriceSource(text(item, "source"))
    except ValueError:
        raise UnknownShape(item, "source is not known") from None
