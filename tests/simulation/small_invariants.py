"""What must hold after every order of a small scope."""

from collections import defaultdict
from fractions import Fraction

from sluice.repository import keys
from sluice.repository.audit import AUDIT, decode_audit_event
from sluice.repository.idempotency import IDEMPOTENT_ANSWER, decode_answer
from sluice.repository.items import BUCKET, ENTITY, LIMITS, decode_bucket, decode_entity, decode_limits
from sluice.repository.leases import LEASE, State, decode_lease
from sluice.repository.wire import Item
from tests.simulation.exhaustive import SmallWorld
from tests.simulation.scenario import Violated
from tests.simulation.small_programs import FIRST, NAMESPACE, OF_RESOURCE, OTHER_NAMESPACE, USER, desk, records
from tests.simulation.world import Outcome, World

_DECODE = {
    BUCKET: decode_bucket,
    LIMITS: decode_limits,
    ENTITY: decode_entity,
    AUDIT: decode_audit_event,
    LEASE: decode_lease,
    IDEMPOTENT_ANSWER: decode_answer,
}


def every_item_decodes(world: World) -> None:
    for item in world.table.items():
        if item.get("kind") not in _DECODE:
            raise Violated(f"half an item: {item}")
        _DECODE[str(item["kind"])](item)


def shards_are_complete(world: World) -> None:
    """The shares that the shards of a bucket say they have are one whole, of the limits and of the burst."""
    buckets: dict[str, list[Item]] = defaultdict(list)
    for item in world.table.items():
        if item.get("kind") == BUCKET:
            buckets[str(item["PK"]).rpartition("#")[0]].append(item)
    for name, shards in buckets.items():
        counts = {int(str(item["PK"]).rpartition("#")[2]): _whole(item["shard_count"]) for item in shards}
        if sum((Fraction(1, count) for count in counts.values()), Fraction()) != 1:
            raise Violated(f"{name} has the shards {counts}")
        if any(item["lh"] != f"{str(item['lh']).partition(':')[0]}:{item['shard_count']}" for item in shards):
            raise Violated(f"{name}: a hash names another count: {shards}")
        if len({str(item["lh"]).partition(":")[0] for item in shards}) > 1:
            # Under different limits for a while: the burst is nobody's sum.
            continue
        for attribute in (attribute for attribute in shards[0] if attribute.endswith("_bx")):
            whole = sum(_whole(item[attribute]) for item in shards)
            if whole % 1000:
                raise Violated(f"{name}: {attribute} adds up to {whole}")


def changes_are_audited(world: World) -> None:
    """Each write that changes limits or an entity has as many events, and no event comes without a change."""
    changed: dict[int, int] = defaultdict(int)
    told: dict[int, int] = defaultdict(int)
    for record in world.table.stream:
        item = record.new or record.old
        kind = None if item is None else item.get("kind")
        if kind in {LIMITS, ENTITY}:
            changed[record.write] += 1
        elif kind == AUDIT:
            told[record.write] += 1
    if changed != told:
        raise Violated(f"changes by write {dict(changed)}, events {dict(told)}")


def keys_are_charged_once(world: World) -> None:
    """All requests under a key together take what its one answer says."""
    assert isinstance(world, SmallWorld)
    known = records(world)
    charged: dict[str, int] = defaultdict(int)
    for changes in world.changes.values():
        for change in changes:
            key = known.under_key.get(change.cause)
            if key is not None:
                charged[key] += change.limits["rpm"].consumed
    for key in set(known.under_key.values()):
        answers = known.answers.get(key, set())
        if len(answers) > 1:
            raise Violated(f"{key} was answered {answers}")
        item = world.table.get(keys.idempotent_answer(NAMESPACE, USER, key))
        recorded = 0 if item is None else int(decode_answer(item).answer)
        if charged[key] != recorded * 1000 or (answers and answers != {str(recorded)}):
            raise Violated(f"{key} took {charged[key]}, answered {answers}, recorded {recorded}")


def others_are_charged_exactly(world: World) -> None:
    """Those without a key."""
    assert isinstance(world, SmallWorld)
    under_key = records(world).under_key
    charged: dict[object, int] = defaultdict(int)
    for changes in world.changes.values():
        for change in changes:
            charged[change.cause] += change.limits["rpm"].consumed
    for request in world.history:
        if request.number in under_key:
            continue
        wanted = request.consume.get("rpm", 0) * 1000 if request.outcome is Outcome.ADMITTED else 0
        if charged[request.number] != wanted and not request.may_be_charged:
            raise Violated(f"{request}: charged {charged[request.number]}")


def one_match_wins(world: World) -> None:
    """Of all that asked for the same version one was stored, and the version counts the changes."""
    assert isinstance(world, SmallWorld)
    item = world.table.get(keys.limits(NAMESPACE, OF_RESOURCE))
    assert item is not None
    version = decode_limits(item).config_version
    matched = records(world).matched
    lost = sum(request.outcome is Outcome.UNAVAILABLE for request in world.history)
    if matched > 1 or version != 2 or matched + lost < 1:
        raise Violated(f"{matched} were told that they matched, and the version is {version}")


def closes_once(world: World) -> None:
    """Whatever was done to the lease: what it stands for was taken, or is left out; and it never opens again."""
    assert isinstance(world, SmallWorld)
    known = desk(world)
    (lease,) = known.leases
    closed = False
    for record in world.table.stream:
        if record.key == keys.lease(NAMESPACE, lease.lease_id):
            if closed:
                raise Violated(f"changed after it was closed: {record.old} {record.new}")
            closed = record.new is not None and decode_lease(record.new).state is not State.OPEN
    charged = 0
    for changes in world.changes.values():
        for change in changes:
            if change.cause in known.of_request:
                charged += change.limits["rpm"].consumed
    item = world.table.get(keys.lease(NAMESPACE, lease.lease_id))
    state = None if item is None else decode_lease(item)
    if state is None:
        expected = lease.consumed["rpm"]
    elif state.state is State.OPEN:
        expected = lease.consumed["rpm"] + state.adjusted.get("rpm", 0)
    else:
        expected = state.closed_with["rpm"]
    most = expected if state is None or not state.left_out else lease.consumed["rpm"] + 20
    if not expected * 1000 <= charged <= most * 1000:
        raise Violated(f"the lease took {charged}, and is {state}")


def legacy_adds_up(world: World) -> None:
    """What old and new clients took together is what is missing, and it is counted once."""
    assert isinstance(world, SmallWorld)
    item = world.table.get(FIRST)
    assert item is not None
    admitted = sum(request.consume.get("rpm", 0) for request in world.history if request.outcome is Outcome.ADMITTED)
    taken = (admitted + records(world).legacy_taken) * 1000
    if item.get("b_rpm_tc") != taken:
        raise Violated(f"{taken} were taken, and counted is {item.get('b_rpm_tc')}")
    tokens: int = world.notes["tokens"]
    balance = _whole(item["b_rpm_tk"])
    refill = world.scheduler.now_ms * _whole(item["b_rpm_ra"]) // _whole(item["b_rpm_rp"]) if "lh" in item else 0
    if balance + refill != tokens * 1000 - taken:
        raise Violated(f"{tokens} less {taken} are {balance + refill}")


def legacy_items_decode(world: World) -> None:
    for item in world.table.items():
        if "kind" in item:
            _DECODE[str(item["kind"])](item)
        elif "rf" not in item or "lh" in item:
            raise Violated(f"neither old nor new: {item}")


def namespaces_are_apart(world: World) -> None:
    assert isinstance(world, SmallWorld)
    of = records(world).namespace_of
    for record in world.table.stream:
        if record.cause is not None and not record.key.pk.startswith(f"{of[record.cause]}/"):
            raise Violated(f"a client of {of[record.cause]} wrote {record.key}")
    for namespace in (NAMESPACE, OTHER_NAMESPACE):
        admitted = sum(
            request.consume["rpm"]
            for request in world.history
            if of[request.number] == namespace and request.outcome is Outcome.ADMITTED
        )
        item = world.table.get(keys.bucket(namespace, USER, "gpt-4", 0))
        if (0 if item is None else item["b_rpm_tc"]) != admitted * 1000:
            raise Violated(f"{namespace} admitted {admitted}: {item}")


def registered_once(world: World) -> None:
    events = [item for item in world.table.items() if item.get("action") == "entity.register"]
    if len(events) != 1 or world.table.get(keys.entity(NAMESPACE, USER)) is None:
        raise Violated(f"{len(events)} registrations")


def families_are_sound(world: World) -> None:
    """Every parent is there, and nobody stands above itself."""
    parents = {
        str(item["entity_id"]): item.get("parent_id") for item in world.table.items() if item.get("kind") == ENTITY
    }
    for entity, parent in parents.items():
        above, seen = parent, {entity}
        while above is not None:
            if above in seen or above not in parents:
                raise Violated(f"{entity} stands below {above}: {parents}")
            seen.add(str(above))
            above = parents[str(above)]


def nothing_is_left(world: World) -> None:
    """Of a removed entity: neither itself nor limits of its own. A bucket only where somebody asked after it."""
    if world.table.get(keys.entity(NAMESPACE, USER)) is not None:
        raise Violated("the entity is still there")


def rebased_once(world: World) -> None:
    """Where limits change once, nobody moves a bucket back to what they were."""
    moved: dict[object, int] = defaultdict(int)
    for changes in world.changes.values():
        for change in changes:
            for record in change.records:
                if change.is_rebased:
                    moved[record.key] += 1
    if any(times > 1 for times in moved.values()):
        raise Violated(f"rebased to and fro: {dict(moved)}")


def splits_leave_no_debt(world: World) -> None:
    """Beyond what a shard refills in 100 ms; unless there was a debt before."""
    for changes in world.changes.values():
        for change in changes:
            if not change.is_split:
                continue
            for name, limit in change.limits.items():
                had = min(0, *(state.level(change.time_ms) for state in limit.before), 0)
                for state in limit.after:
                    if state.level(change.time_ms + 100) < had - 1:
                        raise Violated(f"a split left {state.level(change.time_ms)} of {name}: {change}")


def resharding_fills_nothing(world: World) -> None:
    """What the shards have up to their bursts is no more after a split or a merge than before. Each rounds down."""
    for changes in world.changes.values():
        for change in changes:
            if not (change.is_split or change.is_merged):
                continue
            for name, limit in change.limits.items():
                had = sum(min(state.level(change.time_ms), state.burst) for state in limit.before)
                has = sum(min(state.level(change.time_ms), state.burst) for state in limit.after)
                if has > had + len(limit.before):
                    raise Violated(f"{has - had} of {name} out of nothing: {change}")


def nothing_returns_elsewhere(world: World) -> None:
    """What a request gives back it gives to the very incarnations that it took from."""
    taken: dict[tuple[object, object, str], int] = defaultdict(int)
    for changes in world.changes.values():
        for change in changes:
            if len(change.records) > 1 or change.records[0].new is None:
                continue
            for name, limit in change.limits.items():
                place = (change.cause, change.records[0].new["gen"], name)
                taken[place] += limit.consumed
                if taken[place] < 0:
                    raise Violated(f"given back to a bucket that had not given it: {change}")


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value
