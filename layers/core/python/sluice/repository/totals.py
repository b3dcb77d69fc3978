"""Daily totals: what the counter shards of a (app or org, label, day) add up to, and whether a rollup is due. Pure.

The stream marks the total of a shard that changed: `due` is a minute number, written if there is none or a lower one,
so once a minute. A rollup reads the mark, then the shards, then writes the sum if its `rev` is higher. Once the minute
of the mark is over it also removes the mark, if that is as it was read: what changes meanwhile marks again. So two
rollups may overlap, and a slow one never overwrites what a newer one wrote.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sluice.core.metering import NOTHING_USED, Counters
from sluice.core.period import day_number
from sluice.repository import money_keys, schema
from sluice.repository.counters import CounterName, counter_attributes, decode_counter_name, decode_counters
from sluice.repository.expressions import assigned
from sluice.repository.keys import Key, namespace_partitions
from sluice.repository.requests import QueryRequest, UpdateRequest
from sluice.repository.shapes import check_kind, optional_whole
from sluice.repository.wire import Item, Value

DAILY_TOTAL: Final = "daily_total"
KEPT_DAYS: Final = 400
MINUTE_MS: Final = 60_000
_DAY_S: Final = 86_400
_BEHIND_ALL: Final = "\U0010ffff"
"""Sorts behind every id: no encoded one has this character."""
_EPOCH_DAY: Final = 719_163
"""1970-01-01, as Python numbers dates."""


@dataclass(frozen=True, slots=True)
class DailyTotal:
    """`as_of_ms`: when the shards were read; None before the first time. `due_minute`: None while no rollup is due.

    `due_since_ms`: when a mark was made where there was none. Later marks raise the minute, and leave it.
    """

    name: CounterName
    counters: Counters
    revision: int
    as_of_ms: int | None
    due_minute: int | None
    due_since_ms: int | None


def mark_due(name: CounterName, minute: int, now_ms: int) -> UpdateRequest:
    """Fails where the mark of that minute, or of a later one, is there. Makes the total where there is none."""
    fixed = _fixed(name) | money_keys.due_index(name.namespace, name.entity, name.day, name.label) | {"due": minute}
    names, sets, values = assigned(fixed)
    return {
        "Key": _key(name),
        "UpdateExpression": f"SET {sets}, due_since = if_not_exists(due_since, :now),"
        " created_at = if_not_exists(created_at, :now)",
        "ConditionExpression": "attribute_not_exists(#due) OR #due < :minute",
        "ExpressionAttributeNames": {**names, "#due": "due"},
        "ExpressionAttributeValues": {**values, ":now": now_ms, ":minute": minute},
    }


def write_total(name: CounterName, counters: Counters, revision: int, as_of_ms: int) -> UpdateRequest:
    """Fails where a sum of the same shards or a later one is there. Makes the total where there is none.

    May be repeated after a lost answer: it then finds its own revision.
    """
    fixed = _fixed(name) | counter_attributes(counters) | {"rev": revision, "as_of": as_of_ms, "updated_at": as_of_ms}
    names, sets, values = assigned(fixed)
    return {
        "Key": _key(name),
        "UpdateExpression": f"SET {sets}, created_at = if_not_exists(created_at, :now)",
        "ConditionExpression": "attribute_not_exists(#rev) OR #rev < :rev",
        "ExpressionAttributeNames": {**names, "#rev": "rev"},
        "ExpressionAttributeValues": {**values, ":now": as_of_ms, ":rev": revision},
    }


def remove_mark(name: CounterName, due_minute: int) -> UpdateRequest:
    """Fails where the total was marked again since it was read."""
    pk, sk = schema.index_partition_key(schema.GSI3), schema.index_sort_key(schema.GSI3)
    return {
        "Key": _key(name),
        "UpdateExpression": "REMOVE #due, due_since, #pk, #sk",
        "ConditionExpression": "#due = :due",
        "ExpressionAttributeNames": {"#due": "due", "#pk": pk, "#sk": sk},
        "ExpressionAttributeValues": {":due": due_minute},
    }


def due_query(partition: int, *, after: str | None = None, up_to: str | None = None) -> QueryRequest:
    """The keys of the totals that a rollup is due for, in one of the partitions: all, or those on one side of a key."""
    request: QueryRequest = {
        "IndexName": schema.GSI3,
        "KeyConditionExpression": "GSI3PK = :due",
        "ExpressionAttributeValues": {":due": money_keys.due_totals(partition)},
    }
    for comparison, key in ((">", after), ("<=", up_to)):
        if key is not None:
            request["KeyConditionExpression"] = f"GSI3PK = :due AND GSI3SK {comparison} :key"
            request["ExpressionAttributeValues"] = {**request["ExpressionAttributeValues"], ":key": key}
    return request


def totals_query(namespace: str, entity: str, first_day: str, last_day: str) -> QueryRequest:
    """The totals of an entity from one day to another, by day and label."""
    return totals_in_partition_query(money_keys.totals_of(namespace, entity), first_day, last_day)


def totals_in_partition_query(partition: str, first_day: str, last_day: str) -> QueryRequest:
    """As `totals_query`, for an entity of which only the partition is known."""
    return {
        "KeyConditionExpression": "PK = :entity AND SK BETWEEN :first AND :last",
        "ExpressionAttributeValues": {
            ":entity": partition,
            ":first": money_keys.total_prefix(first_day),
            ":last": f"{money_keys.total_prefix(last_day)}{_BEHIND_ALL}",
        },
    }


def next_partition_query(namespace: str, index_partition: int, after: str | None) -> QueryRequest:
    """A key of the next entity with totals, in one of the partitions of GSI4: however many totals each has, one query
    leads from one entity to the next. `after`: the partition key of the last one, under which its totals all stand.

    Behind the last it finds an item of another kind, or none: see `is_of_totals`.
    """
    return {
        "IndexName": schema.GSI4,
        "KeyConditionExpression": "GSI4PK = :index AND GSI4SK > :after",
        "ExpressionAttributeValues": {
            ":index": namespace_partitions(namespace)[index_partition],
            ":after": money_keys.totals_in(namespace) if after is None else after,
        },
        "Limit": 1,
    }


def is_of_totals(namespace: str, pk: str) -> bool:
    """Whether a partition holds the totals of an entity."""
    return pk.startswith(money_keys.totals_in(namespace))


def counted_id(namespace: str, pk: str) -> str:
    """Of the entity whose totals a partition holds, as keys spell it."""
    return pk.removeprefix(money_keys.totals_in(namespace))


def partition_of_counted(namespace: str, encoded: str) -> str:
    """The partition that holds the totals of an entity, by its id as keys spell it."""
    return f"{money_keys.totals_in(namespace)}{encoded}"


def decode_total(item: Mapping[str, Value]) -> DailyTotal:
    check_kind(item, DAILY_TOTAL)
    return DailyTotal(
        name=decode_counter_name(item),
        counters=decode_counters(item),
        revision=optional_whole(item, "rev") or 0,
        as_of_ms=optional_whole(item, "as_of"),
        due_minute=optional_whole(item, "due"),
        due_since_ms=optional_whole(item, "due_since"),
    )


def unwritten_total(name: CounterName) -> DailyTotal:
    """As it is before anybody wrote it."""
    return DailyTotal(name, NOTHING_USED, 0, None, None, None)


def total_key(name: CounterName) -> Key:
    return money_keys.total(name.namespace, name.entity, name.day, name.label)


def _fixed(name: CounterName) -> Item:
    """What a total has from its name alone, whoever makes it."""
    return {
        **money_keys.total_indexes(name.namespace, name.entity, name.day, name.label),
        "kind": DAILY_TOTAL,
        "ns": name.namespace,
        "entity_id": name.entity,
        "label": name.label,
        "day": name.day,
        schema.TTL_ATTRIBUTE: (day_number(name.day) - _EPOCH_DAY + KEPT_DAYS) * _DAY_S,
    }


def _key(name: CounterName) -> Item:
    return {**total_key(name).attributes}
