"""The small scopes: a table of little programs on little buckets. Each is run in every order."""

from collections.abc import Iterator
from typing import Final

from sluice.core.limits import Limit, LimitsByName, Scope
from sluice.services.entities import EntityChange
from tests.simulation.exhaustive import Setup, SmallScope, SmallWorld
from tests.simulation.invariants import (
    levels_stay_above_zero,
    within_the_rate,
)
from tests.simulation.reshaping import resharding_loses_nothing
from tests.simulation.scenarios.expiry import only_the_full_expire
from tests.simulation.scenarios.leases import closed_as_told
from tests.simulation.small_bucket_scopes import (
    ACQUIRES,
    BUCKETS,
    HOUR_MS,
    ITEMS,
    KEYS,
    LEASES,
    LOWER,
    OF_A,
    changed_limits,
    holes,
    one_bucket,
    resharding,
)
from tests.simulation.small_invariants import (
    closes_once,
    families_are_sound,
    legacy_adds_up,
    legacy_items_decode,
    namespaces_are_apart,
    nothing_is_left,
    nothing_returns_elsewhere,
    registered_once,
)
from tests.simulation.small_programs import (
    NAMESPACE,
    OF_RESOURCE,
    ORG,
    OTHER_NAMESPACE,
    SLOW,
    USER,
    adjust,
    both,
    delete_entity,
    legacy_take,
    merge,
    put_entity,
    put_limits,
    release,
    settle,
    split,
    sweep,
    take,
    take_in,
    take_registered,
    take_under,
)
from tests.simulation.small_setups import below_org, entering, having, leased, legacy_bucket, losing
from tests.simulation.world import RESOURCE, Host


def scopes() -> Iterator[SmallScope]:
    yield from one_bucket()
    yield from changed_limits()
    yield from resharding()
    yield from holes()
    yield from chains()
    yield from leases()
    yield from idempotency()
    yield from entities()
    yield from others()


def chains() -> Iterator[SmallScope]:
    tight = {"rpm": Limit(3, 3, 3, 60)}
    enter = entering(SLOW, of_org=tight)
    yield SmallScope("chain", below_org(SLOW, tight), (take(2), take(1), take(1, entity=ORG)), ACQUIRES, enter, turns=5)
    yield SmallScope(
        "chain-refused", below_org(SLOW, tight, org_taken=2), (take(2), take(1, 1)), ACQUIRES, enter, turns=5
    )
    yield SmallScope(
        "chain-gives-back",
        below_org(tight, tight, org_taken=2),
        (take(2), take(1), take(1, entity=ORG)),
        ACQUIRES,
        entering(tight, of_org=tight),
        turns=4,
    )
    yield SmallScope(
        "chain-lost", below_org(SLOW, tight, org_taken=1), (take(2), take(1)), ACQUIRES, enter, turns=4, lost=OF_A
    )
    yield SmallScope(
        "chain-split", below_org(SLOW, tight, org_taken=2), (take(2), both(split(0), take(1))), ACQUIRES, enter, turns=5
    )
    yield SmallScope(
        "chain-gives-back-anew",
        _owned(below_org(SLOW, tight, org_taken=2)),
        (take(2), both(delete_entity(), take(1))),
        (*ITEMS, *BUCKETS, levels_stay_above_zero, within_the_rate, nothing_returns_elsewhere),
        enter,
        turns=18,
    )


def leases() -> Iterator[SmallScope]:
    enter = entering(SLOW, leased(4))
    bucket = having(SLOW, taken=2)
    yield SmallScope(
        "settle-settle",
        bucket,
        (both(settle(2), take(1)), both(settle(2), take(0)), both(settle(3), take(1))),
        LEASES,
        enter,
    )
    yield SmallScope("settle-more", bucket, (settle(7), both(settle(7), take(0)), take(1, 1, 0)), LEASES, enter)
    yield SmallScope(
        "settle-release", bucket, (both(settle(2, 2), take(1)), both(release(2), take(1)), take(1, 1)), LEASES, enter
    )
    yield SmallScope("adjust-settle", bucket, (adjust(2, -1), settle(3), adjust(-1, 2)), LEASES, enter)
    yield SmallScope("adjust-into-debt", bucket, (adjust(9, -3), take(2, 0), adjust(-1, 2)), LEASES, enter)
    yield SmallScope(
        "adjust-one-key",
        bucket,
        (both(adjust(2, key="k"), take(1)), both(adjust(2, key="k"), release()), both(adjust(1, key="k"), adjust(1))),
        LEASES,
        enter,
    )
    yield SmallScope(
        "adjust-rebase", bucket, (adjust(3, -2), both(put_limits(LOWER), take(1)), release()), LEASES, enter, turns=7
    )
    yield SmallScope("adjust-split", bucket, (adjust(3, -2), split(0), release()), LEASES, enter)
    yield SmallScope(
        "release-split", bucket, (release(), split(0), take(1, 1)), (*LEASES, resharding_loses_nothing), enter
    )
    yield SmallScope("settle-split-take", bucket, (settle(6), split(0), take(1, 1, 1)), LEASES, enter)
    yield SmallScope("settle-lost", bucket, (both(settle(2), take(1)), release(), take(1, 1)), LEASES, enter, lost=OF_A)
    yield SmallScope("adjust-lost", bucket, (adjust(3, 1), settle(2), adjust(1)), LEASES, enter, lost=OF_A)
    yield SmallScope(
        "release-merge",
        having(SLOW, splits=(0,)),
        (release(), merge(), take(1, 1)),
        (*ITEMS, *BUCKETS, closes_once, closed_as_told),
        entering(SLOW, leased(4), _an_hour),
    )
    yield SmallScope(
        "settle-merge",
        having(SLOW, splits=(0,)),
        (settle(6), merge(), take(1, 1)),
        (*ITEMS, *BUCKETS, closes_once, closed_as_told),
        entering(SLOW, leased(4), _an_hour),
    )


def idempotency() -> Iterator[SmallScope]:
    enter = entering(SLOW)
    bucket = having(SLOW, taken=5)
    yield SmallScope(
        "key-key",
        bucket,
        (both(take_under("k", 2), take(1)), take_under("k", 2, 2), both(take_under("k", 2), take(1))),
        KEYS,
        enter,
    )
    yield SmallScope(
        "key-other-body",
        bucket,
        (both(take_under("k", 2), take(1)), both(take_under("k", 3), take(1)), take_under("k", 2)),
        KEYS,
        enter,
    )
    yield SmallScope("key-take", bucket, (take_under("k", 3, 3), take(1, 1, 1), take(1, 0)), KEYS, enter, turns=4)
    yield SmallScope(
        "key-create", having(SLOW, bucket=False), (take_under("k", 3), take_under("k", 3), take(2)), KEYS, enter
    )
    yield SmallScope(
        "key-lost",
        bucket,
        (take_under("k", 2), both(take_under("k", 2), take(1)), take(1, 1)),
        KEYS,
        enter,
        lost=OF_A,
        turns=4,
    )
    yield SmallScope(
        "key-split", bucket, (take_under("k", 2), both(take_under("k", 2), take(1)), split(0)), KEYS, enter, turns=4
    )
    yield SmallScope(
        "key-rebase", bucket, (take_under("k", 2, 2), both(put_limits(LOWER), take(1)), take(1)), KEYS, enter, turns=8
    )


def entities() -> Iterator[SmallScope]:
    known = having(SLOW, bucket=False)
    tight = {"rpm": Limit(3, 3, 3, 60)}

    def org_only(world: SmallWorld, host: Host) -> None:
        known(world, host)
        host.limits.put(NAMESPACE, Scope(ORG, RESOURCE), tight)
        host.entities.put(NAMESPACE, ORG, EntityChange())

    registering = (take_registered(1), take_registered(2))
    cold = entering(SLOW, warm=False, of_org=tight)
    registered = (*ACQUIRES, registered_once)
    yield SmallScope("register-register", org_only, registering, registered, cold, turns=5)
    yield SmallScope("register-lost", org_only, registering, registered, cold, turns=4, lost=OF_A)
    removing = (delete_entity(), take(1, 1), take(2))
    removed = (*ITEMS, *BUCKETS, levels_stay_above_zero, nothing_is_left)
    owned = _owned(having(SLOW, taken=2))
    yield SmallScope("delete-take", owned, removing, removed, entering(SLOW), turns=12)
    yield SmallScope(
        "delete-split", _owned(having(SLOW, taken=2)), (delete_entity(), split(0)), removed, entering(SLOW), turns=16
    )
    halves = _owned(having(SLOW, taken=2, splits=(0,)))
    yield SmallScope("delete-halves-take", halves, (delete_entity(), take(1, 7)), removed, entering(SLOW), turns=14)
    yield SmallScope("delete-halves-split", halves, (delete_entity(), split(1)), removed, entering(SLOW), turns=14)
    yield SmallScope(
        "delete-halves-merge",
        halves,
        (delete_entity(), merge()),
        removed,
        entering(SLOW),
        later_ms=HOUR_MS,
        turns=14,
    )
    yield SmallScope("delete-hole", losing(halves, 1), (delete_entity(), take(7)), removed, entering(SLOW), turns=14)
    yield SmallScope("delete-delete", owned, (delete_entity(), delete_entity()), removed, entering(SLOW), turns=5)
    yield SmallScope(
        "delete-put-below",
        _owned(having(SLOW, bucket=False)),
        (delete_entity(), put_entity("child", USER)),
        (*ITEMS, families_are_sound),
        turns=12,
    )

    def two(world: SmallWorld, host: Host) -> None:
        for entity in ("p", "q"):
            host.entities.put(NAMESPACE, entity, EntityChange())

    yield SmallScope(
        "no-circles", two, (put_entity("p", "q"), put_entity("q", "p")), (*ITEMS, families_are_sound), turns=6
    )


def others() -> Iterator[SmallScope]:
    expired = (*ACQUIRES, only_the_full_expire)
    days_ms = 60 * HOUR_MS
    yield SmallScope(
        "expire-take", having(SLOW, taken=3), (take(2, 1), take(1, 1), sweep), expired, entering(SLOW), later_ms=days_ms
    )
    yield SmallScope(
        "expire-take-cold",
        having(SLOW, taken=3),
        (take(2), take(1, 1), sweep),
        expired,
        entering(SLOW, warm=False),
        later_ms=days_ms,
    )

    def tokens(world: SmallWorld) -> None:
        world.notes["tokens"] = 5

    old = (legacy_items_decode, legacy_adds_up)
    yield SmallScope(
        "take-over", legacy_bucket(5), (take(2), legacy_take(1, 1, 2)), old, entering(SLOW, tokens), turns=8
    )
    yield SmallScope(
        "take-over-twice", legacy_bucket(5), (take(2), take(1), legacy_take(2)), old, entering(SLOW, tokens), turns=4
    )
    yield SmallScope(
        "take-over-cold",
        legacy_bucket(5),
        (take(2), legacy_take(1, 1, 1)),
        old,
        entering(SLOW, tokens, warm=False),
        turns=8,
    )
    yield SmallScope(
        "two-namespaces",
        _in_both(SLOW),
        (take_in(NAMESPACE, 3, 3), take_in(OTHER_NAMESPACE, 5), take_in(NAMESPACE, 5)),
        (*ITEMS, *BUCKETS, levels_stay_above_zero, namespaces_are_apart),
        entering(SLOW, warm=False),
    )


def _an_hour(world: SmallWorld) -> None:
    """So that everything is full again, and the lease still open."""
    world.scheduler.pause(200_000)


def _owned(setup: Setup) -> Setup:
    def with_entity(world: SmallWorld, host: Host) -> None:
        setup(world, host)
        host.entities.put(NAMESPACE, USER, EntityChange())

    return with_entity


def _in_both(limits: LimitsByName) -> Setup:
    def setup(world: SmallWorld, host: Host) -> None:
        for namespace in (NAMESPACE, OTHER_NAMESPACE):
            host.limits.put(namespace, OF_RESOURCE, limits)

    return setup


SCOPES: Final = {scope.name: scope for scope in scopes()}
