"""What the clients of a small scope do, and what they find."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from sluice.core.admission import Admission
from sluice.core.audit import BY_SYSTEM
from sluice.core.errors import PreconditionFailed
from sluice.core.lease import Lease
from sluice.core.limits import Limit, LimitsByName, Scope
from sluice.repository import keys
from sluice.repository.idempotency import IdempotencyKey
from sluice.repository.items import decode_bucket
from sluice.repository.store import Applied
from sluice.services.chains import AcquireRequest
from sluice.services.entities import EntityChange
from sluice.services.registration import Registration
from tests.simulation.exhaustive import SmallWorld
from tests.simulation.scenario import Program
from tests.simulation.scenarios.leases import Desk
from tests.simulation.turns import EVERYTHING
from tests.simulation.world import RESOURCE, Client, Host, Outcome

USER: Final = "user-1"
ORG: Final = "org"
NAMESPACE: Final = "s0"
OTHER_NAMESPACE: Final = "s1"
OF_RESOURCE: Final = Scope(resource=RESOURCE)
SLOW: Final = {"rpm": Limit(10, 10, 10, 60)}
FIRST: Final = keys.bucket(NAMESPACE, USER, RESOURCE, 0)


@dataclass
class Records:
    """What the programs of one run were told, for the invariants."""

    answers: dict[str, set[str]] = field(default_factory=dict)
    under_key: dict[object, str] = field(default_factory=dict)
    legacy_taken: int = 0
    matched: int = 0
    namespace_of: dict[object, str] = field(default_factory=dict)


def records(world: SmallWorld) -> Records:
    found: Records = world.notes.setdefault("records", Records())
    return found


def desk(world: SmallWorld) -> Desk:
    found: Desk = world.notes.setdefault("desk", Desk())
    return found


def take(*amounts: int, entity: str = USER) -> Program:
    """One acquire after the other."""

    def program(client: Client) -> None:
        for amount in amounts:
            client.acquire(entity, {"rpm": amount})

    return program


def take_in(namespace: str, *amounts: int) -> Program:
    def program(client: Client) -> None:
        for amount in amounts:

            def ask(amount: int = amount) -> Outcome:
                note(client).namespace_of[client.world.scheduler.cause()] = namespace
                acquire(client.host, namespace, USER, {"rpm": amount})
                return Outcome.ADMITTED

            client.attempt(USER, ask, {"rpm": amount})

    return program


def take_registered(amount: int) -> Program:
    def program(client: Client) -> None:
        asked = AcquireRequest(NAMESPACE, USER, RESOURCE, {"rpm": amount}, registration=Registration(ORG, BY_SYSTEM))

        def ask() -> Outcome:
            client.host.acquire.acquire(asked)
            return Outcome.ADMITTED

        client.attempt(USER, ask, {"rpm": amount})

    return program


def take_under(key: str, *amounts: int) -> Program:
    """With an Idempotency-Key; the amount is the body."""

    def program(client: Client) -> None:
        world = client.world
        for amount in amounts:

            def ask(amount: int = amount) -> Outcome:
                note(client).under_key[world.scheduler.cause()] = key
                asked = AcquireRequest(NAMESPACE, USER, RESOURCE, {"rpm": amount})

                def render(admission: Admission) -> str:
                    return str(amount)

                under = IdempotencyKey(NAMESPACE, USER, key, str(amount))
                answered = client.host.idempotent_acquire.acquire(asked, under, render)
                note(client).answers.setdefault(key, set()).add(answered.text)
                return Outcome.ADMITTED

            client.attempt(USER, ask, {"rpm": amount})

    return program


def split(*shards: int) -> Program:
    """As a hot shard would."""
    return lambda client: _reshardings(client, shards, merges=False)


def merge(times: int = 1) -> Program:
    """As the daily pass would."""
    return lambda client: _reshardings(client, (0,) * times, merges=True)


def put_limits(*several: LimitsByName, scope: Scope = OF_RESOURCE) -> Program:
    def program(client: Client) -> None:
        for limits in several:
            client.attempt("limits", partial(_put, client, scope, limits))

    return program


def delete_limits(scope: Scope) -> Program:
    def program(client: Client) -> None:
        def ask() -> Outcome:
            client.host.limits.delete(NAMESPACE, scope)
            return Outcome.DONE

        client.attempt("limits", ask)

    return program


def put_if_match(version: int, *several: LimitsByName) -> Program:
    def program(client: Client) -> None:
        def ask(limits: LimitsByName) -> Outcome:
            try:
                client.host.limits.put(
                    NAMESPACE,
                    OF_RESOURCE,
                    limits,
                    precondition=lambda stored: stored is not None and stored.config_version == version,
                )
            except PreconditionFailed:
                return Outcome.REFUSED
            note(client).matched += 1
            return Outcome.DONE

        for limits in several:
            client.attempt("limits", partial(ask, limits))

    return program


def delete_entity(entity: str = USER) -> Program:
    def program(client: Client) -> None:
        def ask() -> Outcome:
            client.host.entities.delete(NAMESPACE, entity)
            return Outcome.DONE

        client.attempt(f"delete {entity}", ask)

    return program


def put_entity(entity: str, parent: str | None) -> Program:
    def program(client: Client) -> None:
        change = EntityChange(parent=parent)
        client.attempt("entity", lambda: _done(client.host.entities.put(NAMESPACE, entity, change)))

    return program


def settle(*actuals: int) -> Program:
    def program(client: Client) -> None:
        for actual in actuals:
            _change(client, f"settle {actual}", partial(_settle, client, actual))

    return program


def release(times: int = 1) -> Program:
    def program(client: Client) -> None:
        for _ in range(times):
            _change(client, "release", client.host.leases.release)

    return program


def adjust(*deltas: int, key: str | None = None) -> Program:
    """Each under a key of its own, unless all have one."""

    def program(client: Client) -> None:
        for number, delta in enumerate(deltas):
            under = key or f"{client.name}-{number}"
            _change(client, f"adjust {delta}", partial(_adjust, client, delta, under))

    return program


def both(*programs: Program) -> Program:
    def program(client: Client) -> None:
        for one in programs:
            one(client)

    return program


def sweep(client: Client) -> None:
    """What DynamoDB does by itself."""
    world = client.world
    assert isinstance(world, SmallWorld)
    for _ in range(2):
        world.turns.turn()
        world.turns.touch(EVERYTHING)
        for key in world.table.expired_keys():
            world.table.expire(key)


def legacy_take(*amounts: int) -> Program:
    """As an old client spends: only what it sees as tokens."""

    def program(client: Client) -> None:
        for amount in amounts:
            outcome = client.host.store.update(
                {
                    "Key": {**FIRST.attributes},
                    "UpdateExpression": "ADD b_rpm_tk :less, b_rpm_tc :more",
                    "ConditionExpression": "b_rpm_tk >= :more",
                    "ExpressionAttributeValues": {":less": -amount * 1000, ":more": amount * 1000},
                },
                repeatable=False,
            )
            if isinstance(outcome, Applied):
                note(client).legacy_taken += amount

    return program


def note(client: Client) -> Records:
    assert isinstance(client.world, SmallWorld)
    return records(client.world)


def acquire(host: Host, namespace: str, entity: str, consume: Mapping[str, int]) -> None:
    host.acquire.acquire(AcquireRequest(namespace, entity, RESOURCE, consume))


def _change(client: Client, text: str, send: Callable[[Lease], object]) -> None:
    assert isinstance(client.world, SmallWorld)
    known = desk(client.world)
    lease = known.leases[0]

    def ask() -> Outcome:
        known.of_request[client.world.scheduler.cause()] = lease.lease_id
        return _done(send(lease))

    client.attempt(f"{text} {lease.lease_id}", ask)


def _put(client: Client, scope: Scope, limits: LimitsByName) -> Outcome:
    return _done(client.host.limits.put(NAMESPACE, scope, limits))


def _settle(client: Client, actual: int, lease: Lease) -> object:
    return client.host.leases.settle(lease, {"rpm": actual})


def _adjust(client: Client, delta: int, under: str, lease: Lease) -> object:
    return client.host.leases.adjust(lease, {"rpm": delta}, under)


def _reshardings(client: Client, shards: tuple[int, ...], *, merges: bool) -> None:
    for shard in shards:
        client.attempt("reshard", partial(reshard, client.host, shard, merges=merges))


def reshard(host: Host, shard: int, *, merges: bool) -> Outcome:
    item = host.store.get(keys.bucket_shard(FIRST, shard), consistent=True)
    if item is not None and merges:
        host.buckets.sharding.merge(decode_bucket(item))
    elif item is not None:
        host.buckets.sharding.split(decode_bucket(item))
    return Outcome.DONE


def _done(_answer: object) -> Outcome:
    return Outcome.DONE
