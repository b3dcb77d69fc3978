"""Plain Python values to DynamoDB's attribute values and back.

boto3's own deserializer turns every number into a Decimal. Balances are integers of up to 25 digits and must stay
integers, and this conversion is on the hot path, so the few types in use are mapped here.
"""

from collections.abc import Mapping
from typing import Any

Value = str | int | bool | None | list["Value"] | dict[str, "Value"]
Item = dict[str, Value]
WireValue = dict[str, Any]
WireItem = dict[str, WireValue]


def to_wire(value: Value) -> WireValue:
    # By exact type first, which also keeps bool apart from int: this runs for every value of every request.
    kind = type(value)
    if kind is int:
        return {"N": str(value)}
    if isinstance(value, str):
        return {"S": value}
    if kind is bool:
        return {"BOOL": value}
    if value is None:
        return {"NULL": True}
    if isinstance(value, list):
        return {"L": [to_wire(element) for element in value]}
    if isinstance(value, dict):
        return {"M": item_to_wire(value)}
    raise TypeError(f"no attribute value for {type(value).__name__}")


def from_wire(wire: Mapping[str, Any]) -> Value:
    # The two that buckets are made of come first: this runs for every attribute of every answer.
    if "N" in wire:
        return int(wire["N"])
    if "S" in wire:
        text: str = wire["S"]
        return text
    ((kind, raw),) = wire.items()
    match kind:
        case "BOOL":
            return bool(raw)
        case "NULL":
            return None
        case "L":
            return [from_wire(element) for element in raw]
        case "M":
            return item_from_wire(raw)
        case _:
            raise TypeError(f"attribute type {kind} is not in use")


def item_to_wire(item: Mapping[str, Value]) -> WireItem:
    return {name: to_wire(value) for name, value in item.items()}


def item_from_wire(wire: Mapping[str, WireValue]) -> Item:
    return {name: from_wire(value) for name, value in wire.items()}
