"""The table's stream: one record per change, in the order of the changes."""

from collections.abc import Hashable
from typing import Any, Final, NamedTuple

from sluice.repository.keys import Key
from sluice.repository.wire import Item, item_to_wire

INSERT: Final = "INSERT"
MODIFY: Final = "MODIFY"
REMOVE: Final = "REMOVE"

# What AWS puts into the record of a TTL deletion, by which a consumer can tell it apart.
_TTL_IDENTITY: Final = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
_SEQUENCE_START: Final = 100_000_000_000_000_000_000


class StreamRecord(NamedTuple):
    """A write that changed its item. `write`: the same for all records of a transaction. `cause`: who was behind it.

    AWS tells neither of these two; invariants ask for them.
    """

    sequence: int
    key: Key
    old: Item | None
    new: Item | None
    created_ms: int
    by_ttl: bool
    write: int
    cause: Hashable

    @property
    def event_name(self) -> str:
        if self.old is None:
            return INSERT
        return REMOVE if self.new is None else MODIFY

    def as_event(self) -> dict[str, Any]:
        """As a function gets it. AWS gives the time in whole seconds."""
        change: dict[str, Any] = {
            "ApproximateCreationDateTime": float(self.created_ms // 1000),
            "Keys": item_to_wire(dict(self.key.attributes)),
            "SequenceNumber": str(_SEQUENCE_START + self.sequence),
            "StreamViewType": "NEW_AND_OLD_IMAGES",
        }
        if self.new is not None:
            change["NewImage"] = item_to_wire(self.new)
        if self.old is not None:
            change["OldImage"] = item_to_wire(self.old)
        event = {
            "eventID": f"{self.sequence:032x}",
            "eventName": self.event_name,
            "eventSource": "aws:dynamodb",
            "eventVersion": "1.1",
            "awsRegion": "us-east-1",
            "dynamodb": change,
        }
        if self.by_ttl:
            event["userIdentity"] = dict(_TTL_IDENTITY)
        return event
