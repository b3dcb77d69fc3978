"""The writes that bring a bucket of an old layout into today's. Pure.

The balance that gives the level of the old rules at this moment is `level - refill(now)`: nothing is lost or minted,
and what had overflowed is cut. Every write is conditioned on what was seen of each old item, so a second mover, or an
old client that still writes, makes it fail; it is then built anew from what is there.

In layout 3 every shard stores the whole limits and has `1/n` of them. A doubling there leaves the donor its tokens and
fills the new shard, so the shards together may hold more than the burst: each keeps what it has up to its own share,
and the shares add up to the burst. A shard that is not there is full by the rules of that layout. All shards are taken
over in one transaction: at no moment do the counts name a shard that is missing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sluice.core import bucket as math
from sluice.core.bucket import MILLI, Parameters
from sluice.core.limits import Limit, fingerprint
from sluice.core.shards import SHARDS_MAX, shard_parameters, share
from sluice.repository import keys, writes
from sluice.repository.expressions import Expression
from sluice.repository.items import Bucket, BucketLimit, encode_bucket, limits_hash
from sluice.repository.legacy import LegacyItem, LegacyLimit
from sluice.repository.requests import DeleteRequest, PutRequest, TransactWrite, UpdateRequest
from sluice.repository.versions import COMPOSITE_WITH_REFILL_TIME
from sluice.repository.wire import Value

# No hash of limits: whoever meets it moves the bucket to the limits that hold.
UNKNOWN_FINGERPRINT: Final = "legacy"


@dataclass(frozen=True, slots=True)
class Move:
    """The writes of one transaction, and the bucket that they make, shard by shard."""

    buckets: tuple[Bucket, ...]
    writes: tuple[TransactWrite, ...]


@dataclass(frozen=True, slots=True)
class _Shards:
    """The items of layout 3 by shard, how many there should be, and how many the bucket will have."""

    items: Mapping[int, LegacyItem]
    seen_count: int
    count: int


def shard_count_of(parts: Sequence[LegacyItem]) -> int:
    """Of the most split shard, as a power of two: the counts of the others lag behind."""
    most = max((part.shard_count for part in parts), default=1)
    return 1 << (most - 1).bit_length()


def move(namespace: str, parts: Sequence[LegacyItem], generation: int, now_ms: int) -> Move:
    """Makes the bucket that the items stand for, in place where the key is the same, and removes the other items.

    Of several layouts the newest that has a limit says what its level is; every count is carried. Version 0: nothing
    was taken since the bucket was made, so no count of this write is consumption.
    """
    buckets = _converted(namespace, parts, generation, now_ms)
    seen = {part.key: part for part in parts}
    puts: list[TransactWrite] = [{"Put": _put(bucket, seen.pop(bucket.key, None))} for bucket in buckets]
    deletes: list[TransactWrite] = [{"Delete": _delete(part)} for part in seen.values()]
    return Move(buckets, (*puts, *deletes))


def merge(image: Bucket, parts: Sequence[LegacyItem], now_ms: int) -> Move:
    """For a bucket that was made by somebody who did not know of the old items.

    It started full where it should have started at their level, so what they lacked then is taken from it: too much by
    what overflowed since, never too little. Corrections are applied, and counts added.
    """
    # Shards of layout 3 beside a bucket of today's are left over from an earlier incarnation: nobody used them.
    older = [part for part in parts if part.layout != COMPOSITE_WITH_REFILL_TIME]
    owed_milli = {
        name: limit.parameters.burst_milli - limit.level_milli(limit.parameters, image.created_at_ms)
        for name, limit in _newest_limits(older).items()
    }
    for part in parts:
        for name, late_milli in part.late_milli.items():
            owed_milli[name] = owed_milli.get(name, 0) - late_milli
    update = _merge_update(image, owed_milli, _consumed_milli(parts), now_ms)
    deletes: list[TransactWrite] = [{"Delete": _delete(part)} for part in parts]
    return Move((image,), ({"Update": update}, *deletes))


def _converted(namespace: str, parts: Sequence[LegacyItem], generation: int, now_ms: int) -> tuple[Bucket, ...]:
    first = max(parts, key=lambda part: (part.layout, -part.shard))
    limits = _newest_limits(parts)
    seen_count = shard_count_of(parts)
    shards = _Shards(
        {part.shard: part for part in parts if part.layout == COMPOSITE_WITH_REFILL_TIME},
        seen_count,
        min(seen_count, SHARDS_MAX),
    )
    expires = first.expires_at_s is not None
    print_of_limits = _fingerprint({name: limit.parameters for name, limit in limits.items()}, expires=expires)
    made = []
    for shard in range(shards.count):
        consumed_milli = _consumed_milli([part for part in parts if part.shard % shards.count == shard])
        own = {
            name: BucketLimit(
                parameters=shard_parameters(limit.parameters, shard, shards.count),
                balance_milli=_balance_milli(name, limit, shards, shard, now_ms),
                consumed_milli=consumed_milli.pop(name, 0),
            )
            for name, limit in limits.items()
        }
        made.append(
            Bucket(
                key=keys.bucket(namespace, first.entity, first.resource, shard),
                namespace=namespace,
                entity=first.entity,
                resource=first.resource,
                call_fingerprint=None,
                shard=shard,
                shard_count=shards.count,
                version=0,
                generation=generation + shard,
                limits_hash=limits_hash(print_of_limits, shards.count),
                cascade=first.cascade,
                parent=first.parent,
                # Shards that expired one by one would each come back full.
                expires_at_s=_expires_at_s(first, own, now_ms) if expires and shards.count == 1 else None,
                created_at_ms=now_ms,
                limits=own,
                retired_consumed_milli=consumed_milli,
            )
        )
    return tuple(made)


def _newest_limits(parts: Sequence[LegacyItem]) -> dict[str, LegacyLimit]:
    """Of the newest layout that has it; there, of the first shard that has it."""
    found: dict[str, LegacyLimit] = {}
    for part in sorted(parts, key=lambda part: (part.layout, -part.shard)):
        found.update(part.limits)
    return found


def _balance_milli(name: str, newest: LegacyLimit, shards: _Shards, shard: int, now_ms: int) -> int:
    parameters = shard_parameters(newest.parameters, shard, shards.count)
    level_milli = _level_milli(name, newest, shards, shard, now_ms)
    return min(level_milli, parameters.burst_milli) - math.refill_milli(parameters, now_ms)


def _level_milli(name: str, newest: LegacyLimit, shards: _Shards, shard: int, now_ms: int) -> int:
    """What one shard has of a limit. Of more old shards than there may be, each is folded into the one it came from."""
    if not any(name in item.limits for item in shards.items.values()):
        return share(newest.level_milli(newest.parameters, now_ms), shard, shards.count)
    level_milli = 0
    for old in range(shard, shards.seen_count, shards.count):
        item = shards.items.get(old)
        limit = None if item is None else item.limits.get(name)
        if limit is not None:
            level_milli += limit.level_milli(shard_parameters(limit.parameters, old, shards.seen_count), now_ms)
            continue
        level_milli += share(newest.parameters.burst_milli, old, shards.seen_count)
        level_milli += 0 if item is None else item.late_milli.get(name, 0)
    return level_milli


def _consumed_milli(parts: Sequence[LegacyItem]) -> dict[str, int]:
    consumed_milli: dict[str, int] = {}
    for part in parts:
        for name, amount_milli in part.consumed_milli.items():
            consumed_milli[name] = consumed_milli.get(name, 0) + amount_milli
    return consumed_milli


def _fingerprint(parameters: Mapping[str, Parameters], *, expires: bool) -> str:
    """Of the limits that people would define so, if there are such."""
    limits = {
        name: Limit(
            limit.capacity_milli // MILLI,
            limit.burst_milli // MILLI,
            limit.refill_amount_milli // MILLI,
            limit.refill_period_ms // 1000,
        )
        for name, limit in parameters.items()
    }
    definable = all(limits[name].parameters == limit for name, limit in parameters.items())
    return fingerprint(limits, expires=expires) if limits and definable else UNKNOWN_FINGERPRINT


def _expires_at_s(seen: LegacyItem, limits: Mapping[str, BucketLimit], now_ms: int) -> int:
    """Not before the bucket is full, as for any other."""
    debts_ms = [_debt_time_ms(limit.parameters, limit.balance_milli, now_ms) for limit in limits.values()]
    fill_time_ms = math.fill_time_ms(limit.parameters for limit in limits.values())
    return max(seen.expires_at_s or 0, writes.expires_at_s(fill_time_ms, now_ms + max(debts_ms, default=0)))


def _debt_time_ms(parameters: Parameters, balance_milli: int, now_ms: int) -> int:
    return math.refill_time_ms(parameters, max(0, -math.level_milli(parameters, balance_milli, now_ms)))


def _merge_update(
    image: Bucket, owed_milli: Mapping[str, int], consumed_milli: Mapping[str, int], now_ms: int
) -> UpdateRequest:
    update = Expression()
    update.conditions += ["gen = :gen", "lh = :lh"]
    update.values |= {":gen": image.generation, ":lh": image.limits_hash}
    debt_time_ms = 0
    for number, name in enumerate(sorted({*owed_milli, *consumed_milli})):
        # Not every name of an old limit could stand in an expression.
        update.names[f"#tc{number}"] = f"b_{name}_tc"
        update.adds.append(f"#tc{number} :tc{number}")
        update.values[f":tc{number}"] = consumed_milli.get(name, 0)
        limit = image.limits.get(name)
        amount_milli = owed_milli.get(name, 0)
        if limit is None or amount_milli == 0:
            continue
        update.names[f"#tk{number}"] = f"b_{name}_tk"
        _owe(update, number, limit, amount_milli, now_ms)
        level_milli = math.level_milli(limit.parameters, limit.balance_milli, now_ms)
        debt_milli = max(0, amount_milli - level_milli)
        debt_time_ms = max(debt_time_ms, math.refill_time_ms(limit.parameters, debt_milli))
    if image.expires_at_s is not None:
        fill_time_ms = math.fill_time_ms(limit.parameters for limit in image.limits.values())
        update.names |= writes.TTL_NAMES
        update.sets.append(f"{writes.TTL} = :ttl")
        update.conditions.append(f"{writes.TTL} = :seen_ttl")
        update.values[":seen_ttl"] = image.expires_at_s
        update.values[":ttl"] = max(image.expires_at_s, writes.expires_at_s(fill_time_ms, now_ms + debt_time_ms))
    return update.request(image.key)


def _owe(update: Expression, number: int, limit: BucketLimit, amount_milli: int, now_ms: int) -> None:
    """Takes an amount, or gives a negative one back: an overflowed balance is cut first, or the debit would vanish."""
    top_milli = math.top_milli(limit.parameters, now_ms)
    if amount_milli > 0 and math.is_overflowed(limit.parameters, limit.balance_milli, now_ms):
        update.sets.append(f"#tk{number} = :tk{number}")
        update.values |= {f":tk{number}": top_milli - amount_milli, f":top{number}": top_milli}
        update.conditions.append(f"#tk{number} > :top{number}")
        return
    update.adds.append(f"#tk{number} :tk{number}")
    update.values[f":tk{number}"] = -amount_milli
    if amount_milli > 0:
        update.values[f":top{number}"] = top_milli + math.slack_milli(limit.parameters)
        update.conditions.append(f"#tk{number} <= :top{number}")


def _put(bucket: Bucket, seen: LegacyItem | None) -> PutRequest:
    if seen is None:
        return writes.create(bucket)
    condition, names, values = _as_seen(seen)
    return {
        "Item": encode_bucket(bucket),
        "ConditionExpression": condition,
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def _delete(seen: LegacyItem) -> DeleteRequest:
    condition, names, values = _as_seen(seen)
    return {
        "Key": {**seen.key.attributes},
        "ConditionExpression": condition,
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


def _as_seen(item: LegacyItem) -> tuple[str, dict[str, str], dict[str, Value]]:
    conditions = []
    names: dict[str, str] = {}
    values: dict[str, Value] = {}
    for path, seen in item.guards:
        aliases = []
        for attribute in path:
            aliases.append(f"#{len(names)}")
            names[aliases[-1]] = attribute
        if seen is None:
            conditions.append(f"attribute_not_exists({'.'.join(aliases)})")
        else:
            values[f":{len(values)}"] = seen
            conditions.append(f"{'.'.join(aliases)} = :{len(values) - 1}")
    return " AND ".join(conditions), names, values
