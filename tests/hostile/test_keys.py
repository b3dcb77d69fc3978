"""A hundred thousand ids that were made to collide: no two things have one key, and no tenant reaches into another."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from itertools import islice
from random import Random

import pytest

from sluice.core.limits import SYSTEM, Scope
from sluice.core.snapshots import LENGTH_MS, SnapshotName, Window
from sluice.repository import budget_keys, keys, money_keys, schema
from sluice.repository.keys import Key
from tests.hostile.fuzz import SEED
from tests.hostile.ids import hostile_ids

COUNT = 100_000
TENANTS = 500
Named = tuple[str, tuple[Hashable, ...]]


@pytest.fixture(scope="module")
def ids() -> Sequence[str]:
    return hostile_ids(COUNT, SEED)


@pytest.fixture(scope="module", autouse=True)
def remembered_encodings() -> Iterator[None]:
    """Each id is in a dozen keys. `encode` has no state, and is itself tested on all of them."""
    with pytest.MonkeyPatch.context() as patch:
        remembered = cache(keys.encode)
        for module in (keys, money_keys, budget_keys):
            patch.setattr(module, "encode", remembered)
        yield


@pytest.fixture(scope="module")
def tenants(ids: Sequence[str]) -> Sequence[str]:
    """The registry's own id is given to none."""
    return [one for one in ids[: TENANTS + 1] if one != keys.REGISTRY_NAMESPACE]


def item_keys(namespace: str, one: str, other: str, number: int, third: str | None) -> Iterator[tuple[Named, Key]]:
    """Every item that these can name, and under which key."""
    shard = number % 17
    yield ("bucket", (namespace, one, other, shard, third)), keys.bucket(namespace, one, other, shard, third)
    yield ("bucket", (namespace, one, other, shard, None)), keys.bucket(namespace, one, other, shard)
    yield ("limits", (namespace, one, other)), keys.limits(namespace, Scope(one, other))
    yield ("limits", (namespace, None, one)), keys.limits(namespace, Scope(resource=one))
    yield ("limits", (namespace, None, None)), keys.limits(namespace, SYSTEM)
    yield ("entity", (namespace, one)), keys.entity(namespace, one)
    yield ("version", (namespace,)), keys.schema_version(namespace)
    yield ("audit", (namespace, one, number, other)), keys.audit_event(namespace, one, number, other)
    yield ("lease", (namespace, one)), keys.lease(namespace, one)
    yield ("answer", (namespace, one, other)), keys.idempotent_answer(namespace, one, other)
    yield ("job", (namespace, one)), keys.job(namespace, one)
    yield ("org", (namespace,)), keys.org_settings(namespace)
    yield ("app", (namespace, one)), keys.app_settings(namespace, one)
    yield from (
        (("usage", (namespace, one, other, name.call_fingerprint, name.window, name.starts_ms)), keys.usage(name))
        for name in (snapshot_name(namespace, one, other, number, fingerprint) for fingerprint in (third, None))
    )
    yield from money_item_keys(namespace, one, other, number, third)


def money_item_keys(
    namespace: str, one: str, other: str, number: int, third: str | None
) -> Iterator[tuple[Named, Key]]:
    """Days are ours, whatever a client sends."""
    day, shard = day_of(number), number % 64
    yield ("price", (namespace, one, day, third)), money_keys.price(namespace, one, day, third)
    yield ("price", (namespace, one, day, None)), money_keys.price(namespace, one, day, None)
    yield ("label", (namespace, one)), money_keys.label(namespace, one)
    yield ("profile", (namespace, one, other)), money_keys.profile(namespace, one, other)
    yield ("event", (namespace, other, day, one)), money_keys.event(namespace, other, day, one)
    yield ("cost", (namespace, one, other, day, shard)), money_keys.cost_shard(namespace, one, other, day, shard)
    yield ("total", (namespace, one, day, other)), money_keys.total(namespace, one, day, other)
    yield ("sticky", (namespace, one, day)), money_keys.sticky(namespace, one, day)
    yield ("ledger", (namespace, one)), budget_keys.ledger(namespace, one)
    yield ("hold", (namespace, one)), budget_keys.hold(namespace, one)
    alert = (day, "cost", str(number % 100), number, number % 7)
    yield ("alert", (namespace, one, *alert)), budget_keys.alert_marker(namespace, one, *alert)


def day_of(number: int) -> str:
    return f"2027{number % 12 + 1:02}{number % 28 + 1:02}"


def snapshot_name(namespace: str, one: str, other: str, number: int, third: str | None) -> SnapshotName:
    window = Window.HOUR if number % 2 else Window.DAY
    return SnapshotName(namespace, one, other, third, window, number % 1000 * LENGTH_MS[Window.DAY])


def registry_keys(one: str) -> Iterator[tuple[Named, Key]]:
    yield ("namespace by name", (one,)), keys.namespace_by_name(one)
    yield ("namespace by id", (one,)), keys.namespace_by_id(one)
    yield ("job", (keys.REGISTRY_NAMESPACE, one)), keys.job(keys.REGISTRY_NAMESPACE, one)
    yield ("client", (one,)), keys.client(one)
    # Marks of clients stand among those of tokens, whose ids we draw ourselves: none of them has a colon.
    yield ("mark", (one,)), keys.revoked_token(one)
    yield ("mark", (one,)), keys.revoked_family(one)
    yield ("mark", (f"client:{one}",)), keys.revoked_client(one)


def index_keys(namespace: str, one: str, other: str, shard: int, third: str | None) -> Iterator[tuple[Named, Key]]:
    """What must be told apart in an index by its keys alone."""
    bucket = keys.bucket_indexes(namespace, one, other, shard, third)
    yield ("bucket of entity", (namespace, one, other, shard, third)), in_index(bucket, schema.GSI3)
    yield ("bucket of resource", (namespace, one, other, shard)), in_index(bucket, schema.GSI2)
    of_entity = keys.limits_indexes(namespace, Scope(one, other))
    yield ("limits of entity", (namespace, one, other)), in_index(of_entity, schema.GSI3)
    app = keys.app_indexes(namespace, one)
    yield ("app", (namespace, one)), in_index(app, schema.GSI3)
    snapshot = snapshot_name(namespace, one, other, shard, third)
    of_snapshot = keys.usage_indexes(snapshot)
    yield (
        ("usage of resource", (namespace, other, snapshot.window, snapshot.starts_ms, one)),
        in_index(of_snapshot, schema.GSI2),
    )
    day = day_of(shard)
    of_total = money_keys.total_indexes(namespace, one, day, other)
    yield ("total of label", (namespace, other, day, one)), in_index(of_total, schema.GSI2)
    of_ledger = budget_keys.ledger_indexes(namespace, one)
    yield ("budget", (namespace, one)), in_index(of_ledger, schema.GSI3)
    of_resource = keys.limits_indexes(namespace, Scope(resource=one))
    yield ("limits of resource", (namespace, one)), in_index(of_resource, schema.GSI3)
    if one.isprintable():
        entity = keys.entity_indexes(namespace, one, other)
        yield ("child", (namespace, other, one)), in_index(entity, schema.GSI1)
        yield ("entity", (namespace, one)), in_index(entity, schema.GSI3)


def registry_index_keys(namespace: str, one: str, other: str, number: int) -> Iterator[tuple[Named, Key]]:
    """What is worked on for all tenants together."""
    day = day_of(number)
    due = money_keys.due_index(namespace, one, day, other)
    yield ("total that is due", (namespace, one, day, other)), in_index(due, schema.GSI3)
    expires_ms = number % 1000 * 60_000
    held = budget_keys.open_hold_index(namespace, one, expires_ms)
    yield ("hold that expires", (namespace, one, expires_ms)), in_index(held, schema.GSI3)


def in_index(made: dict[str, str], index: str) -> Key:
    return Key(made[schema.index_partition_key(index)], made[schema.index_sort_key(index)])


def combined(ids: Sequence[str], tenants: Sequence[str]) -> Iterator[tuple[str, str, str, int, str | None]]:
    """Each id once, with others beside it that come often, so that whatever can meet does meet."""
    random = Random(SEED)
    for number, one in enumerate(ids):
        third = None if random.random() < 0.3 else random.choice(tenants)
        yield random.choice(tenants), one, random.choice(tenants), number, third


def test_the_ids_are_as_hostile_as_they_should_be(ids: Sequence[str]) -> None:
    assert len(set(ids)) == len(ids) == COUNT
    for part in ("%", "#", "/", "!", "\x00", "\n", "\ud800", "\U0001f600", "_default_", "$SYSTEM", "#STATE"):
        assert sum(part in one for one in ids) > COUNT // 100, part
    assert max(map(len, ids)) >= 1000
    assert sum(keys.encode(one) in set(ids[:1000]) for one in ids[:1000]) > 10
    assert "" in ids


def test_encoding_is_injective_and_total(ids: Sequence[str]) -> None:
    encoded = [keys.encode(one) for one in ids]
    assert len(set(encoded)) == COUNT
    for text in encoded:
        text.encode("utf-8")
        assert not set(text) & set("#/!\x00\n\x7f"), text
    # Also in the order of bytes, in which the table has them, and however they are folded elsewhere.
    assert len({text.encode() for text in encoded}) == COUNT


def test_no_two_items_have_one_key_and_each_is_in_the_range_of_its_tenant(
    ids: Sequence[str], tenants: Sequence[str]
) -> None:
    def everything() -> Iterator[tuple[Named, Key]]:
        for one in ids:
            yield from in_range(keys.REGISTRY_NAMESPACE, registry_keys(one))
        for parts in combined(ids, tenants):
            yield from in_range(parts[0], item_keys(*parts))

    assert count_apart(everything()) > 20 * COUNT


def test_no_two_things_have_one_key_in_an_index(ids: Sequence[str], tenants: Sequence[str]) -> None:
    def everything() -> Iterator[tuple[Named, Key]]:
        for namespace, one, other, number, third in combined(ids, tenants):
            yield from in_range(namespace, index_keys(namespace, one, other, number % 17, third))
            yield from in_range(keys.REGISTRY_NAMESPACE, registry_index_keys(namespace, one, other, number))

    assert count_apart(everything()) > 7 * COUNT


def in_range(namespace: str, made: Iterator[tuple[Named, Key]]) -> Iterator[tuple[Named, Key]]:
    """Every range ends with the separator, and there is only one: so what is in one is in no other."""
    own = keys.namespace_prefix(namespace)
    for name, key in made:
        assert key.pk.startswith(own), key
        assert key.pk.count("/") == 1, key
        yield name, key


def test_the_ranges_of_tenants_are_apart(tenants: Sequence[str]) -> None:
    assert len({keys.namespace_prefix(tenant) for tenant in (*tenants, keys.REGISTRY_NAMESPACE)}) == len(tenants) + 1


def count_apart(made: Iterator[tuple[Named, Key]]) -> int:
    """Of how many things the keys were looked at; fails if two of them have one key."""
    # By hashes of 64 bits, not to keep a million keys: two of those meet by chance once in ten million runs.
    things: dict[int, int] = {}
    for name, key in made:
        thing = hash(name)
        assert things.setdefault(hash(key), thing) == thing, (name, key)
    return len(things)


def test_the_partitions_of_all_items_of_tenants_are_apart(tenants: Sequence[str]) -> None:
    partitions = [partition for tenant in tenants for partition in keys.namespace_partitions(tenant)]
    assert len(set(partitions)) == len(tenants) * keys.NAMESPACE_PARTITIONS
    for tenant in tenants:
        # Also of what the registry keeps about a tenant: by it a purge finds that.
        for key in (keys.lease(tenant, tenant), keys.client(tenant), keys.revoked_token(tenant)):
            assert keys.namespace_index(tenant, key)["GSI4PK"] in keys.namespace_partitions(tenant)


def test_a_shard_is_found_from_the_first_and_back(ids: Sequence[str], tenants: Sequence[str]) -> None:
    for namespace, one, other, number, third in islice(combined(ids, tenants), 20_000):
        first = keys.bucket(namespace, one, other, 0, third)
        shard = number % 17
        assert keys.bucket_shard(first, shard) == keys.bucket(namespace, one, other, shard, third)
        assert keys.first_shard(keys.bucket(namespace, one, other, shard, third), shard) == first


@pytest.mark.parametrize("make", [lambda one: keys.entity_indexes("ns", one, None)])
def test_index_keys_of_an_entity_are_total(make: Callable[[str], object]) -> None:
    make("\ud800")
