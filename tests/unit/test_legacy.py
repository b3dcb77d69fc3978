"""Old layouts: what they say is worked out here once more, so that the product is not its own judge."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.bucket import Parameters
from sluice.core.limits import Limit, LimitSet, Source
from sluice.core.shards import is_complete
from sluice.repository import keys
from sluice.repository.items import Bucket, BucketLimit, decode_bucket
from sluice.repository.legacy import LegacyItem, decode_legacy, is_legacy
from sluice.repository.legacy_moves import UNKNOWN_FINGERPRINT, Move, merge, move
from sluice.repository.legacy_settings import LegacyEntity, LegacyLimits, decode_setting, setting_writes
from sluice.repository.requests import UpdateRequest
from sluice.repository.shapes import UnknownShape
from sluice.repository.versions import (
    CURRENT,
    CURRENT_SCHEMA_VERSION,
    SchemaVersion,
    decode_version,
    encode_version,
    start_migration,
)
from sluice.repository.wire import Item, Value

NS = "ns"
PREFIX = "ns/"
NOW_MS = 1_800_000_000_000
DAY_S = 86_400


@dataclass(frozen=True)
class Old:
    """A limit as an old item has it."""

    tokens: int
    refilled_ms: int
    capacity: int
    burst: int
    amount: int
    period_ms: int
    consumed: int = 0

    def level(self, now_ms: int, count: int = 1) -> int:
        """As the old product computes it: shares and shard rates rounded down."""
        elapsed_ms = max(0, now_ms - self.refilled_ms)
        return min(self.tokens + elapsed_ms * (self.amount // count) // self.period_ms, self.burst // count)


def old_limits(milli: int = 1000) -> st.SearchStrategy[Old]:
    """In whole tokens and seconds by default, as people define them; the tokens left are any number."""
    sizes = st.integers(1, 10**6).map(lambda size: size * milli)
    return st.builds(
        Old,
        tokens=st.integers(-(10**10), 10**10),
        refilled_ms=st.integers(NOW_MS - 10**10, NOW_MS),
        capacity=sizes,
        burst=sizes,
        amount=sizes,
        period_ms=st.integers(1, 10**5).map(lambda period: period * milli),
        consumed=st.integers(-(10**6), 10**15),
    )


RPM = Old(tokens=40_000, refilled_ms=NOW_MS - 6_000, capacity=100_000, burst=120_000, amount=100_000, period_ms=60_000)


def one_item(limit: Old, name: str = "rpm", *, nested: bool = False, prefix: str = PREFIX) -> Item:
    fields: Item = {
        "resource": "gpt-4",
        "limit_name": name,
        "tokens_milli": limit.tokens,
        "last_refill_ms": limit.refilled_ms,
        "capacity_milli": limit.capacity,
        "burst_milli": limit.burst,
        "refill_amount_milli": limit.amount,
        "refill_period_ms": limit.period_ms,
    }
    return {
        "PK": f"{prefix}ENTITY#user-1",
        "SK": f"#BUCKET#gpt-4#{name}",
        "entity_id": "user-1",
        **({"data": dict(fields)} if nested else fields),
        "total_consumed_milli": limit.consumed,
        "GSI2PK": "RESOURCE#gpt-4",
        "GSI2SK": f"BUCKET#user-1#{name}",
        "ttl": NOW_MS // 1000,
    }


def composite(limits: Mapping[str, Old], *, burst: bool = True) -> Item:
    """All limits of an item share one refill time."""
    item: Item = {
        "PK": f"{PREFIX}ENTITY#user-1",
        "SK": "#BUCKET#gpt-4",
        "entity_id": "user-1",
        "resource": "gpt-4",
        "rf": next(iter(limits.values())).refilled_ms,
        "ttl": NOW_MS // 1000,
    }
    for name, limit in limits.items():
        item |= {
            f"b_{name}_tk": limit.tokens,
            f"b_{name}_cp": limit.capacity,
            f"b_{name}_ra": limit.amount,
            f"b_{name}_rp": limit.period_ms,
            f"b_{name}_tc": limit.consumed,
        }
        if burst:
            item[f"b_{name}_bx"] = limit.burst
    return item


def shard_item(limits: Mapping[str, Old], shard: int = 0, count: int = 1) -> Item:
    item = composite(limits)
    del item["ttl"]
    return item | {
        "PK": f"{PREFIX}BUCKET#user-1#gpt-4#{shard}",
        "SK": "#STATE",
        "shard_count": count,
        "cascade": True,
        "parent_id": "team",
        "b_wcu_tk": 999_000,
        "b_wcu_cp": 1_000_000,
        "b_wcu_ra": 1_000_000,
        "b_wcu_rp": 1_000,
        "b_wcu_tc": 1_000,
    }


def decoded(*items: Item) -> list[LegacyItem]:
    return [decode_legacy(item, PREFIX) for item in items]


def moved(*items: Item, now_ms: int = NOW_MS) -> Move:
    return move(NS, decoded(*items), 7_000, now_ms)


def put_buckets(made: Move) -> list[Bucket]:
    """Read back from what is sent, so that the items are checked and not what they were made of."""
    return [decode_bucket(write["Put"]["Item"]) for write in made.writes if "Put" in write]


def level(limit: BucketLimit, now_ms: int) -> int:
    """Rule 1.2, written out."""
    refill = now_ms * limit.parameters.refill_amount_milli // limit.parameters.refill_period_ms
    return min(limit.balance_milli + refill, limit.parameters.burst_milli)


def later() -> st.SearchStrategy[int]:
    return st.integers(0, 10**10)


@given(limit=old_limits(), nested=st.booleans(), later_ms=later())
def test_one_item_per_limit_has_the_same_level_now_and_later(limit: Old, nested: bool, later_ms: int) -> None:
    (bucket,) = put_buckets(moved(one_item(limit, nested=nested)))
    assert level(bucket.limits["rpm"], NOW_MS) == limit.level(NOW_MS)
    # Two roundings in place of one: a millitoken, never more, and never added up.
    assert abs(level(bucket.limits["rpm"], NOW_MS + later_ms) - limit.level(NOW_MS + later_ms)) <= 1
    assert bucket.limits["rpm"].consumed_milli == limit.consumed


@given(limits=st.dictionaries(st.sampled_from(["rpm", "tpm", "a_b"]), old_limits(), min_size=1), later_ms=later())
def test_a_composite_item_has_the_same_levels_now_and_later(limits: dict[str, Old], later_ms: int) -> None:
    refilled_ms = next(iter(limits.values())).refilled_ms
    limits = {name: replace(limit, refilled_ms=refilled_ms) for name, limit in limits.items()}
    for item in (composite(limits), shard_item(limits)):
        (bucket,) = put_buckets(moved(item))
        assert bucket.limits.keys() == limits.keys()
        for name, limit in limits.items():
            assert level(bucket.limits[name], NOW_MS) == limit.level(NOW_MS)
            assert abs(level(bucket.limits[name], NOW_MS + later_ms) - limit.level(NOW_MS + later_ms)) <= 1
            assert bucket.limits[name].consumed_milli == limit.consumed


@st.composite
def sharded(draw: st.DrawFn) -> tuple[dict[int, Old], int]:
    """Shards of one limit: each has its own tokens and time; some are not there."""
    count = draw(st.sampled_from([2, 4, 8, 16, 32, 64]))
    whole = draw(old_limits())
    there = draw(st.sets(st.integers(0, count - 1), min_size=1))
    states = draw(st.lists(old_limits(), min_size=len(there), max_size=len(there)))
    shards = {
        shard: replace(whole, tokens=state.tokens, refilled_ms=state.refilled_ms, consumed=state.consumed)
        for shard, state in zip(sorted(there), states, strict=True)
    }
    return shards, count


@given(case=sharded())
def test_shards_keep_what_they_have_up_to_their_share_and_never_more_than_the_burst(
    case: tuple[dict[int, Old], int],
) -> None:
    old, count = case
    buckets = put_buckets(moved(*(shard_item({"rpm": limit}, shard, count) for shard, limit in old.items())))
    whole = next(iter(old.values()))
    levels = {bucket.shard: level(bucket.limits["rpm"], NOW_MS) for bucket in buckets}
    assert len(buckets) == min(count, 16)
    assert is_complete({bucket.shard: bucket.shard_count for bucket in buckets})
    assert sum(levels.values()) <= whole.burst
    assert sum(bucket.limits["rpm"].parameters.burst_milli for bucket in buckets) == whole.burst
    for shard, found in levels.items():
        folded = range(shard, count, 16)
        had = sum(old[one].level(NOW_MS, count) if one in old else whole.burst // count for one in folded)
        assert found >= had
    consumed = sum(bucket.limits["rpm"].consumed_milli for bucket in buckets)
    assert consumed == sum(limit.consumed for limit in old.values())
    assert len({bucket.generation for bucket in buckets}) == len(buckets)
    assert {bucket.expires_at_s for bucket in buckets} == {None}


def test_a_full_bucket_that_was_just_doubled_stays_full() -> None:
    """The donor kept all tokens, its child is not there yet: half is cut, and the child comes full."""
    full = replace(RPM, tokens=120_000)
    buckets = put_buckets(moved(shard_item({"rpm": full}, 0, 2)))
    assert [level(bucket.limits["rpm"], NOW_MS) for bucket in buckets] == [60_000, 60_000]


def test_counts_that_lag_behind_are_not_believed() -> None:
    items = [shard_item({"rpm": RPM}, 0, 4), shard_item({"rpm": RPM}, 1, 2)]
    assert [bucket.shard_count for bucket in put_buckets(moved(*items))] == [4] * 4


def test_a_shard_that_lags_behind_a_lowered_limit_is_cut_to_its_share_of_the_new_one() -> None:
    lowered = replace(RPM, tokens=10_000, burst=100_000)
    raised = replace(RPM, tokens=10**9, burst=10**9)
    buckets = put_buckets(moved(shard_item({"rpm": lowered}, 0, 2), shard_item({"rpm": raised}, 1, 2)))
    assert level(buckets[1].limits["rpm"], NOW_MS) == 50_000
    # Not even for a moment: an overflow would be spent once the burst is raised.
    assert buckets[1].limits["rpm"].balance_milli + NOW_MS * 100_000 // 120_000 == 50_000


def test_more_shards_than_may_be_are_folded_and_removed() -> None:
    items = [shard_item({"rpm": replace(RPM, consumed=1_000 + shard)}, shard, 32) for shard in range(32)]
    made = moved(*items)
    assert len([write for write in made.writes if "Delete" in write]) == 16
    first = put_buckets(made)[0]
    assert first.limits["rpm"].consumed_milli == 1_000 + 1_016
    assert level(first.limits["rpm"], NOW_MS) == 2 * (120_000 // 32)


def test_layout_3_is_taken_over_in_place_as_rule_2_6_says() -> None:
    item = shard_item({"rpm": RPM, "tpm": replace(RPM, tokens=-5_000, consumed=77)})
    made = moved(item)
    (write,) = made.writes
    assert write["Put"]["Item"]["PK"] == item["PK"] == "ns/BUCKET#user-1#gpt-4#0"
    assert not is_legacy(write["Put"]["Item"])
    assert {"rf", "b_wcu_tk", "b_wcu_tc"}.isdisjoint(write["Put"]["Item"])
    (bucket,) = put_buckets(made)
    assert (bucket.entity, bucket.resource, bucket.shard, bucket.shard_count) == ("user-1", "gpt-4", 0, 1)
    assert (bucket.cascade, bucket.parent, bucket.namespace) == (True, "team", "ns")
    assert level(bucket.limits["rpm"], NOW_MS) == 40_000 + 6_000 * 100_000 // 60_000
    assert level(bucket.limits["tpm"], NOW_MS) == -5_000 + 10_000
    # Nothing was taken by this write: who counts by versions counts nothing.
    assert bucket.version == 0
    assert bucket.limits["tpm"].consumed_milli == 77
    put = write["Put"]
    names = put["ExpressionAttributeNames"]
    condition = re.sub(r"#\d+", lambda match: names[match[0]], put["ConditionExpression"])
    values = put["ExpressionAttributeValues"]
    assert re.sub(r":\d+", lambda match: str(values[match[0]]), condition) == (
        f"attribute_not_exists(lh) AND rf = {RPM.refilled_ms} AND shard_count = 1"
        " AND b_rpm_tk = 40000 AND b_tpm_tk = -5000"
    )


def test_the_index_keys_are_todays() -> None:
    (write,) = moved(shard_item({"rpm": RPM})).writes
    item = write["Put"]["Item"]
    assert keys.bucket_indexes(NS, "user-1", "gpt-4", 0).items() <= item.items()


def test_a_clock_that_was_ahead_refills_nothing_until_now() -> None:
    ahead = replace(RPM, refilled_ms=NOW_MS + 2_000)
    (bucket,) = put_buckets(moved(composite({"rpm": ahead})))
    assert level(bucket.limits["rpm"], NOW_MS) == 40_000


def test_layouts_1_and_2_are_put_if_absent_and_removed_as_seen() -> None:
    made = moved(one_item(RPM), one_item(RPM, "tpm", nested=True))
    put, first, second = made.writes
    assert put["Put"]["ConditionExpression"] == "attribute_not_exists(PK)"
    assert put["Put"]["Item"]["PK"] == "ns/BUCKET#user-1#gpt-4#0"
    assert [write["Delete"]["Key"]["SK"] for write in (first, second)] == ["#BUCKET#gpt-4#rpm", "#BUCKET#gpt-4#tpm"]
    assert second["Delete"]["ConditionExpression"] == "#0.#1 = :0 AND #2.#3 = :1 AND #4 = :2"
    assert second["Delete"]["ExpressionAttributeNames"] == {
        "#0": "data",
        "#1": "tokens_milli",
        "#2": "data",
        "#3": "last_refill_ms",
        "#4": "total_consumed_milli",
    }


def test_an_item_without_a_count_is_guarded_by_its_absence() -> None:
    item = one_item(RPM)
    del item["total_consumed_milli"]
    _, delete = moved(item).writes
    assert delete["Delete"]["ConditionExpression"] == "#0 = :0 AND #1 = :1 AND attribute_not_exists(#2)"


def test_the_newest_layout_that_has_a_limit_decides_its_level_and_every_count_is_carried() -> None:
    first = one_item(replace(RPM, tokens=1_000, refilled_ms=NOW_MS, consumed=1))
    only_there = one_item(replace(RPM, tokens=2_000, refilled_ms=NOW_MS, consumed=2), "tpm")
    second = composite({"rpm": replace(RPM, tokens=3_000, refilled_ms=NOW_MS, consumed=4)})
    third = shard_item({"rpm": replace(RPM, tokens=5_000, refilled_ms=NOW_MS, consumed=8)})
    made = moved(first, only_there, second, third)
    (bucket,) = put_buckets(made)
    assert level(bucket.limits["rpm"], NOW_MS) == 5_000
    assert level(bucket.limits["tpm"], NOW_MS) == 2_000
    assert bucket.limits["rpm"].consumed_milli == 1 + 4 + 8
    assert bucket.limits["tpm"].consumed_milli == 2
    assert len(made.writes) == 1 + 3


def test_the_limits_of_an_old_item_that_are_still_defined_so_need_no_rebase() -> None:
    defined = Limit(100, 120, 100, 60)
    of_resource = LimitSet({"rpm": defined}, {"rpm": Source.RESOURCE})
    of_entity = LimitSet({"rpm": defined}, {"rpm": Source.ENTITY})
    (expiring,) = put_buckets(moved(composite({"rpm": RPM})))
    (staying,) = put_buckets(moved(shard_item({"rpm": RPM})))
    assert expiring.limits_hash == f"{of_resource.fingerprint}:1"
    assert staying.limits_hash == f"{of_entity.fingerprint}:1"
    assert staying.expires_at_s is None


def test_limits_that_nobody_could_define_so_are_rebased_by_whoever_meets_them() -> None:
    (bucket,) = put_buckets(moved(composite({"rpm": replace(RPM, amount=100_001)})))
    assert bucket.limits_hash == f"{UNKNOWN_FINGERPRINT}:1"


def test_it_does_not_expire_before_it_is_full() -> None:
    in_debt = replace(RPM, tokens=-600_000, refilled_ms=NOW_MS)
    (bucket,) = put_buckets(moved(composite({"rpm": in_debt})))
    fill_ms, debt_ms = 120_000 * 60_000 // 100_000, 600_000 * 60_000 // 100_000
    assert bucket.expires_at_s == (NOW_MS + debt_ms + 2 * fill_ms) // 1000 + 2 * DAY_S


def test_a_time_to_live_that_is_further_away_stays() -> None:
    far = composite({"rpm": RPM}) | {"ttl": NOW_MS // 1000 + 30 * DAY_S}
    (bucket,) = put_buckets(moved(far))
    assert bucket.expires_at_s == NOW_MS // 1000 + 30 * DAY_S


def test_later_items_have_no_burst_of_their_own() -> None:
    (bucket,) = put_buckets(moved(composite({"rpm": RPM}, burst=False)))
    assert bucket.limits["rpm"].parameters == Parameters(100_000, 100_000, 100_000, 60_000)
    item = one_item(RPM)
    del item["burst_milli"]
    (bucket,) = put_buckets(moved(item))
    assert bucket.limits["rpm"].parameters.burst_milli == 100_000


@pytest.mark.parametrize("name", ["Requests", "per-minute", "a.b", "x" * 33])
def test_of_a_limit_with_a_name_that_none_may_have_the_count_is_kept(name: str) -> None:
    (bucket,) = put_buckets(moved(composite({name: replace(RPM, consumed=5), "rpm": RPM})))
    assert bucket.limits.keys() == {"rpm"}
    assert bucket.retired_consumed_milli == {name: 5}


@pytest.mark.parametrize("field", ["amount", "period_ms", "capacity", "burst"])
def test_a_limit_of_zero_is_none(field: str) -> None:
    broken = replace(RPM, consumed=5, **{field: 0})
    for item in (composite({"rpm": broken}), one_item(broken)):
        (bucket,) = put_buckets(moved(item))
        assert not bucket.limits
        assert bucket.retired_consumed_milli == {"rpm": 5}
        assert bucket.limits_hash == f"{UNKNOWN_FINGERPRINT}:1"


def test_keys_that_are_encoded_today_are_moved() -> None:
    item = shard_item({"rpm": RPM}) | {"PK": "ns/BUCKET#user-1#openai/gpt#0"}
    made = moved(item)
    assert [next(iter(write)) for write in made.writes] == ["Put", "Delete"]
    assert made.buckets[0].key.pk == "ns/BUCKET#user-1#openai%2Fgpt#0"
    assert made.buckets[0].resource == "openai/gpt"


HALF: Item = {"PK": "ns/ENTITY#user-1", "SK": "#BUCKET#gpt-4", "b_rpm_tk": -3_000, "b_rpm_tc": 3_000}


def test_half_an_item_keeps_its_count_where_there_is_no_bucket() -> None:
    made = moved(HALF)
    (bucket,) = put_buckets(made)
    assert (bucket.entity, bucket.resource, dict(bucket.limits)) == ("user-1", "gpt-4", {})
    assert bucket.retired_consumed_milli == {"rpm": 3_000}
    assert made.writes[1]["Delete"]["ConditionExpression"] == (
        "attribute_not_exists(#0) AND attribute_not_exists(#1) AND attribute_not_exists(#2) AND #3 = :0"
    )


def test_half_a_shard_is_full_and_corrected() -> None:
    half: Item = {"PK": "ns/BUCKET#user-1#gpt-4#1", "SK": "#STATE", "b_rpm_tk": -3_000, "b_rpm_tc": 3_000}
    buckets = put_buckets(moved(shard_item({"rpm": RPM}, 0, 2), half))
    assert level(buckets[1].limits["rpm"], NOW_MS) == 60_000 - 3_000
    assert buckets[1].limits["rpm"].consumed_milli == 3_000


def test_half_a_limit_beside_others_is_counted() -> None:
    item = composite({"rpm": RPM}) | {"b_gone_tk": -1, "b_gone_tc": 9}
    (bucket,) = put_buckets(moved(item))
    assert bucket.retired_consumed_milli == {"gone": 9}


@pytest.mark.parametrize(
    "item",
    [
        {"PK": "other/ENTITY#user-1", "SK": "#BUCKET#gpt-4", "rf": 1},
        {"PK": "ns/BUCKET#user-1#gpt-4", "SK": "#STATE", "rf": 1},
        {"PK": "ns/BUCKET#user-1#gpt-4#x", "SK": "#STATE", "rf": 1},
        {"PK": "ns/BUCKET#user-1#gpt-4#64", "SK": "#STATE", "rf": 1},
        {"PK": "ns/BUCKET#a#b#gpt-4#0", "SK": "#STATE", "rf": 1},
        {"PK": "ns/BUCKET#user-1#gpt-4#0", "SK": "#STATE", "rf": 1, "shard_count": 128},
        {"PK": "ns/BUCKET#user-1#gpt-4#0", "SK": "#STATE", "rf": "then"},
        {"PK": "ns/ENTITY#user-1", "SK": "#BUCKET#gpt-4", "rf": 1, "b_rpm_tk": "many"},
        {"PK": "ns/ENTITY#user-1", "SK": "#BUCKET#gpt-4#rpm", "tokens_milli": 1},
    ],
)
def test_what_nobody_understands_is_refused(item: Item) -> None:
    with pytest.raises(UnknownShape):
        decode_legacy(item, PREFIX)


# A bucket that was made beside the old items.


def todays(limit: Old, balance_milli: int, created_ms: int, expires_at_s: int | None = None) -> Bucket:
    parameters = Parameters(limit.capacity, limit.burst, limit.amount, limit.period_ms)
    (made,) = put_buckets(moved(composite({"rpm": limit})))
    own = {"rpm": BucketLimit(parameters, balance_milli, 0)}
    return replace(made, limits=own, created_at_ms=created_ms, expires_at_s=expires_at_s, version=3)


def balance_after(request: UpdateRequest, balance_milli: int) -> int:
    """Of the one limit, as the expression says, its condition checked."""
    values: Any = request["ExpressionAttributeValues"]
    update = request["UpdateExpression"]
    condition = request["ConditionExpression"]
    if match := re.search(r"#tk0 (>|<=) (:top0)", condition):
        above = balance_milli > values[match[2]]
        assert above == (match[1] == ">")
    if match := re.search(r"#tk0 = (:tk0)", update):
        return int(values[match[1]])
    if match := re.search(r"#tk0 (:tk0)", update):
        return balance_milli + int(values[match[1]])
    return balance_milli


@st.composite
def spends(draw: st.DrawFn) -> list[tuple[int, int]]:
    times = sorted(draw(st.lists(st.integers(0, 10**6), max_size=6)))
    return [(time_ms, draw(st.integers(0, 10**8))) for time_ms in times]


@given(limit=old_limits(), spent=spends(), after_ms=st.integers(0, 10**6))
def test_a_merge_never_leaves_more_than_the_bucket_would_have_had(
    limit: Old, spent: Sequence[tuple[int, int]], after_ms: int
) -> None:
    """Two buckets with the same spends: one was made full, the other from the old item, as it should have been."""
    parameters = Parameters(limit.capacity, limit.burst, limit.amount, limit.period_ms)

    def refill(now_ms: int) -> int:
        return now_ms * limit.amount // limit.period_ms

    def run(start_level: int) -> int:
        balance = start_level - refill(NOW_MS)
        for offset_ms, amount in spent:
            now_ms = NOW_MS + offset_ms
            top = limit.burst - refill(now_ms)
            balance = min(balance, top) - amount
        return balance

    now_ms = NOW_MS + max([offset_ms for offset_ms, _ in spent], default=0) + after_ms
    image = todays(limit, run(limit.burst), NOW_MS)
    made = merge(image, decoded(composite({"rpm": limit})), now_ms)
    after = balance_after(made.writes[0]["Update"], image.limits["rpm"].balance_milli)
    truth = level(BucketLimit(parameters, run(limit.level(NOW_MS)), 0), now_ms)
    assert level(BucketLimit(parameters, after, 0), now_ms) <= truth


def test_a_merge_is_exact_while_nothing_has_overflowed() -> None:
    limit = replace(RPM, tokens=20_000, refilled_ms=NOW_MS, consumed=9)
    spent = 70_000
    full = 120_000 - NOW_MS * 100_000 // 60_000
    image = todays(limit, full - spent, NOW_MS)
    now_ms = NOW_MS + 600
    made = merge(image, decoded(composite({"rpm": limit})), now_ms)
    update = made.writes[0]["Update"]
    after = balance_after(update, image.limits["rpm"].balance_milli)
    assert level(BucketLimit(image.limits["rpm"].parameters, after, 0), now_ms) == 20_000 - spent + 1_000
    assert update["ExpressionAttributeValues"][":tc0"] == 9
    assert update["ExpressionAttributeNames"]["#tc0"] == "b_rpm_tc"
    assert [next(iter(write)) for write in made.writes] == ["Update", "Delete"]


def test_an_overflowed_bucket_is_cut_before_a_merge_takes_from_it() -> None:
    limit = replace(RPM, tokens=20_000, refilled_ms=NOW_MS)
    overflowed = 10**9 - NOW_MS * 100_000 // 60_000
    image = todays(limit, overflowed, NOW_MS)
    update = merge(image, decoded(composite({"rpm": limit})), NOW_MS).writes[0]["Update"]
    assert balance_after(update, overflowed) == 20_000 - NOW_MS * 100_000 // 60_000


def test_a_debt_that_a_merge_leaves_is_repaid_before_the_bucket_expires() -> None:
    limit = replace(RPM, tokens=0, refilled_ms=NOW_MS)
    image = todays(limit, -NOW_MS * 100_000 // 60_000, NOW_MS, expires_at_s=NOW_MS // 1000 + 60)
    update = merge(image, decoded(composite({"rpm": limit})), NOW_MS).writes[0]["Update"]
    fill_ms = 120_000 * 60_000 // 100_000
    assert update["ExpressionAttributeValues"][":ttl"] == (NOW_MS + 3 * fill_ms) // 1000 + 2 * DAY_S
    assert "#ttl = :seen_ttl" in update["ConditionExpression"]


def test_corrections_of_old_clients_reach_the_bucket_that_took_over() -> None:
    before = 50_000 - NOW_MS * 100_000 // 60_000
    image = todays(RPM, before, NOW_MS)
    debit = merge(image, decoded(HALF), NOW_MS).writes[0]["Update"]
    assert balance_after(debit, before) == before - 3_000
    credit = merge(image, decoded({**HALF, "b_rpm_tk": 2_000, "b_rpm_tc": -2_000}), NOW_MS).writes[0]["Update"]
    assert balance_after(credit, before) == before + 2_000
    assert "#tk0" not in credit["ConditionExpression"]


def test_shards_that_are_left_over_take_nothing_from_the_bucket_that_took_over() -> None:
    image = todays(RPM, 0, NOW_MS)
    empty = replace(RPM, tokens=0, refilled_ms=NOW_MS, consumed=4)
    update = merge(image, decoded(shard_item({"rpm": empty, "gone-x": empty}, 1, 2)), NOW_MS).writes[0]["Update"]
    assert update["ExpressionAttributeNames"] == {"#tc0": "b_gone-x_tc", "#tc1": "b_rpm_tc"}
    assert "_tk" not in update["UpdateExpression"]


# Entities and limits.


def test_an_old_entity_has_todays_shape() -> None:
    item: Item = {
        "PK": "ns/ENTITY#user-1",
        "SK": "#META",
        "entity_id": "user-1",
        "name": "User",
        "parent_id": None,
        "cascade": True,
        "metadata": {"tier": "gold"},
        "created_at": "2026-01-02T03:04:05Z",
    }
    setting = decode_setting(item, PREFIX, NOW_MS)
    assert isinstance(setting, LegacyEntity)
    entity = setting.entity
    assert (entity.entity, entity.name, entity.parent, entity.cascade) == ("user-1", "User", None, True)
    assert (entity.metadata, entity.created_at_ms, entity.version) == ({"tier": "gold"}, 1_767_323_045_000, 1)
    (write,) = setting_writes(NS, setting)
    assert write["Put"]["Item"]["kind"] == "entity"
    assert write["Put"]["ConditionExpression"] == "attribute_exists(PK) AND attribute_not_exists(kind)"


def test_the_first_entities_have_their_attributes_in_a_map() -> None:
    data: dict[str, Value] = {"name": "User", "parent_id": "team", "metadata": {}, "created_at": "yesterday"}
    item: Item = {"PK": "ENTITY#user-1", "SK": "#META", "entity_id": "user-1", "data": data}
    setting = decode_setting(item, "", NOW_MS)
    assert isinstance(setting, LegacyEntity)
    assert (setting.entity.parent, setting.entity.cascade, setting.entity.created_at_ms) == ("team", False, NOW_MS)
    put, delete = setting_writes(NS, setting)
    assert put["Put"]["Item"]["PK"] == "ns/ENTITY#user-1"
    assert put["Put"]["ConditionExpression"] == "attribute_not_exists(PK)"
    assert delete["Delete"]["Key"] == {"PK": "ENTITY#user-1", "SK": "#META"}


@pytest.mark.parametrize(
    ("created_at", "created_ms"),
    [("2026-01-02T03:04:05+00:00", 1_767_323_045_000), ("2026-01-02", NOW_MS), ("then", NOW_MS), (None, NOW_MS)],
)
def test_what_is_no_time_is_now(created_at: str | None, created_ms: int) -> None:
    setting = decode_setting({"PK": "ns/ENTITY#user-1", "SK": "#META", "created_at": created_at}, PREFIX, NOW_MS)
    assert isinstance(setting, LegacyEntity)
    assert setting.entity.created_at_ms == created_ms


@pytest.mark.parametrize(
    ("pk", "sk", "scope"),
    [
        ("ns/SYSTEM#", "#CONFIG", (None, None)),
        ("ns/RESOURCE#gpt-4", "#CONFIG", (None, "gpt-4")),
        ("ns/ENTITY#user-1", "#CONFIG#gpt-4", ("user-1", "gpt-4")),
        ("ns/ENTITY#user-1", "#CONFIG#_default_", ("user-1", "_default_")),
    ],
)
def test_old_limits_have_todays_shape(pk: str, sk: str, scope: tuple[str | None, str | None]) -> None:
    item: Item = {
        "PK": pk,
        "SK": sk,
        "l_rpm_cp": 100,
        "l_rpm_ra": 100,
        "l_rpm_rp": 60,
        "l_tpm_cp": 10,
        "l_tpm_bx": 20,
        "l_tpm_ra": 5,
        "l_tpm_rp": 1,
        "l_Per-Day_cp": 1,
        "l_Per-Day_ra": 1,
        "l_Per-Day_rp": 1,
        "l_never_cp": 1,
        "l_never_ra": 0,
        "l_never_rp": 1,
        "l_half_cp": 1,
        "on_unavailable": "allow",
        "config_version": 3,
    }
    setting = decode_setting(item, PREFIX, NOW_MS)
    assert isinstance(setting, LegacyLimits)
    assert (setting.scope.entity, setting.scope.resource) == scope
    assert setting.stored.limits == {"rpm": Limit(100, 100, 100, 60), "tpm": Limit(10, 20, 5, 1)}
    assert setting.left_out == 3
    (write,) = setting_writes(NS, setting)
    put = write["Put"]
    assert (put["Item"]["PK"], put["Item"]["SK"], put["Item"]["kind"]) == (pk, sk, "limits")
    assert put["Item"]["config_version"] == 3
    assert put["ExpressionAttributeValues"] == {":version": 3}


@pytest.mark.parametrize(
    ("pk", "sk"),
    [
        ("other/SYSTEM#", "#CONFIG"),
        ("ns/ENTITY#user-1", "#CONFIG"),
        ("ns/RESOURCE#gpt-4", "#META"),
        ("ns/RESOURCE#gpt-4", "#CONFIG#gpt-4"),
        ("ns/SYSTEM#", "#META"),
    ],
)
def test_a_setting_that_nobody_understands_is_refused(pk: str, sk: str) -> None:
    with pytest.raises(UnknownShape):
        decode_setting({"PK": pk, "SK": sk, "l_rpm_cp": 1, "l_rpm_rp": 1}, PREFIX, NOW_MS)


# The version.


def test_a_namespace_without_a_record_is_current() -> None:
    assert decode_version(None) == CURRENT == SchemaVersion(CURRENT_SCHEMA_VERSION)
    assert not CURRENT.is_migrating


def test_a_record_of_the_old_product_counts_as_none() -> None:
    old: Item = {"PK": "ns/SYSTEM#", "SK": "#VERSION", "schema_version": "0.9.0", "updated_at": "2026-01-01"}
    assert decode_version(old) == CURRENT


def test_a_version_is_read_as_it_was_written() -> None:
    version = SchemaVersion(1, migrating_to=4, job_id="j", legacy_prefix="")
    assert decode_version(encode_version(NS, version, NOW_MS)) == version
    assert decode_version(encode_version(NS, CURRENT, NOW_MS)) == CURRENT
    assert version.is_migrating


def test_a_migration_starts_on_what_was_seen() -> None:
    first = start_migration(NS, CURRENT, "j", PREFIX, NOW_MS)
    assert first["ConditionExpression"] == "attribute_not_exists(job_id)"
    assert decode_version(first["Item"]) == SchemaVersion(1, CURRENT_SCHEMA_VERSION, "j", PREFIX)
    again = start_migration(NS, SchemaVersion(1, 4, "failed", PREFIX), "j", PREFIX, NOW_MS)
    assert again["ConditionExpression"] == "job_id = :seen"
    assert again["ExpressionAttributeValues"] == {":seen": "failed"}
