"""The guess: which form to try first."""

from dataclasses import replace

import pytest

from sluice.core import bucket as math
from sluice.core.bucket import Form
from sluice.core.limits import Limit, Source, resolve
from sluice.repository import keys
from sluice.repository.items import Bucket, BucketLimit
from sluice.services.images import ImageCache

NOW = 1_800_000_000_000
LIMITS = resolve([(Source.SYSTEM, {"rpm": Limit(60, 60, 60, 60)})])
KEY = keys.bucket("ns", "e", "r", 0)
DEMAND = {"rpm": 1000}


def image(level_milli: int, version: int = 1, generation: int = 1, expires_at_s: int | None = 5) -> Bucket:
    parameters = LIMITS.parameters["rpm"]
    limits = {"rpm": BucketLimit(parameters, level_milli - math.refill_milli(parameters, NOW), 0)}
    lh = f"{LIMITS.fingerprint}:1"
    return Bucket(KEY, "e", "r", 0, 1, version, generation, lh, False, None, expires_at_s, 1, limits, {})


@pytest.fixture
def images() -> ImageCache:
    return ImageCache()


def form(images: ImageCache, now_ms: int = NOW) -> Form:
    return images.guess(KEY, LIMITS, DEMAND, now_ms).forms["rpm"]


def test_without_an_image_the_bucket_is_taken_for_full(images: ImageCache) -> None:
    assert form(images) is Form.SPEND_FROM_FULL
    assert images.guess(KEY, LIMITS, DEMAND, NOW).expires_at_s is None


def test_an_image_below_full_says_spend(images: ImageCache) -> None:
    images.remember(image(59_999))
    assert form(images) is Form.SPEND
    assert images.guess(KEY, LIMITS, DEMAND, NOW).expires_at_s == 5


def test_time_alone_makes_an_image_say_full(images: ImageCache) -> None:
    images.remember(image(50_000))
    assert form(images, NOW + 10_000) is Form.SPEND
    assert form(images, NOW + 10_001) is Form.SPEND_FROM_FULL


def test_what_fitted_when_the_image_said_full_is_tried_again(images: ImageCache) -> None:
    images.remember(image(50_000))
    assert images.guess(KEY, LIMITS, DEMAND, NOW + 20_000).unsure == {"rpm"}
    images.remember(image(40_000, version=9), {"rpm": Form.SPEND})
    assert form(images, NOW + 60_000) is Form.SPEND
    images.remember(image(40_000, version=10), {"rpm": Form.SPEND_FROM_FULL})
    assert form(images, NOW + 120_000) is Form.SPEND_FROM_FULL


def test_a_guess_is_sure_while_the_image_does_not_say_full(images: ImageCache) -> None:
    images.remember(image(10_000))
    assert images.guess(KEY, LIMITS, DEMAND, NOW).unsure == set()


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
        assert images.guess(KEY, fast, DEMAND, NOW).forms["rpm"] is expected


def test_the_cache_is_bounded() -> None:
    images = ImageCache(size=2)
    made = [replace(image(1_000), key=keys.bucket("ns", f"e{n}", "r", 0)) for n in range(3)]
    for one in made:
        images.remember(one)
    assert [images.knows(one.key) for one in made] == [False, True, True]
