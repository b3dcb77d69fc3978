"""What must hold of the archive, told from the stream and without the product's own idea of what belongs there."""

import gzip
import json
from collections import Counter, defaultdict
from datetime import UTC, date, datetime
from typing import Any, Final, NamedTuple

from sluice.repository import keys
from sluice.repository.archive import S3Archive
from sluice.repository.wire import Item
from sluice.services.archive_reading import ArchiveReading
from tests.simulation.objects import BucketReader, SimulatedBucket
from tests.simulation.scenario import Violated
from tests.simulation.stream import INSERT, REMOVE, StreamRecord
from tests.simulation.world import World

OF_THE_TABLE: Final = ("ttl", "GSI")
"""How attributes begin that mean nothing outside of the table."""
TYPES: Final = ("audit", "snapshot")


class Folder(NamedTuple):
    namespace: str
    record_type: str
    day: date

    @property
    def prefix(self) -> str:
        return f"archive/ns={self.namespace}/type={self.record_type}/dt={self.day.isoformat()}/"


def every_line_is_read_once(world: World) -> None:
    """Of the namespace that stays: each event that was written and each snapshot that expired, in the folder of its
    day, and not a line more."""
    right = _right(world)
    reading = ArchiveReading(S3Archive(BucketReader(_bucket(world)), "simulated"))
    days = {_day(record) for record in world.table.stream}
    for folder in (Folder(world.namespace, record_type, day) for record_type in TYPES for day in sorted(days)):
        read = Counter(_text(line) for line in reading.lines(*folder))
        if read != right[folder]:
            raise Violated(f"{folder}: lost {right[folder] - read}, too many {read - right[folder]}")


def nothing_else_is_archived(world: World) -> None:
    """At no time: no other kind, nothing of the registry, nothing in the folder of another."""
    right = _right(world)
    by_prefix = {folder.prefix: lines for folder, lines in right.items()}
    for put in _bucket(world).puts:
        lines = by_prefix.get(put.name[: put.name.rindex("/") + 1], Counter())
        for line in gzip.decompress(put.content).splitlines():
            if _text(json.loads(line)) not in lines:
                raise Violated(f"in {put.name} is {line!r}")


def nothing_of_the_purged_is_archived(world: World) -> None:
    """Once its purge has ended: nothing is left then, and nothing comes, however late."""
    purged = world.notes["purged"]
    prefix = f"archive/ns={purged}/"
    (ended,) = (
        place
        for place, record in enumerate(world.table.stream)
        if record.key == keys.namespace_by_id(purged) and record.new is None
    )
    for put in _bucket(world).puts:
        if put.name.startswith(prefix) and put.after > ended:
            raise Violated(f"written after the purge: {put.name}")
    left = [name for name in _bucket(world).versions if name.startswith(prefix)]
    if left:
        raise Violated(f"left of the purged namespace: {left}")


def a_name_stands_for_one_content(world: World) -> None:
    """To the byte: whatever is delivered again overwrites itself."""
    first: dict[str, bytes] = {}
    for put in _bucket(world).puts:
        if first.setdefault(put.name, put.content) != put.content:
            raise Violated(f"{put.name} was written with two contents")


def _right(world: World) -> dict[Folder, Counter[str]]:
    """The lines that each folder may have, of both namespaces."""
    right: dict[Folder, Counter[str]] = defaultdict(Counter)
    namespaces = (world.namespace, world.notes["purged"])
    for record in world.table.stream:
        image = _archived_image(record)
        if image is not None and image["ns"] in namespaces:
            folder = Folder(str(image["ns"]), str(image["kind"]), _day(record))
            right[folder][_text(_line(image))] += 1
    return right


def _archived_image(record: StreamRecord) -> Item | None:
    if record.event_name == INSERT and record.new is not None and record.new["kind"] == "audit":
        return record.new
    if record.event_name == REMOVE and record.by_ttl and record.old is not None and record.old["kind"] == "snapshot":
        return record.old
    return None


def _line(image: Item) -> dict[str, Any]:
    kept: dict[str, Any] = {name: value for name, value in image.items() if not name.startswith(OF_THE_TABLE)}
    return {**kept, "type": image["kind"]}


def _text(line: dict[str, Any]) -> str:
    return json.dumps(line, sort_keys=True)


def _day(record: StreamRecord) -> date:
    return datetime.fromtimestamp(record.created_ms / 1000, UTC).date()


def _bucket(world: World) -> SimulatedBucket:
    bucket: SimulatedBucket = world.notes["bucket"]
    return bucket
