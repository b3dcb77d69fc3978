"""Reading the archive back: the lines of one namespace, type and day, each once.

A record that was delivered in several ways stands in several objects. Each of them names the first and the last record
in it, and both reach over the repeated one; so only lines of objects that overlap have to be remembered, and reading a
day needs the memory of a few deliveries, however long the day is.
"""

import json
from collections.abc import Iterator
from datetime import date
from typing import Any

from sluice.core.archiving import Group, Span
from sluice.repository import keys
from sluice.repository.archive import ArchiveReader, archive_prefix


class ArchiveReading:
    def __init__(self, archive: ArchiveReader) -> None:
        self._archive = archive

    def lines(self, namespace: str, record_type: str, day: date) -> Iterator[dict[str, Any]]:
        """In the order of the objects' names: by stream, and then by their first record."""
        prefix = archive_prefix(namespace) + Group(namespace, record_type, day).folder
        overlapping: list[tuple[Span, set[keys.Key]]] = []
        for name in self._archive.names(prefix):
            span = Span.read(name.removeprefix(prefix))
            overlapping = [
                (other, seen) for other, seen in overlapping if other.stream == span.stream and other.last >= span.first
            ]
            own: set[keys.Key] = set()
            for line in self._archive.read(name):
                item = json.loads(line)
                key = keys.key_of(item)
                if key not in own and not any(key in seen for _, seen in overlapping):
                    yield item
                own.add(key)
            overlapping.append((span, own))
