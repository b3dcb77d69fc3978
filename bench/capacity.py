"""Counts the calls and capacity units of a client, from what the engine itself says it consumed."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

READS = frozenset({"BatchGetItem", "GetItem", "Query", "Scan", "TransactGetItems"})
UNIT_BYTES = 1024


@dataclass
class Consumption:
    calls: int = 0
    write_units: float = 0
    read_units: float = 0


class CapacityMeter:
    """Asks for ReturnConsumedCapacity=INDEXES on every call of a client."""

    def __init__(self, client: "DynamoDBClient") -> None:
        self._now = Consumption()
        events = client.meta.events
        events.register("provide-client-params.dynamodb", self._ask)
        events.register("after-call.dynamodb", self._add)

    @contextmanager
    def measuring(self) -> Iterator[Consumption]:
        measured = self._now = Consumption()
        yield measured
        self._now = Consumption()

    def _ask(self, params: dict[str, Any], **_more: Any) -> None:
        params["ReturnConsumedCapacity"] = "INDEXES"

    def _add(self, model: Any, parsed: dict[str, Any], **_more: Any) -> None:
        self._now.calls += 1
        units = units_of(parsed)
        if model.name in READS:
            self._now.read_units += units
        else:
            self._now.write_units += units


def units_of(parsed: dict[str, Any]) -> float:
    """What one answer says that its call consumed, indexes included."""
    if parsed.get("Error", {}).get("Code") == "ConditionalCheckFailedException":
        # The answer of a failed condition has no figure. It is billed like the write of the item that was looked at.
        return max(1, -(-size_bytes(parsed.get("Item", {})) // UNIT_BYTES))
    consumed = parsed.get("ConsumedCapacity", [])
    return sum(float(part["CapacityUnits"]) for part in (consumed if isinstance(consumed, list) else [consumed]))


def size_bytes(item: dict[str, Any]) -> int:
    """As DynamoDB counts: names and texts in UTF-8, numbers at two digits a byte and one more."""
    size = 0
    for name, wire in item.items():
        ((kind, value),) = wire.items()
        size += len(name.encode())
        size += len(value.encode()) if kind == "S" else len(value) // 2 + 2 if kind == "N" else 1
    return size
