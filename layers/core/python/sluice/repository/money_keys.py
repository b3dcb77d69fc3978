"""Keys of everything about money: prices, labels, events, counters, totals and sticky states. As `keys`, never parsed.

Days are `yyyymmdd` in an org's own zone; those of a price are `yyyy-mm-dd`, as people write them.
"""

import zlib
from typing import Final

from sluice.repository import schema
from sluice.repository.keys import (
    REGISTRY_NAMESPACE,
    Key,
    buckets_of_resource,
    encode,
    index_attributes,
    namespace_index,
)

EVENT_PARTITIONS: Final = 16
"""So many partitions hold the events of one caller and day."""
DUE_PARTITIONS: Final = 8
"""So many partitions of GSI3 hold the totals that a rollup is due for."""


def price(namespace: str, model_id: str, from_day: str, region: str | None) -> Key:
    """`namespace`: the registry's for prices that hold for everybody."""
    return Key(prices_of(namespace, model_id), f"#{from_day}" if region is None else f"#{from_day}#{encode(region)}")


def prices_of(namespace: str, model_id: str) -> str:
    """The partition that holds the prices of a model."""
    return f"{encode(namespace)}/PRICE#{encode(model_id)}"


def registry_prices_of(model_id: str) -> str:
    return prices_of(REGISTRY_NAMESPACE, model_id)


def label(namespace: str, name: str) -> Key:
    return Key(labels_partition(namespace), f"{LABEL_PREFIX}{encode(name)}")


LABEL_PREFIX: Final = "#LABEL#"
"""How the sort keys of labels begin."""


def labels_partition(namespace: str) -> str:
    return f"{encode(namespace)}/SYSTEM#"


def label_indexes(namespace: str, name: str) -> dict[str, str]:
    return namespace_index(namespace, label(namespace, name))


PROFILE_PREFIX: Final = "#PROFILE#"
"""How the sort keys of inference profiles begin."""


def profile(namespace: str, entity_id: str, label_name: str) -> Key:
    """`entity_id`: an app, or the org for all of its apps."""
    return Key(profiles_partition(namespace, entity_id), f"{PROFILE_PREFIX}{encode(label_name)}")


def profiles_partition(namespace: str, entity_id: str) -> str:
    return f"{encode(namespace)}/ENTITY#{encode(entity_id)}"


def profile_indexes(namespace: str, entity_id: str, label_name: str) -> dict[str, str]:
    return namespace_index(namespace, profile(namespace, entity_id, label_name))


def event(namespace: str, caller: str, day: str, request_id: str) -> Key:
    """An event is its own duplicate check: the same caller, day and request id make the same key."""
    partition = zlib.crc32(encode(request_id).encode()) % EVENT_PARTITIONS
    return Key(events_of(namespace, caller, day, partition), f"#EVENT#{encode(request_id)}")


def events_of(namespace: str, caller: str, day: str, partition: int) -> str:
    """One of the EVENT_PARTITIONS partitions that hold the events of a caller and day."""
    return f"{encode(namespace)}/EVENT#{encode(caller)}#{day}#{partition}"


def cost_shard(namespace: str, entity_id: str, label_name: str, day: str, shard: int) -> Key:
    return Key(f"{encode(namespace)}/COST#{encode(entity_id)}#{encode(label_name)}#{shard}", f"#DAY#{day}")


def total(namespace: str, entity_id: str, day: str, label_name: str) -> Key:
    return Key(totals_of(namespace, entity_id), f"{total_prefix(day)}{encode(label_name)}")


def totals_of(namespace: str, entity_id: str) -> str:
    """The partition that holds the daily totals of an entity."""
    return f"{encode(namespace)}/TOTAL#{encode(entity_id)}"


def totals_in(namespace: str) -> str:
    """How the partition keys of a namespace's totals begin."""
    return f"{encode(namespace)}/TOTAL#"


def total_prefix(day: str) -> str:
    """How the sort keys of the totals of a day begin. The label follows."""
    return f"#DAY#{day}#"


def total_indexes(namespace: str, entity_id: str, day: str, label_name: str) -> dict[str, str]:
    """GSI2 lists the totals of a label, by day."""
    sk = f"TOTAL#{day}#{encode(entity_id)}"
    return {
        **index_attributes(schema.GSI2, buckets_of_resource(namespace, label_name), sk),
        **namespace_index(namespace, total(namespace, entity_id, day, label_name)),
    }


def due_index(namespace: str, entity_id: str, day: str, label_name: str) -> dict[str, str]:
    """GSI3 lists the totals that a rollup is due for, and only while it is."""
    name = f"{encode(namespace)}#{encode(entity_id)}#{day}#{encode(label_name)}"
    partition = zlib.crc32(name.encode()) % DUE_PARTITIONS
    return index_attributes(schema.GSI3, due_totals(partition), name)


def due_totals(partition: int) -> str:
    """One of the DUE_PARTITIONS partitions of GSI3 that hold the totals that are due."""
    return f"{REGISTRY_NAMESPACE}/DIRTY#{partition}"


def sticky(namespace: str, entity_id: str, day: str) -> Key:
    return Key(stickies_of(namespace, entity_id), f"#DAY#{day}")


def stickies_of(namespace: str, entity_id: str) -> str:
    """The partition that holds where the selection of an app or org stands, day by day."""
    return f"{encode(namespace)}/STICKY#{encode(entity_id)}"
