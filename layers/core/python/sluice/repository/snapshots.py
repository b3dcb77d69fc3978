"""Snapshots of usage: how records of the stream are read, how a snapshot is stored, and the write that counts. Pure.

A snapshot has its sums and, per shard, what these were counted from. Both change in one update that asks whether the
counted intervals are as seen; so a repeated update changes nothing, and of two at once one finds the other's.

| attribute | |
|---|---|
| `c_{limit}` | consumed in this window, in millitokens; the prefix keeps names of limits and of attributes apart |
| `total_events` | writes of this window |
| `i_{shard}` | a list: generations that are only named as `{gen}`, then the intervals `{gen, v0, tc0, v1, tc1}` |
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluice.core.snapshots import (
    EMPTY,
    Image,
    Interval,
    Joined,
    Observation,
    ShardName,
    SnapshotName,
    Tally,
    Window,
)
from sluice.repository import keys, schema
from sluice.repository.expressions import Expression
from sluice.repository.items import BUCKET
from sluice.repository.requests import QueryRequest, UpdateRequest
from sluice.repository.shapes import UnknownShape, check_kind, optional_text, text, whole, wholes
from sluice.repository.wire import Item, Value, item_from_wire

SNAPSHOT: Final = "snapshot"
DAY_S: Final = 86_400
KEPT_S: Final = {Window.HOUR: 35 * DAY_S, Window.DAY: 400 * DAY_S}
"""After the end of the window."""

_INTERVAL: Final = "i_"
_CONSUMED: Final = "c_"


@dataclass(frozen=True, slots=True)
class Snapshot:
    name: SnapshotName
    total_events: int
    consumed_milli: Mapping[str, int]
    tallies: Mapping[int, Tally]
    version: int
    created_at_ms: int
    updated_at_ms: int
    expires_at_s: int


def observe(record: Mapping[str, Any], position: int) -> Observation | None:
    """A record of the stream, as the function gets it. None for one that is about no bucket.

    What stood there before in an older layout is not seen: the bucket that replaced it was made anew.
    """
    try:
        change = record["dynamodb"]
        old, new = _bucket_in(change.get("OldImage")), _bucket_in(change.get("NewImage"))
        item = new or old
        if item is None:
            return None
        at_ms = int(change["ApproximateCreationDateTime"] * 1000)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        # Its own words may hold what a tenant wrote.
        raise UnknownShape({"kind": "record"}, type(error).__name__) from None
    shard = ShardName(
        text(item, "ns"),
        text(item, "entity_id"),
        text(item, "resource"),
        optional_text(item, "call_lh"),
        whole(item, "shard"),
    )
    return Observation(position, shard, _image(old), _image(new), at_ms)


def count(name: SnapshotName, seen: Mapping[int, Tally], joined: Joined, now_ms: int) -> UpdateRequest:
    """Adds what a fold brought, if the intervals of its shards are as seen. Makes the snapshot where there is none."""
    update = Expression()
    exists = False
    for shard, tally in joined.tallies.items():
        alias, value = f"#i{shard}", f":i{shard}"
        update.names[alias] = f"{_INTERVAL}{shard}"
        update.sets.append(f"{alias} = {value}")
        update.values[value] = _encode_tally(tally)
        before = seen.get(shard, EMPTY)
        if before == EMPTY:
            update.conditions.append(f"attribute_not_exists({alias})")
        else:
            exists = True
            update.conditions.append(f"{alias} = {value}s")
            update.values[f"{value}s"] = _encode_tally(before)
    sums: dict[str, int] = {
        f"{_CONSUMED}{limit}": milli for limit, milli in joined.increase.consumed_milli.items() if milli
    }
    for number, (attribute, milli) in enumerate({"total_events": joined.increase.events, **sums}.items()):
        update.names[f"#a{number}"] = attribute
        update.adds.append(f"#a{number} :a{number}")
        update.values[f":a{number}"] = milli
    fixed: dict[str, Value] = {"updated_at": now_ms} if exists else {**_fixed(name), "updated_at": now_ms}
    for number, (attribute, content) in enumerate(fixed.items()):
        update.names[f"#s{number}"] = attribute
        update.sets.append(f"#s{number} = :s{number}")
        update.values[f":s{number}"] = content
    if not exists:
        update.sets.append("created_at = if_not_exists(created_at, :now)")
        update.values[":now"] = now_ms
    return update.request(keys.usage(name))


def decode_snapshot(item: Mapping[str, Value]) -> Snapshot:
    check_kind(item, SNAPSHOT)
    try:
        window = Window(text(item, "window"))
    except ValueError:
        raise UnknownShape(item, "window is not known") from None
    return Snapshot(
        name=SnapshotName(
            text(item, "ns"),
            text(item, "entity_id"),
            text(item, "resource"),
            optional_text(item, "call_lh"),
            window,
            whole(item, "window_start"),
        ),
        total_events=whole(item, "total_events"),
        consumed_milli={
            attribute.removeprefix(_CONSUMED): whole(item, attribute)
            for attribute in item
            if attribute.startswith(_CONSUMED)
        },
        tallies=decode_tallies(item),
        version=whole(item, "v"),
        created_at_ms=whole(item, "created_at"),
        updated_at_ms=whole(item, "updated_at"),
        expires_at_s=whole(item, schema.TTL_ATTRIBUTE),
    )


def decode_tallies(item: Mapping[str, Value]) -> dict[int, Tally]:
    """By shard, what a snapshot was counted from."""
    check_kind(item, SNAPSHOT)
    return {
        int(attribute.removeprefix(_INTERVAL)): _decode_tally(item, attribute)
        for attribute in item
        if attribute.startswith(_INTERVAL)
    }


def earlier_query(name: SnapshotName, limit: int) -> QueryRequest:
    """The snapshots of the windows before this one, the latest first."""
    key = keys.usage(name)
    return {
        "KeyConditionExpression": "PK = :pk AND SK BETWEEN :first AND :last",
        "ExpressionAttributeValues": {
            ":pk": key.pk,
            ":first": keys.usage_of(name.resource, name.window, name.call_fingerprint),
            ":last": keys.usage(_window_before(name)).sk,
        },
        "ScanIndexForward": False,
        "ConsistentRead": True,
        "Limit": limit,
    }


def _window_before(name: SnapshotName) -> SnapshotName:
    starts_ms = 2 * name.starts_ms - name.ends_ms
    return SnapshotName(name.namespace, name.entity, name.resource, name.call_fingerprint, name.window, starts_ms)


def _fixed(name: SnapshotName) -> Item:
    """What a snapshot has from its name alone, whoever makes it."""
    item: Item = {
        **keys.usage_indexes(name),
        "kind": SNAPSHOT,
        "ns": name.namespace,
        "entity_id": name.entity,
        "resource": name.resource,
        "window": name.window.value,
        "window_start": name.starts_ms,
        schema.TTL_ATTRIBUTE: name.ends_ms // 1000 + KEPT_S[name.window],
    }
    if name.call_fingerprint is not None:
        item["call_lh"] = name.call_fingerprint
    return item


def _bucket_in(wire: Mapping[str, Any] | None) -> Item | None:
    if wire is None or wire.get("kind") != {"S": BUCKET}:
        return None
    return item_from_wire(wire)


def _image(item: Item | None) -> Image | None:
    if item is None:
        return None
    return Image(
        version=whole(item, "v"),
        generation=whole(item, "gen"),
        shard_count=whole(item, "shard_count"),
        consumed_milli={
            attribute[2:-3]: whole(item, attribute)
            for attribute in item
            if attribute.endswith("_tc") and attribute.startswith("b_")
        },
    )


def _encode_tally(tally: Tally) -> list[Value]:
    named: list[Value] = [{"gen": generation} for generation in tally.named]
    return named + [
        {
            "gen": interval.generation,
            "v0": interval.from_version,
            "tc0": dict(interval.from_milli),
            "v1": interval.to_version,
            "tc1": dict(interval.to_milli),
        }
        for interval in tally.kept
    ]


def _decode_tally(item: Mapping[str, Value], attribute: str) -> Tally:
    entries = item[attribute]
    if not isinstance(entries, list):
        raise UnknownShape(item, f"{attribute} is not a list")
    named: list[int] = []
    kept: list[Interval] = []
    for entry in entries:
        if not isinstance(entry, dict):
            raise UnknownShape(item, f"{attribute} has elements that are not maps")
        if "v1" not in entry:
            named.append(whole(entry, "gen"))
            continue
        kept.append(
            Interval(
                whole(entry, "gen"), whole(entry, "v0"), wholes(entry, "tc0"), whole(entry, "v1"), wholes(entry, "tc1")
            )
        )
    return Tally(tuple(kept), tuple(named))
