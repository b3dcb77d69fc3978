"""Where selection stands on a local day, and the label that somebody set for it. Pure.

One item per app or org and day; a new day begins without one. Selection moves the active label, people set the
override: each writes its own attributes only, so that neither takes back what the other did.

A move is conditioned on the label that was seen: of many that saw the same one moves it, and whoever read something
old moves nothing, because selection does not come back to a label that it left.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from sluice.core.period import LocalDay
from sluice.core.selection import Choice, Stand
from sluice.repository import money_keys, schema
from sluice.repository.audit import Image
from sluice.repository.expressions import assigned
from sluice.repository.keys import Key
from sluice.repository.requests import QueryRequest, TransactWrite, UpdateRequest
from sluice.repository.shapes import check_kind, optional_text, optional_whole, text, whole
from sluice.repository.wire import Item, Value

STICKY_STATE: Final = "sticky_state"
KEPT_S: Final = 27 * 3_600
"""After the end of the day as it was known when this was written. Clocks differ; and a change of the zone that comes
later makes the day longer, by 26 hours at most. Were the item gone before, selection would start the day anew."""

# Of one app there are a few days at most.
_LATEST: Final = 8

_OVERRIDE: Final = ("override_label", "override_reason", "override_by", "override_until_ms")
_WHOLE_DAY: Final = "override_whole_day"


class StickyName(NamedTuple):
    """`entity`: the app or org whose selection it is."""

    namespace: str
    entity: str
    day: LocalDay


@dataclass(frozen=True, slots=True)
class Override:
    """`by`: who set it. `until_ms`: it no longer holds then.

    `whole_day`: it holds to the end of its day, whenever that is. `until_ms` then is what was known of it: a change of
    the zone that comes later may make the day longer.
    """

    label: str
    reason: str
    by: str
    until_ms: int
    whole_day: bool = False

    def holds(self, now_ms: int) -> bool:
        """On its own day: another day has another item."""
        return self.whole_day or now_ms < self.until_ms

    def on(self, day: LocalDay) -> "Override":
        """With the time at which it ends, as the day is known now."""
        return replace(self, until_ms=day.ends_ms) if self.whole_day else self


@dataclass(frozen=True, slots=True)
class StickyState:
    """`active_label`: None before selection moved. `moved_at_ms`: when it did so last."""

    active_label: str | None = None
    previous_label: str | None = None
    moved_at_ms: int | None = None
    override: Override | None = None

    def stand(self, now_ms: int) -> Stand:
        override = None if self.override is None or not self.override.holds(now_ms) else self.override.label
        return Stand(self.active_label, self.previous_label, override)


UNMOVED: Final = StickyState()


def move(name: StickyName, choice: Choice, seen_label: str | None, now_ms: int) -> UpdateRequest:
    """Fails where selection stands elsewhere than it was seen.

    May be repeated after a lost answer: it then finds its own label.
    """
    names, sets, values = assigned(
        {
            **_fixed(name),
            "active_label": choice.label,
            "previous_label": choice.previous_label,
            "reason": choice.reason.value,
            "activated_at": now_ms,
            "updated_at": now_ms,
        }
    )
    condition = "attribute_not_exists(#active)"
    if seen_label is not None:
        condition += " OR #active = :seen"
        values[":seen"] = seen_label
    return {
        "Key": _key(name),
        "UpdateExpression": f"SET {sets}, #created = if_not_exists(#created, :now)",
        "ConditionExpression": condition,
        "ExpressionAttributeNames": {**names, "#active": "active_label", "#created": "created_at"},
        "ExpressionAttributeValues": {**values, ":now": now_ms},
    }


def override_set(name: StickyName, override: Override, seen: Override | None, now_ms: int) -> TransactWrite:
    """Replaces the one that was seen, or none."""
    attributes = _override_attributes(override)
    names, sets, values = assigned({**_fixed(name), **attributes, "updated_at": now_ms})
    condition, seen_names, seen_values = _as_seen(seen)
    update = f"SET {sets}, #created = if_not_exists(#created, :now)"
    return {
        "Update": {
            "Key": _key(name),
            "UpdateExpression": update if override.whole_day else f"{update} REMOVE #whole",
            "ConditionExpression": condition,
            "ExpressionAttributeNames": {
                **names,
                **seen_names,
                "#created": "created_at",
                **({} if override.whole_day else {"#whole": _WHOLE_DAY}),
            },
            "ExpressionAttributeValues": {**values, **seen_values, ":now": now_ms},
        }
    }


def override_remove(name: StickyName, seen: Override, now_ms: int) -> TransactWrite:
    condition, names, values = _as_seen(seen)
    return {
        "Update": {
            "Key": _key(name),
            "UpdateExpression": f"SET #updated = :now REMOVE {', '.join(names)}",
            "ConditionExpression": condition,
            "ExpressionAttributeNames": {**names, "#updated": "updated_at"},
            "ExpressionAttributeValues": {**values, ":now": now_ms},
        }
    }


def latest_query(namespace: str, entity: str) -> QueryRequest:
    """Of the last days: older ones expire."""
    return {
        "KeyConditionExpression": "PK = :pk",
        "ExpressionAttributeValues": {":pk": money_keys.stickies_of(namespace, entity)},
        "ScanIndexForward": False,
        "Limit": _LATEST,
        "ConsistentRead": True,
    }


def forget(key: Key) -> TransactWrite:
    return {"Delete": {"Key": {**key.attributes}}}


def decode_sticky(item: Mapping[str, Value]) -> StickyState:
    check_kind(item, STICKY_STATE)
    override = None
    if "override_label" in item:
        override = Override(
            label=text(item, "override_label"),
            reason=text(item, "override_reason"),
            by=text(item, "override_by"),
            until_ms=whole(item, "override_until_ms"),
            whole_day=item.get(_WHOLE_DAY) is True,
        )
    return StickyState(
        active_label=optional_text(item, "active_label"),
        previous_label=optional_text(item, "previous_label"),
        moved_at_ms=optional_whole(item, "activated_at"),
        override=override,
    )


def override_image(override: Override) -> Image:
    """As the audit shows it, which tells by itself who did it."""
    return {"label": override.label, "reason": override.reason, "until_ms": override.until_ms}


def _key(name: StickyName) -> Item:
    return {**money_keys.sticky(name.namespace, name.entity, name.day.name).attributes}


def _fixed(name: StickyName) -> Item:
    """What the item has from its name alone, whoever makes it."""
    return {
        "kind": STICKY_STATE,
        "ns": name.namespace,
        "entity_id": name.entity,
        "day": name.day.name,
        schema.TTL_ATTRIBUTE: -(-name.day.ends_ms // 1000) + KEPT_S,
    }


def _override_attributes(override: Override) -> Item:
    told: Item = dict(zip(_OVERRIDE, (override.label, override.reason, override.by, override.until_ms), strict=True))
    return {**told, _WHOLE_DAY: True} if override.whole_day else told


def _as_seen(seen: Override | None) -> tuple[str, dict[str, str], dict[str, Value]]:
    """The condition, its names and its values. The names are all that an override has."""
    if seen is None:
        return "attribute_not_exists(#o0)", {"#o0": _OVERRIDE[0]}, {}
    attributes = _override_attributes(seen)
    names = {f"#o{number}": attribute for number, attribute in enumerate((*_OVERRIDE, _WHOLE_DAY))}
    values: dict[str, Value] = {f":o{number}": content for number, content in enumerate(attributes.values())}
    parts = [f"#o{number} = :o{number}" for number in range(len(attributes))]
    if not seen.whole_day:
        parts.append(f"attribute_not_exists(#o{len(_OVERRIDE)})")
    return " AND ".join(parts), names, values
