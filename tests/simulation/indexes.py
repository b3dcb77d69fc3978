"""Global secondary indexes: copies of items that follow the table with a delay, each item in order."""

import heapq
from collections.abc import Callable, Mapping
from typing import Final

from sluice.repository import schema
from sluice.repository.keys import Key
from sluice.repository.wire import Item, Value
from tests.simulation.refusals import Refusal, ValidationException
from tests.simulation.values import text_bytes

PARTITION_KEY_BYTES_MAX: Final = 2048
SORT_KEY_BYTES_MAX: Final = 1024

LagMs = Callable[[str], int]
"""How long a change takes to show in an index. Drawn for each change."""

INDEX_KEYS: Final[Mapping[str, int]] = {
    attribute: most
    for index in schema.INDEX_PROJECTIONS
    for attribute, most in (
        (schema.index_partition_key(index), PARTITION_KEY_BYTES_MAX),
        (schema.index_sort_key(index), SORT_KEY_BYTES_MAX),
    )
}


class Index:
    def __init__(self, name: str) -> None:
        self.name = name
        self.partition_key = schema.index_partition_key(name)
        self.sort_key = schema.index_sort_key(name)
        self.projects_all = schema.INDEX_PROJECTIONS[name] == schema.PROJECT_ALL
        self.keys = frozenset({self.partition_key, self.sort_key})
        self._partitions: dict[str, dict[Key, Item]] = {}
        self._place: dict[Key, str] = {}
        self._pending: list[tuple[int, int, Key, Item | None]] = []
        self._due_ms: dict[Key, int] = {}

    def projected(self, item: Item | None) -> Item | None:
        """The entry of an item, or None where it has none."""
        if item is None or self.partition_key not in item or self.sort_key not in item:
            return None
        if self.projects_all:
            return item
        names = (schema.PARTITION_KEY, schema.SORT_KEY, self.partition_key, self.sort_key)
        return {name: item[name] for name in names}

    def follow(self, key: Key, old: Item | None, new: Item | None, *, due_ms: int, sequence: int) -> None:
        """Takes a change in, to show it when it is due and not before an earlier change of the same item."""
        before, after = self.projected(old), self.projected(new)
        if before == after:
            return
        due_ms = max(due_ms, self._due_ms.get(key, 0))
        self._due_ms[key] = due_ms
        heapq.heappush(self._pending, (due_ms, sequence, key, after))

    def catch_up(self, now_ms: int) -> None:
        pending = self._pending
        while pending and pending[0][0] <= now_ms:
            _, _, key, entry = heapq.heappop(pending)
            place = self._place.pop(key, None)
            if place is not None:
                del self._partitions[place][key]
            if entry is not None:
                partition = str(entry[self.partition_key])
                self._place[key] = partition
                self._partitions.setdefault(partition, {})[key] = entry

    def partition(self, value: str) -> list[Item]:
        return list(self._partitions.get(value, {}).values())

    def everything(self) -> list[Item]:
        return [entry for partition in self._partitions.values() for entry in partition.values()]


def check_index_keys(item: Mapping[str, Value], wrong_type: Refusal) -> None:
    for attribute, most in INDEX_KEYS.items():
        if attribute not in item:
            continue
        value = item[attribute]
        if not isinstance(value, str):
            raise ValidationException(wrong_type, attribute)
        if not value:
            raise ValidationException(Refusal.INDEX_KEY_EMPTY, attribute)
        if text_bytes(value) > most:
            raise ValidationException(Refusal.INDEX_KEY_SIZE, attribute)
