"""Labels as they are stored, and the requests about them, each guarded by the version that was seen."""

from collections.abc import Mapping
from typing import Final

from sluice.core.labels import LabelDefinition
from sluice.repository import money_keys
from sluice.repository.audit import Image
from sluice.repository.requests import QueryRequest, TransactWrite
from sluice.repository.shapes import check_kind, optional_text, optional_whole, text, whole
from sluice.repository.wire import Item, Value

LABEL: Final = "label"


def label_put(namespace: str, label: LabelDefinition, seen: LabelDefinition | None) -> TransactWrite:
    """Replaces what was seen, or nothing."""
    item = encode_label(namespace, label)
    if seen is None:
        return {"Put": {"Item": item, "ConditionExpression": "attribute_not_exists(PK)"}}
    condition, values = _as_seen(seen)
    return {"Put": {"Item": item, "ConditionExpression": condition, "ExpressionAttributeValues": values}}


def label_delete(namespace: str, seen: LabelDefinition) -> TransactWrite:
    condition, values = _as_seen(seen)
    key: Item = {**money_keys.label(namespace, seen.label).attributes}
    return {"Delete": {"Key": key, "ConditionExpression": condition, "ExpressionAttributeValues": values}}


def labels_query(namespace: str) -> QueryRequest:
    """All labels of a namespace, by name."""
    return {
        "KeyConditionExpression": "PK = :system AND begins_with(SK, :label)",
        "ExpressionAttributeValues": {
            ":system": money_keys.labels_partition(namespace),
            ":label": money_keys.LABEL_PREFIX,
        },
        "ConsistentRead": True,
    }


def label_image(label: LabelDefinition) -> Image:
    """As the audit shows it."""
    return {"label": label.label, "version": label.version, **_fields(label)}


def encode_label(namespace: str, label: LabelDefinition) -> Item:
    return {
        **money_keys.label(namespace, label.label).attributes,
        **money_keys.label_indexes(namespace, label.label),
        "kind": LABEL,
        "label": label.label,
        **_fields(label),
        "v": label.version,
        "created_at": label.created_at_ms,
        "updated_at": label.updated_at_ms,
    }


def decode_label(item: Mapping[str, Value]) -> LabelDefinition:
    check_kind(item, LABEL)
    return LabelDefinition(
        label=text(item, "label"),
        model_id=text(item, "model_id"),
        tier=optional_text(item, "tier"),
        family=optional_text(item, "family"),
        description=optional_text(item, "description"),
        input_price_usd_micros_per_1m=optional_whole(item, "input_price"),
        output_price_usd_micros_per_1m=optional_whole(item, "output_price"),
        version=whole(item, "v"),
        created_at_ms=whole(item, "created_at"),
        updated_at_ms=whole(item, "updated_at"),
    )


def _fields(label: LabelDefinition) -> dict[str, Value]:
    """What was put, without what was left out."""
    fields: dict[str, Value] = {
        "model_id": label.model_id,
        "tier": label.tier,
        "family": label.family,
        "description": label.description,
        "input_price": label.input_price_usd_micros_per_1m,
        "output_price": label.output_price_usd_micros_per_1m,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _as_seen(label: LabelDefinition) -> tuple[str, dict[str, Value]]:
    """Removed and made again, a label starts at version 1 once more: its creation time tells the two apart."""
    values: dict[str, Value] = {":version": label.version, ":created": label.created_at_ms}
    return "v = :version AND created_at = :created", values
