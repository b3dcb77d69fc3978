"""Records of the table's stream, as a function is given them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sluice.core.archiving import TTL_SERVICE
from sluice.repository.wire import WireItem


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """`sequence`: as the stream wrote it, for the answer to it. `old` and `new` are not decoded: most are of no use to
    whoever reads them. `expired`: the table itself removed the item, because its time was over."""

    sequence: str
    event_name: str
    created_ms: int
    expired: bool
    old: WireItem | None
    new: WireItem | None

    @property
    def kind(self) -> object:
        """Of the item as it is now; of one that was removed, as it was."""
        image = self.new if self.new is not None else self.old
        return None if image is None else image.get("kind", {}).get("S")


def parse_record(record: Mapping[str, Any]) -> StreamRecord:
    change = record["dynamodb"]
    return StreamRecord(
        sequence=change["SequenceNumber"],
        event_name=record["eventName"],
        # In seconds, whole or not.
        created_ms=int(change["ApproximateCreationDateTime"] * 1000),
        expired=(record.get("userIdentity") or {}).get("principalId") == TTL_SERVICE,
        old=change.get("OldImage"),
        new=change.get("NewImage"),
    )
