"""Splitting and merging, as requests: nothing is minted, and no bound is crossed."""

import re

from hypothesis import given
from hypothesis import strategies as st

from sluice.core import bucket as math
from sluice.core import shards
from sluice.core.bucket import Parameters
from sluice.repository import keys, resharding
from sluice.repository.items import Bucket, BucketLimit, decode_bucket
from sluice.repository.requests import UpdateRequest

NOW = 1_800_000_000_000
parameters = st.builds(
    Parameters,
    capacity_milli=st.integers(1, 10**12).map(lambda tokens: tokens * 1_000),
    burst_milli=st.integers(1, 10**12).map(lambda tokens: tokens * 1_000),
    refill_amount_milli=st.integers(1_000, 10**15),
    refill_period_ms=st.integers(1_000, 31_536_000_000),
)


def bucket(limit: Parameters, level_milli: int, shard: int = 0, count: int = 1) -> Bucket:
    mine = shards.shard_parameters(limit, shard, count)
    return Bucket(
        key=keys.bucket("ns", "e", "r", shard),
        namespace="ns",
        entity="e",
        resource="r",
        call_fingerprint=None,
        shard=shard,
        shard_count=count,
        version=7,
        generation=5,
        limits_hash=f"f:{count}",
        cascade=True,
        parent="p",
        expires_at_s=9 if count == 1 else None,
        created_at_ms=1,
        limits={"rpm": BucketLimit(mine, level_milli - math.refill_milli(mine, NOW), 3_000)},
        retired_consumed_milli={"old": 1},
    )


def value(request: UpdateRequest, attribute: str, pattern: str, part: str) -> int:
    """The value that goes with an attribute in one expression of a compacted request."""
    alias = {name: alias for alias, name in request["ExpressionAttributeNames"].items()}[attribute]
    text = request["UpdateExpression"] if part == "update" else request["ConditionExpression"]
    match = re.search(pattern.replace("@", re.escape(alias)), text)
    assert match is not None, (pattern, text)
    found = request["ExpressionAttributeValues"][match[1]]
    assert isinstance(found, int)
    return found


@given(parameters, st.integers(-(10**15), 10**15), st.sampled_from([(0, 1), (0, 2), (1, 2), (5, 8)]))
def test_a_split_gives_both_halves_and_mints_nothing(
    limit: Parameters, level_milli: int, place: tuple[int, int]
) -> None:
    image = bucket(limit, level_milli, *place)
    seen = image.limits["rpm"]
    donor, child_put = resharding.split(image, 11, NOW)
    child = decode_bucket(child_put["Put"]["Item"])
    assert (child.shard, child.shard_count, child.generation) == (place[0] + place[1], 2 * place[1], 11)
    assert (child.limits["rpm"].consumed_milli, child.expires_at_s, child.retired_consumed_milli) == (0, None, {})
    request = donor["Update"]
    kept, given_away = shards.halves(seen.parameters)
    if seen.balance_milli > math.top_milli(seen.parameters, NOW):
        assert value(request, "b_rpm_tk", "@ = (:\\d+)", "update") == math.top_milli(kept, NOW)
        assert child.limits["rpm"].balance_milli == math.top_milli(given_away, NOW)
        return
    moved = value(request, "b_rpm_tk", "@ (:\\d+)", "update")
    assert -moved == child.limits["rpm"].balance_milli
    least = value(request, "b_rpm_tk", "@ BETWEEN (:\\d+)", "condition")
    most = value(request, "b_rpm_tk", "@ BETWEEN :\\d+ AND (:\\d+)", "condition")
    assert least <= most, "crossed bounds are an error in DynamoDB"
    before = math.level_milli(seen.parameters, seen.balance_milli, NOW)
    after = math.level_milli(kept, seen.balance_milli + moved, NOW) + math.level_milli(
        given_away, child.limits["rpm"].balance_milli, NOW
    )
    assert before - 3 <= after <= before, "at most a rounding of each half and of the burst is still to come"


@given(parameters, st.sampled_from([2, 4, 16]))
def test_a_merge_is_whole_and_full(limit: Parameters, count: int) -> None:
    images = [bucket(limit, shards.share(limit.burst_milli, shard, count), shard, count) for shard in range(count)]
    assert resharding.whole_parameters(images[0]) == {"rpm": limit}
    first, *others = resharding.merge(images[::-1], 12, NOW)
    assert value(first["Update"], "b_rpm_tk", "@ = (:\\d+)", "update") == math.top_milli(limit, NOW)
    assert sorted(str(write["Delete"]["Key"]["PK"]) for write in others) == sorted(image.key.pk for image in images[1:])
    assert all(write["Delete"]["ConditionExpression"] == "v = :v AND gen = :gen" for write in others)


def test_a_merge_of_what_never_expires_leaves_no_ttl() -> None:
    limit = Parameters(1_000, 1_000, 1_000, 1_000)
    images = [bucket(limit, 500, shard, 2) for shard in range(2)]
    assert "REMOVE #ttl" in resharding.merge(images, None, NOW)[0]["Update"]["UpdateExpression"]
    assert "REMOVE" not in resharding.merge(images, 12, NOW)[0]["Update"]["UpdateExpression"]


def test_a_removal_is_of_every_shard_as_it_was_seen() -> None:
    limit = Parameters(100_000, 100_000, 1_000, 1_000)
    images = [bucket(limit, 25_000, shard, 4) for shard in (1, 3, 0, 2)]
    removed = resharding.remove(images)
    assert [write["Delete"]["Key"]["PK"] for write in removed] == [image.key.pk for image in images]
    for write in removed:
        assert write["Delete"]["ConditionExpression"] == "gen = :gen AND lh = :lh"
        assert write["Delete"]["ExpressionAttributeValues"] == {":gen": 5, ":lh": "f:4"}


def test_what_is_missing_must_still_be_missing_when_the_rest_is_removed() -> None:
    """Else it was there all the time, or somebody is splitting into it just then."""
    limit = Parameters(100_000, 100_000, 1_000, 1_000)
    for there, missing in (((2, 1, 0), [3]), ((0,), [1, 2]), ((3,), [0]), ((0, 1, 3), [2])):
        images = [bucket(limit, 25_000, shard, 4) for shard in there]
        assert resharding.missing_shards(images) == set(missing)
        checks = [write["ConditionCheck"] for write in resharding.remove(images)[len(images) :]]
        assert [check["Key"]["PK"] for check in checks] == [keys.bucket("ns", "e", "r", one).pk for one in missing]
        assert {check["ConditionExpression"] for check in checks} == {"attribute_not_exists(PK)"}


def test_nothing_is_missing_of_no_bucket_and_of_a_whole_one() -> None:
    limit = Parameters(100_000, 100_000, 1_000, 1_000)
    assert resharding.missing_shards([]) == set()
    assert resharding.missing_shards([bucket(limit, 25_000, shard, 4) for shard in range(4)]) == set()
