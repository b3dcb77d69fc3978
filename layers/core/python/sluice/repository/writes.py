"""The write paths of one bucket, as requests. Pure: the time is an argument and nothing is sent.

Every guard is a range of the balance that already contains the refill, so what others spend meanwhile does not break
it; only the edges full and empty do. The theory is in `core/bucket.py`; who calls which path when is in
`services/taking.py`.

| path | changes | guarded by |
|---|---|---|
| create | the whole item | the item is absent |
| debit | balances of the named limits | need <= balance <= top + slack, or balance > top; limits hash; ttl |
| adjust | the same, down into debt | as debit without the floor; generation and limits hash; ttl |
| give back | balances of the named limits | generation; the limit still exists |
| rebase | parameters, balances of all limits | generation, limits hash and ttl as seen; the side of the new top |

TTL: a bucket may only expire when it is certainly full and no lease on it is open. Every debit therefore asks that the
ttl is at least `fill time + longest lease` away, and a writer that sees it nearer moves it in the same write.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sluice.core import bucket as math
from sluice.core.bucket import Form, Parameters
from sluice.core.lease import LEASE_MAX_MS
from sluice.repository import schema
from sluice.repository.expressions import Expression, compacted
from sluice.repository.items import Bucket, BucketLimit, encode_bucket
from sluice.repository.keys import Key
from sluice.repository.requests import PutRequest, UpdateRequest

TTL: Final = "#ttl"  # a reserved word of the expression language
TTL_NAMES: Final = {TTL: schema.TTL_ATTRIBUTE}
_GONE_FIELDS: Final = ("tk", "cp", "bx", "ra", "rp")


@dataclass(frozen=True, slots=True)
class Target:
    """A bucket under the limits that a writer computes with. `expires`: whether such a bucket has a ttl."""

    key: Key
    limits_hash: str
    parameters: Mapping[str, Parameters]
    fill_time_ms: int
    expires: bool


def create(bucket: Bucket) -> PutRequest:
    return {"Item": encode_bucket(bucket), "ConditionExpression": "attribute_not_exists(PK)"}


def full_less(target: Target, demand: Mapping[str, int], now_ms: int) -> dict[str, BucketLimit]:
    """The limits of a new bucket: full, less what its creator takes."""
    return {
        name: BucketLimit(limit, math.top_milli(limit, now_ms) - demand.get(name, 0), demand.get(name, 0))
        for name, limit in target.parameters.items()
    }


def debit(
    target: Target,
    demand: Mapping[str, int],
    forms: Mapping[str, Form],
    seen_expires_at_s: int | None,
    now_ms: int,
    generation: int | None = None,
) -> UpdateRequest:
    """Takes the demand if it is there. Needs the limits only: no read, and no image except to pick the forms.

    `generation`: for a writer that has to know, before it writes, which incarnation it takes from.
    """
    update = Expression()
    update.conditions.append("lh = :lh")
    update.values[":lh"] = target.limits_hash
    if generation is not None:
        update.conditions.append("gen = :gen")
        update.values[":gen"] = generation
    for name, amount_milli in demand.items():
        limit = target.parameters[name]
        if amount_milli > limit.burst_milli:
            raise ValueError(f"{amount_milli} is above the burst of {name}: crossed bounds are an error in DynamoDB")
        need_milli = math.need_milli(limit, amount_milli, now_ms)
        if amount_milli == 0:
            update.conditions.append(f"b_{name}_tk >= :need_{name}")
            update.values[f":need_{name}"] = need_milli
            continue
        _take(update, name, limit, amount_milli, forms[name], now_ms, need_milli)
    _keep_alive(update, target.fill_time_ms, seen_expires_at_s, now_ms)
    return update.request(target.key)


def adjust(image: Bucket, amounts_milli: Mapping[str, int], now_ms: int) -> UpdateRequest:
    """Takes more than was admitted, into debt if need be. Computed from the item's own parameters."""
    update = Expression()
    update.conditions += ["gen = :gen", "lh = :lh"]
    update.values |= {":gen": image.generation, ":lh": image.limits_hash}
    refill_time_ms = 0
    for name, amount_milli in amounts_milli.items():
        limit = image.limits[name]
        form = math.fitting_form(limit.parameters, limit.balance_milli, now_ms)
        _take(update, name, limit.parameters, amount_milli, form, now_ms, need_milli=None)
        refill_time_ms = max(refill_time_ms, math.refill_time_ms(limit.parameters, amount_milli))
    fill_time_ms = math.fill_time_ms(limit.parameters for limit in image.limits.values())
    _keep_alive_in_debt(update, fill_time_ms, refill_time_ms, image.expires_at_s, now_ms)
    return update.request(image.key)


def give_back(key: Key, generation: int, amounts_milli: Mapping[str, int]) -> UpdateRequest:
    """Returns what was taken from this incarnation. What overflows is cut by the next spend from full."""
    update = Expression()
    update.conditions.append("gen = :gen")
    update.values[":gen"] = generation
    for name, amount_milli in amounts_milli.items():
        update.adds += [f"b_{name}_tk :give_{name}", f"b_{name}_tc :less_{name}"]
        update.values |= {f":give_{name}": amount_milli, f":less_{name}": -amount_milli}
        # Without this an ADD would leave half a limit behind that nobody can use.
        update.conditions.append(f"attribute_exists(b_{name}_tk)")
    return update.request(key)


def rebase(image: Bucket, target: Target, now_ms: int) -> UpdateRequest:
    """Moves a bucket to changed limits. Every level stays what it is, cut to the new burst; added limits start full.

    The new limits hash makes it happen once, so a rebase whose answer was lost may be sent again.
    """
    update = Expression()
    update.sets.append("lh = :new_lh")
    update.conditions += ["gen = :gen", "lh = :lh"]
    update.values |= {":new_lh": target.limits_hash, ":gen": image.generation, ":lh": image.limits_hash}
    debt_time_ms = 0
    for name, limit in target.parameters.items():
        set_parameters(update, name, limit)
        old = image.limits.get(name)
        if old is None:
            update.sets.append(f"b_{name}_tk = :tk_{name}")
            # Not SET: a limit that was removed and comes back goes on counting.
            update.adds.append(f"b_{name}_tc :zero")
            update.values |= {f":tk_{name}": math.top_milli(limit, now_ms), ":zero": 0}
            continue
        _move_balance(update, name, old, limit, now_ms)
        debt_time_ms = max(debt_time_ms, math.refill_time_ms(limit, max(0, -_level_milli(old, now_ms))))
    for name in sorted(image.limits.keys() - target.parameters.keys()):
        update.removes += [f"b_{name}_{field}" for field in _GONE_FIELDS]
    expires_at = expires_at_s(target.fill_time_ms, now_ms + debt_time_ms) if target.expires else None
    _rebase_ttl(update, image, target, expires_at, now_ms)
    return compacted(update.request(image.key))


def expires_at_s(fill_time_ms: int, now_ms: int) -> int:
    """The ttl of a bucket that is written now."""
    return math.ceil_div(now_ms + 2 * fill_time_ms + 2 * LEASE_MAX_MS, 1000)


def least_expires_at_s(fill_time_ms: int, now_ms: int) -> int:
    """The nearest ttl that a debit may leave."""
    return math.ceil_div(now_ms + fill_time_ms + LEASE_MAX_MS, 1000)


def _take(
    update: Expression,
    name: str,
    limit: Parameters,
    amount_milli: int,
    form: Form,
    now_ms: int,
    need_milli: int | None,
) -> None:
    """One limit of a debit; without a need there is no floor, and the level may fall below zero."""
    top_milli = math.top_milli(limit, now_ms)
    update.adds.append(f"b_{name}_tc :take_{name}")
    update.values[f":take_{name}"] = amount_milli
    if form is Form.SPEND_FROM_FULL:
        update.sets.append(f"b_{name}_tk = :tk_{name}")
        update.values[f":tk_{name}"] = top_milli - amount_milli
        update.values[f":top_{name}"] = top_milli
        update.conditions.append(f"b_{name}_tk > :top_{name}")
        return
    update.adds.append(f"b_{name}_tk :less_{name}")
    update.values[f":less_{name}"] = -amount_milli
    update.values[f":top_{name}"] = top_milli + math.slack_milli(limit)
    if need_milli is None:
        update.conditions.append(f"b_{name}_tk <= :top_{name}")
    else:
        update.conditions.append(f"b_{name}_tk BETWEEN :need_{name} AND :top_{name}")
        update.values[f":need_{name}"] = need_milli


def _keep_alive(update: Expression, fill_time_ms: int, seen_expires_at_s: int | None, now_ms: int) -> None:
    least_s = least_expires_at_s(fill_time_ms, now_ms)
    update.names |= TTL_NAMES
    if seen_expires_at_s is not None and seen_expires_at_s < least_s:
        _renew(update, seen_expires_at_s, expires_at_s(fill_time_ms, now_ms))
        return
    update.conditions.append(f"(attribute_not_exists({TTL}) OR {TTL} >= :least_ttl)")
    update.values[":least_ttl"] = least_s


def _keep_alive_in_debt(
    update: Expression, fill_time_ms: int, refill_time_ms: int, seen_expires_at_s: int | None, now_ms: int
) -> None:
    """A debt must be repaid before the bucket may expire, else expiry would forgive it."""
    update.names |= TTL_NAMES
    if seen_expires_at_s is None:
        update.conditions.append(f"attribute_not_exists({TTL})")
        return
    extra_s = math.ceil_div(refill_time_ms, 1000)
    least_s = least_expires_at_s(fill_time_ms, now_ms)
    if seen_expires_at_s < least_s:
        _renew(update, seen_expires_at_s, expires_at_s(fill_time_ms, now_ms) + extra_s)
        return
    update.sets.append(f"{TTL} = {TTL} + :extra_ttl")
    update.conditions.append(f"{TTL} >= :least_ttl")
    update.values |= {":extra_ttl": extra_s, ":least_ttl": least_s}


def _renew(update: Expression, seen_expires_at_s: int, new_expires_at_s: int) -> None:
    update.sets.append(f"{TTL} = :new_ttl")
    update.conditions.append(f"{TTL} = :seen_ttl")
    update.values |= {":new_ttl": new_expires_at_s, ":seen_ttl": seen_expires_at_s}


def set_parameters(update: Expression, name: str, limit: Parameters) -> None:
    update.sets += [f"b_{name}_{field} = :{field}_{name}" for field in ("cp", "bx", "ra", "rp")]
    update.values |= {
        f":cp_{name}": limit.capacity_milli,
        f":bx_{name}": limit.burst_milli,
        f":ra_{name}": limit.refill_amount_milli,
        f":rp_{name}": limit.refill_period_ms,
    }


def _move_balance(update: Expression, name: str, old: BucketLimit, new: Parameters, now_ms: int) -> None:
    """The same level under other parameters, whichever side of the lower burst it is on."""
    cap_milli = min(old.parameters.burst_milli, new.burst_milli)
    refill_milli = math.refill_milli(old.parameters, now_ms)
    new_refill_milli = math.refill_milli(new, now_ms)
    edge_milli = cap_milli - refill_milli
    update.values[f":edge_{name}"] = edge_milli
    if old.balance_milli <= edge_milli:
        update.adds.append(f"b_{name}_tk :move_{name}")
        update.values[f":move_{name}"] = refill_milli - new_refill_milli
        update.conditions.append(f"b_{name}_tk <= :edge_{name}")
    else:
        update.sets.append(f"b_{name}_tk = :tk_{name}")
        update.values[f":tk_{name}"] = cap_milli - new_refill_milli
        update.conditions.append(f"b_{name}_tk > :edge_{name}")


def _rebase_ttl(update: Expression, image: Bucket, target: Target, new_expires_at_s: int | None, now_ms: int) -> None:
    update.names |= TTL_NAMES
    if image.expires_at_s is None:
        update.conditions.append(f"attribute_not_exists({TTL})")
    else:
        update.conditions.append(f"{TTL} = :seen_ttl")
        update.values[":seen_ttl"] = image.expires_at_s
    if new_expires_at_s is None:
        if image.expires_at_s is not None:
            update.removes.append(TTL)
        return
    update.sets.append(f"{TTL} = :new_ttl")
    update.values[":new_ttl"] = max(image.expires_at_s or 0, new_expires_at_s)
    if image.expires_at_s is None:
        # An adjustment made meanwhile left no trace in a ttl: whatever it took into debt must fail this write.
        for name in target.parameters:
            if (old := image.limits.get(name)) is not None:
                update.conditions.append(f"b_{name}_tk >= :floor_{name}")
                update.values[f":floor_{name}"] = old.balance_milli - max(0, _level_milli(old, now_ms))


def _level_milli(limit: BucketLimit, now_ms: int) -> int:
    return math.level_milli(limit.parameters, limit.balance_milli, now_ms)
