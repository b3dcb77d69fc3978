"""Calls, writes and capacity units of a client, at the prices of AWS.

The engine's figures count, except where DynamoDB Local is known to differ: its figure for a transaction is now two, now
four units an item, and a key of a batch that is not there costs nothing.
"""

from dataclasses import dataclass
from typing import Any, Final

from bench.capacity import READS, UNIT_BYTES, size_bytes, units_of
from bench.compare.product import BotoClient

_SENT: Final = "compare_sent"
_INDEX_KEY: Final = ("GSI", "PK")
"""How both products name the partition keys of their indexes."""


@dataclass
class Bill:
    calls: int = 0
    writes: int = 0
    """Items that a write was sent for, alone or in a transaction, whether it was applied or not."""
    write_units: float = 0
    read_units: float = 0


class BillingMeter:
    def __init__(self, client: BotoClient) -> None:
        self._now = Bill()
        client.meta.events.register("provide-client-params.dynamodb", self._ask)
        client.meta.events.register("after-call.dynamodb", self._add)

    def taken(self) -> Bill:
        """What came up since this was last asked."""
        taken, self._now = self._now, Bill()
        return taken

    def _ask(self, params: dict[str, Any], context: dict[str, Any], **_more: Any) -> None:
        params["ReturnConsumedCapacity"] = "INDEXES"
        context[_SENT] = params

    def _add(self, model: Any, parsed: dict[str, Any], context: dict[str, Any], **_more: Any) -> None:
        bill = self._now
        bill.calls += 1
        if model.name == "TransactWriteItems":
            actions = context[_SENT]["TransactItems"]
            bill.writes += sum(1 for action in actions if "ConditionCheck" not in action)
            bill.write_units += transaction_units(actions)
        elif model.name == "BatchGetItem":
            bill.read_units += units_of(parsed) + missing_units(context[_SENT]["RequestItems"], parsed)
        elif model.name in READS:
            bill.read_units += units_of(parsed)
        else:
            bill.writes += 1
            bill.write_units += units_of(parsed)


def transaction_units(actions: list[dict[str, Any]]) -> int:
    """Two for each started KB of each item, checked or written, and one for each index entry of a new item.

    The size of an item that is updated or checked is not known here; in both products it is below 1 KB.
    """
    units = 0
    for action in actions:
        item = action.get("Put", {}).get("Item", {})
        units += 2 * max(1, -(-size_bytes(item) // UNIT_BYTES))
        prefix, suffix = _INDEX_KEY
        units += sum(1 for name in item if name.startswith(prefix) and name.endswith(suffix))
    return units


def missing_units(requested: dict[str, Any], parsed: dict[str, Any]) -> float:
    """Half a unit for each key that is not there, a whole one if read consistently."""
    units = 0.0
    for table, request in requested.items():
        missing = len(request["Keys"]) - len(parsed.get("Responses", {}).get(table, []))
        units += missing * (1 if request.get("ConsistentRead") else 0.5)
    return units
