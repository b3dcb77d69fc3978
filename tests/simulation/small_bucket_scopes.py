"""Small scopes of one bucket: taken from, moved to other limits, split and merged."""

from collections.abc import Iterator
from typing import Final

from sluice.core.limits import Limit, Scope
from tests.simulation.exhaustive import SmallScope
from tests.simulation.invariants import (
    buckets_begin_full,
    charged_exactly,
    everything_passes_again,
    levels_stay_above_zero,
    nothing_is_lost,
    nothing_is_minted,
    within_the_rate,
)
from tests.simulation.limit_changes import levels_survive_a_rebase
from tests.simulation.refused import refused_for_a_reason
from tests.simulation.scenario import Invariant
from tests.simulation.scenarios.leases import closed_as_told, leases_add_up
from tests.simulation.small_invariants import (
    changes_are_audited,
    closes_once,
    every_item_decodes,
    keys_are_charged_once,
    nothing_returns_elsewhere,
    one_match_wins,
    others_are_charged_exactly,
    rebased_once,
    resharding_fills_nothing,
    shards_are_complete,
    splits_leave_no_debt,
)
from tests.simulation.small_programs import (
    OF_RESOURCE,
    SLOW,
    USER,
    both,
    delete_limits,
    merge,
    put_if_match,
    put_limits,
    split,
    take,
)
from tests.simulation.small_setups import entering, having, losing
from tests.simulation.turns import LostAnswer
from tests.simulation.world import RESOURCE

HOUR_MS: Final = 3_600_000
WIDE: Final = {"rpm": Limit(10, 10, 100, 1)}
FAST: Final = {"rpm": Limit(100, 100, 100, 1)}
LOWER: Final = {"rpm": Limit(4, 4, 4, 60)}
RAISED: Final = {"rpm": Limit(20, 20, 40, 60)}
ADDED: Final = {"rpm": Limit(10, 10, 10, 60), "tpm": Limit(50, 50, 50, 60)}
TPM_ONLY: Final = {"tpm": Limit(50, 50, 50, 60)}
OWN: Final = Scope(USER, RESOURCE)

ITEMS: Final[tuple[Invariant, ...]] = (
    every_item_decodes,
    shards_are_complete,
    changes_are_audited,
    splits_leave_no_debt,
    resharding_fills_nothing,
)
BUCKETS: Final[tuple[Invariant, ...]] = (buckets_begin_full, nothing_is_minted, nothing_is_lost)
ACQUIRES: Final[tuple[Invariant, ...]] = (
    *ITEMS,
    *BUCKETS,
    charged_exactly,
    nothing_returns_elsewhere,
    levels_stay_above_zero,
    within_the_rate,
    refused_for_a_reason,
)
REBASES: Final = (*(one for one in ACQUIRES if one is not refused_for_a_reason), levels_survive_a_rebase)
LEASES: Final = (*ITEMS, *BUCKETS, closes_once, closed_as_told, leases_add_up)
KEYS: Final = (
    *ITEMS,
    *BUCKETS,
    levels_stay_above_zero,
    within_the_rate,
    keys_are_charged_once,
    others_are_charged_exactly,
)
HOLES: Final = (*ITEMS, *BUCKETS, charged_exactly, levels_stay_above_zero, everything_passes_again)
"""Where a bucket is made anew its burst is granted anew."""
OF_A: Final = (LostAnswer("a", 1), LostAnswer("a", 2))


def one_bucket() -> Iterator[SmallScope]:
    three = (take(1, 1, 1),) * 3
    yield SmallScope("take-full", having(SLOW), three, ACQUIRES, entering(SLOW))
    yield SmallScope("take-nearly-empty", having(SLOW, taken=8), three, ACQUIRES, entering(SLOW))
    yield SmallScope("take-last-two", having(SLOW, taken=5), (take(2, 1, 0),) * 3, ACQUIRES, entering(SLOW))
    yield SmallScope("take-overflowed", having(SLOW, taken=5), three, ACQUIRES, entering(SLOW), later_ms=HOUR_MS)
    yield SmallScope(
        "take-at-the-edge", having(WIDE, taken=4), (take(3, 2, 1),) * 3, ACQUIRES, entering(WIDE), tick_ms=7
    )
    yield SmallScope(
        "take-while-it-refills", having(WIDE, taken=10), (take(1, 1, 1),) * 3, ACQUIRES, entering(WIDE), tick_ms=9
    )
    yield SmallScope("take-all-of-it", having(SLOW), (take(10),) * 3, ACQUIRES, entering(SLOW))
    yield SmallScope("take-cold", having(SLOW, taken=7), (take(2, 0),) * 3, ACQUIRES, entering(SLOW, warm=False))
    yield SmallScope("create-cold", having(SLOW, bucket=False), (take(4, 1),) * 3, ACQUIRES, entering(SLOW, warm=False))
    yield SmallScope("create-warm", having(SLOW, bucket=False), (take(3, 1),) * 3, ACQUIRES, entering(SLOW))
    yield SmallScope(
        "create-lost", having(SLOW, bucket=False), (take(4), take(4, 1), take(3)), ACQUIRES, entering(SLOW), lost=OF_A
    )
    yield SmallScope(
        "take-lost", having(SLOW, taken=5), (take(1, 1), take(2, 1), take(2)), ACQUIRES, entering(SLOW), lost=OF_A
    )
    yield SmallScope(
        "take-nothing", having(SLOW, taken=9), (take(0, 1, 0), take(1, 0, 0), take(0, 0, 1)), ACQUIRES, entering(SLOW)
    )


def changed_limits() -> Iterator[SmallScope]:
    both_takes = (take(2, 1, 1), take(1, 1, 1))
    for name, new, widest in (
        ("lowered", LOWER, SLOW),
        ("raised", RAISED, RAISED),
        ("added", ADDED, SLOW),
    ):
        changed = (*both_takes, put_limits(new))
        holds = (*REBASES, rebased_once, everything_passes_again)
        yield SmallScope(f"limit-{name}", having(SLOW, taken=5), changed, REBASES, entering(widest))
        changed = (take(1, 1), both(put_limits(new), take(2)), take(1, 1))
        yield SmallScope(f"rebase-{name}", having(SLOW, taken=3), changed, holds, entering(widest), turns=7)
    removed = (take(1, 1, 1), both(put_limits(SLOW), take(2)))
    yield SmallScope(
        "limit-removed", having(ADDED, taken=5), removed, (*REBASES, rebased_once), entering(SLOW), turns=7
    )
    own = (take(1, 1, 1), both(delete_limits(OWN), put_limits(SLOW), take(2)))
    yield SmallScope("own-limits-removed", having(SLOW, taken=5, own=True), own, REBASES, entering(SLOW), turns=9)
    yield SmallScope(
        "rebase-lost",
        having(SLOW, taken=3),
        (both(put_limits(LOWER), take(1)), take(1, 1), take(1)),
        (*REBASES, rebased_once),
        entering(SLOW),
        turns=7,
        lost=(*OF_A, LostAnswer("a", 3)),
    )
    yield SmallScope(
        "rebase-both-ways",
        having(SLOW, taken=3),
        (both(put_limits(LOWER), take(1)), both(put_limits(RAISED), take(1)), take(1)),
        REBASES,
        entering(RAISED),
        turns=6,
    )
    match = (put_if_match(1, LOWER), put_if_match(1, RAISED), put_if_match(1, ADDED))
    told = (*ITEMS, one_match_wins)
    yield SmallScope("if-match", having(SLOW, bucket=False), match, told, lost=OF_A)
    put = (put_limits(LOWER), put_limits(RAISED), put_limits(ADDED))
    yield SmallScope("put-put", having(SLOW, bucket=False), put, ITEMS, lost=OF_A)
    yield SmallScope("put-first", having(SLOW, bucket=False, own=True), put, ITEMS)
    yield SmallScope("put-delete", having(SLOW, bucket=False), (put[0], put[1], delete_limits(OF_RESOURCE)), ITEMS)


def resharding() -> Iterator[SmallScope]:
    enter = entering(SLOW)
    yield SmallScope("take-split", having(SLOW, taken=2), (take(1, 1, 1), take(2, 1, 1), split(0)), ACQUIRES, enter)
    yield SmallScope("take-split-full", having(SLOW), (take(3, 1), take(2, 1, 1), split(0)), ACQUIRES, enter)
    yield SmallScope("take-split-empty", having(SLOW, taken=7), (take(2, 0), take(1, 1, 0), split(0)), ACQUIRES, enter)
    yield SmallScope("take-all-split", having(SLOW, taken=1), (take(9, 0), take(1, 1), split(0)), ACQUIRES, enter)
    yield SmallScope(
        "take-split-fast",
        having(FAST, taken=50),
        (take(30, 10), take(15, 10), split(0)),
        ACQUIRES,
        entering(FAST),
        tick_ms=3,
    )
    yield SmallScope("split-split", having(SLOW, taken=4), (split(0, 0), split(0), take(1, 1, 1)), ACQUIRES, enter)
    yield SmallScope(
        "split-shards", having(SLOW, taken=2, splits=(0,)), (split(0), split(1), take(1, 2, 1)), ACQUIRES, enter
    )
    yield SmallScope(
        "split-lost", having(SLOW, taken=4), (split(0), split(0), take(1, 1)), ACQUIRES, enter, lost=OF_A[:1]
    )
    yield SmallScope(
        "split-lowered",
        having(SLOW, taken=3),
        (split(0), both(put_limits(LOWER), take(1)), take(1, 1)),
        REBASES,
        enter,
        turns=7,
    )
    yield SmallScope(
        "split-raised",
        having(SLOW, taken=3),
        (split(0), both(put_limits(RAISED), take(1)), take(1)),
        REBASES,
        entering(RAISED),
        turns=8,
    )
    merged = having(SLOW, taken=2, splits=(0,))
    yield SmallScope("take-merge", merged, (take(1, 1, 1), take(2, 1), merge()), ACQUIRES, enter, later_ms=HOUR_MS)
    yield SmallScope("merge-merge", merged, (merge(), merge(), take(1, 1, 1)), ACQUIRES, enter, later_ms=HOUR_MS)
    yield SmallScope("merge-split", merged, (merge(), split(0), take(1, 1, 1)), ACQUIRES, enter, later_ms=HOUR_MS)
    yield SmallScope("merge-split-one", merged, (merge(), split(1), take(2, 1, 1)), ACQUIRES, enter, later_ms=HOUR_MS)
    yield SmallScope(
        "merge-raised",
        merged,
        (merge(), both(put_limits(RAISED), take(1)), take(1)),
        REBASES,
        entering(RAISED),
        later_ms=HOUR_MS,
        turns=8,
    )
    yield SmallScope(
        "merge-lost", merged, (merge(), take(1, 1), take(2)), ACQUIRES, enter, later_ms=HOUR_MS, lost=OF_A[:1]
    )
    yield SmallScope(
        "gather-take",
        having(SLOW, taken=2, splits=(0,)),
        (take(7), take(1, 1, 1), take(2, 0)),
        ACQUIRES,
        enter,
        turns=4,
    )
    yield SmallScope(
        "gather-gather", having(SLOW, splits=(0,)), (take(7), take(6), take(1, 1)), ACQUIRES, enter, turns=4
    )
    yield SmallScope(
        "gather-split", having(SLOW, taken=1, splits=(0,)), (take(7), take(2, 1), split(1)), ACQUIRES, enter, turns=4
    )
    yield SmallScope("gather-merge", merged, (take(7), take(1, 1), merge()), ACQUIRES, enter, later_ms=HOUR_MS, turns=4)
    yield SmallScope(
        "gather-lost",
        having(SLOW, splits=(0,)),
        (take(7), take(2), take(1, 1)),
        ACQUIRES,
        enter,
        turns=4,
        lost=OF_A[:1],
    )


def holes() -> Iterator[SmallScope]:
    """What is left of a bucket goes once, and nothing of what was made in its place goes with it."""
    enter = entering(SLOW)
    half = losing(having(SLOW, taken=2, splits=(0,)), 1)
    quarters = having(SLOW, taken=2, splits=(0, 0, 1))
    yield SmallScope("hole-take", half, (take(7), take(1, 1)), HOLES, enter, turns=9)
    yield SmallScope("hole-take-take", half, (take(7), take(6)), HOLES, enter, turns=7)
    yield SmallScope("hole-merge", half, (take(7), merge()), HOLES, enter, turns=8)
    yield SmallScope("hole-split", half, (take(7), split(0)), HOLES, enter, turns=8)
    yield SmallScope("hole-lost", half, (take(7), take(6)), HOLES, enter, turns=6, lost=OF_A[:1])
    yield SmallScope("hole-inside", losing(quarters, 1), (take(7), split(3)), HOLES, enter, turns=8)
    yield SmallScope("hole-merge-merge", losing(quarters, 3, 2), (merge(), merge(), take(7)), HOLES, enter, turns=4)
