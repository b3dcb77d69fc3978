"""Lists, page by page. A page has `limit` items unless it is the last, or the walk to fill it was cut.

Indexes lag: what an index still names and the table no longer has is left out, and what was written a moment ago may
not be listed yet. Items are read eventually consistently, at half the price, because the list is no newer than that.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from sluice.core.errors import NotFound
from sluice.repository import keys
from sluice.repository.audit import AuditEvent, audit_query, decode_audit_event
from sluice.repository.entities import children_query
from sluice.repository.items import Entity, decode_entity
from sluice.repository.limits import ScopedLimits, decode_scoped_limits
from sluice.repository.listing import (
    entities_queries,
    entities_with_limits_query,
    is_listed,
    place_of,
    resources_query,
    resumed,
)
from sluice.repository.namespaces import decode_namespace, namespaces_query
from sluice.repository.orgs import App, Org, apps_query, decode_app, decode_org
from sluice.repository.requests import QueryRequest
from sluice.repository.store import Store
from sluice.repository.wire import Item
from sluice.services.cursors import Cursors, Position

# So many queries fill one page at most; the next page goes on from there.
QUERIES_MAX: Final = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What a caller asks of a list."""

    limit: int
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    """One page. `next_cursor`: None if there is nothing more."""

    items: tuple[T, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Entry:
    """What a query gave, and the place behind it."""

    item: Item
    position: Position


class Walk:
    """The entries of some queries, one query after the other, from a position on."""

    def __init__(self, store: Store, queries: Sequence[QueryRequest], start: Position) -> None:
        self._store = store
        self._queries = queries
        self._left = QUERIES_MAX
        self._entries: list[Entry] = []
        self._next: tuple[int, Item | None] | None = (start.partition, start.after)
        self.position = start

    @property
    def was_cut(self) -> bool:
        return self._next is not None and self._left == 0

    def take(self, most: int) -> list[Entry]:
        """As many as that, fewer only at the end."""
        while len(self._entries) < most and self._next is not None and self._left:
            self._next = self._ask(*self._next, most)
        taken, self._entries = self._entries[:most], self._entries[most:]
        if taken:
            self.position = taken[-1].position
        return taken

    def _ask(self, partition: int, start: Item | None, most: int) -> tuple[int, Item | None] | None:
        """One query; answers where the next one begins."""
        query = self._queries[partition]
        request = query if start is None else resumed(query, start)
        page = self._store.query({**request, "Limit": most})
        self._left -= 1
        self._entries += [Entry(item, Position(partition, place_of(query, item))) for item in page.items]
        if page.next_start is not None:
            return partition, page.next_start
        return (partition + 1, None) if partition + 1 < len(self._queries) else None


def make_page(
    cursors: Cursors, purpose: Sequence[str], found: Sequence[tuple[T, Position]], page: PageRequest, walk: Walk
) -> Listed[T]:
    """Of what was found, each with the place behind it: one more than the limit, if there is more."""
    following: Position | None = None
    if len(found) > page.limit:
        following = found[page.limit - 1][1]
    elif walk.was_cut:
        following = walk.position
    cursor = None if following is None else cursors.write(purpose, following)
    return Listed(tuple(item for item, _ in found[: page.limit]), cursor)


class Lists:
    def __init__(self, store: Store, cursors: Cursors) -> None:
        self._store = store
        self._cursors = cursors

    def entities(self, namespace: str, page: PageRequest) -> Listed[Entity]:
        """All entities, in no order that means anything: they are spread over partitions."""
        read = self._by_key(decode_entity)
        return self._list((namespace, "entities"), entities_queries(namespace), page, read)

    def children(self, namespace: str, parent: str, page: PageRequest) -> Listed[Entity]:
        if self._store.get(keys.entity(namespace, parent), consistent=True) is None:
            raise NotFound("there is no such entity")
        query = children_query(namespace, parent)
        return self._list((namespace, "children", parent), [query], page, _as_listed(decode_entity))

    def entities_with_limits(self, namespace: str, resource: str, page: PageRequest) -> Listed[ScopedLimits]:
        query = entities_with_limits_query(namespace, resource)
        return self._list((namespace, "limits/entities", resource), [query], page, self._by_key(decode_scoped_limits))

    def resources(self, namespace: str, page: PageRequest) -> Listed[ScopedLimits]:
        query = resources_query(namespace)
        return self._list((namespace, "resources"), [query], page, self._by_key(decode_scoped_limits))

    def audit(self, namespace: str, subject: str, page: PageRequest, since_ms: int = 0) -> Listed[AuditEvent]:
        query = audit_query(namespace, subject, since_ms)
        return self._list((namespace, "audit", subject), [query], page, _as_listed(decode_audit_event))

    def apps(self, namespace: str, page: PageRequest) -> Listed[App]:
        """By id."""
        return self._list((namespace, "apps"), [apps_query(namespace)], page, self._by_key(decode_app))

    def orgs(self, page: PageRequest) -> Listed[Org]:
        """By name. One that is being purged is left out: its settings may be gone already."""
        purpose = (keys.REGISTRY_NAMESPACE, "orgs")
        return self._list(purpose, [namespaces_query(None, page.limit)], page, self._read_orgs)

    def _read_orgs(self, entries: Sequence[Entry]) -> Iterator[Org | None]:
        namespaces = [decode_namespace(entry.item) for entry in entries]
        wanted = [keys.org_settings(one.namespace_id) for one in namespaces if one.is_active]
        orgs = {org.namespace: org for org in map(decode_org, self._store.batch_get(wanted))}
        return (orgs.get(one.namespace_id) for one in namespaces)

    def by_key(
        self, purpose: Sequence[str], queries: Sequence[QueryRequest], page: PageRequest, decode: Callable[[Item], T]
    ) -> Listed[T]:
        """A list whose index has only keys."""
        return self._list(purpose, queries, page, self._by_key(decode))

    def by_other_key(
        self,
        purpose: Sequence[str],
        queries: Sequence[QueryRequest],
        page: PageRequest,
        key_of: Callable[[Item], keys.Key | None],
        decode: Callable[[Item], T],
    ) -> Listed[T]:
        """A list of what belongs to the items that are found. Those that have none of it are left out."""
        return self._list(purpose, queries, page, self._by_key(decode, key_of))

    def whole(
        self, purpose: Sequence[str], query: QueryRequest, page: PageRequest, decode: Callable[[Item], T | None]
    ) -> Listed[T]:
        """A list that is read with everything that it shows. `decode`: None for what is left out."""
        return self._list(purpose, [query], page, _as_listed(decode))

    def _list(
        self,
        purpose: Sequence[str],
        queries: Sequence[QueryRequest],
        page: PageRequest,
        read: Callable[[Sequence[Entry]], Iterator[T | None]],
    ) -> Listed[T]:
        walk = Walk(self._store, queries, self._cursors.read(purpose, page.cursor))
        found: list[tuple[T, Position]] = []
        # One more than asked for tells whether there is more.
        while len(found) <= page.limit:
            entries = walk.take(page.limit + 1 - len(found))
            if not entries:
                break
            for entry, value in zip(entries, read(entries), strict=True):
                if value is not None:
                    found.append((value, entry.position))
        return make_page(self._cursors, purpose, found, page, walk)

    def _by_key(
        self, decode: Callable[[Item], T], key_of: Callable[[Item], keys.Key | None] = keys.key_of
    ) -> Callable[[Sequence[Entry]], Iterator[T | None]]:
        def read(entries: Sequence[Entry]) -> Iterator[T | None]:
            wanted = [key_of(entry.item) for entry in entries]
            found = self._store.batch_get([key for key in wanted if key is not None])
            items = {keys.key_of(item): item for item in found if is_listed(item)}
            for key in wanted:
                yield decode(items[key]) if key in items else None

        return read


def _as_listed(decode: Callable[[Item], T | None]) -> Callable[[Sequence[Entry]], Iterator[T | None]]:
    """For an index that has the whole item."""

    def read(entries: Sequence[Entry]) -> Iterator[T | None]:
        return (decode(entry.item) if is_listed(entry.item) else None for entry in entries)

    return read
