"""The purge of a namespace: a job that removes everything of it and nothing of anybody else.

One pass follows the namespace's index, which finds most and also what the registry keeps about the namespace: its
clients and their revoked tokens. Then it looks at every item of the table, which finds what is in no index, and last it
empties the namespace's part of the archive. While the first pass runs, processes that have not noticed yet may still
write; so the passes after it begin when all have noticed, and the purge ends with a pass that found nothing. Only then
the name is free again.

Every step removes a page at most, one item after the other: a purge takes its time and leaves the table to the others.
What it removes it does not read: the sweep asks for keys, and the registry's items go without being shown.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from sluice.core.audit import Author
from sluice.repository import keys
from sluice.repository.archive import Archive
from sluice.repository.enumeration import index_query, is_of, is_of_registry, partition_query, sweep_scan
from sluice.repository.jobs import Job
from sluice.repository.namespaces import Namespace, decode_namespace, remove_writes
from sluice.repository.requests import TransactWrite
from sluice.repository.shapes import UnknownShape, text, whole
from sluice.repository.store import Applied, Cancelled, Committed, Store
from sluice.repository.wire import Item, Value
from sluice.services.effects import Effects
from sluice.services.jobs import Step

PURGE: Final = "purge"
PAGE: Final = 100
# Longer than a namespace may be cached as active plus the longest request.
UNNOTICED_MS: Final = 120_000


class RegistryDisagrees(Exception):
    """The two records of a namespace name different purges: somebody has to look at it."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a purge is: in a partition of the index, behind `after`; behind the last one, in the sweep at `start`;
    behind the sweep, in the archive, where what is left is always the beginning.

    `found`: what this pass has removed so far.
    """

    passes: int = 1
    found: int = 0
    partition: int = 0
    after: str | None = None
    start: Item | None = None

    @property
    def in_index(self) -> bool:
        return self.partition < keys.NAMESPACE_PARTITIONS

    @property
    def in_archive(self) -> bool:
        return self.partition > keys.NAMESPACE_PARTITIONS

    @property
    def at_beginning(self) -> bool:
        return self == _Place(self.passes)

    def next_partition(self) -> "_Place":
        return replace(self, partition=self.partition + 1, after=None, start=None)

    def next_pass(self) -> "_Place":
        return _Place(self.passes + 1)

    def cursor(self) -> dict[str, Value]:
        cursor: dict[str, Value] = {"passes": self.passes, "found": self.found, "partition": self.partition}
        if self.after is not None:
            cursor["after"] = self.after
        if self.start is not None:
            cursor["start"] = self.start
        return cursor

    @classmethod
    def read(cls, cursor: Mapping[str, Value] | None) -> "_Place":
        if cursor is None:
            return cls()
        start = cursor.get("start")
        if start is not None and not isinstance(start, dict):
            raise UnknownShape(cursor, "start is not a key")
        return cls(
            passes=whole(cursor, "passes"),
            found=whole(cursor, "found"),
            partition=whole(cursor, "partition"),
            after=text(cursor, "after") if "after" in cursor else None,
            start=start,
        )


class Purge:
    """`archive`: None where there is no bucket."""

    def __init__(self, store: Store, effects: Effects, archive: Archive | None = None) -> None:
        self._store = store
        self._effects = effects
        self._archive = archive

    def step(self, job: Job) -> Step:
        place = _Place.read(job.cursor)
        if place.passes > 1 and place.at_beginning and self._effects.clock_ms() < job.created_at_ms + UNNOTICED_MS:
            return Step(0, place.cursor(), rest=True)
        removed, after = self._work(place)(job.namespace, place)
        result = _result(job, removed, place)
        if after is not None:
            return Step(removed, replace(after, found=after.found + removed).cursor(), result=result)
        found_in_pass = place.found + removed
        if found_in_pass or place.passes == 1:
            return Step(removed, place.next_pass().cursor(), result=result)
        self._remove_records(job)
        return Step(removed, None, result=result)

    def _work(self, place: _Place) -> Callable[[str, _Place], tuple[int, _Place | None]]:
        if place.in_archive:
            return self._empty_archive
        return self._follow_index if place.in_index else self._sweep

    def _follow_index(self, namespace: str, place: _Place) -> tuple[int, _Place | None]:
        page = self._store.query(index_query(namespace, place.partition, place.after, PAGE))
        removed = 0
        for pk, found in groupby(map(keys.key_of, page.items), key=lambda key: key.pk):
            if removed >= PAGE:
                return removed, place
            more, complete = self._remove_partition(namespace, pk, found)
            removed += more
            if not complete:
                return removed, place
            place = replace(place, after=pk)
        return removed, place if page.next_start is not None else place.next_partition()

    def _remove_partition(self, namespace: str, pk: str, found: Iterable[keys.Key]) -> tuple[int, bool]:
        """How many items were removed, and whether that was all of it."""
        if is_of_registry(pk):
            # Only what the index names: the rest of the partition may be about others. What this page of the index does
            # not show is left to the next pass.
            return sum(map(self._remove_unseen, found)), True
        if not is_of(namespace, pk):
            # Indexed by mistake. Whatever it is, it is not ours.
            return 0, True
        page = self._store.query(partition_query(pk, PAGE))
        return sum(self._remove(keys.key_of(item)) for item in page.items), page.next_start is None

    def _sweep(self, namespace: str, place: _Place) -> tuple[int, _Place | None]:
        page = self._store.scan(sweep_scan(namespace, place.start, PAGE))
        found = [key for key in map(keys.key_of, page.items) if is_of(namespace, key.pk)]
        removed = sum(map(self._remove, found))
        return removed, place.next_partition() if page.next_start is None else replace(place, start=page.next_start)

    def _empty_archive(self, namespace: str, place: _Place) -> tuple[int, _Place | None]:
        """None in place of a place: the pass is at its end."""
        removed = 0 if self._archive is None else self._archive.remove_some(namespace, PAGE)
        return removed, place if removed else None

    def _remove(self, key: keys.Key) -> int:
        """1 if there was something. Repeated after a lost answer it counts too little, never too much."""
        outcome = self._store.delete({"Key": {**key.attributes}})
        return int(isinstance(outcome, Applied) and outcome.item is not None)

    def _remove_unseen(self, key: keys.Key) -> int:
        """As a transaction, which answers nothing: a deletion would show what it removed, here the hash of a secret."""
        removal: TransactWrite = {"Delete": {"Key": {**key.attributes}, "ConditionExpression": "attribute_exists(PK)"}}
        return int(isinstance(self._store.transact([removal], self._effects.new_token()), Committed))

    def _remove_records(self, job: Job) -> None:
        """Both records in one transaction. A step that runs again finds them gone, or the name with a new owner."""
        by_id = self._store.get(keys.namespace_by_id(job.namespace), consistent=True)
        if by_id is None:
            return
        namespace = decode_namespace(by_id)
        outcome = self._store.transact(remove_writes(namespace, job.job_id), self._effects.new_token())
        if not isinstance(outcome, Cancelled):
            return
        if self._store.get(keys.namespace_by_id(job.namespace), consistent=True) is not None:
            raise RegistryDisagrees


def purge_parameters(namespace: Namespace, author: Author) -> dict[str, Value]:
    """Who asked for what: the audit event of it goes with the namespace, the job stays."""
    return {"name": namespace.name, "requested_by": author.actor, "request_id": author.request_id}


def _result(job: Job, removed: int, place: _Place) -> dict[str, Value]:
    return {**job.parameters, "deleted": job.done + removed, "passes": place.passes}
