"""The usage events of a day, page by page, each page in the order of time.

Events stand in the partitions of whoever reported them. An app's events were reported by itself or by its org, those of
an entity below it likewise; those of the org by itself and by all of its apps. Which apps these are, former ones too,
their totals of that day tell, which are seconds behind the events.

An app that asks sees what was counted for it since it was made: another app may have had its id before, and another one
the entity that it asks about. When that entity was made says nothing: the report that makes it known comes before it.

A list stays on the day that it began on: its cursors carry it. A page looks into a bounded number of partitions: it may
have fewer events than it could, or none, and still not be the last one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sluice.core.errors import InvalidRequest
from sluice.core.period import day_name, local_day
from sluice.repository import keys
from sluice.repository.events import (
    KEPT_S,
    UsageEvent,
    about_app,
    about_entity,
    decode_event,
    events_query,
    since,
)
from sluice.repository.legacy_settings import entity_of_any_layout
from sluice.repository.listing import place_of
from sluice.repository.money_keys import EVENT_PARTITIONS
from sluice.repository.orgs import Org
from sluice.repository.requests import QueryRequest
from sluice.repository.store import Store
from sluice.services.confinement import no_such_entity
from sluice.services.counted import CountedEntities
from sluice.services.cursors import START, Cursors, Position
from sluice.services.lineages import Lineage, Lineages
from sluice.services.listing import Listed, PageRequest
from sluice.services.settings import SettingsCache
from sluice.services.zones import ZoneCalendar

QUERIES_MAX: Final = 64
"""For one page; the next one goes on from there."""
KEPT_DAYS: Final = KEPT_S // 86_400

# How the tokens of cursors begin: by name, or as the search came by; the latter have its place and then the name.
_REPORTER: Final = "reporter"
_SEARCH: Final = "search"
_FOUND_PARTS: Final = 4

Found = tuple[UsageEvent, Position]
Narrow = Callable[[QueryRequest], QueryRequest]


@dataclass(frozen=True, slots=True)
class _Reporter:
    """Who reported. `token`: by which a cursor finds it again. `narrow`: which of its events are meant."""

    entity: str
    token: tuple[str, ...]
    narrow: Narrow


@dataclass(frozen=True, slots=True)
class _Asked:
    """`reporters`: in their order; behind them, if `every`, all that have totals of that day."""

    namespace: str
    org: str
    day: str
    reporters: Sequence[_Reporter]
    every: bool


class EventLists:
    def __init__(
        self,
        store: Store,
        cursors: Cursors,
        lineages: Lineages,
        settings: SettingsCache,
        counted: CountedEntities,
        clock_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._cursors = cursors
        self._lineages = lineages
        self._settings = settings
        self._counted = counted
        self._clock_ms = clock_ms
        self._calendar = ZoneCalendar()

    def of(
        self, namespace: str, entity: str, day: int | None, page: PageRequest, within: str | None = None
    ) -> Listed[UsageEvent]:
        """`day`: of the org; without one the cursor's, and today on the first page. `within`: the app that asks, about
        itself or an entity below it; None: the org does."""
        org = self._settings.org(namespace)
        lineage = self._lineages.find(namespace, entity)
        if lineage is None:
            raise no_such_entity()
        purpose = (namespace, "events", entity)
        start = self._cursors.read(purpose, page.cursor)
        name, start = self._first(org, day) if start == START else _following(day, start)
        reporters = (
            _reporters(lineage, org.org) if within is None else self._reporters_of(namespace, within, entity, org.org)
        )
        asked = _Asked(namespace, org.org, name, reporters, every=entity == org.org)
        walk = _Walk(self._store, self._counted, asked, start)
        found: list[Found] = []
        # One more than asked for tells whether there is more.
        while len(found) <= page.limit and walk.goes_on:
            found += walk.next(page.limit + 1 - len(found))
        following = found[page.limit - 1][1] if len(found) > page.limit else walk.place
        shown = sorted((event for event, _ in found[: page.limit]), key=_in_time)
        if following is None:
            return Listed(tuple(shown), None)
        kept = replace(following, within=(name, *following.within))
        return Listed(tuple(shown), self._cursors.write(purpose, kept))

    def _first(self, org: Org, day: int | None) -> tuple[str, Position]:
        today = local_day(org.settings.zones, self._clock_ms(), self._calendar).number
        number = today if day is None else day
        # By a clock that is a little ahead of ours it may be tomorrow already.
        if not today - KEPT_DAYS <= number <= today + 1:
            raise InvalidRequest("day", f"must be one of the last {KEPT_DAYS} days: older events are in the archive")
        return day_name(number), START

    def _reporters_of(self, namespace: str, app: str, entity: str, org: str) -> list[_Reporter]:
        """Who may have reported for an app about itself or an entity below it."""
        item = self._store.get(keys.entity(namespace, app), consistent=True)
        if item is None:
            raise no_such_entity()
        since_ms = entity_of_any_layout(item, app).created_at_ms

        def own(query: QueryRequest) -> QueryRequest:
            return since(query if entity == app else about_entity(query, entity), since_ms)

        return [
            _Reporter(app, (_REPORTER, app), own),
            _Reporter(org, (_REPORTER, org), lambda query: about_app(own(query), app)),
        ]


class _Walk:
    """From one partition of a reporter to the next, and from one reporter to the next, a query at a time.

    `place`: where it stands; None at the end.
    """

    def __init__(self, store: Store, counted: CountedEntities, asked: _Asked, start: Position) -> None:
        self._store = store
        self._counted = counted
        self._asked = asked
        self._left = QUERIES_MAX
        self.place: Position | None = start
        if start == START:
            self.place = Position(within=asked.reporters[0].token)

    @property
    def goes_on(self) -> bool:
        return self.place is not None and self._left > 0

    def next(self, most: int) -> list[Found]:
        """What one query gave, which may be nothing."""
        place = self.place
        if place is None:
            return []
        if place.within[0] == _SEARCH and len(place.within) < _FOUND_PARTS:
            self._search(place.within)
            return []
        reporter = self._reporter(place.within)
        if reporter is None:
            # The entity has found another place since: what is left of this list is in another one.
            self.place = None
            return []
        asked = self._asked
        query = reporter.narrow(events_query(asked.namespace, reporter.entity, asked.day, place.partition))
        request: QueryRequest = {**query, "Limit": most}
        if place.after is not None:
            request["ExclusiveStartKey"] = place.after
        page = self._store.query(request)
        self._left -= 1
        if page.next_start is not None:
            self.place = Position(place.partition, page.next_start, place.within)
        elif place.partition + 1 < EVENT_PARTITIONS:
            self.place = Position(place.partition + 1, None, place.within)
        else:
            self.place = self._behind(reporter)
        return [
            (decode_event(item), Position(place.partition, place_of(query, item), place.within)) for item in page.items
        ]

    def _reporter(self, token: tuple[str, ...]) -> _Reporter | None:
        if token[0] == _SEARCH:
            return _Reporter(token[3], token, _all)
        return next((one for one in self._asked.reporters if one.token == token), None)

    def _behind(self, reporter: _Reporter) -> Position | None:
        """Where the next reporter begins, or the search for it."""
        if reporter.token[0] == _SEARCH:
            return Position(within=reporter.token[:3])
        reporters = self._asked.reporters
        following = reporters.index(reporter) + 1
        if following < len(reporters):
            return Position(within=reporters[following].token)
        return Position(within=(_SEARCH, "0", "")) if self._asked.every else None

    def _search(self, token: tuple[str, ...]) -> None:
        """One step of the search for whoever has totals: through the partitions of the index, one after the other."""
        index_partition, after = int(token[1]), token[2] or None
        found = self._counted.next_partition(self._asked.namespace, index_partition, after)
        self._left -= 1
        if found is None:
            following = index_partition + 1
            more = following < keys.NAMESPACE_PARTITIONS
            self.place = Position(within=(_SEARCH, str(following), "")) if more else None
            return
        entity = self._counted.entity_on(found, self._asked.day)
        self._left -= 1
        searched = (_SEARCH, str(index_partition), found)
        # The org itself came first.
        self.place = Position(within=searched if entity in {None, self._asked.org} else (*searched, entity))


def _following(day: int | None, position: Position) -> tuple[str, Position]:
    """The day of a cursor, and its place."""
    name, *within = position.within
    if day is not None and day_name(day) != name:
        raise InvalidRequest("cursor", "is not a cursor of this day")
    return name, replace(position, within=tuple(within))


def _reporters(lineage: Lineage, org: str) -> list[_Reporter]:
    """Of those who may have reported about an entity, all whose names are known."""
    entity, app = lineage.entity, lineage.app
    of_org = (_REPORTER, org)
    if entity == org:
        return [_Reporter(org, of_org, _all)]
    if entity == app:
        return [
            _Reporter(app, (_REPORTER, app), _all),
            _Reporter(org, of_org, lambda query: about_app(query, app)),
        ]

    def about(query: QueryRequest) -> QueryRequest:
        return about_entity(query, entity)

    own = [] if app is None else [_Reporter(app, (_REPORTER, app), about)]
    return [*own, _Reporter(org, of_org, about)]


def _all(query: QueryRequest) -> QueryRequest:
    return query


def _in_time(event: UsageEvent) -> tuple[int, str]:
    return event.occurred_at_ms, event.request_id
