"""The guess: which form to try first."""

from dataclasses import replace

import pytest

from sluice.core import bucket as math
from sluice.core.bucket import Form
from sluice.core.limits import Limit, LimitSet, Source, resolve
from sluice.repository import keys
from sluice.repository.items import Bucket, BucketLimit
from sluice.repository.writes import Target
from sluice.services.images import ImageCache

NOW = 1_800_000_000_000
LIMITS = resolve([(Source.SYSTEM, {"rpm": Limit(60, 60, 60, 60)})])
KEY = keys.bucket("ns", "e", "r", 0)
DEMAND = {"rpm": 1000}


def image(level_milli: int, version: int = 1, generation: int = 1, expires_at_s: int | None = 5) -> Bucket:
    parameters = LIMITS.parameters["rpm"]
    limits = {"rpm": BucketLimit(parameters, level_milli - math.refill_milli(parameters, NOW), 0)}
    return Bucket(
        key=KEY,
        namespace="ns",
        entity="e",
        resource="r",
        call_fingerprint=None,
        shard=0,
        shard_count=1,
        version=version,
        generation=generation,
        limits_hash=f"{LIMITS.fingerprint}:1",
        cascade=False,
        parent=None,
        expires_at_s=expires_at_s,
        created_at_ms=1,
        limits=limits,
        retired_consumed_milli={},
    )


def target(limits: LimitSet = LIMITS) -> Target:
    return Target(KEY, f"{limits.fingerprint}:1", limits.parameters, limits.fill_time_ms, limits.expires)


@pytest.fixture
def images() -> ImageCache:
    return ImageCache()


def form(images: ImageCache, now_ms: int = NOW) -> Form:
    return images.guess(target(), DEMAND, now_ms).forms["rpm"]


def test_without_an_image_the_bucket_is_taken_for_full(images: ImageCache) -> None:
    assert form(images) is Form.SPEND_FROM_FULL
    assert images.guess(target(), DEMAND, NOW).expires_at_s is None


def test_an_image_below_full_says_spend(images: ImageCache) -> None:
    images.remember(image(59_999))
    assert form(images) is Form.SPEND
    assert images.guess(target(), DEMAND, NOW).expires_at_s == 5


def test_time_alone_makes_an_image_say_full(images: ImageCache) -> None:
    images.remember(image(50_000))
    assert form(images, NOW + 10_000) is Form.SPEND
    assert form(images, NOW + 10_001) is Form.SPEND_FROM_FULL


def test_what_fitted_when_the_image_said_full_is_tried_again(images: ImageCache) -> None:
    images.remember(image(50_000))
    assert images.guess(target(), DEMAND, NOW + 20_000).unsure == {"rpm"}
    images.remember(image(40_000, version=9), {"rpm": Form.SPEND})
    assert form(images, NOW + 60_000) is Form.SPEND
    images.remember(image(40_000, version=10), {"rpm": Form.SPEND_FROM_FULL})
    assert form(images, NOW + 120_000) is Form.SPEND_FROM_FULL


def test_a_guess_is_sure_while_the_image_does_not_say_full(images: ImageCache) -> None:
    images.remember(image(10_000))
    assert images.guess(target(), DEMAND, NOW).unsure == set()


def test_an_older_answer_does_not_replace_a_newer_image(images: ImageCache) -> None:
    images.remember(image(60_001, version=5))
    images.remember(image(1_000, version=4))
    assert form(images) is Form.SPEND_FROM_FULL
    # A bucket that was made again is another one, whatever the clock of its maker said.
    images.remember(image(1_000, version=1, generation=0))
    assert form(images) is Form.SPEND


def test_an_image_under_other_limits_says_nothing(images: ImageCache) -> None:
    images.remember(replace(image(1_000), limits_hash="other:1"))
    assert form(images) is Form.SPEND_FROM_FULL


def test_slack_keeps_a_busy_bucket_from_flapping(images: ImageCache) -> None:
    fast = resolve([(Source.SYSTEM, {"rpm": Limit(1000, 1000, 1000, 1)})])
    parameters = fast.parameters["rpm"]
    at_top = math.top_milli(parameters, NOW)
    lh = f"{fast.fingerprint}:1"
    for above, expected in ((100_000, Form.SPEND), (100_001, Form.SPEND_FROM_FULL)):
        limits = {"rpm": BucketLimit(parameters, at_top + above, 0)}
        images.remember(replace(image(0), limits_hash=lh, limits=limits))
        assert images.guess(target(fast), DEMAND, NOW).forms["rpm"] is expected


def test_the_cache_is_bounded() -> None:
    images = ImageCache(size=2)
    made = [replace(image(1_000), key=keys.bucket("ns", f"e{n}", "r", 0)) for n in range(3)]
    for one in made:
        images.remember(one)
    assert [images.knows(one.key) for one in made] == [False, True, True]


def test_writes_are_counted_between_images_a_second_apart(images: ImageCache) -> None:
    assert not images.remember(image(0, version=1), None, NOW)
    assert not images.remember(image(0, version=9_000), None, NOW + 999), "too soon to tell"
    assert images.remember(image(0, version=801), None, NOW + 1_000)
    assert not images.remember(image(0, version=1_599), None, NOW + 2_000), "798 in a second"
    assert images.remember(image(0, version=3_199), None, NOW + 4_000), "1600 in two seconds"


def test_another_incarnation_is_counted_anew(images: ImageCache) -> None:
    images.remember(image(0, version=1), None, NOW)
    assert not images.remember(image(0, version=5_000, generation=2), None, NOW + 1_000)
    assert not images.remember(image(0, version=9_000, generation=2), None, NOW - 1_000), "a clock that was set back"


def test_the_shards_of_a_bucket_are_learned_and_forgotten(images: ImageCache) -> None:
    assert images.counts(KEY) == {}
    images.remember(replace(image(0), shard_count=2))
    images.remember(replace(image(0), key=keys.bucket("ns", "e", "r", 1), shard=1, shard_count=4))
    assert images.counts(KEY) == {0: 2, 1: 4}
    images.learn(KEY, 3, 4)
    assert images.counts(KEY) == {0: 2, 1: 4, 3: 4}
    images.remember(replace(image(0, version=9), shard_count=1))
    assert images.counts(KEY) == {}
