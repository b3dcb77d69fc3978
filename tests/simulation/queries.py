"""Query and scan over the simulated table and its indexes, in pages."""

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

from sluice.repository import schema
from sluice.repository.requests import QueryRequest, ScanRequest
from sluice.repository.store import Page
from sluice.repository.wire import Item
from tests.simulation.expressions import Condition, Names, Test, compile_condition, placeholders_of
from tests.simulation.indexes import Index
from tests.simulation.refusals import Refusal, ValidationException
from tests.simulation.syntax import Between, Both, Compare, Function, Given, In, Node, Not, Operand, Path
from tests.simulation.table import SimulatedTable, Stored, check_placeholders
from tests.simulation.values import copied, item_bytes, item_bytes_most

PAGE_BYTES_MAX: Final = 1024 * 1024

Visible = Callable[[Stored], Item | None]
"""What a read of the table sees of an item: a read that is not consistent may see what was there before."""


def as_it_is(stored: Stored) -> Item | None:
    return stored.item


_Position = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """What is read: the table or one of its indexes."""

    table: SimulatedTable
    index: Index | None
    visible: Visible

    @property
    def partition_key(self) -> str:
        return schema.PARTITION_KEY if self.index is None else self.index.partition_key

    @property
    def sort_key(self) -> str:
        return schema.SORT_KEY if self.index is None else self.index.sort_key

    @property
    def key_names(self) -> tuple[str, ...]:
        """The attributes of a start key, in the order of a page."""
        own = (schema.PARTITION_KEY, schema.SORT_KEY)
        return own if self.index is None else (self.index.partition_key, self.index.sort_key, *own)

    def partition(self, value: str) -> list[Item]:
        if self.index is not None:
            return self.index.partition(value)
        return self._seen(self.table.partitions.get(value, {}))

    def everything(self) -> list[Item]:
        if self.index is not None:
            return self.index.everything()
        return [item for partition in self.table.partitions.values() for item in self._seen(partition)]

    def _seen(self, partition: Mapping[str, Stored]) -> list[Item]:
        items = [self.visible(stored) for stored in partition.values()]
        return [item for item in items if item is not None]

    def positions(self, items: Iterable[Mapping[str, Any]]) -> list[_Position]:
        """Where items come in a scan: partitions in an order of their own, each by its sort key."""
        first, *_ = names = self.key_names
        keys = itemgetter(*names)
        return [(zlib.crc32(str(item[first]).encode()), *keys(item)) for item in items]


@dataclass(frozen=True, slots=True)
class _KeyCondition:
    partition: str
    condition: Condition
    sort_values: frozenset[str]


def query(table: SimulatedTable, request: QueryRequest, visible: Visible = as_it_is, cut: int | None = None) -> Page:
    """`cut`: the page ends after so many items, as one of 1 MB would."""
    place = _place(table, request, visible)
    names = tuple(request.get("ExpressionAttributeNames", {}).items())
    values = request.get("ExpressionAttributeValues", {})
    found = _key_condition(request["KeyConditionExpression"], names, place.partition_key, place.sort_key)
    keep = _filter(request, names)
    check_placeholders(request, placeholders_of(found.condition, keep))
    _check_filter(place, keep, is_query=True)
    for name in (found.partition, *found.sort_values):
        if not isinstance(values[name], str):
            raise ValidationException(Refusal.KEY_TYPE, name)
        if not values[name]:
            raise ValidationException(Refusal.KEY_EMPTY, name)
    test = found.condition.test
    start = _start_key(place, request)
    if start is not None and not test(start, values):
        raise ValidationException(Refusal.START_KEY, str(start))
    items = [item for item in place.partition(str(values[found.partition])) if test(item, values)]
    return _page(place, items, request, keep, cut, backwards=request.get("ScanIndexForward") is False)


def scan(table: SimulatedTable, request: ScanRequest, visible: Visible = as_it_is, cut: int | None = None) -> Page:
    place = _place(table, request, visible)
    keep = _filter(request, tuple(request.get("ExpressionAttributeNames", {}).items()))
    check_placeholders(request, placeholders_of(keep))
    _check_filter(place, keep, is_query=False)
    _start_key(place, request)
    return _page(place, place.everything(), request, keep, cut, backwards=False)


def _place(table: SimulatedTable, request: ScanRequest, visible: Visible) -> _Place:
    if request.get("Limit", 1) < 1:
        raise ValidationException(Refusal.LIMIT)
    name = request.get("IndexName")
    if name is None:
        return _Place(table, None, visible)
    if name not in table.indexes:
        raise ValidationException(Refusal.NO_SUCH_INDEX, name)
    if request.get("ConsistentRead"):
        raise ValidationException(Refusal.CONSISTENT_INDEX, name)
    index = table.indexes[name]
    index.catch_up(table.clock_ms())
    return _Place(table, index, visible)


def _filter(request: ScanRequest, names: Names) -> Condition | None:
    text = request.get("FilterExpression")
    return None if text is None else compile_condition(text, names)


def _check_filter(place: _Place, keep: Condition | None, *, is_query: bool) -> None:
    if keep is None:
        return
    on_keys = keep.attributes & {place.partition_key, place.sort_key}
    if is_query and on_keys:
        raise ValidationException(Refusal.FILTER_ON_KEY, str(sorted(on_keys)))
    if place.index is not None and not place.index.projects_all and keep.attributes - set(place.key_names):
        raise ValidationException(Refusal.FILTER_NOT_PROJECTED, str(sorted(keep.attributes)))


def _start_key(place: _Place, request: ScanRequest) -> Item | None:
    start = request.get("ExclusiveStartKey")
    if start is None:
        return None
    if start.keys() > set(place.key_names):
        raise ValidationException(Refusal.START_KEY_EXTRA, str(sorted(start)))
    if start.keys() != set(place.key_names) or not all(isinstance(value, str) and value for value in start.values()):
        raise ValidationException(Refusal.START_KEY, str(start))
    return start


def _page(
    place: _Place,
    items: list[Item],
    request: ScanRequest,
    keep: Condition | None,
    cut: int | None,
    *,
    backwards: bool,
) -> Page:
    placed = list(zip(place.positions(items), items, strict=True))
    start = request.get("ExclusiveStartKey")
    if start is not None:
        (after,) = place.positions([start])
        placed = [one for one in placed if (one[0] < after if backwards else one[0] > after)]
    placed.sort(key=itemgetter(0), reverse=backwards)
    items = [item for _, item in placed]
    values = request.get("ExpressionAttributeValues", {})
    test: Test = keep.test if keep is not None else lambda _item, _values: True
    most = min(request.get("Limit", len(items) + 1), len(items) + 1 if cut is None else cut)
    kept: list[Item] = []
    measured = sum(map(item_bytes_most, items[:most])) >= PAGE_BYTES_MAX
    read_bytes = 0
    for number, item in enumerate(items, start=1):
        read_bytes += item_bytes(item) if measured else 0
        if test(item, values):
            kept.append(_projected(copied(item), request))
        if number == most or read_bytes >= PAGE_BYTES_MAX:
            return Page(tuple(kept), {name: item[name] for name in place.key_names})
    return Page(tuple(kept), None)


def _projected(item: Item, request: ScanRequest) -> Item:
    """Of a projection only plain names are known: more is asked by nobody."""
    if "ProjectionExpression" not in request:
        return item
    names = {name.strip() for name in request["ProjectionExpression"].split(",")}
    return {name: value for name, value in item.items() if name in names}


@lru_cache(maxsize=1000)
def _key_condition(text: str, names: Names, partition_key: str, sort_key: str) -> _KeyCondition:
    """One equality on the partition key, and at most one condition on the sort key."""
    condition = compile_condition(text, names)
    root = condition.root
    parts = root.parts if isinstance(root, Both) and root.sign == "AND" else (root,)
    partition: str | None = None
    sort_values: frozenset[str] | None = None
    for part in parts:
        attribute, given = _on_one_key(part)
        if attribute == partition_key and partition is None:
            if not isinstance(part, Compare) or part.sign != "=":
                raise ValidationException(Refusal.KEY_CONDITION, text)
            (partition,) = given
        elif attribute == sort_key and sort_values is None:
            sort_values = given
        else:
            raise ValidationException(Refusal.KEY_CONDITION, text)
    if partition is None:
        raise ValidationException(Refusal.KEY_CONDITION, text)
    return _KeyCondition(partition, condition, sort_values or frozenset())


def _on_one_key(node: Node) -> tuple[str, frozenset[str]]:
    match node:
        case Compare(sign, left, right) if sign != "<>":
            # `:value = PK` is the same as `PK = :value`.
            operands: tuple[Operand, ...] = (right, left) if isinstance(left, Given) else (left, right)
        case Between(operand, low, high):
            operands = (operand, low, high)
        case Function("begins_with", given):
            operands = given
        case Compare() | Function() | In() | Not() | Both():
            raise ValidationException(Refusal.KEY_CONDITION_OPERATOR, str(node))
    first, *rest = operands
    if not isinstance(first, Path) or len(first.parts) > 1 or not all(isinstance(one, Given) for one in rest):
        raise ValidationException(Refusal.KEY_CONDITION, str(node))
    return first.attribute, frozenset(one.name for one in rest if isinstance(one, Given))
