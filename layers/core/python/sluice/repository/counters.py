"""Counters of what was used, as attributes; and the shards that events are added to.

The counters of a (app or org, label, day) are spread over shards, so that no writer waits for another. Each write of a
shard adds one to its `rev`. Shards are only ever added, so the sum of their `rev` tells which of two sums is the later.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sluice.core.metering import Counters
from sluice.core.pricing import TokenKind
from sluice.repository import money_keys, schema
from sluice.repository.keys import Key
from sluice.repository.requests import UpdateRequest
from sluice.repository.shapes import UnknownShape, check_kind, text, whole
from sluice.repository.wire import Item, Value, item_from_wire

COST_SHARD: Final = "cost_shard"
KEPT_S: Final = 45 * 86_400
"""After the end of the day: longer than a call may be reported late."""

TOKEN_ATTRIBUTES: Final = {kind: f"{kind.value}_tokens" for kind in TokenKind}
"""What the tokens of a kind are called, here and in the events that are added up."""


class CounterName(NamedTuple):
    """What is counted together. `entity`: an app or the org. `label`: or a model id that no label resolves to."""

    namespace: str
    entity: str
    label: str
    day: str


@dataclass(frozen=True, slots=True)
class CostShard:
    name: CounterName
    shard: int
    counters: Counters
    revision: int


def add_to_shard(name: CounterName, shard: int, day_ends_ms: int, increase: Counters, now_ms: int) -> UpdateRequest:
    """Makes the shard where there is none. May not be repeated, and so belongs into the events' transaction."""
    fixed: dict[str, Value] = {
        "kind": COST_SHARD,
        "ns": name.namespace,
        "entity_id": name.entity,
        "label": name.label,
        "day": name.day,
        "shard": shard,
        "updated_at": now_ms,
        schema.TTL_ATTRIBUTE: -(-day_ends_ms // 1000) + KEPT_S,
    }
    added = {attribute: amount for attribute, amount in counter_attributes(increase).items() if amount}
    added["rev"] = 1
    names = {f"#s{number}": attribute for number, attribute in enumerate(fixed)}
    names |= {f"#a{number}": attribute for number, attribute in enumerate(added)}
    sets = [f"#s{number} = :s{number}" for number in range(len(fixed))]
    adds = [f"#a{number} :a{number}" for number in range(len(added))]
    values: dict[str, Value] = {f":s{number}": content for number, content in enumerate(fixed.values())}
    values |= {f":a{number}": amount for number, amount in enumerate(added.values())}
    return {
        "Key": {**money_keys.cost_shard(*name, shard).attributes},
        "UpdateExpression": f"SET {', '.join(sets)}, created_at = if_not_exists(created_at, :s6) ADD {', '.join(adds)}",
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def decode_cost_shard(item: Mapping[str, Value]) -> CostShard:
    check_kind(item, COST_SHARD)
    return CostShard(decode_counter_name(item), whole(item, "shard"), decode_counters(item), whole(item, "rev"))


def decode_counter_name(item: Mapping[str, Value]) -> CounterName:
    """As shards and totals carry it."""
    return CounterName(text(item, "ns"), text(item, "entity_id"), text(item, "label"), text(item, "day"))


def shard_keys(name: CounterName, shard_count: int) -> list[Key]:
    """Of all shards that there may be."""
    return [money_keys.cost_shard(*name, shard) for shard in range(shard_count)]


def changed_counter(record: Mapping[str, Any]) -> CounterName | None:
    """Whose counters a record of the stream tells to have grown, as the function gets it.

    None for a record of anything else. A shard that was removed has expired, and its total stays.
    """
    try:
        change = record["dynamodb"]
        old, new = _shard_in(change.get("OldImage")), _shard_in(change.get("NewImage"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        # Its own words may hold what a tenant wrote.
        raise UnknownShape({"kind": "record"}, type(error).__name__) from None
    if new is None or (old is not None and whole(old, "rev") == whole(new, "rev")):
        return None
    return decode_counter_name(new)


def counter_attributes(counters: Counters) -> dict[str, int]:
    return {
        "cost_usd_micros": counters.cost_usd_micros,
        **{attribute: counters.tokens.get(kind, 0) for kind, attribute in TOKEN_ATTRIBUTES.items()},
        "requests": counters.requests,
        "errors": counters.errors,
        "unpriced": counters.unpriced,
    }


def decode_counters(item: Mapping[str, Value]) -> Counters:
    """What was never added to is not there."""
    return Counters(
        cost_usd_micros=_count(item, "cost_usd_micros"),
        tokens={kind: _count(item, attribute) for kind, attribute in TOKEN_ATTRIBUTES.items()},
        requests=_count(item, "requests"),
        errors=_count(item, "errors"),
        unpriced=_count(item, "unpriced"),
    )


def _shard_in(wire: Mapping[str, Any] | None) -> Item | None:
    if wire is None or wire.get("kind") != {"S": COST_SHARD}:
        return None
    return item_from_wire(wire)


def _count(item: Mapping[str, Value], attribute: str) -> int:
    return whole(item, attribute) if attribute in item else 0
