"""Zero lost, zero doubled, whatever the stream does. SLUICE_DELIVERIES says how many records are delivered in all."""

import os
from collections.abc import Callable
from typing import Final

import pytest

from sluice.core.signals import Signal
from tests.simulation.conftest import DELIVERED
from tests.simulation.deliveries import BATCH_MOST, Deliveries, difference
from tests.simulation.stream_mutants import STREAM_MUTANTS, StreamMutant, caught

# What one core delivers in half a minute.
WANTED: Final = int(os.environ.get("SLUICE_DELIVERIES", "150000"))
FIRST: Final = int(os.environ.get("SLUICE_DELIVERIES_FIRST", "0"))
# Few enough that the workers end at the same time.
AT_ONCE: Final = max(1, min(WANTED, 12_500))
PARTS: Final = -(-WANTED // AT_ONCE)
SEEDS_OF_A_PART: Final = 1_000_000


@pytest.mark.parametrize("part", range(PARTS))
def test_snapshots_equal_what_was_consumed(part: int, record_property: Callable[[str, object], None]) -> None:
    delivered = histories = 0
    seed = (FIRST + part) * SEEDS_OF_A_PART
    while delivered < AT_ONCE:
        deliveries = Deliveries(seed)
        deliveries.run()
        found = difference(deliveries)
        assert found is None, f"seed {seed}: {found}"
        delivered += deliveries.delivered
        histories += 1
        seed += 1
    record_property(DELIVERED, (histories, delivered))


def test_everything_that_can_go_wrong_does() -> None:
    """Else the deliveries show less than they seem to."""
    counts = {
        loses: [deliveries for seed in range(30) if (deliveries := Deliveries(seed)).loses is loses]
        for loses in (True, False)
    }
    for deliveries in (*counts[True], *counts[False]):
        deliveries.run()
    for of_kind in counts.values():
        met = sum((deliveries.meter.counts for deliveries in of_kind), start=type(of_kind[0].meter.counts)())
        records = sum(len(deliveries.history.records) for deliveries in of_kind)
        assert sum(deliveries.delivered for deliveries in of_kind) > 1.2 * records
        for signal in (Signal.STREAM_FAILURES, Signal.STORE_AMBIGUOUS_WRITES, Signal.STORE_THROTTLES):
            assert met[signal], signal
    assert sum(deliveries.meter.counts[Signal.STREAM_GAPS] for deliveries in counts[True])
    assert max(len(deliveries.history.records) for deliveries in counts[True]) > 2 * BATCH_MOST


@pytest.mark.parametrize("mutant", STREAM_MUTANTS, ids=lambda mutant: mutant.name)
def test_another_way_to_count_is_caught(mutant: StreamMutant) -> None:
    assert caught(mutant) is not None
