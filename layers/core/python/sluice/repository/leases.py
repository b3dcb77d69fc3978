"""The item of a lease: written by its first adjustment or by its close, and by every change after.

It is in the transaction that changes the buckets, so nothing is charged or given back twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice.core.bucket import ceil_div
from sluice.repository import schema
from sluice.repository.keys import Key, key_of
from sluice.repository.requests import PutRequest
from sluice.repository.shapes import UnknownShape, check_kind, text, texts, whole, wholes
from sluice.repository.wire import Item, Value

LEASE: Final = "lease"
# Of a lease that has no item yet.
NO_VERSION: Final = 0
# Long enough for every repeat: an expired lease is refused without a look at its item.
_KEPT_AFTER_EXPIRY_S: Final = 86_400
_ADJUSTED: Final = "a_"


class State(StrEnum):
    OPEN = "open"
    SETTLED = "settled"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class LeaseState:
    """What happened to a lease since it was given. Amounts are whole tokens.

    `adjustment_marks`: one for each Idempotency-Key, and what was asked under it. `closed_with`: what it stood for in
    the end. `left_out`: shares and limits that are gone and get no credit any more.
    """

    key: Key
    state: State
    adjusted: Mapping[str, int]
    adjustment_marks: tuple[str, ...]
    closed_with: Mapping[str, int]
    left_out: frozenset[str]
    version: int
    lease_expires_at_ms: int
    created_at_ms: int
    updated_at_ms: int


def decode_lease(item: Mapping[str, Value]) -> LeaseState:
    check_kind(item, LEASE)
    try:
        state = State(text(item, "state"))
    except ValueError:
        raise UnknownShape(item, "state is not understood") from None
    adjusted = {
        attribute.removeprefix(_ADJUSTED): whole(item, attribute)
        for attribute in item
        if attribute.startswith(_ADJUSTED)
    }
    return LeaseState(
        key=key_of(item),
        state=state,
        adjusted=adjusted,
        adjustment_marks=texts(item, "keys"),
        closed_with=wholes(item, "closed_with"),
        left_out=frozenset(texts(item, "left_out")),
        version=whole(item, "v"),
        lease_expires_at_ms=whole(item, "expires_at"),
        created_at_ms=whole(item, "created_at"),
        updated_at_ms=whole(item, "updated_at"),
    )


def encode_lease(lease: LeaseState) -> Item:
    item: Item = {
        **lease.key.attributes,
        "kind": LEASE,
        "state": lease.state.value,
        "v": lease.version,
        "expires_at": lease.lease_expires_at_ms,
        schema.TTL_ATTRIBUTE: ceil_div(lease.lease_expires_at_ms, 1000) + _KEPT_AFTER_EXPIRY_S,
        "created_at": lease.created_at_ms,
        "updated_at": lease.updated_at_ms,
    }
    for name, amount in lease.adjusted.items():
        item[f"{_ADJUSTED}{name}"] = amount
    if lease.adjustment_marks:
        item["keys"] = list(lease.adjustment_marks)
    if lease.closed_with:
        item["closed_with"] = dict(lease.closed_with)
    if lease.left_out:
        item["left_out"] = [*sorted(lease.left_out)]
    return item


def put_lease(lease: LeaseState, seen_version: int) -> PutRequest:
    """On the version seen. Who repeats it meets its own write, and knows it by what it says."""
    if seen_version == NO_VERSION:
        return {"Item": encode_lease(lease), "ConditionExpression": "attribute_not_exists(PK)"}
    return {
        "Item": encode_lease(lease),
        "ConditionExpression": "v = :seen",
        "ExpressionAttributeValues": {":seen": seen_version},
    }
