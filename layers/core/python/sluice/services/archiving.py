"""Archiving what the table's stream tells: of a delivery everything, or everything before the first record that failed.

A failed record is answered with its sequence number, and delivered again with all behind it; what of those had been
written already is written a second time, under other names. Readers leave it out: see `core/archiving.py`.

Nothing is written for a namespace that is gone or being purged, however late its records arrive: the purge waits until
every process has noticed, and what came after it would stay for ever.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sluice.core.archiving import (
    Entry,
    Group,
    Part,
    archived_day,
    archived_line,
    archived_type,
    parts_of,
    stream_name,
)
from sluice.core.errors import NotFound, Unavailable
from sluice.core.signals import Meter, Signal
from sluice.repository import keys, schema
from sluice.repository.archive import ArchiveWriter, archive_prefix
from sluice.repository.shapes import UnknownShape, text
from sluice.repository.stream_records import StreamRecord, parse_record
from sluice.repository.wire import item_from_wire
from sluice.services.namespaces import Namespaces

# What finds and removes an item in the table. Its primary key stays: by it a reader knows what is repeated.
_LEFT_OUT: Final = (
    schema.TTL_ATTRIBUTE,
    *(schema.index_partition_key(index) for index in schema.INDEX_PROJECTIONS),
    *(schema.index_sort_key(index) for index in schema.INDEX_PROJECTIONS),
)
# An item that this code did not write: of another shape, or with attributes of types that are not in use.
_NOT_DECODED: Final = (UnknownShape, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Archived:
    """What became of a delivery. `left_out`: lines of namespaces that are gone. `failed`: the sequence number of the
    first record that has to come again, with its error."""

    lines: int = 0
    size_bytes: int = 0
    objects: int = 0
    left_out: int = 0
    newest_ms: int | None = None
    failed: str | None = None
    error: Exception | None = None


class Archiving:
    def __init__(self, archive: ArchiveWriter, namespaces: Namespaces, meter: Meter) -> None:
        self._archive = archive
        self._namespaces = namespaces
        self._meter = meter

    def archive(self, stream_arn: str, records: Sequence[Mapping[str, Any]]) -> Archived:
        parsed = [parse_record(record) for record in records]
        entries, broken, error = _entries(parsed)
        done = self._write(parts_of(stream_name(stream_arn), entries), parsed, broken, error)
        if done.lines:
            self._meter.count(Signal.ARCHIVED_RECORDS, done.lines)
            self._meter.count(Signal.ARCHIVED_BYTES, done.size_bytes)
        if done.failed is not None:
            self._meter.count(Signal.STREAM_FAILURES)
        return done

    def _write(
        self, parts: Sequence[Part], records: Sequence[StreamRecord], broken: int | None, error: Exception | None
    ) -> Archived:
        """In the order of their first records, up to the first that fails: all behind it comes again anyway."""
        lines = size_bytes = objects = left_out = 0
        for part in parts:
            try:
                written = self._put(part)
            except Unavailable as unavailable:
                broken, error = part.position, unavailable
                break
            if written is None:
                left_out += len(part.lines)
                continue
            lines += len(part.lines)
            size_bytes += written
            objects += 1
        return Archived(
            lines=lines,
            size_bytes=size_bytes,
            objects=objects,
            left_out=left_out,
            newest_ms=max((record.created_ms for record in records), default=None),
            failed=None if broken is None else records[broken].sequence,
            error=error,
        )

    def _put(self, part: Part) -> int | None:
        """The size of the object, or None for a namespace that gets none."""
        try:
            self._namespaces.require_active(part.group.namespace)
        except NotFound:
            return None
        name = f"{archive_prefix(part.group.namespace)}{part.group.folder}{part.span.name}"
        return self._archive.put_lines(name, part.lines)


def _entries(records: Sequence[StreamRecord]) -> tuple[list[Entry], int | None, Exception | None]:
    """What is archived, up to the first record that can not be read, and which that is."""
    entries: list[Entry] = []
    for position, record in enumerate(records):
        record_type = archived_type(record.event_name, record.kind, expired=record.expired)
        if record_type is None:
            continue
        try:
            entry = _entry(record, record_type, position)
        except _NOT_DECODED as error:
            return entries, position, error
        if entry.group.namespace != keys.REGISTRY_NAMESPACE:
            entries.append(entry)
    return entries, None, None


def _entry(record: StreamRecord, record_type: str, position: int) -> Entry:
    item = item_from_wire(record.new or record.old or {})
    return Entry(
        group=Group(text(item, "ns"), record_type, archived_day(record.created_ms)),
        sequence=int(record.sequence),
        position=position,
        line=archived_line(item, record_type, _LEFT_OUT),
    )
