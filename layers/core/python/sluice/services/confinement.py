"""An app acts on its own entity and on those that stand below it, whatever cascades. Everything else looks missing.

Two ways to find out. What is asked with each call (tokens, usage, selection) goes by what is cached about parents, so
that a moved entity changes hands within the cache's time; whatever else reads or changes configuration walks up the
table as it is now.
"""

from collections.abc import Callable

from sluice.core.admission import CHAIN_MAX
from sluice.core.errors import NotFound
from sluice.repository import keys
from sluice.repository.legacy_settings import entity_of_any_layout
from sluice.repository.store import Store
from sluice.services.configuration import Configuration


class Confinement:
    def __init__(self, store: Store) -> None:
        self._store = store

    def require(self, namespace: str, within: str | None, entity: str) -> None:
        """As the table is now. `within`: None for a caller that is not confined."""
        if not stands_within(within, entity, lambda one: self._parent_now(namespace, one)):
            raise no_such_entity()

    def _parent_now(self, namespace: str, entity: str) -> str | None:
        item = self._store.get(keys.entity(namespace, entity), consistent=True)
        return None if item is None else entity_of_any_layout(item, entity).parent


def require_cached(
    configuration: Configuration, namespace: str, within: str | None, entity: str, resource: str
) -> None:
    """As last read for this resource: without a call where an acquire came before."""

    def parent(one: str) -> str | None:
        return configuration.resolve(namespace, one, resource, None).resolved.stands_below

    if not stands_within(within, entity, parent):
        raise no_such_entity()


def stands_within(within: str | None, entity: str, parent_of: Callable[[str], str | None]) -> bool:
    if within is None:
        return True
    one: str | None = entity
    for _ in range(CHAIN_MAX):
        if one is None or one == within:
            break
        one = parent_of(one)
    return one == within


def no_such_entity() -> NotFound:
    """The one answer for what is missing and for what belongs to somebody else."""
    return NotFound("there is no such entity")
