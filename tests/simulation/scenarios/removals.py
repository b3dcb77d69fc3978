"""Entities that are removed with their buckets while they ask, and come back by asking."""

from typing import Final

from sluice.core.audit import BY_SYSTEM
from sluice.core.errors import Contended, LimitExceeded
from sluice.core.limits import Limit, Scope
from sluice.repository import keys
from sluice.repository.items import decode_bucket
from sluice.services.chains import AcquireRequest
from sluice.services.registration import Registration
from tests.simulation.faults import INDEX_LAG_MOST_MS, STALE_MOST_MS
from tests.simulation.invariants import (
    buckets_begin_full,
    every_item_decodes,
    everything_passes_again,
    levels_stay_above_zero,
    nothing_is_lost,
    nothing_is_minted,
    shards_are_whole,
)
from tests.simulation.scenario import Admin, Scenario, Violated
from tests.simulation.world import RESOURCE, Client, Host, Outcome, World

ENTITIES: Final = ("user-1", "user-2")
LIMITS: Final = {"rpm": Limit(20, 30, 20, 1)}
CLIENTS: Final = 4
REQUESTS: Final = 7
TIMES: Final = 6
# A bucket that the index does not show yet may be left.
SHOWN_MS: Final = INDEX_LAG_MOST_MS + STALE_MOST_MS
REMOVE: Final = "remove "


def setup(world: World, admin: Admin) -> None:
    admin.host.limits.put(world.namespace, Scope(resource=RESOURCE), LIMITS)
    world.limits |= dict.fromkeys(ENTITIES, LIMITS)

    def ask(client: Client) -> None:
        while client.done < REQUESTS:
            client.done += 1
            client.wait(world.random_below(client.random.choice((50, 20_000))))
            registration = Registration(None, BY_SYSTEM)
            consume = {"rpm": world.random_below(8)}
            client.acquire(client.random.choice(ENTITIES), consume, registration=registration)

    for number in range(CLIENTS):
        world.add_client(f"client-{number}", ask)
    world.add_client("operator", remove)


def remove(client: Client) -> None:
    world = client.world
    while client.done < TIMES:
        client.done += 1
        client.wait(world.random_below(20_000))
        entity = client.random.choice(ENTITIES)
        for _ in range(client.random.choice((0, 0, 1, 1, 3))):
            split(client, entity)

        def delete(entity: str = entity) -> Outcome:
            client.host.entities.delete(world.namespace, entity)
            return Outcome.DONE

        client.attempt(f"{REMOVE}{entity}", delete)


def split(client: Client, entity: str) -> None:
    """One of the first shards, if it is there."""

    def once() -> Outcome:
        key = keys.bucket(client.world.namespace, entity, RESOURCE, client.random.choice((0, 0, 1)))
        item = client.host.store.get(key, consistent=True)
        if item is not None:
            client.host.buckets.sharding.split(decode_bucket(item))
        return Outcome.DONE

    client.attempt(f"split {entity}", once)


def removed_means_gone(world: World) -> None:
    """Of what was there for long enough, nothing is there once somebody was told that it is removed."""
    alive: dict[keys.Key, int] = {}
    told = sorted(
        (request.ended_ms or 0, request.started_ms, request.entity.removeprefix(REMOVE))
        for request in world.history
        if request.entity.startswith(REMOVE) and request.outcome is Outcome.DONE
    )
    stream = iter([record for record in world.table.stream if (record.new or record.old or {}).get("kind") == "bucket"])
    record = next(stream, None)
    for ended_ms, started_ms, entity in told:
        while record is not None and record.created_ms <= ended_ms:
            if record.new is None:
                alive.pop(record.key, None)
            elif record.old is None or record.old["gen"] != record.new["gen"]:
                alive[record.key] = record.created_ms
            record = next(stream, None)
        prefix = keys.bucket(world.namespace, entity, RESOURCE, 0).pk[:-1]
        for key, made_ms in alive.items():
            if key.pk.startswith(prefix) and made_ms < started_ms - SHOWN_MS:
                raise Violated(f"{key} of {entity} is there although it was removed")


def waits_come_true(world: World) -> None:
    """Whoever is refused passes at the time that was quoted, also where a removal broke off: twice all there is."""

    def ask(host: Host) -> None:
        for entity in ENTITIES:
            request = AcquireRequest(world.namespace, entity, RESOURCE, {"rpm": LIMITS["rpm"].burst})
            for _ in range(2):
                _must_pass(world, host, request)

    world.afterwards(ask)


def _must_pass(world: World, host: Host, request: AcquireRequest) -> None:
    waited_ms = 0
    try:
        try:
            host.acquire.acquire(request)
        except LimitExceeded as refusal:
            waited_ms = refusal.retry_after_ms
            world.scheduler.pause(waited_ms)
            host.acquire.acquire(request)
    except (Contended, LimitExceeded) as error:
        raise Violated(f"{request.entity} waited {waited_ms} ms for {error!r}") from error


REMOVALS: Final = Scenario(
    name="removals",
    setup=setup,
    holds=(
        removed_means_gone,
        buckets_begin_full,
        nothing_is_minted,
        shards_are_whole,
        every_item_decodes,
        nothing_is_lost,
        levels_stay_above_zero,
        waits_come_true,
        everything_passes_again,
    ),
)
