"""A stateful model: whatever is done in whatever order, the product does what one exact bucket per limit would do.

Two processes with caches of their own act on one table; at the product's own points of choice (which shard) a seed
draws. After each step every level of every shard is compared with its exact counterpart, and every answer with what the
exact buckets say: admitted, refused and until when, charged how much. The tolerance is stated and explained in
`exact.py`.
"""

import os
from collections.abc import Mapping
from typing import Any, Final
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from sluice.core import bucket
from sluice.core.bucket import Parameters
from sluice.core.limits import Limit
from sluice.repository import resharding, writes
from sluice.repository.keys import Key
from sluice.repository.requests import UpdateRequest
from sluice.services import configuration, sharding
from sluice.services.chains import AcquireRequest
from tests.simulation.lease_machine import ProductBesideExactBuckets
from tests.simulation.model import NAMESPACE, OF_RESOURCE, RESOURCE, USER, Model

TestProductBesideExactBuckets = ProductBesideExactBuckets.TestCase
TestProductBesideExactBuckets.settings = settings(
    max_examples=int(os.environ.get("SLUICE_MODEL_EXAMPLES", "120")),
    stateful_step_count=30,
    # The same examples everywhere: what another machine finds must be found here too. More of them are others.
    derandomize="SLUICE_MODEL_EXAMPLES" not in os.environ,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def _later(limit: Parameters, balance_milli: int, amount_milli: int, now_ms: int) -> int:
    return _admit_at_ms(limit, balance_milli, amount_milli, now_ms) + 1


def _mints_three_millitokens(*arguments: Any) -> int:
    return _halve(*arguments) + 3


def _twice(key: Key, generation: int, amounts_milli: Mapping[str, int]) -> UpdateRequest:
    return _give_back(key, generation, {name: 2 * amount for name, amount in amounts_milli.items()})


_admit_at_ms, _halve, _give_back = bucket.admit_at_ms, resharding._halve, writes.give_back
# What each opens, and what then happens; three millitokens and one millisecond are the smallest that can show.
HOLES: Final = {
    "a time is a millisecond late": (bucket, "admit_at_ms", _later),
    "a split mints three millitokens": (resharding, "_halve", _mints_three_millitokens),
    "what comes back comes twice": (writes, "give_back", _twice),
    "a merge does not ask whether shards are full": (sharding, "_is_full", lambda *_arguments: True),
    "limits live for ten minutes": (configuration, "CACHE_MS", 600_000),
    "a spend finds three times the slack": (bucket, "SLACK_MS", 300),
}


@pytest.mark.parametrize("hole", HOLES)
def test_the_model_notices(hole: str) -> None:
    looked_for = settings(
        max_examples=2_000,
        stateful_step_count=30,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    with patch.object(*HOLES[hole]), pytest.raises(AssertionError):
        run_state_machine_as_test(ProductBesideExactBuckets, settings=looked_for)


def test_shards_under_different_limits_are_not_merged() -> None:
    """Found by the model: only one of two was moved to the new limits, and both are full."""
    model = Model(0, processes=1, chained=False)
    (process,) = model.processes
    model.put_limits(process, OF_RESOURCE, {"rpm": Limit(10, 10, 10, 1), "tpm": Limit(10, 10, 10, 1)})
    process.acquire.acquire(AcquireRequest(NAMESPACE, USER, RESOURCE, {"rpm": 1}))
    assert process.buckets.sharding.split(model.images_of(USER)[0])
    model.put_limits(process, OF_RESOURCE, {"rpm": Limit(20, 20, 20, 1)})
    process.acquire.acquire(AcquireRequest(NAMESPACE, USER, RESOURCE, {"rpm": 1}))
    model.advance(10_000)
    assert len({image.fingerprint for image in model.images_of(USER).values()}) == 2
    assert not process.buckets.sharding.merge(model.images_of(USER)[0])
    assert len(model.images_of(USER)) == 2
