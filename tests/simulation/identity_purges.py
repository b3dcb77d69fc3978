"""What must hold of orgs and apps as they come and go, and of a purge."""

from collections import Counter

from sluice.repository import keys
from sluice.repository.wire import Item
from tests.simulation.identity_deeds import Kind, journal_of
from tests.simulation.identity_lives import lives_of
from tests.simulation.scenario import Violated
from tests.simulation.stream import StreamRecord
from tests.simulation.world import Outcome, World

MAKERS = {Kind.PUT_ORG, Kind.PUT_APP}


def made_once(world: World) -> None:
    """A put makes one client at most, in doubt too, and one whenever it told a secret. Nothing else makes any."""
    journal = journal_of(world)
    made: Counter[object] = Counter(
        record.cause
        for record in world.table.stream
        if record.old is None and record.new is not None and record.new.get("kind") == "client"
    )
    told = Counter(secret.request for secret in journal.secrets)
    for number, deed in journal.deeds.items():
        if deed.kind not in MAKERS:
            if deed.kind is not Kind.ROTATE and made[number]:
                raise Violated(f"{made[number]} clients by {deed}")
            continue
        in_doubt = deed.request.outcome in {None, Outcome.UNAVAILABLE}
        if not told[number] <= made[number] <= max(told[number], int(in_doubt)):
            raise Violated(f"{made[number]} clients and {told[number]} secrets by {deed}")


def nothing_of_the_purged_is_left(world: World) -> None:
    """No item, no client, no mark; nor anything that the index finds under its id."""
    purged = lives_of(world).purges_ms
    for item in world.table.items():
        namespace = _namespace(item)
        if namespace in purged and item.get("kind") != "job":
            raise Violated(f"left of the purged {namespace}: {keys.key_of(item)}")


def jobs_touch_only_what_is_purged(world: World) -> None:
    """Everything that a run of jobs changes is of a namespace whose purge was started before, or a job itself."""
    purges_ms = lives_of(world).purges_ms
    for record in world.table.stream[journal_of(world).first_record :]:
        item = record.old or record.new
        assert item is not None
        if not _is_of_jobs(world, record) or item.get("kind") == "job":
            continue
        if purges_ms.get(str(_namespace(item)), record.created_ms + 1) > record.created_ms:
            raise Violated(f"touched by a purge: {record}")


def quiet_org_is_as_it_was(world: World) -> None:
    """To the byte. What is told about it in peace at the end, by a login, is no part of that."""
    before: list[Item] = world.notes["before"]
    (quiet,) = (item for item in before if item.get("kind") == "org" and item["org"] == world.notes["quiet"])
    was = _items_of(before, str(quiet["ns"]))
    now = _items_of(world.table.items(), str(quiet["ns"]))
    if was != now:
        changed = [key for key in was.keys() | now.keys() if was.get(key) != now.get(key)]
        raise Violated(f"changed of an org that nobody touched: {changed}")


def _items_of(items: list[Item], namespace: str) -> dict[keys.Key, Item]:
    return {keys.key_of(item): item for item in items if _namespace(item) == namespace and item.get("kind") != "bucket"}


def _is_of_jobs(world: World, record: StreamRecord) -> bool:
    """In a run of jobs; or in peace at the end, where only jobs remove anything."""
    if not isinstance(record.cause, int):
        return record.new is None
    deed = journal_of(world).deeds.get(record.cause)
    return deed is not None and deed.kind is Kind.RUN_JOBS


def _namespace(item: Item) -> str | None:
    """Whose it is: by its partition, or by what it says where the registry has it."""
    before, _, _ = keys.key_of(item).pk.partition("/")
    if before != keys.REGISTRY_NAMESPACE:
        return before
    indexed = item.get("GSI4PK")
    named = item.get("ns")
    if named is not None:
        return str(named)
    return None if indexed is None else str(indexed).rpartition("#")[0]
