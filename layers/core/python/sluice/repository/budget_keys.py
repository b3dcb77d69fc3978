"""Keys of budgets: ledgers, holds and alert markers. As `keys`, never parsed."""

import zlib
from typing import Final

from sluice.repository import schema
from sluice.repository.keys import REGISTRY_NAMESPACE, Key, encode, index_attributes, namespace_index

HOLD: Final = "#HOLD"
HOLD_PARTITIONS: Final = 16
"""So many partitions of GSI3 hold the open holds that expire in one minute."""
SWEEP: Final = Key(f"{REGISTRY_NAMESPACE}/SYSTEM#", "#SWEEP")
"""How far the sweep of expired holds came."""


def ledger(namespace: str, entity_id: str) -> Key:
    """The counters of an entity's budget, or what stands for the org's defaults."""
    return Key(budget_partition(namespace, entity_id), "#LEDGER#0")


def ledger_indexes(namespace: str, entity_id: str) -> dict[str, str]:
    """GSI3 lists the budgets of a namespace, by entity."""
    return {
        **index_attributes(schema.GSI3, budgets_of(namespace), encode(entity_id)),
        **namespace_index(namespace, ledger(namespace, entity_id)),
    }


def budgets_of(namespace: str) -> str:
    """The partition of GSI3 that holds the budgets of a namespace."""
    return f"{encode(namespace)}/BUDGETS"


def budget_partition(namespace: str, entity_id: str) -> str:
    return f"{encode(namespace)}/BUDGET#{encode(entity_id)}"


def hold(namespace: str, lease_id: str) -> Key:
    """Beside the state of its lease."""
    return Key(f"{encode(namespace)}/LEASE#{encode(lease_id)}", HOLD)


def open_hold_index(namespace: str, lease_id: str, expires_at_ms: int) -> dict[str, str]:
    """GSI3 finds the holds that expire in a minute, for as long as they are open."""
    name = f"{encode(namespace)}#{encode(lease_id)}"
    partition = zlib.crc32(name.encode()) % HOLD_PARTITIONS
    return index_attributes(schema.GSI3, expiring_holds(expiry_minute(expires_at_ms), partition), name)


def expiring_holds(minute: int, partition: int) -> str:
    """One of the HOLD_PARTITIONS partitions of GSI3 that hold the open holds that expire in a minute."""
    return f"{REGISTRY_NAMESPACE}/HOLDS#{minute}#{partition}"


def expiry_minute(expires_at_ms: int) -> int:
    return expires_at_ms // 60_000


def alert_marker(
    namespace: str, entity_id: str, period: str, dimension: str, percent: str, limit: int, first_epoch: int
) -> Key:
    """`percent`: a number, `hard` or `forecast`. `first_epoch`: of the ledger; one that was made anew begins again."""
    name = f"{period}#{dimension}#{percent}#{limit}#{first_epoch}"
    return Key(budget_partition(namespace, entity_id), f"{ALERT_PREFIX}{name}")


ALERT_PREFIX: Final = "#ALERT#"
"""How the sort keys of alert markers begin."""
