"""What was consumed, hour by hour or day by day, from the snapshots that the stream's records were counted into."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sluice.core.errors import InvalidRequest
from sluice.core.snapshots import LENGTH_MS, SnapshotName, Window, starts_ms
from sluice.repository.requests import QueryRequest
from sluice.repository.snapshots import Snapshot, decode_snapshot
from sluice.repository.store import Store
from sluice.repository.usage import per_call_query, resource_query, series_query
from sluice.services.cursors import Cursors, Position
from sluice.services.listing import Listed, Lists, PageRequest

_DAY_MS: Final = LENGTH_MS[Window.DAY]
DEFAULT_MS: Final = {Window.HOUR: _DAY_MS, Window.DAY: 30 * _DAY_MS}
# As long as snapshots are kept.
RANGE_MAX_MS: Final = {Window.HOUR: 35 * _DAY_MS, Window.DAY: 400 * _DAY_MS}
# Of per-call limits there may be any number; what is beyond so many pages of them is left out.
_PAGES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class UsageRange:
    """What a caller asks for. None: the usual, up to now."""

    window: Window
    from_ms: int | None = None
    to_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Used:
    """`events`: writes of buckets, which are acquires, adjustments and what else changed them."""

    starts_ms: int
    ends_ms: int
    events: int
    consumed_milli: Mapping[str, int]


class Usage:
    def __init__(self, store: Store, lists: Lists, cursors: Cursors, clock_ms: Callable[[], int]) -> None:
        self._store = store
        self._lists = lists
        self._cursors = cursors
        self._clock_ms = clock_ms

    def of_entity(
        self, namespace: str, entity: str, resource: str, asked: UsageRange, page: PageRequest, since_ms: int = 0
    ) -> Listed[Used]:
        """Every window of the range in the order of time, also those in which nothing was used.

        `since_ms`: windows that ended before are not shown.
        """
        first_ms, last_ms = self._windows(asked)
        first_ms = max(first_ms, starts_ms(asked.window, since_ms))
        purpose = (namespace, "usage", entity, resource, asked.window.value)
        after = self._cursors.read(purpose, page.cursor).within
        first_ms = max(first_ms, int(after[0])) if after else first_ms
        if first_ms > last_ms:
            # All of it was before, or on an earlier page of a longer range.
            return Listed((), None)
        length_ms = LENGTH_MS[asked.window]
        page_last_ms = min(last_ms, first_ms + (page.limit - 1) * length_ms)
        first, last = (
            SnapshotName(namespace, entity, resource, None, asked.window, at_ms) for at_ms in (first_ms, page_last_ms)
        )
        used = {at_ms: _Sum() for at_ms in range(first_ms, page_last_ms + 1, length_ms)}
        for query in (series_query(first, last), per_call_query(first, last)):
            for snapshot in self._snapshots(query):
                used[snapshot.name.starts_ms].add(snapshot)
        items = tuple(Used(at_ms, at_ms + length_ms, one.events, one.consumed_milli) for at_ms, one in used.items())
        more = page_last_ms < last_ms
        cursor = self._cursors.write(purpose, Position(within=(str(page_last_ms + length_ms),))) if more else None
        return Listed(items, cursor)

    def of_resource(self, namespace: str, resource: str, asked: UsageRange, page: PageRequest) -> Listed[Snapshot]:
        """The snapshots of all entities, in the order of time."""
        first_ms, last_ms = self._windows(asked)
        query = resource_query(namespace, resource, asked.window, first_ms, last_ms)
        return self._lists.by_key((namespace, "usage", resource, asked.window.value), [query], page, decode_snapshot)

    def _windows(self, asked: UsageRange) -> tuple[int, int]:
        """The starts of the first window and of the last."""
        now_ms = self._clock_ms()
        window = asked.window
        to_ms = now_ms if asked.to_ms is None else min(asked.to_ms, now_ms)
        last_ms = starts_ms(window, to_ms)
        # The usual range ends with the window that has begun.
        usual_ms = last_ms + LENGTH_MS[window] - DEFAULT_MS[window]
        from_ms = usual_ms if asked.from_ms is None else asked.from_ms
        if from_ms > to_ms:
            raise InvalidRequest("from", "must not be after to, nor in the future")
        if to_ms - from_ms > RANGE_MAX_MS[window]:
            days = RANGE_MAX_MS[window] // _DAY_MS
            raise InvalidRequest("from", f"must be at most {days} days before to for windows of this length")
        return starts_ms(window, from_ms), last_ms

    def _snapshots(self, query: QueryRequest) -> Iterator[Snapshot]:
        request: QueryRequest = {**query}
        for _ in range(_PAGES_MAX):
            page = self._store.query(request)
            yield from map(decode_snapshot, page.items)
            if page.next_start is None:
                return
            request = {**query, "ExclusiveStartKey": page.next_start}


class _Sum:
    def __init__(self) -> None:
        self.events = 0
        self.consumed_milli: dict[str, int] = {}

    def add(self, snapshot: Snapshot) -> None:
        self.events += snapshot.total_events
        for limit, milli in snapshot.consumed_milli.items():
            self.consumed_milli[limit] = self.consumed_milli.get(limit, 0) + milli
