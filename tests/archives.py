"""Stream records as a function gets them, and an archive in memory."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sluice.core.audit import Action, Author
from sluice.repository import keys
from sluice.repository.audit import AuditEvent, encode_audit_event
from sluice.repository.wire import Item, item_to_wire

STREAM = "arn:aws:dynamodb:us-east-1:123456789012:table/sluice-test/stream/2026-11-18T00:00:00.000"
FIRST_SEQUENCE = 4_421_584_500_000_000_017_450_000_000
# 2026-11-18T00:00:10Z
CREATED_S = 1_794_960_010
TTL = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}

Record = dict[str, Any]


def audit_item(namespace: str, number: int) -> Item:
    event = AuditEvent(
        event_id=f"e{number}",
        subject="user-1",
        at_ms=CREATED_S * 1000,
        author=Author("client-7", "request-9"),
        action=Action.ENTITY_PUT,
        target="entities/user-1",
        before=None,
        after={"number": number},
    )
    return encode_audit_event(namespace, event)


def counter_item(namespace: str, kind: str, number: int) -> Item:
    key = keys.Key(f"{keys.encode(namespace)}/ENTITY#user-1", f"#USAGE#gpt-4#hour#{number}")
    return {
        **key.attributes,
        **keys.namespace_index(namespace, key),
        "kind": kind,
        "ns": namespace,
        "ttl": 5,
        "c_rpm": 7,
    }


def record(
    sequence: int,
    *,
    new: Item | None = None,
    old: Item | None = None,
    expired: bool = False,
    created_s: float = CREATED_S,
) -> Record:
    """An INSERT, MODIFY or REMOVE, by the images that it has."""
    images = {"NewImage": new, "OldImage": old}
    shown = {name: item_to_wire(image) for name, image in images.items() if image is not None}
    event_name = "INSERT" if old is None else "REMOVE" if new is None else "MODIFY"
    made: Record = {
        "eventID": f"{sequence:032x}",
        "eventName": event_name,
        "eventSource": "aws:dynamodb",
        "eventSourceARN": STREAM,
        "dynamodb": {
            "ApproximateCreationDateTime": created_s,
            "SequenceNumber": str(FIRST_SEQUENCE + sequence),
            "StreamViewType": "NEW_AND_OLD_IMAGES",
            **shown,
        },
    }
    if expired:
        made["userIdentity"] = dict(TTL)
    return made


def audits(namespace: str, numbers: Iterable[int]) -> list[Record]:
    return [record(number, new=audit_item(namespace, number)) for number in numbers]


def sequence_of(made: Record) -> str:
    sequence: str = made["dynamodb"]["SequenceNumber"]
    return sequence


class MemoryArchive:
    """`contents`: every content that a name ever had."""

    def __init__(self) -> None:
        self.objects: dict[str, Sequence[bytes]] = {}
        self.contents: dict[str, set[tuple[bytes, ...]]] = {}

    def put_lines(self, name: str, lines: Iterable[bytes]) -> int:
        content = tuple(lines)
        self.objects[name] = content
        self.contents.setdefault(name, set()).add(content)
        return sum(len(line) + 1 for line in content)

    def names(self, prefix: str) -> Iterator[str]:
        return iter(sorted(name for name in self.objects if name.startswith(prefix)))

    def read(self, name: str) -> Iterator[bytes]:
        return iter(self.objects[name])
