"""Tables as the old product leaves them, and what they are worth, worked out without the product."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from mypy_boto3_dynamodb import DynamoDBClient

from sluice.repository.wire import Item, item_to_wire

RESOURCES = ("gpt-4", "gpt-4o", "claude")
BATCH = 25


@dataclass(frozen=True)
class Limit:
    """As an old item stores it, of the whole bucket."""

    capacity: int
    burst: int
    amount: int
    period_ms: int

    def attributes(self, name: str) -> Item:
        return {
            f"b_{name}_cp": self.capacity,
            f"b_{name}_bx": self.burst,
            f"b_{name}_ra": self.amount,
            f"b_{name}_rp": self.period_ms,
        }


LIMITS = {
    "rpm": Limit(100_000, 150_000, 100_000, 60_000),
    "tpm": Limit(10_000_000, 10_000_000, 10_000_000, 60_000),
    # So slow that whatever is wrong with a refill shows.
    "daily": Limit(10_000, 10_000, 10_000, 86_400_000),
}


@dataclass(frozen=True)
class State:
    tokens: int
    refilled_ms: int
    consumed: int


Worth = dict[tuple[str, str, str], tuple[int, int]]
"""By entity, resource and limit: the level of all shards together, and what was consumed."""


@dataclass
class OldTable:
    """Items by layout, and what they are worth at `now_ms`. `tokens`: between what an item may have left."""

    prefix: str
    now_ms: int
    random: Random
    tokens: tuple[int, int] = (-50_000, 160_000)
    items: list[Item] = field(default_factory=list)
    worth: Worth = field(default_factory=dict)

    def state(self) -> State:
        refilled_ms = self.now_ms - self.random.choice([0, 500, 61_000, 3_600_000, 10**9])
        return State(self.random.randint(*self.tokens), refilled_ms, self.random.randint(0, 10**9))

    def limits(self) -> dict[str, Limit]:
        names = self.random.sample(sorted(LIMITS), self.random.randint(1, len(LIMITS)))
        return {name: LIMITS[name] for name in names}

    def add_layout_1(
        self, entity: str, resource: str, *, nested: bool = False, limits: Mapping[str, Limit] | None = None
    ) -> None:
        for name, limit in (limits or self.limits()).items():
            state = self.state()
            fields: Item = {
                "resource": resource,
                "limit_name": name,
                "tokens_milli": state.tokens,
                "last_refill_ms": state.refilled_ms,
                "capacity_milli": limit.capacity,
                "burst_milli": limit.burst,
                "refill_amount_milli": limit.amount,
                "refill_period_ms": limit.period_ms,
            }
            self.items.append(
                {
                    "PK": f"{self.prefix}ENTITY#{entity}",
                    "SK": f"#BUCKET#{resource}#{name}",
                    "entity_id": entity,
                    **({"data": dict(fields)} if nested else fields),
                    "total_consumed_milli": state.consumed,
                    "GSI2PK": f"RESOURCE#{resource}",
                    "GSI2SK": f"BUCKET#{entity}#{name}",
                    "ttl": self.now_ms // 1000 + 86_400,
                }
            )
            self._value(entity, resource, name, [(limit, state, 1, 0)])

    def add_layout_2(self, entity: str, resource: str, *, limits: Mapping[str, Limit] | None = None) -> None:
        limits, state = limits or self.limits(), self.state()
        item: Item = {
            "PK": f"{self.prefix}ENTITY#{entity}",
            "SK": f"#BUCKET#{resource}",
            "GSI2SK": f"BUCKET#{entity}",
            "ttl": self.now_ms // 1000 + 86_400,
        }
        self._add_composite(item, entity, resource, limits, [(state, 1, 0)])

    def add_layout_3(
        self,
        entity: str,
        resource: str,
        count: int = 1,
        missing: Collection[int] = (),
        *,
        limits: Mapping[str, Limit] | None = None,
    ) -> None:
        limits = limits or self.limits()
        states = [(self.state(), count, shard) for shard in range(count) if shard not in missing]
        item: Item = {
            "SK": "#STATE",
            "shard_count": count,
            "cascade": False,
            "GSI3PK": f"{self.prefix}ENTITY#{entity}",
            "GSI4PK": self.prefix or "none",
            "b_wcu_tk": 999_000,
            "b_wcu_cp": 1_000_000,
            "b_wcu_ra": 1_000_000,
            "b_wcu_rp": 1_000,
            "b_wcu_tc": 1_000,
        }
        self._add_composite(item, entity, resource, limits, states)
        for name, limit in limits.items():
            level, consumed = self.worth[entity, resource, name]
            full = sum(_share(limit.burst, shard, count) for shard in missing)
            self.worth[entity, resource, name] = level + full, consumed

    def _add_composite(
        self,
        base: Item,
        entity: str,
        resource: str,
        limits: Mapping[str, Limit],
        states: Iterable[tuple[State, int, int]],
    ) -> None:
        parts: dict[str, list[tuple[Limit, State, int, int]]] = {name: [] for name in limits}
        for shared, count, shard in states:
            item = {
                **base,
                "entity_id": entity,
                "resource": resource,
                "rf": shared.refilled_ms,
                "GSI2PK": f"{self.prefix}RESOURCE#{resource}",
            }
            if base["SK"] == "#STATE":
                item |= {
                    "PK": f"{self.prefix}BUCKET#{entity}#{resource}#{shard}",
                    "GSI2SK": f"BUCKET#{entity}#{shard}",
                    "GSI3SK": f"BUCKET#{resource}#{shard}",
                    "GSI4SK": f"BUCKET#{entity}#{resource}#{shard}",
                }
            for name, limit in limits.items():
                state = replace(self.state(), refilled_ms=shared.refilled_ms)
                item |= {f"b_{name}_tk": state.tokens, f"b_{name}_tc": state.consumed, **limit.attributes(name)}
                parts[name].append((limit, state, count, shard))
            self.items.append(item)
        for name, of_limit in parts.items():
            self._value(entity, resource, name, of_limit)

    def _value(self, entity: str, resource: str, name: str, parts: list[tuple[Limit, State, int, int]]) -> None:
        level = sum(_level(limit, state, count, shard, self.now_ms) for limit, state, count, shard in parts)
        self.worth[entity, resource, name] = level, sum(state.consumed for _, state, _, _ in parts)


def _share(whole: int, shard: int, count: int) -> int:
    return (whole + count - 1 - shard) // count


def _level(limit: Limit, state: State, count: int, shard: int, now_ms: int) -> int:
    """The refill of an old shard at the n-th part of the rate, up to its share of the burst."""
    refill = max(0, now_ms - state.refilled_ms) * limit.amount // (limit.period_ms * count)
    return min(state.tokens + refill, _share(limit.burst, shard, count))


def write_items(client: DynamoDBClient, table: str, items: Iterable[Item]) -> None:
    every: list[Any] = [{"PutRequest": {"Item": item_to_wire(item)}} for item in items]
    for start in range(0, len(every), BATCH):
        answer = client.batch_write_item(RequestItems={table: every[start : start + BATCH]})
        assert not answer["UnprocessedItems"]


def worth_of_buckets(items: Iterable[Mapping[str, Any]], namespace: str, now_ms: int) -> Worth:
    """What the buckets of today's layout are worth, from what is on the wire."""
    worth: Worth = {}
    for item in items:
        if item.get("kind") != {"S": "bucket"} or item["ns"] != {"S": namespace}:
            continue
        names = [attribute[2:-3] for attribute in item if attribute.startswith("b_") and attribute.endswith("_tk")]
        for name in names:
            tk, bx, ra, rp, tc = (int(item[f"b_{name}_{part}"]["N"]) for part in ("tk", "bx", "ra", "rp", "tc"))
            key = item["entity_id"]["S"], item["resource"]["S"], name
            level, consumed = worth.get(key, (0, 0))
            worth[key] = level + min(tk + now_ms * ra // rp, bx), consumed + tc
    return worth
