"""Which entities of a namespace have totals: apps, former apps too, and the org. Found by their totals alone."""

from typing import Final

from sluice.core.errors import InvalidRequest, NoTotals
from sluice.core.orgs import EntityRole
from sluice.repository import keys
from sluice.repository.counters import decode_counter_name
from sluice.repository.items import Entity
from sluice.repository.legacy_settings import entity_of_any_layout
from sluice.repository.store import Store
from sluice.repository.totals import is_of_totals, next_partition_query, totals_in_partition_query
from sluice.services.confinement import no_such_entity

ENTITIES_MAX: Final = 500
"""Present and former apps whose totals one answer sums up."""


class CountedEntities:
    def __init__(self, store: Store) -> None:
        self._store = store

    def require(self, namespace: str, entity_id: str) -> Entity:
        """As the table is now: totals are kept for apps and for the org. Raises NotFound or NoTotals."""
        item = self._store.get(keys.entity(namespace, entity_id), consistent=True)
        if item is None:
            raise no_such_entity()
        entity = entity_of_any_layout(item, entity_id)
        if entity.role is EntityRole.OTHER:
            raise NoTotals
        return entity

    def partitions(self, namespace: str) -> list[str]:
        """Those that hold totals, one for each entity."""
        found: list[str] = []
        for index_partition in range(keys.NAMESPACE_PARTITIONS):
            after: str | None = None
            while (after := self.next_partition(namespace, index_partition, after)) is not None:
                found.append(after)
                if len(found) > ENTITIES_MAX:
                    raise InvalidRequest("entity", f"has more than {ENTITIES_MAX} apps with totals: ask for each app")
        return found

    def next_partition(self, namespace: str, index_partition: int, after: str | None) -> str | None:
        """The next in one of the partitions of the index, in one query."""
        page = self._store.query(next_partition_query(namespace, index_partition, after))
        found = next((keys.key_of(item).pk for item in page.items), None)
        return found if found is not None and is_of_totals(namespace, found) else None

    def entity_on(self, partition: str, day: str) -> str | None:
        """Whose totals a partition holds; None where it holds none of that day."""
        page = self._store.query({**totals_in_partition_query(partition, day, day), "Limit": 1})
        return next((decode_counter_name(item).entity for item in page.items), None)
