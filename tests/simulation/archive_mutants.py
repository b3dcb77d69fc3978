"""Ways to keep an archive that lose, repeat or tell too much: each must be caught.

As in `mutants.py` a mutant patches the product for one run.
"""

import json
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from sluice.core import archiving as naming
from sluice.core.archiving import Group, Span
from sluice.core.errors import Unavailable
from sluice.repository import keys
from sluice.repository.archive import archive_prefix
from sluice.services import archiving, purge
from sluice.services.archive_reading import ArchiveReading
from sluice.services.archiving import Archived, Archiving
from tests.simulation.hole import Mutant

_part = naming._part
_put = Archiving._put
_archive = Archiving.archive
_archived_type = naming.archived_type


def _names_by_the_first(stream: str, group: Any, entries: Any) -> Any:
    first = entries[0].sequence
    return replace(_part(stream, group, entries), span=Span(stream, first, first))


def _swallows(self: Archiving, part: Any) -> int | None:
    try:
        return _put(self, part)
    except Unavailable:
        return None


def _answers_for_the_last(self: Archiving, stream_arn: str, records: Any) -> Archived:
    """Only the last record of a batch that failed comes again."""
    done = _archive(self, stream_arn, records)
    return done if done.failed is None else replace(done, failed=records[-1]["dynamodb"]["SequenceNumber"])


def _takes_every_kind(event_name: str, kind: object, *, expired: bool) -> str | None:
    """Of those that name their namespace: the others could not be put anywhere."""
    if kind in {"bucket", "client"} and event_name == naming.INSERT:
        return str(kind)
    return _archived_type(event_name, kind, expired=expired)


def _takes_expired_events(event_name: str, kind: object, *, expired: bool) -> str | None:
    if event_name == naming.REMOVE and expired and kind in naming.ARCHIVED_TYPES:
        return str(kind)
    return _archived_type(event_name, kind, expired=expired)


def _overlooks_expired(event_name: str, kind: object, *, expired: bool) -> str | None:
    return None if expired else _archived_type(event_name, kind, expired=expired)


def _asks_nobody(self: Archiving, part: Any) -> int:
    name = f"{archive_prefix(part.group.namespace)}{part.group.folder}{part.span.name}"
    return self._archive.put_lines(name, part.lines)


def _reads_repeats(self: ArchiveReading, namespace: str, record_type: str, day: Any) -> Any:
    prefix = archive_prefix(namespace) + Group(namespace, record_type, day).folder
    for name in self._archive.names(prefix):
        yield from map(json.loads, self._archive.read(name))


def _remembers_one_object(self: ArchiveReading, namespace: str, record_type: str, day: Any) -> Any:
    """The one before, whatever else reaches over the line."""
    prefix = archive_prefix(namespace) + Group(namespace, record_type, day).folder
    before: set[keys.Key] = set()
    for name in self._archive.names(prefix):
        items = [json.loads(line) for line in self._archive.read(name)]
        yield from (item for item in items if keys.key_of(item) not in before)
        before = set(map(keys.key_of, items))


def _leaves_it(_self: purge.Purge, _namespace: str, _place: Any) -> tuple[int, None]:
    return 0, None


ARCHIVES: Final = (
    Mutant(
        "an object has its first number only", "archive", lambda: patch.object(naming, "_part", _names_by_the_first)
    ),
    Mutant("a failed put is swallowed", "archive", lambda: patch.object(Archiving, "_put", _swallows)),
    Mutant(
        "a failed batch is passed over", "archive", lambda: patch.object(Archiving, "archive", _answers_for_the_last)
    ),
    Mutant("every kind is archived", "archive", lambda: patch.object(archiving, "archived_type", _takes_every_kind)),
    Mutant(
        "events are archived twice", "archive", lambda: patch.object(archiving, "archived_type", _takes_expired_events)
    ),
    Mutant(
        "what expired is not archived", "archive", lambda: patch.object(archiving, "archived_type", _overlooks_expired)
    ),
    Mutant("a purged namespace is archived", "archive", lambda: patch.object(Archiving, "_put", _asks_nobody)),
    Mutant("repeated lines are read", "archive", lambda: patch.object(ArchiveReading, "lines", _reads_repeats)),
    Mutant(
        "a reader remembers one object", "archive", lambda: patch.object(ArchiveReading, "lines", _remembers_one_object)
    ),
    Mutant("an archive is not emptied", "archive", lambda: patch.object(purge.Purge, "_empty_archive", _leaves_it)),
    Mutant(
        "an archive is emptied too early", "archive", lambda: patch.object(purge, "UNNOTICED_MS", 0), 2_000, first=80
    ),
)
