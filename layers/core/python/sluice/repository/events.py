"""Usage events: one item per finished call, which is its own duplicate check.

The key is made of who reports, the local day and the request id, and nothing else. An event is put only if there is
none, in the transaction that adds to the counters: so whatever is sent again, and however often it is built anew, is
counted once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

from sluice.core.metering import CallStatus
from sluice.core.pricing import Pricing, Tokens
from sluice.repository import money_keys, schema
from sluice.repository.counters import TOKEN_ATTRIBUTES
from sluice.repository.keys import Key
from sluice.repository.requests import CheckRequest, PutRequest, QueryRequest
from sluice.repository.shapes import UnknownShape, check_kind, optional_text, optional_whole, text, texts, whole, wholes
from sluice.repository.wire import Item, Value

USAGE_EVENT: Final = "usage_event"
KEPT_S: Final = 90 * 86_400

E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class UsageEvent:
    """`app`: whose counters it was added to; None: the org's. `chain`: whom it was charged to. `day`: `yyyymmdd`.

    `epochs`: of the ledgers that it was added to, as they were. A refresh of one adds up its earlier ones.
    `label`: what it was counted under. `cost_usd_micros` and `price_id`: None where nobody knew the price.
    """

    namespace: str
    request_id: str
    body_hash: str
    entity: str
    app: str | None
    chain: tuple[str, ...]
    day: str
    occurred_at_ms: int
    received_at_ms: int
    label: str
    model_id: str
    region: str | None
    status: CallStatus
    pricing: Pricing
    tokens: Tokens
    cost_usd_micros: int | None
    price_id: str | None
    tags: Mapping[str, str]
    lease_id: str | None
    epochs: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_priced(self) -> bool:
        return self.cost_usd_micros is not None


def put_event(caller: str, event: UsageEvent) -> PutRequest:
    """Fails where the caller has reported this request id on this day before, and then shows what that was."""
    return {"Item": encode_event(caller, event), "ConditionExpression": "attribute_not_exists(PK)"}


def with_epochs(request: PutRequest, epochs: Mapping[str, int]) -> PutRequest:
    """The put of an event that is added to ledgers in these epochs."""
    return {**request, "Item": {**request["Item"], "epochs": dict(epochs)}}


def event_absent(key: Key, since_ms: int) -> CheckRequest:
    """Fails where there is an event that came in since then. An earlier one is another call with the same id."""
    return {
        "Key": {**key.attributes},
        "ConditionExpression": "attribute_not_exists(PK) OR #received < :since",
        "ExpressionAttributeNames": {"#received": "received_at_ms"},
        "ExpressionAttributeValues": {":since": since_ms},
    }


def events_query(namespace: str, caller: str, day: str, partition: int) -> QueryRequest:
    """What a caller reported for a day, in one of the EVENT_PARTITIONS partitions, by request id."""
    return {
        "KeyConditionExpression": "PK = :pk",
        "ExpressionAttributeValues": {":pk": money_keys.events_of(namespace, caller, day, partition)},
    }


def about_app(query: QueryRequest, app: str) -> QueryRequest:
    """Of what a query finds only the events that were counted for the app."""
    return _only(query, "#app = :app", {"#app": "app_id"}, {":app": app})


def about_entity(query: QueryRequest, entity: str) -> QueryRequest:
    """Of what a query finds only the events of the entity, and those that were charged to it."""
    names = {"#entity": "entity_id", "#chain": "chain"}
    return _only(query, "(#entity = :entity OR contains(#chain, :entity))", names, {":entity": entity})


def since(query: QueryRequest, since_ms: int) -> QueryRequest:
    """Of what a query finds only the events that came in since then."""
    return _only(query, "#received >= :since", {"#received": "received_at_ms"}, {":since": since_ms})


def encode_event(caller: str, event: UsageEvent) -> Item:
    item: Item = {
        **money_keys.event(event.namespace, caller, event.day, event.request_id).attributes,
        "kind": USAGE_EVENT,
        "ns": event.namespace,
        "request_id": event.request_id,
        "body_hash": event.body_hash,
        "entity_id": event.entity,
        "chain": list(event.chain),
        "day": event.day,
        "occurred_at_ms": event.occurred_at_ms,
        "received_at_ms": event.received_at_ms,
        "label": event.label,
        "model_id": event.model_id,
        "status": event.status.value,
        "pricing": event.pricing.value,
        "created_at": event.received_at_ms,
        schema.TTL_ATTRIBUTE: event.received_at_ms // 1000 + KEPT_S,
    }
    optional: dict[str, Value] = {
        "app_id": event.app,
        "region": event.region,
        "cost_usd_micros": event.cost_usd_micros,
        "price_id": event.price_id,
        "lease_id": event.lease_id,
    }
    item |= {attribute: value for attribute, value in optional.items() if value is not None}
    item |= {attribute: event.tokens[kind] for kind, attribute in TOKEN_ATTRIBUTES.items() if event.tokens.get(kind)}
    if event.tags:
        item["tags"] = dict(event.tags)
    if event.epochs:
        item["epochs"] = dict(event.epochs)
    return item


def decode_event(item: Mapping[str, Value]) -> UsageEvent:
    check_kind(item, USAGE_EVENT)
    return UsageEvent(
        namespace=text(item, "ns"),
        request_id=text(item, "request_id"),
        body_hash=text(item, "body_hash"),
        entity=text(item, "entity_id"),
        app=optional_text(item, "app_id"),
        chain=texts(item, "chain"),
        day=text(item, "day"),
        occurred_at_ms=whole(item, "occurred_at_ms"),
        received_at_ms=whole(item, "received_at_ms"),
        label=text(item, "label"),
        model_id=text(item, "model_id"),
        region=optional_text(item, "region"),
        status=_member(item, "status", CallStatus),
        pricing=_member(item, "pricing", Pricing),
        tokens={kind: whole(item, attribute) for kind, attribute in TOKEN_ATTRIBUTES.items() if attribute in item},
        cost_usd_micros=optional_whole(item, "cost_usd_micros"),
        price_id=optional_text(item, "price_id"),
        tags=_tags(item),
        lease_id=optional_text(item, "lease_id"),
        epochs=wholes(item, "epochs"),
    )


def _only(query: QueryRequest, condition: str, names: Mapping[str, str], values: Mapping[str, Value]) -> QueryRequest:
    earlier = query.get("FilterExpression")
    return {
        **query,
        "FilterExpression": condition if earlier is None else f"{earlier} AND {condition}",
        "ExpressionAttributeNames": {**query.get("ExpressionAttributeNames", {}), **names},
        "ExpressionAttributeValues": {**query["ExpressionAttributeValues"], **values},
    }


def _member(item: Mapping[str, Value], attribute: str, kind: type[E]) -> E:
    try:
        return kind(text(item, attribute))
    except ValueError:
        raise UnknownShape(item, f"{attribute} is not understood") from None


def _tags(item: Mapping[str, Value]) -> dict[str, str]:
    tags = item.get("tags", {})
    if not isinstance(tags, dict):
        raise UnknownShape(item, "tags is not a map")
    found = {name: value for name, value in tags.items() if isinstance(value, str)}
    if len(found) != len(tags):
        raise UnknownShape(item, "tags has members that are not texts")
    return found
