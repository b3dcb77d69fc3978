"""What of the table's stream is archived, as which line, and in which object.

Archived is what nobody changes any more: events when they are written, counters when they expire. The kinds are listed
one by one, so that whatever is new to the table stays out until somebody has thought about it: credentials, tokens,
leases and remembered answers never leave the table.

An object holds lines of one namespace, type and day, out of one delivery. It is named by the stream and by the first
and the last sequence number in it. Sequence numbers are unique in a stream, and between two of them a stream holds the
same records for ever; so a name stands for one content. A batch that is delivered again overwrites its objects byte for
byte. One that is delivered in other pieces makes other objects, which repeat lines and never take one away: named by
the first number alone, half a batch would replace the whole one. Readers leave out what is repeated.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from hashlib import sha256
from typing import Final

INSERT: Final = "INSERT"
REMOVE: Final = "REMOVE"
# Who removes an expired item, as the record of the removal names it.
TTL_SERVICE: Final = "dynamodb.amazonaws.com"

ARCHIVED_WHEN_WRITTEN: Final = ("audit", "usage_event")
ARCHIVED_WHEN_EXPIRED: Final = ("snapshot", "daily_total")
ARCHIVED_TYPES: Final = (*ARCHIVED_WHEN_WRITTEN, *ARCHIVED_WHEN_EXPIRED)
TYPE: Final = "type"

# Uncompressed. A batch of a function is smaller; what reads the stream by itself may hold more.
OBJECT_BYTES_MAX: Final = 32 * 1024 * 1024
# The longest that AWS documents. With leading zeros the order of the names is the order of the numbers.
SEQUENCE_DIGITS: Final = 40
_STREAM_DIGITS: Final = 12
_SUFFIX: Final = ".jsonl.gz"
_NAME_PARTS: Final = 3


class UnknownName(Exception):
    """An object that this code has not named. The name is not told: it may hold the id of a tenant."""


@dataclass(frozen=True, slots=True)
class Group:
    """Whose lines, of which type and day, stand in an object."""

    namespace: str
    record_type: str
    day: date

    @property
    def folder(self) -> str:
        """Below the namespace's own prefix."""
        return f"type={self.record_type}/dt={self.day.isoformat()}/"


@dataclass(frozen=True, slots=True)
class Span:
    """From which record of which stream to which: both ends are part of it."""

    stream: str
    first: int
    last: int

    @property
    def name(self) -> str:
        return f"{self.stream}-{self.first:0{SEQUENCE_DIGITS}d}-{self.last:0{SEQUENCE_DIGITS}d}{_SUFFIX}"

    @classmethod
    def read(cls, name: str) -> "Span":
        """From the name of an object, without the folders before it."""
        parts = name.removesuffix(_SUFFIX).split("-")
        if len(parts) != _NAME_PARTS or not name.endswith(_SUFFIX):
            raise UnknownName
        stream, first, last = parts
        if not (first.isdecimal() and last.isdecimal()):
            raise UnknownName
        return cls(stream, int(first), int(last))


@dataclass(frozen=True, slots=True)
class Entry:
    """One record that is archived. `position`: where it stands in its delivery."""

    group: Group
    sequence: int
    position: int
    line: bytes


@dataclass(frozen=True, slots=True)
class Part:
    """The content of one object. `position`: of its first record in the delivery."""

    group: Group
    span: Span
    position: int
    lines: Sequence[bytes]


def archived_type(event_name: str, kind: object, *, expired: bool) -> str | None:
    """Under which type a record is archived, or None. `kind`: of the item written, or of the one removed."""
    if event_name == INSERT and kind in ARCHIVED_WHEN_WRITTEN:
        return str(kind)
    if event_name == REMOVE and expired and kind in ARCHIVED_WHEN_EXPIRED:
        return str(kind)
    return None


def archived_line(item: Mapping[str, object], record_type: str, left_out: Iterable[str]) -> bytes:
    """One line of JSON, the same for the same item. `left_out`: attributes that mean something in the table only."""
    absent = frozenset(left_out)
    kept = {name: value for name, value in item.items() if name not in absent}
    return json.dumps({**kept, TYPE: record_type}, sort_keys=True, separators=(",", ":")).encode()


def archived_day(created_ms: int) -> date:
    """By the record's own time and in UTC, so that every delivery of a record belongs to one day."""
    return datetime.fromtimestamp(created_ms / 1000, UTC).date()


def stream_name(stream_arn: str) -> str:
    """A table that is made anew has another stream, which may count from the same numbers: its ARN ends in the time
    at which it began."""
    return sha256(stream_arn.encode()).hexdigest()[:_STREAM_DIGITS]


def parts_of(stream: str, entries: Iterable[Entry], bytes_max: int = OBJECT_BYTES_MAX) -> list[Part]:
    """The objects that a delivery makes, in the order of their first records."""
    groups: dict[Group, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.group, []).append(entry)
    parts = [
        _part(stream, group, chosen) for group, members in groups.items() for chosen in _bounded(members, bytes_max)
    ]
    return sorted(parts, key=lambda part: part.position)


def _bounded(entries: Sequence[Entry], bytes_max: int) -> Iterator[Sequence[Entry]]:
    """Cut where the next line would be too much; a line that is too long by itself stands alone."""
    start, size = 0, 0
    for index, entry in enumerate(entries):
        size += len(entry.line) + 1
        if size > bytes_max and index > start:
            yield entries[start:index]
            start, size = index, len(entry.line) + 1
    yield entries[start:]


def _part(stream: str, group: Group, entries: Sequence[Entry]) -> Part:
    first, last = entries[0], entries[-1]
    return Part(
        group=group,
        span=Span(stream, first.sequence, last.sequence),
        position=first.position,
        lines=[entry.line for entry in entries],
    )
