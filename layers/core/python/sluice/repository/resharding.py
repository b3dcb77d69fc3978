"""Requests that change how many shards a bucket has. Pure: dictionaries in, dictionaries out.

| change | writes | guarded by |
|---|---|---|
| split | half of one shard to a new one | generation and limits hash as seen; no child; a range of the balance |
| merge | all shards, full, back into shard 0 | version and generation of each as seen |
| removal | none of them is left | generation and limits hash of each as seen; what is missing, missing |

Refill is linear, so half the balance at half the rate is half the bucket at any moment: a split needs no lock. It is
not conditioned on the version, which on a shard that needs it never stands still.

Each is one transaction, so at any moment a bucket has all of its shards. If one is missing all the same, somebody took
it away by other means, and the rest is no bucket: its shares do not add up, and what it promises does not come true.
"""

from collections.abc import Sequence
from dataclasses import replace

from sluice.core import bucket as math
from sluice.core import shards
from sluice.core.bucket import SLACK_MS, Parameters
from sluice.repository import keys
from sluice.repository.entities import bucket_delete
from sluice.repository.expressions import Expression, compacted
from sluice.repository.items import Bucket, BucketLimit, encode_bucket, limits_hash
from sluice.repository.requests import TransactWrite
from sluice.repository.wire import Item
from sluice.repository.writes import TTL, TTL_NAMES, set_parameters


def split(image: Bucket, child_generation: int, now_ms: int) -> list[TransactWrite]:
    """Doubles the count of one shard: it keeps one half, a new shard gets the other."""
    doubled = 2 * image.shard_count
    update = Expression()
    update.names |= TTL_NAMES
    update.sets += ["lh = :new_lh", "shard_count = :doubled"]
    update.removes.append(TTL)
    update.conditions += ["gen = :gen", "lh = :lh"]
    update.values |= {
        ":new_lh": limits_hash(image.fingerprint, doubled),
        ":doubled": doubled,
        ":gen": image.generation,
        ":lh": image.limits_hash,
    }
    children = {}
    for name, limit in image.limits.items():
        kept, given = shards.halves(limit.parameters)
        set_parameters(update, name, kept)
        children[name] = BucketLimit(given, _halve(update, name, limit, kept, given, now_ms), 0)
    shard = image.shard + image.shard_count
    child = replace(
        image,
        key=keys.bucket_shard(keys.first_shard(image.key, image.shard), shard),
        shard=shard,
        shard_count=doubled,
        version=1,
        generation=child_generation,
        limits_hash=limits_hash(image.fingerprint, doubled),
        expires_at_s=None,
        created_at_ms=now_ms,
        limits=children,
        retired_consumed_milli={},
    )
    return [
        {"Update": compacted(update.request(image.key))},
        {"Put": {"Item": encode_bucket(child), "ConditionExpression": "attribute_not_exists(PK)"}},
    ]


def merge(images: Sequence[Bucket], new_expires_at_s: int | None, now_ms: int) -> list[TransactWrite]:
    """All shards of a bucket, each of them full, back into shard 0. What the others consumed leaves with them."""
    first = next(image for image in images if image.shard == 0)
    update = Expression()
    _as_seen(update, first)
    update.sets += ["lh = :new_lh", "shard_count = :single"]
    update.values |= {":new_lh": limits_hash(first.fingerprint, 1), ":single": 1}
    for name, whole in whole_parameters(first).items():
        set_parameters(update, name, whole)
        update.sets.append(f"b_{name}_tk = :tk_{name}")
        update.values[f":tk_{name}"] = math.top_milli(whole, now_ms)
    update.names |= TTL_NAMES
    if new_expires_at_s is not None:
        update.sets.append(f"{TTL} = :new_ttl")
        update.values[":new_ttl"] = new_expires_at_s
    else:
        update.removes.append(TTL)
    return [
        {"Update": compacted(update.request(first.key))},
        *(_merged(image) for image in images if image.shard),
    ]


def remove(images: Sequence[Bucket]) -> list[TransactWrite]:
    """All that is there of a bucket, whatever is spent meanwhile. A split or a merge since the images is in its way."""
    first = keys.first_shard(images[0].key, images[0].shard)
    return [
        *(TransactWrite(Delete=bucket_delete(image)) for image in images),
        *(_still_missing(first, shard) for shard in sorted(missing_shards(images))),
    ]


def missing_shards(images: Sequence[Bucket]) -> set[int]:
    """What these shards, read one after the other, do not have of a whole bucket. Of no shards nothing is missing."""
    return shards.missing({image.shard: image.shard_count for image in images}) if images else set()


def whole_parameters(first: Bucket) -> dict[str, Parameters]:
    """The limits of which shard 0 has its share: the largest, and limits are whole tokens, so there is only one."""
    return {name: _whole(limit.parameters, first.shard_count) for name, limit in first.limits.items()}


def _whole(share: Parameters, count: int) -> Parameters:
    return Parameters(
        capacity_milli=share.capacity_milli * count // math.MILLI * math.MILLI,
        burst_milli=share.burst_milli * count // math.MILLI * math.MILLI,
        refill_amount_milli=share.refill_amount_milli,
        refill_period_ms=share.refill_period_ms // count,
    )


def _still_missing(first: keys.Key, shard: int) -> TransactWrite:
    key: Item = {**keys.bucket_shard(first, shard).attributes}
    return {"ConditionCheck": {"Key": key, "ConditionExpression": "attribute_not_exists(PK)"}}


def _halve(update: Expression, name: str, limit: BucketLimit, kept: Parameters, given: Parameters, now_ms: int) -> int:
    """Takes half of one balance and returns it. What others spent since the image stays with the donor, as a debt."""
    seen_milli = limit.balance_milli
    top_milli = math.top_milli(limit.parameters, now_ms)
    if seen_milli > top_milli:
        update.sets.append(f"b_{name}_tk = :tk_{name}")
        update.conditions.append(f"b_{name}_tk > :top_{name}")
        update.values |= {f":tk_{name}": math.top_milli(kept, now_ms), f":top_{name}": top_milli}
        return math.top_milli(given, now_ms)
    half_milli = seen_milli // 2
    update.adds.append(f"b_{name}_tk :give_{name}")
    update.conditions.append(f"b_{name}_tk BETWEEN :least_{name} AND :most_{name}")
    update.values |= {
        f":give_{name}": -half_milli,
        f":least_{name}": min(seen_milli, half_milli + math.need_milli(kept, 0, now_ms + SLACK_MS)),
        f":most_{name}": half_milli + math.top_milli(kept, now_ms),
    }
    return half_milli


def _as_seen(update: Expression, image: Bucket) -> None:
    update.conditions += ["v = :v", "gen = :gen"]
    update.values |= {":v": image.version, ":gen": image.generation}


def _merged(image: Bucket) -> TransactWrite:
    key: Item = {**image.key.attributes}
    return {
        "Delete": {
            "Key": key,
            "ConditionExpression": "v = :v AND gen = :gen",
            "ExpressionAttributeValues": {":v": image.version, ":gen": image.generation},
        }
    }
